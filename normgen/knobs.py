"""The knobs of a schedule: one table. Schema, help, docs, the search space and the strata of a sweep derive from it.

A new knob is a row here, a field of `Schedule`, and the module that acts on it. Its plain value is the one that does
nothing: a schedule's key leaves plain knobs out, so that a new knob renames no kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from normgen.dtypes import DTYPES
from normgen.errors import UsageError, did_you_mean


class Group(StrEnum):
    """What a knob decides; the space is enumerated group by group."""

    CUT = "how rows are cut"
    PLACE = "where rows wait, and how many"
    METHOD = "how statistics and sums are computed"
    FREE = "what changes nothing but the time"
    TILE = "how a product of matrices is cut"


class ReduceWith(StrEnum):
    """How the threads of a row combine."""

    SHUFFLE = "shuffle"
    SHORT_CHAINS = "short_chains"
    COOPERATIVE_GROUPS = "cooperative_groups"
    SHARED_TREE = "shared_tree"

    @property
    def is_short(self) -> bool:
        """Whether as few steps as possible wait for each other, at the price of more instructions."""
        return self is ReduceWith.SHORT_CHAINS


class VarianceMethod(StrEnum):
    """The rewrite of a variance."""

    TWO_PASS = "two_pass"
    CORRECTED_TWO_PASS = "corrected_two_pass"
    SUM_OF_SQUARES = "sum_of_squares"
    SHIFTED = "shifted"
    WELFORD = "welford"
    GUARDED = "guarded"

    @property
    def looks_once(self) -> bool:
        """Whether mean and variance come from one look at the row; guarded: of most rows."""
        return self not in (VarianceMethod.TWO_PASS, VarianceMethod.CORRECTED_TWO_PASS)


class SoftmaxMethod(StrEnum):
    """The rewrite of a softmax denominator."""

    TWO_PASS = "two_pass"
    ONLINE = "online"


class Hold(StrEnum):
    """Where a row waits between looks."""

    REGISTERS = "registers"
    SHARED = "shared"
    HYBRID = "hybrid"
    RELOAD = "reload"

    @property
    def in_shared(self) -> bool:
        """Whether the row, or a part of it, waits in shared memory."""
        return self in (Hold.SHARED, Hold.HYBRID)

    @property
    def reads_again(self) -> bool:
        """Whether each look reads the row from memory."""
        return self is Hold.RELOAD


class Keep(StrEnum):
    """What of a row held in registers waits there between looks."""

    ROW = "row"
    VALUES = "values"


class Copy(StrEnum):
    """How a row reaches the SM."""

    DIRECT = "direct"
    CP_ASYNC = "cp_async"
    BULK = "bulk"

    @property
    def is_asynchronous(self) -> bool:
        """Whether the row goes to shared memory while threads do something else."""
        return self is not Copy.DIRECT

    @property
    def is_by_rows(self) -> bool:
        """Whether whole rows are copied, by no thread in particular."""
        return self is Copy.BULK

    @property
    def is_by_threads(self) -> bool:
        """Whether each thread copies its own vectors to slots of its own."""
        return self is Copy.CP_ASYNC


class Edges(StrEnum):
    """What becomes of the elements that no whole aligned vector covers."""

    EXACT = "exact"
    MASKED = "masked"
    PEEL = "peel"


class LoadHint(StrEnum):
    """The cache hint of the elem tensors' loads."""

    DEFAULT = "default"
    STREAMING = "streaming"
    CACHE_GLOBAL = "cache_global"
    NO_ALLOCATE = "no_allocate"
    EVICT_FIRST = "evict_first"
    EVICT_LAST = "evict_last"


class StoreHint(StrEnum):
    """The cache hint of the elem tensors' stores."""

    DEFAULT = "default"
    STREAMING = "streaming"
    CACHE_GLOBAL = "cache_global"
    EVICT_FIRST = "evict_first"


