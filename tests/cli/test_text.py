"""What a run prints: the figures of its records, nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from normgen.cli.main import cli
from normgen.cli.text.result import Terminal, progress_line, result_text
from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.export import ships
from normgen.program.source import problem_for
from normgen.records.place import Context, Place, Setting
from normgen.records.record import Outcome
from normgen.records.statistics import Price, summarise
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.text import figure, table
from normgen.tuning.progress import Standing
from normgen.tuning.result import Result
from tests.measure.simulated import problem
from tests.records.test_record import record

BEST = record(us=14.02, default_us=21.03)
DEFAULT = record(us=21.03, schedule=Schedule(threads_per_row=256), roof_us=13.7)
RESULT = Result(
    problem=problem(),
    device=TARGETS["h200"],
    record=BEST,
    default=DEFAULT,
    finalists=(BEST, DEFAULT),
    counts={"ok": 60, "wrong_result": 4},
    phases_s={"search": 12.34},
    candidates_path=Path("/runs/1/candidates.jsonl"),
    record_path=Path("/runs/1/winner.jsonl"),
    header_path=Path("/runs/1/layernorm_fwd_f32_sm90.cu"),
    notes=("clock fell",),
)


def test_a_table_aligns_its_columns() -> None:
    assert table(("", "µs", "name"), [("a", "1.5", "x"), ("long", "10", "yy")]) == (
        "       µs  name\na     1.5  x\nlong   10  yy"
    )


@pytest.mark.parametrize(
    ("value", "text"), [(14.023, "14.02"), (3595.4, "3595"), (0.5, "0.500"), (123456.0, "123456"), (None, "-")]
)
def test_figures_have_four_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_the_result_says_shape_times_roof_and_where_everything_is() -> None:
    lines = result_text(RESULT).splitlines()
    asked, timed = "rows = 8192, cols = 768", "with its main input in L2, between plain kernels (fresh)"
    assert lines[0] == f"layernorm forward f32 on NVIDIA H200: {asked}, timed {timed}"
    best = next(line for line in lines if line.startswith("best"))
    assert best.split()[:6] == ["best", "14.02", "13.97", "14.07", "3590", "97.7"]
    assert best.endswith("threads_per_row=64 vector=4")
    assert next(line for line in lines if line.startswith("roofline")).split()[:2] == ["roofline", "13.70"]
    text = "\n".join(lines)
    assert "1.023 x the roofline of this run, 1.50 x as fast as the default schedule, noise floor 1.00 %" in text
    assert "/runs/1/winner.jsonl" in text
    assert "/runs/1/layernorm_fwd_f32_sm90.cu" in text
    assert "60 ok, 4 wrong_result (search 12.3 s)" in text
    assert "note: clock fell" in text


def test_a_prediction_says_so_and_shows_no_roof() -> None:
    guess = record(outcome=Outcome.PREDICTED, measured=False, times_us=None, roof_us=None, predicted_us=13.2)
    text = result_text(replace(RESULT, record=guess, default=None, finalists=(guess,)))
    assert "(predicted, not measured)" in text
    assert "predicted, not measured: compiled for sm_90, ranked by the cost model\n" in text
    assert not any(line.startswith("roofline") for line in text.splitlines())
    assert next(line for line in text.splitlines() if line.startswith("best")).split()[1:3] == ["13.20", "3813"]
    assert text.splitlines()[2].split() == ["predicted", "µs", "GB/s", "registers", "schedule"]
    assert "marginal" not in text
    assert "nothing was ever measured on a GPU of sm_89" in result_text(
        replace(RESULT, record=guess, default=None, finalists=(guess,), device=TARGETS["l4"])
    )


def test_beside_a_prediction_stands_the_measured_record_that_ships_for_the_question() -> None:
    shape = {"shape": "8x1024x768"}
    ours = ships(problem_for(load("layernorm"), **shape), TARGETS["h200"])
    assert ours is not None
    assert ours.record.measured
    assert ours.header is not None
    assert ours.header.name == "layernorm_fwd_f32_sm90.cu"
    assert "8192 x 768" in ours.header.read_text()
    guess = record(outcome=Outcome.PREDICTED, measured=False, times_us=None, roof_us=None, predicted_us=13.2)
    found = replace(RESULT, record=guess, default=None, finalists=(guess,), ships=ours)
    text = result_text(found)
    assert f"measured    {figure(ours.record.cost_us)} µs marginal on NVIDIA H200: {ours.record.schedule}\n" in text
    assert f"ships with normgen, in {ours.header}\n" in text
    assert found.as_dict()["ships"] == {"record": ours.record.as_dict(), "header": str(ours.header)}
    assert replace(found, ships=None).as_dict()["ships"] is None
    for other in ({"shape": "8x1024x769"}, {**shape, "dtype": "f16"}):
        assert ships(problem_for(load("layernorm"), **other), TARGETS["h200"]) is None
    assert ships(problem_for(load("layernorm"), **shape), TARGETS["b200"]) is None


def test_the_json_object_holds_what_the_table_shows() -> None:
    found = RESULT.as_dict()
    assert found["best"]["times_us"]["median"] == 14.02
    assert found["default"]["times_us"]["median"] == 21.03
    assert [f["us"] for f in found["finalists"]] == [14.02, 21.03]
    assert found["paths"]["header"] == "/runs/1/layernorm_fwd_f32_sm90.cu"


def test_the_progress_line_has_trials_best_bandwidth_roof_and_time_left() -> None:
    standing = Standing(
        trials=48, trials_max=128, best="vector=4", best_us=14.0, roof_us=13.7, bytes=50_331_648, left_s=31.4
    )
    assert progress_line("search", standing) == (
        "search  48/128 trials  best 14.00 µs  3595 GB/s  97.9 % of roofline  31 s left  vector=4"
    )
    assert progress_line("compile", None) == "compile"
    begun = Standing(trials=0, trials_max=40, left_s=58.6)
    assert progress_line("enumerate", begun) == "enumerate  0/40 trials  59 s left"


def test_off_a_terminal_phases_and_notes_are_printed_as_they_come_and_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Terminal() as terminal:
        terminal.phase("search")
        assert capsys.readouterr().err == "search ...\n"
        terminal.standing(Standing(trials=1, trials_max=2))
        terminal.note("no C++ compiler")
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "no C++ compiler\n")


def test_a_result_in_place_begins_with_its_price_and_the_chains_and_ends_with_what_it_takes_alone() -> None:
    base = summarise([6.0] * 8)
    best = replace(
        BEST, chain_us=base, price_us=Price(median=8.02, low=7.99, high=8.05), alone_us=7.5, roof_us=7.0,
        roofs_us={"copy": 7.2, "elementwise": 7.0},
    )  # fmt: skip
    default = replace(DEFAULT, chain_us=base, price_us=Price(median=15.03, low=15.0, high=15.1), alone_us=13.0)
    lines = result_text(replace(RESULT, record=best, default=default, finalists=(best, default))).splitlines()
    head = next(line for line in lines if "registers" in line)
    assert head.split()[:8] == ["marginal", "µs", "low", "high", "T", "µs", "T0", "µs"]
    row = next(line for line in lines if line.startswith("best"))
    assert row.split()[1:6] == ["8.020", "7.990", "8.050", "14.02", "6.000"]
    assert row.split()[8:10] == ["32", "7.500"]
    roof = next(line for line in lines if line.startswith("roofline"))
    assert (roof.split()[:2], roof.split()[-1]) == (["roofline", "7.000"], "elementwise")
    text = "\n".join(lines)
    assert "1.146 x the roofline of this run, 1.114 x its memcpy node, 1.87 x as fast as the default schedule" in text
    assert "(the whole chain 1.50 x)" in text
    assert (
        "  marginal time: what a kernel adds to the time of the two kernels around it: T - T0, median over interleaved"
        in lines
    )
    assert sum(line.startswith(("  chain: ", "  roofline: ", "  alone: ")) for line in lines) == 3
    alone = replace(BEST, place=Place(context=Context.ALONE, setting=Setting.HOT))
    lines = result_text(replace(RESULT, record=alone, default=None, finalists=(alone,))).splitlines()
    assert lines[0].endswith("timed with everything in L2, back to back with itself (hot alone)")
    assert any(line.split()[:2] == ["alone", "µs"] for line in lines)


@pytest.mark.parametrize("group", ["spec", "study", "cache", "engines"])
def test_the_help_of_a_group_ends_no_sentence_of_its_commands_early(group: str) -> None:
    done = CliRunner().invoke(cli, [group, "--help"])
    assert done.exit_code == 0
    assert "..." not in done.stdout.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--op", "l2norm.tml"), "a spec file ends in .toml"),
        (("--op", "layernrm"), "did you mean 'layernorm'? `normgen list` has all of them"),
        (("--op", "qqq"), "`normgen list` has all of them"),
        (("--target", "rtx4080"), "it is sm_89: --target l4 (sm_89) is the nearest"),
        (("--target", "NVIDIA GeForce RTX 3080"), "it is sm_86: --target a100 (sm_80) is the nearest"),
        (("--target", "RTX-5080"), "it is sm_120: --target rtx5090"),
        (("--target", "mi300"), "known names: a100"),
        (("--schedule", "threads_per_row=7"), "the nearest is 8"),
    ],
)
def test_a_mistyped_word_has_a_short_hint_that_fits_it(arguments: tuple[str, str], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        CliRunner().invoke(cli, ["explain", "--shape", "8x96", *arguments], catch_exceptions=False)
    assert says in str(refused.value.hint)
    assert len(str(refused.value.hint)) < 120
