"""roll(x, k): every way in which rows are read at other columns, around their ends, in both directions; refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import normgen
from normgen import verify
from normgen.choice.first import default_schedule
from normgen.engines.tvm_ffi import function_of, rules
from normgen.errors import NothingValidError, ProgramError, SpecError, UsageError
from normgen.export import headers_of
from normgen.export.groups import groups_of
from normgen.measure.cpu_check import check_on_cpu
from normgen.operators.forms import Forms
from normgen.pipeline import emit
from normgen.program.lower import lower
from normgen.program.rewrites.passes import passed
from normgen.program.source import problem_for, written_program
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec
from normgen.verify.derivative_proof import proven_program
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.codegen.test_batches import IN_REGISTERS, LAYOUT, RING, summed
from tests.export.cases import record

HALVES, PAIRS = load("qk_norm_rope"), load("qk_norm_rope_pairs")
MIXED = parse("""
    name = "neighbours"
    [tensors]
    x = "input"
    gate = { role = "parameter", group = 3, dtypes = ["f32", "bf16"] }
    shift = "batch_parameter"
    weight = "parameter"
    scale = "row_input"
    total = "row_output"
    y = "output"
    [formulas]
    h = "(x - mean(x)) * scale + shift"
    further = "roll(h * weight, cols - 2) * roll(gate, 4)"
    y = "further + roll(roll(h, 1), 1 - cols / 3) * where(roll(col, 5) < 4, 0.5, weight)"
    total = "sum(roll(x, 3) * x)"
    """)
WAYS = {
    "a thread a row": ("7x3x6", "f32", {"threads_per_row": 1, "rows_per_block": 32, "vector": 2}),
    "lanes a row": ("5x9x120", "f32", {"threads_per_row": 8, "rows_per_block": 8, "vector": 4, **IN_REGISTERS}),
    "a warp a row": ("3x5x192", "bf16", {"threads_per_row": 32, "rows_per_block": 2, "vector": 8, **IN_REGISTERS}),
    "a block a row": ("2x5x768", "bf16", {"threads_per_row": 128, "vector": 4, "hold": "shared", "unroll": 1}),
    "a cluster a row": ("2x3x768", "f32", {"threads_per_row": 64, "cluster": 2, "vector": 2, **IN_REGISTERS}),
    "rows ahead": ("4x7x384", "f32", {"threads_per_row": 64, "vector": 2, **RING, "stages": 2}),
    "a bulk ring": ("4x7x384", "bf16", {"threads_per_row": 64, "vector": 2, **RING, "copy": "bulk"}),
    "a masked tail": ("3x4x126", "bf16", {"threads_per_row": 16, "rows_per_block": 4, "vector": 4, "edges": "masked"}),
    "a peeled head": ("3x4x1008", "f32", {"threads_per_row": 64, "vector": 4, "edges": "peel", **IN_REGISTERS}),
    "peeled walkers": ("3x14x258", "bf16", {"threads_per_row": 32, "vector": 8, "edges": "peel", "persistent": 1}),
    "values kept": (
        *("3x5x192", "bf16"),
        {"threads_per_row": 32, "rows_per_block": 2, "vector": 2, "keep": "values", **IN_REGISTERS},
    ),
    "again and again": ("3x4x96", "f16", {"threads_per_row": 32, "vector": 1, "reduce_with": "shared_tree"}),
}  # fmt: skip
PITCHES = {**LAYOUT, "a masked tail": {"pitch": 128}}


def cases(direction: str) -> list[Case]:
    """Each way with one of the two layouts of pairs in turn, and with the mixed spec."""
    found: list[Case] = []
    for number, (name, (shape, dtype, knobs)) in enumerate(WAYS.items()):
        for spec in ((HALVES, PAIRS)[number % 2], MIXED):
            problem = problem_for(spec, shape=shape, dtype=dtype, direction=direction, **PITCHES.get(name, {}))
            schedule = Schedule(**knobs)
            if direction == "backward":
                keep = next(summed(problem, schedule, number), None)
                schedule = keep or next(summed(problem, replace(schedule, keep=Schedule().keep), number))
            why = refusal(problem, schedule, DEVICE)
            if name == "values kept" and why:
                continue
            assert why is None, (name, why)
            found.append((problem, schedule))
    return found


def test_kernels_are_right_on_the_cpu() -> None:
    found = list(wrong(cases("forward"), CpuExecutor(), seed=0))
    assert not found, report(found, cases("forward"))


def test_gradients_are_right_on_the_cpu() -> None:
    found = list(wrong_backward(cases("backward"), CpuExecutor(), seed=0))
    assert not found, report(found, cases("backward"))


def rope(x: np.ndarray, angles: np.ndarray, weight: np.ndarray, *, pairs: bool) -> np.ndarray:
    """In float64, as complex numbers: a pair (a, b) is a + ib, and is turned by exp(i angle)."""
    n = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
    half = x.shape[-1] // 2
    z = n[..., 0::2] + 1j * n[..., 1::2] if pairs else n[..., :half] + 1j * n[..., half:]
    z = z * np.exp(1j * angles)[:, None]
    parts = (z.real, z.imag)
    return np.stack(parts, -1).reshape(x.shape) if pairs else np.concatenate(parts, -1)


@pytest.mark.parametrize("pairs", [False, True])
def test_both_layouts_turn_pairs_by_the_angle_of_their_token(pairs: bool) -> None:
    rng = np.random.default_rng(3)
    x, angles = rng.standard_normal((5, 3, 16)), rng.uniform(0, 6, (5, 8))
    weight = rng.standard_normal(16)
    table = np.repeat(angles, 2, -1) if pairs else np.concatenate((angles, angles), -1)
    kernel = normgen.kernel(PAIRS if pairs else HALVES, shape=x.shape, device="cpu", without=["rstd"])
    arrays = (np.asarray(a, dtype=np.float32) for a in (x, weight, np.cos(table), np.sin(table)))
    found = kernel(*(a.reshape(-1, 16) if a.ndim == 3 else a for a in arrays))
    np.testing.assert_allclose(found.reshape(x.shape), rope(x, angles, weight, pairs=pairs), atol=2e-6)


def test_the_thread_that_owns_both_halves_of_a_row_reads_it_once() -> None:
    program = passed(written_program(problem_for(HALVES, shape="4x8x128")), Schedule())[-1][1]
    assert [str(ld.roll) for ld in program.loads if ld.of] == ["cols/2", "cols/2"]
    module = emit(
        problem_for(HALVES, shape="4x8x128", dtype="bf16"),
        Schedule(threads_per_row=8, rows_per_block=16, vector=8, **IN_REGISTERS),
    )
    assert "rolled_held<kStride, kCols / 2, kCols>(x_held, step, x_row, vector * kVector)" in module.text


def test_a_roll_back_is_the_value_itself() -> None:
    spec = parse(
        'name = "t"\n[tensors]\nx = "input"\nw = "parameter"\ny = "output"\n[formulas]\n'
        'y = "roll(roll(x * w, 3), -3) + roll(roll(x, cols / 2), cols / 2)"'
    )
    program = passed(lower(spec), Schedule())[-1][1]
    assert [ld.name for ld in program.loads] == ["x", "w"]


def test_the_gradient_of_a_roll_is_the_roll_back_of_the_gradient() -> None:
    backward = problem_for(HALVES, shape="4x8x128", direction="backward", gradients=("x",))
    loads = [ld for ld in passed(proven_program(backward), Schedule())[-1][1].loads if ld.of]
    assert [(ld.of, str(ld.roll)) for ld in loads] == [("dy", "cols/2"), ("sine", "cols/2")]
    shifted = parse(
        'name = "t"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\n'
        'y = "roll(x, 3) * x + roll(exp(x), 1 - cols / 3)"'
    )
    backward = problem_for(shifted, shape="4x12", direction="backward")
    rolls = {(ld.of, str(ld.roll)) for ld in passed(proven_program(backward), Schedule())[-1][1].loads if ld.of}
    assert rolls == {("x", "3"), ("dy", "-3"), ("x", "-3"), ("dy", "cols/3 - 1")}


@pytest.mark.parametrize("spec", [HALVES, PAIRS, MIXED], ids=lambda spec: spec.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_check_finds_kernels_of_any_columns_right(spec: Spec, direction: str) -> None:
    problem = problem_for(spec, shape="4x3x24", dtype="bf16", direction=direction, any_cols=True)
    module = emit(problem, default_schedule(problem, DEVICE))
    found = check_on_cpu(problem, module, most_elements=1 << 14)
    assert found.ok, found.summary


IN_PLACE = {"in_place": {"y": "x"}}


def test_halves_are_turned_in_place_where_a_thread_owns_both() -> None:
    problem = problem_for(HALVES, shape="4x3x128", dtype="bf16", **IN_PLACE)
    own = Schedule(threads_per_row=8, rows_per_block=16, vector=8, **IN_REGISTERS)
    found = check_on_cpu(problem, emit(problem, own), most_elements=1 << 14)
    assert found.ok, found.summary
    others = replace(own, threads_per_row=16, rows_per_block=8)
    assert "roll moves it to them" in str(refusal(problem, others, DEVICE))
    shared = replace(own, hold=Schedule(hold="shared").hold, unroll=1)
    assert "roll moves it to them" in str(refusal(problem, shared, DEVICE))


def test_what_is_read_rolled_alone_waits_in_no_register() -> None:
    """A thread of a row of its own overwrites what it reads later."""
    problem = problem_for(spec_of("roll(x, -1) * w"), shape="24x8", in_place={"y": "x"})
    alone = Schedule(threads_per_row=1, rows_per_block=128, **IN_REGISTERS)
    assert "roll moves it to them" in str(refusal(problem, alone, DEVICE))
    both = problem_for(spec_of("roll(x, -1) * w + x"), shape="24x8", in_place={"y": "x"})
    found = check_on_cpu(both, emit(both, alone), most_elements=1 << 12)
    assert found.ok, found.summary


def test_neighbours_in_place_have_no_schedule_but_rows_of_a_thread() -> None:
    with pytest.raises(NothingValidError, match="no schedule is legal") as refused:
        default_schedule(problem_for(PAIRS, shape="4x3x1024", dtype="bf16", **IN_PLACE), DEVICE)
    assert "roll moves it to them" in str(refused.value.hint)
    with pytest.raises(NothingValidError) as refused:
        default_schedule(problem_for(spec_of("roll(x, 1) + w"), shape="2x6", **IN_PLACE), DEVICE)
    assert "roll moves it to them: leave in_place out" in str(refused.value.hint)


def spec_of(formula: str, tensors: str = 'x = "input"\nw = "parameter"\ny = "output"', more: str = "") -> Spec:
    return parse(f'name = "t"\n[tensors]\n{tensors}\n[formulas]\ny = "{formula}"\n{more}')


ROLLED = spec_of("roll(x, -3) * w")
REFUSED = {
    "roll(x, w)": "made of whole numbers and cols",
    "roll(x, cols * cols)": "made of whole numbers and cols",
    "roll(x, 0.5)": "made of whole numbers and cols",
    "roll(x, mean(x))": "made of whole numbers and cols",
    "roll(x, cols)": "rolls a row by less than cols",
    "roll(x, 1 + cols)": "rolls a row by less than cols",
    "roll(x, 2 * cols - 1)": "rolls a row by less than cols",
    "roll(mean(x), 1) * x": "roll moves values of columns, but here of row",
    "roll(x)": "roll takes 2 arguments",
    "roll(absmax(x, 4) * x, 1) * w": "not values of groups of columns",
}


@pytest.mark.parametrize("formula", REFUSED)
def test_a_roll_that_no_kernel_has_is_refused_with_its_place(formula: str) -> None:
    with pytest.raises(SpecError, match=REFUSED[formula]) as refused:
        spec_of(f"{formula} + w")
    assert refused.value.hint


def test_what_is_drawn_or_reduced_in_groups_is_not_rolled_under_a_name_either() -> None:
    with pytest.raises(SpecError, match="not values of groups of columns"):
        spec_of("roll(q, 1)", 'x = "input"\ny = "output"', 's = "absmax(x, 4)"\nq = "x / s"')
    with pytest.raises(SpecError, match="not random numbers"):
        spec_of("roll(d, 1)", 'x = "input"\nseed = "seed"\ny = "output"', 'd = "where(random(seed) > 0.5, x, 0)"')
    spec = spec_of("roll(x, 1) * s", 'x = "input"\ny = "output"', 's = "mean(x, 4)"')
    with pytest.raises(SpecError, match="the gradient of roll passes values of groups"):
        problem_for(spec, shape="4x32", direction="backward")


def test_a_gradient_that_rolls_random_numbers_is_refused() -> None:
    spec = spec_of("roll(x * x, 1) * random(seed)", 'x = "input"\nseed = "seed"\ny = "output"')
    assert problem_for(spec, shape="4x32")
    with pytest.raises(ProgramError, match="not random numbers") as refused:
        problem_for(spec, shape="4x32", direction="backward")
    assert refused.value.hint


def test_a_branch_that_is_not_taken_has_no_gradient_through_a_roll() -> None:
    """1 / 0 and its infinite slope stand in the branch that is not taken."""
    spec = spec_of("where(roll(x, 1) != 0, roll(w / x, 1), 2)", 'x = "input"\nw = "input"\ny = "output"')
    backward = normgen.kernel(spec, shape="1x4", direction="backward", device="cpu")
    x, w = np.array([[1.0, 0.0, 2.0, 4.0]], np.float32), np.array([[3.0, 5.0, 7.0, 8.0]], np.float32)
    dx, dw = backward(dy=np.array([[1.0, 10.0, 100.0, 1000.0]], np.float32), x=x, w=w)
    np.testing.assert_allclose(dx, [[-30.0, 0.0, -1750.0, -0.5]])
    np.testing.assert_allclose(dw, [[10.0, 0.0, 500.0, 0.25]])


def accepts(spec: Spec, cols: int) -> bool:
    try:
        return problem_for(spec, shape=(4, cols)).cols == cols
    except UsageError:
        return False


def test_every_door_refuses_rows_of_no_more_columns_than_they_are_rolled_by() -> None:
    one = record(ROLLED, shape="4x64")
    (header,) = headers_of([one], spec=ROLLED)
    assert "cols <= 3" in header.text
    (group,) = groups_of([one], lambda _: ROLLED)
    assert any("cols > 3" in line for line in rules(group, function_of(group, (), file_name=header.file_name)))
    rows = np.zeros((4, 3), np.float32)
    with pytest.raises(UsageError, match="rolls rows of more than 3 cols"):
        Forms(ROLLED).checked([rows, rows[0]])


def test_rows_without_the_share_that_a_formula_rolls_by_are_refused() -> None:
    with pytest.raises(UsageError, match="a part of cols: these are a multiple of 2"):
        problem_for(HALVES, shape="4x8x127")
    with pytest.raises(UsageError, match="rolls rows by less than cols"):
        problem_for(spec_of("roll(x, 9) * w"), shape="4x8")
    with pytest.raises(SpecError) as refused:
        spec_of("roll(sum(x, 4), 4) * w")
    assert "roll what is reduced" in str(refused.value.hint)
    assert HALVES.whole_cols == HALVES.least_cols == 2
    assert spec_of("roll(x, 9) * w").least_cols == 10
    assert spec_of("roll(x, cols / 2 - 3) * w").least_cols == 4
    assert spec_of("roll(x, cols - 5) * w").least_cols == 3
    for formula in (
        "roll(x, 9)",
        "roll(x, cols / 2 - 3)",
        "roll(x, cols - 5)",
        "roll(x, 4 - cols / 2)",
        "roll(x, cols / 2)",
    ):
        spec = spec_of(f"{formula} * w")
        assert [cols for cols in range(2, 31, 2) if accepts(spec, cols)] == [
            cols for cols in range(2, 31, 2) if cols > spec.too_few_cols
        ]
    assert MIXED.whole_cols == 3
    assert spec_of("roll(x, cols / 4 - cols / 6) * w").whole_cols == 12


def test_the_oracle_rolls_as_numpy_does() -> None:
    x = np.arange(24.0).reshape(2, 12)
    spec = spec_of("roll(x, cols / 3 - 1) + roll(col, -2) * 100 + 0 * w")
    found = verify.interpret(spec, {"x": x, "w": np.zeros(12)})["y"]
    np.testing.assert_array_equal(found, np.roll(x, 3, -1) + np.roll(np.arange(12), -2) * 100)
