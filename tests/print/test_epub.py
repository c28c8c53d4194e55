"""The EPUB: valid for epubcheck, and complete."""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from sample_book import sample

from _ext.print.epub_package import in_reading_order
from tools import PATIENCE_S, need


@pytest.fixture(scope="module")
def path(sample_epub: Path) -> Path:
    return sample_epub / "sample.epub"


def read(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode("utf-8", "replace") for name in archive.namelist()}


@pytest.fixture(scope="module")
def files(path: Path) -> dict[str, str]:
    return read(path)


def check(epub: Path) -> subprocess.CompletedProcess[str]:
    """Run epubcheck; Debian installs a jar, others a script."""
    program = need("epubcheck", "epubcheck")
    jar = Path(program).read_bytes()[:2] == b"PK"
    command = [need("java", "default-jre-headless"), "-jar", program] if jar else [program]
    lean = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}  # it runs for seconds only
    return subprocess.run([*command, str(epub)], capture_output=True, text=True, env=lean, timeout=PATIENCE_S)


def test_epubcheck_finds_nothing(path):
    done = check(path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 warnings" in done.stdout + done.stderr or "No errors or warnings" in done.stdout + done.stderr


def test_drawings_are_files_with_a_description(files):
    page = files["first.xhtml"]
    assert "<svg" not in page
    images = re.findall(r"<img [^>]*>", page)
    assert any('alt="A bar for each rank"' in image for image in images)
    assert all('alt="' in image for image in images)
    for source in re.findall(r'src="([^"]+)"', page):
        assert source in files


def test_formulas_are_mathml_and_declared(files):
    page = files["first.xhtml"]
    formulas = re.findall(r"<math [^>]*>", page)
    assert len(formulas) == 3
    assert all('xmlns="http://www.w3.org/1998/Math/MathML"' in formula for formula in formulas)
    assert r'alttext="\bar g = \frac{1}{p}\sum_r g_r"' in formulas[0]
    assert 'display="inline"' in formulas[0]
    assert [formula for formula in formulas if 'display="block"' in formula] == formulas[1:]
    package = files["content.opf"]
    assert re.search(r'href="first.xhtml"[^>]*properties="mathml"', package)
    assert not re.search(r'href="second.xhtml"[^>]*properties', package)


def test_cover_landmarks_and_what_the_book_can_be_read_with(files):
    package, navigation = files["content.opf"], files["nav.xhtml"]
    assert re.search(r'href="_static/epub-cover.png"[^>]*properties="cover-image"', package)
    first = re.search(r'<itemref idref="([^"]*)"', package)[1]
    assert re.search(rf'<item href="epub-cover.xhtml" id="{first}"|<item id="{first}" href="epub-cover.xhtml"', package)
    for fact in ("accessMode", "accessModeSufficient", "accessibilityFeature", "accessibilityHazard"):
        assert f'<meta property="schema:{fact}">' in package
    landmarks = navigation.partition('epub:type="landmarks"')[2]
    assert re.findall(r'epub:type="(\w+)" href="([^"]+)"', landmarks) == [
        ("cover", "epub-cover.xhtml"),
        ("bodymatter", "first.xhtml"),
    ]
    assert "epub-cover.xhtml" in files


def test_folds_and_tabs_are_complete_without_scripts(files):
    page = files["first.xhtml"]
    for part in ("Content of the fold.", "First tab", "Content of the first tab.", "content_of_the_second_tab"):
        assert part in page
    assert "<input" not in page
    assert "<script" not in page


def test_only_what_pages_use_is_inside(files):
    assert not [name for name in files if name.endswith((".js", ".woff2", ".zip", ".ipynb")) or "print.css" in name]


def test_contents_list_chapters_and_labs(files):
    assert all(title in files["nav.xhtml"] for title in ("The first chapter", "The lab one", "The second chapter"))


def test_contents_lead_forwards(files):
    contents = files["nav.xhtml"].partition('epub:type="landmarks"')[0]
    places = re.findall(r'<a href="(second[^"]*|more[^"]*)"', contents)
    assert [place.rpartition("#")[2] for place in places] == [
        "second.xhtml", "second-target", "labs-of-this-chapter", "more/index.xhtml", "more/page.xhtml",
    ]  # fmt: skip


def test_a_second_build_leaves_nothing_of_the_first(sample_epub, files, tmp_path):
    again = tmp_path / "_build" / "epub"
    shutil.copytree(sample_epub, again)
    (again / "old.xhtml").write_text(files["second.xhtml"], encoding="utf-8")
    (again / "_images" / "old.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", encoding="utf-8")
    assert not sample(tmp_path).build("epub").error
    found = read(again / "sample.epub")
    assert sorted(found) == sorted(files)
    when = r"\d{4}-\d\d-\d\dT[\d:]+Z"
    differ = [name for name in files if re.sub(when, "", found[name]) != re.sub(when, "", files[name])]
    assert differ == [], "else epubcheck had to look at it, too"


def test_pages_listed_below_a_section_follow_its_page():
    def entries(*places: str) -> list[dict[str, object]]:
        return [{"level": int(place[0]), "refuri": place[2:], "text": place} for place in places]

    def order(*places: str) -> list[str]:
        return [f"{entry['level']} {entry['refuri']}" for entry in in_reading_order(entries(*places))]

    assert order("1 a", "2 a#one", "3 b", "4 b#one", "3 c", "2 a#two", "3 d", "1 e", "2 f") == [
        "1 a", "2 a#one", "2 a#two", "2 b", "3 b#one", "2 c", "2 d", "1 e", "2 f",
    ]  # fmt: skip
    as_it_was = "1 a", "2 a#one", "2 a#two", "3 b", "4 b#one", "4 c", "1 d"
    assert order(*as_it_was) == list(as_it_was)
