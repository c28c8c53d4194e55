r"""
Design case: 8, 64 and 512 GPUs
===============================

A model of 1.3 billion parameters: which scheme holds it, what does each send, and how far does it scale?
It serves :ref:`case-many-gpus`.

:Level: evidence, 10 minutes
"""

# %%
# What is assumed
# ---------------
# Nothing here was measured. Rates of one H100 and its node are those of data sheets, which the case cites; the rest is assumed.
# Float32 weights, products in bf16 under autocast, Adam, gradients as views of the buckets.

# runs nothing: a model on rates of data sheets and on assumptions
from ddplab import record
from ddplab.apparatus import design_cases
from ddplab.apparatus.design_cases import GB
from ddplab.apparatus.forecast import Fastest, slowest_of
from ddplab.apparatus.plotting import INK, describe, log_axis, subplots
from ddplab.buckets import MIB
from ddplab.costmodel import bucketed, equal_layers, simulate_step

N, LAYERS, WIDTH, WORDS, TOKENS = 1.3e9, 24, 2048, 50_000, 8 * 2048  # tokens of a GPU and step
LATER, JITTER = 4, 0.02  # assumed: multiple of the latency, deviation of a rank's compute
DATA, CAP = 100e9, 4e6  # tokens to train on; tokens of a step beyond which more teach little
WORLDS = 8, 64, 512
record(gpus=design_cases.NODE_GPUS, layers=LAYERS, width=WIDTH)
record("billion", parameters=N / 1e9, data=DATA / 1e9)
record("GB", memory=design_cases.MEMORY / GB)
record("TFLOP/s", peak=design_cases.PEAK_FLOPS / 1e12)
record("%", mfu=100 * design_cases.MFU, share=100 * design_cases.SHARE, jitter=100 * JITTER)
record(later=LATER)
record("tokens", rank_tokens=TOKENS)
record("million tokens", cap=CAP / 1e6)
record("GPUs", fed=CAP / TOKENS)

# %%
# What a rank holds
# -----------------
# Bytes per parameter: DDP 16, ZeRO-1 :math:`8 + 8/p`, FSDP :math:`16/p`, HSDP with a node as its group :math:`16/8`.
# Autocast keeps a bf16 copy of the weights, 2 more, where they are whole; FSDP has two gathered layers at a time.

live = design_cases.activation_bytes(TOKENS, WIDTH, LAYERS, WORDS)
SCHEMES = {  # bytes per parameter on 64 GPUs: state, copies in bf16
    "DDP": (16, 2),
    "ZeRO-1": (8 + 8 / 64, 2),
    "FSDP": (16 / 64, 2 * 2 / LAYERS),
    "HSDP": (16 / design_cases.NODE_GPUS, 2 * 2 / LAYERS),
}
ledger = {}
print(f"GB on a rank   {'state':>7} {'bf16':>6} {'activations':>12} {'sum':>6}   on 64 GPUs")
for scheme, (state, copies) in SCHEMES.items():
    ledger[scheme] = parts = [state * N / GB, copies * N / GB, live / GB]
    print(f"{scheme:14} {parts[0]:7.1f} {parts[1]:6.1f} {parts[2]:12.1f} {sum(parts):6.1f}")
    record("GB", **{f"sum_{scheme.lower().replace('-', '')}": sum(parts)})
record("GB", state=ledger["DDP"][0], copies=ledger["DDP"][1], live=live / GB)
record(
    "billion", limit=(design_cases.MEMORY - live) / 18 / 1e9
)  # parameters that DDP could hold

# %%
# A step
# ------
# It is :math:`6ND` operations, a third of them in the forward; Adam reads 16 bytes and writes 12 for each parameter.
# DDP's buckets of 25 MiB go over the cheaper of ring and tree, and a step waits for the slowest of its ranks (:ref:`performance-scaling`).


def step(ranks, tokens, node_rate, nbytes=4 * N, cap=25 * MIB):
    """The predicted step, without the wait for a slow rank; `nbytes` of gradients."""
    compute_s = 6 * N * tokens / (design_cases.PEAK_FLOPS * design_cases.MFU)
    gradients = equal_layers(8 * LAYERS, int(nbytes / (8 * LAYERS)), compute_s * 2 / 3)
    hops = LATER * design_cases.INSIDE_S, design_cases.SHARE * design_cases.NVLINK
    hops += LATER * design_cases.BETWEEN_S, design_cases.SHARE * node_rate
    network = Fastest(ranks, design_cases.NODE_GPUS, hops) if ranks > 1 else None
    adam_s = 28 * N / design_cases.MEMORY_RATE
    buckets = bucketed(gradients, cap)
    return simulate_step(compute_s / 3, gradients, buckets, network, optimizer_s=adam_s)


def step_s(ranks, tokens, node_rate, nbytes=4 * N, cap=25 * MIB):
    """Seconds of a step, with that wait."""
    done = step(ranks, tokens, node_rate, nbytes, cap)
    return done.step_s + JITTER * (done.forward_s + done.backward_s) * slowest_of(ranks)


