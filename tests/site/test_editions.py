"""Editions: what recording runs, keeps and resumes, and what the book shows of it.

Each house is a small book with the real extensions and kit, three short labs and two claims.
"""

import json
import os
import re
import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from filelock import FileLock

from _ext.evidence import lab_source
from ddplab.recording import __main__ as recording
from ddplab.recording.edition_folder import Edition
from tiny_book import LAUNCH, Built, TinyBook
from tools import ROOT

CONF = """
extensions = ["myst_parser", "_ext.evidence.lab_source", "_ext.evidence.editions", "sphinx_gallery.gen_gallery",
              "_ext.cards.claim_marks", *("_ext.embed." + name for name in ("lab_page", "lab_lists", "lab_embed",
              "lab_cards", "waiting", "measured", "edition_page", "edition_switch", "editions_compared", "when"))]
lab_card_documents = "chapter"
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

import os

from ddplab import record

# %%
# What it will show
# -----------------
# A line by *{name}*.
#
# And what ``print`` does.

# %%
# Prose of {name}.

open(os.environ["EXECUTED"], "a").write("{name} ")
print("{name} printed")
{code}
record(unit="ms", value={value})
'''
CLAIM = """import os

from proof import proves


@proves("{claim}")
def test_{claim}():
    open(os.environ["EXECUTED"], "a").write("{claim} ")
    assert {holds}
"""

WHEN = """
Recorded {edition}`machines`.
It ran on {edition}`device`, over {edition}`backend` {when}`cpu: (nothing *here* ran on a GPU)`.

```{when} nccl
:else: NCCL did **not** run.
NCCL *did* run.
```
"""
PRINTED = "```{{lab-output}} {0} 1\n```\n\n"


class House(TinyBook):
    """A small book with labs and claims, and the command that records them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.log, self.said = root / "executed", StringIO()
        self.log.touch()
        self.write("conf.py", CONF.replace("{static}", str(ROOT / "handbook/_static")))
        self.write("gallery/short/GALLERY_HEADER.rst", "Short\n=====\n")
        for name in ("one", "two", "three"):
            self.lab(name)
        self.write("tests/claims/proof.py", "import pytest\n\nproves = pytest.mark.proves\n")
        self.write("pyproject.toml", '[tool.pytest.ini_options]\nmarkers = ["proves(id): a claim"]\n')
        shutil.copy(ROOT / "tests/claims/conftest.py", root / "tests/claims")
        for claim in ("sun", "moon"):
            self.claim(claim)
        chapter = "It took {measured}`two.value`.\n\n" + PRINTED.format("two")
        chapter += "".join(f"```{{claim}} {claim}\nThe {claim} shines.\n```\n\n" for claim in ("sun", "moon"))
        for directive in ("claims-list", "edition-manifest", "editions-compared", "edition-labs"):
            chapter += f"```{{{directive}}}\n```\n\n"
        self.chapters(["labs/short/index"], chapter=chapter + WHEN)

    def lab(self, name: str, code: str = "", value: object = 1) -> None:
        self.write(f"gallery/short/plot_{name}.py", LAB.format(name=name, code=code, value=value))

    def claim(self, claim: str, holds: object = True) -> None:
        self.write(f"tests/claims/test_{claim}.py", CLAIM.format(claim=claim, holds=holds))

    def record(self, *options: str, name: str = "base", into: str = "gallery/editions", status: int = 0) -> set[str]:
        """Record; return what was executed. ``said`` has what went wrong."""
        self.log.write_text("")
        self.said = StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stderr(self.said):
            patch.setattr(recording, "ROOT", self.root)
            patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
            patch.setenv("EXECUTED", str(self.log))
            assert recording.main([name, "--into", str(self.root / into), *options]) == status
        return set(self.log.read_text().split())

    def kept(self, lab: str, edition: str = "base") -> Path:
        return Edition(self.root / "gallery" / "editions" / edition).lab_file(lab)

    def change(self, path: Path, **entries: object) -> None:
        """Change entries of a file of an edition."""
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    def ran_on(self, edition: str, gpus: list[str], backends: list[str], **entries: object) -> None:
        """Say of an edition what its machine has, and what its labs used."""
        path = self.root / f"gallery/editions/{edition}/manifest.json"
        machine = {**json.loads(path.read_text())["machine"], "gpus": gpus}
        count = [f"{len(gpus)} × {gpus[0]}"] if gpus else []
        self.change(path, machine=machine, gpus=count, backends=backends, **entries)

    def another_edition(self, name: str, gpus: list[str], day: int, **entries: object) -> None:
        """A copy of the default edition, from another machine and day; ``entries`` are those of its lab two."""
        shutil.copytree(self.root / "gallery/editions/base", self.root / f"gallery/editions/{name}")
        self.ran_on(name, gpus, ["gloo"])
        machine = {**json.loads(self.kept("two").read_text())["machine"], "gpus": gpus}
        for lab in self.kept("two", name).parent.glob("*.json"):
            self.change(lab, machine=machine)
        self.change(self.kept("two", name), date=f"2026-11-{day:02}T07:00:00", **entries)

    def could_not_run(self, *names: str, edition: str = "base") -> None:
        """Have an edition that lacks what these labs need."""
        for name in names:
            self.change(self.kept(name, edition), needs="needs a GPU", blocks=[], launches=[], values={})


