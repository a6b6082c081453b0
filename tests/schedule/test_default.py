"""The default schedule against what was measured: near the optimum of every shipped sweep, and of winners' kind."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from normgen.schedule.ways import ways

from normgen.choice.first import default_schedule
from normgen.cost.model import predicted_us
from normgen.device import Device, target
from normgen.program.source import problem_for
from normgen.records.questions import problem_of
from normgen.records.winners import kept, shipped_folder
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.studies.replay import swept_problem
from normgen.studies.sweep_file import read_sweep
from tests.races import races

H200 = target("h200")
SWEEPS = sorted((Path(__file__).parents[2] / "generated" / "sweeps").glob("*.jsonl.xz"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name.split(".")[0])
def test_the_default_reaches_nine_tenths_of_a_sweeps_optimum(path: Path) -> None:
    sweep = read_sweep(path)
    times = {point.schedule: point.us for point in sweep.points if point.us is not None}
    default = default_schedule(swept_problem(sweep.problem), Device(**dict(sweep.device)))
    hints = {name: getattr(default, name) for name in ("load", "params")}
    near = [us for s, us in times.items() if replace(s, **hints) == default]
    assert near, "neither the default nor its siblings with other hints are in the sample"
    assert min(times.values()) >= 0.9 * times.get(default, max(near))


def test_the_default_is_of_the_shipped_winners_kind() -> None:
    """Three in five cut rows as the winner does; on average threads of a row differ by less than a factor of 1.4."""
    winners = [r for r in kept(shipped_folder() / "h200.jsonl") if r.measured]
    found = [(default_schedule(problem_of(r.problem, load(r.problem.op)), H200), r.schedule) for r in winners]
    threads = [(a.threads_per_row * a.row_blocks, b.threads_per_row * b.row_blocks) for a, b in found]
    assert len(found) >= 200
    assert sum(a == b for a, b in threads) >= 0.6 * len(found)
    assert statistics.mean(abs(math.log2(a / b)) for a, b in threads) < math.log2(1.4)
    assert sum(a.vector == b.vector for a, b in found) >= 0.7 * len(found)


def test_the_default_is_close_to_the_best_of_what_was_raced_against_it() -> None:
    """Two in three defaults were raced themselves; what others differ by was not."""
    found = races("h200")
    behind = [d for race in found if (d := race.behind(default_schedule(race.problem, H200))) is not None]
    assert len(found) == 86
    assert len(behind) >= 0.66 * len(found)
    assert statistics.median(behind) <= 1.006
    assert max(behind) <= 1.05


def test_the_default_is_close_to_what_tunes_found_on_an_h100() -> None:
    """Of 314 problems, most of which nobody had tuned: what their tunes, or races, timed on that GPU."""
    found = [race for race in races("h100") if race.tuned is None]
    behind = [d for race in found if (d := race.behind(default_schedule(race.problem, target("h100")))) is not None]
    assert len(found) == 314
    assert len(behind) >= 0.75 * len(found)
    assert statistics.median(behind) <= 1.01
    assert max(behind) <= 1.13


@pytest.mark.parametrize("rows", [100, 3000, 100_000])
def test_no_default_is_far_behind_another_way_by_the_cost_model(rows: int) -> None:
    """Of each operation and direction that has records, at most 1.3 x the model's time of the best of its ways.

    A gate that began with elements in parts stood at 2.2 x (swiglu 129468x320), and took 1.9 x the chain on an H100.
    """
    keys = {(r.problem.op, r.problem.direction): r.problem for r in kept(shipped_folder() / "h200.jsonl")}
    behind = {}
    for key, cols in itertools.product(keys.values(), (320, 896, 1408, 2432, 5120)):
        cols = round(cols / load(key.op).whole_cols) * load(key.op).whole_cols
        size = replace(key, rows=rows, cols=cols, pitch=cols, align=16, batches=min(key.batches, 4))
        problem = problem_of(size, load(key.op))
        chosen = default_schedule(problem, H200)
        reduced = {name: getattr(chosen, name) for name in ("variance", "softmax", "arithmetic", "row_order")}
        others = [way.varied(**reduced) for way in itertools.islice(ways(problem, H200), 600)]
        legal = [chosen, *(way for way in others if refusal(problem, way, H200) is None)]
        times = [predicted_us(problem, schedule, H200) for schedule in legal]
        behind[str(problem)] = times[0] / min(times)
    assert len(behind) >= 100
    assert max(behind.values()) <= 1.3, max(behind, key=lambda name: behind[name])


def default(op: str, shape: str, dtype: str = "bf16", direction: str = "forward", gpu: Device = H200) -> Schedule:
    return default_schedule(problem_for(load(op), shape=shape, dtype=dtype, direction=direction), gpu)


@pytest.mark.parametrize(("shape", "dtype", "cluster"), [("4096x131072", "bf16", 4), ("2048x262144", "f32", 8)])
def test_long_rows_take_small_clusters_of_blocks_that_leave_room_for_others(
    shape: str, dtype: str, cluster: int
) -> None:
    """2048x65536 bf16 on an H200: 4 blocks of 1024 threads take 2.3 x as long as 2 of 512; f32 262144: 1.6 x."""
    found = default("rmsnorm", shape, dtype)
    assert (found.cluster, found.threads, found.hold) == (cluster, 512, "registers")


@pytest.mark.parametrize(
    ("shape", "cluster", "threads"),
    [("1x4096", 1, 512), ("64x8192", 1, 512), ("1x16384", 8, 128), ("64x16384", 1, 512)],
)
def test_few_rows_are_split_over_more_threads_and_then_over_idle_sms(shape: str, cluster: int, threads: int) -> None:
    found = default("rmsnorm", shape)
    assert (found.cluster, found.threads) == (cluster, threads)
    assert found.store == "default"  # the next kernel reads it from L2
    assert default("rmsnorm", shape, gpu=target("a100")).cluster == 1


@pytest.mark.parametrize("shape", ["1x1", "1x2", "3x7", "200x1", "1x8", "40000x1"])
@pytest.mark.parametrize("op", ["rmsnorm", "layernorm", "softmax", "swiglu", "adaln"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_rows_of_a_column_or_two_have_a_default(op: str, shape: str, direction: str) -> None:
    found = default(op, shape, direction=direction)
    assert found.cluster == 1


@pytest.mark.parametrize(
    ("op", "shape"), [("layernorm", "2048x16384"), ("rmsnorm", "2048x32768"), ("rmsnorm", "4096x4097")]
)
def test_column_sums_of_rows_too_long_for_registers_do_not_go_to_memory_row_by_row(op: str, shape: str) -> None:
    """Atomics a row took 12 to 16 x as long as the winners there (H200)."""
    assert default(op, shape, direction="backward").columns == "partials_two_kernels"


@pytest.mark.parametrize(
    ("op", "shape", "hold", "copy", "threads"),
    [
        ("softmax", "16384x32768", "shared", "bulk", 512),
        ("softmax", "2048x50257", "shared", "bulk", 512),
        ("softmax", "4096x128256", "hybrid", "bulk", 1024),
        ("rmsnorm", "8192x32768", "shared", "bulk", 512),
        ("layernorm", "8192x16384", "shared", "bulk", 512),
        ("layernorm", "4096x32768", "registers", "bulk", 512),
    ],
)
def test_many_long_rows_are_on_their_way_while_others_are_computed(
    op: str, shape: str, hold: str, copy: str, threads: int
) -> None:
    """One or two blocks with such rows in registers take 1.06 x (rmsnorm) to 1.7 x as long (softmax 50257), H200."""
    found = default(op, shape)
    assert (found.hold, found.copy, found.threads) == (hold, copy, threads)
    assert default(op, shape, gpu=target("a100")).copy in ("cp_async", "direct")


def test_softmax_takes_one_look_less_where_a_look_is_long() -> None:
    assert default("softmax", "8192x8192").softmax == "online"
    assert default("softmax", "8192x2048").softmax == "two_pass"
    assert default("softmax", "4096x32000", gpu=target("t4")).softmax == "online"
    assert default("rmsnorm", "8192x32768").softmax == "two_pass"


@pytest.mark.parametrize(
    ("op", "shape", "direction", "order"),
    [
        ("rmsnorm", "8192x4096", "forward", "descending"),
        ("rmsnorm", "4096x4096", "forward", "ascending"),  # 33 MB fit: 9 % more the other way round
        ("softmax", "8192x4096", "backward", "descending"),
        ("rmsnorm", "8192x4096", "backward", "descending"),
        ("swiglu", "4636x4544", "backward", "descending"),  # three inputs of 42 MB
        ("quantize_to_fp8_group", "4096x5120", "forward", "ascending"),  # one
        ("dyt", "4096x262144", "forward", "descending"),
        ("dyt", "8192x262144", "forward", "ascending"),  # 4.3 GB: what L2 holds of them does not count
        ("adaln", "4x4096x4096", "backward", "ascending"),  # a batch's rows are walked from its first one
    ],
)
def test_the_last_rows_come_first_where_l2_does_not_hold_all(op: str, shape: str, direction: str, order: str) -> None:
    assert default(op, shape, direction=direction).row_order == order


def test_a_kernel_of_any_columns_knows_no_size_and_begins_with_the_first_rows() -> None:
    problem = problem_for(load("rmsnorm"), shape="8192x4096", dtype="bf16", any_cols=True)
    assert default_schedule(problem, H200).row_order == "ascending"


@pytest.mark.parametrize(
    ("op", "shape", "threads", "vector"),
    [
        ("add_rmsnorm_to_fp8_token", "2453x189", 32, 1),  # eight threads took 2 x as long
        ("softmax", "299551x91", 8, 4),  # 16 that own one vector each or none: 1.36 x
    ],
)
def test_narrow_accesses_are_shared_out_among_more_threads_and_leave_few_idle(
    op: str, shape: str, threads: int, vector: int
) -> None:
    found = default(op, shape)
    assert (found.threads_per_row, found.vector) == (threads, vector)


def test_few_long_rows_that_meet_parameters_are_walked_by_clusters_that_have_equally_many() -> None:
    """Four blocks that own one row took 1.5 x as long at rmsnorm 265x99968; without parameters eight took 1.7 x."""
    found = default("rmsnorm", "265x99968")
    assert (found.cluster, found.persistent, found.stages, found.params) == (8, 4, 2, "packed")
    assert default("layernorm_to_int8", "265x99968").copy == "cp_async"  # a thread has no registers for the next row
    assert default("log_softmax", "299x36288").persistent == 0
    assert default("softmax", "265x99968").persistent == 0


def test_long_rows_that_meet_parameters_come_to_shared_memory_while_clusters_walk() -> None:
    """Chains of 0.87 to 0.96 of what clusters take that read registers ahead, or blocks that hold a row each."""
    few, long = default("rmsnorm", "600x40000"), default("rmsnorm_to_fp8_token", "2205x71680")
    assert (few.cluster, few.threads, few.copy, few.persistent) == (8, 128, "cp_async", 8)
    assert (long.cluster, long.threads, long.copy, long.load) == (8, 128, "bulk", "evict_last")
    assert default("rmsnorm", "4096x32768").cluster < 8  # many rows that a block's shared memory holds
    assert default("layernorm", "4108x108352").copy == "bulk"  # weight and bias fill registers: 0.91 of the chain
    assert default("softmax", "700x60000").copy == "direct"  # meets no parameters
    assert default("rmsnorm", "140x80000").copy == "direct"  # some clusters would walk two rows, most of them one


def test_kernels_that_begin_with_the_last_rows_leave_their_outputs_in_l2() -> None:
    """Streaming costs 9 % of layernorm 4096x6144's price; smaller inputs with large outputs are written past L2."""
    assert default("layernorm", "4096x6144").store == "default"
    assert default("add_layernorm", "4096x4096").store == "streaming"


