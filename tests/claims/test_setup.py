"""How processes become ranks: variables, stores, process groups, and what launchers do besides."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta

import psutil
import pytest
import torch
import torch.distributed as dist
from patience import postmortem
from proof import proves
from started import CLEAN

from ddplab import LaunchError, launch
from ddplab.apparatus.machines import Fork, Program
from ddplab.apparatus.recipes import FOLDER
from tools import PATIENCE_S, free_port


def torchrun(program, *options, **env):
    """Start torchrun as a user would; a program is a file of gallery/recipes or the text of one."""
    command = ["torchrun", *options]
    command += [str(FOLDER / program)] if program.endswith(".py") else ["--no-python", sys.executable, "-c", program]
    return Program(command, start=lambda command, _: Fork(command, CLEAN | env))


def said(agent):
    """What it printed until its end."""
    agent.wait(PATIENCE_S)
    return agent.output


def told(agent):
    """The variables that each rank of variables.py got, in rank order."""
    lines = said(agent).replace("}{", "}\n{").splitlines()
    return sorted((json.loads(line) for line in lines if line.startswith("{")), key=lambda v: int(v["RANK"]))


def sum_over_ranks():
    """What an all-reduce of 1, 2, … gives; a group that works gives the same on all ranks."""
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    return total.item()


# -- variables ------------------------------------------------------------------------------------


@proves("setup-spawn-sets-nothing")
def test_spawn_sets_no_variables(tmp_path):
    """A spawned process has its parent's environment and nothing more; its number comes as an argument."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "from torch import multiprocessing as mp\n"
        "def show(number, before):\n"
        "    print(number, sorted(set(os.environ) - before))\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(show, (set(os.environ),), nprocs=2)\n"
    )
    printed = said(Program(["python", str(program)], start=lambda command, _: Fork(command, CLEAN)))
    assert sorted(printed.splitlines()) == ["0 []", "1 []"]


@proves("setup-torchrun-threads")
def test_torchrun_gives_each_rank_one_thread_unless_told_otherwise():
    """OMP_NUM_THREADS is 1 for several ranks per node, the user's value where there is one, unset for one rank."""
    several, threes, single = (
        torchrun("variables.py", "--standalone", "--nproc-per-node=2"),
        torchrun("variables.py", "--standalone", "--nproc-per-node=2", OMP_NUM_THREADS="3"),
        torchrun("variables.py", "--standalone", "--nproc-per-node=1"),
    )
    for agent, expected in (several, ["1", "1"]), (threes, ["3", "3"]), (single, [None]):
        assert [v.get("OMP_NUM_THREADS") for v in told(agent)] == expected


@proves("setup-torchrun-reads-pet")
def test_torchrun_takes_options_from_the_environment():
    """PET_NPROC_PER_NODE stands for --nproc-per-node; an option on the command line has precedence."""
    env = {"PET_NPROC_PER_NODE": "2", "PET_NNODES": "1"}
    environment = torchrun("variables.py", "--standalone", **env)
    command_line = torchrun("variables.py", "--standalone", "--nproc-per-node=1", **env)
    assert (len(told(environment)), len(told(command_line))) == (2, 1)


@proves("setup-c10d-numbers-nodes-by-address")
def test_c10d_numbers_nodes_in_the_order_of_their_addresses(tmp_path):
    """Two agents, whichever has --node-rank 0: 127.0.0.10 is node 0 and 127.0.0.2 node 1, and so are their ranks.

    Without --local-addr it is the full host name that decides, here two names that can be reached.
    """

    def job(wanted):
        meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.2:{free_port('127.0.0.2')}", "--nnodes=2"]
        return [
            torchrun("variables.py", *meet, f"--local-addr={address}", f"--node-rank={node}", "--nproc-per-node=2")
            for address, node in [("127.0.0.2", wanted), ("127.0.0.10", 1 - wanted)]
        ]

    def named(host, node, port):
        program = tmp_path / f"{host}.py"
        patch = f"import socket; socket.getfqdn = lambda *_: {host!r}; from torch.distributed.run import main; main()"
        program.write_text(patch)
        meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf=is_host={1 - node}"]
        run = ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2", str(FOLDER / "variables.py")]
        return Program(["python", str(program), *meet, *run], start=lambda command, _: Fork(command, CLEAN))

    port = free_port()
    by_name = [named("127.0.0.2", 0, port), named("127.0.0.10", 1, port)]
    for agents in [job(0), job(1), by_name]:
        numbers = [[(v["GROUP_RANK"], v["RANK"]) for v in told(agent)] for agent in agents]
        assert numbers == [[("1", "2"), ("1", "3")], [("0", "0"), ("0", "1")]]


