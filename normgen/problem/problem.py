"""A problem: one spec in one direction at one size, with the stored dtype of every tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import DType
from normgen.dtypes import dtype as dtype_named
from normgen.errors import SpecError, UsageError, did_you_mean
from normgen.problem.question import PROMISES, TERMS, Asked, Direction, Question, Terms, whole
from normgen.problem.scales import ScaleLayout
from normgen.problem.tensors import (
    TensorUse,
    backward_tensors,
    by_role,
    followed_dtypes,
    forward_tensors,
    stored_dtypes,
    tensors_in_place,
    tensors_laid_out,
    tensors_that_may_be_null,
)
from normgen.spec.spec import OUTPUTS, READ, Role, Sizes, Spec


@dataclass(frozen=True, kw_only=True)
class Problem(Terms):
    """What a kernel is generated for; `Terms` has the facts that are not here.

    tensors   every tensor of the launch in ABI order: outputs, then inputs. One that is written in place of another has
              no pointer of its own
    rows_per_batch  rows that share a row of each tensor of batches: row r has number r // rows_per_batch of them, and
              the last batch may be shorter. A run-time argument of the kernel, as rows is. 0: no tensor has batches,
              nor has one that is null to a kernel of any columns.
              Of heads, which are the batches of a spec that has those, row r has number r % batches
    absent    optional tensors of the spec that are not there
    """

    spec: Spec
    tensors: tuple[TensorUse, ...]
    rows_per_batch: int = 0
    absent: tuple[str, ...] = ()

    def tensor(self, name: str) -> TensorUse:
        return self._named[name]

    @cached_property
    def _named(self) -> dict[str, TensorUse]:
        return {t.name: t for t in self.tensors}

    @property
    def present(self) -> frozenset[str]:
        return frozenset(t.name for t in self.tensors)

    @property
    def batches(self) -> int:
        """Rows of every tensor of batches, or of heads; 1 without any."""
        return -(-self.rows // self.rows_per_batch) if self.rows_per_batch else 1

    @property
    def sizes(self) -> Sizes:
        """How long its axes are."""
        return Sizes(self.rows, self.cols, inner=self.inner or 1, batches=self.batches)

    @property
    def lengths(self) -> dict[str, int]:
        """What a grid of tiles asks for beside rows and batches."""
        return {"cols": self.cols, "inner": self.sizes.inner, "rows_per_batch": self.sharing_rows}

    def batch_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """The batch, or the head, of each row."""
        return rows % max(1, self.batches) if self.spec.has_heads else rows // self.rows_per_batch

    def shape_of(self, tensor: TensorUse) -> tuple[int, ...]:
        """As `TensorUse.shape`, in this problem."""
        return tensor.shape(self.sizes)

    def pitch_of(self, tensor: TensorUse) -> int:
        """Elements from row start to row start, or from line to line of groups, where nobody says otherwise.

        Of elements that share a byte, bytes. Values of groups have a line for each row or batch, unless they are laid
        out otherwise.
        """
        if tensor.axes[-1:] == ("inner",):
            return self.inner
        if not tensor.group:
            return tensor.dtype.units(self.pitch)
        return tensor.layout.pitch(self.rows, self.cols // tensor.group, tensor.dtype.bytes)

    @property
    def sharing_rows(self) -> int:
        """What a launch is told of its rows: how many share a row of batches, or how many lie side by side."""
        return self.col_stride if self.col_stride > 1 else self.rows_per_batch

    def with_stride(self, col_stride: int) -> Problem:
        """Of rows side by side the same rows, or a few more, with another number of them side by side."""
        beyond = self.pitch - self.cols * self.col_stride
        pitch = self.cols * col_stride + beyond
        return replace(self, col_stride=col_stride, pitch=pitch).with_rows(self.rows)

    def with_rows(self, rows: int) -> Problem:
        """The same problem with another number of rows, in as many batches as they fill; side by side whole ones."""
        rows = -(-rows // self.col_stride) * self.col_stride
        if not self.rows_per_batch or rows == self.rows:
            return replace(self, rows=rows)
        return replace(self, rows=rows, rows_per_batch=max(1, -(-rows // max(1, self.batches))))

    # The rules of the space ask for these, and for what is cached by problem, a million times a problem.

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __getstate__(self) -> dict[str, object]:
        """Without what was cached: another process hashes strings to other numbers."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def elem_tensors(self) -> tuple[TensorUse, ...]:
        return tuple(t for t in self.tensors if t.kind.is_elem)

    @cached_property
    def elem_inputs(self) -> tuple[TensorUse, ...]:
        """The tensors [rows, cols] that the kernel reads."""
        return tuple(t for t in self.elem_tensors if t.is_read)

    @cached_property
    def row_inputs(self) -> tuple[TensorUse, ...]:
        return tuple(t for t in self.tensors if t.is_row_input)

    @cached_property
    def passed_tensors(self) -> tuple[TensorUse, ...]:
        """The tensors that the caller passes: all but those that are written in place of another."""
        return tuple(t for t in self.tensors if not t.over)

    @cached_property
    def matrices(self) -> tuple[TensorUse, ...]:
        """Of these, the tensors of rows, of batches or of inner, of whole columns or inner: vectors lie in each."""
        return tuple(t for t in self.passed_tensors if t.kind.is_matrix and (t.kind.by_col or t.kind.by_inner))

    @cached_property
    def pitched_tensors(self) -> tuple[TensorUse, ...]:
        """Tensors of rows or batches that the caller passes: each has a pitch."""
        return tuple(t for t in self.passed_tensors if t.kind.is_matrix)

    @cached_property
    def pitches(self) -> dict[str, int]:
        """`pitch_of` each tensor that has one and that the caller passes."""
        return {t.name: self.pitch_of(t) for t in self.pitched_tensors}

    @property
    def divides_exactly(self) -> bool:
        """Whether a mean is an exact product: cols is a power of two."""
        return self.cols & (self.cols - 1) == 0

    @property
    def main_bytes(self) -> int:
        """Of the main input, which the kernel in front has just written."""
        return self.rows * self.cols * self.dtype.bytes

    @cached_property
    def row_input_bytes(self) -> int:
        """Bytes that one element of every row input that is read takes together."""
        return sum(t.dtype.bytes for t in self.elem_inputs)

    @cached_property
    def packed(self) -> int:
        """Elements that share a byte in a tensor [rows, cols]: vectors are so many at least; else 1."""
        return max((t.dtype.packed for t in self.elem_tensors), default=1)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of every row input together."""
        return self.cols * self.row_input_bytes

    @property
    def has_one_row_input(self) -> bool:
        return self.row_input_bytes == self.dtype.bytes

    @cached_property
    def parameter_bytes(self) -> int:
        """Bytes that one element of every column parameter takes together, in the registers that hold it."""
        return sum(t.dtype.bytes for t in self.tensors if t.is_parameter)

    @cached_property
    def vector_parameters(self) -> tuple[TensorUse, ...]:
        """Column parameters that vectors are read of: values of groups are read one by one."""
        return tuple(t for t in self.tensors if t.is_parameter and t.kind.by_col)

    @cached_property
    def widest_parameter(self) -> int:
        """Bytes of an element of the widest of these; 0 without any."""
        return max((t.dtype.bytes for t in self.vector_parameters), default=0)

    @cached_property
    def in_place(self) -> tuple[tuple[str, str], ...]:
        """(Written tensor, the read tensor whose memory it takes)."""
        return tuple((t.name, t.over) for t in self.tensors if t.over)

    @cached_property
    def layout(self) -> tuple[tuple[str, str], ...]:
        """(Tensor of groups, its layout), of those that are not row-major; (matrix, its order) where not the spec's."""
        groups = {t.name: t.layout.value for t in self.tensors if t.layout is not ScaleLayout.ROW_MAJOR}
        orders = {t.name: t.axes or t.kind.axes for t in self.spec.tensors if t.kind.is_shared_matrix}
        matrices = {t.of or t.name: t.axes for t in self.tensors if t.kind.is_shared_matrix}
        turned = {name: "_".join(axes) for name, axes in matrices.items() if axes != orders[name]}
        return tuple((groups | turned).items())

    def is_overwritten(self, name: str) -> bool:
        """Whether a tensor is read, and then another one takes its place."""
        return any(t.under for t in self.tensors if t.name == name)

    @cached_property
    def results(self) -> dict[str, str]:
        """What a kernel gives, by name in the spec's order -> the tensor whose memory holds it."""
        found = {name: t.memory for t in self.tensors if t.is_written for name in t.results}
        order = [f"d{t.name}" for t in by_role(self.spec.tensors, *READ)]
        return {name: found[name] for name in (*(n for n in order if n in found), *found)}

    @property
    def searched_knobs(self) -> Mapping[str, tuple[Any, ...]]:
        """The values that the spec's `[space]` gives knobs in this direction."""
        return self.spec.knobs if self.direction is Direction.FORWARD else self.spec.backward_knobs

    @cached_property
    def column_outputs(self) -> int:
        """Column reductions of a backward problem: dweight, dbias, ..."""
        return sum(t.is_row_sum for t in self.tensors)

    @cached_property
    def sums_batches(self) -> bool:
        """Whether a column reduction has a sum for each batch of rows."""
        return any(t.is_row_sum and t.kind.by_batch for t in self.tensors)

    @cached_property
    def totals(self) -> int:
        """Scalars that are written: each is the sum of a value of every row."""
        return sum(t.is_total for t in self.tensors)

    @cached_property
    def sums_rows(self) -> bool:
        """Whether something is summed over the rows, which its blocks must combine."""
        return self.column_outputs + self.totals > 0

    @cached_property
    def dtype(self) -> DType:
        """The stored dtype of the first row input: the one the problem is named after."""
        return self.row_inputs[0].dtype

    @cached_property
    def gradients(self) -> tuple[str, ...] | None:
        """Backward: the tensors whose gradients are written, where not all of them are; else None."""
        if self.direction is not Direction.BACKWARD:
            return None
        read = by_role(self.spec.tensors, *READ)
        sources = [t.name for t in read if t.has_gradient and t.name not in self.absent]
        differentiated = {name for t in self.tensors if t.is_written for name in (t.of, *t.also)}
        written = tuple(name for name in sources if name in differentiated)
        return written if len(written) < len(sources) else None

    @cached_property
    def named_dtypes(self) -> dict[str, str]:
        """The stored dtype of each tensor that takes part, by its name in the spec and in the spec's order."""
        stored = {name: t.dtype.name for t in self.tensors for name in (t.of or t.name, *t.also)}
        return {t.name: stored[t.name] for t in self.spec.tensors if t.name in stored}

    @property
    def first(self) -> str:
        """The tensor whose dtype a question names."""
        return first_of(self.spec, self.named_dtypes)

    @cached_property
    def stored_dtypes(self) -> dict[str, str]:
        """The dtype of every tensor of the spec, by name; of those that take no part the one they would have."""
        here = {name: dtype_named(dtype) for name, dtype in self.named_dtypes.items()}
        found = followed_dtypes(self.spec, here[self.first], here)
        return {name: dtype.name for name, dtype in found.items()}

    @cached_property
    def question(self) -> Question:
        """What was asked for, as records say it."""
        return Question(
            op=self.spec.name,
            spec_sha256=self.spec.sha256,
            dtypes=tuple((name, t.dtype.name) for t in self.tensors for name in t.results),
            in_place=self.in_place,
            layout=self.layout,
            batches=max(1, self.batches),
            **{name: getattr(self, name) for name in TERMS},
        )

    def arguments(self) -> dict[str, Any]:
        """What was asked for, as `problem_for` takes it behind the spec: see `Question.arguments`."""
        asked, stored = self.question.arguments, self.named_dtypes
        return asked(dtype=stored[self.first], dtypes=stored, without=self.absent, gradients=self.gradients)

    @cached_property
    def stable_tensors(self) -> frozenset[str]:
        """The column parameters, where they are promised not to change."""
        columns = (t.name for t in self.tensors if t.is_parameter)
        return frozenset(columns) if self.stable_parameters else frozenset()

    @cached_property
    def compulsory_bytes(self) -> int:
        """Bytes that must move: every tensor that is read or written, once."""
        return sum(math.prod(self.shape_of(t)) * t.dtype.bytes for t in self.tensors if not t.idle)

    @property
    def name(self) -> str:
        """For example layernorm_fwd_f32."""
        return f"{self.spec.name}_{self.direction.short}_{self.dtype.name}"

    def row_alignment(self, tensor: TensorUse) -> int:
        """The largest power of two (≤ 32 bytes) that divides the address of every row start."""
        pitch = self.inner if tensor.axes[-1:] == ("inner",) else self.pitch
        return math.gcd(self.align, tensor.dtype.bytes_of(pitch), 32)

    def __str__(self) -> str:
        inner = f" inner {self.inner}" if self.inner else ""
        inner += f", {self.col_stride} rows side by side," if self.col_stride != 1 else ""
        return f"{self.spec.name} {self.direction.value} {self.rows} x {self.cols}{inner} {self.dtype.name}"


