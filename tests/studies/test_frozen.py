"""Frozen problems: the draw never changes, the cut is by the question alone, and nobody reads the third unnoticed."""

from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import normgen
from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.records.place import DEFAULT_PLACE
from normgen.schedule.schedule import Schedule
from normgen.studies.frozen.draw import COUNT, problems
from normgen.studies.frozen.file import FILE, LOOKS, PARTS, Frozen, gathered, part_of, read_frozen
from normgen.studies.sweep_file import Sweep
from normgen.trials.file import write
from normgen.trials.head import opening
from normgen.trials.trial import Trial
from tests.measure.simulated import problem

ROOT = Path(normgen.__file__).parents[1]
DRAWN = "fe9a2d284b5850c9ef2acdc48efe5a910d136f4370db0c73252e9a23f16956bf"
DEFAULT, OTHER = Schedule(), Schedule(vector=2)


def sweep_of(rows: int, *, card: str = "h200", seed: int = 0, chosen: str = "random", us: float = 5.0) -> Sweep:
    return Sweep(
        **opening(TARGETS[card], {"protocol": "2", "default_text": str(rows)}, {"seed": seed}),
        finished=True,
        note="",
        problem=problem().question.as_dict() | {"rows": rows},
        place=DEFAULT_PLACE,
        roof_us=2.0,
        chain_us=3.0,
        noise_floor=0.002,
        bytes=8,
        legal=9,
        default=DEFAULT,
        points=(Trial(schedule=DEFAULT, chosen="default", us=us), Trial(schedule=OTHER, chosen=chosen, us=4.0)),
    )


def file_of(folder: Path, *sweeps: Sweep) -> Path:
    for number, sweep in enumerate(sweeps):
        write(folder / f"{number:03d}.jsonl", sweep)
    write(folder / "all.jsonl.xz", gathered([folder]))
    return folder / "all.jsonl.xz"


def question(drawn: dict[str, str]) -> dict[str, str]:
    rows, cols = drawn["shape"].split("x")
    return {"direction": "forward", **drawn, "rows": rows, "cols": cols}


def test_the_drawn_problems_never_change_and_are_different() -> None:
    assert hashlib.sha256(json.dumps(problems()).encode()).hexdigest() == DRAWN
    assert problems(9) == problems()[:9]
    assert problems(9, seed=1) != problems(9)
    assert len({(p["op"], p.get("direction"), p["shape"]) for p in problems()}) == COUNT


def test_the_cut_is_by_op_direction_and_shape_and_each_part_has_its_share() -> None:
    parts = [part_of(question(p)) for p in problems()]
    assert Counter(parts) == {"fit": 69, "choose": 82, "test": 69}
    one = question(problems()[0])
    assert part_of({**one, "dtype": "f64", "spec_sha256": "0", "pitch": 7}) == part_of(one)
    for name in ("op", "direction", "rows", "cols"):
        assert {part_of({**one, name: f"{one[name]}{i}"}) for i in range(20)} == set(PARTS)
    assert {part_of(one, salt=f"{i}") for i in range(20)} == set(PARTS)


def test_the_shipped_file_has_the_drawn_problems_each_with_its_samples_and_without_the_third() -> None:
    found = read_frozen()
    drawn = {json.dumps(question(p)["op"]) + p["shape"] + p.get("direction", "forward") for p in problems()}
    kept = [
        json.dumps(s.problem["op"]) + f"{s.problem['rows']}x{s.problem['cols']}{s.problem['direction']}" for s in found
    ]
    assert set(kept) <= drawn
    assert len(kept) == len(set(kept))
    assert {part_of(s.problem) for s in found} == {"fit", "choose"}
    assert Counter(part_of(s.problem) for s in found) == {"fit": 52, "choose": 72}
    assert {(s.device["name"], str(s.place)) for s in found} == {("NVIDIA H200", "fresh")}
    for sweep in found:
        chosen = Counter(p.chosen for p in sweep.points)
        assert sweep.points[0] == replace(sweep.points[0], schedule=sweep.default, chosen="default")
        assert set(chosen) <= {"default", "search", "random", "first"}
        assert chosen["default"] == 1
        assert chosen["random"] >= min(8, sweep.legal)
        assert 1 + chosen["search"] <= 64
    assert FILE.stat().st_size <= 500_000


