"""WeasyPrint for all builders that make PDF: one check that it can be used, one way in which its problems are told."""

from __future__ import annotations

import importlib
import logging as plain_logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from sphinx.errors import ExtensionError
from sphinx.util import logging

logger = logging.getLogger(__name__)


def load_weasyprint() -> ModuleType:
    """WeasyPrint, which needs a system library that pip does not bring.

    Raises:
        ExtensionError: it cannot be used; the message says what to install.
    """
    try:
        weasyprint = importlib.import_module("weasyprint")
    except ImportError as error:
        raise ExtensionError(f"PDF needs WeasyPrint ({error}); run: pip install weasyprint") from None
    except OSError as error:
        raise ExtensionError(
            f"PDF needs the Pango library, which is not installed ({str(error).splitlines()[0]}). "
            "Debian, Ubuntu: apt install libpango-1.0-0 libpangoft2-1.0-0 · macOS: brew install pango"
        ) from None
    return weasyprint


@contextmanager
def problems_as_warnings(pdf: str) -> Iterator[None]:
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
