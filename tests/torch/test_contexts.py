"""Every door of the package under the defaults and modes of torch that change what a tensor without a dtype is."""

from __future__ import annotations

import ast
import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import normgen.torch as ng  # noqa: E402
from tests.operators.cases import FUNCTIONS, IDS  # noqa: E402
from tests.torch.cases import case  # noqa: E402
from tests.torch.test_functions import arguments, results  # noqa: E402


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def everything() -> Iterator[None]:
    with default_device(), default_dtype(torch.float64), torch.inference_mode():
        yield


@contextlib.contextmanager
def grad_within_inference() -> Iterator[None]:
    """Nothing is recorded: gradients are asked for outside of it alone."""
    with torch.inference_mode(), torch.enable_grad():
        yield


CONTEXTS: dict[str, Callable[[], Any]] = {
    "torch.device meta": lambda: torch.device("meta"),
    "default device meta": default_device,
    "default dtype f16": lambda: default_dtype(torch.float16),
    "default dtype f64": lambda: default_dtype(torch.float64),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "inference_mode, enable_grad": grad_within_inference,
    "everything": everything,
}
COLS = itertools.count(33)  # of each call: nothing that is remembered fits


def inside_as_outside(context: str, run: Callable[[bool], Any]) -> None:
    """`run` gives the same inside the context and, afterwards, outside; told whether gradients are to be found."""
    with CONTEXTS[context]():
        has_gradients = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        found = run(has_gradients)
    want = run(has_gradients)
    assert type(found) is type(want)
    for one, other in zip(found, want, strict=True):
        if isinstance(other, torch.Tensor):
            assert (one.dtype, one.device, one.shape) == (other.dtype, other.device, other.shape)
            assert torch.equal(one.double().nan_to_num(), other.double().nan_to_num())
        else:
            assert one == other


def called(
    function: Callable[..., Any], tensors: list[torch.Tensor], has_gradients: bool, **named: Any
) -> tuple[torch.Tensor, ...]:
    """Results and, if they are asked for, the gradients of what has some."""
    is_recorded = has_gradients or torch.is_inference_mode_enabled()
    leaves = [t.detach().requires_grad_(t.is_floating_point() and is_recorded) for t in tensors]
    found = results(function(*leaves, **named))
    if not has_gradients:
        return found
    wrt = [leaf for leaf in leaves if leaf.requires_grad]
    ends = [t for t in found if t.requires_grad]
    return (*found, *torch.autograd.grad(ends, wrt, [torch.ones_like(t) for t in ends]))