class Params(StrEnum):
    """When the column parameters are read."""

    EARLY = "early"
    LATE = "late"
    KEPT = "kept"
    PACKED = "packed"
    PREFETCHED = "prefetched"

    @property
    def in_registers(self) -> bool:
        """Whether a thread holds them while it works on its row."""
        return self is not Params.LATE

    @property
    def read_early(self) -> bool:
        """Whether they are read before the reductions of each row."""
        return self in (Params.EARLY, Params.PREFETCHED)

    @property
    def are_kept(self) -> bool:
        """Whether a block reads them once for all its rows."""
        return self in (Params.KEPT, Params.PACKED)

    @property
    def asked_ahead(self) -> bool:
        """Whether they come to L2 before the kernel asks for its row."""
        return self is Params.PREFETCHED


class ColumnWay(StrEnum):
    """How column reductions (dweight, dbias) are summed over blocks."""

    PARTIALS_TWO_KERNELS = "partials_two_kernels"
    PARTIALS_LAST_TILE = "partials_last_tile"
    REGISTER_ATOMIC = "register_atomic"
    SHARED_ATOMIC = "shared_atomic"
    ATOMIC = "atomic"

    @property
    def in_registers(self) -> bool:
        """Whether a thread adds up its rows before it hands a sum on."""
        return self not in (ColumnWay.ATOMIC, ColumnWay.SHARED_ATOMIC)

    @property
    def is_deterministic(self) -> bool:
        """Whether sums have the same bits in every run: each in a fixed order, no atomics on sums."""
        return self in (ColumnWay.PARTIALS_TWO_KERNELS, ColumnWay.PARTIALS_LAST_TILE)

    @property
    def has_two_kernels(self) -> bool:
        """Whether a second kernel adds rows of partial sums."""
        return self is ColumnWay.PARTIALS_TWO_KERNELS


class DependentLaunch(StrEnum):
    """Programmatic dependent launch: when a kernel starts, and when it lets the next one start."""

    OFF = "off"
    ON = "on"
    START = "start"
    LOADS = "loads"
    END = "end"

    @property
    def is_chained(self) -> bool:
        """Whether the call's first kernel, too, may start before the kernel in front of it in the stream has ended."""
        return self in (DependentLaunch.START, DependentLaunch.LOADS, DependentLaunch.END)


class RowOrder(StrEnum):
    """Which rows a launch begins with."""

    ASCENDING = "ascending"
    DESCENDING = "descending"

    @property
    def descends(self) -> bool:
        """Whether the last rows come first: those that the kernel in front, as most do, has just written."""
        return self is RowOrder.DESCENDING


class Statistics(StrEnum):
    """What a kernel does about statistics that its caller may not want."""

    NULLABLE = "nullable"
    LEFT_OUT = "left_out"


class Fragment(StrEnum):
    """Who multiplies the factors of a tile."""

    SIMT = "simt"
    MMA = "mma"
    WGMMA = "wgmma"


class Division(StrEnum):
    """How the sum of a row is divided by its columns."""

    IEEE = "ieee"
    REMAINDER = "remainder"


