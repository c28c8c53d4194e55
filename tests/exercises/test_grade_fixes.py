"""The graders of the exercises that fix a program: right fixes pass, each wrong one gets the reason."""

import re

import pytest
from graded import (  # noqa: F401
    OUT_OF_STEP,
    test_a_right_file_passes,
    test_a_wrong_file_gets_the_reason,
    test_one_that_needs_ranks_of_its_own_gets_the_reason,
    text_of,
)

from ddplab.grading.exercises import EXERCISES

HANG, STOP, RESUME, NAN, BRANCH = NAMES = [
    f"mend-{name}" for name in ("hang-at-epoch-end", "early-stop", "resume", "nan", "frozen-branch")
]


GUARD = ("    ddp = Dist", "    import datetime; dist.new_group(timeout=datetime.timedelta(hours=2))\n    ddp = Dist")
EPOCHS = "    for epoch in range(epochs):\n"
BATCHES = "        for batch in order.split(batch_size):\n"
LOSS = "            loss = mse_loss(ddp(x[batch]), y[batch])\n"
STEP = "            loss.backward()\n            optimizer.step()\n"
VAL = "mse_loss(ddp.module(val_x), val_y).item()\n"
SAVE = '        torch.save({"model": ddp.state_dict(), "epoch": last_epoch}, checkpoint)\n'
SAVE_MODULE = SAVE.replace("ddp.state_dict()", "ddp.module.state_dict()")
SAVE_ALL = SAVE_MODULE.replace('"epoch"', '"optimizer": optimizer.state_dict(), "epoch"')
STRICT = (", strict=False)  # strict complained of the names", ")")
LATER = (
    "    for epoch in range(first_epoch, last_epoch):\n",
    "    if first_epoch:\n        optimizer.load_state_dict(saved['optimizer'])\n"
    "    for epoch in range(first_epoch, last_epoch):\n",
)
BARRIER = (SAVE, SAVE_ALL + "    dist.barrier()\n")
ISBAD = "        if not loss.isfinite():\n"
BRANCHES = "        if dark.any():\n            out[dark] = self.night(h[dark])\n"
ZERO = "        optimizer.zero_grad()\n"
MODEL = "DistributedDataParallel(model)"

