"""Every emitted text is the one of the golden digests: of one problem in six, by `pytest --full` of all."""

from __future__ import annotations

from dataclasses import replace

from normgen.spec.reader import list_presets, list_specs
from tests.codegen.digests import EVERY, FILE, LEAST, coverage, differences, kept
from tests.samples import is_full, sized

UPDATE = "if that is wanted: python -m tests.codegen.digests --update"


def test_no_text_of_the_net_differs() -> None:
    found = differences(kept()[:: sized(EVERY, 1)])
    assert not found, "\n".join([f"{len(found)} differ from {FILE.name}; {UPDATE}", *found[:10]])


def test_the_net_holds_every_operation_and_preset() -> None:
    missing = {*list_specs(), *list_presets()} - {asked.question["op"] for asked in kept()}
    assert not missing, f"python -m tests.codegen.digests --draw {' '.join(sorted(missing))}"


def test_the_net_shows_most_of_the_language() -> None:
    """A normal run counts pairs of operation and direction, and sets of programs by their digests."""
    asked = kept()
    if is_full():
        found = coverage(asked)
        assert all(found[what] >= least for what, least in LEAST.items()), found
    assert len({(a.question["op"], a.question.get("direction")) for a in asked}) >= LEAST["pairs"]
    assert len({a.programs for a in asked}) >= 500
    assert sum(len(a.knobs) for a in asked) >= 4000


def test_a_changed_digest_is_told_with_what_is_asked() -> None:
    asked = kept()[0]
    wrong = replace(asked, programs="", header="", texts=("",) * len(asked.texts))
    assert len(wrong.differences()) == 2 + len(asked.texts)
    assert asked.differences() == []
    assert all("adaln" in text for text in wrong.differences())
