"""The timing protocol on a device whose truth is known."""

from __future__ import annotations

import pytest

from normgen.measure import timing
from normgen.measure.timing import Policy
from normgen.records import statistics
from tests.measure.simulated import SimulatedTimer

POLICY = Policy()


def test_a_race_samples_every_live_key_once_a_round_and_drops_the_clearly_slow() -> None:
    timer = SimulatedTimer({"a": 10.0, "b": 10.1, "slow": 20.0}, spikes=0.0)
    series = timing.race(timer, ["a", "b", "slow"], samples=20, seed=1, drop_after=6, margin=0.02)
    assert len(series["a"]) == len(series["b"]) == 20
    assert len(series["slow"]) == 6


def test_a_kept_key_stays_in_the_race_however_slow() -> None:
    timer = SimulatedTimer({"a": 10.0, "reference": 30.0})
    series = timing.race(timer, ["a", "reference"], samples=20, seed=1, keep=("reference",), drop_after=6)
    assert len(series["reference"]) == 20


def test_screening_divides_by_the_drift_of_the_reference() -> None:
    timer = SimulatedTimer({"reference": 20.0, "a": 12.0, "b": 12.0}, drift=0.0)
    first = timing.screen(timer, ["a"], reference="reference", baseline_us=None, policy=POLICY, seed=0)
    timer.truth = {key: us * 1.1 for key, us in timer.truth.items()}  # the clock fell by a tenth
    second = timing.screen(timer, ["b"], reference="reference", baseline_us=first.reference_us, policy=POLICY, seed=1)
    assert second.drift == pytest.approx(1.1, rel=0.01)
    assert second.times["b"].median == pytest.approx(first.times["a"].median, rel=0.01)


def test_the_reference_itself_can_be_among_the_screened() -> None:
    timer = SimulatedTimer({"reference": 20.0, "a": 12.0})
    screened = timing.screen(timer, ["reference", "a"], reference="reference", baseline_us=None, policy=POLICY, seed=0)
    assert screened.times["reference"].median == screened.reference_us


@pytest.mark.parametrize("seed", range(10))
def test_confirmation_finds_a_two_per_cent_winner_through_noise_spikes_and_drift(seed: int) -> None:
    truth = {"lucky": 10.2, "best": 10.0, "default": 14.0, "copy": 9.8}
    timer = SimulatedTimer(truth, seed=seed)
    found = timing.confirm(
        timer, ["lucky", "best", "default"], tie_order=str, policy=POLICY, seed=seed, others=["copy"]
    )
    assert found.winner == "best"
    assert found.noise_floor < 0.015
    assert found.ratio["default"].median == pytest.approx(1.4, rel=0.01)
    assert found.times["copy"].n == POLICY.confirm_samples >= 30


@pytest.mark.parametrize("seed", range(5))
def test_a_difference_below_the_noise_is_a_tie_that_the_fixed_order_breaks(seed: int) -> None:
    timer = SimulatedTimer({"a": 10.0, "b": 9.999, "c": 12.0}, noise=0.02, seed=seed)
    found = timing.confirm(timer, ["b", "a", "c"], tie_order=str, policy=POLICY, seed=seed)
    assert found.ties == ("a", "b")
    assert found.winner == "a"


def test_an_incumbent_is_replaced_only_beyond_the_noise() -> None:
    timer = SimulatedTimer({"new": 9.999, "old": 10.0})
    tied = timing.confirm(timer, ["new", "old"], tie_order=str, policy=POLICY, seed=0, incumbent="old")
    assert tied.winner == "old"
    timer = SimulatedTimer({"new": 9.0, "old": 10.0})
    beaten = timing.confirm(timer, ["new", "old"], tie_order=str, policy=POLICY, seed=0, incumbent="old")
    assert beaten.winner == "new"


def test_the_same_seed_times_in_the_same_order() -> None:
    truth = {"a": 1.0, "b": 2.0, "c": 3.0}
    first = timing.race(SimulatedTimer(truth), list(truth), samples=8, seed=3)
    again = timing.race(SimulatedTimer(truth), list(truth), samples=8, seed=3)
    other = timing.race(SimulatedTimer(truth), list(truth), samples=8, seed=4)
    assert first == again
    assert first != other
    assert statistics.median(first["b"]) == pytest.approx(2.0, rel=0.05)


def test_an_incumbent_keeps_its_place_in_a_tie_and_loses_it_beyond_the_noise() -> None:
    truth = {"new": 10.0, "incumbent": 10.01, "old": 10.5}
    for incumbent, winner in (("incumbent", "incumbent"), ("old", "new")):
        timer = SimulatedTimer(truth, noise=0.003, spikes=0.0)
        found = timing.confirm(
            timer, list(truth), tie_order=lambda key: key == "incumbent", policy=Policy(), seed=2, incumbent=incumbent
        )
        assert found.winner == winner
        assert 0.0005 < found.noise_floor < 0.02


@pytest.mark.parametrize(("noise", "rounds"), [(0.001, 40), (0.2, 160)])
def test_a_confirmation_goes_on_until_the_price_is_known_or_rounds_run_out(noise: float, rounds: int) -> None:
    timer = SimulatedTimer({"a": 2.0, "b": 3.0, "roof": 1.0}, noise=noise, spikes=0.0, drift=0.0, base_us=8.0)
    found = timing.confirm(timer, ["a", "b"], tie_order=str, policy=POLICY, seed=0, others=["roof"])
    assert found.times["a"].n == found.times["roof"].n == rounds
    assert found.chain is not None
    assert found.chain.n == 2 * rounds  # T0 is sampled twice in every round
    assert set(found.prices) == {"a", "b", "roof"}
    assert (found.prices["a"].spread <= POLICY.price_spread) is (rounds < POLICY.confirm_most)
    assert found.prices["a"].low < 2.0 * (1 + noise)
    assert found.prices["a"].high > 2.0


def test_kernels_that_are_timed_alone_have_no_price_and_their_confirmation_is_one_block() -> None:
    timer = SimulatedTimer({"a": 2.0, "b": 3.0}, noise=0.2)
    found = timing.confirm(timer, ["a", "b"], tie_order=str, policy=POLICY, seed=0)
    assert (found.prices, found.chain, found.times["a"].n) == ({}, None, POLICY.confirm_samples)
    series = timing.race(timer, ["a", "b"], samples=8, seed=0)
    assert timing.figures_of(series, ["a"], ()) == {"a": statistics.median(series["a"])}


def test_a_roof_whose_price_is_not_above_nothing_is_no_figure() -> None:
    timer = SimulatedTimer({"a": 2.0, "free": -1.0}, noise=0.0, spikes=0.0, drift=0.0, base_us=8.0)
    series = timing.race(timer, ["a", "free", *timer.bases], samples=8, seed=0)
    assert timing.figures_of(series, ["a", "free"], timer.bases) == {"a": pytest.approx(2.0)}
