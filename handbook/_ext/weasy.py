"""WeasyPrint for all builders that make PDF: the check that it can be used, and the setting of a PDF."""

from __future__ import annotations

import importlib
import logging as plain_logging
from collections.abc import Iterator
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


def set_pdf(content: str, sheets: dict[Path, str], target: Path) -> Any:
    """Set HTML as a tagged PDF, which is written whole or not at all.

    Args:
        content: the HTML.
        sheets: the style sheets, each with the file that its addresses are relative to.
        target: the PDF file.

    Returns:
        WeasyPrint's document: ``pages``, each with its ``anchors``.
    """
    weasyprint = load_weasyprint()
    from weasyprint.text.fonts import FontConfiguration

    logger.info("setting %s", target.name)
    plain_logging.getLogger("fontTools").setLevel(plain_logging.WARNING)
    fonts, temporary = FontConfiguration(), target.with_suffix(".pdf.tmp")
    try:
        with _problems_as_warnings(target.name):
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
def _problems_as_warnings(pdf: str) -> Iterator[None]:
    """What WeasyPrint cannot load or resolve becomes a warning of the build that names the PDF."""
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
