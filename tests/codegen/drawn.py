"""The cases of digests.py: every operation and preset in both directions, in every form a caller may ask for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator
from typing import Any

from normgen.choice.first import default_schedule
from normgen.dtypes import F8E8M0
from normgen.errors import NormgenError, NothingValidError, SpecError
from normgen.knobs import KNOBS
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.scales import ScaleLayout
from normgen.program.rewrites.reductions import applicable
from normgen.program.source import problem_for, written_program
from normgen.records.questions import problem_of
from normgen.records.winners import read, shipped_folder
from normgen.schedule.legality import refusal
from normgen.spec.reader import list_presets, list_specs, load
from normgen.spec.spec import Spec
from tests.codegen.covering import Case, walk
from tests.codegen.in_place import pairs_of
from tests.codegen.layouts import BACKWARD_SETS, DEVICE, SETS
from tests.codegen.matrix import sample
from tests.codegen.tiles.asked import ASKED, spread
from tests.samples import CORE

MOST, EXTRA = 60, 4  # schedules that cover pairs of values, and random ones, of a core operation and set of layouts
SCHEDULES, STEPS = 4, 25  # of a problem; tries of the walk that leads to one
REWRITES = ("variance", "softmax", "arithmetic", "division", "keep")
OTHERS = {name: knob.values for name, knob in KNOBS.items() if name not in REWRITES}
# rows, cols, elements from row to row beyond cols, alignment (0: an element's)
INNER = {128: 72, 760: 136, 1128: 40, 513: 33, 4096: 64}  # of products, by cols
SHAPES = ((24, 128, 0, 16), (199, 760, 8, 16), (33, 1128, 0, 0), (70, 513, 3, 4), (4, 4096, 0, 16))


def cases(ops: Collection[str] = ()) -> list[Case]:
    """Shipped records, the core operations over all knobs and awkward layouts, every operation in every form, products
    on tensor cores.

    ops  only of these operations; none: of all
    """
    records = [r for r in read(shipped_folder() / "h200.jsonl").records if r.problem.op in ops or not ops]
    shipped = [(problem_of(r.problem, load(r.problem.op)), r.schedule) for r in records]
    core = [
        case
        for direction, sets in (("forward", SETS), ("backward", BACKWARD_SETS))
        for op in CORE
        if (op in ops or not ops) and (direction == "forward" or load(op).outputs)
        for layouts in sets.values()
        for case in sample(op, layouts, 1, extra=EXTRA, most=MOST, direction=direction)
    ]
    specs = [load(path) for name, path in (list_specs() | list_presets()).items() if name in ops or not ops]
    others = [case for spec in specs for problem in forms(spec) for case in schedules(problem)]
    return [*shipped, *core, *others, *of_tensor_cores(ops)]


def of_tensor_cores(ops: Collection[str] = ()) -> Iterator[Case]:
    """Products of every fragment."""
    for op, shape, inner, dtype, more in ASKED:
        if op in ops or not ops:
            problem = problem_for(load(op), shape=shape, inner=inner, dtype=dtype, **more)
            yield from ((problem, schedule) for schedule in spread(problem, DEVICE))


def forms(spec: Spec) -> Iterator[Problem]:
    """The problems of a spec, each in the next shape and dtype: those that the spec refuses are left out."""
    shapes = itertools.cycle(SHAPES)
    dtypes = itertools.cycle([d for d in ("f32", "bf16", "f16") if d in (spec.inputs[0].dtypes or (d,))])
    for direction in Direction:
        bare = tuple(t.name for t in spec.tensors if t.optional)
        base: dict[str, Any] = {"direction": direction.value}
        if direction is Direction.BACKWARD and asked(spec, SHAPES[0], "", base) is None:
            base["without"] = bare  # statistics have no gradient
        plain = asked(spec, SHAPES[0], next(dtypes), base)
        for form in () if plain is None else forms_of(plain, bare):
            found = asked(spec, next(shapes), next(dtypes), base | form)
            if found is not None:
                yield found


def forms_of(problem: Problem, bare: tuple[str, ...]) -> list[dict[str, Any]]:
    """What may be asked beside the plain problem, in the words of `problem_for`."""
    fixed: list[dict[str, Any]] = [{}, {}, {"stable_parameters": True}]
    fixed += [{"without": bare}] if bare else []
    if problem.direction is Direction.BACKWARD:
        names = [t.name for t in problem.spec.tensors if f"d{t.name}" in problem.results]
        fixed += [{"gradients": (name,)} for name in names if len(names) > 1]
        fixed += [{"accumulate": True}, {"deterministic": True}]
    else:
        fixed += [{"batch_invariant": True}]
    pairs = pairs_of(problem)
    fixed += [{"in_place": pairs}] if pairs else []
    grouped = [t for t in problem.tensors if t.kind.is_groups]
    for layout in list(ScaleLayout)[1:]:
        named = {t.name: layout.value for t in grouped if layout is not ScaleLayout.PACKED or t.dtype is F8E8M0}
        fixed += [{"layout": named}] if named else []
    any_cols = [{"any_cols": True, **form} for form in fixed[1:] if set(form) <= {"without", "gradients", "layout"}]
    return [*fixed, *any_cols]


def asked(spec: Spec, shape: tuple[int, int, int, int], dtype: str, form: dict[str, Any]) -> Problem | None:
    """The problem, with cols rounded up to whole groups; None where the spec has no such one."""
    rows, cols, beyond, align = shape
    cols = -(-cols // spec.whole_cols) * spec.whole_cols
    batched = any(t.kind.by_batch for t in spec.tensors)
    said = {"dtype": dtype} if dtype else {"dtype": (spec.inputs[0].dtypes or ("f32",))[0]}
    said |= {"inner": INNER[shape[1]]} if spec.has_inner else {}
    said |= {"batches": next(n for n in (*range(2, rows), 1) if rows % n == 0)} if batched else {}
    for bytes_ in (align,) if align else (2, 4):
        try:
            return problem_for(spec, shape=(rows, cols), pitch=cols + beyond, align=bytes_, **said, **form)
        except NormgenError:
            continue
    return None


def schedules(problem: Problem) -> Iterator[Case]:
    """The default, and a few from random walks: an operation's problems together have all rewrites."""
    rng = random.Random(f"{problem} {problem.question}")
    try:
        default = default_schedule(problem, DEVICE)
    except (NothingValidError, SpecError):  # groups that start anywhere; gradients of a product that are two kernels
        return
    known = applicable(written_program(problem))
    values = {name: [*dict.fromkeys(known.get(name, KNOBS[name].values))] for name in REWRITES}
    found = {default: None}
    first = rng.randrange(60)
    for number in range(first, first + SCHEDULES - 1):
        start = default
        for name, listed in values.items():
            point = start.varied(**{name: listed[number % len(listed)]})
            start = start if refusal(problem, point, DEVICE) else point
        *_, last = walk(problem, start, DEVICE, rng, STEPS, OTHERS)
        found[last] = None
    yield from ((problem, schedule) for schedule in found)
