"""torchrun's agents: who restarts when another one fails, leaves, is killed or joins.

All jobs run side by side, each in a thread that tells what happened; each test looks at its own.
"""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from proof import proves

from ddplab.apparatus.machines import loopback, torchrun
from tools import PATIENCE_S, wait_until

FRESH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
HEARTBEATS = "keep_alive_interval=1,keep_alive_max_attempt=10"
QUICK = f"last_call_timeout=1,{HEARTBEATS}"
# The ranks need no torch: they say what happens to them, and end by themselves after a while.
WAITING = """
import os, signal, sys, time
rank, life, agent = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.getppid()
world, port, fate, folder = os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"], *sys.argv[1:]

def say(text):
    print(f"rank {rank} of {world} life {life}: {text}\\n", end="", flush=True)

def leave(number, _):
    say(f"got {signal.Signals(number).name}")
    say("left by itself")
    os._exit(1)

signal.signal(signal.SIGTERM, leave)
if (fate, world, rank) == ("need the other", "2", "0"):
    held = open(f"{folder}/pipe", "w")  # when rank 1 has opened it, too: whoever hears the pid may kill this rank
say(f"pid {os.getpid()} store at {port}")
if fate == "rank 2 fails":
    open(f"{folder}/{rank} is there", "w").close()
    if (rank, life) == ("2", "0"):
        while not all(os.path.exists(f"{folder}/{other} is there") for other in (0, 1)):
            time.sleep(0.05)
        os._exit(1)
if (fate, world, rank) == ("need the other", "2", "1"):
    open(f"{folder}/pipe").read()  # until the other has ended
    say("is alone")
    os._exit(1)
end_s = time.monotonic() + PATIENCE_S
while time.monotonic() < end_s:
    if os.getppid() != agent:
        say("has no agent now")
        agent, end_s = os.getppid(), time.monotonic() + 3
    time.sleep(0.1)
""".replace("PATIENCE_S", str(PATIENCE_S))
# Holds the rendezvous and nothing else: no agent is its host.
STORE = """
import sys, time, torch.distributed as dist
store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)
time.sleep(PATIENCE_S)
""".replace("PATIENCE_S", str(PATIENCE_S))


def program(text, *arguments):
    """The end of a command line."""
    return ["--no-python", "python", "-c", text, *map(str, arguments)]


def one_or_two_nodes(host, where, conf, restarts, ranks, env=FRESH):
    """An agent on ``host``, of a job that needs one node and takes two, which meet at ``where``."""
    options = ["--nnodes=1:2", f"--max-restarts={restarts}", f"--local-addr={host.address}", f"--rdzv-conf={conf}"]
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={where}"]
    return host.start(["torchrun", *options, *meet, *ranks], {**host.agent_env, **env})


# -- the jobs -------------------------------------------------------------------------------------


def two_agents_are_killed(folder):
    """Of three: first agent 2, then agent 0, who hosts the rendezvous. What the others said until each."""
    with loopback(3) as hosts:
        # Agent 0 takes a node for dead whose heart has not beaten for 10 s, and says so and when its own has beaten.
        conf = "keep_alive_interval=1,keep_alive_max_attempt="
        each = {host: [f"--rdzv-conf=is_host=0,{conf}100"] for host in hosts}
        each[hosts[0]] = [f"--rdzv-conf=is_host=1,{conf}10"]
        env = {"LOGLEVEL": "DEBUG"}
        agents = torchrun(hosts, "--max-restarts=3", *program(WAITING, "stay", folder), each=each.get, env=env)
        for rank, agent in enumerate(agents):
            agent.wait_for(f"rank {rank} of 3 life 0: pid", PATIENCE_S)
        os.kill(agents[2].pid, signal.SIGKILL)
        agents[2].wait_for("rank 2 of 3 life 0: has no agent now", PATIENCE_S)
        agents[0].wait_for("Detected dead node '127.0.0.3", PATIENCE_S)
        (orphan,) = re.findall(r"rank 2 of 3 life 0: pid (\d+)", agents[2].output)
        assert wait_until(lambda: not os.path.exists(f"/proc/{orphan}"))  # the node is gone, its ranks with it
        beat = "has sent a keep-alive heartbeat"
        later = agents[0].output.count(beat) + 3
        assert wait_until(lambda: agents[0].output.count(beat) > later)
        one_less = [agent.output for agent in agents[:2]]
        os.kill(agents[0].pid, signal.SIGKILL)
        return one_less, agents[1].wait(PATIENCE_S), agents[1].output


