"""The PDFs, read back: what a reader sees on each page, and what a screen reader gets."""

import functools
import itertools
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import pytest
from printed import Printed
from pypdf import PdfReader
from sample_book import LISTING, sample

from _ext.building import patches
from _ext.building.patches import correct_page_references
from _ext.print import weasy
from _ext.problems import BuildError
from tools import ROOT

FLAT = re.compile(r"\s+")
SHEET = ROOT / "handbook" / "_static" / "print.css"
SHEETS = ((SHEET, SHEET.read_text(encoding="utf-8")),)


class Pdf(PdfReader):
    """A PDF of which what takes long to read is read once."""

    @cached_property
    def texts(self) -> list[str]:
        """The text of each page."""
        return [page.extract_text() for page in self.pages]

    @cached_property
    def places(self) -> dict[str, int]:
        """The page (from 1) of each place that a link can lead to."""
        return {name: self.get_destination_page_number(place) + 1 for name, place in self.named_destinations.items()}


@pytest.fixture(scope="module")
def read(sample_pdfs: Path) -> Callable[[str], Pdf]:
    """The PDF of a name."""
    return functools.cache(lambda name: Pdf(sample_pdfs / f"{name}.pdf"))


@pytest.fixture(scope="module")
def printed(sample_pdfs: Path) -> Callable[[str], Printed]:
    """The same, as `Printed` reads it."""
    return functools.cache(lambda name: Printed(sample_pdfs / f"{name}.pdf"))


@pytest.fixture(scope="module")
def headings(printed: Callable[[str], Printed]) -> dict[str, int]:
    """The page (from 1) of each bookmark of the handbook."""
    return {title: page for _, title, page in printed("sample").bookmarks()}


@pytest.fixture(scope="module")
def whole(read: Callable[[str], Pdf]) -> Pdf:
    return read("sample")


@pytest.fixture(scope="module")
def texts(whole: Pdf) -> list[str]:
    return whole.texts


@pytest.fixture(scope="module")
def labs(read: Callable[[str], Pdf]) -> Pdf:
    return read("sample-labs")


def _only_page_with(texts: list[str], text: str) -> int:
    pages = [number for number, content in enumerate(texts, 1) if text in content]
    assert len(pages) == 1, f"{text!r} is on pages {pages}"
    return pages[0]


def test_a_pdf_for_the_handbook_for_the_labs_and_for_each_chapter(sample_pdfs):
    names = {path.stem for path in sample_pdfs.iterdir()}
    assert names == {"sample", "sample-labs", "first", "second", "second-labs", "third"}


@pytest.mark.core
def test_cover_names_the_book_and_its_edition(texts):
    for line in (
        "The Sample Book",
        "A book for tests",
        "Edition sample",
        "A processor, 2 cores",
        "Executed 2026-01-02",
    ):
        assert line in texts[0]


@pytest.mark.core
def test_bookmarks_lead_from_chapters_to_sections(printed):
    found = [(depth, title) for depth, title, _ in printed("sample").bookmarks()]
    assert (0, "The first chapter") in found
    assert (1, "Lists and folds") in found
    assert (0, "The second chapter") in found
    assert {depth for depth, _ in found} == {0, 1}
    titles = {title for _, title in found}
    assert "A list of pages" not in titles, "an empty list is left out, and its pages are not"
    assert "A page below" in titles
    found = [(depth, title) for depth, title, _ in printed("sample-labs").bookmarks()]
    assert found[-2:] == [(0, "Labs"), (1, "The lab one")]  # and no section of a lab


@pytest.mark.parametrize(("name", "listed"), [("sample", 50), ("sample-labs", 2), ("first", 4), ("third", 41)])
def test_contents_state_the_pages_where_headings_are(printed, read, name, listed):
    """In print, as links, and as bookmarks; beside its number each page names the book."""
    printed(name).check(listed, words=20)
    book = "The Sample Book: The lab companion" if name == "sample-labs" else "The Sample Book"
    for _, page, number in printed(name).contents:
        foot = read(name).texts[page - 1].rstrip().splitlines()[-1]
        assert foot in {f"{number} {book}", f"{book} {number}"}


@pytest.mark.core
def test_every_line_of_code_is_complete(whole, texts):
    printed = FLAT.sub("", "".join(re.sub(r"^.*A long listing\n|\n\d+$", "", text) for text in texts))
    for line in LISTING.splitlines():
        assert FLAT.sub("", line) in printed, line


