"""Two torchrun agents on two machines: what there is to test beside the claims of test_machines.py."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from ddplab.apparatus.machines import Machine, Nodes, Program, torchrun
from tools import PATIENCE_S

PROGRAM = str(Path(__file__).with_name("stand_in.py"))
FOREVER = ("--nproc-per-node=1", PROGRAM, "--steps=1000000", "--checkpoint=never.pt")


def ended(programs: list[Program]) -> list[str]:
    """Wait for all; return what each said."""
    for program in programs:
        program.wait(PATIENCE_S)
    return [program.output for program in programs]


def running(nodes: Nodes, *more: str) -> list[Program]:
    """Start a training without end and wait until all ranks are in it."""
    programs = torchrun(nodes, *FOREVER, *more)
    for program in programs:
        program.wait_for("step 3", PATIENCE_S)
    return programs


def test_two_machines_meet(machines: Sequence[Machine]) -> None:
    programs = torchrun(machines, "--nproc-per-node=2", PROGRAM, "--checkpoint=never.pt")
    said = "".join(ended(programs))
    weights = re.findall(r"rank (\d): weights (\w+) of 4 ranks", said)
    assert sorted(rank for rank, _ in weights) == ["0", "1", "2", "3"], said
    assert len({hash_ for _, hash_ in weights}) == 1
    assert [program.returncode for program in programs] == [0, 0]


def test_shaped_link(nodes: Nodes, tmp_path: Path) -> None:
    """A ring all-reduce sends 2(p-1)/p times its bytes over each link: for 2 nodes as many as it has."""
    nbytes, mbit_per_s = 4_000_000, 100
    program = tmp_path / "time_allreduce.py"
    program.write_text(
        "import time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        f"x = torch.ones({nbytes // 4})\n"
        "for _ in range(3):\n"
        "    dist.barrier()\n"
        "    began = time.perf_counter()\n"
        "    dist.all_reduce(x)\n"
        "    print('took', time.perf_counter() - began)\n"
        "last = dist.barrier(async_op=True)\n"
        "last.wait()\n"
    )
    for node in nodes:
        node.rate(mbit_per_s)
    said = "".join(ended(torchrun(nodes, "--nproc-per-node=1", str(program))))
    took_s = [float(text) for text in re.findall(r"took (\S+)", said)]
    assert len(took_s) == 6, said
    assert min(took_s) > 0.9 * nbytes * 8 / (mbit_per_s * 1e6), took_s  # a shaper lets nothing through early


def test_link_down(nodes: Nodes) -> None:
    """Nobody gets a message: each rank waits for the process group's timeout, and the agent for TCP to give up."""
    programs = running(nodes, "--timeout-s=10")
    with nodes.unplugged(nodes[1]):
        for program in programs:
            program.wait_for("fails after", PATIENCE_S)
        # Set before, the kernel would give up after 6 s, and gloo say "Connection timed out".
        nodes[1].sysctl(tcp_retries2=1)  # by default the cut-off agent waits for many minutes
        said = ended(programs)
    for text in said:
        assert re.search(r"rank \d: fails after .*Timed out waiting 10000ms for (recv|send) operation", text), text
    assert "RendezvousConnectionError" in said[1]  # node0 hosts the store, node1's agent cannot reach it
    assert all(program.returncode for program in programs)


def test_a_short_cut_is_survived(nodes: Nodes) -> None:
    programs = running(nodes)
    with nodes.unplugged(nodes[1]):
        time.sleep(1)
    for program in programs:
        reached = int(re.findall(r"step (\d+)", program.output)[-1])
        program.wait_for(f"step {reached + 100}", PATIENCE_S)
        assert "fails" not in program.output
