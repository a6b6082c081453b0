"""The bench and a whole run on a real GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from normgen.cuda.compiler import compile_module
from normgen.cuda.driver import find_gpu
from normgen.errors import NormgenError
from normgen.measure import timing
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.records import statistics
from normgen.records.record import Cache
from normgen.records.winners import read
from normgen.schedule.default import default_schedule
from normgen.spec.reader import load
from tests.codegen.kernels import KERNELS

pytestmark = pytest.mark.gpu


def make_bench(shape: str, dtype: str = "f32", cache: Cache = Cache.COLD):  # type: ignore[no-untyped-def]
    from normgen.cuda.driver import device_facts
    from normgen.measure.gpu import GpuBench

    facts = device_facts(0)
    problem = problem_for(load("layernorm"), shape=shape, dtype=dtype)
    return GpuBench(problem, facts, index=0, cache=cache, seed=0), problem, facts


def loaded_default(shape: str, cache: Cache = Cache.COLD):  # type: ignore[no-untyped-def]
    bench, problem, facts = make_bench(shape, cache=cache)
    module = emit(problem, default_schedule(problem, facts))
    bench.load("default", module, compile_module(module, facts.arch))
    return bench, problem, facts


@pytest.mark.parametrize("shape", ["8192x768", "1x1", "3x4097", "16x4096"])
def test_the_default_schedule_is_right(shape: str) -> None:
    bench, _, _ = loaded_default(shape)
    check = bench.check("default", full=True)
    assert check.ok, check.summary
    assert set(check.error) == {"y", "mean", "rstd"}


def test_the_roof_moves_what_the_device_can() -> None:
    bench, problem, facts = make_bench("8192x768")
    series = timing.race(bench, bench.roofs, samples=20, seed=0)
    us = min(statistics.median(s) for s in series.values())
    gb_per_s = problem.compulsory_bytes / us / 1e3
    assert 0.5 * facts.dram_gb_per_s < gb_per_s < 1.5 * facts.dram_gb_per_s


@pytest.mark.parametrize(
    ("shape", "cache"), [("8192x768", Cache.COLD), ("16x4096", Cache.HOT), ("16x4096", Cache.COLD)]
)
def test_two_captures_of_one_cubin_agree_within_two_per_cent(shape: str, cache: Cache) -> None:
    bench, _, _ = loaded_default(shape, cache)
    bench.warm_up("default")
    twin = bench.twin("default")
    series = timing.race(bench, ["default", twin], samples=40, seed=0)
    assert statistics.paired_ratio(series["default"], series[twin]).median == pytest.approx(1.0, abs=0.02)


def test_a_small_problem_takes_longer_from_cold_memory_than_from_l2() -> None:
    times = {}
    for cache in Cache:
        bench, _, _ = loaded_default("256x4096", cache)
        times[cache] = statistics.median(timing.race(bench, ["default"], samples=20, seed=0)["default"])
    assert times[Cache.COLD] > 1.1 * times[Cache.HOT]


def test_a_kernel_with_an_unbiased_variance_is_found_wrong() -> None:
    bench, problem, facts = make_bench("64x768")
    module = emit(problem, default_schedule(problem, facts))
    planted = module.text.replace("look2.var_sum / kCols", "look2.var_sum / (kCols - 1)")
    assert planted != module.text
    wrong = replace(module, text=planted)
    bench.load("wrong", wrong, compile_module(wrong, facts.arch))
    assert not bench.check("wrong", full=False).ok


# Two faults for each kind of call and for rows near a dtype's limits: kernel, its text, what is written in its place,
# what is said then. None of them leaves its tensors: a GPU that faults would take the other tests with it.
PLANTED = {
    "pitch of dx": ("backward_clusters", "(row) * dx_pitch", "(row) * x_pitch", "WRONG with pitches of their own"),
    "pitch of y": ("block_per_row", "(row) * y_pitch", "(row) * x_pitch", "WRONG with pitches of their own"),
    "null test": ("warp_per_row", "if (rstd != nullptr)", "if (mean != nullptr)", "WRONG with null mean"),
    "null test, masked": ("welford_masked", "if (rstd != nullptr)", "if (mean != nullptr)", "WRONG with null mean"),
    "one row": ("warp_per_row", "row < rows", "rows > 1 && row < rows", "WRONG at 1 row"),
    "one row, a thread a row": ("thread_per_row", "row < rows", "rows > 1 && row < rows", "WRONG at 1 row"),
    "row loop": ("backward_persistent", "first_row += ", "first_row += 2 * ", "WRONG"),
    "row loop of one row": ("backward_last_tile", "row += ", "row += 2 * ", "WRONG"),
    "partial rows": (
        "backward_clusters",
        "+= kInFlight * kLanes",
        "+= 2 * kInFlight * kLanes",
        "partial rows to add up",
    ),
    "partial rows, last tile": ("backward_last_tile", "next += 8 *", "next += 16 *", "WRONG"),
    "masked rows": ("sub_warp_per_row", "{__int_as_float(0xff800000)", "{-1.0e30f", "masked"),
    "masked rows, online": ("online_peeled_any_cols", "-3.402823466e+38f", "-1.0e30f", "masked"),
}


@pytest.mark.parametrize("fault", list(PLANTED))
def test_a_finalist_with_a_planted_fault_is_refused(fault: str) -> None:
    from normgen.cuda.driver import device_facts
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
    from normgen.cuda.driver import device_facts
    from normgen.measure.check import check_on_gpu

    kernel = KERNELS[name]
    checked = check_on_gpu(kernel.problem, kernel.module(), device_facts(0), index=0, seed=0)
    loses_rows = kernel.schedule.variance == "sum_of_squares"
    assert checked.ok is not loses_rows, checked.summary


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_rows_beyond_2_31_elements_are_right(direction: str) -> None:
    """4 GB a tensor; the inputs' first rows are repeated, so that any stretch of as many rows is like them."""
    from normgen.cuda.driver import device_facts
    from normgen.measure.gpu import GpuBench
    from normgen.verify import check

    cols, rows = 4096, (1 << 31) // 4096 + 1024
    problem = problem_for(load("layernorm"), shape=(rows, cols), dtype="bf16", direction=direction)
    facts = device_facts(0)
    bench = GpuBench(problem, facts, index=0, cache=Cache.COLD, seed=0)
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


def test_a_tuning_run_ends_with_a_measured_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.tuning import tune

    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    result = tune(shape="2048x768", trials=24, budget_s=60, device=0)
    assert result.measured
    assert result.default is not None
    assert result.record.times_us is not None
    assert result.record.times_us.n >= 30
    assert result.record.us <= result.default.us * 1.02  # type: ignore[operator]
    candidates = read(result.candidates_path)
    assert len(candidates.records) == 24
    assert not candidates.damaged
    assert result.record_path is not None
    assert [r.schedule for r in read(result.record_path).records] == [result.record.schedule]
    assert result.record.percent_of_roof is not None
    assert 10 < result.record.percent_of_roof < 130


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NormgenError):
        find_gpu(99)