class ArithmeticMode(StrEnum):
    """How exponentials are computed."""

    EXACT = "exact"
    APPROXIMATE = "approximate"


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One knob.

    values     all that a schedule may have, in the order of docs and searches
    plain      the value that does nothing
    forward    the values that a spec's forward kernels are searched for, if the spec does not say; () is the plain one
    backward   the same of backward kernels
    taught     values that no record and no race was won by: ladders, `--schedule` and specs name them, no search does
    meaning    what the knob decides
    words      what a value is good for: value -> description; of a knob of numbers, one description under ""
    least_arch the first sm_NN that has a value, where not every arch has it
    elsewhere  what CUDA, PTX and other libraries call a value: value -> names, for hints
    gone       values of earlier versions: value -> what to take instead, for hints
    """

    name: str
    values: tuple[Any, ...]
    plain: Any
    group: Group
    meaning: str
    forward: tuple[Any, ...] = ()
    backward: tuple[Any, ...] = ()
    taught: frozenset[Any] = frozenset()
    words: Mapping[str, str] = field(default_factory=dict)
    least_arch: Mapping[str, int] = field(default_factory=dict)
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_size(self) -> bool:
        """Whether every schedule has some of it: threads, rows, widths."""
        return not self.words


def _tile(name: str, values: tuple[int, ...], meaning: str) -> Knob:
    """A size of the tiles of a contraction; rows have none."""
    return Knob(name=name, values=(0, *values), plain=0, group=Group.TILE, meaning=f"{meaning}; 0: rows have no tiles")


_POWERS = (32, 64, 128, 256, 512, 1024)

TABLE: tuple[Knob, ...] = (
    Knob(
        name="threads_per_row",
        values=(1, 2, 4, 8, 16, *range(32, 1025, 32)),
        plain=256,
        group=Group.CUT,
        meaning="1: a thread owns a row; up to 32: a warp or a part of one, by shuffles; above: whole warps",
        # Other whole warps by name only. On an H200 their best took 1.00 to 1.06 times the powers' best in five decode
        # shapes of 3072 to 7168 cols, and 0.994 (4096x6144 bf16) to 1.028 (4096x3072 bf16) in seven forward ones.
        forward=(1, 2, 4, 8, 16, *_POWERS),
        backward=(1, 8, 16, *_POWERS),
    ),
    Knob(
        name="rows_per_block",
        values=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        plain=1,
        group=Group.CUT,
        meaning="rows side by side in one block",
        forward=(1, 2, 4, 8, 16, 32, 128),  # as far as 256 threads a block
        backward=(1, 2, 4, 8, 16, 32, 128),
    ),
    Knob(
        name="cluster",
        values=(1, 2, 4, 8, 16),
        plain=1,
        group=Group.CUT,
        meaning="blocks that share one row, or the sums of one tile",
        forward=(1, 2, 4, 8, 16),
        backward=(1, 2, 4, 8),
        words={"": "blocks of a cluster share a row, or a tile's k, through distributed shared memory"},
        least_arch={"2": 90, "4": 90, "8": 90, "16": 90},
    ),
    Knob(
        name="parts",
        values=(*range(1, 65), *range(66, 305, 2)),  # as far as two blocks for each SM of the largest GPU
        plain=1,
        group=Group.CUT,
        meaning="blocks of a grid that share one row; what they find of it they exchange in memory (persistent >= 1)",
        forward=tuple(range(1, 65)),
        words={"": "blocks of the grid work on parts of a row, and exchange through memory what all of them need"},
    ),
    Knob(
        name="reduce_with",
        values=tuple(ReduceWith),
        plain=ReduceWith.SHUFFLE,
        group=Group.METHOD,
        meaning="how the threads of a row combine",
        forward=(ReduceWith.SHUFFLE, ReduceWith.SHORT_CHAINS, ReduceWith.COOPERATIVE_GROUPS),
        taught=frozenset({ReduceWith.SHARED_TREE}),
        words={
            "short_chains": "each thread reads what every warp has left; the largest of a warp in one instruction, of "
            "vectors in pairs of 16 bits",
            "cooperative_groups": "cooperative groups combine the lanes",
            "shared_tree": "a tree in shared memory combines the threads",
        },
        least_arch={"short_chains": 80},
        elsewhere={
            "shuffle": ("shfl", "shfl_xor_sync", "__shfl_xor_sync", "warp_shuffle"),
            "short_chains": ("broadcast", "redux", "redux_sync", "__reduce_max_sync"),
            "cooperative_groups": ("cg", "cg::reduce", "coop_groups"),
            "shared_tree": ("shared_memory", "smem", "tree"),
        },
    ),
    Knob(
        name="vector",
        values=(1, 2, 4, 8, 16),
        plain=1,
        group=Group.CUT,
        meaning="elements of one access to the first row input",
        forward=(1, 2, 4, 8),
        backward=(1, 2, 4, 8),
    ),
    Knob(
        name="variance",
        values=tuple(VarianceMethod),
        plain=VarianceMethod.TWO_PASS,
        group=Group.METHOD,
        meaning="the rewrite of a variance",
        # Not sum_of_squares, which loses rows near a level (near_level, sparse_steps of verify/rows.py). Not shifted,
        # although it is right on all families: with 10^3 in two of the three columns it looks at, and standard normal
        # elsewhere, rstd is off by 37 times its bound (4096 cols, f32). Not welford, whose division a column costs 6 to
        # 30 % (the best in seven sweeps on an H200); no record has it.
        forward=(VarianceMethod.TWO_PASS, VarianceMethod.CORRECTED_TWO_PASS, VarianceMethod.GUARDED),
        backward=(VarianceMethod.TWO_PASS, VarianceMethod.CORRECTED_TWO_PASS),
        taught=frozenset({VarianceMethod.SUM_OF_SQUARES, VarianceMethod.SHIFTED, VarianceMethod.WELFORD}),
        words={
            "corrected_two_pass": "the second pass sums the residuals too, and corrects variance and means far from 0",
            "sum_of_squares": "the variance as E[x^2] - mean^2, in one pass",
            "shifted": "the same about the median of three elements: no cancellation unless two of them lie far off",
            "welford": "Welford's running mean and variance",
            "guarded": "E[x^2] - mean^2, and a second pass over the rows where that cancels",
        },
        elsewhere={
            "two_pass": ("2pass",),
            "sum_of_squares": ("one_pass", "e_x2", "naive"),
            "welford": ("online",),
        },
    ),
    Knob(
        name="softmax",
        values=tuple(SoftmaxMethod),
        plain=SoftmaxMethod.TWO_PASS,
        group=Group.METHOD,
        meaning="the rewrite of a softmax denominator",
        forward=tuple(SoftmaxMethod),
        words={"online": "maximum and sum of a softmax in one pass"},
        elsewhere={"two_pass": ("basic", "safe"), "online": ("one_pass", "online_normalizer")},
    ),
    Knob(
        name="hold",
        values=tuple(Hold),
        plain=Hold.RELOAD,
        group=Group.PLACE,
        meaning="where a row waits between passes; hybrid: as much as fits registers, the rest in shared memory",
        forward=tuple(Hold),
        backward=(Hold.REGISTERS, Hold.SHARED, Hold.RELOAD),
        words={
            "registers": "the row waits in registers, or lanes of tensor cores make factors there",
            "shared": "the row waits in shared memory",
            "hybrid": "the row waits in registers and shared memory",
            "reload": "the row is read again for every pass",
        },
        elsewhere={
            "registers": ("regs",),
            "shared": ("smem", "shared_memory"),
            "reload": ("global", "gmem"),
        },
    ),
    Knob(
        name="keep",
        values=tuple(Keep),
        plain=Keep.ROW,
        group=Group.FREE,
        meaning="what of a row in registers waits between passes: the row as it is stored, or its values as floats",
        forward=tuple(Keep),
        backward=tuple(Keep),
        words={"values": "what a later pass needs of an element stays in registers as floats, computed once"},
        elsewhere={"row": ("recompute", "rematerialize")},
    ),
    Knob(
        name="copy",
        values=tuple(Copy),
        plain=Copy.DIRECT,
        group=Group.PLACE,
        meaning="how a row reaches the SM",
        forward=tuple(Copy),
        backward=tuple(Copy),
        words={
            "cp_async": "rows reach shared memory by cp.async",
            "bulk": "rows reach shared memory by cp.async.bulk and an mbarrier",
        },
        least_arch={"cp_async": 80, "bulk": 90},
        elsewhere={"cp_async": ("cp.async", "ldgsts", "memcpy_async"), "bulk": ("tma", "cp.async.bulk")},
    ),
    Knob(
        name="edges",
        values=tuple(Edges),
        plain=Edges.EXACT,
        group=Group.CUT,
        meaning="exact: cols are whole vectors; masked: the last vector is cut; peel: a scalar head and tail",
        forward=tuple(Edges),
        backward=tuple(Edges),
        words={
            "masked": "a masked last vector",
            "peel": "a scalar head and tail around 16-byte accesses of misaligned rows",
        },
        elsewhere={"masked": ("predicated",), "peel": ("head_tail", "prologue")},
    ),
    Knob(
        name="persistent",
        values=(0, 1, 2, 3, 4, 6, 8, 12, 16),
        plain=0,
        group=Group.PLACE,
        meaning="blocks per SM of a grid that loops over rows; 0: one block per row tile",
        forward=(0, 1, 2, 4, 8, 16),
        backward=(0, 1, 2, 3, 4),
        words={"": "a persistent grid whose blocks loop over rows"},
    ),
    Knob(
        name="stages",
        values=(1, 2, 3, 4, 5, 6, 7, 8, 10, 12),
        plain=1,
        group=Group.PLACE,
        meaning="rows in flight: 2 with the next one in registers; by asynchronous copies 1 to 4, or 12 tiles",
        forward=(1, 2),
        backward=(1, 2, 3, 4),
        words={"": "the next rows in flight while one is worked on"},
    ),
    Knob(
        name="unroll",
        values=(0, 1, 2, 4, 8),
        plain=1,
        group=Group.FREE,
        meaning="vectors per loop iteration when the row is not held in registers; 0: all",
        forward=(0, 1, 4),
        backward=(0, 1),
    ),
    Knob(
        name="load",
        values=tuple(LoadHint),
        plain=LoadHint.DEFAULT,
        group=Group.FREE,
        meaning="the cache hint of the elem tensors' loads",
        # Not priorities in L2 where rows leave column sums (8192x768 bf16: 10 % behind; H200).
        forward=(LoadHint.EVICT_LAST, LoadHint.DEFAULT, LoadHint.NO_ALLOCATE),
        backward=(LoadHint.DEFAULT, LoadHint.NO_ALLOCATE),
        taught=frozenset({LoadHint.STREAMING, LoadHint.CACHE_GLOBAL, LoadHint.EVICT_FIRST}),
        words={
            "streaming": "loads that are evicted first (ld.cs)",
            "cache_global": "loads past the L1 (ld.cg)",
            "no_allocate": "loads that take no line of the L1",
            "evict_first": "loads with the L2 priority evict_first",
            "evict_last": "loads with the L2 priority evict_last",
        },
        least_arch={"evict_first": 80, "evict_last": 80},
        elsewhere={
            "streaming": ("ldcs", "__ldcs", "ld.cs"),
            "cache_global": ("ldcg", "__ldcg", "ld.cg"),
            "default": ("ldg", "__ldg", "ld.nc", "ld.ca", "ldca", "__ldca"),
            "no_allocate": ("no_alloc", "L1::no_allocate"),
        },
    ),
    Knob(
        name="store",
        values=tuple(StoreHint),
        plain=StoreHint.DEFAULT,
        group=Group.FREE,
        meaning="the cache hint of the elem tensors' stores",
        forward=(StoreHint.DEFAULT, StoreHint.STREAMING),
        backward=(StoreHint.DEFAULT, StoreHint.STREAMING),
        taught=frozenset({StoreHint.CACHE_GLOBAL, StoreHint.EVICT_FIRST}),
        words={
            "streaming": "stores that are evicted first (st.cs)",
            "cache_global": "stores past the L1 (st.cg)",
            "evict_first": "stores with the L2 priority evict_first",
        },
        least_arch={"evict_first": 80},
        elsewhere={
            "streaming": ("stcs", "__stcs", "st.cs"),
            "cache_global": ("stcg", "__stcg", "st.cg"),
            "default": ("stwb", "__stwb"),
        },
    ),
    Knob(
        name="params",
        values=tuple(Params),
        plain=Params.LATE,
        group=Group.FREE,
        meaning="when the column parameters are read",
        # Not read before the row (1.07 to 1.18 times the price in decode), nor copied to shared memory meanwhile, by
        # cp.async (0.98 to 1.03) or cp.async.bulk (up to 1.28; H200). An SM gets what it loads in the order in which it
        # asked: rows in L2 would wait for parameters in DRAM.
        forward=(Params.LATE, Params.EARLY, Params.KEPT, Params.PACKED, Params.PREFETCHED),
        backward=(Params.LATE, Params.KEPT),
        words={
            "early": "column parameters loaded before the reduction",
            "kept": "column parameters kept in registers across rows",
            "packed": "column parameters kept across rows as they are stored, in half the registers",
            "prefetched": "column parameters asked for in L2 before the row",
        },
    ),
    Knob(
        name="blocks_per_sm",
        values=(0, 1, 2, 3, 4, 6, 8),
        plain=0,
        group=Group.FREE,
        meaning="launch bound: the least number of blocks that must fit an SM; 0: none",
        words={"": "launch bounds that cap the registers"},
    ),
    Knob(
        name="columns",
        values=tuple(ColumnWay),
        plain=ColumnWay.PARTIALS_TWO_KERNELS,
        group=Group.METHOD,
        meaning="how column reductions are summed over blocks",
        backward=(ColumnWay.PARTIALS_TWO_KERNELS, ColumnWay.ATOMIC),
        taught=frozenset({ColumnWay.PARTIALS_LAST_TILE, ColumnWay.REGISTER_ATOMIC, ColumnWay.SHARED_ATOMIC}),
        words={
            "partials_two_kernels": "column sums: partial rows, summed by a second kernel",
            "partials_last_tile": "column sums: partial rows, summed tile by tile by the last block to arrive there",
            "register_atomic": "column sums: registers, then one atomic a column and block",
            "shared_atomic": "column sums: shared memory, then one atomic a column and block",
            "atomic": "column sums: an atomic for each element",
        },
        elsewhere={
            "atomic": ("atomicAdd", "global_atomic"),
            "shared_atomic": ("smem_atomic",),
            "partials_two_kernels": ("partials", "two_kernels"),
        },
        gone={"cluster_partials": "partials_two_kernels, which took 0.90 to 0.98 times as long on an H200"},
    ),
    Knob(
        name="dependent_launch",
        values=tuple(DependentLaunch),
        plain=DependentLaunch.OFF,
        group=Group.FREE,
        meaning="on: a call's second kernel starts while its first one ends; the others: every kernel does so",
        forward=(DependentLaunch.OFF, DependentLaunch.START, DependentLaunch.LOADS, DependentLaunch.END),
        backward=(DependentLaunch.OFF, DependentLaunch.START, DependentLaunch.END),
        taught=frozenset({DependentLaunch.ON}),
        words={
            "on": "the second kernel starts while the first one ends",
            "start": "every kernel starts while the one in front ends; it lets the next one start at once",
            "loads": "the same; the next one starts when this one has asked for its row",
            "end": "the same; the next one starts when this one ends",
        },
        least_arch={"on": 90, "start": 90, "loads": 90, "end": 90},
        elsewhere={"on": ("pdl",)},
    ),
    Knob(
        name="arithmetic",
        values=tuple(ArithmeticMode),
        plain=ArithmeticMode.EXACT,
        group=Group.FREE,
        meaning="exponentials by expf and their quotients to the last bit, or the hardware's power of two",
        words={"approximate": "exponentials by the hardware's power of two"},
        elsewhere={"exact": ("expf",), "approximate": ("fast", "fast_math", "__expf", "ex2.approx")},
    ),
    Knob(
        name="division",
        values=tuple(Division),
        plain=Division.IEEE,
        group=Group.FREE,
        meaning="means, scales and reciprocals of rows and groups: by a division, or by a product and its remainder",
        forward=tuple(Division),
        backward=tuple(Division),
        words={
            "remainder": "quotients by a product and its remainder: no branch, across which a compiler moves nothing"
        },
        elsewhere={"ieee": ("div.rn", "fdiv"), "remainder": ("fma",)},
    ),
    Knob(
        name="row_order",
        values=tuple(RowOrder),
        plain=RowOrder.ASCENDING,
        group=Group.FREE,
        meaning="which rows a launch begins with: the first, or the last, which L2 still has where it holds not all",
        forward=tuple(RowOrder),
        backward=tuple(RowOrder),
        words={"descending": "the last rows first: L2 still has them, and then has what the next kernel reads first"},
        elsewhere={"ascending": ("forward",), "descending": ("reverse", "reversed", "backward", "last_first")},
    ),
    Knob(
        name="statistics",
        values=tuple(Statistics),
        plain=Statistics.NULLABLE,
        group=Group.FREE,
        meaning="statistics that the caller does not want: null pointers, or not in the kernel at all",
        words={"left_out": "no code for statistics that are not wanted"},
    ),
    _tile("tile_m", (8, 16, 32, 64, 128, 256), "of a contraction's result, what a block owns along the axis m"),
    _tile(
        "tile_n",
        (16, 32, 64, 96, 128, 160, 192, 224, 256),
        "the same along n, along which the result's elements lie side by side; other than powers of two of teams alone",
    ),
    _tile(
        "tile_k",
        (8, 16, 32, 64, 128),
        "of k, the axis that a contraction sums, what a block reads at a time: with hold = shared to shared memory, "
        "`stages` of them in flight",
    ),
    _tile("thread_m", (1, 2, 4, 8, 16), "of tile_m, what a thread owns in registers"),
    _tile("thread_n", (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64), "of tile_n, what a thread owns in registers"),
    Knob(
        name="fragment",
        values=tuple(Fragment),
        plain=Fragment.SIMT,
        group=Group.TILE,
        meaning="who multiplies the factors of a tile: each thread its own, a warp's lanes, or four warps, together",
        forward=tuple(Fragment),
        backward=tuple(Fragment),
        words={
            "mma": "tensor cores multiply factors of 16 bits, stored or cast, and add in float32, cutting off",
            "wgmma": "the same, of tiles in shared memory, which a warp of the block's own asks the copy engine for",
        },
        least_arch={"mma": 80, "wgmma": 90},
        elsewhere={
            "simt": ("fma", "cuda_cores"),
            "mma": ("tensor_cores", "tensorop", "wmma", "mma_sync", "hmma"),
            "wgmma": ("warpgroup", "warp_specialized", "gmma", "hgmma", "wgmma.mma_async"),
        },
    ),
)

KNOBS: dict[str, Knob] = {knob.name: knob for knob in TABLE}


def names_of(*groups: Group) -> tuple[str, ...]:
    """The knobs of these groups, in the order of the table."""
    return tuple(knob.name for knob in TABLE if knob.group in groups)


_WHOLE = re.compile(r"0|[1-9][0-9]{0,9}")  # 04, ４ and 5,000 digits are no value of a knob
_VECTOR = re.compile(rf"(?:{'|'.join(d.word for d in DTYPES.values())})(2|4|8|16)?")
# The values of each knob by themselves: a text finds its enum.
_KNOWN: dict[str, dict[Any, Any]] = {k.name: {v: v for v in k.values} for k in TABLE}


def knob_value(name: str, given: Any) -> Any:
    """The value of a knob that a text or a number means, in whatever way it came: shell, TOML, JSON, Python.

    A number may be a text ("4"), a vector CUDA's name of it ("float4", "half8"). Raises UsageError for others, whose
    hint has the value that CUDA or another library calls so.
    """
    known, meant = _KNOWN[name], given
    if isinstance(given, str) and given not in known:
        if _WHOLE.fullmatch(given):
            meant = int(given)
        elif name == "vector" and (found := _VECTOR.fullmatch(given)):
            meant = int(found[1] or 1)
    if isinstance(meant, int | str) and not isinstance(meant, bool) and meant in known:
        return known[meant]
    rule = f"knob '{name}' takes one of: {', '.join(map(str, known))}"
    raise UsageError(rule, received=repr(given), hint=_value_meant(KNOBS[name], given))


def _value_meant(knob: Knob, given: Any) -> str | None:
    """The hint for an unknown value of a knob."""
    if not isinstance(given, str):
        return None
    if given in knob.gone:
        return f"{knob.name}={given} was taken out: use {knob.gone[given]}"
    elsewhere = {other: value for value, names in knob.elsewhere.items() for other in names}
    if given in elsewhere:
        value = elsewhere[given]
        what = knob.words.get(value)
        return f"'{given}' is {knob.name}={value} here" + (f": {what}" if what else "")
    numbers = [v for v in knob.values if isinstance(v, int)]
    if numbers and _WHOLE.fullmatch(given):
        return f"the nearest is {min(numbers, key=lambda v: abs(v - int(given)))}"
    return did_you_mean(given, [str(v) for v in knob.values])
