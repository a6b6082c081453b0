"""Ways for a row to be worked on that nobody has to tune, each with what was measured: the candidates of a default."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from normgen.device import Device
from normgen.knobs import (
    KNOBS,
    ColumnWay,
    Copy,
    DependentLaunch,
    Edges,
    Hold,
    Keep,
    LoadHint,
    Params,
    StoreHint,
    VarianceMethod,
)
from normgen.problem.problem import Problem
from normgen.program.source import written_program
from normgen.schedule.cutting import PLAIN, accesses, at_most, cuts, find_room, walks
from normgen.schedule.legality import (
    finds_pairs,
    has_parameters,
    has_quotients,
    has_softmax,
    has_variance,
    keeps_values,
    reduces_rows,
)
from normgen.schedule.meeting import together
from normgen.schedule.plan import (
    WARP,
    held_bytes_per_thread,
    held_register_limit,
    idle_lanes,
    param_bytes_per_thread,
    steps_per_lane,
    sums_in_registers,
)
from normgen.schedule.policy import are_few, leave_room, look_once, overflows_l2, wants_last_first
from normgen.schedule.schedule import Schedule

L1_ALONE = 28 << 10  # of an SM's L1, what shared memory cannot have (compute capability 8.0 to 9.0)
COPIED_AHEAD_BYTES = 192  # of a row, for each of 128 threads in a cluster that copies the next one meanwhile
SPREAD_BYTES = 180 << 10  # of a few rows, from which their clusters' blocks find room in shared memory alone
SOFTMAX_BYTES = 33 << 10  # of a few rows of a softmax, from which four blocks share one
LONG_ACCESSES = 1984  # of a row, from which blocks share it
CLUSTERS_OF_16 = 7  # at a time: as many as GPCs, less one that may have too few SMs
SUMMED_BYTES, LONG_SUMMED_BYTES = 16 << 10, 28 << 10  # of a row with column sums: the next one may, and will, be copied
# Of a thread's registers, what data may take: more does not fit, and from so much on the next row is better copied.
FILLED, COPIED_FILLED = 0.8, 0.7
IN_FLIGHT = 4  # vectors of a thread that reads each once: as many as the fastest copies have
PAIRED_COLS = 8192  # of rows in groups that a block has two of, and does not share
PEELED_IDLE = 0.2  # lanes for each with a vector: narrower accesses to peeled rows with column sums leave fewer
PEELED = 1.4  # registers of peeled data of two bytes, its edges and windows, for each of other data
LONG_ELEMENTS = 28 << 10  # of a row that is read by elements, from which clusters walk
NARROW_HELD = 32  # elements that a thread holds in a register each, as it reads them
KEPT_VALUES = 40  # of a peeled row with a mean, for each thread
EARLY_BYTES = 128  # of parameters a thread may hold beside its row; twice as many where rows are few
# Beside an L2 of 60 MB. Of what a launch writes: from so much on its outputs are better sent on to DRAM, where they
# would push out what the kernel behind it reads first. Of what it moves: from so much on neither that nor lines left
# out of L1 help.
STREAMED_BYTES, LONG_BYTES = 48 << 20, 200 << 20


def ways(problem: Problem, device: Device) -> Iterator[Schedule]:
    """The best first; not all are legal. How reductions are computed is said where a way was timed so alone."""
    yield from together(problem, device)
    if problem.sums_rows:
        yield from _with_columns(problem, device)
        return
    for way in (
        _in_parts,
        _in_warps,
        _looked_at_once,
        _by_elements,
        _spread,
        _copied_ahead,
        _long_rows,
        _without_columns,
    ):
        yield from way(problem, device)


def _in_parts(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of rows that need no reduction: one or two vectors a thread, in blocks that share a row; of rows too
    long for that as few as may be, four in flight, of many rows in blocks of 256 threads (relu, sigmoid and gelu of
    4096x393216 f32 are 1.3 to 1.5 % behind torch's, by 512 threads 0.9 to 2.3 %, on an H200). Clusters would wait for
    blocks that a row has no need of.

    The fewest idle lanes count, then blocks near 256 threads. A row of at most 256 vectors needs no parts (swiglu
    129468x320: three parts by elements take 1.9 x the chain, on an H100), nor do many of up to 8192 columns whose
    groups are compared in pairs (quantize_to_fp8_group 4096x5120: two a block take 0.98 of the chain of five parts).
    """
    if problem.any_cols or reduces_rows(problem):
        return
    few = are_few(problem, device)
    if not few and problem.cols <= PAIRED_COLS and finds_pairs(problem, PLAIN.varied(vector=8)):
        return

    def rank(s: Schedule) -> tuple[float, float]:
        return idle_lanes(problem.cols, s), abs(math.log2(s.threads_per_row / 256))

    load, long = _load(problem, device), list[Schedule]()
    for vector, edges in accesses(problem, device, by_8=few):
        if problem.cols // vector <= 256:
            return  # nor by narrower accesses
        held = PLAIN.varied(hold=Hold.REGISTERS, unroll=0, vector=vector, edges=edges, load=load)
        shapes = itertools.product((128, 256, 512), KNOBS["parts"].forward[1:])
        cuts = [held.varied(threads_per_row=threads, parts=parts) for threads, parts in shapes]
        short = [s for s in cuts if steps_per_lane(problem, s) <= (1 if few else 2)]
        yield from sorted(short, key=rank)
        long = [] if short else [*long, *cuts]
    if not few:
        long = [s for s in long if s.threads_per_row == 256]
    for cut in sorted(long, key=lambda s: (steps_per_lane(problem, s), rank(s)))[:1]:
        in_flight = steps_per_lane(problem, cut) <= IN_FLIGHT
        yield cut if in_flight else cut.varied(hold=Hold.RELOAD, unroll=IN_FLIGHT)


