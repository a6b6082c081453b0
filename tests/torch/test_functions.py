"""The functions against float64 references within the error model's bounds, and what they take."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402
from normgen.errors import OutsideError, UsageError  # noqa: E402
from normgen.operators.forms import Uses  # noqa: E402
from normgen.problem.question import Direction  # noqa: E402
from normgen.torch import calls  # noqa: E402
from tests.operators.cases import FUNCTIONS, IDS  # noqa: E402
from tests.torch.cases import case, forgotten, readies, to_torch  # noqa: E402


def arguments(function: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By the names of the function's parameters; what the kernel alone reads is left out."""
    renamed = ng.TABLE[function].takes
    called = {name: renamed.get(name, name) if isinstance(renamed, dict) else name for name in tensors}
    known = inspect.signature(getattr(ng, function)).parameters
    return {called[name]: tensor for name, tensor in tensors.items() if called[name] in known}


def results(found: object) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def spec_scalars(function: str) -> dict[str, float]:
    """The spec's own: a function may have another default."""
    return dict(getattr(ng, function).operator.spec.scalars)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("function", "op", "present", "wrt"), FUNCTIONS, ids=IDS)
def test_a_function_is_within_the_bound_of_its_spec_and_its_gradients_are_those_of_float64(
    function: str, op: str, present: list[str], wrt: list[str], dtype: str, device: str
) -> None:
    made, scalars = getattr(ng, function), spec_scalars(function)
    forward = case(op, (2, 5, 256), dtype, device, present=present)
    leaves = {name: t.requires_grad_(name in wrt) for name, t in forward.tensors.items()}
    found = results(made(**arguments(function, leaves), **scalars))
    for name, result in zip(made.operator.returns, found, strict=True):
        assert forward.share(name, result) < 1, name

    cotangents = [torch.randn_like(result) for result in found]
    gradients = torch.autograd.grad(found, [leaves[name] for name in wrt], cotangents)
    doubles = {
        name: t.detach().double().requires_grad_(name in wrt) if t.is_floating_point() else t
        for name, t in leaves.items()
    }
    exact = results(made.operator.decomposition(**arguments(function, doubles), **scalars))
    wants = torch.autograd.grad(exact, [doubles[name] for name in wrt], [c.double() for c in cotangents])
    for name, got, want in zip(wrt, gradients, wants, strict=True):
        assert got.dtype == leaves[name].dtype
        assert got.shape == leaves[name].shape
        # What is saved is rounded once more; in float32 a row's sums and functions are off by some roundings too, and
        # terms of size 1 and of either sign, as many as the gradient sums, cancel.
        roundings = 16 if got.dtype == torch.float32 else 4
        summed = 2 * 5 * 256 / got.numel()
        scale = want.abs() + want.abs().max() + (summed**0.5 if summed > 1 else 0)
        limit = roundings * torch.finfo(got.dtype).eps * scale
        assert ((got.double() - want).abs() <= limit).all(), name


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_reduction_of_losses_ends_their_own_node(reduction: str, device: str) -> None:
    x = torch.randn(4, 3, 8, device=device, requires_grad=True)
    target = torch.randint(0, 8, (4, 3), device=device)
    target[1] = -100
    loss = ng.cross_entropy(x, target, reduction=reduction)
    ((leaf, _),) = [(node, place) for node, place in loss.grad_fn.next_functions if node is not None]
    assert leaf.variable is x
    weights = torch.rand_like(loss)
    (got,) = torch.autograd.grad(loss, x, weights)
    wide = x.detach().double().requires_grad_()
    want = torch.nn.functional.cross_entropy(wide.movedim(-1, 1), target, reduction=reduction)
    (gradient,) = torch.autograd.grad(want, wide, weights.double())
    torch.testing.assert_close(got.double(), gradient, rtol=1e-5, atol=1e-6)


def test_a_loss_keeps_no_logits_when_its_backward_pass_has_run(device: str) -> None:
    leaf = torch.randn(3, 8, device=device, requires_grad=True)
    logits = leaf * 1
    loss = ng.cross_entropy(logits, torch.tensor([1, 7, 0], device=device))
    kept = weakref.ref(logits)
    del logits
    loss.backward()
    gc.collect()
    assert kept() is None
    assert leaf.grad is not None