FAST = design_cases.NODE_GPUS * design_cases.NDR_PORT
alone = step(1, TOKENS, FAST)
LINES = {
    "eight ports of 400 Gbit/s": (FAST, 4 * N),
    "one port of 100 Gbit/s": (design_cases.SLOW_PORT, 4 * N),
    "the same, gradients in bf16": (design_cases.SLOW_PORT, 2 * N),
}
scaled = {
    n: [alone.step_s / step_s(p, TOKENS, *on) for p in WORLDS] for n, on in LINES.items()
}
print(f"{'share of linear on':32}" + "".join(f"{p:6}" for p in WORLDS) + "  GPUs")
for key, (name, shares) in zip(("fast", "slow", "half"), scaled.items(), strict=True):
    print(f"{name:32}" + "".join(f"{share:6.0%}" for share in shares))
    record("%", **{f"{key}_{p}": 100 * share for p, share in zip(WORLDS, shares, strict=True)})
record("ms", compute=1e3 * (alone.forward_s + alone.backward_s), adam=1e3 * alone.optimizer_s)
record("ms", backward=1e3 * alone.backward_s)
record("GB", gradients=4 * N / GB)
for p in WORLDS:
    record("hours", **{f"hours_{p}": DATA / (p * TOKENS) * step_s(p, TOKENS, FAST) / 3600})
    record("million tokens", **{f"batch_{p}": p * TOKENS / 1e6})
sent = step(64, TOKENS, FAST)
record(
    "ms",
    sent_fast=1e3 * sent.communication_s,
    sent_512=1e3 * step(512, TOKENS, FAST).communication_s,
)
record("ms", bytes_fast=1e3 * 2 * 63 / 64 * 4 * N / (design_cases.SHARE * FAST))
record("messages", messages=len(sent.timeline))
record("ms", sent_slow=1e3 * step(64, TOKENS, design_cases.SLOW_PORT).communication_s)

# %%
# The batch that is useful feeds 256 GPUs with all of these tokens, or 512 with half of them each, in buckets of 25 or of 100 MiB.

for key, p, tokens, cap in (
    ("hours_256", 256, TOKENS, 25),
    ("hours_half", 512, TOKENS // 2, 25),
    ("hours_large", 512, TOKENS // 2, 100),
):
    seconds = step_s(p, tokens, FAST, cap=cap * MIB)
    hours = DATA / (p * tokens) * seconds / 3600
    print(
        f"{p} GPUs, {tokens:6,} tokens each, {cap:3} MiB: {1e3 * seconds:4.0f} ms, {hours:.1f} hours"
    )
    record("hours", **{key: hours})

# %%
# What leaves a node in a step, on eight nodes: a flat ring for DDP and FSDP; HSDP sends the sum of a node's gradients only.

ring, nodes = 63 / 64, 8
leaves = {
    "DDP in float32": 2 * ring * 4 * N,
    "DDP with a bf16 hook": 2 * ring * 2 * N,
    "FSDP in bf16": 3 * ring * 2 * N,
    "HSDP in bf16": 2 * (nodes - 1) / nodes * 2 * N,
}
for key, (name, nbytes) in zip(("ddp", "hook", "fsdp", "hsdp"), leaves.items(), strict=True):
    wire_ms = 1e3 * nbytes / (design_cases.SHARE * design_cases.SLOW_PORT)
    print(f"{name:22} {nbytes / GB:5.1f} GB a step, {wire_ms:5.0f} ms on 100 Gbit/s")
    record("GB", **{f"leaves_{key}": nbytes / GB})
    record("ms", **{f"wire_{key}": wire_ms})

# %%
# Left: one GPU's memory. Right: what share of linear scaling the model predicts.

# drawing
fig, (left, right) = subplots(1, 2, height_in=3.2)
describe(fig, "Memory of four schemes, and the share of linear scaling on 8, 64 and 512 GPUs")
design_cases.stacked(left, ledger, ("state", "bf16", "activations"))
left.axvline(design_cases.MEMORY / GB, color=INK, ls="--", lw=1)
left.set(xlim=(0, 85), xlabel="GB on a GPU, of 80; 64 GPUs")
left.set_title("All four fit")
for (name, shares), style in zip(scaled.items(), ("o-", "s-", "^--"), strict=True):
    right.plot(WORLDS, [100 * share for share in shares], style, label=name)
log_axis(right.xaxis, WORLDS)
right.set(ylim=(0, 105), xlabel="GPUs", ylabel="% of linear")
right.set_title("The network decides")
for ax, columns in ((left, 3), (right, 1)):
    place = (0.5, -0.2)
    ax.legend(fontsize=8.5, ncols=columns, loc="upper center", bbox_to_anchor=place)

# %%
# What to notice
# --------------
#
# - The model fits under DDP at each size, so memory does not choose the scheme; the network between the nodes does.
# - On one port of 100 Gbit/s 64 GPUs keep :measured:`case-many-gpus.slow_64:.0f` of linear scaling, and :measured:`case-many-gpus.half_64:.0f` with gradients in bf16.
# - The bytes that leave a node hardly grow with the nodes, so 512 GPUs are not worse than 64.
#
# What this does not mean
# -----------------------
#
# That a run will take these times: a measured step and a measured all-reduce replace the assumed MFU and the assumed share of the rates first.
# The formula for activations is one for a GPT with dropout; others differ, and the allocator's fragments come on top.
