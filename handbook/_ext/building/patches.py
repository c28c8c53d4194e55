"""Every place where the book changes what a library does, or relies on how it works inside.

Each is checked first: with a version in which the assumption is wrong, the build ends with a message that says which
version to install. What only changes a library's output (`accessible`) needs no check: it does nothing where there is
nothing to change.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pydyf
from pygments.formatters import HtmlFormatter
from pygments.token import Name, Punctuation, Text, Whitespace
from sphinx.application import Sphinx
from sphinx.errors import SphinxParallelError
from sphinx.highlighting import PygmentsBridge
from sphinx.util.parallel import ParallelTasks
from tinyhtml5 import inputstream

from ..problems import expect

_LIKE_TEXT = {Name, Punctuation, Whitespace}  # in both styles of conf.py; Name.Function and the like do not


class LeanFormatter(HtmlFormatter):  # type: ignore[misc]  # Pygments has no types
    """Pygments' own, without an element for each name and parenthesis: they look like text, and are half of a page."""

    def format(self, tokensource: Iterator[tuple[Any, str]], outfile: Any) -> None:
        """Write the tokens as HTML, neighbours of one kind as one."""
        super().format(((Text if kind in _LIKE_TEXT else kind, text) for kind, text in tokensource), outfile)


def highlight_leanly() -> None:
    """Make all highlighting of this process use `LeanFormatter`; Sphinx has no setting for it."""
    current = getattr(PygmentsBridge, "html_formatter", None)
    known = current in (HtmlFormatter[str], HtmlFormatter, LeanFormatter)
    expect(known, "Sphinx", "PygmentsBridge.html_formatter is not the formatter of Pygments")
    PygmentsBridge.html_formatter = LeanFormatter


def draw_no_social_cards() -> None:
    """Keep sphinxext.opengraph from importing matplotlib for pictures that conf.py switches off; it takes a second."""
    name = "sphinxext.opengraph._social_cards"
    if name not in sys.modules:
        instead: Any = ModuleType(name)
        instead.DEFAULT_SOCIAL_CONFIG, instead.create_social_card = {}, None
        sys.modules[name] = instead


def end_on_failed_pages() -> None:
    """Let the error of a process that reads or writes pages end the build.

    `ParallelTasks.add_task` (Sphinx 9.0) drops an error that a process reported while another one was started: the
    build went on to "succeeded", with pages of the last build. It calls `terminate` there, which raises it again.
    """
    terminate: Any = ParallelTasks.terminate
    if getattr(terminate, "__wrapped__", None):
        return
    drops = "self.terminate()" in inspect.getsource(ParallelTasks.add_task)
    expect(drops, "Sphinx", "ParallelTasks.add_task does not end the other processes by terminate()")

    @functools.wraps(terminate)
    def raising(tasks: ParallelTasks) -> None:
        terminate(tasks)
        if isinstance(error := sys.exc_info()[1], SphinxParallelError):
            raise error

    changed: Any = ParallelTasks
    changed.terminate = raising


class _Expressions(dict[tuple[Collection[str], bool], re.Pattern[str]]):
    """Those that match as many of some characters, or of all others, as there are."""

    def __missing__(self, asked: tuple[Collection[str], bool]) -> re.Pattern[str]:
        """Make one, and keep it."""
        characters, these = asked
        self[asked] = re.compile(f"[{'' if these else '^'}{re.escape(''.join(sorted(characters)))}]+")
        return self[asked]


def expressions_are_kept() -> None:
    """Let tinyhtml5 find the expressions that it keeps; it makes each of them again for every name that it reads.

    `HTMLUnicodeInputStream.chars_until` (2.1) keeps an expression under itself, not under what it is made for: that
    takes half of the time in which a page is read.
    """
    kept = getattr(inputstream, "characters_until_regex", None)
    expect(isinstance(kept, dict), "tinyhtml5", "inputstream.characters_until_regex is not a dictionary")
    if not isinstance(kept, _Expressions):
        inputstream.characters_until_regex = _Expressions()


@contextmanager
def page_references_listed_once() -> Iterator[None]:
    """pydyf lists the references of all pages anew for each box that is tagged, a sixth of the time of a book."""
    listed: Any = inspect.getattr_static(pydyf.PDF, "page_references", None)
    expect(isinstance(listed, property), "pydyf", "PDF.page_references is not a property")

    @functools.lru_cache(maxsize=1)
    def listed_once(pdf: Any, _length: int) -> Any:
        return listed.fget(pdf)

    pydyf.PDF.page_references = property(lambda pdf: listed_once(pdf, len(pdf.pages["Kids"])))
    try:
        yield
    finally:
        pydyf.PDF.page_references = listed


