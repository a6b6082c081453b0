"""Ladders: what their files say is what is emitted, found right or wrong, and printed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from normgen.cli import main as cli
from normgen.cli.text.ladder import climb_text
from normgen.cpu import find_compiler
from normgen.cuda.driver import find_gpu
from normgen.device import target
from normgen.errors import NoDeviceError, SpecError, UsageError
from normgen.files.plain import made, plain
from normgen.ladder.climb import (
    MISSING,
    RIGHT,
    WRONG,
    Climb,
    Climbed,
    Ground,
    RungLaunch,
    climb,
    read_climbs,
    shipped_climb,
    why_behind,
)
from normgen.ladder.kernels import around_tile, comparable, own_text, parts_of, problem_of
from normgen.ladder.page import difference, page
from normgen.ladder.points import read_schedule
from normgen.ladder.rungs import Ladder, list_ladders, load_ladder, parse_ladder
from normgen.measure.cpu_check import check_on_cpu
from normgen.program.rewrites.reductions import applicable
from normgen.program.source import written_program
from normgen.records.place import Context, Place, Setting
from normgen.report.readme import ROOT
from normgen.schedule.space import knob_values
from normgen.text import figure

H200 = target("h200")
ALONE = Place(context=Context.ALONE, setting=Setting.COLD)
NAMES = sorted(list_ladders())
RUNGS = [(name, rung.name) for name in NAMES for rung in load_ladder(name).rungs]
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

OWN = """\
name = "own"
[source]
title = "here"
[problem]
op = "layernorm"
shape = "64x96"
[[rung]]
name = "one_look"
title = "a variance that cancels, and nobody says so"
idea = "E[x^2] - mean^2."
knobs = "variance=sum_of_squares"
blocks = [{ block = "32", knobs = "threads_per_row=32" }]
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    output = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, output.out, output.err


@pytest.mark.parametrize(("name", "rung_name"), RUNGS)
def test_every_launch_of_a_rung_is_legal_and_its_text_shows_what_to_look_at(name: str, rung_name: str) -> None:
    ladder = load_ladder(name)
    rung = ladder.rung(rung_name)
    assert bool(rung.missing) != bool(rung.blocks)
    launches = {block.block: parts_of(ladder, rung, block, H200) for block in rung.blocks}
    if rung.best is not None:
        text = "".join(part.module.source for part in launches[rung.best.block])
        assert rung.shows
        assert all(shown in text for shown in rung.shows)
    named = {pair.partition("=")[0] for k in rung.kernels or [rung] for pair in k.knobs.split()}
    for block in rung.blocks:
        allowed = named | {pair.partition("=")[0] for pair in block.knobs.split()}
        assert all(set(part.schedule.chosen) <= allowed for part in launches[block.block])


def test_the_sources_rates_are_their_times_over_the_bytes_of_x_and_y() -> None:
    """A figure that was copied wrongly would not fit its neighbour."""
    found = 0
    for ladder in map(load_ladder, NAMES):
        for rung in ladder.rungs:
            elements = problem_of(ladder, rung).rows * problem_of(ladder, rung).cols
            for block in rung.blocks:
                if block.gb_per_s is not None and block.ms is not None:
                    assert 8 * elements / block.ms / 1e6 == pytest.approx(block.gb_per_s, rel=1e-3)
                    found += 1
    assert found == 30  # five versions, six sizes of block


# Families of rows whose mean is further from 0 than their elements are from it.
FAR_MEANS = {
    *("large_mean", "some_mean", "guarded_mean", "fine_noise", "step_noise", "near_level", "sparse_steps"),
    *("large_steps", "constant", "large_constant"),
}


@needs_compiler
def test_layernorms_rungs_are_right_but_those_that_cancel_and_these_on_rows_of_a_large_mean() -> None:
    ladder = load_ladder("layernorm")
    found = climb(ladder, Ground(device=H200, place=ALONE))
    states = {rung.name: rung.state for rung in found.rungs if rung.name != "record"}
    assert states == dict.fromkeys(("v1", "v2", "v2_fused", "v3", "default"), RIGHT) | {"v4": WRONG, "v5": WRONG}
    for rung in found.rungs:
        assert not rung.is_surprise
        assert all(launch.us and launch.us > 0 for launch in rung.launches), rung.name
        if rung.state == WRONG:
            wrong = [line for line in rung.checked if " bad, in rows of " in line]
            assert wrong
            families = [set(re.findall(r"(\w+) \(\S+ x the bound", line)) for line in wrong]
            assert any("large_mean" in named for named in families)
            assert all(named <= FAR_MEANS for named in families), "\n".join(wrong)
    assert made(Climb, json.loads(json.dumps(plain(found)))) == found
    v2 = next(rung for rung in found.rungs if rung.name == "v2")
    assert [k["problem"].split()[0] for k in v2.kernels] == ["row_mean", "row_rstd", "normalise"]


