"""Outputs that take the place of inputs: every kind of kernel, run on the memory that it overwrites."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from normgen.codegen.module import Module
from normgen.cpu import find_compiler
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import UsageError
from normgen.knobs import LoadHint
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong_backward
from tests.cuda.compiled import ptx
from tests.fuzz.schedules import walk
from tests.samples import sized

ADD_RMSNORM = parse("""
    name = "add_rmsnorm"
    [tensors]
    x = "input"
    residual = "input"
    weight = "parameter"
    h = "output"
    y = "output"
    [scalars]
    eps = 1e-6
    [formulas]
    h = "x + residual"
    y = "h * rsqrt(mean(h * h) + eps) * weight"
    """)
CROSS_ENTROPY = parse("""
    name = "cross_entropy"
    [tensors]
    x = "input"
    label = { role = "row_input", dtypes = ["i64", "i32"] }
    loss = "row_output"
    [formulas]
    top = "max(x)"
    loss = "where(label == -1, 0, top + log(sum(exp(x - top))) - sum(where(col == label, x, 0)))"
    """)
H200 = target("h200")
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def problems() -> list[Problem]:
    """Rows of whole vectors and ragged ones, both directions, one pair and two."""
    both = {"h": "residual", "y": "x"}
    return [
        problem_for(ADD_RMSNORM, shape="41x96", dtype="bf16", in_place={"h": "residual"}),
        problem_for(ADD_RMSNORM, shape="23x77", align=4, in_place=both),
        problem_for(load("layernorm"), shape="37x1128", dtype="bf16", pitch=1131, align=2, in_place={"y": "x"}),
        problem_for(load("softmax"), shape="26x641", any_cols=True, align=4, in_place={"y": "x"}),
        problem_for(ADD_RMSNORM, shape="37x264", dtype="bf16", direction="backward", in_place={"dx": "dh"}),
        problem_for(load("layernorm"), shape="23x123", direction="backward", align=4, in_place={"dx": "dy"}),
        problem_for(CROSS_ENTROPY, shape="21x259", dtype="f16", direction="backward", in_place={"dx": "x"}),
    ]


@cache
def cases() -> list[Case]:
    """Random legal schedules of each problem; and the general kernels of headers."""
    found: list[Case] = []
    for number, problem in enumerate(problems()):
        rng = random.Random(number)
        found += [(problem, walk(problem, rng, DEVICE)) for _ in range(sized(5, 60))]
        found += [(problem, s) for s in fallback_schedules(problem) if problem.any_cols]
    return found


@needs_compiler
def test_kernels_overwrite_their_inputs_and_are_right() -> None:
    """Each is called three times, with threads and blocks in another order."""
    drawn = cases()
    found = list(wrong_backward(drawn, CpuExecutor(), seed=1))
    assert not found, report(found, drawn)


STRATEGIES = {
    "thread": {"threads_per_row": 1, "rows_per_block": 32},
    "warp": {"threads_per_row": 32, "rows_per_block": 4, "vector": 2},
    "block": {"threads_per_row": 64, "vector": 2, "hold": "registers", "unroll": 0},
    "cluster": {"threads_per_row": 64, "cluster": 2, "vector": 1, "hold": "registers", "unroll": 0},
}


@needs_compiler
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_check_runs_a_kernel_on_the_memory_that_it_overwrites(strategy: str) -> None:
    problem = problem_for(ADD_RMSNORM, shape="9x266", dtype="bf16", in_place={"h": "residual", "y": "x"}, align=4)
    schedule = Schedule(**STRATEGIES[strategy])
    assert refusal(problem, schedule, H200) is None
    module = emit(problem, schedule)
    assert [p.key for p in module.kernels[0].params][:3] == ["x", "residual", "weight"]
    checked = check_on_cpu(problem, module)
    assert checked.ok, checked.summary
    assert "threads in another order" in checked.summary
    assert set(checked.error) == {"h", "y"}


PIVOT = Schedule(threads_per_row=64, vector=2, hold="registers", unroll=0, variance="shifted")
FIRST, MEAN = "element(read<1>(x_row), 0)", "x_i - row_mean"


def late(problem: Problem) -> Module:
    """A layernorm whose last look reads the row's first element again, as if it had waited in no register."""
    module = emit(problem, PIVOT)
    assert module.text.count(FIRST) == 1
    assert module.text.count(MEAN) == 1
    return replace(module, text=module.text.replace(MEAN, f"{MEAN} + (row_x_first - {FIRST})"))


@needs_compiler
def test_an_element_that_is_read_after_it_was_overwritten_is_found() -> None:
    plain = problem_for(load("layernorm"), shape="9x384", without=("mean", "rstd"))
    aliased = problem_for(load("layernorm"), shape="9x384", without=("mean", "rstd"), in_place={"y": "x"})
    assert check_on_cpu(plain, late(plain)).ok, "in memory of its own the late read does no harm"
    assert check_on_cpu(aliased, emit(aliased, PIVOT)).ok
    assert not check_on_cpu(aliased, late(aliased)).ok