def test_nothing_reaches_into_the_margins(printed):
    width, _ = printed("sample").size
    for number, words in enumerate(printed("sample").words[1:], 2):
        inner, outer = 24 / 25.4 * 72 - 0.5, 26 / 25.4 * 72 - 0.5  # mm, as of a bound book
        room = (inner, outer) if number % 2 else (outer, inner)
        outside = [text for left, _, right, _, text in words if left < room[0] or right > width - room[1]]
        assert not outside, f"page {number}"


def test_letter_is_another_paper_and_others_are_refused(tmp_path):
    book = sample(tmp_path)
    built = book.build("bookpdf", bookpdf_paper="letter", bookpdf_only="second")
    assert not built.error, built.complaints
    letter = Printed(built.folder / "second.pdf")
    assert {tuple(map(float, page.mediabox[2:])) for page in letter.reader.pages} == {(612, 792)}
    for left, _, right, bottom, text in letter.words[-1]:
        assert 70 < left < right < 612 - 70, text
        assert bottom < 792 - 25, text  # a printer reaches within 6 mm of the edge, 17 points
    refused = book.build("bookpdf", bookpdf_paper="quarto").error
    assert "bookpdf_paper is 'quarto'; it can be a4 or letter" in refused


def test_code_has_one_size_that_can_be_read(whole, texts):
    sizes = set()

    def visit(text, matrix, place, font, size):
        if text.strip() and "Code" in str((font or {}).get("/BaseFont", "")):
            sizes.add(round(size * place[0] * matrix[0], 1))

    whole.pages[_only_page_with(texts, "line_100 = ") - 1].extract_text(visitor_text=visit)
    assert sizes == {8.5}


def test_folds_and_tabs_are_printed_with_their_labels(texts):
    text = "\n".join(texts)
    for part in ("A fold’s title", "Content of the fold.", "First tab", "Content of the first tab.", "Second tab"):
        assert part in text
    assert "content_of_the_second_tab = True" in text
    assert text.index("First tab") < text.index("Content of the first tab") < text.index("Second tab")
    assert "Because the last layer" in text


def test_what_the_fonts_do_not_have_is_written_in_words(texts):
    assert "GLHF! <beach with umbrella>" in " ".join("\n".join(texts).split())


def test_footnotes_stand_at_the_foot_of_the_page_of_their_call(printed, texts):
    page = _only_page_with(texts, "A paragraph with a footnote.")
    assert _only_page_with(texts, "The text of footnote one") == page
    assert _only_page_with(texts, "The text of footnote two.") == page
    _, height = printed("sample").size
    tops = [top for _, top, _, _, text in printed("sample").words[page - 1] if text == "footnote" and top > height / 2]
    assert len(tops) == 2
    assert min(tops) > 0.8 * height


def test_figures_and_formulas_are_vectors(whole, texts):
    assert all(not page.images for page in whole.pages)
    page = whole.pages[_only_page_with(texts, "Bytes that each rank sends") - 1]
    fonts = {str(font.get_object()["/BaseFont"]) for font in page["/Resources"]["/Font"].values()}
    assert any("Source-Sans" in font for font in fonts)
    assert not any("DejaVu" in font for font in fonts), fonts


def test_cross_references_state_their_page_and_others_do_not(headings, texts):
    target = headings["A target section"]
    text = "\n".join(texts[4:])
    assert re.search(rf"the other chapter\s+\(p\.\s+{target}\)", text)
    assert re.search(r"to The lab one\s+\(lab\s1\)", text)
    assert "(p." not in "".join(texts[1:4])
    assert "✓ (p." not in text
    assert "Equation (1) is a mean" in FLAT.sub(" ", text)


def test_addresses_are_printed_in_further_reading_only(texts):
    text = "\n".join(texts)
    assert "https://example.org/paper.pdf" in text
    assert "https://example.org/a/long/path" not in text


def test_running_heads_name_chapter_and_section(texts):
    page = _only_page_with(texts, "line_100 = ")
    assert "The first chapter" in texts[page - 1]
    assert "A long listing" in texts[page - 1]
    assert texts[page - 1].rstrip().endswith(str(page))


def test_a_chapter_alone_is_its_pages_of_the_handbook(whole, read, headings):
    reader = read("first")
    text = "\n".join(reader.texts)
    assert "The lab one" not in text
    assert "A target section" not in text
    assert "The Sample Book" in reader.texts[0]
    pages = [headings[title] for title in ("The first chapter", "The second chapter")]
    assert f"Pages {pages[0]} to {pages[1] - 1} of The Sample Book" in reader.texts[0]
    assert reader.texts[2:-1] == whole.texts[pages[0] - 1 : pages[1] - 1]
    assert reader.page_labels == ["i", "ii", *map(str, range(*pages)), "iii"]


