"""Labs: the gallery scripts of the book, and the evidence that this build shows of each."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

from ddplab.errors import BadInput
from ddplab.grading.level import Level, split_level
from ddplab.recording.edition_folder import DamagedError, Edition
from ddplab.recording.edition_folder import read_json as read_whole
from ddplab.recording.keys import names_a_clock
from ddplab.recording.script import lab_id

from ..problems import BuildError

ROOT = Path(__file__).parents[3]
EDITIONS = ROOT / "gallery" / "editions"


@dataclass(frozen=True)
class Lab:
    """A gallery script and where sphinx-gallery puts what it generates from it."""

    script: Path
    generated: Path  # handbook/labs/<chapter>

    @functools.cached_property
    def id(self) -> str:
        """``plot_05_bucket_xray.py`` is the lab ``bucket-xray``."""
        return lab_id(self.script)

    @property
    def docname(self) -> str:
        """Name of the lab's page."""
        return f"labs/{self.generated.name}/{self.script.stem}"

    @property
    def told(self) -> tuple[str, Level]:
        """What its docstring says, and its level.

        Raises:
            BuildError: the docstring does not end with the level.
        """
        return _told(self.script, self.script.stat().st_mtime_ns)

    def shown_file(self, config: Config) -> Path:
        """The evidence that a build of its edition shows; `editions` puts it there, so that pages can depend on it."""
        return self.generated / f"{self.script.stem}.{edition_of(config)}.json"


def all_labs() -> dict[str, Lab]:
    """Every lab of the book by id, in reading order."""
    gallery = ROOT / "gallery"
    folders = tuple((folder.name, folder.stat().st_mtime_ns) for folder in sorted(gallery.glob("*/")))
    return _labs_in(gallery, folders)


@functools.lru_cache(maxsize=8)
def _labs_in(gallery: Path, _folders: tuple[tuple[str, int], ...]) -> dict[str, Lab]:
    found: dict[str, Lab] = {}
    for script in sorted(gallery.glob("*/plot_*.py")):
        lab = Lab(script, gallery.parent / "handbook" / "labs" / script.parent.name)
        if lab.id in found:
            raise BuildError(f"{script}: the lab id {lab.id!r} is taken by {found[lab.id].script}; rename one")
        found[lab.id] = lab
    return found


@functools.lru_cache(maxsize=1024)
def _told(script: Path, _modified: int) -> tuple[str, Level]:
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    try:
        return split_level(text, script)
    except BadInput as error:
        raise BuildError(str(error)) from None


def lab_evidence(lab: Lab, config: Config) -> dict[str, Any]:
    """What this build shows of a lab: as recorded, ``edition``, ``borrowed`` (of another), ``folder``, ``stale``."""
    path = lab.shown_file(config)
    return _shown(path, path.stat().st_mtime_ns if path.exists() else 0)


@functools.lru_cache(maxsize=1024)
def _shown(path: Path, _modified: int) -> dict[str, Any]:
    needed = ("key", "date", "machine", "launches", "values", "blocks", "edition", "borrowed", "folder", "stale")
    return read_json(path, *needed)


def waits(lab: Lab, config: Config) -> bool:
    """Whether no edition has run a lab: it stands on one page, `embed.waiting`, and in no list."""
    return lab.shown_file(config).exists() and bool(lab_evidence(lab, config).get("waiting"))


def waits_here(lab: Lab, env: BuildEnvironment) -> bool:
    """The same, for a list in the document that is being read: it is read again when a lab begins or ends to wait."""
    if (path := waiting_file(env.config)).exists():
        env.note_dependency(str(path))
    return waits(lab, env.config)


def waiting_file(config: Config) -> Path:
    """The ids of the labs that wait: what a list depends on, which does not show what labs recorded."""
    return ROOT / "handbook" / "labs" / f".waiting-{edition_of(config)}"


_TIMED = re.compile(
    r"\b((n|µ|μ|u|m)?s|sec|msec|min|h|(milli)?seconds?|minutes?|hours?|[GMT]bps|T?FLOPS)\b|(/| per | a )step"
)


def refuse_shared_times(name: str, kept: dict[str, Any], where: str) -> None:
    """No time of ranks that took turns on one GPU is shown: it would be read as a time of DDP.

    Args:
        name: the lab.
        kept: what an edition has of it.
        where: the edition.

    Raises:
        BuildError: a launch shared a GPU, and the lab reads a clock, or a value is a time or a rate.
    """
    if not any(launch.get("shared") for launch in kept["launches"]):
        return
    timed = [f"{value} ({one['unit']})" for value, one in kept["values"].items() if _TIMED.search(one["unit"])]
    lab = all_labs().get(name)
    found = [f"recorded {', '.join(timed)}"] if timed else []
    found += ["reads a clock"] if lab is not None and names_a_clock(lab.script) else []
    if found:
        raise BuildError(
            f"the lab {name} of the edition {where} launched ranks that share a GPU, and {' and '.join(found)}: "
            "such ranks take turns, so this is no time of DDP; record it without DDPLAB_SHARE_GPU=1"
        )


def edition_of(config: Config) -> str:
    """The name of the edition that a build renders."""
    return str(config.labs_edition or config.labs_default_edition)


def edition(name: str) -> Edition:
    """A recorded edition; what `make live` ran here is the edition ``here``, which is not committed."""
    return Edition(ROOT / "_build" / "editions" / name if name == "here" else EDITIONS / name)


def recorded_editions() -> list[str]:
    """The names of the recorded editions."""
    return sorted(path.parent.name for path in EDITIONS.glob("*/manifest.json"))


def _note_recorded(app: Sphinx, config: Config) -> None:
    """Keep which editions there are, so that pages are read again when one comes or goes."""
    config.labs_recorded = recorded_editions()


def manifest_file(config: Config) -> Path:
    """What the edition that a build renders says of its machine."""
    return edition(edition_of(config)).folder / "manifest.json"


def read_json(path: Path, *needed: str) -> dict[str, Any]:
    """A JSON object from a file that this project wrote, which has the ``needed`` entries.

    Raises:
        BuildError: it is missing or damaged; the message says what to do.
    """
    try:
        return read_whole(path, *needed)
    except DamagedError as error:
        raise BuildError(str(error)) from None


def _digest() -> str:
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    return hashlib.sha256(code).hexdigest()[:16]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the configuration values that the Makefile sets."""
    app.add_config_value("labs_default_edition", "", "env", str)
    app.add_config_value("labs_edition", "", "env", str)
    app.add_config_value("labs_recorded", [], "env", list)
    app.connect("config-inited", _note_recorded)
    # A configuration value, because Sphinx builds all pages again when one changes; these files decide how they look.
    app.add_config_value("extensions_digest", _digest(), "env", str)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
