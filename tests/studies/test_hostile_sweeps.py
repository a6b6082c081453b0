"""A sweep whose header or points are damaged in one place is refused in one error, or read."""

from __future__ import annotations

import contextlib
import json
import lzma
from pathlib import Path

from normgen.errors import UsageError
from normgen.report.evidence import gather
from normgen.report.page import render
from normgen.studies.sweep_file import read_sweep
from tests.records.test_hostile_lines import VALUES

SWEEP = next((Path(__file__).parents[2] / "generated" / "sweeps").glob("*.xz"))
LINES = lzma.decompress(SWEEP.read_bytes()).decode().splitlines()[:6]


def damaged_sweeps() -> list[str]:
    """Each field of the head, of its problem and device, and each field of a point made of something else."""
    header, point = json.loads(LINES[0]), json.loads(LINES[1])
    heads = [json.dumps({**header, name: "@"}) for name in header]
    for inner in ("problem", "device"):
        heads += [json.dumps({**header, inner: {**header[inner], name: "@"}}) for name in header[inner]]
    points = [json.dumps({**point, name: "@"}) for name in (*point, "outcome", "spill_bytes", "twin")]
    whole = [[head, *LINES[1:]] for head in heads] + [[LINES[0], odd, *LINES[2:]] for odd in points]
    return ["\n".join(lines).replace('"@"', value) + "\n" for lines in whole for value in VALUES]


def test_a_sweep_that_is_one_in_all_places_but_one_breaks_no_reader(tmp_path: Path) -> None:
    file = tmp_path / "sweep.jsonl"
    read = 0
    texts = damaged_sweeps()
    for text in texts:
        file.write_text(text)
        with contextlib.suppress(UsageError):
            read_sweep(file)
            assert "</html>" in render(gather([file]))
            read += 1
    assert 0 < read < len(texts) / 4
