"""The error that every command of the kit reports in one line."""


class BadInput(Exception):  # noqa: N818  (it is the input that is wrong)
    """What the user gave cannot be used; the text is one line that names it and says what to do."""
