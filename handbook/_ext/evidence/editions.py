"""Editions: which evidence this build shows of each lab. Nothing is executed here.

sphinx-gallery makes a page of each script as it stands now; `lab_page` puts the recorded outputs into it.
`make edition` and `make live` record them (``python -m ddplab.recording``).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx_gallery.utils import get_md5sum

from ddplab.recording.edition import DamagedError
from ddplab.recording.keys import lab_key, load_cache, save_cache
from ddplab.runtime.evidence import write_json

from ..problems import Stop
from . import labs
from .labs import Lab, all_labs, edition, edition_of

logger = logging.getLogger(__name__)

_NOTHING: dict[str, Any] = {
    "key": "",
    "date": "",
    "machine": {},
    "launches": [],
    "values": {},
    "blocks": [],
    "read": [],
}


_turns: list[int] = []  # the folder that this process has locked


def take_turns(app: Sphinx) -> None:
    """Wait while another process builds this checkout, as `make -j` does: both would generate the same files."""
    while _turns:  # of an earlier build of this process
        os.close(_turns.pop())
    _turns.append(os.open(labs.ROOT / "handbook", os.O_RDONLY))  # stays open, and so locked, until this process ends
    try:
        fcntl.flock(_turns[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("another build of this checkout is running; waiting until it is done")
        fcntl.flock(_turns[0], fcntl.LOCK_EX)


def choose(app: Sphinx) -> None:
    """Put the evidence that this build shows beside each lab's page, where it changes only when the page must."""
    config = app.config
    if config.labs_edition and config.labs_edition not in (*recorded_editions(), "here"):
        known = ", ".join(recorded_editions()) or "none"
        name = config.labs_edition
        raise Stop(f"unknown edition {name!r}; there is {known}, or record it: make edition NAME={name}")
    load_cache(labs.ROOT / "_build" / "keys.json")
    app.stale_labs = []  # type: ignore[attr-defined]
    try:
        for lab in all_labs().values():
            shown = _evidence(lab, edition_of(config), config.labs_default_edition)
            if shown["stale"] or not shown["edition"]:
                app.stale_labs.append(lab.id)  # type: ignore[attr-defined]
            if shown.get("failed") and shown["edition"] == config.labs_default_edition and not shown["stale"]:
                raise Stop(f"the lab {lab.id} failed in the default edition:\n{shown['failed']}")
            if read_shown(lab.shown_file(config)) != shown:
                write_json(lab.shown_file(config), shown)
    except (DamagedError, ValueError) as error:
        raise Stop(str(error)) from None


def read_shown(path: Path) -> dict[str, Any] | None:
    """What an earlier build has shown; None if that file is missing or damaged: it is written again."""
    try:
        return labs.read_json(path)
    except Stop:
        return None


def _evidence(lab: Lab, chosen: str, default: str) -> dict[str, Any]:
    """What the chosen edition says of a lab, or, where it does not have the lab, the default one."""
    for name in dict.fromkeys([chosen, default]):
        kept = edition(name).lab(lab.id) if name else None
        if kept is not None:
            stale = kept["key"] != lab_key(lab.script, kept["read"])
            folder = os.path.relpath(edition(name).lab_file(lab.id).parent, labs.ROOT)
            return {**kept, "edition": name, "borrowed": name != chosen, "folder": folder, "stale": stale}
    return {**_NOTHING, "edition": "", "borrowed": False, "folder": "", "stale": False}


def recorded_editions() -> list[str]:
    """The names of the recorded editions."""
    return sorted(path.parent.name for path in labs.EDITIONS.glob("*/manifest.json"))


def mark_generated(app: Sphinx) -> None:
    """Tell sphinx-gallery which of its pages are up to date: it only keeps book of scripts that it ran itself."""
    for lab in all_labs().values():
        if (lab.generated / lab.script.name).exists():
            md5 = lab.generated / f"{lab.script.name}.md5"
            md5.write_text(get_md5sum(lab.script, "t"))
            (lab.generated / f"{lab.script.stem}.codeobj.json").unlink(missing_ok=True)  # links of tokens: not wanted


def finish(app: Sphinx, error: Exception | None) -> None:
    """Name the labs whose outputs are of older code, and the command that runs them."""
    save_cache(labs.ROOT / "_build" / "keys.json")
    stale = getattr(app, "stale_labs", [])
    if stale and error is None:
        logger.info(
            "%d labs show what older code printed, or nothing. To run them: make live LABS='%s'",
            len(stale),
            " ".join(stale),
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hooks."""
    app.setup_extension("_ext.evidence.labs")
    app.connect("builder-inited", take_turns, priority=80)
    app.connect("builder-inited", choose, priority=100)
    app.connect("builder-inited", mark_generated, priority=900)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
