"""Two machines: who connects to whom, and what is said when the network, a name or a rank fails."""

import re
import time

from proof import proves

from ddplab.machines import connections, loopback, machines, torchrun

LIMIT_S = 60  # for what takes a few seconds on free cores; no result depends on it
TRAINING = """
import datetime, os, sys, time, torch, torch.distributed as dist
rank = os.environ["RANK"]
meet_s = float(sys.argv[1]) * (4 if rank == "0" else 1)  # a rank that cannot reach rank 0 is to say so first
try:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=meet_s))
    group = dist.new_group(timeout=datetime.timedelta(seconds=float(sys.argv[2])))
    dist.barrier()
    print(f"rank {rank} is there, pid {os.getpid()}\\n", end="", flush=True)
    while len(sys.argv) < 4:
        dist.all_reduce(torch.zeros(1), group=group)
except Exception as error:
    print(f"rank {rank}: {str(error).splitlines()[0]}\\n", end="", flush=True)
    os._exit(1)
if sys.argv[3] == "stay":
    time.sleep(600)
os._exit(0)
"""


def start(hosts, *options, meet_s=60, timeout_s=60, then=(), **more):
    """One agent per machine; ranks all-reduce without end, or once they have met ``then`` "stay" or "leave"."""
    program = ["--no-python", "python", "-c", TRAINING, str(meet_s), str(timeout_s), *then]
    return torchrun(hosts, *options, *program, **more)


def ended(agents):
    """Wait for all; return what each said, and its ranks."""
    for agent in agents:
        agent.wait(LIMIT_S)
    return [agent.output for agent in agents]


@proves("setup-two-stores")
def test_agent_0_hosts_two_stores_and_gloo_joins_every_pair_of_ranks():
    """The kernel's table of connections, with two ranks on each of two machines, and two process groups of all."""
    with machines(2) as (hosts, _):
        agents = start(hosts, "--nproc-per-node=2", then=["stay"])
        for node, agent in enumerate(agents):
            for rank in (2 * node, 2 * node + 1):
                agent.wait_for(f"rank {rank} is there", LIMIT_S)
        seen = connections(agents)
    meeting = next(c.port for c in seen if c.client == "agent 1")
    ranks = [f"rank {rank}" for rank in range(4)]
    at_agent_0 = [c for c in seen if c.server == "agent 0"]
    assert sorted(c.client for c in at_agent_0 if c.port == meeting) == ["agent 0", "agent 1"]
    assert sorted(c.client for c in at_agent_0 if c.port != meeting) == ["agent 0", *ranks]
    mesh = sorted(tuple(sorted((c.client, c.server))) for c in seen if c.server in ranks)
    assert mesh == sorted(2 * [(a, b) for a in ranks for b in ranks if a < b])  # for each group
    assert len(seen) == len(at_agent_0) + len(mesh)


@proves("setup-killed-worker-seen-by-peer")
def test_a_killed_rank_is_noticed_long_before_the_timeout():
    """The timeout is a minute; the other rank hears of the closed connection in less than ten seconds."""
    with machines(2) as (hosts, _):
        agents = start(hosts)
        there = [agent.wait_for("is there", LIMIT_S) for agent in agents]
        hosts[1].kill(there[1].split()[-1])
        began = time.monotonic()
        agents[0].wait_for("rank 0:", LIMIT_S)
        assert time.monotonic() - began < 10
        said = ended(agents)
    assert re.search("rank 0: .*Connection (closed|reset) by peer", said[0])
    assert "exitcode  : -9" in said[1]
    assert "exitcode  : -9" not in said[0]


@proves("setup-silent-peer-waits-for-timeout")
def test_when_a_cable_is_out_ranks_wait_for_the_timeout(nodes):
    """Nothing tells either rank; with a timeout of 5 s both fail after 5 s."""
    agents = start(nodes, timeout_s=5)
    for agent in agents:
        agent.wait_for("is there", LIMIT_S)
    with nodes.unplugged(nodes[1]):
        began = time.monotonic()
        for rank, agent in enumerate(agents):
            line = agent.wait_for(f"rank {rank}:", LIMIT_S)
            assert re.search("Timed out waiting 5000ms for (recv|send) operation", line)
        assert time.monotonic() - began > 4


