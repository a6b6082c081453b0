"""Figures, table, JSON and plot of results that a simulated race left."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from normgen.bench.plot import panels, plot, size_text
from normgen.bench.result import Results, days_of, geometric_mean, joined
from normgen.bench.table import OURS, results_table, results_text, short
from normgen.errors import UsageError
from normgen.measure.gpu import COPY
from normgen.schedule.schedule import Schedule
from normgen.text.tables import figure
from tests.bench.recorded import BASE_US, SUITE, raced, results, results_of
from tests.measure.simulated import ELEMENTWISE


@pytest.fixture(scope="module")
def found() -> Results:
    return results()


def test_the_geometric_mean_multiplies_ratios() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([1.1, 1.2, 1.3]) == pytest.approx((1.1 * 1.2 * 1.3) ** (1 / 3))
    assert geometric_mean([]) is None


def test_ratios_are_paired_and_against_the_better_roof_and_the_best_right_peer(found: Results) -> None:
    first, second, third, fourth = found.entries
    assert first.roof == ELEMENTWISE
    assert first.ours.to_roof is not None
    assert first.ours.to_roof.median == pytest.approx(18.0 / 17.6, rel=0.01)
    assert first.ours.to_roof.low <= first.ours.to_roof.median <= first.ours.to_roof.high
    assert first.best_peer == "compile"
    assert first.faster is not None
    assert first.faster.median == pytest.approx(18.9 / 18.0, rel=0.01)
    assert second.faster is not None
    assert second.faster.median == pytest.approx(126.1 / 130.0, rel=0.01)
    assert third.best_peer == "torch"  # compile's result is wrong, liger has none
    assert third.peers["compile"].us is None
    assert (fourth.best_peer, fourth.faster, fourth.gb_per_s) == (None, None, None)
    assert first.gb_per_s == pytest.approx((2 * 4096 * 4096 * 2 + 2 * 4096) / 18.0e-6 / 1e9, rel=0.02)


def test_both_copies_are_kept_and_the_memcpy_node_has_a_ratio_of_its_own(found: Results) -> None:
    second = found.entries[1]
    assert second.roofs_us == pytest.approx({"copy": 140.0, "elementwise": 128.0}, rel=0.03)
    assert second.roof_us == min(second.roofs_us.values())
    assert second.ours.to_copy is not None
    assert second.ours.to_copy.median == pytest.approx(130.0 / 140.0, rel=0.01)
    head, _, line = results_table(found).splitlines()[:3]
    at = head.index("x copy")
    assert float(line[at : at + 6]) == pytest.approx(second.ours.to_copy.median, abs=1e-3)


def test_chains_are_compared_beside_prices_and_what_was_timed_alone_has_none(found: Results) -> None:
    first = found.entries[0]
    assert first.chain_us is not None
    assert first.chain_us.median == pytest.approx(BASE_US, rel=0.02)
    assert first.chain_us.n == 80
    assert first.chain_faster is not None
    assert first.chain_faster.median == pytest.approx((BASE_US + 18.9) / (BASE_US + 18.0), rel=0.01)
    figures = found.as_dict()
    assert 1 < figures["geometric_mean_of_chains"] < figures["geometric_mean"]
    assert figures["geometric_mean_to_roof"] == pytest.approx(1.016, abs=0.02)
    assert found.mean_to_roofs()["elementwise"] == pytest.approx(1.016, abs=0.02)
    assert f"{found.mean_to_roofs()['copy']:.3f} x copy" in results_text(found)
    assert "marginal time: what a kernel adds to the time" in results_text(found)


def test_a_file_of_older_results_is_read_as_timed_alone(found: Results) -> None:
    data = json.loads(json.dumps(found.as_dict())) | {"schema": 1}
    for entry in data["entries"]:
        entry["cache"] = "cold"
        for name in ("context", "setting", "chain_us"):
            del entry[name]
        for provider in (entry["ours"], *entry["peers"].values()):
            for name in ("price_us", "our_price_to_this", "alone_us"):
                del provider[name]
    old = results_of(json.dumps(data))
    assert str(old.entries[0].place) == "cold alone"
    assert (old.entries[0].ours.cost_us, old.entries[0].faster) == (old.entries[0].ours.us, old.entries[0].chain_faster)
    text = results_text(old)
    assert f"{old.entries[0].ours.us:.2f} alone" in text
    assert "marginal time: what a kernel adds to the time" not in text
    data["entries"][0]["cache"] = "warm"
    with pytest.raises(UsageError, match="a results file is"):
        results_of(json.dumps(data))


def test_results_written_before_both_copies_were_kept_still_read(found: Results) -> None:
    data = json.loads(json.dumps(found.as_dict()))
    for entry in data["entries"]:
        del entry["roofs_us"]
        for provider in (entry["ours"], *entry["peers"].values()):
            del provider["to_copy"]
    old = results_of(json.dumps(data))
    assert old.entries[0].roofs_us == {}
    assert old.entries[0].ours.to_copy is None
    assert old.entries[0].ours.to_roof == results_of(json.dumps(found.as_dict())).entries[0].ours.to_roof


def test_the_summary_of_a_suite_is_over_the_entries_that_can_be_compared(found: Results) -> None:
    ratios = [e.faster.median for e in found.entries[:3] if e.faster]
    assert found.compared == found.entries[:3]
    assert found.geometric_mean == pytest.approx(math.prod(ratios) ** (1 / 3))
    assert found.worst is found.entries[1]
    assert found.peers == ("torch", "compile", "liger")


def test_the_table_has_a_time_or_a_reason_in_every_cell(found: Results) -> None:
    lines = results_table(found).splitlines()
    assert lines[0].split("  ")[0] == "entry"
    assert len(lines) == 5
    assert "rmsnorm fwd 4096x4096 bf16 fresh" in lines[1]
    price, low, high = (float(n.strip("[],")) for n in lines[1].split("fresh")[1].split()[:3])
    assert low <= price <= high
    assert price == pytest.approx(18.0, rel=0.03)
    t0, t = map(float, lines[1].split("]")[1].split()[:2])
    assert (t0, t) == (pytest.approx(BASE_US, rel=0.03), pytest.approx(28.0, rel=0.03))
    assert lines[0].split("  ")[-1].strip() == "liger alone µs"  # what each takes alone comes last, and is marked
    assert f"{0.9 * 18.0:.2f}" in lines[1].split("compile")[1]
    assert "(default)" in lines[2]
    assert "wrong result" in lines[3]
    assert "does not launch" in lines[3]
    assert lines[4].count("no memory") == 3


def test_the_text_says_each_reason_once_and_sums_up(found: Results) -> None:
    text = results_text(found)
    assert text.count("exceeds the blocksize") == 1
    assert "torch: no memory  (softmax fwd 64x128 f32 fresh)" in text
    last = text.splitlines()[-1]
    assert f"geometric mean {found.geometric_mean:.3f} x faster over 3" in last
    assert "at rmsnorm fwd 16384x8192 bf16 fresh (compile)" in last
    assert "NOT FINISHED" not in last
    assert results_text(results(finished=False)).endswith("NOT FINISHED: interrupted")


def test_a_time_in_which_launches_overlap_is_marked_in_the_table_and_in_json(found: Results) -> None:
    assert "early" not in results_text(found)
    for place, marked in (("off", False), ("on", False), ("start", True), ("end", True)):
        entry = raced(
            SUITE.entries[0], {OURS: 18.0, COPY: 17.8, ELEMENTWISE: 17.6, "torch": 24.0}, dependent_launch=place
        )
        one = replace(found, entries=(entry,))
        assert (" early  " in results_table(one)) is marked
        assert ("starts while the kernel before it ends" in results_text(one)) is marked
        ours = one.as_dict()["entries"][0]
        assert (ours["ours"]["overlaps"], ours["peers"]["torch"]["overlaps"]) == (marked, False)
        assert results_of(json.dumps(one.as_dict())).entries[0].ours.overlaps is marked


def test_a_long_reason_is_cut_to_a_cell() -> None:
    assert short("no softmax backward") == "no softmax backward"
    assert short("OutOfMemoryError: 12 GB\nand more") == "OutOfMemoryError"
    assert len(short("a" * 100)) == 28


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (math.nan, "nan"), (-math.inf, "-inf"), (12.345678, "12.35")])
def test_a_figure_has_its_digits_or_says_what_it_is(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_runs_without_entries_join(found: Results) -> None:
    none = replace(found, entries=())
    assert joined(none, none).entries == ()
    assert days_of(()) == "timed on no day (0 entries)"


def test_json_is_one_object_that_reads_back(found: Results) -> None:
    text = json.dumps(found.as_dict(), allow_nan=False)
    again = results_of(text)
    assert again.as_dict() == found.as_dict()
    data = json.loads(text)
    assert list(data)[:2] == ["schema", "suite"]
    assert data["geometric_mean"] == pytest.approx(found.geometric_mean, rel=1e-4)
    assert data["entries"][0]["peers"]["torch"]["times_us"]["n"] == 40
    assert data["entries"][2]["peers"]["compile"]["failed"] == "wrong result: y"
    assert data["entries"][0]["ours"]["schedule"] == Schedule(vector=8).as_dict()
    assert results_table(again) == results_table(results_of(json.dumps(again.as_dict())))


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "entries": [{}]}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="what `normgen bench --json` wrote"):
        results_of(text)


def test_a_plot_has_a_panel_for_each_operation_and_a_line_for_each_provider(found: Results) -> None:
    drawn = panels(found)
    assert list(drawn) == ["rmsnorm forward bf16 fresh"]
    lines = drawn["rmsnorm forward bf16 fresh"]
    assert set(lines) == {OURS, "torch", "compile"}
    assert [cols for cols, _ in lines[OURS].line] == [4096, 8192, 131072]
    assert [cols for cols, _ in lines["compile"].line] == [4096, 8192]
    assert lines[OURS].line[0][1] == pytest.approx(100 * 17.6 / 18.0, rel=0.01)


def test_a_line_goes_through_the_median_of_each_cols_and_leaves_other_rows_beside_it(found: Results) -> None:
    first = found.entries[0]
    price = first.ours.price_us
    assert price is not None
    slower = replace(first.ours, price_us=replace(price, median=2 * price.median))
    entries = (
        first,
        replace(first, ours=slower, rows=1),
        replace(first, ours=slower, rows=2),
        replace(first, cols=4097, pitch=4097),
        replace(first, pitch=4098),
        replace(first, align=2),
    )
    curve = panels(replace(found, entries=entries))["rmsnorm forward bf16 fresh"][OURS]
    whole = first.percent_of_roof(first.ours)
    assert whole is not None
    assert len(curve.whole) == 3
    assert curve.line == [(4096, pytest.approx(whole / 2))]
    assert [cols for cols, _ in curve.odd] == [4096, 4096, 4097]


def test_cols_are_named_as_people_do() -> None:
    assert [size_text(n) for n in (64, 1000, 1024, 131072, 1 << 20)] == ["64", "1000", "1K", "128K", "1M"]


def test_a_plot_is_written_where_matplotlib_is_installed(found: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    plot(found, tmp_path / "few.png")
    assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="cannot write the plot"):
        plot(found, tmp_path / "few.png" / "few.png")