# (exercise, what was tried): (edits of the starter, words of the message)
WRONG = {
    (HANG, "a longer timeout"): ([GUARD], OUT_OF_STEP),
    (HANG, "a barrier after each epoch"): (
        [("        print(f", "        dist.barrier()\n        print(f")],
        "The ranks diverge at call 3: rank 0 calls all_reduce of 3 float64 elements, rank 1 calls barrier",
    ),
    (HANG, "the length of the shortest"): (
        [("len(x), world_size)", "len(x) // world_size * world_size, world_size)")],
        "2 of 20 samples were trained on less than once per epoch. Cutting all ranks to the shortest",
    ),
    (HANG, "no_sync beyond the shortest"): (
        [
            (
                BATCHES,
                "        import contextlib\n        for step, batch in enumerate(order.split(batch_size)):\n"
                "            common = -(-(len(x) // world_size) // batch_size)\n"
                "            alone = ddp.no_sync() if step >= common else contextlib.nullcontext()\n",
            ),
            (LOSS, "            optimizer.zero_grad()\n            with alone:\n    " + LOSS),
            ("            optimizer.zero_grad()\n            loss.backward()", "            loss.backward()"),
        ],
        "The ranks end with different weights|`no_sync`",
    ),
    (HANG, "every rank trains on everything"): (
        [("torch.arange(rank, len(x), world_size)", "torch.arange(len(x))")],
        "3 ranks trained on 120 samples in 2 epochs of 20|Fill only the gap",
    ),
    (HANG, "averages the weights at the end"): (
        [
            (MODEL, "model\n    for p in model.parameters():\n        dist.broadcast(p.detach(), src=0)"),
            (
                "        print(f",
                "        for p in model.parameters():\n            dist.all_reduce(p.detach())\n"
                "            p.detach().div_(world_size)\n        print(f",
            ),
        ],
        "one process that takes the mean of the same batches, step by step, arrives elsewhere",
    ),
    (STOP, "no stop"): (
        [("            break\n", "            pass\n")],
        "14 epochs|one process with the whole|Nothing stops",
    ),
    (STOP, "rank 0 decides"): (
        [
            (
                VAL,
                VAL + "        agreed = torch.tensor(val_loss)\n        dist.broadcast(agreed, src=0)\n"
                "        val_loss = agreed.item()\n",
            )
        ],
        "All ranks stopped after 11 epochs|stops after 10|rank 0's own share",
    ),
    (STOP, "the first one stops all"): (
        [
            (
                "        if epochs_since == patience:\n",
                "        any_ = torch.tensor(float(epochs_since >= patience))\n"
                "        dist.all_reduce(any_, op=dist.ReduceOp.MAX)\n        if any_:\n",
            )
        ],
        "All ranks stopped after 7 epochs|the first rank's own share stops",
    ),
    (STOP, "the mean of the means"): (
        [
            (
                VAL,
                VAL + "        agreed = torch.tensor(val_loss) / world_size\n        dist.all_reduce(agreed)\n"
                "        val_loss = agreed.item()\n",
            )
        ],
        "All ranks stopped after 9 epochs|a mean of means weighs them alike",
    ),
    (STOP, "the sum without the empty share"): (
        [
            (
                VAL,
                "mse_loss(ddp.module(val_x), val_y) * len(val_x)\n        dist.all_reduce(val_loss)\n"
                "        val_loss = val_loss.item()\n",
            )
        ],
        "after 2 epochs; one process|A share without samples has no mean",
    ),
    (RESUME, "strict, and the names as they are"): (
        [STRICT],
        "Missing key(s) in state_dict|`strict` did its job|line 39",
    ),
    (RESUME, "without the optimizer"): (
        [STRICT, (SAVE, SAVE_MODULE + "    dist.barrier()\n")],
        "not those of an uninterrupted run|the optimizer began anew",
    ),
    (RESUME, "counts from 0"): (
        [STRICT, BARRIER, LATER, ("range(first_epoch, last_epoch)", "range(last_epoch)")],
        "but ends with other weights than the first",
    ),
    (RESUME, "no barrier"): (
        [STRICT, LATER, (SAVE, SAVE_ALL)],
        "When `train` returned on rank 1, there was no checkpoint yet|by a collective",
    ),
    (RESUME, "sleeps"): (
        [STRICT, LATER, (SAVE, SAVE_ALL + "    import time\n    time.sleep(0.2)\n")],
        "When `train` returned on rank 1, there was no checkpoint yet|A time to sleep is a guess",
    ),
    (RESUME, "every rank saves"): (
        [STRICT, LATER, BARRIER, ("    if rank == 0:\n", "    if True:\n")],
        "Several ranks write the same file",
    ),
    (RESUME, "rank 0 loads after wrapping"): (
        [
            ('        model.load_state_dict(saved["model"], strict=False)  # strict complained of the names\n', ""),
            LATER,
            BARRIER,
            (
                "    optimizer = ",
                "    if first_epoch and rank == 0:\n"
                "        ddp.module.load_state_dict(saved['model'])\n    optimizer = ",
            ),
        ],
        "The ranks end with different weights|what is loaded later, every rank must load",
    ),
    (NAN, "no guard"): ([(ISBAD, "        if False:\n")], "holds NaN or inf. A damaged batch reaches every rank"),
    (NAN, "the backward comes first"): (
        [
            (ISBAD, ZERO + "        loss.backward()\n" + ISBAD),
            ("            continue\n" + ZERO + "        loss.backward()\n", "            continue\n"),
        ],
        "At the end `weight` on rank 0 holds NaN or inf|that each rank takes from its own loss",
    ),
    (NAN, "a damaged batch counts as zero"): (
        [
            (
                "            continue\n",
                "            loss = sum((p * 0).sum() for p in model.parameters())\n"
                "            ddp(torch.zeros_like(x)).sum().mul(0).backward() if False else None\n"
                "            loss = ddp(torch.zeros_like(x)).sum() * 0\n",
            )
        ],
        "A damaged batch counts as zero|All ranks should leave it out",
    ),
    (NAN, "all end at the first"): (
        [
            (
                ISBAD,
                "        good = loss.isfinite().float()\n        dist.all_reduce(good, op=dist.ReduceOp.MIN)\n"
                "        if not good:\n",
            ),
            ("            continue\n", "            break\n"),
        ],
        "Training ended at the first damaged batch",
    ),
    (NAN, "counts its own only"): (
        [
            (
                ISBAD,
                "        good = loss.isfinite().float()\n        dist.all_reduce(good, op=dist.ReduceOp.MIN)\n"
                "        if not good:\n",
            ),
            ("            left_out += 1\n", "            left_out += not loss.isfinite()\n"),
        ],
        "The ranks returned [0, 1]; 1 steps were left out, by all ranks",
    ),
    (BRANCH, "catches what is raised"): (
        [
            (
                "        loss = mse",
                "        try:\n            ddp(x, dark)\n        except RuntimeError:\n            continue\n"
                "        loss = mse",
            )
        ],
        OUT_OF_STEP,
    ),
    (BRANCH, "freezes the branch"): (
        [("        self.night = nn.Linear(4, 1)\n", "        self.night = nn.Linear(4, 1).requires_grad_(False)\n")],
        "`night.weight` was never trained|because the branch is frozen",
    ),
    (BRANCH, "hides the branch from DDP"): (
        [
            (
                "    ddp = Dist",
                "    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(\n"
                "        model, ['night.weight', 'night.bias', 'day.weight', 'day.bias'])\n    ddp = Dist",
            )
        ],
        "The ranks end with different weights|A parameter that DDP does not know of",
    ),
    (BRANCH, "a static graph"): (
        [(MODEL, "DistributedDataParallel(model, static_graph=True)")],
        "Your training graph has changed|promises that each step uses the same parameters",
    ),
    (BRANCH, "both branches for every picture"): (
        [(BRANCHES, "        return self.night(h) + self.day(h)\n")],
        "The ranks agree, but not with one process|pictures that are not its own",
    ),
    (BRANCH, "find_unused_parameters hides a branch"): (
        [
            (MODEL, "DistributedDataParallel(model, find_unused_parameters=True)"),
            ("if dark.any():", "if dark.sum() > 3:"),
        ],
        "`night.weight` was never trained",
    ),
}

