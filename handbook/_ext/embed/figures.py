"""Figures: labs' SVG figures stand inline in the page, so that they follow its light or dark mode and its font."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from ..order import Resolving
from .svg_slim import slim

# The palette of ddplab.apparatus.plotting, as custom properties of the style sheet; elsewhere colors stay as they are.
RANK_COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7b00", "#6b6b6b"]
_PAGE_COLORS = {color: f"var(--rank-{rank}, {color})" for rank, color in enumerate(RANK_COLORS)} | {
    "#1f2328": "currentColor",
    "#8c959f": "var(--figure-muted, #8c959f)",
    "#e4e7eb": "var(--figure-faint, #e4e7eb)",
    "#7a3b8f": "var(--accent, #7a3b8f)",
}
_FONT = re.compile(r"font-family: ?[^;\"]*")
_SIZE = re.compile(r"(<svg\b[^>]*?) width=\"([\d.]+)pt\" height=\"[\d.]+pt\"([^>]*?)(?: style=\"([^\"]*)\")?>")


class InlineFigures(SphinxPostTransform):
    """Replace images that are SVG files of labs by the SVG itself."""

    default_priority = Resolving.FIGURES
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Inline every figure, except in EPUB, whose readers want image files."""
        if self.app.builder.name == "epub":
            return
        images = [node for node in self.document.findall(nodes.image) if str(node.get("uri", "")).endswith(".svg")]
        for number, image in enumerate(images):
            path = Path(self.env.srcdir) / str(image["uri"]).lstrip("/")
            if not path.exists():
                continue
            adaptive = self.app.builder.name != "bookpdf"
            svg = inline_svg(path, image.get("alt", ""), prefix=f"fig{number}-{path.stem[-24:]}-", adaptive=adaptive)
            raw = nodes.raw("", f'<div class="figure-svg">{svg}</div>', format="html")
            raw.source, raw.line = image.source, image.line
            image.replace_self(raw)


def inline_svg(path: Path, alt: str, *, prefix: str, adaptive: bool) -> str:
    """The SVG of a matplotlib figure as an element of a page.

    Args:
        path: the SVG file.
        alt: what it shows, for those who cannot see it.
        prefix: makes its ids unique in the page.
        adaptive: use the page's colours and font instead of the file's.
    """
    svg = _read(path, path.stat().st_mtime_ns)
    used = set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", svg))
    referenced = {name for pair in used for name in pair if name}
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in referenced else "", svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    name = escape(alt).replace("\\", r"\\")
    svg = _SIZE.sub(rf'\1\3 class="figure" role="img" aria-label="{name}" style="width:\2pt;\4">', svg, count=1)
    return follow_page(svg) if adaptive else svg


def follow_page(svg: str) -> str:
    """The SVG with the colours and the font of the page in place of its own."""
    svg = _FONT.sub("font-family: var(--figure-font, sans-serif)", svg)
    return re.sub(r"#[0-9a-f]{6}\b", lambda color: _PAGE_COLORS.get(color[0], color[0]), svg)


@cache
def _read(path: Path, _modified: int) -> str:
    """The file without what only a file needs; what only its program needs was left out when it was recorded."""
    svg = path.read_text(encoding="utf-8")
    svg = svg[svg.index("<svg") :]
    if 'id="figure_1"' in svg:
        svg = slim(svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns:xlink="[^"]*"', "", svg).replace("xlink:href", "href")
    return re.sub(r">\s+<", "><", svg).strip()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform."""
    app.add_post_transform(InlineFigures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
