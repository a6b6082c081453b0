"""The tensors of a launch, in the order of its arguments: their dtypes, and whose memory they take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from normgen.dtypes import F8E4M3, F8E8M0, F32, DType
from normgen.dtypes import dtype as dtype_named
from normgen.errors import UsageError, did_you_mean
from normgen.problem.scales import ScaleLayout
from normgen.spec.checks import absent_key, parse_all
from normgen.spec.formula import constant_of
from normgen.spec.spec import OUTPUTS, READ, Kind, Role, Sizes, Spec, Tensor

MATRIX_LAYOUTS = {"inner_cols": ("inner", "cols"), "cols_inner": ("cols", "inner")}  # the latter is torch's Linear


@dataclass(frozen=True, kw_only=True)
class TensorUse:
    """One tensor of a problem, as the kernel's caller passes it.

    of        the tensor whose gradient it is, or ""
    also      further tensors that have the same gradient: it is stored once, and stands for theirs too
    over      written in place: the read tensor whose memory it takes, or ""
    under     read, then overwritten: the written tensor that takes its memory, or ""
    nullable  a written row statistic the caller may pass as null
    null_as   read, of any columns: the number that a null pointer stands for; None where the pointer must not be null
    witness   the gradient of such a tensor: the pointer that is null where nothing is to be written, or ""
    group     columns of a group, of a tensor with a value for each
    layout    how values of groups of each row lie in memory
    idle      passed to a kernel that reads nothing of it: it says how many rows or batches there are, or it is the
              gradient of an output that no gradient asked for depends on
    order     its axes in the order of memory; (): that of its kind
    """

    name: str
    kind: Kind
    dtype: DType
    is_written: bool
    of: str = ""
    also: tuple[str, ...] = ()
    over: str = ""
    under: str = ""
    nullable: bool = False
    null_as: float | None = None
    witness: str = ""
    group: int = 0
    layout: ScaleLayout = ScaleLayout.ROW_MAJOR
    idle: bool = False
    order: tuple[str, ...] = ()

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """elem [rows, cols], batches [batches, cols], row [rows], col [cols], scalar []; groups as they are laid out,
        row-major [rows, cols / G]; of parameters [cols / G] and [batches, cols / G]. Of elements that share a byte,
        bytes: [rows, cols / 2].
        """
        if self.kind.is_groups:
            return self.layout.shape(sizes.rows, sizes.cols // self.group)
        found = tuple(sizes.along(axis, self.group) for axis in self.axes)
        return found if self.dtype.packed == 1 else (*found[:-1], self.dtype.units(found[-1]))

    def width(self, sizes: Sizes) -> int:
        """Elements of a row of it: columns, or groups of these, or inner; 1 where a row has one value.

        Of elements that share a byte, bytes.
        """
        if not self.kind.within_row:
            return 1
        return self.dtype.units(sizes.along("groups" if self.kind.by_group else self.axes[-1], self.group))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """What its sizes in memory count."""
        return self.layout.axes if self.kind.is_groups else self.order or self.kind.axes

    @property
    def memory(self) -> str:
        """The tensor under whose name the caller passes the memory."""
        return self.over or self.name

    @property
    def may_be_null(self) -> bool:
        """Whether the kernel takes a null pointer for it."""
        return self.nullable or self.null_as is not None or bool(self.witness)

    @property
    def is_const(self) -> bool:
        """Whether the kernel writes nothing to its memory."""
        return not (self.is_written or self.under)

    @property
    def results(self) -> tuple[str, ...]:
        """What its memory holds when the kernel is done: its name, and the gradients that it stands for."""
        return (self.name, *(f"d{name}" for name in self.also))

    @property
    def is_read(self) -> bool:
        """Whether the kernel reads its values."""
        return not (self.is_written or self.idle)

    @property
    def is_row_input(self) -> bool:
        """Read, and for every row values of its own, one behind the other."""
        return not self.is_written and self.kind.by_row and self.kind.within_row

    @property
    def is_parameter(self) -> bool:
        """Read, and for every row the same values of its columns."""
        return self.is_read and self.kind.in_rows.is_col

    @property
    def is_row_sum(self) -> bool:
        """Written, and summed over the rows, all or those of each batch: the gradient of a parameter.

        Of one with a value for each group of columns it is summed over these, too.
        """
        return self.is_written and self.kind.in_rows.is_columns

    @property
    def is_total(self) -> bool:
        """Written, and one sum over rows and columns: a scalar output, the gradient of a scalar parameter."""
        return self.is_written and self.kind is Kind.SCALAR

    @property
    def is_over_rows(self) -> bool:
        return self.is_row_sum or self.is_total


def stored_dtypes(spec: Spec, first: Any, given: Mapping[str, Any]) -> dict[str, DType]:
    """Stored dtype of every tensor: given by name, else that of the tensor it follows, else `first`.

    Raises UsageError for a dtype that a tensor is not stored in.
    """
    stored = followed_dtypes(spec, dtype_named(first), {name: dtype_named(value) for name, value in given.items()})
    for tensor in spec.tensors:
        allowed = ("f32",) if tensor.role is Role.STATISTIC else tensor.dtypes
        if allowed and stored[tensor.name].name not in allowed:
            rule = f"tensor '{tensor.name}' of spec '{spec.name}' is stored as one of: {', '.join(allowed)}"
            raise UsageError(rule, received=stored[tensor.name].name)
    return stored


def followed_dtypes(spec: Spec, first: DType, given: Mapping[str, DType]) -> dict[str, DType]:
    chosen = {spec.inputs[0].name: first, **given}

    def of(tensor: Tensor) -> DType:
        if tensor.name in chosen:
            return chosen[tensor.name]
        if tensor.role is Role.STATISTIC:
            return F32
        if tensor.follows:
            return of(spec.tensor(tensor.follows))
        wanted = chosen[spec.inputs[0].name]
        return wanted if not tensor.dtypes or wanted.name in tensor.dtypes else dtype_named(tensor.dtypes[0])

    return {tensor.name: of(tensor) for tensor in spec.tensors}


def _uses(
    tensors: Iterable[Tensor], stored: Mapping[str, DType], *, is_written: bool, group: int = 0
) -> tuple[TensorUse, ...]:
    return tuple(
        TensorUse(
            name=t.name,
            kind=t.kind,
            dtype=stored[t.name],
            is_written=is_written,
            nullable=is_written and t.optional and t.role is Role.STATISTIC,
            group=group if t.kind.is_groups else t.group,
            order=t.axes,
        )
        for t in tensors
    )


def by_role(tensors: Iterable[Tensor], *roles: Role) -> list[Tensor]:
    """In the order of `roles`, then the spec's."""
    listed = list(tensors)
    return [t for role in roles for t in listed if t.role is role]