@proves("setup-standalone-is-alone")
def test_two_standalone_agents_are_two_jobs():
    """At the same time on one host: both have ranks 0 and 1 and a world size of 2, and they meet at two ports."""
    agents = [torchrun("variables.py", "--standalone", "--nproc-per-node=2") for _ in range(2)]
    jobs = [told(agent) for agent in agents]
    assert [[(v["RANK"], v["WORLD_SIZE"]) for v in job] for job in jobs] == [[("0", "2"), ("1", "2")]] * 2
    assert jobs[0][0]["MASTER_PORT"] != jobs[1][0]["MASTER_PORT"]


@proves("setup-one-failure-ends-all")
def test_torchrun_ends_all_ranks_when_one_fails():
    """Rank 1 leaves with code 3 while rank 0 would sleep for minutes; torchrun ends it, reports 3 and exits with 1."""
    program = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(300)"
    agent = torchrun(program, "--standalone", "--nproc-per-node=2")
    printed = said(agent)
    assert agent.returncode == 1
    assert "exitcode  : 3" in printed


# -- the meeting ----------------------------------------------------------------------------------


@proves("setup-file-outlives-a-killed-run")
def test_a_killed_run_leaves_its_file_and_its_addresses(tmp_path):
    """The last rank to end removes the file; after a run that was killed it still has the ranks' addresses."""

    def meet(path, *, kill):
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
        dist.barrier()
        if kill:
            (tmp_path / f"{rank} is through").touch()
            while not (tmp_path / f"{1 - rank} is through").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        gone = path.with_suffix(".gone")
        while rank == 1 and not gone.exists():  # if both end at once, neither may remove the file
            time.sleep(0.01)
        dist.destroy_process_group()
        if rank == 0:
            gone.touch()

    well, killed = tmp_path / "well", tmp_path / "killed"
    launch(lambda: meet(well, kill=False), 2, init=False)
    assert not well.exists()
    with pytest.raises(LaunchError):
        launch(lambda: meet(killed, kill=True), 2, init=False)
    assert b"cpu//" in killed.read_bytes()


@proves("setup-who-holds-the-store")
def test_who_listens_at_the_master_port():
    """Without torchrun it is rank 0; under torchrun no rank does, because the agent holds the store."""

    def listens():
        dist.init_process_group("gloo")
        port = int(os.environ["MASTER_PORT"])
        return any(c.laddr.port == port and c.status == "LISTEN" for c in psutil.Process().net_connections())

    assert launch(listens, 3, init=False) == [True, False, False]
    program = (
        "import os, psutil, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "mine = psutil.Process().net_connections()\n"
        "listens = any(c.laddr.port == port and c.status == 'LISTEN' for c in mine)\n"
        "print(f'listens: {listens}\\n', end='', flush=True)\n"
        "last = dist.barrier(async_op=True)\n"
        "last.wait()\n"
    )
    printed = said(torchrun(program, "--standalone", "--nproc-per-node=2"))
    assert printed.count("listens: False") == 2, printed


# -- the group ------------------------------------------------------------------------------------


@proves("setup-one-default-group")
def test_one_default_group_at_a_time(tmp_path):
    """A second init_process_group raises; after destroy_process_group it works in a new place, not at the old port.

    Rank 1 is back before rank 0 has left, and at the old port finds the store that is about to go.
    """

    def clients():
        """The ports from which ranks have come to the store."""
        port, mine = int(os.environ["MASTER_PORT"]), psutil.Process().net_connections()
        return {c.raddr.port for c in mine if c.laddr.port == port and c.status == "ESTABLISHED"}

    def twice(**place):
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group("gloo")
        before = clients()
        dist.barrier()
        if rank == 0:
            while "init_method" not in place and not clients() - before:
                time.sleep(0.01)
            time.sleep(0.5)  # and a little longer, for what rank 1 does then
        dist.destroy_process_group()
        dist.init_process_group("gloo", rank=rank, world_size=2, **place)
        return sum_over_ranks()

    place = {"init_method": f"file://{tmp_path}/meet"}
    assert launch(lambda: twice(**place), 2, init=False) == [3, 3]
    soon = timedelta(seconds=2)
    endings = postmortem(lambda: twice(timeout=soon), 2, init=False)
    assert [ending.how for ending in endings] == ["raised", "raised"]


