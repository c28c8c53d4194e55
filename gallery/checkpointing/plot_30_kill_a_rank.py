"""
Kill a rank under torchrun
==========================

One of two ranks gets SIGKILL in the middle of a run that may restart once.
Who ends, who comes back with which number, and which steps are lost?
It serves :ref:`checkpointing-elastic`; the agent's options are in :doc:`/labs/checkpointing/plot_33_agent_options`.
"""

import re
import tempfile
from concurrent.futures import ThreadPoolExecutor

from ddplab import record
from ddplab.labs.machines import loopback, torchrun

# %%
# The program
# -----------
# It saves after every fourth step, and begins where the newest checkpoint ends.
# In its first life, rank 1 kills itself after the step that is given; 0 is none.

TRAINING = """
import datetime, os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddplab.checkpoint import CheckpointManager

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def say(text):
    print(f"rank {rank} │ {text}\\n", end="", flush=True)

# The port is another in each life. On a busy machine somebody may have taken it by now,
# so here it only names the file in which the ranks meet.
meet = {"init_method": f"file://{sys.argv[1]}/meet-{os.environ['MASTER_PORT']}"}
meet |= {"rank": rank, "world_size": world, "timeout": datetime.timedelta(seconds=60)}
dist.init_process_group("gloo", **meet)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
manager, state = CheckpointManager(sys.argv[1]), {"model": model, "optimizer": optimizer}
found = manager.load(state)
first = found["step"] + 1 if found else 1
say(f"life {life}, pid {os.getpid()}, begins with step {first}")
for step in range(first, 13):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))[rank::world]
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say(f"step {step}, loss {loss.item().hex()}")
    if step % 4 == 0:
        manager.save(state, step)
        say(f"saved step {step}")
    if (life, rank, step) == (0, 1, int(sys.argv[2])):
        os.kill(os.getpid(), 9)
dist.barrier()
os._exit(0)  # Python taking leave may abort or hang in gloo, see hello_ddp.py
"""
FRESH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # each life meets in a store of its own


def train(fatal_step):
    with tempfile.TemporaryDirectory() as folder, loopback(1) as hosts:
        program = ["--no-python", "python", "-c", TRAINING, folder, str(fatal_step)]
        options = ["--nproc-per-node=2", "--max-restarts=1"]
        (agent,) = torchrun(hosts, *options, *program, port=0, env=FRESH)
        assert agent.wait(120) == 0, agent.output
        return agent.lines


with ThreadPoolExecutor(2) as pool:
    lines, undisturbed = pool.map(train, (7, 0))

# %%
# What was said
# -------------
# ``agent`` is torchrun. Of the steps between two events of a rank, the last one is shown.

SAID = re.compile(
    r"(?P<rank>rank \d) │ (?P<text>.*)"
    r"|\[(?P<failed>rank\d)\]: RuntimeError: .*(?P<error>Connection \w+ by peer)"
    r"|.*(?P<agent>failed \(exitcode: \S+\) local_rank: \d|Sending process \d+ .*)"
)
events = []  # (seconds, who, text)
for at_s, line in lines:
    if said := SAID.match(line):
        who = said["rank"] or (said["failed"] or "agent ").replace("rank", "rank ")
        events.append(
            (at_s - lines[0][0], who, said["text"] or said["error"] or said["agent"])
        )
for number, (at_s, who, text) in enumerate(events):
    then = next((text for _, one, text in events[number + 1 :] if one == who), "")
    if not (text.startswith("step") and then.startswith(("step", "saved"))):
        print(f"{at_s:5.1f} s  {who:6} │ {text.split(', loss')[0]}")

# %%
# Some steps were trained twice, and nothing in the curve shows it.


def curve(rank, lines):
    steps = re.findall(
        rf"{rank} │ step (\d+), loss (\S+)", "\n".join(line for _, line in lines)
    )
    return [(int(step), loss) for step, loss in steps]


for rank in ("rank 0", "rank 1"):
    steps = [step for step, _ in curve(rank, lines)]
    twice = sorted({step for step in steps if steps.count(step) > 1})
    same = set(curve(rank, lines)) == set(curve(rank, undisturbed))
    print(
        f"{rank}: {len(steps)} steps for 12, twice {twice}; same losses, bit for bit: {same}"
    )
    assert same
    assert twice in ([5, 6], [5, 6, 7])  # what rank 1 sent last may be lost with it

began = {text[:6]: at_s for at_s, _, text in events if "begins" in text}
died_s = max(at_s for at_s, who, text in events if who == "rank 1" and at_s < began["life 1"])
record(twice=len(twice))
record("s", pause=began["life 1"] - died_s)
numbers = [(who, text.split(",")[0]) for _, who, text in events if "begins" in text]
assert sorted(numbers) == [
    (f"rank {rank}", f"life {life}") for rank in (0, 1) for life in (0, 1)
]

# %%
# What to notice
# --------------
#
# - A restart is one of *all* ranks: the healthy one is stopped too, and both come back under their old numbers, as new processes.
# - :measured:`kill-a-rank.twice:.0f` steps were trained twice, those since the last checkpoint: fewer than lie between two saves.
# - The losses do not show where the cut was, because everything that a step depends on was saved, or follows from the number of the step.
# - The rank that is still there often says ``Connection closed`` or ``reset``. That is the consequence; ``exitcode: -9`` names the cause.
#
# What this does not mean
# -----------------------
#
# That a restart takes :measured:`kill-a-rank.pause:.0f` on your cluster: this model is tiny, and nearly all of the pause is the start of Python and torch.
# Nor that it always works with the store that torchrun shares by default: see :doc:`/labs/setup/plot_14_elastic_stale`.
