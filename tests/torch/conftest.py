"""Tests of the operators run on the CPU, where the formulas stand in, and on a GPU, where the kernels run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normgen.dtypes import DType
from normgen.measure.cpu_check import has_compiler
from normgen.operators import launch
from normgen.python.cpu import Cpu
from normgen.python.handle import kernel as make
from normgen.python.remembered import Remembered


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:no record for"))  # of these shapes
            # torch's own: of its compiler as it is imported, of its rms_norm under autocast, of one release of Python.
            item.add_marker(pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Kernels run on the CPU executor, and none is remembered before or behind; the handles that were made."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from normgen.torch import calls
    from normgen.torch.tracing import fusing

    if not has_compiler():
        pytest.skip("no C++ compiler builds the executor")
    found: list[Any] = []

    def on_cpu(*args: Any, **named: Any) -> Any:
        found.append(make(*args, **{**named, "device": "cpu"}))
        return found[-1]

    def new_like(_: Any, array: Any, shape: tuple[int, ...], dtype: DType, strides: Any = None) -> Any:
        assert strides is None
        return array.new_empty(shape, dtype=getattr(torch, dtype.torch))

    monkeypatch.setattr(Cpu, "new_like", new_like)
    monkeypatch.setattr(launch, "kernel", on_cpu)
    monkeypatch.setattr(calls, "takes_a_kernel", lambda _, here: all(t.dtype != torch.float64 for t in here))
    monkeypatch.setattr(fusing, "takes_a_kernel", lambda here: all(t.dtype != torch.float64 for t in here))
    _forget()
    yield found
    _forget()


def _forget() -> None:
    gc.unfreeze()  # torch's compiler freezes what there is
    for one in gc.get_objects():
        if type(one) is Remembered:
            one.clear()
