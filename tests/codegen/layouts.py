"""The awkward problems every kernel has to get right: layouts of rows, stored dtypes, absent tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from normgen.device import target
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.spec import Spec

# Two SMs: a persistent grid is small enough that its blocks walk several rows of a small problem.
DEVICE = replace(target("h200"), name="two SMs of an H200", sm_count=2)

FORMATS = ("f32", "f16", "bf16", "mixed16", "mixed32")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`pitch` 0: rows lie side by side; `align` 0: one element (the kernel may assume nothing)."""

    rows: int
    cols: int
    pitch: int = 0
    align: int = 16
    any_cols: bool = False
    bare: bool = False  # every optional tensor is absent
    gradients: str = "all"  # backward: all | inputs | parameters
    accumulate: bool = False  # backward

    def __str__(self) -> str:
        parts = [f"{self.rows}x{self.cols}"]
        parts += [f"pitch{self.pitch}"] if self.pitch else []
        parts += ["" if self.align else "misaligned"]
        parts += ["any_cols"] if self.any_cols else []
        parts += ["bare"] if self.bare else []
        parts += [self.gradients] if self.gradients != "all" else []
        parts += ["accumulate"] if self.accumulate else []
        return "_".join(p for p in parts if p)


SMALL = (
    Layout(rows=1, cols=1),
    Layout(rows=3, cols=7),
    Layout(rows=5, cols=123),
    Layout(rows=70, cols=33, pitch=40),
    Layout(rows=37, cols=64, align=0),
    Layout(rows=26, cols=96, bare=True),
    Layout(rows=23, cols=77, any_cols=True),
    Layout(rows=24, cols=128, pitch=131),
)
LARGE = (
    Layout(rows=199, cols=760),
    Layout(rows=33, cols=1128),
    Layout(rows=4, cols=4097),
    Layout(rows=25, cols=1000, align=0, bare=True),
    Layout(rows=40, cols=512, pitch=520),
    Layout(rows=12, cols=1024, any_cols=True),
    Layout(rows=22, cols=641, align=0, any_cols=True),
    Layout(rows=48, cols=768),
)
SETS = {"small": SMALL, "large": LARGE}

BACKWARD_SMALL = (
    Layout(rows=0, cols=40),
    Layout(rows=1, cols=1),
    Layout(rows=3, cols=7),
    Layout(rows=199, cols=33, pitch=40),
    Layout(rows=37, cols=64, align=0),
    Layout(rows=26, cols=96, bare=True),
    Layout(rows=23, cols=77, any_cols=True),
    Layout(rows=70, cols=128, gradients="inputs"),
    Layout(rows=70, cols=120, gradients="parameters"),
    Layout(rows=45, cols=123, accumulate=True),
)
BACKWARD_LARGE = (
    Layout(rows=0, cols=512),
    Layout(rows=1, cols=768),
    Layout(rows=3, cols=4097),
    Layout(rows=199, cols=760),
    Layout(rows=33, cols=1128),
    Layout(rows=25, cols=1000, align=0, bare=True),
    Layout(rows=40, cols=512, pitch=520, accumulate=True),
    Layout(rows=22, cols=641, align=0, any_cols=True),
    Layout(rows=48, cols=768, gradients="parameters"),
)
BACKWARD_SETS = {"small": BACKWARD_SMALL, "large": BACKWARD_LARGE}


def problem_of(spec: Spec, layout: Layout, stored: str, direction: str) -> Problem:
    """The problem in this layout; `stored` is one of FORMATS.

    mixed16: a bf16 input with f32 parameters (without parameters: an f32 output); mixed32: the other way round.
    """
    dtype = {"mixed16": "bf16", "mixed32": "f32"}.get(stored, stored)
    without = [t.name for t in spec.tensors if t.optional] if layout.bare else []
    columns = [t for t in spec.tensors if t.kind.by_col and not t.kind.by_row and t.name not in without]
    parameters, summed = [t.name for t in columns], [t.name for t in columns if not t.kind.by_batch]
    has_batches = any(t.kind.by_batch for t in spec.tensors)
    other = {"mixed16": "f32", "mixed32": "bf16"}.get(stored)
    dtypes = dict.fromkeys(parameters or [t.name for t in spec.outputs if other in t.dtypes], other) if other else {}
    narrow = dtype != "f32" and not other and not any(t.name not in without for t in spec.statistics)
    backward = direction == "backward"
    inputs = [t.name for t in spec.inputs]
    every = [*inputs, *summed] if has_batches else None  # no kernel has the gradient of a batch parameter
    wanted = {"all": every, "inputs": inputs, "parameters": summed or inputs}[layout.gradients]
    return problem_for(
        spec,
        shape=(layout.rows, layout.cols),
        dtype=dtype,
        dtypes=dtypes,
        direction=direction,
        without=without,
        gradients=wanted if backward else None,
        pitch=layout.pitch or None,
        batches=next((n for n in range(2, layout.rows + 1) if layout.rows % n == 0), 1) if has_batches else None,
        align=layout.align or (2 if narrow else 4),
        any_cols=layout.any_cols,
        accumulate=layout.accumulate and backward,
    )


def problems(
    spec: Spec, layouts: tuple[Layout, ...], seed: int, *, every_format: bool, direction: str = "forward"
) -> Iterator[Problem]:
    """Each layout once, its format by turns (which depends on the seed and the spec); or in every format."""
    start = seed + sum(map(ord, spec.name))
    for index, layout in enumerate(layouts):
        for stored in FORMATS if every_format else (FORMATS[(start + index) % len(FORMATS)],):
            yield problem_of(spec, layout, stored, direction)
