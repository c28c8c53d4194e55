"""Slides: decks for a browser, their PDFs, and cards as slides."""