def test_lanes_that_shuffle_do_not_overwrite_a_pivot() -> None:
    problem = problem_for(load("layernorm"), shape="64x512", in_place={"y": "x"})
    lanes = replace(PIVOT, threads_per_row=32, rows_per_block=2)
    assert "no barrier before" in str(refusal(problem, lanes, H200))
    assert refusal(problem, replace(lanes, variance="two_pass"), H200) is None
    assert refusal(problem, PIVOT, H200) is None, "a block passes a barrier"
    alone = Schedule(threads_per_row=1, rows_per_block=32, variance="shifted")
    assert refusal(problem, alone, H200) is None, "one thread reads and writes in its order"
    residual = problem_for(ADD_RMSNORM, shape="64x512", in_place={"h": "residual"})
    assert refusal(residual, replace(lanes, variance="two_pass"), H200) is None


EXCHANGE = "pass1 = Team::reduce(pass1, pass1_slots);"


def stored_early(problem: Problem, schedule: Schedule) -> bool:
    """Whether h is written before the first exchange of its row."""
    text = emit(problem, schedule).text
    return text.index(", h_vec);") < text.index(EXCHANGE)


def test_what_the_first_look_knows_is_written_there() -> None:
    block = Schedule(threads_per_row=64, vector=2, hold="registers", unroll=0)
    apart = problem_for(ADD_RMSNORM, shape="9x384")
    over = problem_for(ADD_RMSNORM, shape="9x384", in_place={"h": "residual"})
    assert stored_early(apart, block)
    assert stored_early(over, block)
    assert not stored_early(apart, replace(block, hold="reload", unroll=1)), "the row is read again"
    ragged = problem_for(ADD_RMSNORM, shape="9x383", in_place={"h": "residual"}, align=4)
    assert not stored_early(ragged, replace(block, edges="peel")), "neighbours read words that they share"


ADD_LAYERNORM = load("add_layernorm")


@needs_compiler
def test_a_pivot_is_read_before_what_it_is_part_of_is_overwritten() -> None:
    problem = problem_for(ADD_LAYERNORM, shape="9x384", without=("mean", "rstd"), in_place={"h": "residual"})
    shifted = replace(PIVOT, rows_per_block=1)
    assert not stored_early(problem, shifted)
    assert stored_early(problem, replace(shifted, variance="two_pass"))
    assert check_on_cpu(problem, emit(problem, shifted)).ok


@pytest.mark.parametrize("hint", [LoadHint.DEFAULT, LoadHint.EVICT_FIRST, LoadHint.NO_ALLOCATE])
def test_what_is_overwritten_is_not_read_through_the_read_only_cache(hint: LoadHint) -> None:
    schedule = Schedule(threads_per_row=64, vector=4, load=hint, unroll=1)
    texts = {}
    for place in ({}, {"y": "x"}):
        problem = problem_for(load("softmax"), shape="64x512", in_place=place)
        texts[bool(place)] = ptx(emit(problem, schedule), 90)
    assert ".nc." not in texts[True]
    assert ".nc." in texts[False]


def test_what_is_overwritten_is_one_pointer_that_is_not_restricted() -> None:
    module = emit(problems()[0], Schedule(threads_per_row=32, rows_per_block=4, vector=8))
    text = module.text
    assert "bfloat16* residual,\n" in text
    assert "write<Store>(residual_row + first_col + step * kStride, h_vec);" in text
    assert "read_first<kVector, Load>(residual_row + first_col + step * kStride);" in text
    assert "read<kVector, Load>(x_row + first_col + step * kStride);" in text
    assert "// h takes the place of residual.\n" in text
    assert "h_row" not in text


def test_the_texts_compile_for_a_gpu() -> None:
    for problem, schedule in cases()[::5]:
        compile_module(emit(problem, schedule), H200.arch)


REFUSED = {
    "is none that is written": {"z": "residual"},
    "did you mean 'residual'": {"h": "residuals"},
    "'weight' is none that is read": {"h": "weight"},
    "one tensor takes the place of another": {"h": "x", "y": "x"},
}


@pytest.mark.parametrize(("rule", "in_place"), REFUSED.items())
def test_a_pair_that_is_none_is_refused(rule: str, in_place: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=rule):
        problem_for(ADD_RMSNORM, shape="4x8", in_place=in_place)


def test_a_pair_of_two_dtypes_is_refused() -> None:
    with pytest.raises(UsageError, match="stored in its dtype") as refused:
        problem_for(ADD_RMSNORM, shape="4x8", dtype="bf16", dtypes={"h": "f32"}, in_place={"h": "residual"})
    assert refused.value.received == "h in place of residual: f32 and bf16"


def test_a_gradient_that_is_added_takes_the_place_of_nothing() -> None:
    with pytest.raises(UsageError, match="takes the place of nothing"):
        problem_for(load("rmsnorm"), shape="4x8", direction="backward", accumulate=True, in_place={"dx": "dy"})


def test_an_absent_tensor_gives_its_place_to_nobody() -> None:
    spec = parse("""
        name = "gated"
        [tensors]
        x = "input"
        gate = { role = "input", optional = true, absent = "1" }
        y = "output"
        [formulas]
        y = "x * gate"
        """)
    with pytest.raises(UsageError, match="'gate' is none that is read"):
        problem_for(spec, shape="4x8", without=("gate",), in_place={"y": "gate"})
