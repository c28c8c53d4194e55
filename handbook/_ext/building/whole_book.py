"""What builders share that make one file of the whole book: every document is rendered, nothing else is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sphinx.builders.html import StandaloneHTMLBuilder

if TYPE_CHECKING:
    from docutils import nodes


class WholeBookBuilder(StandaloneHTMLBuilder):
    """Renders as for the web; a subclass collects in ``write_doc`` and writes its file in ``finish``."""

    allow_parallel = False  # what is rendered is collected in this process
    search = False
    download_support = False  # the files are not in it
    copysource = False

    def get_theme_config(self) -> tuple[str, dict[str, str | int | bool]]:
        """No theme of the web: furo, once loaded, wants to write its files beside the book."""
        return "basic", {}

    def get_outdated_docs(self) -> str:  # type: ignore[override]
        """Every document is needed, whatever changed."""
        return "all documents"

    def copy_assets(self) -> None:
        """Nothing is needed beside the book."""

    def write_doc_serialized(self, docname: str, doctree: nodes.document) -> None:
        """Collect the images; nothing is indexed."""
        self.imgpath = "_images"
        self.post_process_images(doctree)

    def start_page(self, docname: str, doctree: nodes.document) -> None:
        """Set what the translator asks of its builder about the document that it renders."""
        doctree.settings = self.docsettings
        self.secnumbers = self.env.toc_secnumbers.get(docname, {})
        self.fignumbers = self.env.toc_fignumbers.get(docname, {})
        self.imgpath, self.dlpath, self.current_docname = "_images", "_downloads", docname

    def render(self, page: nodes.document) -> str:
        """The HTML of a document's body."""
        visitor: Any = self.create_translator(page, self)
        page.walkabout(visitor)
        return "".join(visitor.fragment)