def first_of(spec: Spec, there: Collection[str]) -> str:
    """The tensor whose dtype a question names: the first input that takes part, else, backward, the first output."""
    return next(t.name for t in (*spec.inputs, *spec.outputs) if t.name in there)


_SHAPE = re.compile(r"[0-9]{1,10}(x[0-9]{1,10})*")  # ten digits hold more than 31 bits
MOST_NUMBERED = 2**24  # cols whose numbers float32 tells apart
LARGEST_SIZE = 2**31 - 1  # of cols, inner, pitch and alignment
# ... of rows: a block counts in 31 bits to where its next tile would be, behind at most 2**23 rows that are under way
# (32 blocks of 1024 threads on each of 256 SMs)
LARGEST_ROWS = 2**31 - 2**23
# ... of rows, cols and inner of a product: a kernel counts to the end of the last tile, of 256 at most, in 31 bits
LARGEST_TILED = 2**31 - 512
INNER_HINT = "--size inner=4096, or inner=4096 from Python"


def sizes_of(text: str | int | tuple[int, ...]) -> tuple[int, ...]:
    """`8x1024x768` -> 8, 1024, 768; numbers as they are, 768 alone as one. Raises UsageError for what is no shape."""
    if not isinstance(text, str):
        sizes = tuple(text) if isinstance(text, Iterable) else (text,)
        if any(not isinstance(size, int | np.integer) or isinstance(size, bool) for size in sizes):
            raise UsageError("a shape is whole numbers", received=repr(text), hint="for example (8, 1024, 768)")
        return tuple(map(int, sizes))
    if not _SHAPE.fullmatch(text):
        raise UsageError(
            "a shape is whole numbers joined by 'x', of ten digits at most, the last one being cols",
            received=text if len(text) <= 80 else f"{text[:40]}... ({len(text)} characters)",
            hint="for example 8x1024x768",
        )
    return tuple(int(part) for part in text.split("x"))


