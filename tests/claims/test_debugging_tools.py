"""What the flight recorder shows of ranks whose swapped calls raise nothing."""

import torch
import torch.distributed as dist
from patience import postmortem
from proof import proves

from ddplab.apparatus.postmortem import report
from ddplab.flight import compare, compare_lines, read_dumps, write_dump


@proves("tool-flight-comparator-lines")
def test_the_comparator_shows_a_swap_that_nothing_else_shows(tmp_path):
    """Two equal all-reduces in swapped order raise nothing; the recorded lines differ between the ranks."""

    def worker(folder):
        def loss():
            dist.all_reduce(torch.ones(1))

        def accuracy():
            dist.all_reduce(torch.ones(1))

        for call in (loss, accuracy) if dist.get_rank() else (accuracy, loss):
            call()
        write_dump(folder)

    endings = postmortem(worker, 3, str(tmp_path))
    assert [e.how for e in endings] == ["returned"] * 3, report(endings)
    dumps = read_dumps(tmp_path)
    assert compare(dumps) is None
    divergence = compare_lines(dumps)
    assert (divergence.number, divergence.ranks) == (1, (0,))
