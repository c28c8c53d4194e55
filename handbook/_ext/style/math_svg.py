"""Mathematics as SVG, rendered while the book is built: no script and no font to load.

The SVG is part of the page, drawn in the colour of the text; `book_epub` makes image files of it.
A web page holds each glyph once: its formulas only point to it, which makes a page of formulas six times lighter.
The TeX source is the accessible text.
"""

from __future__ import annotations

import functools
import html
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.locale import _
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

EM_PX = 24.0  # the size at which ziamath draws; its smallest glyph is relative to this default too
MARGIN_PX = 0.5  # room for glyphs that lean out of their box
WIDE_EM = 17.0  # wider equations scroll on a phone, so the keyboard must reach them

MATHML = "http://www.w3.org/1998/Math/MathML"
SHARING = "html"  # the builder of pages in which formulas share their glyphs

_LARGE = set("∑∏∐∫∬∭∮⋀⋁⋂⋃⨁⨂⨀⨄⨆⊎")
_LIMITS = set("∑∏∐⋀⋁⋂⋃⨁⨂⨀⨄⨆⊎") | {"max", "min", "lim", "sup", "inf", "arg max", "arg min", "argmax", "argmin"}
_ABOVE_BELOW = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
_TEXT_ESCAPE = re.compile(r"\\([_%#&${}])")


@dataclass(frozen=True)
class Drawing:
    """One rendered formula: the inside of its SVG, and its measures in em."""

    paths: str
    view_box: str
    width_em: float
    height_em: float
    depth_em: float  # how far it reaches below the baseline
    glyphs: dict[str, str]  # by id, where `paths` only points to them: then the page has to hold them

    def svg(self, tex: str, *, inline: bool) -> str:
        """The SVG element; in a line of text it sits on the baseline."""
        name = html.escape(tex, quote=True)
        align = f"vertical-align:{-self.depth_em:.3f}em;" if inline else ""
        style = f"width:{self.width_em:.3f}em;height:{self.height_em:.3f}em;{align}"
        alone = f' fill="currentColor" stroke="none" overflow="visible"><title>{html.escape(tex)}</title>'
        said = ">" if self.glyphs else alone  # the style sheet of a page says it, and the name is its title
        head = f'<svg class="math-svg" role="img" aria-label="{name}" viewBox="{self.view_box}" style="{style}"'
        return f"{head}{said}{self.paths}</svg>"


@functools.cache
def draw(tex: str, *, inline: bool, symbols: bool = False) -> Drawing:
    """Render TeX, once per build and formula.

    Args:
        tex: the formula, without dollar signs.
        inline: in a line of text, or displayed.
        symbols: point to glyphs, which the page holds once; else draw the outlines in place.

    Raises:
        ValueError: the TeX is not valid, or has a command that cannot be drawn.
    """
    from ziafont.config import config  # here, as a build without a new formula needs none of it
    from ziamath.zmath import Math

    config.precision = 2
    config.svg2 = symbols
    try:
        root = _fix_mathml(_read(tex, inline=inline), display=not inline)
        formula = Math(root, size=EM_PX, margin=MARGIN_PX)
        svg = formula.svgxml()
    except ValueError:
        raise
    except Exception as error:  # latex2mathml and ziamath raise many types, some without a message
        raise ValueError(f"{type(error).__name__}: {error}".rstrip(": ")) from error
    for element in svg.iter():
        for attribute in ("fill", "stroke"):
            if element.get(attribute) == "black":  # inherit the colour, which the outer SVG sets
                element.set(attribute, "currentColor")
    box = formula.node.bbox
    texts = {child: ET.tostring(child, encoding="unicode").replace(' fill="currentColor"', "") for child in svg}
    texts = {child: text.replace("STIXTwoMathRegular_", "g") for child, text in texts.items()}
    return Drawing(
        paths="".join(text for child, text in texts.items() if child.tag != "symbol"),
        view_box=svg.get("viewBox", ""),
        width_em=(box.xmax - box.xmin + 2 * MARGIN_PX) / EM_PX,
        height_em=(box.ymax - box.ymin + 2 * MARGIN_PX) / EM_PX,
        depth_em=(-box.ymin + MARGIN_PX) / EM_PX,
        glyphs={text.split('"', 2)[1]: text for child, text in texts.items() if child.tag == "symbol"},
    )


def _read(tex: str, *, inline: bool) -> ET.Element:
    """The MathML of TeX as Sphinx hands it over."""
    from ziamath.tex import tex2mml

    plain = re.sub(r"\\label\{[^}]*\}", "", tex).strip()
    plain = re.sub(r"\\(begin|end)\{(align|equation|gather)\}", r"\\\1{\2*}", plain)  # Sphinx numbers, not ziamath
    if r"\\" in plain and r"\begin" not in plain:
        plain = rf"\begin{{aligned}}{plain}\end{{aligned}}"
    return ET.fromstring(tex2mml(plain, inline=inline))


