"""Tests of the operators run on the CPU, where the formulas stand in, and on a GPU, where the kernels run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

# By itself JAX takes three quarters of a GPU, and one that finds none left waits 10 s at every allocation: processes of
# the tests, and those that they start, share it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:no record for"))  # of these shapes


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Any:
    """A device of JAX, the default of the test."""
    import jax

    try:
        found = jax.devices(request.param)[0]
    except RuntimeError as error:
        pytest.skip(f"jax has no {request.param}: {error}")
    with jax.default_device(found):
        yield found
