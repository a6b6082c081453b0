"""Calls without rows, as of an expert that no token goes to: results and gradients of the sizes that these have."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)

import normgen.torch as ng  # noqa: E402  (of what is not always there)

COLS = 256
SPECS = (
    "rmsnorm",
    "dropout_add_rmsnorm",
    "rmsnorm_to_fp8_group",
    "quantize_to_int8_group",
    "vllm_rmsnorm_to_fp8_group",
    "adaln",
    "head_layernorm",
    "qk_norm_rope",
)


def made(tensor: Any, lead: tuple[int, ...]) -> Any:
    """A tensor of the operator's, for rows of these leading sizes: batches are the first one, heads the last."""
    kind = tensor.kind
    if tensor.role.value == "seed":
        return torch.tensor(7)
    if kind.is_elem:
        return torch.ones(*lead, COLS)
    if kind.by_batch:
        return torch.ones(lead[-1] if kind.by_head else lead[0], COLS)
    return torch.ones(COLS) if kind.by_col else torch.ones(())


@pytest.mark.parametrize("lead", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("name", SPECS)
def test_a_call_without_rows_has_results_and_gradients_without_rows(name: str, lead: tuple[int, ...]) -> None:
    operator = ng.operator(name)
    reads = operator.operators.calls.reads
    has_gradient = not any(part in name for part in ("fp8", "int8"))
    given = [made(t, lead).requires_grad_(has_gradient and t.has_gradient) for t in reads]
    found = operator.run(tuple(given), tuple(dict(operator.spec.scalars).values()), None, None)
    results = found if isinstance(found, tuple) else (found,)
    assert {result.shape[: len(lead)] for result in results} == {lead}
    if has_gradient:
        sum(result.sum() for result in results if result.requires_grad).backward()
        for tensor in given:
            if tensor.requires_grad:
                assert tensor.grad.shape == tensor.shape
                assert not tensor.grad.any()
