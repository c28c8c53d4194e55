"""How Sphinx builds this book: what it does in each build, what it leaves alone, and what is patched."""
