"""The callable handle, against numpy in float64."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.cuda.arrays import DeviceArray
from normgen.dtypes import F32, FLOATS
from normgen.errors import UsageError
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.python.handle import Kernel, kernel, unaligned
from normgen.schedule.schedule import Schedule
from normgen.spec.spec import Formula, Kind, Role, Spec, Tensor
from tests.cuda import modules
from tests.python.devices import Array, OnGpu, Place, nan

pytestmark = pytest.mark.filterwarnings("ignore:no record for")
COLS = 96
SPEC = Spec(
    name="scale",
    summary="y = x * eps",
    tensors=(Tensor(name="x", role=Role.INPUT), Tensor(name="y", role=Role.OUTPUT)),
    scalars=(("eps", 2.5),),
    formulas=(Formula(name="y", text="x * eps"),),
)


def test_the_functions_of_the_package_stay_functions_once_their_modules_are_imported() -> None:
    """Importing a submodule puts it into the package under its own name."""
    script = (
        "import normgen\n"
        "for name in normgen.__all__:\n"
        "    for _ in range(2):\n"
        "        found = getattr(normgen, name)\n"
        "        assert callable(found) and found.__name__ == name, (name, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _problem(rows: int = 8) -> Problem:
    tensors = (
        TensorUse(name="y", kind=Kind.ELEM, dtype=F32, is_written=True),
        TensorUse(name="x", kind=Kind.ELEM, dtype=F32, is_written=False),
    )
    return Problem(spec=SPEC, rows=rows, cols=COLS, tensors=tensors, pitch=COLS)


def test_the_general_problem_promises_nothing_about_where_rows_start() -> None:
    for cols in (COLS, 97, 1):
        problem = unaligned(replace(_problem(), cols=cols, pitch=cols))
        assert problem.pitch >= cols
        assert problem.pitch % 2 == 1
        assert all(problem.row_alignment(t) == t.dtype.bytes for t in problem.tensors)


@pytest.fixture
def scale(place: Place) -> Kernel:
    return Kernel(problem=_problem(), schedule=Schedule(vector=1), module=modules.scale(COLS), device=place.device)


def _random(*shape: int) -> Array:
    return np.random.default_rng(11).standard_normal(shape, dtype=np.float32)


def test_outputs_are_allocated_like_the_input_and_rows_are_free(scale: Kernel, place: Place) -> None:
    for shape in ((8, COLS), (2, 3, COLS), (COLS,), (0, COLS), (1, COLS)):
        x = _random(*shape)
        y = scale(place.array(x))
        assert y.shape == shape
        np.testing.assert_array_equal(place.values(y), x * np.float32(2.5))


def test_scalars_are_given_by_name_and_do_not_stick(scale: Kernel, place: Place) -> None:
    x = _random(4, COLS)
    array = place.array(x)
    np.testing.assert_array_equal(place.values(scale(array, eps=-3.0)), x * np.float32(-3.0))
    np.testing.assert_array_equal(place.values(scale(array)), x * np.float32(2.5))


def test_a_given_output_is_written_and_returned(scale: Kernel, place: Place) -> None:
    x = _random(4, COLS)
    array, out = place.array(x), place.array(nan(4, COLS))
    assert scale(array, out=out) is out
    np.testing.assert_array_equal(place.values(out), x * np.float32(2.5))
    assert scale(x=array, y=out, eps=2.0) is out
    np.testing.assert_array_equal(place.values(out), x * np.float32(2.0))


@pytest.mark.gpu
def test_a_stream_is_an_object_or_a_handle() -> None:
    from normgen.cuda.stream import Stream

    place, x = OnGpu(), _random(4, COLS)
    scale = Kernel(problem=_problem(), schedule=Schedule(vector=1), module=modules.scale(COLS))
    array, out = place.array(x), place.array(nan(4, COLS))
    with Stream() as stream:
        for given in (stream, stream.handle):
            scale(array, out=out, stream=given)
        stream.synchronize()
    np.testing.assert_array_equal(out.numpy(), x * np.float32(2.5))


REFUSED = {
    "other device": ({"x": "elsewhere"}, "wrong device of 'x': expected {name}\n  received: {other}\n  hint: move it"),
    "no array": ({"x": "list"}, "an array must be a torch tensor or a numpy array, .*\n  received: list"),
    "nothing": ({}, "scale takes x\n  received: no x"),
    "unknown name": ({"x": "good", "z": "good"}, "unknown name\n  received: z"),
    "twice": ({"x": "good", "out": "out", "y": "out"}, "given once\n  received: 'y' twice"),
    "other cols": ({"x": "narrow"}, "with cols = 96"),
    "other rows": ({"x": "good", "out": "long"}, "the same number of rows\n  received: x 4, y 5"),
    "in place": ({"x": "good", "out": "good"}, "must not share memory .*\n  received: 'y' and 'x' at one address"),
    "other dtype": ({"x": "half"}, "expected f32\n  received: f16"),
    "foreign dtype": ({"x": "double"}, "expected f32\n  received: float64"),
    "read-only output": ({"x": "good", "out": "frozen"}, "wrong access of 'y': expected a writable array"),
    "columns apart": ({"x": "apart"}, "wrong stride of 'x': expected contiguous columns"),
    "rows at two distances": ({"x": "uneven"}, "wrong stride of 'x': expected rows at one distance"),
    "half an element": ({"x": "odd"}, "wrong address of 'x': expected a multiple of 4 bytes"),
    "another pitch": ({"x": "good", "out": "wide"}, "covers the layout it was made for\n  received: y has pitch 128"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_before_a_launch(scale: Kernel, place: Place, case: str) -> None:
    x, raw = _random(4, COLS), _random(5 * COLS).view(np.uint8)
    good, out = place.array(x), place.array(nan(4, COLS))
    arrays: dict[str, Any] = {
        "elsewhere": place.elsewhere(x),
        "list": x.tolist(),
        "good": good,
        "out": out,
        "long": place.array(nan(5, COLS)),
        "narrow": place.array(x[:, 1:]),
        "half": place.array(x.astype(np.float16)),
        "double": place.window(x.astype(np.float64), 0, x.shape, (COLS, 1)),
        "frozen": place.frozen(out),
        "apart": place.window(_random(8 * COLS), 0, x.shape, (2 * COLS, 2)),
        "uneven": place.window(_random(8 * COLS), 0, (2, 2, COLS), (3 * COLS, COLS, 1)),
        "odd": place.window(raw, 1, x.shape, (COLS, 1), dtype=np.float32),
        "wide": place.window(_random(512), 0, x.shape, (128, 1)),
    }
    scale(good)  # what one call has checked says nothing of another
    scale(good, out=place.array(nan(4, COLS)))
    names, message = REFUSED[case]
    with pytest.raises(UsageError, match=message.format(name=place.name, other=place.other)):
        scale(**{name: arrays[which] for name, which in names.items()})
    np.testing.assert_array_equal(place.values(good), x)
    assert np.isnan(place.values(out)).all()


def test_more_arrays_than_inputs_are_refused(scale: Kernel, place: Place) -> None:
    array = place.array(_random(4, COLS))
    with pytest.raises(UsageError, match="scale takes x\n  received: 2 arrays"):
        scale(array, array)


def test_threads_that_share_a_handle_get_their_own_results(scale: Kernel, place: Place) -> None:
    inputs = [np.full((4 + i, COLS), float(i), np.float32) for i in range(8)]
    wrong: list[tuple[int, Any]] = []

    def work(number: int) -> None:
        array, factor = place.array(inputs[number]), float(number + 1)
        for _ in range(50):
            found = place.values(scale(array, eps=factor))
            if not np.array_equal(found, inputs[number] * np.float32(factor)):
                wrong.append((number, found))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns between any two arguments
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def _layernorm(x: Array, w: Array, b: Array) -> tuple[Any, Any, Any]:
    x, w, b = (a.astype(np.float64) for a in (x, w, b))
    mean = x.mean(-1)
    rstd = 1 / np.sqrt(((x - mean[..., None]) ** 2).mean(-1) + 1e-5)
    return (x - mean[..., None]) * rstd[..., None] * w + b, mean, rstd


TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}  # |y| < 8 here: a few roundings of the stored format
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def _made(place: Place, shape: tuple[int, ...], dtype: str) -> Kernel:
    return kernel("layernorm", shape=shape, dtype=dtype, device=place.device)


def _close(place: Place, results: Any, expected: tuple[Any, Any, Any], dtype: str) -> None:
    y, mean, rstd = (place.values(array).astype(np.float64) for array in results)
    np.testing.assert_allclose(y, expected[0], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    np.testing.assert_allclose(mean, expected[1], atol=1e-5)
    np.testing.assert_allclose(rstd, expected[2], rtol=1e-4)


@pytest.mark.parametrize("dtype", sorted(d.name for d in FLOATS))
@pytest.mark.parametrize("shape", [(4, 33, 768), (5, 123), (1, 1), (7, 1128)])
def test_layernorm_from_the_factory_agrees_with_float64(shape: tuple[int, ...], dtype: str, place: Place) -> None:
    cols = shape[-1]
    x, w, b = (_random(*size).astype(NUMPY[dtype]) for size in (shape, (cols,), (cols,)))
    results = _made(place, shape, dtype)(*map(place.array, (x, w, b)))
    _close(place, results, _layernorm(x, w, b), dtype)
    assert [array.shape for array in results] == [shape, shape[:-1], shape[:-1]]


def test_a_backward_handle_gives_all_gradients_and_can_be_called_with_other_rows(place: Place) -> None:
    cols = 768
    backward = kernel("layernorm", shape=(64, cols), dtype="f32", direction="backward", device=place.device)
    for rows in (64, 1, 500):  # 500: more blocks than the workspace of the first call was made for
        dy, x, w = _random(rows, cols) + 0.5, _random(rows, cols)[::-1].copy(), _random(cols)
        _, mean, rstd = _layernorm(x, w, w)
        named = {"dy": dy, "x": x, "weight": w, "mean": mean.astype(np.float32), "rstd": rstd.astype(np.float32)}
        given = {name: place.array(array) for name, array in named.items()}
        dx, dweight, dbias = map(place.values, backward(**given))
        normed = (x - mean[:, None]) * rstd[:, None]
        scaled = dy.astype(np.float64) * w
        inner = scaled - scaled.mean(-1, keepdims=True) - normed * (scaled * normed).mean(-1, keepdims=True)
        np.testing.assert_allclose(dx, inner * rstd[:, None], atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(dweight, (dy * normed).sum(0), atol=1e-3, rtol=1e-4)
        np.testing.assert_allclose(dbias, dy.astype(np.float64).sum(0), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", sorted(d.name for d in FLOATS))
@pytest.mark.parametrize(("offset", "pitch"), [(0, 800), (1, 768), (3, 771), (2, 1024)])
def test_any_offset_and_pitch_gives_the_same_result_by_a_general_kernel(
    dtype: str, offset: int, pitch: int, place: Place
) -> None:
    rows, cols = 9, 768
    flat = _random(offset + rows * pitch).astype(NUMPY[dtype])
    x = np.lib.stride_tricks.as_strided(flat[offset:], (rows, cols), (pitch * flat.itemsize, flat.itemsize))
    w, b = (_random(cols).astype(NUMPY[dtype]) for _ in range(2))
    part = place.window(flat, offset, (rows, cols), (pitch, 1))
    results = _made(place, (rows, cols), dtype)(part, place.array(w), place.array(b))
    _close(place, results, _layernorm(x, w, b), dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_parameter_at_an_odd_element_is_read_element_by_element(dtype: str, place: Place) -> None:
    rows, cols = 5, 768
    x, padded, b = (_random(*size).astype(NUMPY[dtype]) for size in ((rows, cols), (cols + 1,), (cols,)))
    weight = place.window(padded, 1, (cols,), (1,))
    results = _made(place, (rows, cols), dtype)(place.array(x), weight, place.array(b))
    _close(place, results, _layernorm(x, padded[1:], b), dtype)


def test_optional_statistics_that_are_not_given_are_not_written(place: Place) -> None:
    x, w, b = _random(6, 768), _random(768), _random(768)
    arrays = [place.array(a) for a in (x, w, b)]
    out, mean, rstd = place.array(nan(6, 768)), place.array(nan(6)), place.array(nan(6))
    ln = _made(place, (6, 768), "f32")
    ln(*arrays, out=out, mean=mean, rstd=rstd)  # a pointer of this call must not stick
    before = place.values(rstd).copy()
    found = ln(*(place.array(-a) for a in (2 * x, w, b)), out=out, mean=mean)
    assert found[0] is out
    assert found[1] is mean
    assert found[2] is None
    expected = _layernorm(-2 * x, -w, -b)
    np.testing.assert_allclose(place.values(out), expected[0], atol=2e-5)
    np.testing.assert_allclose(place.values(mean), expected[1], atol=1e-5)
    np.testing.assert_array_equal(place.values(rstd), before)
    with pytest.raises(UsageError, match="received: no y"):
        ln(*arrays, mean=mean)


@pytest.mark.gpu
def test_torch_tensors_come_back_as_torch_tensors_on_torchs_stream() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    ln = _made(OnGpu(), (4, 33, 768), "bf16")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x, w, b = (torch.randn(*size, device="cuda", dtype=torch.bfloat16) for size in ((4, 33, 768), (768,), (768,)))
        y, mean, rstd = ln(x, w, b)
        reference = torch.nn.functional.layer_norm(x.double(), (768,), w.double(), b.double())
        worst = ((y.double() - reference).abs() / (1 + reference.abs())).max().item()
    assert (y.dtype, mean.dtype, rstd.shape) == (torch.bfloat16, torch.float32, (4, 33))
    assert worst < 0.008  # two roundings to bfloat16, 2^-8 each
    with pytest.raises(UsageError, match="wrong dtype of 'x': expected bf16"):
        ln(x.float(), w, b)
    with pytest.raises(UsageError, match="wrong device of 'x'"):
        ln(x.cpu(), w, b)


@pytest.mark.gpu
def test_a_call_can_be_captured_in_a_graph() -> None:
    from normgen.cuda.stream import Graph, Stream

    scale = Kernel(problem=_problem(), schedule=Schedule(vector=1), module=modules.scale(COLS))
    x, out = _random(4, COLS), DeviceArray((4, COLS), "f32")
    array = DeviceArray.of(x)
    out.buffer.fill(0)
    with Stream() as stream:
        graph = Graph.capture(stream, lambda: scale(array, out=out, stream=stream))
        stream.synchronize()
        assert not out.numpy().any()
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(out.numpy(), x * np.float32(2.5))