def fold_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """[.., cols] -> (rows, cols); every dimension but the last folds into rows.

    Raises UsageError for cols < 1, negative sizes and sizes beyond 31 bits.
    """
    if not shape or shape[-1] < 1 or any(n < 0 for n in shape):
        raise UsageError("a shape needs cols >= 1 and no negative size", received=str(shape))
    rows, cols = math.prod(shape[:-1]), shape[-1]
    if max(rows, cols) > LARGEST_SIZE:
        hint = "split the rows among several calls" if rows > LARGEST_SIZE else None
        raise UsageError("rows and cols must each fit 31 bits", received=f"{rows} x {cols}", hint=hint)
    return rows, cols


def make_problem(
    spec: Spec,
    *,
    shape: str | int | tuple[int, ...],
    any_cols: bool = False,
    reads: Collection[str] | None = None,
    equal: Collection[tuple[str, ...]] = (),
    **question: Unpack[Asked],
) -> Problem:
    """The problem of running `spec` on `shape` = [.., cols], "8x1024x768", a tuple, or cols alone.

    reads      backward only: the forward's tensors that the kernel reads (default: inputs, parameters, what is saved)
    equal      backward only: tensors that have the same gradient. It is stored once for those of one dtype, unless it
               is added to what is there; that of an optional tensor, which may be left out, is stored by itself
    question   dtype, direction, without, ...: see `Asked`

    Errors: UsageError for a name, dtype, shape, pitch or alignment that does not fit, SpecError as `check_flow`.
    """
    asked = whole(question, "make_problem")
    promised: dict[str, Any] = {name: question.get(name, False) for name in PROMISES}
    direction, without, dtypes, gradients = asked["direction"], asked["without"], asked["dtypes"], asked["gradients"]
    col_stride, pitch, align = asked["col_stride"], asked["pitch"], asked["align"]
    sizes = sizes_of(shape)
    rows, cols = fold_shape(sizes)
    if direction not in list(Direction):
        raise UsageError("unknown direction", received=direction, hint=did_you_mean(direction, Direction))
    _check_names(spec, (*without, *(dtypes or {}), *(reads or ()), *(gradients or ())), without)
    stored = stored_dtypes(spec, asked["dtype"], dtypes or {})
    here = [t for t in spec.tensors if t.name not in without]
    is_forward = direction == Direction.FORWARD
    if not is_forward:
        check_flow(spec, without)
    tensors = (
        forward_tensors(here, stored, spec.group)
        if is_forward
        else backward_tensors(spec, here, stored, reads, gradients, () if asked["accumulate"] else equal)
    )
    inner = _inner(spec, asked["inner"])
    if spec.has_inner and max(rows, cols, inner) > LARGEST_TILED:
        rule = f"rows, cols and inner of a product are at most {LARGEST_TILED}: its kernels end tiles within 31 bits"
        raise UsageError(rule, received=f"rows {rows}, cols {cols}, inner {inner}")
    if not spec.has_inner and rows > LARGEST_ROWS:
        hint = "split the rows among several calls"
        raise UsageError(f"rows are at most {LARGEST_ROWS}", received=str(rows), hint=hint)
    for group in spec.groups:
        if cols % group:
            raise UsageError(f"spec '{spec.name}' needs cols that are whole groups of {group}", received=f"{cols}")
    for share, by in spec.rolls:
        if cols % share.denominator:
            rule = f"spec '{spec.name}' rolls rows by a part of cols: these are a multiple of {share.denominator}"
            raise UsageError(rule, received=f"{cols}")
        if abs(share * cols + by) >= cols:
            rule = f"spec '{spec.name}' rolls rows by less than cols"
            raise UsageError(rule, received=f"{share * cols + by} of {cols} cols")
    if spec.numbers_columns and cols > MOST_NUMBERED:
        rule = f"spec '{spec.name}' numbers columns in float32, which holds whole numbers up to {MOST_NUMBERED} cols"
        raise UsageError(rule, received=f"{cols}")
    _check_stride(spec, tensors, rows, col_stride, any_cols=any_cols)
    _check_layout(tensors, cols, col_stride, pitch, align)
    _check_packed(spec, tensors, cols, cols if pitch is None else pitch, any_cols=any_cols)
    if asked["batch_invariant"] and any(t.role is Role.SEED for t in here):
        rule = "a row's random numbers are those of its place: it cannot be batch-invariant"
        raise UsageError(rule, received=f"spec '{spec.name}' draws them")
    tensors = tensors_in_place(tensors, asked["in_place"] or {}, accumulate=asked["accumulate"])
    tensors = tensors_laid_out(tensors, asked["layout"] or {})
    tensors = tensors_that_may_be_null(spec, tensors) if any_cols else tensors
    promised["deterministic"] = promised["deterministic"] and any(t.is_over_rows for t in tensors)
    return Problem(
        spec=spec,
        direction=Direction(direction),
        rows=rows,
        cols=cols,
        tensors=tensors,
        pitch=cols * col_stride if pitch is None else pitch,
        rows_per_batch=_rows_per_batch(spec, tensors, sizes, asked["batches"]),
        inner=inner,
        col_stride=col_stride,
        align=align,
        any_cols=any_cols,
        absent=tuple(sorted(without)),
        **promised,
    )


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _inner(spec: Spec, inner: int | None) -> int:
    """See `Problem`. UsageError where it is missing, or has no meaning."""
    if spec.has_inner is (inner is None):
        said = "a tensor" if spec.has_inner else "no tensor"
        hint = INNER_HINT if spec.has_inner else "leave it out: of a kernel of rows, rows and cols are all sizes"
        received = "no size of it" if inner is None else f"inner {inner!r}"
        raise UsageError(f"spec '{spec.name}' has {said} with the axis inner", received=received, hint=hint)
    if inner is not None and not (_is_whole(inner) and 1 <= inner <= LARGEST_SIZE):
        rule = "inner is a whole number, at least 1, that fits 31 bits"
        raise UsageError(rule, received=f"inner {inner!r}", hint=INNER_HINT)
    return int(inner or 0)


