"""Random numbers: the same bits by every kernel as by an implementation from the paper, in both directions."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

import normgen
from normgen.choice.first import default_schedule
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import SpecError
from normgen.knobs import Edges
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.spec.reader import load, parse
from normgen.verify import make_inputs, make_outputs
from normgen.verify.philox import philox, uniform
from tests.codegen.covering import Case, ways
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.cuda.compiled import ptx
from tests.samples import is_full

KNOWN = {  # counter and key, and what becomes of the counter: kat_vectors of Random123
    (0, 0, 0, 0, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    (0xFFFFFFFF,) * 6: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): (
        *(0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}
SEEDS = (0, -1, 1 << 32, 0x123456789ABCDEF, -(1 << 63))
DRAWN = parse("""
    name = "drawn"
    [tensors]
    x = "input"
    seed = "seed"
    other = "seed"
    y = { role = "output", dtypes = ["f32"] }
    z = { role = "output", dtypes = ["f32"] }
    top = "row_output"
    [formulas]
    first = "random(seed)"
    top = "max(first)"
    z = "0 * x + (random(other) - random(seed))"
    y = "0 * x + first"
    """)
DROPOUT = parse("""
    name = "dropout"
    [tensors]
    x = "input"
    seed = "seed"
    y = "output"
    [scalars]
    p = 0.3
    [formulas]
    y = "where(random(seed) >= p, x, 0)"
    """)


@pytest.mark.parametrize(("given", "want"), KNOWN.items())
def test_the_reference_is_philox(given: tuple[int, ...], want: tuple[int, ...]) -> None:
    words = [np.array([word], np.uint64) for word in given[:4]]
    found = philox((words[0], words[1], words[2], words[3]), (given[4], given[5]))
    assert tuple(int(word[0]) for word in found) == want


def test_the_reference_takes_word_by_word_of_counters_of_four_columns() -> None:
    seed, row, draw = 0xA4093822299F31D0, 7, 3
    counter = [np.array([word], np.uint64) for word in (row, 0, 1, draw)]
    words = philox((counter[0], counter[1], counter[2], counter[3]), (seed & 0xFFFFFFFF, seed >> 32))
    want = [float(int(word[0]) >> 8) / 2**24 for word in words]
    np.testing.assert_array_equal(uniform(seed, np.arange(8), 8, draw)[7, 4:], want)
    assert uniform(seed, np.arange(0), 5, draw).shape == (0, 5)


def drawn_cases() -> list[Case]:
    shapes = (("5x33", "f32", {}), ("6x52", "bf16", {}), ("3x61", "f32", {"pitch": 64}))
    problems = [problem_for(DRAWN, shape=shape, dtype=dtype, **layout) for shape, dtype, layout in shapes]
    found = [case for problem in problems for case in ways(problem, DEVICE, random.Random(problem.cols))]
    general = problem_for(DRAWN, shape="5x33", any_cols=True)
    return [*(found if is_full() else found[::2]), *((general, s) for s in fallback_schedules(general))]


def test_a_number_depends_on_seed_row_column_and_draw_alone() -> None:
    cases = drawn_cases()
    assert {s.vector for _, s in cases} >= {1, 2, 4}
    assert any(s.peels for _, s in cases)
    kernels = CpuExecutor().build([emit(*case) for case in cases])
    for number, ((problem, schedule), kernel) in enumerate(zip(cases, kernels, strict=True)):
        seed, other = SEEDS[number % len(SEEDS)], SEEDS[(number + 1) % len(SEEDS)]
        inputs, outputs = make_inputs(problem, families=("normal",)), make_outputs(problem)
        inputs.arrays["seed"][...], inputs.arrays["other"][...] = seed, other
        assert not kernel.run(inputs, outputs), schedule
        first, second, third = (
            uniform(bits, np.arange(problem.rows), problem.cols, draw) for draw, bits in enumerate((seed, other, seed))
        )
        np.testing.assert_array_equal(outputs.arrays["y"], first, err_msg=str(schedule))
        np.testing.assert_array_equal(outputs.arrays["z"], second - third, err_msg=str(schedule))
        np.testing.assert_array_equal(outputs.arrays["top"], first.max(axis=1), err_msg=str(schedule))


def test_numbers_are_uniform_and_every_bit_of_the_seed_counts() -> None:
    base = uniform(0, np.arange(200), 500, 0)
    counts = np.histogram(base, bins=16, range=(0, 1))[0]
    assert ((counts - base.size / 16) ** 2 / (base.size / 16)).sum() < 40  # chi-square of 15 degrees: 5e-4
    assert base.min() >= 0
    assert base.max() < 1
    different = [uniform(1 << bit, np.arange(4), 8, 0) for bit in range(64)]
    assert len({part.tobytes() for part in (*different, base[:4, :8])}) == 65


def test_the_backward_pass_draws_the_same_numbers() -> None:
    shapes = (("5x33", "f32"), ("6x52", "bf16"))
    problems = [problem_for(DROPOUT, shape=shape, dtype=dtype, direction="backward") for shape, dtype in shapes]
    assert [t.name for t in problems[0].tensors] == ["dx", "dy", "seed"]
    cases = [case for problem in problems for case in ways(problem, DEVICE, random.Random(2))[::2]]
    for (problem, schedule), kernel in zip(cases, CpuExecutor().build([emit(*c) for c in cases]), strict=True):
        inputs, outputs = make_inputs(problem, families=("normal",)), make_outputs(problem)
        inputs.arrays["seed"][...], inputs.arrays["dy"][...] = SEEDS[3], 1.0
        assert not kernel.run(inputs, outputs), schedule
        kept = uniform(SEEDS[3], np.arange(problem.rows), problem.cols, 0) >= np.float32(0.3)
        np.testing.assert_array_equal(outputs.arrays["dx"].astype(np.float64), kept, err_msg=str(schedule))


def built_in(direction: str) -> list[Case]:
    shapes = (("7x33", "f32"), ("9x96", "bf16"))
    spec = load("dropout_add_rmsnorm")
    problems = [problem_for(spec, shape=shape, dtype=dtype, direction=direction) for shape, dtype in shapes]
    found = [case for problem in problems for case in ways(problem, DEVICE, random.Random(3))]
    found = found if is_full() else found[::4]
    if direction == "backward":  # without sums over rows these hold NaN and infinities, too
        alone = problem_for(spec, shape="40x33", direction=direction, gradients=("x", "residual"))
        found.append((alone, default_schedule(alone, DEVICE)))
    return found


def test_dropout_before_a_norm_is_right() -> None:
    cases = built_in("forward")
    found = list(wrong(cases, CpuExecutor(), seed=0))
    assert not found, report(found, cases)


def test_the_gradients_of_dropout_before_a_norm_are_right() -> None:
    cases = built_in("backward")
    assert [t.name for t in cases[0][0].tensors if t.is_written] == ["dx", "dresidual", "dweight"]
    found = list(wrong_backward(cases, CpuExecutor(), seed=0))
    assert not found, report(found, cases)


def test_a_handle_takes_the_seed_as_one_number_on_the_device() -> None:
    rng = np.random.default_rng(0)
    x, residual = (rng.standard_normal((6, 40)).astype(np.float32) for _ in range(2))
    kernel = normgen.kernel("dropout_add_rmsnorm", shape=(6, 40), device="cpu")
    for seed in (SEEDS[3], SEEDS[4]):
        h, _, _ = kernel(x, residual, weight=np.ones(40, np.float32), seed=np.array(seed), p=0.5)
        kept = uniform(seed, np.arange(6), 40, 0) >= 0.5
        np.testing.assert_array_equal(h, np.where(kept, x * 2, 0) + residual)


@pytest.mark.parametrize(("dtype", "vector", "calls"), [("f32", 1, 1), ("f32", 2, 1), ("f32", 4, 1), ("bf16", 8, 2)])
def test_four_columns_share_the_rounds_of_one_counter(dtype: str, vector: int, calls: int) -> None:
    """In the PTX of a kernel in which a lane has one vector: ten rounds have two products of 64 bits each."""
    problem = problem_for(DROPOUT, shape=(64, 32 * vector), dtype=dtype)
    schedule = replace(default_schedule(problem, target("h200")), vector=vector, threads_per_row=32, edges=Edges.EXACT)
    assert refusal(problem, schedule, target("h200")) is None
    text = ptx(emit(problem, schedule), 90)
    assert not re.findall(r"mul\.hi|mad\.wide\.u32", text)
    shared = calls - 1  # the first round's product with the row
    assert 2 * 10 * calls - 2 * shared <= text.count("mul.wide.u32") <= 2 * 10 * calls


REFUSED = {
    "x + seed": "stands nowhere else",
    "random(x)": "takes a tensor with the role seed",
    "random(7)": "takes a tensor with the role seed",
    "random(seed) * seed": "stands nowhere else",
    "random()": "random takes 1 argument",
    "dropout(x)": "write where\\(random\\(seed\\) >= p, x / \\(1 - p\\), 0\\)",
    "rand(seed)": "write random\\(seed\\)",
}


@pytest.mark.parametrize(("formula", "rule"), REFUSED.items())
def test_a_seed_is_no_number(formula: str, rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        parse(
            f'name = "a"\n[tensors]\nx = "input"\nseed = "seed"\ny = "output"\n'
            f'[formulas]\ny = "x + random(seed) + {formula}"\n'
        )


@pytest.mark.parametrize(("entry", "rule"), {
    '{ role = "seed", dtypes = ["i32"] }': "a seed is always i64",
    '{ role = "seed", follows = "x" }': "a seed is always i64",
    '{ role = "seed", optional = true, absent = "0" }': "a seed is not optional",
}.items())  # fmt: skip
def test_a_seed_has_64_bits(entry: str, rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        parse(f'name = "a"\n[tensors]\nx = "input"\nseed = {entry}\ny = "output"\n[formulas]\ny = "x * random(seed)"\n')


def test_the_texts_compile_for_a_gpu() -> None:
    for case in [*drawn_cases()[::6], built_in("backward")[0]]:
        compile_module(emit(*case), target("h200").arch)
