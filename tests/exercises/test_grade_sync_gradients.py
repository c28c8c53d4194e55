"""The grader of sync-gradients: right solutions pass, each wrong one gets the reason."""

import textwrap

from graded import (  # noqa: F401
    test_a_right_file_passes,
    test_a_wrong_file_gets_the_reason,
    test_one_that_needs_ranks_of_its_own_gets_the_reason,
)

NAME = "sync-gradients"
IMPORTS = "import torch\nimport torch.distributed as dist\nimport torch.distributed.nn\nfrom torch import nn\n\n\n"

# name: (body of sync_gradients(module), words of the message)
WRONG = {
    "sum": (
        """
        for p in module.parameters():
            dist.all_reduce(p.grad)
        """,
        "Every parameter holds the sum|it was never divided by 2|is 22 and 22|own gradients gave 2 and 20|right is 11",
    ),
    "parameters": (
        """
        for p in module.parameters():
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()
        """,
        "changed `0.weight`, which is not a gradient|another algorithm",
    ),
    "rank 0 only": (
        """
        for p in module.parameters():
            dist.reduce(p.grad, dst=0)
            p.grad /= dist.get_world_size()
        """,
        "right on rank 0 only|`reduce` gives the result to one rank",
    ),
    "new tensors": (
        """
        means = []
        for p in module.parameters():
            mean = p.grad.clone()
            dist.all_reduce(mean)
            means.append(mean / dist.get_world_size())
        return means
        """,
        "own gradient|returned a list, which is never read",
    ),
    "no wait": (
        """
        for p in module.parameters():
            dist.all_reduce(p.grad, async_op=True)
            p.grad /= dist.get_world_size()
        """,
        "own gradient divided by 2|4 of 4 asynchronous calls were never waited for",
    ),
    "divides in flight": (
        """
        works = []
        for p in module.parameters():
            works.append(dist.all_reduce(p.grad, async_op=True))
            p.grad /= dist.get_world_size()
        for work in works:
            work.wait()
        """,
        "holds the sum|between its asynchronous launch and its `wait()` is lost",
    ),
    "one parameter": (
        """
        p = next(module.parameters())
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
        """,
        "Each of `0.bias`, `1.weight`, `1.bias` (the other 1 is right) still holds each rank's own gradient",
    ),
    "an order of each rank's own": (
        """
        for p in sorted(module.parameters(), key=lambda p: p.grad.abs().max().item()):
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        """,
        "diverge at call 1: rank 0 calls all_reduce of 12 float32 elements, rank 1 calls all_reduce of 2|same order",
    ),
    "only rank 0 calls": (
        """
        if dist.get_rank() == 0:
            for p in module.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        """,
        "out of step: rank 0 is in call 1, all_reduce of 12 float32 elements, at mine.py:|rank 1 made 0 and was done",
    ),
    "a gradient with a gradient": (
        """
        for p in module.parameters():
            dist.all_reduce(p.grad)
            p.grad = nn.Parameter(p.grad / dist.get_world_size())
        """,
        "`0.weight` requires a gradient itself",
    ),
    "crashes on None": (
        """
        for p in module.parameters():
            flat = p.grad.flatten()
            dist.all_reduce(flat)
            p.grad = (flat / dist.get_world_size()).view_as(p)
        """,
        "raised AttributeError: 'NoneType' object has no attribute 'flatten' at mine.py:",
    ),
    "zeros for None": (
        """
        for p in module.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        """,
        "has a gradient although no rank computed one|weight decay",
    ),
    "skips None": (
        """
        for p in module.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        """,
        "diverge at call 1: rank 0 calls all_reduce of 12 float32 elements, rank 1 calls all_reduce of 6",
    ),
    "keeps the first gradients": (
        """
        if not hasattr(module, "kept"):
            module.kept = [(p, p.grad) for p in module.parameters() if p.requires_grad]
        for p, grad in module.kept:
            has = torch.tensor([float(grad is not None)])
            dist.all_reduce(has)
            if has.item():
                p.grad = torch.zeros_like(p) if grad is None else grad
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        """,
        "After step 2 of 3|a later one reuses something from it",
    ),
}


def written(_, body: str) -> str:
    return f"{IMPORTS}def sync_gradients(module):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"


# Those whose ranks end, raise or diverge.
ALONE = ["an order of each rank's own", "only rank 0 calls", "crashes on None", "skips None"]

# Flat, asynchronous, divided first; the results replace the gradients.
ANOTHER = """
    ps = [p for p in module.parameters() if p.requires_grad]
    has = torch.tensor([p.grad is not None for p in ps], dtype=torch.int32)
    dist.all_reduce(has, op=dist.ReduceOp.MAX)
    ps = [p for p, used in zip(ps, has.tolist()) if used]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in ps])
    flat /= dist.get_world_size()
    dist.all_reduce(flat, async_op=True).get_future().wait()
    for p, piece in zip(ps, flat.split([p.numel() for p in ps])):
        p.grad = piece.view_as(p)
    """
RIGHT = {"another": ANOTHER}