def one_of_three_fails(folder):
    """Rank 2 ends, its agent stays; the ranks of the other nodes go on waiting, as in a collective of NCCL."""
    with loopback(3) as hosts:
        program_of_ranks = program(WAITING, "rank 2 fails", folder)
        each = {host: [f"--rdzv-conf=is_host={int(host is hosts[0])}"] for host in hosts}
        agents = torchrun(hosts, "--max-restarts=1", *program_of_ranks, each=each.get)
        for agent in agents:
            assert wait_until(lambda agent=agent: agent.output.count(": pid") == 2)
        return [agent.output for agent in agents]


def the_store_is_a_process_of_its_own(folder):
    """Two agents, neither of which hosts the rendezvous; the one that is node 0 is killed with its rank."""
    os.mkfifo(folder / "pipe")
    with loopback(2) as hosts:
        port = hosts[1].free_port()
        hosts[1].start(["python", "-c", STORE, hosts[1].address, str(port)], hosts[1].agent_env)
        where, ranks = f"{hosts[1].address}:{port}", program(WAITING, "need the other", folder)
        first, second = (one_or_two_nodes(host, where, f"is_host=0,{QUICK}", 1, ranks) for host in hosts)
        pid = re.search(r"pid (\d+)", first.wait_for("rank 0 of 2", PATIENCE_S))[1]
        second.wait_for("rank 1 of 2", PATIENCE_S)
        os.kill(first.pid, signal.SIGKILL)
        os.kill(int(pid), signal.SIGKILL)
        second.wait_for("rank 0 of 1 life 1", PATIENCE_S)
        return second.output, second.returncode


def a_node_joins_and_is_lost(fresh, restarts, folder):
    """A job of one node, to which another comes, whose address is first; agent and rank of that are killed then."""
    os.mkfifo(folder / "pipe")
    with loopback(2) as (second, first):
        where, ranks = f"{first.address}:{first.free_port()}", program(WAITING, "need the other", folder)
        env = FRESH if fresh else {}
        old = one_or_two_nodes(first, where, f"is_host=1,{QUICK}", restarts, ranks, env)
        old.wait_for("rank 0 of 1 life 0", PATIENCE_S)
        new = one_or_two_nodes(second, where, f"is_host=0,{QUICK}", restarts, ranks, env)
        old.wait_for("rank 1 of 2", PATIENCE_S)
        pid = re.search(r"pid (\d+)", new.wait_for("rank 0 of 2", PATIENCE_S))[1]
        os.kill(new.pid, signal.SIGKILL)
        os.kill(int(pid), signal.SIGKILL)
        old.wait_for("rank 0 of 1 life 1", PATIENCE_S) if restarts else old.wait(PATIENCE_S)
        return old.output, new.output, old.returncode


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """What comes of each job; all begin at once."""
    jobs = {
        "fresh store": partial(a_node_joins_and_is_lost, True, 0),
        "same store": partial(a_node_joins_and_is_lost, False, 1),
    }
    jobs |= {
        job.__name__: job for job in (two_agents_are_killed, one_of_three_fails, the_store_is_a_process_of_its_own)
    }
    with ThreadPoolExecutor(len(jobs)) as pool:
        yield {name: pool.submit(job, tmp_path_factory.mktemp("job")) for name, job in jobs.items()}


# -- what they show -------------------------------------------------------------------------------


@proves("ckpt-killed-agent-leaves-its-rank")
def test_a_killed_agent_leaves_its_rank_and_nobody_notices(jobs):
    """SIGKILL for agent 2: its rank lives on, and agent 0, who has declared its node dead, does nothing."""
    for output in jobs["two_agents_are_killed"].result()[0]:
        assert "got SIG" not in output
        assert "life 1" not in output


@proves("ckpt-failed-rank-calls-all-agents")
def test_a_failed_rank_restarts_the_ranks_of_other_nodes_though_these_have_not_failed(jobs):
    """Rank 2's agent meets anew; the others see a node that waits, end their ranks, and count nothing."""
    *others, failed = jobs["one_of_three_fails"].result()
    assert re.findall(r"rank \d of 3 (life \d): pid", failed) == ["life 0", "life 1"]
    for output in others:
        assert re.findall(r"rank \d of 3 (life \d): pid", output) == ["life 0", "life 0"]
        assert len(re.findall(r"rank \d of 3 life 0: got SIGTERM", output)) == 1


