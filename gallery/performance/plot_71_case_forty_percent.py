r"""
Design case: 40 % of linear scaling
===================================

A job on 32 nodes takes 1,000 ms for a step that takes 400 ms on one: what does each suspect predict, and which fits?
It serves :ref:`case-forty-percent`.

:Level: evidence, 10 minutes
"""

# %%
# What is given
# -------------
# 1.3 billion float32 gradients, times of one node of eight GPUs, and four ports of 100 Gbit/s in each node.
# Nothing of it was measured here: the times are the interviewer's, the rates nominal.

# runs nothing: a model on an interviewer's numbers
from ddplab import record
from ddplab.apparatus.design_cases import BETWEEN_S, GB, INSIDE_S
from ddplab.apparatus.forecast import Fastest, slowest_of
from ddplab.apparatus.plotting import ACCENT, INK, MUTED, describe, name_rows, subplots
from ddplab.buckets import MIB
from ddplab.costmodel import Cluster, bucketed, equal_layers, simulate_step

NBYTES, LAYERS, NODES, GPUS = 4 * 1.3e9, 24, 32, 8
FORWARD_S, BACKWARD_S, OPTIMIZER_S, SEEN_S = 0.125, 0.250, 0.025, 1.0
# bytes/s; the last is that of a TCP flow of 5 Gbit/s
PORT, PORTS, INSIDE, FLOW = 12.5e9, 4, 300e9, 0.625e9
HOPS = INSIDE_S, INSIDE, BETWEEN_S
gradients = equal_layers(8 * LAYERS, int(NBYTES / (8 * LAYERS)), BACKWARD_S)


def step_s(rate, share=1.0, cap=25 * MIB, network=None, **more):
    """Seconds of a step if a node sends `rate` bytes/s, and `share` of the bytes travels."""
    sent = [(ready, int(nbytes * share)) for ready, nbytes in gradients]
    network = network or Fastest(NODES * GPUS, GPUS, (*HOPS, rate))
    times = {"backward_s": BACKWARD_S, "optimizer_s": OPTIMIZER_S, **more}
    return simulate_step(FORWARD_S, sent, bucketed(sent, cap), network, **times).step_s


one_node_s = step_s(0, network=Fastest(GPUS, GPUS, (*HOPS, PORT)))
compute_s = FORWARD_S + BACKWARD_S + OPTIMIZER_S
missing_s = SEEN_S - one_node_s
record("ms", one_node=1e3 * one_node_s, seen=1e3 * SEEN_S, missing=1e3 * missing_s)
record("ms", backward=1e3 * BACKWARD_S, compute=1e3 * compute_s)
record("%", seen_share=100 * one_node_s / SEEN_S)
record("GB", gradients=NBYTES / GB)
record("GB/s", node_rate=PORTS * PORT / GB, port_rate=PORT / GB)
record("Gbit/s", port=8 * PORT / 1e9)
record(nodes=NODES, ranks=NODES * GPUS, gpus=GPUS, ports=PORTS)
record(
    "ms", all_ports=1e3 * Fastest(NODES * GPUS, GPUS, (*HOPS, PORTS * PORT)).seconds(NBYTES)
)

# %%
# What each suspect predicts
# --------------------------
# One that predicts far less than what is seen cannot be it alone; one that predicts far more is not it at all.

ring = Cluster(NODES, GPUS, *HOPS, PORTS * PORT, "ring")
SUSPECTS = {
    "four ports, nominal": step_s(PORTS * PORT),
    "four ports at 80 %": step_s(0.8 * PORTS * PORT),
    "no overlap": step_s(PORTS * PORT, overlap=False),
    "1 MiB buckets, ring": step_s(PORTS * PORT, cap=MIB, network=ring),
    "one port of four": step_s(PORT),
    "one TCP flow": step_s(FLOW),
}
KEYS = "nominal", "healthy", "no_overlap", "small_buckets", "one_port", "one_flow"
print(f"{'suspect':22} {'step':>9}  of linear")
for key, (name, seconds) in zip(KEYS, SUSPECTS.items(), strict=True):
    print(f"{name:22} {1e3 * seconds:6.0f} ms {one_node_s / seconds:8.0%}")
    record("ms", **{key: 1e3 * seconds})
    record("%", **{f"{key}_share": 100 * one_node_s / seconds})

# %%
# The model turned round
# ----------------------
# Which rate between nodes, which deviation of each rank's compute, or which speed of one rank explains the step by itself?

low, high = FLOW, PORTS * PORT
for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if step_s(middle) > SEEN_S else (low, middle)
sigma_s, clock = missing_s / slowest_of(NODES * GPUS), compute_s / (compute_s + missing_s)
print(f"a rate of {low / GB:.1f} GB/s between nodes; one port has {PORT / GB:.1f}")
print(f"chance: a deviation of {1e3 * sigma_s:.0f} ms in {1e3 * compute_s:.0f} ms of compute")
print(f"one rank at {clock:.0%} of its speed")
assert abs(step_s(low) - SEEN_S) < 1e-6
record("GB/s", rate=low / GB)
record("ms", sigma=1e3 * sigma_s)
record("%", clock=100 * clock)

# %%
# Tonight, with one port: half of the bytes, or two micro-batches for each all-reduce.

tonight_s, twice_s = step_s(PORT, share=0.5), step_s(PORT, accumulation=2)
one_twice_s = one_node_s + FORWARD_S + BACKWARD_S
print(f"bf16 hook: {1e3 * tonight_s:.0f} ms, {one_node_s / tonight_s:.0%} of linear")
print(f"two micro-batches: {1e3 * twice_s:.0f} ms, {one_twice_s / twice_s:.0%} of linear")
record("ms", tonight=1e3 * tonight_s)
record(
    "%", tonight_share=100 * one_node_s / tonight_s, twice_share=100 * one_twice_s / twice_s
)

# %%

# drawing
fig, ax = subplots(height_in=2.6)
describe(fig, "The step that each suspect predicts, against the step that was seen")
shown = {name: seconds for name, seconds in SUSPECTS.items() if seconds < 2}
for row, seconds in enumerate(shown.values()):
    color = ACCENT if abs(seconds - SEEN_S) < 0.1 else MUTED
    ax.barh(row, 1e3 * seconds, 0.7, color=color, ec=INK, lw=0.6)
    ax.text(1040, row, f"{1e3 * seconds:,.0f}", va="center")
ax.axvline(1e3 * SEEN_S, color=INK, ls="--", lw=1)
name_rows(ax, list(shown))
ax.set(xlim=(0, 1150), xlabel="ms of a step on 32 nodes; dashed: what was seen")
ax.set_title("One suspect fits")

# %%
# What to notice
# --------------
#
# - The step that was seen asks for :measured:`case-forty-percent.rate:.1f` between nodes, and one port has :measured:`case-forty-percent.port_rate:.1f`: turning the model round names a suspect that a log can confirm.
# - A missing overlap, or small buckets in a ring, explain a part of it and not all.
#
# What this does not mean
# -----------------------
#
# That the suspect is guilty: a rank that lost its clock takes the same time. The model says which measurement comes first.
