"""Editions: which gallery scripts are executed in this build, and which are shown from recorded evidence.

sphinx-gallery skips a script whose generated files and md5 are in place.
So before it starts, the evidence of an edition is put there for every script that need not run,
and the md5 of every script that must run is taken away.
What a script leaves when it runs, `recording` collects.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import zipfile
from importlib.metadata import version
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx_gallery.utils import get_md5sum

from ddplab import evidence
from labs import EDITIONS, ROOT, Lab, all_labs, edition_of, kept_evidence, lab_evidence
from problems import Stop

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


# -- before sphinx-gallery --------------------------------------------------------------------------


def take_turns(app: Sphinx) -> None:
    """Wait while another process builds this checkout, as `make -j` does: both would generate the same files."""
    folder = os.open(ROOT / "handbook", os.O_RDONLY)  # stays open, and so locked, until this process ends
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("another build of this checkout is running; waiting until it is done")
        fcntl.flock(folder, fcntl.LOCK_EX)


def prepare(app: Sphinx) -> None:
    """Put evidence in place for the scripts that need not run here; make the others run."""
    config = app.config
    edition = edition_of(config)
    if config.labs_edition:
        _check_known(config.labs_edition)
    if config.labs_record and not _NAME.fullmatch(config.labs_record):
        raise Stop(f"edition name {config.labs_record!r}: use small letters, digits and hyphens")
    for lab in all_labs().values():
        key = _key(lab)
        if config.labs_record:
            if not config.labs_fresh and _recorded_alike(lab, config.labs_record, key):
                _seed(lab, config.labs_record, key)
            else:
                _forget(lab)
            continue
        shown = _shown(lab)
        if shown.get("edition") == "here" and shown["key"] == key and not config.labs_edition:
            continue
        if config.labs_live:
            _forget(lab)
        elif config.labs_edition or (kept_evidence(lab, edition) or {}).get("key") == key:
            if not _seed(lab, edition, key) and not _seed(lab, config.labs_default_edition, key):
                _forget(lab)
        else:
            _forget(lab)


def recorded_editions() -> list[str]:
    """The names of the recorded editions."""
    return sorted(path.parent.name for path in EDITIONS.glob("*/manifest.json"))


def _check_known(edition: str) -> None:
    if edition not in recorded_editions():
        known = ", ".join(recorded_editions()) or "none"
        raise Stop(f"unknown edition {edition!r}; there is {known}, or record it: make edition NAME={edition}")


def _key(lab: Lab) -> str:
    try:
        return evidence.key(lab.script)
    except ValueError as error:
        raise Stop(str(error)) from error


def _shown(lab: Lab) -> dict[str, Any]:
    """What lies in handbook/labs; an empty dictionary if it is not complete."""
    try:
        return lab_evidence(lab) if lab.md5_file.exists() else {}
    except Stop:
        return {}  # generated here and damaged: generate it again


def _recorded_alike(lab: Lab, edition: str, key: str) -> bool:
    """Whether the edition has this script from this machine and these versions already."""
    kept = kept_evidence(lab, edition)
    if kept is None or kept["key"] != key or kept["machine"] != evidence.machine():
        return False
    return all(launch["torch"] == version("torch") for launch in kept["launches"])


def _seed(lab: Lab, edition: str, key: str) -> bool:
    """Copy what the edition keeps of this lab to where sphinx-gallery would have generated it."""
    folder = lab.kept_in(edition)
    kept = kept_evidence(lab, edition)
    if kept is None:
        return False
    if not (folder / f"{lab.script.stem}.rst").exists():
        raise Stop(f"{folder} is incomplete; restore it with git, or record the edition again")
    shown = {**kept, "edition": edition, "stale": kept["key"] != key}
    if _shown(lab) == shown:
        return True
    _forget(lab)
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "evidence.json":
            target = lab.generated / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # sphinx-gallery makes its files read-only
            shutil.copyfile(path, target)
    script = lab.generated / lab.script.name
    shutil.copyfile(lab.script, script)
    with zipfile.ZipFile(script.with_suffix(".zip"), "w") as archive:
        for path in (script, script.with_suffix(".ipynb")):
            if path.exists():
                archive.write(path, path.name)
    lab.md5_file.write_text(get_md5sum(lab.script, "t"))
    evidence.write_json(lab.evidence_file, shown)
    return True


def _forget(lab: Lab) -> None:
    """Make sphinx-gallery run the script, with nothing left of an earlier run."""
    for path in (*lab.files(), lab.md5_file):
        path.unlink(missing_ok=True)


# -- after sphinx-gallery ---------------------------------------------------------------------------


def stop_on_failure(app: Sphinx) -> None:
    """End the build if a script failed: its page, and pages that show pieces of it, would only add complaints."""
    failed = sorted(os.path.relpath(path) for path in app.config.sphinx_gallery_conf["failing_examples"])
    if failed:
        raise Stop(f"failed, with the traceback above: {', '.join(failed)}; each also runs alone: python {failed[0]}")


def drop_code_links(app: Sphinx) -> None:
    """Leave code to Pygments: sphinx-gallery would make a node of each token, for links that no edition keeps."""
    for path in (ROOT / "handbook" / "labs").glob("*/*.codeobj.json"):
        path.unlink()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the configuration values that the Makefile sets, and the hooks."""
    app.add_config_value("labs_default_edition", "", "env", str)
    app.add_config_value("labs_edition", "", "env", str)
    app.add_config_value("labs_live", False, "")
    app.connect("builder-inited", take_turns, priority=80)
    app.connect("builder-inited", prepare, priority=100)
    app.connect("builder-inited", stop_on_failure, priority=900)
    app.connect("builder-inited", drop_code_links, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
