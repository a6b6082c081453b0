"""Fitting finds constants that explain measured times; calibration adopts what is no noise."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cost.constants import Constants
from normgen.cost.model import predict
from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.program.source import problem_for, stages_of
from normgen.records.place import Place, Setting
from normgen.records.record import Outcome, Record
from normgen.records.statistics import summarise
from normgen.schedule.space import space
from normgen.spec.reader import load
from normgen.studies.calibrate import LINE, adopted, probe_module, ring, slope_us
from normgen.studies.fit import TimedProblem, fit_constants, loss, paired_factors, read_measured

H200 = TARGETS["h200"]
TRUE = replace(Constants(), launch_us=2.0, store_streaming=0.9, barrier_us=0.12)


def made(shape: str, dtype: str, every: int) -> TimedProblem:
    """Times that a device with the constants TRUE would show."""
    problem = problem_for(load("layernorm"), shape=shape, dtype=dtype)
    legal = space(problem, H200).legal[::every]
    stages = stages_of(problem)
    points = tuple((s, predict(problem, s, H200, stages=stages, constants=TRUE).us) for s in legal)
    return TimedProblem(problem=problem, device=H200, points=points)


def test_a_fit_explains_most_of_the_error_and_leaves_what_is_kept() -> None:
    measured, start = [made("8192x768", "f32", 400), made("256x4096", "bf16", 200)], Constants()
    found = fit_constants(measured, start, keep=("barrier_us",))
    assert loss(measured, found, start) < 0.3 * loss(measured, start, start)
    assert found.barrier_us == start.barrier_us
    assert found.launch_us > 1.2 * start.launch_us
    assert found.params_early == start.params_early
    assert found.base_registers == start.base_registers


def test_the_factor_of_a_hint_comes_from_pairs_that_differ_in_it_alone() -> None:
    problem = problem_for(load("layernorm"), shape="8192x4096", dtype="f32")  # large: factors act on the bound alone
    legal = [s for s in space(problem, H200).legal if s.hold == "registers" and s.threads_per_row == 256]
    stages = stages_of(problem)
    points = tuple((s, predict(problem, s, H200, stages=stages, constants=TRUE).us) for s in legal)
    measured = TimedProblem(problem=problem, device=H200, points=points)
    found = paired_factors([measured])
    assert found["store_streaming"] == pytest.approx(TRUE.store_streaming, abs=0.01)
    assert found["load_past_l1"] == pytest.approx(TRUE.load_past_l1, abs=0.01)
    assert "load_streams_past_l1" not in found, "a forward pass reads one stream of rows"
    assert paired_factors([replace(measured, place=Place(setting=Setting.HOT))]) == {}


def test_the_level_of_a_problem_weighs_less_than_the_order_within_it() -> None:
    (exact,) = [made("8192x768", "f32", 600)]
    higher = replace(exact, points=tuple((s, 1.1 * us) for s, us in exact.points))
    mixed = replace(exact, points=tuple((s, us * (1.1 if i % 2 else 1.0)) for i, (s, us) in enumerate(exact.points)))
    assert 0 < loss([higher], TRUE, TRUE) < loss([mixed], TRUE, TRUE)


def test_a_fit_to_its_own_predictions_changes_nothing_much() -> None:
    measured = [made("8192x768", "f32", 600)]
    assert loss(measured, TRUE, TRUE) == pytest.approx(0.0, abs=1e-12)
    assert fit_constants(measured, TRUE, rounds=1) == TRUE


def test_records_become_measured_points(tmp_path: Path) -> None:
    problem = problem_for(load("rmsnorm"), shape="16x4096", dtype="bf16")
    default = default_schedule(problem, H200)
    ok = Record(
        problem=problem.question, schedule=default, outcome=Outcome.OK, measured=True,
        times_us=summarise([2.0, 2.1, 2.2]), device=H200.as_dict(),
    )  # fmt: skip
    lost = replace(ok, outcome=Outcome.WRONG_RESULT, measured=False, times_us=None)
    path = tmp_path / "candidates.jsonl"
    path.write_text(ok.line() + lost.line())
    (found,) = read_measured([path])
    assert found.problem == problem
    assert found.points == ((default, pytest.approx(2.1)),)
    packed = tmp_path / "candidates.jsonl.xz"
    gone = ok.line().replace('"hold": "', '"hold": "in a knob that is gone ')
    packed.write_bytes(lzma.compress(path.read_bytes() + gone.encode()))
    assert read_measured([packed]) == [found]
    path.write_text(replace(ok, place=Place(setting=Setting.HOT)).line())
    assert read_measured([path])[0].place.is_hot
    path.write_text(lost.line())
    with pytest.raises(UsageError, match="needs measured schedules"):
        read_measured([path])


def test_a_ring_visits_every_line_once_and_returns() -> None:
    words = ring(64 * LINE)
    at, seen = 0, []
    for _ in range(64):
        seen.append(at)
        at = int(words[at])
    assert at == 0
    assert sorted(seen) == [i * LINE // 4 for i in range(64)]
    assert np.abs(np.diff(seen)).min() > 0


def test_a_slope_cancels_the_launch_and_noise_is_not_adopted() -> None:
    assert slope_us(lambda n: 3.0 + 0.02 * n) == pytest.approx(0.02)
    start = Constants()
    found = adopted(start, {"barrier_us": 0.05, "shuffle_us": 1e-5}, {1: 6000.0, 256: 4000.0, 1024: 4200.0})
    assert found.barrier_us == 0.05
    assert found.shuffle_us == start.shuffle_us
    assert found.l2_over_dram == pytest.approx(6000 / 4200)


@pytest.mark.parametrize("name", ["empty", "chase", "shuffle", "barrier", "cluster_barrier"])
def test_the_probes_compile_and_keep_their_loop(name: str) -> None:
    from tests.cuda.compiled import ptx

    module = probe_module(name, cluster=4 if name == "cluster_barrier" else 1)
    text = ptx(module, 90)
    body = text[text.index(f".entry {name}") :]
    wanted = {"chase": "ld.global", "shuffle": "shfl", "barrier": "bar", "cluster_barrier": "barrier.cluster.arrive"}
    assert wanted.get(name, "ret") in body


@pytest.mark.gpu(alone=True)
def test_a_calibration_finds_plausible_latencies() -> None:
    from normgen.studies.calibrate import calibrate_gpu

    found = calibrate_gpu(0, Constants())
    us = found.measured_us
    assert 0 < us["l1_latency_us"] < us["l2_latency_us"] < us["dram_latency_us"] < 3
    assert 0.1 < us["launch_us"] < 5
    assert 0 < us["shuffle_us"] < us["barrier_us"] * 10
    assert all(gb > 10 for gb in found.copy_gb_per_s.values())