@pytest.mark.parametrize(("cols", "vector", "edges"), [(1002, 2, "exact"), (5002, 8, "peel"), (1001, 8, "peel")])
def test_even_rows_of_up_to_2048_cols_are_read_whole_by_4_bytes(cols: int, vector: int, edges: str) -> None:
    found = default("layernorm", f"20000x{cols}")
    assert (found.vector, found.edges, found.keep) == (vector, edges, "values")


def test_rows_that_do_not_all_find_room_take_fewer_threads() -> None:
    assert default("rmsnorm", "526x10560").threads == 256  # 9 % ahead of 512
    assert default("rmsnorm_to_fp8_group", "55x100608").cluster == 4  # 0.74 of the price of eight
    assert default("rmsnorm_to_fp8_group", "37x65280").cluster == 8


def test_few_peeled_rows_take_four_warps_that_read_8_bytes_and_meet_once() -> None:
    """0.84 of the price at 12x4409 and 40x2731."""
    for shape in ("12x4409", "40x2731"):
        found = default("rmsnorm", shape)
        assert (found.threads, found.vector, found.reduce_with) == (128, 4, "short_chains")


def test_few_rows_read_by_elements_are_spread_over_clusters_and_groups_over_as_many_warps_as_they_fill() -> None:
    assert default("add_rmsnorm_to_fp8_token", "11x5151").cluster == 8  # 0.78 of the price of one block
    assert default("add_rmsnorm_to_fp8_token", "11x5152").cluster == 1
    assert default("rmsnorm_to_fp8_group", "29x1280").threads == 160  # 0.79 of the price of 64


