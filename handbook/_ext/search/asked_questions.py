"""``{asked-questions} topic``: what people ask about a topic in public threads, each a link to the answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ..problems import read_toml

FILE = "questions.toml"  # in the folder of the handbook; the search knows them, and a test asks it for each
_CODE = re.compile(
    r"(?<![\w`])(--\w[\w=:.-]*\w|[\w.]+\([^()]*\)|(?:torch|cuda)\.[\w.]*\w|\w+_\w[\w.=:-]*\w|\w+=\w+|\w+\.py)(?!\w)"
)  # options, calls, names of torch and the environment, settings, files


class AskedQuestions(SphinxDirective):
    """A list; a question that no section answers yet is left out."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The list, as MyST reads it, so that its links are checked like all others."""
        path, known = questions(self.env.srcdir)
        self.env.note_dependency(str(path))
        asked = [one for one in known if one["topic"] == self.arguments[0] and "section" in one]
        if not asked:
            topics = ", ".join(dict.fromkeys(one["topic"] for one in known))
            raise self.error(f"{path.name} has no answered question about {self.arguments[0]!r}; it knows {topics}")
        listed = self.parse_text_to_nodes("\n".join(f"- [{_marked(one['question'])}]({_target(one)})" for one in asked))
        return [nodes.container("", *listed, classes=["asked-questions"])]  # print has them in columns


def questions(srcdir: str | Path) -> tuple[Path, list[dict[str, Any]]]:
    """The file of the questions, and what it holds; nothing if a book has none."""
    path = Path(srcdir, FILE).resolve()
    return path, read_toml(path)["question"] if path.is_file() else []


def _target(one: dict[str, Any]) -> str:
    page, _, anchor = one["section"].rpartition("#")
    return f"/{page}.md#{anchor}" if page else f"#{anchor}"


def _marked(text: str) -> str:
    """The question with options and names of code set as code, and nothing else of it read as markup."""
    pieces = _CODE.split(re.sub(r"\s+", " ", text))
    return "".join(
        f"`{piece}`" if place % 2 else re.sub(r"([\\`*_\[\]<>{}$])", r"\\\1", piece)
        for place, piece in enumerate(pieces)
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("asked-questions", AskedQuestions)
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
