"""The grader of no-sync: the right solution passes, each wrong one gets the reason."""

from graded import (  # noqa: F401
    overriding,
    test_a_wrong_file_gets_the_reason,
    test_one_that_needs_ranks_of_its_own_gets_the_reason,
)

NAME = "no-sync"

# name: (methods that replace those of the solution, words of the message)
WRONG = {
    "changes nothing": (
        """
        @contextmanager
        def no_sync(self):
            yield
        """,
        "8 collectives were called where torch's DDP calls none|the hook must return before",
    ),
    "synchronizes when it ends": (
        """
        @contextmanager
        def no_sync(self):
            self.require_sync = False
            yield
            self.require_sync = True
            for p in self.module.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        """,
        "4 collectives were called where torch's DDP calls none|Leaving `no_sync` communicates nothing",
    ),
    "drops the gradients": (
        """
        def gradient_ready(self, p):
            if self.sync_backward:
                super().gradient_ready(p)
            else:
                p.grad = None
        """,
        "has no gradient: the backward inside must still accumulate",
    ),
    "averages the last micro-batch only": (
        """
        kept = {}
        def gradient_ready(self, p):
            if self.sync_backward:
                p.grad -= self.kept.get(p, 0)
                super().gradient_ready(p)
            else:
                self.kept[p] = p.grad.clone()

        def finish(self):
            super().finish()
            for p, kept in self.kept.items():
                p.grad += kept
            self.kept.clear()
        """,
        "mean of the last micro-batch, added to this rank's own earlier ones",
    ),
    "loses what accumulated": (
        """
        kept = {}
        def gradient_ready(self, p):
            if self.sync_backward:
                p.grad -= self.kept.pop(p, 0)
                super().gradient_ready(p)
            else:
                self.kept[p] = p.grad.clone()
        """,
        "mean of the last micro-batch only: the others are lost",
    ),
    "divides by the micro-batches": (
        """
        micros = 1
        def forward(self, x):
            self.micros += not self.require_sync
            return super().forward(x)

        def finish(self):
            super().finish()
            for p in self.module.parameters():
                p.grad /= self.micros
            self.micros = 1
        """,
        "also divided by the 3 micro-batches",
    ),
    "sets it to True": (
        """
        @contextmanager
        def no_sync(self):
            self.require_sync = False
            try:
                yield
            finally:
                self.require_sync = True
        """,
        "4 collectives were called|leave the flag as you found it|setting it to True or flipping it",
    ),
    "no finally": (
        """
        @contextmanager
        def no_sync(self):
            before, self.require_sync = self.require_sync, False
            yield
            self.require_sync = before
        """,
        "own sum, where torch's DDP averages|inside a `finally`",
    ),
    "swallows the exception": (
        """
        @contextmanager
        def no_sync(self):
            before, self.require_sync = self.require_sync, False
            try:
                yield
            except Exception:
                pass
            self.require_sync = before
        """,
        "never came out of `no_sync`",
    ),
    "in the class": (
        """
        require_sync = True
        def __init__(self, module):
            super().__init__(module)
            del self.require_sync

        @contextmanager
        def no_sync(self):
            before, SmallDDP.require_sync = self.require_sync, False
            try:
                yield
            finally:
                SmallDDP.require_sync = before
        """,
        "own sum, where torch's DDP averages|another model's `no_sync`",
    ),
    "the backward decides": (
        """
        def gradient_ready(self, p):
            self.sync_backward = self.require_sync
            super().gradient_ready(p)
        """,
        "own sum, where torch's DDP averages|only the backward inside",
    ),
    "every forward decides": (
        """
        def forward(self, x):
            self.sync_backward = self.require_sync
            return self.module(x)
        """,
        "4 collectives were called where torch's DDP calls none|under `torch.no_grad()`",
    ),
    "no context manager": (
        """
        def no_sync(self):
            self.require_sync = False
            yield
            self.require_sync = True
        """,
        "raised TypeError: 'generator' object does not|`@contextmanager` and a `yield` turn",
    ),
    "works once": (
        """
        def __init__(self, module):
            super().__init__(module)
            context = self.no_sync()
            self.no_sync = lambda: context
        """,
        "each `with` needs a new call",
    ),
}

# Those whose ranks end, raise or diverge.
ALONE = ["no context manager", "works once"]


def written(_, methods: str) -> str:
    return overriding(NAME, "SmallDDP", methods)