def forward_tensors(here: list[Tensor], stored: Mapping[str, DType], group: int) -> tuple[TensorUse, ...]:
    written = by_role(here, *OUTPUTS, Role.STATISTIC, Role.GROUP_STATISTIC)
    read = by_role(here, *READ)
    return (*_uses(written, stored, is_written=True, group=group), *_uses(read, stored, is_written=False))


def backward_tensors(
    spec: Spec,
    here: list[Tensor],
    stored: Mapping[str, DType],
    reads: Collection[str] | None,
    gradients: Collection[str] | None,
    equal: Collection[tuple[str, ...]],
) -> tuple[TensorUse, ...]:
    """dx, dweight, ... written; dy, then the forward's tensors read. A gradient is stored like its tensor.

    Raises UsageError for gradients that the problem does not have.
    """
    sources = by_role(here, *READ)
    wrt = [t for t in sources if t.has_gradient and (gradients is None or t.name in gradients)]
    outputs = [t for t in by_role(here, *OUTPUTS) if t.has_gradient]
    if not wrt:
        rule = f"a backward pass of spec '{spec.name}' writes at least one gradient"
        raise UsageError(rule, received="gradients of nothing", hint="name an input or a parameter")

    also = _stored_once(wrt, stored, equal)
    repeated = {name for names in also.values() for name in names}

    def gradient(tensor: Tensor, is_written: bool) -> TensorUse:
        return TensorUse(
            name=f"d{tensor.name}",
            kind=tensor.kind,
            dtype=stored[tensor.name],
            is_written=is_written,
            of=tensor.name,
            also=also.get(tensor.name, ()),
            group=tensor.group,
            order=tensor.axes,
        )

    for name in set(reads or ()) - {t.name for t in here}:
        raise UsageError("a tensor cannot be both read and absent", received=name)
    wanted = {t.name for t in sources} | set(spec.saved) if reads is None else set(reads)
    forward = by_role(here, *OUTPUTS, *READ, Role.STATISTIC)
    return (
        *(gradient(t, True) for t in wrt if t.name not in repeated),
        *(gradient(t, False) for t in outputs),
        *_uses((t for t in forward if t.name in wanted), stored, is_written=False),
    )


