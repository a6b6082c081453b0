"""The callable handle: a kernel that checks its arrays, allocates what is not given, and launches.

ln = normgen.kernel("layernorm", shape=(8, 1024, 768), dtype="float32")
y, mean, rstd = ln(x, weight, bias)
ln(x, weight, bias, out=y, mean=mean, rstd=rstd, stream=stream)    # allocates nothing

The same on numpy arrays, slowly and with every access checked: normgen.kernel("layernorm", ..., device="cpu").
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from normgen.choice.first import default_schedule
from normgen.cuda.arrays import ON_CPU
from normgen.device import Device
from normgen.errors import NothingValidError, UsageError, did_you_mean
from normgen.export.cubins import Cubins, read_cubins
from normgen.knobs import ColumnWay, Hold
from normgen.pipeline import emit
from normgen.problem.problem import Problem, along_axis, sizes_of
from normgen.problem.question import Asked, whole
from normgen.program.source import problem_for
from normgen.python.any_rows import AnyRows
from normgen.python.executor import Executor, executor_for
from normgen.python.kernels import Kernel
from normgen.records.questions import tune_command
from normgen.records.record import Record
from normgen.records.winners import lookup, spec_path
from normgen.schedule.legality import refusal
from normgen.schedule.plan import WARP
from normgen.schedule.schedule import Schedule
from normgen.spec.given import Given, spec_of
from normgen.spec.spec import Spec
from normgen.suites.bands import Bands

__all__ = ["AnyRows", "Kernel", "kernel"]


def kernel(
    op: Given = "layernorm",
    *,
    shape: str | int | tuple[int, ...],
    axis: int | None = None,
    rows: str | None = None,
    present: Collection[str] | None = None,
    device: int | str = 0,
    schedule: Schedule | None = None,
    cubins: str | Path | None = None,
    **question: Unpack[Asked],
) -> Kernel:
    """A handle for `op` on `shape` = [.., cols]: the best record for this GPU, else the default schedule.

    op         name of a spec, the path of its file, its text, the mapping that the text stands for, or a `Spec`
    shape      "8x1024x768", a tuple, or cols alone; rows are free at run time, the schedule is the one for the shape's
    axis       the one that is a row, where it is not the last: (32, 512, 8192) with axis=1 has rows of 512 elements
               which lie 8192 apart, and is not copied. Arrays have that shape, but for the size of the first axis where
               that is another one; row values have it without the axis, parameters the axis alone
    rows       "any", or a shape of (-1, cols) or "*xcols": the schedule follows the rows of each call (`AnyRows`)
    present    the optional tensors the caller passes or wants; None: all but those of `without`
    device     a GPU's number; "cpu": the emitted text runs on numpy arrays (ml_dtypes.bfloat16 for bf16), slowly and
               with every access checked. Records are for GPUs: the schedule is then the default one for an H200
    schedule   use this one instead of looking for a record
    cubins     a folder that `normgen export --cubin` wrote: its records alone are looked up, and its machine code is
               loaded, so that nothing is compiled, unless an array has a layout that needs a general kernel
    question   the other keywords, all of them in `problem.question.Asked`:
    dtype      by name, or an object of numpy, ml_dtypes, torch or jax. An output of f4e2m1 is an array of uint8 with
               two codes a byte, [.., cols / 2], or one of torch.float4_e2m1fn_x2
    dtypes     stored dtypes that differ from `dtype`, by tensor name
    gradients  backward: the tensors to differentiate by, ("x",) for frozen parameters; None: all that are there
    inner      length of the axis inner, where a tensor of the spec has it
    pitch, align  elements from row start to row start, bytes that divide base pointers: what the kernel is made for
    batches    how many a tensor [batches, cols] has; None: the first size of a shape of three or more, else 1. A call
               may have another number of them, as of rows
    accumulate  backward: add to the gradients, which the caller then gives, instead of overwriting them
    deterministic  the same bits in every run: no atomics on sums over rows
    batch_invariant  a row's bits depend neither on how many rows there are nor on which of them it is; with any number
               of rows, all bands reduce in one order. An array whose rows the kernel does not cover is refused: the
               general kernel reduces in another order
    stable_parameters  the promise that nothing which may still run on the stream when a call is made writes the column
               parameters (weights at inference); a kernel that is launched early then reads them early
    in_place   output -> the input that it takes the place of, {"h": "residual"}: the call overwrites that array, and
               returns it; backward likewise a gradient, {"dx": "dy"}
    layout     output of groups -> how it lies in memory, {"scale": "column_major"}: an array [.., groups] of strides
               (1, pitch), pitch >= rows; "packed", of f8e8m0: int32 words [.., groups / 4] of these strides, the first
               group in the lowest byte. What the call allocates has columns on multiples of 16 bytes. "swizzled", of
               scales of a byte: whole tiles of 128 rows and four groups, [rows rounded up, groups rounded up] or any
               other sizes; what is allocated has these, and zeros where there is no row or group
               matrix -> the order of its axes and of its gradient's, {"w": "cols_inner"}: torch's Linear

    Warns once per problem if there is no record. Raises UsageError for a wrong argument, NoDeviceError without
    a GPU, NoCompilerError on the CPU without a C++ compiler, CompileError if the text is refused.
    """
    spec = spec_of(op)
    asked = whole(question, "kernel")
    asked["without"] = _names(asked["without"])
    if asked["gradients"] is not None:
        asked["gradients"] = _names(asked["gradients"])
    present = None if present is None else _names(present)
    if not isinstance(schedule, Schedule | None):
        hint = "leave it out for the best record, or the default schedule; `normgen show --schedule` takes a text"
        raise UsageError("a schedule is a Schedule", received=repr(schedule), hint=hint)
    if present is not None:
        if without := asked["without"]:
            raise UsageError("`present` and `without` say the same", received=f"{present} and {without}")
        asked["without"] = _all_but(present, spec)
    sizes, is_any = _sizes(shape, rows)
    behind = 0
    if axis is not None and not (is_any and axis in (-1, _axes(shape) - 1)):
        if is_any:
            rule = (
                "rows along another axis than the last have the sizes of their shape, of which the first alone is free"
            )
            hint = (
                f"give the shape of a call, and axis={axis!r}: the size of its first axis may be another one in a call"
            )
            raise UsageError(rule, received=f"axis {axis} of {shape!r}", hint=hint)
        behind = len(sizes)
        sizes, asked["col_stride"] = along_axis(sizes, axis)
        behind = behind - len(sizes) if asked["col_stride"] == 1 else 0
    problem = problem_for(spec, shape=sizes, **asked)
    executor = executor_for(device)
    found = read_cubins(Path(cubins)) if cubins is not None else None
    maker = _Maker(executor=executor, device=device, op=op, given=schedule, cubins=found, behind=behind)
    return maker.any_rows(problem) if is_any else maker.make(problem, *maker.choose(problem))


def _names(given: Collection[str]) -> Collection[str]:
    """A text is one name."""
    return (given,) if isinstance(given, str) else given


def _sizes(shape: str | int | tuple[int, ...], rows: str | None) -> tuple[tuple[int, ...], bool]:
    """[.., cols], and whether rows may be any: of those, one. Raises UsageError."""
    if rows not in (None, "any"):
        raise UsageError("rows are those of the shape, or 'any'", received=repr(rows))
    if isinstance(shape, str) and shape.startswith("*x"):
        shape, rows = shape.removeprefix("*x"), "any"
    sizes = sizes_of(shape)
    if -1 in sizes[:-1] or rows == "any":
        return (1, *sizes[-1:]), True
    return sizes, False


def _axes(shape: str | int | tuple[int, ...]) -> int:
    return 1 if isinstance(shape, int) else shape.count("x") + 1 if isinstance(shape, str) else len(shape)


def _all_but(present: Collection[str], spec: Spec) -> tuple[str, ...]:
    """The optional tensors that are absent. Raises UsageError for a name that is no optional tensor's."""
    optional = {tensor.name for tensor in spec.tensors if tensor.optional}
    for unknown in sorted(set(present) - optional):
        hint = did_you_mean(unknown, optional)
        raise UsageError("`present` names optional tensors", received=unknown, hint=hint)
    return tuple(sorted(optional - set(present)))


