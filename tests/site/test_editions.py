"""Editions: what recording runs, keeps and resumes, and what the book shows of it.

Each test works in a small house of its own: the real extensions and kit, three short labs, two claims.
"""

import json
import os
import re
import shutil
from io import StringIO
from pathlib import Path

import pytest
from filelock import FileLock

from _ext.evidence import labs
from ddplab.recording import __main__ as recording
from ddplab.recording.edition import Edition
from tiny_book import TinyBook

ROOT = Path(__file__).parents[2]
CONF = """
extensions = ["myst_parser", "_ext.evidence.labs", "_ext.evidence.editions", "sphinx_gallery.gen_gallery",
              "_ext.cards.claims", *("_ext.embed." + name for name in ("lab_page", "lab_embed", "measured",
              "edition_page", "edition_switch", "editions_compared", "when"))]
html_static_path = ["{static}"]
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["**/GALLERY_HEADER.rst", "labs/*/*.ipynb", "labs/*/*.py"]
labs_default_edition = "base"
html_theme = "basic"
suppress_warnings = ["config.cache"]
sphinx_gallery_conf = {
    "examples_dirs": ["../gallery/short"], "gallery_dirs": ["labs/short"], "plot_gallery": False,
    "within_subsection_order": "FileNameSortKey", "image_scrapers": (), "reset_modules": (),
    "show_signature": False, "download_all_examples": False, "write_computation_times": False,
}
"""
LAB = '''"""
Lab {name}
==========

Does it run?

:Level: core, 5 minutes
"""

from ddplab import record

# %%
# Prose of {name}.

open("{log}", "a").write("{name} ")
print("{name} printed")
{code}
record(unit="ms", value={value})
'''
CLAIM = """from proof import proves


@proves("{claim}")
def test_{claim}():
    open("{log}", "a").write("{claim} ")
    assert {holds}
"""


WHEN = """
It ran on {edition}`device`, over {edition}`backend` {when}`cpu: (nothing *here* ran on a GPU)`.

```{when} nccl
:else: NCCL did **not** run.
NCCL *did* run.
```
"""


