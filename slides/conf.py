"""Sphinx configuration of the decks: that of the book, without what makes pages, and with what makes slides."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import conf as book

project = book.project
author = copyright = book.author
language = book.language

extensions = [
    "myst_parser",
    "sphinx_design",
    "_ext.embed.lab_embed",
    "_ext.embed.lanes",
    "_ext.embed.figures",
    "_ext.embed.measured",
    "_ext.embed.when",
    "_ext.explorers.explorer_directives",
    "_ext.style.math_svg",
    "_ext.decks.decks",
]
exclude_patterns = ["_static"]
myst_enable_extensions = book.myst_enable_extensions
labs_default_edition = book.labs_default_edition
html_math_renderer = book.html_math_renderer
nitpicky = True

# -- reveal.js, whose files are inside of sphinx-revealjs: a deck needs no network -----------------------

revealjs_static_path = ["../handbook/_static", "_static"]
revealjs_style_theme = "deck.css"  # in place of a theme of reveal.js
revealjs_css_files = ["math.css"]
revealjs_js_files = ["deck.js"]
revealjs_script_plugins = [{"src": "revealjs/plugin/notes/notes.js", "name": "RevealNotes"}]
revealjs_script_conf = "deckConfig"  # a constant of deck.js
