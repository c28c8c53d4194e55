"""All-reduce taken apart: its two halves, and a ring made by hand."""

import pytest
import torch
import torch.distributed as dist
from proof import proves

from ddplab import device, launch


def here():
    """Where this backend moves tensors of every collective: gloo sends and scatters CPU tensors only."""
    return device() if "nccl" in dist.get_backend() else torch.device("cpu")


def different(elements):
    """A tensor that differs from rank to rank."""
    return torch.randn(elements, generator=torch.Generator().manual_seed(dist.get_rank())).to(here())


def ring_all_reduce(x):
    """Sum ``x`` over the ranks in place; return how many elements this rank sent."""
    rank, ranks, sent = dist.get_rank(), dist.get_world_size(), 0
    chunks = x.tensor_split(ranks)
    for step in range(2 * (ranks - 1)):
        outgoing, target = chunks[(rank - step) % ranks], chunks[(rank - step - 1) % ranks]
        incoming = torch.empty_like(target)
        send = dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks)
        receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        sent += outgoing.numel()
        target.copy_(target + incoming if step < ranks - 1 else incoming)
    return sent


@proves("allreduce-is-rs-plus-ag")
def test_reduce_scatter_and_all_gather_make_an_all_reduce():
    """The two in a row give every rank what ``all_reduce`` gives it, up to the order of the additions."""

    def worker():
        ranks = dist.get_world_size()
        x = different(12 * ranks)
        piece, pieces = x.new_empty(12), [x.new_empty(12) for _ in range(ranks)]
        dist.reduce_scatter(piece, list(x.chunk(ranks)))
        dist.all_gather(pieces, piece)
        dist.all_reduce(x)
        torch.testing.assert_close(torch.cat(pieces), x)

    for ranks in (2, 3, 4):
        launch(worker, ranks)


@proves("ring-bytes")
def test_each_rank_sends_less_than_two_tensors_in_a_ring():
    """A rank that takes part in a correct ring all-reduce counts what it sends."""

    def worker(elements):
        x = torch.ones(elements, device=here())
        sent = ring_all_reduce(x)
        assert (x == dist.get_world_size()).all()
        return sent

    elements = 1200
    for ranks in (2, 3, 4):
        assert launch(worker, ranks, elements) == [2 * (ranks - 1) * elements // ranks] * ranks


@pytest.mark.core
@proves("ring-equals-allreduce")
def test_a_ring_made_by_hand_equals_all_reduce():
    """On 2 ranks there is one addition, and one result; on 3 and 4 the order of the additions differs."""

    def worker():
        ours = different(100_003)  # no multiple of 2, 3 or 4: chunks differ in size
        theirs = ours.clone()
        ring_all_reduce(ours)
        dist.all_reduce(theirs)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
        return torch.equal(ours, theirs)

    assert launch(worker, 2) == [True, True]
    for ranks in (3, 4):
        launch(worker, ranks)