def test_losses_of_tensors_without_values_have_their_shape() -> None:
    x, target = torch.empty(3, 8, device="meta", requires_grad=True), torch.empty(3, dtype=torch.long, device="meta")
    loss = ng.cross_entropy(x, target)
    loss.backward()
    assert (loss.shape, x.grad.shape) == ((), (3, 8))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy_is_torchs(reduction: str, device: str) -> None:
    x = torch.randn(40, 300, device=device, requires_grad=True)
    target = torch.randint(0, 300, (40,), device=device)
    target[::7] = -5
    options = {"ignore_index": -5, "label_smoothing": 0.1, "reduction": reduction}
    got = ng.cross_entropy(x, target, **options)
    wide = x.detach().double().requires_grad_()
    want = torch.nn.functional.cross_entropy(wide, target, **options)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    by = torch.randn_like(got)
    (gradient,), (exact,) = torch.autograd.grad(got, x, by), torch.autograd.grad(want, wide, by.double())
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-4, atol=1e-6)


NO_COLUMNS = [(torch.int64, -1), (torch.int64, 9), (torch.int64, -7), (torch.int64, 2**40), (torch.int32, 9)]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(("dtype", "label"), NO_COLUMNS)
def test_a_label_that_is_no_column_is_an_index_error_on_the_cpu_as_torchs(
    dtype: torch.dtype, label: int, reduction: str
) -> None:
    x = torch.randn(2, 2, 9)
    target = torch.tensor([[1, label], [-100, 0]], dtype=dtype)
    with pytest.raises(IndexError):
        torch.nn.functional.cross_entropy(x.flatten(0, 1), target.flatten().long())
    rule = rf"(?s)a label is one of the 9 columns, from 0, or ignore_index=-100\n  received: {label}\n  hint: "
    with pytest.raises(OutsideError, match=rule) as raised:
        ng.cross_entropy(x, target, reduction=reduction)
    assert isinstance(raised.value, IndexError)
    with pytest.raises(OutsideError, match=f"received: {label}, and 1 more"):
        ng.cross_entropy(x, target, ignore_index=0, reduction=reduction)
    target[1, 0] = 0
    assert ng.cross_entropy(x, target, ignore_index=label, reduction="none")[0, 1] == 0


NO_INDICES = (2**24 + 1, 2**31 - 1, 2**63, "x", None, 1.5, float("nan"), True, np.True_, torch.tensor(True))
NO_SHARES = (-0.1, 1.5, float("nan"), "x", None, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("ignore_index", value) for value in NO_INDICES), *(("label_smoothing", value) for value in NO_SHARES)],
)
def test_what_is_said_of_labels_is_refused_by_name_where_it_is_no_such_number(name: str, value: object) -> None:
    x, target = torch.randn(2, 9), torch.tensor([0, 8])
    with pytest.raises(UsageError, match=f"{name} is a (whole )?number") as raised:
        ng.cross_entropy(x, target, **{name: value})
    assert raised.value.received == repr(value)


@pytest.mark.parametrize(
    "value", [0.5, float("nan"), True, np.True_, torch.tensor(True), 2**24 + 1, "3", None], ids=repr
)
def test_an_operator_refuses_a_label_that_is_no_whole_number(value: object) -> None:
    loss, x, target = ng.operator("cross_entropy"), torch.randn(2, 9), torch.tensor([0, 1])
    assert loss(x, target, ignore_index=1.0)[1] == 0
    for call in (loss, loss.decomposition, lambda *args, **named: loss(*args, **named, opaque=True)):
        with pytest.raises(UsageError, match="the scalar 'ignore_index' is"):
            call(x, target, ignore_index=value)


