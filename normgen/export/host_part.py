"""What the host template prints: signatures, conditions, runners, tables. Decisions are made here.

Names of the spec are marked: the header spells them once the text of its launch functions is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from normgen.codegen.module import Launch, Param, Source
from normgen.codegen.spelling import mark
from normgen.device import MOST_TOGETHER
from normgen.export.device_part import CompiledProblem
from normgen.export.groups import HeaderGroup, TunedShape
from normgen.pipeline import answered
from normgen.problem.problem import LARGEST_ROWS, LARGEST_TILED, MOST_NUMBERED, Problem
from normgen.problem.question import Direction
from normgen.problem.scales import TILE_BYTES, WORD, ScaleLayout
from normgen.problem.tensors import TensorUse

LONGEST_TERM = 105  # characters of a line of a table that stay together
# The order of the template's struct Launch: what most kernels leave at its default comes last.
LAUNCH = (
    *("threads", "rows_per_block", "dependent", "blocks"),
    *("min_blocks", "persistent", "cluster", "parts", "shared_bytes", "period"),
)
TILES = {size: f"tile_{size.value}" for size in (Source.ROWS, Source.COLS, Source.INNER)}  # behind the threads


@dataclass(frozen=True, kw_only=True)
class RunnerKernel:
    """One kernel of a runner: its template parameter, the field that sizes its launch, its arguments as text."""

    kernel: str
    launch: str
    blocks: str
    arguments: tuple[str, ...]
    maps: tuple[tuple[str, str], ...] = ()  # tensor maps among these, and what each is encoded of


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A host function for all kernels that take the same arguments."""

    name: str
    steps: tuple[RunnerKernel, ...]


@dataclass(frozen=True, kw_only=True)
class HostPart:
    """See templates/host.cu.j2; in texts, names of the spec are marked."""

    members: tuple[str, ...]  # of struct Arguments
    given: tuple[str, ...]  # what the pitched function puts there
    runners: tuple[Runner, ...]
    tuned: tuple[tuple[str, ...], ...]  # lines of kTuned, cut where a line may break
    general: tuple[tuple[str, ...], ...]  # lines of kGeneral
    general_said: str  # what kGeneral holds
    general_index: str  # the line of a call
    pointers: tuple[str, ...]  # bits of `absent`
    compiled_out: int  # of them, those that kernels take no null pointer for
    tensors: tuple[str, ...]  # arguments of the functions: the pitched one has the pitches behind the tensors
    pitches: tuple[str, ...]
    widths: tuple[str, ...]  # elements of a row, of each tensor that has a pitch
    names: tuple[str, ...]  # behind tensors and pitches
    pitched: tuple[str, ...]  # declarations
    packed: tuple[str, ...]
    bits: tuple[str, ...]  # what the alignment depends on
    alike: tuple[str, ...]  # conditions; none when no kernel peels
    invalid: tuple[str, ...]  # sizes that are refused
    general_align: int  # bytes that rows must be aligned to for the general kernel; 0: it takes any
    missing: tuple[str, ...]  # pointers that must not be null
    launches_empty: bool  # 0 rows still write column sums
    bit_names: str
    doc: tuple[str, ...]
    choice: str  # which kernel a call gets
    finishes: bool  # some kernel has a second one behind it
    workspace: bool
    workspace_sizes: tuple[str, ...]  # what its bytes depend on
    loops_clusters: bool  # some kernel is a persistent grid of clusters
    cooperates: int  # blocks of a launch that wait for each other, at most; 0: none do
    batches: bool  # sums for each batch of rows: grids and workspaces grow with them
    shares: str  # the argument that says how many batches there are
    divides: bool  # kernels find the batch of a row themselves
    inner: bool  # tensors of the spec have the axis inner
    tiles: bool  # kernels of contractions: a block for each tile of the result
    tiles_of_batches: bool  # of each batch of rows
    tiles_in_parts: bool  # some kernel has a cluster for each tile
    maps: bool  # kernels take tensor maps
    rounds: bool  # ... of float32 that is rounded on its way
    narrow: bool  # ... whose boxes have lines of 64 bytes

    @property
    def called(self) -> tuple[str, ...]:
        """The packed function's arguments in a call."""
        return (*self.tensors, *self.names)

    @property
    def picked(self) -> tuple[str, ...]:
        """The pitched function's arguments in a function of the same signature."""
        return (*self.tensors, *self.pitches, *self.names)

    @property
    def forwarded(self) -> tuple[str, ...]:
        """The pitched function's arguments in the packed one."""
        return (*self.tensors, *self.widths, *self.names)