def cells(page: BeautifulSoup, rows: str = "table tr") -> list[list[str]]:
    """The words of each row of tables."""
    return [[cell.get_text().strip() for cell in row.select("th, td")] for row in page.select(rows)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The edition of a house, recorded once."""
    house = House(tmp_path_factory.mktemp("recorded"))
    assert house.record() == {"one", "two", "three", "sun", "moon"}
    return house.root / "gallery" / "editions"


@pytest.fixture(scope="module")
def new_house(recorded, tmp_path_factory):
    """Makes houses with a recorded edition, as a fresh clone has it."""

    def make() -> House:
        house = House(tmp_path_factory.mktemp("house"))
        shutil.copytree(recorded, house.root / "gallery" / "editions")
        return house

    return make


@pytest.fixture
def house(new_house):
    """A house with a recorded edition."""
    return new_house()


# -- what the book shows ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh(new_house):
    """A fresh clone, built twice as the Makefile does, and the logs of both builds.

    One lab has other prose than when it was recorded, another other code, a third a new block; a fourth never ran.
    """
    house, logs = new_house(), [StringIO(), StringIO()]
    house.ran_on("base", [], ["gloo"])
    one, three = (house.root / f"gallery/short/plot_{name}.py" for name in ("one", "three"))
    one.write_text(one.read_text().replace("Prose of one.", "Other prose.").replace("Does it", "Will it"))
    house.lab("two", value=5)
    three.write_text(three.read_text().replace("# %%\n", "# %%\n# New.\nnew = 1\n\n# %%\n", 1))
    house.lab("four")
    built, _ = (house.build(labs_editions="all", status=log) for log in logs)
    return house, built, *(log.getvalue() for log in logs)


def test_a_fresh_clone_shows_what_was_recorded_and_executes_nothing(fresh):
    house, built, _, again = fresh
    assert built.complaints == ""
    assert "It took 1 ms." in built.text("chapter")
    assert house.log.read_text() == ""
    assert "0 added, 0 changed, 0 removed" in again
    assert not built.page("chapter").select(".edition-switch, script[src*=editions]")
    assert "Only the edition base is recorded so far." in built.text("chapter")


def test_changed_prose_is_shown_with_what_was_recorded(fresh):
    page = fresh[1].page("labs/short/plot_one")
    assert "Other prose." in page.get_text()
    assert page.select_one(".sphx-glr-script-out").get_text().strip() == "one printed"
    assert "stale" not in page.get_text()


def test_changed_code_is_shown_with_its_old_output_a_mark_and_the_command_that_runs_it(fresh):
    _, built, log, _ = fresh
    assert "stale: the code changed since" in built.text("labs/short/plot_two")
    assert "make live LABS='four three two'" in log
    assert "This lab has not been run yet." in built.text("labs/short/plot_four")
    above = built.page("labs/short/plot_three").select_one(".sphx-glr-script-out").find_previous("pre").get_text()
    assert "three printed" in above, "outputs stay with their code when a block is put before it"
    assert "new = 1" not in above


def test_what_was_run_here_is_shown_before_the_edition(fresh):
    house = fresh[0]
    house.record("--labs", "two", "--no-claims", name="here", into="_build/editions")
    built = house.build(labs_edition="here", out="here")
    assert "It took 5 ms." in built.text("chapter")
    assert "one printed" in built.text("labs/short/plot_one")


@pytest.fixture(scope="module")
def several(new_house):
    """A house whose default edition could not run the lab two, and others that could, or do not have the lab three."""
    house = new_house()
    house.write("handbook/lent.md", "# Lent\n\nIt took {measured}`three.value`.\n\n" + PRINTED.format("three"))
    house.rewrite("handbook/index.md", "chapter\n", "chapter\nlent\n")
    value = [{"value": {"value": number, "unit": "ms"}} for number in range(10)]
    house.another_edition("failing", ["H200"] * 4, 20, values=value[3], failed="RuntimeError: it broke")
    house.another_edition("newest", [], 28, values=value[4])
    house.another_edition("older", ["H200"], 21, values=value[5])
    house.another_edition("wanted", ["H100"], 22, values=value[6])
    house.another_edition("wanted-too", ["H100"], 22, values=value[7])
    house.could_not_run("two")
    house.could_not_run("two", edition="older")
    house.kept("three", "newest").unlink()
    shutil.rmtree(house.kept("two", "newest").parents[1] / "claims")
    return house


def test_what_is_borrowed_from_the_default_edition_says_so(several):
    built = several.build(labs_edition="newest", out="newest")
    assert built.complaints == ""
    assert "It took 1 ms (base)." in built.text("lent")
    assert "from the edition base" in built.page("lent").select_one(".lab-output .stamp").get_text()
    assert "from the edition base" in built.text("labs/short/plot_three")
    assert "from the edition" not in built.text("labs/short/plot_one")
    assert "It took 4 ms." in built.text("chapter")
    ticks = {tick["title"] for tick in built.page("chapter").select(".claim .claim-tick")}
    assert ticks == {"has a test, not run in this edition"}


def test_what_the_default_edition_could_not_run_is_shown_from_one_that_could(several):
    built = several.build()
    assert "It took 6 ms (wanted)." in built.text("chapter")
    assert "from the edition wanted" in built.page("chapter").select_one(".lab-output .stamp").get_text()
    assert "2026-11-22" in built.text("labs/short/plot_two")
    of_two = [row for row in cells(built.page("chapter"), "table.no-print tr") if row[0] == "two"]
    assert [row[-1] for row in of_two] == ["from the edition wanted"]
    chosen = several.build(labs_edition="older", out="older")
    assert "It took 6" in chosen.text("chapter"), "also where one that could not was chosen"


WAITING = """
# Waiting for a GPU

```{labs-waiting}
These wait.
```
"""


@pytest.fixture
def waiting(house):
    """A house in which no edition could run the lab two, with a page for such labs."""
    house.write("handbook/reference/waiting.md", WAITING)
    house.rewrite("handbook/index.md", "chapter\n", "chapter\nreference/waiting\n")
    house.rewrite("handbook/chapter.md", "It took", "```{lab-links} one two\n```\n\n```{lab-links} two\n```\n\nIt took")
    house.could_not_run("two")
    return house


def listed(built: Built, page: str, names: str) -> list[str]:
    """The labs that a page lists."""
    return [name.get_text() for name in built.page(page).select(names)]


def test_a_lab_that_no_edition_has_run_stands_on_one_page_and_leaves_it_by_itself(waiting):
    built = waiting.build()
    assert built.complaints == ""
    assert listed(built, "reference/waiting", "h2") == ["Lab two¶"]
    section = built.page("reference/waiting").select_one("#waiting-two")
    assert [part.get_text() for part in section.select("p")] == [
        "Does it run?",
        "A line by two.",
        "And what print does.",
        "It needs a GPU. Run it: python gallery/short/plot_two.py · download the script",
    ]
    assert section.select_one("em, code")
    assert section.select("a[href='../labs/short/plot_two.html']")
    chapter = built.page("chapter")
    assert not [link for link in chapter.select("a") if "plot_two" in link["href"]]
    assert not chapter.select(".lab-output, .admonition")
    assert "It took not measured yet." in chapter.get_text()
    assert "Lab: Lab one." in chapter.get_text()
    assert listed(built, "chapter", ".lab-card-title") == ["Lab one", "Lab three"]
    assert listed(built, "labs/short/index", "dt a") == ["Lab one", "Lab three"]
    assert "plot_two" not in str(built.page("labs/short/plot_three")), "nor is it what comes next"
    note = built.page("labs/short/plot_two").select_one(".admonition")
    assert "Waiting for a GPU. This lab needs a GPU; no edition shows it yet." in note.get_text()
    assert note.a["href"] == "../../reference/waiting.html"

    ran = {"values": {"value": {"value": 8, "unit": "ms"}}, "blocks": [{"code": "", "printed": ["two printed"]}]}
    waiting.another_edition("gpu", ["H200"], 28, needs="", **ran)
    built = waiting.build()
    assert built.complaints == ""
    assert "No lab is waiting" in built.text("reference/waiting")
    assert "These wait." not in built.text("reference/waiting")
    assert "It took 8 ms (gpu)." in built.text("chapter")
    assert "Labs: Lab one, Lab two." in built.text("chapter")
    assert listed(built, "chapter", ".lab-card-title") == ["Lab one", "Lab three", "Lab two"]
    assert "Lab two" in listed(built, "labs/short/index", "dt a")
    assert not built.page("labs/short/plot_two").select(".admonition")


def test_a_gallery_of_waiting_labs_leaves_the_lists_and_every_form_is_made(waiting):
    waiting.could_not_run("one", "three")
    waiting.rewrite("handbook/chapter.md", "# The chapter chapter\n", "# The chapter chapter\n\n```{labs}\n```\n")
    built = waiting.build()
    assert built.complaints == ""
    assert "No edition has run these labs yet. Waiting for a GPU" in built.text("labs/short/index")
    assert "labs/" not in str(built.page("index").select_one(".toctree-wrapper"))
    assert not built.page("chapter").select(".all-labs a, .lab-cards")
    assert "/handbook/" not in waiting.build("epub").complaints, "no warning is about a page"


DRAWING = ["      GPU0  GPU1", "GPU0   X    NV18"]


def test_words_follow_the_edition_and_its_page_tells_its_machine(fresh, house):
    assert "over gloo (nothing here ran on a GPU)." in fresh[1].text("chapter")
    assert "NCCL did not run." in fresh[1].text("chapter")
    assert "cores); none on a GPU yet." in fresh[1].text("chapter")
    house.another_edition("other", ["H200"] * 2, 28)
    hardware = {"gpu memory in MiB": [143771.0] * 2, "power limit in W": [700.0, None], "topology": DRAWING}
    house.ran_on("other", ["H200"] * 2, ["gloo", "nccl"], hardware=hardware)
    facts = {"torch": "2.13.0", "cuda": "13.0", "nccl": "2.28.9", "gpu": "H200", "gpus": 2, "times": 1}
    launches = [{"ranks": ranks, "backend": of, **facts} for ranks, of in ((2, "nccl"), (4, "gloo"))]
    house.change(house.kept("one", "other"), launches=launches)
    page = house.build(labs_edition="other").page("chapter")
    assert re.search(r"Recorded on a CPU \(.*, \d+ cores\) and on 2 × H200\.", page.get_text())
    assert "It ran on 2 × H200, over gloo and NCCL." in page.get_text()
    assert "NCCL did run." in page.get_text()
    rows = cells(page)
    assert ["GPUs", "2 × H200"] in rows
    assert ["GPU memory in MiB", "2 × 143,771"] in rows
    assert ["Power limit in W", "700, none"] in rows
    assert ["Lab", "Backend", "Ranks", "Run on"] in rows
    assert ["one", "gloo, nccl", "2, 4"] in [row[:3] for row in rows]
    assert "\n".join(DRAWING) in page.get_text()


SHARED = {**LAUNCH, "backend": "nccl", "torch": "2.11.0", "nccl": "2.28.9", "gpu": "H200", "gpus": 1, "times": 1}
SHARED |= {"shared": "NCCL_HOSTID"}


def test_the_machines_of_all_editions_are_named_and_ranks_that_share_a_gpu_say_so(house):
    house.ran_on("base", [], ["gloo"])
    house.another_edition("card", ["H200"], 28, launches=[SHARED, {**SHARED, "ranks": 1, "shared": None}])
    house.another_edition("other-card", ["H100"], 28)
    for lab in ("one", "three"):
        house.change(house.kept(lab, "card"), launches=[SHARED], values={})
    house.change(house.kept("two", "card"), values={"value": {"value": 8, "unit": "MiB"}})
    built = house.build(labs_edition="card")
    assert built.complaints == ""
    said = re.search("Recorded (.*?)\\.\n", built.text("chapter"))[1]
    assert re.fullmatch(r"on a CPU \(.*, \d+ cores\), on 1 × H200 and on 1 × H100; none on two GPUs yet", said)
    shown = "2 ranks sharing one GPU · nccl · 1 × H200 · torch 2.11.0 · NCCL 2.28.9"
    assert shown in built.text("labs/short/plot_one")
    assert "1 and 2 ranks, of which 2 sharing one GPU · nccl" in built.text("labs/short/plot_two")
    assert "2 ranks sharing one GPU · nccl, by NCCL_HOSTID" in built.text("chapter")


def test_no_form_shows_a_time_of_ranks_that_share_a_gpu(house):
    """Decks and cards show what the web build has selected."""
    house.rewrite(
        "conf.py", '"_ext.cards.claim_marks"', '"_ext.cards.claim_marks", "_ext.cards.cards", "_ext.cards.flashcards"'
    )
    units = ["ms", "µs", "s", "GB/s", "samples/s", "TFLOP/s", "seconds", "steps per second"]
    units += ["ms/step", "Gbps", "MiB", "%", "buckets", ""]
    values = {f"v{number}": {"value": 8, "unit": unit} for number, unit in enumerate(units)}
    house.another_edition("card", ["H200"], 28, launches=[SHARED], values=values)
    refused = "the lab two of the edition card launched ranks that share a GPU, and "
    for builder in ("html", "epub", "anki"):
        assert house.build(builder).error == (
            f"{refused}recorded v0 (ms), v1 (µs), v2 (s), "
            "v3 (GB/s), v4 (samples/s), v5 (TFLOP/s), v6 (seconds), v7 (steps per second), v8 (ms/step), v9 (Gbps): "
            "such ranks take turns, so this is no time of DDP; record it without DDPLAB_SHARE_GPU=1"
        )
    house.lab("two", code="import time; time.perf_counter()")  # whatever a value is called: a ratio of times is one
    house.change(house.kept("two", "card"), values={"ratio": {"value": 2, "unit": ""}})
    assert house.build().error.startswith(f"{refused}reads a clock: ")


def test_conditions_and_facts_that_are_not_known_are_named(house):
    wrong = ["{when}`tpu: text`", "{when}`cpu`", "```{when} gpux\ntext\n```", "{edition}`colour`"]
    house.write("handbook/chapter.md", "# Chapter\n\n" + "\n\n".join(wrong) + "\n")
    complaints = house.build("dummy").complaints
    assert "chapter.md:3: WARNING: when 'tpu: text': there is no condition 'tpu'; did you mean" in complaints
    assert "chapter.md:5: WARNING: when 'cpu': write {when}`condition: text`" in complaints
    assert "chapter.md:7: WARNING: when 'gpux': there is no condition 'gpux'; did you mean" in complaints
    assert "edition 'colour': there is no such fact about an edition; choose one of name, device" in complaints


@pytest.fixture(scope="module")
def two_editions(new_house):
    """A book with two editions, built as the Makefile does; in the other one a lab and a claim do not hold."""
    house = new_house()
    house.lab("two", code="raise RuntimeError('it broke')")
    house.lab("three", value=3)
    house.claim("moon", holds=False)
    assert house.record(name="other", status=1) == {"one", "two", "three", "sun", "moon"}
    assert "two failed" in house.said.getvalue()
    assert house.record("--no-claims", name="other", status=1) == {"two"}, "what failed is tried again"
    for name in ("two", "three"):
        house.lab(name)
    built = house.build(labs_editions="all")
    below = house.build(labs_editions="all", labs_edition="other", out="html/editions/other")
    assert built.complaints + below.complaints == ""
    return built, below


def test_a_lab_and_a_claim_that_fail_in_another_edition_are_shown_as_what_they_are_with_their_output(two_editions):
    built, below = two_editions
    lab = str(below.page("labs/short/plot_two"))
    assert "Does not hold here" in lab
    assert "RuntimeError: it broke" in below.text("labs/short/plot_two")
    assert lab.index("two printed") < lab.index('class="lab-failed')
    assert "one printed" in below.text("labs/short/plot_one")
    page = below.page("chapter")
    assert "Does not hold here" in page.get_text()
    assert re.search(r"claim-failed.*assert\s+False", (below.folder / "chapter.html").read_text(), re.DOTALL)
    assert "not measured here" in page.get_text()
    ticks = [tick["title"] for tick in page.select(".claim .claim-tick")]
    assert ticks == ["shown by a test", "does not hold in this edition"]
    assert "does not hold here: " in page.select_one("#shown-moon").get_text()
    assert "does not hold" not in built.text("chapter")


def test_editions_stand_side_by_side(two_editions):
    page = two_editions[0].page("chapter")
    rows = cells(page)
    assert ["Fact", "base", "other"] in rows
    assert ["labs: failed", "0", "1"] in rows
    assert ["claims: passed", "2", "1"] in rows
    assert ["lab", "two", "passed", "failed: RuntimeError: it broke"] in rows
    values = cells(page, "details table tr")
    assert values[1:3] == [["three"], ["value", "1\N{NO-BREAK SPACE}ms", "3\N{NO-BREAK SPACE}ms"]]
    assert ["one"] not in values  # the same in both
    assert "Only the edition" not in page.get_text()


def test_the_reader_switches_between_editions_and_the_choice_is_remembered(two_editions, browser):
    """From the disk, without a server."""
    start = two_editions[0].folder.as_uri()
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


MISSING = [{"code": "0", "figures": [{"file": "one-1.svg", "alt": "x"}]}]


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ({"failed": "RuntimeError: it broke"}, "the lab one failed in the default edition:\nRuntimeError: it broke"),
        ({"blocks": MISSING}, r"labs/one-1\.svg is missing; restore it with git"),
        *((damage, r"labs/one\.json is damaged.*make edition NAME=") for damage in ("", "{", "[1]", '{"values": {}}')),
    ],
)
def test_an_edition_that_cannot_be_shown_ends_the_build(house, kept, says):
    if isinstance(kept, str):
        house.kept("one").write_text(kept)
    else:
        house.change(house.kept("one"), **kept)
    assert re.search(says, house.build().error)


def test_an_unknown_edition_is_named_with_those_that_exist(house):
    expected = "there is no edition 'nothing' (make edition NAME=nothing would record it); choose one of base"
    assert house.build(labs_edition="nothing").error == expected


@pytest.mark.parametrize("running", ["building", "epub"])
def test_a_build_of_pages_waits_for_every_other_build(house, running):
    lock = FileLock(house.root / f"_build/{running}.lock")
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


def test_forms_that_are_made_of_the_pages_do_not_wait_for_each_other(house):
    house.build()
    log, known = StringIO(), house.root / "_build/doctrees-html/environment.pickle"
    before = known.read_bytes()
    with FileLock(house.root / "_build/anki.lock"):
        assert not house.build("epub", status=log, out="html").error
    assert "waiting" not in log.getvalue()
    assert known.read_bytes() == before, "read by all of them"


def test_a_lab_that_proves_a_claim_leads_to_it_and_another_processor_is_named(house):
    """Of an edition that two machines recorded: its page names both, and each lab that was not run on the first."""
    level = ":Level: core, 5 minutes\n"
    house.rewrite("gallery/short/plot_three.py", level, f"{level}:Proves: stars\n")
    chapter = house.root / "handbook/chapter.md"
    chapter.write_text(chapter.read_text() + "\n```{claim} stars\nThey shine.\n```\n")
    there = {**json.loads(house.kept("three").read_text())["machine"], "cpu": "Another", "cores": 64}
    house.change(house.kept("three"), machine=there)
    assert Edition(house.kept("three").parents[1]).write_manifest(timed=lambda lab: False) == []
    built = house.build()
    assert built.complaints == ""
    page = built.page("labs/short/plot_three")
    assert page.select_one(".lab-proves a")["href"] == "../../chapter.html#claim-stars"
    assert "Proves:" not in page.get_text()
    assert "Another, 64 cores" in page.select_one(".stamp").get_text()
    said = " ".join(built.text("chapter").split())
    assert "Also on Another, 64 cores labs and claims: 1" in said
    assert said.count("on Another, 64 cores") == 2, "beside the lab in the list, too"
    assert built.page("chapter").select_one("#claim-stars .claim-tick")["title"] == "shown by a lab"
    assert "Another, 64 cores" in built.page("chapter").select_one("#shown-stars").get_text()


# -- recording: more of it in kit/test_recording.py ---------------------------------------------------


def test_recording_again_runs_what_changed_and_nothing_else(house):
    assert house.record() == set()
    house.lab("one", value=5)
    house.claim("sun", holds="1 + 1")
    assert house.record("--budget", "0.001", status=3) == set()
    assert "the budget is used up; 1 lab and 1 test of claims left" in house.said.getvalue()
    assert house.record("--budget", "600") == {"one", "sun"}
    assert json.loads(house.kept("one").read_text())["values"]["value"]["value"] == 5
    (house.root / "gallery/short/plot_two.py").unlink()
    (house.root / "tests/claims/test_moon.py").unlink()
    assert house.record() == set()
    left = {path.name for path in house.kept("one").parents[1].rglob("*.json")}
    assert left == {"one.json", "three.json", "test_sun.json", "manifest.json"}, "what is gone leaves the edition"


def test_labs_that_disagree_about_the_machine_fail_the_edition(house):
    kept = json.loads(house.kept("one").read_text())
    seen = {"ranks": 2, "backend": "nccl", "torch": "2", "gpu": "H200", "gpus": 1, "nccl": "2", "times": 1}
    house.change(house.kept("one"), machine={**kept["machine"], "driver": "580.1"}, launches=[seen])
    problems = Edition(house.kept("one").parents[1]).write_manifest()
    assert any("ran on another machine: driver" in problem for problem in problems)
    assert any("one saw 1 GPUs, and the machine has 0" in problem for problem in problems)


def test_the_real_labs_are_all_recorded_in_the_default_edition():
    missing = [name for name in lab_source.all_labs() if not lab_source.edition("cpu-gloo").lab_file(name).exists()]
    assert missing == []
