"""One emitter: the kernels of a linear layer and of its gradients are written by the lines that write every product."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

from normgen.codegen import tiles
from normgen.device import target
from normgen.knobs import DependentLaunch
from normgen.pipeline import emit_parts
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.schedule.space import space
from normgen.schedule.tiles import cut, plan
from normgen.spec.reader import load
from tests.codegen.tiles.test_looks import WAYS as LOOKS
from tests.family.test_batches_of_products import OPS
from tests.verify.contraction import linear

H200 = target("h200")
FILES = (*sorted(Path(tiles.__path__[0]).glob("*.py")), Path(cut.__file__), Path(plan.__file__))
BOTH = [{"direction": "backward", "gradients": [name]} for name in ("x", "w")]
FOLDED: dict[str, Any] = {"layout": {"w": "cols_inner"}, "without": ("weight",)}  # the norm's weight is part of w
TILE = {"tile_m": 16, "tile_n": 16, "tile_k": 8, "thread_m": 2, "thread_n": 1, "vector": 1}
RELOAD = schedule_from({**TILE, "hold": "reload"})  # in no space
STREAM = schedule_from({**TILE, "hold": "reload", "fragment": "mma", "vector": 8, "tile_k": 32})
TEAM = schedule_from({"hold": "shared", "copy": "bulk", "fragment": "wgmma", "vector": 8, "stages": 2, "tile_m": 64,
                      "tile_n": 64, "tile_k": 64, "thread_m": 2, "thread_n": 16})  # fmt: skip
TURNED: dict[str, Any] = {"layout": {"w": "cols_inner"}}
EARLY = STREAM.varied(cluster=2, dependent_launch=DependentLaunch.START)


def statements(file: Path) -> set[int]:
    """The first lines of the statements in its functions, but for docstrings."""
    found: set[int] = set()
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            inside = (node for statement in body for node in ast.walk(statement))
            found |= {node.lineno for node in inside if isinstance(node, ast.stmt)}
    return found


def one(name: str, size: int, dtype: str, **asked: Any) -> Problem:
    return problem_for(linear.spec_of(name), shape=(64, size), inner=size + 8, dtype=dtype, **asked)


def problems(size: int, *names: str, asked: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    """Known and of any columns, in 32 and 16 bits; no other test has the size, so that nothing is remembered."""
    for name, direction, dtype, any_cols in product(names, asked, ("f32", "bf16"), (False, True)):
        yield one(name, size, dtype, any_cols=any_cols, **direction)


def each_value(schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """Those that have a value of some knob that none before has."""
    known: set[tuple[str, Any]] = set()
    for schedule in schedules:
        values = set(asdict(schedule).items())
        if values - known:
            known |= values
            yield schedule


@cache
def values_of(dtype: str) -> tuple[Schedule, ...]:
    """Those of all fragments: an older device has the one of threads alone."""
    spaces = (space(one("linear", 160, dtype), device).legal for device in (H200, target("t4")))
    return (RELOAD, STREAM, EARLY, TEAM, *each_value(schedule for legal in spaces for schedule in legal))


def ways(problem: Problem) -> list[Schedule]:
    """Every value of each knob that is legal for a problem, as its twin of another size says: this one stays unseen."""
    if problem.any_cols:
        return list(fallback_schedules(problem))
    asked = {name: value for name, value in problem.arguments().items() if name in ("direction", "gradients")}
    twin = one(problem.spec.name, 160, problem.dtype.name, **asked)
    return [schedule for schedule in values_of(problem.dtype.name) if refusal(twin, schedule, H200) is None]


def executed(made: Iterable[Problem]) -> dict[Path, set[int]]:
    """The lines of the files that run when kernels of the problems are planned and emitted in every way."""
    return run_by([(problem, ways(problem)) for problem in made])


def run_by(work: Sequence[tuple[Problem, Iterable[Schedule]]]) -> dict[Path, set[int]]:
    seen: dict[str, set[int]] = {str(file): set() for file in FILES}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen[frame.f_code.co_filename].add(frame.f_lineno)
        return local

    def tracer(frame: FrameType, _: str, __: Any) -> Any:
        return local if frame.f_code.co_filename in seen else None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        for problem, schedules in work:
            for schedule in schedules:
                assert refusal(problem, schedule, H200) is None
                emit_parts(problem, schedule)
    finally:
        sys.settrace(before)
    return {file: seen[str(file)] for file in FILES}


def share(lines: dict[Path, set[int]]) -> float:
    known = {file: statements(file) for file in FILES}
    return sum(len(known[file] & lines[file]) for file in FILES) / sum(map(len, known.values()))


def functions(lines: dict[Path, set[int]]) -> set[tuple[Path, int]]:
    """The functions in which they are, by their first lines."""
    found: set[tuple[Path, int]] = set()
    for file, known in lines.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and known & set(range(node.body[0].lineno, node.end_lineno or 0)):
                found.add((file, node.lineno))
    return found


def test_gradients_of_a_linear_layer_are_written_by_the_functions_that_write_it() -> None:
    """In either order of its matrix: that of dx lies along what is summed, as a linear layer of torch has it."""
    forward = executed(problems(176, "linear", "torch_linear", asked=[{}]))
    backward = executed(problems(168, "linear", asked=BOTH))
    assert functions(backward) <= functions(forward)
    assert share(backward) > 0.65


BEHIND: dict[str, dict[str, Any]] = {
    "softmax_v": {"shape": (2, 64, 64)},
    "causal_softmax_v": {"shape": (2, 64, 64)},
    "linear_add": TURNED,
    "linear_cross_entropy": {},
    "linear_swiglu_to_fp8_group": {"layout": {"w_gate": "cols_inner", "w_up": "cols_inner"}},
    "linear_tf32": TURNED | {"dtype": "f32"},
}


def asked(op: str, inner: int) -> Problem:
    return problem_for(load(op), **{"shape": (72, 256), "inner": inner, "dtype": "bf16"} | BEHIND[op])


def each_of(op: str) -> Iterator[Schedule]:
    """Schedules with every value of each knob, by the problem's twin: teams that share a tile are in no space here."""
    twin = asked(op, 144)
    schedules = [*space(twin, H200).legal, *(TEAM.varied(cluster=2, tile_n=n, thread_n=n // 4) for n in (64, 128))]
    return each_value(s for s in schedules if refusal(twin, s, H200) is None)


def in_batches() -> Iterator[tuple[Problem, Iterable[Schedule]]]:
    """Products of a matrix for each batch, and a softmax of scores before them however its maximum is found."""
    for op, dtype, any_cols in product(OPS, ("f32", "bf16"), (False, True)):
        asked = [{}, *(BOTH if op == "bmm" else [])]
        for one_asked in asked:
            found = problem_for(load(op), shape=(2, 20, 24), inner=44, dtype=dtype, any_cols=any_cols, **one_asked)
            yield found, [way for way in (RELOAD, *LOOKS.values()) if refusal(found, way, H200) is None]


def test_every_product_that_ships_needs_the_whole_emitter(record_property: Callable[[str, object], None]) -> None:
    rows = executed(problems(200, "linear", "torch_linear", "normed", asked=[{}]))
    batches = run_by(list(in_batches()))
    reduced = problem_for(load("linear_add_rms"), shape=(20, 24), inner=44)
    statistics = run_by([(reduced, [way for way in (RELOAD, *LOOKS.values()) if refusal(reduced, way, H200) is None])])
    of_norm = problem_for(load("rmsnorm_linear"), shape=(20, 24), inner=88, dtype="bf16", **FOLDED)
    turned = [
        problem_for(load(op), shape=(20, 24), inner=88, dtype="bf16", **TURNED) for op in ("linear", "linear_add_rms")
    ]
    others = run_by([(of_norm, [EARLY]), *((problem, [TEAM]) for problem in turned)])
    behind = run_by([(asked(op, 136), each_of(op)) for op in BEHIND])
    parts = (rows, batches, statistics, others, behind)
    found = share({file: set().union(*(part[file] for part in parts)) for file in FILES})
    record_property("share of the lines", found)
    assert found >= 0.95  # the others are for maxima that ride along, and for results that are added to what is there
