"""WeasyPrint for all builders that make PDF: the check that it can be used, and the setting of a PDF."""

from __future__ import annotations

import functools
import gc
import importlib
import logging as plain_logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.util import logging
from sphinx.util.parallel import ParallelTasks, SerialTasks, parallel_available

from ..building.patches import (
    columns_are_balanced_in_few_steps,
    expressions_are_kept,
    lines_break_at_their_end,
    lines_broken_once,
    page_references_listed_once,
)
from ..problems import BuildError

logger = logging.getLogger(__name__)

_laid_out: list[Any] = []  # to the end of this process: to take millions of boxes apart takes long


def load_weasyprint() -> ModuleType:
    """WeasyPrint, which needs a system library that pip does not bring.

    Raises:
        BuildError: it cannot be used; the message says what to install.
    """
    try:
        weasyprint = importlib.import_module("weasyprint")
    except ImportError as error:
        raise BuildError(f"PDF needs WeasyPrint ({error}); run: pip install weasyprint") from None
    except OSError as error:
        raise BuildError(
            f"PDF needs the Pango library, which is not installed ({str(error).splitlines()[0]}). "
            "Debian, Ubuntu: apt install libpango-1.0-0 libpangoft2-1.0-0 · macOS: brew install pango"
        ) from None
    lines_break_at_their_end()
    columns_are_balanced_in_few_steps()
    expressions_are_kept()
    return weasyprint


Sheets = tuple[tuple[Path, str], ...]  # style sheets, each with the file that its addresses are relative to


def set_pdf(content: str, sheets: Sheets, target: Path) -> Any:
    """Lay HTML out and write it as a tagged PDF; returns WeasyPrint's document."""
    document = lay_out(content, sheets, target.name)
    write(document, target)
    return document


def lay_out(content: str, sheets: Sheets, name: str) -> Any:
    """Lay HTML out.

    Args:
        content: the HTML.
        sheets: the style sheets.
        name: the PDF that it is for.

    Returns:
        WeasyPrint's document: ``pages``, each with its ``anchors``.
    """
    weasyprint = load_weasyprint()
    logger.info("setting %s", name)
    with _problems_of(name), lines_broken_once():
        css, fonts = _styles(sheets)
        page = weasyprint.HTML(string=content, base_url=sheets[0][0].as_uri())
        document = page.render(stylesheets=css, font_config=fonts, pdf_variant="pdf/ua-1")
    if multiprocessing.parent_process() is not None:
        _laid_out.append(document)
    return document


def write(document: Any, target: Path, finisher: Callable[[Any, Any], None] | None = None) -> None:
    """Write a document as a tagged PDF, whole or not at all; ``finisher`` may change the PDF before."""
    temporary = target.with_suffix(".pdf.tmp")
    try:
        with _problems_of(target.name), page_references_listed_once():
            document.write_pdf(str(temporary), pdf_variant="pdf/ua-1", finisher=finisher)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def page_numbers(document: Any) -> dict[str, int]:
    """The page of each id of a document, from 1."""
    return {name: number for number, page in reversed(list(enumerate(document.pages, 1))) for name in page.anchors}


Run = tuple[int, str, int]  # so many pages with numbers of this style, "r" Roman or "D" Arabic, from this one on


def label_pages(_document: Any, pdf: Any, *, runs: Iterable[Run]) -> None:
    """Tell a reader's program the numbers that stand on the pages."""
    pydyf = importlib.import_module("pydyf")
    labels: list[Any] = []
    place = 0
    for pages, style, first in runs:
        labels += [place, pydyf.Dictionary({"S": f"/{style}", "St": first})] if pages else []
        place += pages
    pdf.catalog["PageLabels"] = pydyf.Dictionary({"Nums": pydyf.Array(labels)})


def prepare_styles(sheets: Sheets) -> None:
    """Read styles and fonts once, for all the processes that are then started from this one."""
    with _problems_of("the style sheets"):
        _styles(sheets)


@functools.cache
def _styles(sheets: Sheets) -> tuple[list[Any], Any]:
    """The style sheets and their fonts, read once per process: unpacking nine fonts takes a second."""
    from weasyprint.text.fonts import FontConfiguration

    plain_logging.getLogger("fontTools").setLevel(plain_logging.WARNING)
    fonts = FontConfiguration()
    css = load_weasyprint().CSS
    return [css(string=sheet, base_url=path.as_uri(), font_config=fonts) for path, sheet in sheets], fonts


def side_by_side(jobs: Iterable[Callable[[], None]]) -> None:
    """Do each job in a process of its own, as many at once as there are cores; their warnings are the build's."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    tasks = ParallelTasks(cores) if parallel_available else SerialTasks()
    for job in jobs:
        tasks.add_task(_without_garbage_collection, job)
    tasks.join()


def _without_garbage_collection(job: Callable[[], None]) -> None:
    """A third of the time goes into looking for cycles among millions of boxes that all stay alive to the end."""
    gc.disable()
    try:
        job()
    finally:
        gc.enable()


@contextmanager
def _problems_of(pdf: str) -> Iterator[None]:
    """Make warnings of the build of what WeasyPrint cannot load or resolve, with the name of the PDF."""
    handler = _Problems(pdf)
    weasy_logger = plain_logging.getLogger("weasyprint")
    weasy_logger.addHandler(handler)
    propagated, weasy_logger.propagate = weasy_logger.propagate, False
    try:
        yield
    finally:
        weasy_logger.removeHandler(handler)
        weasy_logger.propagate = propagated


class _Problems(plain_logging.Handler):
    """Passes WeasyPrint's errors on; its warnings are about properties of style sheets that only browsers know."""

    def __init__(self, pdf: str) -> None:
        super().__init__(plain_logging.ERROR)
        self.pdf = pdf

    def emit(self, record: plain_logging.LogRecord) -> None:
        logger.warning("%s: %s", self.pdf, record.getMessage())