def host_part(
    group: HeaderGroup, tuned: Sequence[CompiledProblem], general: Sequence[CompiledProblem], *, ways: int
) -> HostPart:
    """The host part of a header whose entries are `tuned`, in their order, and whose fallbacks are `general`.

    ways  general kernels of a set of parameters: with 2 of them the first asks that rows shift alike
    """
    problem, compiled = group.problem, (*tuned, *general)
    passed = problem.passed_tensors
    tensors = tuple(mark(t.name) for t in passed)
    pitches = tuple(f"{mark(t.name)}_pitch" for t in problem.pitched_tensors)
    widths = tuple(_width(t) for t in problem.pitched_tensors)
    scalars = [mark(p.key) for p in general[0].main.params if p.source is Source.SCALAR]
    workspace = any(p.source is Source.WORKSPACE for c in compiled for k in c.parts.kernels for p in k.params)
    in_tiles = any(c.main.launch.tiles for c in compiled)
    boxes = [param.boxes for c in compiled for param in c.main.params if param.boxes]
    workspace_sizes = _workspace_sizes(problem, in_tiles=in_tiles)
    launches_empty = any(c.main.launch.min_blocks or _sums_rows_in_tiles(c.main.launch) for c in general)
    finishes = any(len(c.parts.kernels) > 1 for c in compiled)
    shares = "heads" if problem.spec.has_heads else "rows_per_batch"
    sizes = ("rows", "cols", *(["inner"] if problem.inner else []), *([shares] if problem.rows_per_batch else []))
    tail = [*(f"int {s}" for s in sizes), *(f"float {s}" for s in scalars), *(["void* workspace"] if workspace else [])]
    declared = [_declaration(t, t.dtype.cuda_ctype) for t in passed]
    strides = [f"long long {pitch}" for pitch in pitches]
    names = (*sizes, *scalars, *(["workspace"] if workspace else []), "stream")
    runners = _runners(compiled)
    kernels = [
        _kernel_line(c, runner, finishes=finishes, workspace=workspace)
        for c, runner in zip(compiled, runners, strict=True)
    ]
    several = len(general) > ways
    shapes = _aligned([_shape(group, entry) for entry in group.entries])
    return HostPart(
        members=(*(_declaration(t, t.dtype.ctype) for t in passed), *strides, *tail, "cudaStream_t stream"),
        given=(*(_as_kernels_take_it(t) for t in passed), *pitches, *names),
        runners=tuple(dict.fromkeys(runners)),
        tuned=tuple(_closed(f"{{{shape}, {{", kernel, "}},") for shape, kernel in zip(shapes, kernels, strict=False)),
        general=tuple(_closed("{", kernel, "},") for kernel in kernels[len(tuned) :]),
        pointers=tuple(_pointers(group)),
        compiled_out=(1 << len(group.optional)) - 1,
        tensors=tensors,
        pitches=pitches,
        widths=widths,
        names=names,
        pitched=(*declared, *strides, *tail, "cudaStream_t stream = nullptr"),
        packed=(*declared, *tail, "cudaStream_t stream = nullptr"),
        bits=tuple(_bits(problem)),
        alike=tuple(_alike(problem)) if ways > 1 or any(e.record.schedule.peels for e in group.entries) else (),
        general_said=_general_said("cols and inner" if problem.inner else "cols", several, ways),
        general_index=_general_index(several, ways),
        invalid=(*(f"{size} < {0 if size == 'rows' else 1}" for size in sizes), *_invalid(problem, pitches, widths)),
        general_align=_general_align(problem, general),
        missing=tuple(_missing(group, launches_empty=launches_empty, workspace=workspace)),
        launches_empty=launches_empty,
        bit_names=", ".join(f"{1 << i}u {mark(n)}" for i, n in enumerate((*group.optional, *group.nullable))) or "none",
        doc=tuple(_doc(group, ", ".join(workspace_sizes) if workspace else "")),
        choice=_choice(group),
        finishes=finishes,
        workspace=workspace,
        workspace_sizes=workspace_sizes,
        loops_clusters=any(c.main.launch.loops_clusters for c in compiled),
        cooperates=MOST_TOGETHER if any(c.main.launch.cooperates for c in compiled) else 0,
        batches=problem.sums_batches,
        shares=shares,
        divides=any(p.source is Source.INVERSE for c in compiled for p in c.main.params),
        inner=bool(problem.inner),
        tiles=in_tiles,
        tiles_in_parts=any(c.main.launch.tiles and c.main.launch.cluster > 1 for c in compiled),
        tiles_of_batches=any(Source.BATCHES in dict(c.main.launch.tiles) for c in compiled),
        maps=bool(boxes),
        rounds=any(one.rounds for one in boxes),
        narrow=any(one.line_bytes == 64 for one in boxes),
    )


