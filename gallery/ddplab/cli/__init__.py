"""The command line ``ddplab``: one command per module, imported only when it is the one that was asked for.

A command ``name`` is the module ``ddplab.cli.name`` (``-`` becomes ``_``) with a text ``EXAMPLE`` for its help and a
function ``add_arguments(parser)`` that also sets ``run``, a function from the parsed arguments to the exit code.
Exit codes: 0 all is well, 1 the answer is no, 2 the input cannot be used.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import importlib.util
import io
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..errors import BadInput

COMMANDS = {  # in the order in which --help lists them
    "diagnose": "find what failed first in the logs of a job, and what to do",
    "simulate": "predict the time of a DDP step, and draw its timeline",
    "trace": "read profiler traces: buckets, exposed communication, bandwidth, late ranks",
    "recipe": "write a program of the book and what it needs",
    "grade": "run your solution of an exercise on real ranks",
    "tune-buckets": "measure your model on real ranks, recommend a bucket_cap_mb",
    "edition": "list, compare and carry recorded editions",
}
GREETING = """\
The tools of The DDP Handbook. Three to begin with:

  ddplab diagnose train.log             what failed first in a log, and what to do
  ddplab simulate --ranks 8             what a DDP step costs, and what it hides
  ddplab trace rank*.json               where the time of a profiled step went

All commands: ddplab --help
"""
_FULL = (errno.ENOSPC, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC))  # Windows has no quotas
_EXTRAS = {"torch": "torch", "numpy": "torch", "matplotlib": "plot"}  # module: the extra of ddplab that brings it


class _Help(argparse.HelpFormatter):
    def format_help(self) -> str:
        self._action_max_length += 2  # commands are indented, which argparse forgets when it measures the longest name
        return super().format_help()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def refuse_unknown(self, unknown: Sequence[str]) -> None:
        """End with what nobody knows, and what was perhaps meant; go on if there is nothing."""
        if unknown:
            options = [option for action in self._actions for option in action.option_strings]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown[0].partition('=')[0], options)}")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version  # it imports half of the library's modules

        print(f"ddplab {version('ddplab')}")
        parser.exit()


def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names and return its exit code."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  it was closed before the program began
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign must not end the program
    parser = _Parser(
        prog="ddplab",
        description="The tools of The DDP Handbook.",
        epilog="Each command has its own help: ddplab grade --help",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.set_defaults(refuse_unknown=parser.refuse_unknown)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    given = sys.argv[1:] if argv is None else argv
    if not given:
        print(GREETING, end="")
        return 0
    if not given[0].startswith("-") and given[0] not in COMMANDS:
        parser.error(f"there is no command {given[0]!r}{_meant(given[0], list(COMMANDS))}")
    for name, summary in COMMANDS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        layout = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(
            name, help=summary, description=description, formatter_class=layout, allow_abbrev=False
        )
        if name == next(iter(given), None):
            module = importlib.import_module(f".{name.replace('-', '_')}", __name__)
            command.epilog = module.EXAMPLE
            module.add_arguments(command)
            command.set_defaults(refuse_unknown=command.refuse_unknown)
    arguments, unknown = parser.parse_known_args(given)
    arguments.refuse_unknown(unknown)

    before = signal.signal(signal.SIGTERM, _terminated)  # so that a command can clean up behind itself
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except BadInput as problem:
        print(f"ddplab: {problem}", file=sys.stderr)
        if getattr(arguments, "json", False):
            print_json({"error": str(problem)})
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the output, such as `head`, has left
        _drop_output()
        return 128 + 13  # SIGPIPE, which Windows does not have
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        _drop_output()
        print(
            f"ddplab: the output cannot be written: {error.strerror}; make room, or send it elsewhere", file=sys.stderr
        )
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)
    return code


def _drop_output() -> None:
    """Send what is left of the output nowhere, so that the interpreter does not fail on it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def need(module: str, what: str) -> None:
    """Go on only where ``module`` is installed; ``what`` needs it, such as ``"grade"``.

    Raises:
        BadInput: it is not; the message says how to install it.
    """
    if importlib.util.find_spec(module) is None:
        raise BadInput(f"{what} needs {module}: pip install 'ddplab[{_EXTRAS[module]}]'")


def need_ranks(what: str) -> None:
    """Go on only where ``what`` can run ranks: with torch, and on a system that can fork.

    Raises:
        BadInput: it cannot; the message says why.
    """
    if not hasattr(os, "fork"):
        raise BadInput(f"{what} runs ranks, which needs Linux or macOS; on Windows use WSL")
    need("torch", what)


def print_json(content: dict[str, Any]) -> None:
    """Print the one JSON object that ``--json`` promises."""
    print(json.dumps(content, indent=2, ensure_ascii=False))


def number(what: str, least: float, most: float) -> Callable[[str], float]:
    """Return the type of an argument that is a number in these bounds; ``what`` names it, as in "a rate in Gbit/s"."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {least:g} to {most:g}")
        return value

    return parse


def _terminated(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)
