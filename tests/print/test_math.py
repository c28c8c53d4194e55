"""Mathematics: drawn while the book is built, readable without a script, and never silently wrong."""

import re
from pathlib import Path

import pytest

from _ext.style import math_svg
from tools import ROOT

FORMULAS = [
    r"\frac{1}{p}\sum_{r=0}^{p-1} g_r",
    r"\max_{0\le i<p} t_i",
    r"\left\lceil \frac{n}{B} \right\rceil",
    r"\underbrace{2\frac{p-1}{p}n}_{\text{bytes sent}}",
    r"T_{\mathrm{step}} = \max\!\left(T_{\mathrm{bwd}},\, \sum_{b} T_b\right)",
    r"\begin{aligned} a &= b + c \\ &= d \end{aligned}",
    r"\begin{align} a &= b \\ c &= d \end{align}",
    r"\begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases}",
    r"a = b \\ c = d",
    r"\text{bucket\_cap\_mb} = 25\,\text{MiB}",
    r"\operatorname{all\_reduce}(g)",
    r"\nabla_\theta \mathcal{L} \in \mathbb{R}^{n\times m}",
]


@pytest.fixture(scope="module")
def page(sample_html: Path) -> str:
    return (sample_html / "first.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("tex", FORMULAS)
@pytest.mark.parametrize("inline", [True, False])
def test_what_the_book_uses_is_drawn(tex, inline):
    drawing = math_svg.draw(tex, inline=inline)
    assert 0.4 < drawing.height_em < 5
    assert 0 < drawing.width_em < 30
    svg = drawing.svg(tex, inline=inline)
    assert " id=" not in svg  # ids of two formulas on a page would clash
    assert "black" not in svg  # it has the colour of the text
    assert ("vertical-align" in svg) is inline


def test_parentheses_grow_with_their_content_only():
    """ziamath 0.13 draws a parenthesis of 80 em around a sum, unless it knows that the sum does not stretch."""
    assert math_svg.draw(r"\left(\sum_b T_b\right)", inline=False).height_em < 4


def test_limits_stay_below_inside_of_parentheses():
    free = math_svg.draw(r"\sum_{b} T", inline=False)
    inside = math_svg.draw(r"\left.\sum_{b} T\right.", inline=False)
    assert inside.depth_em == pytest.approx(free.depth_em, abs=0.05)


def test_operators_keep_their_glyph():
    wide, narrow = math_svg.draw(r"a \mathbin{/} b", inline=True), math_svg.draw("a b", inline=True)
    assert wide.width_em > narrow.width_em + 0.4


@pytest.mark.parametrize("tex", [r"\frac{a", r"\notacommand{x}", "{", "a_b_c", r"\left( a"])
def test_wrong_tex_is_an_error(tex):
    with pytest.raises(ValueError, match=r".+"):
        math_svg.draw(tex, inline=False)


def test_inline_formula_sits_on_the_baseline_and_can_be_read_aloud(page):
    tex = r"\bar g = \frac{1}{p}\sum_r g_r"
    svg = page[page.index(f'aria-label="{tex}"') - 80 :][:600]
    assert 'role="img"' in svg
    assert re.search(r"vertical-align:-0\.\d+em", svg)
    assert "currentColor" in (ROOT / "handbook/_static/math.css").read_text(encoding="utf-8")  # of every formula


def test_equations_are_numbered_and_referred_to(page):
    assert re.search(r'<div class="math display[^"]*" id="equation-mean">', page)
    assert '<span class="eqno">(1)' in page
    assert re.search(r'<a class="[^"]*" href="#equation-mean">\(1\)</a>', page)


def test_long_equations_scroll_and_can_be_reached_with_the_keyboard(page):
    assert page.count('<div class="math-scroll" tabindex="0">') == 1
    assert page.count('<div class="math-scroll">') == 1


def test_no_script_draws_mathematics(page):
    assert "mathjax" not in re.sub(r'class="[^"]*"', "", page).lower()
