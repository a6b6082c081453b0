"""Loaded modules and their launches, with the arguments packed once.

A kernel's argument list is an array of addresses of cells; all kernels of a module share one set of cells.
Setting a cell costs some 40 ns, so that a launch from Python takes 3.7 µs against 4.8 µs through a
general launch function that converts every argument each time (H200, 1x1024 bf16 rmsnorm).
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from array import array
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from normgen.codegen.module import KernelEntry, Launch, Module, Param, Source, inverse_of
from normgen.cuda.cubin import Cubin, entries_of, symbol_of
from normgen.cuda.driver import OnDevice, RelaxedCapture, check, driver, sm_count
from normgen.cuda.stream import Stream
from normgen.errors import NormgenError

_STATIC_SHARED_LIMIT = 48 << 10  # above it, dynamic shared memory must be asked for
_PORTABLE_CLUSTER = 8
MAP_BYTES = 128  # of a CUtensorMap
MAP_CELLS = 7  # of what it is encoded of


def encoded(
    address: int, pitch_bytes: int, line: int, lines: int, box_line: int, box_lines: int, kind: int, *, line_bytes: int
) -> bytes:
    """A tensor map: of lines of so many elements of a kind, a pitch apart; boxes are swizzled within their lines."""
    bindings = driver()
    word, count = bindings.cuuint64_t, bindings.cuuint32_t
    answer = bindings.cuTensorMapEncodeTiled(
        bindings.CUtensorMapDataType(kind),
        2,
        address,
        [word(line), word(lines)],
        [word(pitch_bytes)],
        [count(box_line), count(box_lines)],
        [count(1), count(1)],
        bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(bindings.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{line_bytes}B"),
        bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        bindings.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return bytes(ctypes.string_at(int(check(answer, "encode a tensor map").getPtr()), MAP_BYTES))


def attributes_of(launch: Launch, bindings: Any, *, dependent: bool) -> list[Any]:
    """Attributes of a launch through cuLaunchKernelEx: clusters, blocks that wait for each other, an early start."""
    ids, attributes = bindings.CUlaunchAttributeID, []
    if launch.cooperates:
        together = bindings.CUlaunchAttribute()
        together.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        together.value.cooperative = 1
        attributes.append(together)
    if launch.cluster > 1:
        cluster = bindings.CUlaunchAttribute()
        cluster.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x = launch.cluster
        cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
        attributes.append(cluster)
    if dependent:
        early = bindings.CUlaunchAttribute()
        early.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    return attributes


class LoadedKernel:
    """One kernel of a loaded module, with its attributes set for its launch."""

    def __init__(self, kernel: KernelEntry, function: Any, device: int, *, dependent_launch: bool) -> None:
        self.kernel, self.device = kernel, device
        self.handle = int(function)
        self._function = function
        self.starts_early = dependent_launch or kernel.launch.dependent
        self.sm_count = sm_count(device)
        self._set_attributes()

    @property
    def needs_attributes(self) -> bool:
        """Whether a launch goes through cuLaunchKernelEx."""
        launch = self.kernel.launch
        return launch.cluster > 1 or launch.cooperates or self.starts_early

    def grid(self, rows: int, batches: int = 1, *, cols: int = 1, inner: int = 1, rows_per_batch: int = 0) -> int:
        """Blocks to launch for so many rows, of so many batches; of tiles for these cols and this inner, too.

        Of a persistent grid no more clusters than fit the device at a time.

        Clusters lie within one of the device's SM groups, whose sizes need not be multiples of theirs: 132 SMs need not
        hold 33 clusters of 4, and one that waits for another to end would double the time.
        """
        launch = self.kernel.launch
        sizes = {"cols": cols, "inner": inner, "rows_per_batch": rows_per_batch if rows else 0}
        blocks = launch.grid(rows=rows, sm_count=self.sm_count, batches=batches, **sizes)
        if not launch.loops_clusters:
            return blocks
        return launch.fitting(blocks, clusters=self._resident_clusters, batches=batches)

    @cached_property
    def _resident_clusters(self) -> int:
        return max(1, self.active_clusters())

    def config(self) -> Any:
        """A cuLaunchKernelEx configuration with everything but grid and stream filled in."""
        bindings, launch = driver(), self.kernel.launch
        config = bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.cluster, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes = launch.shared_bytes
        attributes = attributes_of(launch, bindings, dependent=self.starts_early)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def attribute(self, name: str) -> int:
        """A CU_FUNC_ATTRIBUTE_* as the driver reports it: NUM_REGS, LOCAL_SIZE_BYTES, SHARED_SIZE_BYTES ..."""
        bindings = driver()
        which = getattr(bindings.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(check(bindings.cuFuncGetAttribute(which, self._function), f"tell {name} of {self.kernel.name}"))

    def blocks_per_sm(self) -> int:
        """Blocks of this launch that fit one SM at a time."""
        launch, bindings = self.kernel.launch, driver()
        with OnDevice(self.device):
            answer = bindings.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self._function, launch.threads, launch.shared_bytes
            )
        return int(check(answer, f"tell the occupancy of {self.kernel.name}"))

    def active_clusters(self) -> int:
        """Clusters of this launch that fit the device at a time; 0: it cannot run here."""
        bindings, config = driver(), self.config()
        with OnDevice(self.device):
            answer = bindings.cuOccupancyMaxActiveClusters(self._function, config)
        return int(check(answer, f"tell the clusters of {self.kernel.name}"))

    def _set_attributes(self) -> None:
        bindings, launch = driver(), self.kernel.launch
        kinds, wanted = bindings.CUfunction_attribute, []
        if launch.shared_bytes > 0 and launch.shared_bytes + self.attribute("SHARED_SIZE_BYTES") > _STATIC_SHARED_LIMIT:
            wanted.append((kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared_bytes))
        if launch.cluster > _PORTABLE_CLUSTER:
            wanted.append((kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
        for kind, value in wanted:
            check(
                bindings.cuFuncSetAttribute(self._function, kind, value),
                f"let {self.kernel.name} use {launch.shared_bytes} bytes of shared memory, cluster {launch.cluster}",
            )


class LoadedModule:
    """A cubin in a device's context, ready to be bound to arguments and launched.

    `dependent_launch` lets each kernel start before the one in front of it in the stream has ended
    (its text must then call `griddepcontrol_wait`).
    """

    def __init__(self, module: Module, cubin: Cubin, *, device: int = 0, dependent_launch: bool = False) -> None:
        self.module, self.cubin, self.device = module, cubin, device
        bindings = driver()
        with OnDevice(device), RelaxedCapture():  # a first call may be one that is captured
            self._handle = check(bindings.cuModuleLoadData(cubin.data), "load the cubin")
            try:
                self.kernels = tuple(
                    LoadedKernel(kernel, self._function(kernel), device, dependent_launch=dependent_launch)
                    for kernel in module.kernels
                )
            except NormgenError:
                self.close()
                raise

    def bind(self) -> BoundLaunch:
        """A new set of argument cells for this module."""
        return BoundLaunch(self)

    def close(self) -> None:
        """Unload the module; nothing of it may run or be launched any more."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with OnDevice(self.device), RelaxedCapture():
                check(driver().cuModuleUnload(handle), "unload a module")

    def __del__(self) -> None:
        # At interpreter exit or after a faulting kernel the driver refuses; there is nobody to tell.
        try:
            self.close()
        except Exception:
            self._handle = None

    def _function(self, kernel: KernelEntry) -> Any:
        symbol = symbol_of(kernel, entries_of(self.cubin.data)) or kernel.name
        found = driver().cuModuleGetFunction(self._handle, symbol.encode())
        return check(found, f"find kernel {kernel.name} in its cubin")


