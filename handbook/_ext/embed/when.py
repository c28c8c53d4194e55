"""``{when}``: what only some editions show. ``{edition}``: what this edition ran on.

A block, ``{when} nccl``, stands where a lab of the edition ran over NCCL; ``:else:`` is one paragraph for the others.
In a sentence, ``{when}`gloo: (not run in this edition)` ``; and ``{edition}`device` ``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective, SphinxRole

from ..evidence import lab_source
from ..problems import BuildError, suggestion, warn_at


def manifest(env: BuildEnvironment) -> dict[str, Any]:
    """What the edition that this build shows ran on; the page is read again when it changes.

    Raises:
        BuildError: it is missing or damaged.
    """
    path = lab_source.manifest_file(env.config)
    env.note_dependency(str(path))
    return lab_source.read_json(path, "edition", "machine", "torch", "nccl", "gpus", "backends")


def _conditions(shown: dict[str, Any]) -> dict[str, bool]:
    gpus, nccl = len(shown["machine"].get("gpus", [])), "nccl" in shown["backends"]
    return {"cpu": not gpus, "gpu": gpus > 0, "gpus": gpus > 1, "nccl": nccl, "gloo": not nccl}


def holds(condition: str, env: BuildEnvironment) -> bool:
    """Whether a condition holds in the edition: ``cpu``, ``gpu``, ``gpus`` (two or more), ``nccl``, ``gloo`` (no NCCL).

    Raises:
        ValueError: there is no such condition.
    """
    known = _conditions(manifest(env))
    name = condition.removeprefix("not ").strip()
    if name not in known:
        raise ValueError(f"there is no condition {name!r}{suggestion(name, known)}")
    return known[name] is not condition.startswith("not ")


class WhenDirective(SphinxDirective):
    """``{when} nccl``: its content in editions of which that is true, ``:else:`` in others."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar[Any] = {"else": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Parse what stands in this edition, and leave out the rest."""
        try:
            if holds(self.arguments[0], self.env):
                return self.parse_content_to_nodes()
            return self.parse_text_to_nodes(self.options.get("else", ""))
        except (ValueError, BuildError) as error:
            warn_at(self.env, f"when {self.arguments[0]!r}: {error}", self.get_source_info()[1])
            return []


class WhenRole(SphinxRole):
    """``{when}`nccl: text` ``: the text, which may hold markup, in editions of which that is true."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Parse the text, or leave it out."""
        condition, colon, text = self.text.partition(":")
        try:
            if not colon:
                raise ValueError("write {when}`condition: text`")
            if not holds(condition, self.env):
                return self._nothing()
        except (ValueError, BuildError) as error:
            warn_at(self.env, f"when {self.text!r}: {error}", self.get_source_info()[1])
            return [], []
        memo: Any = self.inliner  # has what a memo of docutils has
        return self.inliner.parse(text.strip(), self.lineno, memo, self.inliner.parent)

    def _nothing(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """The space before what is left out goes too; what follows brings its own."""
        before = self.inliner.parent
        if before.children and isinstance(before[-1], nodes.Text):
            before[-1] = nodes.Text(before[-1].rstrip(" "))
        return [], []


class EditionRole(SphinxRole):
    """``{edition}`device` ``: a fact of the edition: name, device, backend, torch, nccl; or ``machines``, of all."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Look the fact up; what is not known is reported."""
        try:
            facts = _facts(manifest(self.env)) | {"machines": _machines(self.env)}
            if self.text not in facts:
                raise ValueError(f"there is no such fact about an edition{suggestion(self.text, facts)}")
            return [nodes.inline("", facts[self.text], classes=["edition-fact"])], []
        except (ValueError, BuildError) as error:
            warn_at(self.env, f"edition {self.text!r}: {error}", self.get_source_info()[1])
            return [nodes.literal("", self.text)], []


def _machines(env: BuildEnvironment) -> str:
    """On what all committed editions were recorded, and what no edition has: ``on …; none on two GPUs yet``."""
    shown = []
    for name in dict.fromkeys([env.config.labs_default_edition, *env.config.labs_recorded]):
        path = lab_source.edition(name).folder / "manifest.json"
        env.note_dependency(str(path))
        shown.append(lab_source.read_json(path, "edition", "machine", "torch", "nccl", "gpus", "backends"))
    *others, last = dict.fromkeys(_facts(one)["device"] for one in shown)
    most = max(len(one["machine"].get("gpus", [])) for one in shown)
    lacks = {0: "; none on a GPU yet", 1: "; none on two GPUs yet"}.get(most, "")
    return " and ".join(f"on {one}" for one in filter(None, [", on ".join(others), last])) + lacks


def _facts(shown: dict[str, Any]) -> dict[str, str]:
    machine = shown["machine"]
    named = {"gloo": "gloo", "nccl": "NCCL"}
    return {
        "name": shown["edition"],
        "device": " and ".join(shown["gpus"]) or f"a CPU ({machine['cpu']}, {machine['cores']} cores)",
        "backend": " and ".join(named.get(name, name) for name in sorted(shown["backends"])),
        "torch": " and ".join(version.partition("+")[0] for version in shown["torch"]),
        "nccl": " and ".join(shown["nccl"]) or "no NCCL",
    }


def setup(app: Sphinx) -> dict[str, Any]:
    """Register directive and roles."""
    app.setup_extension("_ext.evidence.lab_source")
    app.add_directive("when", WhenDirective)
    app.add_role("when", WhenRole())
    app.add_role("edition", EditionRole())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