def lines_break_at_their_end() -> None:
    """Break a text that ends with a space at its last words, not in its first one.

    Where the text fits without that space, and with it not, WeasyPrint 70 takes the text for one long word and breaks
    it as early as it can: "Mo-" stood alone on a line. It is asked again, for the text without the space.
    """
    from weasyprint.layout import inline

    split: Any = inline.split_first_line
    if getattr(split, "__wrapped__", None):
        return
    known = list(inspect.signature(split).parameters)[:5]
    expect(
        known == ["text", "style", "context", "max_width", "justification_spacing"],
        "weasyprint",
        "split_first_line takes other arguments",
    )

    @functools.wraps(split)
    def at_the_end(text: str, style: Any, context: Any, max_width: Any, spacing: Any, *rest: Any, **named: Any) -> Any:
        line = split(text, style, context, max_width, spacing, *rest, **named)
        kept = text.rstrip()
        if line[2] is None or len(kept) == len(text) or line[1] > len(kept.partition(" ")[0].encode()):
            return line
        whole = split(kept, style, context, max_width, spacing, *rest, **named)
        if whole[2] is not None or " " not in kept:
            return line
        return split(kept, style, context, whole[3] - 1, spacing, *rest, **named)

    inline.split_first_line = at_the_end


def _rewrite(function: Any, *changes: tuple[str, str]) -> Any:
    """Change some lines of a function of WeasyPrint, each of which must stand in it just once."""
    source, module = inspect.getsource(function), inspect.getmodule(function)
    for old, new in changes:
        expect(source.count(old) == 1, "weasyprint", f"{function.__name__} has no line {old.strip()!r}")
        source = source.replace(old, new)
    exec(compile(source, str(inspect.getsourcefile(function)), "exec"), vars(module))
    return getattr(module, function.__name__)


def columns_are_balanced_in_few_steps() -> None:
    """Find the height of two columns of equal length by halving, and only once.

    WeasyPrint 70 lays a box of columns out anew for each pixel that they lack: up to 314 times; and where the box has
    a margin below, all of this twice, though the margin matters at the end of a page only. That was half of the time
    in which a book is laid out. The height that is found is the same, to a pixel.
    """
    from weasyprint.layout import block, column

    if getattr(block, "few_steps", False):
        return
    step = """
                # Increase the column heights and render them again
                add_height = 1 if lost_space == inf else lost_space
                height += add_height

                if height > max_height:
                    # We reached max height, stop rendering
                    height = max_height
                    stop_rendering = True
                    break
"""
    halving = """
                if column_skip_stack is None:
                    enough = height
                else:
                    too_low = height
                if enough - too_low <= 1:
                    height = enough
                    break
                height = min((too_low + enough) / 2, too_low + stride)
                stride *= 2
"""
    whole = """
                if column_skip_stack is None:
                    # We rendered the whole content, stop
                    break
"""
    average = "                        height = sum(consumed_heights) / count\n"
    start = "                        too_low, enough, stride = height, max_height, 8\n"
    again = "            if columns_bottom_space:\n"
    overflows = "context.overflows_page(bottom_space, new_box.position_y + new_box.margin_height())"
    block.columns_layout = _rewrite(column.columns_layout, (whole + step, halving), (average, average + start))
    _rewrite(block.block_box_layout, (again, again.replace("space:", f"space and {overflows}:")))
    block.few_steps = True


@contextmanager
def lines_broken_once() -> Iterator[None]:
    """Keep where each text breaks while a document is laid out: columns and tables are laid out more than once."""
    from weasyprint.layout import inline

    split: Any = inline.split_first_line
    known: dict[Any, Any] = {}

    @functools.wraps(split)
    def once(text: str, style: Any, context: Any, *rest: Any, **named: Any) -> Any:
        key = text, id(style), rest, *named.items()
        if key not in known:
            known[key] = style, split(text, style, context, *rest, **named)  # with its style, an id stays its own
        layout, *line = known[key][1]
        return copy.copy(layout), *line

    inline.split_first_line = once
    try:
        yield
    finally:
        inline.split_first_line = split


def correct_page_references(document: Any, numbers: Mapping[str, int]) -> None:
    """Let each "(p. N)" behind a link name the page on which its heading came to stand, in place of a guess."""
    for page in document.pages:
        for kind, target, _, box in (link for link in page.links if len(link) == 4):
            if kind != "internal" or target not in numbers:
                continue
            for text in (part for part in [box, *getattr(box, "descendants", list)()] if hasattr(part, "pango_layout")):
                right = re.sub(r"(?<=p\.\N{NO-BREAK SPACE})\d+", str(numbers[target]), text.text)
                if right != text.text:
                    text.text = text.pango_layout.text = right


def drop_links_out_of(pages: list[Any]) -> None:
    """Make links that leave these pages of WeasyPrint documents plain text, for the eye and for the tags."""
    inside = {"contents"}.union(*(page.anchors for page in pages))
    for page in pages:
        kept = []
        for link in page.links:
            known = len(link) == 4 and hasattr(link[3], "link_annotation") and hasattr(link[3], "element_tag")
            expect(known, "weasyprint", "a link of a page is not (kind, target, area, box)")
            kind, target, _, box = link
            if kind != "internal" or target in inside:
                kept.append(link)
            else:
                box.link_annotation = None
                box.element_tag = "span" if box.element_tag.partition(":")[0] == "a" else box.element_tag
        page.links = kept


def setup(app: Sphinx) -> dict[str, Any]:
    """Change what every builder uses; the rest is called where it is needed."""
    draw_no_social_cards()
    highlight_leanly()
    end_on_failed_pages()
    expressions_are_kept()
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
