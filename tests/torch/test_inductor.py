"""What torch's own compiler writes for our operators: programs that call what runs them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402
from normgen.torch import inductor  # noqa: E402
from tests.python.devices import NEEDS_COMPILER  # noqa: E402

pytestmark = NEEDS_COMPILER


def programs_of(call: Any, *leaves: torch.Tensor) -> list[str]:
    """The programs written for a call, and for its gradient where one is needed; they compute what the call does."""
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True)
    needed = [leaf for leaf in leaves if leaf.requires_grad]

    def run(function: Any) -> tuple[torch.Tensor, ...]:
        found = function(*leaves)
        outputs = found if isinstance(found, tuple) else (found,)
        if not needed:
            return outputs
        return (*outputs, *torch.autograd.grad(sum(y.square().sum() for y in outputs), needed))

    with torch._inductor.config.patch(fx_graph_cache=False):
        got, codes = run_and_get_code(run, compiled)
    for one, other in zip(got, run(call), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    return list(codes)


@pytest.mark.parametrize("needs", [False, True])
def test_a_compiled_program_calls_a_kernel_without_the_dispatcher(needs: bool) -> None:
    x, residual = torch.randn(3, 5, 64, requires_grad=needs), torch.randn(3, 5, 64)
    weight = torch.randn(64, requires_grad=needs)
    codes = programs_of(lambda *given: ng.add_rms_norm(*given, opaque=True), x, residual, weight)
    forward = "add_rmsnorm_saving" if needs else "add_rmsnorm"
    assert f"torch.ops.normgen.{forward}.default.direct(" in codes[0]
    assert not needs or "torch.ops.normgen.add_rmsnorm_backward.default.direct(" in codes[1]


def test_where_the_compilers_nodes_are_others_its_program_calls_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> bool:
        raise AttributeError

    monkeypatch.setattr(inductor, "_is_cpp", absent)
    softmax = ng.operator("softmax", deterministic=True)  # whose lowering no other test has asked for
    (code,) = programs_of(lambda x: softmax(x, opaque=True), torch.randn(3, 64))
    assert ".default(" in code
    assert ".direct(" not in code


def test_a_compiler_without_such_a_table_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import lowering

    op = ng.operator("softmax", deterministic=False).operators.plain
    with monkeypatch.context() as without:
        without.delattr(lowering, "lowerings")
        inductor.lower(op)
    assert op not in lowering.lowerings
    inductor.lower(op)
    assert op in lowering.lowerings
