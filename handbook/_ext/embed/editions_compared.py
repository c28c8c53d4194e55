"""``{editions-compared}``: the recorded editions side by side, a column each: machines, results, values that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ddplab.recording.diff import Comparison, compare
from ddplab.recording.edition_folder import DamagedError, Edition
from ddplab.recording.items import results_of

from ..evidence import lab_source
from ..problems import BuildError
from .edition_page import fact, fact_name, in_order, lab_link, table
from .measured import value_text


class EditionsCompared(SphinxDirective):
    """The default edition, and every other beside it; a sentence where there is no other."""

    def run(self) -> list[nodes.Node]:
        """Compare the default edition with each of the others."""
        names = list(dict.fromkeys([self.config.labs_default_edition, *self.config.labs_recorded]))
        for name in names:
            self.env.note_dependency(str(lab_source.edition(name).folder / "manifest.json"))
        if len(names) < 2:
            return [nodes.paragraph("", f"Only the edition {names[0]} is recorded so far.")]
        try:
            first, *others = editions = [lab_source.edition(name) for name in names]
            pairs = [compare(first, other) for other in others]
            counts = [_counts(edition) for edition in editions]
        except DamagedError as error:
            raise BuildError(str(error)) from None
        facts = _beside(pairs, lambda pair: (((one.name,), fact(one.a), fact(one.b)) for one in pair.facts))
        of_fact = {name: values for name, *values in facts if name != "topology" and {*values} != {"none"}}
        facts = [[fact_name(name), *of_fact[name]] for name in in_order(of_fact)]
        facts += [[what, *[one[what] for one in counts]] for what in sorted(set().union(*counts))]
        shown: list[nodes.Node] = [table(facts, ["Fact", *names])]
        known = lab_source.all_labs()
        if results := _beside(pairs, _results):
            for row in results:
                row[1] = lab_link(self, known[row[1]]) if row[0] == "lab" and row[1] in known else row[1]
            shown += [nodes.rubric("", "Results that differ"), table(results, ["Kind", "Name", *names])]
        if values := [row for row in _beside(pairs, _values) if row[0] in known]:
            values.sort(key=lambda row: list(known).index(row[0]))
            rows: list[list[Any]] = []
            for lab, of_lab in groupby(values, key=lambda row: row[0]):
                rows += [[lab_link(self, known[lab])], *(row[1:] for row in of_lab)]
            # Too many for paper: in the web book only, and folded.
            fold = f"<details><summary>Values that differ: {len(values)}</summary>"
            begin, end = nodes.raw("", fold, format="html"), nodes.raw("", "</details>", format="html")
            shown.append(addnodes.only("", begin, table(rows, ["Value", *names]), end, expr="builder_html"))
        return shown


def _beside(
    pairs: list[Comparison], parts: Callable[[Comparison], Iterable[tuple[tuple[str, ...], str, str]]]
) -> list[list[Any]]:
    """One row for each name that a comparison gives: the name's parts, what the first edition has, and each other."""
    found = [{name: (a, b) for name, a, b in parts(pair)} for pair in pairs]
    first = {name: a for one in found for name, (a, _) in one.items()}
    return [[*name, a, *[one[name][1] if name in one else a for one in found]] for name, a in first.items()]


def _counts(edition: Edition) -> Counter[str]:
    states = Counter(
        f"labs: {'failed' if kept.get('failed') else 'not shown' if kept.get('needs') else 'ran'}"
        for kept in edition.labs().values()
    )
    return states + Counter(f"claims: {kept['outcome']}" for kept in results_of(edition, lab_source.ROOT).values())


def _results(pair: Comparison) -> Iterable[tuple[tuple[str, ...], str, str]]:
    for one in pair.results:
        a, b = (f"{state}: {why}" if why else state for state, why in ((one.a, one.why_a), (one.b, one.why_b)))
        yield (one.kind, one.id), a, b


def _values(pair: Comparison) -> Iterable[tuple[tuple[str, ...], str, str]]:
    for one in pair.values:
        a, b = _value(one.a, one.unit_a), _value(one.b, one.unit_b)
        if a != b:
            yield (one.lab, one.name), a, b


def _value(value: float | str | None, unit: str) -> str:
    return "–" if value is None else value_text(value, unit)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.setup_extension("_ext.evidence.lab_source")
    app.add_directive("editions-compared", EditionsCompared)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
