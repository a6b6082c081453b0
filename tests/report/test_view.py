"""The figures of the page: labels, lines of the roof plot, and JSON that cannot end its element."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normgen.records.place import Context, Place, Setting
from normgen.records.statistics import Price
from normgen.report.evidence import gather
from normgen.report.page import embedded, render
from normgen.report.view import dtype_of, labels_of, page_data, roof_lines
from tests.report import made


def test_the_dtype_of_a_problem_is_that_of_x_and_not_of_what_is_written() -> None:
    assert dtype_of(made.key(dtype="bf16")) == "bf16"
    fp8 = made.key()
    assert dtype_of(type(fp8)(**{**vars(fp8), "dtypes": (("y", "e4m3"), ("scale", "f32"), ("x", "bf16"))})) == "bf16"
    assert dtype_of(type(fp8)(**{**vars(fp8), "dtypes": (("out", "f16"), ("a", "f32"))})) == "f16"


def test_runs_of_the_same_problem_are_numbered(tmp_path: Path) -> None:
    paths = [made.write(tmp_path / name, made.candidates(made.key())) for name in ("a.jsonl", "b.jsonl")]
    seeded = made.write(tmp_path / "c.jsonl", made.candidates(made.key(), seed=4))
    plain = "layernorm forward f32 8192×768"
    assert labels_of(gather([*paths, seeded]).series) == [f"{plain} #1", f"{plain} #2", f"{plain} seed 4"]


def test_a_line_joins_the_winners_over_cols_and_prefers_confirmed_ones(tmp_path: Path) -> None:
    winners = [
        made.winner(made.key(cols=512), us=19.0),
        made.winner(made.key(cols=512, rows=64), us=9.5),
        made.winner(made.key(), us=10.0),
        made.winner(made.key(), us=12.0, seed=2),
    ]
    rest = [*made.candidates(made.key()), *made.candidates(made.key(cols=4096))]
    (line,) = roof_lines(gather([made.write(tmp_path / "a.jsonl", [*winners, *rest])]))
    assert line.label == "layernorm forward f32"
    points = [(p.cols, p.rows, p.percent_of_roof, p.confirmed) for p in line.points]
    assert points == [
        (512, 64, pytest.approx(100.0), True),
        (512, 8192, pytest.approx(50.0), True),
        (768, 8192, pytest.approx(95.0), True),
        (4096, 8192, pytest.approx(95.0), False),
    ]
    assert line.middle() == (
        (512, pytest.approx(75.0)), (768, pytest.approx(95.0)), (4096, pytest.approx(95.0)),
    )  # fmt: skip
    assert line.points[0].gb_per_s == pytest.approx(50_000_000 / 9.5e-6 / 1e9)


def test_predictions_are_in_the_data_and_in_no_plot(tmp_path: Path) -> None:
    data = page_data(gather(made.files(tmp_path)))
    assert [line["op"] for line in data["roof"]] == ["layernorm", "rmsnorm"]
    soft = data["series"][2]
    assert (soft["measured"], soft["shares"], soft["best"]) == (False, [], [12.0, 12.0, 12.0])
    assert [t["outcome"] for t in soft["trials"]] == ["predicted"] * 3


def test_codes_of_a_trial_count_into_the_values_of_the_knobs_that_vary(tmp_path: Path) -> None:
    evidence = gather(made.files(tmp_path))
    series, plain = evidence.series[0], page_data(evidence)["series"][0]
    assert list(plain["knobs"]) == ["threads_per_row", "vector", "load"]
    for trial, shown in zip(series.trials, plain["trials"], strict=True):
        values = [plain["knobs"][name][code] for name, code in zip(plain["knobs"], shown["codes"], strict=True)]
        assert values == [trial.schedule.threads_per_row, trial.schedule.vector, trial.schedule.load]


def test_text_of_a_record_cannot_leave_the_element_it_stands_in() -> None:
    hostile = {"reason": "</script><script>alert(1)</script><!-- \u2028"}
    text = embedded(hostile)
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text) == hostile


def test_the_page_names_nothing_outside_itself(tmp_path: Path) -> None:
    page = render(gather(made.files(tmp_path)))
    assert "default-src 'none'" in page
    assert " src=" not in page
    assert "<link" not in page
    assert "@import" not in page
    assert "url(" not in page


def test_what_was_timed_in_place_is_shown_by_its_price_and_what_was_timed_alone_says_so(tmp_path: Path) -> None:
    base = made.record(made.key(), made.SCHEDULES[0], 4.0).times_us
    price = Price(median=10.0, low=9.8, high=10.2)
    one = made.winner(made.key(), us=14.0, default_us=24.0, chain_us=base, price_us=price, alone_us=9.0)
    alone = made.winner(made.key(cols=512), place=Place(context=Context.ALONE, setting=Setting.HOT))
    searched = [made.record(made.key(), s, 4.0 + made.us_of(s), chain_us=base) for s in made.SCHEDULES]
    evidence = gather([made.write(tmp_path / "a.jsonl", [one, alone, *searched])])
    data = page_data(evidence)
    first = next(f for f in data["finals"] if f["cols"] == 768)
    assert (first["us"], first["low"], first["high"]) == (10.0, 9.8, 10.2)
    assert (first["chain"], first["alone_us"], first["default_us"]) == ([14.0, 4.0], 9.0, 20.0)
    other = next(f for f in data["finals"] if f["cols"] == 512)
    assert (other["us"], other["chain"], other["place"]) == (10.0, None, "hot alone")
    (series,) = data["series"]
    assert min(t["us"] for t in series["trials"]) == pytest.approx(min(map(made.us_of, made.SCHEDULES)))
    assert series["default_us"] == 20.0
    lines = {line.label: line.points for line in roof_lines(evidence)}
    assert set(lines) == {"layernorm forward f32", "layernorm forward f32 hot alone"}
    assert [p.percent_of_roof for p in lines["layernorm forward f32"]] == [95.0]
