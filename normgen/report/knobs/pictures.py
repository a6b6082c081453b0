"""Who owns what under each value of a knob, drawn from steps of emitted kernels.

Each scene is a kernel of a small problem that differs from its neighbours in one knob. The kernel runs on the CPU
executor, which writes down every step of every thread (`cpu/trace.py`); the drawing is made of these steps alone.
Blocks are letters and threads are numbers: B3 is thread 3 of the second block.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from normgen.codegen.module import Module
from normgen.cpu import Program, build_many
from normgen.cpu.program import CELL_BYTES, WORKSPACE
from normgen.cpu.trace import SHARED, StepKind, TraceStep
from normgen.device import target
from normgen.errors import UsageError
from normgen.knobs import KNOBS
from normgen.measure.calls import KernelCall
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.plan import WARP
from normgen.schedule.schedule import Schedule, changed
from normgen.spec.reader import load

Steps = Sequence[TraceStep]
Drawing = Callable[[Problem, Steps], list[str]]
SM_COUNT = 2  # of the device that persistent grids are drawn for
WIDTH = 108
MANY = 6  # accesses of one kind that are named one by one
NARROW = 24  # columns that are drawn one by one


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One value of a knob in a kernel of a small problem.

    knobs    on plain, the same in all scenes of the knob; `also`: what this value needs beside them
    problem  keyword arguments of `problem_for`, and `op`
    """

    value: Any
    draw: Drawing
    problem: Mapping[str, Any] = field(hash=False)
    knobs: str = ""
    also: str = ""


def label(step: TraceStep) -> str:
    """A block's letter and a thread's number."""
    return f"{string.ascii_uppercase[step.block]}{step.thread}"


def owners(problem: Problem, steps: Steps) -> list[str]:
    """A line a row of the first input: the thread that reads each element first. `-` joins elements of one access.

    Shown are the first two rows and the last one of the first block, and the first row of two others.
    """
    name = next(tensor.name for tensor in problem.elem_tensors if not tensor.is_written)
    cells: dict[tuple[int, int], TraceStep] = {}
    for step in steps:
        if step.place == name and step.kind in (StepKind.READ, StepKind.COPY):
            for col in range(step.col, step.col + step.count):
                cells.setdefault((step.row, col), step)
    lines, last = [], -1
    for row in _shown_rows({row: step.block for (row, _), step in cells.items()}):
        lines += ["..."] if row > last + 1 else []
        owned = [cells.get((row, col)) for col in range(problem.cols)]
        lines.append(f"row {row:<3} " + (_cells(owned) if problem.cols <= NARROW else _runs(owned)))
        last = row
    return lines + (["..."] if last + 1 < problem.rows else [])


def _shown_rows(block_of: Mapping[int, int]) -> list[int]:
    rows = [sorted(row for row, block in block_of.items() if block == number) for number in range(3)]
    first, *others = [found for found in rows if found]
    return sorted({*first[:2], first[-1], *(found[0] for found in others)})


def _cells(owned: Sequence[TraceStep | None]) -> str:
    """`A0-A0 A1-A1`: the owner of each element."""
    width = max(len(label(step)) for step in owned if step is not None)
    text = ""
    for before, step in zip((None, *owned), owned, strict=False):
        text += "-" if step is not None and step is before else " "
        text += (label(step) if step is not None else "?").ljust(
            width, "-" if step is not None and step.count > 1 else " "
        )
    return text.rstrip(" -")


def _runs(owned: Sequence[TraceStep | None]) -> str:
    """`A0 to A31 (1 each)`: neighbours with as many elements each, by accesses of one block."""
    accesses = [step for step, _ in itertools.groupby(owned) if step is not None]
    runs: list[list[TraceStep]] = []
    for step in accesses:
        last = runs[-1][-1] if runs else None
        if last is not None and (last.block, last.thread + 1, last.count) == (step.block, step.thread, step.count):
            runs[-1].append(step)
        else:
            runs.append([step])
    return ", ".join(_run(run) for run in runs)


def _run(run: Sequence[TraceStep]) -> str:
    each = f" ({run[0].count} each)" if run[0].count > 1 else ""
    return f"{label(run[0])} to {label(run[-1])}{each}" if len(run) > 1 else label(run[0]) + each


