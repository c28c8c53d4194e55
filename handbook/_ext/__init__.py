"""The extensions of the book. What was recorded takes this way to the reader:

``evidence``    reads what the labs and the tests of the claims left in an edition;
``embed``       puts it into pages: labs, their figures and output, measured numbers, the machine;
``cards``       claims, interview cards and quizzes, each written once;
``explorers``   what moves or answers in a browser, and is a figure everywhere else;
``forms``       the same pages as web, PDF, EPUB, slides and flashcards.

``problems`` reports what is wrong and ``markup`` makes nodes, for all of them. None of them imports torch.
"""
