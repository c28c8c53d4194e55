"""
Unused parameters
=================

What happens to a bucket when one of its parameters takes no part in the loss, and what do the remedies cost?
This lab lets it fail, and then tries ``find_unused_parameters=True`` and ``static_graph=True``.
It serves :ref:`internals-unused`.

A bucket leaves when all of its gradients are there, so one parameter without a gradient keeps it at home.
Keep in mind: DDP notices at the next forward, one step too late.

:Level: deep, 20 minutes
:Proves: unused-raises-second-forward unused-leaves-gradients-local find-unused-completes static-graph-unused
"""

# %%
# A model with two heads
# ----------------------
# ``TwoHeads`` is a linear trunk with linear heads ``a`` and ``b``; a forward uses one head, and the other one's parameters are unused in that step.
# ``PATTERNS`` is which head a rank uses in a step.
# The worker trains four steps and returns what each left behind, or where it stopped; ``local`` is what autograd produced on this rank, before any reduction.

import textwrap

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddplab import device, launch, record
from ddplab.apparatus.heads import TwoHeads
from ddplab.runtime.torch_private import flight_records

PATTERNS = {
    "always head a": lambda step, rank: "a",
    "a head per rank": lambda step, rank: "ab"[rank],
    "a, then b, in turn": lambda step, rank: "ab"[step % 2],
    "both, then only a": lambda step, rank: "a" if step else "ab",
}


def norm(gradient):
    return None if gradient is None else gradient.norm().item()


def worker(pattern, options):
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DistributedDataParallel(TwoHeads().to(device()), **options)
    names = {name: p for name, p in model.module.named_parameters() if name.endswith("weight")}
    local, steps, x = {}, [], torch.full((2, 4), 1.0 + rank).to(device())
    for name, p in names.items():
        p.register_hook(lambda grad, name=name: local.update({name: norm(grad)}))
    for step in range(4):
        local.clear()
        where, before = "forward", len(flight_records())
        try:
            loss = model(x, PATTERNS[pattern](step, rank)).mean()
            where = "backward"
            loss.backward()
        except RuntimeError as error:
            return steps, f"raises in {where} {step + 1}", str(error)
        issued = [f"{e.operation} of {e.elements}" for e in flight_records()[before:]]
        held = {name: norm(p.grad) for name, p in names.items()}
        steps.append({"local": dict(local), "held": held, "issued": issued})
        model.zero_grad()
    return steps, "runs", ""


# %%
# The default
# -----------
# Both ranks leave out the same head.
# Nothing visible goes wrong in the first step; the error comes with the *second* forward.
# ``TORCH_DISTRIBUTED_DEBUG=INFO`` adds the names of the parameters.

debug = {"TORCH_DISTRIBUTED_DEBUG": "INFO"}
(steps, where, message), (others, *_) = launch(worker, 2, "always head a", {}, env=debug)
print(f"rank 0 {where}:")
for line in message.strip().splitlines():
    print(textwrap.fill(line.strip(), 88, initial_indent="  ", subsequent_indent="    "))
assert where == "raises in forward 2"
assert "b.bias, b.weight" in message
each = launch(worker, 2, "a head per rank", {}, env=debug, quiet=True)
for (_, where, text), missed in zip(each, "ba", strict=True):  # each rank names its own
    assert where == "raises in forward 2"
    assert f"{missed}.bias, {missed}.weight" in text

# %%
# The step that did not raise was already wrong.
# All parameters share one bucket, the bucket waited for head b, and so nothing was reduced: each rank holds its own gradient.
# With ``gradient_as_bucket_view=True`` it is the bucket's, divided by the number of ranks already.

trunk = [result[0]["held"]["trunk.weight"] for result in (steps, others)]
print(f"first backward: {len(steps[0]['issued'])} collectives issued")
print(f"norm of the trunk's gradient: rank 0 {trunk[0]:.4f}, rank 1 {trunk[1]:.4f}")
assert not steps[0]["issued"]
assert trunk[0] != trunk[1]
views = {"gradient_as_bucket_view": True}
for options, share in ({}, 1), (views, 2):
    for (first, *_), *_ in launch(worker, 2, "always head a", options, quiet=True):
        assert first["held"]["trunk.weight"] == first["local"]["trunk.weight"] / share

# %%
# The remedies
# ------------
# Four patterns against three settings; then the all-reduces that a warm step issues, with their sizes in elements.

