"""Outputs of four bits as operators of JAX: bytes of two codes, compiled by XLA or not."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

import normgen  # noqa: E402
import normgen.jax as nj  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from tests.presets.fp4 import two_a_byte  # noqa: E402


@pytest.mark.parametrize("op", ["vllm_quantize_to_mxfp4", "quantize_to_mxfp4"])
def test_an_operator_returns_the_bytes_of_the_kernel(op: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 7, 64)).astype(np.float32)
    x[0, 0, :32] = 0
    call = nj.operator(op, returns=("q", "scale"))
    q, scale = normgen.kernel(op, shape=64, dtype="f32", device="cpu")(x)
    for results in (call(x), jax.jit(call)(x)):
        assert (results[0].dtype, results[0].shape) == (np.uint8, (3, 7, 32))
        np.testing.assert_array_equal(np.asarray(results[0]), q)
        np.testing.assert_array_equal(np.asarray(results[1]).view(np.uint8), scale.view(np.uint8))


def test_an_operator_without_groups_takes_every_even_number_of_columns() -> None:
    text = 'name = "c"\n[tensors]\nx = "input"\nq = { role = "output", dtypes = ["f4e2m1"] }\n[formulas]\nq = "x"\n'
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(nj.operator(text)(x)), two_a_byte(x))
    with pytest.raises(UsageError, match="takes cols that are a multiple of 2"):
        nj.operator(text)(x[:, 1:])
