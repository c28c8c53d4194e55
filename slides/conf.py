"""Sphinx configuration of the decks: that of the book, without what makes pages, and with what makes slides."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from conf import (  # the book's
    author,
    copyright,
    html_math_renderer,
    language,
    myst_enable_extensions,
    nitpicky,
    project,
)

extensions = ["myst_parser", "sphinx_design", "lab_embed", "lanes", "figures", "measured", "math_svg", "decks"]
exclude_patterns = ["_static"]
suppress_warnings = ["config.cache"]

revealjs_static_path = ["../handbook/_static", "_static"]
revealjs_style_theme = "deck.css"  # all of it: no theme of reveal.js is used
revealjs_css_files = ["math.css"]
revealjs_js_files = ["deck.js"]
revealjs_script_plugins = [{"src": "revealjs/plugin/notes/notes.js", "name": "RevealNotes"}]
revealjs_script_conf = "deckConfig"  # of deck.js