class House(TinyBook):
    """A small book with labs and claims, and the command that records them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(root, monkeypatch)
        monkeypatch.setattr(recording, "ROOT", root)
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        monkeypatch.delenv("DDPLAB_CLAIMS_RESULTS", raising=False)
        self.capsys = capsys
        self.log = root / "executed"
        self.write("conf.py", CONF.replace("{static}", str(ROOT / "handbook/_static")))
        self.write("gallery/short/GALLERY_HEADER.rst", "Short\n=====\n")
        for name in ("one", "two", "three"):
            self.lab(name)
        self.write("tests/claims/proof.py", "import pytest\n\nproves = pytest.mark.proves\n")
        self.write("pyproject.toml", '[tool.pytest.ini_options]\nmarkers = ["proves(id): a claim"]\n')
        shutil.copy(ROOT / "tests/claims/conftest.py", root / "tests/claims")
        for claim in ("sun", "moon"):
            self.claim(claim)
        chapter = "It took {measured}`two.value`.\n\n```{lab-output} two 1\n```\n\n"
        chapter += "".join(f"```{{claim}} {claim}\nThe {claim} shines.\n```\n\n" for claim in ("sun", "moon"))
        for directive in ("claims-list", "edition-manifest", "editions-compared", "edition-labs"):
            chapter += f"```{{{directive}}}\n```\n\n"
        self.chapters(chapter=chapter + WHEN)
        index = self.root / "handbook/index.md"
        index.write_text(index.read_text().replace("chapter\n", "chapter\nlabs/short/index\n"))

    def lab(self, name: str, code: str = "", value: object = 1) -> None:
        self.write(f"gallery/short/plot_{name}.py", LAB.format(name=name, log=self.log, code=code, value=value))

    def claim(self, claim: str, holds: object = True) -> None:
        self.write(f"tests/claims/test_{claim}.py", CLAIM.format(claim=claim, log=self.log, holds=holds))

    def record(self, *options: str, name: str = "base", status: int = 0) -> set[str]:
        """Record; return what was executed."""
        self.log.write_text("")
        into = ["--into", str(self.root / "gallery" / "editions")]
        assert recording.main([name, *into, *options]) == status, self.capsys.readouterr()
        return set(self.log.read_text().split())

    def kept(self, lab: str, edition: str = "base") -> Path:
        return Edition(self.root / "gallery" / "editions" / edition).lab_file(lab)

    def text(self, built, page: str) -> str:
        return built.page(page).get_text()


@pytest.fixture
def empty(tmp_path, monkeypatch, capsys):
    """A house in which nothing is recorded."""
    return House(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The edition of a house, recorded once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        house = House(tmp_path_factory.mktemp("recorded"), monkeypatch, None)
        assert house.record() == {"one", "two", "three", "sun", "moon"}
        return house.root / "gallery" / "editions"


@pytest.fixture
def house(empty, recorded):
    """A house with a recorded edition, as a fresh clone has it."""
    shutil.copytree(recorded, empty.root / "gallery" / "editions")
    for path in (empty.root / "gallery/short").glob("*.py"):  # the same code as in the house of the recording
        path.write_text(path.read_text().replace(str(empty.log), str(recorded.parents[1] / "executed")))
    for claim in ("sun", "moon"):
        path = empty.root / f"tests/claims/test_{claim}.py"
        path.write_text(path.read_text().replace(str(empty.log), str(recorded.parents[1] / "executed")))
    empty.log = recorded.parents[1] / "executed"
    return empty


# -- what the book shows ----------------------------------------------------------------------------


def test_a_fresh_clone_shows_what_was_recorded_and_executes_nothing(house):
    house.log.write_text("")
    built = house.build()
    assert built.complaints == ""
    assert "It took 1\N{NO-BREAK SPACE}ms." in house.text(built, "chapter")
    assert "two printed" in house.text(built, "chapter")
    page = built.page("labs/short/plot_two")
    assert page.select_one(".sphx-glr-script-out").get_text().strip() == "two printed"
    assert "stale" not in page.get_text()
    assert house.log.read_text() == ""
    house.build(status=(again := StringIO()))
    assert "0 added, 0 changed, 0 removed" in again.getvalue()


def test_changed_prose_is_shown_with_what_was_recorded(house):
    path = house.root / "gallery/short/plot_two.py"
    path.write_text(path.read_text().replace("Prose of two.", "Other prose.").replace("Does it", "Will it"))
    page = house.text(house.build(), "labs/short/plot_two")
    assert "Other prose." in page
    assert "two printed" in page
    assert "stale" not in page


def test_changed_code_is_shown_with_its_old_output_a_mark_and_the_command_that_runs_it(house, capsys):
    house.lab("two", value=5)
    built = house.build(status=(log := StringIO()))
    assert "stale: the code changed since" in house.text(built, "labs/short/plot_two")
    assert "stale" not in house.text(built, "labs/short/plot_one")
    assert "It took 1\N{NO-BREAK SPACE}ms." in house.text(built, "chapter")
    assert "make live LABS='two'" in log.getvalue()


def test_outputs_stay_with_their_code_when_a_block_is_put_before_it(house):
    path = house.root / "gallery/short/plot_two.py"
    path.write_text(path.read_text().replace("# %%\n", "# %%\n# New.\nnew = 1\n\n# %%\n", 1))
    page = house.build().page("labs/short/plot_two")
    above = page.select_one(".sphx-glr-script-out").find_previous("pre").get_text()
    assert "two printed" in above
    assert "new = 1" not in above


def test_a_lab_that_never_ran_says_so(house):
    house.lab("four")
    built = house.build(status=(log := StringIO()))
    assert built.complaints == ""
    assert "This lab has not been run yet." in house.text(built, "labs/short/plot_four")
    assert "make live LABS='four'" in log.getvalue()


def test_what_was_run_here_is_shown_before_the_edition(house):
    house.lab("two", value=5)
    assert recording.main(["here", "--labs", "two", "--no-claims", "--into", str(house.root / "_build/editions")]) == 0
    built = house.build(labs_edition="here")
    assert "It took 5\N{NO-BREAK SPACE}ms." in house.text(built, "chapter")
    assert "one printed" in house.text(built, "labs/short/plot_one")


def test_a_lab_and_a_claim_that_fail_are_shown_as_what_they_are_in_another_edition(house):
    house.lab("two", code="raise RuntimeError('it broke')")
    house.claim("moon", holds=False)
    assert house.record("--fresh", name="other", status=1) == {"one", "two", "three", "sun", "moon"}
    built = house.build(labs_edition="other")
    assert built.complaints == ""
    page = house.text(built, "labs/short/plot_two")
    assert "Does not hold here" in page
    assert "RuntimeError: it broke" in page
    chapter = built.page("chapter")
    assert "not measured here" in chapter.get_text()
    ticks = [tick["title"] for tick in chapter.select(".claim .claim-tick")]
    assert ticks == ["shown by a test", "does not hold in this edition"]
    assert "does not hold here: " in chapter.select_one("#shown-moon").get_text()
    assert "one printed" in house.text(built, "labs/short/plot_one")


def test_what_is_borrowed_from_the_default_edition_says_so(house):
    house.record("--labs", "one", "--no-claims", name="other")
    built = house.build(labs_edition="other")
    assert built.complaints == ""
    assert "It took 1\N{NO-BREAK SPACE}ms\N{NO-BREAK SPACE}(base)." in house.text(built, "chapter")
    assert "from the edition base" in built.page("chapter").select_one(".lab-output .stamp").get_text()
    assert "from the edition base" in house.text(built, "labs/short/plot_two")
    assert "from the edition" not in house.text(built, "labs/short/plot_one")
    assert {tick["title"] for tick in built.page("chapter").select(".claim .claim-tick")} == {
        "has a test, not run in this edition"
    }


def ran_on(house, name, gpus, backends):
    """Say of an edition what its machine has, and what its labs used."""
    path = house.root / f"gallery/editions/{name}/manifest.json"
    kept = json.loads(path.read_text())
    kept["machine"]["gpus"] = gpus
    path.write_text(json.dumps({**kept, "gpus": [f"{len(gpus)} × {gpus[0]}"] if gpus else [], "backends": backends}))


def test_words_follow_the_edition(house):
    ran_on(house, "base", [], ["gloo"])
    text = house.text(house.build(), "chapter")
    assert "over gloo (nothing here ran on a GPU)." in text
    assert "NCCL did not run." in text
    shutil.copytree(house.root / "gallery/editions/base", house.root / "gallery/editions/other")
    ran_on(house, "other", ["H200", "H200"], ["gloo", "nccl"])
    text = house.text(house.build(labs_edition="other"), "chapter")
    assert "It ran on 2 × H200, over gloo and NCCL." in text
    assert "NCCL did run." in text


def test_the_page_of_an_edition_tells_its_machine_and_what_each_lab_used(house):
    path = house.root / "gallery/editions/base/manifest.json"
    ran_on(house, "base", ["H200", "H200"], ["gloo", "nccl"])
    drawing = ["      GPU0  GPU1", "GPU0   X    NV18"]
    hardware = {"gpu memory in MiB": [143771.0] * 2, "power limit in W": [700.0, None], "topology": drawing}
    path.write_text(json.dumps({**json.loads(path.read_text()), "hardware": hardware}))
    facts = {"torch": "2.13.0", "cuda": "13.0", "nccl": "2.28.9", "gpu": "H200", "gpus": 2, "times": 1}
    launches = [{"ranks": ranks, "backend": of, **facts} for ranks, of in ((2, "nccl"), (4, "gloo"))]
    lab = house.kept("one")
    lab.write_text(json.dumps({**json.loads(lab.read_text()), "launches": launches}))
    page = house.build().page("chapter")
    rows = [[cell.get_text().strip("\n") for cell in row.select("th, td")] for row in page.select("table tr")]
    for row in (
        ["GPUs", "2 × H200"],
        ["GPU memory in MiB", "2 × 143,771"],
        ["Power limit in W", "700, none"],
        ["Lab", "Backend", "Ranks", "Run on"],
    ):
        assert row in rows
    assert "\n".join(drawing) in page.get_text()
    assert ["one", "gloo, nccl", "2, 4"] in [row[:3] for row in rows]


def test_conditions_and_facts_that_are_not_known_are_named(house):
    wrong = ["{when}`tpu: text`", "{when}`cpu`", "```{when} gpux\ntext\n```", "{edition}`colour`"]
    house.write("handbook/chapter.md", "# Chapter\n\n" + "\n\n".join(wrong) + "\n")
    for claim in ("sun", "moon"):
        (house.root / f"tests/claims/test_{claim}.py").unlink()
    complaints = house.build().complaints
    assert "chapter.md:3: WARNING: when 'tpu: text': there is no condition 'tpu'; did you mean" in complaints
    assert "chapter.md:5: WARNING: when 'cpu': write {when}`condition: text`" in complaints
    assert "chapter.md:7: WARNING: when 'gpux': there is no condition 'gpux'; did you mean" in complaints
    assert "edition 'colour': there is no such fact about an edition; choose one of name, device" in complaints


@pytest.fixture(scope="module")
def two_editions(tmp_path_factory):
    """A book with two editions, built as the Makefile does; in the other one a lab and a claim do not hold."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        house = House(tmp_path_factory.mktemp("two"), monkeypatch, None)
        house.record()
        house.lab("two", code="raise RuntimeError('it broke')")
        house.lab("three", value=3)
        house.claim("moon", holds=False)
        house.record(name="other", status=1)
        for name in ("two", "three"):
            house.lab(name)
        built = house.build(labs_editions="all")
        below = house.build(labs_editions="all", labs_edition="other", out="html/editions/other")
        assert built.complaints + below.complaints == ""
        return built


