"""The table of errors: what is counted, what is marked, what a later run goes on with."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from normgen.bench.accuracy import measure as measuring
from normgen.bench.accuracy import table as tables
from normgen.bench.accuracy.cells import Cell, CellsAsked, Compared, Error
from normgen.bench.accuracy.errors import ErrorTally, ulps_at
from normgen.bench.accuracy.kernels import OnCpu
from normgen.bench.accuracy.measure import measure
from normgen.bench.accuracy.table import Table, fill
from normgen.cli.main import cli
from normgen.codegen.module import Module
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.dtypes import BF16, F16, F32, DType
from normgen.errors import UsageError
from normgen.report.accuracy_page import accuracy_page
from normgen.trials.file import read
from normgen.tuning.progress import Silent
from normgen.verify import Inputs, make_outputs, reference

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


class Told(Silent):
    """Keeps its notes."""

    def __init__(self) -> None:
        self.notes = list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)


CELL = Cell(op="layernorm", direction="forward", dtype="bf16", family="normal", cols=96, rows=20)
SMALL = CellsAsked(
    ops=("layernorm",), dtypes=("bf16",), families=("normal", "tiny"), cols=(33, 96), rows=6, elements=600
)


class Exact:
    """Results that are the reference, rounded; `spoil` gets them before they are handed out."""

    facts, index = target("h200"), None

    def __init__(self, spoil: Any = lambda _: None) -> None:
        self.spoil, self.rows, self.first = spoil, list[int](), set[float]()

    def run(self, _module: Module, inputs: Inputs) -> dict[str, NDArray[Any]]:
        problem, values = inputs.problem, {}
        for name, array in inputs.arrays.items():
            shape = problem.tensor(name).kind.broadcast_shape(problem.sizes)
            values[name] = array.astype(np.float64).reshape(shape)
        wanted = reference(problem.spec.name, problem.direction, values, inputs.scalars)
        found = make_outputs(problem).arrays
        for name, array in found.items():
            array[...] = wanted[name].reshape(array.shape).astype(array.dtype)
        self.rows.append(problem.rows)
        self.first.add(float(inputs.arrays["x"][0, 0]) if "x" in inputs.arrays else 0.0)
        self.spoil(found)
        return found


@pytest.mark.parametrize(
    ("value", "dtype", "ulp"),
    [
        (1.0, F32, 2.0**-23), (-1.0, F32, 2.0**-23), (1.999, F32, 2.0**-23), (2.0, F32, 2.0**-22),
        (1.0, BF16, 2.0**-7), (-3.0, BF16, 2.0**-6), (0.0, F32, 2.0**-149), (1e-45, F32, 2.0**-149),
        (2.0**-14, F16, 2.0**-24), (0.0, F16, 2.0**-24), (1.0, F16, 2.0**-10),
    ],
)  # fmt: skip
def test_an_ulp_is_the_distance_of_the_dtypes_numbers(value: float, dtype: DType, ulp: float) -> None:
    assert ulps_at(np.array([value]), dtype) == [ulp]


def test_errors_are_gathered_over_blocks_and_what_should_not_be_finite_is_left_out() -> None:
    want = np.array([[1.0, 2.0], [4.0, np.inf], [1e39, 1.0], [1.0, 1.0]])
    got = np.array([[1.25, 2.0], [4.0, 0.0], [np.inf, 1.0], [1.0, np.nan]])
    whole, blocks = ErrorTally(F32), ErrorTally(F32)
    for tally, cuts in ((whole, (0, 4)), (blocks, (0, 1, 3, 4))):
        tally.begin(4)
        for start, end in pairwise(cuts):
            tally.add(start, got[start:end], want[start:end])
    assert whole.error() == blocks.error()
    assert (whole.worst == blocks.worst).all()
    assert whole.error() == Error(
        **{"rms": 0.25 / 5**0.5, "largest": 0.25, "not_finite": 1, "deciding": 1.0, "ranked": 0.0},
        **{"rms_ulps": 0.25 * 2**23 / 5**0.5, "largest_ulps": 0.25 * 2**23},
    )
    assert whole.worst[0].tolist() == [0.25, 0.0, 0.0, np.inf]


@pytest.mark.parametrize("summed", [False, True])
def test_rows_or_summed_columns_are_what_decides(summed: bool) -> None:
    errors = np.array([[3.0, 1.0, 3.0, 1.0, 1.0], *[[0.0] * 5] * 8])  # one row, five columns
    tally = ErrorTally(F32, summed=summed)
    tally.begin(9)
    for start, end in ((0, 4), (4, 9)):
        tally.add(start, errors[start:end], np.zeros((end - start, 5)))
    found = tally.error()
    if summed:  # each block is a call, the second one without errors
        assert found.deciding == pytest.approx((9 + 9 + 1 + 1 + 1) ** 2 / (81 + 81 + 1 + 1 + 1))
    else:
        assert found.deciding == 1
    assert (found.largest, found.ranked) == (3, 0)
    for _ in range(3):
        tally.add(0, errors[:1], np.zeros((1, 5)))
    assert tally.error().ranked == (3 if summed else 0)


def compared(ours: tuple[float, float], torch: tuple[float, float] | None, *, ulps: float, of_bound: float) -> Compared:
    def error(figures: tuple[float, float]) -> Error:
        return Error(
            rms=figures[0], largest=figures[1], rms_ulps=ulps, largest_ulps=ulps, deciding=1e6, ranked=figures[1]
        )

    return Compared(ours=error(ours), torch=torch and error(torch), of_bound=of_bound, held=1, unbounded=0.0)


@pytest.mark.parametrize(
    ("ours", "torch", "ulps", "of_bound", "is_over", "is_worse"),
    [
        ((1.2, 1.9), (1.0, 1.0), 0.6, 1.0, False, False),
        ((1.3, 1.9), (1.0, 1.0), 0.6, 1.0, False, True),
        ((1.2, 2.1), (1.0, 1.0), 0.6, 1.0, False, True),
        ((9.0, 9.0), (1.0, 1.0), 0.5, 0.9, False, False),  # torch's is the rounding of the result
        ((9.0, 9.0), None, 9.0, 1.01, True, False),
        ((0.0, 0.0), (0.0, 0.0), 0.0, float("nan"), True, False),
    ],
)
def test_a_cell_is_marked_for_its_bound_and_for_torch(
    ours: Any, torch: Any, ulps: float, of_bound: float, is_over: bool, is_worse: bool
) -> None:
    found = compared(ours, torch, ulps=ulps, of_bound=of_bound)
    assert (found.is_over, found.is_worse, found.is_above) == (is_over, is_worse, is_worse)


@pytest.mark.parametrize("columns", [1, 4, 5, 1000])
def test_a_cell_is_worse_only_where_enough_columns_say_so(columns: int) -> None:
    """Errors of 3, and torch's of 1, in so many of a thousand columns that are summed: 1.25 x 2.4."""

    def error(size: float) -> Error:
        tally = ErrorTally(F32, summed=True)
        tally.begin(1)
        tally.add(0, np.where(np.arange(1000) < columns, size, 0.0)[None], np.zeros((1, 1000)))
        return tally.error()

    found = Compared(ours=error(3.0), torch=error(1.0), of_bound=0.1, held=1, unbounded=0.0)
    assert found.is_above
    assert found.is_worse is (columns >= 5)  # sqrt(F) at 0.99 is 2.46 of 8 and 8 degrees of freedom, 2.20 of 10