def _stored_once(
    wrt: Iterable[Tensor], stored: Mapping[str, DType], equal: Collection[tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Of tensors with equal gradients that are stored alike: the first -> the others."""
    alike: dict[tuple[int, str], list[str]] = {}
    for tensor in wrt:
        number = next((i for i, names in enumerate(equal) if tensor.name in names), None)
        if number is not None and not tensor.optional:
            alike.setdefault((number, stored[tensor.name].name), []).append(tensor.name)
    return {first: tuple(others) for first, *others in alike.values() if others}


def tensors_that_may_be_null(spec: Spec, tensors: tuple[TensorUse, ...]) -> tuple[TensorUse, ...]:
    """The tensors of a kernel of any columns, with `null_as` and `witness`.

    An optional tensor must not be null where its `absent` formula is no number that its dtype holds, where it is
    overwritten, and where its gradient is a total or one of batches.
    """
    trees, read = parse_all(spec), {t.name for t in tensors}
    numbers = {t.name: constant_of(trees[absent_key(t.name)]) for t in spec.tensors if t.absent is not None}
    refused = {t.of for t in tensors if t.is_written and (t.is_total or t.kind.by_batch)}
    refused |= {t.name for t in tensors if t.under or (t.kind.within_row and not t.dtype.has(numbers.get(t.name) or 0))}
    null_as = {name: number for name, number in numbers.items() if name not in refused}
    return tuple(
        replace(
            t,
            null_as=None if t.is_written else null_as.get(t.name),
            witness=_witness(t, read) if t.is_written and null_as.get(t.of) is not None else "",
        )
        for t in tensors
    )


def _witness(gradient: TensorUse, read: Collection[str]) -> str:
    return gradient.of if gradient.of in read else gradient.name


def tensors_in_place(
    tensors: tuple[TensorUse, ...], in_place: Mapping[str, str], *, accumulate: bool = False
) -> tuple[TensorUse, ...]:
    """The tensors, each written one of `in_place` in the memory of its read one.

    Errors: UsageError for a name that is not written or not read, for two tensors that differ in shape or dtype, for
    memory that two tensors would take.

    Raises UsageError for tensors that cannot share memory.
    """
    named = {t.name: t for t in tensors}
    for written, read in in_place.items():
        received = f"{written} in place of {read}"
        for name, is_written in ((written, True), (read, False)):
            known = [t.name for t in tensors if t.is_written is is_written and t.kind.is_elem]
            if name not in known:
                what = "written" if is_written else "read"
                whole = next((t.name for t in tensors if name in t.results), None)
                hint = (
                    f"'{name}' is stored once, as '{whole}'"
                    if whole and is_written
                    else did_you_mean(name, known)
                    if known
                    else None
                )
                rule = f"a written tensor [rows, cols] takes the place of a read one; '{name}' is none that is {what}"
                raise UsageError(rule, received=received, hint=hint or f"{what} here: {', '.join(known) or 'none'}")
        if named[written].dtype != named[read].dtype:
            stored = f"{received}: {named[written].dtype.name} and {named[read].dtype.name}"
            raise UsageError("a tensor takes the place of one that is stored in its dtype", received=stored)
    if len(set(in_place.values())) < len(in_place):
        pairs = ", ".join(f"{written} in place of {read}" for written, read in in_place.items())
        raise UsageError("one tensor takes the place of another", received=pairs, hint="name each tensor once")
    if in_place and accumulate:
        rule = "a gradient that is added to what is there takes the place of nothing"
        raise UsageError(rule, received=f"accumulate, and {', '.join(in_place)} in place")
    taken_by = {read: written for written, read in in_place.items()}
    return tuple(replace(t, over=in_place.get(t.name, ""), under=taken_by.get(t.name, "")) for t in tensors)


def tensors_laid_out(tensors: tuple[TensorUse, ...], layout: Mapping[str, str]) -> tuple[TensorUse, ...]:
    """The tensors, those of groups that `layout` names in that layout, matrices in that order, their gradients too.

    Errors: UsageError for a name of neither, an unknown layout, words of what is no f8e8m0, tiles of no bytes.

    Raises UsageError for an unknown tensor or layout.
    """
    known = {t.name: t for t in tensors if t.kind.is_groups}
    matrices = dict.fromkeys(t.of or t.name for t in tensors if t.kind.is_shared_matrix)
    for name, said in layout.items():
        if name in matrices:
            if said not in MATRIX_LAYOUTS:
                hint = did_you_mean(said, MATRIX_LAYOUTS)
                raise UsageError("unknown order of a matrix", received=f"{name}={said}", hint=hint)
            continue
        if name not in known:
            rule = f"a layout is for a matrix, or for values of groups of columns; '{name}' is none here"
            near = did_you_mean(name, (*known, *matrices)) if known or matrices else None
            raise UsageError(rule, received=f"{name}={said}", hint=near)
        if said not in list(ScaleLayout):
            raise UsageError("unknown layout", received=f"{name}={said}", hint=did_you_mean(said, ScaleLayout))
        if said == ScaleLayout.PACKED and known[name].dtype is not F8E8M0:
            rule = f"packed scales are four {F8E8M0} in a word"
            raise UsageError(rule, received=f"{name}: {known[name].dtype}", hint=f"--dtypes {name}={F8E8M0}")
        if said == ScaleLayout.SWIZZLED and known[name].dtype.bytes > 1:
            rule = "swizzled scales have a byte each"
            hint = f"--dtypes {name}={F8E8M0}, or {F8E4M3}, where the spec stores them so"
            raise UsageError(rule, received=f"{name}: {known[name].dtype}", hint=hint)
    return tuple(
        replace(t, order=MATRIX_LAYOUTS.get(layout.get(t.of or t.name, ""), t.order))
        if t.kind.is_shared_matrix
        else replace(t, layout=ScaleLayout(layout.get(t.name, t.layout)))
        for t in tensors
    )
