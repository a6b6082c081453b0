"""Rows that come by asynchronous copies or wait half in registers: right on the executor, accepted by NVRTC.

The schedules are drawn at random from all that are legal and reduced to a covering sample: every pair of knob values
occurs. The executor lets copies arrive as late as it may and knows who read a slot that is filled again.
"""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace

import pytest

from normgen import verify
from normgen.cpu import find_compiler
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.knobs import KNOBS
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.plan import shared_bytes
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.codegen.covering import Case, cover, walk
from tests.codegen.executors import CpuExecutor, GpuExecutor, new_workspace
from tests.codegen.layouts import DEVICE, Layout, problem_of
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.samples import is_full

H200 = target("h200")
PLAIN = Schedule()
TRIES, STARTS, STEPS = 4000, 4, 100
MOST = 12
# Tiles that the rows do not fill, fewer rows than stages, a padded pitch, a last vector that is not whole.
LAYOUTS = (
    Layout(rows=1, cols=512),
    Layout(rows=45, cols=760),
    Layout(rows=17, cols=512, pitch=528),
    Layout(rows=23, cols=761, pitch=768),
    Layout(rows=38, cols=769, align=0),
)
SIDES = (("layernorm", "forward"), ("softmax", "forward"), ("layernorm", "backward"), ("softmax", "backward"))
# What the rest of the schedule is drawn from: knobs that meet the copies; others keep their default.
COLUMNS = ("partials_two_kernels", "atomic", "shared_atomic")
DRAWN: dict[str, tuple[object, ...]] = {
    "threads_per_row": (1, 8, 32, 64, 128, 256),
    "rows_per_block": (1, 2, 4, 8, 32),
    "cluster": (1, 2),
    "reduce_with": KNOBS["reduce_with"].values,
    "vector": (2, 4, 8),
    "variance": ("two_pass", "corrected_two_pass", "shifted", "welford", "guarded"),
    "softmax": KNOBS["softmax"].values,
    "hold": ("registers", "shared", "hybrid"),
    "copy": KNOBS["copy"].values,
    "edges": ("exact", "masked", "peel"),
    "persistent": (0, 1),
    "stages": KNOBS["stages"].values,
    "unroll": (0, 1),
    "params": KNOBS["params"].values,
    "blocks_per_sm": (0, 8),
    "columns": KNOBS["columns"].values,
}
# What makes a schedule one of its kind; many threads an SM leave each few registers, so that short rows need slots too.
KINDS: dict[str, dict[str, tuple[object, ...]]] = {
    "cp_async": {"copy": ("cp_async",), "hold": ("registers", "shared")},
    "bulk": {"copy": ("bulk",), "hold": ("registers", "shared"), "load": ("default", "evict_last", "evict_first")},
    "hybrid": {"hold": ("hybrid",), "params": ("late",), "stages": (1,), "blocks_per_sm": (8,), "columns": COLUMNS},
}


def legal(problem: Problem, kind: str, rng: random.Random) -> list[Schedule]:
    """Random walks from the first few legal ones of random points; none where rows are unfit for this kind of copy."""
    drawn = (DRAWN | KINDS[kind]).items()
    known = {name: [v for v in KNOBS[name].values if v in values] for name, values in drawn}
    tried = (PLAIN.varied(**{name: rng.choice(values) for name, values in known.items()}) for _ in range(TRIES))
    starts = itertools.islice((point for point in tried if refusal(problem, point, DEVICE) is None), STARTS)
    return list(dict.fromkeys(s for start in starts for s in walk(problem, start, DEVICE, rng, STEPS, known)))


@functools.cache
def cases(op: str, direction: str, kind: str) -> list[Case]:
    rng = random.Random(f"{op} {direction} {kind}")
    found = []
    for index, layout in enumerate(LAYOUTS):
        stored = ("f32", "bf16", "mixed16", "bf16")[(index + len(op)) % 4] if layout.align else "bf16"
        problem = problem_of(load(op), layout, stored, direction)
        found += [(problem, schedule) for schedule in legal(problem, kind, rng)]
    return cover(found, None if is_full() else MOST)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("op", "direction"), SIDES)
def test_rows_in_flight_are_right_on_the_cpu(op: str, direction: str, kind: str) -> None:
    chosen = cases(op, direction, kind)
    check = wrong if direction == "forward" else wrong_backward
    found = list(check(chosen, CpuExecutor(), seed=0))
    assert not found, report(found, chosen)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("op", "direction"), SIDES)
def test_rows_in_flight_are_right_on_the_gpu(op: str, direction: str, kind: str) -> None:
    chosen = cases(op, direction, kind)
    check = wrong if direction == "forward" else wrong_backward
    found = list(check(chosen, GpuExecutor(), seed=0))
    assert not found, report(found, chosen)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("op", "direction"), SIDES)
def test_shared_memory_is_what_legality_counts(op: str, direction: str, kind: str) -> None:
    """At most: legality counts row inputs that a kernel may turn out not to read."""
    for problem, schedule in cases(op, direction, kind):
        assert 0 < emit(problem, schedule).kernels[0].launch.shared_bytes <= shared_bytes(problem, schedule)


