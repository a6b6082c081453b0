"""What the host templates print: signatures, conditions, kernel calls. Decisions are made here.

Names of the spec are marked: the header spells them once the text of its launch functions is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normgen.codegen.module import Kernel, Launch, Param, Source
from normgen.codegen.spelling import mark
from normgen.export.device_part import Compiled
from normgen.export.groups import Entry, Group
from normgen.problem.problem import Problem, TensorUse
from normgen.problem.question import Direction

CALL = "k::"  # the detail namespace inside the launch functions


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One line of kTuned."""

    rows: int
    cols: int
    align: int
    absent: int
    alike: bool
    comment: str


@dataclass(frozen=True, kw_only=True)
class LaunchLine:
    """One constexpr Launch: a kernel's sizes."""

    name: str
    values: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """One kernel of a call, with its arguments as text."""

    kernel: str
    launch: str
    arguments: tuple[str, ...]
    loops_clusters: bool


@dataclass(frozen=True, kw_only=True)
class Call:
    """Everything one schedule launches.

    labels  indices in kTuned, or sets of absent parameters (fallbacks)
    zeroed  C++ text of the bytes of the workspace that must be zero before; "" if none
    """

    labels: tuple[int, ...]
    comment: str
    zeroed: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class WorkspaceLine:
    """What a tuned kernel needs of the workspace."""

    cols: int
    launch: str
    fixed: int
    per_block: int


@dataclass(frozen=True, kw_only=True)
class HostPart:
    """See templates/host.cu.j2 and templates/calls.cu.j2; in texts, names of the spec are marked."""

    name: str
    launches: tuple[LaunchLine, ...]
    shapes: tuple[Shape, ...]
    optional: tuple[tuple[str, str], ...]  # pointer that says it is there, tensor
    nullable: tuple[str, ...]
    pitched: tuple[str, ...]  # declarations
    packed: tuple[str, ...]
    names: tuple[str, ...]  # of the packed function's arguments
    forwarded: tuple[str, ...]  # arguments of the pitched function in the packed one
    pitches: tuple[str, ...]
    bits: tuple[str, ...]  # what the alignment depends on
    alike: str  # condition, "" when no kernel peels
    required: tuple[tuple[str, bool], ...]  # pointers that must not be null; whether 0 rows need none
    paired: tuple[tuple[str, str], ...]  # gradient, parameter: needed where the parameter is there
    launches_empty: bool  # 0 rows still write column sums
    bit_names: str
    doc: tuple[str, ...]
    calls: tuple[Call, ...]
    fallbacks: tuple[Call, ...]
    workspace: bool
    workspace_fixed: int
    workspace_per_column: int
    workspace_lines: tuple[WorkspaceLine, ...]
    loops_clusters: bool  # some kernel is a persistent grid of clusters


def host_part(group: Group, tuned: Sequence[Compiled], fallbacks: Sequence[Compiled]) -> HostPart:
    problem = group.problem
    pitches = tuple(f"{mark(t.name)}_pitch" for t in problem.elem_tensors)
    scalars = [mark(p.key) for p in fallbacks[0].main.params if p.source is Source.SCALAR]
    workspace = any(
        p.source is Source.WORKSPACE for c in (*tuned, *fallbacks) for k in c.parts.kernels for p in k.params
    )
    tail = ["int rows", "int cols", *(f"float {s}" for s in scalars), *(["void* workspace"] if workspace else [])]
    tensors = [_declaration(t) for t in problem.tensors]
    stream = "cudaStream_t stream = nullptr"
    names = ["rows", "cols", *scalars, *(["workspace"] if workspace else []), "stream"]
    compiled = {c.main.expression: c for c in (*tuned, *fallbacks)}
    return HostPart(
        name=group.name,
        launches=tuple(_launch_line(problem, k) for c in compiled.values() for k in c.parts.kernels),
        shapes=tuple(_shape(group, entry) for entry in group.entries),
        optional=tuple((mark(_witness(problem, name)), mark(name)) for name in group.optional),
        nullable=tuple(map(mark, group.nullable)),
        pitched=(*tensors, *(f"long long {p}" for p in pitches), *tail, stream),
        packed=(*tensors, *tail, stream),
        names=(*(mark(t.name) for t in problem.tensors), *names),
        forwarded=(*(mark(t.name) for t in problem.tensors), *("cols" for _ in pitches), *names),
        pitches=pitches,
        bits=tuple(_bits(problem)),
        alike=_alike(problem) if any(e.record.schedule.peels for e in group.entries) else "",
        required=tuple(_required(group)),
        paired=tuple(_paired(group)),
        launches_empty=any(c.main.launch.min_blocks for c in fallbacks),
        bit_names=", ".join(f"{1 << i}u {mark(n)}" for i, n in enumerate((*group.optional, *group.nullable))) or "none",
        doc=tuple(_doc(group, workspace)),
        calls=tuple(_tuned_calls(group, tuned)),
        fallbacks=tuple(_fallback_call(group, c) for c in fallbacks),
        workspace=workspace,
        workspace_fixed=max(c.zeroed_bytes for c in fallbacks),
        workspace_per_column=max(c.parts.workspace_column_bytes for c in fallbacks),
        workspace_lines=tuple(_workspace_lines(tuned)),
        loops_clusters=any(c.main.launch.loops_clusters for c in tuned),
    )