@proves("ckpt-store-of-its-own-survives")
def test_with_a_store_of_its_own_the_loss_of_node_0_is_survived(jobs):
    """The rendezvous is in a process that is no agent; the agent and rank of node 0 are killed, the other goes on."""
    output, code = jobs["the_store_is_a_process_of_its_own"].result()
    assert "rank 1 of 2 life 0: is alone" in output
    assert "rank 0 of 1 life 1: pid" in output
    assert code is None


@proves("ckpt-lost-rendezvous-host-ends-job")
def test_without_the_agent_that_hosts_the_rendezvous_all_agents_end(jobs):
    """SIGKILL for agent 0, which is not said to be special; agent 1 ends with an error, with restarts left."""
    _, code, output = jobs["two_agents_are_killed"].result()
    assert code == 1
    assert "RendezvousConnectionError" in output
    assert "rank 1 of 3 life 0: got SIGTERM" in output
    assert "life 1" not in output


@proves("ckpt-growth-is-no-restart")
def test_a_node_that_joins_restarts_the_others_without_counting(jobs):
    """No restart is allowed, and yet the old rank ends and begins anew, with another number; the count stays 0."""
    old, new, _ = jobs["fresh store"].result()
    lives = re.findall(r"(rank \d of \d life \d): pid", old)
    assert lives == ["rank 0 of 1 life 0", "rank 1 of 2 life 0"]
    assert "rank 0 of 1 life 0: got SIGTERM" in old
    assert re.findall(r"(rank \d of \d life \d): pid", new) == ["rank 0 of 2 life 0"]


@proves("ckpt-grown-ranks-need-a-fresh-store")
@pytest.mark.parametrize("store", ["fresh store", "same store"])
def test_after_growth_ranks_are_sent_to_two_stores_unless_told_otherwise(jobs, store):
    """The newcomer has rank 0; by default the old node still sends its rank to the store of before."""
    old, new, _ = jobs[store].result()
    (here,) = re.findall(r"rank 1 of 2 .* store at (\d+)", old)
    (there,) = re.findall(r"rank 0 of 2 .* store at (\d+)", new)
    assert (here == there) == (store == "fresh store")


@proves("ckpt-lost-node-takes-a-restart")
def test_a_lost_node_takes_a_restart_of_those_that_stay(jobs):
    """A node and its rank are killed: the other rank goes on alone in life 1, if it may restart; else it is over."""
    old, _, code = jobs["same store"].result()  # one restart
    assert "rank 1 of 2 life 0: is alone" in old
    assert "rank 0 of 1 life 1: pid" in old
    assert code is None
    old, _, code = jobs["fresh store"].result()  # none
    assert "rank 1 of 2 life 0: is alone" in old
    assert "life 1" not in old
    assert code == 1


# -- agents that leave ----------------------------------------------------------------------------

# Rank 1 ends when both are there, rank 0 when a file says so.
FAILING = """
import os, sys, time
rank, life, folder = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], sys.argv[1]
print(f"rank {rank} of {os.environ['WORLD_SIZE']} life {life}: pid {os.getpid()}", flush=True)
open(f"{folder}/{rank} is there", "w").close()
awaited, end_s = {"0": "rank 0 may fail", "1": "0 is there"}[rank], time.monotonic() + PATIENCE_S
while not os.path.exists(f"{folder}/{awaited}") and time.monotonic() < end_s:
    time.sleep(0.05)
sys.exit(1)
""".replace("PATIENCE_S", str(PATIENCE_S))


def one_agent_is_asked_to_stop(folder):
    """SIGTERM for one of two; what the other said until its heart had beaten thrice more, and until a third came."""
    with loopback(3) as (first, second, third):
        where, ranks = f"{first.address}:{first.free_port()}", program(WAITING, "stay", folder)

        def start(host):
            conf = f"is_host={int(host is first)},{HEARTBEATS}"
            return one_or_two_nodes(host, where, conf, 3, ranks, {**FRESH, "LOGLEVEL": "DEBUG"})

        stays, leaves = start(first), start(second)
        stays.wait_for("rank 0 of 2 life 0: pid", PATIENCE_S)
        leaves.wait_for("rank 1 of 2 life 0: pid", PATIENCE_S)
        os.kill(leaves.pid, signal.SIGTERM)
        code = leaves.wait(PATIENCE_S)
        beat = "has sent a keep-alive heartbeat"
        later = stays.output.count(beat) + 3
        assert wait_until(lambda: stays.output.count(beat) > later)
        alone = stays.output
        joins = start(third)
        joins.wait_for("of 2 life 0: pid", PATIENCE_S)
        return code, leaves.output, alone, joins.output


