"""The callable handle on a real device, against numpy in float64."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.cuda.arrays import DeviceArray
from normgen.cuda.compiler import compile_module
from normgen.dtypes import DTYPES, F32
from normgen.errors import UsageError
from normgen.problem.problem import Problem, TensorUse
from normgen.python.handle import Kernel, kernel, unaligned
from normgen.schedule.schedule import Schedule
from normgen.spec.spec import Formula, Kind, Role, Spec, Tensor
from tests.cuda import modules

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
def scale() -> Kernel:
    from normgen.cuda.driver import device_facts

    module = modules.scale(COLS)
    cubin = compile_module(module, device_facts(0).arch)
    return Kernel(problem=_problem(), schedule=Schedule(vector=1), module=module, cubin=cubin)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(_cache(tmp_path_factory)))


def _cache(factory: pytest.TempPathFactory) -> Path:
    """One cache for the whole module, so that each kernel is compiled once."""
    return factory.getbasetemp() / "kernel-cache"


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(11).standard_normal(shape, dtype=np.float32)


@pytest.mark.gpu
def test_outputs_are_allocated_like_the_input_and_rows_are_free(scale: Kernel) -> None:
    for shape in ((8, COLS), (2, 3, COLS), (COLS,), (0, COLS), (1, COLS)):
        x = _random(*shape)
        y = scale(DeviceArray.of(x))
        assert y.shape == shape
        np.testing.assert_array_equal(y.numpy(), x * np.float32(2.5))


@pytest.mark.gpu
def test_scalars_are_given_by_name_and_do_not_stick(scale: Kernel) -> None:
    x = _random(4, COLS)
    array = DeviceArray.of(x)
    np.testing.assert_array_equal(scale(array, eps=-3.0).numpy(), x * np.float32(-3.0))
    np.testing.assert_array_equal(scale(array).numpy(), x * np.float32(2.5))


@pytest.mark.gpu
def test_a_given_output_is_written_and_returned(scale: Kernel) -> None:
    from normgen.cuda.stream import Stream

    x = _random(4, COLS)
    array, out = DeviceArray.of(x), DeviceArray((4, COLS), "f32")
    with Stream() as stream:
        assert scale(array, out=out, stream=stream) is out
        assert scale(x=array, y=out, stream=stream.handle) is out
        stream.synchronize()
    np.testing.assert_array_equal(out.numpy(), x * np.float32(2.5))


REFUSED = {
    "host array": ({"x": "host"}, "wrong device of 'x': expected GPU 0\n  received: the CPU"),
    "nothing": ({}, "scale takes x\n  received: no x"),
    "unknown name": ({"x": "good", "z": "good"}, "unknown name\n  received: z"),
    "other cols": ({"x": "narrow"}, "with cols = 96"),
    "other rows": ({"x": "good", "out": "long"}, "the same number of rows\n  received: x 4, y 5"),
    "in place": ({"x": "good", "out": "good"}, "must not share memory"),
    "other dtype": ({"x": "half"}, "expected f32\n  received: f16"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_before_a_launch(scale: Kernel, case: str) -> None:
    arrays: dict[str, Any] = {
        "host": _random(4, COLS),
        "good": DeviceArray.of(_random(4, COLS)),
        "long": DeviceArray((5, COLS), "f32"),
        "narrow": DeviceArray((4, COLS - 1), "f32"),
        "half": DeviceArray((4, COLS), "f16"),
    }
    names, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        scale(**{name: arrays[which] for name, which in names.items()})


@pytest.mark.gpu
def test_threads_that_share_a_handle_get_their_own_results(scale: Kernel) -> None:
    inputs = [np.full((16, COLS), float(i), np.float32) for i in range(8)]
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        array = DeviceArray.of(inputs[number])
        for _ in range(50):
            results[number] = scale(array)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in results.items():
        np.testing.assert_array_equal(result.numpy(), inputs[number] * np.float32(2.5))
    assert len(results) == 8


def _layernorm(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[Any, Any, Any]:
    x, w, b = (a.astype(np.float64) for a in (x, w, b))
    mean = x.mean(-1)
    rstd = 1 / np.sqrt(((x - mean[..., None]) ** 2).mean(-1) + 1e-5)
    return (x - mean[..., None]) * rstd[..., None] * w + b, mean, rstd


TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}  # |y| < 8 here: a few roundings of the stored format
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def _made(shape: tuple[int, ...], dtype: str) -> Kernel:
    with warnings.catch_warnings():  # a machine without records warns that it takes the default schedule
        warnings.filterwarnings("ignore", message="no record for")
        return kernel("layernorm", shape=shape, dtype=dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(4, 33, 768), (5, 123), (1, 1), (7, 1128)])
def test_layernorm_from_the_factory_agrees_with_float64(shape: tuple[int, ...], dtype: str) -> None:
    cols = shape[-1]
    x, w, b = (_random(*size).astype(NUMPY[dtype]) for size in (shape, (cols,), (cols,)))
    y, mean, rstd = _made(shape, dtype)(*map(DeviceArray.of, (x, w, b)))
    expected = _layernorm(x, w, b)
    np.testing.assert_allclose(y.numpy().astype(np.float64), expected[0], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    np.testing.assert_allclose(mean.numpy(), expected[1], atol=1e-5)
    np.testing.assert_allclose(rstd.numpy(), expected[2], rtol=1e-4)
    assert (mean.shape, rstd.shape) == (shape[:-1], shape[:-1])


@pytest.mark.gpu
def test_a_backward_handle_gives_all_gradients_and_can_be_called_with_other_rows() -> None:
    cols = 768
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no record for")
        backward = kernel("layernorm", shape=(64, cols), dtype="f32", direction="backward")
    for rows in (64, 1, 500):  # 500: more blocks than the workspace of the first call was made for
        dy, x, w = _random(rows, cols) + 0.5, _random(rows, cols)[::-1].copy(), _random(cols)
        _, mean, rstd = _layernorm(x, w, w)
        named = {"dy": dy, "x": x, "weight": w, "mean": mean.astype(np.float32), "rstd": rstd.astype(np.float32)}
        dx, dweight, dbias = backward(**{name: DeviceArray.of(array) for name, array in named.items()})
        normed = (x - mean[:, None]) * rstd[:, None]
        scaled = dy.astype(np.float64) * w
        inner = scaled - scaled.mean(-1, keepdims=True) - normed * (scaled * normed).mean(-1, keepdims=True)
        np.testing.assert_allclose(dx.numpy(), inner * rstd[:, None], atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(dweight.numpy(), (dy * normed).sum(0), atol=1e-3, rtol=1e-4)
        np.testing.assert_allclose(dbias.numpy(), dy.astype(np.float64).sum(0), atol=1e-3, rtol=1e-4)


class _Part:
    """A window into a device array: any offset, any row pitch, in elements."""

    def __init__(self, array: DeviceArray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        size, self.array, self.shape = array.dtype.bytes, array, shape
        self.dtype = array.dtype.numpy
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": array.dtype.numpy.str,
            "data": (array.buffer.pointer + offset * size, False),
            "strides": tuple(step * size for step in strides),
            "version": 3,
        }


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize(("offset", "pitch"), [(0, 800), (1, 768), (3, 771), (2, 1024)])
def test_any_offset_and_pitch_gives_the_same_result_by_a_general_kernel(dtype: str, offset: int, pitch: int) -> None:
    rows, cols = 9, 768
    flat = _random(offset + rows * pitch).astype(NUMPY[dtype])
    x = np.lib.stride_tricks.as_strided(flat[offset:], (rows, cols), (pitch * flat.itemsize, flat.itemsize))
    w, b = (_random(cols).astype(NUMPY[dtype]) for _ in range(2))
    part = _Part(DeviceArray.of(flat), offset, (rows, cols), (pitch, 1))
    y, mean, _rstd = _made((rows, cols), dtype)(part, DeviceArray.of(w), DeviceArray.of(b))
    expected = _layernorm(x, w, b)
    np.testing.assert_allclose(y.numpy().astype(np.float64), expected[0], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    np.testing.assert_allclose(mean.numpy(), expected[1], atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_parameter_at_an_odd_element_is_read_element_by_element(dtype: str) -> None:
    rows, cols = 5, 768
    x, padded, b = (_random(*size).astype(NUMPY[dtype]) for size in ((rows, cols), (cols + 1,), (cols,)))
    weight = _Part(DeviceArray.of(padded), 1, (cols,), (1,))
    y, _mean, _rstd = _made((rows, cols), dtype)(DeviceArray.of(x), weight, DeviceArray.of(b))
    expected, _, _ = _layernorm(x, padded[1:], b)
    np.testing.assert_allclose(y.numpy().astype(np.float64), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.gpu
def test_optional_statistics_that_are_not_given_are_not_written() -> None:
    x, w, b = _random(6, 768), _random(768), _random(768)
    arrays = [DeviceArray.of(a) for a in (x, w, b)]
    out, mean = DeviceArray((6, 768), "f32"), DeviceArray((6,), "f32")
    ln = _made((6, 768), "f32")
    assert ln(*arrays, out=out, mean=mean) == (out, mean, None)
    expected = _layernorm(x, w, b)
    np.testing.assert_allclose(out.numpy(), expected[0], atol=2e-5)
    np.testing.assert_allclose(mean.numpy(), expected[1], atol=1e-5)
    with pytest.raises(UsageError, match="received: no y"):
        ln(*arrays, mean=mean)


@pytest.mark.gpu
def test_torch_tensors_come_back_as_torch_tensors_on_torchs_stream() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    ln = _made((4, 33, 768), "bf16")
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
def test_a_call_can_be_captured_in_a_graph(scale: Kernel) -> None:
    from normgen.cuda.stream import Graph, Stream

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
