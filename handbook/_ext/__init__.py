"""The extensions of the book. What was recorded takes this way to the reader:

``evidence``    reads what the labs and the tests of the claims left in an edition;
``embed``       puts it into pages: labs, their figures and output, measured numbers, the machine;
``cards``       claims, interview cards, quizzes and flashcards, each written once;
``explorers``   what moves or answers in a browser, and is a figure everywhere else;
``navigation``  where a reader is, where to go, and where an old address leads;
``search``      by section, and by what people ask;
``style``       one style sheet, mathematics, and what keyboard and ear need;
``decks``       slides, in a browser and as PDF;
``print``       the book as PDF and EPUB;
``building``    how Sphinx builds all of that, and what is patched.

A script or a style sheet in ``_static`` says in its first lines with which files it works.

``problems`` reports what is wrong, ``markup`` makes nodes, and ``order`` says which step of a build comes before which,
for all of them. None of them imports torch.

What a page shows comes from a script, its evidence, or a source of the book. What a build wrote is taken up again in
three places: ``downloads`` lists the forms that were made after the pages, ``deck_pdf`` prints the page of a deck, and
``book_epub`` corrects the package that Sphinx has put together.
"""
