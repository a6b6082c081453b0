"""A sample of what `python -m tests.fuzz` does: no random spec or schedule ends in a fault of ours."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.cpu import find_compiler
from normgen.program.source import problem_for
from normgen.spec.reader import load
from tests.fuzz import command, stages
from tests.fuzz.command import run
from tests.fuzz.faults import Faults, read_faults
from tests.fuzz.schedules import walk
from tests.fuzz.specs import Asked, draw
from tests.fuzz.stages import Answer, Drawn, Step, answered, emitted
from tests.samples import is_full

EXPONENTIAL = Asked(
    """name = "fuzz"
[tensors]
x = "input"
y = "output"
[formulas]
v = "x * x + 2"
y = "1 + exp(v / 3) * x"
""",
    cols=64,
    dtype="bf16",
    direction="forward",
    seed=4,
)
SPECS = st.integers(0, 2**32).map(lambda seed: draw(Random(seed)))


@given(SPECS)
@settings(max_examples=150, deadline=None, derandomize=not is_full())
def test_a_random_spec_is_emitted_and_computes_its_formulas_or_is_refused(asked: Asked) -> None:
    answer = answered(emitted, asked)
    assert not answer.is_fault, f"{answer.state}\n{asked}{answer.why}"


def test_the_emitted_text_of_random_specs_compiles(tmp_path: Path) -> None:
    assert run("nvrtc", 12, seed=0, kept=Faults.at(tmp_path / "faults.jsonl")) == 0


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_the_kernels_of_random_specs_are_right_on_the_cpu(tmp_path: Path) -> None:
    assert run("execute", 5, seed=0, kept=Faults.at(tmp_path / "faults.jsonl")) == 0


def test_a_step_hangs_by_what_it_computes_or_by_a_wait_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def computes(_: Asked) -> Answer:
        while True:
            pass

    def waits(_: Asked) -> Answer:
        time.sleep(60)
        return Answer("right")

    asked = draw(Random(0))
    assert answered(computes, asked, limit_s=0.1).state == "hang"
    monkeypatch.setattr(stages, "WAITS", 2)
    assert answered(waits, asked, limit_s=0.1).state == "hang"


def test_random_legal_schedules_come_to_blocks_of_the_grid_that_share_rows() -> None:
    softmax = problem_for(load("softmax"), shape="37x1024", dtype="f32")
    found = [walk(softmax, Random(seed)).meets_in_memory for seed in range(10)]
    assert any(found)
    assert not all(found)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_the_check_finds_random_legal_schedules_right(tmp_path: Path) -> None:
    assert run("legal", 4, seed=1000, kept=Faults.at(tmp_path / "faults.jsonl")) == 0


def _fails_on_an_exponential(asked: Drawn) -> Answer:
    asked.problem()
    if "exp(" in asked.text:
        raise ArithmeticError("an exponential")
    return Answer("right")


def test_a_fault_is_kept_at_once_with_all_that_shows_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept" / "faults.jsonl"
    steps = {"emit": Step(lambda _: EXPONENTIAL, _fails_on_an_exponential)}
    monkeypatch.setattr(command, "STEPS", steps)
    assert command.main(["--emit", "2", "--seed", "7", "--faults", str(file)]) == 1
    first, second = read_faults(file)
    assert (first.seed, second.seed, first.state) == (7, 8, "crash")
    assert "ArithmeticError: an exponential" in first.trace
    assert first.question is not None
    assert first.question["dtype"] == "bf16"
    assert len(first.schedules) >= 1
    assert first.drawn().problem() == EXPONENTIAL.problem()
    assert first.drawn().schedules(EXPONENTIAL.problem()) == EXPONENTIAL.schedules(EXPONENTIAL.problem())
    capsys.readouterr()
    assert command.main(["--replay", str(file), "--shrink"]) == 1
    assert '\ny = "exp(v)"\n' in capsys.readouterr().out
    monkeypatch.setattr(command, "STEPS", {"emit": Step(draw, lambda _: Answer("right"))})
    assert command.main(["--replay", str(file)]) == 0


def test_a_draw_in_which_the_process_dies_is_kept(tmp_path: Path) -> None:
    kept = Faults.at(tmp_path / "faults.jsonl")
    with pytest.raises(SystemExit), kept.trying("emit", 3, EXPONENTIAL):
        raise SystemExit  # what a signal leaves behind is left by this as well
    (left,) = tmp_path.iterdir()
    (found,) = read_faults(left)
    assert (found.step, found.seed, found.state, found.drawn()) == ("emit", 3, "tried", EXPONENTIAL)
