"""Two machines: who connects to whom, and what is reported when the network, a name or a rank fails.

All jobs start at once, so that their time-outs pass side by side; each test looks at its own.
"""

import re
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack

import psutil
import pytest
import torch.distributed as dist
from patience import postmortem
from proof import proves

from ddplab.apparatus.machines import Nodes, connections, loopback, machines, torchrun
from ddplab.runtime.needs import ON_CPU
from tools import PATIENCE_S, missing

SHORT_S, LONG_S = 3, 2 * PATIENCE_S  # a time-out that is to come, and one that is not: nobody waits for so long

# Ranks meet. At the signal to go on, one of each machine all-reduces once with the other, then all without end.
TRAINING = f"""
import datetime, os, sys, time, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def say(text):
    print(f"rank {{rank}} {{text}}\\n", end="", flush=True)

def reduce(group, times):
    try:
        for _ in range(times):
            dist.all_reduce(torch.zeros(1), group=group)
    except RuntimeError as error:
        say(f"fails: {{str(error).splitlines()[0]}}")

try:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(sys.argv[1])))
except Exception as error:
    say(f"meets nobody: {{str(error).splitlines()[0]}}")
    time.sleep({LONG_S})  # its end would be that of the other rank
pair = dist.new_group([0, size // 2], timeout=datetime.timedelta(seconds={LONG_S}))
dist.barrier()
say(f"is there, pid {{os.getpid()}}")
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
if rank in (0, size // 2):
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds={SHORT_S}), pair)
    reduce(pair, 1)
reduce(dist.group.WORLD, 10**9)
os._exit(1)
"""


def start(hosts, *options, meet_s=LONG_S, go="never", **more):
    """An agent on each machine; its ranks wait so long for each other, and go on when that file is there."""
    return torchrun(hosts, *options, "--no-python", "python", "-c", TRAINING, str(meet_s), str(go), **more)


def wait_for(text, agents):
    """Wait until each has a rank that says this; return the lines."""
    return [agent.wait_for(text, PATIENCE_S) for agent in agents]


def wait_for_one(text, agents):
    """Wait until any of them has a rank that says this, and end all; return the line."""
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(agent.wait_for, text, PATIENCE_S) for agent in agents]
        line = next(as_completed(waits)).result()
        for agent in agents:
            agent.kill()
        return line


def ended(agents):
    """Wait for the end of all; return what each said, and its ranks."""
    for agent in agents:
        agent.wait(PATIENCE_S)
    return [agent.output for agent in agents]