def test_what_fails_in_an_edition_is_shown_with_its_output(two_editions):
    below = two_editions.folder / "editions/other"
    lab = (below / "labs/short/plot_two.html").read_text()
    assert "Does not hold here" in lab
    assert lab.index("two printed") < lab.index('class="lab-failed')
    chapter = (below / "chapter.html").read_text()
    assert "Does not hold here" in chapter
    assert re.search(r"claim-failed.*assert\s+False", chapter, re.DOTALL)
    assert 'title="does not hold in this edition"' in chapter
    assert "does not hold" not in two_editions.page("chapter").get_text()


def test_editions_stand_side_by_side(two_editions):
    page = two_editions.page("chapter")
    rows = [[cell.get_text().strip() for cell in row.select("th, td")] for row in page.select("table tr")]
    assert ["Fact", "base", "other"] in rows
    assert ["labs: failed", "0", "1"] in rows
    assert ["claims: passed", "2", "1"] in rows
    assert ["lab", "two", "passed", "failed: RuntimeError: it broke"] in rows
    values = [[cell.get_text().strip() for cell in row.select("th, td")] for row in page.select("details table tr")]
    three = ["value", "1\N{NO-BREAK SPACE}ms", "3\N{NO-BREAK SPACE}ms"]
    assert values[1:3] == [["three"], three]
    assert ["one"] not in values  # the same in both
    assert "Only the edition" not in page.get_text()


