"""Functions of torch operations become specs: those of public libraries as they are, others as far as they are rows."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

import normgen.torch as ng  # noqa: E402
from normgen.errors import UsageError, VerificationError  # noqa: E402
from normgen.torch.tracing import aten, conditioning, fusing, recording, sampling  # noqa: E402

Tensor = Any
COLS = 64


def of_transformers(place: str, name: str, *args: Any) -> Callable[[], Any]:
    def made() -> Any:
        pytest.importorskip("transformers", reason="transformers is not installed")
        module = getattr(pytest.importorskip(f"transformers.{place}"), name)(*args)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, mean=1, std=0.3)
        return module

    return made


class Own(torch.nn.Module):
    """RMSNorm as Llama's is."""

    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(1 + 0.3 * torch.randn(cols))
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * rstd).to(x.dtype) * self.weight


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def rows(*shape: int) -> Callable[[Any], Tensor]:
    return lambda dtype: torch.randn(*shape).to(dtype)


def labels(_: Any) -> Tensor:
    found = torch.randint(0, COLS, (12,))
    found[3] = -100
    return found


X = rows(3, 5, COLS)
NORM = "mean({}**2)"
# What makes the function, its arguments, a formula that its spec has in bf16, and whether only its own casts round.
FUNCTIONS: dict[str, tuple[Callable[[], Any], tuple[Callable[[Any], Tensor], ...], str, bool]] = {
    "own norm": (lambda: Own(COLS), (X,), 'y = "cast(x * rstd, x) * weight"', True),
    "LlamaRMSNorm": (
        of_transformers("models.llama.modeling_llama", "LlamaRMSNorm", COLS),
        (X,),
        'y = "weight * cast(hidden_states_2, hidden_states)"',
        True,
    ),
    "Qwen3RMSNorm": (
        of_transformers("models.qwen3.modeling_qwen3", "Qwen3RMSNorm", COLS),
        (X,),
        'y = "weight * cast(hidden_states_2, hidden_states)"',
        True,
    ),
    "GemmaRMSNorm": (
        of_transformers("models.gemma.modeling_gemma", "GemmaRMSNorm", COLS),
        (X,),
        'output = "x * rsqrt(mean(x**2) + 1e-06) * (weight + 1)"',
        True,
    ),
    "T5LayerNorm": (
        of_transformers("models.t5.modeling_t5", "T5LayerNorm", COLS),
        (X,),
        'hidden_states_3 = "cast(hidden_states_2, hidden_states)"',
        True,
    ),
    "gelu_new": (of_transformers("activations", "NewGELUActivation"), (X,), 'y = "input * 0.5 * (tanh(', False),
    "gated MLP": (lambda: gated, (X, X), 'y = "gate * sigmoid(gate) * up"', False),
    "DiT's modulate": (
        lambda: modulate,
        (X, rows(3, COLS), rows(3, COLS)),
        'y = "x * (scale + 1) + shift"',
        False,
    ),
    "smoothed cross entropy": (lambda: smoothed, (rows(12, COLS), labels), 'total = "total(labels != -100)"', False),
}


