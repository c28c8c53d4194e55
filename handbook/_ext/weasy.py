"""WeasyPrint for all builders that make PDF: the check that it can be used, and the setting of a PDF."""

from __future__ import annotations

import functools
import gc
import importlib
import logging as plain_logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.util import logging

from problems import Stop

logger = logging.getLogger(__name__)


def load_weasyprint() -> ModuleType:
    """WeasyPrint, which needs a system library that pip does not bring.

    Raises:
        Stop: it cannot be used; the message says what to install.
    """
    try:
        weasyprint = importlib.import_module("weasyprint")
    except ImportError as error:
        raise Stop(f"PDF needs WeasyPrint ({error}); run: pip install weasyprint") from None
    except OSError as error:
        raise Stop(
            f"PDF needs the Pango library, which is not installed ({str(error).splitlines()[0]}). "
            "Debian, Ubuntu: apt install libpango-1.0-0 libpangoft2-1.0-0 · macOS: brew install pango"
        ) from None
    return weasyprint


def set_pdf(content: str, sheets: dict[Path, str], target: Path, report: Callable[[str], None] = logger.warning) -> Any:
    """Set HTML as a tagged PDF, which is written whole or not at all.

    Args:
        content: the HTML.
        sheets: the style sheets, each with the file that its addresses are relative to.
        target: the PDF file.
        report: takes what WeasyPrint cannot load or resolve; by default a warning of the build.

    Returns:
        WeasyPrint's document: ``pages``, each with its ``anchors``.
    """
    weasyprint = load_weasyprint()
    from weasyprint.text.fonts import FontConfiguration

    logger.info("setting %s", target.name)
    plain_logging.getLogger("fontTools").setLevel(plain_logging.WARNING)
    fonts, temporary = FontConfiguration(), target.with_suffix(".pdf.tmp")
    try:
        with _problems_of(target.name, report), _no_garbage_collection(), _page_references_kept():
            css = [
                weasyprint.CSS(string=sheet, base_url=path.as_uri(), font_config=fonts)
                for path, sheet in sheets.items()
            ]
            page = weasyprint.HTML(string=content, base_url=next(iter(sheets)).as_uri())
            document = page.render(stylesheets=css, font_config=fonts, pdf_variant="pdf/ua-1")
            document.write_pdf(str(temporary), pdf_variant="pdf/ua-1")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return document


@contextmanager
def _problems_of(pdf: str, report: Callable[[str], None]) -> Iterator[None]:
    """Hand over what WeasyPrint cannot load or resolve, with the name of the PDF."""
    handler = _Problems(pdf, report)
    weasy_logger = plain_logging.getLogger("weasyprint")
    weasy_logger.addHandler(handler)
    propagated, weasy_logger.propagate = weasy_logger.propagate, False
    try:
        yield
    finally:
        weasy_logger.removeHandler(handler)
        weasy_logger.propagate = propagated


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A third of the time goes into looking for cycles among millions of boxes that all stay alive to the end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _page_references_kept() -> Iterator[None]:
    """pydyf lists the references of all pages anew for each box that is tagged, a sixth of the time of a book."""
    pdf_class = importlib.import_module("pydyf").PDF
    listed = pdf_class.page_references

    @functools.lru_cache(maxsize=1)
    def listed_once(pdf: Any, _length: int) -> Any:
        return listed.fget(pdf)

    pdf_class.page_references = property(lambda pdf: listed_once(pdf, len(pdf.pages["Kids"])))
    try:
        yield
    finally:
        pdf_class.page_references = listed


class _Problems(plain_logging.Handler):
    """Passes WeasyPrint's errors on; its warnings are about properties of style sheets that only browsers know."""

    def __init__(self, pdf: str, report: Callable[[str], None]) -> None:
        super().__init__(plain_logging.ERROR)
        self.pdf, self.report = pdf, report

    def emit(self, record: plain_logging.LogRecord) -> None:
        self.report(f"{self.pdf}: {record.getMessage()}")
