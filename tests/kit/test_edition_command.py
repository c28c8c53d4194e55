"""``ddplab edition``: what differs between two editions, and archives that carry one, also hostile ones."""

import json
import shutil
import stat
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from refusal import refused

from ddplab import cli
from ddplab.cli import edition as cli_edition
from ddplab.recording import archive
from ddplab.recording.edition_folder import Edition
from tools import ROOT

MACHINE = {"cpu": "Some CPU", "cores": 2, "gpus": [], "driver": None, "python": "3.11.7", "system": "Linux"}
MACHINE |= {"torch": "2.13.0+cpu", "cuda": None, "nccl": None}
LAUNCH = {"ranks": 2, "times": 1, "backend": "gloo", "torch": "2.13.0", "cuda": None, "nccl": None, "gpu": None}
LAUNCH |= {"gpus": 0}
HEAD = '<?xml version="1.0" encoding="utf-8" standalone="no"?>'
SVG = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">{}</svg>'
GOOD = '<defs><style type="text/css">*{fill: none}</style></defs><use xlink:href="#a" clip-path="url(#b)"/>'
DATE = "2026-01-02T03:04:05+00:00"


def lab(**changes: object) -> dict:
    blocks = [
        {"code": "12345678", "printed": ["a"]},
        {"code": "abcdefab", "figures": [{"file": "one-1.svg", "alt": ""}]},
    ]
    kept = {"key": "0" * 16, "date": DATE, "seconds": 1.5, "machine": MACHINE, "launches": [LAUNCH], "blocks": blocks}
    return kept | {"values": {"gap": {"value": 2.0, "unit": "ms"}}, "read": []} | changes


def claims(**outcomes: str) -> dict:
    about = {"key": "1" * 16, "date": DATE, "seconds": 0.5, "launches": [LAUNCH], "read": []}
    about["test"] = "tests/claims/test_it.py::test_it"
    return {"machine": MACHINE, "results": {claim: {**about, "outcome": outcomes[claim]} for claim in outcomes}}


def write(folder: Path, first: dict, results: dict) -> Edition:
    edition = Edition(folder)
    edition.write_lab("one", first, {"one-1.svg": HEAD + SVG.format(GOOD)})
    edition.write_lab("two", lab(blocks=[], values={}), {})
    (folder / "claims").mkdir()
    (folder / "claims/test_it.json").write_text(json.dumps(results))
    edition.write_manifest()
    return edition


@pytest.fixture
def editions(tmp_path):
    """Two editions: of a GPU, and of a CPU where a lab and a claim failed."""
    folder = tmp_path / "editions"
    write(folder / "cpu", lab(), claims(sun="passed", moon="passed"))
    gpu = MACHINE | {"gpus": ["H200"], "driver": "580.1"}
    blocks = [{"code": "12345678"}, lab()["blocks"][1]]
    values = {"gap": {"value": 0.5, "unit": "ms"}, "more": {"value": "nccl", "unit": ""}}
    h200 = write(folder / "h200", lab(machine=gpu, blocks=blocks, values=values), claims(sun="failed", stars="passed"))
    h200.write_lab("two", lab(machine=gpu, blocks=[], values={}, failed="Traceback\nValueError: it broke"), {})
    h200.write_manifest({"gpu memory in MiB": [143771.0]})
    return folder


def ask(capsys, *arguments: object) -> tuple[int, str]:
    code = cli.main(["edition", *map(str, arguments)])
    return code, capsys.readouterr().out


# -- diff -------------------------------------------------------------------------------------------


def test_diff_tells_machines_results_values_and_outputs_apart(editions, capsys):
    code, said = ask(capsys, "diff", "cpu", "h200", "--editions", editions)
    assert code == 1
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for line in (
        "gpus none H200",
        "driver - 580.1",
        "gpu memory in MiB - 143771",
        "Labs and claims: 1 came out the same, 4 did not.",
        "lab two passed failed ValueError: it broke",
        "not in h200: 1 claim: moon",
        "not in cpu: 1 claim: stars",
        "claim sun passed failed",
        "Measured values: 0 are equal, 2 are not.",
        "one.gap 2 ms 0.5 ms × 0.25",
        "one.more - nccl",
        "one block 1 text nothing",
    ):
        assert line in lines, said
    assert not any(line.startswith(("cpu Some", "torch")) for line in lines), "they agree"