def _in_warps(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of a few dozen short rows with two exchanges: a warp each, four beside each other, 8 bytes an access.

    Layernorm 65x448 to int8: the chain takes 10 % less, 24x576 bf16 4 %, 53x704 2.5 %, 32x768 1.5 %; 8x512 is level,
    and rmsnorm 16x256 to 100x512, with one exchange, loses 1 %. Softmax 21x448 f32: 4 %, as the row is stored. Each
    thread reads its parameters early: rmsnorm_to_fp8_token 65x512 takes 0.92 of the chain with all of them asked for
    ahead (H100), and layernorm 24x576 was raced so.
    """
    is_short = 768 <= problem.cols * problem.dtype.bytes <= 1792 and not (problem.any_cols or problem.spec.group)
    exchanges = len(written_program(problem).row_reduces)
    if is_short and exchanges > 1 and are_few(problem, device) and problem.rows >= 16:
        vector = 8 // problem.dtype.bytes
        warps = Schedule(threads_per_row=32, rows_per_block=4, vector=vector, hold=Hold.REGISTERS, unroll=0)
        keep = Keep.VALUES if has_variance(problem) else Keep.ROW
        for params in (Params.EARLY, Params.LATE):
            yield warps.varied(keep=keep, params=params)


def _looked_at_once(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of many rows of 4 to 8 KB with a variance, which L2 holds: they are looked at once, the shorter ones by
    warps that walk, the next row on its way, the longer ones by two warps, or by four where the last step of two would
    not be everyone's.

    Layernorm 6504x2688 and 3000x2048 bf16: the chains of warps take 5 and 2 % less than of 64 threads that look twice;
    of two warps 5000x3328 and 4096x3072 3 %, 2500x4096 1 % less than of four. Uneven rows (H100): four warps take 0.96,
    0.93, 0.89 and 0.99 of the chain of two at 2300x3520, 2200x4032, 2700x3000 and 4000x3456, 1.02 at 3600x3840, which
    is even. Warps that would walk once and a half do not, and look twice (3000x2200: 0.93; 6000x2500 walks: 1.02).
    """
    row = problem.row_bytes
    if problem.any_cols or problem.dtype.bytes != 2 or not 4096 <= row <= 8192 or has_quotients(problem):
        return
    if not has_variance(problem) or overflows_l2(problem.main_bytes, device):
        return
    once = Schedule(
        vector=4, hold=Hold.REGISTERS, unroll=0, load=_load(problem, device), variance=VarianceMethod.GUARDED
    )
    warps, two, four = (once.varied(threads_per_row=threads) for threads in (WARP, 2 * WARP, 4 * WARP))
    warps, each = warps.varied(rows_per_block=4), problem.rows / device.sm_count
    if row <= 5632:
        if each >= 32 or not idle_lanes(problem.cols, warps):
            yield warps.varied(persistent=4, stages=2)
        if each >= 16:
            yield warps.varied(variance=PLAIN.variance)
    if each >= 16:
        yield from (four.varied(vector=8), four) if idle_lanes(problem.cols, two) else (two,)


def _by_elements(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of long odd rows that cannot be peeled, as their outputs have another size: clusters walk them, each
    thread with up to 32 elements of a row, and what makes the text longer is left out.

    On an H100, of the chain before: rmsnorm_to_fp8_token 100x50001 0.62, rmsnorm_to_fp8 753x46369 0.69 with the next
    row on its way, add_rmsnorm_to_fp8_token 17x199433 0.79, 60x90001 0.82, 31x120001 0.85, 400x60001 0.96,
    layernorm_to_int8 200x30001 0.91; rmsnorm_to_fp8 1500x22223 1.08.
    """
    if device.arch < 90 or problem.any_cols or problem.cols < LONG_ELEMENTS or problem.dtype.bytes != 2:
        return
    if problem.cols % 2 == 0 or not reduces_rows(problem) or _shift_alike(problem):
        return
    for threads, cluster in ((256, 8), (256, 16), (512, 16)):
        walking = Schedule(threads_per_row=threads, cluster=cluster, hold=Hold.REGISTERS, unroll=0)
        if steps_per_lane(problem, walking) <= NARROW_HELD:
            yield walking.varied(persistent=1024 // threads)


def _spread(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of few long rows, with more blocks in clusters of eight than SMs: by cp.async in shared memory. In
    registers a thread takes 90 to 128 of them, and an SM has room for one block of 512 threads. With groups too (H100:
    add_rmsnorm_to_fp8_group 51x60160 0.91 of the chain in registers), but for those of one input that find no room
    (rmsnorm_to_fp8_group 55x100608: clusters of four in registers).

    Blocks of 512 threads where all find room (layernorm 27x257472, to int8 and not: 0.72 and 0.78 of the chain in
    registers, rmsnorm_to_fp8_token 40x200000: 0.83), else of 256 (layernorm_to_int8 60x131072: 0.94,
    add_rmsnorm_to_fp8_token 64x98304: 0.84). Where not even these do, a grid that walks, and the parameters stay
    (rmsnorm 98x96384: 0.92, to fp8 0.72); the next row on its way where shared memory has not room for all (rmsnorm
    125x231488: 0.88), in as many blocks as find room for it (H100: 122x138496 by two or four an SM 0.92 of by one,
    125x231488 level), clusters of 16 where those of eight find none (add_rmsnorm_to_fp8_token 35x257152: 0.80). Rows of
    80 KB (layernorm_to_int8 100x40960) are better off in registers. A softmax's threads take as many registers; it was
    not raced.
    """
    row, blocks, sms = problem.row_bytes, 8 * problem.rows, device.sm_count
    if device.arch < 90 or problem.any_cols or row < SPREAD_BYTES:
        return
    if not reduces_rows(problem) or not are_few(problem, device) or blocks <= sms:
        return
    if problem.spec.group and problem.has_one_row_input and not find_room(blocks, 512, device):
        return
    shared = Schedule(
        threads_per_row=512 if find_room(blocks, 512, device) else 256, cluster=8, hold=Hold.SHARED, unroll=4
    )
    walking = Schedule(cluster=8, hold=Hold.REGISTERS, unroll=0, params=Params.PACKED)
    wanted = [shared]
    if problem.rows * row > device.shared_per_sm * sms:  # not all rows find room at a time
        room = {c: device.shared_per_sm // (row // c + 1024) for c in (8, 16) if has_parameters(problem)}
        wanted = [
            walking.varied(cluster=c, persistent=at_most("persistent", min(4, n)), stages=2) for c, n in room.items()
        ]
    elif blocks > 4 * sms and has_parameters(problem):
        wanted = [walking.varied(persistent=4), shared]
    for way in wanted:
        yield from _in_whole_vectors(_copied(problem, device, way, bulk=False), problem)


def _copied_ahead(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of long rows that meet parameters: clusters of eight blocks of 128 threads walk them, and the next one
    comes to shared memory meanwhile.

    Chains of rmsnorm 600x40000 and 384x78528 and layernorm 300x50000 (bf16) take 0.87 to 0.93 of what clusters take
    that read registers ahead, rmsnorm_to_fp8_token 2205x71680 0.96. By cp.async 1 to 5 % ahead of bulk copies; the long
    one 1 % behind, where these stay in L2. No gain without parameters (softmax 700x60000), nor of two inputs
    (add_rmsnorm_to_fp8_group 171x88576, which loses 2 %). More such rows of up to 64 KB, and of up to 128 KB from
    eight an SM on, are for `_long_rows`.
    """
    row, sms = problem.row_bytes, device.sm_count
    if device.arch < 90 or problem.any_cols or row < 65536 or problem.rows < sms or not has_parameters(problem):
        return
    if not reduces_rows(problem) or (row < 131072 and problem.rows >= 8 * sms):
        return
    if math.ceil(problem.rows / sms) > 1.4 * problem.rows / sms:
        return  # some clusters would walk a row more than most
    wanted = Schedule(threads_per_row=128, cluster=8, hold=Hold.REGISTERS, unroll=0)
    (first,) = itertools.islice(_copied(problem, device, wanted, bulk=problem.compulsory_bytes >= LONG_BYTES), 1)
    if held_bytes_per_thread(problem, first) <= COPIED_AHEAD_BYTES:
        yield first.varied(persistent=8, stages=2, params=Params.PACKED)


def _long_rows(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of many rows of 32 KiB and more: in shared memory, brought there by asynchronous copies.

    In registers such a row leaves an SM room for one or two blocks, and little is on its way while they compute. In
    shared memory three rows of 64 KiB fit: 1.3 x as fast as in registers for softmax 16384x32768, 1.6 x for layernorm
    8192x16384 (bf16). Two rows must fit, and the parameters in what is left of the L1, or every row fetches them from
    L2: then two blocks that walk rows keep a half each (layernorm 4096x32768: 1.1 x as fast).
    A row too long for shared memory that meets no parameters waits in registers for the rest (log_softmax 4096x151936:
    1.18 x as fast as a cluster).
    """
    row = problem.row_bytes
    if device.arch < 80 or problem.any_cols or row < 32768 or leave_room(problem, device):
        return
    sm90 = device.arch >= 90
    blocks = min(4, device.shared_per_sm // (row + 2048))
    if blocks < 2:
        if blocks == 0 and not has_parameters(problem):
            yield from _copied(problem, device, Schedule(hold=Hold.HYBRID, threads_per_row=1024, unroll=0), bulk=sm90)
    elif _parameters_in_memory(problem) <= device.shared_per_sm + L1_ALONE - blocks * row:
        yield from _copied(problem, device, Schedule(hold=Hold.SHARED, threads_per_row=512, unroll=4), bulk=sm90)
    elif sm90:
        halves = Schedule(hold=Hold.REGISTERS, threads_per_row=512, cluster=2, unroll=0)
        yield from _copied(problem, device, halves.varied(persistent=2, stages=2, params=Params.EARLY), bulk=True)


def _copied(problem: Problem, device: Device, wanted: Schedule, *, bulk: bool) -> Iterator[Schedule]:
    """`wanted` with rows that come by bulk copies, which stay in L2 longest, or by cp.async.

    In shared memory by the widest whole vectors, though lanes are idle (H100: rmsnorm 17902x42112 by 8 bytes: 1.05 x).
    """
    widest = math.gcd(problem.cols, 16 // problem.dtype.bytes) if wanted.hold is Hold.SHARED else 1
    for copy in (Copy.BULK, Copy.CP_ASYNC) if bulk else (Copy.CP_ASYNC,):
        for cut in cuts(problem, device, wanted.hold, wanted.cluster):
            if cut.threads_per_row == wanted.threads_per_row and (cut.peels or cut.vector >= widest):
                load = LoadHint.EVICT_LAST if copy is Copy.BULK else LoadHint.DEFAULT
                yield wanted.varied(vector=cut.vector, edges=cut.edges, copy=copy, load=load)


def _in_whole_vectors(schedules: Iterator[Schedule], problem: Problem) -> Iterator[Schedule]:
    """Those whose rows are whole vectors of 16 bytes."""
    return (s for s in schedules if s.edges is Edges.EXACT and s.vector * problem.dtype.bytes == 16)


def _without_columns(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of programs whose rows have nothing to do with each other.

    Many rows are read past L1: 12 % faster between plain kernels (4096x4096 bf16, its input just written; 3 % at
    8192x768), where lines that are last to leave L2 only pay behind a kernel's own copy. Of winners of 96 to 200 MB
    that begin with their first rows all 16 that write 48 MB or more store by streaming; no others do, whose outputs
    the kernel behind them finds in L2 (layernorm 21636x2112 to int8: 4 %), nor those that begin with the last rows and
    leave the first in L2 (layernorm 4096x6144: streaming costs 9 % of the price, rmsnorm 262144x128 and 524288x64 7
    and 8 %); from 200 MB on 27 of 35 load by another hint than past L1. Few start early: 34 of 54 winners of 48 to 600
    MB do not, and a short launch loses 0.6 of 2 us by it (16x4096), 0.4 of 6.6 (8192x768).
    Parameters that a thread holds beside its row are read early. Holding f32 parameters in registers costs occupancy:
    with 64 of them a thread, 8192x4096 bf16 takes 36 % longer than with parameters read late.
    With few rows a kernel waits for its parameters, which come from DRAM, longer than for its row, and compilers put
    their loads behind those of the row whatever the text says: asked for ahead, in L2, they save 2 to 9 % (rmsnorm of
    1 to 32 rows).
    Clusters that walk many long rows, the next one on its way, hide their exchanges (2048x65536 to 2048x262144: 3 to
    7 % ahead of one cluster a row), and keep their part of the parameters, packed (rmsnorm 602x132792: 5 %, 112x106432:
    7 %). Where registers have no room for the next row this one comes through shared memory (H100: add_rmsnorm
    173x222912 0.96 of the chain, 700x160000 level).
    """
    few = are_few(problem, device)
    clusters = _clusters(problem, device)
    for hold, cluster in (*((Hold.REGISTERS, c) for c in clusters), (Hold.SHARED, 1), (Hold.RELOAD, 1)):
        for cut in cuts(problem, device, hold, cluster):
            if hold is Hold.REGISTERS and _crowded(problem, cut, more=len(clusters) > 1):
                continue
            is_streamed = problem.compulsory_bytes < LONG_BYTES and _written(problem) >= STREAMED_BYTES
            is_streamed = (device.arch < 80 or is_streamed) and not few and not wants_last_first(problem, device)
            hinted = cut.varied(
                load=_load(problem, device), store=StoreHint.STREAMING if is_streamed else StoreHint.DEFAULT
            )
            if cluster > 1 and hold is Hold.REGISTERS and walks(problem, device, cluster):
                walking = hinted.varied(persistent=at_most("persistent", 1024 // cut.threads))
                if has_parameters(problem):
                    if _overfills(problem, cut):
                        copied = walking.varied(params=Params.PACKED, load=LoadHint.DEFAULT)
                        if problem.compulsory_bytes >= LONG_BYTES:
                            yield copied.varied(copy=Copy.BULK, load=LoadHint.EVICT_LAST, stages=2)
                        yield copied.varied(copy=Copy.CP_ASYNC)
                    yield walking.varied(stages=2, params=Params.PACKED)
                yield walking.varied(stages=2)
                if has_parameters(problem):
                    yield walking.varied(copy=Copy.CP_ASYNC, load=LoadHint.DEFAULT, params=Params.EARLY)
                yield walking
            most = EARLY_BYTES * (2 if few else 1)
            if hold is Hold.REGISTERS and _keeps_values(problem, device, cut, few=few):
                hinted = hinted.varied(keep=Keep.VALUES)
            if hold is Hold.REGISTERS and few and cluster == 1 and has_parameters(problem):
                yield hinted.varied(params=Params.PREFETCHED)
            beside = param_bytes_per_thread(problem, cut)
            crowded = hinted.keep is Keep.VALUES and beside + 4 * steps_per_lane(problem, cut) * cut.vector > 256
            if hold is Hold.REGISTERS and 0 < beside <= most and not crowded:
                yield hinted.varied(params=Params.EARLY)
            yield hinted


def _keeps_values(problem: Problem, device: Device, s: Schedule, *, few: bool) -> bool:
    """Whether what later looks need stays in registers as floats: of rows read by 4 bytes or by elements, whose threads
    hold few (rmsnorm 10000x2046 bf16: 0.91 of the price, 212x6274 0.98, layernorm 20000x1002 0.96), and of peeled rows
    with a variance (8192x4097 0.95, 20000x1001 0.97, 1200x1337 0.98, 5x3001 0.90; an rmsnorm's are level).
    """
    if not keeps_values(problem) or steps_per_lane(problem, s) * s.vector > KEPT_VALUES:
        return False
    if few and not s.peels and has_variance(problem):
        return not look_once(problem, device)  # one look leaves nothing
    return has_variance(problem) if s.peels else s.edges is Edges.EXACT and s.vector * problem.dtype.bytes <= 4


def _overfills(problem: Problem, s: Schedule) -> bool:
    """Whether a thread that keeps more of the parameters than of its row has no registers left for the next row: it
    comes to shared memory instead (layernorm to int8 265x99968: 0.66 of the price, layernorm 4108x108352: 0.80).
    """
    row, params = held_bytes_per_thread(problem, s), param_bytes_per_thread(problem, s)
    return params > row and 2 * row + params > 256


def _written(problem: Problem) -> int:
    """Bytes of the outputs with an element for each of the rows'."""
    return sum(t.dtype.bytes_of(problem.rows * problem.cols) for t in problem.elem_tensors if t.is_written)


def _load(problem: Problem, device: Device) -> LoadHint:
    """How rows are read: few as ever, many past L1 or, on a GPU without that hint, once.

    As ever too where they leave SMs room and are long (rmsnorm 526x10560: 0.78 to 0.97 of the price; 300x5120 and
    400x6144 are level).
    """
    is_roomy = leave_room(problem, device) and 8192 <= problem.cols * problem.dtype.bytes < 65536
    if is_roomy or are_few(problem, device) or (device.arch >= 80 and problem.compulsory_bytes >= LONG_BYTES):
        return LoadHint.DEFAULT
    return LoadHint.NO_ALLOCATE if device.arch >= 80 else LoadHint.STREAMING


def _clusters(problem: Problem, device: Device) -> tuple[int, ...]:
    """Blocks to share a row, the best first: few long rows are spread over idle SMs, 4 KB a block or more.

    By 16 blocks where every row finds a GPC of as many SMs (on an H100 rmsnorm_to_fp8_token 7x203968: 0.73 of the chain
    by eight, layernorm 2x119296 0.93, add_rmsnorm_to_fp8_group 1x97536 0.91; layernorm 8x119936, a row more, 1.22, and
    softmax 8x128256 1.17), else by eights at most (3x19456: 15 % ahead of four). By eight too one row that a block of
    512 threads would hold (H100: layernorm 1x16256 0.92 of the chain, add_rmsnorm 1x11968 0.97).
    Pairs only of rows of 64 KB: at 64x16384 bf16 one block is 5 % ahead. Rows that are read by elements are long where
    their accesses are many (add_rmsnorm_to_fp8_token 11x5151: eight blocks take 0.78 of the price of one). Few rows of
    96 KB (rmsnorm_to_fp8_group 37x65280: 0.80 of what two take) and more take eight though their blocks share SMs:
    rmsnorm 112x106432 bf16 had cost 1.66 x what eight do, add_rmsnorm_to_fp8_token 31x51776 1.55 x,
    add_rmsnorm_to_fp8_group 41x34304 1.10 x; four where eight of 512 threads would not find room at a time
    (rmsnorm_to_fp8_group 55x100608: 0.74). Four too of a softmax's few rows past 32 KB, of which a block would need
    1024 threads (H100: cross_entropy_grad 36x30528 0.78, 60x32000 0.82, softmax 36x30528 0.76 of its chain). Of
    more such rows, where they meet parameters, those come first that walk
    (layernorm 300x65536, rmsnorm 265x99968: eight that walk take 0.88 and 0.68 of the price of two and four that do
    not; without parameters, log_softmax 299x36288, they take 1.7 x as much), by 16 where these have about as many
    rows each and eights do not (H100: layernorm 150x150016 0.94, add_rmsnorm 202x237184 0.91 of the chain).
    """
    if device.arch < 90:
        return (1,)
    sizes = (1, 2, 4, 8, 16)
    vectors = _accesses_of_a_row(problem) * problem.row_input_bytes // problem.dtype.bytes
    least = {2: 4096, 4: LONG_ACCESSES, 8: LONG_ACCESSES}
    spread = [c for c in least if problem.rows * c <= device.sm_count and vectors >= least[c]]
    few, row = are_few(problem, device), problem.row_bytes
    is_long = row >= (96 << 10 if few else 128 << 10)
    fits = find_room(8 * problem.rows, 512, device) or walks(problem, device, 8)
    spread += [8 if fits else 4] if few and is_long else []
    spread += [4] if few and has_softmax(problem) and row >= SOFTMAX_BYTES else []
    is_alone = problem.rows <= CLUSTERS_OF_16 and row >= SPREAD_BYTES and not has_softmax(problem)
    spread += [16] if is_alone else []
    first = max(spread, default=1)
    order = [*(c for c in sizes if c >= first), *(c for c in sizes if c < first)]
    if is_long and has_parameters(problem) and not few and (walks(problem, device, 8) or walks(problem, device, 16)):
        order.sort(key=lambda c: 1 < c < 16 and not walks(problem, device, c))
    return tuple(order)


def _accesses_of_a_row(problem: Problem) -> int:
    """As many of 16 bytes as keep a block equally busy: narrow ones count half, rows of one dtype can be peeled."""
    most = 16 // problem.dtype.bytes
    widest = math.gcd(problem.cols, most)
    return problem.cols // most if _shift_alike(problem) or widest == most else problem.cols // widest // 2


def _shift_alike(problem: Problem) -> bool:
    """Whether the rows of all tensors lie alike between aligned vectors, so that they can be peeled."""
    return len({(t.dtype.bytes, t.dtype.packed) for t in problem.elem_tensors}) == 1


def _crowded(problem: Problem, s: Schedule, *, more: bool) -> bool:
    """Whether rows in registers need too many: over 256 bytes a thread, or so many a block that no four fit an SM.

    Clusters of 16 find room in few places of the chip: from 8 on, only the threads' share counts (2048x262144 f32).
    An access of less than four bytes takes a register all the same (layernorm to int8 by elements: 300x50001 takes
    0.32 of the price with 24 of them a thread as with 98, 79x246497 0.40 with 31 as with 121).
    """
    if s.vector * problem.dtype.bytes < 4 and steps_per_lane(problem, s) * s.vector > NARROW_HELD:
        return True
    held = held_bytes_per_thread(problem, s)
    return held > 256 or (more and s.cluster < 8 and held * s.threads_per_row > 65536)


def _parameters_in_memory(problem: Problem) -> int:
    """Bytes of the column parameters, which every row reads."""
    return sum(math.prod(problem.shape_of(t)) * t.dtype.bytes for t in problem.tensors if t.is_parameter)


def _copied_beside_sums(
    problem: Problem, device: Device, walking: Schedule, clusters: tuple[int, ...]
) -> Iterator[Schedule]:
    """Defaults of many long rows with column sums, whose next one finds no registers: it comes by cp.async.

    Layernorm 15168x5952, 6000x10240, 4126x13568 and 2500x20480 bf16: 0.90, 0.87, 0.89 and 0.84 of the chain, rmsnorm
    3000x12288 and 2000x24576 0.81 and 0.82. From 28 KB on in any case: the winners of 16384x8192 do so, and
    of layernorm 8331x7296 (0.95).
    """
    row = problem.row_bytes
    if device.arch < 80 or problem.any_cols or row < SUMMED_BYTES or problem.rows < 4 * device.sm_count:
        return
    is_long = row >= LONG_SUMMED_BYTES and problem.dtype.bytes == 2
    for cluster in clusters:
        for cut in _in_whole_vectors(cuts(problem, device, Hold.REGISTERS, cluster), problem):
            if not 256 <= cut.threads <= 512:
                continue
            block = walking.varied(threads_per_row=cut.threads_per_row, cluster=cluster, vector=cut.vector, unroll=0)
            block = block.varied(hold=Hold.REGISTERS, persistent=at_most("persistent", 512 // cut.threads))
            if not is_long and _filled(problem, block, device, rows=2) <= COPIED_FILLED:
                return
            if _filled(problem, block, device, rows=1) <= FILLED:
                yield from (block.varied(copy=Copy.CP_ASYNC, stages=stages) for stages in (2, 1))


def _filled(problem: Problem, s: Schedule, device: Device, *, rows: int) -> float:
    """The share of a thread's registers that so many of its rows take, with its parameters and sums."""
    data = (rows * held_bytes_per_thread(problem, s) + param_bytes_per_thread(problem, s)) / 4
    data *= PEELED if s.peels and problem.dtype.bytes == 2 else 1.0
    return (data + sums_in_registers(problem, s)) * s.threads * s.persistent / device.registers_per_sm


def _beside_sums(
    problem: Problem, device: Device, clusters: tuple[int, ...], load: LoadHint, dependent: DependentLaunch
) -> Iterator[Schedule]:
    """Grids that walk rows held in registers, with the threads an SM that leave room for column sums."""
    for cut in itertools.chain.from_iterable(cuts(problem, device, Hold.REGISTERS, cluster) for cluster in clusters):
        if held_bytes_per_thread(problem, cut) <= 256:
            many_sums = sums_in_registers(problem, cut) > 32 and cut.threads_per_row <= 128
            block, per_sm = (128, 384) if many_sums else (256, 512)
            side_by_side = max(1, block // cut.threads_per_row) if cut.cluster == 1 and cut.threads_per_row < 128 else 1
            cut = cut.varied(rows_per_block=at_most("rows_per_block", side_by_side))
            sums = cut.varied(persistent=at_most("persistent", per_sm // cut.threads), load=load)
            yield sums.varied(dependent_launch=dependent)


def _with_columns(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of programs with column sums: in registers beside the row, over a cluster if need be; then of rows
    read again; then by atomics.

    512 threads an SM leave each 128 registers for the next row too; short rows share blocks of 256 threads, which add
    up their sums. More than 32 sums a thread leave room for 384 threads (8192x768 to 16384x8192 bf16 on an H200).
    Where that leaves none for the next row it is not fetched ahead (add_rmsnorm 13936x640: 0.94 of the chain).
    Where peeled rows would leave a fifth of the lanes idle those cuts come first that leave fewer, and room for the
    next row: layernorm 46119x4165 takes 0.81 of the chain by 2 elements with it as by 8 without (H100; eleven such cuts
    are within 2 %; 18827x5767, of whose lanes 6 % are idle, is level).
    Atomics a row cost ten times as much there as rows read again (2048x16384, 2048x32768 bf16).
    """
    kept = Params.KEPT if has_parameters(problem) else Params.LATE
    is_long = problem.compulsory_bytes >= LONG_BYTES
    dependent = DependentLaunch.END if device.arch >= 90 and not is_long else DependentLaunch.OFF
    # 4 % (layernorm 8192x768 bf16, dy just written); none of the 7 long winners reads that way.
    load = LoadHint.NO_ALLOCATE if device.arch >= 80 and not is_long else LoadHint.DEFAULT
    clusters = (1, 2, 4, 8, 16) if device.arch >= 90 else (1,)
    walking = Schedule(params=kept, dependent_launch=dependent)
    yield from _copied_beside_sums(problem, device, walking, clusters[:4])
    walkers = list(_beside_sums(problem, device, clusters, load, dependent))
    room = [s for s in walkers if _filled(problem, s, device, rows=2) <= FILLED]
    ahead = {sums: sums.varied(params=kept, stages=2) for sums in room}
    first = next((s for s in walkers if s.peels), None)
    is_odd = problem.dtype.bytes == 2 and problem.cols % 2 == 1
    if is_odd and first is not None and first not in ahead and idle_lanes(problem.cols, first) > PEELED_IDLE:
        yield from (ahead[s] for s in room if s.peels and idle_lanes(problem.cols, s) <= PEELED_IDLE)
    for sums in walkers:
        if sums in ahead:
            yield ahead[sums]
        yield sums.varied(params=kept)
        yield sums
    for cut in sorted(cuts(problem, device, Hold.RELOAD, 1), key=lambda s: -s.vector):
        if 256 <= cut.threads <= 512 and sums_in_registers(problem, cut) <= held_register_limit(cut, device):
            yield cut.varied(persistent=1, unroll=0, dependent_launch=dependent)
    for hold in (Hold.REGISTERS, Hold.SHARED, Hold.RELOAD):
        yield from (cut.varied(columns=ColumnWay.ATOMIC) for cut in cuts(problem, device, hold, 1))
