"""Scales of groups in each layout: memory written by the kernels' own addresses, compared value by value."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.codegen.module import Module
from normgen.device import target
from normgen.errors import UsageError
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.problem.scales import ScaleLayout
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from tests.codegen.covering import Case, pool
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong
from tests.codegen.test_stored_dtypes import MICROSCALED
from tests.samples import sized

H200 = target("h200")
SPECS = {
    "column_major": load("rmsnorm_to_fp8_group"),
    "packed": parse(MICROSCALED),
    "swizzled": load("rmsnorm_to_nvfp4"),
}
SHAPES = {  # rows of a tile, of several, and 1; an odd number of groups, of words, and one of each
    "column_major": ("9x384", "70x128", "1x640", "33x1024"),
    "packed": ("9x96", "70x128", "1x32", "33x288"),
    "swizzled": ("9x96", "129x64", "1x16", "128x80", "257x144"),
}
PARAMETERS = [(layout, shape) for layout, shapes in SHAPES.items() for shape in shapes]


def problem(layout: str, shape: str, **asked: object) -> Problem:
    return problem_for(SPECS[layout], shape=shape, dtype="bf16", layout={"scale": layout}, **asked)


@cache
def cases() -> list[Case]:
    """The default schedule of each problem, general kernels, and schedules of any kind."""
    rng = random.Random("layouts of scales")
    made = [problem(*asked) for asked in PARAMETERS]
    made += [problem("column_major", "21x640", any_cols=True), problem("packed", "21x224", any_cols=True)]
    made += [problem("swizzled", "140x112", any_cols=True)]
    others = [case for p in made for case in rng.sample(list(pool(p, DEVICE, rng)), sized(1, 20))]
    return [(p, default_schedule(p, H200)) for p in made] + others


def test_scales_are_right_on_the_cpu() -> None:
    found = list(wrong(cases(), CpuExecutor(), seed=0))
    assert not found, report(found, cases())


@pytest.mark.gpu
def test_scales_are_right_on_the_gpu() -> None:
    found = list(wrong(cases(), GpuExecutor(), seed=0))
    assert not found, report(found, cases())


@pytest.mark.parametrize("asked", [("column_major", "41x384"), ("packed", "41x160"), ("swizzled", "141x80")])
def test_a_check_makes_every_call_of_it(asked: tuple[str, str]) -> None:
    """Pitches of their own, lines beyond 2^31 elements, one row, ragged tiles."""
    p = problem(*asked)
    found = check_on_cpu(p, emit(p, default_schedule(p, H200)))
    assert found.ok, found.summary
    assert found.verified is not None
    assert "scale" in found.verified.own_pitches
    assert not found.verified.not_made
    if asked[0] != "swizzled":  # the few rows that lie far apart are those of one tile
        assert "ok with rows of scale beyond 2^31 elements" in found.summary


def changed(module: Module, old: str, new: str) -> Module:
    assert module.text.count(old) == 1
    return replace(module, text=module.text.replace(old, new))


WRONG = {
    "rows and groups change places": (
        ("column_major", "20x384"),
        (
            "scale_row[(own_group + step * kGroupStride) * scale_pitch]",
            "scale_row[own_group + step * kGroupStride]",
        ),
    ),
    "idle rows are stored": (("column_major", "21x128"), ("leads_group && active", "leads_group")),
    "the pitch is the number of rows": (("column_major", "21x384"), ("* scale_pitch]", "* rows]")),
    "the last word is left as it is": (("packed", "20x96"), ("group == groups - 1", "false")),
    "the last word is filled with ones": (("packed", "20x96"), ("word[rest] = T{}", "word[rest] = T{1}")),
    "bytes of a word change places": (("packed", "20x128"), ("word + group % 4, value", "word + 3 - group % 4, value")),
    "a byte behind the last word is written": (("packed", "20x96"), ("rest < 4; ++rest", "rest < 5; ++rest")),
    "rows of a tile lie one behind the other": (
        ("swizzled", "40x64"),
        ("row % 32 * 16 + row % 128 / 32 * 4", "row % 128 * 4"),
    ),
    "tiles of a row are those of another": (("swizzled", "20x128"), ("group / 4 * 512", "group / 4 * 508")),
    "bytes of a tile change places": (
        ("swizzled", "20x64"),
        ("four + group % 4, value", "four + 3 - group % 4, value"),
    ),
    "the next tile of rows is this one": (("swizzled", "140x64"), ("(valid_row / 128)", "(valid_row / 256)")),
    "no zeros lie behind the last group": (("swizzled", "20x80"), ("group == groups - 1 ? 4", "false ? 4")),
    "no zeros lie behind the last row": (("swizzled", "20x64"), ("row == rows - 1", "false")),
    "a row behind the last one is left out": (("swizzled", "20x64"), ("behind = rows;", "behind = rows + 1;")),
    "zeros lie in the last row": (("swizzled", "20x64"), ("behind = rows;", "behind = rows - 1;")),
}


@pytest.mark.parametrize(("asked", "change"), WRONG.values(), ids=WRONG.keys())
def test_a_kernel_that_writes_elsewhere_is_wrong(asked: tuple[str, str], change: tuple[str, str]) -> None:
    p = problem(*asked)
    schedule = Schedule(threads_per_row=16, rows_per_block=8, vector=8)
    assert not check_on_cpu(p, changed(emit(p, schedule), *change)).ok


@pytest.mark.parametrize("rows", [1, 7, 8, 130])
@pytest.mark.parametrize("groups", [1, 3, 4, 5])
@pytest.mark.parametrize("layout", ScaleLayout)
def test_a_value_lies_where_the_readers_of_a_layout_look_for_it(layout: ScaleLayout, groups: int, rows: int) -> None:
    """Row m, group g at m P + g, g P + m, or, with P bytes, in byte g mod 4 of the word of row m in line g / 4."""
    pitch = layout.pitch(rows, groups, 1) + 16
    lines, width = layout.shape(rows, groups)
    memory = np.random.default_rng(rows).integers(0, 256, lines * pitch).astype(np.uint8)
    got = layout.by_row(memory.reshape(lines, pitch)[:, :width])
    place = {"row_major": lambda m, g: m * pitch + g, "column_major": lambda m, g: g * pitch + m}
    place["packed"] = lambda m, g: g // 4 * pitch + 4 * m + g % 4
    place["swizzled"] = lambda m, g: m // 128 * pitch + g // 4 * 512 + m % 32 * 16 + m % 128 // 32 * 4 + g % 4
    want = [[memory[place[layout](m, g)] for g in range(got.shape[1])] for m in range(rows)]
    np.testing.assert_array_equal(got[:rows], want)
    assert got.shape[1] == layout.width(groups) == (-(-groups // 4) * 4 if layout.is_in_words else groups)
    assert len(got) == (-(-rows // 128) * 128 if layout is ScaleLayout.SWIZZLED else rows)


def test_columns_begin_on_multiples_of_16_bytes() -> None:
    assert problem("column_major", "9x384").pitches["scale"] == 12
    assert problem("packed", "9x96").pitches["scale"] == 48
    assert problem_for(SPECS["column_major"], shape="9x384").pitches["scale"] == 3


def test_a_layout_moves_memory_and_no_value() -> None:
    """The scales of the two layouts are the same numbers, and so are the codes."""
    found = {}
    for layout in ("row_major", "packed"):
        p = problem_for(SPECS["packed"], shape="6x160", layout={"scale": layout})
        (built,) = CpuExecutor().build([emit(p, default_schedule(p, H200))])
        inputs, outputs = verify.make_inputs(p, seed=3), verify.make_outputs(p)
        assert not built.run(inputs, outputs)
        assert outputs.overrun() == ()
        by_row = p.tensor("scale").layout.by_row(outputs.arrays["scale"]).view(np.uint8)
        found[layout] = by_row[:, :5], outputs.arrays["q"].view(np.uint8)
        assert not by_row[:, 5:].any()
    for row_major, packed in zip(*found.values(), strict=True):
        np.testing.assert_array_equal(row_major, packed)


REFUSED = {
    "'q' is none here": {"q": "column_major"},
    "did you mean 'scale'": {"scales": "column_major"},
    "unknown layout": {"scale": "column"},
    "packed scales are four f8e8m0 in a word": {"scale": "packed"},
}


@pytest.mark.parametrize(("rule", "layout"), REFUSED.items())
def test_a_layout_that_there_is_not_is_refused(rule: str, layout: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=rule):
        problem_for(SPECS["column_major"], shape="4x256", layout=layout)


def test_a_spec_without_groups_has_no_layout() -> None:
    with pytest.raises(UsageError, match="'y' is none here"):
        problem_for(load("rmsnorm"), shape="4x256", layout={"y": "column_major"})