@pytest.fixture
def by_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU the operator runs too, by the formulas, where the function itself would."""
    monkeypatch.setattr(fusing, "takes_a_kernel", lambda tensors: tensors[0].dtype != torch.float64)


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_public_libraries_run_as_one_operator_in_both_directions(
    name: str, dtype: Any, device: str
) -> None:
    make, takes, formula, is_cast = FUNCTIONS[name]
    function = make()
    if isinstance(function, torch.nn.Module):
        function = function.to(device, dtype)
    tensors = [make_one(dtype).to(device) for make_one in takes]
    leaves = [t.requires_grad_() for t in tensors if t.is_floating_point()]
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    made = ng.fused(function)
    got, want = made(*tensors), function(*tensors)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    comparison = made.comparison(*tensors)
    assert comparison.holds
    assert "a comparison, not a proof" in str(comparison)
    if dtype == torch.bfloat16:
        assert formula in made.spec(*tensors)
        assert not is_cast or comparison.stored[0].same >= 0.99
    wide_function = copy.deepcopy(function).double() if parameters else function
    wide = [t.detach().double().requires_grad_() if t.is_floating_point() else t for t in tensors]
    exact = wide_function(*wide)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance)
    by = torch.randn_like(got)
    found = torch.autograd.grad(got, [*leaves, *parameters], by)
    wide_leaves = [w for w, t in zip(wide, tensors, strict=True) if t.requires_grad]
    own = list(wide_function.parameters()) if parameters else []
    for one, other in zip(found, torch.autograd.grad(exact, [*wide_leaves, *own], by.double()), strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one.double(), other, rtol=2 * tolerance, atol=2 * tolerance * scale)


@pytest.mark.usefixtures("by_operator")
def test_a_tensor_that_no_kernel_takes_runs_the_function_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    @ng.fused
    def twice(x: Tensor) -> Tensor:
        calls.append(type(x))
        return x * 2

    x = torch.randn(3, 8)
    twice(x)
    traced = len(calls)
    assert torch.equal(twice(x), x * 2)
    assert len(calls) == traced
    twice(x.double())
    assert len(calls) == traced + 1
    monkeypatch.undo()
    another = torch.randn(4, 8)
    assert torch.equal(twice(another), another * 2)
    assert len(calls) == traced + 2
    assert repr(twice) == "<normgen.torch.fused twice: 1 traced>"


@pytest.mark.usefixtures("by_operator")
def test_every_rounding_of_eager_torch_is_taken_over_where_asked() -> None:
    def steps(x: Tensor, weight: Tensor) -> Tensor:
        return (x + weight) * weight - x * 0.3

    x, weight = torch.randn(16, COLS).bfloat16(), torch.randn(COLS).bfloat16()
    exact = ng.fused(steps, rounding="operations")
    assert torch.equal(exact(x, weight), steps(x, weight))
    assert exact.comparison().stored[0].same == 1.0
    loose = ng.fused(steps)
    assert not torch.equal(loose(x, weight), steps(x, weight))
    assert loose.comparison().stored[0].ours <= loose.comparison().stored[0].theirs
    assert "cast" not in loose.spec(x, weight)


@pytest.mark.usefixtures("by_operator")
def test_plans_are_shared_by_all_leading_sizes_and_told_apart_by_constants_and_dtypes() -> None:
    @ng.fused
    def scaled(x: Tensor, weight: Tensor, factor: float = 2.0) -> Tensor:
        return x * weight * factor

    weight = torch.randn(8)
    for shape in ((3, 8), (1, 8), (0, 8), (200, 8)):
        x = torch.randn(shape)
        assert torch.equal(scaled(x, weight), x * weight * 2.0)
    counts = [len(scaled._plans)]
    for more in ((torch.randn(3, 8), weight, 3.0), (torch.randn(3, 8).half(), weight), (torch.randn(2, 3, 8), weight)):
        scaled(*more)
        counts.append(len(scaled._plans))
    assert counts == [2, 3, 4, 5]  # one row has a plan of its own
    assert 'y = "x * weight * 3"' in scaled.spec(torch.randn(3, 8), weight, 3.0)
    x = torch.randn(3, 8)
    assert torch.equal(scaled(x, factor=4.0, weight=weight), x * weight * 4.0)


def by_row(x: Tensor, v: Tensor) -> Tensor:
    return x * v[:, None]


def by_col(x: Tensor, v: Tensor) -> Tensor:
    return x * v


def by_batch(x: Tensor, v: Tensor) -> Tensor:
    return x + v[:, None]


def by_place(x: Tensor, v: Tensor) -> Tensor:
    return x + v


def of_batch(x: Tensor, v: Tensor) -> Tensor:
    return x * v[:, None, None]


ROLES = [
    (by_row, (6, 6), (6,), 'v = "row_input"'),
    (by_col, (6, 6), (6,), 'v = "parameter"'),
    (by_batch, (6, 6, 8), (6, 8), 'v = "batch_parameter"'),
    (by_place, (6, 6, 8), (6, 8), 'v = "head_parameter"'),
    (of_batch, (6, 6, 6), (6,), 'v = "row_input"'),
    (by_col, (2, 6), (1,), 'v = "scalar_parameter"'),
    (by_col, (2, 3, 6), (2, 1, 6), 'v = "batch_parameter"'),
    (by_col, (2, 3, 6), (2, 3, 1), 'v = "row_input"'),
    (by_col, (2, 3, 6), (1, 1, 6), 'v = "parameter"'),
    (by_col, (6,), (6,), 'v = "input"'),
]


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize(("function", "shape", "other", "role"), ROLES)
def test_roles_follow_from_what_the_function_does_where_sizes_leave_them_open(
    function: Any, shape: tuple[int, ...], other: tuple[int, ...], role: str
) -> None:
    x, v = torch.randn(shape, requires_grad=True), torch.randn(other)
    made = ng.fused(function)
    assert role in made.spec(x, v)
    assert torch.equal(made(x, v), function(x, v))
    torch.testing.assert_close(*(torch.autograd.grad(f(x, v).sum(), x)[0] for f in (made, function)))


def prefix_sum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def branching(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def item(x: Tensor) -> Tensor:
    return x * x.sum().item()


def total_back(x: Tensor) -> Tensor:
    return x / x.sum()


def row_count(x: Tensor) -> Tensor:
    return x * x.shape[0]


def if_many(x: Tensor) -> Tensor:
    if x.shape[0] > 5:
        return x * 2
    return x


def part(x: Tensor) -> Tensor:
    return x[..., :2]


def joined(x: Tensor) -> Tensor:
    return torch.cat([x, x], -1)


def product(x: Tensor) -> Tensor:
    return x @ x.transpose(0, 1)


def in_place(x: Tensor) -> Tensor:
    x.mul_(2)
    return x


def doubled(x: Tensor) -> Tensor:
    return x.double().exp()


def written_in_part(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 0
    return y


def soft_labels(x: Tensor) -> Tensor:
    return torch.full_like(x, 0.1).scatter_(1, x.argmax(-1, keepdim=True), 0.9) * x.log_softmax(-1)


def median(x: Tensor) -> Tensor:
    return x - x.median(-1, keepdim=True).values


def pooled(x: Tensor) -> Tensor:
    return F.avg_pool1d(x[None], 2)[0]


def out_of_torch(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2)


def distances(x: Tensor) -> Tensor:
    return torch.cdist(x, x)


KEPT = torch.randn(8)


def closed(x: Tensor) -> Tensor:
    return x * KEPT


REFUSED = [
    (prefix_sum, "'cumsum' is not row-wise, or not in the language", "return x.cumsum(-1)"),
    (branching, "does not ask what is in a tensor", "return x if x.sum() > 0 else -x"),
    (item, "what is in a tensor is no part of a formula", "return x * x.sum().item()"),
    (total_back, "takes a sum over all rows back to the rows", "return x / x.sum()"),
    (row_count, "the number of rows is no part of a formula", "return x * x.shape[0]"),
    (if_many, "does not ask for the number of rows", "if x.shape[0] > 5:"),
    (part, "takes a part of the rows or columns", "return x[..., :2]"),
    (joined, "'cat' is not row-wise", "return torch.cat([x, x], -1)"),
    (product, "'matmul' is not row-wise", "return x @ x.transpose(0, 1)"),
    (in_place, "does not write to its arguments", "x.mul_(2)"),
    (doubled, "not of float64", "return x.double().exp()"),
    (closed, "takes its tensors as arguments", "return x * KEPT"),
    (written_in_part, "writes to a part of the rows or columns", "y[:, 0] = 0"),
    (
        soft_labels,
        "'scatter' is not row-wise",
        "return torch.full_like(x, 0.1).scatter_(1, x.argmax(-1, keepdim=True), 0.9) * x.log_softmax(-1)",
    ),
    (median, "'median' is not row-wise", "return x - x.median(-1, keepdim=True).values"),
    (pooled, "'avg_pool1d' is not row-wise", "return F.avg_pool1d(x[None], 2)[0]"),
    (out_of_torch, "does not ask what is in a tensor", "return torch.from_numpy(x.numpy() * 2)"),
    (distances, "'cdist' asks for the number of rows", "return torch.cdist(x, x)"),
]


@pytest.mark.parametrize(("function", "rule", "line"), REFUSED, ids=[f.__name__ for f, _, _ in REFUSED])
def test_what_is_not_row_wise_is_refused_with_its_operation_and_its_line(function: Any, rule: str, line: str) -> None:
    with pytest.raises(UsageError) as error:
        ng.fused(function, torch.randn(6, 8))
    assert rule in error.value.rule
    assert re.fullmatch(rf".*test_fused\.py:\d+: {re.escape(line)}", str(error.value.received))
    assert error.value.hint


LOWEST = torch.finfo(torch.float32).min
MADE = {
    "a number": lambda x: torch.softmax(x / torch.sqrt(torch.tensor(8.0)), -1),
    "a value for each column": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
    "a value for each row": lambda x: x * torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]]),
    "the lowest, where": lambda x: torch.where(x > 0, x, LOWEST).softmax(-1),
    "the lowest, filled": lambda x: x.masked_fill(x < 0, LOWEST).softmax(-1),
    "NaN": lambda x: torch.where(x > 0, x, torch.tensor(float("nan"))),
    "pairs of columns": lambda x: x[:, :, None] * x[:, None, :],
}


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("name", MADE)
def test_tensors_that_a_function_makes_of_numbers_are_part_of_it(name: str) -> None:
    """Numbers too that no formula has: those are arguments of the kernel."""
    function, x = MADE[name], torch.randn(6, 8)
    torch.testing.assert_close(ng.fused(function)(x), function(x), equal_nan=True)


def test_a_tensor_of_many_numbers_is_an_argument() -> None:
    with pytest.raises(UsageError, match="pass it to the function"):
        ng.fused(lambda x: x * torch.tensor([1.0] * 100)).spec(torch.randn(6, 100))


def test_what_cannot_be_traced_at_all_says_what_was_received() -> None:
    with pytest.raises(UsageError, match=r"has the rows' sizes, or some of them, in their order\n  received: other"):
        ng.fused(lambda x, other: x + other.sum(), torch.randn(6, 8), torch.randn(3))
    with pytest.raises(UsageError, match="a tensor, a module, or a constant"):
        ng.fused(lambda x, more: x + more[0], torch.randn(6, 8), [1.0])
    with pytest.raises(UsageError, match="nothing is traced yet"):
        ng.fused(gated).spec()
    with pytest.raises(UsageError, match="unknown rounding"):
        ng.fused(gated, rounding="none")
    with pytest.raises(UsageError, match="a function or a module"):
        ng.fused(3)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("silu", lambda x: aten.product(x, aten.call("tanh", x))), ("detach", lambda x: x)],
)
def test_a_spec_that_differs_from_its_function_is_never_run(
    name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its values, or in its gradient alone."""
    monkeypatch.setitem(aten.ELEMENTWISE, name, wrong)
    with pytest.raises(VerificationError, match="differs from it"):
        ng.fused(lambda x: F.silu(x) * x.tanh().detach(), torch.randn(6, 8))


