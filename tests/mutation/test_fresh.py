"""Wrong kernels that were written without knowledge of the check are killed, and their right ones pass."""

from __future__ import annotations

import random

import pytest

from normgen.cpu import find_compiler
from normgen.measure.cpu_check import check_on_cpu
from tests.mutation.fresh import FIRST_KILLED, FRESH, SURVIVE
from tests.samples import sized

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler for the CPU executor")
KILLED = [name for name in FRESH if name not in SURVIVE]
FOUND_SINCE = ["mask_of_lowest_finite", "causal_scale_without_sign"]
SAMPLE = [
    *FOUND_SINCE,
    *random.Random(1).sample([n for n in KILLED if n not in FOUND_SINCE], sized(1, len(KILLED) - 2)),
]


def test_each_text_is_in_its_kernel_and_no_mistake_is_made_more_than_thrice() -> None:
    assert all(one.wrong().text != one.right.text for one in FRESH.values())
    mistakes = [one.mistake for one in FRESH.values()]
    assert len(FRESH) == 40
    assert len(set(mistakes)) >= 20
    assert max(map(mistakes.count, mistakes)) <= 3
    assert FIRST_KILLED + len(FOUND_SINCE) + len(SURVIVE) == len(FRESH)


@needs_compiler
@pytest.mark.parametrize("name", SAMPLE)
def test_a_wrong_kernel_of_a_writer_who_does_not_know_the_check_is_killed(name: str) -> None:
    one = FRESH[name]
    assert check_on_cpu(one.problem, one.right).ok
    assert not check_on_cpu(one.problem, one.wrong()).ok