def test_without_a_second_edition_there_is_no_switch(house):
    built = house.build(labs_editions="all")
    assert not built.page("chapter").select(".edition-switch, script[src*=editions]")
    assert "Only the edition base is recorded so far." in house.text(built, "chapter")


def test_the_reader_switches_between_editions_and_the_choice_is_remembered(two_editions, browser):
    """From the disk, without a server."""
    start = two_editions.folder.as_uri()
    context, plain = browser.new_context(), browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(f"{start}/chapter.html#the-chapter-chapter")
        assert "It took 1" in page.inner_text("body")
        page.click(".edition-switch a >> text=other")
        page.wait_for_url(f"{start}/editions/other/chapter.html**")
        assert "not measured here" in page.inner_text("body")
        page.goto(f"{start}/labs/short/plot_two.html?x=1#plot")  # a link to the default edition
        page.wait_for_url(f"{start}/editions/other/labs/short/plot_two.html?x=1#plot")
        assert "Does not hold here" in page.inner_text("body")
        page.reload()
        assert "/editions/other/" in page.url
        page.click(".edition-switch a >> text=base")
        page.wait_for_url(f"{start}/labs/short/plot_two.html**")
        page.reload()
        assert "/editions/" not in page.url
        page = plain.new_page()
        page.goto(f"{start}/chapter.html")
        assert "It took 1" in page.inner_text("body")
        page.click(".edition-switch a >> text=other")
        assert page.url == f"{start}/editions/other/chapter.html"
        page.click(".edition-switch a >> text=base")
        assert page.url == f"{start}/chapter.html"
    finally:
        context.close()
        plain.close()


def test_the_default_edition_may_not_have_failures(house):
    house.lab("two", code="raise RuntimeError('it broke')")
    house.record("--labs", "two", "--no-claims", status=1)
    built = house.build()
    assert "the lab two failed in the default edition" in built.error
    assert "it broke" in built.error
    house.lab("two")
    house.claim("moon", holds=False)
    house.record(status=1)
    assert "the claim 'moon' failed in the edition base" in house.build().complaints


def test_an_unknown_edition_is_named_with_those_that_exist(house):
    expected = "there is no edition 'nothing' (make edition NAME=nothing would record it); choose one of base"
    assert house.build(labs_edition="nothing").error == expected


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"values": {}}'])
def test_a_damaged_file_of_an_edition_is_named(house, damage):
    house.kept("one").write_text(damage)
    error = house.build().error
    assert f"{house.kept('one')} is damaged" in error
    assert "make edition NAME=" in error


def test_a_missing_figure_is_named(house):
    kept = json.loads(house.kept("one").read_text())
    kept["blocks"][0]["figures"] = [{"file": "one-1.svg", "alt": "x"}]
    house.kept("one").write_text(json.dumps(kept))
    assert re.search(r"labs/one-1.svg is missing; restore it with git", house.build().error)