def test_layernorm_rows_of_4_to_8_kb_are_looked_at_once() -> None:
    """5 % of the chain at 6504x2688, 3 % at 5000x3328."""
    for shape, threads, persistent in (("6504x2688", 32, 4), ("5000x3328", 64, 0)):
        found = default("layernorm", shape)
        assert (found.variance, found.threads_per_row, found.persistent) == ("guarded", threads, persistent)
    assert default("rmsnorm", "6504x2688").threads_per_row == 64  # has no variance
    assert default("layernorm", "20000x2688").variance == "two_pass"  # L2 does not hold it
    assert default("layernorm", "1024x4096").variance == "two_pass"  # a block of two warps for each leaves SMs idle


@pytest.mark.parametrize(
    ("op", "shape", "threads", "hold", "persistent"),
    [
        ("layernorm_to_int8", "27x257472", 512, "shared", 0),  # 0.72 of the chain of the same clusters in registers
        ("layernorm_to_int8", "60x131072", 256, "shared", 0),
        ("rmsnorm_to_fp8_token", "98x96384", 256, "registers", 4),  # 0.72
        ("rmsnorm", "125x231488", 256, "registers", 3),  # by one an SM 0.88; level
        ("rmsnorm", "122x138496", 256, "registers", 4),  # by one an SM 1.09 of that
        ("rmsnorm_to_fp8_group", "31x162816", 512, "shared", 0),
        ("add_rmsnorm_to_fp8_group", "51x60160", 256, "shared", 0),  # 0.91
        ("softmax", "55x172032", 256, "shared", 0),  # 242 registers a thread would leave an SM one block of four
    ],
)
def test_few_long_rows_find_room_in_shared_memory(
    op: str, shape: str, threads: int, hold: str, persistent: int
) -> None:
    found = default(op, shape)
    assert (found.threads, found.cluster, found.hold, found.copy) == (threads, 8, hold, "cp_async")
    assert found.persistent == persistent