@pytest.mark.usefixtures("by_operator")
def test_modules_keep_their_state_and_their_parameters_are_arguments() -> None:
    module = Own(COLS)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    x = torch.randn(4, COLS)
    want = module(x)
    module.forward = ng.fused(module.forward)
    torch.testing.assert_close(module(x), want)
    module(x).sum().backward()
    assert module.weight.grad is not None
    assert {n: v.tolist() for n, v in module.state_dict().items()} == {n: v.tolist() for n, v in state.items()}
    again = copy.deepcopy(module)
    with torch.no_grad():
        again.weight.zero_()
    assert not again(x).any()
    torch.testing.assert_close(module(x), want)
    module.eps = 1.0
    assert not torch.allclose(module(x), want)


@pytest.mark.usefixtures("by_operator")
def test_a_method_is_decorated_and_submodules_are_part_of_it() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.scale = torch.nn.LayerNorm(COLS), torch.nn.Parameter(torch.randn(COLS))

        @ng.fused
        def forward(self, x: Tensor, residual: Tensor | None = None) -> dict[str, Any]:
            h = x if residual is None else x + residual
            return {"sum": h, "normed": [self.norm(h) * self.scale], "count": 2}

    block, x = Block(), torch.randn(3, COLS)
    found = block(x, residual=x)
    assert found["count"] == 2
    assert torch.equal(found["sum"], x + x)
    torch.testing.assert_close(found["normed"][0], block.norm(2 * x) * block.scale, rtol=1e-5, atol=1e-5)
    assert block(x)["sum"] is x
    assert "norm_weight = " in block.forward.spec(x)