@proves("setup-blocked-port-says")
def test_only_the_agent_that_is_locked_out_names_the_port(nodes):
    """The port of the rendezvous is blocked; the host of the rendezvous says only that time is up."""
    with nodes[0].blocked(29400):
        said = ended(start(nodes, "--rdzv-conf=read_timeout=3,join_timeout=6"))
    assert f"trying to connect to ({nodes[0].address}, 29400)" in said[1]
    assert "RendezvousTimeoutError" in said[0]
    assert nodes[1].address not in said[0]


@proves("setup-debian-trap")
def test_debians_trap_needs_three_options_or_a_good_hosts_file(nodes):
    """One option more in each run; only with all three, or with names that lead to real addresses, do ranks meet."""

    def run(is_host=False, local_addr=False, env=None, why=""):
        patience_s = 60 if env or good else 8  # by default it takes minutes to fail

        def options(node):
            conf = f"--rdzv-conf=read_timeout={patience_s}"
            conf += f",is_host={int(node is nodes[0])}" if is_host else ""
            return [conf, *([f"--local-addr={node.address}"] if local_addr else [])]

        agents = start(nodes, each=options, env=env, meet_s=patience_s, then=["leave"])
        deadline = time.monotonic() + 100
        while None in (codes := [agent.returncode for agent in agents]) and time.monotonic() < deadline:
            said = "".join(agent.output for agent in agents)
            if any(codes) and re.search(why, said):  # the other may wait for long, and has no more to say
                break
            time.sleep(0.1)
        for agent in agents:
            agent.kill()
        said = "".join(agent.output for agent in agents)
        assert re.search(why, said), said
        return codes == [0, 0]

    good = nodes.hosts()
    assert run()
    good = None
    for node in nodes:
        node.hosts(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n")
    # No agent takes the address for its own; then the ranks' store is sought, then the other ranks.
    assert not run(why=r"trying to connect to \(10\.77\.0\.1, 29400\)")
    assert not run(is_host=True, why=r"(trying to connect to|addresses of) \(node0,")
    assert not run(is_host=True, local_addr=True, why=r"connectFullMesh failed .*127\.0\.1\.1")
    assert run(is_host=True, local_addr=True, env={"GLOO_SOCKET_IFNAME": "eth0"})


RESTARTED = """
import os, torch, torch.distributed as dist
print(f"store at port {os.environ['MASTER_PORT']}\\n", end="", flush=True)
dist.init_process_group("gloo")
dist.barrier()
os._exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


@proves("setup-restart-keeps-store")
def test_a_restart_keeps_the_store_unless_told_otherwise():
    """One rank ends with an error in its first life; where is its store in the second?"""

    def ports(**env):
        with loopback(1) as hosts:
            (said,) = ended(torchrun(hosts, "--max-restarts=1", "--no-python", "python", "-c", RESTARTED, env=env))
        first, second = re.findall(r"store at port (\d+)", said)
        return first, second

    first, second = ports()
    assert first == second
    first, second = ports(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert first != second


@proves("setup-endpoint-port-is-not-enough")
def test_with_only_the_endpoint_open_agents_meet_and_ranks_do_not(nodes):
    """At node 0 all ports are blocked that the system chooses, and 29400 is open."""
    with nodes[0].blocked("32768-60999"):
        agents = start(nodes, meet_s=5, then=["leave"])
        line = agents[1].wait_for("rank 1:", LIMIT_S)  # it runs: its agent has met the other
    assert re.search(r"timed out after 5000ms while trying to connect to \(node0, \d{5}\)", line)
    assert "29400" not in line


SWAPPED = """
import os, psutil, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
remote = [c.raddr.port for c in psutil.Process().net_connections("tcp") if c.raddr]
if os.environ["RANK"] == "1":
    os._exit(1)
try:
    dist.barrier()
except RuntimeError as error:
    print(f"{remote}: {str(error).splitlines()[0]}\\n", end="", flush=True)
os._exit(1)
"""


@proves("setup-gloo-swaps-port-bytes")
def test_the_port_in_a_message_of_gloo_has_its_bytes_swapped():
    """Rank 1 leaves; rank 0 compares the port in its error with those that it was connected to."""
    with loopback(1) as hosts:
        (said,) = ended(torchrun(hosts, "--nproc-per-node=2", "--no-python", "python", "-c", SWAPPED))
    remote, port = re.search(r"\[(.*?)\]: .*\[127\.0\.0\.1\]:(\d+)", said).groups()
    swapped = int.from_bytes(int(port).to_bytes(2, "big"), "little")
    assert swapped in map(int, remote.split(","))
