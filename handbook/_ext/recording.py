"""Recording: the evidence that a script leaves when it runs, and editions, which keep it.

sphinx-gallery calls `around_script` before and after each script that it executes.
"""

from __future__ import annotations

import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from ddplab import evidence
from labs import EDITIONS, ROOT, Lab, all_labs, kept_evidence, lab_evidence, read_json

_RECORDING = "DDPLAB_RECORDING"  # tells the hook around scripts, which sees no application, which edition is recorded


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
    evidence.write_json(lab.evidence_file, shown)
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
    evidence.write_json(fresh / "evidence.json", kept)
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
    evidence.write_json(
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
    """Register the configuration values of ``make edition``."""
    app.add_config_value("labs_record", "", "", str)
    app.add_config_value("labs_fresh", False, "")
    app.connect("builder-inited", start_recording, priority=90)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
