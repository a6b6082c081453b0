"""What is not searched: each rule names what it leaves out, keeps what a spec asks for, and no record is outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from normgen.device import target
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.questions import problem_of
from normgen.records.record import Record
from normgen.records.winners import read, shipped_folder
from normgen.schedule import policy
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.spec.reader import load, parse

H200 = target("h200")
RULES = (
    policy.searched_tile,
    policy.searched_cut,
    policy.searched_cluster,
    policy.searched_place,
    policy.searched_method,
    policy.searched_columns,
    policy.searched_division,
    policy.searched_order,
)
HELD = {"threads_per_row": 64, "vector": 4, "hold": "registers", "unroll": 0}
SHORT = {"shape": "8192x768", "dtype": "bf16"}
BACKWARD = {"shape": "4096x1024", "dtype": "bf16", "direction": "backward"}
NOT_SEARCHED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("layernorm", SHORT, HELD | {"vector": 2}, "accesses below 8 bytes"),
    ("layernorm", SHORT, HELD | {"threads_per_row": 4, "rows_per_block": 8}, "more than 256 bytes of a row"),
    ("layernorm", SHORT, HELD | {"hold": "reload"}, "read again for every pass"),
    ("layernorm", SHORT, HELD | {"hold": "shared"}, "that wait in shared memory"),
    ("layernorm", SHORT, HELD | {"reduce_with": "shared_tree"}, "with other trees than shuffles"),
    ("layernorm", SHORT, HELD | {"persistent": 16}, "a persistent grid of aligned rows"),
    ("layernorm", SHORT, HELD | {"division": "remainder"}, "means of fewer than 4096 cols"),
    ("rmsnorm_to_fp8", {"shape": "4096x4096", "dtype": "bf16"}, HELD | {"division": "remainder"}, "of many rows"),
    ("rmsnorm", BACKWARD, HELD | {"persistent": 2, "columns": "atomic"}, "column sums of many rows by atomics"),
    ("rmsnorm", {"shape": "4096x4096", "dtype": "bf16"}, HELD | {"row_order": "descending"}, "that L2 holds"),
]
SEARCHED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("layernorm", SHORT, HELD),
    ("layernorm", {"shape": "8192x767", "dtype": "bf16"}, HELD | {"vector": 1, "threads_per_row": 128}),
    ("layernorm", {"shape": "64x64", "dtype": "bf16"}, HELD | {"vector": 1, "threads_per_row": 32}),
    ("layernorm", {"shape": "16x16384", "dtype": "bf16"}, HELD | {"hold": "shared", "threads_per_row": 512}),
    ("rmsnorm", {"shape": "2048x5120", "dtype": "bf16"}, HELD | {"division": "remainder"}),
    ("rmsnorm_to_fp8", {"shape": "16x4096", "dtype": "bf16"}, HELD | {"division": "remainder"}),
    ("layernorm_to_int8", {"shape": "4096x768", "dtype": "bf16"}, HELD | {"division": "remainder"}),
    ("softmax", {"shape": "8192x4096", "dtype": "bf16"}, HELD | {"reduce_with": "shared_tree"}),
    ("layernorm", {"shape": "8192x1023", "dtype": "bf16"}, HELD | {"edges": "peel", "persistent": 8}),
    ("rmsnorm", {"shape": "4096x5120", "dtype": "bf16"}, HELD | {"row_order": "descending"}),
    ("rmsnorm", BACKWARD | {"shape": "64x1024"}, HELD | {"persistent": 2, "columns": "register_atomic"}),
]


def said(problem: Problem, knobs: dict[str, Any]) -> str | None:
    return refusal(problem, Schedule(**knobs), H200, RULES)


@pytest.mark.parametrize(
    ("op", "asked", "knobs", "reason"), NOT_SEARCHED, ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_never_came_near_the_best_is_not_searched(
    op: str, asked: dict[str, Any], knobs: dict[str, Any], reason: str
) -> None:
    problem = problem_for(load(op), **asked)
    found = said(problem, knobs)
    assert found is not None
    assert found.startswith("not searched: ")
    assert reason in found
    assert refusal(problem, Schedule(**knobs), H200) is None  # legal by name


@pytest.mark.parametrize(("op", "asked", "knobs"), SEARCHED, ids=str)
def test_what_was_not_measured_is_searched(op: str, asked: dict[str, Any], knobs: dict[str, Any]) -> None:
    assert said(problem_for(load(op), **asked), knobs) is None


@pytest.mark.parametrize(
    ("listed", "knob", "value"),
    [
        ('variance = "welford"', "variance", "welford"),
        ("vector = 1", "vector", 1),
        ('hold = "reload"', "hold", "reload"),
        ('reduce_with = "shared_tree"', "reduce_with", "shared_tree"),
        ('row_order = "descending"', "row_order", "descending"),
    ],
)
def test_a_spec_that_lists_a_value_has_it_searched(listed: str, knob: str, value: object) -> None:
    text = Path(load("layernorm").file).read_text(encoding="utf-8")
    spec = parse(text.replace("[backward]", f"[space]\n{listed}\n\n[backward]"))
    assert {getattr(s, knob) for s in space(problem_for(spec, shape="8192x1024", dtype="bf16"), H200).legal} == {value}


def test_a_tune_of_8192x768_chooses_among_few_thousand_schedules_and_welford_is_none_of_them() -> None:
    legal = space(problem_for(load("layernorm"), **SHORT), H200).legal
    assert len(legal) < 5500  # 2376 of them walk no rows, 1160 keep values as floats; 9363 were searched alone
    assert {s.variance for s in legal} == {"two_pass", "corrected_two_pass", "guarded"}


def shipped() -> tuple[Record, ...]:
    folder = shipped_folder()
    assert folder is not None
    return read(folder / "h200.jsonl").records


def test_every_shipped_record_is_of_what_is_searched() -> None:
    outside = {
        str(record.problem): reason
        for record in shipped()
        if (reason := refusal(problem_of(record.problem, load(record.problem.op)), record.schedule, H200, RULES))
    }
    assert outside == {}
