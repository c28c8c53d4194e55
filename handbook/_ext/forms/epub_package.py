"""What Sphinx leaves out of an EPUB: what its files hold, for whom it can be read, and the places to go to at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

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
