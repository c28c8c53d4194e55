"""Pieces of labs in chapters, in other labs and in decks: ``{lab-figure}``, ``{lab-output}``, ``{lab-code}``.

They read what was recorded of the lab, so that a piece is never a copy that can go stale,
and each says what it ran on.
"""

from __future__ import annotations

import textwrap
from abc import abstractmethod
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ..evidence import lab_source
from ..evidence.lab_pieces import EmbedError, between, function_source, runs_nothing, some_lines, stamp_text
from ..markup import captioned, cross_reference
from ..problems import BuildError, suggestion, warn_at
from .lab_page import figure_uri, not_shown

OUTPUTS = "lab-outputs"  # of a document's metadata: the blocks that it shows whole, (document of the lab, number)


class Embed(SphinxDirective):
    """Common to all: find the lab, show the piece, or say what is wrong."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the nodes; a piece that cannot be shown is reported and left out."""
        try:
            return self.show(self.lab())
        except (ValueError, BuildError) as error:
            warn_at(self.env, f"{self.name} {self.arguments[0]!r}: {error}", self.lineno)
            return []

    @abstractmethod
    def show(self, lab: lab_source.Lab) -> list[nodes.Node]:
        """The nodes of the piece."""

    def lab(self) -> lab_source.Lab:
        """The lab that is named."""
        name, known = self.arguments[0], lab_source.all_labs()
        if name not in known:
            raise EmbedError(f"there is no such lab{suggestion(name, known)}")
        return known[name]

    def number(self, what: str, available: int) -> int:
        """The number behind the lab's id, counted from 1."""
        given = self.arguments[1] if len(self.arguments) > 1 else ""
        if not given.isdigit() or not 1 <= int(given) <= available:
            wrong = f"there is no {what} {given!r}" if given else f"say which {what} to show"
            raise EmbedError(f"{wrong}; the lab has {available or 'none'}" + ", counted from 1" * bool(available))
        return int(given)

    def missing(self, lab: lab_source.Lab, available: int) -> list[nodes.Node] | None:
        """What stands in place of a piece that is missing because the lab failed, or has not run; None if it is there.

        Nothing stands for a lab that waits for a GPU.
        """
        evidence = lab_source.lab_evidence(lab, self.config)
        given, reason = self.arguments[1] if len(self.arguments) > 1 else "", not_shown(evidence)
        if not reason or (given.isdigit() and int(given) <= available):
            return None
        if evidence.get("needs"):
            return []
        return [nodes.note("", nodes.paragraph("", reason), self.link(lab, f"lab {lab.id}"))]

    def stamp(self, lab: lab_source.Lab) -> nodes.paragraph:
        """What it ran on, as a link to the lab where the lab is part of the same project."""
        self.env.note_dependency(str(lab.shown_file(self.config)))
        said = runs_nothing(lab.script)  # the machine that drew it says nothing about what is shown
        evidence = lab_source.lab_evidence(lab, self.config)
        stamp = self.link(lab, f"Nothing ran, {said}" if said else stamp_text(evidence))
        stamp["lab"], stamp["ran"] = lab.id, True  # for `section_stamps`
        return stamp

    def link(self, lab: lab_source.Lab, text: str) -> nodes.paragraph:
        """Small print below the piece."""
        shown: nodes.Node = nodes.inline("", text)
        if lab.docname in self.env.found_docs:
            shown = cross_reference(self.env.docname, "std:doc", f"/{lab.docname}", shown)
        return nodes.paragraph("", "", shown, classes=["stamp"])


class LabFigure(Embed):
    """The K-th figure of a lab; the content is its caption."""

    has_content = True
    option_spec: ClassVar[Any] = {
        "alt": directives.unchanged,
        "name": directives.unchanged,
        "class": directives.class_option,
    }

    def show(self, lab: lab_source.Lab) -> list[nodes.Node]:
        """A figure node, so that it is numbered and can be referred to."""
        alt = " ".join((self.options.get("alt") or "").split())
        if not alt:
            raise EmbedError("add :alt: and say what the figure shows, for those who cannot see it")
        stamp, evidence = self.stamp(lab), lab_source.lab_evidence(lab, self.config)
        images = [figure["file"] for block in evidence["blocks"] for figure in block.get("figures", ())]
        if (missing := self.missing(lab, len(images))) is not None:
            return missing
        uri = figure_uri(evidence, images[self.number("figure", len(images)) - 1])
        image = nodes.image(uri=uri, alt=alt)
        self.set_source_info(image)
        return [captioned(self, image, ["lab-figure", *self.options.get("class", [])], below=[stamp])]


class LabOutput(Embed):
    """The K-th printed block of a lab, or some of its lines."""

    option_spec: ClassVar[Any] = {"lines": directives.unchanged_required, "class": directives.class_option}

    def show(self, lab: lab_source.Lab) -> list[nodes.Node]:
        """A literal block; `lanes` gives ranks their colours."""
        stamp, evidence = self.stamp(lab), lab_source.lab_evidence(lab, self.config)
        blocks = ["\n".join(block["printed"]) for block in evidence["blocks"] if "printed" in block]
        if (missing := self.missing(lab, len(blocks))) is not None:
            return missing
        number = self.number("printed block", len(blocks))
        text = blocks[number - 1]
        if "lines" in self.options:
            text = some_lines(self.options["lines"], text)
        else:
            self.env.metadata[self.env.docname].setdefault(OUTPUTS, []).append((lab.docname, number))
        block = nodes.literal_block(text, text, language="none", xml_space="preserve")
        self.set_source_info(block)
        return [nodes.container("", block, stamp, classes=["lab-output", *self.options.get("class", [])])]


class LabCode(Embed):
    """Code of a lab's script: functions by name, or what stands between two lines."""

    optional_arguments = 0
    option_spec: ClassVar[Any] = {
        "function": directives.unchanged_required,
        "start-after": directives.unchanged_required,
        "end-before": directives.unchanged_required,
        "lines": directives.unchanged_required,
        "class": directives.class_option,
    }

    def show(self, lab: lab_source.Lab) -> list[nodes.Node]:
        """A literal block in Python, and which lab it is from."""
        self.env.note_dependency(lab.script)
        source = lab.script.read_text(encoding="utf-8")
        name, after, before = (self.options.get(option) for option in ("function", "start-after", "end-before"))
        if bool(name) == bool(after or before):
            raise EmbedError("give either :function: or :start-after: and :end-before:")
        script = lab.script.name
        code = between(script, source, after, before)
        if name:
            code = "\n\n".join(function_source(script, one, source) for one in name.replace(",", " ").split())
        if "lines" in self.options:
            code = textwrap.dedent(some_lines(self.options["lines"], code))
        block = nodes.literal_block(code, code, language="python", xml_space="preserve")
        self.set_source_info(block)
        below = self.link(lab, f"from the lab {lab.id}")
        below["lab"], below["ran"] = lab.id, False
        return [nodes.container("", block, below, classes=["lab-code", *self.options.get("class", [])])]


class LabStamp(Embed):
    """What a lab ran on, below a number that stands alone."""

    optional_arguments = 0

    def show(self, lab: lab_source.Lab) -> list[nodes.Node]:
        """The stamp only; none for a lab that waits for a GPU."""
        stamp = self.stamp(lab)
        return [] if lab_source.lab_evidence(lab, self.config).get("needs") else [stamp]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.setup_extension("_ext.evidence.lab_source")
    app.add_directive("lab-figure", LabFigure)
    app.add_directive("lab-output", LabOutput)
    app.add_directive("lab-code", LabCode)
    app.add_directive("lab-stamp", LabStamp)
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