def test_chance_makes_few_cells_worse_whose_error_is_at_the_limit() -> None:
    """Ours is 1.25 x torch's: with 30 columns its RMS error alone is above that in every second cell."""
    rng, marked = np.random.default_rng(0), []
    for _ in range(2000):
        both = []
        for size in (1.25, 1.0):
            tally = ErrorTally(F32, summed=True)
            tally.begin(1)
            tally.add(0, size * rng.standard_normal((1, 30)), np.zeros((1, 30)))
            both.append(tally.error())
        found = Compared(ours=both[0], torch=both[1], of_bound=0.1, held=1, unbounded=0.0)
        marked.append((found.is_above, found.is_worse))
    above, worse = np.mean(marked, axis=0)
    assert 0.4 < above < 0.6
    assert 0 < worse < 0.02


@pytest.mark.parametrize(
    ("op", "direction"), [("layernorm", "forward"), ("rmsnorm", "backward"), ("softmax", "forward")]
)
def test_a_right_result_has_no_error_but_its_rounding(op: str, direction: str) -> None:
    found = measure(replace(CELL, op=op, direction=direction), Exact(), seed=0)
    assert set(found.tensors) == {t.name for t in found.cell.problem.tensors if t.is_written}
    for name, tensor in found.tensors.items():
        assert tensor.ours.largest_ulps <= 0.5, name
        assert 0.1 < tensor.ours.rms_ulps < 0.4, name
        assert not tensor.is_over
        assert tensor.torch is None or tensor.torch.rms >= 0


