"""What a campaign knows follows from its events alone."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from functools import reduce

import pytest

from normgen.codegen.module import Module
from normgen.cuda.cubin import Cubin
from normgen.measure.judge import Eliminated, Passed, RoofCosts
from normgen.records.record import Outcome
from normgen.records.statistics import Times, summarise
from normgen.schedule.schedule import Schedule
from normgen.tuning.candidate import Built, Checked, Failed, Proposed, Timed
from normgen.tuning.standings import Event, Reference, Standings
from tests.records.test_verified import VERIFIED
from tests.tuning.test_compile import cubin, module

TEXT: Module = module("k")
CODE: Cubin = cubin("k", registers=40)


def times(us: float) -> Times:
    return summarise([us] * 8)


def built(vector: int) -> Built:
    return Proposed(schedule=Schedule(vector=vector), predicted_us=3.0).built(TEXT, CODE, "text")


def timed(vector: int, us: float) -> Timed:
    checked = built(vector).judged(Passed(error={"y": 0.5}, verified=VERIFIED))
    assert isinstance(checked, Checked)
    return checked.timed(times(us))


def after(*events: Event) -> Standings:
    return reduce(Standings.after, events, Standings())


FAST, SLOW = timed(4, 5.0), timed(2, 9.0)
OUT = FAST.failed(Outcome.LAUNCH_ERROR, "it left its tensors")
AGAINST = Reference(key=FAST.key, text="text", baseline_us=5.0)


def test_a_fault_is_one_event_and_leaves_nothing_else_to_mend() -> None:
    standings = after(FAST, SLOW, AGAINST, OUT)
    assert standings.ranked == [SLOW]
    assert standings.failed == [OUT]
    assert standings.reference is None
    assert standings.conditions == {"reference": None, "reference_us": 5.0}
    assert not standings.is_reference(FAST.key)


def test_a_fault_of_another_kernel_keeps_the_reference() -> None:
    standings = after(FAST, SLOW, AGAINST, SLOW.failed(Outcome.TIMEOUT, "no answer"))
    assert standings.ranked == [FAST]
    assert standings.conditions == {"reference": "text", "reference_us": 5.0}


def test_the_ranking_is_by_time_and_does_not_depend_on_the_order_of_events() -> None:
    assert after(SLOW, FAST).ranked == after(FAST, SLOW).ranked == [FAST, SLOW]
    assert after(FAST, SLOW, replace(SLOW, times_us=times(1.0))).ranked[0].schedule == SLOW.schedule
    assert after(SLOW, RoofCosts(roofs_us={"copy": 2.0})).roof.us == 2.0


def test_no_state_can_be_changed_and_each_keeps_what_was_known() -> None:
    with pytest.raises(FrozenInstanceError):
        FAST.schedule = SLOW.schedule  # type: ignore[misc]
    assert isinstance(OUT, Failed)
    assert OUT.error == FAST.error == {"y": 0.5}
    assert OUT.resources[0]["registers"] == FAST.registers == 40
    wrong = built(8).judged(Eliminated(outcome=Outcome.WRONG_RESULT, reason="y[0, 0]: got 1, want 2", error={"y": 7.0}))
    assert isinstance(wrong, Failed)
    assert (wrong.error, wrong.text, wrong.predicted_us) == ({"y": 7.0}, "text", 3.0)
    assert {"outcome", "reason", "resources", "error"} <= set(wrong.evidence())
    assert "outcome" not in built(8).evidence()


def test_twins_of_twins_share_the_code_of_the_first_of_all() -> None:
    first, second, third = (Proposed(schedule=Schedule(vector=v), text=f"text {v}") for v in (1, 2, 8))
    known = replace(timed(1, 5.0), text=first.text)
    twin = second.twin_of(first.key, second.text).like(known)
    last = third.twin_of(second.key, third.text).like(twin)
    assert isinstance(twin, Timed)
    assert isinstance(last, Timed)
    assert last.reason == twin.reason == f"same code as {first.schedule}"
    assert known.code & twin.code & last.code
    assert not known.code & FAST.code