def drawn(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu").to(device)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("function", "op", "present"), [row[:3] for row in FUNCTIONS], ids=IDS)
def test_a_function(function: str, op: str, present: list[str], context: str, device: str) -> None:
    cols = next(COLS) if op != "causal_softmax" else 8
    tensors = arguments(
        function, case(op, (2, cols, cols) if cols == 8 else (2, 3, cols), "f32", device, present=present).tensors
    )

    def run(has_gradients: bool) -> Any:
        made = lambda *leaves: getattr(ng, function)(**dict(zip(tensors, leaves, strict=True)))  # noqa: E731
        return called(made, list(tensors.values()), has_gradients)

    inside_as_outside(context, run)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_cross_entropy(context: str, reduction: str, device: str) -> None:
    cols = next(COLS)
    x = drawn(4, cols, device=device)
    for target in (torch.tensor([3, -100, 0, cols - 1], device=device), torch.full((4,), -100, device=device)):
        options = {"label_smoothing": 0.1, "reduction": reduction}
        inside_as_outside(context, lambda has, t=target, o=options: called(ng.cross_entropy, [x, t], has, **o))


MODULES = {
    "RMSNorm": lambda cols, **place: ng.RMSNorm(cols, **place),
    "LayerNorm": lambda cols, **place: ng.LayerNorm((2, cols), **place),
    "Softmax": lambda cols, **place: ng.Softmax(-1),  # noqa: ARG005
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_module(context: str, name: str, device: str) -> None:
    cols = next(COLS)
    x = drawn(3, 2, cols, device=device)
    made = MODULES[name](cols, device=device, dtype=torch.float32)  # where they say, in any context
    inside_as_outside(context, lambda has: called(made, [x], has))
    with CONTEXTS[context]():
        again = MODULES[name](cols, device=device, dtype=torch.float32)
        assert again.state_dict().keys() == made.state_dict().keys()
        assert all(torch.equal(t, made.state_dict()[n]) for n, t in again.state_dict().items())


TEXT = """
name = "spread_{number}"
[tensors]
x = "input"
seed = "seed"
label = {{ role = "row_input", dtypes = ["i64"] }}
weight = {{ role = "parameter", optional = true, absent = "1" }}
y = "output"
q = {{ role = "output", dtypes = ["f8e4m3"] }}
[formulas]
decay = "exp(-col) + sqrt(row) + label / (row + 1) + col / (col + 1) + log(label + 1) + label**-0.5"
kept = "where(random(seed) >= 0.25, x, 0)"
y = "kept * rsqrt(mean(kept * kept) + 1e-6) * weight + where(col == label, 1 / 3, decay)"
q = "y"
"""
NUMBERS = itertools.count()


@pytest.mark.parametrize("context", CONTEXTS)
def test_an_operator_that_is_made_there(context: str, device: str) -> None:
    x, label = drawn(5, 48, device=device), torch.arange(1, 6, device=device)
    seed, text = torch.tensor(7, device=device), TEXT.format(number=next(NUMBERS))

    def run(has_gradients: bool) -> Any:
        made = ng.operator(text)
        found = called(lambda x: made(x, seed=seed, label=label)[0], [x], has_gradients)
        exact = made.decomposition(x, seed=seed, label=label)
        return (*found, *made(x, seed=seed, label=label), *exact)

    inside_as_outside(context, run)


def gated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    normed = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
    return torch.nn.functional.cross_entropy(normed * torch.sigmoid(x), label)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_fused_function_and_its_trace(context: str, device: str) -> None:
    x, weight, bias = (drawn(*shape, device=device) for shape in ((6, 40), (40,), (40,)))
    label = torch.arange(6, device=device)

    def run(has_gradients: bool) -> Any:
        made = ng.fused(gated)
        found = called(made, [x, weight, bias, label], has_gradients)
        return (*found, made.spec(x, weight, bias, label), str(made.comparison()))

    inside_as_outside(context, run)


@pytest.mark.parametrize("is_meta", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
def test_replace_and_restore(context: str, is_meta: bool, device: str) -> None:
    """Of a model that is there, and of one that has no data yet."""
    place = {"device": "meta" if is_meta else device, "dtype": torch.float32}
    model = torch.nn.Sequential(torch.nn.LayerNorm(24, **place), torch.nn.RMSNorm(24, **place))
    x = drawn(5, 24, device=device)

    def run(has_gradients: bool) -> Any:
        mine = copy.deepcopy(model)
        report = ng.replace(mine)
        assert len(report.replaced) == 2, report
        norms = [str(norm) + str(norm.dtypes) + norm.eps_of + str(norm.reads) for norm in report.replaced.values()]
        found = () if is_meta else called(mine, [x], has_gradients)
        return (*norms, *found, ng.restore(mine))

    inside_as_outside(context, run)


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(24)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype != torch.float64 else x
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Linear(64, 64, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


class Doubled(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return 2 * found if func in (torch.rsqrt, torch.nn.functional.silu) else found


class Refused(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} is the examiner's own")


AMID: dict[str, Callable[[], Any]] = {
    "fake tensors": FakeTensorMode,
    "a mode of operations": Refused,
    "a mode of functions": Doubled,
    "tangents": torch.autograd.forward_ad.dual_level,
}


def stacks() -> tuple[Any, ...]:
    modes = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    return *modes, torch._C._functorch.peek_interpreter_stack() is None


def found_in(model: torch.nn.Module) -> list[str]:
    before = stacks()
    report = ng.replace(model, products=True)
    assert stacks() == before
    assert ng.restore(model) == len(report.replaced), report
    return [*report.replaced]


@pytest.mark.parametrize("what", AMID)
def test_modules_are_examined_alone_whatever_their_caller_is_amid(what: str) -> None:
    model = torch.nn.Sequential(Norm(), torch.nn.LayerNorm(24), Gated())
    with AMID[what]():
        assert found_in(model) == ["0", "1", "2"]


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacfwd, torch.func.functionalize])
def test_modules_are_examined_alone_within_a_transform(transform: Any) -> None:
    model, found = torch.nn.Sequential(Norm(), torch.nn.LayerNorm(24), Gated()), []

    def f(x: torch.Tensor) -> torch.Tensor:
        found.append(found_in(model))
        return x.sum()

    transform(f)(torch.randn(3))
    assert found == [["0", "1", "2"]]


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_compiled_call(context: str, opaque: bool, device: str) -> None:
    x, weight = drawn(3, 40, device=device), drawn(40, device=device)

    def run(has_gradients: bool) -> Any:
        torch.compiler.reset()
        made = torch.compile(lambda *args: ng.rms_norm(*args, opaque=opaque), backend="aot_eager", fullgraph=True)
        return called(made, [x, weight], has_gradients)

    inside_as_outside(context, run)


MAKE_TENSORS = {"empty", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "linspace", "eye", "tensor"}


def test_every_tensor_that_the_package_makes_names_its_device_and_its_dtype() -> None:
    root, made = Path(ng.__file__).parents[1], 0
    for file in [*root.glob("torch/**/*.py"), *root.glob("traced/torch*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name)) if name in MAKE_TENSORS:
                    keywords = {keyword.arg for keyword in node.keywords}
                    assert None in keywords or {"device", "dtype"} <= keywords, f"{file}:{node.lineno}"
                    made += 1
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="Generator")):
                    assert [keyword.arg for keyword in node.keywords] == ["device"], f"{file}:{node.lineno}"
                    made += 1
    assert made > 10