@pytest.mark.parametrize("opaque", [False, True])
def test_a_compiled_operator_refuses_a_label_that_is_no_whole_number(opaque: bool) -> None:
    loss, x, target = ng.operator("cross_entropy", opaque=opaque), torch.randn(2, 9), torch.tensor([0, 1])
    torch.compiler.reset()
    compiled = torch.compile(lambda *args: loss(*args, ignore_index=0.5), backend="aot_eager")
    with pytest.raises(Exception, match="the scalar 'ignore_index' is a whole number"):
        compiled(x, target)


@pytest.mark.parametrize("value", ["x", None, [1], 1e39], ids=repr)
def test_a_scalar_that_is_no_number_is_refused_by_name(value: object) -> None:
    x, weight, target = torch.randn(2, 9), torch.ones(9), torch.tensor([0, 1])
    with pytest.raises(UsageError, match="the scalar 'eps' is a number that float32 holds"):
        ng.rms_norm(x, weight, eps=value)
    with pytest.raises(UsageError, match="the scalar 'z_loss' is a number that float32 holds"):
        ng.cross_entropy(x, target, z_loss=value)
    with pytest.raises(UsageError, match="the scalar 'eps' is a number that float32 holds"):
        ng.rms_norm.operator.decomposition(x, weight, eps=value)


@pytest.mark.parametrize(
    "options", [{"ignore_index": v} for v in (2**31, -(2**63), 2**24, np.int64(1))] + [{"label_smoothing": 1}]
)
def test_what_is_said_of_labels_is_taken_as_torchs(options: dict[str, object]) -> None:
    x, target = torch.randn(2, 9), torch.tensor([0, 1])
    torch.testing.assert_close(
        ng.cross_entropy(x, target, **options), torch.nn.functional.cross_entropy(x, target, **options)
    )


def run(way: str, call: object) -> object:
    """The function itself, or as a compiled program that calls the kernel, or the formulas."""
    if way == "eager":
        return call
    torch.compiler.reset()
    opaque = way == "compiled, opaque"
    return torch.compile(lambda *args, **named: call(*args, opaque=opaque, **named), backend="aot_eager")  # type: ignore[operator]