def test_the_search_leaves_out_what_a_rung_calls_unsafe() -> None:
    unsafe = [(ladder, rung) for ladder in map(load_ladder, NAMES) for rung in ladder.rungs if rung.unsafe]
    assert len(unsafe) == 3
    for ladder, rung in unsafe:
        assert rung.best is not None
        for part in parts_of(ladder, rung, rung.best, H200):
            values = knob_values(part.problem, applicable(written_program(part.problem)))
            assert part.schedule.variance not in values["variance"]
            assert part.timed.spec.accuracy_rows == ("normal",)


@needs_compiler
def test_a_rung_that_is_wrong_without_having_said_so_ends_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN, encoding="utf-8")
    code, out, _ = run(capsys, "ladder", str(file), "--device", "cpu", "--rung", "one_look")
    assert code == 4
    assert re.search(r"elements bad, in rows of .*large_mean", out)
    file.write_text(OWN + 'unsafe = "it cancels"\n', encoding="utf-8")
    code, out, _ = run(capsys, "ladder", str(file), "--device", "cpu", "--rung", "one_look", "--json")
    assert code == 0
    assert json.loads(out)["ladders"][0]["rungs"][0]["reason"] == "it cancels"


def test_without_a_name_all_ladders_and_rungs_are_listed_with_what_the_language_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "ladder")
    assert code == 0
    for name, rung_name in RUNGS:
        rung = load_ladder(name).rung(rung_name)
        line = next(line for line in out.splitlines() if line.split()[:1] == [rung_name] and rung.title in line)
        assert ("not in the language" in line) == bool(rung.missing)
    lacking = parse_ladder(OWN.partition("blocks")[0] + 'missing = "no such thing"\n', file="own.toml")
    assert {rung.state for rung in climb(lacking, Ground(device=H200, place=ALONE)).rungs} == {MISSING}


@needs_compiler
def test_every_rung_of_a_product_is_proven_around_its_tile_without_a_gpu() -> None:
    ladder = load_ladder("gemm")
    found = climb(ladder, Ground(device=H200, place=ALONE))
    named = [*(rung.name for rung in ladder.rungs), "default"]
    assert [(rung.name, rung.state) for rung in found.rungs] == [(name, RIGHT) for name in named]
    assert found.rungs[3].checked == (
        "checked around the tile: rows 127, cols 127, inner 15",
        "checked around the tile: rows 129, cols 129, inner 17",
    )
    best = found.rungs[-1].best
    assert best is not None
    assert best.tflops == pytest.approx(2 * 4096**3 / (best.us or 0) / 1e6)
    assert "TFLOP/s" in climb_text(ladder, found)


# What the source's kernels do wrong, done to the rung that stands in their place.
SOURCES_FAULTS = {
    ("double_buffer", "the buffer that is filled is multiplied"): ("multiply(stage);", "multiply(1 - stage);"),
    ("float4", "behind an edge stay the elements of the tile before"): (
        "w_held[step] = inside ? read",
        "if (inside) w_held[step] = true ? read",
    ),
    ("cp_async", "no copy is waited for"): ("cp_async_wait<kStages - 2>();", ""),
}


@needs_compiler
@pytest.mark.parametrize(("name", "fault"), SOURCES_FAULTS)
def test_the_faults_of_the_source_are_found_in_our_rungs(name: str, fault: str) -> None:
    ladder = load_ladder("gemm")
    rung = ladder.rung(name)
    assert rung.best is not None
    [part] = parts_of(ladder, rung, rung.best, H200)
    near = around_tile(part)[1]
    right, wrong = SOURCES_FAULTS[name, fault]
    module = near.module
    assert module.text.count(right) == 1
    found = check_on_cpu(near.problem, replace(module, text=module.text.replace(right, wrong)), is_over=lambda: True)
    assert not found.ok