def _declaration(tensor: TensorUse) -> str:
    const = "" if tensor.is_written else "const "
    return f"{const}{tensor.dtype.cuda_ctype}* {mark(tensor.name)}"


def _witness(problem: Problem, name: str) -> str:
    """The pointer that is null when the optional parameter is not there; a backward pass may not read the parameter."""
    return name if name in problem.present else f"d{name}"


def _shape(group: Group, entry: Entry) -> Shape:
    record = entry.record
    figure = f"{record.us:.4g} us" if record.us is not None else "no time"
    said = figure if record.measured else f"{figure} predicted, not measured"
    return Shape(
        rows=entry.problem.rows,
        cols=entry.problem.cols,
        align=entry.vector_align,
        absent=group.absent_bits(entry.problem),
        alike=record.schedule.peels,
        comment=f"{said}: {record.schedule.strategy}",
    )


def launch_name(problem: Problem, kernel: Kernel) -> str:
    """kLaunch_warp_per_row_3f2a_Cols768_91ab: what the kernel's name says beyond the problem's, and its Config."""
    return f"kLaunch_{kernel.name.removeprefix(problem.name + '_')}_{kernel.config}"


def _launch_line(problem: Problem, kernel: Kernel) -> LaunchLine:
    return LaunchLine(name=launch_name(problem, kernel), values=launch_values(kernel.launch))


def launch_values(s: Launch) -> str:
    """The initialiser of the template's struct Launch."""
    sizes = (s.threads, s.rows_per_block, s.cluster, s.persistent, s.shared_bytes, s.blocks, s.period, s.min_blocks)
    return ", ".join([*map(str, sizes), "true" if s.dependent else "false"])


def _bits(problem: Problem) -> list[str]:
    """Terms whose common power of two is the alignment of every vector access."""
    terms = [f"k::address({mark(t.name)})" for t in problem.tensors if t.kind.is_elem]
    terms += [f"k::address({mark(t.name)})" for t in problem.tensors if t.is_parameter]
    return terms + [f"k::pitch_bytes({mark(t.name)}_pitch, {t.dtype.bytes})" for t in problem.elem_tensors]


def _alike(problem: Problem) -> str:
    """A peeled kernel finds the first element's offset from one tensor: the rows of all must shift alike."""
    first, *others = problem.elem_tensors
    x = mark(first.name)
    terms = [f"k::address({mark(t.name)}) - k::address({x})" for t in others]
    terms += [f"k::pitch_bytes({mark(t.name)}_pitch - {x}_pitch, {t.dtype.bytes})" for t in others]
    return " && ".join(f"({term}) % 16 == 0" for term in terms) or "true"


def _required(group: Group) -> list[tuple[str, bool]]:
    """Tensors that are always there: all but optional parameters, their gradients and nullable statistics."""
    free = {*group.optional, *(f"d{n}" for n in group.optional), *group.nullable}
    return [(mark(t.name), t.kind.by_row) for t in group.problem.tensors if t.name not in free]


def _paired(group: Group) -> list[tuple[str, str]]:
    present = group.problem.present
    return [(mark(f"d{n}"), mark(n)) for n in group.optional if {n, f"d{n}"} <= present]


