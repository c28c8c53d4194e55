"""
A restart that reads old addresses
==================================

With ``--max-restarts`` the agent starts its ranks again after one has died.
Why do the new ranks sometimes try to reach those of the life before?
It serves :ref:`setup-network-faults`.

:Level: evidence, 10 minutes
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

from ddplab.apparatus.machines import loopback, torchrun

# %%
# In the first life rank 1 kills itself; in the second, rank 0 is a second late, as a rank with a busy CPU may be.
# Each rank prints which store it got, and how it ends.

PROGRAM = """
import datetime, os, time, torch, torch.distributed as dist
rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"life {life}: store at port {os.environ['MASTER_PORT']}\\n", end="", flush=True)
if life == 1 and rank == 0:
    time.sleep(1)
try:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    dist.all_reduce(torch.zeros(1))
    if life == 0 and rank == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()
    print("all ranks have met again", flush=True)
    os._exit(0)
except RuntimeError as error:
    print(f"life {life}: {str(error).splitlines()[0]}\\n", end="", flush=True)
os._exit(1)
"""


def restart(fresh_store):
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(int(fresh_store))}
    program = [
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--no-python",
        "python",
        "-c",
        PROGRAM,
    ]
    with loopback(1) as hosts:
        (agent,) = torchrun(hosts, *program, env=env)
        with contextlib.suppress(TimeoutError):  # seen once: neither rank prints anything
            agent.wait(40)
    ports = {line.split()[-1] for line in agent.output.splitlines() if "store at port" in line}
    refused = "life 1: Gloo connectFullMesh failed" in agent.output
    met = "met again" in agent.output
    return len(ports) == 1, met, refused, not (met or refused)


# %%
# A count of tries
# ----------------
# This is a race, so it is tried several times: with the store that 2.13 shares by default, and with a fresh one.

tries = {"shared": [False] * 4, "fresh": [True] * 2}
with ThreadPoolExecutor(2) as pool:
    ended = {name: list(pool.map(restart, which)) for name, which in tries.items()}

heads = "kept over the restart   ranks met again   tried an old address   silent"
print(f"store    tries   {heads}")
for name, results in ended.items():
    kept, met, refused, silent = map(sum, zip(*results, strict=True))
    print(f"{name:8} {len(results):5} {kept:23} {met:17} {refused:22} {silent:8}")

assert all(kept for kept, *_ in ended["shared"])
assert all(met and not kept for kept, met, *_ in ended["fresh"])

# %%
# What to notice
# --------------
#
# - The store belongs to the agent and outlives the ranks, and so do the addresses that they wrote into it.
#   A new rank that is faster than its peer reads where the peer listened before.
# - It fails only if that rank is also the one of the pair to open the connection, so it fails sometimes.
#   How often is a matter of luck and of delay: the numbers above are a count, not a rate.
# - *Silent* means that the ranks had neither met nor failed when the lab stopped looking; that was seen on a busy machine.
# - With ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``, set for all agents, rank 0 hosts a new store in each life, with nothing old in it.
#
# What this does not mean
# -----------------------
#
# That restarts are useless: a failed one counts as one of ``--max-restarts``, and the next may succeed.
