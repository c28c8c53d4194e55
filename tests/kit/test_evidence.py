"""Evidence: keys follow code and data, values are kept whole or not at all, and a lab leaves the process as it was."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ddplab.recording import items, keys, reach
from ddplab.recording.script import code_blocks, lab_id, run
from ddplab.runtime import evidence
from tools import ROOT


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A kit of three modules, of which ``b`` imports ``c``, and a package of two, of which ``two`` imports ``c``."""
    folder = tmp_path / "gallery" / "ddplab"
    folder.mkdir(parents=True)
    (tmp_path / "gallery" / "recipes").mkdir()
    (tmp_path / "gallery" / "recipes" / "hello.py").write_text("pass\n")
    (folder / "__init__.py").write_text("from .a import launch as launch\n")
    (folder / "a.py").write_text("launch = 1\n")
    (folder / "b.py").write_text("def f():\n    from . import c\n    return c.x\n")
    (folder / "c.py").write_text("x = 1\n")
    (folder / "many").mkdir()
    (folder / "many" / "__init__.py").write_text("")
    (folder / "many" / "one.py").write_text("x = 1\n")
    (folder / "many" / "two.py").write_text("from ..c import x\nfrom .one import x as y\n")
    monkeypatch.setattr(reach, "KIT", folder)
    return folder