@pytest.mark.parametrize(
    ("op", "shape", "copy", "threads", "cluster"),
    [
        ("layernorm", "15168x5952", "cp_async", 256, 1),  # 0.90 of the chain of registers alone
        ("layernorm", "6000x10240", "cp_async", 512, 1),  # 0.87
        ("rmsnorm", "2000x24576", "cp_async", 512, 2),  # 0.82
        ("layernorm", "8331x7296", "cp_async", 512, 1),
        ("layernorm", "8192x4096", "direct", 256, 1),  # both rows find room
        ("layernorm", "300x10240", "direct", 512, 1),  # blocks have a row or two
    ],
)
def test_the_next_row_with_column_sums_is_copied_where_registers_have_no_room(
    op: str, shape: str, copy: str, threads: int, cluster: int
) -> None:
    found = default(op, shape, direction="backward")
    assert (found.copy, found.threads, found.cluster) == (copy, threads, cluster)


def test_short_rows_with_column_sums_are_not_fetched_ahead_where_that_takes_half_of_an_sms_threads() -> None:
    assert default("add_rmsnorm", "13936x640", direction="backward").stages == 1  # 0.94 of the chain
    assert default("rmsnorm", "13951x544", direction="backward").stages == 2
    assert default("rmsnorm", "6418x717", direction="backward").stages == 1  # peeled: 156 registers, else 127


