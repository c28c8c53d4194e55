"""Why a resumed run is another one: the first step that differs, examined in the order of its causes."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ddplab.grading.checks import Wrong, expect, load_sibling

runs = load_sibling(__file__, "runs")
BATCHES, CAUSES, Generators, Step, equal = runs.BATCHES, runs.CAUSES, runs.Generators, runs.Step, runs.equal

READ = "checkpointing-exact"
POSITION = "setup-resume-data"
REBUILD = "checkpointing-mystery"
LOADING = "museum-loading-on-rank-0-after-wrapping"
SAVED = "is as it was saved"


@dataclass
class Call:
    """A call of `train` on all ranks, and what is right for it. Steps count from 0; people count them from 1."""

    seen: Sequence[runs.Played]
    runs: Sequence[runs.Run]
    stops: Sequence[int]  # where the calls before it have stopped
    first: int
    last: int

    def judge(self) -> None:
        """Find the first step that differs, and its first cause."""
        for rank, run in enumerate(self.runs):
            self.count(rank, len(run.steps), len(run.losses))
        for step in range(self.first, self.last):
            for name in CAUSES:
                for rank, played in enumerate(self.seen):
                    held, right = self.runs[rank].steps[step - self.last], played.whole.steps[step]
                    if not equal(getattr(held, name), getattr(right, name)):
                        epoch, at = divmod(step, BATCHES)
                        stop = f", the first after the stop at {self.first}" if step == self.first else ""
                        cause = getattr(self, f"why_{name}")(step, rank, held, right)
                        text, read = cause if isinstance(cause, tuple) else (cause, READ)
                        raise Wrong(
                            f"Step {step + 1} on rank {rank} (batch {at + 1} of epoch {epoch + 1}{stop}) {text}", read
                        )
        for rank, (run, played) in enumerate(zip(self.runs, self.seen, strict=True)):
            losses = played.whole.losses[self.first : self.last]
            expect(
                run.losses == losses,
                f"The steps are right, but `train` on rank {rank} returned other losses than those of the steps that "
                f"it made: {run.losses[:2]} …, right is {losses[:2]} …",
            )
            whole = played.whole
            end = whole.steps[self.last].weights if self.last < len(whole.steps) else whole.end
            expect(
                equal(run.end, end),
                "All steps had the right samples, weights and gradients, but the run ends with other weights: "
                "something outside the steps has changed them."
                if self.first < self.last
                else f"Stopped at {self.first} and called again with `last_step={self.last}` it had no step to "
                "make, and should end with the weights that were saved; it does not.",
            )

    def count(self, rank: int, made: int, returned: int) -> None:
        """Judge how many steps were made."""
        steps, idea = self.last - self.first, "Each step that is made has one loss."
        if made >= steps and returned == steps:
            return
        if made == returned == self.last:
            idea = "It began with step 1 again."
        elif made == returned and made - steps == self.first % BATCHES:
            idea = "The steps of the epoch that was begun were made again."
        elif made == returned == steps + 1:
            idea = "One step too many: ask whether there is one to make before making it."
        start = f"Stopped at {self.first} and resumed" if self.stops else "Begun"
        raise Wrong(
            f"{start} to `last_step={self.last}`, {steps} steps should be made and as many losses returned; rank "
            f"{rank} made {made} and returned {returned}. {idea}",
        )

    def why_samples(self, step: int, rank: int, held: Step, right: Step) -> tuple[str, str]:
        """Explain wrong samples."""
        text = f"was made with the samples {held.samples}, right is {right.samples}."
        batches = [s.samples for s in self.seen[rank].whole.steps]
        others = [r for r, p in enumerate(self.seen) if p.whole.steps[step].samples == held.samples]
        at, epoch = batches.index(held.samples) if held.samples in batches else -1, step // BATCHES * BATCHES
        if at == epoch and step > epoch:
            idea = (
                "Those are the first batch of this epoch: the order was found again, the position in it was "
                "forgotten, so some samples are seen twice. Save how many batches of the epoch are done, and skip "
                "them."
            )
        elif 0 <= at < BATCHES <= step and at == step % BATCHES:
            idea = "That is this batch in the order of epoch 1: the epoch was forgotten. `sampler.set_epoch(epoch)`."
        elif at == 0:
            idea = "Those are the first batch of epoch 1: epoch and position were forgotten."
        elif at > 0:
            idea = f"Those belong to step {at + 1}: the position is off."
        elif others:
            idea = f"Those belong to rank {others[0]}."
        else:
            idea = "The run that was never stopped has no such batch. Seed, epoch, number of skipped samples?"
        return f"{text} {idea}", POSITION

    def origins(self, step: int, rank: int) -> Iterator[tuple[str, Generators]]:
        """Generators that a resume could have used, and how to say that it has used them."""
        others = [r for r in range(len(self.seen)) if r != rank]
        if step:
            yield SAVED, self.seen[rank].whole.steps[step - 1].after
            for r in others:
                each = "each rank has generators of its own, and the file had those of one rank only"
                yield f"holds rank {r}'s state: {each}", self.seen[r].whole.steps[step - 1].after
        for r in (rank, *others):
            own = "" if r == rank else f", with the seed of rank {r}"
            yield (
                f"started over{own}: it is part of the state, and was not saved, or not restored",
                Generators.seeded(r),
            )
        yield "was left as the new process had it", self.runs[rank].before
        for earlier in range(step - 1):
            state = self.seen[rank].whole.steps[earlier].after
            yield f"is in the state that it had after step {earlier + 1}", state

    def idle(self) -> str:
        """What a call that made no step may have saved."""
        idle = len(self.stops) > 1 and self.stops[-1] == self.stops[-2]
        return " The call before had no step to make, and seems to have saved its own generators over the run's." * idle

    def why_noise(self, step: int, rank: int, held: Step, right: Step) -> str:
        """Explain wrong noise: find the first number in what any generator would have given."""
        text = f"read the right samples, with other noise ({held.noise[0]:.3f}, right is {right.noise[0]:.3f}): "
        for origin, state in self.origins(step, rank):
            draws = random.Random()
            draws.setstate(state.python)
            numbers = torch.tensor([draws.random() for _ in range(400)]).tolist()
            at = numbers.index(held.noise[0]) if held.noise[0] in numbers else -1
            if at > 0 and origin == SAVED:
                return (
                    f"{text}Python's generator had been drawn from {at} times since it was set. Reading samples "
                    f"draws, and so do skipped batches and a warm-up ({runs.MICRO} draws each): set the generators "
                    "when the iterator is where that of the stopped run was."
                )
            if at >= 0:
                return f"{text}Python's generator {origin}.{self.idle()}"
        return f"{text}Python's generator is in a state that the run has never had."

    def why_weights(self, step: int, rank: int, held: Step, right: Step) -> str | tuple[str, str]:
        """Explain wrong weights before a step."""
        if step > self.first:
            return (
                "begins with other weights than in the run that was never stopped, although the step before was the "
                "same in all. Look at the options of the optimizer, and at what changes weights outside its steps."
            )
        as_rank_0 = equal(held.weights, self.runs[0].steps[step - self.last].weights)
        if equal(held.weights, self.runs[rank].start):
            built = "begins with the weights that the model was built with"
            broadcast = "DDP broadcasts in its constructor and never again. Every rank must load what is loaded later."
            return (
                f"{built}: none were loaded."
                if as_rank_0
                else (f"{built}, and rank 0 with others: {broadcast}", LOADING)
            )
        for earlier in range(step):
            if equal(held.weights, self.seen[rank].whole.steps[earlier].weights):
                return f"begins with the weights that it had {step - earlier} step(s) before."
        if not as_rank_0:
            return (
                "begins with other weights than rank 0. Every rank must load what is loaded behind DDP's constructor.",
                LOADING,
            )
        return (
            "begins with weights that the run has never had. Perhaps something changed them after they had been "
            "loaded: a warm-up must not step, or must come before the loading."
        )

    def why_dropout(self, step: int, rank: int, held: Step, right: Step) -> str:
        """Explain a wrong state of torch's generator: what draws lead to it, and from where?"""
        text = "had the right samples and weights, but drops other units: torch's generator "
        for origin, state in self.origins(step, rank):
            for forwards, iters, after in itertools.product(range(4), range(4), range(3)):
                if not equal(runs.draw(state.torch, iters, forwards, after), held.dropout):
                    continue
                if origin != SAVED:
                    return f"{text}{origin}.{self.idle()}"
                if forwards:
                    return (
                        f"{text}was set before {forwards} forward(s) that no step belongs to, such as a warm-up, and "
                        "dropout has drawn from it. Set the generators after that."
                    )
                if equal(runs.draw(state.torch, 1, 0, 0), right.dropout):
                    return (
                        f"{text}misses a draw. The run was stopped at the end of an epoch, so the next "
                        "`iter(loader)`, which draws one number as a seed for workers, comes *after* the state that "
                        "was saved; you have set the state behind it. In the middle of an epoch it comes before."
                    )
                return (
                    f"{text}is {iters + after} draw(s) ahead. `iter(loader)` draws one number as a seed for workers, "
                    "also if there are none, and the run that was not stopped drew it at the beginning of the epoch. "
                    "Set the generators after `iter(…)`, before the first batch."
                )
        return f"{text}is in a state that the run has never had.{self.idle()}"

    def why_training(self, step: int, rank: int, held: Step, right: Step) -> str:
        """Explain a model that evaluates."""
        return "ran with the model in evaluation mode: call `ddp.train()` after an evaluation."

    def why_gradient(self, step: int, rank: int, held: Step, right: Step) -> tuple[str, str]:
        """Explain a wrong gradient of the right weights and samples."""
        if not equal(held.left, right.left):
            return (
                "had a gradient in `.grad` before its backward, which adds to it: what a warm-up has left there. Call "
                "`optimizer.zero_grad()` behind it.",
                REBUILD,
            )
        off = (held.gradient - right.gradient).abs()
        if float(off.max()) > 1e-5 * float(right.gradient.abs().max()):
            alike = all(equal(r.steps[step - self.last].gradient, held.gradient) for r in self.runs)
            alone = " The ranks do not share it: the forward did not go through DDP." * (not alike)
            return (
                f"has another gradient, off by up to {float(off.max()):.2g}, from the right samples.{alone}",
                READ,
            )
        return (
            "had, bit for bit, the samples, noise, weights and dropout of the run that was never stopped. Only the "
            f"mean of the gradients differs, in {int((off > 0).sum())} of {off.numel()} elements, by at most "
            f"{float(off.max()):.1g}: its additions were made in another order. A new DDP has the bucket layout of "
            "its constructor until it has seen a backward, the stopped run had the rebuilt one, and the layout "
            "decides which rank's share comes first. On two ranks a + b = b + a hides it. Let DDP see a backward "
            "before you load.",
            REBUILD,
        )

    def why_optimizer(self, step: int, rank: int, held: Step, right: Step) -> str:
        """Explain a wrong state of AdamW."""
        count, moments = held.optimizer
        own = f" All of that holds for rank {rank}: every rank must load it." if rank else ""
        if count == 0 or not moments.any():
            text = (
                f"AdamW started over: it has no moments, and a step count of {count}. They are part of the state.{own}"
            )
            return f"had the right gradient, and {text}"
        text = f"its step count is {count}, right is {step}. Something has stepped, or was loaded, in between.{own}"
        return f"had the right gradient, but AdamW's moments are others; {text}"

    def why_rate(self, step: int, rank: int, held: Step, right: Step) -> str:
        """Explain a wrong learning rate."""
        rates = [s.rate for s in self.seen[rank].whole.steps]
        text = f"had the right gradient and moments, and the learning rate {held.rate:.4g}, right is {right.rate:.4g}. "
        if held.rate not in rates:
            return f"{text}The run has never had it."
        at = rates.index(held.rate)
        idea = ""
        if at == step - self.first and at:
            idea = ": the scheduler started over. The step before was right only because the optimizer saves it, too"
        elif at == step - self.first:
            idea = ". The scheduler started over, or its constructor, which sets the rate, ran after the loading"
        return f"{text}That is the rate of step {at + 1}{idea}."