class Jobs:
    """Two agents each: ``good`` on machines without a fault, the others on nodes that have one, if there can be any."""

    def __init__(self, stack, folder):
        self.hosts, self.no_nodes = stack.enter_context(machines(2))
        self.go = folder / "go"
        self.good = start(self.hosts, "--nproc-per-node=2", go=self.go)
        if self.no_nodes:
            return
        nodes = stack.enter_context(Nodes(4))
        self.walled, self.debian = nodes[:2], nodes[2:]
        stack.enter_context(self.walled[0].blocked(29400))
        stack.enter_context(self.walled[0].blocked("32768-60999"))  # the ports that the system chooses
        self.no_port = start(self.walled, f"--rdzv-conf=read_timeout={SHORT_S},join_timeout=6")
        self.one_port = start(self.walled, port=29500, meet_s=SHORT_S)
        for node in self.debian:
            node.hosts(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n")
        with_host = {node: f"--rdzv-conf=is_host={int(node is self.debian[0])}" for node in self.debian}
        with_both = {node: [with_host[node], f"--local-addr={node.address}"] for node in self.debian}
        all_three = {"each": with_both.get, "env": {"GLOO_SOCKET_IFNAME": "eth0"}}
        self.trapped = [
            start(self.debian, f"--rdzv-conf=read_timeout={SHORT_S}"),
            start(self.debian, port=29401, each=lambda node: [with_host[node]], meet_s=SHORT_S),
            start(self.debian, port=29402, each=with_both.get),
            start(self.debian, port=29403, **all_three),
        ]


@pytest.fixture(scope="module")
def all_jobs(tmp_path_factory):
    with ExitStack() as stack:
        yield Jobs(stack, tmp_path_factory.mktemp("jobs"))


@pytest.fixture
def jobs(all_jobs):
    """All jobs, where there are nodes."""
    if all_jobs.no_nodes:
        missing(f"no machines of our own: {all_jobs.no_nodes}")
    return all_jobs


@proves("setup-two-stores")
def test_agent_0_hosts_two_stores_and_gloo_joins_every_pair_of_ranks(all_jobs):
    """The kernel's table of connections, with two ranks on each of two machines, and a group besides that of all."""
    for rank in range(4):
        wait_for(f"rank {rank} is there", [all_jobs.good[rank // 2]])
    seen = connections(all_jobs.good)
    meeting = next(c.port for c in seen if c.client == "agent 1")
    ranks = [f"rank {rank}" for rank in range(4)]
    at_agent_0 = [c for c in seen if c.server == "agent 0"]
    assert sorted(c.client for c in at_agent_0 if c.port == meeting) == ["agent 0", "agent 1"]
    assert sorted(c.client for c in at_agent_0 if c.port != meeting) == ["agent 0", *ranks]
    mesh = sorted(tuple(sorted((c.client, c.server))) for c in seen if c.server in ranks)
    assert mesh == sorted([*((a, b) for a in ranks for b in ranks if a < b), ("rank 0", "rank 2")])
    assert len(seen) == len(at_agent_0) + len(mesh)


@proves("setup-silent-peer-waits-for-timeout")
def test_when_a_cable_is_out_ranks_wait_for_the_timeout(jobs):
    """Nothing tells either rank: both of the pair time out, and those that may wait for longer do."""
    wait_for("is there", jobs.good)
    with jobs.hosts.unplugged(jobs.hosts[1]):
        jobs.go.touch()
        for line in wait_for("fails", jobs.good):
            assert re.search(f"rank [02] fails: .*Timed out waiting {SHORT_S}000ms for (recv|send) operation", line)
    for agent in jobs.good:
        assert not re.search("rank [13] fails", agent.output)


@proves("setup-killed-worker-seen-by-peer")
def test_a_killed_rank_is_noticed_long_before_the_timeout(all_jobs):
    """The group of all has a timeout for which we would not wait; others see the closed connections."""
    all_jobs.go.touch()
    all_jobs.hosts[1].kill(all_jobs.good[1].wait_for("rank 3 is there", PATIENCE_S).split()[-1])
    said = ended(all_jobs.good)
    assert re.search("rank [01] fails: .*Connection (closed|reset) by peer", said[0])
    assert "exitcode  : -9" in said[1]
    assert "exitcode  : -9" not in said[0]


@proves("setup-blocked-port-says")
def test_only_the_agent_that_is_locked_out_names_the_port(jobs):
    """The port of the rendezvous is blocked; the host of the rendezvous says only that time is up."""
    said = ended(jobs.no_port)
    assert f"trying to connect to ({jobs.walled[0].address}, 29400)" in said[1]
    assert "RendezvousTimeoutError" in said[0]
    assert jobs.walled[1].address not in said[0]


@proves("setup-endpoint-port-is-not-enough")
def test_with_only_the_endpoint_open_agents_meet_and_ranks_do_not(jobs):
    """At node 0 all ports are blocked that the system chooses, and that of the endpoint is open."""
    (line,) = wait_for("rank 1", jobs.one_port[1:])  # it runs: its agent has met the other
    assert re.search(
        rf"meets nobody: .*timed out after {SHORT_S}000ms while trying to connect to \(node0, \d{{5}}\)", line
    )
    assert "29500" not in line


@proves("setup-debian-trap")
def test_debians_trap_needs_three_options_or_a_good_hosts_file(jobs):
    """One option more in each job; only with all three, or with names that lead to real addresses, do ranks meet."""
    wait_for("is there", jobs.good)
    nothing, with_host, with_both, with_all = jobs.trapped
    for said in ended(nothing):  # no agent takes the address for its own
        assert f"trying to connect to ({jobs.debian[0].address}, 29400)" in said
        assert "is there" not in said
    (line,) = wait_for("rank 1 meets nobody", with_host[1:])  # it seeks the ranks' store
    assert re.search(rf"(trying to connect to|addresses of) \({jobs.debian[0].name},", line)
    line = wait_for_one("meets nobody", with_both)  # and here the other rank
    assert re.search(r"connectFullMesh failed .*127\.0\.1\.1", line)
    wait_for("is there", with_all)


WAITING = """
import os, time
life, port = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["MASTER_PORT"]
print(f"life {life}, store at {port}, pid {os.getpid()}\\n", end="", flush=True)
time.sleep(600)
"""


@proves("setup-restart-keeps-store")
def test_a_restart_keeps_the_store_unless_told_otherwise():
    """We leave a key in the store of the first life, kill the rank, and find the key in that of the second."""

    def start(**env):
        return torchrun(hosts, "--max-restarts=1", "--no-python", "python", "-c", WAITING, env=env)[0]

    def port_and_pid(agent, life):
        return [int(number) for number in re.findall(r"\d+", agent.wait_for(f"life {life}", PATIENCE_S))[1:]]

    with loopback(1) as hosts:
        kept, fresh = start(), start(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        port, pid = port_and_pid(kept, 0)
        dist.TCPStore("127.0.0.1", port, is_master=False).set("left by us", "yes")
        hosts[0].kill(pid)
        port, _ = port_and_pid(kept, 1)
        assert dist.TCPStore("127.0.0.1", port, is_master=False).check(["left by us"])
        port, pid = port_and_pid(fresh, 0)
        hosts[0].kill(pid)
        assert port != port_and_pid(fresh, 1)[0]


@proves("setup-gloo-swaps-port-bytes")
def test_the_port_in_a_message_of_gloo_has_its_bytes_swapped():
    """Rank 1 leaves; rank 0 compares the port in its error with those that it was connected to."""

    def stay_or_leave():
        dist.barrier()
        remote = [c.raddr.port for c in psutil.Process().net_connections("tcp") if c.raddr]
        if dist.get_rank() == 1:
            return None
        with pytest.raises(RuntimeError) as caught:
            dist.barrier()
        return remote, str(caught.value)

    remote, message = postmortem(stay_or_leave, 2, leave=True, env=ON_CPU)[0].value
    port = int(re.search(r"\[127\.0\.0\.1\]:(\d+)", message)[1])
    assert int.from_bytes(port.to_bytes(2, "big"), "little") in remote