def _rows_per_batch(spec: Spec, tensors: Iterable[TensorUse], sizes: tuple[int, ...], batches: int | None) -> int:
    """See `Problem`; 0 where no tensor has batches. UsageError for batches that do not divide the rows."""
    rows = math.prod(sizes[:-1])
    if batches is not None and not any(t.kind.by_batch for t in spec.tensors):
        rule = f"spec '{spec.name}' has no tensor with a row for each batch"
        hint = 'give a tensor the role "batch_parameter", or "head_parameter"'
        raise UsageError(rule, received=f"batches {batches!r}", hint=hint)
    own, what = (sizes[-2:-1], "heads") if spec.has_heads else (sizes[:1], "batches")
    if batches is not None and not _is_whole(batches):
        raise UsageError(f"the number of {what} is a whole number", received=f"batches {batches!r}")
    count = batches if batches is not None else own[0] if len(sizes) > 2 else 1
    if batches is not None and (count < 1 or rows % count):
        hint = f"--batches N, or batches=N from Python, of which {rows} is a multiple"
        raise UsageError(f"the {what} have equally many rows", received=f"{rows} rows in {count} {what}", hint=hint)
    return max(1, rows // max(1, count)) if any(t.kind.by_batch for t in tensors) else 0


def _check_names(spec: Spec, named: Iterable[str], without: Collection[str]) -> None:
    known = [t.name for t in spec.tensors]
    for name in named:
        if name not in known:
            raise UsageError(f"spec '{spec.name}' has no such tensor", received=name, hint=did_you_mean(name, known))
    for name in without:
        if not spec.tensor(name).optional:
            raise UsageError(f"tensor '{name}' of spec '{spec.name}' is not optional", received=f"without {name}")


def check_flow(spec: Spec, without: Collection[str]) -> None:
    """Refuse a backward pass that would start from nothing, or lose the gradient of a statistic.

    The backward pass starts from the gradients of the outputs. A statistic that the spec lists as saved has no
    gradient of its own, as mean and rstd have none in torch's native_layer_norm.

    Errors: SpecError at the statistic's line; for a spec without an output, at that of the first tensor written.
    """
    here = [t for t in spec.tensors if t.name not in without]
    statistics, written = by_role(here, Role.STATISTIC, Role.GROUP_STATISTIC), [t for t in here if t.role.is_written]
    where = spec.file or spec.name
    if not any(t.has_gradient for t in by_role(here, *OUTPUTS)):
        raise SpecError(
            "a backward pass needs an output",
            file=where,
            line=next(t.line for t in written),
            received=f"spec '{spec.name}' with {', '.join(t.name for t in written)} written",
            hint="give a tensor the role output or row_output: statistics and whole numbers have no gradient",
        )
    for lost in (t for t in statistics if t.name not in spec.saved):
        way_out = f"leave it out (--without {lost.name})" if lost.optional else "make it optional and leave it out"
        if not lost.kind.is_groups:  # a backward pass may read a saved value of rows
            way_out = f"make it a row_output, or {way_out}, or, if nothing differentiates through it, list it under "
            way_out += f'[backward] saved = ["{lost.name}"]'
        raise SpecError(
            f"the backward pass does not take the gradient of a statistic, here of '{lost.name}'",
            file=where,
            line=lost.line,
            received=f"a backward problem with the statistic '{lost.name}'",
            hint=way_out,
        )


def _check_packed(spec: Spec, tensors: Iterable[TensorUse], cols: int, pitch: int, *, any_cols: bool) -> None:
    """Elements that share a byte are written by one thread, in vectors of whole bytes."""
    for tensor in (t for t in tensors if t.dtype.packed > 1):
        what = f"'{tensor.name}' of spec '{spec.name}', stored as {tensor.dtype}"
        if not (tensor.is_written and tensor.kind.is_elem and not tensor.of):
            rule = f"{tensor.dtype} is a format of outputs [rows, cols]: nothing reads it, and no gradient has it"
            raise UsageError(rule, received=what, hint="pass the codes as i8, or without their gradient")
        if cols % tensor.dtype.packed or pitch % tensor.dtype.packed:
            rule = f"two {tensor.dtype} share a byte: cols and the pitch are even"
            raise UsageError(rule, received=f"{what}: cols {cols}, pitch {pitch}")
        if any_cols and not spec.group:
            rule = f"a kernel of any cols writes {tensor.dtype} in whole vectors: the spec has groups of columns"
            raise UsageError(rule, received=what, hint="make a kernel for these cols")


def along_axis(shape: str | int | tuple[int, ...], axis: int) -> tuple[tuple[int, ...], int]:
    """(A shape [rows, cols], its col_stride) of tensors of `shape` whose rows lie along `axis`.

    The sizes in front of the axis and those behind it fold into rows, in their order: a value for each row has the
    tensor's shape with the axis left out, or kept as 1. Of the last axis the shape is as it was.
    Raises UsageError for an axis that the shape does not have.
    """
    sizes = sizes_of(shape)
    if not (_is_whole(axis) and -len(sizes) <= axis < len(sizes)):
        rule = f"a shape of {len(sizes)} sizes has the axes 0 to {len(sizes) - 1}, or from -{len(sizes)} to -1"
        raise UsageError(rule, received=f"axis {axis!r} of {'x'.join(map(str, sizes))}")
    axis %= len(sizes)
    behind = math.prod(sizes[axis + 1 :])
    if behind == 0:
        rule = "the sizes behind an axis are at least 1: so many rows lie side by side"
        raise UsageError(rule, received=f"axis {axis} of {'x'.join(map(str, sizes))}")
    if behind == 1:
        return sizes[: axis + 1] if axis < len(sizes) - 1 else sizes, 1
    return (math.prod(sizes[:axis]) * behind, sizes[axis]), behind


COPIED = "move the axis to the end and copy: x.movedim(axis, -1).contiguous()"


def why_not_side_by_side(spec: Spec, tensors: Iterable[TensorUse]) -> str:
    """The rule that the rows of a problem with these tensors break where they lie side by side; empty: none."""
    if spec.has_inner:
        return "a product has its axes by name, and no axis that is reduced"
    tensors = tuple(tensors)
    if spec.group or any(t.kind.by_batch or t.kind.is_groups or t.group for t in tensors):
        return "rows side by side have no batches, heads or groups of columns"
    if spec.rolls:
        return "rows side by side are not rolled"
    if any(t.dtype.packed > 1 for t in tensors):
        return "of rows side by side no two neighbours share a byte"
    return "rows side by side are not summed to one number" if any(t.is_total for t in tensors) else ""


def _check_stride(spec: Spec, tensors: tuple[TensorUse, ...], rows: int, col_stride: int, *, any_cols: bool) -> None:
    """UsageError for rows side by side that are no whole number of them, or whose kernel is none of rows alone."""
    if col_stride == 1:
        return
    if not _is_whole(col_stride) or not 1 <= col_stride <= LARGEST_SIZE or rows % col_stride:
        rule = "col_stride rows lie side by side: a whole number, at least 1, that divides the rows"
        raise UsageError(rule, received=f"col_stride {col_stride!r} of {rows} rows")
    if rule := why_not_side_by_side(spec, tensors):
        raise UsageError(rule, received=f"spec '{spec.name}'", hint=None if spec.has_inner else COPIED)
    if any_cols:
        rule = "a kernel of rows side by side knows its columns: there is none of any number of columns"
        raise UsageError(rule, received=f"spec '{spec.name}'", hint=COPIED)


def _check_layout(tensors: tuple[TensorUse, ...], cols: int, col_stride: int, pitch: int | None, align: int) -> None:
    for name, number in (("pitch", 0 if pitch is None else pitch), ("align", align)):
        if not _is_whole(number):
            rule = "the pitch, in elements, and the alignment, in bytes, are whole numbers"
            raise UsageError(rule, received=f"{name} {number!r}")
    if pitch is not None and pitch < cols * col_stride:
        least, beside = ("cols", "") if col_stride == 1 else ("cols * col_stride", f", {col_stride} rows side by side")
        raise UsageError(f"the pitch is at least {least}, in elements", received=f"pitch {pitch}, cols {cols}{beside}")
    if max(pitch or 0, align) > LARGEST_SIZE:
        raise UsageError("the pitch and the alignment must each fit 31 bits", received=f"pitch {pitch}, align {align}")
    largest = max(t.dtype.bytes for t in tensors if t.kind.by_col)  # row values are read one by one
    if align < largest or align & (align - 1):
        rule = f"the alignment is a power of two and at least the largest element, here {largest} bytes"
        raise UsageError(rule, received=str(align))
