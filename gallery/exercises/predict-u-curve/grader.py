"""Checks of `step_seconds`: the cost model's answers, and what a forgotten effect gives instead.

:Level: core, 17 minutes
"""

import itertools
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from types import ModuleType

from ddplab.buckets import MIB
from ddplab.costmodel import Link, Step, bucketed, equal_layers, simulate_step
from ddplab.grading.checks import Check, Wrong, counted
from ddplab.grading.checks import milliseconds as ms

READ = "performance-cost-model"
BUCKETS = "internals-buckets"


@dataclass(frozen=True)
class Case:
    """The arguments of `step_seconds`, in order."""

    layers: int
    layer_bytes: int
    cap_bytes: int
    forward_s: float
    backward_s: float
    latency_s: float
    bytes_per_s: float

    def __str__(self) -> str:  # noqa: D105
        return (
            f"{self.layers} layer{'s' * (self.layers > 1)} of {self.layer_bytes} bytes, cap {self.cap_bytes} bytes, "
            f"forward {ms(self.forward_s)}, backward {ms(self.backward_s)}, latency {ms(self.latency_s)}, "
            f"{self.bytes_per_s:g} bytes/s"
        )

    @property
    def right(self) -> Step:
        """What the cost model says."""
        gradients = equal_layers(self.layers, self.layer_bytes, self.backward_s)
        link = Link(self.latency_s, self.bytes_per_s, algorithm="link")
        return simulate_step(self.forward_s, gradients, bucketed(gradients, self.cap_bytes), link)


# Name of a slip: what is done then. `slipped` computes with them.
SLIPS = {
    "no tail": "the step ends with the backward. The last bucket is full only then: its transfer is exposed",
    "no forward": "the forward is left out. No gradient is ready before it has ended",
    "during forward": (
        "the ready times count from the start of the step. The transfers then begin during the forward, before there "
        "is a gradient: add `forward_s` to each"
    ),
    "latency once": "the latency is paid once per step. Each bucket pays it: that is what many small ones cost",
    "no latency": "a bucket costs its bytes alone. Each bucket pays the latency, too",
    "latency per layer": "each layer pays the latency. Each *bucket* does, which is what buckets are for",
    "no bytes": "a bucket costs its latency alone. Its bytes travel, too",
    "own link": (
        "each bucket is sent as soon as it is full, as if it had a link of its own. There is one link, in order: a "
        "bucket also waits until the one before has arrived"
    ),
    "no overlap": (
        "nothing is sent before the backward has ended. A bucket is sent while the layers after it still compute"
    ),
    "perfect overlap": (
        "the longer of backward and communication counts. They never overlap fully: the link idles until the first "
        "bucket is full, and the last bucket leaves when the backward is over"
    ),
    "last bucket full": "all buckets have the same bytes. What is left for the last one may be less",
    "last bucket lost": "a bucket that never reaches the cap is not sent. The last one is sent with what it has",
    "last bucket lost, and the backward": (
        "a bucket that never reaches the cap is not sent, and the step ends with the one before. The last is sent, too"
    ),
    "small first": "the bucket that is not full comes first. Buckets are filled in ready order, so it is the last",
    "below the cap": "a bucket closes before it would exceed the cap. It closes once it holds at least the cap",
    "above the cap": "a bucket closes only when it holds more than the cap. It closes once it has reached it",
    "cut": "a layer is cut where the cap is reached. A gradient is in one bucket, never in two",
    "first gradient": "a bucket leaves with the first of its gradients. It has to wait for the last of them",
    "one layer early": (
        "the gradients become ready one layer early, the first one at time 0. Layer i of range(layers) has its "
        "gradient when it is done, after (i + 1)/layers of the backward"
    ),
    "one bucket": "all layers are in one bucket. `cap_bytes` counts bytes",
    "a bucket per layer": "each layer is a bucket, whatever the cap",
    "milliseconds": "the result is in milliseconds. It should be in seconds",
}
# Where to read of a slip, if not in READ.
SLIP_READS = {name: BUCKETS for name in SLIPS if any(word in name for word in ("bucket", "cap", "cut", "small"))}
SLIP_READS |= dict.fromkeys(("no overlap", "first gradient"), "internals-backward")