def test_rows_read_by_elements_leave_a_thread_few_of_them() -> None:
    for shape in ("79x246497", "300x50001"):  # 121 and 98 a thread cost 2.2 and 2.4 x
        found = default("layernorm_to_int8", shape)
        assert found.vector == 1
        assert int(shape.split("x")[1]) <= 32 * found.threads * found.cluster


def test_clusters_of_few_rows_have_blocks_of_512_threads_at_most() -> None:
    for op, shape in (("layernorm", "12x208320"), ("softmax", "8x238144"), ("rmsnorm_to_fp8_token", "8x203968")):
        found = default(op, shape)
        assert (found.threads, found.cluster) == (512, 8)  # 1024: 1.8 x the price of 256, 1.29 x the chain of 512
    elements = default("rmsnorm_to_fp8", "25x23757")
    assert (elements.threads, elements.cluster) == (512, 4)  # 0.92 of the chain of 1024
    assert default("rmsnorm_to_fp8_token", "4x13997").threads == 128  # 0.93 of 256


def test_clusters_walk_long_rows_that_are_read_by_elements() -> None:
    walked = {
        ("rmsnorm_to_fp8_token", "100x50001"): (256, 8, 4),  # 0.62 of the chain by 1024 threads in four blocks
        ("add_rmsnorm_to_fp8_token", "60x90001"): (256, 16, 4),
        ("add_rmsnorm_to_fp8_token", "17x199433"): (512, 16, 2),
        ("add_rmsnorm_to_fp8_token", "31x120001"): (512, 16, 2),  # by 256 threads there is no row to walk to
    }
    for (op, shape), expected in walked.items():
        found = default(op, shape)
        assert (found.threads, found.cluster, found.persistent, found.vector) == (*expected, 1)
    for op, shape in (
        ("rmsnorm_to_fp8", "1500x22223"),
        ("rmsnorm", "100x50001"),
        ("rmsnorm_to_fp8_token", "100x50002"),
    ):
        assert default(op, shape).vector > 1 or default(op, shape).persistent == 0


def test_warps_beside_each_other_read_their_parameters_early() -> None:
    found = default("rmsnorm_to_fp8_token", "65x512")  # 0.92 of the chain with parameters asked for ahead
    assert (found.threads_per_row, found.rows_per_block, found.params) == (32, 4, "early")


def test_the_largest_of_groups_are_found_in_pairs() -> None:
    found = default("quantize_to_fp8_group", "4096x5120")  # 0.98 of the chain by five blocks a row
    assert (found.reduce_with, found.division, found.parts) == ("short_chains", "remainder", 1)
    assert default("quantize_to_fp8_group", "3000x16384").parts == 4
    assert default("silu_mul_to_fp8_group", "4096x5120").reduce_with == "shuffle"  # of what is computed