def test_a_chapter_alone_has_the_works_that_it_cites(read):
    reader = read("first")
    assert "[7] The work that the first chapter cites." in FLAT.sub(" ", reader.texts[-1])
    assert "A work that it does not" not in "".join(reader.texts)
    assert reader.places["second--work-one"] == len(reader.pages)  # where the link of "[7]" leads


def test_the_labs_of_a_chapter_are_pages_of_the_companion(labs, read, printed):
    page = next(page for _, title, page in printed("sample-labs").bookmarks() if title == "The lab one")
    alone = read("second-labs")
    assert alone.page_labels == ["i", "ii", str(page)]
    assert alone.texts[2] == labs.texts[page - 1]
    assert alone.metadata.title == "The second chapter: labs · The Sample Book"
    listed = FLAT.sub(" ", read("sample").texts[-2])
    assert re.search(rf"1 The lab one[ ·]+{page}\b", listed)
    listed = FLAT.sub(" ", read("second").texts[-1])
    assert f"1 The lab one gallery/lab_one.py {page}" in listed


def test_the_index_names_pages_of_terms_calls_variables_and_messages(whole, texts):
    assert texts[-1].startswith("Index")
    index = FLAT.sub(" ", texts[-1])
    for word, said in (
        ("all_reduce", "The call all_reduce() adds"),
        ("NCCL_DEBUG", "NCCL_DEBUG says more"),
        ("bucket", "A parcel."),
        ("Ranks disagree about the number of parameters …", "RuntimeError: Ranks disagree"),
    ):
        assert f"{word} {_only_page_with(texts, said)}" in index


def test_a_figure_that_moves_on_the_web_says_where(texts):
    text = FLAT.sub(" ", texts[_only_page_with(texts, "A ring, step by step.") - 1])
    assert "A ring, step by step. It moves in the web book: first.html#a-stepper" in text


def test_places_of_the_index_have_numbers_that_another_build_gives_them_too(whole):
    places = {name for name in whole.named_destinations if re.match("index-[^-]", name)}
    assert places == {f"index-{number}" for number in range(1, len(places) + 1)} != set()


def test_rights_stand_behind_the_cover(texts):
    assert "Text may be shared with credit." in texts[1]
    assert "© The authors" in texts[1]


def test_answers_stand_at_the_end_of_their_chapter(texts):
    question = _only_page_with(texts, "How many buckets?")
    answer = _only_page_with(texts, "Two hold them.")
    assert re.search(r"1\.\s*Answer: B", texts[answer - 1])
    assert texts[answer - 1].index("Further reading") < texts[answer - 1].index("Answers")
    assert re.search(rf"Answers\s+\(p\.\s+{answer}\)", texts[question - 1])


