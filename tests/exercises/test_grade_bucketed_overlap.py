"""The grader of bucketed-overlap: right solutions pass, each wrong one gets the reason."""

from graded import (  # noqa: F401
    but,
    overriding,
    test_a_right_file_passes,
    test_a_wrong_file_gets_the_reason,
    test_one_that_needs_ranks_of_its_own_gets_the_reason,
)

NAME = "bucketed-overlap"

# The last method of a solution, in which many mistakes are made; `…` is replaced.
FINISH = """
def finish(self):
    for bucket, (flat, work) in zip(self.buckets, self.flights):
        work.wait()
        flat /= dist.get_world_size()
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(piece.view_as(p))
    self.flights, self.missing = [], []
"""
# The method before it: launch what is full, in order.
READY = """
def gradient_ready(self, p):
    if not self.missing:
        self.missing = [len(bucket) for bucket in self.buckets]
        after_backward(self.finish)
    self.missing[self.bucket_of[p]] -= 1
    self.launch()
"""
LAUNCH = """
def launch(self):
    while len(self.flights) < len(self.buckets) and not self.missing[len(self.flights)]:
        flat = torch.cat([q.grad.flatten() for q in self.buckets[len(self.flights)]])
        self.flights.append((flat, dist.all_reduce(flat, async_op=True)))
"""
ASSIGN = """
def assign(self, parameters, cap_bytes):
    buckets = []
    for p in reversed(parameters):
        last = buckets[-1] if buckets else []
        if not last or sum(q.nbytes for q in last) >= cap_bytes or last[0].dtype != p.dtype:
            buckets.append([])
        buckets[-1].append(p)
    return buckets
"""


# name: (methods that replace those of the solution, words of the message)
WRONG = {
    "sum": (
        but(FINISH, ("flat /= dist.get_world_size()", "pass")),
        "holds the sum over the ranks|it was never divided by 2",
    ),
    "no wait": (but(FINISH, ("work.wait()", "pass")), "own gradient divided by 2|3 of 3 asynchronous calls"),
    "not copied back": (
        but(FINISH, ("p.grad.copy_(piece.view_as(p))", "pass")),
        "still holds each rank's own gradient",
    ),
    "pieces in another order": (
        but(FINISH, ("zip(bucket, flat", "zip(bucket[::-1], flat"), ("for p in bucket]", "for p in bucket[::-1]]")),
        "often it is a piece of another parameter|Element 0 of",
    ),
    "the last bucket never leaves": (
        READY + but(LAUNCH, ("< len(self.buckets) and", "< len(self.buckets) - 1 and")) + FINISH,
        "Each of `0.weight`, `0.bias` (the other 6 are right) still holds each rank's own gradient",
    ),
    "one call per parameter": (
        but(ASSIGN, ("not last or", "True or")),
        "80, 50 and 16 elements; the calls carried 2, 12, 6, 60, 10, 40, 4 and 12|one call per parameter",
    ),
    "order of registration": (
        but(ASSIGN, ("reversed(parameters)", "parameters")),
        "carried 56, 70 and 20. The buckets were filled in the order of registration",
    ),
    "elements for bytes": (
        but(ASSIGN, ("q.nbytes", "q.numel()")),
        "carried 146. That is one bucket of everything: `bucket_cap_bytes` counts bytes",
    ),
    "never above the cap": (
        but(ASSIGN, ("for q in last) >= cap", "for q in [*last, p]) > cap")),
        "carried 20, 60, 10, 40 and 16. These buckets close before they would exceed the cap",
    ),
    "all at the end": (
        but(READY, ("self.launch()", "pass")) + LAUNCH + but(FINISH, ("self):\n", "self):\n    self.launch()\n")),
        "when the backward had reached the first layer, and nothing was left to overlap",
    ),
    "one bucket late": (
        but(READY, ("    self.missing[self", "    self.launch()\n    self.missing[self"), ("1\n    self.launch()", "1"))
        + LAUNCH
        + but(FINISH, ("self):\n", "self):\n    self.launch()\n")),
        "was launched only after a gradient of the next bucket",
    ),
    "blocking": (
        READY + but(LAUNCH, (", async_op=True", "")) + but(FINISH, ("work.wait()", "pass")),
        "3 of 3 all-reduces were blocking",
    ),
    "waits in the hook": (
        READY + but(LAUNCH, ("async_op=True)))", "async_op=True)))\n        self.flights[-1][1].wait()")) + FINISH,
        "awaited while gradients were still to be computed",
    ),
    "counters stay": (
        but(FINISH, ("    self.flights, self.missing = [], []\n", "")),
        "still holds each rank's own gradient|The first step was right",
    ),
    "order of arrival": (
        READY
        + """
def launch(self):
    for i, bucket in enumerate(self.buckets):
        if not self.missing[i]:
            self.missing[i] = -1
            flat = torch.cat([q.grad.flatten() for q in bucket])
            self.flights.append((flat, dist.all_reduce(flat, async_op=True)))
"""
        + FINISH,
        "diverge at call 5: rank 0 calls all_reduce of 28 float32 elements, rank 1 calls all_reduce of 20|same order",
    ),
    "mixed types": (
        but(ASSIGN, (" or last[0].dtype != p.dtype", "")),
        "should carry 10 bfloat16 and 16 float32 elements; they carried 26 float32|give each bucket one data type",
    ),
    "copies that differ": (
        """
        def __init__(self, module, cap_bytes):
            weights = [p.detach().clone() for p in module.parameters()]
            super().__init__(module, cap_bytes)
            for p, weight in zip(module.parameters(), weights):
                p.data.copy_(weight)
        """,
        "After step 1 of 3 the weights are up to|what the replicas start from",
    ),
}

# Those whose ranks end, raise or diverge.
ALONE = ["order of arrival"]

# Divided first, futures instead of works, and gradients that live in the flat tensor.
ANOTHER = (
    READY
    + but(
        LAUNCH,
        ("len(self.flights)]])", "len(self.flights)]]) / dist.get_world_size()"),
        ("True)", "True).get_future()"),
    )
    + but(
        FINISH,
        ("flat /= dist.get_world_size()", "pass"),
        ("p.grad.copy_(piece.view_as(p))", "p.grad = piece.view_as(p)"),
    )
)
RIGHT = {"another": ANOTHER}


def written(_, methods: str) -> str:
    return overriding(NAME, "BucketedDDP", methods)