def test_the_rate_of_a_product_among_rungs_of_rows_has_its_own_unit() -> None:
    rungs = {"rows": None, "product": 7.3}
    launches = {name: RungLaunch(block="64", us=1.0, gb_per_s=2000.0, tflops=rate) for name, rate in rungs.items()}
    made = tuple(Climbed(name=name, title="", state="right", launches=(one,)) for name, one in launches.items())
    asked = {"ladder": "softmax", "problem": "", "device": "", "place": "cold alone", "measured": True, "versions": {}}
    shown = page([(load_ladder("softmax"), Climb(**asked, rungs=made))])
    assert "| rows | right | 64 | 1 | 2000 |" in shown.replace(".000", "")
    assert "| 7.300 TFLOP/s |" in shown


def test_a_rung_of_batches_is_checked_on_both_sides_of_its_tile() -> None:
    """Each batch has tiles of its own: rows and columns are one, or a vector, less and more than those of a tile."""
    ladder = load_ladder("softmax")
    for launch in ladder.rung("times_v").blocks:
        [part] = parts_of(ladder, ladder.rung("times_v"), launch, H200)
        tile = part.schedule
        sizes = [(p.problem.rows_per_batch, p.problem.batches, p.problem.cols) for p in around_tile(part)]
        assert sizes == [(tile.tile_m + way, 2, tile.tile_n + 4 * way) for way in (-1, 1)]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (OWN.replace("idea", "ideas"), 7, "unknown key 'ideas'"),
        (OWN.partition("blocks")[0], 7, "a rung has blocks"),
        (OWN + 'missing = "why"\n', 7, "a rung has blocks, or says why it is missing"),
        (OWN.replace("title = \"here\"", "link = \"here\""), 2, "unknown key 'link'"),
        (OWN.replace("[problem]\n", "[problem]\nops = 1\n").replace('op = "layernorm"\n', ""), 4, "'op' is needed"),
        (OWN.replace("block = \"32\"", "blok = \"32\""), 7, "did you mean 'block'?"),
    ],
)  # fmt: skip
def test_a_broken_ladder_is_refused_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_ladder(text, file="own.toml")
    assert str(caught.value).startswith(f"own.toml:{line}: ")
    assert says in str(caught.value)


def test_a_rung_is_a_point_of_any_schedule_text() -> None:
    ladder = load_ladder("layernorm")
    given = problem_of(ladder)
    v3 = ladder.rung("v3")
    assert v3.best is not None
    assert read_schedule(given, H200, "layernorm/v3") == parts_of(ladder, v3, v3.best, H200)[0].schedule
    assert read_schedule(given, H200, "layernorm/v3/256,store=default").rows_per_block == 8
    for text, says in {
        "layernorm/v2": "it is 3 kernels", "layernorm/v9": "has no such rung",
        "gemm/naive": "a row has no tiles", "layernorm/v3/7": "has no such launch",
        "norm/v3": "unknown ladder",
    }.items():  # fmt: skip
        with pytest.raises(UsageError, match=says):
            read_schedule(given, H200, text)


def test_the_page_has_every_rung_and_a_difference_names_no_kernel() -> None:
    ladder = load_ladder("rmsnorm")
    found = climb(replace(ladder, rungs=ladder.rungs[:2]), Ground(device=H200, place=ALONE), rungs=["bn_bk"])
    text = page([(ladder, found)])
    assert all(f"## rmsnorm/{rung.name}: {rung.title}" in text for rung in ladder.rungs)
    first = ladder.rungs[0]
    kernels = [own_text(parts_of(ladder, first, block, H200)[0].module) for block in first.blocks[:2]]
    assert kernels[0].startswith("struct Cols")
    assert kernels[0].rstrip().endswith("}")
    assert not re.search(r"_[0-9a-f]{4}\b", comparable(kernels[0]).replace("__", ""))
    assert difference(kernels[0], kernels[0]) == ""
    assert "+" in difference(*kernels)


