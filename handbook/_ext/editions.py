"""Editions: which gallery scripts are executed in this build, and which are shown from recorded evidence.

sphinx-gallery skips a script whose generated files and md5 are in place.
So before it starts, the evidence of an edition is put there for every script that need not run,
and the md5 of every script that must run is taken away.
After a script has run, its evidence is complete; in a build that records an edition it is kept there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx_gallery.utils import get_md5sum

from ddplab import evidence
from labs import EDITIONS, ROOT, Lab, all_labs, lab_evidence, read_json

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_RECORDING = "DDPLAB_RECORDING"  # tells the hook around scripts, which sees no application, which edition is recorded


# -- before sphinx-gallery --------------------------------------------------------------------------


def prepare(app: Sphinx) -> None:
    """Put evidence in place for the scripts that need not run here; make the others run."""
    config = app.config
    edition = config.labs_edition or config.labs_default_edition
    if config.labs_edition:
        _check_known(config.labs_edition)
    if config.labs_record and not _NAME.fullmatch(config.labs_record):
        raise ExtensionError(f"edition name {config.labs_record!r}: use small letters, digits and hyphens")
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


def kept_evidence(lab: Lab, edition: str) -> dict[str, Any] | None:
    """What ``edition`` recorded of ``lab``, if it has it."""
    path = lab.kept_in(edition) / "evidence.json"
    return read_json(path, "key", "date", "machine", "launches", "values") if path.exists() else None


def recorded_editions() -> list[str]:
    """The names of the recorded editions."""
    return sorted(path.parent.name for path in EDITIONS.glob("*/manifest.json"))


def _check_known(edition: str) -> None:
    if edition not in recorded_editions():
        raise ExtensionError(f"unknown edition {edition!r}; there is {', '.join(recorded_editions()) or 'none'}")


def _key(lab: Lab) -> str:
    try:
        return evidence.key(lab.script)
    except ValueError as error:
        raise ExtensionError(str(error)) from error


def _shown(lab: Lab) -> dict[str, Any]:
    """What lies in handbook/labs; an empty dictionary if it is not complete."""
    try:
        return lab_evidence(lab) if lab.md5_file.exists() else {}
    except ExtensionError:
        return {}  # generated here and damaged: generate it again


def _recorded_alike(lab: Lab, edition: str, key: str) -> bool:
    """Whether the edition has this script from this machine and these versions already."""
    kept = kept_evidence(lab, edition)
    return kept is not None and kept["key"] == key and kept["machine"] == evidence.machine()


def _seed(lab: Lab, edition: str, key: str) -> bool:
    """Copy what the edition keeps of this lab to where sphinx-gallery would have generated it."""
    folder = lab.kept_in(edition)
    kept = kept_evidence(lab, edition)
    if kept is None:
        return False
    if not (folder / f"{lab.script.stem}.rst").exists():
        raise ExtensionError(f"{folder} is incomplete; restore it with git, or record the edition again")
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
    _write_json(lab.evidence_file, shown)
    return True


def _forget(lab: Lab) -> None:
    """Make sphinx-gallery run the script, with nothing left of an earlier run."""
    for path in (*lab.files(), lab.md5_file):
        path.unlink(missing_ok=True)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


# -- around each script -----------------------------------------------------------------------------


def around_script(gallery_conf: dict[str, Any], name: str, when: str) -> None:
    """Collect the evidence of a script while sphinx-gallery runs it (its ``reset_modules`` hook)."""
    lab = next(lab for lab in all_labs().values() if lab.script.name == Path(name).name)
    running = lab.evidence_file.with_suffix(".running")
    if when == "before":
        evidence.begin(lab.script, running)
        return
    evidence.end()
    if not lab.md5_file.exists():  # it failed: sphinx-gallery reports it, and nothing of it is kept
        running.unlink(missing_ok=True)
        return
    shown = {**read_json(running), "edition": "here", "stale": False}
    _write_json(lab.evidence_file, shown)
    running.unlink()
    if record := os.environ.get(_RECORDING):
        keep(lab, record)


def keep(lab: Lab, edition: str) -> None:
    """Keep the lab's evidence in an edition: all of it, or the old one stays."""
    target = lab.kept_in(edition)
    fresh, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    for path in (fresh, old):
        shutil.rmtree(path, ignore_errors=True)
    for path in lab.files():
        copy = fresh / path.relative_to(lab.generated)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path != lab.evidence_file:
            shutil.copyfile(path, copy)
    kept = {name: value for name, value in lab_evidence(lab).items() if name not in ("edition", "stale")}
    _write_json(fresh / "evidence.json", kept)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    write_manifest(edition)


def write_manifest(edition: str) -> None:
    """Sum up the edition: its machine, versions, and each script with its key and date."""
    scripts: dict[str, Any] = {}
    launches: list[dict[str, Any]] = []
    for lab in all_labs().values():
        kept = kept_evidence(lab, edition)
        if kept is not None:
            launches += kept["launches"]
            scripts[lab.id] = {"key": kept["key"], "date": kept["date"]}
            machine = kept["machine"]
    best = max(launches, key=lambda launch: launch["ranks"], default={})
    versions = {name: best.get(name) for name in ("torch", "cuda", "nccl", "gpu", "gpus")}
    _write_json(
        EDITIONS / edition / "manifest.json",
        {
            "edition": edition,
            "machine": machine,
            **versions,
            "backends": sorted({launch["backend"] for launch in launches}),
            "world_sizes": sorted({launch["ranks"] for launch in launches}),
            "sphinx_gallery": version("sphinx-gallery"),
            "commit": _commit(),
            "scripts": scripts,
        },
    )


def _commit() -> str:
    """The commit that was checked out, read without git."""
    head = ROOT / ".git" / "HEAD"
    if not head.exists():
        return "unknown"
    text = head.read_text().strip()
    if not text.startswith("ref: "):
        return text[:12]
    reference = ROOT / ".git" / text.removeprefix("ref: ")
    return reference.read_text().strip()[:12] if reference.exists() else "unknown"


def start_recording(app: Sphinx) -> None:
    """Say which edition is recorded, if one is."""
    os.environ.pop(_RECORDING, None)
    if app.config.labs_record:
        os.environ[_RECORDING] = app.config.labs_record


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the configuration values that the Makefile sets, and the hooks."""
    app.add_config_value("labs_default_edition", "", "env", str)
    app.add_config_value("labs_edition", "", "env", str)
    app.add_config_value("labs_live", False, "")
    app.add_config_value("labs_record", "", "", str)
    app.add_config_value("labs_fresh", False, "")
    app.connect("builder-inited", start_recording, priority=90)
    app.connect("builder-inited", prepare, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
