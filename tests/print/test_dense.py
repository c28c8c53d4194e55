"""What print shortens or sets in columns: error entries, cards, claims, labs; and code that does not fit its place."""

import pytest

from _ext.print.print_code import COLUMNS
from _ext.print.print_dense import condense
from _ext.print.print_labs import OUTPUT_LINES, shorten
from _ext.print.print_page import listings
from _ext.print.print_tree import classes, parse, walk


def text_of(element) -> str:
    return " ".join("".join(element.itertext()).split())


def by_class(page, name: str) -> list:
    return [element for element in walk(page) if name in classes(element)]


def entry(number: int) -> str:
    parts = {"Each rank": "Both.", "Cause": "A cause.", "Run": "By hand.", "Fix": "A fix."}
    said = "".join(f"<p><strong>{name}</strong>. {text}</p>" for name, text in parts.items())
    read = (
        '<p><strong>Read</strong>. <a class="internal" href="#x">Inside</a> · <a class="external" href="y">Out</a></p>'
    )
    message = f'<div class="error-message"><pre>message {number}</pre></div><p>Seen in torch.</p>'
    return f'<section><h3>Entry {number}</h3><div class="error-entry">{message}{said}{read}</div></section>'


def test_an_error_entry_keeps_message_versions_cause_fix_and_pages_of_the_book():
    page = parse(f"<section><h1>Errors</h1><section><h2>DDP</h2>{entry(1)}{entry(2)}</section></section>")
    condense(page)
    assert text_of(by_class(page, "error-entry")[0]) == "message 1Seen in torch.Cause. A cause.Fix. A fix.Read. Inside"
    (columns,) = by_class(page, "two-columns")
    assert [heading.text for heading in columns.iter("h3")] == ["Entry 1", "Entry 2"]
    assert not list(columns.iter("h1"))


def test_cards_of_a_row_stand_in_columns_and_name_places_not_claims():
    links = '<a href="#labs-one">Lab</a> · <a href="#reference-claims--proof-a">claim a</a> · <a href="#here">Here</a>'
    card = f'<div class="card"><p>Q</p><div class="card-evidence"><p class="card-label">E</p><p>{links}</p></div></div>'
    page = parse(f"<section><h1>Drill</h1><p>Before.</p>{card * 2}<p>Between.</p>{card}</section>")
    condense(page)
    (columns,) = by_class(page, "two-columns")
    assert len(columns) == 2  # one alone stays in the text
    assert [text_of(evidence) for evidence in by_class(page, "card-evidence")] == ["ELab · Here"] * 3


def test_further_reading_goes_on_in_the_columns_of_the_bibliography():
    reading = (
        '<section class="further-reading"><h2>Further reading</h2><section><h3>DDP</h3><p>Li</p></section></section>'
    )
    page = parse(f'<section><h1>Bibliography</h1><div class="citation-list"><p>[1]</p></div>{reading}</section>')
    condense(page)
    (columns,) = by_class(page, "two-columns")
    assert text_of(columns) == "[1]Further readingDDPLi"


def test_claims_are_a_list_that_links_lead_into():
    row = '<tr id="c--proof-a"><td>It holds. <a href="#t">in the text</a></td><td>on gloo</td><td>✓ 2 ranks</td></tr>'
    row += '<tr><td>It holds. <a href="#u">in the text</a></td><td>on any backend</td><td>✓ 3 ranks</td></tr>'
    group = '<tr><th colspan="3" scope="rowgroup"><span>The idea</span></th></tr>'
    page = parse(
        f'<section><h1>Claims</h1><table class="claims"><tbody id="c--idea">{group}{row}</tbody></table></section>'
    )
    condense(page)
    on_gloo, anywhere = by_class(page, "claim-row")
    assert (on_gloo.get("id"), text_of(on_gloo)) == ("c--proof-a", "It holds. on gloo ✓ 2 ranks")
    assert (text_of(anywhere), anywhere.find("a").get("href")) == ("It holds. ✓ 3 ranks", "#u")
    (title,) = by_class(page, "claim-group")
    assert (title.get("id"), text_of(title)) == ("c--idea", "The idea")
    assert not list(page.iter("h2"))  # the table of contents does not list them