def diary(problem: Problem, steps: Steps, *, kernel: int = 0) -> list[str]:
    """What thread 0 of the first block does, in its order; steps of one kind that follow each other are said once."""
    mine = [step for step in steps if step.block == 0 and step.thread == 0 and step.kernel == kernel]
    parts = []
    for (kind, is_shared), run in itertools.groupby(mine, lambda s: (s.kind, s.place == SHARED)):
        parts.append(_said(problem, kind, list(run), is_shared=is_shared))
    return _wrapped(parts)


_VERBS = {
    StepKind.READ: "read",
    StepKind.WRITE: "write",
    StepKind.ADD: "add to",
    StepKind.COPY: "ask for a copy of",
    StepKind.PREFETCH: "ask L2 for",
    StepKind.WAIT: "wait for the kernel in front",
    StepKind.TRIGGER: "let the next kernel start",
}


def _said(problem: Problem, kind: StepKind, run: Steps, *, is_shared: bool) -> str:
    if kind is StepKind.SHUFFLE:
        return "take other lanes' values" if len(run) > 1 else "take another lane's value"
    if is_shared:  # without addresses: where a slot lies decides nothing
        return f"{_VERBS[kind]} shared memory ({len(run)} x)"
    if len(run) > MANY:
        places = {place: sum(step.place == place for step in run) for place in dict.fromkeys(s.place for s in run)}
        return f"{_VERBS[kind]} " + " ".join(f"{place} ({number} x)" for place, number in places.items())
    names = list(dict.fromkeys(_name(problem, step) for step in run if step.place))
    return " ".join([_VERBS[kind], *names])


def _name(problem: Problem, step: TraceStep) -> str:
    """`x[2, 0:4]`, `weight[0:4]`: a tensor's elements of one access; a row value by its row alone."""
    tensor = next((t for t in problem.passed_tensors if t.name == step.place), None)
    if tensor is None:
        return step.place
    shape = problem.shape_of(tensor)
    cols = f"{step.col}:{step.col + step.count}" if step.count > 1 else f"{step.col}"
    return f"{step.place}[{step.row}, {cols}]" if len(shape) > 1 else f"{step.place}[{cols}]"


def _wrapped(parts: Iterable[str]) -> list[str]:
    """Parts joined by `; `, in lines of at most WIDTH."""
    lines = [""]
    for part in parts:
        ahead = f"{lines[-1]}; {part}" if lines[-1] else part
        if len(ahead) > WIDTH:
            lines[-1] += ";"
            lines.append(part)
        else:
            lines[-1] = ahead
    return lines


def combining(_: Problem, steps: Steps) -> list[str]:
    """Whose values each thread of the first row takes, one after the other: by shuffles, or out of shared memory."""
    mine = {s.thread for s in steps if (s.block, s.row, s.kind) == (0, 0, StepKind.WRITE) and s.place != SHARED}
    wrote: dict[int, int] = {}  # address in shared memory -> its last writer
    taken: dict[int, list[int]] = {}
    for step in steps:
        if step.block != 0 or step.thread not in mine:
            continue
        if step.kind is StepKind.SHUFFLE:
            taken.setdefault(step.thread, []).append(step.source)
        elif step.place == SHARED and step.kind is StepKind.WRITE:
            wrote[step.col] = step.thread
        elif step.place == SHARED and wrote.get(step.col, step.thread) != step.thread:
            taken.setdefault(step.thread, []).append(wrote[step.col])
    lines = [f"A{thread:<2} takes from {_listed(found)}" for thread, found in sorted(taken.items())]
    return lines if len(lines) <= WARP else [*lines[:4], "and so on"]


def _listed(threads: Iterable[int]) -> str:
    return ", then ".join(f"A{thread}" for thread in threads)


def sums(_: Problem, steps: Steps) -> list[str]:
    """Who touches column sums: in shared memory, as partial sums in the workspace, in dweight; values a block."""
    found: dict[tuple[int, StepKind, str], dict[str, int]] = {}
    for step in steps:
        place, values = _place_of_sums(step)
        if place:
            counts = found.setdefault((step.kernel, step.kind, place), {})
            block = string.ascii_uppercase[step.block]
            counts[block] = counts.get(block, 0) + values
    return [
        f"kernel {kernel + 1}: {_VERBS[kind]} {place}: "
        + ", ".join(f"{block} {count} values" for block, count in sorted(counts.items()))
        for (kernel, kind, place), counts in found.items()
    ]


