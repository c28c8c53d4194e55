"""The builder of the web pages: Sphinx's own, which leaves alone what no change asks for.

Sphinx copies all downloads, and writes index, search page and search index, in every build. Here a build that writes no
page writes none of them either; and a build that was stopped while it wrote pages is taken up by the next one, which
Sphinx's would take for done.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment

from ..news import nothing_read, to_write
from ..order import AllRead, Finished
from ..style.page_style import write_style


class WebBuilder(StandaloneHTMLBuilder):
    """Writes what has changed, with one style sheet for all pages."""

    writes: Set[str] = frozenset()  # the documents whose pages this build writes

    @property
    def writes_all(self) -> bool:
        """Whether what is on every page may have changed: pages that are no documents are written, too."""
        return self.writes >= self.env.found_docs

    @property
    def _unfinished(self) -> Path:
        """Names the documents whose pages are being written; there is none when a build came to its end."""
        return Path(self.outdir, ".unfinished")

    def get_outdated_docs(self) -> Iterator[str]:
        """Also those that a stopped build left."""
        yield from super().get_outdated_docs()
        if self._unfinished.is_file():
            yield from self._unfinished.read_text(encoding="utf-8").split("\n")

    def prepare_writing(self, docnames: Set[str]) -> None:
        """Note what is about to be written."""
        self.writes = frozenset(docnames)
        if docnames:
            self._unfinished.write_text("\n".join(sorted(docnames)), encoding="utf-8")
        super().prepare_writing(docnames)

    def load_indexer(self, docnames: Set[str]) -> None:
        """The words of the other pages, where those of a page are added; each word is reduced to its stem once."""
        if self.indexer:
            self.indexer.lang.stem = functools.cache(self.indexer.lang.stem)  # type: ignore[method-assign]
        if docnames:
            super().load_indexer(docnames)

    def copy_static_files(self) -> None:
        """Also the sheet that is made of all others, before a page is written that names it."""
        super().copy_static_files()
        write_style(self)

    def copy_download_files(self) -> None:
        """A page depends on the files that it offers: they have changed only if it is written."""
        if self.writes:
            super().copy_download_files()

    def finish(self) -> None:
        """What is made of all pages."""
        if self.writes:
            super().finish()

    def handle_page(
        self,
        pagename: str,
        addctx: dict[str, Any],
        templatename: str = "page.html",
        *,
        outfilename: Path | None = None,
        event_arg: Any = None,
    ) -> None:
        """Write a page; one that is no document, such as the index, stays if it is as it was."""
        page = Path(self.get_output_path(pagename))
        if event_arg is not None or outfilename or not page.is_file():
            super().handle_page(pagename, addctx, templatename, outfilename=outfilename, event_arg=event_arg)
            return
        fresh = page.with_suffix(".fresh")
        super().handle_page(pagename, addctx, templatename, outfilename=fresh)
        if fresh.read_bytes() == page.read_bytes():
            fresh.unlink()
        else:
            fresh.replace(page)


def lists_to_write(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """The documents whose lists of documents show other headings than before.

    Sphinx writes a page with a list again whenever a document below it has changed: the front page, after each edit.
    """
    if app.builder.name != WebBuilder.name or nothing_read(env):
        return []
    headings = {name: (toc.pformat(), env.toc_secnumbers.get(name)) for name, toc in env.tocs.items()}

    def below(docname: str) -> list[str]:
        found = [docname]
        for name in found:  # grows while it is walked
            found += [child for child in env.toctree_includes.get(name, ()) if child not in found]
        return found

    lists = {name: below(name) for name in env.toctree_includes}
    return to_write(app, "lists", {name: [headings.get(one) for one in listed] for name, listed in lists.items()})


def forget_lists(app: Sphinx, builder: Builder) -> None:
    """Take from Sphinx what it would write because of lists; the environment is kept for the next build by now."""
    if builder.name == WebBuilder.name:
        builder.env.files_to_rebuild = {}


def note_end(app: Sphinx, exception: Exception | None) -> None:
    """All pages of this build are there."""
    if exception is None and app.builder.name == WebBuilder.name:
        Path(app.outdir, ".unfinished").unlink(missing_ok=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the builder in place of Sphinx's."""
    app.setup_extension("_ext.news")
    app.add_builder(WebBuilder, override=True)
    app.connect("env-get-updated", lists_to_write, AllRead.NUMBERED)
    app.connect("write-started", forget_lists)
    app.connect("build-finished", note_end, Finished.LAST)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
