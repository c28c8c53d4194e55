"""Checks of the exact resume: a run that is stopped and resumed is compared with one that was not, bit for bit.

:Level: deep, 35 minutes
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from ddplab.grading.calls import Recorder
from ddplab.grading.checks import Wrong, check, expect, load_sibling

runs, causes = (load_sibling(__file__, name) for name in ("runs", "causes"))
Played, play = runs.Played, runs.play


def exact(*plans: Sequence[int]) -> Callable[[list[Played]], None]:
    """Make a judge: unstopped as the starter's, stopped as unstopped."""

    def judge(seen: list[Played]) -> None:
        files = [name for p in seen for name in {*p.whole.saved}]
        twice = next((name for name in files if files.count(name) > 1), "")
        expect(
            not twice,
            f"Several ranks write `{Path(twice).name}` at the same time; whose bytes are in it is chance. Collect "
            "what the ranks hold on one of them, or give each a file of its own.",
            "fault-checkpoint-half-written",
        )
        for rank, played in enumerate(seen):
            if played.reference is not None:  # with more ranks another layout of the buckets is allowed
                unchanged(rank, played.reference, played.whole)
        for number, plan in enumerate(plans):
            for i, (first, last) in enumerate(itertools.pairwise([0, *plan])):
                causes.Call(seen, [p.stopped[number][i] for p in seen], plan[:i], first, last).judge()

    return judge


def unchanged(rank: int, right: runs.Run, mine: runs.Run) -> None:
    """Judge that a run that is never stopped computes what the starter's computes."""
    expect(
        len(mine.steps) >= len(right.steps) and len(mine.losses) == len(right.losses),
        f"A run that was never stopped should make {len(right.steps)} steps; yours made {len(mine.steps)} and "
        f"returned {len(mine.losses)} losses.",
    )
    mine.steps = mine.steps[len(mine.steps) - len(right.steps) :]
    if mine.losses != right.losses or not runs.equal(mine.end, right.end):
        found = [runs.difference(*steps) for steps in zip(right.steps, mine.steps, strict=True)]
        first = next(
            (f" The first is in step {n} on rank {rank}: its {what}." for n, what in enumerate(found, 1) if what), ""
        )
        raise Wrong(
            "A run that was never stopped computes something else than the starter's, bit for bit: the fix has "
            f"changed the experiment.{first} Seeds, order of the samples and number of random draws are part of it.",
        )


MIDDLE = [(6, 9)]
AGAIN = [(1, 2, 4, 4, 5, 8, 9)]
THREE = [(6, 8), (8, 9)]


@check("Stopped in the middle of an epoch", ranks=2, judge=exact(*MIDDLE), read=causes.READ)
def middle(learner: ModuleType, recorder: Recorder) -> Played:
    """Four batches per epoch: 9 steps in one go; then 6 steps, and resumed for 3 more."""
    return play(learner, recorder, MIDDLE, starter=True)


@check("Stopped again and again", ranks=2, judge=exact(*AGAIN), read=causes.READ)
def again(learner: ModuleType, recorder: Recorder) -> Played:
    """Stopped after steps 1, 2, 4 (the end of an epoch; resumed with nothing to do), 5 and 8."""
    return play(learner, recorder, AGAIN)


@check("Three ranks", ranks=3, judge=exact(*THREE), read=causes.REBUILD)
def three(learner: ModuleType, recorder: Recorder) -> Played:
    """Stopped after step 6, in the middle of an epoch; in another run after 8, at the end."""
    return play(learner, recorder, THREE)
