"""Editions: which evidence this build shows of each lab. Nothing is executed here.

sphinx-gallery makes a page of each script as it stands now; `lab_page` puts the recorded outputs into it.
`make edition` and `make live` record them (``python -m ddplab.recording``).
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging
from sphinx.util._serialise import stable_str
from sphinx_gallery.gen_gallery import generate_gallery_rst
from sphinx_gallery.utils import get_md5sum

from ddplab.recording.edition_folder import DamagedError
from ddplab.recording.keys import lab_key
from ddplab.recording.reach import load_cache, save_cache
from ddplab.runtime.evidence import write_json

from ..news import SIDE_FORMS
from ..order import Configured, Finished, Started
from ..problems import BuildError, suggestion
from . import lab_source
from .lab_source import Lab, all_labs, edition, edition_of, lab_evidence, recorded_editions

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


class Turn:
    """Lets one process at a time build the pages of this checkout, and each form that is made of them.

    These change nothing that they share: they wait for their turn to begin, and then do not hold up one another.
    """

    def __init__(self) -> None:
        # A build that broke off has not let go of them; the next one in this process may.
        lock = partial(FileLock, is_singleton=True)
        self.entrance = lock(lab_source.ROOT / "_build" / "building.lock")
        self.forms = {name: lock(lab_source.ROOT / "_build" / f"{name}.lock") for name in (*SIDE_FORMS, "revealjs")}

    def wait(self, app: Sphinx) -> None:
        """Wait until no other build makes pages, nor this form."""
        own = self.forms.get(app.builder.name)
        for lock in [self.entrance, *([own] if own else self.forms.values())]:
            try:
                lock.acquire(blocking=False)
            except Timeout:
                logger.info("another build of this checkout is running; waiting until it is done")
                lock.acquire()

    def share(self, app: Sphinx) -> None:
        """Let other forms begin: the pages of labs have been made."""
        if app.builder.name in self.forms:
            self.entrance.release(force=True)

    def end(self, _app: Sphinx, _error: Exception | None) -> None:
        """Let the next ones build."""
        for lock in (self.entrance, *self.forms.values()):
            lock.release(force=True)


def select_evidence(app: Sphinx) -> None:
    """Put the evidence that this build shows beside each lab's page, where it changes only when the page must."""
    config = app.config
    if config.labs_edition and config.labs_edition not in (*recorded_editions(), "here"):
        name = config.labs_edition
        known = suggestion(name, recorded_editions())
        raise BuildError(f"there is no edition {name!r} (make edition NAME={name} would record it){known}")
    load_cache(lab_source.ROOT / "_build" / "keys.json")
    try:
        for name in dict.fromkeys([*recorded_editions(), edition_of(config)]):  # of each, some page shows values
            for lab_id, kept in edition(name).labs().items() if name else ():
                lab_source.refuse_shared_times(lab_id, kept, name)
        waiting = []
        for lab in all_labs().values():
            shown = _evidence(lab, edition_of(config), config.labs_default_edition)
            if shown.get("failed") and shown["edition"] == config.labs_default_edition and not shown["stale"]:
                raise BuildError(f"the lab {lab.id} failed in the default edition:\n{shown['failed']}")
            if _read_shown(lab.shown_file(config)) != shown:
                write_json(lab.shown_file(config), shown)
            waiting += [lab.id] * shown["waiting"]
        path, ids = lab_source.waiting_file(config), "\n".join(waiting)
        if all_labs() and not (path.is_file() and path.read_text() == ids):
            path.write_text(ids)
    except (DamagedError, ValueError) as error:
        raise BuildError(str(error)) from None


def _read_shown(path: Path) -> dict[str, Any] | None:
    """What an earlier build has shown; None if that file is missing or damaged: it is written again."""
    try:
        return lab_source.read_json(path)
    except BuildError:
        return None


