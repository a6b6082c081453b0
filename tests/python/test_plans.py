"""What a call remembers of an earlier one, and what it must ask again: layouts, rows, shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normgen.cpu import find_compiler
from normgen.errors import UsageError
from normgen.problem.problem import LARGEST_TILED
from normgen.python.handle import Kernel, kernel
from normgen.spec.spec import Sizes
from tests.python.devices import Place, nan

pytestmark = pytest.mark.filterwarnings("ignore:no record for")
ROWS, COLS = 5, 256


@pytest.fixture
def norm(place: Place) -> Kernel:
    return kernel("layernorm", shape=(ROWS, COLS), device=place.device)


class Given:
    """Arrays of a layernorm call, and what it gives for them in float64."""

    def __init__(self, place: Place, rows: int = ROWS, *, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self.place = place
        self.x, self.weight, self.bias = (
            random.standard_normal(size, dtype=np.float32) for size in ((rows, COLS), (COLS,), (COLS,))
        )
        self.arrays = {name: place.array(getattr(self, name)) for name in ("x", "weight", "bias")}

    def shifted(self, name: str, offset: int) -> Any:
        """The same values as many elements behind an aligned address."""
        values = getattr(self, name)
        flat = np.concatenate([np.zeros(offset, np.float32), values.reshape(-1)])
        steps = (COLS, 1)[-values.ndim :]
        return self.place.window(flat, offset, values.shape, steps)

    def outputs(self) -> dict[str, Any]:
        rows = len(self.x)
        return {"out": self.place.array(nan(rows, COLS)), **{n: self.place.array(nan(rows)) for n in ("mean", "rstd")}}

    def check(self, results: Any) -> None:
        x = self.x.astype(np.float64)
        mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
        y = (x - mean[:, None]) * rstd[:, None] * self.weight + self.bias
        for array, expected in zip(results, (y, mean, rstd), strict=True):
            np.testing.assert_allclose(self.place.values(array), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", ["x", "weight", "bias"])
@pytest.mark.parametrize("offsets", [(0, 1, 0), (1, 0, 1), (0, 4, 2)])
def test_an_array_of_one_shape_at_another_address_is_planned_by_its_own_alignment(
    name: str, offsets: tuple[int, ...], norm: Kernel, place: Place
) -> None:
    """The tuned kernel faults at the addresses that the plan of another call does not speak of."""
    given = Given(place)
    for offset in offsets:
        given.check(norm(**{**given.arrays, name: given.shifted(name, offset)}))
    assert (norm._general is not None) == any(offset % 4 for offset in offsets)


def test_an_aligned_call_does_not_go_to_the_general_kernel_for_one_that_did(norm: Kernel, place: Place) -> None:
    given = Given(place)
    norm(**{**given.arrays, "x": given.shifted("x", 1)})
    assert norm._general is not None
    norm._general._run = _refuse  # type: ignore[method-assign]
    given.check(norm(**given.arrays))
    with pytest.raises(AssertionError, match="the general kernel"):
        norm(**{**given.arrays, "x": given.shifted("x", 1)})


def _refuse(*_: object) -> None:
    raise AssertionError("the general kernel was asked")


SHARED = {
    "output over an input": ({"out": "x"}, "'y' and 'x'"),
    "statistic over a parameter": ({"out": "y", "mean": "rows"}, "'mean' and 'weight'"),
    "two statistics": ({"out": "y", "mean": "mean", "rstd": "mean"}, "'mean' and 'rstd'"),
}


@pytest.mark.parametrize("case", SHARED)
def test_an_output_in_the_memory_of_another_tensor_is_refused_whatever_was_planned_before(
    case: str, place: Place
) -> None:
    """The layouts are those of a call that was right: what tensors share is no part of a plan."""
    norm = kernel("layernorm", shape=(COLS, COLS), device=place.device)  # as many rows as cols: a statistic is a weight
    given = Given(place, COLS)
    outputs = given.outputs()
    memory = {"x": given.arrays["x"], "rows": given.arrays["weight"], "y": outputs["out"], "mean": outputs["mean"]}
    given.check(norm(**given.arrays, **outputs))
    names, listed = SHARED[case]
    with pytest.raises(UsageError, match=f"must not share memory with another tensor\n  received: {listed} at one"):
        norm(**given.arrays, **{name: memory[which] for name, which in names.items()})
    np.testing.assert_array_equal(place.values(given.arrays["x"]), given.x)
    np.testing.assert_array_equal(place.values(given.arrays["weight"]), given.weight)


def test_inputs_may_share_memory(norm: Kernel, place: Place) -> None:
    given = Given(place)
    given.bias = given.weight
    given.check(norm(given.arrays["x"], given.arrays["weight"], given.arrays["weight"]))


@pytest.mark.parametrize(("name", "listed"), [("out", "y 4, mean 5, rstd 5"), ("mean", "y 5, mean 4"), ("rstd", "4")])
def test_tensors_of_other_rows_are_refused_before_a_launch(name: str, listed: str, norm: Kernel, place: Place) -> None:
    given = Given(place)
    outputs = given.outputs()
    outputs[name] = place.array(nan(4, COLS) if name == "out" else nan(4))
    with pytest.raises(UsageError, match=f"the same number of rows\n  received: .*{listed}"):
        norm(**given.arrays, **outputs)
    assert all(np.isnan(place.values(array)).all() for array in outputs.values())


def test_a_call_without_rows_writes_nothing(norm: Kernel, place: Place) -> None:
    given = Given(place)
    results = norm(place.array(nan(0, COLS)), given.arrays["weight"], given.arrays["bias"])
    assert [array.shape for array in results] == [(0, COLS), (0,), (0,)]


def test_one_row_of_any_stride_and_a_vector_are_rows(norm: Kernel, place: Place) -> None:
    given = Given(place, 1)
    weight, bias = given.arrays["weight"], given.arrays["bias"]
    given.check(norm(place.window(given.x.reshape(-1), 0, (1, COLS), (7, 1)), weight, bias))
    y, mean, rstd = norm(place.array(given.x[0]), weight, bias)
    assert (y.shape, mean.shape, rstd.shape) == ((COLS,), (), ())


def test_plans_of_shapes_that_never_repeat_do_not_fill_the_memory(norm: Kernel, place: Place) -> None:
    """Each call has two rows, farther apart than those of the call before."""
    given, sizes = Given(place), []
    memory = place.array(nan(2, COLS + 4 * 300))
    for step in range(1, 300):
        x = place.part(memory, (2, COLS), (COLS + 4 * step, 1))
        norm(x, given.arrays["weight"], given.arrays["bias"])
        sizes.append(len(norm._known))
    assert 250 < max(sizes) <= 257
    given.check(norm(**given.arrays))


def test_a_general_kernel_is_made_once(norm: Kernel, place: Place) -> None:
    given = Given(place)
    found = []
    for _ in range(2):
        given.check(norm(**{**given.arrays, "x": given.shifted("x", 3)}))
        found.append(norm._general)
    assert found[0] is found[1] is not None


def test_memory_outside_of_the_rows_is_left_alone(norm: Kernel, place: Place) -> None:
    """Rows 260 apart: the four elements between two rows of the output are nobody's."""
    given = Given(place)
    memory = place.array(np.full((ROWS, 260), 7.0, np.float32))
    norm(**given.arrays, out=place.part(memory, (ROWS, COLS), (260, 1)))
    found = place.values(memory)
    assert (found[:, COLS:] == 7).all()
    np.testing.assert_allclose(found[:, :COLS].mean(1), place.values(norm(**given.arrays)[0]).mean(1), atol=1e-5)


