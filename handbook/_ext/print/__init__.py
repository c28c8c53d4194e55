"""The book on paper and in a reader: PDF and EPUB."""
