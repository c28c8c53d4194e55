"""torchrun's agents: who restarts, what a restart costs, and which of its options act when."""

import functools
import os
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from proof import proves

from ddplab.machines import loopback, torchrun
from ddplab.needs import needs

LIMIT_S = 90  # for what takes a few seconds on free cores; no result depends on it
FRESH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# The port is another in each life, but somebody may take it before rank 0 does: so it only names a file to meet in.
MEET = """
where = f"file://{sys.argv[1]}-{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", where, datetime.timedelta(seconds=60), rank=rank, world_size=world)
"""
TRAINING = """
import datetime, os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddplab.checkpoint import CheckpointManager
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
life, fatal_step, every = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(sys.argv[2]), int(sys.argv[3])
MEET
torch.manual_seed(0)
layers = torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
torch.manual_seed(rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
manager, state = CheckpointManager(sys.argv[1]), {"model": model, "optimizer": optimizer}
found = manager.load(state)
first = found["step"] + 1 if found else 1
print(f"rank {rank} life {life} pid {os.getpid()} begins with {first}\\n", end="", flush=True)
for step in range(first, 13):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))[rank::world]
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"rank {rank} life {life} step {step} loss {loss.item().hex()}\\n", end="", flush=True)
    if step % every == 0:
        manager.save(state, step)
    if (life, rank, step) == (0, 1, fatal_step):
        os.kill(os.getpid(), 9)
dist.barrier()
os._exit(0)  # Python taking leave may abort or hang in gloo, see hello_ddp.py
""".replace("MEET", MEET)


def quiet_port():
    """A port for agents to meet at, below those that the system gives away by itself while they start."""
    return random.randrange(20000, 30000)


def said(pattern, output):
    """What all ranks said, as tuples of words or numbers."""
    found = re.findall(pattern, output)
    return [tuple(int(word) if word.isdigit() else word for word in words) for words in found]


@proves("ckpt-killed-rank-restarts-all")
def test_a_killed_rank_costs_less_than_one_interval(tmp_path):
    """Killed after step 7 of 12, saves after every third: both ranks come back, and all losses are as undisturbed."""
    every = 3

    def train(fatal_step):
        program = [
            "--no-python",
            "python",
            "-c",
            TRAINING,
            str(tmp_path / str(fatal_step)),
            str(fatal_step),
            str(every),
        ]
        with loopback(1) as hosts:
            (agent,) = torchrun(hosts, "--nproc-per-node=2", "--max-restarts=1", *program, port=0, env=FRESH)
            assert agent.wait(160) == 0, agent.output
            return agent.output

    with ThreadPoolExecutor(2) as pool:
        killed, undisturbed = pool.map(train, (7, 0))
    lives = said(r"rank (\d) life (\d) pid (\d+) begins with (\d+)", killed)
    assert sorted((rank, life, first) for rank, life, _, first in lives) == [(0, 0, 1), (0, 1, 7), (1, 0, 1), (1, 1, 7)]
    assert len({pid for _, _, pid, _ in lives}) == 4
    steps = said(r"rank (\d) life \d step (\d+) loss (\S+)", killed)
    assert set(steps) == set(said(r"rank (\d) life \d step (\d+) loss (\S+)", undisturbed))  # bit for bit
    for rank in (0, 1):
        assert 12 <= len([one for one in steps if one[0] == rank]) < 12 + every


# The ranks of what follows need no torch: they say what happens to them, and end by themselves after a while.
WAITING = """
import os, signal, sys, time
rank, life, agent = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.getppid()
world, port = os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]
fate, leave_s, there = sys.argv[1], float(sys.argv[2]), f"{sys.argv[3]}/rank-0-is-there-{agent}"

def say(text):
    print(f"rank {rank} of {world} life {life}: {text}\\n", end="", flush=True)

def leave(number, _):
    say(f"got {signal.Signals(number).name}")
    time.sleep(leave_s)
    say("left by itself")
    os._exit(1)

signal.signal(signal.SIGTERM, leave)
say(f"pid {os.getpid()} store at {port}")
if rank == "0" and fate.startswith("exit"):
    open(there, "w").close()
if (rank, life) == ("1", "0") and fate.startswith("exit"):
    while not os.path.exists(there):  # a signal that comes before its handler would end rank 0
        time.sleep(0.05)
    os._exit(75)
if (life, fate) == ("1", "exit"):
    os._exit(0)
end_s = time.monotonic() + 60
while time.monotonic() < end_s:
    if os.getppid() != agent:
        say("has no agent now")
        agent, end_s = os.getppid(), time.monotonic() + 3
    time.sleep(0.1)
"""


