"""Real kernels with a fault written into their text, as a generator with a bug would write it; workers that end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from normgen.codegen.module import Module
from normgen.measure.isolation import process
from normgen.measure.isolation.process import Worker
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule

STATEMENTS = {
    "far": "*reinterpret_cast<volatile int*>(reinterpret_cast<unsigned long long>(y) + (1ull << 44)) = 1;",
    "behind": "if (blockIdx.x == 0 && threadIdx.x == 0) y[(long long)rows * COLS] = 1.0f;",
    "endless": 'while (rows >= 0) asm volatile("nanosleep.u32 64;");',  # a loop without effects may be removed
    "trap": 'asm volatile("trap;");',
}
KINDS = (*STATEMENTS, "wrong", "shared")


def plant(module: Module, kind: str, *, cols: int) -> Module:
    """The module with one fault: a statement in front of the first kernel's body, a wrong divisor, or too much shared
    memory asked for."""
    if kind == "shared":
        kernel = module.kernels[0]
        return replace(module, kernels=(replace(kernel, launch=replace(kernel.launch, shared_bytes=1 << 20)),))
    if kind == "wrong":
        text = module.text.replace("var_sum, kCols", "var_sum, kCols - 1")
    else:
        head, kernel_word, rest = module.text.partition("__global__")
        signature, brace, body = rest.partition(") {\n")
        text = head + kernel_word + signature + brace + f"  {STATEMENTS[kind].replace('COLS', str(cols))}\n" + body
    assert text != module.text
    return replace(module, text=text)


def planting(kinds: dict[Schedule, str]) -> Callable[[Problem, Schedule], Module]:
    """`emit` with a fault in the kernels of some schedules."""

    def emit_planted(problem: Problem, schedule: Schedule) -> Module:
        module = emit(problem, schedule)
        return plant(module, kinds[schedule], cols=problem.cols) if schedule in kinds else module

    return emit_planted


@contextlib.contextmanager
def all_workers_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every worker process that is started within has been ended in the end."""
    workers: list[Worker] = []

    class Noted(Worker):
        def __init__(self, factory: str, index: int) -> None:
            super().__init__(factory, index)
            workers.append(self)

    monkeypatch.setattr(process, "Worker", Noted)
    yield
    assert all(worker.is_gone for worker in workers)
