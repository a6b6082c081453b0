"""Exported functions called on a made-up CUDA runtime: which kernels they launch, how, and with what arguments."""

from __future__ import annotations

import atexit
import functools
import math
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from normgen.codegen.module import KernelEntry, Param, Source, inverse_of
from normgen.codegen.parts import Parts, short_names
from normgen.cuda.cubin import symbol_of
from normgen.export import Header
from normgen.export.groups import HeaderGroup
from normgen.pipeline import emit_parts
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.schedule import Schedule

from .cases import nvcc

HERE = Path(__file__).parent
SM_COUNT, CLUSTERS, WORKSPACE, ROWS_PER_BATCH = 132, 20, 1 << 30, 1024


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a group's pitched function. Tensor i lies at 4096 * (i + 1), less where it is null."""

    rows: int
    cols: int
    inner: int = 0
    null: frozenset[str] = frozenset()
    odd: int = 0  # bytes that each row start is off an aligned address, and elements that each row is longer
    apart: int = 0  # bytes by which the rows of the first tensor of rows start elsewhere than those of the others

    def address(self, group: HeaderGroup, name: str) -> int:
        names = [t.name for t in group.problem.passed_tensors]
        tensor = group.problem.tensor(name)
        shift = self.odd * (tensor.kind.is_elem or tensor.kind.by_inner) + self.apart * (
            name == group.problem.pitched_tensors[0].name
        )
        return 0 if name in self.null else 4096 * (names.index(name) + 1) + shift

    def pitch(self, tensor: TensorUse) -> int:
        return (self.inner if tensor.axes[-1] == "inner" else self.cols) + self.odd

    def words(self, group: HeaderGroup, scalars: Sequence[str], *, workspace: bool) -> str:
        tensors = [self.address(group, t.name) for t in group.problem.passed_tensors]
        pitches = [self.pitch(tensor) for tensor in group.problem.pitched_tensors]
        has_heads = group.problem.spec.has_heads
        shares = heads_of(self.rows) if has_heads else ROWS_PER_BATCH
        inner = [self.inner] if group.problem.inner else []
        sizes = [self.rows, self.cols, *inner, *([shares] if group.problem.rows_per_batch else [])]
        tail = [*sizes, *(scalar(s) for s in scalars), *([WORKSPACE] if workspace else []), 7]
        return " ".join(map(str, ["call", WORKSPACE, *tensors, *pitches, *tail]))


