"""The roofs: hand-written kernels that move a problem's bytes and compute next to nothing, as fast as they can.

    elementwise   what the kernel reads is read once, what it writes is written once, in one flat pass
    two launches  of problems with sums over rows: the same, with f32 partial sums, and a small kernel that adds them
    reduction     of few rows: a block, or a cluster, loads its row, reduces once and stores

Each comes in several variants (threads, bytes an access, accesses in flight, cache hints, one wave of blocks or one
block a tile); the best one in the run's own race is the roof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from normgen.codegen.module import KernelEntry, Launch, Module, Param, Source
from normgen.measure.chains.kernels import text_of
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse

THREADS = 256
VECTOR_BYTES = 16
MOST_HELD = 256  # bytes of its rows that a thread of a reduction roof holds in registers
MOST_REDUCTIONS = 10
SUM_COLUMNS = 32  # of a block of the kernel that adds partial sums
FEW_ROWS = 2  # rows an SM: up to there the reduction decides, not the bytes
CLUSTER_ARCH = 90


@dataclass(frozen=True, kw_only=True)
class Streams:
    """What an elementwise roof moves, in bytes.

    written   in a problem in place what takes the place of inputs: there each thread writes where it has read
    beside    what else such a problem writes
    partials  the f32 scratch of two launches
    """

    read: int
    written: int
    beside: int = 0
    partials: int = 0


@dataclass(frozen=True, kw_only=True)
class Roof:
    """One variant. Its module takes the tensors target, source, partials and sums, or in0.., out0..; see `arguments`.

    rows       of its launch
    arguments  what stands for the pitches of its parameters: the vectors to write, read, and of partial sums
    """

    name: str
    module: Module
    rows: int
    vectors: tuple[tuple[str, int], ...] = ()


_LOAD = {"": "source[at]", "cs": "__ldcs(source + at)", "past L1": "past_l1(source + at)"}
_ELEMENTS = {1: "unsigned char", 2: "unsigned short", 4: "float"}
_TYPES = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}


def elementwise_roofs(streams: Streams, *, sums: tuple[int, int] | None = None, parts: int = 0) -> Iterator[Roof]:
    """Eleven variants. With `sums` (columns, bytes of one) a second kernel adds `parts` partials."""
    plain = ((16, 1, "", 0), (16, 2, "", 0), (16, 4, "", 0), (16, 4, "", 8), (8, 4, "", 0))
    hinted = ((16, 4, "cs", 0), (16, 2, "past L1", 0), (16, 4, "past L1", 0))
    backwards = ((16, 4, "", 0), (16, 2, "past L1", 0), (16, 4, "past L1", 0))
    variants = [(*one, False) for one in (*plain, *hinted)] + [(*one, True) for one in backwards]
    for size, flight, hint, wave, last_first in variants:
        text = _text(
            "elementwise",
            VECTOR=_TYPES[size],
            THREADS=THREADS,
            FLIGHT=flight,
            BLOCK="(gridDim.x - 1 - blockIdx.x)" if last_first else "blockIdx.x",
            LOAD=_LOAD[hint],
            STORE="__stcs(target + at, held[k])" if hint == "cs" else "target[at] = held[k]",
        )
        counts = {
            "target": -(-streams.written // size),
            "source": -(-streams.read // size),
            "extra": -(-(streams.beside + streams.partials) // size),
        }
        launch = Launch(threads=THREADS, rows_per_block=THREADS * flight, persistent=wave, min_blocks=1)
        kernels = [KernelEntry(name="elementwise", params=_FLAT, launch=launch)]
        if sums is not None:
            text += "\n" + _text("add_partials", ELEMENT=_ELEMENTS[sums[1]], PARTS=parts, COLUMNS=sums[0])
            blocks = -(-sums[0] // SUM_COLUMNS)
            kernels.append(KernelEntry(name="add_partials", params=_ADDED, launch=Launch(threads=256, blocks=blocks)))
        name = f"{size}x{flight}" + (f" {hint}" if hint else "") + (" one wave" if wave else "")
        name += " last first" if last_first else ""
        yield Roof(
            name=("two launches " if sums is not None else "elementwise ") + name,
            module=Module(instructions="", text=text, kernels=tuple(kernels)),
            rows=max(counts.values()),
            vectors=tuple(counts.items()),
        )


_FLAT = (
    Param(name="target", ctype="Vector*", source=Source.TENSOR, key="target"),
    Param(name="source", ctype="const Vector*", source=Source.TENSOR, key="source"),
    Param(name="extra", ctype="Vector*", source=Source.TENSOR, key="extra"),
    # Vectors, in the place of pitches: the argument of a module that is a long long and named after a tensor.
    Param(name="targets", ctype="long long", source=Source.PITCH, key="target"),
    Param(name="sources", ctype="long long", source=Source.PITCH, key="source"),
    Param(name="extras", ctype="long long", source=Source.PITCH, key="extra"),
    Param(name="vectors", ctype="int", source=Source.ROWS),
)
_ADDED = (
    Param(name="sums", ctype="void*", source=Source.TENSOR, key="sums"),
    Param(name="partials", ctype="const float*", source=Source.TENSOR, key="extra"),
)


def reduction_roofs(problem: Problem, *, sm_count: int, arch: int) -> Iterator[Roof]:
    """Up to ten variants for few rows that are read, without sums over them; none for other problems."""
    is_few = 0 < problem.rows <= FEW_ROWS * sm_count and problem.col_stride == 1
    if not (is_few and problem.elem_inputs) or problem.column_outputs:
        return
    widest = min(problem.row_alignment(t) for t in problem.elem_tensors)
    row_bytes = problem.cols * problem.dtype.bytes
    inputs = problem.elem_inputs
    least = min(t.dtype.bytes for t in inputs)
    sizes = [s for s in _TYPES if least <= s <= widest and all(_divides(s, t, problem) for t in inputs)][:2]
    shapes = [(256, 1), (512, 1), (128, 1), (256, 4), (1024, 1), (512, 2), (64, 1), (256, 2), (32, 1), (128, 4)]
    made = 0
    for threads, cluster in shapes:
        for size in sizes:
            vectors = row_bytes // size
            is_small = threads * cluster > 32 and threads * cluster // 2 >= vectors  # half of the threads have no work
            is_large = -(-vectors // (threads * cluster)) * size * len(inputs) > MOST_HELD
            if made == MOST_REDUCTIONS or is_small or is_large or (cluster > 1 and arch < CLUSTER_ARCH):
                continue
            made += 1
            yield _reduction(problem, threads=threads, size=size, cluster=cluster)


def _divides(size: int, tensor: TensorUse, problem: Problem) -> bool:
    return all(tensor.dtype.bytes_of(n) % size == 0 for n in (problem.cols, problem.pitch))


def _reduction(problem: Problem, *, threads: int, size: int, cluster: int) -> Roof:
    inputs, outputs = problem.elem_inputs, [t for t in problem.elem_tensors if t.is_written]
    params: list[Param] = []
    loads, stores = [], []
    for i, tensor in enumerate(inputs):
        vectors, step = (n * tensor.dtype.bytes // size for n in (problem.cols, problem.pitch))
        held, word = -(-vectors // (threads * cluster)), _TYPES[size]
        names = {"IN": f"in{i}", "LOADED": f"held{i}"}
        loads.append(_text("reduction_load", VECTOR=word, HELD=held, VECTORS=vectors, STEP=f"{step}LL", **names))
        params.append(Param(name=f"in{i}", ctype=f"const {word}*", source=Source.TENSOR, key=tensor.name))
    kept = -(-(problem.cols * inputs[0].dtype.bytes // size) // (threads * cluster))
    for i, tensor in enumerate(outputs):
        wide = next(s for s in _TYPES if s <= size and _divides(s, tensor, problem))
        vectors, step = (tensor.dtype.bytes_of(n) // wide for n in (problem.cols, problem.pitch))
        held, word = -(-vectors // (threads * cluster)), _TYPES[wide]
        made = _made(word, "held0[k]") if word == _TYPES[size] and held <= kept else _made(word, "mixed")
        to = f"out{i}"
        stores.append(_text("reduction_store", OUT=to, HELD=held, VECTORS=vectors, STEP=f"{step}LL", MADE=made))
        params.append(Param(name=f"out{i}", ctype=f"{word}*", source=Source.TENSOR, key=tensor.name))
    text = _text(
        "reduction",
        VECTOR=_TYPES[size],
        THREADS=threads,
        CLUSTER=cluster,
        PARAMS=", ".join(f"{p.ctype} __restrict__ {p.name}" for p in params),
        LOADS="".join(loads).rstrip("\n"),
        STORES="".join(stores).rstrip("\n"),
    )
    launch = Launch(threads=threads, cluster=cluster)
    kernel = KernelEntry(name="reduction", params=tuple(params), launch=launch)
    name = f"reduction {threads}x{size}" + (f" cluster {cluster}" if cluster > 1 else "")
    return Roof(name=name, module=Module(instructions="", text=text, kernels=(kernel,)), rows=problem.rows)


def _text(name: str, **macros: str | int) -> str:
    return text_of("normgen.measure.chains", f"{name}.cu", **macros)


def _made(word: str, held: str) -> str:
    """A value to store that depends on the sum and, where it is of the same type, on what was loaded."""
    if word == "uint4":
        x = f"{held}.{{}} ^ mixed" if held != "mixed" else "mixed"
        return f"make_uint4({', '.join(x.format(part) for part in 'xyzw')})"
    if word == "uint2":
        x = f"{held}.{{}} ^ mixed" if held != "mixed" else "mixed"
        return f"make_uint2({', '.join(x.format(part) for part in 'xy')})"
    return f"static_cast<{word}>({held}{' ^ mixed' if held != 'mixed' else ''})"


def streams_of(problem: Problem, *, parts: int = 0) -> Streams:
    """The bytes of what a problem reads and writes, padding left out.

    parts   of two launches: the first writes that many f32 rows of partial sums, the second the sums over rows
    """

    def size(tensors: Iterable[TensorUse]) -> int:
        return sum(math.prod(problem.shape_of(t)) * t.dtype.bytes for t in tensors)

    written = [t for t in problem.tensors if t.is_written and not (parts and t.is_row_sum)]
    sums = sum(t.width(problem.sizes) for t in problem.tensors if t.is_row_sum)
    over = {name for name, _ in problem.in_place} or {t.name for t in written}
    return Streams(
        read=size(t for t in problem.tensors if t.is_read),
        written=size(t for t in written if t.name in over),
        beside=0 if parts else size(t for t in written if t.name not in over),  # partial sums are written there
        partials=4 * parts * sums,
    )