@pytest.mark.usefixtures("by_operator")
def test_rows_may_be_merged_and_come_back_in_any_order() -> None:
    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        flat = x.reshape(-1, x.shape[-1])
        y = F.rms_norm(flat, (flat.shape[-1],), weight, 1e-5)
        norms = torch.linalg.vector_norm(x.transpose(0, 1), dim=-1)
        return y, y.view_as(x).transpose(0, 1), norms, norms.unsqueeze(-1)

    x, weight = torch.randn(2, 3, 8), torch.randn(8)
    for got, want in zip(ng.fused(function)(x, weight), function(x, weight), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_totals_and_what_follows_from_them_are_part_of_the_operator(reduction: str) -> None:
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction=reduction) * 0.5

    x, target = torch.randn(2, 5, 12, requires_grad=True), torch.randint(0, 12, (2, 5))
    target[0, 0] = -100
    made = ng.fused(loss)
    got, want = made(x, target), loss(x, target)
    torch.testing.assert_close(got, want)
    by = torch.randn_like(want)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, by)[0] for y in (got, want)))
    assert made.spec(x, target).count("_output") == {"none": 1, "sum": 1, "mean": 2}[reduction]


LOSSES = {
    "cross_entropy": F.cross_entropy,
    "gather": lambda x, target: -torch.log_softmax(x, -1).gather(-1, target[..., None]).squeeze(-1),
}


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("label", [-1, 12, -7, 2**40])
def test_an_index_that_is_no_column_gives_nan_where_torch_raises(name: str, label: int) -> None:
    x, target = torch.randn(4, 12, requires_grad=True), torch.tensor([1, 2, label, 3])
    with pytest.raises((IndexError, RuntimeError)):
        LOSSES[name](x, target)
    loss = ng.fused(LOSSES[name])(x, target)
    assert loss.isnan().any()
    assert loss.ndim == 0 or loss.isnan().tolist() == [False, False, True, False]
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    assert torch.equal(gradient.isnan().all(-1), torch.tensor([False, False, True, False]))


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_where_no_label_counts_the_gradient_is_0_and_the_mean_nan_as_torchs(label_smoothing: float) -> None:
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, label_smoothing=label_smoothing)

    x, target = torch.randn(3, 12, requires_grad=True), torch.full((3,), -100)
    for found in (ng.fused(loss)(x, target), loss(x, target)):
        assert found.isnan()
        assert not torch.autograd.grad(found, x)[0].any()


