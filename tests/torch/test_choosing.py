"""What a compiler gets in the place of a call, and that it is said."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402
from normgen.torch import choosing  # noqa: E402


@pytest.fixture(autouse=True)
def _none_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_sites", {})
    torch.compiler.reset()


def graph_of(call: Any, *tensors: torch.Tensor, dynamic: bool = False) -> str:
    """The operators that a compiler gets; what it makes of them is what the call makes."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    codes: list[str] = []

    def compiler(graph: Any, _inputs: Any) -> Any:
        codes.append(graph.code)
        return make_boxed_func(graph.forward)

    compiled = torch.compile(call, backend=aot_autograd(fw_compiler=compiler), fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(compiled(*tensors), call(*tensors), rtol=1e-5, atol=1e-5)
    return codes[-1]


def test_a_plain_norm_is_left_to_the_compiler_and_a_caller_may_say_otherwise() -> None:
    x, weight = torch.randn(3, 64), torch.randn(64)
    assert "normgen" not in graph_of(lambda x, w: ng.rms_norm(x, w), x, weight)
    (site,) = ng.sites()
    assert (site.function, site.kernel, site.asked) == ("rms_norm", False, False)
    assert site.where.startswith(f"{__file__}:")
    assert str(site) == f"{site.where}: rms_norm: the formulas, fused by the compiler"
    for opaque in (True, False):
        code = graph_of(lambda x, w, opaque=opaque: ng.rms_norm(x, w, opaque=opaque), x, weight)
        assert ("torch.ops.normgen.rmsnorm.default" in code) is opaque
        assert (ng.sites()[-1].kernel, ng.sites()[-1].asked) == (opaque, True)
    assert str(ng.sites()[0]).endswith("rms_norm: the formulas, fused by the compiler")


# op, elements per row -> the rows from on which its kernel is worth a call: 5 us over 0.25 ps a byte, of what
# the compiler's program takes longer, as a share of the bytes of the rows, less one pass over what it writes
WORTH = [
    ("rmsnorm", 4096, None),  # 0.2 * 4 - 2 < 0
    ("softmax", 4096, None),
    ("softmax", 32768, 1526),  # 20e6 bytes / (0.6 * 4 - 2)
    ("cross_entropy", 4096, 12208),  # 20e6 / (0.2 * 2)
    ("cross_entropy", 131072, 128),  # 20e6 / (0.6 * 2)
    ("rmsnorm_to_fp8_group", 8192, 842),  # 20e6 / (1.3 * 3 - 1)
]


@pytest.mark.parametrize(("op", "cols", "rows"), WORTH)
def test_a_kernel_is_worth_its_call_by_the_documented_estimate(op: str, cols: int, rows: int | None) -> None:
    made = ng.operator(op)
    reads = made.operators.calls.reads
    dtypes = {"x": torch.bfloat16, "label": torch.int64, "weight": torch.bfloat16}
    least = made.operators.least_elements(tuple(dtypes.get(t.name) for t in reads), torch.bfloat16)
    for count in (1, (rows or 1 << 30) - 1, rows or 1 << 31):
        first = torch.empty(count, cols, dtype=torch.bfloat16, device="meta")
        assert choosing.is_worth_a_call(least, first) is (rows is not None and count >= rows)


def test_sizes_that_are_symbols_are_asked_without_being_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_CALL_US", 1e-9)
    op = ng.operator("quantize_to_int8_group")

    def call(x: torch.Tensor) -> Any:
        return op(x)

    code = graph_of(call, torch.randn(3, 256), dynamic=True)
    assert "torch.ops.normgen.quantize_to_int8_group" in code
    assert ng.sites()[0].kernel


def test_modules_that_were_replaced_are_said_by_their_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.LayerNorm(48), torch.nn.LayerNorm(48))
    ng.replace(model)
    ng.restore(model[2])
    ng.replace(torch.nn.ModuleDict({"last": model[2]}), opaque=True)
    graph_of(model, torch.randn(5, 48))
    assert {str(site) for site in ng.sites()} == {
        "1: layer_norm: the formulas, fused by the compiler",
        "last: layer_norm: our kernel, as asked for",
    }


def test_a_call_is_guarded_by_what_it_is_given_and_by_nothing_that_it_reads_on_its_way() -> None:
    """Each attribute that a compiler saw is compared at every call: ours were 12 us of 57 (H200, rmsnorm, 1x1024)."""
    sources: list[str] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        return graph.forward

    def keep(guards: Any) -> Any:
        sources.extend(guard.name for guard in guards)
        return [True] * len(guards)

    x, weight = torch.randn(3, 64), torch.randn(64)
    torch.compile(ng.rms_norm, backend=backend, fullgraph=True, options={"guard_filter_fn": keep})(x, weight)
    given = {"input", "normalized_shape", "weight", "eps", "dtype", "opaque"}  # the weight is the second
    assert given < set(sources)
    assert set(sources) <= {"", *given, "is_traced_", "traced_", "where_"}
