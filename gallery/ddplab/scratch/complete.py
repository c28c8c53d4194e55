"""The last stage: DistributedDataParallel from scratch, whole.

What a user sees is what torch's DDP shows, but for the differences that the chapter lists.
Sources: torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp, read
with torch 2.13.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import chain, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..model.assignment import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB, assign
from ..runtime.torch_private import after_backward, weak_tensor_dict

# For each wrapped parameter: the id of the module it was wrapped in, the handle of its hook.
_wrapped = weak_tensor_dict()


class Bucket:
    """Gradients that travel together: a flat buffer, and a view of it for each parameter.

    It has the methods of ``torch.distributed.GradBucket``, so torch's own comm hooks take it.
    """

    def __init__(self, index: int, parameters: list[nn.Parameter], is_last: bool) -> None:
        self._index, self._parameters, self._is_last = index, parameters, is_last
        numels = [p.numel() for p in parameters]
        self._flat = parameters[0].detach().new_zeros(sum(numels))
        self._views = []
        for piece, p in zip(torch.split(self._flat, numels), parameters, strict=True):
            # The strides of the parameter, say channels_last; dense ones, if it is not dense.
            strides = torch.empty_like(p, device="meta").stride()
            self._views.append(piece.as_strided(p.shape, strides))
        self.pending = len(parameters)  # how many gradients this backward has not brought yet
        self.reduction: Any = None  # the future of its all-reduce, once launched

    def index(self) -> int:
        """Return its place in the list of buckets."""
        return self._index

    def buffer(self) -> Tensor:
        """Return the flat buffer, of shape [sum of numel]."""
        return self._flat

    def gradients(self) -> list[Tensor]:
        """Return the views, one per parameter."""
        return self._views

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients it holds, in the order of the buffer."""
        return self._parameters

    def is_last(self) -> bool:
        """Return whether it is the last to be reduced."""
        return self._is_last


