"""The graders of the exercises on performance: right solutions pass, each wrong one gets the reason."""

import torch
from graded import (  # noqa: F401
    but,
    test_a_right_file_passes,
    test_a_wrong_file_gets_the_reason,
    test_one_that_needs_ranks_of_its_own_gets_the_reason,
    text_of,
)

CURVE, CHOOSE, ACCUMULATE = "predict-u-curve", "choose-buckets", "mend-accumulation"


# -- predict-u-curve: lines of the solution -----------------------------------------------------------

SENT = "            free_s = max(ready_s, free_s) + latency_s + nbytes / bytes_per_s\n"
READY = "            ready_s = forward_s + backward_s * layer / layers\n"
CLOSES = "        if nbytes >= cap_bytes or layer == layers:  # the bucket closes with this gradient\n"
RETURN = "    return free_s  # the last bucket is ready when the backward ends, so it arrives later\n"
RESET = "            nbytes = 0\n"
LOOP = "    for layer in range(1, layers + 1):\n"


def curve(body: str) -> list[tuple[str, str]]:
    """Another body of `step_seconds`."""
    return [(RETURN, f"{RETURN}\n\ndef step_seconds(layers, layer_bytes, cap_bytes, f, b, a, B):\n{body}")]


# -- choose-buckets -----------------------------------------------------------------------------------

SEARCH = "    return min(caps, key=seconds) / MIB\n"
MODEL = "simulate_step(0.0, gradients, bucketed(gradients, cap_bytes), link)"
LINK = 'Link(latency_s, bytes_per_s, algorithm="link")'
GRID = "        caps.append(int(caps[-1] * 0.96))\n"
BROADCAST = "    dist.broadcast(cap_mib, src=0)  # each rank has a profile of its own: one decides\n"
WRAP = "bucket_cap_mb=cap_mib.item()"
RULE = """    import math
    b, n = gradients[-1][0], sum(size for _, size in gradients)
    k = len(gradients) if not latency_s else max(math.sqrt(b / latency_s), (b - n / bytes_per_s) / latency_s)
    return n / min(max(1, round(k)), len(gradients)) / MIB
"""

# -- mend-accumulation --------------------------------------------------------------------------------

NO_SYNC = "            with contextlib.nullcontext() if last else ddp.no_sync():\n"
LOSS = "                loss = mse_loss(ddp(x), y) / len(window)  # no_sync acts on the forward\n"
BACKWARD = "                loss.backward()\n"
STEP = "        optimizer.step()\n"
ZERO = "        optimizer.zero_grad()\n"
WINDOWS = "    for start in range(0, len(batches), accumulate):\n"
INNER = "        for i, (x, y) in enumerate(window, 1):\n"
DIVISOR = (" / len(window)  # no_sync acts on the forward", "")
FLAT = """    for i, (x, y) in enumerate(batches, 1):
        with ddp.no_sync() if i % accumulate else contextlib.nullcontext():
            (mse_loss(ddp(x), y) / accumulate).backward()
        if i % accumulate == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()
"""


def flat(*edits: tuple[str, str]) -> list[tuple[str, str]]:
    """A loop over the micro-batches, as most people write it, instead of one over the windows."""
    body = but(FLAT, *edits)
    text = text_of(ACCUMULATE)
    return [(text[text.index(WINDOWS) :], body)]