def test_the_third_is_read_with_a_reason_and_each_look_is_a_line(tmp_path: Path) -> None:
    path = file_of(tmp_path, *(sweep_of(rows, seed=rows) for rows in range(1, 31)))
    seen = read_frozen(path)
    assert not (tmp_path / LOOKS).exists()
    with pytest.raises(UsageError, match="who looks"):
        read_frozen(path, ("test",), why=" \n")
    with pytest.raises(UsageError, match="unknown part"):
        read_frozen(path, ("tests",))
    third = read_frozen(path, ("test",), why="a test\nof this")
    read_frozen(path, PARTS, why="again")
    lines = (tmp_path / LOOKS).read_text(encoding="utf-8").splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["a test of this", "again"]
    assert {part_of(s.problem) for s in third} == {"test"}
    assert sorted(s.problem["rows"] for s in (*seen, *third)) == list(range(1, 31))


def test_nothing_in_the_project_asks_for_the_third_or_reads_the_file_past_its_reader() -> None:
    """Outside the package of frozen problems, its command and their tests."""
    mine = {Path(__file__), Path(__file__).with_name("test_first.py")}
    own = {ROOT / "normgen/cli/studies/frozen.py", *mine, *(ROOT / "normgen/studies/frozen").glob("*.py")}
    for file in (f for folder in ("normgen", "tests") for f in (ROOT / folder).rglob("*.py") if f not in own):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("read_frozen"):
                said = ast.unparse(node)
                assert "test" not in said, f"{file}: {said}"
                assert "PARTS" not in said, f"{file}: {said}"
                assert "why" not in said, f"{file}: {said}"
            names = {a.name for a in node.names} if isinstance(node, ast.ImportFrom) else set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("normgen.studies.frozen"):
                assert not any(a.asname for a in node.names), f"{file}: its calls would not be found"
                assert not names & {"Frozen", "FILE", "TEST", "PARTS", "gathered", "file"}, f"{file}: {names}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "frozen/h200" not in node.value, file


def test_gathered_is_in_the_order_of_the_draw_the_later_in_place_of_the_earlier(tmp_path: Path) -> None:
    path = file_of(tmp_path, sweep_of(5, seed=2), sweep_of(3, seed=1))
    write(tmp_path / "more.jsonl", sweep_of(5, seed=2, us=9.0))
    found = gathered([path, tmp_path / "more.jsonl"])
    assert [(s.problem["rows"], s.points[0].us) for s in found.sweeps] == [(3, 5.0), (5, 9.0)]
    assert found.device["name"] == "NVIDIA H200"
    assert found.versions == {"protocol": "2"}


@pytest.mark.parametrize(
    ("sweeps", "why"),
    [
        ([sweep_of(3), sweep_of(4, card="h100")], "one kind of card"),
        ([replace(sweep_of(3), finished=False, note="interrupted")], "interrupted"),
        ([sweep_of(3, chosen="")], "1 points that do not say"),
        ([], "gathered from sweeps"),
    ],
)
def test_what_is_no_frozen_problem_is_refused(tmp_path: Path, sweeps: list[Sweep], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        file_of(tmp_path, *sweeps)
    assert why in str(refused.value)


def test_a_line_of_the_file_is_a_sweep_by_itself() -> None:
    one = Frozen(**opening(TARGETS["h200"], {}, {}), sweeps=(sweep_of(3),))
    assert Frozen.trial_of(json.loads(json.dumps(one.plain(one.sweeps[0])))) == one.sweeps[0]
    with pytest.raises(ValueError, match="knows no"):
        Frozen.trial_of({**one.plain(one.sweeps[0]), "more": 1})
