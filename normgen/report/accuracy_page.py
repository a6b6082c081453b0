"""docs/accuracy.md: errors of our kernels and torch's. `normgen study accuracy FILE --page docs/accuracy.md`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from normgen.bench.accuracy.cells import COLUMN_VALUES, LARGEST_PAYS, RMS_PAYS, Compared, Error, MeasuredCell
from normgen.bench.accuracy.table import Table

_HEAD = """\
# How exact the kernels are

The project's [words](measuring.md#words) stand in one table.

Errors against float64 references that are written by hand, on rows of one family at a time (`normgen/verify/rows.py`
says what each family is), with a fixed seed. Ours is the kernel that a call gets: the record's or the nearest one's
schedule, else the default; torch's is the operator behind `torch.nn.functional`, or the one that autograd calls.

An entry says: RMS / largest error in ulps of the output (half an ulp is the rounding of the result alone), then the
largest absolute error, then the largest error as a share of its element's derived bound. The line below says the
same of torch. Where results lie near 0, as those of a norm do, ulps are small and errors in ulps large.

* **over**: an element misses its bound.
* **worse**: RMS error above {rms:g} x torch's or largest error above {largest:g} x torch's (absolute), where that of
  torch is above half an ulp, by more than chance explains at one percent: an RMS error by a test of the ratio of two
  variances, with the effective number of rows, or of columns of what is summed over rows, that it comes from; a
  largest error if seven rows or columns are above it.
* **above**: the same factor is passed, but so few rows or columns decide that it may be chance: often one column, that
  of an outlier.

Both sides are measured on the same rows. A cell with gradients that are summed over its rows draws them anew, with
another seed each time, until it has {values} of their values or all elements that a cell may have: up to {draws} times
here.

The bound is held against the rows with the largest errors and some others; column outputs (dweight, dbias) are held
against theirs as a whole.

Measured on: {where}. torch: {torch}. Seed {seed}. Written by `normgen study accuracy`; not edited by hand.
"""


def accuracy_page(table: Table) -> str:
    """The page: what is marked first, then one table for each tensor of an operation, direction and dtype."""
    torch = ", ".join(f"{name} {version}" for name, version in sorted(table.torch.items()))
    about = _HEAD.format(
        rms=RMS_PAYS,
        largest=LARGEST_PAYS,
        values=COLUMN_VALUES,
        draws=max((m.cell.draws for m in table.cells), default=1),
        where=table.where,
        torch=torch or "not installed",
        seed=table.options["seed"],
    )
    sections = [section for group in _groups(table.cells) for section in _sections(group)]
    return "\n".join([about, _marked(table), *sections])


def _marked(table: Table) -> str:
    counts = f"{len(table.over)} over the bound, {len(table.worse)} worse than torch"
    lines = [f"{len(table.cells)} cells, {counts}, {len(table.above)} above it by what may be chance.", ""]
    for mark, names in (("over", table.over), ("worse", table.worse), ("above", table.above)):
        lines += [f"* {mark}: {name}" for name in names]
    return "\n".join(lines) + "\n"


def _groups(cells: Sequence[MeasuredCell]) -> Iterator[list[MeasuredCell]]:
    def key(measured: MeasuredCell) -> tuple[str, str, str]:
        return measured.cell.op, measured.cell.direction, measured.cell.dtype

    return (list(group) for _, group in groupby(sorted(cells, key=key), key))


def _sections(group: list[MeasuredCell]) -> Iterator[str]:
    cell = group[0].cell
    by_place = {(m.cell.family, m.cell.cols): m for m in group}
    sizes = {m.cell.cols: m.cell.rows for m in sorted(group, key=lambda m: m.cell.cols)}
    families = list(dict.fromkeys(m.cell.family for m in sorted(group, key=lambda m: m.cell.family)))
    notes = sorted({m.note for m in group if m.note})
    for name in group[0].tensors:
        yield f"## {cell.op} {cell.direction} {cell.dtype}: {name}\n"
        yield from (f"{note}\n" for note in notes)
        lines = ["| family | " + " | ".join(f"{rows} x {cols}" for cols, rows in sizes.items()) + " |"]
        lines.append("| --- |" + " --- |" * len(sizes))
        for family in families:
            found = [by_place.get((family, cols)) for cols in sizes]
            lines.append(f"| {family} | " + " | ".join(_entry(m.tensors[name]) if m else "" for m in found) + " |")
        yield "\n".join(lines) + "\n"


def _entry(found: Compared) -> str:
    beside = "worse" if found.is_worse else "above" if found.is_above else ""
    marks = [word for word in ("over" if found.is_over else "", beside) if word]
    bound = f"{100 * found.of_bound:.0f} %" if found.unbounded < 1 else "no bound"
    ours = ", ".join([_error(found.ours), bound, *(f"**{mark}**" for mark in marks)])
    return f"{ours}<br>{_error(found.torch)}" if found.torch else ours


def _error(error: Error) -> str:
    lost = f", {error.not_finite} not finite" if error.not_finite else ""
    return f"{error.rms_ulps:.3g} / {error.largest_ulps:.3g}, {error.largest:.2g}{lost}"
