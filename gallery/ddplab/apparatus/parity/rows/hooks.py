"""Behaviours: comm hooks."""

# mypy: disable-error-code="no-untyped-call"

# No "from __future__ import annotations": torch's DDP reads the annotations of a comm hook.

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future

from ..models import accumulate, batch, loss, mlp
from ..observe import Wrap
from ..table import Topic

TOPIC = Topic("Comm hooks")


def hooked(wrap: Wrap, state: Any, *hooks: Any, steps: str = "sns") -> Any:
    """Train with a comm hook, or try to register several."""
    model = wrap(mlp())
    for hook in hooks:
        model.register_comm_hook(state, hook)
    return accumulate(model, steps)


def future(value: Any) -> Future[Any]:
    """Return a future that is done; an exception as value makes it fail."""
    done: Future[Any] = Future()
    done.set_exception(value) if isinstance(value, Exception) else done.set_result(value)
    return done


def chained(state: int, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Sum, double, and divide by twice ``state``, in three futures."""
    summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    doubled: Future[Tensor] = summed.then(lambda f: 2 * f.value()[0])
    return doubled.then(lambda f: f.value() / (2 * state))


TOPIC.row("torch's allreduce_hook", "test_ddp_hook_parity_allreduce test_accumulate_gradients_no_sync_allreduce_hook")(
    lambda wrap: hooked(wrap, None, default_hooks.allreduce_hook)
)
TOPIC.row("torch's fp16_compress_hook", "test_ddp_hook_with_optimizer_parity_sgd")(
    lambda wrap: hooked(wrap, None, default_hooks.fp16_compress_hook)
)
TOPIC.row("torch's PowerSGD with error feedback", "test_ddp_hook_parity_powerSGD")(
    lambda wrap: hooked(
        wrap, powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook, steps="sssss"
    )
)
TOPIC.row("A hook that chains futures", "test_accumulate_gradients_no_sync_allreduce_with_then_hook")(
    lambda wrap: hooked(wrap, dist.get_world_size(), chained)
)
TOPIC.row("A hook that does not communicate", "test_ddp_comm_hook_future_passing_cpu")(
    lambda wrap: hooked(wrap, 2.0, lambda state, bucket: future(torch.full_like(bucket.buffer(), state)))
)
TOPIC.row("A hook that returns no future", "test_ddp_invalid_comm_hook_return_type")(
    lambda wrap: hooked(wrap, None, lambda state, bucket: 1)
)
TOPIC.row("A hook whose future fails")(
    lambda wrap: hooked(wrap, None, lambda state, bucket: future(ValueError("no network")))
)
TOPIC.row("A hook that cannot be called", "test_ddp_invalid_comm_hook_init test_ddp_python_error_logged")(
    lambda wrap: hooked(wrap, None, 1)
)
TOPIC.row("A second hook", "test_ddp_comm_hook_register_just_once")(
    lambda wrap: hooked(wrap, None, default_hooks.allreduce_hook, default_hooks.allreduce_hook)
)


def quoted(state: None, bucket: "dist.GradBucket") -> "Future[Tensor]":  # type: ignore[name-defined]
    """Do what torch's hook does, with annotations that are strings, as ``from __future__`` makes all of them."""
    return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]


TOPIC.row("A hook whose annotations are strings", differs=("! register_comm_hook", "ranks agree"))(
    lambda wrap: hooked(wrap, None, quoted)
)


@TOPIC.row("What a hook sees of rebuilt buckets")
def _(wrap: Wrap) -> Any:
    model, seen = wrap(mlp()), []

    def look(state: None, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        names = {p: name for name, p in model.named_parameters()}
        shapes = [tuple(g.shape) for g in bucket.gradients()]
        seen.append(f"{bucket.index()} {bucket.is_last()} {shapes} {[names[p] for p in bucket.parameters()]}")
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]

    model.register_comm_hook(None, look)
    for step in range(2):
        seen.clear()
        loss(model(batch(step))).backward()
    return seen
