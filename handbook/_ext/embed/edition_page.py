"""``{edition-manifest}``: what this edition was recorded on, and what each of its labs ran on."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ..evidence.labs import Lab, all_labs, lab_evidence, manifest_file, read_json

_NEEDED = ("edition", "machine", "torch", "nccl", "gpus", "backends", "world_sizes", "commit")


class EditionManifest(SphinxDirective):
    """Two tables: the machine of the edition that this build renders, and its labs."""

    def run(self) -> list[nodes.Node]:
        """Build them from the manifest and from the evidence that the pages show."""
        path = manifest_file(self.config)
        result: list[nodes.Node] = []
        if path.exists():
            self.env.note_dependency(str(path))
            result.append(table(_machine_rows(read_json(path, *_NEEDED))))
        rows = []
        for lab in all_labs().values():
            self.env.note_dependency(str(lab.shown_file(self.config)))
            shown = lab_evidence(lab, self.config)
            source = "executed here" if shown["edition"] == "here" else f"edition {shown['edition'] or 'none'}"
            ranks = ", ".join(str(n) for n in sorted({launch["ranks"] for launch in shown["launches"]})) or "none"
            note = "; stale: the code changed since" if shown["stale"] else ""
            note += "; failed" if shown.get("failed") else f"; {shown['needs']}" if shown.get("needs") else ""
            rows.append([lab_link(self, lab), source + note, ranks, shown["date"][:10]])
        result.append(table(rows, ["Lab", "Shown from", "Ranks", "Run on"]))
        return result


def lab_link(directive: SphinxDirective, lab: Lab) -> nodes.Node:
    """The id of a lab, which leads to its page."""
    found, _ = directive.parse_inline(f"{{doc}}`{lab.id} </{lab.docname}>`")
    return found[0]


def _machine_rows(manifest: dict[str, Any]) -> list[list[Any]]:
    machine = manifest["machine"]
    ranks = ", ".join(str(n) for n in manifest["world_sizes"])
    facts = {
        "Edition": manifest["edition"],
        "Processor": f"{machine['cpu']}, {machine['cores']} cores",
        "GPU": " and ".join(manifest["gpus"]) or "none",
        "torch": ", ".join(manifest["torch"]),
        "CUDA, NCCL": f"{machine['cuda']}, {', '.join(manifest['nccl'])}" if manifest["gpus"] else "not used",
        "Python": machine["python"],
        "Backends": ", ".join(manifest["backends"]),
        "World sizes": ranks,
        "Commit": manifest["commit"],
    }
    return [[name, str(value)] for name, value in facts.items()]


def table(rows: list[list[Any]], head: list[Any] | None = None) -> nodes.table:
    """A table of texts and inline nodes."""
    columns = len(rows[0])
    group = nodes.tgroup(cols=columns)
    group.extend(nodes.colspec(colwidth=1) for _ in range(columns))
    if head:
        group += nodes.thead("", _row(head))
    group += nodes.tbody("", *[_row(row) for row in rows])
    return nodes.table("", group, classes=["manifest", "colwidths-auto"])


def _row(cells: list[Any]) -> nodes.row:
    texts = [cell if isinstance(cell, nodes.Node) else nodes.Text(str(cell)) for cell in cells]
    return nodes.row("", *[nodes.entry("", nodes.paragraph("", "", text)) for text in texts])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("edition-manifest", EditionManifest)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
