"""What the terminal can show: bold and color or none, check marks or letters, and how wide."""

# Not rich: a command here needs bold, three colors and wrapped text, and rich would cost 40 ms of every start
# and a dependency of a kit that otherwise needs only the standard library to read logs.

from __future__ import annotations

import os
import shutil
import sys
import textwrap


class Terminal:
    """The terminal behind standard output, as it is now."""

    def __init__(self) -> None:
        self.color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = min(shutil.get_terminal_size((80, 24)).columns, 96)

    def strong(self, text: str) -> str:
        """Return the text in bold."""
        return self.colored(text, "1")

    def colored(self, text: str, code: str) -> str:
        """Return the text with an SGR code such as ``"31"`` (red), or as it is where there is no color."""
        return f"\033[{code}m{text}\033[0m" if self.color else text

    def can_show(self, signs: str) -> bool:
        """Return whether the encoding of standard output has these characters."""
        try:
            signs.encode(sys.stdout.encoding or "ascii")
        except UnicodeEncodeError:
            return False
        return True

    def indented(self, text: str) -> list[str]:
        """Return the lines of a paragraph, wrapped, four columns in."""
        wrapped = textwrap.wrap(text, self.width - 4, break_long_words=False, break_on_hyphens=False)
        return [f"    {line}" for line in wrapped]
