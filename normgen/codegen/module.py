"""What the emitter hands on: CUDA text, its kernels in launch order, and how to call each of them.

The layers below (NVRTC, driver, CPU executor) see names, sizes and argument lists, never a formula.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from normgen.device import MOST_BLOCKS, MOST_TOGETHER
from normgen.errors import UsageError


class Source(StrEnum):
    """Where a kernel argument comes from at launch."""

    TENSOR = "tensor"  # pointer to tensor `key`; null when a nullable one is not given
    PITCH = "pitch"  # long long: row stride of tensor `key`, in elements
    TENSOR_MAP = "tensor_map"  # TensorMap: tensor `key` as the copy engine knows it, cut into the parameter's boxes
    ROWS = "rows"  # int
    COLS = "cols"  # int
    INNER = "inner"  # int: the axis that a product of matrices sums
    ROWS_PER_BATCH = "rows_per_batch"  # int
    BATCHES = "batches"  # int: 0 of no rows, where nobody says otherwise
    INVERSE = "inverse"  # unsigned long long: what divides by `key`, rows_per_batch or batches; see `inverse_of`
    SCALAR = "scalar"  # float: scalar `key` of the spec
    WORKSPACE = "workspace"  # pointer to the workspace plus `offset` bytes
    BLOCKS = "blocks"  # int: blocks of the module's first kernel


OF_ONE_ARCH = "wgmma.mma_async"  # an instruction of sm_90 alone


def target(arch: int, text: str) -> str:
    """The architecture that a text is compiled for: instructions that one alone has ask for its own target."""
    return f"sm_{arch}a" if OF_ONE_ARCH in text else f"sm_{arch}"


def inverse_of(divisor: int) -> int:
    """2^64 / divisor, rounded up, with which `quotient` of the device library divides; 0 of 1 and of none."""
    return -(-(1 << 64) // divisor) if divisor > 1 else 0


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """How the copy engine cuts a matrix: a box has lines of 128 bytes or of 64, within which it swizzles.

    line    (size, elements): the axis along which lines lie, and what a box has of it
    lines   the same of the other axis
    rounds  whether its elements are float32, which are rounded to TF32 on their way; else they have 16 bits
    """

    line: tuple[Source, int]
    lines: tuple[Source, int]
    rounds: bool = field(default=False, repr=False)  # a kernel's text says so too

    @property
    def element_bytes(self) -> int:
        return 4 if self.rounds else 2

    @property
    def line_bytes(self) -> int:
        """Bytes of a line of a box."""
        return self.element_bytes * self.line[1]

    @property
    def element_type(self) -> int:
        """A CUtensorMapDataType: UINT16, or TFLOAT32."""
        return 11 if self.rounds else 1


@dataclass(frozen=True, kw_only=True)
class Param:
    """One kernel parameter, in ABI order."""

    name: str
    ctype: str  # as in the text: "const float*", "long long", "int", "float"
    source: Source
    key: str = ""
    offset: int = 0
    nullable: bool = False  # the kernel takes null: of a statistic or gradient nobody wants, of an optional input
    stable: bool = False  # a dependent launch may read it while kernels before it still run: none of them writes it
    boxes: Boxes | None = field(default=None, repr=False)  # of a tensor map


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to size a launch; everything but the row count is fixed when the text is emitted."""

    threads: int
    rows_per_block: int = 1  # rows of a trip of a block
    cluster: int = 1  # consecutive blocks (x) that share a row
    parts: int = 1  # consecutive blocks (x) that share a row without a cluster
    persistent: int = 0  # blocks per SM; 0: one block (or cluster) per row tile
    shared_bytes: int = 0  # dynamic shared memory
    blocks: int = 0  # a fixed grid, whatever rows is; 0: by rows
    dependent: bool = False  # may start while the kernel before it ends; its text waits before it reads (sm_90)
    period: int = 1  # the blocks of a persistent grid are a multiple of it: a thread's rows all start at one alignment
    min_blocks: int = 0  # blocks to launch even for 0 rows: column sums of nothing are zeros, and must be written
    by_batch: bool = field(default=False, repr=False)  # each batch of rows has blocks of its own, all equally many
    cooperates: bool = field(default=False, repr=False)  # its blocks wait for each other: all of them must be resident
    tiles: tuple[tuple[Source, int], ...] = field(default=(), repr=False)  # (size, of a tile): a block for each tile

    @property
    def walks(self) -> bool:
        """Whether blocks walk rows, so that any grid of whole clusters and periods serves any number of rows."""
        return (self.persistent > 0 or self.min_blocks > 0) and not self.blocks

    @property
    def loops_clusters(self) -> bool:
        """Whether whole clusters walk rows: a launch has no more of them than fit the device at a time."""
        return self.cluster > 1 and self.persistent > 0

    def grid(
        self, *, rows: int, sm_count: int, batches: int = 1, cols: int = 1, inner: int = 1, rows_per_batch: int = 0
    ) -> int:
        """Blocks in x for that many rows, of so many batches; 0: nothing to launch. Tiles need the other sizes, too.

        Raises UsageError for more blocks than a launch may have.
        """
        sizes = {"rows": rows, "batches": batches, "cols": cols, "inner": inner, "rows_per_batch": rows_per_batch}
        blocks = self._blocks(sm_count=sm_count, **sizes)
        if blocks > MOST_BLOCKS:
            asked = ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
            rule = f"a launch has at most {MOST_BLOCKS} blocks"
            raise UsageError(rule, received=f"{blocks} for {asked}", hint="call it for a part of the rows at a time")
        return blocks

    def _blocks(self, *, rows: int, sm_count: int, batches: int, cols: int, inner: int, rows_per_batch: int) -> int:
        if self.tiles:
            sizes = {Source.ROWS: rows, Source.COLS: cols, Source.INNER: inner}
            sizes |= {Source.BATCHES: batches, Source.ROWS_PER_BATCH: rows_per_batch}
            tiles = self.cluster * math.prod(-(-sizes[size] // tile) for size, tile in self.tiles)
            return min(tiles, self.persistent * sm_count) if self.persistent else tiles
        shares = max(1, batches) if self.by_batch else 1
        if self.blocks:
            return self.blocks * shares
        tiles = -(-rows // shares // self.rows_per_block)
        if self.persistent:
            resident = self.persistent * sm_count
            resident = min(resident, MOST_TOGETHER) if self.cooperates else resident
            most = max(1, resident // (self.cluster * self.parts) // shares)
            tiles = min(tiles, max(self.period, most - most % self.period))
        return max(tiles, self.min_blocks) * self.cluster * self.parts * shares

    def fitting(self, blocks: int, *, clusters: int, batches: int = 1) -> int:
        """Of a grid that loops over rows, no more blocks than those clusters have that fit the device at a time."""
        shares = max(1, batches) if self.by_batch else 1
        each = clusters // shares
        return min(blocks, max(self.period, each - each % self.period) * self.cluster * shares)


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Scratch bytes of a call.

    fixed   all kernels share them, zeroed once before the first call; every call leaves them zeroed again
    column  any_cols: what of the fixed ones (of the problem's own cols), or of those for each batch, each column costs
    block   for each block of the first kernel, or each of its tiles, behind the zeroed part; never initialised
    batch   what each batch of rows adds to the fixed ones, zeroed like them
    """

    fixed: int = 0
    column: int = 0
    block: int = 0
    batch: int = 0


@dataclass(frozen=True, kw_only=True)
class KernelEntry:
    """One `__global__` entry of a module: `extern "C"`, or the instance of a template for the type `config`."""

    name: str
    params: tuple[Param, ...]
    launch: Launch
    config: str = ""

    @property
    def expression(self) -> str:
        """The entry as C++ names it."""
        return f"{self.name}<{self.config}>" if self.config else self.name


@dataclass(frozen=True, kw_only=True)
class Module:
    """One translation unit.

    instructions   the device library's hardware instructions (inline PTX); the CPU executor has its own in their place
    text           the kernels and their portable helpers: the same for every executor
    kernels        in launch order, on one stream
    min_arch       lowest sm_NN the text builds for
    headers        CUDA headers the text includes ("cooperative_groups.h"), usually none
    workspace      scratch bytes that a call needs
    chain  the longest run of additions in a row sum of the problem's own cols; 0: not known
    """

    instructions: str
    text: str
    kernels: tuple[KernelEntry, ...]
    min_arch: int = 75
    headers: tuple[str, ...] = ()
    workspace: Workspace = Workspace()
    chain: int = 0

    def zeroed_bytes(self, batches: int = 1) -> int:
        """Of the scratch bytes of a call with so many batches of rows, those at the start that must be zeros."""
        return self.workspace.fixed + max(1, batches) * self.workspace.batch

    def workspace_bytes(self, *, rows: int, sm_count: int, batches: int = 1, **lengths: int) -> int:
        """Scratch bytes one call needs; calls on different streams need workspaces of their own.

        lengths  cols, inner and rows_per_batch, for which tiles ask
        """
        launch = self.kernels[0].launch
        launch = replace(launch, persistent=0) if launch.tiles else launch  # each tile leaves something
        blocks = launch.grid(rows=rows, sm_count=sm_count, batches=batches, **lengths)
        return self.zeroed_bytes(batches) + blocks * self.workspace.block

    @property
    def source(self) -> str:
        """The whole text for NVRTC or nvcc."""
        return self.instructions + self.text

    @cached_property
    def digest(self) -> str:
        """What decides the behaviour: the text and how it is launched, whatever the kernels are called."""
        text = self.source
        for number, kernel in enumerate(self.kernels):
            text = text.replace(kernel.name, f"kernel_{number}")
        return hashlib.sha256(f"{text}\0{self.launches}".encode()).hexdigest()

    @property
    def launches(self) -> str:
        """How the kernels are launched, as text."""
        launches = [(kernel.params, kernel.launch) for kernel in self.kernels]
        said = repr((launches, self.workspace.fixed, self.workspace.block))
        batched = [kernel.launch.by_batch for kernel in self.kernels]
        said += f" {batched} {self.workspace.batch}" if any(batched) or self.workspace.batch else ""
        cooperating = [kernel.launch.cooperates for kernel in self.kernels]
        said += f" {cooperating} together" if any(cooperating) else ""
        tiles = [kernel.launch.tiles for kernel in self.kernels]
        said += f" {tiles}" if any(tiles) else ""
        boxes = [param.boxes for kernel in self.kernels for param in kernel.params if param.boxes]
        return f"{said} {boxes}" if boxes else said