def _evidence(lab: Lab, chosen: str, default: str) -> dict[str, Any]:
    """What the chosen edition says of a lab, where it could run it, or the default one.

    Else another one that ran it: that with the most GPUs, then the newest, then the first by name. A lab that none has
    run is ``waiting``.
    """
    own = [name for name in dict.fromkeys([chosen, default]) if name]
    found = {name: kept for name in own if (kept := edition(name).lab(lab.id)) is not None}
    name = next((name for name, kept in found.items() if not kept.get("needs")), "")
    if not name:
        others = {other: edition(other).lab(lab.id) for other in recorded_editions() if other not in own}
        ran = {
            other: kept for other, kept in others.items() if kept and not kept.get("needs") and not kept.get("failed")
        }
        name = max(ran, key=lambda other: (len(ran[other]["machine"].get("gpus", ())), ran[other]["date"]), default="")
        found |= ran
    if not name:
        name, kept = next(iter(found.items()), ("", _NOTHING))
        return {**kept, "edition": name, "borrowed": False, "folder": "", "stale": False, "waiting": True}
    kept = found[name]
    stale = kept["key"] != lab_key(lab.script, kept["read"])
    folder = os.path.relpath(edition(name).lab_file(lab.id).parent, lab_source.ROOT)
    borrowed = name != chosen
    return {**kept, "edition": name, "borrowed": borrowed, "folder": folder, "stale": stale, "waiting": False}


def take_over_generation(app: Sphinx, config: Config) -> None:
    """Put `generate_pages` in the place of sphinx-gallery, if the book uses it, before that adds to its settings."""
    for listener in list(app.events.listeners["builder-inited"]):
        if listener.handler is generate_gallery_rst:
            app.disconnect(listener.id)
            app.connect("builder-inited", partial(generate_pages, settings=stable_str(config.sphinx_gallery_conf)))


def generate_pages(app: Sphinx, settings: str) -> None:
    """Let sphinx-gallery make its pages, if anything that it makes them from has changed."""
    folders = [Path(app.srcdir, folder) for folder in app.config.sphinx_gallery_conf["examples_dirs"]]
    files = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]
    stamps = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    made_from = Path(lab_source.ROOT, "handbook", "labs", ".made-from")
    digest = hashlib.sha256(f"{stamps} {metadata.version('sphinx-gallery')} {settings}".encode()).hexdigest()
    made = [lab.generated / f"{lab.script.stem}.rst" for lab in all_labs().values()]
    made += [Path(app.srcdir, folder, "index.rst") for folder in app.config.sphinx_gallery_conf["gallery_dirs"]]
    if all(page.is_file() for page in made) and made_from.is_file() and made_from.read_text() == digest:
        return
    generate_gallery_rst(app)
    mark_generated()
    made_from.write_text(digest)


def mark_generated() -> None:
    """Tell sphinx-gallery which of its pages are up to date: it only remembers scripts that it ran itself."""
    for lab in all_labs().values():
        if (lab.generated / lab.script.name).exists():
            md5 = lab.generated / f"{lab.script.name}.md5"
            md5.write_text(get_md5sum(lab.script, "t"))
            (lab.generated / f"{lab.script.stem}.codeobj.json").unlink(missing_ok=True)  # links of tokens: not wanted


def finish(app: Sphinx, error: Exception | None) -> None:
    """Name the labs whose outputs are of older code, the command that runs them, and what `make live` has run."""
    save_cache(lab_source.ROOT / "_build" / "keys.json")
    if error is not None:
        return
    shown = {lab.id: lab_evidence(lab, app.config) for lab in all_labs().values()}
    if stale := [name for name, evidence in shown.items() if evidence["stale"] or not evidence["edition"]]:
        logger.info(
            "%d labs show what older code printed, or nothing. To run them: make live LABS='%s'",
            len(stale),
            " ".join(stale),
        )
    if edition_of(app.config) == "here" and app.builder.name == "html":
        ran = [lab for name, lab in all_labs().items() if shown[name]["edition"] == "here"]
        ran.sort(key=lambda lab: str(shown[lab.id]["date"]), reverse=True)
        pages = [os.path.join(os.path.relpath(app.outdir), f"{lab.docname}.html") for lab in ran[:3]]
        logger.info("executed here: %d labs, the last of them: %s", len(ran), " ".join(pages))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hooks."""
    app.setup_extension("_ext.evidence.lab_source")
    turn = Turn()
    app.connect("builder-inited", turn.wait, Started.WAIT)
    app.connect("builder-inited", turn.share, Started.SHARE)
    app.connect("build-finished", turn.end, Finished.NEXT)
    app.connect("builder-inited", select_evidence, Started.EVIDENCE)
    app.connect("config-inited", take_over_generation, Configured.AS_READ)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
