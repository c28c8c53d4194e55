"""A page of one element, served under a strict policy to a real browser: nothing but its own files may be asked for."""

import mimetypes
from collections.abc import Collection
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route

from tools import ROOT

STATIC = ROOT / "handbook" / "_static"
KINDS = ("step-explorer", "ring-stepper", "interval-calculator")
_HOST = "http://page.test/"
_CSP = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'"
# furo gives the page its colours
LOOKS = """body { margin: 0; background: var(--color-background-primary); color: var(--color-foreground-primary); }
main { max-width: 46rem; margin: 0 auto; padding: 1rem; }"""


def violations(page: Page, but: Collection[str] = ()) -> list[str]:
    """What axe finds wrong with the page, ``but`` for these rules.

    Axe describes what it found right, too, unless told not to; that took two thirds of its time.
    """
    options = {"resultTypes": ["violations"], "preload": False}  # nor does it fetch style sheets again
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:160]} | {node.get('failureSummary', '')[:300]}"
        for rule in found
        if rule["id"] not in but
        for node in rule["nodes"]
    ]


def wait_for(page: Page, expression: str) -> None:
    """As ``page.wait_for_function``, which needs an eval that the policy of the page forbids."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {expression}")


class StrictPage:
    """``html`` with style sheets and scripts of handbook/_static, ``looks.css`` being the ground under them.

    It is loaded once; a test gets its elements anew. Only a stopped clock needs a page of its own.
    """

    def __init__(self, browser: Browser, html: str) -> None:
        self._browser, self._html = browser, html
        self._wrong: list[str] = []
        self._pages: list[Page] = []
        self._shared: Page | None = None

    def anew(self, width: int = 1280, scheme: Literal["light", "dark"] = "light") -> Page:
        """The one page, its elements as they are in the file."""
        page = self._shared = self._shared or self._open()
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(media="screen", color_scheme=scheme, reduced_motion="no-preference")
        main = self._html[self._html.index("<main>") : self._html.index("</main>")].removeprefix("<main>")
        page.evaluate("main => { document.querySelector('main').innerHTML = main; }", main)
        return page

    def stopped(self) -> Page:
        """A page of its own whose time goes on when the test says so, however slow the machine is."""
        page = self._open()
        page.clock.install(time=0)
        page.clock.pause_at(1000)
        return page

    def check(self) -> None:
        """No error, no violation of the policy, no request elsewhere since the last check."""
        wrong, self._wrong = self._wrong, []
        assert not wrong

    def close(self) -> None:
        """Close what is open."""
        for page in self._pages:
            page.close()

    def _open(self) -> Page:
        page = self._browser.new_page()
        self._pages.append(page)
        page.on("console", lambda one: self._wrong.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self._wrong.append(str(error)))
        page.route("**/*", self._serve)
        page.goto(f"{_HOST}page.html")
        return page

    def _serve(self, route: Route) -> None:
        name = route.request.url.removeprefix(_HOST)
        own = {"page.html": self._html, "looks.css": LOOKS}
        kind = mimetypes.guess_type(name)[0] or "font/woff2"
        if name in own:
            headers = {"content-security-policy": _CSP}
            route.fulfill(body=own[name], content_type=f"{kind}; charset=utf-8", headers=headers)
        elif (STATIC / name).is_file():
            route.fulfill(body=(STATIC / name).read_bytes(), content_type=kind)
        else:
            self._wrong.append(route.request.url)
            route.abort()