def test_diff_gives_all_of_it_as_json(editions, capsys):
    code, said = ask(capsys, "diff", "cpu", editions / "h200", "--editions", editions, "--json")
    found = json.loads(said)
    assert (code, found["a"], found["b"]) == (1, "cpu", "h200")
    assert {"name": "torch", "a": "2.13.0+cpu", "b": "2.13.0+cpu"} in found["facts"]
    gap = {"lab": "one", "name": "gap", "a": 2.0, "b": 0.5, "unit_a": "ms", "unit_b": "ms", "ratio": 0.25}
    assert gap in found["values"]


def test_an_edition_does_not_differ_from_its_copy(editions, capsys):
    shutil.copytree(editions / "cpu", editions / "copy")
    assert ask(capsys, "diff", "cpu", "copy", "--editions", editions)[0] == 0


def test_values_of_other_units_or_beside_zero_have_no_ratio(editions, capsys):
    edition = Edition(editions / "h200")
    edition.write_lab("one", lab(values={"gap": {"value": 0, "unit": "s"}}), {"one-1.svg": SVG})
    for names in (("cpu", "h200"), ("h200", "cpu")):
        found = json.loads(ask(capsys, "diff", *names, "--editions", editions, "--json")[1])
        assert [value["ratio"] for value in found["values"]] == [None]


def test_unusable_editions_are_refused_in_one_line(editions, capsys):
    here = ("--editions", editions)
    assert "unknown edition 'h20'; did you mean 'h200'?" in refused(capsys, "edition", "diff", "cpu", "h20", *here)
    assert "cpu and cpu are the same edition; name two different ones" in refused(
        capsys, "edition", "diff", "cpu", "cpu", *here
    )
    (editions / "cpu/labs/one.json").write_text("{")
    assert "labs/one.json is damaged" in refused(capsys, "edition", "diff", "cpu", "h200", *here)


def test_list_names_each_edition_with_its_machine(editions, capsys):
    lines = [line.split() for line in ask(capsys, "list", "--editions", editions)[1].splitlines()]
    assert [line[0] for line in lines] == ["edition", "cpu", "h200"]
    assert "H200" in lines[2]


# -- archives ---------------------------------------------------------------------------------------