def mathml(tex: str, *, inline: bool) -> ET.Element:
    """A formula as an element for a page that is XML; its tags have no prefix.

    Args:
        tex: the formula, which `draw` has drawn without an error.
        inline: in a line of text, or displayed.
    """
    root = _fix_mathml(_read(tex, inline=inline), display=not inline)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib.pop("columnspacing", None)  # as latex2mathml writes it, it is not valid
    root.attrib |= {"xmlns": MATHML, "alttext": tex, "display": "inline" if inline else "block"}
    return root


def _fix_mathml(root: ET.Element, *, display: bool) -> ET.Element:
    """Correct what latex2mathml writes and ziamath 0.13 misreads; complain about what neither knows."""
    for element in root.iter():
        tag = element.tag.rpartition("}")[2]
        if tag == "mo" and len(element):  # \mathbin{/}: the glyph is one level too deep
            element.text = "".join(element.itertext())
            element[:] = []
        text = (element.text or "").strip()
        if tag == "mtext":
            element.text = text = _TEXT_ESCAPE.sub(r"\1", element.text or "")
        if "\\" in text and tag in {"mi", "mo", "mn", "mtext"}:
            raise ValueError(f"unknown command {text}")
        if tag == "mtable" and "rowspacing" in element.attrib:
            element.set("rowspacing", "0.6em")  # aligned rows are too close at 3pt
        if tag == "mo" and text in _LARGE:
            element.set("stretchy", "false")  # else a parenthesis around it grows to 80 em
        elif tag == "mo" and len(text) > 1 and text.replace("_", "").isalpha():  # \operatorname, \bmod: upright
            element.set("mathvariant", "normal")
            if text == "mod":
                element.attrib.update(lspace="0.22em", rspace="0.22em")
        elif tag == "mi" and text in "⟹⟸⟺⟶⟵":  # \implies and the like are relations
            element.tag = element.tag.replace("mi", "mo")
            element.attrib.update(form="infix", lspace="0.28em", rspace="0.28em")
        elif display and tag in _ABOVE_BELOW and (element[0].text or "").strip() in _LIMITS:
            element.tag = element.tag.replace(tag, _ABOVE_BELOW[tag])  # limits stay limits inside \left( \right)
    return root


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Inline: the drawing sits on the baseline of the text."""
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(_formula(self, node, node.astext(), inline=True) + "</span>")
    raise nodes.SkipNode


def visit_displaymath(self: HTML5Translator, node: nodes.math_block) -> None:
    """Display: its own block, which scrolls where the screen is too narrow; the equation number stays."""
    self.body.append(self.starttag(node, "div", CLASS="math display notranslate nohighlight"))
    parts = [part for part in node.astext().split("\n\n") if part.strip()]
    pictures = [_formula(self, node, part, inline=False) for part in parts]
    wide = any(float(width) > WIDE_EM for width in re.findall(r"width:([\d.]+)em", "".join(pictures)))
    self.body.append('<div class="math-scroll"' + (' tabindex="0"' if wide else "") + ">")
    self.body.extend(f'<div class="math-line">{picture}</div>' for picture in pictures)
    self.body.append("</div>")
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, _("Link to this equation"))
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def _formula(self: HTML5Translator, node: nodes.Element, tex: str, *, inline: bool) -> str:
    tex = tex.strip()
    try:
        drawing = draw(tex, inline=inline, symbols=self.builder.name == SHARING)
    except ValueError as error:
        logger.warning("mathematics cannot be drawn (%s): %s", error, tex, location=node, type="math", subtype="tex")
        return f'<code class="math-error">{html.escape(tex)}</code>'
    glyphs_of(self.builder).update(drawing.glyphs)
    return drawing.svg(tex, inline=inline)


def glyphs_of(builder: Any) -> dict[str, str]:
    """The glyphs of the formulas that have been written so far for the page that is being written."""
    pages: dict[str, dict[str, str]] = vars(builder).setdefault("ddp_glyphs", {})
    return pages.setdefault(builder.current_docname, {})


def stored(glyphs: dict[str, str]) -> str:
    """Glyphs to be pointed to, as an element that shows nothing."""
    hidden = 'aria-hidden="true" focusable="false" style="position:absolute;width:0;height:0;overflow:hidden"'
    return f"<svg {hidden}>{''.join(glyphs.values())}</svg>" if glyphs else ""


def add_glyphs(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Put the glyphs of all formulas of a page at its start."""
    if glyphs := getattr(app.builder, "ddp_glyphs", {}).pop(pagename, {}):
        context["body"] = stored(glyphs) + context["body"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer; ``html_math_renderer = "ziamath"`` in conf.py selects it."""
    app.add_html_math_renderer("ziamath", (visit_math, None), (visit_displaymath, None))
    app.add_css_file("math.css")
    app.connect("html-page-context", add_glyphs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
