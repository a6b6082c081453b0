"""A cold replay never finds its data in the L2, a hot chain always does, and what P writes lies where it should."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cost.model import predicted_us
from normgen.device import target
from normgen.measure.chains.roofs import reduction_roofs, streams_of
from normgen.measure.chains.works import flat_places
from normgen.measure.data import sample_inputs
from normgen.measure.replays import MAX_LAUNCHES, SetLayout, consumed, extent, layout, main_input, plan_of
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE, Context, Place, Setting
from normgen.spec.reader import load
from tests.measure.simulated import problem

L2 = 60 << 20
HOT = Place(setting=Setting.HOT)
PLACES = [Place(context=c, setting=s) for c, s in itertools.product(Context, Setting)]


@pytest.mark.parametrize("set_bytes", [1 << 12, 1 << 16, 1 << 20, 5 << 20, 50 << 20, 1 << 31])
@pytest.mark.parametrize("us", [0.5, 14.0, 900.0])
@pytest.mark.parametrize("setting", [Setting.FRESH, Setting.COLD])
def test_a_round_passes_three_times_the_l2_or_is_flushed_without_reuse(
    set_bytes: int, us: float, setting: Setting
) -> None:
    plan = plan_of(set_bytes, 2 * set_bytes, l2_bytes=L2, place=Place(setting=setting))
    launches = plan.launches(us)
    if plan.flushed:
        assert launches <= plan.sets
        assert plan.sets * set_bytes <= 3 * L2
    else:
        assert plan.sets * set_bytes > 3 * L2  # of the kernel's own bytes, whatever P adds to them
        assert launches >= plan.sets
    assert launches <= MAX_LAUNCHES


@pytest.mark.parametrize(
    ("mebibytes", "sets", "spills"), [(1, 4, False), (7, 3, False), (24, 1, False), (25, 1, True), (500, 1, True)]
)
def test_a_hot_chain_stays_under_24_mebibytes_or_says_that_it_does_not(mebibytes: int, sets: int, spills: bool) -> None:
    plan = plan_of(1 << 20, mebibytes << 20, l2_bytes=L2, place=HOT)
    assert (plan.sets, plan.spills, plan.flushed) == (sets, spills, False)
    assert spills or plan.sets * mebibytes <= 24


@pytest.mark.parametrize(("us", "launches"), [(1.5, MAX_LAUNCHES), (14.0, 72), (600.0, 4)])
def test_a_hot_replay_takes_a_millisecond(us: float, launches: int) -> None:
    assert plan_of(1 << 20, 2 << 20, l2_bytes=L2, place=HOT).launches(us) == launches


def test_tensors_of_a_set_do_not_overlap_and_keep_the_promised_alignment() -> None:
    found = layout(problem(rows=3, cols=5), Place(context=Context.ALONE))
    assert found.offsets == {"y": 0, "x": 256}
    assert found.bytes == found.kernel_bytes == 512
    loose = dataclasses.replace(problem(rows=3, cols=5), align=4, pitch=7)
    found = layout(loose, Place(context=Context.ALONE))
    assert found.offsets == {"y": 4, "x": 256 + 4}
    assert found.bytes == 512


ASKED = {
    "forward": problem_for(load("layernorm"), shape="40x96", dtype="bf16"),
    "backward": problem_for(load("layernorm"), shape="40x96", dtype="bf16", direction="backward"),
    "idle": problem_for(load("add_rmsnorm"), shape="40x96", dtype="bf16", direction="backward", gradients=("weight",)),
    "misaligned": problem_for(load("rmsnorm"), shape="5x97", dtype="bf16", pitch=99, align=2, without=("rstd",)),
}


def spans(found: SetLayout) -> dict[str, tuple[int, int]]:
    slots = {name: (slot.start, slot.start + slot.bytes) for name, slot in found.slots.items()}
    return slots | {"source": (found.source.start, found.source.start + found.source.bytes)}


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("asked", list(ASKED.values()), ids=list(ASKED))
def test_what_p_needs_lies_behind_the_tensors_and_overlaps_nothing(asked: Problem, place: Place) -> None:
    found, main = layout(asked, place), main_input(asked)
    assert found.source.bytes == found.target.bytes == found.slots[main.name].bytes
    parts = spans(found)
    if place.context is Context.ALONE:
        assert parts.pop("source")[0] == found.bytes  # there is none
    elif place.setting is Setting.COLD:
        parts["target"] = (found.target.start, found.target.start + found.target.bytes)
    else:
        assert found.target == found.slots[main.name]
    ordered = sorted(parts.values())
    assert ordered[0][0] == 0
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ordered))
    assert ordered[-1][1] == found.bytes
    for tensor in asked.tensors:
        assert found.slots[tensor.name].start <= found.offsets[tensor.name]


@pytest.mark.parametrize("asked", list(ASKED.values()), ids=list(ASKED))
def test_what_is_written_comes_first_and_what_is_read_begins_with_the_main_input(asked: Problem) -> None:
    found = layout(asked, DEFAULT_PLACE)
    names = sorted(found.slots, key=lambda name: found.slots[name].start)
    written = [t.name for t in asked.tensors if t.is_written]
    assert set(names[: len(written)]) == set(written)
    assert names[len(written)] == main_input(asked).name
    assert names[: len(consumed(asked))] == [t.name for t in consumed(asked)]


def test_p_writes_x_or_the_incoming_gradient_and_c_reads_outputs_and_sums_over_rows() -> None:
    assert main_input(ASKED["forward"]).name == "x"
    assert main_input(ASKED["backward"]).name == "dy"
    assert [t.name for t in consumed(ASKED["forward"])] == ["y"]
    assert [t.name for t in consumed(ASKED["backward"])] == ["dx", "dweight", "dbias"]


def test_what_no_kernel_reads_counts_as_no_bytes_and_lies_behind_what_it_reads() -> None:
    """dweight of an RMS norm with a residual does not depend on dh, the gradient of the sum that it passes on."""
    asked = ASKED["idle"]
    assert [t.name for t in asked.tensors if t.idle] == ["dh"]
    assert main_input(asked).name == "dy"
    elem, rstd, weight = 40 * 96 * 2, 40 * 4, 96 * 2
    assert asked.compulsory_bytes == 2 * elem + rstd + weight
    assert asked.row_input_bytes == 2 * 2
    assert streams_of(asked).read == 2 * elem + rstd
    found = layout(asked, DEFAULT_PLACE)
    assert found.kernel_bytes == found.slots["dh"].start
    assert found.source.start == found.kernel_bytes + elem


def test_the_gradient_of_a_sum_over_all_reads_no_row_and_has_no_reduction_roof() -> None:
    asked = problem_for(load("full_sum"), shape="40x96", direction="backward")
    assert [t.name for t in asked.tensors if t.idle] == ["x"]
    assert asked.compulsory_bytes == 40 * 96 * 4 + 4
    assert not list(reduction_roofs(asked, sm_count=132, arch=90))
    assert predicted_us(asked, default_schedule(asked, target("h200")), target("h200")) > 0
    over = problem_for(load("full_sum"), shape="40x96", direction="backward", in_place={"dx": "x"})
    assert layout(over, DEFAULT_PLACE).slots["x"].start == 0


def test_what_is_written_in_place_lies_where_the_other_one_is_read() -> None:
    asked = problem_for(load("rmsnorm"), shape="16x128", in_place={"y": "x"})
    found = layout(asked, DEFAULT_PLACE)
    assert found.slots["y"] == found.slots["x"] == found.target
    assert found.offsets["y"] == found.offsets["x"]
    apart = layout(problem_for(load("rmsnorm"), shape="16x128"), DEFAULT_PLACE)
    assert apart.kernel_bytes - found.kernel_bytes == 16 * 128 * 4


IN_PLACE = [
    ("cross_entropy_grad", "512x4096", {"dlogits": "x"}, "forward"),
    ("add_rmsnorm", "512x4096", {"h": "residual"}, "forward"),
    ("add_rmsnorm", "512x4096", {"h": "residual", "y": "x"}, "forward"),
    ("rmsnorm", "512x4096", {"dx": "dy"}, "backward"),
    ("rmsnorm", "512x4096", {}, "forward"),
]


@pytest.mark.parametrize(("op", "shape", "over", "direction"), IN_PLACE)
def test_a_flat_roof_writes_where_the_kernel_writes_and_in_place_what_it_has_read(
    op: str, shape: str, over: dict[str, str], direction: str
) -> None:
    asked = problem_for(load(op), shape=shape, dtype="bf16", in_place=over, direction=direction)
    found, parts = layout(asked, DEFAULT_PLACE), 132 if direction == "backward" else 0
    places, streams = flat_places(asked, found), streams_of(asked, parts=parts)

    def slots(names: set[str]) -> set[int]:
        places = [found.slots[name] for name in names]
        return {at for slot in places for at in range(slot.start, slot.start + slot.bytes, 256)}

    written = {t.name for t in asked.tensors if t.is_written}
    touched = set(range(places["target"], places["target"] + streams.written, 256))
    touched |= set(range(places["extra"], places["extra"] + streams.beside, 256))
    assert touched <= slots(written)
    read = set(range(places["source"], places["source"] + streams.read, 256))
    assert read <= slots({t.name for t in asked.passed_tensors if not t.is_written})
    assert (places["target"] == places["source"]) is bool(over)
    if over:
        assert slots(set(over)) == slots(set(over.values())) <= touched | slots(written - set(over))
    total = sum(asked.shape_of(t)[0] * asked.shape_of(t)[-1] * t.dtype.bytes for t in asked.tensors if t.kind.is_elem)
    assert streams.read + streams.written + streams.beside >= total


@pytest.mark.parametrize("gradient", [None, "x", "w"])
def test_products_are_timed_on_normal_numbers_alone(gradient: str | None) -> None:
    asked: dict[str, Any] = {"direction": "backward", "gradients": [gradient]} if gradient else {}
    problem = problem_for(load("linear"), shape="300x96", inner=128, dtype="bf16", **asked)
    arrays = sample_inputs(problem, seed=0).arrays
    for name in {"x", "w", "dy"} & arrays.keys():
        numbers = arrays[name].astype(np.float64)
        assert np.isfinite(numbers).all()
        assert abs(numbers.std() - 1) < 0.05
        assert len(np.unique(numbers)) > 500


@pytest.mark.parametrize("gradient", [None, "x", "w"])
def test_a_matrix_of_each_batch_has_room_for_all_of_its_lines(gradient: str | None) -> None:
    options: dict[str, Any] = {"direction": "backward", "gradients": [gradient]} if gradient else {}
    asked = problem_for(load("bmm"), shape="3x40x24", inner=16, **options)
    for tensor in asked.tensors:
        shape = asked.shape_of(tensor)
        assert extent(tensor, asked) == int(np.prod(shape)) * tensor.dtype.bytes
        assert len(shape) == (3 if tensor.kind.by_batch and not tensor.kind.by_row else 2)
    found = layout(asked, Place(context=Context.ALONE, setting=Setting.COLD))
    ends = sorted((slot.start, slot.start + slot.bytes) for slot in found.slots.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert ends[-1][1] <= found.bytes