def _sums_rows_in_tiles(launch: Launch) -> bool:
    """Whether tiles of a result without rows are the blocks: of no rows it is all zeros, and must be written.

    Of no rows there are no batches, and nothing of each of them.
    """
    return bool(launch.tiles) and not {Source.ROWS, Source.BATCHES} & {*dict(launch.tiles)}


def _declaration(tensor: TensorUse, ctype: str) -> str:
    const = "const " if tensor.is_const else ""
    return f"{const}{ctype}* {mark(tensor.name)}"


def _as_kernels_take_it(tensor: TensorUse) -> str:
    """CUDA's type of a stored number and the device library's have the same bits."""
    if tensor.dtype.cuda_ctype == tensor.dtype.ctype:
        return mark(tensor.name)
    const = "const " if tensor.is_const else ""
    return f"reinterpret_cast<{const}k::{tensor.dtype.ctype}*>({mark(tensor.name)})"


def _witness(problem: Problem, name: str) -> str:
    """The pointer that is null when the optional parameter is not there; a backward pass may not read the parameter."""
    return name if name in problem.present else f"d{name}"


def _shape(group: HeaderGroup, entry: TunedShape) -> tuple[str, ...]:
    """What a call must be like for this line of kTuned, and which statistics it was timed without."""
    schedule, problem = entry.record.schedule, entry.problem
    alike = "true" if schedule.peels else "false"
    absent = [f"{group.absent_bits(p)}u" for p in (answered(problem, schedule), problem)]
    sizes = (problem.rows, problem.cols, *([problem.inner] if problem.inner else []))
    return *map(str, sizes), str(entry.vector_align), *absent, alike


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """The cells of a table with commas between them, each as wide as the widest of its column."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [", ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]


def _kernel_line(compiled: CompiledProblem, runner: Runner, *, finishes: bool, workspace: bool) -> tuple[str, ...]:
    """The inside of an initialiser of the template's struct Kernel."""
    parts = compiled.parts
    launches = [f"{{{launch_values(kernel.launch)}}}, " for kernel in parts.kernels]
    bytes_ = [compiled.zeroed_bytes, parts.workspace.column, parts.workspace.block]
    bytes_ += [compiled.batch_bytes] if compiled.problem.sums_batches else []
    words = [*launches, *(["{}, "] if finishes and len(launches) == 1 else [])]
    words += [f"{{{', '.join(map(str, bytes_))}}}, "] if workspace else []
    *others, last = (kernel.expression for kernel in parts.kernels)
    first, *rest = (*(f"{other}, " for other in others), f"{last}>")
    run = f"{runner.name}<"
    return (*words, *([run, first] if len(run + first) > LONGEST_TERM else [run + first]), *rest)


def _closed(opened: str, words: tuple[str, ...], closed: str) -> tuple[str, ...]:
    first, *others, last = words
    return (opened + first, *others, last + closed)


def launch_values(launch: Launch) -> str:
    """The initialiser of the template's struct Launch, up to its last value that is not the default."""
    tiles, plain = dict(launch.tiles), Launch(threads=0)
    tiles |= {Source.ROWS: tiles[Source.ROWS_PER_BATCH]} if Source.ROWS_PER_BATCH in tiles else {}
    names = (*LAUNCH, "cooperates" if launch.cooperates else "by_batch")  # no kernel is both
    values = [getattr(launch, name) for name in names]
    while values[-1] == getattr(plain, names[len(values) - 1]):
        values.pop()
    values[1:1] = [tiles.get(size, 0) for size in TILES] if tiles else []
    return ", ".join(str(value).lower() for value in values)