def test_calls_of_few_rows_count_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "CALL_ELEMENTS", 96 * 8)
    place = Exact(lambda found: found["y"].__setitem__((3, 7), 1e3))
    found = measure(CELL, place, seed=0)
    assert place.rows == [8, 8, 4]
    assert len(place.first) == 3  # other rows in each
    y = found.tensors["y"]
    assert y.ours.rms == pytest.approx(1e3 * (3 / (20 * 96)) ** 0.5, rel=0.01)
    assert y.held == 20  # all of them are worth a look
    assert found.tensors["mean"].ours.largest < 1e-6


@pytest.mark.parametrize("tensor", ["y", "rstd"])
def test_one_wrong_element_is_over_the_bound_wherever_it_is(tensor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "HELD_ELEMENTS", 1)  # no row at random: the worst ones are found

    def spoil(found: dict[str, NDArray[Any]]) -> None:
        found[tensor][137] = found[tensor][137] * np.float32(1.5)

    found = measure(replace(CELL, rows=300), Exact(spoil), seed=0).tensors
    assert [name for name, figures in found.items() if figures.is_over] == [tensor]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_result_that_is_not_finite_is_counted_and_over_the_bound(value: float) -> None:
    found = measure(CELL, Exact(lambda out: out["y"].__setitem__((5, 5), value)), seed=0).tensors["y"]
    assert found.ours.not_finite == 1
    assert found.ours.largest_ulps <= 0.5
    assert found.is_over


def test_few_columns_that_are_summed_are_drawn_again() -> None:
    asked = CellsAsked(ops=("rmsnorm",), families=("normal",), cols=(96, 1000), rows=10_000)
    draws = {(c.direction, c.cols): c.draws for c in asked.cells() if c.dtype == "f32"}
    assert draws == {("forward", 96): 1, ("backward", 96): 17, ("forward", 1000): 1, ("backward", 1000): 1}
    place = Exact()
    found = measure(replace(CELL, direction="backward", draws=3), place, seed=0)
    assert (place.rows, len(place.first)) == ([20, 20, 20], 3)
    assert found.tensors["dx"].held > 40


def test_a_gradient_that_is_summed_over_rows_is_held_to_all_of_them() -> None:
    cell = replace(CELL, direction="backward")

    def spoil(out: dict[str, NDArray[Any]]) -> None:
        out["dweight"][5] += 4.0

    right, wrong = (measure(cell, Exact(how), seed=0).tensors["dweight"] for how in (lambda _: None, spoil))
    assert not right.is_over
    assert wrong.is_over
    assert wrong.ours.largest == pytest.approx(4.0, rel=0.1)


def test_rows_are_as_many_as_the_elements_allow_and_a_cell_is_of_finite_rows_that_fit() -> None:
    cells = list(CellsAsked(rows=100, elements=96 * 50, cols=(33, 96)).cells())
    assert {cell.rows for cell in cells if cell.cols == 33} == {100}
    assert {cell.rows for cell in cells if cell.cols == 96} == {50}
    assert len(set(cells)) == len(cells)
    families = {(cell.op, cell.family) for cell in cells}
    assert ("softmax", "masked") in families
    assert not families & {("layernorm", "masked"), ("layernorm", "nan"), ("softmax", "inf")}
    with pytest.raises(UsageError, match="families of an accuracy table"):
        CellsAsked(families=("normale",))


