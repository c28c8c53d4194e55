"""What the command line says to silly input."""

import re

import pytest

from ddplab import cli


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line with which ``ddplab`` refuses these arguments."""
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as leaving:  # argparse's own
        code = leaving.code
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert re.fullmatch(r"ddplab[^\n]+\n", said.err), said.err
    return said.err
