r"""
Design case: fine-tuning on one node
====================================

Seven billion parameters on eight GPUs: adapters or everything, and under which scheme?
It serves :ref:`case-fine-tuning`.

:Level: evidence, 10 minutes
"""

# %%
# What is assumed
# ---------------
# Full: float32 weights and Adam, products in bf16.
# Adapters: the base in bf16 and frozen, low-rank pairs of rank 16 at the seven matrices of each layer, trained in float32 with Adam.
# Nothing was measured: rates are those of data sheets, the shape of the model is a common one.

# runs nothing: a model on rates of data sheets and on assumptions
from ddplab import record
from ddplab.apparatus import design_cases
from ddplab.apparatus.design_cases import GB
from ddplab.apparatus.plotting import INK, describe, subplots

N, LAYERS, WIDTH, INNER, WORDS, RANK = 7e9, 32, 4096, 11008, 32_000, 16
# Of a GPU and step; three epochs; tuned models.
TOKENS, DATA, VARIANTS = 4 * 2048, 3 * 50e6, 20
GPUS = design_cases.NODE_GPUS
ADAPTER = LAYERS * RANK * (4 * 2 * WIDTH + 3 * (WIDTH + INNER))  # four square, three long
record("billion", parameters=N / 1e9)
record("million", adapter=ADAPTER / 1e6, data=DATA / 1e6)
record(
    "%",
    adapter_share=100 * ADAPTER / N,
    mfu=100 * design_cases.MFU,
    share=100 * design_cases.SHARE,
)
record("GB", memory=design_cases.MEMORY / GB, small_card=24)
record("tokens", rank_tokens=TOKENS)
record(gpus=GPUS, rank=RANK, layers=LAYERS, variants=VARIANTS)

# %%
# What a GPU holds
# ----------------
# FSDP has two gathered layers at a time. *Checkpointed* means activations: each layer is computed again in the backward.

all_kept, less_kept = (
    design_cases.activation_bytes(TOKENS, WIDTH, LAYERS, WORDS, checkpointed=cut)
    for cut in (False, True)
)
gathered = 2 * 2 * N / LAYERS
PLANS = {  # trained state, weights in bf16, activations
    "full, DDP": (16 * N, 2 * N, all_kept),
    "full, FSDP": (16 * N / GPUS, gathered, all_kept),
    "full, FSDP, checkpointed": (16 * N / GPUS, gathered, less_kept),
    "adapters, DDP": (16 * ADAPTER, 2 * N, all_kept),
    "adapters, DDP, checkpointed": (16 * ADAPTER, 2 * N, less_kept),
}
KEYS = "full_ddp", "full_fsdp", "full_less", "adapters_ddp", "adapters_less"
print(f"{'GB on a GPU':29} {'state':>6} {'weights':>8} {'activations':>12} {'sum':>6}")
ledger = {}
for key, (name, plan) in zip(KEYS, PLANS.items(), strict=True):
    ledger[name] = parts = [part / GB for part in plan]
    print(f"{name:29} {parts[0]:6.1f} {parts[1]:8.1f} {parts[2]:12.1f} {sum(parts):6.1f}")
    record("GB", **{key: sum(parts), f"{key}_state": parts[0]})
record("GB", base=2 * N / GB, kept=all_kept / GB, kept_less=less_kept / GB)

# %%
# What a step takes
# -----------------
# A frozen weight needs no gradient of its own: 4 operations for each weight and token, not 6; computing the forward again adds 2 to either.

STEPS = {"full": 6, "adapters": 4, "full, checkpointed": 8, "adapters, checkpointed": 6}
for key, (name, per_weight) in zip(
    ("full", "adapters", "full_again", "adapters_again"), STEPS.items(), strict=True
):
    step_s = per_weight * N * TOKENS / (design_cases.PEAK_FLOPS * design_cases.MFU)
    minutes = DATA / (GPUS * TOKENS) * step_s / 60
    print(f"{name:23} {1e3 * step_s:5.0f} ms a step, {minutes:3.0f} minutes for all tokens")
    record("ms", **{f"step_{key}": 1e3 * step_s})
    record("minutes", **{f"minutes_{key}": minutes})

# %%
# What travels in it: FSDP gathers twice and reduces once in bf16, DDP reduces the adapters' float32 gradients.

share = (GPUS - 1) / GPUS
fsdp, adapters = 3 * share * 2 * N, 2 * share * 4 * ADAPTER
for key, rate in (("nvlink", design_cases.NVLINK), ("pcie", design_cases.PCIE)):
    fsdp_ms, adapters_ms = (
        1e3 * sent / (design_cases.SHARE * rate) for sent in (fsdp, adapters)
    )
    print(f"{key:7} FSDP {fsdp_ms:6.1f} ms, adapters {adapters_ms:4.1f} ms")
    record("ms", **{f"fsdp_{key}": fsdp_ms, f"adapters_{key}": adapters_ms})
record("GB", fsdp_sent=fsdp / GB, adapters_sent=adapters / GB)

# %%
# What is kept: to resume, the weights and Adam's two moments in float32; to serve, weights in bf16.

record("GB", resume_full=12 * N / GB, resume_adapters=12 * ADAPTER / GB)
record(
    "GB", serve_full=VARIANTS * 2 * N / GB, serve_adapters=2 * (N + VARIANTS * ADAPTER) / GB
)
print(f"{VARIANTS} variants: {VARIANTS * 2 * N / GB:.0f} GB of full models", end=", ")
print(f"{2 * (N + VARIANTS * ADAPTER) / GB:.1f} GB of one base and adapters")

# %%

# drawing
fig, ax = subplots(height_in=2.9)
describe(fig, "Memory of five ways to fine-tune, against cards of 24 and 80 GB")
design_cases.stacked(
    ax, ledger, ("trained state", "weights in bf16", "activations"), beyond=24
)
for card in (24, 80):
    ax.axvline(card, color=INK, ls="--", lw=1)
ax.set(xlim=(0, 185), xlabel="GB on each of eight GPUs; dashed: cards of 24 and 80 GB")
ax.set_title("Sharding makes full tuning as small as adapters")
ax.legend(fontsize=8.5, loc="lower right")

# %%
# What to notice
# --------------
#
# - FSDP over eight GPUs holds :math:`16N/8 = 2N` bytes of state, as much as the frozen base of the adapters in bf16.
# - Adapters do not save activations: the gradient passes through every layer.
# - They save a third of the arithmetic, nearly all of the traffic, and the storage of many variants.
#
# What this does not mean
# -----------------------
#
# That both learn the same: which quality adapters reach is a question for an evaluation, not for this arithmetic.
