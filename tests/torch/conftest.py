"""Tests of the operators run on the CPU, where the formulas stand in, and on a GPU, where the kernels run."""

from __future__ import annotations

from pathlib import Path

import pytest


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