_interned: dict[tuple[str, int, tuple[KernelEntry, ...]], LoadedModule] = {}
_interning = threading.Lock()


def interned(module: Module, cubin: Cubin, *, device: int = 0) -> LoadedModule:
    """The one loaded module of this machine code in this process; it is never unloaded.

    A captured graph holds addresses in a module and says to nobody when it is gone: unloading the module with its
    handle left graphs that crashed at their next replay. What stays is bounded by the kernels a program uses.
    """
    key = (hashlib.sha256(cubin.data).hexdigest(), device, module.kernels)
    with _interning:
        if key not in _interned:
            _interned[key] = LoadedModule(module, cubin, device=device)
        return _interned[key]


_CELLS: dict[Source, Any] = {
    Source.TENSOR: ctypes.c_void_p,
    Source.TENSOR_MAP: ctypes.c_ubyte * MAP_BYTES,
    Source.PITCH: ctypes.c_longlong,
    Source.ROWS: ctypes.c_int,
    Source.COLS: ctypes.c_int,
    Source.INNER: ctypes.c_int,
    Source.ROWS_PER_BATCH: ctypes.c_int,
    Source.BATCHES: ctypes.c_int,
    Source.INVERSE: ctypes.c_ulonglong,
    Source.SCALAR: ctypes.c_float,
    Source.WORKSPACE: ctypes.c_void_p,
    Source.BLOCKS: ctypes.c_int,
}


