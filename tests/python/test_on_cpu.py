"""What a handle on the CPU does otherwise than one on a GPU: no streams, no records, faults instead of crashes."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.codegen.module import Workspace
from normgen.cuda import dlpack
from normgen.dtypes import F32
from normgen.errors import FaultError, NoCompilerError, UsageError
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.python.handle import Kernel
from normgen.schedule.schedule import Schedule
from normgen.spec.spec import Formula, Kind, Role, Spec, Tensor
from tests.cpu import cases
from tests.python.devices import NEEDS_COMPILER, Array, OnCpu, nan

pytestmark = NEEDS_COMPILER
COLS = 32
PLACE = OnCpu()

# Each row gets its number in the order of arrival, and the last one zeroes the count. A row whose first value is not 0
# reads as far beside itself, and leaves the count as it is.
ARRIVALS = cases.module(
    """
extern "C" __global__ void __launch_bounds__(32) arrivals(
    float* __restrict__ y, const float* __restrict__ x, unsigned* __restrict__ count, int rows, int cols) {
  const int row = blockIdx.x;
  const long long beside = static_cast<long long>(x[row * cols]);
  const unsigned number = threadIdx.x == 0 ? atomicAdd(count, 1u) : 0;
  __threadfence();
  if (threadIdx.x == 0 && number + 1 == rows && beside == 0) *count = 0;
  y[row * cols + threadIdx.x] = number + (beside > 0 ? x[row * cols + beside] : 0.0f);  // HERE
}
""",
    cases.kernel(
        "arrivals",
        [
            cases.pointer("y", "float*"),
            cases.pointer("x", "const float*"),
            cases.workspace("count", "unsigned*"),
            cases.ROWS,
            cases.COLS,
        ],
        threads=32,
    ),
    workspace=Workspace(fixed=16),
)
SPEC = Spec(
    name="arrivals",
    summary="",
    tensors=(Tensor(name="x", role=Role.INPUT), Tensor(name="y", role=Role.OUTPUT)),
    formulas=(Formula(name="y", text="x"),),
)


@pytest.fixture
def arrivals() -> Kernel:
    tensors = (
        TensorUse(name="y", kind=Kind.ELEM, dtype=F32, is_written=True),
        TensorUse(name="x", kind=Kind.ELEM, dtype=F32, is_written=False),
    )
    problem = Problem(spec=SPEC, rows=4, cols=COLS, tensors=tensors, pitch=COLS)
    return Kernel(problem=problem, schedule=Schedule(vector=1), module=ARRIVALS, device="cpu")


def rows(count: int, beside: int = 0) -> Array:
    """Zeros; the last row reads `beside` elements from its start."""
    made = np.zeros((count, COLS), np.float32)
    made[-1, 0] = beside
    return made


def test_a_fault_is_an_error_with_its_line_and_what_was_written_stays(arrivals: Kernel) -> None:
    out = nan(3, COLS)
    with pytest.raises(FaultError, match="a kernel must keep to its tensors") as caught:
        arrivals(rows(3, beside=1 << 20), out=out)
    (fault,) = caught.value.faults
    assert [fault.line] == cases.lines_of(ARRIVALS.text, "HERE")
    assert str(fault) in str(caught.value)
    assert "out_of_bounds" in str(caught.value)
    assert caught.value.exit_code == 4
    np.testing.assert_array_equal(out[:2, 0], [0, 1])


def test_a_call_after_a_fault_finds_the_workspace_as_the_first_one_did(arrivals: Kernel) -> None:
    with pytest.raises(FaultError):
        arrivals(rows(2, beside=1 << 20))
    assert sorted(arrivals(rows(2))[:, 0]) == [0, 1]


def test_each_call_takes_blocks_in_another_order_and_every_handle_the_same_ones() -> None:
    """A kernel that is right in one order only is found; a failure can be repeated."""

    def orders(handle: Kernel) -> list[tuple[float, ...]]:
        return [tuple(handle(rows(8))[:, 0]) for _ in range(6)]

    found = orders(_arrivals())
    assert found[0] == tuple(range(8))
    assert len(set(found)) > 3
    assert orders(_arrivals()) == found


def _arrivals() -> Kernel:
    return arrivals.__wrapped__()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("stream", [0, 7, object()])
def test_a_stream_is_refused(stream: object, arrivals: Kernel) -> None:
    with pytest.raises(UsageError, match="has no streams: a call is done when it returns\n  received: stream="):
        arrivals(rows(2), stream=stream)


def test_machine_code_is_refused(arrivals: Kernel) -> None:
    cubin: Any = object()
    with pytest.raises(UsageError, match="runs the module's text\n  received: a cubin"):
        Kernel(problem=arrivals.problem, schedule=Schedule(vector=1), module=ARRIVALS, cubin=cubin, device="cpu")


@pytest.mark.parametrize("device", ["gpu", "h200", 1.0, None])
def test_a_device_is_a_number_or_cpu(device: Any) -> None:
    with pytest.raises(UsageError, match="a device is the number of a GPU, or 'cpu'"):
        normgen.kernel("layernorm", shape=(4, COLS), device=device)


def test_without_a_compiler_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoCompilerError, match="needs a C\\+\\+17 compiler"):
        normgen.kernel("layernorm", shape=(4, COLS), device="cpu")


def test_a_handle_says_where_it_runs_and_takes_the_default_schedule_without_a_warning() -> None:
    """Warnings are errors here; a GPU without a record warns."""
    handle = normgen.kernel("layernorm", shape=(4, COLS), device="cpu")
    assert " on the CPU: " in repr(handle)
    assert repr(handle).endswith("(default schedule for NVIDIA H200: records are for GPUs)>")
    given = normgen.kernel("layernorm", shape=(4, COLS), device="cpu", schedule=handle.schedule)
    assert repr(given).endswith("(given by the caller)>")


def test_outputs_are_aligned_as_device_memory_and_hold_nan_before_they_are_written() -> None:
    handle = normgen.kernel("layernorm", shape=(4, COLS), dtype="bf16", device="cpu")
    for count in (1, 3):
        made = handle._executor.new_like(None, (count, 3), handle.problem.tensors[0].dtype)
        assert made.ctypes.data % 256 == 0
        assert np.isnan(made.astype(np.float32)).all()
    assert handle._executor.new_workspace(40, 16, 0).array.tolist() == [0] * 16 + [255] * 24  # type: ignore[attr-defined]


def test_empty_parts_of_one_array_share_no_memory() -> None:
    """numpy lets all of them start where the whole does."""
    norm = normgen.kernel("layernorm", shape=(4, COLS), device="cpu")
    whole, parameter = nan(4, COLS), np.ones(COLS, np.float32)
    empty = whole[2:2]
    assert norm(whole[:0], parameter, parameter, out=empty)[0] is empty


class _Lender:
    """A producer whose memory lives as long as the capsule, and is overwritten when that is gone."""

    def __init__(self, values: Array) -> None:
        self.values, self.alive = values, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(self, **_: object) -> Any:
        memory = PLACE.array(self.values)
        owner = _Owner()
        weakref.finalize(owner, self._take_back, memory)
        self.alive += 1
        pointer, shape = memory.ctypes.data, memory.shape
        return dlpack.export(
            pointer=pointer, shape=shape, dtype="f32", device_type=dlpack.CPU, device_id=0, owner=owner
        )

    def _take_back(self, memory: Array) -> None:
        memory.fill(np.nan)
        self.alive -= 1


class _Owner:
    pass


def test_memory_that_an_array_lends_for_a_call_is_kept_for_that_call_and_no_longer() -> None:
    norm = normgen.kernel("rmsnorm", shape=(4, COLS), present=["weight"], device="cpu")
    x, weight = (np.random.default_rng(3).standard_normal(s, dtype=np.float32) for s in ((4, COLS), (COLS,)))
    lent = _Lender(x)
    for _ in range(3):
        found = norm(lent, weight, out=nan(4, COLS))
        y = found[0] if isinstance(found, tuple) else found
        np.testing.assert_allclose(y, x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * weight, rtol=1e-4)
        assert lent.alive == 0


@pytest.mark.parametrize("op", ["rmsnorm", "layernorm", "add_rmsnorm", "softmax"])
@pytest.mark.parametrize("sizes", [(3, 0), (2, 0, 3), (2, 3, 0), (0, 3), (0,)])
def test_rows_of_which_there_are_none_are_rows_whichever_size_is_0(op: str, sizes: tuple[int, ...]) -> None:
    norm = normgen.kernel(op, shape=(8, COLS), device="cpu")
    reads = [t for t in norm.problem.tensors if not t.is_written]
    given = [np.zeros((*sizes, COLS) if t.kind.is_elem else (COLS,), np.float32) for t in reads]
    made = norm(*given)
    for tensor, array in zip(norm.problem.passed_tensors, made if isinstance(made, tuple) else (made,), strict=False):
        assert array.shape == ((*sizes, COLS) if tensor.kind.is_elem else sizes)
    again = dict(zip(norm.problem.results, made if isinstance(made, tuple) else (made,), strict=True))
    norm(*given, **again)  # what it made itself, it takes


def test_labels_of_no_rows_are_contiguous() -> None:
    loss = normgen.kernel("cross_entropy", shape=(8, COLS), device="cpu")
    logits, labels = np.zeros((3, 0, COLS), np.float32), np.zeros((3, 0), np.int64)
    found = loss(logits, labels)
    assert (found[0] if isinstance(found, tuple) else found).shape == (3, 0)


@pytest.mark.parametrize("value", ["a", "1e-5", b"1", None, 10**400, 1e39, [1.0], {}, Ellipsis], ids=repr)
def test_a_scalar_that_is_no_number_of_float32_is_refused_by_name(value: object) -> None:
    norm = normgen.kernel("rmsnorm", shape=(8, COLS), device="cpu", without=("weight",))
    x = np.ones((8, COLS), np.float32)
    with pytest.raises(UsageError, match="the scalar 'eps' is a number that float32 holds"):
        norm(x, eps=value)
    for right in (1, 0.5, np.float64(0.5), np.array(0.5, np.float32), float("inf")):
        norm(x, eps=right)


@pytest.mark.parametrize("value", [2**24 + 1, -(2**24) - 1, 16777217.0, 2**53 + 1, np.int64(2**31 - 1)], ids=repr)
def test_a_scalar_that_labels_are_compared_with_is_not_rounded_to_another_label(value: object) -> None:
    loss = normgen.kernel("cross_entropy", shape=(2, COLS), device="cpu", without=("lse",))
    logits = np.zeros((2, COLS), np.float32)
    with pytest.raises(UsageError, match="'ignore_index' is compared with whole numbers, and is one"):
        loss(logits, np.array([2**24, 1]), ignore_index=value)
    for right in (2**24, -100, 1.0, 2**31, np.int64(3)):
        assert loss(logits, np.array([int(right), 2]), ignore_index=right)[0] == 0
    for wrong in (0.1, float("nan"), float("inf"), True):
        with pytest.raises(UsageError, match="'ignore_index' is a whole number"):
            loss(logits, np.array([1, 2]), ignore_index=wrong)
    loss(logits, np.array([1, 2]), label_smoothing=16777217.0)  # no label is compared with it


@pytest.mark.parametrize("taken", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_handle_is_not_pickled_and_says_what_to_pass_on(taken: Callable[[object], object]) -> None:
    for shape in ((8, COLS), (-1, COLS)):
        with pytest.raises(UsageError, match=r"a handle stays in its process.*\n.*\n.*arguments of `normgen\.kernel`"):
            taken(normgen.kernel("softmax", shape=shape, device="cpu"))


def test_a_layout_is_refused_before_its_outputs_are_allocated() -> None:
    norm = normgen.kernel("softmax", shape=(8, COLS), device="cpu")
    far = np.broadcast_to(np.zeros(COLS, np.float32), (2**31 + 8, COLS))  # its output would take 275 GB
    with pytest.raises(UsageError, match="wrong stride of 'x'"):
        norm(far)


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"in_place": "y=x"}, "in_place is a mapping of a tensor's name"),
        ({"layout": "column_major"}, "layout is a mapping of a tensor's name"),
        ({"dtypes": "float16"}, "dtypes is a mapping of a tensor's name"),
        ({"schedule": "plain"}, "a schedule is a Schedule"),
        ({"without": "bais"}, "no such tensor\n  received: bais"),
        (
            {"direction": "backward", "gradients": "wieght"},
            "by the inputs and parameters that are there\n  received: wieght",
        ),
    ],
)
def test_an_argument_of_another_kind_is_refused(wrong: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule) as caught:
        normgen.kernel("layernorm", shape=(3, 32), device="cpu", **wrong)
    assert caught.value.hint


def test_a_text_is_one_name_of_a_tensor() -> None:
    assert normgen.kernel("layernorm", shape=(3, 32), device="cpu", without="bias").problem.absent == ("bias",)
