"""What several shapes of a header share, and how emitted text reads."""

from __future__ import annotations

from typing import Any

import pytest

from normgen.codegen.parts import Parts
from normgen.pipeline import emit_parts
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.codegen.kernels import KERNELS

HELD = {"threads_per_row": 128, "vector": 4, "hold": "registers", "unroll": 0}
WALK = {"vector": 4, "hold": "registers", "unroll": 0, "persistent": 2}
COPIES = ("direct", "cp_async")
SUMS = {"threads_per_row": 32, "vector": 4, "hold": "registers", "unroll": 0, "persistent": 1, "params": "kept"}


def parts(op: str, shape: str, knobs: dict[str, Any], **question: Any) -> Parts:
    rows, cols = map(int, shape.split("x"))
    return emit_parts(problem_for(load(op), shape=(rows, cols), **question), Schedule(**knobs))


@pytest.mark.parametrize("edges", ["exact", "peel"])
def test_early_and_late_parameters_are_one_kernel_with_two_configs(edges: str) -> None:
    early, late = (
        parts("layernorm", "64x1024", HELD | {"edges": edges, "params": params}) for params in ("early", "late")
    )
    assert early.text == late.text
    assert "kEarlyParams = 1" in early.config.text
    assert "kEarlyParams = 0" in late.config.text
    assert early.config.name != late.config.name


def test_the_alignment_of_parameters_is_a_setting_of_a_peeled_kernel() -> None:
    aligned, other = (parts("rmsnorm", "64x1001", HELD | {"edges": "peel"}, align=align) for align in (16, 4))
    assert aligned.text == other.text
    assert "kFirstInside = 0" in aligned.config.text
    assert "kFirstInside = 1" in other.config.text


def test_strategies_share_a_finishing_kernel() -> None:
    held, copied = (parts("rmsnorm", "64x1024", SUMS | {"copy": copy}, direction="backward") for copy in COPIES)
    (main, finish), (other, same) = held.texts, copied.texts
    assert main != other
    assert finish == same
    assert held.kernels[1].name == copied.kernels[1].name


TEAMS = {
    "Lanes<8, 16>": {"threads_per_row": 8, "rows_per_block": 16},
    "Lanes<32, 4, OwnTile>": {"threads_per_row": 32, "rows_per_block": 4, "reduce_with": "cooperative_groups"},
    "Block<128>": {"threads_per_row": 128},
    "Beside<64, 2>": {"threads_per_row": 64, "rows_per_block": 2},
    "ClusterTeam<2, 128>": {"threads_per_row": 128, "cluster": 2},
}


def test_threads_of_a_warp_a_block_and_a_cluster_run_one_text() -> None:
    found = {
        team: parts("rmsnorm", "64x1024", {"vector": 4, "hold": "registers", "unroll": 0, **knobs})
        for team, knobs in TEAMS.items()
    }
    assert len({p.text for p in found.values()}) == 1
    assert len({p.every_type for p in found.values()}) == 1
    assert all(f"using Team = {team};" in p.config.text for team, p in found.items())


def test_rows_in_their_turn_and_ahead_kept_and_late_parameters_are_one_text_of_a_walk() -> None:
    knobs = [
        {"rows_per_block": beside, "threads_per_row": threads, "stages": stages, "params": params}
        for beside, threads in ((1, 128), (4, 32))
        for stages in (1, 2)
        for params in ("late", "kept", "packed")
    ]
    found = [parts("rmsnorm", "64x1024", WALK | k, dtype="bf16") for k in knobs]
    assert len({p.text for p in found}) == 1
    assert len({p.config.text for p in found}) == len(knobs)


@pytest.mark.parametrize("name", KERNELS)
def test_no_line_crosses_the_right_margin(name: str) -> None:
    assert [line for line in KERNELS[name].module().source.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize(("op", "times"), [("row_sum", "once"), ("layernorm", "3 times")])
def test_a_kernel_says_how_often_each_row_is_read(op: str, times: str) -> None:
    text = parts(op, "64x1024", {"threads_per_row": 128, "vector": 4, "hold": "reload"}).text
    assert f"; each row is read {times}." in text