_warned: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class _Maker:
    """How the kernels of a handle come about: one, or one for each band of rows.

    given   the caller's schedule, where there is no look-up
    cubins  the folder whose records are looked up, and whose machine code is loaded
    behind  axes of size 1 behind that of the columns
    """

    executor: Executor
    device: int | str
    op: Given
    given: Schedule | None = None
    cubins: Cubins | None = None
    behind: int = 0

    def make(self, problem: Problem, schedule: Schedule, origin: str, **of_any: Any) -> Kernel:
        """A kernel; with the arguments of `AnyRows`, one for any number of rows."""
        module = emit(problem, schedule)
        kind: type[Kernel] = AnyRows if of_any else Kernel
        return kind(
            problem=problem,
            schedule=schedule,
            module=module,
            cubin=self.cubins.find(module, self.executor.facts.arch) if self.cubins else None,
            device=self.device,
            origin=origin,
            general=None if problem.batch_invariant else partial(_first_general, problem, self.executor, self.device),
            behind=self.behind,
            **of_any,
        )

    def any_rows(self, problem: Problem) -> Kernel:
        bands = Bands(problem, self.executor.facts, records=self._records)

        def choose(band: int) -> tuple[Schedule, str]:
            return self.choose(problem.with_rows(band), bands)

        return self.make(problem, *choose(bands.band(1)), bands=bands, choose=choose, make=self.make)

    def choose(self, problem: Problem, bands: Bands | None = None) -> tuple[Schedule, str]:
        """The schedule of a problem, and where it comes from. Warns once per problem if there is no record."""
        facts = self.executor.facts
        if self.given is not None:
            return self.given, "given by the caller"
        if self.executor.index == ON_CPU and not (bands and problem.batch_invariant):
            return default_schedule(problem, facts), f"default schedule for {facts.name}: records are for GPUs"
        found = bands.lookup(problem.rows) if bands else lookup(problem, facts, records=self._records)
        if found.schedule is not None:
            return found.schedule, found.reason
        about = f"{problem} on {facts.name}"
        if about not in _warned and self.cubins is None:
            _warned.add(about)
            command = tune_command(spec_path(self.op, problem.spec), problem)
            warnings.warn(f"no record for {about}: using the default schedule; `{command}` makes one", stacklevel=3)
        return default_schedule(problem, facts), f"default schedule: {found.reason}"

    @property
    def _records(self) -> tuple[Record, ...] | None:
        """Those that are looked up, where not the usual ones."""
        if self.cubins is not None:
            return tuple(r for r in self.cubins.records if r.device.get("name") == self.executor.facts.name)
        return () if self.executor.index == ON_CPU else None


