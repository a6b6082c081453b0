"""The page in a real browser: no message on the console, filters, sorting and keys do what they say."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from normgen.bench.result import Results
from normgen.files.shipped import shipped
from normgen.report.evidence import gather
from normgen.report.page import render
from normgen.trials.file import read
from tests.browser import PROBE, Visit, needs_browser, visited
from tests.report import made

pytestmark = needs_browser
SHIPPED = shipped("generated")
ROWS = "[...document.querySelectorAll('#records tbody tr[data-op]')]"


def visit(page: Path, *, state: str = "", script: str = "return null;", folder: Path, width: int = 1280) -> Visit:
    """Load the page with a hash, run `script` in it, and return what it returned."""
    probed = folder / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE.format(script=script)))
    return visited(f"{probed.as_uri()}{'#' + state if state else ''}", folder=page.parent, width=width)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    swept = made.sweep(folder / "sweep.jsonl.xz")
    path.write_text(render(gather([*made.files(folder), swept])), encoding="utf-8")
    return path


@pytest.fixture
def look(page: Path, tmp_path: Path) -> Any:
    return functools.partial(visit, page, folder=tmp_path)


def test_the_page_loads_without_a_message_and_draws_every_figure(look: Any) -> None:
    seen = look(
        script="""return {
        ready: document.documentElement.dataset.ready,
        runs: [...document.querySelectorAll('#progress [data-run]')].map((g) => g.dataset.run),
        failed: document.querySelectorAll('#progress path.failed').length,
        roof: document.querySelectorAll('#roof circle').length,
        knobs: [...document.querySelectorAll('#knob-bars b')].map((b) => b.textContent),
        strip: document.querySelectorAll('#knob-strip circle').length,
        rows: document.querySelectorAll('#records tbody tr').length,
        banner: document.getElementById('predicted-banner').textContent,
        requests: performance.getEntriesByType('resource').length };"""
    )
    assert seen.console == ()
    assert seen.probe == {
        "ready": "yes",
        "runs": ["layernorm forward f32 8192×768", "rmsnorm forward bf16 8192×4096"],
        "failed": 4,
        "roof": 2,
        "knobs": ["vector", "threads_per_row", "load"],
        "strip": 10,
        "rows": 3 + 12 + 12 + 3 + 12,
        "banner": "4 records of 42 are predictions of the cost model: no GPU timed them. "
        "They are marked, and drawn only where nothing was measured.",
        "requests": 0,
    }


def test_an_error_in_a_script_and_a_request_would_be_seen(tmp_path: Path, page: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("</body>", "<script>throw new Error('planted')</script></body>"))
    assert any("planted" in line for line in visit(broken, folder=tmp_path).console)
    asking = tmp_path / "asking.html"
    asking.write_text(page.read_text().replace("</body>", "<img src='https://example.invalid/a.png'></body>"))
    assert any("Content Security Policy" in line for line in visit(asking, folder=tmp_path).console)


FILTERS = {
    "op=rmsnorm": {"rmsnorm": 13},
    "dtype=bf16&kind=winner": {"rmsnorm": 1},
    "outcome=wrong_result": {"layernorm": 2, "rmsnorm": 1},
    "outcome=predicted": {"softmax": 4},
    "q=vector%3D4+load%3Dstreaming&kind=candidate": {"layernorm": 6, "rmsnorm": 3},
    "direction=backward": {},
}


def test_a_run_that_no_gpu_timed_is_drawn_as_predicted_where_there_is_no_other(look: Any) -> None:
    seen = look(
        state="op=softmax",
        script="""return {
        runs: [...document.querySelectorAll('#progress [data-run]')].map((g) => g.dataset.run),
        dots: document.querySelectorAll('#progress [data-run] circle').length,
        title: [...document.querySelectorAll('#progress text')].some((one) => /^predicted: /.test(one.textContent)),
        legend: document.getElementById('progress-legend').textContent };""",
    )
    assert seen.console == ()
    assert seen.probe["runs"] == ["softmax forward f32 8192×4096"]
    assert seen.probe["dots"] > 0
    assert seen.probe["title"]
    assert "predicted, not measured, ≈ 12.00 µs" in seen.probe["legend"]


@pytest.fixture(scope="module")
def shipped_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `normgen report` writes of a user who has no runs."""
    folder = tmp_path_factory.mktemp("shipped")
    path = folder / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORMGEN_STATE_DIR", str(folder / "state"))
        path.write_text(render(gather([])), encoding="utf-8")
    return path


def test_the_page_of_what_ships_has_peers_sweeps_and_no_colour_twice(shipped_page: Path, tmp_path: Path) -> None:
    names = f"{SHIPPED}/evidence/bench_decode_h200.json"
    entries = read(Results, Path(names)).entries
    one = min(entries, key=lambda e: e.peers["torch"].our_price_to_this.median)
    seen = visit(
        shipped_page,
        folder=tmp_path,
        script="""return {
        peers: [...document.querySelectorAll('#peers tbody tr')].map((row) => [...row.cells].map((c) => c.textContent)),
        head: [...document.querySelectorAll('#peers th')].map((one) => one.textContent),
        strip: document.querySelectorAll('#knob-strip circle').length,
        legend: [...document.querySelectorAll('#roof-legend span')].map((one) =>
          [one.querySelector('line').getAttribute('stroke'), one.textContent]) };""",
    )
    assert seen.console == ()
    found = {row[0]: dict(zip(seen.probe["head"], row, strict=True)) for row in seen.probe["peers"]}
    assert len(seen.probe["peers"]) >= 100
    assert found[one.label]["torch"] == f"{1 / one.peers['torch'].our_price_to_this.median:.2f}×"
    assert seen.probe["strip"] > 200
    *coloured, grey = seen.probe["legend"]
    assert len({colour for colour, _ in coloured}) == len(coloured) == 8
    assert "more: a filter above colours them" in grey[1]