def test_addresses_names_and_options_are_not_hyphenated(texts):
    text = "\n".join(texts)
    name = "https://docs.example.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
    assert re.search(r"\s?".join(map(re.escape, name)), text)  # on two lines, without a hyphen
    lines = texts[_only_page_with(texts, "$ torchrun --nnodes=2") - 1].splitlines()
    for option in ("--nproc-per-node=8", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=job42"):
        assert any(option in line for line in lines), option


def test_a_line_is_not_broken_in_its_first_word(texts):
    """WeasyPrint would leave "Mo-" alone on a line, where the tick does not fit behind the text."""
    text = "\n".join(texts)
    assert re.search(r"Momentum and Adam states stay equal on all ranks although they", text)
    assert not re.search(r"^Mo", text.replace("Momentum", ""), re.MULTILINE)


def test_a_reference_names_the_page_where_its_heading_came_to_stand(tmp_path):
    """Where a reference is set before its heading, the number is a guess, so that its page is set once."""
    there = '<p>See <a class="page-reference" data-page="3" href="#x">there</a>.</p>'
    there += '<h2 id="x" style="break-before: page">There</h2>'
    document = weasy.lay_out(there, SHEETS, "reference.pdf")
    correct_page_references(document, {"x": 77})
    weasy.write(document, tmp_path / "reference.pdf")
    assert "See there (p. 77)." in FLAT.sub(" ", PdfReader(tmp_path / "reference.pdf").pages[0].extract_text())


def test_an_equation_does_not_touch_its_number():
    drawn = '<svg class="math-svg" viewBox="0 0 900 20" style="width:60em;height:2em"><path d="M 0 0 L 900 20"/></svg>'
    line = f'<div class="math-scroll"><div class="math-line">{drawn}</div></div><span class="eqno">(16.12)</span>'
    document = weasy.lay_out(f'<div class="math display">{line}</div>', SHEETS, "equation.pdf")
    boxes = list(document.pages[0]._page_box.descendants())
    drawing = next(box for box in boxes if str(box.element_tag).endswith("svg"))
    number = next(box for box in boxes if box.element is not None and box.element.get("class") == "eqno")
    assert drawing.position_x + drawing.width < number.position_x - 4


def test_two_columns_are_of_equal_length_after_a_few_layouts(monkeypatch):
    """WeasyPrint alone lays these out more than a hundred times: a pixel longer each time, and twice for the margin."""
    weasy.load_weasyprint()
    from weasyprint.layout import block

    layout, columns = block.block_container_layout, []

    def counted(context, box, *rest):
        columns.extend([box] if box.is_column else [])
        return layout(context, box, *rest)

    monkeypatch.setattr(block, "block_container_layout", counted)
    whole = f"<p>{'Text.<br>' * 6}</p>"
    sheet = "div { columns: 2; margin-bottom: 9px } p { break-inside: avoid; margin: 0; line-height: 15px }"
    document = weasy.lay_out(f"<div>{whole * 5}</div>", ((ROOT / "sheet.css", sheet),), "columns.pdf")
    set_columns = [box for box in document.pages[0]._page_box.descendants() if getattr(box, "is_column", False)]
    assert [len(column.children) for column in set_columns] == [3, 2]
    assert set_columns[0].height == 270
    assert len(columns) < 40


def test_a_page_drawn_for_two_pdfs_is_the_same_in_both(tmp_path):
    """Both hyphens are one glyph: what copying it gives is what the page itself says."""
    body = (
        "<p>all-reduce</p>"
        + "<p style='break-before: page; opacity: .5'>B</p>"
        + "<p style='break-before: page'>C‐D</p>"
    )
    document = weasy.lay_out(body, SHEETS, "twice.pdf")
    weasy.write(document, tmp_path / "book.pdf")
    weasy.write(document.copy(document.pages[2:]), tmp_path / "third.pdf")
    weasy.write(document.copy(document.pages), tmp_path / "again.pdf")
    book, again = PdfReader(tmp_path / "book.pdf").pages, PdfReader(tmp_path / "again.pdf").pages
    assert [page.extract_text() for page in again] == [page.extract_text() for page in book]
    assert [page.get_contents().get_data() for page in again] == [page.get_contents().get_data() for page in book]
    assert PdfReader(tmp_path / "third.pdf").pages[0].extract_text().split() == ["C‐D", "3"]


def test_a_pdf_does_not_say_when_it_was_made(tmp_path):
    """Two builds of the same sources make the same bytes; a test that passed need not read the second."""
    for name in ("first", "second"):
        weasy.set_pdf("<p>One<p>Two", SHEETS, tmp_path / f"{name}.pdf")
    assert (tmp_path / "first.pdf").read_bytes() == (tmp_path / "second.pdf").read_bytes()


def test_another_weasyprint_is_refused(monkeypatch):
    from weasyprint.layout import block, column

    monkeypatch.setattr(block, "few_steps", False, raising=False)
    monkeypatch.setattr(column, "columns_layout", test_another_weasyprint_is_refused)
    with pytest.raises(BuildError, match=r"weasyprint \S+ is not supported"):
        patches.columns_are_balanced_in_few_steps()


@pytest.mark.parametrize(("name", "least"), [("sample", 10), ("sample-labs", 2), ("first", 5), ("second", 2)])
def test_every_link_leads_somewhere(read, name, least):
    reader = read(name)
    links = [annotation for page in reader.pages for annotation in page.get("/Annots", [])]
    inside = [str(link.get_object()["/Dest"]) for link in links if "/Dest" in link.get_object()]
    assert set(inside) <= set(reader.places)
    assert len(inside) >= least
    spoken = {tag.raw_get("/Obj").idnum for tag in _tags(reader) if tag.get("/Type") == "/OBJR"}
    assert spoken == {link.idnum for link in links}  # a screen reader knows these links, and none that were taken out


def test_a_dead_link_is_reported_with_its_document_and_text(sample_pdfs):
    lines = sample_pdfs.with_name("warnings").read_text(encoding="utf-8").splitlines()
    warning = next(line for line in lines if "leads nowhere" in line)
    assert "second.md" in warning
    assert "nowhere-at-all" in warning
    assert "dead link" in warning
    others = [line for line in lines if line and "nowhere" not in line]
    assert others == []


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("sample", "The Sample Book"),
        ("first", "The first chapter · The Sample Book"),
        ("sample-labs", "The lab companion · The Sample Book"),
    ],
)
def test_pdf_is_tagged_and_says_its_language_and_title(read, name, title):
    reader = read(name)
    catalog = reader.trailer["/Root"]
    assert catalog["/MarkInfo"]["/Marked"]
    assert catalog["/Lang"] == "en"
    assert reader.metadata.title == title
    alternatives = [str(tag.get("/Alt", "")) for tag in _tags(reader) if tag.get("/S") == "/Figure"]
    assert all(alternatives)
    if name != "sample-labs":
        assert "A bar for each rank" in alternatives
        assert r"\bar g = \frac{1}{p}\sum_r g_r" in alternatives