def test_of_two_builds_the_second_waits_for_the_first(house):
    lock = FileLock(house.root / "_build/building.lock")
    lock.acquire()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        with open(writer, "w", buffering=1) as log:
            os._exit(bool(house.build(status=log).error))
    os.close(writer)
    with open(reader) as log:
        assert any("waiting until it is done" in line for line in log)
        assert not (house.root / "_build/html/index.html").exists()
        lock.release()
        log.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (house.root / "_build/html/index.html").exists()


# -- recording --------------------------------------------------------------------------------------


def test_recording_again_runs_what_changed_and_nothing_else(house):
    assert house.record() == set()
    house.lab("one", value=5)
    house.claim("sun", holds="1 + 1")
    assert house.record() == {"one", "sun"}
    assert json.loads(house.kept("one").read_text())["values"]["value"]["value"] == 5


def test_an_interrupted_recording_goes_on_where_it_stopped(empty):
    empty.lab("three", code="import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        empty.record("--no-claims")
    assert {path.stem for path in empty.kept("one").parent.glob("*.json")} == {"one"}, "three comes before two"
    empty.lab("three")
    assert empty.record() == {"two", "three", "sun", "moon"}


def test_a_budget_ends_in_time_and_the_next_call_goes_on(empty):
    assert empty.record("--budget", "0.001", status=3) == set()
    assert "the budget is used up; 3 labs and 2 tests of claims left" in empty.capsys.readouterr().err
    assert empty.record("--no-claims") == {"one", "two", "three"}
    assert empty.record("--budget", "0.001", status=3) == set(), "claims are left"
    assert empty.record("--budget", "600") == {"sun", "moon"}


def test_a_lab_that_fails_is_recorded_so_and_the_others_go_on(empty):
    empty.lab("two", code="raise RuntimeError('it broke')")
    assert empty.record("--no-claims", status=1) == {"one", "two", "three"}
    kept = json.loads(empty.kept("two").read_text())
    assert kept["failed"].splitlines()[-1] == "RuntimeError: it broke"
    assert kept["blocks"][1]["printed"] == ["two printed"]
    assert "two failed" in empty.capsys.readouterr().err
    assert empty.record("--no-claims", status=1) == {"two"}, "what failed is tried again"


@pytest.mark.parametrize(("fact", "value"), [("torch", "2.13.0+cu130"), ("gpus", ["H200"]), ("driver", "580.1")])
def test_what_another_machine_recorded_is_run_again(house, monkeypatch, fact, value):
    from ddplab.recording.machine import machine

    there = {**machine(), fact: value}
    for path in (house.root / "gallery/editions").glob("base/*/*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "machine": there}))
    assert house.record() == {"one", "two", "three", "sun", "moon"}


def test_labs_that_disagree_about_the_machine_fail_the_edition(empty):
    empty.record("--no-claims")
    kept = json.loads(empty.kept("one").read_text())
    kept["machine"]["driver"] = "580.1"
    kept["launches"] = [
        {"ranks": 2, "backend": "nccl", "torch": "2", "gpu": "H200", "gpus": 1, "nccl": "2", "times": 1}
    ]
    empty.kept("one").write_text(json.dumps(kept))
    problems = Edition(empty.kept("one").parents[1]).write_manifest()
    assert any("ran on another machine: driver" in problem for problem in problems)
    assert any("one saw 1 GPUs, and the machine has 0" in problem for problem in problems)


def test_labs_and_claims_that_are_gone_leave_the_edition(house):
    (house.root / "gallery/short/plot_two.py").unlink()
    (house.root / "tests/claims/test_moon.py").unlink()
    house.record()
    left = {path.name for path in house.kept("one").parents[1].rglob("*.json")}
    assert left == {"one.json", "three.json", "test_sun.json", "manifest.json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["../up"], "edition name '../up': use small letters, digits and hyphens"),
        (["base", "--labs", "nothing"], "there is no lab 'nothing'"),
        (["base", "--budget", "-1"], "--budget -1: give a positive number of seconds"),
    ],
)
def test_bad_arguments_are_answered_with_what_is_wrong(empty, arguments, message):
    with pytest.raises(SystemExit):
        recording.main(arguments)
    assert message in empty.capsys.readouterr().err


def test_the_real_labs_are_all_recorded_in_the_default_edition():
    missing = [name for name in labs.all_labs() if labs.edition("cpu-gloo").lab(name) is None]
    assert missing == []
