"""Where a page of the handbook opens from here."""

from __future__ import annotations

from functools import cache
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


@cache
def _published() -> str:
    """``Homepage`` of an installed wheel's metadata; its placeholder, a name that is nobody's, is no address.

    Read as text: ``importlib.metadata`` imports ``email``, which imports ``socket``.
    """
    for file in Path(__file__).resolve().parents[2].glob("ddplab-*.dist-info/METADATA"):
        for line in file.read_text(encoding="utf-8").splitlines():
            home = line.removeprefix("Project-URL: Homepage, ")
            if home != line and not home.startswith("https://example.org/"):
                return home
    return ""