def unaligned(problem: Problem) -> Problem:
    """The same problem for rows at any distance and tensors aligned to their largest element only.

    An odd pitch promises nothing about where the next row starts.
    """
    line = problem.cols * problem.col_stride
    pitch = line + (2 if line % 2 else 1)
    return replace(problem, pitch=pitch, align=max(t.dtype.bytes for t in problem.tensors))


def general_schedules(problem: Problem, facts: Device) -> Iterator[tuple[Problem, Schedule]]:
    """What covers the layouts a tuned kernel does not, fastest first; the last covers every layout.

    First vectors with peeled heads (where rows of all tensors start alike), then element by element.

    Raises NothingValidError if none is legal.
    """
    if problem.spec.group or problem.packed > 1:
        yield from _whole_groups(problem, facts)
        return
    loose = unaligned(problem)
    yield loose, default_schedule(loose, facts)
    if loose.inner or loose.col_stride > 1:  # its tiles, or rows side by side, come element by element
        return
    plain = Schedule(vector=1, hold=Hold.RELOAD, columns=ColumnWay.ATOMIC if problem.sums_rows else Schedule().columns)
    for threads in (256, 128, 64, 32, 16, 8, 4, 2, 1):
        beside = 1 if problem.deterministic else max(1, 128 // threads)
        schedule = replace(plain, threads_per_row=threads, rows_per_block=beside)
        if refusal(loose, schedule, facts) is None:
            yield loose, schedule
            return
    raise NothingValidError("reading a row element by element must be legal", received=str(problem))


def _whole_groups(problem: Problem, facts: Device) -> Iterator[tuple[Problem, Schedule]]:
    """Rows as loosely aligned as kernels of groups allow: the lanes of one warp own a group by whole vectors.

    So are those of elements that share a byte.
    """
    vector = max(problem.packed, problem.spec.group // WARP)
    widest = max(t.dtype.bytes for t in problem.tensors if t.kind.by_col)
    loose = replace(problem, pitch=problem.cols + vector, align=min(16, vector * widest))
    yield loose, default_schedule(loose, facts)


def _first_general(problem: Problem, executor: Executor, device: int | str) -> Kernel | None:
    return _general(general_schedules(problem, executor.facts), device)


def _general(rest: Iterator[tuple[Problem, Schedule]], device: int | str) -> Kernel | None:
    """The next of the general kernels, compiled; it makes the one after it if it must."""
    following = next(rest, None)
    if following is None:
        return None
    problem, schedule = following
    return Kernel(
        problem=problem,
        schedule=schedule,
        module=emit(problem, schedule),
        device=device,
        origin="general kernel",
        general=lambda: _general(rest, device),
    )
