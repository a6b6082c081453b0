"""The loss of a linear layer whose logits are never stored: values, gradients, what is refused, what it takes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402
from normgen.errors import OutsideError, UsageError  # noqa: E402
from normgen.torch import linear_loss  # noqa: E402
from normgen.torch.gated import gated_products  # noqa: E402
from normgen.torch.linear_loss import SLICES, slice_of  # noqa: E402

INNER, CLASSES = 40, 4500  # of three slices, the last one narrower
OPTIONS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1, "z_loss": 1e-3},
    {"reduction": "sum", "ignore_index": 7},
    {"reduction": "none", "z_loss": 0.01},
]
ERRORS = {torch.float64: 1e-14, torch.float32: 4e-6, torch.bfloat16: 1.2e-2, torch.float16: 2e-3}  # of the largest
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def drawn(dtype: Any, device: str, rows: tuple[int, ...] = (3, 7)) -> tuple[Any, Any, Any]:
    torch.manual_seed(4)
    x = torch.randn(*rows, INNER, device=device).to(dtype).requires_grad_()
    w = (torch.randn(CLASSES, INNER, device=device) / 6).to(dtype).requires_grad_()
    return x, w, torch.randint(0, CLASSES, rows, device=device)


def reference(x: Any, w: Any, target: Any, z_loss: float = 0.0, **options: Any) -> tuple[Any, Any, Any]:
    """The loss and both gradients, by torch in float64, logits and all."""
    x, w = (t.detach().double().requires_grad_() for t in (x, w))
    z = (x @ w.T).flatten(0, -2)
    loss = torch.nn.functional.cross_entropy(z, target.flatten(), **options)
    counts = target.flatten() != options.get("ignore_index", -100)
    square = z_loss * z.logsumexp(-1) ** 2 * counts
    ways = {"none": square, "sum": square.sum()}
    loss = loss + ways.get(options.get("reduction", ""), square.sum() / counts.sum())
    loss.sum().backward()
    return loss.detach(), x.grad, w.grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_loss_and_gradients_are_those_of_float64(options: dict[str, Any], dtype: Any, device: str) -> None:
    x, w, target = drawn(dtype, device)
    target[1, 2] = target[2, 6] = options.get("ignore_index", -100)
    found = ng.linear_cross_entropy(x, w, target, **options)
    found.sum().backward()
    loss, dx, dw = reference(x, w, target, **options)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double().flatten(), loss.flatten(), rtol=5e-6, atol=1e-6)
    for own, exact in ((x.grad, dx), (w.grad, dw)):
        assert own.dtype == dtype
        assert (own.double() - exact).abs().max() <= ERRORS[dtype] * exact.abs().max()


def test_a_gradient_that_nobody_asks_for_is_not_computed() -> None:
    x, w, target = drawn(torch.float32, "cpu")
    ng.linear_cross_entropy(x.detach(), w, target).backward()
    ng.linear_cross_entropy(x, w.detach(), target).backward()
    _, dx, dw = reference(x, w, target)
    torch.testing.assert_close(x.grad.double(), dx, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(w.grad.double(), dw, rtol=1e-4, atol=1e-7)


def test_no_labels_that_count_give_nan_and_a_gradient_of_zero() -> None:
    x, w, target = drawn(torch.float32, "cpu")
    loss = ng.linear_cross_entropy(x, w, torch.full_like(target, -100))
    loss.backward()
    assert loss.isnan()
    assert not x.grad.any()
    assert not w.grad.any()


def test_without_rows_there_is_a_sum_of_zero() -> None:
    x, w, target = drawn(torch.float32, "cpu", (0,))
    loss = ng.linear_cross_entropy(x, w, target, reduction="sum")
    loss.backward()
    assert loss == 0
    assert x.grad.shape == (0, INNER)
    assert not w.grad.any()


def test_autograd_agrees_with_differences() -> None:
    x, w, target = drawn(torch.float64, "cpu", (2,))
    w = w[:9].detach().requires_grad_()
    asked = (x, w, target % 9, -100, "mean", 0.1)
    assert torch.autograd.gradcheck(lambda *a: ng.linear_cross_entropy(*a, z_loss=0.02), asked)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # torch's advice, once a process
@pytest.mark.parametrize("device", DEVICES)
def test_a_compiled_module_has_one_graph_and_the_same_gradients(device: str) -> None:
    torch.manual_seed(2)
    module = ng.LinearCrossEntropy(INNER, CLASSES, label_smoothing=0.1, device=device)
    x, _, target = drawn(torch.float32, device)
    compiled = torch.compile(module, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    compiled(x, target).backward()
    _, dx, dw = reference(x, module.weight, target, label_smoothing=0.1)
    assert (x.grad.double() - dx).abs().max() <= 4e-6 * dx.abs().max()
    assert (module.weight.grad.double() - dw).abs().max() <= 4e-6 * dw.abs().max()
    assert module.state_dict().keys() == torch.nn.Linear(INNER, 5, bias=False).state_dict().keys()


def test_under_autocast_both_factors_are_cast_as_by_a_linear_layer() -> None:
    x, w, target = drawn(torch.float32, "cpu")
    with torch.autocast("cpu", torch.bfloat16):
        found = ng.linear_cross_entropy(x, w, target)
    found.backward()
    loss, _, _ = reference(x.bfloat16(), w.bfloat16(), target)
    torch.testing.assert_close(found.double(), loss, rtol=5e-6, atol=1e-6)
    assert x.grad.dtype == w.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reduction": "avg"}, "unknown reduction"),
        ({"label_smoothing": 2.0}, "label_smoothing"),
        ({"ignore_index": 2**24 + 1}, "ignore_index"),
        ({"target": lambda t: t.float()}, "a target is a label for each row"),
        ({"target": lambda t: t[0]}, "a target is a label for each row"),
        ({"target": lambda t: t.to(torch.uint16)}, "a target is a label for each row"),
        ({"target": lambda t: t.to("meta")}, "on one device"),
        ({"weight": lambda t: t.to("meta")}, "on one device"),
        ({"z_loss": None}, "'z_loss' is a number"),
        ({"z_loss": "x"}, "'z_loss' is a number"),
        ({"weight": lambda t: t[:, :-1]}, "weight \\[classes, inner\\]"),
        ({"weight": lambda t: t.double()}, "of one dtype"),
        ({"input": lambda _: [[1.0]]}, "'input' is a torch tensor"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], said: str) -> None:
    x, w, target = drawn(torch.float32, "cpu")
    given = {"input": x, "weight": w, "target": target}
    given |= {name: how(given[name]) if callable(how) else how for name, how in change.items()}
    with pytest.raises(UsageError, match=said):
        ng.linear_cross_entropy(**given)


def test_a_label_that_is_no_class_is_refused() -> None:
    x, w, target = drawn(torch.float32, "cpu")
    target[0, 0] = CLASSES
    with pytest.raises(OutsideError, match="one of the 4500 columns"):
        ng.linear_cross_entropy(x, w, target)


@pytest.mark.parametrize("classes", [1, 2048, 32000, 50257, 128256, 151936])
def test_slices_are_few_and_whole(classes: int) -> None:
    width = slice_of(classes)
    assert width % 64 == 0
    assert -(-classes // width) <= SLICES


@pytest.mark.gpu
def test_the_logits_are_never_there() -> None:
    torch.manual_seed(3)
    rows, inner, classes = 2048, 512, 65536
    x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(classes, inner, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, classes, (rows,), device="cuda")
    ng.linear_cross_entropy(x, w, target).backward()
    x.grad = w.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ng.linear_cross_entropy(x, w, target).backward()
    scratch = torch.cuda.max_memory_allocated() - before - 2 * (x.numel() + w.numel())
    assert scratch <= rows * classes * 2 / 8


def test_a_compilers_gradients_lie_as_the_operators_do() -> None:
    """Of rows that lie column by column, and of weights with a pitch."""
    x, w, target = torch.randn(INNER, 6).t(), torch.randn(300, 2 * INNER)[:, :INNER], torch.randint(0, 300, (6,))
    _, lse = linear_loss._forward_op(x, w, target, -100.0, 0.0, 0.0)
    asked = (torch.ones(6), x, w, target, lse, -100.0, 0.0, 0.0, True, True)
    torch.library.opcheck(linear_loss._backward_op, asked, test_utils=["test_schema", "test_faketensor"])


def test_transforms_and_forward_mode_derivatives_are_those_of_logits() -> None:
    x, w, target = (t.detach() for t in drawn(torch.float64, "cpu", (2, 3)))
    w, target = w[:9], target % 9

    def ours(x: Any, target: Any = target) -> Any:
        return ng.linear_cross_entropy(x, w, target, label_smoothing=0.1)

    def theirs(x: Any, target: Any = target) -> Any:
        return torch.nn.functional.cross_entropy((x @ w.T).flatten(0, -2), target.flatten(), label_smoothing=0.1)

    for transform in (
        lambda call: torch.func.grad(call)(x),
        lambda call: torch.vmap(torch.func.grad(call))(x, target),
        lambda call: torch.func.jvp(call, (x,), (x,)),
        lambda call: torch.func.hessian(call)(x),
    ):
        want = transform(theirs)
        torch.testing.assert_close(transform(ours), want, rtol=1e-5, atol=1e-6)
        compiled = torch.compile(transform, backend="aot_eager")
        torch.testing.assert_close(compiled(ours), want, rtol=1e-5, atol=1e-6)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        found, want = (torch.autograd.forward_ad.unpack_dual(call(dual)).tangent for call in (ours, theirs))
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)


def test_a_second_derivative_is_refused() -> None:
    x, w, target = drawn(torch.float32, "cpu")
    (first,) = torch.autograd.grad(ng.linear_cross_entropy(x, w, target), x, create_graph=True)
    with pytest.raises(UsageError, match="a first derivative and no second one"):
        first.sum().backward()


def test_tensors_of_the_meta_device_have_a_loss_there() -> None:
    x, w, target = (t.to("meta") for t in drawn(torch.float32, "cpu"))
    assert ng.linear_cross_entropy(x, w, target).device.type == "meta"
    y = gated_products("swiglu")(torch.ones(3, INNER, device="meta"), w, w)
    assert (y.device.type, y.shape) == ("meta", (3, CLASSES))
