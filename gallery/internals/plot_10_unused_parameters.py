"""
Unused parameters
=================

A parameter that takes no part in the loss gets no gradient, so its bucket never fills.
This lab shows what happens then, and what the two remedies do and cost: ``find_unused_parameters=True`` and ``static_graph=True``.

Serves :ref:`Unused parameters <internals-unused>` in :doc:`/internals`.
"""

# %%
# **A model with two heads.**
# A forward uses one of them; the other one's parameters are unused in that step.
# ``PATTERNS`` says which head rank ``r`` uses in step ``s``.

import textwrap

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.plotting import FAINT, INK, MUTED, RANK_COLORS, subplots
from ddplab.torch_private import flight_records

PATTERNS = {
    "always head a": lambda step, rank: "a",
    "a head per rank": lambda step, rank: "ab"[rank],
    "a, then b, in turn": lambda step, rank: "ab"[step % 2],
}


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, head):
        return getattr(self, head)(self.trunk(x))


# %%
# The worker trains four steps and returns what each left behind, or where it stopped.
# ``local`` is what autograd produced on this rank, before any reduction.


def worker(pattern, options):
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DistributedDataParallel(TwoHeads().to(device()), **options)
    names = {name: p for name, p in model.module.named_parameters() if name.endswith("weight")}
    local, steps = {}, []
    for name, p in names.items():
        p.register_hook(lambda grad, name=name: local.update({name: grad.norm().item()}))
    for step in range(4):
        local.clear()
        where, before = "forward", len(flight_records())
        try:
            loss = model(torch.full((2, 4), 1.0 + rank).to(device()), PATTERNS[pattern](step, rank)).mean()
            where = "backward"
            loss.backward()
        except RuntimeError as error:
            return steps, f"raises in {where} {step + 1}", str(error)
        issued = [(entry.operation, entry.elements) for entry in flight_records()[before:]]
        held = {name: None if p.grad is None else p.grad.norm().item() for name, p in names.items()}
        steps.append({"local": dict(local), "held": held, "issued": issued})
        model.zero_grad()
    return steps, "runs", ""


# %%
# **The default.**
# Nothing goes wrong in the first step, as far as you can see; the error comes with the *second* forward.
# ``TORCH_DISTRIBUTED_DEBUG=INFO`` adds the names of the parameters.

(first, second) = launch(worker, 2, "always head a", {}, env={"TORCH_DISTRIBUTED_DEBUG": "INFO"})
steps, where, message = first
print(f"rank 0 {where}:")
for line in message.strip().splitlines():
    print(textwrap.fill(line.strip(), 92, initial_indent="  ", subsequent_indent="    "))
assert where == "raises in forward 2"
assert "b.bias, b.weight" in message

# %%
# The step that raised nothing was already wrong.
# All parameters share one bucket, the bucket waited for head b, and so nothing was reduced: each rank holds its own gradient.

trunk = [result[0][0]["held"]["trunk.weight"] for result in (first, second)]
print(f"first backward: {len(steps[0]['issued'])} collectives issued")
print(f"norm of the trunk's gradient: rank 0 {trunk[0]:.4f}, rank 1 {trunk[1]:.4f}")
assert not steps[0]["issued"]
assert trunk[0] != trunk[1]

# %%
# **The remedies.**
# Three patterns against three settings; then the all-reduces that a warm step issues, with their sizes in elements.

OPTIONS = {
    "default": {},
    "find_unused_parameters": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
}
results = {(p, o): launch(worker, 2, p, OPTIONS[o], quiet=True)[0] for p in PATTERNS for o in OPTIONS}
print(f"{'':20}" + "".join(f"{option:24}" for option in OPTIONS).rstrip())
for pattern in PATTERNS:
    print(f"{pattern:20}" + "".join(f"{results[pattern, option][1]:24}" for option in OPTIONS).rstrip())
assert [results[p, "find_unused_parameters"][1] for p in PATTERNS] == ["runs"] * 3
assert [results[p, "static_graph"][1] for p in PATTERNS] == ["runs", "runs", "raises in backward 2"]

# %%
# What they issue: ``find_unused_parameters`` adds one all-reduce to *each* backward, of a map with one number per parameter, which tells all ranks what was used anywhere.
# ``static_graph`` adds it to the first backward only, and then rebuilds its buckets, one step later than usual.

for option in ("find_unused_parameters", "static_graph"):
    print(option)
    for step, state in enumerate(results["always head a", option][0]):
        print(f"  step {step}: " + ", ".join(f"{name} of {count}" for name, count in state["issued"]))
issued = [len(results["always head a", option][0][3]["issued"]) for option in OPTIONS if option != "default"]
assert issued == [2, 1]
record("all-reduces", find_unused=issued[0], static_graph=issued[1])

# %%
# **What an unused parameter receives.**
# With one head per rank, head a is used on rank 0 only, and head b on rank 1 only.
# The bars are norms of gradients: before the reduction on each rank, and after it (equal on both ranks).

ranks = [result[0][0] for result in launch(worker, 2, "a head per rank", {"find_unused_parameters": True}, quiet=True)]
names = ["trunk.weight", "a.weight", "b.weight"]
fig, ax = subplots(height_in=2.7)
for i, name in enumerate(names):
    bars = [state["local"].get(name) for state in ranks] + [ranks[0]["held"][name]]
    for at, value, color, hatch in zip(
        (-0.27, 0, 0.27), bars, [*RANK_COLORS[:2], MUTED], ["", "//", ".."], strict=True
    ):
        ax.bar(i + at, value or 0, width=0.25, color=color, hatch=hatch, edgecolor=FAINT, lw=0)
        label = "none" if value is None else f"{value:.2f}"
        ax.text(i + at, value or 0, label, ha="center", va="bottom", color=INK, fontsize=8.5)
ax.set_xticks([i + at for i in range(3) for at in (-0.27, 0, 0.27)], ["rank 0", "rank 1", "after"] * 3, fontsize=8)
for i, name in enumerate(names):
    ax.text(i, -0.17, name, ha="center", va="top", weight="bold", transform=ax.get_xaxis_transform())
ax.set_ylabel("norm of the gradient")
ax.set_title("A rank that did not use a parameter counts as zero in its mean")

for name in ("a.weight", "b.weight"):
    used = next(state["local"][name] for state in ranks if name in state["local"])
    assert all(abs(state["held"][name] - used / 2) < 1e-6 for state in ranks)
unused = results["always head a", "find_unused_parameters"][0][0]["held"]["b.weight"]
print(f"used on one rank of two: half of that rank's gradient; used on no rank: {unused}")
assert unused is None

# %%
# What to notice
# --------------
#
# - The error names the second forward, the fault is in the first backward, and a step taken between them has already moved the ranks apart.
# - With ``find_unused_parameters=True`` a locally unused parameter gets the mean with a zero from this rank; one that no rank used keeps ``grad = None``, so that the optimizer leaves it alone.
# - ``static_graph=True`` is cheaper (:measured:`unused-parameters.static_graph` in a warm step, not :measured:`unused-parameters.find_unused`), as long as each rank uses the same parameters in every step.
#   They need not be the same on all ranks.
#
# What this does not mean
# -----------------------
#
# That every unused parameter must be searched for: one that no step uses is better frozen (``requires_grad_(False)``) before DDP is constructed.
