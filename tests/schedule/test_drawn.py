"""Spaces and predictions of problems of all kinds are those that were drawn; arrays give what each gives alone."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from normgen.cost.model import predict, terms
from normgen.program.source import stages_of
from normgen.schedule.many import NAMES, combinations
from normgen.schedule.schedule import Schedule, changed
from normgen.schedule.space import space
from tests.schedule import drawn

DRAWN, NAMED = drawn.drawn(), drawn.named()


@pytest.mark.parametrize("name", NAMED)
def test_predictions_are_those_that_were_drawn(name: str) -> None:
    problem, device = NAMED[name]
    told = {changed(Schedule(), text): us for text, us in DRAWN[name]["predicted"].items()}
    assert told
    for schedule, us in told.items():
        assert drawn.us_of(problem, schedule, device) == pytest.approx(us, rel=1e-9)
    for hot in False, True:
        found = terms(problem, list(told), device, hot=hot)["us"]
        np.testing.assert_allclose(found, [us[hot] for us in told.values()], rtol=1e-9)


@pytest.mark.parametrize("name", NAMED)
def test_every_term_of_many_schedules_is_that_of_each_alone(name: str) -> None:
    problem, device = NAMED[name]
    some = [changed(Schedule(), text) for text in DRAWN[name]["predicted"]]
    alone = [asdict(predict(problem, s, device, stages=stages_of(problem))) for s in some]
    for term, column in terms(problem, some, device).items():
        assert column.shape == (len(some),)
        np.testing.assert_allclose(column, [each[term] for each in alone], rtol=1e-9, err_msg=term)


@pytest.mark.parametrize("name", NAMED)
def test_spaces_are_those_that_were_drawn(name: str) -> None:
    problem, device = NAMED[name]
    found = space(problem, device)
    facts = drawn.facts_of(found)
    assert facts == {key: DRAWN[name][key] for key in facts}
    different, _ = combinations(found.legal, np.arange(len(found)), range(len(NAMES)))
    assert len(different) == len(found), "each schedule once"


def test_no_schedules_have_no_terms() -> None:
    problem, device = NAMED["layernorm 3x7 f32 a100"]
    assert terms(problem, [], device)["us"].size == 0