def script(kit: Path, text: str) -> Path:
    path = kit.parent / "short" / "plot_it.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'"""Title"""\n{text}')
    return path


@pytest.mark.parametrize(
    ("text", "changes_with"),
    [
        ("import torch\n", ""),
        ("from ddplab import launch\n", "a"),
        ("from ddplab.b import f\n", "b a"),
        ("from ddplab.b import f\nf()\n", "b c a"),
        ("from ddplab import b\nb.f()\n", "b c a"),
        ("import ddplab.c\n", "c a"),
        ("import ddplab\n", "a"),
        ("def worker():\n    from ddplab.c import x\n", "c a"),
        ("from ddplab.many.one import x\n", "many/one many/__init__ a"),
        ("from ddplab.many import two\n", "many/two many/one c many/__init__ a"),
        ("from ddplab import many\n", "many/__init__ a"),
        ("import ddplab.many.two\n", "many/two many/one c many/__init__ a"),
    ],
)
def test_key_changes_with_what_runs_and_with_nothing_else(kit, text, changes_with):
    path = script(kit, text)
    before = keys.lab_key(path)
    for name in ("a", "b", "c", "many/__init__", "many/one", "many/two"):
        module = kit / f"{name}.py"
        original = module.read_text()
        module.write_text(original + "print()\n")  # whatever imports the module runs it
        assert (keys.lab_key(path) != before) == (name in changes_with.split()), name
        module.write_text(original + "def unused():\n    return 1\n\n\nUNUSED = unused\n")
        assert keys.lab_key(path) == before, name
        module.write_text(original)
    path.write_text(path.read_text() + "changed = 1\n")
    assert keys.lab_key(path) != before


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("from ddplab.d import used\nused()\n", True),
        ("from ddplab import d\nd.used()\n", True),
        ("import ddplab.d as it\nit.used()\n", True),
        ("import ddplab.d\nddplab.d.used()\n", True),
        ("from ddplab import d\nhelp(d)\n", True),  # whatever is taken of it
        ("from importlib import import_module\nimport_module('ddplab.d')\n", True),
        ("from ddplab.d import Other\nOther()\n", True),  # a method of what it inherits from
        ("from ddplab import d\nd.other()\n", False),
        ("from ddplab.d import other as used\nused()\n", False),
    ],
)
def test_of_a_module_the_definitions_count_that_are_reached(kit, text, counts):
    module = kit / "d.py"
    module.write_text(
        "class Used:\n    n = 1\n\nclass Other(Used): pass\n\n"
        "def used():\n    return Used.n\n\ndef other():\n    return 2\n"
    )
    path = script(kit, text)
    before = keys.lab_key(path)
    module.write_text(module.read_text().replace("n = 1", "n = 3"))
    assert (keys.lab_key(path) != before) == counts


def test_what_a_decorator_of_our_own_may_register_counts_wherever_the_module_is_imported(kit):
    module = kit / "d.py"
    module.write_text("def check(f): ...\n\n@check\ndef one():\n    return 1\n\ndef other(): ...\n")
    path = script(kit, "from ddplab.d import other\n")
    before = keys.lab_key(path)
    module.write_text(module.read_text().replace("return 1", "return 2"))
    assert keys.lab_key(path) != before


def test_key_changes_with_a_recipe_that_the_script_names(kit):
    path = script(kit, 'run("hello.py")\n')
    before = keys.lab_key(path)
    (kit.parent / "recipes" / "hello.py").write_text("changed = 1\n")
    assert keys.lab_key(path) != before


def test_key_changes_with_an_exercise_that_the_script_names_and_with_what_grades_it(kit):
    grader = kit.parent / "exercises" / "no-sync" / "grader.py"
    grader.parent.mkdir(parents=True)
    command = kit / "cli" / "grade.py"
    command.parent.mkdir()
    for path in (grader, command):
        path.write_text("from ddplab import c\n")
    path = script(kit, 'run("grade", "no-sync")\n')
    for part in (grader, command, kit / "c.py"):
        before = keys.lab_key(path)
        part.write_text(part.read_text() + "print()\n")
        assert keys.lab_key(path) != before, part


def test_a_key_that_cannot_be_made_says_why(kit):
    with pytest.raises(ValueError, match=r"plot_it.py:3: "):
        keys.lab_key(script(kit, "x = 1\ny = = 2\n"))
    with pytest.raises(ValueError, match="ddplab has no 'nothing'; it exports launch"):
        keys.lab_key(script(kit, "from ddplab import nothing\n"))


@pytest.mark.parametrize("path", ["a.py", "../short/plot_it.py"])
@pytest.mark.parametrize(
    "after",
    [
        '# a comment\nx = "# no comment"\n\ndef f():\n    return x  # why\n',
        'x = "# no comment"\ndef f():\n    """What it is."""\n\n    return x\n',
        'x = "# no comment"\n\n\ndef f():\n    """What\n\n    it is.\n    """\n    return x\n',
    ],
)
def test_comments_docstrings_and_blank_lines_are_not_part_of_a_key(kit, path, after):
    lab = script(kit, "from ddplab import a\na.f()\n")
    changed, intro = kit / path, '"""Title"""\n' if "plot" in path else ""
    changed.write_text(intro + 'x = "# no comment"\ndef f():\n    return x\n')
    before = keys.lab_key(lab)
    changed.write_text(intro.replace("Title", "Another title") + after)
    assert keys.lab_key(lab) == before
    changed.write_text(intro + after.replace("return x", "return x, 1"))
    assert keys.lab_key(lab) != before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('x = "# a"\n', 'x = "# b"\n'),
        ('x = """a\n\nb"""\n', 'x = """a\nb"""\n'),
        ('x = f"""a  \nb"""\n', 'x = f"""a\nb"""\n'),
        ("if a:\n    b\nc\n", "if a:\n    b\n    c\n"),
        ("# %%\nx = 1\ny = 1\n", "# %%\nx = 1\n# %%\ny = 1\n"),  # each block has its own output
    ],
)
def test_strings_indentation_and_the_borders_of_blocks_are_part_of_a_key(kit, one, other):
    assert keys.lab_key(script(kit, one)) != keys.lab_key(script(kit, other))


def test_a_data_file_that_a_lab_names_or_was_seen_to_read_is_part_of_its_key(kit):
    path = script(kit, 'open("table.json")\n')
    named, read = path.with_name("table.json"), path.with_name("other.json")
    read.write_text("1")
    without = keys.lab_key(path)
    named.write_text("1")
    assert keys.lab_key(path) != without
    for data in (named, read):
        before = keys.lab_key(path, ["gallery/short/other.json"])
        data.write_text("2")
        assert keys.lab_key(path, ["gallery/short/other.json"]) != before, data


def test_the_data_folder_of_a_kit_module_is_part_of_the_keys_of_what_takes_it_and_of_no_other(kit):
    (kit / "entries").mkdir()
    entry = kit / "entries" / "one.toml"
    entry.write_text("a = 1\n")
    (kit / "c.py").write_text('def folder():\n    return "entries"\n\ndef other(): ...\n')
    for used, counts in (("folder", True), ("other", False)):
        path = script(kit, f"from ddplab import c\nc.{used}()\n")
        before = keys.lab_key(path)
        entry.write_text(entry.read_text() + "b = 2\n")
        assert (keys.lab_key(path) != before) == counts


def test_the_key_of_a_test_changes_with_the_helpers_that_it_uses_and_with_no_other_test(tmp_path):
    path = tmp_path / "test_it.py"
    text = "import pytest\nN = 1\n\n@pytest.fixture\ndef two():\n    return N\n\n"
    text += "def test_a(two): pass\n\ndef test_b(): pass\n"
    path.write_text(text)
    before = {name: keys.claim_key(path, name) for name in ("test_a", "test_b")}
    path.write_text(text.replace("N = 1", "N = 22"))
    assert keys.claim_key(path, "test_a") != before["test_a"]
    assert keys.claim_key(path, "test_b") == before["test_b"]


# What the issue asks for, on the book as it stands.


def test_what_runs_decides_which_recordings_of_the_book_are_stale(tmp_path, monkeypatch):
    gallery, proofs = tmp_path / "gallery", [*items.tests_of(ROOT)]
    shutil.copytree(ROOT / "gallery", gallery, ignore=shutil.ignore_patterns("editions", "__pycache__", "*.egg-info"))
    monkeypatch.setattr(reach, "KIT", gallery / "ddplab")

    def stale(place: str, change: Callable[[str], str]) -> set[str]:
        """The labs and claims whose key changes with this file, which stays changed."""
        path = gallery / place
        path.write_text(change(path.read_text() if path.exists() else ""))
        before = keys_of.copy()
        keys_of.update(every_key())
        return {name for name, key in keys_of.items() if key != before[name]}

    def every_key() -> dict[str, str]:
        with reach.unchanged():
            labs = {lab.relative_to(gallery).as_posix(): keys.lab_key(lab) for lab in gallery.glob("*/plot_*.py")}
            return labs | {test.id: keys.claim_key(test.path, test.name) for test in proofs}

    keys_of = every_key()
    lab, data = next(iter(keys_of)), next(gallery.glob("*/published.json")).relative_to(gallery).as_posix()
    assert not stale("ddplab/runtime/launcher.py", lambda text: text + "\n# A comment.\n")
    assert not stale(lab, lambda text: text.replace("# %%\n# ", "# %%\n# Another sentence. ", 1))
    assert not stale("ddplab/runtime/gpus.py", lambda text: text + "\n\ndef unused() -> int:\n    return 1\n")
    named = {name for name in keys_of if name.endswith(".py") and '"published.json"' in (gallery / name).read_text()}
    assert named == stale(data, lambda text: text + "\n") != set()
    asked = stale("ddplab/diagnose/entries/one-more.toml", lambda _: "title = 'One more'\n")
    assert asked == {name for name in keys_of if "diagnose" in name} | {name for name in asked if "nccl" in name}
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(asked) < 6
    assert all(lab_id(gallery / name) in guide for name in asked if (gallery / name).is_file())
    often = stale("ddplab/runtime/launcher.py", lambda text: text + "\nprint()\n")  # it runs with each launch
    assert len(often) > len(keys_of) / 2


def test_keys_know_where_each_name_of_the_kit_comes_from():
    """The kit imports its names when they are used; keys read the same from its text."""
    import ddplab

    names = ["LaunchError", "device", "launch", "record"]
    homes = {name: reach.KIT.parent.joinpath(*getattr(ddplab, name).__module__.split(".")) for name in names}
    assert {name: path.with_suffix(".py") for name, path in homes.items()} == reach._exports()
    with pytest.raises(AttributeError, match="no attribute 'lunch'"):
        ddplab.lunch  # noqa: B018


@pytest.fixture
def recording(tmp_path, kit, monkeypatch):
    monkeypatch.delenv("DDPLAB_EVIDENCE", raising=False)
    path = tmp_path / "evidence.json"
    evidence.begin(path)
    yield path
    evidence.end()


def test_record_keeps_values_once_and_with_their_unit(recording):
    """A scalar of torch, too."""
    evidence.record(unit="ms", gap=torch.tensor(0.25), steps=3)
    assert json.loads(recording.read_text())["values"] == {
        "gap": {"unit": "ms", "value": 0.25},
        "steps": {"unit": "ms", "value": 3},
    }
    with pytest.raises(ValueError, match="'gap' was recorded before"):
        evidence.record(gap=2)


def test_record_alone_keeps_nothing(monkeypatch):
    monkeypatch.delenv("DDPLAB_EVIDENCE", raising=False)
    evidence.record(gap=1)
    evidence.record(gap=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, [1, 2]])
def test_record_refuses_what_prose_cannot_say(recording, value):
    evidence.record(first=1)
    before = recording.read_text()
    with pytest.raises(ValueError, match="record: gap must be a finite number or a string"):
        evidence.record(gap=value)
    assert recording.read_text() == before


def test_launches_that_are_alike_are_counted(recording):
    for ranks in (2, 2, 4):
        evidence.note_launch(ranks, {"backend": "gloo"})
    launches = json.loads(recording.read_text())["launches"]
    assert [(launch["ranks"], launch["times"]) for launch in launches] == [(2, 2), (4, 1)]


def test_the_data_files_that_are_read_meanwhile_are_kept(tmp_path):
    evidence.begin(tmp_path / "evidence.json")
    next((ROOT / "gallery").glob("*/published.json")).read_text()
    (tmp_path / "own.json").write_text("1")
    (tmp_path / "own.json").read_text()
    assert evidence.end()["read"] == ["gallery/performance/published.json"]


# -- running a script -------------------------------------------------------------------------------


def test_scripts_are_split_where_sphinx_gallery_splits_them():
    parser = pytest.importorskip("sphinx_gallery.py_source_parser", reason="the book is not installed")

    for path in sorted((ROOT / "gallery").glob("*/plot_*.py")):
        theirs = [block for block in parser.split_code_and_text_blocks(path)[1] if block.type == "code"]
        ours = code_blocks(path.read_text())
        assert [block.line for block in ours] == [block.lineno for block in theirs], path
        assert [block.code.strip() for block in ours] == [block.content.strip() for block in theirs], path


def test_a_lab_leaves_the_process_as_it_was(kit, monkeypatch):
    monkeypatch.setenv("KEPT", "before")
    lines = [
        "import os, sys, matplotlib.pyplot as plt",
        'os.environ.update(CUDA_VISIBLE_DEVICES="", KEPT="changed")',
        'os.environ.pop("PATH"); os.chdir("/"); sys.path.insert(0, "/"); sys.argv.append("x")',
        'plt.rcParams["font.size"] = 99; plt.figure()',
        "raise SystemExit(3)",
    ]
    before = dict(os.environ), Path.cwd(), sys.path[:], sys.argv[:], sys.modules["__main__"]
    outcome = run(script(kit, "\n".join(lines)), lambda figure, number: "figure.svg")
    assert outcome.failed.endswith("SystemExit: 3")
    assert before == (dict(os.environ), Path.cwd(), sys.path[:], sys.argv[:], sys.modules["__main__"])
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == []
    assert plt.rcParams["font.size"] != 99


def test_each_block_keeps_what_it_printed_and_drew(kit):
    text = "import sys, matplotlib.pyplot as plt\n# %%\nprint('a\\n\\n\\x1b[31mb  ')\n# %%\n# Prose.\n"
    text += "print('c', file=sys.stderr)\nplt.gca().set_title('Shown')\n"
    outcome = run(script(kit, text), lambda figure, number: f"{number}.svg")
    drawn = [{"file": "1.svg", "alt": "Shown"}]
    assert outcome.blocks == [{}, {"printed": ["a", "", "b"]}, {"printed": ["c"], "figures": drawn}]


def test_a_block_that_fails_keeps_its_traceback_and_ends_the_lab(kit):
    outcome = run(script(kit, "print(1)\nx = 1 / 0\n# %%\nprint(2)\n"), lambda figure, number: "")
    assert outcome.blocks == [{"printed": ["1"]}]
    assert "plot_it.py" in outcome.failed
    assert "line 3" in outcome.failed
    assert "script.py" not in outcome.failed


def test_a_lab_that_needs_another_torch_says_so(kit):
    outcome = run(script(kit, "from ddplab.runtime.needs import needs\nneeds(torch='99')\n"), lambda figure, number: "")
    assert outcome.needs.startswith("needs torch 99 or newer; this is ")
    assert not outcome.failed
