"""`--schedule`: points by name, one spelling of values, and refusals that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from normgen.choice.first import default_schedule
from normgen.device import target
from normgen.dtypes import BF16, F16, F32, dtype
from normgen.errors import UsageError
from normgen.knobs import TABLE, knob_value
from normgen.ladder.points import read_schedule
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.winners import kept, shipped_folder
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

H200 = target("h200")


def problem(op: str = "layernorm", shape: str = "8192x768", **options: str) -> Problem:
    return problem_for(load(op), shape=shape, **options)  # type: ignore[arg-type]


def test_plain_is_every_knob_plain_and_no_text_is_the_default() -> None:
    given = problem()
    assert read_schedule(given, H200, "plain") == Schedule()
    assert read_schedule(given, H200, "") == read_schedule(given, H200, "default") == default_schedule(given, H200)


# What a reader of the classic ladders writes down first: all were refused beside the default's other knobs.
TRANSCRIPTIONS = (
    ("layernorm", "forward", "threads_per_row=1 rows_per_block=128"),
    ("layernorm", "forward", "threads_per_row=128 reduce_with=shared_tree"),
    ("layernorm", "forward", "threads_per_row=32 reduce_with=cooperative_groups load=streaming store=streaming"),
    ("layernorm", "forward", "threads_per_row=32 variance=sum_of_squares"),
    ("layernorm", "forward", "threads_per_row=256 variance=sum_of_squares reduce_with=cooperative_groups"),
    ("layernorm", "forward", "variance=welford"),
    ("layernorm", "forward", "threads_per_row=128,vector=float4"),
    ("layernorm", "forward", "hold=shared copy=cp_async stages=2 persistent=1"),
    ("layernorm", "backward", "threads_per_row=1 rows_per_block=64 columns=atomic"),
    ("layernorm", "backward", "threads_per_row=32 rows_per_block=8 columns=shared_atomic"),
    ("rmsnorm", "forward", "threads_per_row=64 rows_per_block=4"),
    ("softmax", "forward", "softmax=online"),
    ("softmax", "forward", "softmax=two_pass"),
)


@pytest.mark.parametrize(("op", "direction", "knobs"), TRANSCRIPTIONS)
def test_a_literal_transcription_of_a_ladders_kernel_is_legal_on_plain(op: str, direction: str, knobs: str) -> None:
    schedule = read_schedule(problem(op, direction=direction), H200, f"plain {knobs}")
    assert set(schedule.chosen) <= {pair.partition("=")[0] for pair in knobs.replace(",", " ").split()}


def test_the_only_record_of_a_gpu_is_not_that_of_another_problem() -> None:
    for gpu in ("h100", "l4"):
        with pytest.raises(UsageError, match="no record of"):
            read_schedule(problem("softmax", "333x1024"), target(gpu), "record")


def test_a_record_is_named_by_its_text_its_file_or_the_problem() -> None:
    record = next(r for r in kept(shipped_folder() / "h200.jsonl") if r.problem.op == "softmax" and r.problem.cols > 1)
    key = record.problem
    given = problem_for(
        load(key.op), shape=f"{key.rows}x{key.cols}", dtype=dict(key.dtypes)["x" if "x" in dict(key.dtypes) else "y"],
        direction=key.direction, dtypes=dict(key.dtypes) if key.direction == "forward" else {},
    )  # fmt: skip
    assert read_schedule(given, H200, record.text[:10]) == record.schedule
    by_file = read_schedule(given, H200, str(shipped_folder() / "h200.jsonl"))
    assert by_file == read_schedule(given, H200, "record")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("plainn", "did you mean 'plain'?"),
        ("vector=4 plain", "a point such as plain stands in front"),
        ("load=ldcs", "'ldcs' is load=streaming here"),
        ("store=__stcs", "'__stcs' is store=streaming here"),
        ("copy=tma", "'tma' is copy=bulk here"),
        ("variance=welfrod", "did you mean 'welford'?"),
        ("stages=2", "(persistent=0, stages=2, params="),
        ("stages=2", "the least change that is legal: persistent=1"),
        ("no_such.jsonl", "there is no such file of records"),
        ("0123456789", "unknown schedule point"),
    ],
)
def test_what_is_refused_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_schedule(problem(), H200, text)
    assert says in str(caught.value)


def test_one_spelling_of_vectors_and_dtypes_at_every_door(tmp_path: Path) -> None:
    assert [knob_value("vector", v) for v in (4, "4", "float4", "half4", "bfloat164")] == [4] * 5
    assert Schedule(vector="float4") == Schedule(vector=4)  # type: ignore[arg-type]
    assert {dtype(n) for n in ("f32", "fp32", "float32", "float", "FP32", "torch.float32")} == {F32}
    assert {dtype(n) for n in ("f16", "fp16", "float16", "half", "__half", "torch.float16")} == {F16}
    assert {dtype(n) for n in ("bf16", "bfloat16", "__nv_bfloat16", "torch.bfloat16")} == {BF16}
    file = tmp_path / "own.toml"
    text = (load("rmsnorm").text).replace('name = "rmsnorm"', 'name = "own"').replace('"f16"', '"fp16"')
    file.write_text(text + '\n[space]\nvector = ["float4", "2", 1]\nthreads_per_row = "64"\n', encoding="utf-8")
    assert load(file).knobs == {"vector": (4, 2, 1), "threads_per_row": (64,)}


@pytest.mark.parametrize("value", [True, 4.0, None, ["4"], "04", "٤", "4" * 5000])
def test_what_only_looks_like_a_number_is_no_value(value: object) -> None:
    with pytest.raises(UsageError):
        knob_value("vector", value)


def test_a_name_from_elsewhere_means_one_value_and_is_no_value_itself() -> None:
    for knob in TABLE:
        names = [name for names in knob.elsewhere.values() for name in names]
        assert len(names) == len(set(names))
        assert not set(names) & set(map(str, knob.values))
        assert set(knob.elsewhere) <= set(map(str, knob.values))