def _argument(param: Param, problem: Problem) -> str:
    match param.source:
        case Source.TENSOR:
            tensor, pointer = problem.tensor(param.key), mark(param.key)
            if tensor.dtype.cuda_ctype == tensor.dtype.ctype:
                return pointer
            ctype = param.ctype.replace(tensor.dtype.ctype, CALL + tensor.dtype.ctype)
            return f"reinterpret_cast<{ctype}>({pointer})"
        case Source.PITCH:
            return f"{mark(param.key)}_pitch"
        case Source.WORKSPACE:
            plain = param.ctype.removeprefix("const ").removesuffix("*")
            return f"k::at<{plain}>(workspace, {param.offset})"
        case Source.BLOCKS:
            return "blocks"
        case Source.SCALAR:
            return mark(param.key)
        case _:
            return param.source.value


def _steps(compiled: Compiled) -> tuple[Step, ...]:
    return tuple(
        Step(
            kernel=f"{CALL}{kernel.name}<{CALL}{kernel.config}>",
            launch=f"{CALL}{launch_name(compiled.problem, kernel)}",
            arguments=tuple(_argument(p, compiled.problem) for p in kernel.params),
            loops_clusters=kernel.launch.loops_clusters,
        )
        for kernel in compiled.parts.kernels
    )


def _tuned_calls(group: Group, tuned: Sequence[Compiled]) -> list[Call]:
    """One call per kernel: shapes that share a kernel share the call."""
    labels: dict[str, list[int]] = {}
    for index, compiled in enumerate(tuned):
        labels.setdefault(compiled.main.expression, []).append(index)
    by_name = {c.main.expression: c for c in tuned}
    return [_tuned_call(group, by_name[name], indices) for name, indices in labels.items()]


def _tuned_call(group: Group, compiled: Compiled, indices: list[int]) -> Call:
    shapes = [group.entries[i].problem for i in indices]
    zeroed = compiled.parts.workspace_fixed_bytes
    return Call(
        labels=tuple(indices),
        comment=", ".join(f"{p.rows} x {p.cols}" for p in shapes),
        zeroed=str(zeroed) if zeroed else "",
        steps=_steps(compiled),
    )


def _fallback_call(group: Group, compiled: Compiled) -> Call:
    absent = [mark(name) for name in group.optional if name in compiled.problem.absent]
    per_column = compiled.parts.workspace_column_bytes
    zeroed = f"{compiled.zeroed_bytes} + {per_column} * static_cast<std::size_t>(cols)" if per_column else ""
    return Call(
        labels=(group.absent_bits(compiled.problem) & ((1 << len(group.optional)) - 1),),
        comment=f"without {' and '.join(absent)}" if absent else "",
        zeroed=zeroed,
        steps=_steps(compiled),
    )


def _workspace_lines(tuned: Sequence[Compiled]) -> list[WorkspaceLine]:
    lines = [
        WorkspaceLine(
            cols=c.problem.cols,
            launch=f"{CALL}{launch_name(c.problem, c.main)}",
            fixed=c.parts.workspace_fixed_bytes,
            per_block=c.parts.workspace_block_bytes,
        )
        for c in tuned
        if c.parts.workspace_fixed_bytes or c.parts.workspace_block_bytes
    ]
    return list(dict.fromkeys(lines))


def _doc(group: Group, workspace: bool) -> list[str]:
    """The comment of the launch function, in paragraphs."""
    problem = group.problem
    kinds = sorted({t.kind for t in problem.tensors}, key=lambda kind: (not kind.is_elem, not kind.by_row))
    listed = [
        f"{', '.join(mark(t.name) for t in problem.tensors if t.kind is kind)} [{', '.join(kind.axes)}]"
        for kind in kinds
    ]
    null = [mark(name) for name in (*group.optional, *group.nullable)]
    said = [f"{'; '.join(listed)}: device pointers, row-major, contiguous; what is written overlaps nothing else."]
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
        said.append(f"workspace: {group.name}_workspace_bytes(rows, cols) bytes, aligned as by cudaMalloc.")
    said.append(
        "Asynchronous on `stream`; allocates nothing. Columns and alignment must match a tuned line exactly, rows take "
        "the nearest one; anything else goes to the general kernel."
    )
    return said


def _backward(group: Group) -> bool:
    return group.problem.direction is Direction.BACKWARD
