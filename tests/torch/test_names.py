"""Functions that bear torch's names take its arguments in its order; what stays different is a table of the docs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as functional  # noqa: E402

import normgen.torch as ng  # noqa: E402
from normgen.errors import UsageError  # noqa: E402

NAMES = ("rms_norm", "layer_norm", "softmax", "log_softmax", "cross_entropy")
PAGE = (Path(__file__).parents[2] / "docs/frameworks.md").read_text()
W, B = torch.linspace(0.5, 1.5, 12), torch.linspace(-1, 1, 12)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("layer_norm", ((12,), W, B, 1e-3), {}),
    ("layer_norm", ([12],), {"bias": B}),
    ("layer_norm", (torch.Size([3, 12]), torch.ones(3, 12) * W, None, 1e-3), {}),
    ("layer_norm", (), {"normalized_shape": (12,), "weight": W, "eps": 1e-2}),
    ("rms_norm", ((12,), W, 1e-3), {}),
    ("rms_norm", ((3, 12), torch.ones(3, 12) * W), {"eps": None}),
    ("rms_norm", ((12,), None, None), {}),
    ("rms_norm", ([12],), {"eps": 1e-4}),
    ("softmax", (0,), {}),
    ("softmax", (-1,), {}),
    ("softmax", (), {"dim": 1}),
    ("softmax", (1,), {"dtype": torch.float64}),
    ("log_softmax", (-2,), {}),
    ("log_softmax", (2,), {}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "args", "named"), CALLS)
def test_a_call_of_torch_is_taken_as_it_is_written(
    name: str, args: tuple[Any, ...], named: dict[str, Any], dtype: Any, device: str
) -> None:
    x = torch.randn(2, 3, 12, dtype=dtype, device=device, requires_grad=True)

    def on(value: Any) -> Any:
        return value.to(device, dtype) if isinstance(value, torch.Tensor) else value

    args, named = tuple(map(on, args)), {key: on(value) for key, value in named.items()}
    y, want = getattr(ng, name)(x, *args, **named), getattr(functional, name)(x, *args, **named)
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(y, want, rtol=tolerance, atol=tolerance)
    by = torch.randn_like(y)
    torch.testing.assert_close(
        *(torch.autograd.grad(found, x, by)[0] for found in (y, want)), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("args", [(W, B, 1e-3), (None, B), (W,), (W, None, np.float64(1e-3))])
def test_todays_spelling_stays(args: tuple[Any, ...]) -> None:
    x = torch.randn(5, 12)
    weight, bias, eps = (*args, *(None, None, 1e-5)[len(args) :])
    torch.testing.assert_close(ng.layer_norm(x, *args), functional.layer_norm(x, (12,), weight, bias, eps))
    if bias is None:
        torch.testing.assert_close(ng.rms_norm(x, weight, 1e-3), functional.rms_norm(x, (12,), weight, 1e-3))


@pytest.mark.parametrize("target", [torch.tensor([[1, 4], [0, 2], [3, 2]]), torch.tensor([[4, 1], [2, 2], [0, 0]])])
@pytest.mark.parametrize("options", [(None, None, 1, None, "sum", 0.1), (None, None, 2), ()])
def test_cross_entropy_takes_classes_where_torch_has_them(target: Any, options: tuple[Any, ...]) -> None:
    logits = torch.randn(3, 5, 2, requires_grad=True)
    loss, want = ng.cross_entropy(logits, target, *options), functional.cross_entropy(logits, target, *options)
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(want, logits))
    last = ng.cross_entropy(logits.movedim(1, -1), target, *options)
    torch.testing.assert_close(last, want)


LOGITS, LABELS = torch.randn(3, 5), torch.tensor([1, 2, 3])


@pytest.mark.parametrize(
    ("call", "rule", "hint"),
    [
        (
            lambda: ng.layer_norm(LOGITS, (4,)),
            r"normalized_shape \(4,\)\n  received: \(3, 5\)",
            "over the last dimension",
        ),
        (lambda: ng.rms_norm(LOGITS, ()), r"normalized_shape \(\)", r"\(cols,\) is over the last dimension"),
        (lambda: ng.rms_norm(LOGITS, (5,), torch.ones(4)), "'weight' of 'rms_norm' has the shape", "reshape"),
        (lambda: ng.softmax(LOGITS, 2), "dim is one of the 2 dimensions", "dim=-1"),
        (lambda: ng.softmax(LOGITS, None), "dim is one of the 2 dimensions", "dim=-1"),
        (lambda: ng.cross_entropy(LOGITS, LABELS, torch.ones(5)), "no weights of classes", "fused"),
        (lambda: ng.cross_entropy(LOGITS, LABELS, None, True), "said by reduction", "reduction='mean'"),
        (lambda: ng.cross_entropy(LOGITS, LABELS, None, False), "said by reduction", "reduction='sum'"),
        (lambda: ng.cross_entropy(LOGITS, LABELS, reduce=False), "said by reduction", "reduction='none'"),
        (lambda: ng.cross_entropy(LOGITS, LABELS[:2]), "'target' of 'cross_entropy' has the shape", "reshape"),
        (lambda: ng.softmax(LOGITS, -1, dtype="float16"), "received: 'float16'", "torch.float16"),  # type: ignore[arg-type]
        (lambda: ng.cross_entropy(LOGITS, LOGITS.softmax(-1)), "a label for each row", "fused"),
        (lambda: ng.cross_entropy(torch.randn(3, 5, 5), torch.zeros(3, 5).long()), "labels fit both", "flatten"),
    ],
)
def test_what_is_not_taken_is_refused_with_its_way_out(call: Callable[[], Any], rule: str, hint: str) -> None:
    with pytest.raises(UsageError, match=rule) as caught:
        call()
    assert caught.value.hint is not None
    assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_a_refusal_says_the_functions_own_names(name: str) -> None:
    with pytest.raises(UsageError, match=f"'input' of '{name}' is stored as one of"):
        getattr(ng, name)(LABELS[None])
    with pytest.raises(UsageError, match=f"'input' of '{name}' is a torch tensor"):
        getattr(ng, name)(LOGITS.numpy())


@pytest.mark.parametrize("options", [{"weight": torch.linspace(0.5, 2, 5)}, {"label_smoothing": 0.1}])
def test_the_way_out_of_weights_and_of_probabilities_is_one(options: dict[str, Any]) -> None:
    made = ng.fused(functional.cross_entropy)
    for target in (LABELS, LOGITS.softmax(-1)):
        made.spec(LOGITS, target, **options)


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_are_torchs_in_its_order(name: str) -> None:
    """All of torch's that are not in the page's table come first, in torch's order; what stands behind is ours."""
    differing = {
        found for row in re.findall(rf"^\| `{name}` \|(.*?)\|", PAGE, re.MULTILINE) for found in row.split("`")
    }
    theirs = [p for p in inspect.signature(getattr(functional, name)).parameters if p not in differing]
    ours = list(inspect.signature(getattr(ng, name)).parameters)
    assert [p for p in ours if p in theirs] == theirs, name


def test_under_a_compiler_a_call_of_torchs_order_is_one_graph() -> None:
    x = torch.randn(4, 12)

    def calls(x: Any) -> Any:
        return ng.softmax(ng.layer_norm(x, (12,), W, B, 1e-5), 0, dtype=torch.float32) + ng.rms_norm(x, (12,))

    want = functional.softmax(functional.layer_norm(x, (12,), W, B, 1e-5), 0) + functional.rms_norm(x, (12,))
    torch.testing.assert_close(torch.compile(calls, fullgraph=True, backend="aot_eager")(x), want)


@pytest.mark.parametrize("given", [3, None, b"softmax"])
def test_what_is_no_operation_no_model_and_no_function_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="an operation is a spec's name, path, text or Spec"):
        ng.operator(given)
    with pytest.raises(UsageError, match=r"a model is a torch\.nn\.Module"):
        ng.replace(given)
    with pytest.raises(UsageError, match="a function or a module is traced"):
        ng.fused(torch.nn.LayerNorm)
