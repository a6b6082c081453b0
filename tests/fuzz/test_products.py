"""Random products on the CPU executor, by random schedules of tiles, against the program in float64."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import build_many, find_compiler
from normgen.device import target
from normgen.errors import ProgramError, SpecError
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for, written_program
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.schedule.space import space
from normgen.spec.reader import parse
from normgen.verify.sources import prove_derivative
from tests.fuzz.command import run
from tests.fuzz.faults import Faults
from tests.fuzz.products import ORDERS, TENSORS, Draw, known_products
from tests.fuzz.stages import answered, executed
from tests.program.evaluate import evaluate
from tests.samples import sized

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
SEEDS = range(sized(8, 60))
H200 = target("h200")
RELOAD = schedule_from(
    {"hold": "reload", "tile_m": 16, "tile_n": 16, "tile_k": 8, "thread_m": 2, "thread_n": 1, "vector": 1}
)
EDGES = (1, 7, 15, 16, 17, 32, 33)
FARTHEST = 1e4  # results beyond are of functions that hide what is wrong, or overflow in 16 bits


def drawn_problem(seed: int) -> Problem | None:
    """None for a spec that is refused, as one in eight is: some tensor is not read, some side waits for a row."""
    rng = random.Random(f"sizes {seed}")
    sizes = [rng.choice(EDGES) for _ in range(3)] if rng.random() < 0.7 else [4 * rng.randint(1, 12) for _ in range(3)]
    rows, inner, cols = sizes
    dtype, any_cols = rng.choice(("f32", "f32", "bf16", "f16")), rng.random() < 0.3
    try:
        found = problem_for(parse(Draw(seed).text()), shape=(rows, cols), inner=inner, dtype=dtype, any_cols=any_cols)
        default_schedule(found, H200)
    except (SpecError, ProgramError):
        return None
    return found


def schedules(problem: Problem, seed: int) -> list[Schedule]:
    if problem.any_cols:
        return [*fallback_schedules(problem), RELOAD]
    legal = space(problem, H200).legal
    found = [default_schedule(problem, H200), random.Random(seed).choice(legal), RELOAD]
    return [schedule for schedule in found if refusal(problem, schedule, H200) is None]


def in_order(array: Any, axes: Sequence[str]) -> Any:
    """With its axes as programs have them."""
    order = sorted(axes, key=["rows", "inner", "cols"].index)
    return np.transpose(array.astype(np.float64), [list(axes).index(axis) for axis in order])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_at_random_is_right_or_refused(seed: int) -> None:
    problem = drawn_problem(seed)
    if problem is None:
        return
    rng, sizes = np.random.default_rng(seed), problem.sizes
    arrays = {}
    for t in problem.tensors:
        values = np.full(t.shape(sizes), np.nan) if t.is_written else 0.7 * rng.standard_normal(t.shape(sizes))
        arrays[t.name] = np.asarray(values, np.float32).astype(t.dtype.numpy)
    read = {t.name: in_order(arrays[t.name], t.axes) for t in problem.tensors if not t.is_written}
    with np.errstate(all="ignore"):
        wanted = evaluate(written_program(problem), read)
    for program in build_many([emit(problem, schedule) for schedule in schedules(problem, seed)]):
        given = {name: np.atleast_1d(array) for name, array in arrays.items()}
        run = program.run(given, rows=sizes.rows, inner=sizes.inner, cols=sizes.cols, seed=seed)
        assert not run.faults
        for t in (t for t in problem.tensors if t.is_written):
            result, truth = in_order(given[t.name], t.axes), np.broadcast_to(wanted[t.name], t.shape(sizes))
            seen = np.abs(truth) < FARTHEST
            close = 2e-4 if problem.dtype.bytes == 4 else 2e-2
            np.testing.assert_allclose(
                result[seen], truth[seen], atol=close * max(1, np.abs(truth[seen]).max(initial=0))
            )


def test_most_products_at_random_are_not_refused() -> None:
    assert sum(drawn_problem(seed) is not None for seed in range(80)) >= 64


def backward_problems(seed: int) -> list[Problem]:
    """Of each gradient that has a program: a kernel's, or an operator's on the CPU where no kernel gives it."""
    found = []
    with suppress(SpecError):
        spec = parse(Draw(seed).text())
        for tensor in (t for t in spec.tensors if not t.role.is_written and t.has_gradient and not t.kind.is_inner):
            with suppress(SpecError, ProgramError):
                asked: dict[str, Any] = {"direction": "backward", "gradients": (tensor.name,)}
                found.append(problem_for(spec, shape=(5, 7), inner=6, **asked))
    return found


@pytest.mark.parametrize("seed", range(sized(16, 300)))
def test_a_gradient_of_a_product_at_random_is_the_derivative(seed: int) -> None:
    for problem in backward_problems(seed):
        prove_derivative(problem)


def test_most_products_at_random_have_gradients() -> None:
    assert sum(len(backward_problems(seed)) for seed in range(16)) >= 20


def test_the_whole_check_finds_random_products_right_around_their_tiles(tmp_path: Path) -> None:
    """All families, run-time sizes one less and one more than a tile's, and 1, of m, n and k."""
    assert run("products", sized(2, 120), seed=0, kept=Faults.at(tmp_path / "faults.jsonl")) == 0


@pytest.mark.parametrize("seed", range(sized(1, 4)))
def test_the_whole_check_finds_products_that_come_with_normgen_right_around_their_tiles(seed: int) -> None:
    drawn = known_products(random.Random(seed))
    for name in list(drawn)[:: sized(8, 1)]:
        answer = answered(executed, drawn[name])
        assert answer.state == "right", f"{name}: {answer.why}"


# Found by `python -m tests.fuzz --products`: right kernels that the check called wrong, as the factor that left a sum
# was infinite, or had kept its terms from an overflow.
@pytest.mark.parametrize(
    ("formulas", "inner"),
    [
        ({"s": "absmax(x * gain)", "y": "(x * s) @ w"}, 17),
        ({"y": "((gain * x * 0.5) * (gain * x * 0.5)) @ (w * bias) + x @ w - res"}, 1),
    ],
)
def test_a_factor_that_leaves_a_sum_may_be_infinite_or_keep_it_from_an_overflow(
    formulas: dict[str, str], inner: int
) -> None:
    names = set(re.findall("[a-z]+", " ".join(formulas.values())))
    tensors = [f"{name} = {TENSORS[name].format(ORDERS[0])}" for name in ("w",)]
    tensors += [f"{name} = {TENSORS[name]}" for name in ("x", "gain", "bias", "res") if name in names]
    said = [f'{name} = "{text}"' for name, text in formulas.items()]
    text = "\n".join(['name = "found"', "[tensors]", *tensors, 'y = "output"', "[formulas]", *said])
    problem = problem_for(parse(text), shape=(20, 20), inner=inner, any_cols=True)
    found = check_on_cpu(problem, emit(problem, RELOAD))
    assert found.ok, found.summary