# (exercise, what was tried): (edits of the solution, words of the message)
WRONG = {
    (CURVE, "the backward ends the step"): (
        [(RETURN, "    return forward_s + backward_s\n")],
        "5 of 5 cases are wrong. For 4 layers of 1000000 bytes, cap 4000000 bytes|the step is 35 ms; you say 30 ms"
        "|the step ends with the backward|its transfer is exposed",
    ),
    (CURVE, "no forward"): (
        [("forward_s + backward_s *", "backward_s *")],
        "the step is 35 ms; you say 25 ms|the forward is left out",
    ),
    (CURVE, "sends during the forward"): (
        [("forward_s + backward_s *", "backward_s *"), (RETURN, "    return max(free_s, forward_s + backward_s)\n")],
        "the transfers then begin during the forward".capitalize()[4:] + "|before there is a gradient",
    ),
    (CURVE, "no latency"): ([("latency_s + nbytes /", "nbytes /")], "costs its bytes alone|pays the latency"),
    (CURVE, "the latency once"): (
        [("latency_s + nbytes", "(0 if free_s else latency_s) + nbytes")],
        "the latency is paid once per step",
    ),
    (CURVE, "the latency of each layer"): (
        [("latency_s + nbytes", "latency_s * -(-nbytes // layer_bytes) + nbytes")],
        "each layer pays the latency|Each *bucket* does",
    ),
    (CURVE, "no bytes"): ([(" + nbytes / bytes_per_s", "")], "costs its latency alone"),
    (CURVE, "a link for each bucket"): (
        [("max(ready_s, free_s) + latency", "ready_s + latency")],
        "as if it had a link of its own|in order|Right: 2 buckets: 2000000 bytes, full at 30 ms, sent from 30 ms to",
    ),
    (CURVE, "no overlap"): (
        [("backward_s * layer / layers", "backward_s")],
        "nothing is sent before the backward has ended|while the layers after it still compute",
    ),
    (CURVE, "a perfect overlap"): (
        curve(
            "    k = -(-layers * layer_bytes // cap_bytes)\n    return f + max(b, a * k + layers * layer_bytes / B)\n"
        ),
        "the longer of backward and communication counts|never overlap fully",
    ),
    (CURVE, "all buckets alike"): (
        [(SENT, SENT.replace("nbytes /", "layer_bytes * -(-cap_bytes // layer_bytes) /"))],
        "the step is 35 ms; you say 41 ms|all buckets have the same bytes",
    ),
    (CURVE, "the last bucket is lost"): (
        [(" or layer == layers", "")],
        "1 of 5 cases are wrong|you say 0 ms|is not sent, and the step ends with the one before",
    ),
    (CURVE, "the last bucket is lost, the backward is not"): (
        [(" or layer == layers", ""), (RETURN, "    return max(free_s, forward_s + backward_s)\n")],
        "you say 30 ms|never reaches the cap is not sent. The last",
    ),
    (CURVE, "the small bucket first"): (
        curve(
            "    per = -(-cap_bytes // layer_bytes)\n"
            "    ends, free = [*range(layers, 0, -per)][::-1], 0.0\n"
            "    for last, n in zip([0, *ends], ends):\n"
            "        free = max(free, f + b * n / layers) + a + (n - last) * layer_bytes / B\n"
            "    return free\n"
        ),
        "the bucket that is not full comes first",
    ),
    (CURVE, "below the cap"): (
        [(CLOSES, CLOSES.replace("nbytes >=", "nbytes + layer_bytes >"))],
        "closes before it would exceed the cap",
    ),
    (CURVE, "above the cap"): ([("nbytes >= cap", "nbytes > cap")], "closes only when it holds more than the cap"),
    (CURVE, "cuts layers"): (
        curve(
            "    whole, free, n = layers * layer_bytes, 0.0, 0\n"
            "    while n < whole:\n"
            "        size = min(cap_bytes, whole - n)\n"
            "        n += size\n"
            "        free = max(free, f + b * n / whole) + a + size / B\n"
            "    return free\n"
        ),
        "a layer is cut where the cap is reached",
    ),
    (CURVE, "one layer early"): (
        [("* layer / layers", "* (layer - 1) / layers")],
        "the gradients become ready one layer early",
    ),
    (CURVE, "two slips"): (
        [("forward_s + backward_s *", "backward_s *"), ("latency_s + nbytes /", "nbytes /")],
        "the forward is left out|and also when a bucket costs its bytes alone",
    ),
    (CURVE, "milliseconds"): ([("return free_s", "return 1e3 * free_s")], "the result is in milliseconds"),
    (CURVE, "MiB for bytes"): ([("nbytes >= cap", "nbytes >= 2**20 * cap")], "all layers are in one bucket"),
    (CURVE, "remembers"): (
        [("    free_s = 0.0", "    global free_s\n    free_s = globals().get('free_s', 0.0)")],
        "The same arguments gave 35 ms at first and|Something was kept from the calls between",
    ),
    (CURVE, "two numbers"): (
        [("return free_s", "return free_s, 0.0")],
        "`step_seconds` returned (0.035, 0.0) for 4 layers|It should return one finite number",
    ),
    (CURVE, "not a number"): (
        [("return free_s", "return free_s * float('nan')")],
        "`step_seconds` returned nan for 4 layers|one finite number",
    ),
    (CURVE, "a rule of thumb"): (
        curve("    return f + 1.1 * b + 1.07 * a + layers * layer_bytes / B\n"),
        "None of the usual slips gives your numbers|Right: 1 bucket: 4000000 bytes, full at 30 ms",
    ),
    (CHOOSE, "25 MiB"): (
        [(SEARCH, "    return 25.0\n")],
        "4 of 4 cases are more than 5 % above the best|your cap of 25 MiB makes 1 bucket|"
        "the link idles until the first bucket is full at 96 ms|the same cap for every link",
    ),
    (CHOOSE, "1 MiB"): ([(SEARCH, "    return 1.0\n")], "of 4 cases are more than|the same cap for every link"),
    (CHOOSE, "in bytes"): ([(" / MIB\n", "\n")], "right in bytes; MiB are asked"),
    (CHOOSE, "one bucket"): ([(SEARCH, "    return caps[0] / MIB\n")], "nothing of it hides in the backward"),
    (CHOOSE, "one bucket per gradient"): (
        [(SEARCH, "    return min(n for _, n in gradients) / MIB\n")],
        "Each bucket pays the latency: 32 of them pay 256 ms, where|a bucket of its own each time",
    ),
    (CHOOSE, "four buckets"): ([(SEARCH, "    return caps[0] / 4 / MIB\n")], "% longer"),
    (CHOOSE, "what the latency could carry"): (
        [(SEARCH, "    return max(1, latency_s * bytes_per_s) / MIB\n")],
        "3 of 4 cases are more than 5 % above the best",
    ),
    (CHOOSE, "forgets the latency"): ([(LINK, LINK.replace("latency_s", "0.0"))], "Each bucket pays the latency: 32"),
    (CHOOSE, "without overlap"): ([(MODEL, MODEL[:-1] + ", overlap=False)")], "nothing of it hides"),
    (CHOOSE, "DDP's first bucket of 1 MiB"): (
        [("bucketed(gradients, cap_bytes)", "bucketed(gradients, cap_bytes, MIB)")],
        "of 4 cases are more than 5 % above the best",
    ),
    (CHOOSE, "the formula for equal layers"): (
        [(SEARCH, RULE)],
        "1 of 5 cases are more than 5 % above the best. The worst is 41 gradients of 18 MiB",
    ),
    (CHOOSE, "searches every byte"): (
        [(GRID, "        caps.append(caps[-1] - 1)\n")],
        "No answer after 5 s of computing: 24 gradients of 3 MiB|Buckets change only where",
    ),
    (CHOOSE, "no cap at all"): ([(SEARCH, "    return None\n")], "returned None for 24 gradients|one number above 0"),
    (CHOOSE, "a cap of zero"): ([(SEARCH, "    return 0\n")], "returned 0 for 24 gradients"),
    (CHOOSE, "wraps without it"): (
        [(f", {WRAP}", "")],
        "says 0.9983 MiB, which makes 4 buckets|has a cap of 25 MiB and sent 2 buckets|a DDP with its default caps",
    ),
    (CHOOSE, "wraps with bytes"): ([(WRAP, f"{WRAP} * MIB")], "`bucket_cap_mb` takes MiB, and got bytes"),
    (CHOOSE, "rounds down"): (
        [(WRAP, "bucket_cap_mb=int(cap_mib)")],
        # torch 2.11 refuses a cap of 0 itself
        "cap of 0 MiB|The cap was rounded down" if torch.__version__ >= (2, 13) else "bucket_cap_mb should be set",
    ),
    (CHOOSE, "wraps with another cap"): (
        [(WRAP, "bucket_cap_mb=2.0")],
        "a cap of 2 MiB and sent 2 buckets, of 2097152",
    ),
    (CHOOSE, "does not wrap"): (
        [(f"DistributedDataParallel(model, {WRAP})", "model")],
        "`wrap` returned a Sequential. It should return the model in `DistributedDataParallel`",
    ),
    (CHOOSE, "each rank its own"): (
        [(BROADCAST, "")],
        "Rank 0 wraps with a cap of|each rank has its own; one must decide for all",
    ),
    (ACCUMULATE, "a step per micro-batch"): (
        flat(
            ("        if i % accumulate == 0 or i == len(batches):\n", ""),
            (
                "            optimizer.step()\n            optimizer.zero",
                "        optimizer.step()\n        optimizer.zero",
            ),
        ),
        "6 micro-batches in windows of 3 are 2 steps of the optimizer; rank 0 made 6|one per micro-batch",
    ),
    (ACCUMULATE, "the sum"): ([DIVISOR], "holds the sum over the 3 micro-batches|Divide each loss by 3|step 1."),
    (ACCUMULATE, "divided twice"): (
        [(STEP, "        for p in ddp.parameters():\n            p.grad /= len(window)\n" + STEP)],
        "was divided by the 3 micro-batches twice",
    ),
    (ACCUMULATE, "zero_grad before each backward"): (
        [(LOSS, "                optimizer.zero_grad()\n" + LOSS)],
        "holds the last micro-batch only: `zero_grad` has wiped out the others",
    ),
    (ACCUMULATE, "zero_grad before the step"): (
        [(STEP + ZERO, ZERO + STEP)],
        "is gone at the step: `zero_grad` is called between",
    ),
    (ACCUMULATE, "no zero_grad"): ([(ZERO, "")], "still holds the gradient of the window before|This is step 2"),
    (ACCUMULATE, "counts from 0"): (
        flat(
            ("enumerate(batches, 1)", "enumerate(batches)"),
            (" or i == len(batches)", " and i or i == len(batches) - 1"),
        ),
        "holds micro-batches 1 to 4, and the window is micro-batches 1 to 3",
    ),
    (ACCUMULATE, "counts from 0, steps at 0"): (
        flat(("enumerate(batches, 1)", "enumerate(batches)"), (" or i == len(batches)", "")),
        "holds micro-batch 1, and the window is micro-batches 1 to 3",
    ),
    (ACCUMULATE, "all under no_sync"): (
        [("contextlib.nullcontext() if last else ddp.no_sync()", "ddp.no_sync()")],
        "holds each rank's own gradient|The last of *each* window synchronizes",
    ),
    (ACCUMULATE, "calls the inner module"): (
        [("ddp(x)", "model(x)")],
        "holds each rank's own gradient, although the last forward was not under `no_sync`|Call `ddp(x)`",
    ),
    (ACCUMULATE, "averages twice"): (
        [
            (
                STEP,
                "        for p in ddp.parameters():\n            p.grad /= torch.distributed.get_world_size()\n" + STEP,
            )
        ],
        "was divided by 2 twice",
    ),
    (ACCUMULATE, "no no_sync"): (
        [("contextlib.nullcontext() if last else ddp.no_sync()", "contextlib.nullcontext()")],
        "In step 1 of 2 DDP has 1 bucket, so it needs 1 all-reduce. With 3 micro-batches it made|"
        "Each micro-batch was averaged on its own. The numbers are right",
    ),
    (ACCUMULATE, "no_sync around the backward"): (
        [(NO_SYNC + LOSS, LOSS[4:] + NO_SYNC)],
        "`no_sync` was entered, but no forward ran inside|where the *forward* runs",
    ),
    (ACCUMULATE, "only the first under no_sync"): (
        [("if last else", "if i > 1 else")],
        "In step 1 of 2 DDP has 1 bucket|Only the last micro-batch of a window communicates",
    ),
    (ACCUMULATE, "an all-reduce of its own"): (
        [(STEP, "        torch.distributed.all_reduce(loss.detach())\n" + STEP)],
        "it made 2. DDP's own are enough",
    ),
    (ACCUMULATE, "a barrier before each step"): (
        [(STEP, "        torch.distributed.barrier()\n" + STEP)],
        "it made 1 and 1 other collective. |DDP's own are enough",
    ),
    (ACCUMULATE, "drops the rest"): (
        [("0, len(batches), accumulate", "0, len(batches) - accumulate + 1, accumulate")],
        "8 micro-batches in windows of 3 are 3 steps of the optimizer; rank 0 made 2. |last 2 micro-batches got none",
    ),
    (ACCUMULATE, "the rest without a sync"): (
        flat(),
        "holds each rank's own gradient|whose window is a shorter one of 2",
    ),
    (ACCUMULATE, "the rest divided by a full window"): (
        flat(("if i % accumulate else", "if i % accumulate and i < len(batches) else")),
        "was divided by 3, but the window has only 2",
    ),
    (ACCUMULATE, "the whole window at once"): (
        [
            (
                INNER,
                "        whole = [tuple(torch.cat(both) for both in zip(*window))]\n"
                + INNER.replace("window", "whole"),
            ),
            ("i == len(window)", "True"),
            (" / len(window)  #", "  #"),
        ],
        "6 samples went through the model at once|has to fit into memory",
    ),
    (ACCUMULATE, "no optimizer"): (
        [
            (
                STEP,
                "        for p in ddp.parameters():\n            p.data -= lr * p.grad\n",
            )
        ],
        "rank 0 made 0. No `step()` was seen",
    ),
    (ACCUMULATE, "weights of its own"): (
        [(STEP, STEP + "        with torch.no_grad():\n            next(ddp.parameters()).mul_(0.5)\n")],
        "This is step 2",
    ),
    (ACCUMULATE, "decays at the end"): (
        [(ZERO, ZERO + "    with torch.no_grad():\n        next(ddp.parameters()).mul_(0.99)\n")],
        "the weights are not those of big batches",
    ),
}

