"""The rules of the book's prose that a machine can check: few, each with its reason."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("handbook/**/*.md"), *ROOT.glob("slides/*.md"), ROOT / "README.md"])
LABS = sorted(ROOT.glob("gallery/*/plot_*.py"))

# Words that promise instead of say; what is easy for the author makes the reader feel slow.
HYPE = re.compile(r"\b(simply|powerful|seamless(ly)?|magic(al)?|trivial(ly)?|obviously|effortless(ly)?)\b", re.I)
# A measured time or rate in prose must come from the run: {measured}`lab-id.name`.
MEASURED = re.compile(r"\b(takes?|took|measured|runs? in)\b[^.`$]{0,30}\b\d+(\.\d+)?\s?(ms|µs|seconds|s)\b")
# English that makes a native reader stop, and what to write instead. Ids that readers know, such as mend-nan, stay.
ODD = {
    r"(?<![\w-])mend(s|ed|ing)?(?![\w-])": "fix",
    r"\b(ranks?|replicas|scalers?|scales|weights|runs|they) part(s|ed)?\b(?! of)": "diverge",
    r"\bwithout a word\b": "without a message",
    r"\bhears? (of|nothing)\b": "gets, sees",
    r"\bsaid nothing\b": "printed nothing",
    r"\b(is|are|was|were|be) told\b": "gets, receives, is asked",
    r"\bis no (Python|rename|accident|signature|member|number|surprise|excuse)\b": "is not a …",
    r"\b(suffices|hence|thus|whilst|shall|thereby)\b": "is enough, so, must",
    r"\b(a repair that is none|a ready order that may change|bytes cost nothing that shows)\b": "say it plainly",
}
ODD_ENGLISH = re.compile("|".join(ODD), re.I)
CODE = sorted(
    path
    for pattern in (
        "gallery/**/*.py",
        "gallery/**/*.toml",
        "handbook/_ext/**/*.py",
        "handbook/_static/*.js",
        "tests/**/*.py",
    )
    for path in ROOT.glob(pattern)
    if "editions" not in path.parts and path != Path(__file__)
)


def prose(path: Path) -> list[tuple[int, str]]:
    """The lines of a file that are prose, with their numbers."""
    lines, fence, directives = [], None, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        opening = re.match(r"\s*(`{3,})(\S*)", line)
        if fence is None and directives and line.strip() == directives[-1]:
            directives.pop()
        elif opening and fence is None and opening[2].startswith("{"):
            directives.append(opening[1])  # its content is prose
        elif opening and fence is None:
            fence = opening[1]
        elif fence and line.strip() == fence:
            fence = None
        elif fence is None and (path.suffix == ".md" or line.startswith(("# ", '"""'))):
            lines.append((number, re.sub(r"`[^`]*`", "``", line)))
    return lines


def test_plain_english():
    found = []
    for path in [*PAGES, *LABS]:
        found += [(path, n, m[0]) for n, line in prose(path) for m in ODD_ENGLISH.finditer(line)]
    for path in CODE:
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [(path, n, m[0]) for n, line in enumerate(lines, 1) for m in ODD_ENGLISH.finditer(line)]
    assert not found, "\n".join(f"{path.relative_to(ROOT)}:{n}: {word!r}" for path, n, word in found)


@pytest.mark.parametrize("rule", [HYPE, MEASURED], ids=["hype", "measured numbers typed by hand"])
def test_prose(rule):
    found = [(path, n, m[0]) for path in [*PAGES, *LABS] for n, line in prose(path) if (m := rule.search(line))]
    assert not found, "\n".join(f"{path.relative_to(ROOT)}:{n}: {words!r}" for path, n, words in found)


def test_the_rules_can_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A launch takes 55 ms, which is simply fast.\n\n```python\nsimply = 1\n```\n")
    ((_, line),) = [pair for pair in prose(page) if pair[1].strip()]
    assert HYPE.search(line)
    assert MEASURED.search(line)


def test_nothing_names_this_machine():
    """No registry host and no path of the machine on which the book was written."""
    import subprocess

    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    suspect = re.compile(r"/work/main|/opt/(wheels|pypi)|/root/|pypi\.org|registry\.npmjs")
    for name in files:
        if name.endswith((".woff2", ".png", ".pdf")) or name == "tests/site/test_prose.py":
            continue
        if not (ROOT / name).exists():  # passes that do not hold are removed
            continue
        found = suspect.search((ROOT / name).read_text(encoding="utf-8", errors="replace"))  # some logs are broken
        assert not found, f"{name}: {found[0]}"