@pytest.mark.usefixtures("by_operator")
def test_no_gradient_goes_where_the_function_lets_none() -> None:
    def scaled(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.abs().amax(-1, keepdim=True)
        return x / scale

    x = torch.randn(4, 8, requires_grad=True)
    made = ng.fused(scaled)
    torch.testing.assert_close(*(torch.autograd.grad(f(x).sum(), x)[0] for f in (made, scaled)))
    assert "constant(" in made.spec(x)


@pytest.mark.usefixtures("by_operator")
def test_a_compiler_sees_one_operator_for_any_sizes() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    norm, fixed = Own(COLS), torch.nn.LayerNorm(COLS)
    of_norm, of_fixed, of_batches = ng.fused(norm), ng.fused(fixed), ng.fused(modulate)

    def block(x: Tensor, scale: Tensor) -> Tensor:
        return of_fixed(of_norm(x)) + of_batches(x, scale, scale)

    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for shape in ((3, 5, COLS), (4, 7, COLS), (2, 9, COLS)):
        x, scale = torch.randn(shape, requires_grad=True), torch.randn(shape[0], COLS)
        got, want = compiled(x, scale), fixed(norm(x)) + modulate(x, scale, scale)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        gradients = (torch.autograd.grad(y.sum(), [x, norm.weight])[0] for y in (got, want))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert len(graphs) == 1
    called = [str(n.target) for n in graphs[0].graph.nodes if n.op == "call_function"]
    assert len([name for name in called if name.startswith("normgen.")]) == 3
    assert not [name for name in called if "rsqrt" in name or "layer_norm." in name]


@pytest.mark.usefixtures("by_operator")
def test_autocast_is_part_of_what_is_traced() -> None:
    def function(x: Tensor) -> Tensor:
        return x.bfloat16().softmax(-1)

    x, made = torch.randn(4, 8), ng.fused(function)
    plain = made(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = made(x)
        want = function(x)
    assert plain.dtype == torch.bfloat16
    assert under.dtype == want.dtype
    torch.testing.assert_close(under, want)


MORE: dict[str, Callable[[Tensor], Any]] = {
    "gelu": F.gelu,
    "elu": F.elu,
    "softplus": F.softplus,
    "mish": F.mish,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "normalize": lambda x: F.normalize(x, dim=-1),
    "standardised": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "masked": lambda x: x.masked_fill(x > 0.5, float("-inf")).softmax(-1),
    "columns": lambda x: x * torch.arange(x.shape[-1]) / x.shape[-1],
    "argmax": lambda x: x.argmax(-1),
    "one largest": lambda x: x.max(-1),
    "squares": lambda x: ((x - 1) ** 2).mean(),
    "relu6": F.relu6,
}


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("name", MORE)
def test_other_operations_are_in_the_language(name: str) -> None:
    function = MORE[name]
    x = torch.randn(6, 16)
    got, want = ng.fused(function)(x), function(x)
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (got, want)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# Functions that saturate and then subtract, so that roundings are all that is left of some rows' gradients.
SATURATED: dict[str, Callable[[Tensor], Any]] = {
    "softcap": lambda x: F.softmax(torch.tanh(x / 50) * 50, -1),
    "softcap of 30": lambda x: F.softmax(torch.tanh(x / 30) * 30, -1, dtype=torch.float32),
    "softcap, normalised": lambda x: F.layer_norm(torch.tanh(x / 50) * 50, (x.shape[-1],)),
    "sigmoid, normalised": lambda x: F.layer_norm(torch.sigmoid(x), (x.shape[-1],)),
    "softsign": lambda x: F.log_softmax(x / (1 + x.abs()) * 50, -1),
    "entropy": lambda x: -(F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SATURATED)
def test_a_function_that_saturates_and_then_subtracts_is_no_other_than_its_spec(name: str, dtype: Any) -> None:
    comparison = ng.fused(SATURATED[name]).comparison(torch.randn(6, 40, dtype=dtype))
    assert comparison.holds
    assert [name for name, _ in comparison.gradients] == ["x"]


# Formulas that lose the digits of a small number, or of a whole one, where the function keeps them.
WELL_CONDITIONED: dict[str, Callable[[Tensor], Tensor]] = {
    "log1p": lambda x: torch.log1p(x.abs()),
    "symlog": lambda x: torch.sign(x) * torch.log1p(x.abs()),
    "log1p of a square": lambda x: torch.log1p(x * x),
    "softplus": F.softplus,
}


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("name", WELL_CONDITIONED)
def test_log1p_keeps_the_digits_of_small_numbers(name: str) -> None:
    function = WELL_CONDITIONED[name]
    x = torch.logspace(-9, 1, 40)[None] if name != "softplus" else torch.linspace(-30, 30, 40)[None]
    torch.testing.assert_close(ng.fused(function)(x), function(x), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("function", "formula"),
    [
        (F.softplus, "maximum(x0, 0) + log1p(exp(-abs(x0)))"),
        (lambda x: F.softplus(x, 2, 3), "where(z > 3, x, (maximum(z, 0) + log1p(exp(-abs(z)))) / 2)"),
        (F.logsigmoid, "minimum(0, x0) - log1p(exp(-abs(x0)))"),
        (F.mish, "input * tanh(maximum(input, 0) + log1p(exp(-abs(input))))"),
        (F.celu, "where(input > 0, input, expm1(input))"),
        (torch.log1p, "log1p(x0)"),
        (torch.expm1, "expm1(x0)"),
    ],
)
def test_what_keeps_the_digits_of_small_numbers_is_one_function(function: Any, formula: str) -> None:
    made = ng.fused(function)
    assert f'y = "{formula}"' in made.spec(torch.randn(6, 40))
    assert made.comparison(torch.randn(6, 40)).holds


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize(
    "options", [{}, {"beta": 2.0}, {"threshold": 17.0}, {"threshold": 3.0}, {"beta": -1.0}], ids=str
)
def test_softplus_is_that_of_any_beta_and_threshold(options: dict[str, float]) -> None:
    x = torch.tensor([[-100.0, -20, -3.1, 0, 1.4, 3.1, 16.9, 17.1, 20, 30, 1e30, torch.inf, -torch.inf, torch.nan]])
    x.requires_grad_()
    ours, theirs = ng.fused(lambda x: F.softplus(x, **options))(x), F.softplus(x, **options)
    torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=1e-38, equal_nan=True)
    gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=3e-7, atol=1e-38, equal_nan=True)


@pytest.mark.usefixtures("by_operator")
def test_log1p_is_right_for_every_number() -> None:
    x = torch.tensor([[1e-30, 1e-7, -1e-7, 1e-3, -0.4, -0.6, -1, -2, 0, 3, 1e30, torch.inf, torch.nan]])
    x.requires_grad_()
    ours, theirs = ng.fused(lambda x: torch.log1p(x))(x), torch.log1p(x)
    torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=0, equal_nan=True)
    gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=3e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("function", ["log1p", "log1p(x * x)"])
