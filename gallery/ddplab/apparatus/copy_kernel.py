"""A copy that keeps a chosen number of thread blocks busy, as NCCL's kernels do with their channels."""

from __future__ import annotations

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # it comes with torch's builds for CUDA
    triton = None

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _copy(source, target, elements, rounds, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        first = tl.program_id(0) * BLOCK
        stride = tl.num_programs(0) * BLOCK
        for _ in range(rounds):
            for start in range(first, elements, stride):
                at = start + tl.arange(0, BLOCK)
                inside = at < elements
                tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


def copy_on(blocks: int, source: Tensor, target: Tensor, rounds: int) -> None:
    """Copy ``source`` to ``target`` ``rounds`` times in one kernel of ``blocks`` thread blocks.

    Without a GPU it copies on the CPU.

    Args:
        blocks: of 512 threads; where there are at most as many as SMs, each has an SM of its own.
        source: float32, contiguous.
        target: of the same shape.
        rounds: how often.

    Raises:
        RuntimeError: the tensors are on a GPU, and Triton is not installed.
    """
    if not source.is_cuda:
        for _ in range(rounds):
            target.copy_(source)
        return
    if triton is None:
        raise RuntimeError("this lab compiles a kernel with Triton; install it: pip install triton")
    _copy[(blocks,)](source, target, source.numel(), rounds, BLOCK=4096, num_warps=16)
