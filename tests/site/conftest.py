"""The built pages on a server; one page with all explorers, under a strict policy, for the tests of each."""

import functools
import http.server
import json
import threading

import pytest
from bs4 import BeautifulSoup
from strict_page import KINDS, StrictPage, watched

from _ext.explorers.explorer_examples import page_data

JOB = 'save-s="30" nodes="128" node-mtbf-days="1460" restart-s="300" interval-min="1440"'


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def end_headers(self):
        """Have every test read what it looks at: a file that the browser kept from another test, nobody sees read."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()


@pytest.fixture(scope="session")
def site(html):
    """Address of a server of the built pages."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(html)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def tab(browser, site):
    """One tab for all pages that are only looked at, each as by a reader who comes first; and what went wrong in it.

    A tab of its own for each page would take half as long as looking at it.
    """
    page, wrong = browser.new_page(), []
    page.add_init_script("try { localStorage.clear(); } catch {}")
    yield watched(page, site, wrong), wrong
    page.close()


@pytest.fixture
def opened(browser, html):
    """Open a page from its file, as one reader; nothing may go wrong in it."""
    pages, errors = [], []

    def open_(name, **options):
        page = browser.new_page(**options)
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("requestfailed", lambda one: "ABORTED" in one.failure or errors.append(one.url))  # by leaving a page
        page.goto((html / name).as_uri())
        return page

    yield open_
    for page in pages:
        page.close()
    assert not errors


@pytest.fixture(scope="session")
def read(html):
    """A page of the book, parsed."""
    return lambda name: BeautifulSoup((html / name).read_text(encoding="utf-8"), "html.parser")


def explorers_page() -> str:
    """The elements and nothing else, with the book's style sheets."""
    data = json.dumps(page_data()).replace("<", "\\u003c")
    styles = "".join(f'<link rel="stylesheet" href="{name}.css">' for name in ("book", "explorers", "looks"))
    scripts = "".join(f'<script defer src="{kind}.js"></script>' for kind in KINDS)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Explorers</title>
        <meta name="viewport" content="width=device-width, initial-scale=1">{styles}
        <main><article><h1>Explorers</h1>
        <ddp-step-explorer example="ethernet"><script type="application/json">{data}</script>
        <div class="explorer-instead">Static step.</div></ddp-step-explorer>
        <ddp-ring-stepper ranks="4"><div class="explorer-instead">Static ring.</div></ddp-ring-stepper>
        <ddp-interval-calculator {JOB}><div class="explorer-instead">Static curve.</div></ddp-interval-calculator>
        </article></main>{scripts}</html>"""


@pytest.fixture(scope="session")
def explorers(browser):
    """The page, loaded once."""
    page = StrictPage(browser, explorers_page())
    yield page
    page.close()


@pytest.fixture
def page(explorers):
    """The one page, as it is when it opens; afterwards nothing may have gone wrong in it."""
    yield explorers.anew()
    explorers.check()


@pytest.fixture
def stopped_page(explorers):
    """A page of its own, whose clock stands still."""
    yield explorers.stopped()
    explorers.check()
