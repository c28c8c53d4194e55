"""Where a page of the handbook opens from here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

_ENTRIES = Path(__file__).resolve().parents[1] / "diagnose" / "entries"
_BUILT = Path(__file__).resolve().parents[3] / "_build" / "html"  # by `make html`, where the kit is part of the book


def address(page: str, site: str | None = None, built: Path = _BUILT) -> str:
    """An address that opens: of the published book, of the one that was built here, or of the entry's file in the kit.

    Args:
        page: relative to the book, such as ``"repair/errors/gloo-timeout.html"``.
        site: where the book is published, ``""`` if nowhere; None: as the installed kit says.
        built: the folder of the built pages.

    Returns:
        An ``https:`` or ``file:`` address; ``""`` where there is none.
    """
    site = _published() if site is None else site
    if site:
        return f"{site.rstrip('/')}/{page}"
    entry = _ENTRIES / f"{Path(page).stem}.toml"
    return next((file.as_uri() for file in (built / page, entry) if file.is_file()), "")


def _published() -> str:
    """``Homepage`` of pyproject.toml; its placeholder, a name that is nobody's, is no address."""
    try:
        urls = metadata("ddplab").get_all("Project-URL", [])
    except PackageNotFoundError:  # a copy of the book that is not installed
        return ""
    home = next((url for name, _, url in (one.partition(", ") for one in urls) if name == "Homepage"), "")
    return "" if home.startswith("https://example.org/") else home
