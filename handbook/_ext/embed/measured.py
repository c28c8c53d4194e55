"""``{measured}``: a number in prose that a lab recorded, so that text and figure cannot disagree.

``{measured}`bucket-sweep.best_cap` `` gives value and unit; ``{measured}`bucket-sweep.best_cap:.1f` `` in that format.
"""

from __future__ import annotations

import math
import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole
from sphinx.writers.html5 import HTML5Translator

from ..evidence import lab_source
from ..evidence.lab_pieces import stamp_text
from ..markup import close
from ..problems import BuildError, suggestion, warn_at

_TARGET = re.compile(r"(?P<lab>[a-z0-9-]+)\.(?P<name>\w+)(:(?P<format>.+))?")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SPACE = "\N{NO-BREAK SPACE}"


class measured(nodes.inline):  # noqa: N801  docutils names nodes so
    """A measured value; attribute ``source`` says where it comes from.

    A value of another edition than the rest of the page is followed by that edition's name.
    """


class MeasuredRole(SphinxRole):
    """The value that a lab recorded, with its unit."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Look the value up; what cannot be found is reported, and stands as it was written."""
        try:
            return [self._value()], []
        except ValueError as error:
            warn_at(self.env, f"measured {self.text!r}: {error}", self.get_source_info()[1])
            return [nodes.literal("", self.text)], []

    def _value(self) -> measured:
        target = _TARGET.fullmatch(self.text)
        if not target:
            raise ValueError("write lab-id.name, or lab-id.name:.2f with a format")
        lab = lab_source.all_labs().get(target["lab"])
        if lab is None:
            raise ValueError(f"there is no lab {target['lab']!r}{suggestion(target['lab'], lab_source.all_labs())}")
        self.env.note_dependency(str(lab.shown_file(self.config)))
        try:
            evidence = lab_source.lab_evidence(lab, self.config)
        except BuildError as error:
            raise ValueError(str(error)) from error
        kept = evidence["values"].get(target["name"])
        source = f"lab {lab.id}: {stamp_text(evidence)}"
        if kept is None and (evidence.get("failed") or evidence.get("needs")):
            return measured("", "not measured yet" if evidence.get("waiting") else "not measured here", source=source)
        if kept is None:
            raise ValueError(
                f"the lab {lab.id} did not record {target['name']!r}{suggestion(target['name'], evidence['values'])}"
            )
        text = value_text(kept["value"], kept["unit"], target["format"])
        number = measured("", text, source=source)
        if evidence["borrowed"] and lab_source.edition_of(self.config) != "here":  # there, most of the book is borrowed
            number += nodes.inline("", f"{_SPACE}({evidence['edition']})", classes=["borrowed"])
        return number


def value_text(value: float | str, unit: str, spec: str | None = None) -> str:
    """Value and unit as prose shows them.

    Without a format: a whole number as it is, any other with three significant digits, and whole from 100 up.
    A string stands as it is, without its unit.

    Raises:
        ValueError: the format is not one of Python for this value.
    """
    if isinstance(value, str):
        return value if spec is None else format(value, spec)
    if spec is not None:
        text = format(value, spec)
    elif isinstance(value, int) or abs(value) >= 100 or value == 0:
        text = f"{round(value):,}"
    elif abs(value) >= 1e-3:
        text = f"{value:.{2 - math.floor(math.log10(abs(float(f'{value:.2e}'))))}f}"
    else:
        digits, power = f"{value:.2e}".split("e")
        text = f"{digits}{_SPACE}×{_SPACE}10{str(int(power)).translate(_RAISED)}"
    return f"{text.replace('-', '−')}{_SPACE}{unit}" if unit else text


def visit_measured(self: HTML5Translator, node: nodes.Element) -> None:
    """Say on hover where the value comes from."""
    self.body.append(f'<span class="measured" title="{escape(node["source"], quote=True)}">')
    self.context.append("</span>")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the role and its node."""
    app.setup_extension("_ext.evidence.lab_source")
    app.add_role("measured", MeasuredRole())
    app.add_node(measured, html=(visit_measured, close))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