def batches_of(rows: int, problem: Problem) -> int:
    return heads_of(rows) if problem.spec.has_heads else -(-rows // ROWS_PER_BATCH)


@dataclass(frozen=True, kw_only=True)
class PartsOfHeader:
    """The pieces of a group's kernels with the names that its header gives them: tuned ones, and general ones of each
    set of null parameters."""

    tuned: list[tuple[Problem, Parts]]
    general: list[list[tuple[Problem, Parts]]]

    @staticmethod
    def of(group: HeaderGroup) -> PartsOfHeader:
        tuned = [(e.problem, emit_parts(e.problem, e.record.schedule)) for e in group.entries]
        general = [[(p, emit_parts(p, s)) for s in fallback_schedules(p)] for p in group.general]
        names = short_names([parts for _, parts in (*tuned, *chain(*general))])

        def named(found: list[tuple[Problem, Parts]]) -> list[tuple[Problem, Parts]]:
            return [(problem, parts.renamed(names)) for problem, parts in found]

        return PartsOfHeader(tuned=named(tuned), general=list(map(named, general)))

    def of_schedule(self, schedule: Schedule, group: HeaderGroup) -> Parts:
        """Those of the tuned kernel with this schedule."""
        found = zip(group.entries, self.tuned, strict=True)
        return next(parts for entry, (_, parts) in found if entry.record.schedule == schedule)

    @property
    def kernels(self) -> list[KernelEntry]:
        return [k for _, parts in (*self.tuned, *chain(*self.general)) for k in parts.kernels]


def heads_of(rows: int) -> int:
    """As many as divide the rows; of no rows too there are some."""
    return math.gcd(rows, 8)


def scalar(name: str) -> int:
    return len(name) + 1


def expected(group: HeaderGroup, call: Call, problem: Problem, parts: Parts) -> list[str]:
    """What the runtime must be asked: the workspace zeroed, then the kernels, as the emitter's own words say."""
    first, batches = parts.kernels[0].launch, batches_of(call.rows, problem)
    sizes = {"cols": call.cols, "inner": call.inner, "rows_per_batch": ROWS_PER_BATCH}
    blocks = first.grid(rows=call.rows, sm_count=SM_COUNT, batches=batches, **sizes)
    if first.loops_clusters:
        blocks = first.fitting(blocks, clusters=CLUSTERS, batches=batches)
    lines_of_sums = max(1, batches) if problem.sums_batches else 1
    zeroed = parts.workspace.fixed + lines_of_sums * parts.workspace.batch
    if problem.any_cols:
        zeroed += lines_of_sums * parts.workspace.column * (call.cols - -(-problem.cols // 32) * 32)
    lines = [f"zero 0 {zeroed}"] if zeroed else []
    for kernel in parts.kernels:
        rest = kernel.launch.blocks * (max(1, batches) if kernel.launch.by_batch else 1)
        grid = blocks if kernel is parts.kernels[0] else rest
        if grid:
            given = " ".join(str(value(p, group, call, blocks)) for p in kernel.params)
            launch = kernel.launch
            how = int(launch.dependent) | int(launch.cooperates) << 1
            shape = f"{grid} {launch.threads} {launch.shared_bytes} {launch.cluster} {how}"
            lines.append(f"launch {kernel.expression} {shape} {given}")
    return lines


def value(param: Param, group: HeaderGroup, call: Call, blocks: int) -> int:
    match param.source:
        case Source.TENSOR:
            return call.address(group, param.key)
        case Source.PITCH:
            return call.pitch(group.problem.tensor(param.key))
        case Source.ROWS:
            return call.rows
        case Source.COLS:
            return call.cols
        case Source.INNER:
            return call.inner
        case Source.ROWS_PER_BATCH:
            return ROWS_PER_BATCH
        case Source.INVERSE:
            return inverse_of(batches_of(call.rows, group.problem) if param.key == "batches" else ROWS_PER_BATCH)
        case Source.BATCHES:
            return batches_of(call.rows, group.problem)
        case Source.SCALAR:
            (bits,) = struct.unpack("<i", struct.pack("<f", scalar(param.key)))
            return int(bits)
        case Source.WORKSPACE:
            return WORKSPACE + param.offset
        case Source.BLOCKS:
            return blocks


@functools.cache
def runtime() -> Path:
    """fake_cudart.cpp, compiled once for all programs of this process."""
    folder = tempfile.TemporaryDirectory(prefix="normgen-")
    atexit.register(folder.cleanup)
    compiled = Path(folder.name) / "fake_cudart.o"
    done = nvcc("-c", "-o", compiled, HERE / "fake_cudart.cpp")
    assert done.returncode == 0, done.stderr
    return compiled


class Program:
    """A header's function, compiled and linked with fake_cudart.cpp."""

    def __init__(self, folder: Path, headers: Iterable[Header], file: str, function: str, *options: str) -> None:
        for header in headers:
            header.keep(folder)
        for source in ("driver.h", "driver.cu"):
            shutil.copy(HERE / source, folder)
        self.path = folder / "driver"
        defines = [f'-DHEADER="{file}"', f"-DFUNCTION={function}_pitched", *options]
        done = nvcc("-cudart", "none", *defines, "-o", self.path, folder / "driver.cu", runtime())
        assert done.returncode == 0, done.stderr
        self.kernels = self._said("kernels")

    def _said(self, *commands: str) -> list[str]:
        done = subprocess.run([self.path], input="\n".join(commands), capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def linked(self, kernel: KernelEntry, namespace: str) -> str:
        """The linker's name of a kernel."""
        return symbol_of(kernel, [name for name in self.kernels if namespace in name])

    def asks(self, commands: Sequence[str], known: dict[str, KernelEntry]) -> list[list[str]]:
        """What each command asked the runtime, with kernels as C++ names them, and its answer."""
        sizes = [
            f"sizes {linked} {''.join('4' if p.ctype in ('int', 'float') else '8' for p in kernel.params)}"
            for linked, kernel in known.items()
        ]
        found: list[list[str]] = [[]]
        for line in self._said(f"device 0 {SM_COUNT} 90 {CLUSTERS}", *sizes, *commands):
            words = line.split()
            if words[0] == "launch":
                words[1] = known[words[1]].expression
            found[-1].append(" ".join(words))
            if words[0] == "=":
                found.append([])
        return found[:-1]