@pytest.mark.parametrize("name", ["sample", "first", "second-labs"])
def test_pdf_keeps_the_rules_of_pdf_ua(read, name):
    """Those of ISO 14289-1 that a program can check without veraPDF, which no package brings: 5, 7.1 to 7.5, 7.18."""
    reader = read(name)
    catalog, tags = reader.trailer["/Root"], _tags(reader)
    assert b'pdfuaid:part="1"' in catalog["/Metadata"].get_object().get_data()
    assert catalog["/ViewerPreferences"]["/DisplayDocTitle"]
    levels = [int(tag["/S"][2:]) for tag in tags if re.fullmatch("/H[1-6]", str(tag.get("/S")))]
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    heads = {str(tag["/ID"]) for tag in tags if tag.get("/S") == "/TH"}
    named = [tag["/A"]["/Headers"] for tag in tags if tag.get("/S") == "/TD"]
    assert all(headers and {str(header) for header in headers} <= heads for headers in named)
    for page in reader.pages:
        assert page["/Tabs"] == "/S"
        assert all(link.get_object().get("/Contents") for link in page.get("/Annots", []))


def _tags(reader: PdfReader) -> list:
    """All tags, which is what a screen reader gets."""
    found = []

    def walk(node):
        node = node.get_object()
        if isinstance(node, list):
            for child in node:
                walk(child)
        elif isinstance(node, dict):
            found.append(node)
            if "/K" in node:
                walk(node["/K"])

    walk(reader.trailer["/Root"]["/StructTreeRoot"]["/K"])
    return found


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError("cannot load library 'libpango-1.0-0'"), "apt install libpango-1.0-0 libpangoft2-1.0-0"),
        (ImportError("No module named 'weasyprint'"), "pip install weasyprint"),
    ],
)
def test_a_missing_library_is_named_with_its_package(monkeypatch, error, advice):
    def refuse(name: str) -> None:
        raise error

    monkeypatch.setattr(weasy.importlib, "import_module", refuse)
    with pytest.raises(BuildError, match=re.escape(advice)) as caught:
        weasy.load_weasyprint()
    assert caught.value.__suppress_context__


def test_a_failure_leaves_no_file(monkeypatch, tmp_path):
    def fail(document, target, **_):
        Path(target).write_bytes(b"%PDF half")
        raise OSError("disk full")

    monkeypatch.setattr("weasyprint.document.Document.write_pdf", fail)
    with pytest.raises(OSError, match="disk full"):
        weasy.set_pdf("<p>Text.</p>", ((tmp_path / "sheet.css", ""),), tmp_path / "book.pdf")
    assert list(tmp_path.iterdir()) == []


def test_code_reads_without_colours(whole, texts):
    """Keywords are heavier, comments are slanted, and the rest is plain."""
    faces: dict[str, str] = {}

    def visit(text, _matrix, _place, font, _size):
        faces.update(dict.fromkeys(text.split(), str((font or {}).get("/BaseFont", ""))))

    whole.pages[_only_page_with(texts, "def shown") - 1].extract_text(visitor_text=visit)
    assert "Semi" in faces["def"]
    assert "Semi" in faces["return"]
    assert re.search("It|Oblique", faces["passing"])
    assert not re.search("Semi|It|Oblique", faces["shown():"] if "shown():" in faces else faces["shown"])