def _width(tensor: TensorUse) -> str:
    """Elements of a row, or of what else the tensor's pitch leads along."""
    if not tensor.group:
        return tensor.axes[-1] if tensor.dtype.packed == 1 else f"{tensor.axes[-1]} / {tensor.dtype.packed}"
    match tensor.layout:
        case ScaleLayout.ROW_MAJOR:
            return f"cols / {tensor.group}"
        case ScaleLayout.COLUMN_MAJOR:
            return "rows"
        case ScaleLayout.PACKED:
            return f"{WORD}ll * rows"
        case ScaleLayout.SWIZZLED:
            return f"(cols / {tensor.group} + {WORD - 1}) / {WORD} * {TILE_BYTES}ll"


def _invalid(problem: Problem, pitches: Iterable[str], widths: Iterable[str]) -> Iterator[str]:
    divisors = problem.spec.divisors
    sharing = sorted({t.dtype.packed for t in problem.tensors} - {1})
    multiples = (*divisors, *(size for size in sharing if math.lcm(*divisors) % size))
    yield from (f"cols % {size} != 0" for size in multiples)
    if problem.rows_per_batch and problem.spec.has_heads:
        yield "rows % heads != 0"
    if problem.spec.too_few_cols:
        yield f"cols <= {problem.spec.too_few_cols}"
    if problem.spec.numbers_columns:
        yield f"cols > {MOST_NUMBERED}"
    yield from (f"{pitch} < {width}" for pitch, width in zip(pitches, widths, strict=True))
    packed = (t.name for t in problem.tensors if t.layout is ScaleLayout.PACKED)
    yield from (f"{mark(name)}_pitch % {WORD} != 0" for name in packed)
    if not problem.inner:
        yield f"rows > {LARGEST_ROWS}"
    else:
        in_batches = bool(problem.rows_per_batch) and not problem.spec.has_heads
        sizes = ("rows", "cols", "inner", *(["rows_per_batch"] if in_batches else []))
        yield from (f"{size} > {LARGEST_TILED}" for size in sizes)


def _general_said(sizes: str, several: bool, ways: int) -> str:
    one = f"For any {sizes}"
    said = f"The kernels for any {sizes}, by the bits of `absent` that are compiled out" if several else one
    two = ": of two, the first reads vectors and asks that rows start alike, the other takes any alignment"
    return said + (two if ways > 1 else "") + "."


def _general_index(several: bool, ways: int) -> str:
    """Where in kGeneral the kernel of a call stands: see `_general_said`."""
    way = "alike ? 0 : 1" if ways > 1 else "0"
    if not several:
        return way
    return f"{ways} * (absent & k::kCompiledOut) + ({way})" if ways > 1 else "absent & k::kCompiledOut"


def _general_align(problem: Problem, general: Sequence[CompiledProblem]) -> int:
    """The lanes of a warp own a group of columns, so that kernels of groups have no element-wise form."""
    if not problem.spec.group:
        return 0
    vector = max(c.schedule.vector for c in general)
    return min(16, max(t.dtype.bytes_of(vector) for t in (*problem.matrices, *problem.vector_parameters)))


def _rows(problem: Problem) -> list[TensorUse]:
    """The tensors [rows, cols] of the signature."""
    return [t for t in problem.passed_tensors if t.kind.is_elem]


def _bits(problem: Problem) -> list[str]:
    """Terms whose common power of two is the alignment of every vector access."""
    terms = [f"k::address({mark(t.name)})" for t in problem.matrices]
    lines = [t for t in problem.passed_tensors if t.kind.within_row and not t.kind.is_matrix]  # written ones, too
    terms += [f"k::address({mark(t.name)})" for t in (lines if problem.inner else problem.vector_parameters)]
    return terms + [f"k::pitch_bytes({mark(t.name)}_pitch, {t.dtype.bytes})" for t in problem.matrices]


def _alike(problem: Problem) -> list[str]:
    """A peeled kernel finds the first element's offset from one tensor: the rows of all must shift alike."""
    first, *others = _rows(problem)
    x = mark(first.name)
    terms = [f"k::address({mark(t.name)}) - k::address({x})" for t in others]
    terms += [f"k::pitch_bytes({mark(t.name)}_pitch - {x}_pitch, {t.dtype.bytes})" for t in others]
    return [f"({term}) % 16 == 0" for term in terms] or ["true"]


def _pointers(group: HeaderGroup) -> list[str]:
    """What sets the bits of `absent`."""
    pointers = [*(_witness(group.problem, name) for name in group.optional), *group.nullable]
    return [f"({mark(pointer)} == nullptr ? {1 << bit}u : 0u)" for bit, pointer in enumerate(pointers)]


