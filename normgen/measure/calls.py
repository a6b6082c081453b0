"""The calls of a kernel that its check consists of: each choice a caller has, where it breaks careless kernels.

A plain call has every family of rows, where these are not very long, and every scalar at its default; two or three
more have them off it, so that each value meets every family. Each of the others differs from it in what it says, and
has normal rows, which are all different: a row that was skipped, taken twice or taken from a neighbour shows. But
some: rows of a large mean alone, as rows that share a warp may decide together what to compute; of a kernel that
spares rows a look by a guard, rows of means from which on none may be spared; and rows with a NaN and an infinity in
one tensor. What is left of the pairs of scalars' values (`verify/varied/values.py`) is dealt out to these calls. The
CPU executor and the GPU make the same calls, but for what only one of them can do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from normgen.codegen.columns.last_tile import LAST_TILE_IN_FLIGHT
from normgen.codegen.columns.partials import FINISH_IN_FLIGHT
from normgen.codegen.module import Module, Source
from normgen.device import MOST_BLOCKS
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.scales import ScaleLayout
from normgen.program.source import kernel_problem, with_null
from normgen.records.verified import Verified, VerifiedOn
from normgen.spec.spec import Sizes
from normgen.verify import (
    FAMILY_ROWS,
    Buffer,
    Expectation,
    Inputs,
    Outputs,
    Verdict,
    beyond_stored,
    default_families,
    families_apart,
    families_of,
    family_rows,
    finite_to,
    make_inputs,
    make_outputs,
    parameters,
    pick_rows,
    prepare,
    scalar_values,
    signed_parameters,
)
from normgen.verify.contraction.sides import RIGHT, main_input, rights, summed
from normgen.verify.families import BEYOND, fitting_families, may_tie
from normgen.verify.rows import ONE_SMALL, draws
from normgen.verify.varied.far_rows import FarRows
from normgen.verify.varied.limits import count_draws, tied_scalars, tied_value
from normgen.verify.varied.side_by_side import PitchedMemory
from normgen.verify.varied.values import (
    FULL_VALUES,
    ORDINARY,
    as_text,
    combinations,
    is_index,
    label_scalars,
    rows_modulo,
    spread_families,
)

BESIDE = 16  # rows side by side: whole vectors of any width
TRIPS = 9  # of a row loop: every slot of a ring is filled three times, as rings have at most 4
# Walkers of few tiles. No power of two: a start that wraps around at 2^32 is wrong by a multiple of those.
WALKERS = 24
PITCH_STEP = 32  # elements: own pitches differ by whole vectors of every width, so that alignments stay as promised
LENGTHS = (7, 8, 9, 15, 16, 17, 31, 32, 33)  # around each length of a tile along the axis that is summed
FAR_ROWS = 17
GUARDED = ("guarded_mean",)
SMALL_ROWS = 16  # with one small element: how large it is decides whether a sum is rounded
GUARDED_ELEMENTS = 1 << 16  # of a call on rows that a guard must not spare: the largest of their errors counts
FAR = 1 << 31  # elements: more than an int counts
PRODUCTS = 8  # that take the time of one element of rows
TERMS = 32  # of a reference of a product that take the time of one element of a matrix that is drawn
MOST_ELEMENTS = 1 << 23  # of a call that needs many rows: some 3 s on the CPU executor
DEALT_ELEMENTS = 1 << 17  # of a call that values of scalars are dealt out to: it is made in every check
WIDE_ELEMENTS = 1 << 19  # of two rows of each family: 62 of 8192 columns
FAR_ROW = 1 << 16  # rows: more than a short counts
MANY_ELEMENTS = 1 << 24  # of a call with so many, of which few are looked at
Tie = tuple[str, int, float]
RANDOM_STEP = 2.0**-24  # between two random numbers
FEW_ELEMENTS = 1 << 14  # of a call that needs many elements, not rows, for what few of them show: some 10 ms


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """One call of a kernel.

    says      what sets it apart from a plain call: "at 1 row"
    problem   with the number of rows of this call
    families  of its rows; None: all that the problem is checked on
    pitches   row strides in elements, of tensors that do not have the problem's
    nulls     statistics that are passed as null
    order     other than 0: blocks and threads run in another order, where the executor picks it
    not_finite  a tensor with an infinity in each of its first two rows, and NaN in its last two: at an edge and inside.
              A parameter along the axis that a product sums has `spoilt_by` in one element
    sm_count  of the device that a row loop's grid is made for
    grid      blocks of a kernel that walks rows, whatever such a device gets; 0: as it gets them
    scalars   values of those that are not at their default
    ends      family of the first and of the last row
    sizes     of parameters that are about as large
    is_tied   parameters leave what lies in the middle between numbers of 8 bits, which float32 holds
    gap       rows between the first half and the second one that hold 0, and that nobody looks at
    tied      a scalar that a random number is compared with, the number of that draw, and a step: the scalar is one of
              these numbers and the step
    """

    says: str
    problem: Problem
    sm_count: int
    families: tuple[str, ...] | None = None
    pitches: Mapping[str, int] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()
    order: int = 0
    not_finite: str = ""
    spoilt_by: float = np.nan
    grid: int = 0
    scalars: Mapping[str, float] = field(default_factory=dict)
    ends: str = ""
    sizes: Mapping[str, float] = field(default_factory=dict)
    tied: Tie | None = None
    gap: int = 0
    is_tied: bool = False

    @property
    def far_rows(self) -> FarRows:
        """Where its rows lie in a launch."""
        return FarRows(problem=self.problem, first=self.problem.rows // 2, gap=self.gap)

    def memory(self, inputs: Inputs, outputs: Outputs) -> dict[str, Buffer]:
        """Of a launch, which has the rows of the gap, too."""
        buffers = inputs.buffers | outputs.buffers
        if self.problem.col_stride > 1:
            return self.side_by_side.spread(buffers)
        return self.far_rows.spread(buffers) if self.gap else buffers

    def gather(self, launched: Mapping[str, Buffer], outputs: Outputs) -> None:
        """What the launch left in that memory, into the outputs."""
        if self.problem.col_stride > 1:
            self.side_by_side.gather(launched, outputs.buffers)
        else:
            self.far_rows.gather(launched, outputs.buffers)

    @property
    def side_by_side(self) -> PitchedMemory:
        """How its rows lie in a launch, where they lie side by side."""
        return PitchedMemory(problem=self.problem, pitches=self.pitches)

    def on_its_grid(self, module: Module) -> Module:
        """The module with row loops in the grid of this call."""
        kernels = []
        for kernel in module.kernels:
            launch, problem = kernel.launch, self.problem
            if launch.walks:
                problem = self.far_rows.launched
                own = launch.grid(rows=problem.rows, sm_count=self.sm_count, batches=problem.batches)
                launch = replace(launch, persistent=0, blocks=self.grid or own, by_batch=False)
            kernels.append(replace(kernel, launch=launch))
        return replace(module, kernels=tuple(kernels))

    @property
    def is_plain(self) -> bool:
        """Whether it has random rows and a guarded kernel: `Float32Error`."""
        return self.families == GUARDED

    @property
    def title(self) -> str:
        """What sets it apart, the values of scalars too: "at 1 row, eps=0.1"."""
        return ", ".join([self.says, *(as_text(name, value) for name, value in self.scalars.items())])

    @property
    def is_far(self) -> bool:
        """Whether some row, or line of groups, starts beyond FAR elements."""
        problem = self.problem
        starts = ((_lines(problem, n, problem.sizes) - 1) * pitch for n, pitch in self.pitches.items())
        return max(starts, default=0) >= FAR

    @property
    def elements(self) -> int:
        """What it takes time in proportion to on the CPU executor; of products the terms of all."""
        return self.problem.rows * self.problem.cols * max(1, self.problem.inner // PRODUCTS)

    def elements_on_gpu(self, compared: int) -> int:
        """What it takes time in proportion to where a GPU multiplies and so many elements are compared."""
        problem = self.problem
        if not problem.inner:
            return self.elements
        most = min(problem.rows * problem.cols, compared)
        drawn = problem.compulsory_bytes // np.dtype(np.float32).itemsize
        return min(self.elements, most + (drawn + most * problem.inner // TERMS) // PRODUCTS)

    def tensors(self, *, seed: int) -> tuple[Inputs, Outputs]:
        """What it runs on. Raises MemoryError when there is no address space for rows so far apart."""
        inputs = self._inputs(seed, self.scalars)
        if self.tied is not None:
            name, number, step = self.tied
            value = tied_value(self.problem.spec, name, draws(inputs, number) + step, is_small=step > 0)
            inputs = self._inputs(seed, {**self.scalars, name: value})
        if self.not_finite and inputs.arrays[self.not_finite].ndim == 1:
            spoilt = inputs.arrays[self.not_finite]
            spoilt[len(spoilt) // 3] = self.spoilt_by
        elif self.not_finite:
            spoilt, cols = inputs.arrays[self.not_finite], self.problem.cols
            spoilt[[0, 1], [0, cols // 3]], spoilt[[-2, -1], [cols - 1, cols // 2]] = np.inf, np.nan
        outputs = make_outputs(self.problem, seed=seed, pitches=self.pitches, nulls=self.nulls, inputs=inputs)
        return inputs, outputs

    def _inputs(self, seed: int, scalars: Mapping[str, float]) -> Inputs:
        return make_inputs(
            self.problem,
            seed=seed,
            families=self.families,
            pitches=self.pitches,
            scalars=scalars,
            ends=self.ends,
            signed=signed_parameters(self.problem),
            sizes=self.sizes,
            numbers=self.far_rows.numbers if self.gap else None,
            is_tied=self.is_tied,
        )

    def expected(self, inputs: Inputs, outputs: Outputs, *, elements: int, chain: int | None) -> Expectation:
        """What it must give, of about so many elements: of two rows of each family at least, of a guard's rows all."""
        problem = self.problem
        least = family_rows(problem) if self.families is None else FAMILY_ROWS
        count = problem.rows if self.is_plain else max(least, elements // problem.cols)
        rows = pick_rows(inputs.families, count, seed=inputs.seed)
        return prepare(problem, inputs, start=outputs.start, rows=rows, chain=chain, is_plain=self.is_plain)


def taken(problem: Problem, module: Module) -> Problem:
    """What a kernel answers of a problem: with the statistics that are not asked for, where it takes them."""
    full = kernel_problem(problem)
    arguments = {param.key for kernel in module.kernels for param in kernel.params if param.source is Source.TENSOR}
    return full if full.present <= arguments else problem


def calls(
    problem: Problem, module: Module, *, sm_count: int, scalars: Mapping[str, float] | None = None
) -> Iterator[KernelCall]:
    """The calls besides plain ones, those that need most memory last; `scalars`: values to be checked, too."""
    found = scalar_values(problem)
    dealt, whole = combinations(found), max(map(len, found.values()), default=0)
    of_full, spread, others = dealt[:FULL_VALUES][:whole], dealt[FULL_VALUES:whole], dealt[whole:]
    ragged = behind_vectors(problem, module)
    full = ragged.with_rows(full_rows(problem))
    for values in filter(None, (scalars, *of_full)):
        yield KernelCall(says="with all families of rows", problem=full, sm_count=sm_count, scalars=values)
    families = spread_families([*families_of(problem), *(name for group in families_apart(problem) for name in group)])
    short = ragged.with_rows(max(2, min(2 * len(families), full.rows)))
    for values in spread:
        said = "with further scalars"
        yield KernelCall(says=said, problem=short, sm_count=sm_count, families=families, scalars=values)
    # In every check; else short calls have all values.
    is_made = KernelCall(says="", problem=full, sm_count=sm_count).elements <= DEALT_ELEMENTS
    left = iter(others if is_made else [*of_full, *others])
    far: list[KernelCall] = []
    plain: list[KernelCall] = []
    made = _calls_of_tiles if module.kernels[0].launch.tiles else _calls_of_rows
    for call in made(problem, module, sm_count=sm_count):
        is_dealt = (
            not (call.tied or call.gap or call.is_tied)
            and call.families == _normal(problem)
            and call.problem.rows > 1
            and call.elements <= DEALT_ELEMENTS
        )
        if call.is_far:
            far.append(call)
        elif is_dealt:
            yield replace(call, scalars=next(left, {}))
            plain.append(call)
        else:
            yield call
    for values, call in product(left, plain[-1:]):  # that of most rows comes last
        yield replace(call, says=f"at {call.problem.rows} rows", scalars=values, order=0)
    yield from far


def behind_vectors(problem: Problem, module: Module) -> Problem:
    """Of a general kernel one or two columns more, an odd number: an element lies behind the last whole vector.

    What is done to it stands in the kernel by itself. So many less where the workspace grows with columns.
    """
    if not problem.any_cols or problem.inner or problem.spec.whole_cols > 1:
        return problem
    step = 1 + problem.cols % 2
    cols = max(1, problem.cols - step) if module.workspace.column else problem.cols + step
    return _of_cols(problem, cols)


def _of_cols(problem: Problem, cols: int) -> Problem:
    """Of so many columns, at a pitch with the alignments of the problem's own."""
    return replace(problem, cols=cols, pitch=cols + (problem.pitch - cols) % PITCH_STEP)


def full_rows(problem: Problem) -> int:
    """Rows of a call with every family of rows and scalars off their defaults: of wide rows one of each family."""
    rows = family_rows(problem)
    return rows if rows * problem.cols <= WIDE_ELEMENTS else len(families_of(problem))


def _normal(problem: Problem) -> tuple[str, ...] | None:
    """Rows that are all different; all families under a contract that leaves these out."""
    contract = problem.spec.accuracy_rows
    return None if contract and "normal" not in contract else ("normal",)


def few_beside(problem: Problem) -> Problem:
    """Of many rows side by side few, with the same alignments: their number is a run-time argument of the kernel.

    The rows of a check then lie behind one another, too.
    """
    few = BESIDE + problem.col_stride % BESIDE
    return problem.with_stride(few) if problem.col_stride > few else problem


def _other_strides(problem: Problem, tile: int) -> list[int]:
    """Rows side by side: as few as a vector of any width allows, then more than a tile; none of other rows."""
    if problem.col_stride == 1:
        return []
    few = BESIDE if problem.col_stride % BESIDE == 0 else problem.col_stride
    return [few, few * (tile // few + 2)]


def _calls_of_rows(problem: Problem, module: Module, *, sm_count: int) -> Iterator[KernelCall]:
    """Those that differ in sizes, pitches, pointers, grids, labels and order."""
    normal = _normal(problem)
    launch = module.kernels[0].launch
    tile = launch.rows_per_block
    # Walkers that may run at a time: of blocks that wait for each other no more are launched.
    resident = launch.persistent * sm_count // (launch.cluster * launch.parts)
    together = max(1, resident) if launch.cooperates else MOST_BLOCKS

    def at(
        rows: int,
        says: str,
        *,
        cols: int = problem.cols,
        sm_count: int = sm_count,
        pitches: Mapping[str, int] | None = None,
        nulls: tuple[str, ...] = (),
        order: int = 0,
        not_finite: str = "",
        families: tuple[str, ...] | None = normal,
        ends: str = "",
        rows_per_batch: int = 0,
        walkers: int = 0,
        absent: tuple[str, ...] = (),
        sizes: Mapping[str, float] | None = None,
        tied: Tie | None = None,
        gap: int = 0,
        is_tied: bool = False,
    ) -> KernelCall:
        asked = with_null(problem, absent) if absent else problem
        shaped = (asked if cols == problem.cols else _of_cols(asked, cols)).with_rows(rows)
        here = {tensor.name for tensor in shaped.tensors}
        nulls = (*nulls, *(tensor.name for tensor in problem.tensors if tensor.name not in here))
        shaped = replace(shaped, rows_per_batch=rows_per_batch or shaped.rows_per_batch)
        return KernelCall(
            says=says,
            problem=shaped,
            sm_count=sm_count,
            families=families,
            pitches=pitches or {},
            nulls=nulls,
            order=order,
            grid=min(walkers, together) * launch.cluster * launch.parts * (shaped.batches if launch.by_batch else 1),
            not_finite=not_finite,
            ends=ends,
            sizes=sizes or {},
            tied=tied,
            gap=gap,
            is_tied=is_tied,
        )

    yield at(1, "at 1 row")
    if launch.min_blocks:
        yield at(0, "at 0 rows")
    if tile > 2:
        yield at(tile - 1, f"at {tile - 1} rows, one less than a tile")
    if tile > 1 and problem.direction is Direction.FORWARD:
        yield at(tile, f"at {tile} rows of a large mean", families=("large_mean",))
    ragged, odd = 3 * tile - tile // 2, behind_vectors(problem, module).cols
    if is_guarded(module):
        rows = max(ragged, GUARDED_ELEMENTS // problem.cols)
        yield at(rows, f"at {rows} rows that a guard must not spare", families=GUARDED)
        yield at(max(ragged, SMALL_ROWS), "at rows of one small element", families=(ONE_SMALL,))
    for nulls in _nulls(problem):
        yield at(ragged, f"with null {' and '.join(nulls)}", nulls=nulls)
    for name in _spoilt(problem):
        yield at(max(ragged, 4), f"with NaN and an infinity in {name}", not_finite=name)
    for number, cols in enumerate(_other_cols(problem, module)):
        if number == 0:  # as few as that have every family: the plain call's columns may be whole vectors
            few = max(ragged, family_rows(_of_cols(problem, cols)))
            yield at(few, f"at {cols} cols with all families of rows", cols=cols, families=None)
        else:
            yield at(ragged, f"at {cols} cols", cols=cols)
        for nulls in _nulls(problem)[-1:]:
            yield at(ragged, f"at {cols} cols with null {' and '.join(nulls)}", cols=cols, nulls=nulls)
        for absent in _null_inputs(problem)[-1:]:
            yield at(ragged, f"at {cols} cols with null {' and '.join(absent)}", cols=cols, absent=absent)
    for absent in _null_inputs(problem):
        yield at(ragged, f"with null {' and '.join(absent)}", absent=absent)
    for name, number, step in _ties(problem):
        said = f"{'next below' if step else 'that is'} {name}"
        yield at(ragged, f"with a random number {said}", tied=(name, number, step))
    if sizes := beyond_stored(problem):
        said = " and ".join(f"{name} of {size:.3g}" for name, size in sizes.items())
        rows = max(ragged, 2 * len(BEYOND), FEW_ELEMENTS // problem.cols)  # some are within 0.1 % of the largest number
        yield at(rows, f"with {said}", cols=odd, sizes=sizes, families=BEYOND if normal else None)
    if problem.rows_per_batch:
        for per_batch in dict.fromkeys((1, tile + 1, ragged)):
            said = "with a batch for each row" if per_batch == 1 else f"with {per_batch} rows a batch"
            yield at(ragged, said, rows_per_batch=per_batch)
    for family in _ignored(problem):
        yield at(ragged, f"with {family} in every row", families=(family,))
        yield at(ragged, f"with {family} in the first and the last row", ends=family)
    for tensor in (t for t in problem.tensors if not t.is_written and t.kind.is_row and is_index(t)):
        family = f"{tensor.name} cols"  # behind the last row lies no row of the tensor
        yield at(ragged, f"with {family} in the first and the last row", ends=family)
    for group in families_apart(problem):
        said = f"with {group[0]} in every row" if len(group) == 1 else "with other inputs at extremes"
        yield at(max(ragged, 2 * len(group)), said, cols=odd, families=group)
    if rows := _rows_beyond_columns(problem):
        yield at(rows, f"at {rows} rows, more than columns")
    if may_tie(problem):
        yield at(ragged, "with ties between numbers of 8 bits", is_tied=True)
    if cols := _few_cols(problem, module):
        share = problem.with_rows(2 * ragged).batches if problem.spec.has_heads else 1
        gap = -(-FAR_ROW // share) * share
        rows, per_batch = gap + 2 * ragged, int(bool(problem.rows_per_batch and not problem.spec.has_heads))
        walkers = -(-rows // tile) if launch.walks else 0
        said = f"at {rows} rows, more than 2^16"
        yield at(2 * ragged, said, cols=cols, gap=gap, walkers=walkers, rows_per_batch=per_batch)
    pitched = _pitched(module)
    own = {name: _pitch(problem, name, ragged) + (i + 1) * PITCH_STEP for i, name in enumerate(pitched)}
    if own:
        said = ", ".join(f"{name} {pitch}" for name, pitch in own.items())
        yield at(ragged, f"with pitches of their own ({said})", pitches=own)
    said, rows, walkers = f"at {ragged} rows" + (", the last tile ragged" if tile > 1 else ""), ragged, 0
    if launch.walks:
        said, walkers = f"with {TRIPS} trips of the row loop", launch.period  # the smallest grid
        rows = TRIPS * tile * walkers * (problem.batches if launch.by_batch else 1) - tile // 2
    for beside in _other_strides(problem, tile):
        call = at(2 * beside, f"with {beside} rows side by side")
        yield replace(call, problem=call.problem.with_stride(beside).with_rows(2 * beside))
    yield at(rows, said, walkers=walkers)
    yield at(rows, f"{said} and threads in another order", walkers=walkers, order=1)
    lanes, in_flight = finishing_loop(module) if problem.sums_rows and not launch.tiles else (0, 0)
    parts = lanes * (in_flight + 1) + 1  # a second trip, whose threads are about to read one row too many
    if module.workspace.block and 1 < parts <= together:
        sms = math.ceil(parts * launch.cluster / max(1, launch.persistent))
        rows, each = (parts - 1) * tile + 1, problem.rows_per_batch and (parts - 1) * tile + 1  # all in one batch
        said = f"with {parts} partial rows to add up"
        yield at(rows, said, sm_count=max(sm_count, sms), rows_per_batch=each)
    if launch.walks and together > 3:
        yield at(ragged, "with more blocks than tiles", walkers=WALKERS)
    for name in pitched:
        tensor = problem.tensor(name)
        lines = tensor.shape(problem.sizes._replace(rows=FAR_ROWS))[0] if tensor.kind.is_groups else FAR_ROWS
        if lines > 1:
            steps = -(-FAR // ((lines - 1) * PITCH_STEP))
            far = {name: _pitch(problem, name, FAR_ROWS) + steps * PITCH_STEP}
            says = f"with rows of {name} beyond 2^31 elements"
            rows = FAR_ROWS * problem.col_stride
            yield at(rows, says, pitches=far, rows_per_batch=min(1, problem.rows_per_batch))


def _calls_of_tiles(problem: Problem, module: Module, *, sm_count: int) -> Iterator[KernelCall]:
    """Sizes around those of a tile, each by itself, the others ragged; then pitches, another order, and far rows.

    Rows are free in every kernel, cols and inner in a general one. How long a tile is along the axis that is summed no
    launch says: all lengths that there are get their turn.
    """
    tiles = {source.value: tile for source, tile in module.kernels[0].launch.tiles}
    in_batches = tiles.pop("batches", 0) > 0
    if "rows_per_batch" in tiles:
        tiles["rows"] = tiles.pop("rows_per_batch")
    free = ("rows", "cols", "inner") if problem.any_cols else ("rows",)

    def whole(name: str, length: int) -> int:
        """As many, or the next number that an axis may have: columns are whole groups."""
        each = problem.spec.whole_cols if name == "cols" else 1
        return -(-length // each) * each

    ragged = {n: whole(n, 2 * tiles[n] + tiles[n] // 2 + 1 if n in tiles else max(LENGTHS) + 3) for n in free}
    normal = _normal(problem)

    def at(
        says: str,
        *,
        sizes: Mapping[str, int] | None = None,
        rows_per_batch: int = 0,
        **other: Any,
    ) -> KernelCall:
        asked = ragged | dict(sizes or {})
        rows, cols, inner = (asked.get(name, getattr(problem, name)) for name in ("rows", "cols", "inner"))
        pitch = cols + (problem.pitch - problem.cols) % PITCH_STEP
        shaped = replace(problem, cols=cols, inner=inner, pitch=pitch).with_rows(rows)
        shaped = replace(shaped, rows_per_batch=rows_per_batch) if rows_per_batch else shaped
        return KernelCall(**{"families": normal, **other}, says=says, problem=shaped, sm_count=sm_count)

    for name in free:
        lengths = (1, tiles[name] - 1, tiles[name], tiles[name] + 1) if name in tiles else (1, *LENGTHS)
        for length in dict.fromkeys(whole(name, length) for length in lengths):
            yield at(f"at {length} {name}", sizes={name: length})
    if (over := summed(problem)) is not None and over.is_row:
        yield at("at 0 rows", sizes={"rows": 0})
    for nulls in _nulls(problem):
        yield at(f"with null {' and '.join(nulls)}", nulls=nulls)
    for name in _spoilt(problem):
        yield at(f"with NaN and an infinity in {name}", not_finite=name)
    for t in (t for t in problem.tensors if t.kind is over and not t.is_written):
        yield at(f"with NaN in {t.name}", not_finite=t.name, spoilt_by=np.nan)
        yield at(f"with an infinity in {t.name}", not_finite=t.name, spoilt_by=np.inf)
    if in_batches:
        around = (tiles["rows"] - 1, tiles["rows"], tiles["rows"] + 1) if "rows" in tiles else LENGTHS[:4]
        for each in (1, *around):
            rows = 2 * each + -(-each // 2)
            yield at(f"with {each} rows a batch, the last one short", sizes={"rows": rows}, rows_per_batch=each)
    if len(free) > 1:
        equal = whole("cols", max(ragged.values()))
        yield at(f"at {equal} {', '.join(free)}", sizes=dict.fromkeys(free, equal))
    most = problem.with_rows(ragged["rows"])  # a line may have an element a row
    own = {name: most.pitch_of(problem.tensor(name)) for name in _pitched(module)}
    own |= dict.fromkeys((n for n in own if problem.any_cols), max(ragged.values()))
    own = {name: pitch + (i + 1) * PITCH_STEP for i, (name, pitch) in enumerate(own.items())}
    if own:
        said = ", ".join(f"{name} {pitch}" for name, pitch in own.items())
        yield at(f"with pitches of their own ({said})", pitches=own)
    said = f"at {ragged['rows']} rows" + (", the last tile ragged" if "rows" in tiles else "")
    yield at(said)
    yield at(f"{said} and threads in another order", order=1)
    for name, pitch in own.items():
        sizes = {n: whole(n, FAR_ROWS) for n in free}
        lines = _lines(problem, name, problem.sizes._replace(**sizes))
        if lines > 1:
            far = pitch + -(-FAR // ((lines - 1) * PITCH_STEP)) * PITCH_STEP
            yield at(f"with lines of {name} beyond 2^31 elements", sizes=sizes, pitches={name: far})


def _lines(problem: Problem, name: str, sizes: Sizes) -> int:
    """Lines of a tensor, a pitch apart: of the matrices of all batches together."""
    tensor = problem.tensor(name)
    shape = tensor.shape(sizes)
    return math.prod(shape[:-1]) if problem.inner else shape[0] // (problem.col_stride if tensor.kind.is_elem else 1)


@dataclass(frozen=True, kw_only=True)
class CheckedCalls:
    """What the calls of a check showed together, or the first that was wrong.

    rows     of the plain call, or of the wrong one
    summary  of the plain call and a line for each other; or of the wrong one: its faults, else its verdict
    error    the largest error as a share of its bound, of each tensor; nothing where there was a fault
    verified  where, and by which calls, all of which were right; None of a wrong kernel
    """

    rows: int
    ok: bool
    summary: str
    error: dict[str, float]
    verified: Verified | None = None

    @property
    def not_shown(self) -> tuple[str, ...]:
        """What the check says nothing about, in words."""
        return self.verified.not_shown if self.verified else ()


def together(made: Iterable[tuple[KernelCall, Verdict | str | None]], site: VerifiedOn) -> CheckedCalls:
    """The calls up to the first that is wrong. One ends in a verdict, in a fault's text, or was not made: None."""
    right: list[tuple[KernelCall, Verdict]] = []
    not_made: list[str] = []
    error: dict[str, float] = {}
    for call, found in made:
        if found is None:
            not_made.append(call.says)
        elif isinstance(found, str):
            state = " ".join(filter(None, ("WRONG", call.title)))
            summary = f"{state}: {call.problem}\n{found}"
            return CheckedCalls(rows=call.problem.rows, ok=False, summary=summary, error={})
        elif not found.ok:
            worst = {t.name: float(t.max_ratio) for t in found.tensors}
            return CheckedCalls(rows=call.problem.rows, ok=False, summary=found.summary(), error=worst)
        else:
            right.append((call, found))
            for t in found.tensors:
                error[t.name] = max(error.get(t.name, 0.0), float(t.max_ratio))
    plain, verdict = [run for run in right if not run[0].says][-1]
    lines = [verdict.summary(), *(f"  ok {call.title}" for call, _ in right if call.says)]
    verified = _verified(right, verdict, site, not_made)
    if verified.finite_to:
        lines.append(f"  a row is finite under every schedule up to {', '.join(verified.finite_to)}")
    lines += [f"  not shown: {said}" for said in verified.not_shown]
    return CheckedCalls(rows=plain.problem.rows, ok=True, summary="\n".join(lines), error=error, verified=verified)


def _verified(
    right: Sequence[tuple[KernelCall, Verdict]], plain: Verdict, site: VerifiedOn, not_made: Sequence[str]
) -> Verified:
    """What the right calls are recorded as; `plain` is the verdict on the one with every family of rows."""
    made = [call for call, _ in right]
    seen = tuple(dict.fromkeys(text for _, verdict in right for text in verdict.seen))
    unseen = dict.fromkeys(text for _, verdict in right for text in verdict.unseen)
    tensors = [tensor for _, verdict in right for tensor in verdict.tensors]
    few = [call.problem for call in made if not call.says and call.families is not None]  # as its rows are very long
    untried = [name for problem in few[-1:] for name in _all_families(problem) if name not in plain.families]
    return Verified(
        site=site,
        calls=len(right),
        rows=tuple(sorted({call.problem.rows for call in made})),
        cols=tuple(sorted({call.problem.cols for call in made})),
        compared=plain.rows_checked,
        families=plain.families,
        own_pitches=tuple(dict.fromkeys(name for call in made for name in call.pitches)),
        nulls=tuple(dict.fromkeys(name for call in made for name in call.nulls)),
        orders=len({call.order for call in made}),
        unbounded=sum(t.unbounded for t in tensors) / max(1, sum(t.elements for t in tensors)),
        left_out=tuple(n for n in (*plain.left_out, *untried) if n != "nan" or not any(c.not_finite for c in made)),
        uncounted=plain.uncounted,
        not_made=tuple(not_made),
        finite_to=finite_to(plain.problem),
        seen=seen,
        unseen=(*(text for text in unseen if text not in seen), *_never_varied(plain.problem, {*seen, *unseen})),
    )


def _all_families(problem: Problem) -> dict[str, None]:
    return dict.fromkeys((*fitting_families(problem), *families_of(problem)))


def _spoilt(problem: Problem) -> list[str]:
    """Elem inputs whose NaN no plain call has: that has it in rows of the first one, where no rows are summed."""
    first = main_input(problem)
    return [
        t.name
        for t in problem.tensors
        if t.kind.is_elem
        and not t.is_written
        and not t.dtype.saturates
        and (t.name != first or "nan" not in default_families(problem))
    ]


def is_guarded(module: Module) -> bool:
    """Whether its kernels spare some rows a look, by a margin (`program.rewrites.reductions`)."""
    return "_margin" in module.text


def _never_varied(problem: Problem, tried: Collection[str]) -> list[str]:
    """The scalars, by name, of which no other value was tried, and the parameters' signs that have but one.

    Of products also the families of right sides that have no line among so few columns. At another value rows would not
    be finite, or the calls that have it were too large.
    """
    told = scalar_values(problem).items()
    scalars = [name for name, values in told if not any(as_text(name, value) in tried for value in values)]
    signed = signed_parameters(problem)
    sides = [f"{t.name} {family}" for t in rights(problem) for family in RIGHT if family != ORDINARY]
    return [
        *scalars,
        *(f"the sign of {name}" for name in parameters(problem) if name not in signed),
        *(side for side in sides if side not in tried),
    ]


def _other_cols(problem: Problem, module: Module) -> list[int]:
    """Of a general kernel: no whole vector, then more steps than one, where its workspace does not grow with them."""
    if not problem.any_cols:
        return []
    launch = module.kernels[0].launch
    most = problem.cols if module.workspace.column else math.inf
    whole = problem.spec.whole_cols
    wanted = (3, 40 * (launch.threads // launch.rows_per_block) + 3)
    return [cols for cols in (-(-n // whole) * whole for n in wanted) if cols < most]


def _ignored(problem: Problem) -> list[str]:
    """The families of rows whose label is the one that a scalar says."""
    tensors = label_scalars(problem.spec, problem.tensors)
    return [f"{name} {scalar}" for name, scalars in tensors.items() for scalar in scalars]


def _rows_beyond_columns(problem: Problem) -> int:
    """More rows than columns, and than twice what a formula takes row numbers modulo; 0: they need not be that many."""
    modulus = rows_modulo(problem.spec)
    if modulus is None and problem.cols**2 > FEW_ELEMENTS:  # no formula names rows: it costs more than it may show
        return 0
    return max(problem.cols, 2 * (modulus or 0)) + 1


def finishing_loop(module: Module) -> tuple[int, int]:
    """Threads that share a cell, and rows of a thread's trip, in the loop that adds the blocks' partial rows."""
    first, *others = module.kernels
    if not others:
        return first.launch.threads // 32, LAST_TILE_IN_FLIGHT
    finish = others[-1].launch
    sums = module.workspace.block * first.launch.cluster * first.launch.parts // 4
    return finish.threads * finish.blocks // sums, FINISH_IN_FLIGHT


def _few_cols(problem: Problem, module: Module) -> int:
    """The columns of a call with more than 2^16 rows, all that a number of 16 bits counts; 0: there is none."""
    cols = min(_other_cols(problem, module), default=problem.cols)
    launch = module.kernels[0].launch  # groups of blocks that wait for each other would walk all rows on the executor
    is_apart = problem.sums_rows or problem.layout or problem.col_stride > 1 or launch.by_batch or launch.cooperates
    return 0 if is_apart or FAR_ROW * cols > MANY_ELEMENTS else cols


def _nulls(problem: Problem) -> list[tuple[str, ...]]:
    """Each nullable statistic alone, then all."""
    names = tuple(t.name for t in problem.tensors if t.nullable)
    return [*((name,) for name in names), *([names] if len(names) > 1 else [])]


def _null_inputs(problem: Problem) -> list[tuple[str, ...]]:
    """Of a general kernel each optional input that may be null alone, then all, where a gradient is left to write."""
    names = tuple(t.name for t in problem.tensors if t.null_as is not None and not t.is_written)
    found = [*((name,) for name in names), *([names] if len(names) > 1 else [])]
    return [absent for absent in found if not problem.gradients or {*problem.gradients} - {*absent}]


def _ties(problem: Problem) -> list[Tie]:
    """The scalars that random numbers of the kernel's own are compared with, each draw, and how far below it is."""
    if not {t.name for t in problem.tensors} & {t.name for t in problem.spec.seeds}:
        return []
    return list(product(tied_scalars(problem.spec), range(count_draws(problem.spec)), (0.0, RANDOM_STEP)))


def _pitch(problem: Problem, name: str, rows: int) -> int:
    """What a tensor's own pitch exceeds: the problem's; where a line has an element a row, that of these rows."""
    tensor = problem.tensor(name)
    is_by_row = tensor.layout is ScaleLayout.ROW_MAJOR
    return problem.pitch if is_by_row else problem.with_rows(rows).pitch_of(tensor)


def _pitched(module: Module) -> list[str]:
    """The tensors whose pitch the kernels take as an argument."""
    params = (param for kernel in module.kernels for param in kernel.params)
    return list(dict.fromkeys(param.key for param in params if param.source is Source.PITCH))