def waiting(fate="stay", leave_s=0, folder="/dev/null"):
    """The end of a command line; ranks of which one is to end need a folder."""
    return ["--no-python", "python", "-c", WAITING, fate, str(leave_s), str(folder)]


@proves("ckpt-any-exit-code-restarts")
def test_a_rank_that_has_saved_and_stopped_is_started_again(tmp_path):
    """Rank 1 ends with 75, as a program may after a save; the agent starts both ranks again, and itself ends with 0."""
    with loopback(1) as hosts:
        (agent,) = torchrun(hosts, "--nproc-per-node=2", "--max-restarts=1", *waiting("exit", folder=tmp_path), port=0)
        assert agent.wait(LIMIT_S) == 0
    assert sorted(said(r"rank (\d) of 2 life (\d): pid", agent.output)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@proves("ckpt-shutdown-timeout-on-signal-only")
def test_the_shutdown_timeout_counts_when_the_agent_stops_and_not_at_a_restart(tmp_path):
    """Asked for 1 s; a rank that needs 4 s gets them when its peer ends, and not when the agent is told to stop."""
    needs(torch="2.13")  # torchrun of 2.11 does not know the option
    with loopback(1) as hosts:
        options = ["--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=1"]
        (agent,) = torchrun(hosts, *options, *waiting("exit, then stay", 4, tmp_path), port=0)
        for rank in (0, 1):
            agent.wait_for(f"rank {rank} of 2 life 1: pid", LIMIT_S)
        assert "rank 0 of 2 life 0: left by itself" in agent.output
        os.kill(agent.pid, signal.SIGTERM)
        agent.wait(LIMIT_S)
    assert "life 1: got SIGTERM" in agent.output
    assert "life 1: left by itself" not in agent.output


def two_agents(hosts, *options, env=None):
    """Agents of the same job on both machines, one rank each; ranks have what it takes to notice."""
    agents = torchrun(hosts, *options, *waiting(), port=quiet_port(), env=env)
    for rank, agent in enumerate(agents):
        agent.wait_for(f"rank {rank} of 2 life 0: pid", LIMIT_S)
    return agents


@proves("ckpt-killed-agent-leaves-its-rank")
def test_a_killed_agent_leaves_its_rank_and_nobody_notices():
    """SIGKILL for agent 1: its rank lives on, and a node that is declared dead after 2 s is not missed after 4 s."""
    with loopback(2) as hosts:
        conf = [
            f"--rdzv-conf=is_host={int(host is hosts[0])},keep_alive_interval=1,keep_alive_max_attempt=2"
            for host in hosts
        ]
        agents = torchrun(
            hosts, "--max-restarts=1", *waiting(), port=quiet_port(), each=lambda host: [conf[hosts.index(host)]]
        )
        for rank, agent in enumerate(agents):
            agent.wait_for(f"rank {rank} of 2 life 0: pid", LIMIT_S)
        os.kill(agents[1].pid, signal.SIGKILL)
        agents[1].wait_for("rank 1 of 2 life 0: has no agent now", LIMIT_S)
        time.sleep(4)
        assert "got" not in agents[0].output
        assert "life 1" not in agents[0].output
        assert agents[0].returncode is None


@proves("ckpt-lost-rendezvous-host-ends-job")
def test_without_the_agent_that_hosts_the_rendezvous_all_agents_end():
    """SIGKILL for agent 0, which is not said to be special; agent 1 ends with an error, with restarts left."""
    with loopback(2) as hosts:
        agents = two_agents(hosts, "--max-restarts=3")
        os.kill(agents[0].pid, signal.SIGKILL)
        assert agents[1].wait(LIMIT_S) == 1
    assert "RendezvousConnectionError" in agents[1].output
    assert "rank 1 of 2 life 0: got SIGTERM" in agents[1].output
    assert "life 1" not in agents[1].output


@functools.cache
def grown(fresh):
    """A job of one node, to which another comes, whose address is first; what the ranks of both said."""
    with loopback(2) as hosts:
        first, second = hosts[1], hosts[0]
        port = quiet_port()

        def start(host, is_host):
            conf = f"--rdzv-conf=is_host={is_host},last_call_timeout=1"
            meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:{port}", conf]
            options = ["--nnodes=1:2", f"--local-addr={host.address}", *meet]
            return host.start(["torchrun", *options, *waiting()], {**host.agent_env, **env})

        env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(int(fresh))}
        old = start(first, 1)
        old.wait_for("rank 0 of 1 life 0", LIMIT_S)
        new = start(second, 0)
        old.wait_for("rank 1 of 2", LIMIT_S)
        new.wait_for("rank 0 of 2", LIMIT_S)
        return old.output, new.output