@needs_compiler
def test_kernels_on_the_cpu_executor_keep_their_bounds_and_the_page_shows_every_cell(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    found = fill(path, SMALL, index=None, seed=0, workers=1, torch={}, progress=Silent())
    assert (found.over, found.worse) == ((), ())
    assert len(found.cells) == 2 * 2 * 2
    assert found.where == "CPU executor"
    assert {m.key: m for m in read(Table, path).cells} == {m.key: m for m in found.cells}
    page = accuracy_page(found)
    assert "8 cells, 0 over the bound, 0 worse than torch, 0 above it by what may be chance" in page
    assert "| family | 6 x 33 | 6 x 96 |" in page
    assert {"## layernorm forward bf16: y", "## layernorm backward bf16: dweight"} <= set(page.splitlines())
    assert "CPU executor. torch: not installed" in page


def test_a_table_goes_on_where_it_was_stopped_and_refuses_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, place = tmp_path / "table.jsonl", Exact()
    monkeypatch.setattr(tables, "place_of", lambda _: place)
    whole = fill(path, SMALL, index=None, seed=0, workers=1, torch={}, progress=Silent())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:50])  # killed while it wrote
    place.rows.clear()
    told = Told()
    again = fill(path, SMALL, index=None, seed=0, workers=1, torch={}, progress=told)
    assert (again.cells, again.finished) == (whole.cells, True)
    assert (len(place.rows), [note[:5] for note in told.notes]) == (5, [f"[{n}/8]" for n in (4, 5, 6, 7, 8)])
    with pytest.raises(UsageError, match="of the same question, device") as refused:
        fill(path, SMALL, index=None, seed=1, workers=1, torch={}, progress=Silent())
    assert refused.value.received == "options {'seed': 0}, now {'seed': 1}"
    other = tmp_path / "other.jsonl"
    other.write_text("{}\n")
    with pytest.raises(UsageError, match="is what `normgen study accuracy` wrote"):
        read(Table, other)


@needs_compiler
def test_the_command_says_what_it_found_and_runs_in_several_processes(tmp_path: Path) -> None:
    path, page = tmp_path / "table.jsonl", tmp_path / "accuracy.md"
    asked = [
        "study",
        "accuracy",
        str(path),
        "--ops",
        "softmax",
        "--dtypes",
        "f32",
        "--families",
        "normal",
        "--cols",
        "40",
    ]
    done = CliRunner().invoke(cli, [*asked, "--device", "cpu", "--workers", "2", "--page", str(page), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["cells"], said["over"], said["worse"], said["where"]) == (2, [], [], "CPU executor")
    assert "[2/2] softmax" in done.stderr
    assert "## softmax forward f32: y" in page.read_text()


def test_a_cell_over_its_bound_ends_the_command_with_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Exact(lambda found: found["y"].__setitem__((0, 0), 50.0))
    monkeypatch.setattr(tables, "place_of", lambda _: place)
    asked = ["--ops", "rmsnorm", "--directions", "forward", "--dtypes", "f32", "--families", "normal", "--cols", "64"]
    done = CliRunner().invoke(
        cli, ["study", "accuracy", str(tmp_path / "t"), *asked, "--device", "cpu", "--workers", "1"]
    )
    assert done.exit_code == 4
    assert "over: rmsnorm forward f32 normal 64x64: y" in done.stdout


@needs_compiler
@pytest.mark.parametrize(
    ("op", "direction"), [("layernorm", "forward"), ("layernorm", "backward"), ("softmax", "backward")]
)
def test_torchs_operator_is_measured_on_the_same_rows(op: str, direction: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    found = measure(replace(CELL, op=op, direction=direction, dtype="f32"), OnCpu(), seed=0)
    assert found.note == ""
    for name, tensor in found.tensors.items():
        assert tensor.torch is not None, name
        assert 0 < tensor.torch.rms < 1e-4
        assert not tensor.is_worse, name
