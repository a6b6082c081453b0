"""Each line of the table of what people ask for works in the directions it names, or is refused in words."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.device import target
from normgen.dtypes import DTYPES
from normgen.errors import NormgenError, SpecError, UsageError
from normgen.problem.problem import Problem
from normgen.program.source import problem_for, written_program
from normgen.spec.formula import LARGEST_GROUP
from normgen.spec.spec import Kind, Spec
from normgen.verify.interpret import drawn as random_numbers
from normgen.verify.interpret import seeds_of
from tests.codegen.executors import CpuExecutor
from tests.codegen.matrix import wrong, wrong_backward
from tests.program.evaluate import evaluate
from tests.samples import is_full
from tests.spec.expressiveness import REFUSED, WORKS, Asked

Array = npt.NDArray[np.float64]
ROWS, COLS = 24, 2 * LARGEST_GROUP
# A normal run builds the kernels of those whose techniques have no test of kernels of their own.
BUILT = list(WORKS) if is_full() else ["RMSNorm, then RoPE: the halves of a row are two inputs", "the two largest"]


def problem_of(spec: Spec, direction: str) -> Problem:
    batched = any(t.kind.by_batch for t in spec.tensors)
    shape = (4, ROWS // 4, COLS) if batched else (ROWS, COLS)
    return problem_for(spec, shape=shape, dtype=spec.inputs[0].dtypes[0], direction=direction)


def drawn(spec: Spec) -> dict[str, Array]:
    """What each tensor that is read holds: normal numbers, masks of 0 and 1, labels, targets that sum to 1."""
    rng, values = np.random.default_rng(11), {}
    for tensor in spec.tensors:
        if tensor.role.is_written:
            continue
        rows, cols = (4 if tensor.kind.by_batch else ROWS), COLS // (tensor.group or 1)
        apart = {Kind.ROW: (rows, 1), Kind.COL: (cols,), Kind.SCALAR: (), Kind.BATCH: (rows,), Kind.HEAD: (rows,)}
        shape = apart.get(tensor.kind, (rows, cols))
        is_whole = all(DTYPES[name].is_integer for name in tensor.dtypes)
        drawn = rng.integers(0, 2 if tensor.kind.is_elem else cols, shape) if is_whole else rng.standard_normal(shape)
        values[tensor.name] = np.asarray(drawn, np.float64)
    if "q" in values:  # the targets of a loss
        values["q"] = np.abs(values["q"]) / np.abs(values["q"]).sum(axis=1, keepdims=True)
    return values


@pytest.mark.parametrize("what", WORKS)
def test_what_works_computes_its_formulas(what: str) -> None:
    """The compiler's program in float64, against a walk over the text of the formulas, which casts to x leave as is."""
    spec = WORKS[what].spec
    values = drawn(spec)
    program = written_program(problem_of(spec, "forward"))
    numbers = random_numbers(spec, seeds_of(spec, values), np.arange(ROWS), COLS)
    randoms = {random.name: numbers[f"random {random.draw}"] for random in program.randoms}
    numbers = {t.name: values[t.name] for t in spec.tensors if t.kind in (Kind.BATCH, Kind.HEAD)}
    spread = np.tile if spec.has_heads else np.repeat
    of_rows = {name: spread(value, ROWS // len(value)) for name, value in numbers.items()}
    got = evaluate(program, {**values, **of_rows, **randoms}, dict(spec.scalars))
    if "f8e4m3) *" in WORKS[what].text:  # a rounding of float64 is another one than that of float32
        return
    close = 1e-6 if "cast(" in WORKS[what].text else 1e-11
    for name, want in verify.interpret(spec, values).items():
        want = want[:, :: spec.group] if spec.tensor(name).kind.is_groups else want
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got[name], want, rtol=close, atol=close, err_msg=name)


@pytest.mark.parametrize("what", [name for name, asked in WORKS.items() if asked.gradients])
def test_a_backward_pass_gives_each_gradient_and_its_derivation_is_proven(what: str) -> None:
    problem = problem_of(WORKS[what].spec, "backward")
    assert " ".join(problem.results) == WORKS[what].gradients
    assert problem.gradients is None
    slopes = verify.prove(problem, written_program(problem))
    assert {f"d{slope.tensor}" for slope in slopes} == set(WORKS[what].gradients.split())
    assert all(slope.ok for slope in slopes)


@pytest.mark.parametrize("what", [name for name, asked in WORKS.items() if not asked.gradients])
def test_a_backward_pass_that_is_none_is_refused(what: str) -> None:
    with pytest.raises(NormgenError, match=WORKS[what].backward) as refused:
        problem_of(WORKS[what].spec, "backward")
    assert refused.value.hint
    assert isinstance(refused.value, UsageError) or re.match(r"asked\.toml:\d+: ", str(refused.value))


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_out_of_scope_is_refused_in_words_with_its_line(what: str) -> None:
    asked = REFUSED[what]
    with pytest.raises(SpecError, match=rf"^asked\.toml:\d+: {re.escape(asked.refused)}") as refused:
        _ = asked.spec
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(asked.hint)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_kernels_of_what_works_are_right_on_the_cpu(direction: str) -> None:
    problems = [problem_of(WORKS[what].spec, direction) for what in BUILT if _has(WORKS[what], direction)]
    cases = [(problem, default_schedule(problem, target("h200"))) for problem in problems]
    found = list((wrong if direction == "forward" else wrong_backward)(cases, CpuExecutor(), seed=0))
    assert not found, "\n\n".join(found)


def _has(asked: Asked, direction: str) -> bool:
    return direction == "forward" or bool(asked.gradients)
