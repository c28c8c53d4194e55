"""The extensions of the book. What was recorded takes this way to the reader:

``evidence``    reads what the labs and the tests of the claims left in an edition;
``embed``       puts it into pages: labs, their figures and output, measured numbers, the machine;
``cards``       claims, interview cards and quizzes, each written once;
``explorers``   what moves or answers in a browser, and is a figure everywhere else;
``forms``       the same pages as web, PDF, EPUB, slides and flashcards.

``problems`` reports what is wrong, ``markup`` makes nodes, and ``order`` says which step of a build comes before which,
for all of them. None of them imports torch.

What a page shows comes from a script, its evidence, or a source of the book. What a build wrote is taken up again in
three places: ``downloads`` lists the forms that were made after the pages, ``deck_pdf`` prints the page of a deck, and
``book_epub`` corrects the package that Sphinx has put together.
"""