def test_a_chapters_labs_are_named_one_after_the_other():
    card = '<div class="lab-card"><p class="lab-card-title"><a href="#l">A lab</a></p><p>Why?</p><p>core</p></div>'
    heading = '<h2><span class="section-number">1.2. </span>The labs of this chapter</h2>'
    page = parse(f'<section><h1>C</h1><section>{heading}<div class="lab-cards">{card * 2}</div></section></section>')
    condense(page)
    assert text_of(page) == "CThe labs of this chapterA labA lab"
    assert not list(page.iter("h2"))  # it has no number and is not in the table of contents


def lab(code: str, output: int) -> str:
    printed = "\n".join(f"line {number}" for number in range(output))
    return (
        '<section><h1>A lab</h1><p class="lab-run">Run it: <code>python gallery/a/plot_01_b.py</code></p>'
        f'<div class="highlight-Python"><pre>{code}</pre></div><div class="figure-svg"><svg></svg></div>'
        f'<div class="sphx-glr-script-out"><pre>{printed}</pre></div></section>'
    )


def test_a_lab_of_the_companion_names_what_it_leaves_out():
    page = parse(
        lab("import torch\nfrom ddplab import (\n    launch,\n)\n\nx = 1\n    import torch", OUTPUT_LINES + 10)
    )
    listings(page)
    shorten(page, ["2.3"])
    code, output = page.iter("pre")
    assert ["".join(line.itertext()) for line in code] == [
        "# imports: gallery/a/plot_01_b.py",
        "x = 1",
        "    import torch",
    ]
    assert len(output) == OUTPUT_LINES + 1
    assert text_of(output[-1]).startswith("… 10 more lines: run gallery/a/plot_01_b.py")
    assert "figure 2.3 of the handbook" in text_of(page)
    assert not by_class(page, "figure-svg")


def test_a_short_output_and_a_figure_of_no_chapter_stay():
    page = parse(lab("x = 1", OUTPUT_LINES))
    listings(page)
    shorten(page, [""])
    assert [len(pre) for pre in page.iter("pre")] == [1, OUTPUT_LINES]
    assert len(by_class(page, "figure-svg")) == 1


@pytest.mark.parametrize(("box", "columns"), [("<div>", COLUMNS), ('<div class="card">', 36), ("<ul><li>", 60)])
def test_a_line_that_is_too_long_for_its_place_is_marked(box, columns):
    page = parse(f"{box}<pre>{'x' * columns}\n{'y' * (columns + 1)}</pre>")
    listings(page)
    fits, wraps = next(page.iter("pre"))
    assert not by_class(fits, "continued")
    assert by_class(wraps, "continued")


def test_a_solution_is_named_by_its_file():
    code = '<div class="highlight-python notranslate"><div class="highlight"><pre>class DDP: ...</pre></div></div>'
    graded = (
        '<div class="highlight-console"><div class="highlight"><pre>ddplab grade no-sync my_file.py</pre></div></div>'
    )
    folds = [f"<details><summary>{title}</summary>{code}<p>why</p></details>" for title in ("Hint", "Solution")]
    page = parse(f"<section><h1>Practice</h1>{graded}{''.join(folds)}</section>")
    condense(page)
    hint, solution = page.iter("details")
    assert text_of(hint) == "Hintclass DDP: ...why"
    assert text_of(solution) == "Solutiongallery/exercises/no-sync/solution.pywhy"


def test_a_lab_that_is_mere_evidence_shows_no_code():
    def lab(level: str):
        run = f'<p class="lab-run">{level}, 10 minutes. Run it: <code>python gallery/a.py</code></p>'
        code = '<div class="highlight-Python"><pre><span class="line">launch(worker)</span></pre></div>'
        out = '<div class="sphx-glr-script-out"><pre><span class="line">printed</span></pre></div>'
        page = parse(f"<section><h1>Lab</h1>{run}{code}{out}<p>Why.</p></section>")
        shorten(page)
        return text_of(page)

    assert "launch(worker)" in lab("Core")
    assert lab("Evidence") == "LabEvidence, 10 minutes. Run it: python gallery/a.pyprintedWhy."