WAYS = ["eager", "compiled, opaque", "compiled"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "label"), NO_COLUMNS)
def test_a_label_that_is_no_column_makes_its_row_nan_where_no_call_stops_for_it(
    dtype: torch.dtype, label: int, way: str, device: str
) -> None:
    x = torch.randn(4, 9, device=device, requires_grad=True)
    target = torch.tensor([1, label, -100, 8], dtype=dtype, device=device)
    op = ng.operator("cross_entropy", returns=("loss",))  # the eager function stops for it on the CPU
    loss = run(way, op)(x, target, label_smoothing=0.1, z_loss=1e-3)  # type: ignore[operator]
    assert loss.isnan().tolist() == [False, True, False, False]
    (gradient,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    assert torch.equal(gradient.isnan(), loss.isnan()[:, None].expand(4, 9))
    assert not gradient[2].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("label_smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-3)])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_where_no_label_counts_the_gradient_is_0_and_the_mean_nan_as_torchs(
    reduction: str, label_smoothing: float, z_loss: float, way: str, device: str
) -> None:
    """So that a batch of padding alone leaves the weights as they are."""
    x = torch.randn(3, 9, device=device, requires_grad=True)
    target = torch.full((3,), -100, device=device)
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    loss = run(way, ng.cross_entropy)(x, target, z_loss=z_loss, **options)  # type: ignore[operator]
    want = torch.nn.functional.cross_entropy(x, target, **options)
    torch.testing.assert_close(loss, want, rtol=0, atol=0, equal_nan=True)
    for result in (loss, want):
        (gradient,) = torch.autograd.grad(result.sum(), x)
        assert not gradient.any()


def test_a_z_loss_adds_the_square_of_the_log_of_the_sum(device: str) -> None:
    x, target = torch.randn(9, 50, device=device), torch.randint(0, 50, (9,), device=device)
    more = ng.cross_entropy(x, target, z_loss=0.25, reduction="none") - ng.cross_entropy(x, target, reduction="none")
    torch.testing.assert_close(more.double(), 0.25 * x.double().logsumexp(-1) ** 2, rtol=1e-4, atol=1e-4)


LAYOUTS = {
    "rows of one stride": lambda x: x[:, :, :128],
    "a transposed matrix": lambda x: x[0].T[:, :5].reshape(256, 5).expand(256, 5),
    "rows of two strides": lambda x: x[:, ::2, :128][:, :2],
    "columns apart": lambda x: x[..., ::2],
    "one row for all": lambda x: x[:1, :1].expand(2, 6, 256),
    "no rows": lambda x: x[:, :0],
    "one row": lambda x: x[0, 0],
    "four dimensions": lambda x: x.reshape(2, 3, 2, 256),
    "an odd start": lambda x: x.reshape(-1)[1 : 1 + 5 * 256].reshape(5, 256),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_leading_sizes_and_strides_are_taken(layout: str, device: str) -> None:
    base = torch.randn(2, 6, 256, device=device, dtype=torch.bfloat16)
    x = LAYOUTS[layout](base).detach().requires_grad_()
    weight = torch.randn(x.shape[-1], device=device, requires_grad=True)
    y = ng.rms_norm(x, weight, 1e-5)
    by = torch.randn_like(y)[..., :1].expand(y.shape)
    gradients = torch.autograd.grad(y, (x, weight), by)
    wide, scale = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    want = torch.nn.functional.rms_norm(wide, wide.shape[-1:], scale, 1e-5)
    exact = torch.autograd.grad(want, (wide, scale), by.double())
    assert y.shape == x.shape
    assert y.is_contiguous() or y.stride() == x.stride()  # rows side by side stay so
    torch.testing.assert_close(y.double(), want, rtol=2**-7, atol=2**-12)
    for got, wanted in zip(gradients, exact, strict=True):
        largest = float(wanted.abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(got.double(), wanted, rtol=2**-6, atol=2**-6 * largest)


def test_a_result_is_never_the_argument_itself() -> None:
    """Of llama's norm without a residual the sum is x: as a result it is a copy."""
    x = torch.randn(3, 8)
    y, h = ng.operator("llama_rmsnorm", returns=("y", "h"))(x)
    assert h.data_ptr() != x.data_ptr() and torch.equal(h, x) and y.shape == x.shape  # noqa: PT018


def test_outputs_have_the_dtype_that_torch_promotes_the_inputs_to(device: str) -> None:
    x, residual = torch.randn(4, 64, device=device).bfloat16(), torch.randn(4, 64, device=device)
    y, h = ng.add_rms_norm(x, residual)
    assert y.dtype == h.dtype == (x + residual).dtype == torch.float32
    assert torch.equal(h, x + residual)
    assert ng.rms_norm(x, torch.ones(64, device=device)).dtype == torch.bfloat16
    wide = ng.rms_norm(x, dtype=torch.float32)
    torch.testing.assert_close(wide, torch.nn.functional.rms_norm(x.float(), (64,)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: ng.rms_norm(torch.randn(3, 8), torch.randn(7)), r"'weight' of 'rms_norm' has the shape \(8,\) here"),
        (lambda: ng.swiglu(torch.randn(3, 8), torch.randn(2, 8)), r"'up' of 'swiglu' has the shape \(3, 8\) here"),
        (lambda: ng.softmax(torch.tensor(1.0)), "takes \\[.., cols\\]"),
        (lambda: ng.softmax(np.ones((2, 3))), "'input' of 'softmax' is a torch tensor"),
        (lambda: ng.rms_norm(torch.randn(3, 8), np.ones(8)), "is a torch tensor"),
        (lambda: ng.softmax(torch.ones(2, 3, dtype=torch.int32)), "stored as one of: f32, f16, bf16"),
        (lambda: ng.softmax(torch.ones(2, 3, dtype=torch.complex64)), "in one of normgen's dtypes"),
        (lambda: ng.cross_entropy(torch.randn(3, 8), torch.tensor([1, 2, 3]), reduction="men"), "did you mean 'mean'"),
        (lambda: ng.operator("rmsnorm", returns=("z",)), "writes no such tensor"),
        (lambda: ng.operator("rmsnrm"), "did you mean 'rmsnorm'"),
    ],
)
def test_what_does_not_fit_is_refused(call: object, rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("size", [(2, 8), (2, 1, 8)])
def test_a_parameter_of_batches_has_a_gradient_of_its_shape(size: tuple[int, ...]) -> None:
    x, dy = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    scale, shift = (torch.randn(size, requires_grad=True) for _ in range(2))
    found = torch.autograd.grad(ng.ada_layer_norm(x, scale, shift), (scale, shift), dy)
    by_torch = ng.ada_layer_norm.operator.decomposition(x, scale, shift)
    for gradient, want in zip(found, torch.autograd.grad(by_torch, (scale, shift), dy), strict=True):
        assert gradient.shape == size
        torch.testing.assert_close(gradient, want, rtol=1e-4, atol=1e-5)
    alone = torch.autograd.grad(ng.ada_layer_norm(x, scale.detach(), shift), shift, dy)[0]
    torch.testing.assert_close(alone, dy.sum(1).reshape(size))


def test_a_parameter_of_heads_has_a_gradient_for_each_head() -> None:
    norm = ng.operator("head_layernorm", returns=("y",))
    x, dy = torch.randn(2, 5, 3, 8), torch.randn(2, 5, 3, 8)
    x, weight, bias = (t.requires_grad_() for t in (x, torch.randn(3, 8), torch.randn(3, 8)))
    found = torch.autograd.grad(norm(x, weight, bias), (x, weight, bias), dy)
    want = torch.nn.functional.layer_norm(x, (8,)) * weight + bias
    for gradient, exact in zip(found, torch.autograd.grad(want, (x, weight, bias), dy), strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-5)
    empty = norm(x[:, :0], weight, bias)
    assert empty.shape == (2, 0, 3, 8)
    assert torch.equal(torch.autograd.grad(empty.sum(), bias)[0], torch.zeros(3, 8))


TEXT = """
name = "clipped_norm"
[tensors]
x = "input"
weight = { role = "parameter", optional = true, absent = "1" }
rstd = { role = "statistic", optional = true }
y = "output"
[scalars]
limit = 2
[formulas]
rstd = "rsqrt(mean(x**2) + 1e-6)"
y = "clamp(x * rstd, -limit, limit) * weight"
[backward]
saved = ["rstd"]
"""


def clipped_norm(x: torch.Tensor, weight: torch.Tensor, limit: float) -> torch.Tensor:
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)).clamp(-limit, limit) * weight


def test_any_text_is_an_operator_in_one_call(device: str, tmp_path: object) -> None:
    made = ng.operator(TEXT)
    file = tmp_path / "clipped_norm.toml"  # type: ignore[operator]
    file.write_text(TEXT)
    assert ng.operator(str(file)).operators is made.operators  # registered once
    x = torch.randn(7, 96, device=device, requires_grad=True)
    weight = torch.randn(96, device=device, requires_grad=True)
    y = made(x, weight, limit=1.5)
    want = clipped_norm(x.double(), weight.double(), 1.5)
    torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-5)
    by = torch.randn_like(y)
    exact = torch.autograd.grad(want, (x, weight), by.double())
    for got, wanted in zip(torch.autograd.grad(y, (x, weight), by), exact, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert str(inspect.signature(made.function)) == "(x, weight=None, limit=2.0, *, dtype=None, opaque=None)"


def test_a_spec_may_name_its_tensors_as_we_name_our_options() -> None:
    text = 'name = "lambda"\n[tensors]\ndtype = "input"\nrun = "input"\ny = "output"\n[scalars]\nopaque = 3\n'
    made = ng.operator(text + '[formulas]\ny = "opaque * dtype + run"\n')
    x = torch.randn(2, 4)
    torch.testing.assert_close(made(x, x, opaque_=2.0), 3 * x)
    torch.testing.assert_close(made(dtype_=x, run=x, dtype=torch.bfloat16), (4 * x).bfloat16())


def test_a_quantiser_returns_its_scales(device: str) -> None:
    x = torch.randn(5, 256, device=device)
    scale, q = (lambda found: (found[1], found[0]))(ng.operator("quantize_to_int8_token")(x))
    assert q.dtype == torch.int8
    assert scale.shape == (5,)
    assert ((q * scale[:, None] - x).abs() <= 0.5001 * scale[:, None]).all()


def on_the_cpu(*args: object, **named: object) -> object:
    """A handle of the emitted text, run on the CPU; its results as torch tensors."""
    made = launched(*args, **{**named, "device": "cpu"})  # type: ignore[operator]

    class Wrapped:
        def __call__(self, *arrays: object, **scalars: object) -> object:
            found = made(*arrays, **scalars)
            return tuple(map(to_torch, found)) if isinstance(found, tuple) else to_torch(found)

    return Wrapped()


launched = calls.handle


@pytest.mark.parametrize(
    ("function", "wrt"), [("add_layer_norm", ["x", "residual", "bias"]), ("softmax_sink", ["sink"])]
)
def test_the_emitted_text_gets_what_it_asks_for_and_its_results_have_their_names(
    function: str, wrt: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a call on a GPU, with the CPU's executor at its end."""
    pytest.importorskip("normgen.cpu.compiler").require_compiler()
    made = getattr(ng, function)
    op = made.operator.spec.name
    inputs = case(op, (3, 64), "f32", "cpu", present=["weight", "bias", "h"] if "norm" in op else [])
    leaves = {name: t.requires_grad_(name in wrt) for name, t in inputs.tensors.items()}
    by_formula = results(made(**arguments(function, leaves)))
    by = [torch.randn_like(y) for y in by_formula]
    wants = torch.autograd.grad(by_formula, [leaves[name] for name in wrt], by)

    monkeypatch.setattr(calls, "takes_a_kernel", lambda *_: True)
    monkeypatch.setattr(calls, "handle", on_the_cpu)
    known = forgotten(made.operator, monkeypatch)
    by_kernel = results(made(**arguments(function, leaves)))
    found = torch.autograd.grad(by_kernel, [leaves[name] for name in wrt], by)
    assert all(type(ready._made).__name__ == "Wrapped" for ready in readies(known))
    assert {key[0].form.direction for key in known if isinstance(key, tuple) and isinstance(key[0], Uses)} == {
        Direction.BACKWARD
    }
    for got, want in zip((*by_kernel, *found), (*by_formula, *wants), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


GROUPED = """
name = "by_groups"
[tensors]
x = "input"
scale = { role = "ROLE", group = 4 }
weight = { role = "parameter", group = 6, optional = true, absent = "1" }
bias = "parameter"
y = "output"
[formulas]
h = "x * scale"
y = "h * rsqrt(mean(h * h) + 1e-5) * weight + bias"
"""


@pytest.mark.parametrize(("role", "size"), [("parameter", ()), ("batch_parameter", (2,)), ("head_parameter", (3,))])
def test_a_parameter_of_groups_is_repeated_along_the_columns(role: str, size: tuple[int, ...]) -> None:
    norm = ng.operator(GROUPED.replace("ROLE", role))
    x, dy, bias = torch.randn(2, 5, 3, 12), torch.randn(2, 5, 3, 12), torch.randn(12)
    scale, weight = torch.randn(*size, 3), torch.rand(2) + 0.5  # the test divides by the weight
    leaves = [tensor.requires_grad_() for tensor in (x, bias, scale, weight)]

    def plain(x: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        each = scale.repeat_interleave(4, -1)
        h = x * (each.reshape(2, 1, 1, 12) if role == "batch_parameter" else each)
        return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5) * weight.repeat_interleave(6) + bias

    assert "weight: [cols / 6], may be None" in str(norm.function.__doc__)
    y, want = norm(x, weight=weight, bias=bias, scale=scale), plain(*leaves)
    torch.testing.assert_close(y, want)
    found = torch.autograd.grad(y, leaves, dy)
    for gradient, exact in zip(found, torch.autograd.grad(want, leaves, dy), strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-5)
    made = torch.compile(norm.function, backend="aot_eager", fullgraph=True)(x, weight=weight, bias=bias, scale=scale)
    for gradient, exact in zip(torch.autograd.grad(made, leaves, dy), found, strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm(x, bias=bias, scale=scale) - bias, (want - bias) / weight.repeat_interleave(6))
    assert norm(x[:, :0], weight=weight, bias=bias, scale=scale).shape == (2, 0, 3, 12)
    refused = {
        r"'by_groups' takes cols that are whole groups of 4": {"x": x[..., :6]},
        r"'weight' of 'by_groups' is \[2\] here, a value for each 6 columns": {"weight": torch.randn(12)},
        r"'scale' of 'by_groups' is \[.*3\] here, a value for each 4 columns": {"scale": torch.randn(*size, 12)},
    }
    for rule, wrong in refused.items():
        with pytest.raises(UsageError, match=rule):
            norm(**{"x": x, "weight": weight, "bias": bias, "scale": scale, **wrong})


@pytest.mark.parametrize(("role", "size"), [("parameter", ()), ("batch_parameter", (2,)), ("head_parameter", (3,))])
def test_the_emitted_text_has_the_gradients_of_groups(
    role: str, size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("normgen.cpu.compiler").require_compiler()
    norm = ng.operator(GROUPED.replace("ROLE", role).replace("by_groups", f"by_groups_{role}"))
    given = {"x": torch.randn(2, 5, 3, 12), "bias": torch.randn(12), "scale": torch.randn(*size, 3)}
    given |= {"weight": torch.randn(2)}
    leaves = {name: tensor.requires_grad_() for name, tensor in given.items()}
    dy, y = torch.randn(2, 5, 3, 12), norm(**leaves)
    wants = torch.autograd.grad(y, list(leaves.values()), dy)
    monkeypatch.setattr(calls, "takes_a_kernel", lambda *_: True)
    monkeypatch.setattr(calls, "handle", on_the_cpu)
    known = forgotten(norm, monkeypatch)
    found = torch.autograd.grad(norm(**leaves), list(leaves.values()), dy)
    assert len(readies(known)) == 2  # both directions
    assert all(type(ready._made).__name__ == "Wrapped" for ready in readies(known))
    for name, got, want in zip(leaves, found, wants, strict=True):
        assert got.shape == given[name].shape
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_mean_without_a_gradient_is_four_operations_beside_the_losses() -> None:
    """What keeps an infinite gradient away is asked for where a gradient will be."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noted(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    logits, labels = torch.randn(4, 10), torch.tensor([1, 2, -100, 3])
    with Noted() as plain:
        mean = ng.cross_entropy(logits, labels)
    assert plain.names[1:] == ["aten.sum.default", "aten.ne.Scalar", "aten.sum.default", "aten.div.Tensor"]
    wanted = logits.clone().requires_grad_()
    with Noted() as kept:
        loss = ng.cross_entropy(wanted, labels)
    assert "aten.masked_fill.Scalar" in kept.names
    assert torch.equal(loss, mean)
    assert ng.cross_entropy(logits, torch.full((4,), -100)).isnan()


@pytest.mark.gpu
def test_an_eager_mean_on_a_gpu_is_a_kernel_its_finish_and_a_division() -> None:
    from torch.profiler import ProfilerActivity, profile

    logits, labels = torch.randn(64, 1000, device="cuda"), torch.randint(0, 1000, (64,), device="cuda")
    for _ in range(2):
        ng.cross_entropy(logits, labels)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        ng.cross_entropy(logits, labels)
        torch.cuda.synchronize()
    kernels = [event.name for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert 1 <= len(kernels) <= 3, kernels


@pytest.mark.parametrize("dim", [True, 1.0, "1", None, (1,), 4, -5])
def test_a_dimension_that_is_none_is_refused(dim: Any) -> None:
    with pytest.raises(UsageError, match="dim is one of the 4 dimensions") as refused:
        ng.softmax(torch.zeros(2, 3, 4, 5), dim)
    assert refused.value.received == f"dim={dim!r}"


def test_a_dimension_is_any_whole_number() -> None:
    x = torch.randn(2, 3, 4)
    assert torch.equal(ng.softmax(x, np.int64(1)), ng.softmax(x, 1))
