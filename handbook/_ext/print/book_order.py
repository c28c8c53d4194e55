"""In which order the documents are printed, which of them are chapters and labs, and which lab belongs to a chapter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util import docname_join

LABS = "labs/"  # what is below it is printed in the companion
LAB_LIST = "labs-of-this-chapter"  # the id of a chapter's list of its labs


def children(env: Any, docname: str) -> list[str]:
    """The documents below one; a page that is nothing without a browser says ``no-print: true`` above its title."""
    found = dict.fromkeys(env.toctree_includes.get(docname, []))
    return [name for name in found if "no-print" not in env.metadata.get(name, {})]


def below(env: Any, docname: str) -> Iterator[str]:
    """A document and those below it, in reading order."""
    yield docname
    for child in children(env, docname):
        yield from below(env, child)


def chapters(env: Any, root: str) -> list[str]:
    """What the tables of contents of the root document list, one a part; the last of several is reference."""
    trees = list(env.get_doctree(root).findall(addnodes.toctree))
    return list(dict.fromkeys(name for tree in trees[:-1] or trees for name in tree["includefiles"]))


def is_lab(env: Any, docname: str) -> bool:
    """Whether a document is a lab; one with others below it is the list of a chapter's labs."""
    return docname.startswith(LABS) and not children(env, docname)


def is_in_companion(env: Any, docname: str) -> bool:
    """Whether a document is printed beside the labs; a page that is no lab says ``in-companion: true``."""
    return docname.startswith(LABS) or "in-companion" in env.metadata.get(docname, {})


def labs_of(env: Any, documents: Iterable[str], labs: Iterable[str]) -> list[str]:
    """Those of ``labs`` that the documents list at their end."""
    found: set[str] = set()
    for name in documents:
        for listed in [top for top in env.get_doctree(name).findall(nodes.section) if LAB_LIST in top["ids"]]:
            links = (link for link in listed.findall(addnodes.pending_xref) if link.get("reftype") == "doc")
            found.update(docname_join(name, link["reftarget"]) for link in links)
    return [name for name in labs if name in found]


def program(lab: str) -> str:
    """Where the program of a lab is."""
    return f"gallery/{lab.removeprefix(LABS)}.py"
