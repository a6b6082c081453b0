"""What is done with a random spec, or schedule, each step on its own: emitted, walked, compiled, run.

A fault of ours is an error. A refusal (`NormgenError`) is an answer, unless its class or its words say that normgen is
wrong.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from types import FrameType
from typing import Any, Protocol

import numpy as np

from normgen.codegen.module import Module
from normgen.cpu import build_many
from normgen.cuda.compiler import compile_module
from normgen.dtypes import DType
from normgen.errors import BrokenError, CompileError, FaultError, NormgenError, ProgramError
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse
from normgen.program.source import written_program
from normgen.schedule.schedule import Schedule
from normgen.verify import check, make_inputs
from normgen.verify.interpret import Array, Float64, constants, drawn, seeds_of
from normgen.verify.program_walk import ProgramWalk
from normgen.verify.rows import of_rows
from normgen.verify.sources import prove_derivative
from tests.fuzz.products import draw_product
from tests.fuzz.schedules import draw_legal
from tests.fuzz.specs import draw

LIMIT_S = 60.0  # a step that computes for longer hangs; the slowest takes 3 s
WAITS = 30  # as many times longer it may take, for others compute too: on a busy machine seconds say little
SM = 90


@dataclass(frozen=True)
class Answer:
    """`state`: right, refused, wrong, crash or hang; `why` in words, and where it was raised."""

    state: str
    why: str = ""
    trace: str = ""

    @property
    def is_fault(self) -> bool:
        return self.state in ("wrong", "crash", "hang")


class HangError(Exception):
    """A step computed for longer than LIMIT_S, or waited for longer than WAITS times that."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise HangError

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, seconds), signal.ITIMER_REAL: (signal.SIGALRM, WAITS * seconds)}
    before = {number: signal.signal(number, ring) for number, _ in timers.values()}
    for timer, (_, limit) in timers.items():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer, (number, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


class Drawn(Protocol):
    """A problem, and schedules for it; `text`: its spec's; `kept`: fields of a `Fault`, to have it again."""

    @property
    def text(self) -> str: ...

    def kept(self) -> dict[str, Any]: ...

    def problem(self) -> Problem: ...

    def schedules(self, problem: Problem) -> list[Schedule]: ...


def answered(step: Callable[[Any], Answer], asked: Drawn, *, limit_s: float = LIMIT_S) -> Answer:
    """The answer of one step; whatever it raises beside a refusal is a crash."""
    try:
        with limited(limit_s):
            return step(asked)
    except HangError:
        return Answer("hang", f"more than {limit_s:.0f} s", traceback.format_exc())
    except (ProgramError, BrokenError, CompileError, FaultError) as error:
        is_refusal = isinstance(error, ProgramError) and error.hint is not None  # a maximum without a gradient
        return Answer("refused" if is_refusal else "crash", str(error), traceback.format_exc())
    except NormgenError as error:
        is_ours = "fault of normgen" in str(error) or "is not the derivative" in str(error)
        return Answer("wrong" if is_ours else "refused", str(error), traceback.format_exc())
    except Exception as error:
        return Answer("crash", f"{type(error).__name__}: {error}", traceback.format_exc())


def emitted(asked: Drawn) -> Answer:
    """To CUDA text, by two schedules; a forward program is walked as well (`walked`), a derived one is proven."""
    problem = asked.problem()
    for schedule in asked.schedules(problem):
        emit(problem, schedule)
    if problem.direction is Direction.FORWARD:
        return walked(problem)
    prove_derivative(problem)
    return Answer("right")


def compiled(asked: Drawn) -> Answer:
    """Through NVRTC."""
    problem = asked.problem()
    for schedule in asked.schedules(problem):
        compile_module(emit(problem, schedule), SM)
    return Answer("right")


def build_together(batch: Iterable[Drawn]) -> None:
    """The kernels of many specs in one call of the compiler: 0.1 s a kernel, alone 0.4 s. Each step finds its own.

    What cannot be built is left to the step of its spec, which says why.
    """
    modules: list[Module] = []
    for asked in batch:
        with suppress(Exception), limited(LIMIT_S):
            problem = asked.problem()
            modules += [emit(problem, schedule) for schedule in asked.schedules(problem)]
    with suppress(NormgenError):
        build_many(modules)


def executed(asked: Drawn) -> Answer:
    """On the CPU executor, against the reference of every row family."""
    problem = asked.problem()
    for schedule in asked.schedules(problem):
        found = check_on_cpu(problem, emit(problem, schedule))
        if not found.ok:
            return Answer("wrong", f"{schedule}\n{found.summary}")
    return Answer("right")


class Float32(Float64):
    """As a kernel computes: every value is rounded to float32, so that what overflows there does so here."""

    def constant(self, value: float) -> Array:
        return np.asarray(value, dtype=np.float32)

    def call(self, name: str, *args: Array) -> Array:
        return super().call(name, *(np.asarray(arg, dtype=np.float64) for arg in args)).astype(np.float32)

    def power(self, base: Array, exponent: float) -> Array:
        return super().power(base.astype(np.float64), exponent).astype(np.float32)

    def cast(self, a: Array, dtype: DType) -> Array:
        """To the number that the bound of a value that was loaded expects: of 8 bits it knows which one."""
        return np.asarray(dtype.cast(a)).astype(np.float32)

    def reduce(self, name: str, arg: Array, group: int = 0) -> Array:
        return super().reduce(name, arg, group).astype(np.float32)


def walked(problem: Problem) -> Answer:
    """The lowered program, walked in float32, against the formulas: what algebra did to them, without a kernel."""
    inputs = make_inputs(problem)
    program = written_program(problem)
    known: dict[str, Any] = {}
    for load in program.loads:
        tensor = problem.tensor(load.tensor)
        array = of_rows(inputs.arrays[load.tensor], tensor, problem, np.arange(problem.rows)).astype(np.float32)
        known[load.name] = array.reshape(tensor.kind.broadcast_shape(problem.sizes))
    known |= {name: np.asarray(value, dtype=np.float32) for name, value in inputs.scalars.items()}
    known |= {n: v.astype(np.float32) for n, v in constants(np.arange(problem.rows), problem.cols).items()}
    seeds = seeds_of(problem.spec, inputs.arrays)
    randoms = drawn(problem.spec, seeds, np.arange(problem.rows), problem.cols)
    known |= {n: v.astype(np.float32) for n, v in randoms.items()}
    walk = ProgramWalk(Float32(cols=problem.cols), program, known)
    outputs = {}
    with np.errstate(all="ignore"):
        for store in program.stores:
            tensor = problem.tensor(store.tensor)
            outputs[tensor.name] = stored(walk.value(tensor.name), tensor, problem)
    verdict = check(problem, inputs, outputs)
    return Answer("right") if verdict.ok else Answer("wrong", f"{program}\n{verdict.summary()}")


def stored(value: Array, tensor: TensorUse, problem: Problem) -> Any:
    """A walked value as it lies in memory, row by row."""
    shape = tensor.kind.broadcast_shape(problem.sizes)
    value = np.broadcast_to(value, shape)[:, :: tensor.group or 1]
    return tensor.dtype.stored(value).reshape(tensor.kind.shape(problem.sizes, tensor.group))


@dataclass(frozen=True)
class Step:
    """What is drawn, and what is done with it."""

    draw: Callable[[Random], Drawn]
    do: Callable[[Any], Answer]


STEPS = {
    "emit": Step(draw, emitted),
    "nvrtc": Step(draw, compiled),
    "execute": Step(draw, executed),
    "legal": Step(draw_legal, executed),
    "products": Step(draw_product, executed),
}