def test_a_plot_has_a_line_a_rung(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib")
    from normgen.ladder.plot import plot

    ladder: Ladder = parse_ladder(OWN.partition("blocks")[0] + 'missing = "no such thing"\n', file="own.toml")
    with pytest.raises(UsageError, match="at least one time"):
        plot(ladder, climb(ladder, Ground(device=H200, place=ALONE)), tmp_path / "none.png")
    ladder = load_ladder("reduce")
    plot(ladder, climb(ladder, Ground(device=H200, place=ALONE), rungs=["block"]), tmp_path / "one.svg")
    assert "<svg" in (tmp_path / "one.svg").read_text(encoding="utf-8")


README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
LINES = re.findall(r"^normgen (?:ladder|show --shape) .*", README, re.MULTILINE)


@needs_compiler
@pytest.mark.parametrize("line", LINES)
def test_what_the_readme_shows_of_ladders_runs(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *line.partition("#")[0].split()[1:])
    assert code == 0
    assert "__global__" in out or "layernorm_backward" in out


@pytest.mark.gpu(alone=True)
def test_layernorms_ladder_is_measured_and_each_version_is_faster_than_the_first() -> None:
    try:
        gpu = find_gpu(None)
    except NoDeviceError:
        gpu = None
    if gpu is None:
        pytest.skip("no CUDA device")
    ground = Ground(device=gpu[1], place=ALONE, index=gpu[0], samples=12)
    found = {rung.name: rung for rung in climb(load_ladder("layernorm"), ground, rungs=["v1", "v3", "v4", "v5"]).rungs}
    assert found["v1"].state == found["v3"].state == RIGHT
    assert found["v4"].state == found["v5"].state == WRONG
    best = {name: rung.best.us for name, rung in found.items() if rung.best and rung.best.us}
    assert len(best) == 4
    assert all(us < best["v1"] / 2 for name, us in best.items() if name != "v1")


def test_the_page_has_every_rung_that_the_language_has_with_its_times() -> None:
    found: dict[str, Climb] = {}
    for file in sorted((ROOT / "generated" / "evidence").glob("ladder_*.json")):
        found |= {one.ladder: one for one in read_climbs(file)}
    for ladder in map(load_ladder, NAMES):
        climbed = {rung.name: rung for rung in found[ladder.name].rungs}
        for rung in ladder.rungs:
            assert rung.name in climbed, (
                f"{ladder.name}/{rung.name}: normgen ladder all --json, then normgen.report.readme"
            )
            assert len(climbed[rung.name].launches) == len(rung.blocks), rung.name


def test_files_of_several_climbs_are_joined(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ground = Ground(device=H200, place=ALONE)
    words = ["ladder", "--json"]
    for name, rung in (("reduce", "block"), ("llmc", "forward_alone")):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"ladders": [plain(climb(load_ladder(name), ground, rungs=[rung]))]}))
        words += ["--from", str(file)]
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert [one["ladder"] for one in json.loads(out)["ladders"]] == ["reduce", "llmc"]


@needs_compiler
def test_without_a_gpu_the_measured_table_that_ships_stands_beside_the_prediction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "ladder", "layernorm", "--rung", "v1", "--device", "cpu")
    assert code == 0
    predicted, title, measured = out.partition(
        "\nmeasured: layernorm forward 8192 x 768 f32 on NVIDIA H200, "
        "with nothing in L2, back to back with itself (cold alone), as it ships with normgen\n"
    )
    assert title
    assert "predicted µs" in predicted
    shipped = shipped_climb(load_ladder("layernorm"), H200)
    assert shipped is not None
    v1 = next(rung for rung in shipped.rungs if rung.name == "v1")
    assert all(figure(launch.us) in measured for launch in v1.launches)
    assert "v2" not in measured  # of the rungs that were asked for
    assert shipped_climb(load_ladder("layernorm"), target("b200")) is None
    code, out, _ = run(capsys, "ladder", "layernorm", "--rung", "v1", "--device", "cpu", "--target", "b200")
    assert code == 0
    assert "measured:" not in out


def test_a_record_that_is_behind_the_default_says_why() -> None:
    ladder = load_ladder("layernorm")
    found = shipped_climb(ladder, H200)
    assert found is not None
    said = "record is slower than default here: it was tuned with its main input in L2, between plain kernels (fresh), "
    assert why_behind(ladder, found).startswith(said)
    assert said in climb_text(ladder, found)
    assert said in page([(ladder, found)])
    predicted = why_behind(ladder, replace(found, measured=False))
    assert predicted == "record is slower than default by the cost model, which is no measurement"
    ahead = replace(found, rungs=tuple(rung for rung in found.rungs if rung.name != "default"))
    assert why_behind(ladder, ahead) == ""