def test_layernorms_of_middle_rows_leave_no_steps_of_two_warps_half_empty() -> None:
    even, uneven, odd = (default("layernorm", shape) for shape in ("3600x3840", "2300x3520", "6000x3108"))
    assert (even.threads, even.vector, even.variance) == (64, 4, "guarded")
    assert (uneven.threads, uneven.vector, uneven.variance) == (128, 8, "guarded")  # 0.96 of two warps
    assert (odd.threads, odd.vector) == (128, 4)
    assert default("layernorm", "3000x2200").persistent == 0  # 0.93 of warps that walk once and a half
    assert default("layernorm", "6000x2500").persistent == 4
    assert default("layernorm", "422x2304").threads == 128 == default("layernorm", "2x2560").threads  # not by warps


def test_few_long_rows_of_a_softmax_are_shared_by_four_blocks_without_short_chains() -> None:
    assert (
        default("rmsnorm_to_fp8", "300x26001").threads == 1024
    )  # 512 would hold 51 elements each, in as many registers
    for op, shape in (("cross_entropy_grad", "36x30528"), ("softmax", "36x30528"), ("log_softmax", "50x32000")):
        found = default(op, shape)  # 0.76 to 0.82 of one block of 1024 threads
        assert (found.threads, found.cluster, found.reduce_with) == (256, 4, "shuffle")
    assert default("cross_entropy_grad", "36x16384").cluster == 1
    assert default("layernorm", "60x32000").cluster == 1


def test_short_chains_are_for_small_blocks_of_clusters() -> None:
    small, large = default("add_layernorm", "7x13056"), default("add_rmsnorm_to_fp8_group", "16x159744")
    assert (small.threads, small.cluster, small.reduce_with) == (128, 8, "short_chains")
    assert (large.threads, large.cluster, large.reduce_with) == (512, 8, "shuffle")  # 0.87 of short chains
    assert default("layernorm", "52x11136").reduce_with == "shuffle"
    assert default("layernorm", "52x8192").reduce_with == "short_chains"


def test_clusters_whose_next_row_finds_no_registers_copy_it_to_shared_memory() -> None:
    found = default("add_rmsnorm", "324x191296")  # 0.95 of clusters that read where they are
    assert (found.threads, found.cluster, found.copy, found.stages) == (512, 8, "cp_async", 1)
    evened = default("layernorm", "150x150016")  # eights: two rows for most, three for some; 0.94 of the chain
    assert (evened.threads, evened.cluster, evened.persistent, evened.copy) == (256, 16, 4, "cp_async")