OPTIONS = {"default": {}}
OPTIONS |= {name: {name: True} for name in ("find_unused_parameters", "static_graph")}
results = {}
print(f"{'':20}" + "".join(f"{option:24}" for option in OPTIONS).rstrip())
for pattern in PATTERNS:
    for option, arguments in OPTIONS.items():
        results[pattern, option], other = launch(worker, 2, pattern, arguments, quiet=True)
        assert results[pattern, option][1] == other[1]
    ends = [results[pattern, option][1] for option in OPTIONS]
    print(f"{pattern:20}" + "".join(f"{end:24}" for end in ends).rstrip())
    first, last = {
        "a, then b, in turn": ("forward 2", "raises in backward 2"),
        "both, then only a": ("forward 3", "raises in forward 3"),
    }.get(pattern, ("forward 2", "runs"))
    assert ends == [f"raises in {first}", "runs", last]
assert "Your training graph has changed" in results["a, then b, in turn", "static_graph"][2]

# %%
# What they issue: ``find_unused_parameters`` adds one all-reduce to *each* backward, of a map with one number per parameter that shows what any rank used.
# ``static_graph`` adds it to the first backward only, and then rebuilds its buckets, one step later than usual.

for option in ("find_unused_parameters", "static_graph"):
    print(option)
    for step, state in enumerate(results["always head a", option][0]):
        print(f"  step {step}: {', '.join(state['issued'])}")
    in_warm_step = len(state["issued"])
    assert in_warm_step == {"find_unused_parameters": 2, "static_graph": 1}[option]
    record("all-reduces", **{option.removesuffix("_parameters"): in_warm_step})

# %%
# What an unused parameter receives
# ---------------------------------
# With one head per rank, head a is used on rank 0 only, and head b on rank 1 only.

for option in ("static_graph", "find_unused_parameters"):
    both = launch(worker, 2, "a head per rank", OPTIONS[option], quiet=True)
    for ranks in zip(*(steps for steps, _, _ in both), strict=True):  # of each step
        assert ranks[0]["held"] == ranks[1]["held"]
        for name, used in (ranks[0]["local"] | ranks[1]["local"]).items():
            assert name == "trunk.weight" or abs(ranks[0]["held"][name] - used / 2) < 1e-6
unused = results["always head a", "find_unused_parameters"][0][0]["held"]["b.weight"]
print(f"used on one rank of two: half of that rank's gradient; used on no rank: {unused}")
assert unused is None

# %%
# The bars are norms of gradients: before the reduction on each rank, and after it (equal on both ranks).

# drawing
from ddplab.apparatus.plotting import FAINT, MUTED, RANK_COLORS, label, subplots

ticks = {}
fig, ax = subplots(height_in=2.7)
for i, name in enumerate(("trunk.weight", "a.weight", "b.weight")):
    bars = [state["local"].get(name) for state in ranks] + [ranks[0]["held"][name]]
    looks = (RANK_COLORS[0], ""), (RANK_COLORS[1], "//"), (MUTED, "..")
    for x, value, (color, hatch) in zip((i - 0.27, i, i + 0.27), bars, looks, strict=True):
        ax.bar(x, value or 0, 0.25, color=color, hatch=hatch, edgecolor=FAINT, lw=0)
        label(ax, x, value or 0, "none" if value is None else f"{value:.2f}", va="bottom")
    ticks |= {i - 0.27: "rank 0", i: f"rank 1\n\n{name}", i + 0.27: "after"}
ax.set_xticks(list(ticks), ticks.values(), fontsize=9)
ax.set(ylabel="norm of the gradient", ylim=(0, 1.12 * ax.get_ylim()[1]))
ax.set_title("A rank that did not use a parameter counts as zero in its mean")

# %%
# What to notice
# --------------
# - The error names the second forward, the fault is in the first backward, and a step taken between them has already made the ranks diverge.
# - With ``find_unused_parameters=True`` a locally unused parameter gets the mean with a zero from this rank; one that no rank used keeps ``grad = None``, so that the optimizer leaves it alone.
# - ``static_graph=True`` is cheaper (:measured:`unused-parameters.static_graph` in a warm step, not :measured:`unused-parameters.find_unused`), as long as each rank uses the same parameters in every step.
#   They need not be the same on all ranks.
#
# What this does not mean
# -----------------------
# That the ranks always agree in what they miss: if only some leave a parameter out, the others hang in their first backward (:doc:`/labs/debugging/plot_11_unused_parameter`).
#
# That DDP must search for every unused parameter: one that no step uses is better frozen (``requires_grad_(False)``) before DDP is constructed.
#
# Change it: predict, then run
# ----------------------------
# Let the worker make one step: ``for step in range(1)``.
# Where does rank 0 stop in *The default*?
#
# Expect: nowhere, it *runs*: the error belongs to a second forward that never comes, and the wrong gradient stays; the assertion that expects the error fails.
#
# Say it aloud
# ------------
# "A parameter that takes no part in the loss holds its bucket back, and the error comes one forward later.
# find_unused_parameters walks the graph in every step and asks all ranks what was used; static_graph asks once, and then the set of used parameters must not change.
# So one costs an all-reduce per step, the other costs freedom."