def _missing(group: HeaderGroup, *, launches_empty: bool, workspace: bool) -> list[str]:
    """Pointers that must be there: all but optional parameters, their gradients and nullable statistics.

    Sums over 0 rows are written too; tensors of 0 rows need not be there. A parameter's gradient must be there where
    the parameter is.
    """
    free = {*group.optional, *(f"d{n}" for n in group.optional), *group.nullable}
    present = group.problem.present
    found = []
    for tensor in group.problem.passed_tensors:
        absent, varies = f"{mark(tensor.name)} == nullptr", tensor.kind.by_row or tensor.kind.by_batch
        if tensor.name not in free:
            found.append(f"(rows > 0 && {absent})" if launches_empty and varies else absent)
    for name in group.optional:
        if {name, f"d{name}"} <= present:
            found.append(f"({mark(name)} != nullptr && {mark(f'd{name}')} == nullptr)")
    return [*found, "workspace == nullptr"] if workspace else found


def _argument(param: Param, *, sums_batches: bool) -> str:
    match param.source:
        case Source.TENSOR | Source.SCALAR:
            return f"call.{mark(param.key)}"
        case Source.PITCH:
            return f"call.{mark(param.key)}_pitch"
        case Source.TENSOR_MAP:
            return _map(param)
        case Source.WORKSPACE:
            plain = param.ctype.removeprefix("const ").removesuffix("*")
            return f"at<{plain}>(call.workspace, {param.offset})"
        case Source.BLOCKS:
            return "blocks"
        case Source.BATCHES:
            return "batches" if sums_batches else "call.heads"
        case Source.INVERSE:
            return f"inverse_of(call.{'heads' if param.key == 'batches' else param.key})"
        case _:
            return f"call.{param.source.value}"


def _map(param: Param) -> str:
    return f"{mark(param.key)}_map"


def _encoded(param: Param) -> str:
    """What a tensor map is encoded of."""
    assert param.boxes is not None
    (line, elements), (along, lines) = param.boxes.line, param.boxes.lines
    tensor = f"call.{mark(param.key)}"
    kind = f", {param.boxes.element_type}, {param.boxes.element_bytes}" if param.boxes.rounds else ""
    return f"{tensor}, {tensor}_pitch, call.{line.value}, call.{along.value}, {elements}, {lines}{kind}"


def _steps(compiled: CompiledProblem) -> tuple[RunnerKernel, ...]:
    """Its kernels, in launch order: all but the first have a fixed grid."""
    finish = "kernel.finish.blocks" + (" * shares(batches)" if compiled.problem.sums_batches else "")
    fields = (("kMain", "kernel.launch", "blocks"), ("kFinish", "kernel.finish", finish))
    return tuple(
        RunnerKernel(
            kernel=name,
            launch=launch,
            blocks=blocks,
            arguments=tuple(_argument(param, sums_batches=compiled.problem.sums_batches) for param in kernel.params),
            maps=tuple((_map(param), _encoded(param)) for param in kernel.params if param.boxes),
        )
        for kernel, (name, launch, blocks) in zip(compiled.parts.kernels, fields, strict=False)
    )


def _runners(compiled: Sequence[CompiledProblem]) -> list[Runner]:
    """The runner of each problem's kernels; named after what tells it from the others."""
    by_steps: dict[tuple[RunnerKernel, ...], Runner] = {}
    taken: Counter[str] = Counter()
    for one in compiled:
        if (steps := _steps(one)) not in by_steps:
            words = ["run", *(["any_cols"] if one.problem.any_cols else [])]
            words += [f"without_{name}" for name in one.problem.absent]
            name = "_".join([*words, *(["and_finish"] if len(steps) > 1 else [])])
            taken[name] += 1
            by_steps[steps] = Runner(name=name if taken[name] == 1 else f"{name}_{taken[name]}", steps=steps)
    return [by_steps[_steps(one)] for one in compiled]


_LAID_OUT = {
    ScaleLayout.COLUMN_MAJOR: "{0} has its rows side by side for each group: {0}_pitch is at least rows.",
    ScaleLayout.PACKED: "{0} has a 32-bit word a row for each four groups, the first in the lowest byte, zeros behind "
    "the last one: {0}_pitch, in bytes, is at least 4 * rows, and whole words.",
    ScaleLayout.SWIZZLED: "{0} has 512 bytes for each 128 rows and four groups: group g of row r is byte "
    "16 * (r % 32) + 4 * (r % 128 / 32) + g % 4; zeros where there is no row or group. {0}_pitch, in bytes, leads from "
    "128 rows to the next, and is at least those of all groups.",
}