@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_sticks_out_of_a_narrow_or_a_wide_window(shipped_page: Path, tmp_path: Path, width: int) -> None:
    script = """const scrolls = (node) => node !== document.body &&
          (/auto|scroll/.test(getComputedStyle(node).overflowX) || scrolls(node.parentElement));
        const out = [...document.querySelectorAll('main *, header *, nav *')]
          .filter((node) => !scrolls(node.parentElement))
          .filter((node) => node.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
        return [innerWidth, out.slice(0, 5).map((node) => node.outerHTML.slice(0, 120))];"""
    seen = visit(shipped_page, folder=tmp_path, script=script, width=width)
    assert seen.probe[0] <= max(width, 500)
    assert seen.probe[1] == []


def test_a_filter_in_the_address_leaves_only_what_it_names(look: Any) -> None:
    first, *others = FILTERS
    seen = look(
        state=first,
        script=f"""const read = () => [{ROWS}.map((row) => row.dataset.op),
          document.getElementById('record-count').textContent];
        const found = [read()];
        for (const state of {json.dumps(others)}) {{
          const changed = new Promise((done) => addEventListener('hashchange', done, {{ once: true }}));
          location.hash = state;
          await changed;
          found.push(read());
        }}
        return found;""",
    )
    for (ops, count), expected in zip(seen.probe, FILTERS.values(), strict=True):
        assert {op: ops.count(op) for op in ops} == expected
        assert count == f"{sum(expected.values())} of 42 records"
    assert seen.console == ()


def test_a_filter_chosen_by_hand_goes_into_the_address_and_to_all_figures(look: Any) -> None:
    seen = look(
        script=f"""const select = document.getElementById('filter-op');
        select.value = 'rmsnorm'; select.dispatchEvent(new Event('change'));
        const chosen = [location.hash, {ROWS}.length, document.querySelectorAll('#roof circle').length];
        document.querySelector('#filters button').click();
        return [...chosen, location.hash, {ROWS}.length];"""
    )
    assert seen.probe == ["#op=rmsnorm", 13, 1, "", 42]


def test_headings_sort_both_ways_and_what_has_no_figure_comes_last(look: Any) -> None:
    seen = look(
        state="kind=candidate&op=layernorm",
        script=f"""const column = () => {ROWS}.map((row) => row.cells[3].textContent);
        const sorted = () => document.querySelector('[data-column=us]').getAttribute('aria-sort');
        const up = [sorted(), column()];
        document.querySelector('[data-column=us] button').click();
        return [...up, sorted(), column(), document.activeElement.closest('th').dataset.column];""",
    )
    was, up, now, down, focus = seen.probe
    assert (was, now, focus) == ("ascending", "descending", "us")
    failures = ["–"] * 3
    assert up[-3:] == down[-3:] == failures
    times = [float(text) for text in up[:-3]]
    assert times == sorted(times)
    assert [float(text) for text in down[:-3]] == times[::-1]


def test_figures_in_the_table_are_those_of_the_records_and_predictions_are_marked(look: Any) -> None:
    texts = f"return {ROWS}.map((row) => [...row.cells].slice(1, 8).map((cell) => cell.textContent));"
    (winner,) = look(state="kind=winner&op=layernorm", script=texts).probe
    assert winner == ["layernorm forward f32 8192×768", "winner", "10.00", "–", "5000", "95.0", "2.00×"]
    first, *_ = look(state="op=softmax", script=texts).probe
    assert first[:3] == ["softmax forward f32 8192×4096", "predicted, not measured", "≈ 12.00"]
    assert first[5] == "–"


def test_keys_step_through_evaluations_and_open_details(look: Any) -> None:
    seen = look(
        state="op=layernorm&kind=candidate&outcome=compile_error",
        script="""const slider = document.querySelector('#progress [role=slider]');
        slider.focus();
        const press = (key) => slider.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
        press('ArrowRight'); press('ArrowRight');
        const read = [slider.getAttribute('aria-valuenow'), document.getElementById('tip').textContent];
        document.querySelector('#records .open').click();
        return [...read, document.querySelector('#records tr.detail').textContent,
          document.activeElement.getAttribute('aria-expanded')];""",
    )
    at, tip, detail, expanded = seen.probe
    assert at == "3"
    assert tip.startswith("evaluation 3\nlayernorm forward f32 8192×768: best 2.800×, this one: wrong_result")
    assert "reason: NVRTC <b>" in detail
    assert expanded == "true"


def test_a_knob_and_a_run_can_be_chosen(look: Any) -> None:
    seen = look(
        state="op=layernorm&knob=threads_per_row",
        script="""const pressed = () => document.querySelector('#knob-bars [aria-pressed=true] b').textContent;
        const before = pressed();
        document.querySelectorAll('#knob-bars button')[2].click();
        const runs = [...document.getElementById('knob-run').options].map((option) => option.value);
        return [before, pressed(), location.hash, runs];""",
    )
    before, after, state, runs = seen.probe
    assert (before, after) == ("threads_per_row", "load")
    assert "knob=load" in state
    assert runs == ["layernorm forward f32 8192×768", "layernorm forward f32 8192×768 (sweep)"]