class BoundLaunch:
    """One set of arguments of a loaded module: set what changes, then launch.

    A captured launch keeps the values it had at capture.
    """

    def __init__(self, loaded: LoadedModule) -> None:
        self.loaded = loaded
        self._bindings = driver()
        self._cells: dict[tuple[Source, str, int], Any] = {}
        self._rows, self._rows_per_batch, self._batches = -1, 0, 1
        self._lengths = {"cols": 1, "inner": 1}
        self._launches = [
            (kernel, self._pack(kernel.kernel.params), kernel.config() if kernel.needs_attributes else None)
            for kernel in loaded.kernels
        ]
        self._addresses = [ctypes.addressof(array) for _, array, _ in self._launches]
        self._grids = [0] * len(self._launches)
        self._pointers = {key: cell for (source, key, _), cell in self._cells.items() if source is Source.TENSOR}
        self._pitches = {key: cell for (source, key, _), cell in self._cells.items() if source is Source.PITCH}
        params = dict.fromkeys(param for kernel, _, _ in self._launches for param in kernel.kernel.params)
        self._maps = [param for param in params if param.boxes]
        self._mapped: dict[str, bytes] = {}

    def set(
        self,
        *,
        pointers: Mapping[str, int | None] | None = None,
        pitches: Mapping[str, int] | None = None,
        rows: int | None = None,
        cols: int | None = None,
        inner: int | None = None,
        rows_per_batch: int | None = None,
        scalars: Mapping[str, float] | None = None,
        workspace: int | None = None,
    ) -> BoundLaunch:
        """Set arguments; names the kernels do not take are ignored, what is not named keeps its value.

        pointers of tensors (None: not given), pitches in elements, the address of the workspace.
        """
        for key, pointer in (pointers or {}).items():
            self._store(Source.TENSOR, key, pointer)
        for key, pitch in (pitches or {}).items():
            self._store(Source.PITCH, key, pitch)
        for key, value in (scalars or {}).items():
            self._store(Source.SCALAR, key, value)
        if rows_per_batch is not None:
            self._rows_per_batch = self._lengths["rows_per_batch"] = rows_per_batch
            self._store(Source.ROWS_PER_BATCH, "", rows_per_batch)
            self._store(Source.INVERSE, "rows_per_batch", inverse_of(rows_per_batch))
        lengths = {name: length for name, length in (("cols", cols), ("inner", inner)) if length is not None}
        for name, length in lengths.items():
            self._store(Source(name), "", length)
        self._lengths |= lengths
        if rows is not None:
            self.set_rows(rows)
        if (lengths or rows_per_batch is not None) and self._rows >= 0:
            self._count_blocks()
        if workspace is not None:
            for (source, _, offset), cell in self._cells.items():
                if source is Source.WORKSPACE:
                    cell.value = workspace + offset
        return self

    def set_rows(self, rows: int, batches: int | None = None) -> None:
        """Set the row count, how many batches these are (None: as many as the rows fill), and the grids that follow."""
        if batches is None:
            batches = -(-rows // self._rows_per_batch) if self._rows_per_batch else 1
        if (rows, batches) != (self._rows, self._batches):
            self._rows, self._batches = rows, batches
            self._store(Source.ROWS, "", rows)
            self._store(Source.BATCHES, "", batches)
            self._store(Source.INVERSE, "batches", inverse_of(batches))
            self._count_blocks()

    def _count_blocks(self) -> None:
        sizes = (self._rows, self._batches)
        self._grids = [kernel.grid(*sizes, **self._lengths) for kernel, _, _ in self._launches]
        self._store(Source.BLOCKS, "", self._grids[0])

    def set_tensor(self, key: str, pointer: int | None, pitch: int) -> None:
        """Set a tensor's pointer and, where a kernel takes it, its pitch: the hot path of `set`."""
        cell = self._pointers.get(key)
        if cell is not None:
            cell.value = pointer
        cell = self._pitches.get(key)
        if cell is not None:
            cell.value = pitch

    def launch(self, stream: Stream | int) -> None:
        """Queue every kernel that has blocks (0 rows: often none) in order.

        The device's context must be current (`OnDevice`).
        """
        queue = int(stream)
        self._encode()
        for (kernel, _, config), address, grid in zip(self._launches, self._addresses, self._grids, strict=True):
            if not grid:
                continue
            if config is None:
                shape = kernel.kernel.launch
                answer = self._bindings.cuLaunchKernel(
                    kernel.handle, grid, 1, 1, shape.threads, 1, 1, shape.shared_bytes, queue, address, 0
                )
            else:
                config.gridDimX = grid
                config.hStream = queue
                answer = self._bindings.cuLaunchKernelEx(config, kernel.handle, address, 0)
            if answer[0]:
                check(answer, f"launch {kernel.kernel.name} on {grid} blocks")

    def launches(self) -> Iterator[tuple[int, int, int, int, int, tuple[Param, ...]]]:
        """Of each kernel: function, threads, cluster, shared bytes, how it starts, parameters.

        How: 1 where it may start early, 2 where its blocks wait for each other, 0 else.
        """
        for kernel, _, _ in self._launches:
            launch, params = kernel.kernel.launch, kernel.kernel.params
            how = int(kernel.starts_early) | int(launch.cooperates) << 1
            yield kernel.handle, launch.threads, launch.cluster, launch.shared_bytes, how, params

    def packed(self) -> tuple[bytes, bytes]:
        """The arguments of all kernels as they stand, 8 bytes each, and the grids (int64).

        Of a tensor map they are what it is encoded of: MAP_CELLS of them.
        """
        params = (param for kernel, _, _ in self._launches for param in kernel.kernel.params)
        cells = (self._facts(p) if p.boxes else bytes(self._cell(p)).ljust(8, b"\0") for p in params)
        return b"".join(cells), array("q", self._grids).tobytes()

    def _facts(self, param: Param) -> bytes:
        """Address, bytes of a pitch, elements of a line, lines, both of a box, kind of elements."""
        assert param.boxes is not None
        (line, elements), (along, lines) = param.boxes.line, param.boxes.lines
        sizes, address = self._sizes, self._pointers[param.key].value or 0
        pitch = param.boxes.element_bytes * self._pitches[param.key].value
        kind = param.boxes.element_type
        return array("q", [address, pitch, sizes[line], sizes[along], elements, lines, kind]).tobytes()

    def _encode(self) -> None:
        """Tensor maps of addresses, pitches and sizes as they are now: one is encoded once for all launches alike."""
        for param in self._maps:
            assert param.boxes is not None
            facts, line_bytes = self._facts(param), param.boxes.line_bytes
            if self._mapped.get(param.key) != facts and any(self._grids):
                ctypes.memmove(self._cell(param), encoded(*array("q", facts), line_bytes=line_bytes), MAP_BYTES)
                self._mapped[param.key] = facts

    @property
    def _sizes(self) -> dict[Source, int]:
        return {Source.ROWS: self._rows, Source.COLS: self._lengths["cols"], Source.INNER: self._lengths["inner"]}

    def _pack(self, params: tuple[Param, ...]) -> Any:
        cells = [self._cell(param) for param in params]
        return (ctypes.c_void_p * max(len(cells), 1))(*(ctypes.addressof(cell) for cell in cells))

    def _cell(self, param: Param) -> Any:
        key = (param.source, param.key, param.offset)
        if key not in self._cells:
            self._cells[key] = _CELLS[param.source](0)
        return self._cells[key]

    def _store(self, source: Source, key: str, value: float | int | None) -> None:
        cell = self._cells.get((source, key, 0))
        if cell is not None:
            cell.value = value