# Solutions that are not the book's, and right.
RIGHT = {
    (CURVE, "in float32, with torch's tensors"): [
        ("    free_s = 0.0", "    import torch\n    free_s = torch.zeros(())"),
        ("max(ready_s, free_s)", "torch.clamp(free_s, min=ready_s)"),
    ],
    (CURVE, "from the end"): curve(
        "    per = min(layers, -(-cap_bytes // layer_bytes))\n"
        "    counts = [per] * (layers // per) + [layers % per] * (layers % per > 0)\n"
        "    late, after, filled = 0.0, 0.0, layers\n"
        "    for n in reversed(counts):\n"  # the step is as long as the latest chain: ready, then all that follows
        "        after += a + n * layer_bytes / B\n"
        "        late = max(late, f + b * filled / layers + after)\n"
        "        filled -= n\n"
        "    return late\n"
    ),
    (CHOOSE, "every half"): [("* 0.96", "* 0.5")],
    (CHOOSE, "every sum of neighbours"): [
        (
            SEARCH,
            "    sizes = [n for _, n in gradients]\n"
            "    ends = range(len(sizes) + 1)\n"
            "    return min({sum(sizes[i:j]) for j in ends for i in range(j)}, key=seconds) / MIB\n",
        )
    ],
    (CHOOSE, "counts buckets, and shares what each measured"): [
        (SEARCH, "    return min((caps[0] / k for k in range(1, 65)), key=lambda c: seconds(int(c))) / MIB\n"),
        (BROADCAST, "    dist.all_reduce(cap_mib, op=dist.ReduceOp.MIN)\n"),
    ],
    (ACCUMULATE, "one loop"): flat(
        (
            "        with ddp",
            "        first = (i - 1) // accumulate * accumulate\n"
            "        size = min(accumulate, len(batches) - first)\n        with ddp",
        ),
        ("if i % accumulate else", "if i < first + size else"),
        (") / accumulate)", ") / size)"),
    ),
    (ACCUMULATE, "divides the gradients, and wipes first"): [
        DIVISOR,
        (STEP + ZERO, "        for p in model.parameters():\n            p.grad /= len(window)\n" + STEP),
        (INNER, ZERO + INNER),
    ],
    (ACCUMULATE, "one no_sync for many"): [
        (
            INNER + "            last = i == len(window)\n" + NO_SYNC + LOSS + BACKWARD,
            "        with ddp.no_sync():\n"
            "            for x, y in window[:-1]:\n"
            "                (mse_loss(ddp(x), y) / len(window)).backward()\n"
            "        x, y = window[-1]\n"
            "        (mse_loss(ddp(x), y) / len(window)).backward()\n",
        )
    ],
}

# One that computes for five seconds, and one whose ranks may raise.
ALONE = [(CHOOSE, "searches every byte"), (CHOOSE, "rounds down")]


def written(key: tuple[str, str], edits: list[tuple[str, str]]) -> str:
    return text_of(key[0], *edits)