@proves("ckpt-growth-is-no-restart")
def test_a_node_that_joins_restarts_the_others_without_counting():
    """No restart is allowed, and yet the old rank ends and begins anew, with another number; the count stays 0."""
    old, new = grown(True)
    lives = re.findall(r"(rank \d of \d life \d): pid", old)
    assert lives == ["rank 0 of 1 life 0", "rank 1 of 2 life 0"]
    assert "rank 0 of 1 life 0: got SIGTERM" in old
    assert re.findall(r"(rank \d of \d life \d): pid", new) == ["rank 0 of 2 life 0"]


@proves("ckpt-grown-ranks-need-a-fresh-store")
@pytest.mark.parametrize("fresh", [True, False])
def test_after_growth_ranks_are_sent_to_two_stores_unless_told_otherwise(fresh):
    """The newcomer has rank 0; by default the old node still sends its rank to the store of before."""
    old, new = grown(fresh)
    (here,) = re.findall(r"rank 1 of 2 .* store at (\d+)", old)
    (there,) = re.findall(r"rank 0 of 2 .* store at (\d+)", new)
    assert (here == there) == fresh


LOSING = """
import datetime, os, sys, time, torch, torch.distributed as dist
rank, world, life = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
MEET
dist.barrier()
print(f"rank {rank} of {world} life {life} pid {os.getpid()}\\n", end="", flush=True)
for _ in range(600):
    dist.all_reduce(torch.zeros(1))
    time.sleep(0.1)
""".replace("MEET", MEET)


@proves("ckpt-lost-node-takes-a-restart")
@pytest.mark.parametrize("restarts", [1, 0])
def test_a_lost_node_takes_a_restart_of_those_that_stay(restarts, tmp_path):
    """Agent 1 and its rank are killed: the other rank goes on alone in life 1, if it may restart; else it is over."""
    with loopback(2) as hosts:
        port = quiet_port()

        def start(host):
            conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"
            meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={hosts[0].address}:{port}"]
            meet += [f"--rdzv-conf=is_host={int(host is hosts[0])},{conf}", f"--local-addr={host.address}"]
            command = ["torchrun", "--nnodes=1:2", f"--max-restarts={restarts}", *meet, "--no-python"]
            return host.start([*command, "python", "-c", LOSING, str(tmp_path / "meet")], {**host.agent_env, **FRESH})

        agents = [start(host) for host in hosts]
        agents[0].wait_for("rank 0 of 2 life 0", LIMIT_S)
        pid = int(agents[1].wait_for("rank 1 of 2 life 0", LIMIT_S).split()[-1])
        os.kill(agents[1].pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        if restarts:
            agents[0].wait_for("rank 0 of 1 life 1", LIMIT_S)
        else:
            assert agents[0].wait(LIMIT_S) == 1
            assert "life 1" not in agents[0].output
