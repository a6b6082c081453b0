"""Contractions written by hand, as problems and programs, and their kernels on the CPU against float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy as sp

from normgen.codegen.module import Module
from normgen.codegen.parts import parts_of
from normgen.codegen.spelling import marked
from normgen.codegen.tiles.kernel import TileKernel
from normgen.cpu import build_many
from normgen.dtypes import dtype as dtype_named
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.ir import Load, Reduce, RowProgram, Statement, Store, check
from normgen.program.monoid import DOT, symbol
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.plan import tile_plan_of
from normgen.spec.spec import Kind, Role, Spec, Tensor

SMALL = Schedule(tile_m=16, tile_n=16, tile_k=8, thread_m=2, thread_n=2, hold="shared")  # type: ignore[arg-type]
AXES = {"rows": Kind.ROW, "inner": Kind.INNER, "cols": Kind.COL}
BEFORE = 7.0  # what lies in a tensor that is added to
Sizes = tuple[int, int, int]  # rows, inner, cols
Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A program over tensors, and what it stores, in float64, of arrays [rows, inner, cols]."""

    tensors: Mapping[str, tuple[str, ...]]  # name -> axes in the order of memory
    statements: tuple[Statement, ...]
    truth: Callable[[Arrays], Mapping[str, Any]]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    null_as: Mapping[str, float] = field(default_factory=dict)
    nullable: tuple[str, ...] = ()
    spread: float = 1.0
    bound: float = 1e-5

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(s.tensor for s in self.statements if isinstance(s, Store))

    @property
    def added(self) -> tuple[str, ...]:
        return tuple(s.tensor for s in self.statements if isinstance(s, Store) and s.accumulate)

    def program(self) -> RowProgram:
        loads = [Load(name, kind_of(axes)) for name, axes in self.tensors.items() if name not in self.stores]
        return check(RowProgram("linear", (*loads, *self.statements), tuple(self.scalars)))

    def problem(self, sizes: Sizes, **fields: Any) -> Problem:
        names = [*self.stores, *(name for name in self.tensors if name not in self.stores)]
        uses = tuple(
            TensorUse(
                name=name,
                kind=kind_of(self.tensors[name]),
                order=self.tensors[name],
                dtype=dtype_named(self.dtypes.get(name, "f32")),
                is_written=name in self.stores,
                null_as=self.null_as.get(name),
                nullable=name in self.nullable,
            )
            for name in names
        )
        spec = Spec(name="linear", summary="", tensors=(Tensor(name="x", role=Role.INPUT),), formulas=())
        rows, inner, cols = sizes
        return Problem(spec=spec, rows=rows, cols=cols, inner=inner, tensors=uses, pitch=cols, **fields)

    def module(self, sizes: Sizes, schedule: Schedule = SMALL, **fields: Any) -> Module:
        problem, program = marked(self.problem(sizes, **fields), self.program())
        return parts_of(TileKernel(tile_plan_of(problem, program, schedule))).module()


def kind_of(axes: Sequence[str]) -> Kind:
    found = Kind.SCALAR
    for axis in axes:
        found |= AXES[axis]
    return found


def dot(name: str, left: sp.Expr, right: sp.Expr, *, over: str = "inner") -> Reduce:
    kept = Kind.SCALAR
    for axis, kind in AXES.items():
        kept |= kind if axis != over else Kind.SCALAR
    return Reduce((name,), kept, DOT, (left, right), over=AXES[over])


def run(
    case: Case, module: Module, sizes: Sizes, *, pad: int = 0, seed: int = 0, absent: Sequence[str] = ()
) -> list[str]:
    """What is wrong with a module's results at these sizes: faults of the executor, elements off the truth."""
    [program] = build_many([module], workers=1)
    return ran(case, program, sizes, pad=pad, seed=seed, absent=absent)


def ran(
    case: Case, program: Any, sizes: Sizes, *, pad: int = 0, seed: int = 0, absent: Sequence[str] = ()
) -> list[str]:
    rows, inner, cols = sizes
    lengths = {"rows": rows, "inner": inner, "cols": cols}
    random = np.random.default_rng(rows * 7919 + inner * 31 + cols + seed)
    arrays: dict[str, Any] = {}
    for name, axes in case.tensors.items():
        dtype = dtype_named(case.dtypes.get(name, "f32"))
        shape = [lengths[axis] for axis in axes]
        padded = [*shape[:-1], shape[-1] + pad] if len(shape) == 2 else shape
        whole = np.full(padded, np.nan, np.float32).astype(dtype.numpy)
        drawn = random.standard_normal(shape).astype(np.float32) * case.spread
        array = whole[..., : shape[-1]] if shape else whole
        there = BEFORE if name in case.added else np.nan
        array[...] = there if name in case.stores else drawn.astype(dtype.numpy)
        arrays[name] = array
    given = {name: None if name in absent else np.atleast_1d(array) for name, array in arrays.items()}
    done = program.run(given, rows=rows, cols=cols, inner=inner, scalars=case.scalars, seed=seed)
    faults = [str(fault) for fault in done.faults]
    if faults:
        return faults
    seen = {
        n: np.full_like(np.asarray(a, np.float64), case.null_as[n]) if n in absent and n in case.null_as else a
        for n, a in arrays.items()
    }
    with np.errstate(all="ignore"):
        truth = case.truth(
            {name: placed(array, case.tensors[name]) for name, array in seen.items()} | dict(case.scalars)
        )
    wrong = []
    for name in case.stores:
        if name in absent:
            continue
        found, wanted = placed(arrays[name], case.tensors[name]), np.asarray(truth[name], np.float64)
        wanted = np.broadcast_to(wanted, found.shape)
        scale = max(1.0, float(np.nanmax(np.abs(wanted), initial=0.0)))
        eps = dtype_named(case.dtypes.get(name, "f32"))
        allowed = (case.bound + (0 if eps.bytes == 4 else 0.01)) * scale * max(1, inner**0.5)
        off = ~((np.abs(found - wanted) <= allowed) | (np.isnan(found) & np.isnan(wanted)) | (found == wanted))
        if off.any():
            place = tuple(int(i) for i in np.argwhere(off)[0])
            wrong.append(f"{name}{place}: {found[place]} is not {wanted[place]}; {int(off.sum())} of {off.size}")
    return wrong


def placed(array: Any, axes: Sequence[str]) -> Any:
    """In float64 [rows, inner, cols], each of length 1 where the tensor does not vary along it."""
    order = sorted(axes, key=list(AXES).index)
    moved = np.transpose(np.asarray(array).astype(np.float64), [list(axes).index(axis) for axis in order])
    shape = iter(moved.shape)
    return moved.reshape([next(shape) if axis in axes else 1 for axis in AXES])


TENSORS = {"x": ("rows", "inner"), "w": ("inner", "cols"), "y": ("rows", "cols")}
LINEAR = Case(
    TENSORS,
    (dot("y", symbol("x"), symbol("w")), Store("y", "y", Kind.ELEM)),
    lambda a: {"y": (a["x"] * a["w"]).sum(1, keepdims=True)},
)
