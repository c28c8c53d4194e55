"""Which tests a landing runs: prints "test", or "test-all" where the ledger is too old, or of another machine.

A landing commits its passes once, so commits of the ledger count as landings; where git does not know the commit of the
whole run, as in a shallow clone, all tests run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ledger import here
from ledger.passes import FOLDER, about, git

LANDINGS = 5


def landings(since: str) -> int | None:
    """How many commits of the ledger came after this one; None: git cannot tell."""
    told = git("rev-list", "--count", f"{since}..HEAD", "--", str(FOLDER))
    return int(told) if told else None


def main() -> None:
    """Say on standard error why all run."""
    ledger = about()
    passed = landings(ledger["whole"]) if ledger else None
    if not ledger:
        why = "there is no ledger of passes"
    elif not here.at_home(ledger):
        why = "the ledger of passes is of another machine"
    elif passed is None:
        why = f"git does not know {ledger['whole']}, at which all tests last ran"
    elif passed > LANDINGS:
        why = f"all tests last ran {passed} landings ago, at {ledger['whole']}"
    else:
        why = ""
    if why:
        print(f"{why}: all run", file=sys.stderr)
    print("test-all" if why else "test")


if __name__ == "__main__":
    main()
