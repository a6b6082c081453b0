"""A built module: running its kernels over numpy arrays."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normgen.codegen.module import KernelEntry, Module, Param, Source, inverse_of
from normgen.cpu.fault import Fault, make_faults
from normgen.cpu.library import LAUNCH_LOCK, LaunchArguments, LaunchReport, Region, load_runtime, load_unit
from normgen.cpu.symbols import find_frames
from normgen.cpu.tensors import ArenaTensor, Array, place
from normgen.cpu.trace import TraceStep, room_for_steps, steps_of
from normgen.cpu.unit import text_name
from normgen.errors import UsageError

WORKSPACE = "the workspace"  # no tensor has a space in its name
TOGETHER = 255  # blocks that are alive at a time (shim/runtime/runtime.h)
MAP_WORDS = 16  # of a tensor map, of which the first seven say all here (shim/runtime/async.cpp)
MAP_ALIGNMENT = 64  # bytes
CELL_BYTES = 4  # it holds float32 sums and 32-bit counters
_CTYPES: dict[str, Any] = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "unsigned int": ctypes.c_uint,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
}


@dataclass(frozen=True, kw_only=True)
class ProgramRun:
    """What running a program showed. `faults` is empty when all is well.

    blocks    blocks that ran to their end, over all kernels
    accesses  loads and stores checked, outside of threads' own local memory
    steps     what threads did, in order; () unless the run was traced
    """

    faults: tuple[Fault, ...]
    blocks: int
    accesses: int
    seconds: float
    steps: tuple[TraceStep, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Program:
    """A module built for this machine; `run` may be called any number of times."""

    module: Module
    unit: Path
    index: int
    runtime: Path

    def run(
        self,
        tensors: Mapping[str, Array | None],
        *,
        rows: int,
        cols: int,
        inner: int = 1,
        rows_per_batch: int = 0,
        batches: int | None = None,
        scalars: Mapping[str, float] | None = None,
        seed: int = 0,
        sm_count: int = 4,
        workspace: Array | None = None,
        time_limit_s: float = 60.0,
        trace: bool = False,
        ends: int = 0,
        far: Array | None = None,
    ) -> ProgramRun:
        """Launch every kernel in order; written arrays are written in place.

        tensors    elem arrays [rows, cols] (any row stride and alignment), row values [rows], col values [cols],
                   batches [batches, cols], of `rows_per_batch` rows each; sides of a contraction, [rows, inner] and
                   [inner, cols], in their tensor's order, those of batches behind one another; None is a null pointer,
                   and so is a statistic that is not named
        batches    how many there are; None: as many as the rows fill
        workspace  when not given: zeros, then NaN bytes in the part that holds anything at the first call
        seed       shuffles the order of blocks and threads; 0 keeps it
        time_limit_s  seconds of computing; waiting on a busy machine does not count
        trace         keep every step of every thread: for small runs
        ends          run so many clusters at each end of each grid, and no others; 0: all
        far           numbers of the rows that hold anything, up to the last one; None: all do

        A fault ends the run after its kernel. Raises UsageError when an argument is missing or unfit.
        """
        started, computed = time.monotonic(), time.thread_time()
        if batches is None:
            batches = -(-rows // rows_per_batch) if rows_per_batch else 1
        lengths = {"cols": cols, "inner": inner, "rows_per_batch": rows_per_batch if rows else 0}
        scratch = self.module.workspace_bytes(rows=rows, sm_count=sm_count, batches=batches, **lengths)
        if workspace is None and scratch:
            workspace = np.zeros(scratch, dtype=np.uint8)
            workspace[self.module.zeroed_bytes(batches) :] = 0xFF  # not initialised on the device: NaN here
        grids = [
            kernel.launch.grid(rows=rows, sm_count=sm_count, batches=batches, **lengths)
            for kernel in self.module.kernels
        ]
        sizes = {Source.ROWS: rows, Source.COLS: cols, Source.INNER: inner, Source.BATCHES: batches}
        sizes[Source.BLOCKS] = grids[0]
        sizes |= {Source.ROWS_PER_BATCH: rows_per_batch} if rows_per_batch else {}
        placed = place({**tensors, WORKSPACE: workspace}, far=far)
        values = {**dict.fromkeys(tensors), **placed}
        faults: tuple[Fault, ...] = ()
        blocks = accesses = 0
        steps: list[TraceStep] = []
        written: set[str] = set()
        for number, (kernel, grid) in enumerate(zip(self.module.kernels, grids, strict=True)):
            _check_launch(kernel, grid)
            if grid == 0:
                continue
            arguments = [_argument(param, values, sizes=sizes, scalars=scalars or {}) for param in kernel.params]
            left = max(0.001, time_limit_s - (time.thread_time() - computed))
            launch = self._launch_of(
                number, kernel, arguments, placed, grid=grid, seed=seed, time_limit_s=left, ends=ends
            )
            report = self._launched(launch, trace=trace)
            steps += steps_of(number, launch, report, placed) if trace else []
            written |= _written_keys(kernel)
            blocks += report.blocks_run
            accesses += report.accesses
            faults = self._faults(kernel, report)
            if faults:
                break
        for name in written & placed.keys():
            placed[name].write_back()
        seconds = time.monotonic() - started
        return ProgramRun(faults=faults, blocks=blocks, accesses=accesses, seconds=seconds, steps=tuple(steps))

    def _launch_of(
        self,
        number: int,
        kernel: KernelEntry,
        arguments: Sequence[Any],
        placed: Mapping[str, ArenaTensor],
        *,
        grid: int,
        seed: int,
        time_limit_s: float,
        ends: int,
    ) -> LaunchArguments:
        unit = load_unit(self.unit)
        shared = unit[f"normgen_shared_of_{self.index}"]
        shared.restype = ctypes.c_void_p
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(*(ctypes.addressof(value) for value in arguments))
        regions = _regions(kernel, placed)
        return LaunchArguments(
            entry=ctypes.cast(unit[f"normgen_entry_{self.index}_{number}"], ctypes.c_void_p),
            shared_begin=shared(0),
            shared_end=shared(1),
            arguments=pointers,
            regions=regions,
            region_count=len(regions),
            grid=grid,
            threads=kernel.launch.threads,
            cluster=grid if kernel.launch.cooperates else kernel.launch.cluster,
            dynamic_bytes=kernel.launch.shared_bytes,
            dependent=int(kernel.launch.dependent),
            ends=ends,
            seed=seed,
            time_limit_s=time_limit_s,
        )

    def _launched(self, launch: LaunchArguments, *, trace: bool) -> LaunchReport:
        runtime, report = load_runtime(self.runtime), LaunchReport()
        if trace:
            room_for_steps(launch)
        with LAUNCH_LOCK:
            runtime.normgen_cpu_launch(ctypes.byref(launch), ctypes.byref(report))
        return report

    def _faults(self, kernel: KernelEntry, report: LaunchReport) -> tuple[Fault, ...]:
        return make_faults(
            report.faults[: report.fault_count],
            module=self.module,
            kernel=kernel.name,
            text_file=text_name(self.index),
            lookup=lambda addresses: find_frames(self.unit, addresses, text_file=text_name(self.index)),
        )


def _check_launch(kernel: KernelEntry, grid: int) -> None:
    launch = kernel.launch
    if launch.cooperates and grid > TOGETHER:
        raise UsageError(
            f"the executor runs at most {TOGETHER} blocks that wait for each other",
            received=f"{kernel.name}: {grid} blocks",
            hint="fewer rows, or an sm_count with fewer blocks",
        )
    legal = 1 <= launch.threads <= 1024 and 1 <= launch.cluster <= 16 and 0 <= launch.shared_bytes <= 256 * 1024
    if not legal or grid % (launch.cluster * launch.parts):
        raise UsageError(
            "a launch has 1..1024 threads, whole clusters of 1..16 blocks and at most 256 KiB of shared memory",
            received=f"{kernel.name}: {grid} blocks, {launch}",
        )


def _argument(
    param: Param,
    values: Mapping[str, ArenaTensor | None],
    *,
    sizes: Mapping[Source, int],
    scalars: Mapping[str, float],
) -> Any:
    """The ctypes value of one kernel parameter."""
    key = WORKSPACE if param.source is Source.WORKSPACE else param.key
    known: Mapping[str, Any] = scalars if param.source is Source.SCALAR else values
    size = Source(key) if param.source is Source.INVERSE else param.source
    if size not in sizes and key not in known and not param.nullable:
        raise UsageError(
            f"kernel parameter '{param.name}' needs {param.source} '{key}'",
            received=", ".join(sorted(known)) or "nothing",
        )
    if param.source is Source.TENSOR or param.source is Source.WORKSPACE:
        tensor = values.get(key)
        return ctypes.c_void_p(tensor.address + param.offset if tensor is not None else None)
    if param.boxes is not None:
        tensor = values.get(key)
        assert tensor is not None, "a side of a product is there"
        (line, elements), (along, lines) = param.boxes.line, param.boxes.lines
        matrix = tensor.address, tensor.pitch_bytes, sizes[line], sizes[along]
        return _aligned((*matrix, elements, lines, param.boxes.element_type))
    if param.source is Source.PITCH:
        tensor = values.get(key)
        return _number(param, tensor.pitch if tensor is not None else 0)
    if param.source is Source.SCALAR:
        return _number(param, scalars[key])
    return _number(param, inverse_of(sizes[size]) if param.source is Source.INVERSE else sizes[size])


def _aligned(words: Sequence[int]) -> Any:
    """A tensor map of these words, at a multiple of 64 as its type asks."""
    kind = ctypes.c_ulonglong * MAP_WORDS
    room = ctypes.create_string_buffer(2 * ctypes.sizeof(kind))
    found = kind.from_buffer(room, -ctypes.addressof(room) % MAP_ALIGNMENT)
    found[: len(words)] = list(words)
    return found


def _number(param: Param, value: float) -> Any:
    ctype = _CTYPES.get(param.ctype)
    if ctype is None:
        raise UsageError(
            f"kernel parameter '{param.name}' is not a number",
            received=param.ctype,
            hint="one of " + ", ".join(_CTYPES),
        )
    return ctype(value)


def _pointer_params(kernel: KernelEntry) -> list[tuple[str, bool]]:
    """(tensor, written) of every pointer parameter."""
    return [
        (WORKSPACE if param.source is Source.WORKSPACE else param.key, "const" not in param.ctype)
        for param in kernel.params
        if param.source in (Source.TENSOR, Source.WORKSPACE)
    ]


def _written_keys(kernel: KernelEntry) -> set[str]:
    return {key for key, written in _pointer_params(kernel) if written}


def _regions(kernel: KernelEntry, placed: Mapping[str, ArenaTensor]) -> Any:
    """What this kernel may touch: the tensors it is given."""
    keys = dict.fromkeys(key for key, _ in _pointer_params(kernel) if key in placed)
    written = _written_keys(kernel)
    stable = {param.key for param in kernel.params if param.stable}
    return (Region * len(keys))(
        *(
            Region(
                base=placed[key].address,
                rows=placed[key].rows,
                row_bytes=placed[key].row_bytes,
                pitch_bytes=placed[key].pitch_bytes,
                writable=int(key in written),
                stable=int(key in stable),
                cell_bytes=CELL_BYTES if key == WORKSPACE else placed[key].original.itemsize,
                name=key.encode(),
            )
            for key in keys
        )
    )
