"""Where a kernel was verified stands in its record, and is told by all that show records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from normgen.cli import main as cli
from normgen.export import headers_of
from normgen.records.compare import compare_files
from normgen.records.record import parse_line
from normgen.records.verified import CPU, GPU, Verified, VerifiedOn, told
from normgen.report.evidence import gather
from normgen.report.view import page_data
from normgen.spec.reader import load
from tests.export import cases
from tests.records.test_record import record

ROOT = Path(__file__).parents[2]
H200 = VerifiedOn(executor=GPU, device="NVIDIA H200", version="13.0")
HERE = VerifiedOn(executor=CPU, device="x86_64", version="g++ 12.2.0")
VERIFIED = Verified(
    site=H200,
    calls=11,
    rows=(1, 3, 10, 8192),
    cols=(768,),
    compared=5461,
    families=("normal", "large_mean", "inf"),
    own_pitches=("x", "y"),
    nulls=("mean", "rstd"),
)
WIDTH = "3 families of rows, own pitches of x, y, null mean, rstd"
ON_H200 = f"NVIDIA H200, driver for CUDA 13.0: 11 calls, 1 to 8192 rows, {WIDTH}"


def test_it_survives_the_trip_to_a_line_and_back() -> None:
    full = replace(
        VERIFIED, unbounded=0.0125, left_out=("nan",), uncounted=("inf",), not_made=("at 17 rows",), orders=2
    )
    varied = replace(full, seen=("eps=0.1", "label cols"), unseen=("mask huge",))
    for verified in (VERIFIED, full, varied, replace(VERIFIED, seen=()), replace(VERIFIED, site=HERE)):
        line = record(verified=verified).line()
        assert parse_line(line).verified == verified
        assert parse_line(line).line() == line


def test_an_older_line_stays_readable_and_as_it_was() -> None:
    older = record().line()
    assert "verified" not in older
    assert parse_line(older).verified is None
    assert parse_line(older).line() == older


def test_a_record_without_what_was_varied_keeps_its_line_and_does_not_say_that_nothing_was() -> None:
    line = record(verified=VERIFIED).line()
    assert '"seen"' not in line
    assert '"unseen"' not in line
    assert parse_line(line).verified.seen is None
    assert '"seen":[]' in record(verified=replace(VERIFIED, seen=())).line().replace(" ", "")


def test_what_every_shipped_line_was_verified_by_is_written_again_as_it_is() -> None:
    files = sorted((ROOT / "generated" / "records").glob("*.jsonl"))
    assert files
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            verified = parse_line(line).verified
            now = json.loads(json.dumps(verified.as_dict() if verified else None))
            assert json.loads(line).get("verified") == now, file.name


def test_what_was_varied_is_told_and_what_changed_nothing_too() -> None:
    varied = replace(VERIFIED, seen=("eps=0.1", "residual zeros"), unseen=("eps=8",))
    assert told([varied]) == [
        ON_H200.replace(WIDTH, f"3 families of rows, 2 values of scalars and other inputs{WIDTH[18:]}")
        + "; no call shows what depends on eps=8"
    ]
    assert varied.not_shown == ("no call shows what depends on eps=8",)


def test_it_is_told_in_one_line_for_each_site() -> None:
    assert told([VERIFIED]) == [ON_H200]
    assert told([None]) == ["not recorded"]
    assert told([]) == []
    sampled = replace(VERIFIED, calls=1, rows=(170,), own_pitches=(), nulls=(), families=("normal",))
    assert told([VERIFIED, sampled, None, replace(sampled, site=HERE)]) == [
        f"2 of 4 kernels: NVIDIA H200, driver for CUDA 13.0: 1 to 11 calls, 1 to 8192 rows, {WIDTH}",
        "1 of 4 kernels: CPU executor on x86_64 (g++ 12.2.0): 1 call, 170 rows, 1 family of rows",
        "1 of 4 kernels: not recorded",
    ]


def test_what_was_not_shown_is_told_with_it() -> None:
    part = replace(VERIFIED, unbounded=0.0125, left_out=("nan",), uncounted=("inf",), not_made=("at 17 rows",))
    said = (
        "any value passes in 0.013 of the elements, which have no finite bound",
        "rows of nan were not tried",
        "rows of inf are outside the spec's accuracy contract",
        "a call at 17 rows was not made",
    )
    assert part.not_shown == said
    assert told([part]) == ["; ".join((ON_H200, *said))]
    assert VERIFIED.not_shown == ()
    assert told([VERIFIED, part]) == ["; ".join((ON_H200, *said))]
    several = [replace(part, unbounded=share) for share in (0.062, 0.0125, 0.029, 0.0)]
    free = "any value passes in 0.013 to 0.062 of the elements, which have no finite bound"
    assert told(several) == ["; ".join((ON_H200, free, *said[1:]))]


def test_a_header_tells_it_beside_the_device() -> None:
    shipped = replace(cases.record(measured=True), verified=VERIFIED)
    (header,) = headers_of([shipped], spec=load("layernorm"))
    lines = [line.removeprefix("//").strip() for line in header.text.splitlines()]
    place = next(i for i, line in enumerate(lines) if line.startswith("verified"))
    assert ON_H200 in " ".join(lines[place : place + 2])


def test_a_comparison_tells_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    before.write_text(record().line())
    after.write_text(record(us=13.0, verified=VERIFIED).line())
    (pair,) = compare_files(before, after).pairs
    assert (pair.before_verified, pair.after_verified) == (None, VERIFIED)
    with pytest.raises(SystemExit):
        cli.main(["compare", str(before), str(after)])
    printed = capsys.readouterr().out
    assert "verified before: not recorded" in printed
    assert f"verified after: {ON_H200}" in printed
    with pytest.raises(SystemExit):
        cli.main(["compare", str(before), str(after), "--json"])
    (told_pair,) = json.loads(capsys.readouterr().out)["problems"]
    assert told_pair["before_verified"] is None
    assert told_pair["after_verified"] == json.loads(record(verified=VERIFIED).line())["verified"]


def test_a_report_tells_it_of_every_final_record(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(record(verified=VERIFIED).line() + record(us=15.0, seed=4).line())
    assert [final["verified"] for final in page_data(gather([file]))["finals"]] == [ON_H200, "not recorded"]
