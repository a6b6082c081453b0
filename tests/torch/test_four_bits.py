"""Outputs of four bits as operators of torch: bytes of two codes, by torch's own operations and by kernels alike."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen  # noqa: E402
import normgen.torch as ng  # noqa: E402
from normgen.dtypes import F4E2M1  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.traced.torch_formulas import TorchArithmetic  # noqa: E402
from tests.presets.fp4 import NUMBERS, codes, two_a_byte  # noqa: E402


def rows(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(3, 7, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0, :16] = 0
    return x


@pytest.mark.parametrize("op", ["vllm_quantize_to_mxfp4", "quantize_to_nvfp4", "flashinfer_quantize_to_nvfp4"])
def test_an_operator_returns_the_bytes_of_the_kernel(op: str) -> None:
    x, given = rows(), (torch.tensor([384.0]),) if op.endswith("nvfp4") else ()
    results = dict(zip(("q", "scale"), ng.operator(op, returns=("q", "scale"))(x, *given), strict=True))
    kernel = normgen.kernel(op, shape=64, dtype="f32", device="cpu")
    q, scale = kernel(x.numpy(), *(g.numpy() for g in given))
    assert (results["q"].dtype, results["q"].shape) == (torch.uint8, (3, 7, 32))
    np.testing.assert_array_equal(results["q"].numpy(), q)
    np.testing.assert_array_equal(results["scale"].view(torch.uint8).numpy(), scale.view(np.uint8))


def test_a_compiled_operator_knows_the_shape_of_the_bytes() -> None:
    compiled = torch.compile(ng.operator("quantize_to_mxfp4", returns=("q",)), backend="eager", fullgraph=True)
    x = rows(torch.bfloat16)
    assert torch.equal(compiled(x), ng.operator("quantize_to_mxfp4", returns=("q",))(x))


def test_torch_stores_and_casts_by_the_nearest_code() -> None:
    x = (4 * torch.randn(100, 64, generator=torch.Generator().manual_seed(1))).numpy()
    x[0, :7] = np.nan, np.inf, -np.inf, 5, 2.5, -0.25, -1e-30
    do = TorchArithmetic(dtype=torch.float32, cols=64, device=torch.device("cpu"))
    np.testing.assert_array_equal(do.stored(torch.from_numpy(x), F4E2M1).numpy(), two_a_byte(x))
    cast = do.cast(torch.from_numpy(x), F4E2M1).numpy()
    np.testing.assert_array_equal(cast.view(np.uint32), NUMBERS[codes(x)].view(np.uint32))


WHOLE = """
name = "codes"
[tensors]
x = "input"
q = { role = "output", dtypes = ["f4e2m1"] }
[formulas]
q = "2 * x"
"""


def test_an_operator_without_groups_takes_every_even_number_of_columns() -> None:
    codes_of = ng.operator(WHOLE)
    for cols in (2, 6, 34):
        x = torch.randn(5, cols, generator=torch.Generator().manual_seed(cols))
        np.testing.assert_array_equal(codes_of(x).numpy(), two_a_byte(2 * x.numpy()))
    with pytest.raises(UsageError, match="takes cols that are a multiple of 2"):
        codes_of(torch.zeros(5, 7))


def test_an_optional_output_of_codes_alone_needs_even_columns() -> None:
    extra = 'y = "output"\nq = { role = "output", dtypes = ["f4e2m1"], optional = true }'
    text = WHOLE.replace('q = { role = "output", dtypes = ["f4e2m1"] }', extra) + 'y = "x + 1"\n'
    x = torch.ones(5, 7)
    assert torch.equal(ng.operator(text)(x), x + 1)
    with pytest.raises(UsageError, match="two f4e2m1 share a byte"):
        ng.operator(text, returns=("y", "q"))(x)
