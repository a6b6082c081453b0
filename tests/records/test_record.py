"""Records survive the trip to a line and back, and know which of two is better."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from normgen.device import TARGETS
from normgen.problem.scales import ScaleLayout
from normgen.program.source import problem_for
from normgen.records.record import Outcome, Record, is_better, parse_line
from normgen.records.statistics import Price, Times
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.export.cases import GPU_CHECK
from tests.measure.simulated import problem

RESOURCES = {
    "kernel": "k", "threads": 128, "registers": 32, "spill_bytes": 0, "stack_bytes": 0, "static_shared_bytes": 0,
    "dynamic_shared_bytes": 0,
}  # fmt: skip

LAYOUTS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    *(("quantize_to_mxfp4", {"scale": layout.value}, {}) for layout in ScaleLayout if layout != ScaleLayout.ROW_MAJOR),
    ("linear", {"w": "cols_inner"}, {"inner": 64}),
]


def record(us: float = 14.0, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "problem": problem().question,
        "schedule": Schedule(threads_per_row=64, vector=4),
        "outcome": Outcome.OK,
        "measured": True,
        "times_us": Times(n=40, median=us, p05=us - 0.1, p95=us + 0.25, low=us - 0.05, high=us + 0.05),
        "predicted_us": 13.0,
        "roof_us": 13.7,
        "bytes": problem().compulsory_bytes,
        "default_us": 20.0,
        "error": {"y": 0.25},
        "resources": (RESOURCES,),
        "device": TARGETS["h200"].as_dict(),
        "versions": {"normgen": "0.1.0"},
        "search": {"trials": 64, "noise_floor": 0.01},
        "command": "normgen tune --shape 8192x768",
        "seed": 3,
        "created": "2026-11-20T00:00:00Z",
    }
    return Record(**(values | changes))


def test_a_line_reads_back_as_the_record_it_was() -> None:
    original = record()
    line = original.line()
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert parse_line(line) == original
    assert parse_line(line).line() == line


@pytest.mark.parametrize("promise", ["deterministic", "batch_invariant", "stable_parameters"])
def test_a_promise_is_part_of_the_line_only_where_it_is_made(promise: str) -> None:
    plain = record()
    promised = dataclasses.replace(plain, problem=dataclasses.replace(plain.problem, **{promise: True}))
    assert promise not in plain.line()
    assert json.loads(promised.line())[promise] is True
    assert parse_line(promised.line()) == promised
    assert promised.problem.slot() != plain.problem.slot()


def test_what_takes_the_place_of_what_is_part_of_the_line_only_where_something_does() -> None:
    plain = record()
    placed = dataclasses.replace(plain, problem=dataclasses.replace(plain.problem, in_place=(("y", "x"),)))
    assert "in_place" not in plain.line()
    assert json.loads(placed.line())["in_place"] == {"y": "x"}
    assert parse_line(placed.line()) == placed
    assert placed.problem.slot() != plain.problem.slot()
    assert not plain.serves(placed.problem)


def test_the_layout_of_scales_is_part_of_the_line_only_where_there_is_one() -> None:
    plain = record()
    laid_out = dataclasses.replace(
        plain, problem=dataclasses.replace(plain.problem, layout=(("scale", "column_major"),))
    )
    assert "layout" not in plain.line()
    assert json.loads(laid_out.line())["layout"] == {"scale": "column_major"}
    assert parse_line(laid_out.line()) == laid_out
    assert laid_out.problem.slot() != plain.problem.slot()
    assert not plain.serves(laid_out.problem)
    with pytest.raises(ValueError, match="layout"):
        parse_line(laid_out.line().replace("column_major", "by_column"))


@pytest.mark.parametrize(("spec", "layout", "more"), LAYOUTS)
def test_a_record_of_any_layout_is_read_again(spec: str, layout: dict[str, str], more: dict[str, Any]) -> None:
    asked = problem_for(load(spec), shape="256x2048", layout=layout, **more)
    laid_out = record(problem=asked.question)
    assert laid_out.problem.as_dict()["layout"] == layout
    assert parse_line(laid_out.line()) == laid_out


def test_a_deterministic_problem_is_served_by_every_kernel_that_sums_in_a_fixed_order() -> None:
    plain = record().problem
    promised = dataclasses.replace(plain, deterministic=True)
    fixed = record(schedule=Schedule(columns="partials_two_kernels"))
    varying = record(schedule=Schedule(columns="register_atomic"))
    assert fixed.serves(plain)
    assert fixed.serves(promised)
    assert varying.serves(plain)
    assert not varying.serves(promised)
    assert not fixed.serves(dataclasses.replace(promised, cols=promised.cols + 1))
    assert not record(problem=promised).serves(plain)


def test_both_copies_of_a_roof_are_kept_and_an_older_line_without_them_stays_as_it_was() -> None:
    both = record(us=14.0, roofs_us={"copy": 14.5, "elementwise": 13.7})
    assert parse_line(both.line()) == both
    assert parse_line(both.line()).roofs_us == both.roofs_us
    assert both.to_copy == pytest.approx(14.0 / 14.5)
    older = record().line()
    assert "roofs_us" not in older
    assert parse_line(older).to_copy is None
    assert parse_line(older).line() == older


def test_a_failure_and_a_prediction_survive_the_trip_too() -> None:
    failed = record(outcome=Outcome.WRONG_RESULT, measured=False, times_us=None, reason="y[3, 7] is 2.0\nnot 1.0")
    predicted = record(outcome=Outcome.PREDICTED, measured=False, times_us=None, roof_us=None, default_us=None)
    assert parse_line(failed.line()) == failed
    assert parse_line(predicted.line()) == predicted
    assert predicted.us == 13.0


def test_the_figures_are_those_of_the_bytes_and_the_roof() -> None:
    figures = record(us=14.0).as_dict()
    assert figures["gb_per_s"] == pytest.approx(8192 * 768 * 8 / 14.0e-6 / 1e9, rel=1e-4)
    assert figures["percent_of_roof"] == pytest.approx(100 * 13.7 / 14.0, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 99}, "schema 99"),
        ({"surprise": 1}, "unknown keys: \\['surprise'\\]"),
        ({"outcome": "splendid"}, "splendid"),
        ({"schedule": {"vectors": 4}}, "schedule has unknown keys: \\['vectors'\\]"),
        ({"times_us": {"n": 3}}, "times_us has missing keys: \\['high', 'low'"),
        ({"op": "../layernorm"}, "a spec's name is .*: '../layernorm'"),
        ({"op": 5}, "op must be a text: 5"),
        ({"device": {**TARGETS["h200"].as_dict(), "arch": "90"}}, "device.arch must be a whole number: '90'"),
        ({"device": {**TARGETS["h200"].as_dict(), "arch": True}}, "device.arch must be a whole number: True"),
        ({"device": {**TARGETS["h200"].as_dict(), "name": "../"}}, "a GPU's name .*: '../'"),
        ({"device": {"name": "NVIDIA H200"}}, "the facts of its GPU.*'arch'"),
    ],
)
def test_a_line_that_is_no_record_says_what_is_wrong(change: dict[str, Any], complaint: str) -> None:
    data = json.loads(record().line()) | change
    with pytest.raises(ValueError, match=complaint):
        parse_line(json.dumps(data))


def test_a_torn_line_is_not_json() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parse_line(record().line()[:200])


def test_better_means_measured_then_faster_beyond_the_noise() -> None:
    old = record(us=14.0)
    other = Schedule(threads_per_row=128, vector=4)
    assert is_better(old, None)
    assert is_better(record(us=13.0, schedule=other), old)
    assert not is_better(record(us=13.95, schedule=other), old)  # within the noise of 1 %
    assert not is_better(record(us=15.0, schedule=other), old)
    assert not is_better(record(measured=False, times_us=None, outcome=Outcome.PREDICTED), old)
    assert not is_better(record(outcome=Outcome.WRONG_RESULT), None)
    assert is_better(old, record(measured=False, times_us=None, outcome=Outcome.PREDICTED))


def test_a_winner_that_was_timed_next_to_the_old_one_replaces_it_whatever_the_clock_was_then() -> None:
    old = record(us=14.0)
    other = Schedule(threads_per_row=128, vector=4)
    rerun = {"noise_floor": 0.01, "incumbent": old.schedule.key}
    assert is_better(record(us=14.3, schedule=other, search=rerun), old)
    assert not is_better(record(us=14.3, schedule=other, search={**rerun, "incumbent": other.key}), old)


def test_a_record_of_another_spec_or_emitted_text_is_replaced_whatever_its_time() -> None:
    old = record(us=10.0, text="0123456789abcdef")
    new_spec = dataclasses.replace(problem().question, spec_sha256="cd" * 32)
    assert is_better(record(us=14.0, problem=new_spec), old)
    assert is_better(record(us=14.0, schedule=Schedule()), old, text_now=lambda _: "fedcba9876543210")
    assert not is_better(record(us=14.0, schedule=Schedule()), old, text_now=lambda _: "0123456789abcdef")
    assert not is_better(record(us=14.0, schedule=Schedule()), record(us=10.0), text_now=lambda _: "0123456789abcdef")


def test_the_slot_ignores_the_spec_text() -> None:
    key = problem().question
    assert dataclasses.replace(key, spec_sha256="x").slot() == key.slot()
    assert key.slot() != problem(rows=1).question.slot()


CHAIN = Times(n=40, median=10.0, p05=9.9, p95=10.1, low=9.95, high=10.05)
PRICED = {"chain_us": CHAIN, "price_us": Price(median=4.0, low=3.9, high=4.1), "verified": GPU_CHECK}
AT_ODDS: dict[str, tuple[dict[str, Any], str]] = {
    "cols of another problem": (
        {"verified": dataclasses.replace(GPU_CHECK, cols=(7,))},
        r"verified.cols must have the cols of the problem, 768: \[7\]",
    ),
    "a price below 0": ({"price_us": Price(median=-5.0, low=-6.0, high=-4.0)}, "price_us.median must be"),
    "a price above T": ({"price_us": Price(median=15.0, low=14.9, high=15.1)}, "price_us.median must be"),
    "a kernel that takes time away": (
        {
            "chain_us": Times(n=40, median=20.0, p05=19.9, p95=20.1, low=19.95, high=20.05),
            "price_us": Price(median=-6.0, low=-6.1, high=-5.9),
        },
        "price_us must not be below 0",
    ),
    "an H200 of another architecture": (
        {"device": TARGETS["h200"].as_dict() | {"arch": 100}},
        "device.arch of an NVIDIA H200 must be 90: 100",
    ),
}


@pytest.mark.parametrize("name", AT_ODDS)
def test_a_record_that_contradicts_itself_is_no_record(name: str) -> None:
    assert parse_line(record(**PRICED).line()) == record(**PRICED)
    changes, why = AT_ODDS[name]
    with pytest.raises(ValueError, match=why):
        parse_line(record(**(PRICED | changes)).line())


def test_a_price_of_a_tiny_kernel_may_be_noise_around_0() -> None:
    chain = dataclasses.replace(CHAIN, median=14.0, p05=13.8, p95=14.2, low=13.9, high=14.1)
    priced = record(chain_us=chain, price_us=Price(median=-0.02, low=-0.1, high=0.06))
    assert parse_line(priced.line()) == priced
    assert priced.cost_us is None


def test_a_gpu_that_nobody_knows_has_the_architecture_that_it_names() -> None:
    other = record(device=TARGETS["h200"].as_dict() | {"name": "NVIDIA X1", "arch": 103})
    assert parse_line(other.line()) == other