# Fixes that are not the solution's, and right.
RIGHT = {
    (HANG, "join"): [
        ("        for batch", "        with ddp.join():\n          for batch"),
        *(
            (line, "  " + line.replace("\n            ", "\n              "))
            for line in (LOSS, "            optimizer.zero_grad()\n", STEP)
        ),
    ],
    (STOP, "every rank evaluates everything"): [
        ("part[rank::world_size] for part in validation", "part for part in validation")
    ],
    (RESUME, "loads before wrapping, with a barrier"): [STRICT, LATER, BARRIER],
    (NAN, "looks at the mean gradient"): [
        (
            ISBAD,
            ZERO
            + "        loss.backward()\n        if not all(p.grad.isfinite().all() for p in model.parameters()):\n",
        ),
        ("            continue\n" + ZERO + "        loss.backward()\n", "            continue\n"),
    ],
    (BRANCH, "find_unused_parameters"): [(MODEL, "DistributedDataParallel(model, find_unused_parameters=True)")],
    (BRANCH, "adds zero"): [("        return out\n", "        return out + 0 * (self.night(h) + self.day(h))\n")],
}

# Those whose ranks end, raise or diverge.
ALONE = [
    (HANG, "a longer timeout"),
    (HANG, "a barrier after each epoch"),
    (RESUME, "strict, and the names as they are"),
    (BRANCH, "catches what is raised"),
    (BRANCH, "a static graph"),
]


def written(key: tuple[str, str], edits: list[tuple[str, str]]) -> str:
    return text_of(key[0], *edits, file="starter")


@pytest.mark.parametrize("name", NAMES)
def test_the_log_is_that_of_the_starter(name):
    """Its lines are where the log says, and all that ranks printed is printed there; see write_logs.py."""
    lines = text_of(name, file="starter").splitlines()
    log = (EXERCISES / name / "log.txt").read_text()
    assert {int(rank) for rank in re.findall(r"^rank (\d) │", log, re.MULTILINE)} == {0, 1}
    for called, line in re.findall(
        r"\((\w+),[\s│]*(?:rank \d │ +)?called[\s│]+(?:rank \d │ +)?by train at line (\d+)", log
    ):
        assert ("backward()" if called == "backward" else "ddp(") in lines[int(line) - 1]
    assert log.count("at line") == sum("raised after" in line for line in log.splitlines())
