"""A book of a few lines in a temporary folder, to see what our extensions make of it.

A book of cases has a page for each case, and is built once for all tests that look at one of its pages.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

from _ext.evidence import lab_source
from _ext.problems import BuildError
from tools import ROOT

EXTENSIONS = ROOT / "handbook"

CONF = """
extensions = ["myst_parser", "_ext.embed.measured", "_ext.embed.code_diff", "_ext.cards.claim_marks",
              "_ext.cards.cards", "_ext.cards.card_copies", "_ext.decks.deck_cards", "_ext.cards.flashcards"]
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

    def about(self, page: str) -> str:
        """The warnings that name a page."""
        return "\n".join(line for line in self.warnings.splitlines() if f"/{page}." in line)

    def page(self, name: str, suffix: str = "html") -> BeautifulSoup:
        """A page, parsed."""
        return BeautifulSoup((self.folder / f"{name}.{suffix}").read_text(), "html.parser")

    def text(self, name: str) -> str:
        """The words of a page; a space that keeps a number with its unit is one as any other."""
        return self.page(name).get_text().replace("\N{NO-BREAK SPACE}", " ")


class TinyBook:
    """Files in a folder that is laid out as the repository is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("conf.py", CONF)
        self.write("tests/claims/proof.py", "")

    def write(self, path: str, text: str) -> Path:
        """Write a file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return target

    def rewrite(self, path: str, old: str, new: str) -> None:
        """Change a file, and put its time ahead: a page may have been made within the same tick of the clock."""
        target = self.root / path
        later = max(target.stat().st_mtime, time.time()) + 10
        target.write_text(target.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        os.utime(target, (later, later))

    def chapters(self, more: Sequence[str] = (), /, **texts: str) -> None:
        """Write chapters, and the index that leads through them, and to ``more``."""
        for name, text in texts.items():
            self.write(f"handbook/{name}.md", f"# The {name} chapter\n\n{dedent(text).lstrip()}")
        self.write("handbook/index.md", "# Book\n\n```{toctree}\n" + "\n".join([*texts, *more]) + "\n```\n")

    @contextmanager
    def taken_for_the_repository(self) -> Iterator[None]:
        """The extensions find labs, editions and cards in this folder."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lab_source, "ROOT", self.root)
            patch.setattr(lab_source, "EDITIONS", self.root / "gallery" / "editions")
            yield

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
        with self.taken_for_the_repository(), patch_docutils(self.root), docutils_namespace():
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