def test_an_ill_conditioned_spec_does_not_excuse_itself(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure of conditioning is the function alone."""
    monkeypatch.setitem(aten.ELEMENTWISE, "log1p", lambda x: aten.call("log", aten.plus(aten.ONE, x)))
    with pytest.raises(VerificationError, match="differs from it"):
        ng.fused(lambda x: torch.log1p(x.abs() if function == "log1p" else x * x), torch.randn(6, 40))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, labels: x * ((labels * 2**25 + 1) - (labels * 2**25))[:, None],
        lambda x, labels: torch.where((labels * 16777217 == labels * 16777216)[:, None], x, -x),
    ],
)
def test_whole_numbers_beyond_those_of_float32_are_refused(function: Any) -> None:
    with pytest.raises(VerificationError, match="differs from it"):
        ng.fused(function, torch.randn(6, 40), torch.arange(6))


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("name", ["hardsigmoid", "hardswish", "relu6", "hardtanh"])
def test_no_gradient_goes_through_a_limit_itself(name: str) -> None:
    function = getattr(F, name)
    x = torch.tensor([[-4.0, -3, -1, 0, 1, 3, 6, 7]], requires_grad=True)
    ours, theirs = ng.fused(lambda x: function(x))(x), function(x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)))


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"ignore_index": 2}], ids=str)
def test_weights_of_classes_of_which_torch_has_no_gradient_are_compared_too(options: dict[str, Any]) -> None:
    def loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, weight=weight, **options)

    given = torch.randn(6, 10, requires_grad=True), torch.tensor([0, -100, 2, 3, 9, 1]), torch.rand(10) + 0.5
    if "ignore_index" in options:
        given[1][1] = 5
    made = ng.fused(loss)
    comparison = made.comparison(*given)
    assert comparison.results
    assert [name for name, _ in comparison.gradients] == ["logits"]
    assert "torch has none by weight" in comparison.no_gradients
    got, want = made(*given), loss(*given)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), given[0])[0] for y in (got, want)), rtol=1e-4, atol=1e-6)


def test_a_comparison_of_nothing_is_refused() -> None:
    """Of labels that no function takes nothing is known."""
    with pytest.raises(UsageError, match="took none of the arguments that were tried"):
        ng.fused(lambda x, labels: x.gather(-1, (labels + 60)[:, None]), torch.randn(6, 90), torch.arange(6))


def test_labels_that_are_left_out_are_drawn_whichever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With -100 alone a spec that leaves out no label but that one would have passed."""
    seen: list[int] = []
    plain = sampling._sample

    def noted(*args: Any) -> Tensor:
        found = plain(*args)
        if not found.is_floating_point():
            seen.extend(found.flatten().tolist())
        return found

    monkeypatch.setattr(sampling, "_sample", noted)
    ng.fused(lambda x, labels: F.cross_entropy(x, labels, ignore_index=-7), torch.randn(6, 10), torch.arange(6))
    assert -7 in seen


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x * 2

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> Tensor:  # noqa: ARG004
        return by * 0.1


class _WithContext(torch.autograd.Function):
    """Of the form that torch's own transforms take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> Tensor:  # noqa: ARG004
        return by * 0.1


def of_data(x: Tensor) -> Tensor:
    return x / x.data.abs().sum(-1, keepdim=True)


def of_detached(x: Tensor) -> Tensor:
    return x / x.detach().abs().sum(-1, keepdim=True)


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda by: by * 3)
    return y + 1


def hooked_if_needed(x: Tensor) -> Tensor:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda by: by * 3)
    return y + 1


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("function", [of_data, of_detached])
def test_what_is_detached_takes_no_part_in_a_gradient(function: Any) -> None:
    x = torch.randn(6, 10, requires_grad=True)
    by = torch.randn(6, 10)
    torch.testing.assert_close(*(torch.autograd.grad(f(x), x, by)[0] for f in (ng.fused(function), function)))


@pytest.mark.usefixtures("by_operator")
def test_rows_of_zeros_have_the_norm_and_its_gradient_that_torch_gives_them() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1)

    x = torch.randn(6, 10)
    x[2] = 0
    x.requires_grad_()
    for got, want in zip(
        *((f(x), *torch.autograd.grad(f(x).sum(), x)) for f in (ng.fused(function), function)), strict=True
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (hooked, "'register_hook'"),
        (hooked_if_needed, "'requires_grad'"),
        (_Straight.apply, "torch.autograd.Function"),
        (_WithContext.apply, "torch.autograd.Function"),
    ],
)
def test_what_says_another_gradient_is_refused(function: Any, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        ng.fused(lambda x: function(x), torch.randn(6, 10))


def test_gradients_are_those_of_the_function_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the record has lost of them does not pass."""
    monkeypatch.setattr(recording, "_own_gradient", lambda *_: None)
    with pytest.raises(VerificationError, match="gradient by x differs most"):
        ng.fused(lambda x: x / x.data.abs().sum(-1, keepdim=True), torch.randn(6, 10))


@pytest.mark.usefixtures("by_operator")
def test_rows_of_infinities_give_what_torch_gives() -> None:
    x = torch.randn(6, 10)
    x[0], x[1, ::2], x[2, 3] = -torch.inf, -torch.inf, torch.inf
    for function in (lambda x: torch.logsumexp(x, -1), lambda x: x.softmax(-1), lambda x: x.logsumexp(-1).exp() + 1):
        torch.testing.assert_close(ng.fused(function)(x), function(x), equal_nan=True)


def test_nan_in_place_of_an_infinity_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_infinities(x: Any, let: Any) -> Any:
        top = let(aten.call("constant", aten.call("max", x)), "top")
        return aten.plus(top, aten.call("log", aten.call("sum", aten.call("exp", aten.binary("-")(x, top)))))

    monkeypatch.setattr(aten, "logsumexp", without_infinities)
    with pytest.raises(VerificationError, match="it is nan, the function's -inf"):
        ng.fused(lambda x: torch.logsumexp(x, -1), torch.randn(6, 10))


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x > 0).float(),
        lambda x: (x * 3).to(torch.int32).float(),
        lambda x: x // 0.7,
        torch.no_grad()(lambda x: x * 2),
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(x), reduction="none"),
        lambda x: torch.nan_to_num(x, posinf=1e38, neginf=-1e38),
    ],
    ids=["a condition", "whole numbers", "floor", "no_grad", "float8", "bce", "nan_to_num"],
)
def test_a_function_without_a_gradient_or_a_format_without_infinities_is_traced(function: Any) -> None:
    x = torch.randn(6, 10)
    got, want = ng.fused(lambda x: function(x))(x), function(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.float(), want.float())


