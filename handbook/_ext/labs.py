"""Labs: the gallery scripts of the book, what is generated from them, and their pages."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[2]
EDITIONS = ROOT / "gallery" / "editions"


@dataclass(frozen=True)
class Lab:
    """A gallery script and where sphinx-gallery puts what it generates from it."""

    script: Path
    generated: Path  # handbook/labs/<chapter>

    @property
    def id(self) -> str:
        """``plot_05_bucket_xray.py`` is the lab ``bucket-xray``."""
        return re.sub(r"^plot_(\d+_)?", "", self.script.stem).replace("_", "-")

    @property
    def docname(self) -> str:
        """Name of the lab's page."""
        return f"labs/{self.generated.name}/{self.script.stem}"

    @property
    def evidence_file(self) -> Path:
        """The lab's evidence; it exists only when the generated files beside it are complete."""
        return self.generated / f"{self.script.stem}.evidence.json"

    @property
    def md5_file(self) -> Path:
        """What sphinx-gallery looks at to decide whether the script must run."""
        return self.generated / f"{self.script.name}.md5"

    def files(self) -> list[Path]:
        """The generated files that an edition keeps; what can be derived from the script is left out."""
        stem = self.script.stem
        own = [self.generated / f"{stem}{suffix}" for suffix in (".rst", ".ipynb", ".cost.json")]
        images = self.generated / "images"
        own += [*images.glob(f"sphx_glr_{stem}_[0-9]*"), *images.glob(f"thumb/sphx_glr_{stem}_thumb.*")]
        return [*sorted(path for path in own if path.exists()), self.evidence_file]

    def kept_in(self, edition: str) -> Path:
        """The folder in which ``edition`` keeps this lab."""
        return EDITIONS / edition / self.generated.name / self.script.stem


def all_labs() -> dict[str, Lab]:
    """Every lab of the book by id, in reading order."""
    found: dict[str, Lab] = {}
    for script in sorted((ROOT / "gallery").glob("*/plot_*.py")):
        lab = Lab(script, ROOT / "handbook" / "labs" / script.parent.name)
        if lab.id in found:
            raise ExtensionError(f"{script}: the lab id {lab.id!r} is taken by {found[lab.id].script}; rename one")
        found[lab.id] = lab
    return found


def lab_evidence(lab: Lab) -> dict[str, Any]:
    """The evidence that this build shows for ``lab``: as recorded, and ``edition`` and ``stale``."""
    return read_json(lab.evidence_file, "key", "date", "machine", "launches", "values", "edition", "stale")


def read_json(path: Path, *needed: str) -> dict[str, Any]:
    """A JSON object from a file that this project wrote, which has the ``needed`` entries.

    Raises:
        ExtensionError: it is missing or damaged; the message says what to do.
    """
    advice = "restore it with git, or record the edition again with `make edition NAME=…`"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExtensionError(f"{path} is missing; {advice}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ExtensionError(f"{path} is damaged ({error}); {advice}") from None
    absent = [name for name in needed if not isinstance(content, dict) or name not in content]
    if absent or not isinstance(content, dict):
        raise ExtensionError(f"{path} is damaged ({', '.join(absent) or 'a JSON object'} is missing); {advice}")
    return content


def stamp_page(app: Sphinx, doctree: nodes.document) -> None:
    """Say on each lab page what it ran on, below the title; take out what sphinx-gallery adds for its own sake."""
    lab = next((lab for lab in all_labs().values() if lab.docname == app.env.docname), None)
    if lab is None:
        return
    from lab_embed import stamp_text

    for note in list(doctree.findall(nodes.note)):
        if "sphx-glr-download-link-note" in note["classes"]:
            note.parent.remove(note)
    app.env.note_dependency(str(lab.evidence_file))
    stamp = nodes.paragraph("", stamp_text(lab_evidence(lab)), classes=["stamp"])
    for title in doctree.findall(nodes.title):
        title.parent.insert(title.parent.index(title) + 1, stamp)
        break


def svg_scraper(*args: Any, **options: Any) -> str:
    """sphinx-gallery's matplotlib scraper, with vector figures."""
    from sphinx_gallery.scrapers import matplotlib_scraper

    return str(matplotlib_scraper(*args, format="svg", **options))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what labs' pages get."""
    app.connect("doctree-read", stamp_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
