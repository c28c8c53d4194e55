"""A page of one element, served under a strict policy to a real browser: nothing but its own files may be asked for."""

import mimetypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, Route

from tools import ROOT

STATIC = ROOT / "handbook" / "_static"
_HOST = "http://page.test/"
_CSP = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'"
# furo gives the page its colours
_LOOKS = """body { margin: 0; background: var(--color-background-primary); color: var(--color-foreground-primary); }
main { max-width: 46rem; margin: 0 auto; padding: 1rem; }"""


@contextmanager
def strict_pages(browser: Browser, html: str) -> Iterator[Callable[..., Page]]:
    """Open ``html`` as often as asked, with options of a context; no error, no violation, no request elsewhere.

    Style sheets and scripts come from handbook/_static; ``looks.css`` is the ground under them.
    """
    wrong: list[str] = []

    def serve(route: Route) -> None:
        name = route.request.url.removeprefix(_HOST)
        own = {"page.html": html, "looks.css": _LOOKS}
        kind = mimetypes.guess_type(name)[0] or "font/woff2"
        if name in own:
            headers = {"content-security-policy": _CSP}
            route.fulfill(body=own[name], content_type=f"{kind}; charset=utf-8", headers=headers)
        elif (STATIC / name).is_file():
            route.fulfill(body=(STATIC / name).read_bytes(), content_type=kind)
        else:
            wrong.append(route.request.url)
            route.abort()

    def open_page(**options: Any) -> Page:
        page = browser.new_context(**options).new_page()
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.route("**/*", serve)
        page.goto(f"{_HOST}page.html")
        return page

    try:
        yield open_page
    finally:
        for context in browser.contexts:
            context.close()
    assert not wrong
