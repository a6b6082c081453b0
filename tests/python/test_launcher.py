"""The launcher in C: what it repeats, what it leaves to the Python path, and that it neither leaks nor crashes."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.errors import NormgenError, UsageError
from normgen.python import handle, kernels, repeat
from normgen.python.handle import Kernel
from normgen.schedule.schedule import Schedule, schedule_from
from tests.python.devices import NEEDS_COMPILER
from tests.python.launching import (
    HERE,
    INCLUDE,
    LAUNCHER,
    NEEDS_BUILD,
    REFUSED,
    WARNINGS,
    LauncherCpu,
    Tensor,
    aligned,
    compiled,
    loaded,
    use_stream,
)

pytestmark = [NEEDS_BUILD, NEEDS_COMPILER]
COLS = 64


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """(the launcher, the driver of the tests)."""
    folder = tmp_path_factory.mktemp("launcher")
    module = loaded(compiled(LAUNCHER, folder / "_launcher.so", f"-I{INCLUDE}"))
    return module, compiled([HERE / "driver.c"], folder / "libdriver.so")


@pytest.fixture
def device(libraries: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> LauncherCpu:
    launcher, driver = libraries
    monkeypatch.setattr(repeat, "_launcher", launcher)
    monkeypatch.setattr(repeat, "IS_BUILT", True)
    monkeypatch.setattr(repeat, "_admitted", {})
    made = LauncherCpu(driver)
    for module in (handle, kernels):
        monkeypatch.setattr(module, "executor_for", lambda _: made)
    use_stream(0)
    return made


@pytest.fixture
def norm(device: LauncherCpu) -> Kernel:
    assert device is not None
    return handle.kernel("layernorm", shape=(3, COLS), device="cpu")


def given(rows: int = 3, seed: int = 1, dtype: Any = np.float32) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    sizes = {"x": (rows, COLS), "weight": (COLS,), "bias": (COLS,)}
    return {name: aligned(draw.standard_normal(size).astype(dtype)) for name, size in sizes.items()}


def expected(arrays: dict[str, Tensor]) -> tuple[Any, Any, Any]:
    x, weight, bias = (arrays[name].values.astype(np.float64) for name in ("x", "weight", "bias"))
    mean, rstd = x.mean(-1), 1 / np.sqrt(x.var(-1) + 1e-5)
    return (x - mean[..., None]) * rstd[..., None] * weight + bias, mean, rstd


def check(results: Any, arrays: dict[str, Tensor]) -> None:
    for result, right in zip(results, expected(arrays), strict=True):
        np.testing.assert_allclose(result.values, right, atol=2e-5, rtol=2e-5)


def alone(kernel: Kernel, *inputs: Any, **named: Any) -> Any:
    """A call that the launcher must know."""
    checked, kernel.checked = kernel.checked, _never  # type: ignore[method-assign]
    try:
        return kernel(*inputs, **named)
    finally:
        kernel.checked = checked  # type: ignore[method-assign]


def _never(*_: Any) -> Any:
    raise AssertionError("the launcher does not know this call")


def poisoned(rows: int = 3) -> dict[str, Tensor]:
    return {
        "out": aligned(np.full((rows, COLS), np.nan, np.float32)),
        **{name: aligned(np.full(rows, np.nan, np.float32)) for name in ("mean", "rstd")},
    }


def test_it_builds_without_a_warning_as_c_and_as_cpp(libraries: tuple[Any, Path]) -> None:
    assert libraries[0].Launcher
    compiler = shutil.which("g++")
    if compiler is not None:
        command = [compiler, "-x", "c++", "-fsyntax-only", *WARNINGS, f"-I{INCLUDE}", *map(str, LAUNCHER)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "#define Py_LIMITED_API 0x030B0000" in LAUNCHER[0].with_name("launch.h").read_text()


def test_a_call_of_known_layouts_computes_on_the_arrays_it_is_given(norm: Kernel) -> None:
    for seed in (1, 2):
        arrays, outputs = given(seed=seed), poisoned()
        call = norm if seed == 1 else partial(alone, norm)
        results = call(*arrays.values(), **outputs)
        check(results, arrays)
        assert all(a is b for a, b in zip(results, outputs.values(), strict=True))


def test_a_call_of_known_layouts_makes_its_own_outputs(norm: Kernel) -> None:
    norm(**given())
    for seed in (2, 3):
        arrays = given(seed=seed)
        check(alone(norm, **arrays), arrays)


def test_statistics_may_be_left_out_and_are_none(norm: Kernel) -> None:
    norm(**given(), out=poisoned()["out"])
    arrays = given(seed=2)
    y, mean, rstd = alone(norm, arrays["x"], arrays["weight"], bias=arrays["bias"], out=poisoned()["out"], mean=None)
    np.testing.assert_allclose(y.values, expected(arrays)[0], atol=2e-5)
    assert (mean, rstd) == (None, None)


def test_scalars_are_those_of_the_call(norm: Kernel) -> None:
    arrays = given()
    norm(**arrays)
    for eps in (3.0, 1, 1e-5):
        y = alone(norm, **arrays, eps=eps)[0].values
        x = arrays["x"].values.astype(np.float64)
        normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        np.testing.assert_allclose(y, normed * arrays["weight"].values + arrays["bias"].values, atol=2e-5)
    check(alone(norm, **arrays), arrays)


def test_a_scalar_that_float32_does_not_hold_is_refused_though_the_call_is_known(norm: Kernel) -> None:
    arrays = given()
    norm(**arrays)
    for value in (1e39, -1e300, 10**300):
        with pytest.raises(UsageError, match="the scalar 'eps' is a number that float32 holds"):
            norm(**arrays, eps=value)
    alone(norm, **arrays, eps=float("inf"))


def test_a_label_that_is_no_whole_number_is_refused_though_the_call_is_known(device: LauncherCpu) -> None:
    assert device is not None
    loss = handle.kernel("cross_entropy", shape=(3, COLS), device="cpu")
    logits, labels = aligned(np.zeros((3, COLS), np.float32)), aligned(np.array([5, 1, 2]))
    loss(logits, labels)
    assert alone(loss, logits, labels, ignore_index=5, label_smoothing=0.25)[0].values[0] == 0
    assert alone(loss, logits, labels, ignore_index=2.0)[0].values[2] == 0
    for wrong in (0.5, float("nan"), float("inf"), True):
        with pytest.raises(UsageError, match="the scalar 'ignore_index' is a whole number"):
            loss(logits, labels, ignore_index=wrong)


def test_other_rows_layouts_and_streams_are_other_calls(norm: Kernel, device: LauncherCpu) -> None:
    norm(**given())
    wide = aligned(np.random.default_rng(4).standard_normal((3, 2 * COLS)).astype(np.float32))
    window = Tensor(wide.values[:, :COLS])
    for arrays in (
        given(rows=5),
        {**given(), "x": window},
        {**given(), "x": Tensor(given()["x"].values.reshape(3, 1, COLS))},
    ):
        with pytest.raises(AssertionError, match="does not know"):
            alone(norm, **arrays)
        norm(**arrays)
        again = {**arrays, "weight": given(seed=9)["weight"]}
        y = alone(norm, **again)[0]
        np.testing.assert_allclose(y.values.reshape(-1, COLS), expected(again)[0].reshape(-1, COLS), atol=2e-5)
    use_stream(7)
    norm(**given())
    alone(norm, **given())
    assert device.seen[-1][-1] == 7
    norm(**given(), stream=9)
    alone(norm, **given(), stream=9)
    assert device.seen[-1][-1] == 9


def test_a_layout_of_the_general_kernel_is_known_too(norm: Kernel) -> None:
    odd = np.empty(3 * COLS + 1, np.float32)
    arrays = {**given(), "x": Tensor(odd[1:].reshape(3, COLS))}
    arrays["x"].values[...] = given(seed=5)["x"].values
    check(norm(**arrays), arrays)
    assert norm._general is not None
    check(alone(norm, **arrays), arrays)


def test_an_output_over_another_array_is_refused_though_its_layout_is_known(norm: Kernel) -> None:
    arrays = given()
    norm(**arrays, **poisoned())
    with pytest.raises(NormgenError, match="must not share memory"):
        norm(**arrays, **{**poisoned(), "out": arrays["x"]})


BACKWARD = {"atomic": Schedule(columns="atomic"), "workspace": Schedule()}


def test_sums_over_rows_have_the_workspace_of_their_stream(device: LauncherCpu) -> None:
    grads = handle.kernel("rmsnorm", shape=(9, COLS), direction="backward", deterministic=True, device="cpu")
    assert grads.module.workspace_bytes(rows=9, sm_count=4)

    def arrays(rows: int, seed: int) -> tuple[Tensor, ...]:
        draw = np.random.default_rng(seed)
        made = {"dy": (rows, COLS), "x": (rows, COLS), "weight": (COLS,), "rstd": (rows,)}
        values = {name: draw.standard_normal(size).astype(np.float32) for name, size in made.items()}
        values["rstd"] = (1 / np.sqrt((values["x"] ** 2).mean(-1) + 1e-6)).astype(np.float32)
        names = [t.name for t in grads.problem.tensors if not t.is_written]
        return tuple(aligned(values[name]) for name in names)

    def right(inputs: tuple[Tensor, ...]) -> Any:
        names = [t.name for t in grads.problem.tensors if not t.is_written]
        found = {name: array.values.astype(np.float64) for name, array in zip(names, inputs, strict=True)}
        return (found["dy"] * found["x"] * found["rstd"][:, None]).sum(0)

    for stream, rows, seed in ((0, 9, 1), (5, 9, 2), (0, 33, 3)):
        use_stream(stream)
        grads(*arrays(rows, seed))
        again = arrays(rows, seed + 10)
        _, dweight = alone(grads, *again)
        np.testing.assert_allclose(dweight.values, right(again), atol=1e-4)
    use_stream(0)
    with pytest.raises(AssertionError, match="does not know"):  # the larger workspace took the place of its own
        alone(grads, *arrays(9, 4))
    assert grads._repeater is not None
    assert grads._repeater.is_serial
    device.captured = True
    use_stream(11)
    for _ in range(2):
        grads(*arrays(9, 6))
    device.captured = False
    with pytest.raises(AssertionError, match="does not know"):
        alone(grads, *arrays(9, 6))


def test_bands_of_rows_share_what_is_known(device: LauncherCpu) -> None:
    assert device is not None
    norm = handle.kernel("layernorm", shape=(-1, COLS), device="cpu")
    few, many = given(rows=2), given(rows=500)
    norm(**few)
    norm(**many)
    assert norm.kernel_for(500).schedule != norm.schedule  # type: ignore[attr-defined]
    for arrays in (few, many):
        again = {**arrays, "weight": given(seed=8)["weight"]}
        check(alone(norm, **again), again)


def test_a_launch_that_the_driver_refuses_raises_what_it_is(norm: Kernel, device: LauncherCpu) -> None:
    norm(**given())
    device.answer = REFUSED
    with pytest.raises(RuntimeError, match=f"kernel 0: {REFUSED}"):
        alone(norm, **given())


@pytest.mark.parametrize(
    "knobs",
    [
        {"cluster": 2, "threads_per_row": 32},
        {"dependent_launch": "end"},
        {"parts": 3, "persistent": 1, "threads_per_row": 32},
    ],
)
def test_clusters_early_starts_and_blocks_that_wait_for_each_other_reach_the_driver(
    knobs: dict[str, Any], device: LauncherCpu
) -> None:
    schedule = replace(Schedule(), **knobs)
    norm = handle.kernel("layernorm", shape=(3, 1024), device="cpu", schedule=schedule)
    draw = np.random.default_rng(3)
    arrays = [aligned(draw.standard_normal(size).astype(np.float32)) for size in ((3, 1024), 1024, 1024)]
    norm(*arrays)
    y = alone(norm, *arrays)[0]
    np.testing.assert_allclose(
        y.values, expected(dict(zip(("x", "weight", "bias"), arrays, strict=True)))[0], atol=2e-5
    )
    launch = norm.module.kernels[0].launch
    how = int(launch.dependent) | int(launch.cooperates) << 1
    assert device.seen[-1][1:5] == (launch.threads, launch.shared_bytes, launch.cluster, how)
    assert launch.cluster > 1 or how > 0


@pytest.mark.parametrize(
    ("op", "dtype", "kind", "columns"),
    [("linear", ml_dtypes.bfloat16, 1, 64), ("linear", ml_dtypes.bfloat16, 1, 96), ("linear_tf32", np.float32, 11, 64)],
)
def test_tensor_maps_are_encoded_of_the_arrays_of_each_call(
    device: LauncherCpu, op: str, dtype: type, kind: int, columns: int
) -> None:
    size = np.dtype(dtype).itemsize
    knobs = {"hold": "shared", "copy": "bulk", "fragment": "wgmma", "stages": 2, "vector": 16 // size}
    tiles = {"tile_m": 64, "tile_n": columns, "tile_k": 128 // size, "thread_m": 2, "thread_n": columns // 4}
    asked: dict[str, Any] = {"layout": {"w": "cols_inner"}, "without": ("bias",)}
    asked |= {"dtype": "bf16" if kind == 1 else "f32"}
    linear = handle.kernel(op, shape=(70, 72), inner=136, device="cpu", schedule=schedule_from(knobs | tiles), **asked)
    draw = np.random.default_rng(3)
    for number in range(3):
        x, w = (aligned(draw.standard_normal(size).astype(dtype)) for size in ((70, 136), (72, 136)))
        y = linear(x, w) if number == 0 else alone(linear, x, w)
        right = x.values.astype(np.float64) @ w.values.astype(np.float64).T
        np.testing.assert_allclose(y.values.astype(np.float64), right, atol=0.2, rtol=0.01)
        if number:
            pitch, line = size * 136, 128 // size
            assert device.maps["x"] == (x.data_ptr(), pitch, 136, 70, line, 64, kind)
            assert device.maps["w"] == (w.data_ptr(), pitch, 136, 72, line, columns, kind)
            if size == 2:  # of 16 bits, in boxes
                assert device.maps["y"] == (y.data_ptr(), 2 * 72, 72, 70, {64: 64, 96: 32}[columns], 64, kind)


def test_another_current_context_is_left_to_the_python_path(norm: Kernel, libraries: tuple[Any, Path]) -> None:
    import ctypes

    context = ctypes.c_void_p.in_dll(ctypes.CDLL(str(libraries[1])), "current_context")
    norm(**given())
    context.value, kept = 0xBAD, context.value
    try:
        with pytest.raises(AssertionError, match="does not know"):
            alone(norm, **given())
    finally:
        context.value = kept
    alone(norm, **given())


def _twin(array: Any) -> Any:
    """Memory of its own for an output of the same layout; what is no plain array stays."""
    plain = isinstance(array, Tensor) and array.get_device() < 0 and array.values.flags.c_contiguous
    return aligned(array.values) if plain else array


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return [None if array is None else array.values.copy() for array in call()]
    except (NormgenError, TypeError, ValueError) as error:
        return type(error), str(error)


def test_whatever_a_call_is_given_it_answers_as_the_python_path_does(norm: Kernel) -> None:
    """Argument fuzz: one handle that remembers, one that checks every call."""
    slow = Kernel(problem=norm.problem, schedule=norm.schedule, module=norm.module, device="cpu")
    slow._repeater = None
    draw = random.Random(7)
    junk: list[Callable[[], Any]] = [
        lambda: None,
        lambda: 3,
        lambda: "x",
        lambda: given(rows=draw.choice((1, 3, 4)))["x"],
        lambda: given()["weight"],
        lambda: given(dtype=np.float16)["x"],
        lambda: given(dtype=ml_dtypes.bfloat16)["weight"],
        lambda: Tensor(given()["x"].values, device=0),
        lambda: Tensor(given()["x"].values[:, ::-1]),
        lambda: Tensor(given()["x"].values[::2]),
        lambda: Tensor(np.zeros((2,) * 9, np.float32)),
        lambda: Tensor(np.zeros((0, COLS), np.float32)),
        lambda: Tensor(np.zeros((3, COLS), np.int32)),
        lambda: 1e-3,
    ]
    refused = known = 0
    for number in range(300):
        arrays: dict[str, Any] = {**given(seed=draw.randrange(3)), **(poisoned() if draw.random() < 0.5 else {})}
        for _ in range(draw.choice((0, 0, 1, 2))):
            arrays[draw.choice((*arrays, "eps", "out", "nothing"))] = draw.choice(junk)()
        cut = draw.randrange(4)
        inputs = [arrays.pop(name) for name in ("x", "weight", "bias")[:cut]]
        fresh = {name: _twin(array) if name in ("out", "mean", "rstd") else array for name, array in arrays.items()}
        want = _outcome(lambda inputs=inputs, fresh=fresh: slow(*inputs, **fresh))
        with_memory = _outcome(lambda inputs=inputs, arrays=arrays: norm(*inputs, **arrays))
        assert type(with_memory) is type(want), (number, with_memory, want)
        if isinstance(want, tuple):
            refused += 1
            assert with_memory[0] == want[0], number
            assert with_memory[1].split("0x")[0] == want[1].split("0x")[0], number
        else:
            known += 1
            for a, b in zip(with_memory, want, strict=True):
                np.testing.assert_array_equal(a, b)
    assert refused > 50
    assert known > 50


def test_calls_leave_no_reference_behind(norm: Kernel) -> None:
    arrays, outputs = given(), poisoned()
    norm(**arrays, **outputs)
    norm(**arrays)
    watched = [*arrays.values(), *outputs.values(), None, NotImplemented]
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(50):
        alone(norm, **arrays, **outputs)
        alone(norm, **arrays)
        assert norm._repeater is not None
        for wrong in ((), (1,), (arrays["x"],) * 4, (arrays["x"], arrays["weight"], None)):
            assert norm._repeater.call(wrong, {}, None) is NotImplemented
        assert norm._repeater.call(tuple(arrays.values()), {"eps": "1"}, None) is NotImplemented
        assert norm._repeater.call(tuple(arrays.values()), {"weight": arrays["x"]}, None) is NotImplemented
    after = [sys.getrefcount(one) for one in watched]
    assert max(b - a for a, b in zip(before, after, strict=True)) < 40  # of 50 calls


def test_many_layouts_are_forgotten_one_by_one_and_all_stay_right(norm: Kernel) -> None:
    assert norm._repeater is not None
    slots = len(norm._repeater._slots)
    arrays = given()
    norm(**arrays)
    bound = norm._bound
    cells, grids = bound.packed()  # type: ignore[attr-defined]
    extents = array("q", [8] * slots).tobytes()
    for stream in range(3000):  # each stream has a layout of its own
        outputs = (None,) * (slots - 3)
        assert norm._repeater._launcher.learn(
            tuple(arrays.values()), {}, stream + 1, outputs, outputs, 0, cells, grids, extents
        )
    norm(**arrays)
    check(alone(norm, **arrays), arrays)
    norm._repeater.forget()
    with pytest.raises(AssertionError, match="does not know"):
        alone(norm, **arrays)


def test_words_that_describe_no_call_are_refused(libraries: tuple[Any, Path]) -> None:
    module, driver = libraries
    draw = random.Random(3)
    names, eight = ("x", "y", "eps"), array("d", [1e-5]).tobytes()

    def made(
        inputs: int = 1,
        out: int = 1,
        results: tuple[int, ...] = (1,),
        labels: bytes = b"\0",
        library: str = str(driver),
    ) -> Any:
        slots = array("q", results).tobytes()
        return module.Launcher(names, inputs, out, b"\0\1", slots, eight, labels, 1, library, print)

    results = ({"results": (2,)}, {"results": (0,) * 40})
    for wrong in ({"inputs": 0}, {"inputs": 3}, {"out": 2}, {"out": -2}, *results, {"labels": b""}):
        with pytest.raises(ValueError, match="no room"):
            made(**wrong)
    with pytest.raises(OSError, match="no CUDA driver"):
        made(library="/nowhere/libcuda.so.1")
    launcher = made()
    for _ in range(300):
        words = array("q", [draw.choice((-3, -2, -1, 0, 1, 2, 5, 300, 2**62)) for _ in range(draw.randrange(20))])
        try:
            number = launcher.program(False, words.tobytes()[: draw.choice((None, -3))])
        except ValueError:
            continue
        with pytest.raises(ValueError, match="a learnt call has"):
            launcher.learn((), {}, None, None, None, number + 1, b"", b"", b"")
    with pytest.raises(TypeError):
        launcher.learn((), {}, None)
    assert launcher.call(3, {}, None) is NotImplemented
    assert launcher.call() is NotImplemented
    with pytest.raises(TypeError):
        module.admit(3, None)
    assert module.admit(int, None) is False


def test_tensors_of_torch_are_read_by_its_own_exchange_api(
    device: LauncherCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("torch is older than its exchange API (2.10)")

    def new_like(tensor: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        return tensor.new_empty(shape, dtype=getattr(torch, dtype.torch))

    monkeypatch.setattr(device, "new_like", new_like)
    norm = handle.kernel("layernorm", shape=(-1, COLS), device="cpu")
    weight = torch.nn.Parameter(torch.rand(COLS))
    for rows in (3, 5):
        for number in range(3):
            x, bias = torch.randn(rows, COLS), torch.randn(COLS)
            call = partial(alone, norm) if number else norm
            y, mean, rstd = call(x, weight, bias)
            right = torch.nn.functional.layer_norm(x.double(), (COLS,), weight.double(), bias.double())
            torch.testing.assert_close(y.double(), right, atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(mean, x.mean(-1), atol=2e-5, rtol=2e-5)
            assert rstd.shape == (rows,)
        norm(x, weight, bias, out=y)
        assert alone(norm, x, weight, bias, out=y)[0] is y
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert not repeat.is_readable(fake)


def test_without_the_launcher_every_call_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "IS_BUILT", False)
    assert repeat.repeater(None, out="", context=0, refused=print) is None  # type: ignore[arg-type]
