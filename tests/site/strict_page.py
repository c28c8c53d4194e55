"""A page of one element, served under a strict policy to a real browser: nothing but its own files may be asked for."""

import json
import mimetypes
import os
from collections.abc import Collection
from typing import Literal

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, ConsoleMessage, Page, Route

from tools import ROOT

STATIC = ROOT / "handbook" / "_static"
KINDS = ("step-explorer", "ring-stepper", "interval-calculator")
_HOST = "http://page.test/"
_CSP = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'"
# furo gives the page its colours
LOOKS = """body { margin: 0; background: var(--color-background-primary); color: var(--color-foreground-primary); }
main { max-width: 46rem; margin: 0 auto; padding: 1rem; }"""
COLORS = ("color-contrast", "link-in-text-block")  # axe's rules that look at colours, and take most of its time
# Mark what looks as the text before it: two of a kind stand for all. A kind is whatever makes a colour be seen well
# or not: tag, classes, font, and the colours of the text, of the text around it and of all that it lies on; and whether
# it is a single letter, of which axe says nothing.
MARK_ALIKE = """() => {
    document.querySelectorAll("[data-alike]").forEach((one) => one.removeAttribute("data-alike"));
    const grounds = new Map(), seen = new Map();
    const look = (one, ...names) => {
        const style = getComputedStyle(one);
        return names.map((name) => style[name]).join();
    };
    const ground = (one) => {
        if (!one) return "";
        if (!grounds.has(one)) {
            const own = look(one, "backgroundColor", "backgroundImage", "opacity", "filter", "position", "transform");
            const plain = own === "rgba(0, 0, 0, 0),none,1,none,static,none";
            grounds.set(one, ground(one.parentElement) + (plain ? "" : own + ";"));
        }
        return grounds.get(one);
    };
    const isNew = (one) => {
        const texts = [...one.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
        const said = one.matches("input, select, textarea") ? "…" : texts.map((node) => node.data.trim()).join("");
        let found = false;
        if (said && one.checkVisibility({visibilityProperty: true, opacityProperty: true})) {
            const font = look(one, "color", "fontSize", "fontWeight", "textShadow", "textDecorationLine", "display");
            const around = look(one.parentElement, "color") + ground(one);
            const kind = [one.tagName, one.getAttribute("class"), said.length === 1, font, around].join();
            seen.set(kind, (seen.get(kind) ?? 0) + 1);
            found = seen.get(kind) <= 2;
        }
        const inside = [...one.children].map((child) => [child, isNew(child)]);
        found ||= inside.some(([, is]) => is);
        if (found) for (const [child, is] of inside) child.toggleAttribute("data-alike", !is);
        return found;
    };
    isNew(document.body);
}"""


def rest(page: Page) -> None:
    """Bring what moves to its end, but for what moves for ever or as the reader scrolls.

    Not awaited: a page that nothing else changes may be drawn no more, and its movements then never end.
    """
    page.evaluate("""() => document.getAnimations().filter((one) =>
        one.timeline === document.timeline && isFinite(one.effect.getComputedTiming().endTime)
    ).forEach((one) => one.finish())""")


def violations(page: Page, but: Collection[str] = (), colors_only: bool = False) -> list[str]:
    """What axe finds wrong with the page, ``but`` for these rules; of texts that look alike, two stand for all by day.

    Axe describes what it found right, too, unless told not to; that took two thirds of its time.
    """
    rest(page)
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE_SCRIPT)
    if "EVERY_TEXT" not in os.environ:  # `make test-all` sets it
        page.evaluate(MARK_ALIKE)
    passes = [("{exclude: [['[data-alike]']]}", {"runOnly": COLORS})]
    if not colors_only:
        passes.append(("document", {"rules": {rule: {"enabled": False} for rule in (*COLORS, *but)}}))
    found = []
    for where, options in passes:
        options |= {"resultTypes": ["violations"], "preload": False}  # nor does it fetch style sheets again
        found += page.evaluate(f"axe.run({where}, {json.dumps(options)}).then((said) => said.violations)")
    return [
        f"{rule['id']}: {node['html'][:160]} | {node.get('failureSummary', '')[:300]}"
        for rule in found
        for node in rule["nodes"]
    ]


def watched(page: Page, site: str, wrong: list[str]) -> Page:
    """The page; what it asks of another host, and what goes wrong in it, is added to a list."""

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.location["url"].endswith("/favicon.ico"):  # Chromium's own request
            wrong.append(message.text)

    page.on("request", lambda r: r.url.startswith((site, "data:")) or wrong.append(f"elsewhere: {r.url}"))
    page.on("console", note)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda r: "ABORTED" in r.failure or wrong.append(f"failed: {r.url}"))  # by leaving a page
    page.on("response", lambda r: r.status < 400 or wrong.append(f"{r.status}: {r.url}"))
    return page


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
