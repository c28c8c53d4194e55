"""What changed between two programs, as a page shows it."""

import pytest

from tiny_book import Built, TinyBook

OLD = """\"\"\"Stage 1.\"\"\"

import a


LIMIT = 1


def f():
    one()
    two()
    three()
    four()
    five()
    six()
"""
NEW = (
    OLD.replace("Stage 1", "Stage 2")
    .replace("import a", "import a\nimport b")
    .replace("= 1", "= 2")
    .replace("six()", "seven()")
)


WRONG = {
    "nowhere": "../gallery/nowhere.py cannot be compared: [Errno 2]",
    "old": "do not differ",
    "broken": "broken.py cannot be compared: '(' was never closed",
    "binary": "binary.py cannot be compared: 'utf-8' codec can't decode",
}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """A page for each comparison, built twice; before the second build, a program was changed."""
    made = TinyBook(tmp_path_factory.mktemp("book"))
    made.write("gallery/old.py", OLD)
    for name in ("new", "later"):
        made.write(f"gallery/{name}.py", NEW)
    made.write("gallery/broken.py", "def f(a\n")
    made.write("gallery/binary.py", "").write_bytes(b"\xff\xfe")
    names = ("new", "later", *WRONG)
    made.chapters(**{name: f"```{{code-diff}} ../gallery/old.py ../gallery/{name}.py\n```\n" for name in names})
    first = made.build()
    made.rewrite("gallery/later.py", "seven", "eight")
    return [first, made.build()]


def shown(built: Built, name: str) -> list[str]:
    return built.page(name).find("pre").get_text().rstrip().splitlines()


def test_only_what_changed_stands_on_the_page_without_headers_docstrings_and_imports(builds: list[Built]) -> None:
    assert shown(builds[0], "new") == [
        "-LIMIT = 1",
        "+LIMIT = 2",
        "",
        "",
        "⋯",
        "     four()",
        "     five()",
        "-    six()",
        "+    seven()",
    ]
    assert "from old.py to new.py" in builds[0].page("new").find(class_="stamp").get_text()


def test_a_changed_program_changes_the_page(builds: list[Built]) -> None:
    assert {"later"} == set(builds[1].written) - {"index", *WRONG}
    assert "+    eight()" in shown(builds[1], "later")


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_compared_is_named_with_its_line(builds: list[Built], name: str) -> None:
    assert WRONG[name] in builds[0].about(name)
    assert f"{name}.md:3" in builds[0].about(name)
