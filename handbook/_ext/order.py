"""The order of a build: of each event of Sphinx the steps that must not change places, first to last, and why.

Sphinx calls what is connected to an event by number, and what has one number in the order in which it was connected.
Sphinx itself, and whoever does not say otherwise, has the number 500.
"""

from enum import IntEnum


class Configured(IntEnum):
    """``config-inited``: the settings are known."""

    AS_READ = 0  # while they are as conf.py says, before an extension adds to them


class Started(IntEnum):
    """``builder-inited``: before sphinx-gallery makes its pages, at 500."""

    WAIT = 80  # for other builds of this checkout
    EVIDENCE = 100  # is chosen; the pages are completed from it
    SHARE = 900  # the pages of labs are there: other forms may begin


class BeforeReading(IntEnum):
    """``env-before-read-docs``."""

    NEWS = 900  # when all others have said which documents they want read


class Reading(IntEnum):
    """``doctree-read``: before Sphinx collects titles, images, downloads and lists of pages, at 500."""

    PAGES = 400  # outputs of labs, lists of labs and links to starters are put in
    TIME = 430  # is that of the prose so far: not of the cards of labs, nor of stamps
    ENDS = 450  # of chapters and sections: cards of labs, what the section ran on


class AllRead(IntEnum):
    """``env-get-updated``: all documents are read."""

    NUMBERED = 900  # behind Sphinx, which numbers chapters and figures at 500: names hold those numbers


class Resolving(IntEnum):
    """Transforms of a document that is about to be written; Sphinx resolves its references at 10."""

    COPIES = 5  # of cards and claims come first, so that the rest is done to them, too
    TICKS = 6  # are links to claims
    LANES = 90  # before anything else looks at literal blocks
    FIGURES = 250  # when Sphinx has found the files of images
    LISTS = 700  # of titles whose references are resolved


class Page(IntEnum):
    """``html-page-context``: the parts of a page are there, and its template is about to be filled."""

    OTHERS = 1  # pages that are made of this one: before anything is changed in it
    WHOLE = 900  # what looks at the whole page, behind those who add to it


class Sheet(IntEnum):
    """Style sheets on a page."""

    OVER_THEME = 700  # behind those of the theme, which it changes; the last of them is at 600


class Finished(IntEnum):
    """``build-finished``: all that a builder writes is there."""

    NEXT = 900  # another build may begin
    LAST = 999  # behind all that works on what was written: this build came to its end
    CHECKED = 1000  # addresses: what they say is wrong has been written, and the next build need not write it