def bent(function: str, by: Callable[[Any], Any]) -> tuple[str, Any]:
    return function, lambda x: by(aten.call(function, x))


SLIGHTLY = aten.number(1 + 1e-6)
# A slightly wrong formula of an operation: by a factor, in its gradient alone, in negative elements, in large ones.
FAULTS: dict[str, tuple[str, Any]] = {
    "a factor": bent("tanh", lambda t: aten.product(t, SLIGHTLY)),
    "no gradient of a thousandth": bent(
        "tanh",
        lambda t: aten.plus(
            aten.product(t, aten.number(0.999)), aten.call("constant", aten.product(t, aten.number(0.001)))
        ),
    ),
    "negative ones": ("tanh", lambda x: aten.call("where", aten.call("<", x, aten.ZERO), x, aten.call("tanh", x))),
    "large ones": (
        "tanh",
        lambda x: aten.call("where", aten.call(">", aten.call("abs", x), aten.number(4)), x, aten.call("tanh", x)),
    ),
    "an exponential's": bent("exp", lambda e: aten.product(e, SLIGHTLY)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_spec_of_a_function_that_saturates_is_refused_with_the_row(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(aten.ELEMENTWISE, *FAULTS[name])
    where = r"(result 0|gradient by x) differs most in row \[\d+\], of values \S+ to \S+: it is \S+, the function's \S+"
    with pytest.raises(VerificationError, match=where):
        ng.fused(lambda x: F.softmax(torch.tanh(x / 50) * 50, -1) + torch.exp(-x.abs()), torch.randn(6, 40))


@pytest.mark.parametrize("leading", [(12,), (3, 4)])
def test_what_may_move_is_what_roundings_move(leading: tuple[int, ...]) -> None:
    """1 - tanh(x)**2 is off by 2e-16 of 1 where it is small; a maximum, which rounds nothing, is not moved."""
    x = torch.full((*leading, 8), 12.0, dtype=torch.float64)
    small, top = conditioning.moved_by_roundings(
        lambda: [1 - x.tanh() ** 2, x.amax(-1)], [1 - x.tanh() ** 2, x.amax(-1)]
    )
    assert 1e-16 < float(small.max()) < 4e-15
    assert not top.any()


def label_smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    logs = F.log_softmax(logits, -1)
    hit = -logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return (0.9 * hit - 0.1 * logs.mean(-1)).mean()


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    logs = F.log_softmax(logits, -1).gather(-1, labels[:, None]).squeeze(-1)
    return (-((1 - logs.exp()) ** 2) * logs).mean()


def of_z(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels) + 1e-4 * torch.logsumexp(logits, -1).square().mean()


def distilled(logits: Tensor, teacher: Tensor) -> Tensor:
    return (F.softmax(teacher, -1) * (F.log_softmax(teacher, -1) - F.log_softmax(logits, -1))).sum(-1).mean()


DIVISIONS: dict[str, tuple[Any, Any]] = {
    "label smoothing": (label_smoothed, None),
    "focal": (focal, None),
    "z": (of_z, None),
    "distillation": (distilled, rows(12, COLS)(torch.float32)),
    "of no dims": (lambda x, _: torch.logsumexp(x, -1).mean(), None),
    "of the rows' dim": (lambda x, _: torch.logsumexp(x, -1).mean(0, keepdim=True), None),
    "as many rows as columns": (lambda x, _: x.square().sum(-1).mean(), rows(COLS, COLS)(torch.float32)),
}


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("name", DIVISIONS)
def test_the_mean_of_the_losses_of_rows_is_part_of_the_operator(name: str) -> None:
    function, other = DIVISIONS[name]
    x = torch.randn(12 if other is None else len(other), COLS, requires_grad=True)
    other = torch.randint(0, COLS, (12,)) if other is None else other
    made = ng.fused(function)
    got, want = made(x, other), function(x, other)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)), rtol=1e-4, atol=1e-6)
    assert "total(" in made.spec(x, other)


