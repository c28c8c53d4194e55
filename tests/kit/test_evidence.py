"""Evidence: keys follow imports, values are kept whole or not at all."""

import json
from pathlib import Path

import pytest

from ddplab import evidence


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A kit of three modules, of which ``b`` imports ``c``, and a package of two, of which ``two`` imports ``c``."""
    folder = tmp_path / "gallery" / "ddplab"
    folder.mkdir(parents=True)
    (tmp_path / "gallery" / "recipes").mkdir()
    (tmp_path / "gallery" / "recipes" / "hello.py").write_text("pass\n")
    (folder / "__init__.py").write_text("from .a import launch as launch\n")
    (folder / "a.py").write_text("launch = 1\n")
    (folder / "b.py").write_text("def f():\n    from . import c\n    return c\n")
    (folder / "c.py").write_text("x = 1\n")
    (folder / "many").mkdir()
    (folder / "many" / "__init__.py").write_text("")
    (folder / "many" / "one.py").write_text("x = 1\n")
    (folder / "many" / "two.py").write_text("from ..c import x\nfrom .one import x as y\n")
    monkeypatch.setattr(evidence, "_KIT", folder)
    return folder


def script(kit: Path, text: str) -> Path:
    path = kit.parents[1] / "plot_it.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "changes_with"),
    [
        ("import torch\n", ""),
        ("from ddplab import launch\n", "a"),
        ("from ddplab.b import f\n", "b c"),
        ("from ddplab import b\n", "b c"),
        ("import ddplab.c\n", "c"),
        ("import ddplab\n", "a"),
        ("def worker():\n    from ddplab.c import x\n", "c"),
        ("from ddplab.many.one import x\n", "many/one"),
        ("from ddplab.many import two\n", "many/two many/one c many/__init__"),
        ("from ddplab import many\n", "many/__init__"),
        ("import ddplab.many.two\n", "many/two many/one c"),
    ],
)
def test_key_changes_with_what_the_script_imports_and_with_nothing_else(kit, text, changes_with):
    path = script(kit, text)
    before = evidence.key(path)
    for name in ("a", "b", "c", "many/__init__", "many/one", "many/two"):
        module = kit / f"{name}.py"
        original = module.read_text()
        module.write_text(original + "# changed\n")
        assert (evidence.key(path) != before) == (name in changes_with.split()), name
        module.write_text(original)
    path.write_text(text + "# changed\n")
    assert evidence.key(path) != before


def test_key_changes_with_a_recipe_that_the_script_names(kit):
    path = script(kit, 'run("hello.py")\n')
    before = evidence.key(path)
    (kit.parent / "recipes" / "hello.py").write_text("pass  # changed\n")
    assert evidence.key(path) != before


def test_key_changes_with_an_exercise_that_the_script_names_and_with_what_grades_it(kit):
    grader = kit.parent / "exercises" / "no-sync" / "grader.py"
    grader.parent.mkdir(parents=True)
    for path in (grader, kit / "cli_grade.py"):
        path.write_text("from ddplab import c\n")
    path = script(kit, 'run("grade", "no-sync")\n')
    for part in (grader, kit / "cli_grade.py", kit / "c.py"):
        before = evidence.key(path)
        part.write_text(part.read_text() + "# changed\n")
        assert evidence.key(path) != before, part


def test_key_names_file_and_line_of_a_syntax_error(kit):
    with pytest.raises(ValueError, match=r"plot_it.py:2: "):
        evidence.key(script(kit, "x = 1\ny = = 2\n"))


def test_key_names_what_the_kit_does_not_have(kit):
    with pytest.raises(ValueError, match="ddplab has no 'nothing'; it exports launch"):
        evidence.key(script(kit, "from ddplab import nothing\n"))


def test_the_real_init_only_reexports():
    """Keys look through it, so nothing else may be in it."""
    import ast

    tree = ast.parse((evidence._KIT / "__init__.py").read_text())
    assert all(isinstance(node, ast.ImportFrom) for node in tree.body[1:])


@pytest.fixture
def recording(tmp_path, kit, monkeypatch):
    monkeypatch.delenv("DDPLAB_EVIDENCE", raising=False)
    path = tmp_path / "plot_it.evidence.json"
    evidence.begin(script(kit, "pass\n"), path)
    yield path
    evidence.end()


def test_record_keeps_values_with_their_unit(recording):
    evidence.record(unit="ms", gap=1.5, steps=3)
    assert json.loads(recording.read_text())["values"] == {
        "gap": {"unit": "ms", "value": 1.5},
        "steps": {"unit": "ms", "value": 3},
    }


def test_record_takes_the_scalars_of_torch(recording):
    import torch

    evidence.record(gap=torch.tensor(0.25))
    assert json.loads(recording.read_text())["values"]["gap"]["value"] == 0.25


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, [1, 2]])
def test_record_refuses_what_prose_cannot_say(recording, value):
    evidence.record(first=1)
    before = recording.read_text()
    with pytest.raises(ValueError, match="record: gap must be a finite number or a string"):
        evidence.record(gap=value)
    assert recording.read_text() == before


def test_record_refuses_a_name_twice(recording):
    evidence.record(gap=1)
    with pytest.raises(ValueError, match="'gap' was recorded before"):
        evidence.record(gap=2)


def test_record_alone_keeps_nothing(monkeypatch):
    monkeypatch.delenv("DDPLAB_EVIDENCE", raising=False)
    evidence.record(gap=1)
    evidence.record(gap=1)
