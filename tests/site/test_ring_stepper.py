"""The ring stepper in a real browser: it is the algorithm, and that of the lab on real ranks."""

import ast

import pytest
from playwright.sync_api import Page, expect

from _ext.explorers.ring_drawing import ring_states
from ddplab import launch
from tools import ROOT


def held(p: int, step: int) -> list[list[int]]:
    """What each of ``p`` ranks holds after a step."""
    return [list(row) for row in ring_states(p)[step].held]


def test_the_ring_is_the_algorithm(page):
    sizes = range(2, 9)
    shown = page.evaluate("sizes => sizes.map(p => document.querySelector('ddp-ring-stepper').states(p))", [*sizes])
    for p, steps in zip(sizes, shown, strict=True):
        assert len(steps) == 2 * p - 1
        for here, there in zip(ring_states(p), steps, strict=True):
            assert (here.step, here.phase) == (there["step"], there["phase"])
            assert sorted(here.moves) == sorted((one["from"], one["to"], one["chunk"]) for one in there["moves"])
            assert [list(row) for row in here.held] == there["held"]
            assert [[sum(1 << r for r in share) for share in row] for row in here.shares] == there["from"]


@pytest.mark.parametrize("p", range(2, 9))
def test_every_number_is_the_sum_of_its_shares(p):
    states = ring_states(p)
    for state in states:
        for rank in range(p):
            for chunk in range(p):
                share = state.shares[rank][chunk]
                assert state.held[rank][chunk] == sum(10 * source + chunk + 1 for source in share)
    for rank in range(p):
        assert sum(len(share) == p for share in states[p - 1].shares[rank]) == 1  # after the reduce-scatter
        assert all(len(share) == p for share in states[-1].shares[rank])
    for state in states[1:]:  # each rank sends one chunk to its right neighbour
        assert sorted(source for source, _, _ in state.moves) == list(range(p))
        assert all(to == (source + 1) % p for source, to, _ in state.moves)


@pytest.mark.parametrize("p", [2, 3, 5])
def test_the_ring_is_that_of_the_lab(p):
    """The lab's own function on real ranks holds the same numbers after each step, and sends the same chunks."""
    source = (ROOT / "gallery/internals/plot_03_ring_allreduce.py").read_text()
    wanted = [
        one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == "ring_all_reduce"
    ]
    code = (
        "import torch, torch.distributed as dist\nfrom torch.distributed import P2POp, irecv, isend\n"
        + ast.get_source_segment(source, wanted[0])
        + "\n\ndef watched():\n"
        "    rank, p = dist.get_rank(), dist.get_world_size()\n"
        "    x = 10.0 * rank + torch.arange(1.0, p + 1)\n"
        "    steps = [(None, x.tolist())]\n"
        "    ring_all_reduce(x, lambda sent, x: steps.append((sent, x.tolist())))\n"
        "    return steps\n"
    )
    lab: dict = {"__name__": "__main__"}
    exec(code, lab)
    traces = launch(lab["watched"], p)
    for step, state in enumerate(ring_states(p)):
        assert held(p, step) == [trace[step][1] for trace in traces]
        if step:
            assert {source: chunk for source, _, chunk in state.moves} == {
                rank: trace[step][0] for rank, trace in enumerate(traces)
            }


def numbers(page: Page) -> list[list[int]]:
    rows = page.locator(".ring-table tbody tr")
    cells = rows.evaluate_all("rows => rows.map(row => [...row.cells].slice(1).map(cell => parseInt(cell.innerText)))")
    return [list(row) for row in cells]


def test_the_ring_goes_by_buttons_and_keys(page):
    states = [held(4, step) for step in range(7)]
    slider, next_ = page.get_by_role("slider", name="Step", exact=True), page.get_by_role("button", name="Next")
    live = page.locator("ddp-ring-stepper [role=status]")
    assert numbers(page) == states[0]
    assert live.inner_text() == ""
    next_.focus()
    page.keyboard.press("Enter")
    assert numbers(page) == states[1]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert numbers(page) == states[3]
    page.keyboard.press("ArrowLeft")
    assert numbers(page) == states[2]
    assert slider.get_attribute("aria-valuetext") == "2 of 6, reduce-scatter"
    expect(live).to_contain_text("Step 2 of 6, reduce-scatter")
    assert "Rank 0 sends chunk 4 to rank 1: 14 + 38 = 52." in live.inner_text()
    page.keyboard.press("End")
    assert numbers(page) == states[6]
    assert next_.get_attribute("aria-disabled") == "true"
    page.keyboard.press("Enter")  # at the end, and the focus stays
    assert numbers(page) == states[6]
    assert next_.evaluate("e => e === document.activeElement")
    page.keyboard.press("Home")
    assert numbers(page) == states[0]
    slider.focus()
    page.keyboard.press("ArrowRight")  # the slider's own key: one step, not two
    assert numbers(page) == states[1]
    page.get_by_role("button", name="Back").click()
    assert numbers(page) == states[0]
    page.locator("ddp-ring-stepper").get_by_label("Ranks").focus()
    page.keyboard.press("ArrowRight")  # the list's own key: five ranks, no step
    assert numbers(page) == held(5, 0)
    page.locator("ddp-ring-stepper").get_by_label("Ranks").select_option("8")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert numbers(page) == held(8, -1)


def test_a_screen_reader_hears_whose_shares_are_in_a_number(page):
    page.get_by_role("button", name="Next").click()
    cell = page.get_by_role("row", name="rank 1").get_by_role("cell").first
    assert cell.inner_text().split() == ["12", "from", "ranks", "0,", "1"]
    assert page.get_by_role("table", name="What each rank holds, chunk by chunk").count() == 1


def test_the_ring_plays(stopped_page):
    page = stopped_page
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(2000)
    page.get_by_role("button", name="Pause").click()
    assert numbers(page) == held(4, 2)
    page.clock.run_for(10_000)
    assert numbers(page) == held(4, 2)
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(30_000)
    assert numbers(page) == held(4, -1)
    assert page.get_by_role("button", name="Play").count() == 1  # it has stopped


def test_nothing_moves_for_those_who_ask(page):
    page.evaluate(
        """() => { window.moved = 0; const animate = Element.prototype.animate;
            Element.prototype.animate = function (...how) { moved++; return animate.apply(this, how); }; }"""
    )
    page.emulate_media(reduced_motion="reduce")
    page.get_by_role("button", name="Next").click()
    assert page.evaluate("moved") == 0
    assert numbers(page) == held(4, 1)
    page.emulate_media(reduced_motion="no-preference")
    page.get_by_role("button", name="Next").click()
    assert page.evaluate("moved") == 4
    assert numbers(page) == held(4, 2)