def test_an_accumulating_kernel_does_not_make_what_it_adds_to(place: Place) -> None:
    adds = kernel("rmsnorm", shape=(ROWS, COLS), direction="backward", accumulate=True, device=place.device)
    read = [t for t in adds.problem.tensors if not t.is_written]
    given = [place.array(np.ones(t.kind.shape(Sizes(ROWS, COLS)), np.float32)) for t in read]
    with pytest.raises(UsageError, match="adds to gradients that the caller gives"):
        adds(*given)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_more_rows_than_an_int_counts_are_refused_before_a_launch() -> None:
    """Few elements said to be 2^31 rows: a launch would read past them, a refusal reads nothing."""
    total = kernel("row_sum", shape=(4, 1), device="cpu")
    few = np.zeros(4, np.float32)
    rows = np.lib.stride_tricks.as_strided(few, (1 << 31, 1), (4, 4), writeable=False)
    with pytest.raises(UsageError, match="rows are at most 2139095040"):
        total(rows, total=np.lib.stride_tricks.as_strided(few, (1 << 31,), (4,)))


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_more_rows_than_tiles_count_in_31_bits_are_refused_before_a_launch() -> None:
    few, count = np.zeros(64, np.float32), LARGEST_TILED + 1
    rows = np.lib.stride_tricks.as_strided(few, (count, 1), (4, 4), writeable=False)
    one = np.zeros((1, 1), np.float32)
    questions: tuple[dict[str, Any], ...] = ({}, {"direction": "backward", "gradients": ("w",)})
    for asked in questions:
        product = kernel("linear", shape=(4, 1), inner=1, without=("bias",), device="cpu", **asked)
        read = [t.name for t in product.problem.tensors if not t.is_written]
        with pytest.raises(UsageError, match=f"rows of a product are at most {LARGEST_TILED}"):
            product(**{name: one if name == "w" else rows for name in read})