@proves("setup-default-backend")
def test_without_a_backend_each_device_type_gets_its_own():
    """init_process_group() alone: gloo serves CPU tensors, whatever accelerator there is."""

    def default():
        dist.init_process_group()
        config, total = dist.get_backend_config(), sum_over_ranks()
        dist.barrier(dist.new_group(backend="gloo"))  # one of all backends would have two ranks on one GPU meet by NCCL
        dist.destroy_process_group()
        return config, total

    for config, total in launch(default, 2, init=False):
        assert "cpu:gloo" in config
        assert total == 3


OUTLIVED = """
import sys
import torch, torch.distributed as dist
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel

def gloo_threads():
    names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)

def step():
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()

if sys.argv[1] == "before":
    import torch.distributed.nn
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
step()
during = gloo_threads()
group = dist.group.WORLD
dist.destroy_process_group()
del group
print(during > 0, gloo_threads())
"""


@proves("group-outlives-destroy")
def test_ddp_imports_functions_that_keep_the_group():
    """New Pythons, since ranks of ``launch`` have imported all of it before: gloo's threads after the last name."""
    kinds = ("by DDP", "before")
    command = [sys.executable, "-c", OUTLIVED]
    started = [subprocess.Popen([*command, kind], stdout=subprocess.PIPE, text=True) for kind in kinds]
    kept, freed = (process.communicate(timeout=PATIENCE_S)[0].split() for process in started)
    assert kept[0] == freed[0] == "True"
    assert int(kept[1]) > 0 == int(freed[1])


UNEVEN = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
model(torch.tensor([[1.0 + rank]])).sum().backward()
place = f"{os.environ['GROUP_RANK']}.{os.environ['LOCAL_RANK']}"
gradient = model.module.weight.grad.item()
print(f"rank {rank} of {dist.get_world_size()} at {place} gradient {gradient}\\n", end="", flush=True)
dist.barrier()
os._exit(0)  # Python taking leave may abort or hang in gloo, see hello_ddp.py
"""


@proves("setup-uneven-agents-make-one-world")
def test_agents_with_different_numbers_of_ranks_make_one_world():
    """One rank here and two there: a world of three, with the mean gradient on each."""
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--nnodes=2"]
    agents = [
        torchrun(UNEVEN, *meet, f"--rdzv-conf=is_host={2 - n}", f"--local-addr=127.0.0.{n}", f"--nproc-per-node={n}")
        for n in (1, 2)
    ]
    printed = "".join(said(agent) for agent in agents)
    ranks = sorted(re.findall(r"rank (\d) of (\d) at (\S+) gradient (\S+)", printed))
    assert ranks == [("0", "3", "0.0", "2.0"), ("1", "3", "1.0", "2.0"), ("2", "3", "1.1", "2.0")]


@proves("setup-local-ranks-filter")
def test_the_filter_of_ranks_leaves_the_files_whole(tmp_path):
    """Only rank 0 in the console; with --tee or --redirects and --log-dir each rank has a file all the same."""

    def job(name, *files):
        options = [*files, "--log-dir", str(tmp_path / name)] if files else []
        one_rank = "import os; print('rank ' + os.environ['RANK'] + ' was here')"
        return torchrun(one_rank, "--standalone", "--nproc-per-node=2", "--local-ranks-filter", "0", *options)

    agents = {"alone": job("alone"), "tee": job("tee", "--tee", "3"), "redirects": job("redirects", "--redirects", "3")}
    consoles = {name: re.findall(r"rank (\d) was here", said(agent)) for name, agent in agents.items()}
    assert consoles == {"alone": ["0"], "tee": ["0"], "redirects": []}
    for name in ("tee", "redirects"):
        kept = sorted((path.parent.name, path.read_text()) for path in (tmp_path / name).rglob("stdout.log"))
        assert kept == [("0", "rank 0 was here\n"), ("1", "rank 1 was here\n")]