class DDP(nn.Module):
    """Wrap ``module`` so that ``backward()`` leaves the mean over ranks in every ``.grad``.

    Args:
        module: the model, its parameters on their device; the same architecture on every rank.
        bucket_cap_mb: cap of a bucket in MiB; None: torch's default, 1 for the first, then 25.
        forward_sync_buffers: copy rank 0's buffers to all ranks before each forward that
            follows a synchronizing one.
        find_unused_parameters: let parameters stay out of a backward; costs a wait and one
            small all-reduce.
        process_group: the ranks to average over; None means all of them.

    Raises:
        ValueError: no parameter requires a gradient; ranks' parameters or buffers differ in
            name, shape or dtype; a parameter is wrapped in another module; this rank is not in
            ``process_group``.
        NotImplementedError: a module has sparse gradients (``sparse=True``).
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float | None = None,
        forward_sync_buffers: bool = True,
        find_unused_parameters: bool = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.forward_sync_buffers = forward_sync_buffers
        self.find_unused_parameters = find_unused_parameters
        self._names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        self._verify()
        self._broadcast(chain(module.parameters(), module.buffers()))

        # In the precision of the gradients: of another, it would cost every product a cast.
        dtypes = (p.dtype.to_real() for p in self._names)
        precision = reduce(torch.promote_types, dtypes, torch.float32)
        self._scale = torch.tensor(1 / dist.get_world_size(self.group), dtype=precision)
        self._reduce: Callable[[Bucket], Any] = self._all_reduce
        self._caps = (DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES)
        if bucket_cap_mb is not None:
            self._caps = (int(bucket_cap_mb * MIB),) * 2
        self._build_buckets(list(reversed(self._names)))  # the last layer is ready first
        self._rebuilt = find_unused_parameters  # the ready order may change

        self._require_sync = True  # what no_sync says now
        self._sync_backward = False  # what the last forward decided for its backward
        self._sync_buffers = True  # whether the next forward copies buffers
        self._awaits_backward = (
            False  # whether a forward that synchronizes had no backward yet
        )
        self._in_backward = False
        self._ready: dict[nn.Parameter, None] = {}  # as the last backward brought them
        self._hook_parameters()

    def _verify(self) -> None:
        """Raise on every rank if the ranks did not wrap the same model."""
        if dist.get_rank(self.group) < 0:
            raise ValueError("DDP: this rank is not in process_group; only members may wrap")
        if not self._names:
            raise ValueError("DDP: nothing to average, no parameter requires a gradient")
        for name, child in self.module.named_modules():
            if getattr(child, "sparse", False):
                who = repr(name) if name else "the module"
                raise NotImplementedError(f"DDP from scratch: {who} must not be sparse=True")
        tensors = chain(self.module.named_parameters(), self.module.named_buffers())
        mine = [
            f"{n} {tuple(t.shape)} {t.dtype}{' trained' * t.requires_grad}" for n, t in tensors
        ]
        everyone: list[list[str]] = [[]] * dist.get_world_size(self.group)
        dist.all_gather_object(everyone, mine, group=self.group)
        for rank, theirs in enumerate(everyone):
            for a, b in zip_longest(everyone[0], theirs, fillvalue="missing"):
                if a != b:
                    raise ValueError(f"DDP: {a} on rank 0, but {b} on rank {rank}")

    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), group_src=0, group=self.group)

    def _hook_parameters(self) -> None:
        module_id = id(self.module)
        for p, name in self._names.items():
            wrapped_in, handle = _wrapped.get(p, (module_id, None))
            if wrapped_in != module_id:
                raise ValueError(
                    f"DDP: {name!r} is wrapped already; wrap only the outermost module"
                )
            if handle:
                handle.remove()  # the same module again: its first wrapper lets go
            _wrapped[p] = (
                module_id,
                p.register_post_accumulate_grad_hook(self._gradient_ready),
            )

    def _build_buckets(self, order: list[nn.Parameter]) -> None:
        sizes, kinds = [p.nbytes for p in order], [(p.dtype, p.device) for p in order]
        plan = assign(sizes, *self._caps, kinds)
        self._buckets: list[Bucket] = []
        self._place: dict[nn.Parameter, tuple[Bucket, Tensor]] = {}
        for index, positions in enumerate(plan):
            bucket = Bucket(index, [order[i] for i in positions], index + 1 == len(plan))
            self._buckets.append(bucket)
            for p, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
                self._place[p] = bucket, view

    def _rebuild_buckets(self) -> None:
        """Pack again in rank 0's ready order; all ranks must pack alike."""
        parameters, number = list(self._names), {p: i for i, p in enumerate(self._names)}
        device = self._buckets[0].buffer().device
        order = torch.tensor([number[p] for p in self._ready], device=device)
        self._broadcast([order])
        self._build_buckets([parameters[i] for i in order.tolist()])
        self._rebuilt = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward; decide whether its backward synchronizes."""
        synchronizes = torch.is_grad_enabled() and self._require_sync
        if synchronizes:
            if self._in_backward:
                raise RuntimeError(
                    "DDP: the last backward broke off half-way; wrap the module anew"
                )
            if len(self._ready) == len(self._names) and not self._rebuilt:
                self._rebuild_buckets()
            self._sync_backward = self._awaits_backward = True
        elif torch.is_grad_enabled() and not self._awaits_backward:
            self._sync_backward = (
                False  # unless an earlier forward still waits for its backward
            )
        if self._sync_buffers and self.forward_sync_buffers:
            self._broadcast(self.module.buffers())
        self._sync_buffers = synchronizes
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients of the forwards in here local; a later one averages their sum."""
        before, self._require_sync = self._require_sync, False
        try:
            yield
        finally:
            self._require_sync = before

    def register_comm_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """Let ``hook(state, bucket)`` reduce and divide; its future gives the new contents."""
        if not callable(hook):
            raise TypeError(f"DDP: a comm hook must be callable, not {hook!r}")
        if self._reduce != self._all_reduce:
            raise RuntimeError("DDP: there is a comm hook already; register it once")
        self._scale.fill_(1)
        self._reduce = lambda bucket: hook(state, bucket)

    def _all_reduce(self, bucket: Bucket) -> Any:
        return dist.all_reduce(bucket.buffer(), group=self.group, async_op=True).get_future()

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        """Autograd calls this when the gradient of ``parameter`` is complete."""
        if not self._sync_backward:
            return
        if not self._in_backward:
            self._begin_backward()
        if parameter in self._ready:
            name = self._names[parameter]
            raise RuntimeError(f"DDP: {name!r} got its gradient twice in one backward")
        self._ready[parameter] = None
        self._fill(parameter)

    def _begin_backward(self) -> None:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "DDP from scratch: it does not support create_graph=True"
            )
        self._in_backward, self._launched = True, 0
        self._ready.clear()
        for bucket in self._buckets:
            bucket.pending = len(bucket.gradients())
        after_backward(self._finish_backward)

    def _fill(self, parameter: nn.Parameter) -> None:
        """Put the gradient into its bucket, and launch what is full."""
        bucket, view = self._place[parameter]
        if (grad := parameter.grad) is None:
            view.zero_()
        else:
            torch.mul(grad, self._scale, out=view)  # divided first, as torch does: no overflow
            parameter.grad = view
        bucket.pending -= 1
        if not bucket.pending:
            self._launch_full_buckets()

    def _launch_full_buckets(self) -> None:
        """Launch in the order of the list, which is the same on all ranks."""
        while self._launched < len(self._buckets):
            bucket = self._buckets[self._launched]
            if bucket.pending:
                break
            bucket.reduction = self._reduce(bucket)
            self._launched += 1

    def _finish_backward(self) -> None:
        """Autograd calls this once, when the whole backward is done."""
        if self.find_unused_parameters:
            for p in [p for p in self._names if p not in self._ready]:
                self._fill(p)
        else:
            self._raise_if_missing()
        for bucket in self._buckets:
            reduced = bucket.reduction.wait()
            reduced = reduced[0] if isinstance(reduced, list) else reduced
            if reduced.data_ptr() != bucket.buffer().data_ptr():  # a hook made its own tensor
                bucket.buffer().copy_(reduced)
        if self.find_unused_parameters:
            has_gradient = [int(p.grad is not None) for p in self._names]
            used = torch.tensor(has_gradient, device=bucket.buffer().device)
            dist.all_reduce(used, group=self.group)
            for p, ranks in zip(self._names, used.tolist(), strict=True):
                if ranks:  # what has a gradient on no rank keeps None
                    p.grad = self._place[p][1]
        self._in_backward = self._awaits_backward = False

    def _raise_if_missing(self) -> None:
        missing = [n for p, n in self._names.items() if p.grad is None or p not in self._ready]
        if missing:
            raise RuntimeError(
                f"DDP: no gradient for {', '.join(missing)}; use them in the loss or pass "
                "find_unused_parameters=True, checkpoint with use_reentrant=False, and let no "
                "hook step an optimizer"
            )

    def join_hook(self, **_: Any) -> Any:
        """Refuse ``torch.distributed.algorithms.Join``, which asks for this."""
        raise NotImplementedError("DDP from scratch: no Join; give all ranks as many batches")

    join = join_hook

    def __getstate__(self) -> Any:
        """Refuse copies: the hooks of the parameters would stay behind."""
        raise NotImplementedError(
            "DDP from scratch: it cannot be copied or pickled; wrap a copy of .module instead"
        )
