"""What Sphinx leaves out of an EPUB: what its files hold, for whom it can be read, and the places to go to at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# In the words of schema.org that EPUB Accessibility 1.1 asks for; what is claimed here, the tests of the EPUB look at.
ACCESS = {
    "accessMode": ("textual", "visual"),
    "accessModeSufficient": ("textual",),
    "accessibilityFeature": (
        "alternativeText", "MathML", "readingOrder", "structuralNavigation", "tableOfContents",
    ),
    "accessibilityHazard": ("none",),
    "accessibilitySummary": (
        "Every figure has a text that says what it shows, formulas are MathML, and no colour carries meaning alone.",
    ),
}  # fmt: skip
_NAMES = {"cover": "Cover", "bodymatter": "Start of the text", "glossary": "Glossary", "bibliography": "Bibliography"}


def complete(folder: Path, cover: str = "") -> None:
    """Say in the package file which pages hold mathematics, which image is the cover, and for whom the book is.

    Args:
        folder: the unpacked EPUB.
        cover: the image of the cover, from that folder.
    """
    package = folder / "content.opf"

    def describe(match: re.Match[str]) -> str:
        name = match[1]
        if name == cover:
            return match[0].replace(" />", ' properties="cover-image" />')
        page = folder / name
        if name.endswith(".xhtml") and page.is_file() and "<math" in page.read_text(encoding="utf-8"):
            return match[0].replace(" />", ' properties="mathml" />')
        return match[0]

    text = re.sub(r'<item [^>]*href="([^"]*)"[^>]*/>', describe, package.read_text(encoding="utf-8"))
    facts = "".join(
        f'    <meta property="schema:{key}">{value}</meta>\n' for key, values in ACCESS.items() for value in values
    )
    package.write_text(text.replace("  </metadata>", f"{facts}  </metadata>", 1), encoding="utf-8")


def in_reading_order(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put the headings of each page before the pages that are listed in its middle.

    A list of pages may stand in any section; those pages are read after the whole page that lists them.
    They become children of that page, beside its headings.

    Args:
        entries: the table of contents, flat: each has a ``level``, and its place as ``refuri``.
    """
    ordered: list[dict[str, Any]] = []
    rest = [dict(entry) for entry in entries]
    while rest:
        page, *rest = rest
        level, file = page["level"], page["refuri"].partition("#")[0]
        end = next((at for at, entry in enumerate(rest) if entry["level"] <= level), len(rest))
        own = {at for at in range(end) if rest[at]["refuri"].partition("#")[0] == file}
        last = max(own, default=-1)
        if len(own) == last + 1:  # no list before a heading
            ordered += [page, *rest[: last + 1]]
            rest = rest[last + 1 :]
            continue
        ordered += [page, *(rest[at] for at in sorted(own))]
        raised_by = 0
        below = []
        for at in sorted(set(range(end)) - own):
            if at - 1 in own:  # here a list begins, below a section of any level
                raised_by = rest[at]["level"] - level - 1
            below.append(rest[at] | {"level": rest[at]["level"] - raised_by})
        rest = [*below, *rest[end:]]
    return ordered


def add_landmarks(navigation: Path, places: Mapping[str, str]) -> None:
    """List the landmarks in the navigation document.

    Args:
        navigation: the document.
        places: the file of each kind of place.
    """
    if not places:
        return
    items = "".join(
        f'<li><a epub:type="{kind}" href="{place}">{_NAMES.get(kind, kind.title())}</a></li>'
        for kind, place in places.items()
    )
    listed = f'<nav epub:type="landmarks" hidden="hidden"><h1>Landmarks</h1><ol>{items}</ol></nav>\n  </body>'
    navigation.write_text(navigation.read_text(encoding="utf-8").replace("</body>", listed, 1), encoding="utf-8")