def one_agent_gives_up(folder):
    """It has no restart and the other three; what the other said until it was alone, and until its end."""
    with loopback(2) as hosts:
        each = {host: [f"--max-restarts={restarts}"] for host, restarts in zip(hosts, (3, 0), strict=True)}
        stays, gives_up = torchrun(hosts, *program(FAILING, folder), each=each.get)
        stays.wait_for("rank 0 of 2 life 0: pid", PATIENCE_S)
        gives_up.wait(PATIENCE_S)
        alone = stays.output, stays.returncode
        (folder / "rank 0 may fail").touch()
        return gives_up.output, alone, stays.wait(PATIENCE_S), stays.output


@pytest.fixture(scope="module")
def leaving(tmp_path_factory):
    """The same for agents that leave."""
    jobs = one_agent_is_asked_to_stop, one_agent_gives_up
    with ThreadPoolExecutor(len(jobs)) as pool:
        yield {job.__name__: pool.submit(job, tmp_path_factory.mktemp("job")) for job in jobs}


@proves("ckpt-stopped-agent-tells-nobody")
def test_an_agent_that_gets_sigterm_leaves_the_rendezvous_open(leaving):
    """It hands SIGTERM to its rank and ends; the other agent goes on, and a third one joins it."""
    code, output, alone, joined = leaving["one_agent_is_asked_to_stop"].result()
    assert code
    assert re.findall(r"rank 1 of 2 life 0: (got SIGTERM|left by itself)", output) == ["got SIGTERM", "left by itself"]
    assert "SignalException" in output
    assert re.findall(r"rank \d of \d life \d: (\w+)", alone) == ["pid"]  # and nothing since
    assert re.findall(r"rank \d (of \d life \d): pid", joined) == ["of 2 life 0"]


@proves("ckpt-agent-without-restarts-closes")
def test_an_agent_that_gives_up_closes_the_rendezvous(leaving):
    """The other agent goes on until its own rank fails, and then may not meet again, with three restarts left."""
    gave_up, (alone, running), code, output = leaving["one_agent_gives_up"].result()
    assert re.findall(r"rank 1 of 2 (life \d): pid", gave_up) == ["life 0"]
    assert running is None
    assert "RendezvousClosedError" not in alone
    assert code == 1
    assert "RendezvousClosedError" in output
    assert "life 1" not in output


# -- saved by a process of its own ----------------------------------------------------------------

BY_A_PROCESS = """
import datetime, os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

if __name__ == "__main__":  # what saves is spawned, and imports this file
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), sys.argv[1]
    weights = torch.full((4,), 1.0 + rank)
    kind = AsyncCheckpointerType.PROCESS
    future = dcp.async_save({f"of {rank}": weights}, checkpoint_id=folder, async_checkpointer_type=kind)
    weights.fill_(-1)
    future.result()
    dist.barrier()
    loaded = {f"of {other}": torch.zeros(4) for other in (0, 1)}
    dcp.load(loaded, checkpoint_id=folder)
    print(f"rank {rank} loads {[tensor.tolist() for tensor in loaded.values()]}\\n", end="", flush=True)
    dist.destroy_process_group()
"""


@proves("ckpt-async-by-a-process")
def test_a_process_of_its_own_saves_the_values_of_the_call(tmp_path):
    """Two ranks change their weights as soon as ``async_save`` has returned; what they load is from before."""
    script = tmp_path / "save.py"
    script.write_text(BY_A_PROCESS)
    with loopback(1) as hosts:
        (agent,) = torchrun(hosts, "--nproc-per-node=2", str(script), str(tmp_path / "saved"))
        agent.wait(PATIENCE_S)
    ones, twos = [1.0] * 4, [2.0] * 4
    assert sorted(re.findall(r"rank \d loads .*", agent.output)) == [f"rank {r} loads {[ones, twos]}" for r in (0, 1)]