def slipped(case: Case, slips: Collection[str]) -> float:
    """The recurrence once more, with some of the slips."""
    whole = case.layers * case.layer_bytes
    per = max(1, -(-case.cap_bytes // case.layer_bytes))
    if "below the cap" in slips:
        per = max(1, case.cap_bytes // case.layer_bytes)
    if "above the cap" in slips:
        per = case.cap_bytes // case.layer_bytes + 1
    if "one bucket" in slips:
        per = case.layers
    if "a bucket per layer" in slips:
        per = 1
    full, rest = divmod(case.layers, per)
    counts: list[float] = [per] * full + [rest] * (rest > 0)
    if "cut" in slips:
        full, rest = divmod(whole, case.cap_bytes)
        sizes = [case.cap_bytes] * full + [rest] * (rest > 0)
        counts = [size / case.layer_bytes for size in sizes]
    if "small first" in slips:
        counts.reverse()
    lost = {"last bucket lost", "last bucket lost, and the backward"} & set(slips)
    if lost and rest:
        counts.pop()

    begin_s = 0.0 if {"no forward", "during forward"} & set(slips) else case.forward_s
    filled = free_s = communication_s = 0.0
    for number, count in enumerate(counts):
        filled += count
        layer = filled
        if "first gradient" in slips:
            layer -= count - 1
        if "one layer early" in slips:
            layer -= 1
        ready_s = begin_s + case.backward_s * layer / case.layers
        if "no overlap" in slips:
            ready_s = begin_s + case.backward_s
        latencies = count if "latency per layer" in slips else 1
        if "no latency" in slips or ("latency once" in slips and number):
            latencies = 0
        last_is_full = "last bucket full" in slips and number == len(counts) - 1
        nbytes = (per if last_is_full else count) * case.layer_bytes
        seconds = latencies * case.latency_s
        seconds += 0 if "no bytes" in slips else nbytes / case.bytes_per_s
        start_s = ready_s if "own link" in slips else max(ready_s, free_s)
        free_s = max(free_s, start_s + seconds)
        communication_s += seconds
    computed_s = case.backward_s + (0 if "no forward" in slips else case.forward_s)
    step_s = max(computed_s, free_s)
    if "no tail" in slips:
        step_s = computed_s
    if "last bucket lost, and the backward" in slips:
        step_s = free_s
    if "perfect overlap" in slips:
        step_s = computed_s - case.backward_s + max(case.backward_s, communication_s)
    return 1e3 * step_s if "milliseconds" in slips else step_s


def ask(learner: ModuleType, cases: Sequence[Case]) -> list[float]:
    """On the rank: what the learner's function says, each a number."""
    answers = [answer(learner, case) for case in cases]
    again = answer(learner, cases[0])
    if not close(again, answers[0]):
        raise Wrong(
            f"The same arguments gave {ms(answers[0])} at first and {ms(again)} later ({cases[0]}). Something was "
            "kept from the calls between: the result depends on the arguments alone.",
            READ,
        )
    return answers


def answer(learner: ModuleType, case: Case) -> float:
    """One number."""
    returned = learner.step_seconds(*astuple(case))
    try:
        number = float(returned)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise Wrong(
            f"`step_seconds` returned {returned!r:.60} for {case}. It should return one finite number: the seconds of "
            "the step.",
            READ,
        )
    return number


def judge(cases: Sequence[Case], answers: Sequence[float]) -> None:
    """Compare with the cost model, and find the slips that explain every number."""
    wrong = [at for at, case in enumerate(cases) if not close(answers[at], case.right.step_s)]
    if not wrong:
        return
    case, got = cases[wrong[0]], answers[wrong[0]]
    count = f"{len(wrong)} of {len(cases)} cases are wrong" if len(cases) > 1 else "This is wrong"
    message = f"{count}. For {case} the step is {ms(case.right.step_s)}; you say {ms(got)}."
    slips = explain(cases, answers, wrong[0])
    if slips:
        ideas = "; and also when ".join(SLIPS[slip] for slip in slips)
        idea = f"That comes out when {ideas}."
    else:
        idea = "None of the usual slips gives your numbers; compare with your own timeline."
    raise Wrong(f"{message} {idea} {timeline(case)}", SLIP_READS.get(slips[0], READ) if slips else READ)


def explain(cases: Sequence[Case], answers: Sequence[float], first: int) -> tuple[str, ...]:
    """The one or two slips that give each of the numbers."""
    order = [first, *range(len(cases))]  # most are ruled out by the first that is wrong
    for size in (1, 2):
        for slips in itertools.combinations(SLIPS, size):
            if all(close(answers[at], slipped(cases[at], slips)) for at in order):
                return slips
    return ()


def timeline(case: Case) -> str:
    """What the link does, at most four buckets of it."""
    sent = [
        f"{bucket.nbytes} bytes, full at {ms(bucket.ready_s)}, sent from {ms(bucket.start_s)} to {ms(bucket.end_s)}"
        for bucket in case.right.timeline
    ]
    shown = sent if len(sent) <= 4 else [*sent[:2], "…", sent[-1]]
    over = ms(case.forward_s + case.backward_s)
    return f"Right: {counted(len(sent), 'bucket')}: {'; '.join(shown)}. The backward is over at {over}."


def close(a: float, b: float) -> bool:
    """Whether two times are equal but for rounding, also that of float32."""
    return math.isclose(a, b, rel_tol=2e-6)


# -- the checks ------------------------------------------------------------------------------------

# Forward, backward, latency; then the rate in bytes/s. Layers are of 1,000,000 bytes.
ONE_BUCKET = [
    Case(4, 1_000_000, 4_000_000, 0.010, 0.020, 0.001, 1e9),
    Case(4, 1_000_000, 9_999_999, 0.010, 0.020, 0.001, 1e9),
    Case(1, 1_000_000, 1_000_000, 0.003, 0.005, 0.002, 1e8),
    Case(6, 1_000_000, 6_000_000, 0.010, 0.020, 0.200, 1e12),
    Case(6, 1_000_000, 6_000_000, 0.010, 0.020, 0.000, 1e7),
]
HIDDEN = [
    Case(4, 1_000_000, 2_000_000, 0.010, 0.040, 0.001, 1e9),
    Case(12, 1_000_000, 3_000_000, 0.010, 0.036, 0.002, 1e9),
    Case(12, 1_000_000, 1_000_000, 0.020, 0.120, 0.002, 1e9),
    Case(6, 1_000_000, 2_000_000, 0.000, 0.060, 0.003, 4e8),
]
QUEUED = [
    Case(4, 1_000_000, 2_000_000, 0.010, 0.040, 0.001, 5e7),
    Case(12, 1_000_000, 3_000_000, 0.010, 0.036, 0.002, 1e8),
    Case(12, 1_000_000, 1_000_000, 0.020, 0.024, 0.005, 1e9),
    Case(9, 1_000_000, 3_000_000, 0.030, 0.030, 0.001, 2e8),
]
CAPS = [
    Case(5, 1_000_000, 2_000_000, 0.010, 0.040, 0.001, 1e8),
    Case(7, 1_000_000, 3_000_000, 0.010, 0.035, 0.003, 1e9),
    Case(6, 1_000_000, 1_500_000, 0.010, 0.012, 0.002, 1e9),
    Case(7, 1_000_000, 2_500_001, 0.010, 0.014, 0.001, 2e8),
    Case(5, 1_000_000, 400_000, 0.005, 0.010, 0.004, 1e9),
    Case(8, 1_000_000, 4_999_999, 0.020, 0.080, 0.004, 3e8),
]
# What the lab measures: twelve sleeping layers, three links, four caps.
LAB = [
    Case(12, 2**16, int(cap * MIB), 12e-3, 24e-3, latency_s, rate)
    for latency_s, rate in ((2e-3, 20e6), (4e-4, 20e6), (2e-3, 40e6))
    for cap in (0.06, 0.12, 0.25, 0.75)
]


def anything() -> list[Case]:
    """300 cases of all kinds, the same each time."""
    draw = random.Random(5)
    cases = []
    for _ in range(300):
        layers, layer_bytes = draw.randint(1, 40), draw.randint(1, 5_000_000)
        cap_bytes = max(1, int(layers * layer_bytes * draw.uniform(0, 1.2) ** 2))
        times = (draw.choice([0.0, 10 ** draw.uniform(-4, -1)]) for _ in range(3))
        cases.append(Case(layers, layer_bytes, cap_bytes, *times, 10 ** draw.uniform(6, 10)))
    return cases


ANYTHING = anything()


def questions(title: str, setting: str, cases: Sequence[Case]) -> Check:
    """A check that asks for the seconds of these cases."""
    return Check(title, 1, READ, setting, lambda learner, _: ask(learner, cases), lambda seen: judge(cases, seen[0]))


one_bucket = questions(
    "One bucket", "All layers fit below the cap: forward, backward, and one transfer that nothing hides.", ONE_BUCKET
)
hidden = questions(
    "Hidden by the backward",
    "Several buckets; each has arrived before the next is full, and only the last one shows.",
    HIDDEN,
)
queued = questions("Waiting for the link", "Several buckets over a link that is slower than the backward.", QUEUED)
caps = questions(
    "Buckets as torch fills them",
    "Caps that are not a multiple of a layer, layers that are not a multiple of a bucket.",
    CAPS,
)
lab = questions(
    "The U-curve of the lab", "Twelve layers over three links with four caps each, which the book measures.", LAB
)
all_kinds = questions(
    "300 cases of all kinds", "One layer to forty, times of zero, caps from one byte to more than everything.", ANYTHING
)
