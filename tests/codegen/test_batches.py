"""Parameters with a row for each batch of rows, and their gradients: every way rows are read and summed; refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cpu import build
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import SpecError, UsageError, VerificationError
from normgen.knobs import ColumnWay
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.problem.words import file_stem, options
from normgen.program.ir import Reduce, Statement
from normgen.program.lower import lower
from normgen.program.source import problem_for, written_program
from normgen.records.questions import problem_of as problem_of_key
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import BACKWARD_SETS, DEVICE, SETS, problem_of
from tests.codegen.matrix import report, wrong, wrong_backward

H200 = target("h200")
ADALN = load("adaln")
GATED = parse("""
    name = "gated_norm"
    [tensors]
    x = "input"
    gate = { role = "batch_parameter", dtypes = ["f32", "bf16"] }
    shift = { role = "batch_parameter", optional = true, absent = "0" }
    weight = "parameter"
    row_scale = "row_input"
    sample = "batch_input"
    rms = "statistic"
    y = "output"
    [formulas]
    h = "x * (1 + gate) + shift"
    rms = "sqrt(mean((h - mean(h))**2) + 1e-5)"
    y = "h / rms * weight * row_scale * sample"
    [backward]
    saved = ["rms"]
    """)
SCALED = parse("""
    name = "scaled"
    [tensors]
    x = "input"
    gate = "batch_parameter"
    weight = "parameter"
    alpha = "scalar_parameter"
    y = "output"
    [formulas]
    y = "tanh(alpha * x) * weight + gate * x"
    """)
IN_REGISTERS = {"hold": "registers", "unroll": 0}
RING = {"hold": "registers", "unroll": 0, "persistent": 1, "stages": 3}
WAYS = {
    "a thread a row": ("7x3x8", "f32", {"threads_per_row": 1, "rows_per_block": 32, "vector": 2}),
    "lanes a row": ("5x9x120", "f32", {"threads_per_row": 8, "rows_per_block": 8, "vector": 4, **IN_REGISTERS}),
    "a warp a row": ("3x5x256", "bf16", {"threads_per_row": 32, "rows_per_block": 2, "vector": 8, **IN_REGISTERS}),
    "a block a row": ("2x5x1024", "bf16", {"threads_per_row": 128, "vector": 4, "hold": "shared", "unroll": 1}),
    "a cluster a row": ("2x3x1024", "f32", {"threads_per_row": 64, "cluster": 2, "vector": 4, **IN_REGISTERS}),
    "clusters that walk": (
        *("4x5x1024", "bf16"),
        {"threads_per_row": 64, "cluster": 2, "vector": 4, "persistent": 1, **IN_REGISTERS},
    ),
    "rows ahead": ("4x7x512", "f32", {"threads_per_row": 64, "vector": 4, **RING, "stages": 2}),
    "a bulk ring": ("4x7x512", "bf16", {"threads_per_row": 64, "vector": 8, **RING, "copy": "bulk"}),
    "a cp.async ring": (
        *("9x5x256", "f32"),
        {"threads_per_row": 32, "rows_per_block": 2, "vector": 4, **RING, "copy": "cp_async"},
    ),
    "a masked tail": ("3x4x123", "bf16", {"threads_per_row": 16, "rows_per_block": 4, "vector": 4, "edges": "masked"}),
    "a peeled head": ("3x4x1001", "f32", {"threads_per_row": 64, "vector": 4, "edges": "peel", **IN_REGISTERS}),
    "peeled walkers": ("3x14x259", "bf16", {"threads_per_row": 32, "vector": 8, "edges": "peel", "persistent": 1}),
    "a pivot": ("3x4x96", "f32", {"threads_per_row": 32, "vector": 1, "variance": "shifted"}),
    "again and again": ("3x4x96", "f16", {"threads_per_row": 32, "vector": 2, "reduce_with": "shared_tree"}),
}  # fmt: skip
PARAMS = {"lanes a row": "early", "clusters that walk": "kept", "a bulk ring": "packed"}  # of the weight per column
LAYOUT = {"a masked tail": {"pitch": 124}, "a peeled head": {"align": 4}, "peeled walkers": {"align": 2}}


SUMMED = (
    *("partials_two_kernels", "register_atomic", "shared_atomic"),
    "atomic",  # rows of any batch meet in a block
)


def cases(direction: str, shipped: Spec = ADALN, other: Spec = GATED) -> list[Case]:
    """Each way once with the spec that ships, every second one with the other."""
    found: list[Case] = []
    for spec, ways in ((shipped, list(WAYS)), (other, list(WAYS)[1::2])):
        for number, name in enumerate(ways):
            shape, dtype, knobs = WAYS[name]
            asked = {"direction": "backward"} if direction == "backward" else {}
            problem = problem_for(spec, shape=shape, dtype=dtype, **LAYOUT.get(name, {}), **asked)
            schedule = Schedule(**knobs)
            if spec is other:
                schedule = replace(schedule, params=PARAMS.get(name, "late"))
            if direction == "backward":
                schedule = replace(schedule, variance=Schedule().variance)
                schedule = next(summed(problem, schedule, number + (spec is other)))
            assert refusal(problem, schedule, DEVICE) is None, (name, refusal(problem, schedule, DEVICE))
            found.append((problem, schedule))
    return found


def summed(problem: Problem, schedule: Schedule, first: int) -> Iterator[Schedule]:
    """The schedule with each way to sum that is legal, from the first on."""
    for way in (*SUMMED, *SUMMED)[first % len(SUMMED) :]:
        own = replace(schedule, columns=ColumnWay(way))
        if way != "atomic":
            own = replace(own, persistent=max(1, own.persistent))
        if refusal(problem, own, DEVICE) is None:
            yield own


def test_kernels_are_right_on_the_cpu() -> None:
    found = list(wrong(cases("forward"), CpuExecutor(), seed=0))
    assert not found, report(found, cases("forward"))


def test_gradients_are_right_on_the_cpu() -> None:
    found = list(wrong_backward(cases("backward"), CpuExecutor(), seed=0))
    assert not found, report(found, cases("backward"))


@pytest.mark.gpu
def test_kernels_are_right_on_the_gpu() -> None:
    executor, forward, backward = GpuExecutor(), cases("forward"), cases("backward")
    found = [*wrong(forward, executor, seed=0), *wrong_backward(backward, executor, seed=0)]
    assert not found, report(found, [*forward, *backward])


def test_the_texts_compile_for_a_gpu() -> None:
    for problem, schedule in [*cases("forward")[1:14:4], cases("forward")[-1], cases("backward")[6]]:
        compile_module(emit(problem, schedule), H200.arch)


def test_every_way_to_sum_has_a_case() -> None:
    assert {str(schedule.columns) for _, schedule in cases("backward")} == set(SUMMED)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("spec", [ADALN, GATED], ids=lambda spec: spec.name)
def test_the_general_kernels_are_right(spec: Spec, direction: str) -> None:
    asked = {"dtype": "bf16", "align": 2 if spec is ADALN else 4, "direction": direction}
    problem = problem_for(spec, shape="3x5x77", any_cols=True, **asked)
    general = [(problem, schedule) for schedule in fallback_schedules(problem)]
    found = list((wrong_backward if direction == "backward" else wrong)(general, CpuExecutor(), seed=0))
    assert not found, report(found, general)


BACKWARD = {
    "a sum for each batch": (ADALN, {}),
    "and one over all rows": (GATED, {}),
    "totals beside them": (SCALED, {}),
    "added to what is there": (GATED, {"accumulate": True}),
    "atomics in order": (ADALN, {"deterministic": True}),
}


@pytest.mark.parametrize("of", BACKWARD)
def test_the_check_of_a_backward_kernel_has_batches_of_every_length(of: str) -> None:
    spec, asked = BACKWARD[of]
    problem = problem_for(spec, shape="4x12x64", direction="backward", **asked)
    own = {"columns": ColumnWay.ATOMIC, "threads_per_row": 32, "vector": 2, "persistent": 1}
    schedule = Schedule(**own) if problem.deterministic else default_schedule(problem, H200)
    assert refusal(problem, schedule, H200) is None
    found = check_on_cpu(problem, emit(problem, schedule), most_elements=1 << 16)
    assert found.ok, found.summary
    assert "  ok at 0 rows" in found.summary
    assert "  ok with a batch for each row" in found.summary


WRONG_SUMS = {
    "rows of the batch before": ("batch_start = batch * rows_per_batch", "batch_start = batch * (rows_per_batch - 1)"),
    "a row too few": ("? rows : batch_start + rows_per_batch", "? rows : batch_start + rows_per_batch - 1"),
    "another batch's partial rows": ("(batch * batch_rows)", "((batch + 1) % max(batches, 1) * batch_rows)"),
    "of all batches": ("const int batch_rows = partial_rows / max(batches, 1)", "const int batch_rows = partial_rows"),
    "to another tensor's pitch": ("batch * dshift_pitch, column", "batch * dscale_pitch, column"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG_SUMS)
def test_the_check_sees_the_sum_of_other_rows(mistake: str) -> None:
    problem = problem_for(ADALN, shape="4x12x64", direction="backward")
    module = emit(problem, default_schedule(problem, H200))
    right, other = WRONG_SUMS[mistake]
    assert right in module.text
    assert not check_on_cpu(problem, replace(module, text=module.text.replace(right, other)), most_elements=1 << 16).ok


def test_a_grid_is_cut_into_equal_shares_of_the_batches() -> None:
    """No more blocks than are resident, where each batch gets one, and a cluster is of one batch."""
    problem = problem_for(ADALN, shape="8x512x1024", dtype="bf16", direction="backward")
    plain = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, persistent=2)
    launch = emit(problem, plain).kernels[0].launch
    assert [launch.grid(rows=4096, sm_count=132, batches=b) for b in (1, 8, 7, 264, 265, 4096)] == [
        *(264, 264, 259, 264, 265, 4096),
    ]
    assert launch.grid(rows=0, sm_count=132, batches=8) == 8
    pairs = emit(problem, replace(plain, cluster=2)).kernels[0].launch
    assert pairs.grid(rows=4096, sm_count=132, batches=8) == 2 * 8 * (132 // 8)
    assert pairs.fitting(256, clusters=100, batches=8) == 2 * 8 * 12


def test_the_last_block_at_a_tile_does_not_add_batches() -> None:
    problem = problem_for(ADALN, shape="8x512x1024", dtype="bf16", direction="backward")
    schedule = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, persistent=2)
    said = refusal(problem, replace(schedule, columns=ColumnWay.PARTIALS_LAST_TILE), H200)
    assert said is not None
    assert said.startswith("the last block at a tile would add it for every batch")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_awkward_layouts_have_a_legal_default(direction: str) -> None:
    for layout in (BACKWARD_SETS if direction == "backward" else SETS)["small"]:
        problem = problem_of(ADALN, layout, "mixed16", direction)
        assert refusal(problem, default_schedule(problem, H200), H200) is None


def test_a_window_begins_within_the_row_of_its_batch() -> None:
    """Row 4 of x starts on 16 bytes, and the row of its batch 12 behind: the word before belongs to no row."""
    problem = problem_for(ADALN, shape="2x4x259", pitch=263, without=["mean", "rstd"])
    schedule = Schedule(**{**IN_REGISTERS, "threads_per_row": 32, "vector": 4, "edges": "peel"})
    assert refusal(problem, schedule, H200) is None
    assert not list(wrong([(problem, schedule)], CpuExecutor(), seed=0))


def checked(problem: Problem) -> tuple[str, bool]:
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, H200)), most_elements=1 << 16)
    return found.summary, found.ok


def test_the_check_has_batches_of_a_row_of_more_than_a_tile_and_of_all_rows() -> None:
    problem = problem_for(ADALN, shape="4x12x64", without=["mean", "rstd"])
    said, ok = checked(problem)
    assert ok
    tile = default_schedule(problem, H200).rows_per_block
    assert tile > 1
    for line in (
        "with a batch for each row",
        f"with {tile + 1} rows a batch",
        f"with {3 * tile - tile // 2} rows a batch",
    ):
        assert f"  ok {line}" in said
    assert "  ok with pitches of their own (y 96, x 128, scale 160, shift 192)" in said
    assert "  ok with rows of shift beyond 2^31 elements" in said


MISTAKES = {
    "the first batch for all": (", rows_per_batch_inverse)", ", rows_per_batch_inverse) * 0"),
    "a row for a batch": (", rows_per_batch_inverse)", ", 0) % 2"),
    "the other tensor's pitch": ("shift + batch * shift_pitch",
                                 "shift + batch * scale_pitch"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_check_sees_the_row_of_another_batch(mistake: str) -> None:
    problem = problem_for(ADALN, shape="4x12x64", without=["mean", "rstd"])
    module = emit(problem, default_schedule(problem, H200))
    right, other = MISTAKES[mistake]
    assert right in module.text
    assert not check_on_cpu(problem, replace(module, text=module.text.replace(right, other))).ok


def reference(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """[batches, tokens, cols] in float64; Peebles and Xie 2023."""
    mean = x.mean(axis=-1, keepdims=True)
    normal = (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + 1e-6)
    return normal * (1 + scale[:, None]) + shift[:, None]


@pytest.mark.parametrize("rows_per_batch", [1, 4, 12])
def test_row_r_takes_row_r_over_rows_per_batch(rows_per_batch: int) -> None:
    """The same kernel for any number of rows a batch, against numpy alone."""
    problem = problem_for(ADALN, shape="2x6x64", without=["mean", "rstd"])
    rng, batches = np.random.default_rng(3), 12 // rows_per_batch
    x, y = rng.standard_normal((12, 64)).astype(np.float32), np.empty((12, 64), np.float32)
    scale, shift = rng.standard_normal((2, batches, 64)).astype(np.float32)
    run = build(emit(problem, default_schedule(problem, H200))).run(
        {"x": x, "scale": scale, "shift": shift, "y": y},
        rows=12,
        cols=64,
        rows_per_batch=rows_per_batch,
        scalars={"eps": 1e-6},
    )
    assert run.faults == ()
    want = reference(x.reshape(batches, -1, 64).astype(np.float64), scale.astype(float), shift.astype(float))
    np.testing.assert_allclose(y, want.reshape(12, 64), rtol=1e-5, atol=1e-5)
    inputs = {"x": x, "scale": scale, "shift": shift}
    np.testing.assert_allclose(verify.interpret(ADALN, inputs)["y"], want.reshape(12, 64), rtol=1e-12, atol=1e-12)


def test_a_derived_gradient_is_proven_over_batches() -> None:
    problem = problem_for(GATED, shape="2x4x96", direction="backward")
    program = written_program(problem)
    slopes = verify.prove(problem, program)
    assert {s.tensor for s in slopes} == {"x", "gate", "shift", "weight", "row_scale"}
    assert all(s.ok for s in slopes)
    half = replace(program, statements=tuple(map(_halved, program.statements)))
    with pytest.raises(VerificationError, match="the derived dgate of spec 'gated_norm' is not the derivative"):
        verify.prove(problem, half)


def _halved(statement: Statement) -> Statement:
    """dgate as half of what it is."""
    if isinstance(statement, Reduce) and statement.names == ("dgate",):
        return replace(statement, args=(statement.args[0] / 2,))
    return statement


# ---- the question ----------------------------------------------------------------------------------------------


def test_batches_are_the_first_of_three_sizes_or_said() -> None:
    assert [problem_for(ADALN, shape=s).batches for s in ("8x4x32", "2x2x8x32", "32x32")] == [8, 2, 1]
    assert problem_for(ADALN, shape="32x32", batches=4) == problem_for(ADALN, shape=(4, 8, 32))
    assert problem_for(ADALN, shape="8x4x32", batches=2).rows_per_batch == 16
    assert problem_for(load("layernorm"), shape="8x4x32").question.batches == 1


def test_a_question_is_asked_again_with_its_batches() -> None:
    problem = problem_for(ADALN, shape="8x4x32", dtype="bf16")
    assert options(problem)[-2:] == ["--batches", "8"]
    assert file_stem(problem) == "adaln_fwd_bf16_32x32_in_8"
    assert problem_for(ADALN, **problem.arguments()) == problem
    key = problem.question
    assert key.as_dict()["batches"] == 8
    assert problem_of_key(key, ADALN) == problem
    assert "batches" not in problem_for(ADALN, shape="32x32").question.as_dict()


def test_bytes_count_each_batch_once() -> None:
    problem = problem_for(ADALN, shape="8x4x32", without=["mean", "rstd"])
    assert problem.compulsory_bytes == 4 * 32 * (2 * 32 + 2 * 8)


def test_batches_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="equally many rows") as refused:
        problem_for(ADALN, shape="32x32", batches=5)
    assert refused.value.received == "32 rows in 5 batches"
    with pytest.raises(UsageError, match="'layernorm' has no tensor with a row for each batch"):
        problem_for(load("layernorm"), shape="32x32", batches=4)


def test_a_gradient_of_batches_reads_something_that_tells_how_many_there_are() -> None:
    problem = problem_for(ADALN, shape="2x4x96", direction="backward", gradients=["shift"])
    assert [t.name for t in problem.tensors] == ["dshift", "dy", "shift"]
    other = problem_for(GATED, shape="2x4x96", direction="backward", gradients=["gate"])
    assert [t.name for t in other.tensors if t.kind.by_batch] == ["dgate", "gate", "shift", "sample"]


def test_a_reduction_reads_a_row_input() -> None:
    text = 'name = "s"\n[tensors]\nx = "input"\nb = "batch_parameter"\ny = "output"\n[formulas]\ny = "x * {}"\n'
    with pytest.raises(SpecError, match="mean reduces a row, so it reads a row input"):
        parse(text.format("mean(b)"))
    program = lower(parse(text.format("mean(b * x) * (1 + b)")))
    assert [str(m.kind) for m in program.maps] == ["elem"]
