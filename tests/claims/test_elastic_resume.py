"""torchrun's agents: who restarts, what a restart costs, and which of its options act when.

All jobs run side by side, each in a thread that tells what happened; each test looks at its own.
"""

import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from patience import postmortem
from proof import proves
from started import shutdown_timeout

from ddplab.apparatus.machines import loopback, torchrun
from ddplab.runtime.needs import needs
from tools import PATIENCE_S, wait_until

LIFE = "TORCHELASTIC_RESTART_COUNT"
FRESH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# The port is another in each life, but somebody may take it before rank 0 does: so it only names a file to meet in.
MEET = f"""
where = f"file://{{sys.argv[1]}}-{{os.environ['MASTER_PORT']}}"
dist.init_process_group("gloo", where, datetime.timedelta(seconds={PATIENCE_S}), rank=rank, world_size=world)
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


# The ranks of the other jobs need no torch: they say what happens to them, and end by themselves after a while.
WAITING = """
import os, signal, sys, time
rank, life, agent = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.getppid()
world, port, fate, folder = os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"], *sys.argv[1:]

def say(text):
    print(f"rank {rank} of {world} life {life}: {text}\\n", end="", flush=True)

def leave(number, _):
    say(f"got {signal.Signals(number).name}")
    if fate == "exit":
        time.sleep(2 if life == "0" else 25)  # more than the agent is asked to allow; less than it allows by itself
    say("left by itself")
    os._exit(1)

signal.signal(signal.SIGTERM, leave)
if (fate, world, rank) == ("need the other", "2", "0"):
    held = open(f"{folder}/pipe", "w")  # when rank 1 has opened it, too: whoever hears the pid may kill this rank
say(f"pid {os.getpid()} store at {port}")
if (fate, life) == ("exit", "0"):
    if rank == "0":
        open(f"{folder}/0 is there", "w").close()
    else:
        while not os.path.exists(f"{folder}/0 is there"):  # a signal that comes before its handler would end rank 0
            time.sleep(0.05)
        os._exit(75)
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


def said(pattern, output):
    """What all ranks said, as tuples of words or numbers."""
    found = re.findall(pattern, output)
    return [tuple(int(word) if word.isdigit() else word for word in words) for words in found]


# -- the jobs -------------------------------------------------------------------------------------


def one_rank_is_killed(folder):
    """Rank 1 after step 7 of 12, with saves after every third; what both said."""
    with loopback(1) as hosts:
        options = ["--nproc-per-node=2", "--max-restarts=1"]
        (agent,) = torchrun(hosts, *options, *program(TRAINING, folder, 7, 3), env=FRESH)
        assert agent.wait(PATIENCE_S) == 0, agent.output
        return agent.output


def one_rank_exits(folder):
    """Rank 1 with code 75; once both ranks are back, the agent is asked to stop. What both printed until each."""
    with loopback(1) as hosts:
        options = ["--nproc-per-node=2", "--max-restarts=1"]
        options += shutdown_timeout(1)
        (agent,) = torchrun(hosts, *options, *program(WAITING, "exit", folder))
        for rank in (0, 1):
            agent.wait_for(f"rank {rank} of 2 life 1: pid", PATIENCE_S)
        restarted = agent.output
        os.kill(agent.pid, signal.SIGTERM)
        agent.wait(PATIENCE_S)
        return restarted, agent.output.removeprefix(restarted)


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
        conf = "is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=10"
        meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={hosts[1].address}:{port}", f"--rdzv-conf={conf}"]

        def start(host):
            options = ["--nnodes=1:2", "--max-restarts=1", f"--local-addr={host.address}", *meet]
            ranks = program(WAITING, "need the other", folder)
            return host.start(["torchrun", *options, *ranks], {**host.agent_env, **FRESH})

        first, second = map(start, hosts)
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
        port = first.free_port()

        def start(host):
            conf = f"is_host={int(host is first)},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=10"
            meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:{port}", f"--rdzv-conf={conf}"]
            options = ["--nnodes=1:2", f"--max-restarts={restarts}", f"--local-addr={host.address}", *meet]
            ranks = program(WAITING, "need the other", folder)
            return host.start(["torchrun", *options, *ranks], {**host.agent_env, **env})

        env = FRESH if fresh else {}
        old = start(first)
        old.wait_for("rank 0 of 1 life 0", PATIENCE_S)
        new = start(second)
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
    jobs |= {job.__name__: job for job in (one_rank_is_killed, one_rank_exits, two_agents_are_killed)}
    jobs |= {job.__name__: job for job in (one_of_three_fails, the_store_is_a_process_of_its_own)}
    with ThreadPoolExecutor(len(jobs)) as pool:
        yield {name: pool.submit(job, tmp_path_factory.mktemp("job")) for name, job in jobs.items()}


# -- what they show -------------------------------------------------------------------------------


@proves("ckpt-killed-rank-restarts-all")
def test_a_killed_rank_costs_less_than_one_interval(jobs, tmp_path):
    """Killed after step 7 of 12, saves after every third: both ranks come back, and all losses are as undisturbed."""

    def undisturbed():
        sys.argv = ["", str(tmp_path), "0", "3"]
        exec(TRAINING, {})

    steps = r"rank (\d) life \d step (\d+) loss (\S+)"
    expected = [said(steps, rank.printed) for rank in postmortem(undisturbed, 2, init=False, env={LIFE: "0"})]
    killed = jobs["one_rank_is_killed"].result()
    lives = said(r"rank (\d) life (\d) pid (\d+) begins with (\d+)", killed)
    assert sorted((rank, life, first) for rank, life, _, first in lives) == [(0, 0, 1), (0, 1, 7), (1, 0, 1), (1, 1, 7)]
    assert len({pid for _, _, pid, _ in lives}) == 4
    for rank in (0, 1):
        trained = [step for step in said(steps, killed) if step[0] == rank]
        assert len(expected[rank]) == 12 <= len(trained) < 12 + 3
        assert set(trained) == set(expected[rank])  # bit for bit


@proves("ckpt-any-exit-code-restarts")
def test_a_rank_that_has_saved_and_stopped_is_started_again(jobs):
    """Rank 1 ends with 75, as a program may after a save; the agent starts both ranks again."""
    restarted, _ = jobs["one_rank_exits"].result()
    assert "exitcode: 75" in restarted
    assert sorted(said(r"rank (\d) of 2 life (\d): pid", restarted)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@proves("ckpt-shutdown-timeout-on-signal-only")
def test_the_shutdown_timeout_counts_when_the_agent_stops_and_not_at_a_restart(jobs):
    """Asked for 1 s; a rank that needs 2 s gets them when its peer ends, and not when the agent is asked to stop."""
    needs(torch="2.13")
    restarted, stopped = jobs["one_rank_exits"].result()
    assert "rank 0 of 2 life 0: left by itself" in restarted
    assert "life 1: got SIGTERM" in stopped
    assert "life 1: left by itself" not in stopped


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
        port = first.free_port()
        conf = "keep_alive_interval=1,keep_alive_max_attempt=10"

        def start(host):
            meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:{port}"]
            meet += [f"--rdzv-conf=is_host={int(host is first)},{conf}", f"--local-addr={host.address}"]
            command = ["torchrun", "--nnodes=1:2", "--max-restarts=3", *meet, *program(WAITING, "stay", folder)]
            return host.start(command, {**host.agent_env, **FRESH, "LOGLEVEL": "DEBUG"})

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