def _doc(group: HeaderGroup, workspace: str) -> list[str]:
    """The comment of the launch function, in paragraphs."""
    problem = group.problem
    ordered = sorted(problem.passed_tensors, key=lambda t: (not t.kind.is_elem, not t.kind.by_row))
    listed = [
        f"{', '.join(mark(t.name) for t in ordered if t.axes == axes)} [{', '.join(axes)}]"
        for axes in dict.fromkeys(t.axes for t in ordered)
    ]
    null = [mark(name) for name in (*group.optional, *group.nullable)]
    said = [f"{'; '.join(listed)}: device pointers, row-major, contiguous; what is written overlaps nothing else."]
    said += [f"{written} takes the place of {mark(read)}, which is overwritten." for written, read in problem.in_place]
    said += [
        f"{mark(t.name)} has {t.dtype.packed} elements a byte, the first in the low four bits; its pitch counts bytes."
        for t in problem.passed_tensors
        if t.dtype.packed > 1
    ]
    said += [_LAID_OUT[t.layout].format(mark(t.name)) for t in problem.passed_tensors if t.layout in _LAID_OUT]
    said += [
        f"{mark(t.memory)} holds {' and '.join(t.results)}, which are the same values."
        for t in problem.tensors
        if t.also
    ]
    has_heads = problem.spec.has_heads
    if problem.rows_per_batch and has_heads:
        said.append("heads: row r takes row r % heads of each tensor of heads, and rows is a multiple of it.")
    elif problem.rows_per_batch:
        matrices = " and ".join(mark(t.name) for t in problem.tensors if t.kind.by_inner and t.kind.by_batch)
        what = (
            f"matrix r / rows_per_batch of {matrices}"
            if matrices
            else "row r / rows_per_batch of each tensor of batches"
        )
        said.append(f"rows_per_batch: row r takes {what}.")
    for size in dict.fromkeys(t.group for t in problem.passed_tensors if t.kind.is_spread):
        of_size = [t for t in problem.passed_tensors if t.kind.is_spread and t.group == size]
        if named := " and ".join(mark(t.name) for t in of_size if not t.is_written):
            said.append(f"{named}: column c takes value c / {size}, one for each group of {size} columns.")
        if named := " and ".join(mark(t.name) for t in of_size if t.is_written):
            said.append(
                f"{named}: value g is the sum over columns g * {size} to g * {size} + {size - 1}, and over rows."
            )
    if problem.sums_batches:
        summed = " and ".join(mark(t.name) for t in problem.tensors if t.is_row_sum and t.kind.by_batch)
        over = "head b" if has_heads else "batch b; of 0 rows there are no batches"
        said.append(f"{summed}: row b is the sum over the rows of {over}.")
    if null:
        said.append(
            f"May be null: {', '.join(null)}." + " A parameter that is null has no gradient." * _backward(group)
        )
    if problem.stable_tensors:
        named = " and ".join(mark(t.name) for t in problem.tensors if t.name in problem.stable_tensors)
        said.append(
            f"The caller promises that nothing which may still run on `stream` at the call writes {named}: kernels "
            "launched early (programmatic dependent launch) read them before the kernels in front have ended."
        )
    if workspace:
        said.append(f"workspace: {group.name}_workspace_bytes({workspace}) bytes, aligned as by cudaMalloc.")
    return [*said, "Asynchronous on `stream`; allocates nothing."]


def _workspace_sizes(problem: Problem, *, in_tiles: bool) -> tuple[str, ...]:
    """What the bytes of a workspace depend on: the parameters of their function."""
    by_batch = problem.sums_batches or (in_tiles and bool(problem.rows_per_batch))
    shares = "heads" if problem.spec.has_heads else "rows_per_batch"
    return ("rows", "cols", *(["inner"] if in_tiles else []), *([shares] if by_batch else []))


def _choice(group: HeaderGroup) -> str:
    if not group.entries:
        return "Every call takes the general kernel."
    lengths = "Columns, inner" if group.problem.inner else "Columns"
    return (
        f"{lengths} and alignment must match a tuned line exactly, rows take the nearest one; anything else goes to "
        "the general kernel."
    )


def _backward(group: HeaderGroup) -> bool:
    return group.problem.direction is Direction.BACKWARD
