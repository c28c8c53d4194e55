"""The pages that sphinx-gallery makes of labs, completed from what was recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from ddplab.recording.items import lab_item
from ddplab.recording.keys import block_key

from ..evidence import lab_source
from ..evidence.lab_pieces import runs_nothing, stamp_text
from ..evidence.lab_source import Lab, all_labs, lab_evidence
from ..markup import cross_reference
from ..order import Reading
from ..problems import BuildError, expect
from .drawing_code import fold

WAITING = "reference/waiting"  # the page of the labs that no edition has run
_GENERATED = "GENERATED FROM PYTHON SOURCE LINES"  # a comment of sphinx-gallery above each block


def complete(app: Sphinx, doctree: nodes.document) -> None:
    """Put level and stamp below the title, and the outputs below the code; take out what sphinx-gallery adds."""
    lab = next((lab for lab in all_labs().values() if lab.docname == app.env.docname), None)
    if lab is None:
        return
    for note in list(doctree.findall(nodes.note)):
        if "sphx-glr-download-link-note" in note["classes"]:
            note.parent.remove(note)
    for fields in list(doctree.findall(nodes.field_list)):
        if fields.astext().startswith("Level"):  # stands in the line below the title
            fields.parent.remove(fields)
    app.env.note_dependency(str(lab.shown_file(app.config)))
    evidence = lab_evidence(lab, app.config)
    title = next(iter(doctree.findall(nodes.title)))
    said = runs_nothing(lab.script)
    if said and evidence["launches"]:
        raise BuildError(f"{lab.script} says '# runs nothing:', and launches ranks; take the comment out")
    text = f"No rank ran for this page, and no time was measured: {said}." if said else stamp_text(evidence)
    top: list[nodes.Element] = [nodes.paragraph("", text, classes=["stamp"])]
    if reason := not_shown(evidence):
        why = nodes.paragraph("", reason)
        note = nodes.note("", why)
        if evidence["waiting"]:
            app.env.metadata[app.env.docname] |= dict.fromkeys(("orphan", "nosearch", "waiting"), "true")
            if WAITING in app.env.found_docs:
                leads = cross_reference(app.env.docname, "std:doc", f"/{WAITING}", "Waiting for a GPU")
                why.insert(0, [leads, nodes.Text(". ")])
        top = [*top, note] if evidence.get("failed") else [note]  # what did not run has no machine to name
    below = title.parent.index(title) + 1
    title.parent[below:below] = [*top, _how_to_run(app, lab, evidence), *_proves(app, lab)]
    for downloads in list(doctree.findall(nodes.container)):
        if "sphx-glr-footer" in downloads["classes"]:  # the script stands above, and a notebook cannot launch ranks
            downloads.parent.remove(downloads)
    code = [block for block in doctree.findall(nodes.literal_block) if _is_code(block)]
    expect(code or not evidence["blocks"], "sphinx-gallery", f"no comment {_GENERATED!r} stands above blocks of code")
    failed = min(len(evidence["blocks"]), len(code)) - 1 if evidence.get("failed") else None
    for number, (block, recorded) in enumerate(zip(code, _matching(code, evidence["blocks"]), strict=True)):
        outputs = list(_outputs(lab, evidence, recorded))
        if number == failed:
            message = evidence["failed"]
            outputs.append(nodes.literal_block(message, message, language="pytb", classes=["lab-failed"]))
        shown = fold(block, str(lab.script.relative_to(lab_source.ROOT)))
        below = shown.parent.index(shown) + 1
        shown.parent[below:below] = outputs


def _how_to_run(app: Sphinx, lab: Lab, evidence: dict[str, Any]) -> nodes.paragraph:
    path = lab.script.relative_to(lab_source.ROOT).as_posix()
    command = f"python {path}"
    level = str(lab.told[1]).capitalize()
    line = nodes.paragraph("", f"{level}. Run it: ", nodes.literal(command, command), classes=["lab-run"])
    if took := seconds(evidence):
        line += nodes.Text(f", {took} here")
    link = script_download(app.env.docname, lab, "download the script")
    line += nodes.inline("", " · ", link, classes=["no-print"])
    return line


def _proves(app: Sphinx, lab: Lab) -> Iterator[nodes.Node]:
    """A line that leads to the claims that the lab proves."""
    if claims := lab_item(lab.script).claims:
        line = nodes.paragraph("", "It proves: ", classes=["lab-proves"])
        for claim in claims:
            name = cross_reference(app.env.docname, "claims:place", claim, nodes.inline("", claim))
            line += [nodes.Text(", "), name] if len(line) > 1 else [name]
        yield line


def script_download(docname: str, lab: Lab, text: str) -> addnodes.download_reference:
    """A link that downloads the script of a lab."""
    target = "/" + os.path.relpath(lab.script, lab_source.ROOT / "handbook").replace(os.sep, "/")
    label = nodes.inline("", text)
    return addnodes.download_reference("", "", label, refdoc=docname, reftarget=target, refexplicit=True)


def seconds(evidence: dict[str, Any]) -> str:
    """How long it ran when it was recorded, in whole seconds; empty if that is not known."""
    took = evidence.get("seconds")
    return f"{max(1, round(took))} s" if took and not evidence.get("needs") else ""


def not_shown(evidence: dict[str, Any]) -> str:
    """Why a lab, or a part of it, has no result on the machine of its edition; empty if it has."""
    if evidence.get("failed"):
        error = evidence["failed"].splitlines()[-1]
        return f"Does not hold here: on the machine of this edition the lab ended with {error}"
    if evidence.get("needs"):
        reason = evidence["needs"]
        return f"This lab {reason}; no edition shows it yet."
    return "" if evidence["edition"] else "This lab has not been run yet."


def _is_code(block: nodes.literal_block) -> bool:
    place = block.parent.index(block)
    above = block.parent[place - 1] if place else None
    return isinstance(above, nodes.comment) and above.astext().startswith(_GENERATED)


def _matching(code: list[nodes.literal_block], recorded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was recorded of each block: by its place, or, where blocks have come or gone since, by its code."""
    if len(code) == len(recorded):
        return recorded
    by_code = {kept["code"]: kept for kept in recorded}
    return [by_code.get(block_key(block.astext()), {}) for block in code]


def _outputs(lab: Lab, evidence: dict[str, Any], recorded: dict[str, Any]) -> Iterator[nodes.Node]:
    for figure in recorded.get("figures", ()):
        image = nodes.image(
            uri=figure_uri(evidence, figure["file"]), alt=figure["alt"] or lab.id, classes=["sphx-glr-single-img"]
        )
        image.source, image.line = str(lab.script), 0
        yield image
    if printed := recorded.get("printed"):
        text = "\n".join(printed)
        yield nodes.literal_block(text, text, language="none", xml_space="preserve", classes=["sphx-glr-script-out"])


def figure_uri(evidence: dict[str, Any], name: str) -> str:
    """Where Sphinx finds a figure of a lab, from the folder of the book."""
    path = lab_source.ROOT / evidence["folder"] / name
    if not path.exists():
        raise BuildError(f"{path} is missing; restore it with git, or record it again: make edition NAME=…")
    return "/" + os.path.relpath(path, lab_source.ROOT / "handbook").replace(os.sep, "/")


def setup(app: Sphinx) -> dict[str, Any]:
    """Work on the page before Sphinx collects its images and titles."""
    app.setup_extension("_ext.embed.drawing_code")
    app.connect("doctree-read", complete, Reading.PAGES)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
