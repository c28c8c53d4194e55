"""Where a reader is, and where to go: header, parts, marks, reading time, downloads, old addresses."""