@pytest.fixture
def packed(editions, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_edition, "_EDITIONS", tmp_path / "default")  # never the book's own, should a refusal fail
    return archive.pack(Edition(editions / "cpu"), tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_archive_brings_the_edition_and_is_the_same_bytes_each_time(editions, tmp_path, capsys):
    said = ask(capsys, "archive", "cpu", "--editions", editions, "--into", tmp_path)[1]
    first = (tmp_path / "cpu.zip").read_bytes()
    assert "make edition-unpack FILE=cpu.zip" in said
    shutil.copytree(editions / "cpu", tmp_path / "again" / "cpu")
    assert archive.pack(Edition(tmp_path / "again" / "cpu"), tmp_path / "again").read_bytes() == first
    there = tmp_path / "there"
    code, said = ask(capsys, "unpack", tmp_path / "cpu.zip", "--editions", there)
    assert (code, "added; make html EDITION=cpu" in said) == (0, True)
    assert contents(there / "cpu") == contents(editions / "cpu")
    assert "unchanged" in ask(capsys, "unpack", tmp_path / "cpu.zip", "--editions", there)[1]


def test_the_default_edition_can_be_carried(tmp_path):
    default = Edition(ROOT / "gallery/editions/cpu-gloo")
    unpacked, outcome = archive.unpack(archive.pack(default, tmp_path), tmp_path / "there")
    assert outcome == "added"
    assert contents(unpacked.folder) == contents(default.folder)


def test_a_newer_edition_is_not_overwritten_unless_asked_for(editions, packed, capsys):
    mine = Edition(editions / "cpu")
    mine.write_lab("two", lab(blocks=[], values={}, date="2026-05-05T00:00:00+00:00"), {})
    before = contents(editions)
    said = refused(capsys, "edition", "unpack", packed, "--editions", editions)
    assert "was recorded until 2026-01-02" in said
    assert "until 2026-05-05" in said
    assert contents(editions) == before
    assert "replaced" in ask(capsys, "unpack", packed, "--editions", editions, "--replace")[1]
    assert mine.lab("two")["date"] == DATE


def test_an_older_edition_is_replaced(editions, packed, capsys):
    Edition(editions / "cpu").write_lab("two", lab(blocks=[], values={}, date="2025-05-05T00:00:00+00:00"), {})
    results = editions / "cpu/claims/test_it.json"
    results.write_text(results.read_text().replace("2026", "2025"))
    one = editions / "cpu/labs/one.json"
    one.write_text(one.read_text().replace("2026", "2025"))
    assert "replaced" in ask(capsys, "unpack", packed, "--editions", editions)[1]
    assert sorted(path.name for path in editions.iterdir()) == ["cpu", "h200"]


def forge(packed: Path, changes: dict[str, object], *, name: str = "cpu", link: str = "", honest: bool = True) -> Path:
    """An archive with other files; their checksums fit unless it is not honest. None takes a file away."""
    with zipfile.ZipFile(packed) as old:
        files = {entry.removeprefix("cpu/"): old.read(entry) for entry in old.namelist()}
    for path, content in changes.items():
        text = json.dumps(content) if isinstance(content, dict) else content
        files[path] = text.encode() if isinstance(text, str) else text
    files = {path: content for path, content in files.items() if content is not None}
    if honest and "archive.json" not in changes:
        sums = {path: sha256(content).hexdigest() for path, content in files.items() if path != "archive.json"}
        files["archive.json"] = json.dumps({"format": 1, "edition": name, "sha256": sums}).encode()
    forged = packed.with_name("forged.zip")
    with zipfile.ZipFile(forged, "w", zipfile.ZIP_DEFLATED) as new:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path if path.startswith(("/", "..")) else f"{name}/{path}")
            kind = stat.S_IFLNK if path == link else stat.S_IFREG
            entry.external_attr, entry.compress_type = (kind | 0o644) << 16, zipfile.ZIP_DEFLATED
            new.writestr(entry, content)
    return forged


