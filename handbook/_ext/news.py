"""What a build has to do again. Sphinx reads a document again when its source or a dependency of it has changed.

It cannot know what a page shows of other pages: titles beside it, claims and cards of all chapters, results. So those
who show that say what it is, document by document, and a page is written again when that differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from .order import BeforeReading

# The builders that write all they have in each build. They leave what is known of all documents as they find it, so
# that several of them can run at once.
SIDE_FORMS = ("anki", "bookpdf", "epub")


def to_write(app: Sphinx, what: str, shown: Mapping[str, object]) -> list[str]:
    """The documents to write again, because they show something else than at the last build of this form.

    Args:
        app: the build.
        what: a name for what is shown.
        shown: it, by document; only its ``repr`` counts. So it must not hold the number of a line, which moves with
            every edit above it.
    """
    if app.builder.name in SIDE_FORMS:
        return []
    kept: dict[tuple[str, str], dict[str, str]] = app.env.__dict__.setdefault("ddp_shown", {})  # Sphinx pickles it
    before = kept.get((app.builder.name, what), {})
    now = {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in shown.items()}
    kept[app.builder.name, what] = now
    return sorted(name for name, digest in now.items() if before.get(name) != digest)


def nothing_read(env: BuildEnvironment) -> bool:
    """Whether what is known of all documents is as the last build of this form knew it: none was read or dropped.

    For a form that writes all: as the last build of any form knew it.
    """
    return bool(getattr(env, "ddp_nothing_read", False))


def note_removed(app: Sphinx, env: BuildEnvironment, *sets: set[str]) -> list[str]:
    """Begin without news, if none is removed (the last of the sets), and another form did not read the last one."""
    known = app.builder.name in SIDE_FORMS or getattr(env, "ddp_read_by", "") == app.builder.name
    env.ddp_nothing_read = not sets[2] and known  # type: ignore[attr-defined]  # see `nothing_read`
    return []


def note_read(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Documents that are about to be read are news."""
    if docnames:
        env.ddp_nothing_read, env.ddp_read_by = False, app.builder.name  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    """Look at what Sphinx is about to read, when all others have said what they want read."""
    app.connect("env-get-outdated", note_removed)
    app.connect("env-before-read-docs", note_read, BeforeReading.NEWS)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
