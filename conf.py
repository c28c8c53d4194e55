"""Sphinx configuration of The DDP Handbook. Top to bottom, no logic; what needs logic is in handbook/_ext."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "handbook"))  # where our extensions are: the package _ext

project = "The DDP Handbook"
version = release = "1.0"
author = "The DDP Handbook authors"
copyright = author
language = "en"

# -- the book -----------------------------------------------------------------------------------------

extensions = [
    "_ext.building.patches",  # first: it changes what others do when they are loaded
    "myst_parser",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinxext.opengraph",
    "sphinxcontrib.bibtex",
    "_ext.news",
    "_ext.evidence.lab_source",
    "_ext.evidence.editions",
    "sphinx_gallery.gen_gallery",
    "_ext.embed.lab_page",
    "_ext.embed.lab_lists",
    "_ext.embed.lab_embed",
    "_ext.embed.lab_cards",
    "_ext.embed.waiting",
    "_ext.embed.section_stamps",
    "_ext.embed.exercise_downloads",
    "_ext.embed.code_diff",
    "_ext.embed.kit_reference",
    "_ext.embed.edition_page",
    "_ext.embed.edition_switch",
    "_ext.embed.editions_compared",
    "_ext.embed.when",
    "_ext.embed.lanes",
    "_ext.style.accessible",
    "_ext.navigation.reading_time",
    "_ext.navigation.orientation",
    "_ext.navigation.book_map",
    "_ext.navigation.downloads",
    "_ext.navigation.marks",
    "_ext.navigation.redirects",
    "_ext.search.search_sections",
    "_ext.building.web_pages",
    "_ext.building.build_steps",
    "_ext.embed.figures",
    "_ext.embed.measured",
    "_ext.cards.claim_marks",
    "_ext.cards.cards",
    "_ext.cards.flashcards",
    "_ext.cards.question_lists",
    "_ext.search.asked_questions",
    "_ext.cards.drill_page",
    "_ext.explorers.error_index",
    "_ext.explorers.error_pages",
    "_ext.explorers.diagnose_page",
    "_ext.explorers.explorer_directives",
    "_ext.style.math_svg",
    "_ext.print.book_pdf",
    "_ext.print.book_epub",
]
exclude_patterns = ["_ext", "_templates", "**/GALLERY_HEADER.rst", "labs/*/*.ipynb", "labs/*/*.py"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_enable_extensions = [
    "colon_fence",
    "deflist",
    "dollarmath",
    "attrs_inline",
    "attrs_block",
    "fieldlist",
    "tasklist",
]
myst_heading_anchors = 3
reading_time_documents = r"(understand|run|fast|keep)/(?!practice).*|repair/(broken|tools|fault-lab)"
claims_need_scope = True
lab_card_documents = reading_time_documents
bibtex_bibfiles = ["handbook/references.bib"]
bibtex_default_style = "unsrt"
numfig = True
nitpicky = True
suppress_warnings = ["config.cache"]  # sphinx-gallery's configuration holds functions, which cannot be pickled

# -- what runs ----------------------------------------------------------------------------------------

labs_default_edition = "cpu-gloo"
sphinx_gallery_conf = {
    "examples_dirs": [
        "../gallery/idea",
        "../gallery/internals",
        "../gallery/gpu",
        "../gallery/from_scratch",
        "../gallery/museum",
        "../gallery/setup",
        "../gallery/debugging",
        "../gallery/performance",
        "../gallery/checkpointing",
    ],
    "gallery_dirs": [
        "labs/idea",
        "labs/internals",
        "labs/gpu",
        "labs/from_scratch",
        "labs/museum",
        "labs/setup",
        "labs/debugging",
        "labs/performance",
        "labs/checkpointing",
    ],
    "plot_gallery": False,  # nothing is executed while the book is built: outputs come from an edition
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": (),
    "reset_modules": (),
    "show_signature": False,
    "download_all_examples": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}

# -- web ----------------------------------------------------------------------------------------------

html_theme = "furo"
html_title = project
html_theme_options = {"enable_search_shortcuts": False}  # Sphinx's: its Escape would keep a panel from closing
html_static_path = ["handbook/_static"]
html_favicon = "handbook/_static/favicon.svg"
templates_path = ["handbook/_templates"]
html_sidebars = {"**": ["sidebar/scroll-start.html", "book-nav.html", "sidebar/scroll-end.html"]}
html_css_files = ["book.css", "cards.css", "claims.css", "figures.css"]
html_js_files = [("figures.js", {"defer": "defer"})]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_permalinks_icon = "#"
html_math_renderer = "ziamath"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_exclude = ".linenos, .gp, .go"
ogp_site_url = "/"  # the host that publishes the book says more: make html SITE=https://…/
ogp_image = "_static/social.png"
ogp_image_alt = "The DDP Handbook: PyTorch's DistributedDataParallel, with every claim executed"
ogp_social_cards = {"enable": False}
ogp_custom_meta_tags = ['<meta name="twitter:card" content="summary_large_image" />']

# -- print and e-book ---------------------------------------------------------------------------------

bookpdf_licence = "LICENSE-TEXT"
bookpdf_subtitle = "DistributedDataParallel, with every claim executed"
epub_basename = "ddp-handbook"
epub_identifier = "ddp-handbook"
epub_uid = "ddp-handbook"
epub_description = "A handbook on PyTorch DistributedDataParallel in which every claim is executed"
epub_css_files = ["epub.css"]
epub_show_urls = "no"
epub_cover = ("_static/epub-cover.png", "epub-cover.html")
epub_landmarks = {
    "bodymatter": "understand/idea",
    "glossary": "reference/glossary",
    "bibliography": "reference/bibliography",
}
epub_tocscope = "includehidden"
epub_tocdepth = 4
