"""The bench and a whole run on a real GPU."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.module import KernelEntry, Launch, Module, Param, Source
from normgen.cuda.compiler import compile_module
from normgen.cuda.driver import OnDevice, device_facts, driver, find_gpu, synchronize
from normgen.cuda.driver import check as driver_check
from normgen.cuda.memory import memset
from normgen.errors import NormgenError
from normgen.measure import timing
from normgen.measure.chains import matmul
from normgen.measure.gpu import GpuBench
from normgen.measure.protocol import BASE, roof_family
from normgen.measure.replays import extent
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.records import statistics
from normgen.records.place import DEFAULT_PLACE, Context, Place, Setting
from normgen.records.winners import read
from normgen.spec.reader import load
from normgen.spec.spec import Spec
from normgen.studies.trial_files import read_trials
from normgen.verify import check
from tests.codegen.kernels import KERNELS
from tests.codegen.test_language import GROUPS

pytestmark = pytest.mark.gpu


PLACES = [
    Place(setting=setting, context=context) for context in (Context.BETWEEN, Context.CHAIN) for setting in Setting
]
ALONE = Place(context=Context.ALONE, setting=Setting.COLD)


def make_bench(shape: str, place: Place = DEFAULT_PLACE, *, op: str = "layernorm", **question: Any) -> GpuBench:
    problem = problem_for(load(op), shape=shape, **question)
    return GpuBench(problem, device_facts(0), index=0, place=place, seed=0)


def loaded_default(shape: str, place: Place = DEFAULT_PLACE, *, op: str = "layernorm", **question: Any) -> GpuBench:
    bench, facts = make_bench(shape, place, op=op, **question), device_facts(0)
    module = emit(bench.problem, default_schedule(bench.problem, facts))
    bench.load("default", module, compile_module(module, facts.arch))
    return bench


def price_us(bench: GpuBench, key: str, *, samples: int = 40) -> float:
    series = timing.race(bench, [key, *bench.bases], samples=samples, seed=0)
    return timing.figures_of(series, [key], bench.bases)[key]


def best_roof_us(bench: GpuBench) -> float:
    series = timing.race(bench, [*bench.roofs, *bench.bases], samples=40, seed=0)
    return min(timing.figures_of(series, bench.roofs, bench.bases).values())


@pytest.mark.parametrize("shape", ["8192x768", "1x1", "3x4097", "16x4096"])
def test_the_default_schedule_is_right(shape: str) -> None:
    check = loaded_default(shape).check("default", full=True)
    assert check.ok, check.summary
    assert set(check.error) == {"y", "mean", "rstd"}


@pytest.mark.parametrize("spec", GROUPS, ids=lambda spec: spec.name)
def test_values_of_groups_are_checked_where_they_lie(spec: Spec) -> None:
    problem, facts = problem_for(spec, shape="33x1024", dtype="bf16"), device_facts(0)
    bench = GpuBench(problem, facts, index=0, place=DEFAULT_PLACE, seed=0)
    module = emit(problem, default_schedule(problem, facts))
    bench.load("default", module, compile_module(module, facts.arch))
    found = bench.check("default", full=True)
    assert found.ok, found.summary
    assert {t.name for t in problem.tensors if t.kind.is_groups} <= set(found.error)


@pytest.mark.parametrize("place", [ALONE, DEFAULT_PLACE], ids=str)
def test_the_roof_moves_what_the_device_can(place: Place) -> None:
    bench = make_bench("65536x768", place)
    gb_per_s = bench.problem.compulsory_bytes / best_roof_us(bench) / 1e3
    dram = device_facts(0).dram_gb_per_s
    assert 0.5 * dram < gb_per_s < 1.5 * dram


@pytest.mark.gpu(alone=True)
@pytest.mark.parametrize("shape", ["8192x768", "16x4096"])
@pytest.mark.parametrize("place", [*PLACES, ALONE], ids=str)
def test_two_captures_of_one_cubin_agree_within_two_per_cent(shape: str, place: Place) -> None:
    bench = loaded_default(shape, place)
    bench.warm_up("default")
    twin = bench.twin("default")
    series = timing.race(bench, ["default", twin], samples=40, seed=0)
    assert statistics.paired_ratio(series["default"], series[twin]).median == pytest.approx(1.0, abs=0.02)


@pytest.mark.gpu(alone=True)
def test_a_small_problem_takes_longer_from_cold_memory_than_from_l2() -> None:
    for context in (Context.BETWEEN, Context.ALONE):
        us = {}
        for setting in (Setting.COLD, Setting.HOT):
            bench = loaded_default("256x4096", Place(setting=setting, context=context))
            us[setting] = price_us(bench, "default")
        assert us[Setting.COLD] > 1.1 * us[Setting.HOT], context


@pytest.mark.gpu(alone=True)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_chain_takes_longer_with_a_kernel_than_without(place: Place, direction: str) -> None:
    bench = loaded_default("2048x1024", place, direction=direction, dtype="bf16")
    series = timing.race(bench, ["default", *bench.bases], samples=40, seed=0)
    chain, base = statistics.summarise(series["default"]), timing.chain_times(series, bench.bases)
    assert base is not None
    assert base.high < chain.low
    again = statistics.paired_ratio(*(series[key] for key in bench.bases))
    assert again.median == pytest.approx(1.0, abs=0.02)


COPY_TEXT = """
extern "C" __global__ void __launch_bounds__(256) copy_rows(uint4* __restrict__ y, const uint4* __restrict__ x,
                                                            int rows) {
    const long long at = blockIdx.x * 1024LL + threadIdx.x;
    const uint4 a = x[at], b = x[at + 256], c = x[at + 512], d = x[at + 768];
    y[at] = a;
    y[at + 256] = b;
    y[at + 512] = c;
    y[at + 768] = d;
}
"""


def copying(bench: GpuBench) -> str:
    """A kernel that copies rows of 8 KiB, a block for two of them, loaded."""
    params = (
        Param(name="y", ctype="uint4*", source=Source.TENSOR, key="y"),
        Param(name="x", ctype="const uint4*", source=Source.TENSOR, key="x"),
        Param(name="rows", ctype="int", source=Source.ROWS),
    )
    kernel = KernelEntry(name="copy_rows", params=params, launch=Launch(threads=256, rows_per_block=2))
    module = Module(instructions="", text=COPY_TEXT, kernels=(kernel,))
    bench.load("copied", module, compile_module(module, device_facts(0).arch))
    return "copied"


@pytest.mark.parametrize("setting", list(Setting))
@pytest.mark.parametrize("shape", ["2048x4096", "16384x4096"])
def test_a_copy_costs_what_the_roof_costs(shape: str, setting: Setting) -> None:
    bench = make_bench(shape, Place(setting=setting), op="softmax", dtype="bf16")
    key = copying(bench)
    roofs, bases = list(bench.roofs), list(bench.bases)
    series = timing.race(bench, [key, *roofs, *bases], samples=60, seed=0)
    figures = timing.figures_of(series, [key, *roofs], bases)
    assert figures[key] == pytest.approx(min(figures[roof] for roof in roofs), rel=0.15)


@pytest.mark.gpu(alone=True)
def test_a_fresh_main_input_is_read_from_l2() -> None:
    us = {}
    for setting in (Setting.FRESH, Setting.COLD):
        bench = make_bench("2048x4096", Place(setting=setting), op="softmax", dtype="bf16")
        us[setting] = price_us(bench, copying(bench), samples=60)
    assert us[Setting.FRESH] < 0.9 * us[Setting.COLD]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("place", [*PLACES, ALONE], ids=str)
def test_replays_write_right_results_into_every_set(place: Place, direction: str) -> None:
    """Every output is poisoned; one replay later each set holds what the reference says."""
    bench = loaded_default("512x1024", place, direction=direction)
    bench.warm_up("default")
    problem, rows = bench.problem, bench.inputs.problem.rows
    written = [t for t in problem.tensors if t.is_written]
    for number in range(bench.plan.sets):
        for tensor in written:
            memset(bench.tensors(number)[tensor.name], 0xFF, extent(tensor, problem))
    synchronize(0)
    bench.sample("default")
    assert rows == problem.rows
    used = min(bench.plan.sets, bench.links("default"))
    for number in {0, used // 2, used - 1}:
        got = {t.name: bench.read(t, (0, rows), number) for t in written}
        verdict = check(problem, bench.inputs, got, rows=64)
        assert verdict.ok, f"set {number}: {verdict.summary()}"


@pytest.mark.parametrize("shape", ["1x4096", "200x7168", "3x1000"])
def test_few_rows_have_a_reduction_roof(shape: str) -> None:
    bench = make_bench(shape, op="rmsnorm", dtype="bf16")
    families = {roof_family(key) for key in bench.roofs}
    # Beside few rows the weights count: reads and writes are not as many as a copy's.
    assert families == {"elementwise", "reduction"} | ({"copy"} if shape == "200x7168" else set())
    assert 0 < best_roof_us(bench) < 50


def test_sums_over_rows_have_a_roof_of_two_launches() -> None:
    bench = make_bench("8192x768", dtype="bf16", direction="backward")
    series = timing.race(bench, [*bench.roofs, *bench.bases], samples=20, seed=0)
    figures = timing.figures_of(series, bench.roofs, bench.bases)
    best = {family: min(us for key, us in figures.items() if roof_family(key) == family)
            for family in ("elementwise", "two launches")}  # fmt: skip
    assert best["elementwise"] < best["two launches"] < 3 * best["elementwise"]


@pytest.mark.gpu(alone=True)
def test_a_chain_of_early_kernels_is_shorter_than_one_of_plain_ones() -> None:
    us = {}
    for context in (Context.BETWEEN, Context.CHAIN):
        bench = make_bench("16x4096", Place(context=context), dtype="bf16")
        series = timing.race(bench, bench.bases, samples=40, seed=0)
        us[context] = statistics.median(series[bench.bases[0]])
    assert us[Context.CHAIN] < us[Context.BETWEEN]


@pytest.fixture
def cublas() -> None:
    try:
        matmul.library()
    except NormgenError as error:
        pytest.skip(f"{error.rule}: {error.received}")


@pytest.mark.gpu(alone=True)
@pytest.mark.usefixtures("cublas")
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_between_matrix_products_a_kernel_reads_one_and_the_next_reads_it(dtype: str) -> None:
    bench = loaded_default("256x512", op="rmsnorm", dtype=dtype)
    x = bench.problem.tensor("x")
    source = bench.read(x, (0, 256)).astype(np.float64)
    chain = bench.chain(Context.MATMUL)
    ends: Any = chain._ends
    weights = ends._weights[0].read((512, 512), x.dtype).astype(np.float64)
    chain.before(0, 0)
    synchronize(0)
    product = bench.read(x, (0, 256)).astype(np.float64)
    assert np.abs(product - source @ weights).max() < 0.1
    bench.restore()
    assert (bench.read(x, (0, 256)).astype(np.float64) == source).all()
    base, key = bench.twin(BASE, Context.MATMUL), bench.twin("default", Context.MATMUL)
    series = timing.race(bench, [base, key], samples=40, seed=0)
    assert statistics.median(series[base]) < statistics.median(series[key])
    bench.sample(key)
    bench.sample(key)
    got = ends._product.read((256, 512), x.dtype).astype(np.float64)
    y = bench.read(bench.problem.tensor("y"), (0, 256), bench.links(key) % bench.plan.sets - 1).astype(np.float64)
    assert np.abs(got - y @ ends._weights[1].read((512, 512), x.dtype).astype(np.float64)).max() < 0.1


@pytest.mark.usefixtures("cublas")
def test_weights_that_do_not_fit_are_refused_with_their_size() -> None:
    """Two of more than a quarter of this GPU's memory each, in the context that was asked for.

    Where nobody asked for it, products of that size are refused before: they would take too long.
    """
    with OnDevice(0):
        _, memory = driver_check(driver().cuMemGetInfo(), "tell its memory")
    cols = 1 << math.ceil(math.log2(memory / 8) / 2)
    with pytest.raises(NormgenError, match="the context matmul does not fit") as caught:
        make_bench(f"1x{cols}", Place(context=Context.MATMUL), op="rmsnorm", dtype="bf16")
    assert f"weights [{cols}, {cols}] take {4 * cols**2 >> 30}." in str(caught.value)
    bench = make_bench(f"1x{cols}", op="rmsnorm", dtype="bf16")
    with pytest.raises(NormgenError, match="two of this size take"):
        bench.twin(BASE, Context.MATMUL)


def test_a_kernel_with_an_unbiased_variance_is_found_wrong() -> None:
    bench, facts = make_bench("64x768"), device_facts(0)
    module = emit(bench.problem, replace(default_schedule(bench.problem, facts), variance="two_pass"))
    planted = module.text.replace("pass2.var_sum, kCols", "pass2.var_sum, kCols - 1")
    assert planted != module.text
    wrong = replace(module, text=planted)
    bench.load("wrong", wrong, compile_module(wrong, facts.arch))
    assert not bench.check("wrong", full=False).ok


# Two faults for each kind of call and for rows near a dtype's limits: kernel, its text, what is written in its place,
# what is said then. None of them leaves its tensors: a GPU that faults would take the other tests with it.
PLANTED = {
    "pitch of dx": ("backward_clusters", "+ row * dx_pitch", "+ row * x_pitch", "WRONG with pitches of their own"),
    "pitch of y": (
        "block_per_row",
        "valid_row * y_pitch",
        "valid_row * x_pitch",
        "WRONG with pitches of their own",
    ),
    "null test": ("warp_per_row", "if (rstd != nullptr)", "if (mean != nullptr)", "WRONG with null mean"),
    "null test, masked": ("welford_masked", "if (rstd != nullptr)", "if (mean != nullptr)", "WRONG with null mean"),
    "one row": ("warp_per_row", "|| row < rows", "|| (rows > 1 && row < rows)", "WRONG at 1 row"),
    "one row, a thread a row": ("thread_per_row", "row < rows", "rows > 1 && row < rows", "WRONG at 1 row"),
    "row loop": ("backward_persistent", "first_row += ", "first_row += 2 * ", "WRONG"),
    "row loop of one row": ("backward_last_tile", "row += ", "row += 2 * ", "WRONG"),
    "partial rows": (
        "backward_clusters",
        "+= kInFlight * kLanes",
        "+= 2 * kInFlight * kLanes",
        "partial rows to add up",
    ),
    "partial rows, last tile": ("backward_last_tile", "next += kInFlight *", "next += 2 * kInFlight *", "WRONG"),
    "masked rows": ("sub_warp_per_row", "{__int_as_float(0xff800000)", "{-1.0e30f", "masked"),
    "masked rows, online": ("online_peeled_any_cols", "-3.402823466e+38f", "-1.0e30f", "masked"),
}


@pytest.mark.parametrize("fault", list(PLANTED))
def test_a_finalist_with_a_planted_fault_is_refused(fault: str) -> None:
    from normgen.measure.check import check_on_gpu

    name, old, new, says = PLANTED[fault]
    kernel = KERNELS[name]
    module = kernel.module()
    text = module.text.replace(old, new)
    assert text != module.text
    wrong = check_on_gpu(kernel.problem, replace(module, text=text), device_facts(0), index=0, seed=0)
    assert not wrong.ok
    assert says in wrong.summary


@pytest.mark.parametrize("name", list(KERNELS))
def test_right_kernels_pass_every_call(name: str) -> None:
    from normgen.measure.check import check_on_gpu

    kernel = KERNELS[name]
    checked = check_on_gpu(kernel.problem, kernel.module(), device_facts(0), index=0, seed=0)
    loses_rows = kernel.schedule.variance == "sum_of_squares"
    assert checked.ok is not loses_rows, checked.summary


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_rows_beyond_2_31_elements_are_right(direction: str) -> None:
    """4 GB a tensor; the inputs' first rows are repeated, so that any stretch of as many rows is like them."""
    cols, rows = 4096, (1 << 31) // 4096 + 1024
    problem = problem_for(load("layernorm"), shape=(rows, cols), dtype="bf16", direction=direction)
    facts = device_facts(0)
    bench = GpuBench(problem, facts, index=0, place=Place(), seed=0)
    try:
        module = emit(problem, default_schedule(problem, facts))
        bench.load("default", module, compile_module(module, facts.arch))
        bench.launch_once("default")
        sample = bench.inputs
        count = sample.problem.rows
        assert (rows - 1) * cols >= 1 << 31
        assert (1 << 31) // cols % count == rows % count == 0
        by_row = [t for t in problem.tensors if t.is_written and t.kind.by_row]
        for start in (0, (1 << 31) // cols - count, rows - count):
            got = {t.name: bench.read(t, (start, start + count)) for t in by_row}
            verdict = check(sample.problem, sample, got, rows=64)
            assert verdict.ok, f"from row {start} on: {verdict.summary()}"
    finally:
        bench.close()


@pytest.mark.gpu(alone=True)
def test_a_tuning_run_ends_with_a_measured_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.tuning import tune

    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    result = tune(shape="2048x768", trials=24, budget_s=60, device=0, reuse=False)
    assert result.measured
    assert result.default is not None
    assert result.record.times_us is not None
    assert result.record.times_us.n >= 30
    assert result.record.us <= result.default.us * 1.02  # type: ignore[operator]
    assert result.record.price_us is not None
    assert result.record.chain_us is not None
    assert 0 < result.record.price_us.median < result.record.us  # type: ignore[operator]
    assert result.record.alone_us is not None
    candidates = read(result.candidates_path)
    chosen = Counter(r.search["chosen"] for r in candidates.records)
    assert sum(chosen.values()) - chosen["random"] == 24
    assert chosen["random"] == 24 // 8  # one for each batch
    assert not candidates.damaged
    trials = read_trials(result.candidates_path.with_name("trials.jsonl"))
    assert len([t for t in trials if t.price_us is not None]) == len(result.finalists)
    assert sum(t.chosen == "random" and t.measured for t in trials) >= chosen["random"]
    assert result.record_path is not None
    assert [r.schedule for r in read(result.record_path).records] == [result.record.schedule]
    assert result.record.percent_of_roof is not None
    assert 10 < result.record.percent_of_roof < 130


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NormgenError):
        find_gpu(99)
