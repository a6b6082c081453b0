"""The table of techniques: counts from shipped records, times from a recorded ablation."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from normgen.bench.ablation import Ablation, Line
from normgen.errors import UsageError
from normgen.knobs import KNOBS
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.records.questions import problem_of
from normgen.records.statistics import Ratio
from normgen.records.winners import adopt, read, shipped_folder
from normgen.report.readme import ROOT
from normgen.report.techniques import techniques_part, usage
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.bench.modelled import H200, tuned
from tests.codegen.kernels import has_row_barriers_in

PEELED = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, edges="peel")
STREAMED = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, load="streaming")
RECORDS = (
    tuned(problem_for(load("rmsnorm"), shape="2048x4097", dtype="bf16"), PEELED),
    tuned(problem_for(load("rmsnorm"), shape="2048x4096", dtype="bf16"), STREAMED),
)
_PAIR = re.compile(r"\b[a-z_]+=\w+")
LABELS = ("rmsnorm fwd 2048x4096 bf16 cold", "rmsnorm fwd 4096x4096 bf16 cold align=2")
PEELED_LABEL = "rmsnorm fwd 2048x4097 bf16 cold"


def line(technique: str, label: str, gain: Ratio | None, **changes: object) -> Line:
    facts: dict[str, object] = {"with_us": 10.0, "without_us": 11.25, "changed": "", "note": ""}
    facts |= {"schedule": str(PEELED), **changes}
    return Line(technique=technique, label=label, gain=gain, tried=4, **facts)  # type: ignore[arg-type]


def write(root: Path, *lines: Line) -> Path:
    for record in RECORDS:
        adopt(record, root / "generated" / "records", H200)
    evidence = root / "generated" / "evidence" / "techniques_h200.json"
    evidence.parent.mkdir(parents=True)
    found = Ablation(
        source="h200.jsonl", device={}, versions={}, options={}, started="", seconds=1.0, finished=True, note="",
        lines=lines, unused=(),
    )  # fmt: skip
    evidence.write_text(json.dumps(found.as_dict()))
    return evidence


def cells(text: str, technique: str) -> list[list[str]]:
    """The lines of a technique's block, cell by cell."""
    rows = [[c.strip() for c in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("| ")]
    start = next(i for i, row in enumerate(rows) if row[0] == f"`{technique}`")
    end = next((i for i in range(start + 1, len(rows)) if rows[i][0]), len(rows))
    return rows[start:end]


def test_each_technique_has_its_winners_and_its_measured_shapes(tmp_path: Path) -> None:
    write(
        tmp_path,
        line("edges=peel", PEELED_LABEL, Ratio(median=1.125, low=1.11, high=1.13), changed="vector=1 edges=exact"),
        line("hold=registers", LABELS[1], Ratio(median=0.99, low=0.98, high=1.01), changed="hold=shared"),
        line(
            "hold=registers", LABELS[0], None, without_us=None, changed="", note="no schedule near it is legal without"
        ),
    )
    text = techniques_part(tmp_path)
    assert cells(text, "edges=peel") == [
        [
            *("`edges=peel`", "a scalar head and tail around 16-byte accesses of misaligned rows", "1 of 2"),
            *("rmsnorm fwd 2048x4097 bf16 cold", "10", "11.25", "1.125 [1.110, 1.130]", "`vector=1 edges=exact`"),
        ]
    ]
    first, second = cells(text, "hold=registers")
    assert first[2:4] == ["2 of 2", LABELS[0]]
    assert first[-1] == "no schedule near it is legal without"
    assert second[:4] == ["", "", "", LABELS[1]]
    assert cells(text, "load=streaming")[0][2:4] == ["1 of 2", "not measured"]
    unused = text[text.index("In no winner") :]
    assert "`cluster`" in unused
    assert "`edges=peel`" not in unused
    assert "Left out" not in text


def test_a_record_of_another_text_of_its_spec_counts_for_nothing() -> None:
    old = dataclasses.replace(RECORDS[0], problem=dataclasses.replace(RECORDS[0].problem, spec_sha256="cd" * 32))
    counts, total = usage((old, RECORDS[1]))
    assert total == 1
    assert counts["edges=peel"] == 0
    assert counts["load=streaming"] == 1


def test_without_records_and_with_a_broken_file_it_says_so(tmp_path: Path) -> None:
    assert techniques_part(tmp_path) == "No results are shipped yet.\n"
    write(tmp_path).write_text("[]")
    with pytest.raises(UsageError, match=r"what `normgen bench --ablation \.\.\. --json` wrote"):
        techniques_part(tmp_path)


def test_a_measurement_of_something_else_is_no_line_and_is_told_by_what_it_compares(tmp_path: Path) -> None:
    tie = Ratio(median=1.0, low=0.99, high=1.01)
    narrow = "threads_per_row=64 rows_per_block=4 vector=4 hold=registers unroll=0"
    write(
        tmp_path,
        line("row_barriers", LABELS[0], tie, schedule=narrow, changed="rows_per_block=1"),
        line("edges=peel", LABELS[1], tie, changed="vector=1"),
        line("hold=registers", LABELS[0], tie, changed="hold=shared"),
    )
    text = techniques_part(tmp_path)
    left_out = text[text.index("Left out") :].splitlines()[2:]
    assert left_out == [
        f"- `row_barriers`, {LABELS[0]}: `rows_per_block=4` against `rows_per_block=1`",
        f"- `edges=peel`, {LABELS[1]}: `vector=8` against `vector=1`",
    ]
    assert cells(text, "edges=peel")[0][2:4] == ["1 of 2", "not measured"]
    assert cells(text, "hold=registers")[0][3] == LABELS[0]


def test_as_many_winners_have_row_barriers_as_have_them_in_their_text() -> None:
    winners = read(shipped_folder() / "h200.jsonl").records
    texts = [emit(problem_of(r.problem, load(r.problem.op)), r.schedule).text for r in winners]
    counted = sum(map(has_row_barriers_in, texts))
    assert counted > 0
    assert cells(techniques_part(ROOT), "row_barriers")[0][2] == f"{counted} of {len(winners)}"


def test_every_knob_value_that_the_document_names_exists() -> None:
    text = (ROOT / "docs" / "techniques.md").read_text(encoding="utf-8")
    named = {tuple(pair.split("=")) for code in re.findall(r"`([^`\n]+)`", text) for pair in _PAIR.findall(code)}
    assert len(named) > 50
    known = {(name, str(value)) for name, knob in KNOBS.items() for value in (*knob.values, *knob.gone)}
    assert named - known == set()
