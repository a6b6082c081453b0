"""docs/knobs.md: each knob has words and a picture, or says why it has none; its figures are those of the evidence."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

import pytest

from normgen.cpu import find_compiler
from normgen.device import target
from normgen.errors import UsageError
from normgen.files.plain import plain
from normgen.knobs import KNOBS, TABLE, Knob
from normgen.ladder.climb import Ground, climb
from normgen.ladder.rungs import load_ladder
from normgen.records.place import Place
from normgen.report.knobs import pictures as drawing
from normgen.report.knobs.pictures import PICTURES, Scene, module_of, owners, pictures, schedule_of
from normgen.report.knobs.worth import evidence
from normgen.report.readme import ROOT
from normgen.schedule.schedule import Schedule
from normgen.studies.sweep_file import read_sweep

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def unexplained(knob: Knob, given: object) -> list[str]:
    """What is missing of a knob: words, and a picture of each named value or a reason for none."""
    lacks = [] if knob.meaning else ["words"]
    if isinstance(given, str):
        return lacks + ([] if len(given.split()) > 3 else ["a reason"])
    scenes = {str(scene.value) for scene in given} if isinstance(given, tuple) else set()
    wanted = {str(knob.plain)} if all(isinstance(v, int) for v in knob.values) else set(map(str, knob.values))
    if knob.name == "threads_per_row":
        wanted = {"1"}  # 256 threads a row are no picture
    return lacks + sorted(wanted - scenes)


@pytest.mark.parametrize("knob", TABLE, ids=lambda knob: knob.name)
def test_every_knob_has_words_and_a_picture_of_each_value_or_a_reason_for_none(knob: Knob) -> None:
    assert unexplained(knob, PICTURES.get(knob.name)) == []


def test_a_new_knob_or_value_without_a_picture_would_be_seen() -> None:
    assert unexplained(KNOBS["hold"], None) == ["hybrid", "registers", "reload", "shared"]
    assert unexplained(KNOBS["hold"], PICTURES["hold"][1:]) == ["registers"]
    assert unexplained(KNOBS["load"], "none") == ["a reason"]
    assert set(PICTURES) == set(KNOBS)


def test_scenes_of_a_knob_differ_in_that_knob_and_in_what_its_value_needs() -> None:
    for knob, scenes in PICTURES.items():
        for scene in scenes if not isinstance(scenes, str) else ():
            assert str(getattr(schedule_of(knob, scene), knob)) == str(scene.value)
            assert knob not in scene.knobs.partition("=")[0].split()


def test_a_picture_of_a_kernel_that_is_refused_is_an_error() -> None:
    scene = Scene(value="bulk", draw=owners, problem={"op": "rmsnorm", "shape": "2x16"}, knobs="threads_per_row=32")
    with pytest.raises(UsageError, match="the picture of copy=bulk is refused"):
        module_of("copy", scene)


@needs_compiler
def test_pictures_show_what_the_kernels_do(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: PICTURES[name] for name in ("vector", "cluster", "reduce_with", "stages")}
    monkeypatch.setattr(drawing, "PICTURES", MappingProxyType(some))
    found = pictures()
    assert "row 0    A0-A0 A1-A1 A2-A2 A3-A3 A0-A0" in found["vector"]
    assert "row 0   A0 to A31, B0 to B31, A0 to A31, B0 to B31" in found["cluster"]
    assert found["reduce_with"].startswith(
        "reduce_with=shuffle, cooperative_groups\nA0  takes from A4, then A2, then A1"
    )
    one, two = found["stages"].split("\n\n")
    assert one.index("write y[0") < one.index("read x[16")
    assert "read x[0, 0:2] x[16, 0:2]" in two


def test_figures_of_sweeps_are_ratios_of_the_best_prices() -> None:
    ratios = evidence(ROOT).ratios
    file = next((ROOT / "generated" / "sweeps").glob("layernorm_8192x768_*"))
    sweep = read_sweep(file)
    timed = [(p.schedule.store, p.us) for p in sweep.points if p.us]
    base = sweep.chain_us or 0.0
    best = {store: min(us for own, us in timed if own is store) - base for store in {own for own, _ in timed}}
    for store, price in best.items():
        (other,) = (value for name, value in best.items() if name is not store)
        mine = [r.ratio for r in ratios["store", store] if "layernorm fwd 8192x768 bf16 fresh, sweep" in r.where]
        assert mine == [pytest.approx(other / price)]


def test_figures_of_ladders_are_of_rungs_that_differ_in_one_knob_and_were_measured(tmp_path: Path) -> None:
    ladder = load_ladder("layernorm")
    found = plain(climb(ladder, Ground(device=target("h200"), place=Place()), rungs=("v3", "v4")))
    for rung, us in zip(found["rungs"], (20.0, 16.0), strict=True):
        rung["launches"] = [{**launch, "us": us} for launch in rung["launches"]]
    file = tmp_path / "generated" / "evidence" / "ladder_h200.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"ladders": [found]}))
    assert evidence(tmp_path).ratios == {}, "predicted"
    file.write_text(json.dumps({"ladders": [{**found, "measured": True}]}))
    ratios = evidence(tmp_path).ratios
    assert {one.ratio for one in ratios["variance", "sum_of_squares"]} == {1.25}
    assert {one.ratio for one in ratios["variance", Schedule().variance]} == {0.8}
    assert {one.ratio for one in ratios["rows_per_block", 1]} == {1.0}
