"""Handles given tensors whose elements lie nowhere: on the meta device, fake, sparse, wrapped by a transform."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.measure.cpu_check import has_compiler  # noqa: E402

SAID = r"elements lie nowhere\n  received: a {} \[8, 16\] on {}\n  hint: give it a dense tensor"


def handle() -> Any:
    if not has_compiler():
        pytest.skip("no C++ compiler builds the executor")
    return normgen.kernel("softmax", shape=(8, 16), device="cpu")


def test_a_tensor_on_the_meta_device_is_refused_before_a_launch() -> None:
    with pytest.raises(UsageError, match=SAID.format("strided Tensor", "meta")):
        handle()(torch.empty(8, 16, device="meta"))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_fake_tensor_is_refused_before_a_launch() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(8, 16)
    with pytest.raises(UsageError, match=SAID.format("strided FakeTensor", "cpu")):
        handle()(fake)


def test_a_sparse_tensor_is_refused_with_its_layout() -> None:
    with pytest.raises(UsageError, match=SAID.format("sparse_coo Tensor", "cpu")):
        handle()(torch.zeros(8, 16).to_sparse())


def test_a_tensor_within_a_transform_is_refused() -> None:
    kernel = handle()
    with pytest.raises(UsageError, match=SAID.format("strided Tensor", "cpu")):
        torch.func.vmap(kernel)(torch.zeros(2, 8, 16))


def test_a_tensor_without_elements_needs_no_memory() -> None:
    assert handle()(torch.empty(0, 16)).shape == (0, 16)
