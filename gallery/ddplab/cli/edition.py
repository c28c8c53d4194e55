"""``ddplab edition …``: recorded editions of the book: list them, compare two, carry one from machine to machine."""

from __future__ import annotations

import argparse
import difflib
import json
from collections import Counter
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..recording import archive, diff
from ..recording.edition_folder import DamagedError, Edition, read_json
from ..recording.items import results_of
from . import print_json
from .text import table

EXAMPLE = """\
examples:
  ddplab edition list
  ddplab edition diff cpu-gloo h200       what holds, what differs, and by how much
  ddplab edition archive h200             h200.zip, to be carried away
  ddplab edition unpack h200.zip          checked, and put beside the others

exit code: 0 all is well, 1 the editions differ, 2 the input cannot be used
"""
_EDITIONS = Path(__file__).parents[2] / "editions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, run: Any, summary: str, /, **arguments: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for argument, what in arguments.items():
            added.add_argument(argument, metavar=argument.upper(), help=what)
        added.add_argument("--json", action="store_true", help="print one JSON object")
        folder = "folder of the editions (default: that of the book)"
        added.add_argument("--editions", type=Path, default=_EDITIONS, metavar="DIR", help=folder)
        added.set_defaults(run=lambda options: _answer(run, options))
        return added

    either = "an edition: its name, or its folder"
    action("list", _list, "the editions, each with its machine")
    action("diff", _diff, "what differs between two editions", a=either, b=either)
    packing = action("archive", _archive, "one edition as one file", name=either)
    packing.add_argument("--into", type=Path, default=Path(), metavar="DIR", help="where to put it (default: here)")
    unpacking = action("unpack", _unpack, "check an archive and add its edition to the others", file="the archive")
    unpacking.add_argument("--replace", action="store_true", help="also where a newer edition of that name is there")


def _answer(run: Any, options: argparse.Namespace) -> int:
    try:
        return int(run(options))
    except (DamagedError, archive.ArchiveError) as problem:
        raise BadInput(str(problem)) from None
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise BadInput(f"{problem.filename}: {problem.strerror}") from None


def _edition(name: str, folder: Path) -> Edition:
    """The edition of this name, or in this folder."""
    for path in (folder / name, Path(name)):
        if (path / "manifest.json").exists():
            return Edition(path.resolve())
    known = sorted(path.parent.name for path in folder.glob("*/manifest.json"))
    close = difflib.get_close_matches(name, known, 1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    raise BadInput(f"unknown edition {name!r}; {guess}{folder} has {', '.join(known) or 'none'}")


def _list(options: argparse.Namespace) -> int:
    found = {}
    for path in sorted(options.editions.glob("*/manifest.json")):
        manifest = read_json(path, "machine", "labs", "failed", "dates")
        found[path.parent.name] = {
            "machine": _machine(manifest["machine"]),
            "torch": manifest["machine"].get("torch"),
            "recorded": manifest["dates"][-1][:10],
            "labs": manifest["labs"],
            "failed labs": len(manifest["failed"]),
            "claims": len(results_of(Edition(path.parent))),
        }
    if options.json:
        print_json({"editions": found})
        return 0
    rows = [["edition", *next(iter(found.values()))]] if found else [[f"no edition in {options.editions}"]]
    _table([*rows, *([name, *map(str, facts.values())] for name, facts in found.items())])
    return 0


def _machine(machine: dict[str, Any]) -> str:
    gpus = Counter(machine.get("gpus") or ())
    return " + ".join(f"{count} × {gpu}" for gpu, count in gpus.items()) or f"{machine.get('cpu')}, no GPU"


def _archive(options: argparse.Namespace) -> int:
    path = archive.pack(_edition(options.name, options.editions), options.into)
    if options.json:
        print_json({"archive": str(path), "bytes": path.stat().st_size})
    else:
        print(
            f"{path} ({path.stat().st_size / 2**20:.1f} MiB); where the book is: make edition-unpack FILE={path.name}"
        )
    return 0


def _unpack(options: argparse.Namespace) -> int:
    edition, outcome = archive.unpack(Path(options.file), options.editions, replace=options.replace)
    if options.json:
        print_json({"edition": edition.name, "folder": str(edition.folder), "outcome": outcome})
    else:
        print(f"{edition.folder}: {outcome}; make html EDITION={edition.name}")
    return 0


# -- diff -------------------------------------------------------------------------------------------


def _diff(options: argparse.Namespace) -> int:
    editions = [_edition(name, options.editions) for name in (options.a, options.b)]
    if editions[0] == editions[1]:
        raise BadInput(f"{options.a} and {options.b} are the same edition; name two different ones")
    found = diff.compare(*editions)
    if options.json:
        print_json(asdict(found))
    else:
        _print(found)
    return int(bool(found.results or found.values or found.outputs))


def _print(found: diff.Comparison) -> None:
    facts = [[fact.name, _fact(fact.a), _fact(fact.b)] for fact in found.facts if fact.a != fact.b]
    print("The machines" + (", where they differ" if facts else " do not differ."))
    _table([["", found.a, found.b], *facts] if facts else [])
    print(f"\nLabs and claims: {found.same_results} came out the same, {len(found.results)} did not.")
    _table(
        [
            [one.kind, one.id, one.a, one.b, one.why_b or one.why_a]
            for one in found.results
            if "missing" not in (one.a, one.b)
        ]
    )
    for kind, name, side in product(("lab", "claim"), (found.a, found.b), ("a", "b")):
        absent = [one.id for one in found.results if one.kind == kind and getattr(one, side) == "missing"]
        if absent and name == getattr(found, side):
            print(f"  not in {name}: {len(absent)} {kind}{'s' * (len(absent) > 1)}: {', '.join(absent)}")
    print(f"\nMeasured values: {found.same_values} are equal, {len(found.values)} are not.")
    _table([_value(one) for one in found.values])
    print(f"\nOutputs of another kind: {len(found.outputs)}.")
    _table([[one.lab, f"block {one.block}", one.a, one.b] for one in found.outputs])
    if found.other_code:
        print(f"\nOf other code in each: {', '.join(found.other_code)}.")


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_fact(one) for one in value) or "none"
    return "-" if value is None else json.dumps(value) if isinstance(value, dict) else _plain(value)


def _value(one: diff.Value) -> list[str]:
    sides = [
        "-" if value is None else f"{_plain(value)} {unit}".rstrip()
        for value, unit in ((one.a, one.unit_a), (one.b, one.unit_b))
    ]
    return [f"{one.lab}.{one.name}", *sides, f"× {one.ratio:.3g}" if one.ratio is not None else ""]


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(rows: list[list[str]]) -> None:
    """Print rows in columns; what is very long is cut, except in the last column."""
    for line in table([[*map(_cut, row[:-1]), row[-1]] for row in rows], str.ljust):
        print(f"  {line}")


def _cut(cell: str) -> str:
    return cell if len(cell) <= 44 else f"{cell[:43]}…"
