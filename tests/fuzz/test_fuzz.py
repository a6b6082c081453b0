"""A sample of what `python -m tests.fuzz` does: no random spec or schedule ends in a fault of ours."""

from __future__ import annotations

import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.cpu import find_compiler
from tests.fuzz import stages
from tests.fuzz.command import run
from tests.fuzz.specs import Asked, draw
from tests.fuzz.stages import Answer, answered, emitted
from tests.samples import is_full

SPECS = st.integers(0, 2**32).map(lambda seed: draw(Random(seed)))


@given(SPECS)
@settings(max_examples=150, deadline=None, derandomize=not is_full())
def test_a_random_spec_is_emitted_and_computes_its_formulas_or_is_refused(asked: Asked) -> None:
    answer = answered(emitted, asked)
    assert not answer.is_fault, f"{answer.state}\n{asked}{answer.why}"


def test_the_emitted_text_of_random_specs_compiles() -> None:
    assert run("nvrtc", 12, seed=0) == 0


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_the_kernels_of_random_specs_are_right_on_the_cpu() -> None:
    assert run("execute", 5, seed=0) == 0


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


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_the_check_finds_random_legal_schedules_right() -> None:
    assert run("legal", 4, seed=1000) == 0
