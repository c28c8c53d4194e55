"""One book in many forms: web, PDF, EPUB, slides, flashcards."""