@pytest.mark.usefixtures("by_operator")
def test_the_mean_of_one_row_stays_one_of_its_columns() -> None:
    x = torch.randn(COLS)
    made = ng.fused(lambda x: (x - x.mean()).square().mean())
    torch.testing.assert_close(made(x), (x - x.mean()).square().mean())
    assert "total(" not in made.spec(x)


def raising(x: Tensor) -> Tensor:
    if x.shape[-1] > 1:
        raise ValueError("a gate needs an even number")
    return x


STACKED = (4, 6, 24)
DRAWN, LAST = "random(seed)", "x.movedim(1, -1)"
# The function, the sizes of its argument, what its refusal says, and a part of the way out.
IN_WORDS: dict[str, tuple[Any, tuple[int, ...], str, str]] = {
    "bernoulli": (lambda x: x * torch.bernoulli(x.sigmoid()), STACKED, "'bernoulli' draws random numbers", DRAWN),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), STACKED, "'batch_norm' is not", LAST),
    "linear": (lambda x: x @ x.transpose(-1, -2), STACKED, "'matmul' is not row-wise", "stays outside"),
    "float64": (lambda x: x.double() * 2, STACKED, "'double': arithmetic is that of float32", ""),
    "roll": (lambda x: x.exp().roll(1, 0) + x, STACKED, "'roll': it goes over rows", "a row is the last axis"),
    "its own error": (raising, STACKED, "ValueError: a gate needs an even number", ""),
}


def with_a_part_set(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 0] = 0.0
    return y


IN_WORDS |= {
    "nothing to do": (lambda x: F.dropout(x, 0.0), STACKED, "computes a result of its rows", "no kernel is needed"),
    "rrelu": (lambda x: F.rrelu(x, training=True), STACKED, "'rrelu' draws random numbers", DRAWN),
    "a part that is set": (with_a_part_set, STACKED, "'x[..] = ..' writes to a part", "torch.where"),
    "take_along_dim": (
        lambda x: torch.take_along_dim(x, x.argmax(-1, keepdim=True), -1),
        STACKED,
        "'take_along_dim': arithmetic is that of float32",
        "torch.gather",
    ),
    "nan_to_num": (torch.nan_to_num, STACKED, "'nan_to_num': a constant of a formula is below 1.7e38", "posinf=1e38"),
}


@pytest.mark.parametrize("name", IN_WORDS)
def test_a_refusal_has_the_reason_and_the_way_out_in_the_words_of_the_author(name: str) -> None:
    function, sizes, says, way = IN_WORDS[name]
    with pytest.raises(UsageError) as error:
        ng.fused(function, torch.randn(sizes))
    assert says in error.value.rule
    assert way in str(error.value.hint)
    told = f"{error.value.rule} {error.value.hint}"
    inner = r"symbolic|SymInt|Fraction|RuntimeError|\.cpp|\baten\b|_copy\b|\bs\d+\b|\[\d+,|with_sizes|scalar_tensor"
    assert not re.search(inner, told), told
