"""``{edition-manifest}``: what this edition was recorded on; ``{edition-labs}``: what each of its labs ran on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ddplab.recording.machine import differences, processor

from ..evidence.lab_pieces import launches_text
from ..evidence.lab_source import Lab, all_labs, edition_of, lab_evidence, manifest_file, read_json

_NEEDED = ("edition", "machine", "torch", "nccl", "gpus", "backends", "world_sizes", "commit")
_NAMES = {"cpu": "Processor", "gpus": "GPUs", "cuda": "CUDA", "nccl": "NCCL", "torch": "torch", "gpu": "GPU"}
_FIRST = ("edition", "gpus", "gpu memory in MiB", "driver", "cuda", "nccl", "torch", "cpu", "cores")


class EditionManifest(SphinxDirective):
    """A table of the machine of the edition that this build renders, and how its GPUs hang together."""

    def run(self) -> list[nodes.Node]:
        """Build it from the manifest."""
        path = manifest_file(self.config)
        if not path.exists():
            return []
        self.env.note_dependency(str(path))
        kept = read_json(path, *_NEEDED)
        facts = {"edition": kept["edition"], **kept["machine"], **kept.get("hardware", {})}
        facts |= {"backends": kept["backends"], "world sizes": kept["world_sizes"], "commit": kept["commit"]}
        if not kept["machine"]["gpus"]:
            facts |= {"gpus": "none", "driver": None, "cuda": None, "nccl": None}  # a build of torch may bring them
        facts |= {
            f"also on {processor(one['machine'])}": f"labs and claims: {one['records']}" for one in kept.get("also", ())
        }
        drawing = facts.pop("topology", None)
        rows = ([fact_name(name), fact(facts[name])] for name in in_order(facts) if facts[name] not in (None, [], {}))
        return [table(rows), *([nodes.literal_block("", "\n".join(drawing), language="text")] if drawing else [])]


class EditionLabs(SphinxDirective):
    """A table of the labs: backends, ranks and day of each, and what the reader must know besides."""

    def run(self) -> list[nodes.Node]:
        """Build it from the evidence that the pages show."""
        rows = []
        path = manifest_file(self.config)
        main = read_json(path, *_NEEDED)["machine"] if path.exists() else {}
        for lab in all_labs().values():
            self.env.note_dependency(str(lab.shown_file(self.config)))
            shown = lab_evidence(lab, self.config)
            if shown.get("waiting"):
                continue
            backends, ranks = ({launch[what] for launch in shown["launches"]} for what in ("backend", "ranks"))
            notes = []
            if shown["edition"] != edition_of(self.config):
                notes = [_source(shown["edition"])]
            elif main and differences(main, shown["machine"]):
                notes = [f"on {processor(shown['machine'])}"]
            notes += ["stale: the code changed since"] * bool(shown["stale"])
            notes += ["failed"] * bool(shown.get("failed"))
            for how in sorted({launch["shared"] for launch in shown["launches"] if launch.get("shared")}):
                which = [launch for launch in shown["launches"] if launch.get("shared") == how]
                notes.append(f"{launches_text(which)}, by {how}")
            cells = [fact(sorted(backends)), fact(sorted(ranks)), shown["date"][:10], "; ".join(notes)]
            rows.append([lab_link(self, lab), *cells])
        head = ["Lab", "Backend", "Ranks", "Run on", "Note"]
        if not any(row[-1] for row in rows):
            head, rows = head[:-1], [row[:-1] for row in rows]
        listed = table(rows, head)
        listed["classes"].append("no-print")  # each lab says it below its title
        return [listed]


def _source(name: str | None) -> str:
    return "executed here" if name == "here" else f"from the edition {name}" if name else "not recorded"


def lab_link(directive: SphinxDirective, lab: Lab) -> nodes.Node:
    """The id of a lab, which leads to its page."""
    found, _ = directive.parse_inline(f"{{doc}}`{lab.id} </{lab.docname}>`")
    return found[0]


def fact_name(name: str) -> str:
    """A fact of a manifest in the reader's spelling."""
    first, space, rest = name.partition(" ")
    return _NAMES.get(first, first[:1].upper() + first[1:]) + space + rest


def in_order(names: Iterable[str]) -> list[str]:
    """Facts of a manifest, the GPUs first."""
    return sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))


def fact(value: Any) -> str:
    """The value of a fact of a manifest; lists of equal entries in one."""
    if isinstance(value, list):
        once = list(dict.fromkeys(value))
        each = f"{len(value)} × " if len(value) > len(once) == 1 else ""
        return each + (", ".join(_one(one) for one in (once if each else value)) or "none")
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items()) or "none"
    return _one(value)


def _one(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return f"{value:,.0f}"
    return "none" if value is None else str(value)


def table(rows: Iterable[list[Any]], head: list[Any] | None = None) -> nodes.table:
    """A table of texts and inline nodes; a row of one cell in a table of several columns is a heading in it."""
    rows = list(rows)
    columns = max(map(len, [*rows, *([head] if head else [])]), default=1)
    group = nodes.tgroup(cols=columns)
    group.extend(nodes.colspec(colwidth=1) for _ in range(columns))
    if head:
        group += nodes.thead("", _row(head, columns))
    group += nodes.tbody("", *[_row(row, columns) for row in rows])
    return nodes.table("", group, classes=["manifest", "colwidths-auto"])


def _row(cells: list[Any], columns: int) -> nodes.row:
    whole = len(cells) < columns
    row = nodes.row("", classes=["manifest-group"] if whole else [])
    for cell in cells:
        text = cell if isinstance(cell, nodes.Node) else nodes.Text(str(cell))
        row += nodes.entry("", nodes.paragraph("", "", text), **({"morecols": columns - 1} if whole else {}))
    return row


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("edition-manifest", EditionManifest)
    app.add_directive("edition-labs", EditionLabs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