@pytest.mark.parametrize("gpu", [H200, target("a100")], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize(
    ("op", "shape", "dtype", "threads", "parts", "hold"),
    [
        ("swiglu", "4096x393216", "f32", 256, 64, "reload"),  # six vectors a thread
        ("swiglu", "1x393216", "bf16", 512, 48, "registers"),  # two, and no lane is idle
        ("dyt", "16x8388608", "f32", 512, 64, "reload"),
        ("swiglu", "100x8388608", "bf16", 512, 64, "reload"),
    ],
)
def test_rows_without_a_reduction_are_in_parts_however_long_they_are(
    op: str, shape: str, dtype: str, threads: int, parts: int, hold: str, gpu: Device
) -> None:
    """Blocks of a cluster wait for each other, and one block a row leaves SMs idle: 16 rows took 16 of them."""
    found = default(op, shape, dtype, gpu=gpu)
    assert (found.threads, found.parts, found.cluster, found.hold) == (threads, parts, 1, hold)
    assert found.vector * (4 if dtype == "f32" else 2) == 16
    assert found.unroll == (4 if hold == "reload" else 0)


def test_rows_in_shared_memory_are_read_by_16_bytes_though_lanes_are_idle() -> None:
    found = default("rmsnorm", "17902x42112")
    assert (found.hold, found.copy, found.vector) == ("shared", "bulk", 8)  # 0.95 of the chain by 8 bytes


@pytest.mark.parametrize(
    ("op", "shape", "blocks"),
    [
        ("rmsnorm_to_fp8_token", "7x203968", 16),  # 0.74 of the chain by eight
        ("layernorm", "2x119296", 16),
        ("add_rmsnorm_to_fp8_group", "1x97536", 16),
        ("layernorm", "8x119936", 8),  # by 16 a row waits for the others: 1.22
        ("softmax", "7x128256", 8),
        ("rmsnorm", "7x32768", 8),
    ],
)
def test_a_few_of_the_longest_rows_have_clusters_of_16(op: str, shape: str, blocks: int) -> None:
    found = default(op, shape)
    assert found.cluster == blocks
    assert blocks == 8 or found.threads == 256  # 512: 8 to 19 % more


def test_long_rows_of_two_inputs_walk_in_clusters_of_16() -> None:
    found = default("add_rmsnorm_to_fp8_token", "35x257152")
    assert (found.threads, found.cluster, found.copy, found.stages) == (256, 16, "cp_async", 2)  # 0.80 of the chain


def test_a_long_row_of_two_inputs_or_of_16256_cols_has_eight_blocks() -> None:
    for op, shape, blocks in (("layernorm", "1x16256", 8), ("add_rmsnorm", "1x11968", 8), ("add_rmsnorm", "1x7168", 1)):
        assert default(op, shape).cluster == blocks


@pytest.mark.parametrize(
    ("shape", "threads"), [("129468x320", 8), ("8192x768", 32), ("4096x2048", 64), ("16x512", 128)]
)
def test_a_gate_of_at_most_256_vectors_has_no_parts(shape: str, threads: int) -> None:
    """swiglu 129468x320 by elements in three parts takes 1.9 x the chain, 8192x768 by two 1.2 x."""
    found = default("swiglu", shape)
    assert (found.parts, found.threads_per_row) == (1, threads)
    assert found.vector == (4 if shape.startswith("16x") else 8)


def test_short_rows_with_a_variance_are_looked_at_twice() -> None:
    for shape in ("2x1408", "15x640"):
        found = default("layernorm", shape)  # 0.94 of the chain of one look
        assert (found.variance, found.keep) == ("two_pass", "values")
    assert default("layernorm", "2x2048").variance == "guarded"


def test_a_few_hundred_short_odd_rows_are_read_by_elements() -> None:
    assert (default("layernorm", "180x289").vector, default("layernorm", "180x289").edges) == (1, "exact")  # 0.87
    assert default("layernorm", "1800x289").edges == "peel"


def test_many_short_rows_divide_their_scales_by_remainders() -> None:
    for shape, division in (("2687x128", "remainder"), ("2687x4096", "ieee"), ("436x128", "ieee")):
        assert default("add_rmsnorm_to_fp8_token", shape).division == division
    assert default("softmax", "2687x128").division == "ieee"  # was not raced


def test_peeled_rows_with_column_sums_leave_few_lanes_idle() -> None:
    found = default("layernorm", "46119x4165", direction="backward")
    assert (found.vector, found.edges, found.stages) == (2, "peel", 2)  # 0.81 of the chain by 8 elements
    for op, shape in (("rmsnorm", "18827x5767"), ("layernorm", "29728x6395")):  # few idle; the next row finds room
        assert default(op, shape, direction="backward").vector == 8
    assert default("add_rmsnorm", "73996x258", direction="backward").edges == "exact"


@pytest.mark.parametrize("cols", [7, 1 << 20])
def test_a_shape_without_rows_has_a_default_and_an_estimate(cols: int) -> None:
    for op, direction in itertools.product(("softmax", "rmsnorm"), ("forward", "backward")):
        problem = problem_for(load(op), shape=(0, cols), direction=direction)
        schedule = default_schedule(problem, H200)
        assert predicted_us(problem, schedule, H200) > 0
