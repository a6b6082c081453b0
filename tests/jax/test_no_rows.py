"""Calls without rows: results and gradients of the sizes that these have; and derivatives that a spec does not have."""

from __future__ import annotations

from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402  (of what is not always there)

import normgen.jax as nj  # noqa: E402
from normgen.errors import UsageError  # noqa: E402

ARGUMENTS: dict[str, Any] = {  # of rows of these leading sizes
    "rmsnorm": lambda lead: (jnp.ones((*lead, 256)), jnp.ones(256)),
    "rmsnorm_to_fp8_group": lambda lead: (jnp.ones((*lead, 256)), jnp.ones(256)),
    "quantize_to_int8_group": lambda lead: (jnp.ones((*lead, 256)),),
    "adaln": lambda lead: (jnp.ones((*lead, 256)), jnp.ones((lead[0], 256)), jnp.ones((lead[0], 256))),
    "head_layernorm": lambda lead: (jnp.ones((*lead, 256)), jnp.ones((lead[-1], 256)), jnp.ones((lead[-1], 256))),
}


@pytest.mark.parametrize("lead", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_call_without_rows_has_results_and_gradients_without_rows(name: str, lead: tuple[int, ...]) -> None:
    function, given = nj.operator(name).function, ARGUMENTS[name](lead)
    assert {result.shape[: len(lead)] for result in jax.tree.leaves(function(*given))} == {lead}
    if "_to_" not in name:
        gradients = jax.grad(lambda *a: sum(y.sum() for y in jax.tree.leaves(function(*a))), range(len(given)))(*given)
        assert [g.shape for g in gradients] == [a.shape for a in given]
        assert not any(g.any() for g in gradients)


def test_a_derivative_by_what_has_none_is_refused_beside_others() -> None:
    function = nj.operator("flashinfer_rmsnorm_to_fp8").function
    given = jnp.ones((4, 256)), jnp.ones(256), jnp.float32(1)

    def total(*arrays: Any) -> Any:
        return function(*arrays).astype(jnp.float32).sum()

    assert [g.shape for g in jax.grad(total, (0, 1))(*given)] == [(4, 256), (256,)]
    with pytest.raises(UsageError, match="'flashinfer_rmsnorm_to_fp8' has no gradient by scale"):
        jax.grad(total, (0, 2))(*given)