def _place_of_sums(step: TraceStep) -> tuple[str, int]:
    if step.place == WORKSPACE:
        return "the workspace", step.count // CELL_BYTES
    if step.place == SHARED:
        return ("shared memory", 1) if step.kind is StepKind.ADD else ("", 0)
    return (step.place, step.count) if step.place == "dweight" else ("", 0)


_ROWS: Mapping[str, Any] = {"op": "rmsnorm", "shape": "64x16", "without": ["rstd"]}
_WIDE: Mapping[str, Any] = {**_ROWS, "shape": "6x64"}
_BARE: Mapping[str, Any] = {"op": "rmsnorm", "shape": "8x16", "without": ["rstd", "weight"]}
_MEAN: Mapping[str, Any] = {"op": "layernorm", "shape": "2x64", "without": ["mean", "rstd", "weight", "bias"]}
_BACK: Mapping[str, Any] = {"op": "rmsnorm", "shape": "16x32", "direction": "backward", "gradients": ["weight"]}
_QUARTER = "threads_per_row=4 rows_per_block=8"  # of a warp
_LOOP = f"{_QUARTER} vector=2 persistent=1 hold=registers unroll=0"


def _scenes(draw: Drawing, problem: Mapping[str, Any], knobs: str, *values: Any, **also: str) -> tuple[Scene, ...]:
    """A scene for each value; `also`: what one of them needs beside `knobs`."""
    return tuple(Scene(value=v, draw=draw, problem=problem, knobs=knobs, also=also.get(str(v), "")) for v in values)


_OF_TILES = "a size of the tiles of a product of matrices: the pictures are of rows, which have none"

# Knob -> its scenes, or why there is nothing to draw. A knob that is not here fails a test.
PICTURES: Mapping[str, tuple[Scene, ...] | str] = {
    "threads_per_row": (
        *_scenes(owners, _ROWS, "rows_per_block=32", 1),
        *_scenes(owners, _ROWS, "rows_per_block=8", 4),
        *_scenes(owners, _ROWS, "rows_per_block=2", 16),
    ),
    "rows_per_block": _scenes(owners, _WIDE, "threads_per_row=32", 1, 2, 4),
    "cluster": _scenes(owners, {**_WIDE, "shape": "2x128"}, "threads_per_row=32", 1, 2),
    "parts": (
        *_scenes(owners, {"op": "swiglu", "shape": "2x128"}, "threads_per_row=32", 1, 2),
        *_scenes(owners, {**_WIDE, "shape": "2x128"}, "threads_per_row=32 persistent=2 blocks_per_sm=2", 4),
    ),
    "reduce_with": _scenes(
        combining,
        _BARE,
        "threads_per_row=8 rows_per_block=4",
        *(way for way in KNOBS["reduce_with"].values if not way.is_short),
    )
    + _scenes(combining, {**_BARE, "shape": "1x128"}, "threads_per_row=128", "short_chains"),
    "vector": _scenes(owners, _ROWS, _QUARTER, 1, 2, 4),
    "variance": _scenes(diary, _MEAN, "threads_per_row=32", *KNOBS["variance"].values),
    "softmax": _scenes(diary, {"op": "softmax", "shape": "8x8"}, _QUARTER, *KNOBS["softmax"].values),
    "hold": _scenes(diary, _BARE, f"{_QUARTER} vector=2", "registers", "shared", "reload", registers="unroll=0")
    + _scenes(diary, {**_BARE, "shape": "1x6144"}, "threads_per_row=32 vector=4 unroll=0", "hybrid"),
    "copy": _scenes(
        diary, {**_BARE, "shape": "2x128"}, "threads_per_row=32 vector=4 hold=shared", *KNOBS["copy"].values
    ),
    "edges": (
        *_scenes(owners, _ROWS, f"{_QUARTER} vector=4", "exact"),
        *_scenes(owners, {**_ROWS, "shape": "64x18", "pitch": 20}, f"{_QUARTER} vector=4", "masked"),
        *_scenes(owners, {**_ROWS, "shape": "64x22"}, "threads_per_row=8 rows_per_block=4 vector=4", "peel"),
    ),
    "persistent": _scenes(owners, _WIDE, "threads_per_row=32", 0, 1, 2),
    "stages": _scenes(diary, {**_BARE, "shape": "48x8"}, _LOOP, 1, 2),
    "keep": "the same row waits in the same registers, as it is stored or as the floats that later passes need",
    "unroll": "the same threads own the same elements: an iteration of the loop has more of their loads in flight",
    "load": "the same threads own the same elements: a hint says which lines leave a cache first",
    "store": "the same threads own the same elements: a hint says which lines leave a cache first",
    "params": _scenes(
        diary, {**_ROWS, "shape": "32x8", "dtype": "bf16"}, _LOOP, *KNOBS["params"].values, prefetched="persistent=0"
    ),
    "blocks_per_sm": "no thread does anything else: the compiler keeps to fewer registers",
    "columns": _scenes(
        sums, _BACK, "threads_per_row=32 persistent=1 hold=registers unroll=0", *KNOBS["columns"].values
    ),
    "dependent_launch": (
        *_scenes(diary, _BARE, f"{_QUARTER} vector=2 hold=registers unroll=0", "off", "start", "loads", "end"),
        *_scenes(partial(diary, kernel=1), _BACK, "threads_per_row=32 persistent=1 hold=registers unroll=0", "on"),
    ),
    "arithmetic": "no thread owns anything else: the same exponentials by other instructions",
    "division": "no thread owns anything else: the same quotients by other instructions",
    "row_order": "the same threads own the same elements: a block's number says which rows are its own",
    "statistics": "a null pointer's store is skipped at run time, or is not in the text: no access differs",
    "tile_m": _OF_TILES,
    "tile_n": _OF_TILES,
    "tile_k": _OF_TILES,
    "thread_m": _OF_TILES,
    "thread_n": _OF_TILES,
    "fragment": "who multiplies in a product of matrices: the pictures are of rows, which have none",
}


