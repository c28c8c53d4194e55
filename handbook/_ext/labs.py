"""Labs: the gallery scripts of the book, what is generated from them, and their pages."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config

from lab_pieces import stamp_text
from problems import Stop

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
            raise Stop(f"{script}: the lab id {lab.id!r} is taken by {found[lab.id].script}; rename one")
        found[lab.id] = lab
    return found


def lab_evidence(lab: Lab) -> dict[str, Any]:
    """The evidence that this build shows for ``lab``: as recorded, and ``edition`` and ``stale``."""
    return read_json(lab.evidence_file, "key", "date", "machine", "launches", "values", "edition", "stale")


def kept_evidence(lab: Lab, edition: str) -> dict[str, Any] | None:
    """What ``edition`` recorded of ``lab``, if it has it."""
    path = lab.kept_in(edition) / "evidence.json"
    return read_json(path, "key", "date", "machine", "launches", "values") if path.exists() else None


def edition_of(config: Config) -> str:
    """The name of the edition that a build renders."""
    return str(config.labs_edition or config.labs_default_edition)


def read_json(path: Path, *needed: str) -> dict[str, Any]:
    """A JSON object from a file that this project wrote, which has the ``needed`` entries.

    Raises:
        Stop: it is missing or damaged; the message says what to do.
    """
    advice = "restore it with git, or record the edition again with `make edition NAME=…`"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Stop(f"{path} is missing; {advice}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Stop(f"{path} is damaged ({error}); {advice}") from None
    absent = [name for name in needed if not isinstance(content, dict) or name not in content]
    if absent or not isinstance(content, dict):
        raise Stop(f"{path} is damaged ({', '.join(absent) or 'a JSON object'} is missing); {advice}")
    return content


def stamp_page(app: Sphinx, doctree: nodes.document) -> None:
    """Say on each lab page what it ran on, below the title; take out what sphinx-gallery adds for its own sake."""
    lab = next((lab for lab in all_labs().values() if lab.docname == app.env.docname), None)
    if lab is None:
        return
    for note in list(doctree.findall(nodes.note)):
        if "sphx-glr-download-link-note" in note["classes"]:
            note.parent.remove(note)
    app.env.note_dependency(str(lab.evidence_file))
    stamp = nodes.paragraph("", stamp_text(lab_evidence(lab)), classes=["stamp"])
    for title in doctree.findall(nodes.title):
        title.parent.insert(title.parent.index(title) + 1, stamp)
        break


def list_labs(app: Sphinx, doctree: nodes.document) -> None:
    """Make a chapter's index of labs a list of their titles and questions, in place of sphinx-gallery's thumbnails."""
    chapter = [lab for lab in all_labs().values() if lab.docname.rpartition("/")[0] + "/index" == app.env.docname]
    if not chapter:
        return
    (section,) = doctree.findall(nodes.section)
    trees = list(section.findall(addnodes.toctree))
    intro = [node for node in section.children if isinstance(node, nodes.title | nodes.paragraph)][:2]
    listing = nodes.definition_list(classes=["labs"])
    for lab in chapter:
        title, question = _title_and_question(lab)
        link = addnodes.pending_xref(
            "", nodes.inline("", title), refdomain="std", reftype="doc", reftarget=f"/{lab.docname}", refexplicit=True
        )
        link["refdoc"], link["refwarn"] = app.env.docname, True
        definition = nodes.definition("", nodes.paragraph("", question))
        listing += nodes.definition_list_item("", nodes.term("", "", link), definition)
    section[:] = [*intro, listing, *(nodes.compound("", tree, classes=["toctree-wrapper"]) for tree in trees)]


def _title_and_question(lab: Lab) -> tuple[str, str]:
    """The title of a lab, and the first sentence of its introduction: the question that it answers."""
    text = ast.get_docstring(ast.parse(lab.script.read_text(encoding="utf-8"))) or ""
    title, _, rest = text.strip().partition("\n")
    paragraph = " ".join(rest.lstrip("=- \n").split("\n\n")[0].split())
    sentence = re.match(r".*?[.?](?= |$)", paragraph)
    plain = re.sub(r":\w+:`([^`<]*?)(?: <[^`]*>)?`|``([^`]*)``", r"\1\2", sentence[0] if sentence else paragraph)
    return title, plain


def svg_scraper(*args: Any, **options: Any) -> str:
    """sphinx-gallery's matplotlib scraper, with vector figures."""
    from sphinx_gallery.scrapers import matplotlib_scraper

    return str(matplotlib_scraper(*args, format="svg", **options))


def _digest() -> str:
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(code).hexdigest()[:16]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what labs' pages get."""
    # A configuration value, because Sphinx builds all pages again when one changes; these files decide how they look.
    app.add_config_value("extensions_digest", _digest(), "env", str)
    app.connect("doctree-read", stamp_page)
    app.connect("doctree-read", list_labs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
