"""Kernels and peers that end the context of a real GPU end neither a contest nor an entry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from normgen.bench import peers
from normgen.bench.runner import Wish, run_suite
from normgen.choice.first import default_schedule
from normgen.cuda.compiler import compile_module
from normgen.program.source import problem_for
from normgen.records.place import Place
from normgen.spec.reader import load
from normgen.suites.suite import parse_suite
from normgen.trials.contest import Venue, hold
from tests.bench.planted_peer import FAULTY, MODULE
from tests.measure.planted import all_workers_end, planting

SUITE = 'name = "two"\n[[entry]]\nop = "rmsnorm"\nshape = ["2048x1024", "512x4096"]\ndtype = "bf16"\n'


def test_the_planted_peer_is_a_text_that_compiles() -> None:
    assert compile_module(MODULE, 90).data.startswith(b"\x7fELF")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))


@pytest.mark.gpu
@pytest.mark.usefixtures("device")
def test_a_peer_with_an_illegal_address_fails_alone_in_every_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = peers.missing_packages
    monkeypatch.setattr(peers, "missing_packages", lambda name: () if name == FAULTY else missing(name))
    monkeypatch.setattr("normgen.bench.entry.BENCH", "tests.bench.planted_peer:PlantedBench")
    with all_workers_end(monkeypatch):
        found = run_suite(parse_suite(SUITE), Wish(peers=(FAULTY, "torch"), samples=20))
    assert found.finished
    assert len(found.entries) == 2
    for entry in found.entries:
        assert "ILLEGAL_ADDRESS" in entry.peers[FAULTY].failed
        assert "tried again alone: the same end (prepare)" in entry.peers[FAULTY].failed
        assert entry.ours.failed == ""
        assert entry.ours.times_us is not None
        assert entry.ours.times_us.n == 20
        assert entry.roof_us is not None
        assert 0.5 * entry.roof_us < entry.ours.times_us.median < 20 * entry.roof_us
        torch = entry.peers["torch"]
        assert (torch.us is not None) == (not missing("torch")), torch.failed


@pytest.mark.gpu
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kind", ["far", "trap", "shared"])
def test_a_kernel_with_a_fault_is_failed_and_the_others_are_timed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.cuda.driver import device_facts

    facts = device_facts(0)
    problem = problem_for(load("layernorm"), shape="2048x768")
    good = default_schedule(problem, facts)
    bad = replace(good, load="streaming" if good.load == "default" else "default")
    monkeypatch.setattr("normgen.trials.entrant.emit", planting({bad: kind}))
    notes: list[str] = []
    with all_workers_end(monkeypatch):
        place = Venue(facts=facts, index=0, samples=20, seed=0)
        found = hold(problem, Place(), {"good": good, "bad": bad}, place, note=notes.append)
    assert found.failed.keys() == {"bad"}
    assert found.failed["bad"]
    assert len(found.series["good"]) == 20
    assert found.roofs_us["copy"] > 0
    assert len(notes) == (0 if kind == "shared" else 2), "too much shared memory is refused before anything runs"
