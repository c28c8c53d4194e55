"""A book of a few lines in a temporary folder, to see what our extensions make of it."""

import re
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import TextIO

import pytest
from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import docutils_namespace, patch_docutils

from _ext.evidence import labs
from _ext.problems import BuildError

EXTENSIONS = Path(__file__).parents[2] / "handbook"

CONF = """
extensions = ["myst_parser", "_ext.embed.measured", "_ext.embed.code_diff", "_ext.cards.claims", "_ext.cards.cards",
              "_ext.forms.card_copies", "_ext.forms.deck_cards", "_ext.forms.flashcards"]
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["labs/**/*.json"]
labs_default_edition = "base"
html_theme = "basic"
"""


LAUNCH = {"ranks": 2, "backend": "gloo", "torch": "2.13.0+cpu", "gpu": None, "gpus": 0, "nccl": None}


def evidence(**changes: object) -> dict:
    """What a build shows of a lab that ran on two ranks of a CPU."""
    kept = {"key": "0", "date": "2026-11-21T07:00:00", "machine": {"cpu": "Some CPU", "cores": 2}}
    kept |= {"launches": [LAUNCH], "values": {}, "blocks": [], "edition": "base", "borrowed": False}
    return {**kept, "folder": "gallery/editions/here/labs", "stale": False, **changes}


@dataclass
class Built:
    """What one build left."""

    folder: Path
    warnings: str
    error: str  # of the build as a whole; empty if it came to its end
    written: list[str]

    @property
    def complaints(self) -> str:
        """All that went wrong."""
        return self.warnings + self.error

    def page(self, name: str) -> BeautifulSoup:
        """A page, parsed."""
        return BeautifulSoup((self.folder / f"{name}.html").read_text(), "html.parser")


class TinyBook:
    """Files in a folder that is laid out as the repository is."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        monkeypatch.setattr(labs, "ROOT", root)
        monkeypatch.setattr(labs, "EDITIONS", root / "gallery" / "editions")
        self.write("conf.py", CONF)
        self.write("tests/claims/proof.py", "")

    def write(self, path: str, text: str) -> Path:
        """Write a file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return target

    def chapters(self, **texts: str) -> None:
        """Write chapters, and the index that leads through them."""
        for name, text in texts.items():
            self.write(f"handbook/{name}.md", f"# The {name} chapter\n\n{dedent(text).lstrip()}")
        self.write("handbook/index.md", "# Book\n\n```{toctree}\n" + "\n".join(texts) + "\n```\n")

    def build(
        self,
        builder: str = "html",
        source: str = "handbook",
        status: TextIO | None = None,
        out: str = "",
        **config: object,
    ) -> Built:
        """Build it as the Makefile would; a second build is incremental."""
        warnings, error, written = StringIO(), "", []
        folder = self.root / "_build" / (out or builder)
        with patch_docutils(self.root), docutils_namespace():
            try:
                app = Sphinx(
                    self.root / source,
                    self.root,
                    folder,
                    self.root / "_build" / f"doctrees-{(out or builder).replace('/', '-')}",
                    builder,
                    confoverrides=config,
                    status=status,
                    warning=warnings,
                )
                app.connect("doctree-resolved", lambda app, doctree, docname: written.append(docname))
                app.build()
            except (SphinxError, BuildError) as failure:
                error = str(failure)
        plain = re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue())
        return Built(folder, plain, error, written)