def schedule_of(knob: str, scene: Scene) -> Schedule:
    return changed(Schedule(), f"{scene.knobs} {scene.also} {knob}={scene.value}")


def problem_of(scene: Scene) -> Problem:
    """The scene's problem, on rows of standard normal numbers: what most rows do."""
    asked = dict(scene.problem)
    problem = problem_for(load(asked.pop("op")), **asked)
    return replace(problem, spec=replace(problem.spec, accuracy_rows=("normal",)))


def module_of(knob: str, scene: Scene) -> Module:
    """The scene's kernels. Raises UsageError where they are refused: a picture must be of what can be had."""
    problem, schedule = problem_of(scene), schedule_of(knob, scene)
    reason = refusal(problem, schedule, replace(target("h200"), sm_count=SM_COUNT))
    if reason is not None:
        raise UsageError(f"the picture of {knob}={scene.value} is refused: {reason}", received=str(schedule))
    return emit(problem, schedule)


def drawn(knob: str, scene: Scene, program: Program) -> tuple[str, ...]:
    """The lines of a scene. Raises UsageError for a kernel that faults."""
    problem = problem_of(scene)
    inputs, outputs = KernelCall(says="", problem=problem, sm_count=SM_COUNT).tensors(seed=0)
    run = program.run(
        {**inputs.arrays, **outputs.arrays},
        rows=problem.rows,
        cols=problem.cols,
        rows_per_batch=problem.rows_per_batch,
        scalars=inputs.scalars,
        sm_count=SM_COUNT,
        trace=True,
    )
    if run.faults:
        raise UsageError(f"the picture of {knob}={scene.value} shows a fault", received=str(run.faults[0]))
    return tuple(scene.draw(problem, run.steps))


def pictures() -> dict[str, str]:
    """Knob -> its scenes as one text; values that look the same share a drawing. Raises NoCompilerError."""
    scenes = [(knob, scene) for knob, found in PICTURES.items() if not isinstance(found, str) for scene in found]
    programs = build_many([module_of(knob, scene) for knob, scene in scenes])
    found: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for (knob, scene), program in zip(scenes, programs, strict=True):
        found.setdefault(knob, {}).setdefault(drawn(knob, scene, program), []).append(str(scene.value))
    return {
        knob: "\n\n".join("\n".join((f"{knob}={', '.join(values)}", *lines)) for lines, values in drawings.items())
        for knob, drawings in found.items()
    }
