"""hello_ranks.py: whatever is wrong, it ends in time, with exit code 1, and says what to do."""

import importlib.util
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ddplab.apparatus.machines import Machine, Nodes, Program, loopback
from slurm import Slurm
from tools import PATIENCE_S, free_port, wait_until

RECIPE = Path(__file__).parents[2] / "gallery" / "recipes" / "hello_ranks.py"
CPU = {"CUDA_VISIBLE_DEVICES": ""}  # ranks that share a GPU would be a finding

spec = importlib.util.spec_from_file_location("hello_ranks", RECIPE)
hello = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hello)


# -- Findings from facts: cases that this machine does not have, GPUs among them ---------------


def fact(rank: int, **changes: object) -> dict:
    """A healthy rank of two machines with two GPUs each."""
    host = rank // 2
    return {
        "RANK": rank,
        "WORLD_SIZE": 4,
        "LOCAL_RANK": rank % 2,
        "LOCAL_WORLD_SIZE": 2,
        "host": f"node{host}",
        "torch": "2.13.0",
        "CUDA": "13.0",
        "NCCL": "2.29.7",
        "Python": "3.11",
        "gpu": "NVIDIA H200",
        "uuid": f"GPU-{rank}",
        "gpus": 2,
        "visible": 2,
        "nics": {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": f"10.0.0.{host + 1}"},
        "route": f"10.0.0.{host + 1}",
        "gloo": f"10.0.0.{host + 1}",
        "GLOO_SOCKET_IFNAME": None,
        "NCCL_SOCKET_IFNAME": None,
        "shm": 2**34,
        "files": 65536,
        **changes,
    }


def found(**changes: dict) -> list:
    """Findings when these ranks (``r3={"torch": …}``) differ from healthy ones."""
    return wrong(hello.findings({rank: fact(rank, **changes.get(f"r{rank}", {})) for rank in range(4)}))


def wrong(findings: Iterator) -> list:
    """Without the rows that say what is right."""
    return [finding for finding in findings if finding.level != "ok"]


def test_nothing_is_wrong_with_healthy_facts() -> None:
    assert found() == []


CASES = {
    "unequal torch": ({"r3": {"torch": "2.12.0"}}, "versions", [0, 1, 2, 3], "torch 2.12.0 on rank 3", "WRONG"),
    "unequal NCCL": ({"r2": {"NCCL": "2.28.9"}}, "versions", [0, 1, 2, 3], "NCCL 2.28.9 on rank 2", "WRONG"),
    "unequal Python": ({"r1": {"Python": "3.12"}}, "versions", [0, 1, 2, 3], "Python 3.12 on rank 1", "warn"),
    "unequal world": ({"r1": {"WORLD_SIZE": 8}}, "variables", [0, 1, 2, 3], "WORLD_SIZE 8 on rank 1", "WRONG"),
    "local ranks twice": ({"r1": {"LOCAL_RANK": 0}}, "variables", [0, 1], "on node0, LOCAL_RANK [0]", "warn"),
    "two ranks on one GPU": ({"r1": {"uuid": "GPU-0"}}, "devices", [0, 1], "one GPU of node0, GPU-0", "WRONG"),
    "no GPU here": ({"r2": {"gpu": None, "uuid": None}}, "devices", [2], "torch sees no GPU", "WRONG"),
    "no such interface": (
        {"r2": {"GLOO_SOCKET_IFNAME": "ens5"}},
        "interfaces",
        [2],
        "=ens5, but node1 has lo 127.0.0.1, docker0 172.17.0.1, eth0 10.0.0.2",
        "WRONG",
    ),
    "loopback interface": (
        {"r2": {"GLOO_SOCKET_IFNAME": "lo", "gloo": "127.0.0.1"}},
        "interfaces",
        [2],
        "announces the address 127.0.0.1: GLOO_SOCKET_IFNAME=lo",
        "WRONG",
    ),
    "127.0.1.1": (
        {"r2": {"gloo": "127.0.1.1"}},
        "interfaces",
        [2],
        "127.0.1.1: its host name resolves to that",
        "WRONG",
    ),
    "NCCL: none left": ({"r0": {"NCCL_SOCKET_IFNAME": "ib"}}, "interfaces", [0], "NCCL_SOCKET_IFNAME=ib, but", "WRONG"),
    "NCCL: only lo": ({"r0": {"NCCL_SOCKET_IFNAME": "=lo"}}, "interfaces", [0], "NCCL_SOCKET_IFNAME==lo, but", "WRONG"),
    "small /dev/shm": ({"r0": {"shm": 2**26}}, "limits", [0, 1], "has 64 MiB", "warn"),
    "few files": ({"r1": {"files": 256}}, "limits", [0, 1], "may open 256 files", "warn"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fact_that_is_wrong_is_found(case: str) -> None:
    changes, check, ranks, text, level = CASES[case]
    (finding,) = found(**changes)
    assert (finding.check, sorted(finding.ranks), finding.level) == (check, ranks, level)
    assert text in finding.what
    assert finding.fix


def test_the_interface_to_take_is_named() -> None:
    (finding,) = found(r2={"gloo": "127.0.1.1"})
    assert finding.fix.startswith("on node1: export GLOO_SOCKET_IFNAME=eth0")


@pytest.mark.parametrize("pattern", ["eth", "eth0", "=eth0", "^lo,docker", "^=lo", "lo,eth"])
def test_patterns_that_leave_nccl_an_interface(pattern: str) -> None:
    assert found(r0={"NCCL_SOCKET_IFNAME": pattern}) == []


def test_no_gpu_that_torch_can_use_on_any_rank_is_a_warning() -> None:
    blind = {"gpu": None, "uuid": None, "CUDA": None, "NCCL": None, "visible": 0}
    (finding,) = found(r0=blind, r1=blind, r2=blind, r3=blind)
    assert (finding.check, finding.level) == ("devices", "warn")


def test_one_machine_may_be_found_at_loopback() -> None:
    facts = {rank: fact(rank, gloo="127.0.0.1", LOCAL_WORLD_SIZE=2) for rank in (0, 1)}
    assert wrong(hello.findings(facts)) == []


def test_clocks() -> None:
    offsets = {0: None, 1: (0.4, 0.001), 2: (-3.0, 0.001), 3: (3.0, 5.0), 4: (60.0, 0.1)}
    said = {finding.ranks[0]: finding.level for finding in wrong(hello.clock_findings(offsets))}
    assert said == {2: "warn", 4: "WRONG"}  # what the measurement leaves open is no finding


def test_spans() -> None:
    assert hello.spans([4, 0, 1, 2]) == "ranks 0-2, 4"
    assert hello.spans([7]) == "rank 7"


BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7"}


def test_variables() -> None:
    me, wrong = hello.variables(BY_HAND)
    assert (me["launcher"], me["RANK"], wrong) == ("hand", 1, [])
    me, wrong = hello.variables({**SRUN, "SLURM_STEP_NUM_NODES": "1"})
    assert (me["launcher"], me["RANK"], me["LOCAL_RANK"], me["address"], wrong) == ("srun", 3, 1, "127.0.0.1", [])
    me, wrong = hello.variables({})
    assert (me["RANK"], me["WORLD_SIZE"], wrong) == (0, 1, [])


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({**BY_HAND, "MASTER_ADDR": ""}, "MASTER_ADDR"),
        ({**BY_HAND, "WORLD_SIZE": "two"}, "WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT, MASTER_ADDR"),
        ({**BY_HAND, "RANK": "2"}, "RANK=2, but WORLD_SIZE=2"),
        ({**BY_HAND, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK=1, LOCAL_WORLD_SIZE=1"),
        ({**BY_HAND, "LOCAL_WORLD_SIZE": "4"}, "LOCAL_WORLD_SIZE=4, WORLD_SIZE=2"),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, "MASTER_ADDR"),
    ],
)
def test_variables_that_contradict_each_other(env: dict, text: str) -> None:
    _, (finding,) = hello.variables(env)
    assert text in finding.what


# -- Real ranks ---------------------------------------------------------------------------------


@pytest.fixture
def here() -> Iterator[Sequence[Machine]]:
    """This host, as a list of one machine."""
    with loopback(1) as machines:
        yield machines


# Where the patience of the recipe is to end, it ends after an event, which is a file: lines for its program.
HURRY = """
import os, runpy, sys, threading, time
from datetime import timedelta
import torch.distributed as dist

EVENT, clock = sys.argv[1], time.monotonic
happened = lambda: os.path.exists(EVENT)
fast = happened()
# What the recipe waits for in a loop: its patience is over in a second, or at the event.
time.monotonic = lambda: 1000 * clock() if fast else clock() + 2000 * happened()
{more}
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# What waits inside of the system, of torch, or of threading.
SHORT_CONNECT = """
import socket
connect = socket.create_connection
socket.create_connection = lambda at, limit_s: connect(at, min(limit_s, 2))
"""
SHORT_STORE = """
Store = dist.TCPStore
dist.TCPStore = lambda at, port, world, serve, _, **more: Store(at, port, world, serve, timedelta(seconds=1), **more)
"""
SHORT_GROUP = """
init = dist.init_process_group
dist.init_process_group = lambda *args, **more: init(*args, **{**more, "timeout": timedelta(seconds=1)})
"""
SHORT_CHECK = """
finish = threading.Thread.join

def bounded(thread, timeout=None):
    while timeout and thread.is_alive() and not happened():
        finish(thread, 0.05)
    finish(thread, timeout and 1)

threading.Thread.join = bounded
"""
SHORT_SILENCE = """
Timer = threading.Timer
threading.Timer = lambda limit_s, *args: Timer(1 if happened() else limit_s, *args)
"""
MEETS_ANOTHER = """
rest = time.sleep

def look(seconds):  # rank 0 rests after each look at who is there
    if len(sys._getframe(1).f_locals.get("values", ())) == 2:
        open(EVENT, "w").close()
    rest(seconds)

time.sleep = look
"""
HANGS = """
def hang(*_, **__):
    open(EVENT, "w").close()
    time.sleep(4321)

dist.init_process_group = hang
"""
WAITS = """
wait = dist.init_process_group

def join(*args, **more):
    open(EVENT + ".waits", "w").close()
    wait(*args, **more)

dist.init_process_group = join
"""
FREEZES = """
def freeze(*_, **__):
    while not os.path.exists(EVENT + ".waits"):
        time.sleep(0.02)
    open(EVENT, "w").close()
    os.kill(os.getpid(), 19)

dist.init_process_group = freeze
"""


def start(
    machines: Sequence[Machine],
    ranks: list[int],
    world: int,
    port: int = 29500,
    hurry: Path | None = None,
    more: str = "",
    **env: str,
) -> list[Program]:
    """Start ranks by hand, one per machine; rank 0's machine is the first.

    ``hurry``: a file; once it is there, the patience of these ranks is over, as far as ``more`` says.
    """
    command = [str(RECIPE), f"--patience={PATIENCE_S:g}", "--mib=1"]
    if hurry:
        program = hurry.with_name(f"hurry_{'_'.join(map(str, ranks))}.py")
        program.write_text(HURRY.replace("{more}", more))
        command = [str(program), str(hurry), *command]
    meet = {"WORLD_SIZE": str(world), "MASTER_ADDR": machines[0].address, "MASTER_PORT": str(port), **CPU, **env}
    return [machines[rank % len(machines)].fork(["python", *command], {**meet, "RANK": str(rank)}) for rank in ranks]


def ended(programs: list[Program], code: int = 1) -> list[str]:
    """What each rank said, once all have ended with this exit code."""
    codes = [program.wait(PATIENCE_S) for program in programs]
    said = [program.output for program in programs]
    assert codes == [code] * len(programs), said
    return said


@pytest.fixture
def event(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "event"


@pytest.fixture
def now(event: Path) -> Path:
    """One that is: what these ranks wait for never comes, and they need not find that out in time."""
    event.touch()
    return event


def test_torchrun(here: Sequence[Machine]) -> None:
    command = ["torchrun", "--standalone", "--nproc-per-node=2"]
    program = here[0].fork([*command, str(RECIPE), f"--patience={PATIENCE_S:g}", "--mib=1"], CPU)
    (said,) = ended([program], 0)
    assert "started by torchrun" in said
    assert "2 of 2 are here: ranks 0-1" in said
    assert "Gbit/s" in said
    assert "nothing wrong" in said


def test_plain_python(here: Sequence[Machine]) -> None:
    program = here[0].fork(["python", str(RECIPE), "--mib=1"])
    assert "nothing wrong" in ended([program], 0)[0]


def test_two_machines(nodes: Nodes) -> None:
    table, silence = ended(start(nodes, [0, 1], 2), 0)
    assert "rank 0 on node0; rank 1 on node1" in table
    assert "2 machines reach each other" in table
    assert "node0 10.77.0.1, node1 10.77.0.2" in table
    assert not silence.startswith("hello_ranks")


def test_srun_python(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "hello.sbatch"
    lines = ["#!/bin/bash", "export MASTER_ADDR=$(hostname --ip-address) CUDA_VISIBLE_DEVICES="]
    script.write_text("\n".join([*lines, f"srun {sys.executable} {RECIPE} --mib=1\n"]))
    job = slurm.sbatch(script, "--nodes=2", "--ntasks-per-node=2")
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    said = slurm.output(job)
    assert "WORLD_SIZE 4, started by srun" in said
    assert "ranks 0-1 on node0; ranks 2-3 on node1" in said


def test_without_rank_0_the_others_speak(here: Sequence[Machine], now: Path) -> None:
    for rank, said in zip((1, 2), ended(start(here, [1, 2], 3, free_port(), now)), strict=True):
        assert f"rank {rank} on" in said
        assert "nobody listens there" in said
        assert "→ start rank 0" in said


def test_a_rank_that_dies_under_torchrun_is_named(here: Sequence[Machine], event: Path) -> None:
    """It dies once rank 0 has met the others; torchrun then stops them, and rank 0 still has the time to speak."""
    dies = event.with_name("dies.py")
    dies.write_text(f"""
import os, runpy, sys, time
EVENT = {str(event)!r}
{MEETS_ANOTHER}
while os.environ["RANK"] == "2":
    time.sleep(0.02)
    if os.path.exists(EVENT):
        sys.exit(3)
runpy.run_path({str(RECIPE)!r}, run_name="__main__")
""")
    command = ["torchrun", "--standalone", "--nproc-per-node=3"]
    (said,) = ended([here[0].fork([*command, str(dies), f"--patience={PATIENCE_S:g}"], CPU)])
    assert "2 of 3 are here: ranks 0-1 on" in said
    assert "rank 2: no message before the launcher stopped this run" in said


def test_a_rank_given_twice(here: Sequence[Machine], event: Path) -> None:
    """Whoever should have been rank 2 came as rank 1; so rank 0 waits, until the second one has come."""
    port = free_port()
    programs = start(here, [0], 3, port, event) + start(here, [1, 1], 3, port)
    assert wait_until(lambda: any(program.returncode is not None for program in programs))
    event.touch()
    assert "two processes have" in "".join(ended(programs))


def test_world_sizes_that_differ(here: Sequence[Machine]) -> None:
    port = free_port()
    programs = start(here, [0], 2, port) + start(here, [1], 3, port)
    table, _ = ended(programs)
    assert "WORLD_SIZE 2 on rank 0; WORLD_SIZE 3 on rank 1" in table


def test_an_interface_that_others_do_not_reach(nodes: Nodes) -> None:
    table, _ = ended(start(nodes, [0, 1], 2, GLOO_SOCKET_IFNAME="lo"))
    assert "rank 1: node1 announces the address 127.0.0.1" in table
    assert "on node1: export GLOO_SOCKET_IFNAME=eth0" in table


def test_debians_name_for_itself(nodes: Nodes) -> None:
    for node in nodes:
        node.hosts(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n")
    table, _ = ended(start(nodes, [0, 1], 2))
    assert "announces the address 127.0.1.1: its host name resolves to" in " ".join(table.split())


@pytest.mark.parametrize("what", ["port", "cable"])
def test_a_store_that_does_not_answer(nodes: Nodes, what: str, now: Path) -> None:
    with nodes[0].blocked(29500) if what == "port" else nodes.unplugged(nodes[1]):
        table, said = ended(start(nodes, [0, 1], 2, hurry=now, more=SHORT_CONNECT))
    assert "rank 1: no message" in table
    assert "10.77.0.1 (10.77.0.1) port 29500" in said
    assert "no answer" in said or "No route" in said


def test_only_the_port_of_the_store_is_open(nodes: Nodes, event: Path) -> None:
    with nodes[0].blocked("32768-60999"):  # ports that the system picks
        table, _ = ended(start(nodes, [0, 1], 2, hurry=event, more=SHORT_CONNECT))
    assert "node1 cannot reach node0, 10.77.0.1: " in table
    assert "open all ports between machines" in table


def test_names_that_mean_nothing_or_the_wrong_machine(nodes: Nodes, now: Path) -> None:
    for said in ended(start(nodes, [0, 1], 2, hurry=now, MASTER_ADDR="node9")):
        assert "the name is unknown" in said
    _, said = ended(start(nodes, [0, 1], 2, hurry=now, MASTER_ADDR="localhost"))
    assert "nobody listens there, on this machine" in said
    table, _ = ended(start(nodes, [0, 1], 2, hurry=now, more=SHORT_STORE, MASTER_ADDR=nodes[1].address))
    assert "MASTER_ADDR is 10.77.0.2, but rank 0 runs on node0" in " ".join(table.split())


def test_another_program_has_the_port(here: Sequence[Machine], now: Path) -> None:
    """torch's own client would wait for it without end, whatever its timeout."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        table, said = ended(start(here, [0], 2, port) + start(here, [1], 2, port, now, SHORT_CHECK))
    assert "is taken" in table
    assert f"not done after {PATIENCE_S + 1:g} s" in said
    assert "ss -ltnp" in said


def test_a_rank_that_hangs_in_a_check(here: Sequence[Machine], event: Path) -> None:
    """Inside torch, as far as the program can see; rank 0 has gloo's own bound and says both."""
    port = free_port()
    programs = start(here, [0], 2, port, event, SHORT_GROUP) + start(here, [1], 2, port, event, HANGS + SHORT_CHECK)
    table, _ = ended(programs)
    assert f"rank 1: not done after {PATIENCE_S + 1:g} s" in table
    assert "not checked: small all-reduce, large all-reduce" in table


def test_a_rank_0_that_freezes_holds_nobody(here: Sequence[Machine], event: Path) -> None:
    """With it its store is silent, and torch's client waits for that without end, whatever its timeout."""
    port = free_port()
    start(here, [0], 2, port, event, FREEZES)
    (said,) = ended(start(here, [1], 2, port, event, WAITS + SHORT_CHECK + SHORT_SILENCE))
    assert f"no message from rank 0 for {2 * PATIENCE_S + 5:g} s" in said