@pytest.mark.parametrize("kind", KINDS)
def test_nvrtc_compiles_rows_in_flight(kind: str) -> None:
    """Without a warning, on the H200 or on the lowest arch that has the copies."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    for op, direction in SIDES:
        shuffled = [case for case in cases(op, direction, kind) if case[1].reduce_with == "shuffle"]
        for problem, schedule in shuffled[:2]:
            module = emit(problem, schedule)
            cubin = compile_module(module, max(module.min_arch, 80) if problem.rows == 1 else 90)
            assert not [line for line in cubin.log.splitlines() if "warning" in line.lower()], str(schedule)
            assert {kernel.name for kernel in module.kernels} <= set(cubin.resources)


def test_the_lowest_arch_follows_the_copy() -> None:
    problem = problem_for(load("layernorm"), shape="64x1024", dtype="bf16")
    waiting = Schedule(threads_per_row=32, vector=8, hold="shared", unroll=4)
    arch = {copy: emit(problem, replace(waiting, copy=copy)).min_arch for copy in KNOBS["copy"].values}
    assert arch == {"direct": 75, "cp_async": 80, "bulk": 90}


def test_a_bulk_copy_carries_the_priority_of_its_rows() -> None:
    problem = problem_for(load("softmax"), shape="4096x32768", dtype="bf16")
    waiting = Schedule(threads_per_row=1024, vector=8, hold="shared", copy="bulk", unroll=4)
    plain, kept = (emit(problem, replace(waiting, load=hint)) for hint in ("default", "evict_last"))
    assert "cache_hint" not in plain.instructions
    assert "L2::evict_last" in kept.instructions
    assert "bulk_load_by<Load>(x_shared" in kept.text


# ---- misuse: the emitted text with one thing wrong ------------------------------------------------------------------

IN_FLIGHT = {"vector": 8, "unroll": 0, "persistent": 1, "stages": 3, "params": "kept"}
PLANTED = {
    "a slot is filled again before its readers are done": (
        {"copy": "bulk", "hold": "shared", "threads_per_row": 64, "reduce_with": "shared_tree"},
        [("__syncthreads();  // the slots are empty", "")],
        "uninitialised_shared",
    ),
    "a warp's slot is filled again before its lanes are done": (
        {"copy": "bulk", "hold": "shared", "threads_per_row": 32},
        [("__syncwarp();  // the slots are empty", "")],
        "shared_race",
    ),
    "a slot is filled again before the first look's barrier": (
        {"copy": "bulk", "hold": "registers", "threads_per_row": 64},
        [
            ("mbarrier_wait(&arrived[stage], phase);", "mbarrier_wait(&arrived[stage], phase);\n    REFILL"),
            ("if (threadIdx.x == 0 && refill_row", "if (false && refill_row"),
            (
                "REFILL",
                "if (threadIdx.x == 0 && row + 3 * gridDim.x < rows) fetch(row + 3 * gridDim.x, stage);",
            ),
        ],
        "uninitialised_shared",
    ),
    "one group of copies too many is left under way": (
        {"copy": "cp_async", "hold": "registers", "threads_per_row": 64},
        [("cp_async_wait<kStages - 1>", "cp_async_wait<kStages>")],
        "uninitialised_shared",
    ),
    "a row without copies commits no group": (
        {"copy": "cp_async", "hold": "shared", "threads_per_row": 64},
        [
            (
                "cp_async_commit();\n    stage",
                "if (row + kStages * gridDim.x < rows) cp_async_commit();\n    stage",
            )
        ],
        "uninitialised_shared",
    ),
    "nobody waits for the bytes": (
        {"copy": "bulk", "hold": "registers", "threads_per_row": 64},
        [("mbarrier_wait(&arrived[stage], phase);", "")],
        "uninitialised_shared",
    ),
    "the phase never turns": (
        {"copy": "bulk", "hold": "shared", "threads_per_row": 64},
        [("stage = 0;\n      phase ^= 1;", "stage = 0;")],
        "uninitialised_shared",
    ),
    "more bytes are expected than come": (
        {"copy": "bulk", "hold": "shared", "threads_per_row": 64},
        [
            (
                "mbarrier_expect_bytes(&arrived[stage], kCopiedCols",
                "mbarrier_expect_bytes(&arrived[stage], 2 * kCopiedCols",
            )
        ],
        "deadlock",
    ),
    "the copies of the other tensor are forgotten": (
        {"copy": "cp_async", "hold": "registers", "threads_per_row": 64},
        [("copy_async<kVector>(dy_shared", "if (false) copy_async<kVector>(dy_shared")],
        "uninitialised_shared",
    ),
}


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_the_executor_finds_planted_misuse() -> None:
    problem = problem_for(load("layernorm"), shape="21x1024", dtype="bf16", direction="backward")
    modules = []
    for knobs, edits, _ in PLANTED.values():
        schedule = Schedule(**{**IN_FLIGHT, **knobs})
        assert refusal(problem, schedule, DEVICE) is None
        module = emit(problem, schedule)
        text = module.text
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        modules.append(replace(module, text=text))
    inputs = verify.make_inputs(problem)
    for name, built in zip(PLANTED, CpuExecutor().build(modules), strict=True):
        faults = built.run(inputs, verify.make_outputs(problem), workspace=new_workspace(built.module, problem.rows))
        assert PLANTED[name][2] in faults, f"{name}: {faults or 'no fault'}"