def block(**changes: object) -> dict:
    return lab(blocks=[{"code": "12345678", **changes}, lab()["blocks"][1]])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"../evil.json": "{}"}, "'../evil.json' does not belong"),
        ({"/tmp/evil.json": "{}"}, "'/tmp/evil.json' does not belong"),
        ({"labs/../../evil.json": "{}"}, "does not belong in an archive"),
        ({"labs/evil.py": "x"}, "'cpu/labs/evil.py' does not belong"),
        ({"manifest.json": None}, "manifest.json is missing"),
        ({"manifest.json": {"edition": "h200", "machine": {}, "dates": []}}, "is of the edition 'h200'"),
        ({"archive.json": None}, "archive.json is not JSON"),
        ({"archive.json": {"format": 2, "edition": "cpu", "sha256": {}}}, "archive.json is of format 2"),
        ({"labs/one.json": "{"}, "labs/one.json is not JSON"),
        ({"labs/one.json": "[" * 100_000}, "labs/one.json is not JSON"),
        ({"labs/one.json": "[1]"}, "labs/one.json is not an object"),
        ({"labs/one.json": {**lab(), "key": "none"}}, "labs/one.json: key is 'none'"),
        ({"labs/one.json": {k: v for k, v in lab().items() if k != "key"}}, "labs/one.json lacks 'key'"),
        ({"labs/one.json": lab(values={"gap": {"value": [1], "unit": ""}})}, "values: gap: value is [1]"),
        ({"labs/one.json": lab(values={"gap": {"value": True, "unit": ""}})}, "values: gap: value is True"),
        ({"labs/one.json": json.dumps(lab()).replace("2.0", "NaN")}, "NaN is not a number"),
        ({"labs/one.json": json.dumps(lab()).replace("2.0", "1e999")}, "value is inf"),
        ({"labs/one.json": block(printed="text")}, "printed is not a list"),
        ({"labs/one.json": block(figures=[{"file": "../x.svg", "alt": ""}])}, "shows '../x.svg'"),
        ({"labs/one.json": block(figures=[{"file": "one-2.svg", "alt": ""}])}, "shows 'one-2.svg', which is missing"),
        ({"labs/two-1.svg": SVG}, "labs/two-1.svg is shown by no lab"),
        ({"claims/test_it.json": {"machine": {}, "results": {"a": {}}}}, "results: a lacks 'outcome'"),
        ({"claims/test_it.json": claims(sun="perhaps")}, "outcome is 'perhaps'"),
        ({"labs/one-1.svg": b"\xff\xfe<"}, "is not SVG"),
        ({"labs/one-1.svg": b"0" * (17 << 20)}, "is larger than 16 MiB"),
    ],
)
def test_an_archive_with_what_does_not_belong_there_is_refused_and_nothing_is_written(packed, changes, why, capsys):
    there = packed.parent / "there"
    said = refused(capsys, "edition", "unpack", forge(packed, changes), "--editions", there)
    assert why in said
    assert "forged.zip: " in said
    assert not there.exists()


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        '<g onload="alert(1)"/>',
        '<a href="https://example.org"><text>x</text></a>',
        '<image href="https://example.org/x.png"/>',
        '<image href="data:image/svg+xml;base64,AAAA"/>',
        '<use xlink:href="other.svg#a"/>',
        "<style>@import 'x.css'</style>",
        "<style>* {fill: url(https://example.org/x)}</style>",
        "<style>* {fill: u\\72l(https://example.org/x)}</style>",
        "<rect style=\"fill: url( 'https://example.org/x')\"/>",
        '<set attributeName="href" to="javascript:alert(1)"/>',
        "<foreignObject/>",
        '<style xmlns="http://www.w3.org/1999/xhtml"/>',
        "<![CDATA[<script>]]>",
        "<?xml-stylesheet href='x.css'?>",
        "<g>",
    ],
)
def test_a_drawing_that_could_run_or_load_something_is_refused(packed, inside, capsys):
    there = packed.parent / "there"
    forged = forge(packed, {"labs/one-1.svg": HEAD + SVG.format(inside)})
    assert "labs/one-1.svg " in refused(capsys, "edition", "unpack", forged, "--editions", there)
    assert not there.exists()


def test_entities_and_other_encodings_are_refused(packed, capsys):
    bomb = '<!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;">]>' + SVG.format("<text>&b;</text>")
    hidden = '<?xml version="1.0" encoding="cp037"?>' + SVG
    for svg in (bomb, hidden):
        assert "has a declaration" in refused(capsys, "edition", "unpack", forge(packed, {"labs/one-1.svg": svg}))


def test_links_wrong_names_and_wrong_checksums_are_refused(packed, capsys):
    assert "'cpu/labs/one.json' is a link" in refused(
        capsys, "edition", "unpack", forge(packed, {}, link="labs/one.json")
    )
    assert "its edition is named '..'" in refused(capsys, "edition", "unpack", forge(packed, {}, name=".."))
    changed = forge(packed, {"labs/two.json": lab(blocks=[])}, honest=False)
    assert "labs/two.json is damaged" in refused(capsys, "edition", "unpack", changed)
    more = forge(packed, {"labs/more.json": lab(blocks=[])}, honest=False)
    assert "labs/more.json is missing, or not in archive.json" in refused(capsys, "edition", "unpack", more)


def test_what_is_cut_changed_or_no_archive_is_refused(packed, tmp_path, capsys):
    assert "no such file" in refused(capsys, "edition", "unpack", tmp_path / "nothing.zip")
    whole = packed.read_bytes()
    for cut in (b"", whole[:100], whole[:-30]):
        packed.write_bytes(cut)
        assert "not an archive of an edition" in refused(capsys, "edition", "unpack", packed)
    middle = bytearray(whole)
    middle[150] ^= 255
    packed.write_bytes(middle)
    assert "cpu.zip: " in refused(capsys, "edition", "unpack", packed)


def test_an_edition_with_a_stray_file_is_not_packed(editions, tmp_path, capsys):
    (editions / "cpu/notes.txt").write_text("mine")
    said = refused(capsys, "edition", "archive", "cpu", "--editions", editions, "--into", tmp_path / "out")
    assert "notes.txt does not belong in an edition" in said
    assert not (tmp_path / "out").exists()
