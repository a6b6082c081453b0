"""Functions, modules and compiled programs of rows along another axis: by a kernel that reads them where they lie."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

import normgen.torch as ng  # noqa: E402
from normgen.program.classes import ProgramClass, class_of  # noqa: E402
from normgen.torch.functional import function  # noqa: E402
from normgen.torch.operators import Operator, operator  # noqa: E402

Tensor = Any
COPIES = {"aten::clone", "aten::copy_", "aten::contiguous", "aten::_reshape_copy"}
IMAGE = (2, 6, 3, 5)


class OverChannels(torch.nn.LayerNorm):
    """torchvision's LayerNorm2d, which ConvNeXt has."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class WrittenOut(torch.nn.Module):
    """The norm of ConvNeXt's authors."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(1 + 0.3 * torch.randn(channels))
        self.bias = torch.nn.Parameter(torch.randn(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class PixelNorm(torch.nn.Module):
    eps = 1e-8

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-8

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps)


def classes(made: list[Any]) -> list[ProgramClass]:
    return [class_of(handle.problem) for handle in made]


def copied(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call that is known returns, and the operations of torch in it that copy."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = run()
    return found, [event.name for event in profile.events() if event.name in COPIES]


def agrees(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], leaves: list[Tensor], *others: Tensor) -> Tensor:
    """A result of ours, once it and its gradients were found to be theirs, and nothing to be copied for them."""
    got, copies = copied(lambda: ours(*leaves, *others))
    want = theirs(*leaves, *others)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    by = torch.randn_like(got)
    gradients, more = copied(lambda: torch.autograd.grad(ours(*leaves, *others), leaves, by))
    for one, other in zip(gradients, torch.autograd.grad(want, leaves, by), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert [*copies, *more] == []
    return got


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def rms_over_channels(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * weight[:, None, None]


FUSED: dict[str, tuple[Callable[..., Tensor], list[Tensor], list[Tensor]]] = {
    "softmax over channels": (lambda x: torch.softmax(x, 1), [leaf(*IMAGE)], []),
    "softmax over heads": (lambda x: torch.softmax(x, 1), [leaf(2, 4, 3, 8)], []),
    "log_softmax over a middle axis": (lambda x: torch.log_softmax(x, -2), [leaf(*IMAGE)], []),
    "softmax over rows": (lambda x: torch.softmax(x, 0), [leaf(9, 40)], []),
    "sum over rows": (lambda x: x.sum(0), [leaf(9, 40)], []),
    "mean over channels": (lambda x: x.mean(1), [leaf(*IMAGE)], []),
    "sum over a kept axis": (lambda x: x.exp().sum(1, keepdim=True), [leaf(*IMAGE)], []),
    "a norm over channels": (rms_over_channels, [leaf(*IMAGE), leaf(6)], []),
    "normalize": (lambda x: F.normalize(x, dim=1), [leaf(*IMAGE)], []),
    "permuted and back": (
        lambda x, w: F.rms_norm(x.permute(0, 2, 3, 1), (6,), w).permute(0, 3, 1, 2),
        [leaf(*IMAGE), leaf(6)],
        [],
    ),
    "copied by its author": (
        lambda x, w: F.layer_norm(x.permute(0, 2, 3, 1).contiguous(), (6,), w).permute(0, 3, 1, 2).contiguous(),
        [leaf(*IMAGE), leaf(6)],
        [],
    ),
    "one size of pixels": (
        lambda x, w: F.layer_norm(x.flatten(2).transpose(1, 2), (6,), w).transpose(1, 2).view(IMAGE),
        [leaf(*IMAGE), leaf(6)],
        [],
    ),
    "one size of rows": (
        lambda x, t: F.cross_entropy(x.permute(0, 2, 3, 1).reshape(-1, 6), t.flatten(), reduction="none"),
        [leaf(*IMAGE)],
        [torch.randint(0, 6, (2, 3, 5))],
    ),
    "of a volume": (
        lambda x, w: F.layer_norm(x.movedim(1, -1), (6,), w).movedim(-1, 1),
        [leaf(2, 6, 2, 3, 4), leaf(6)],
        [],
    ),
    "two tensors": (lambda x, y: torch.softmax(x + y, 1), [leaf(*IMAGE), leaf(*IMAGE)], []),
    "values of rows": (lambda x, y: (x * x).sum(1) * y, [leaf(*IMAGE), leaf(2, 3, 5)], []),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_traced_function_along_another_axis_copies_nothing(name: str, made: list[Any]) -> None:
    traced, leaves, others = FUSED[name]
    got = agrees(ng.fused(traced), traced, leaves, *others)
    assert classes(made) == [ProgramClass.LANES] * 2
    assert got.is_contiguous()


def test_a_traced_function_is_right_for_images_whose_channels_lie_last(made: list[Any]) -> None:
    """Their rows are as rows lie: the same function has another kernel, and copies nothing either."""
    traced, x = ng.fused(OverChannels(6)), torch.randn(IMAGE)
    agrees(traced, OverChannels(6), [x.clone().requires_grad_()])
    last = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    got = agrees(traced, OverChannels(6), [last])
    assert classes(made) == [ProgramClass.LANES] * 2 + [ProgramClass.ROWS] * 2
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_a_result_that_torch_gives_without_gaps_has_none() -> None:
    """Its author may view it in another shape, so that rows are copied to where the result has them."""
    traced = ng.fused(lambda x: x.permute(0, 2, 3, 1).softmax(-1))
    x = torch.randn(IMAGE)
    found = traced._traced([x], (x,), {})([x])
    assert found.view(-1, 6).shape == (30, 6)
    torch.testing.assert_close(found, x.permute(0, 2, 3, 1).softmax(-1))


def test_a_traced_function_returns_a_copy_where_its_function_does(made: list[Any]) -> None:
    x = leaf(*IMAGE)
    y, copy_of_x, part = ng.fused(lambda x: (torch.softmax(x, 1), x.clone(), x.clone().flatten(1)))(x)
    torch.testing.assert_close(y, torch.softmax(x, 1))
    for one in (copy_of_x, part):
        assert one.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert torch.equal(one.flatten(), x.flatten())
    assert classes(made)[0] == ProgramClass.LANES


def test_an_instance_norm_is_traced_and_copies_no_channel(made: list[Any]) -> None:
    def traced(x: Tensor) -> Tensor:
        return F.instance_norm(x, eps=1e-3)

    agrees(ng.fused(traced), traced, [leaf(*IMAGE)])
    assert classes(made) == [ProgramClass.ROWS] * 2
    weighted = lambda x, w, b: F.instance_norm(x, weight=w, bias=b)  # noqa: E731
    leaves = [leaf(*IMAGE), leaf(6), leaf(6)]
    got, want = ng.fused(weighted)(*leaves), weighted(*leaves)
    by = torch.randn(IMAGE)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    for one, other in zip(torch.autograd.grad(got, leaves, by), torch.autograd.grad(want, leaves, by), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


# modules of a model

MODULES = [
    (OverChannels(6), IMAGE, "layer_norm(x, weight, bias, eps=1e-05) over channels", ProgramClass.LANES),
    (
        WrittenOut(6),
        IMAGE,
        "layer_norm(x, weight, bias, eps=1e-06) over channels",
        ProgramClass.LANES,
    ),
    (PixelNorm(), IMAGE, "rms_norm(x, eps=1e-08) over channels", ProgramClass.LANES),
    (torch.nn.InstanceNorm1d(6), (2, 6, 7), "layer_norm(x, eps=1e-05) over each channel", ProgramClass.ROWS),
    (torch.nn.InstanceNorm2d(6, eps=1e-3), IMAGE, "layer_norm(x, eps=0.001) over each channel", ProgramClass.ROWS),
    (torch.nn.InstanceNorm3d(6), (2, 6, 2, 3, 4), "layer_norm(x, eps=1e-05) over each channel", ProgramClass.ROWS),
]


@pytest.mark.parametrize(("module", "shape", "what", "kind"), MODULES, ids=lambda value: type(value).__name__)
def test_a_norm_over_another_axis_is_found_and_copies_nothing(
    module: Any, shape: tuple[int, ...], what: str, kind: ProgramClass, made: list[Any]
) -> None:
    plain, module = copy.deepcopy(module), copy.deepcopy(module)
    report = ng.replace(torch.nn.Sequential(module))
    assert str(report.replaced["0"]).removesuffix(", in float32 alone") == what
    x, parameters = leaf(*shape), list(module.parameters())
    with torch.no_grad():
        for one, other in zip(plain.parameters(), parameters, strict=True):
            other.copy_(one)

    def ours(x: Tensor, *_: Tensor) -> Tensor:
        return module(x)

    original = module.forward.original
    got = agrees(ours, lambda x, *_: original(x), [x, *parameters])
    assert got.is_contiguous()
    assert set(classes(made)) <= {kind}
    module.forward.original = None  # whatever a norm of ours is, it calls no other
    for is_training in (False, True):
        module.train(is_training)
        torch.testing.assert_close(module(x), plain(x), rtol=1e-5, atol=1e-5)
    module.forward.original = original
    module.eps = 0.5
    plain.eps = 0.5
    torch.testing.assert_close(module(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 3, 5), (2, 6), (2, 6, 2, 3, 5)])
def test_tensors_of_other_sizes_than_a_norm_was_tried_with_are_left_to_it(shape: tuple[int, ...]) -> None:
    module = WrittenOut(6)
    ng.replace(torch.nn.Sequential(module))
    seen: list[Tensor] = []
    module.forward.original = lambda x: seen.append(x) or x
    x = torch.randn(shape)
    assert module(x) is x
    assert len(seen) == 1


def test_an_instance_of_one_element_is_left_to_its_module() -> None:
    module = torch.nn.InstanceNorm2d(6)
    ng.replace(torch.nn.Sequential(module))
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        module(torch.randn(2, 6, 1, 1))


def test_halves_of_a_norm_that_rounds_behind_each_operation_are_left_to_it() -> None:
    module = WrittenOut(6).bfloat16()
    plain = copy.deepcopy(module)
    report = ng.replace(torch.nn.Sequential(module))
    assert str(report.replaced["0"]).endswith("over channels, in float32 alone")
    x = torch.randn(IMAGE).bfloat16()
    assert torch.equal(module(x), plain(x))


# programs

PROGRAMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]] = {
    "softmax": (
        lambda x: ng.softmax(x, 1, opaque=True),
        lambda x: torch.softmax(x, 1),
        [leaf(*IMAGE)],
    ),
    "layer_norm": (
        lambda x, w, b: ng.layer_norm(x.permute(0, 2, 3, 1), w, b, opaque=True).permute(0, 3, 1, 2),
        lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (6,), w, b).permute(0, 3, 1, 2),
        [leaf(*IMAGE), leaf(6), leaf(6)],
    ),
    "cross_entropy": (
        lambda x: ng.cross_entropy(x, torch.arange(30).view(2, 3, 5) % 6, reduction="none", opaque=True),
        lambda x: F.cross_entropy(x, torch.arange(30).view(2, 3, 5) % 6, reduction="none"),
        [leaf(*IMAGE)],
    ),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_program_calls_the_kernel_of_rows_where_they_lie(
    name: str, dynamic: bool, backend: str, made: list[Any]
) -> None:
    ours, theirs, leaves = PROGRAMS[name]
    torch.compiler.reset()
    program = torch.compile(ours, backend=backend, fullgraph=True, dynamic=dynamic)
    got = agrees(program, theirs, leaves)
    assert got.is_contiguous()
    assert classes(made) == [ProgramClass.LANES] * 2
    with torch.no_grad():
        _, copies = copied(lambda: program(*leaves))
    assert copies == []


def test_a_program_whose_tensors_lie_otherwise_than_when_it_was_compiled_is_right(made: list[Any]) -> None:
    """A compiler may lay out as it likes what an operator takes; how its results lie, the operator says."""
    softmax = operator("softmax")

    def program(x: Tensor) -> Tensor:
        return softmax((x * 2).movedim(1, -1), opaque=True).movedim(-1, 1) + 1

    torch.compiler.reset()
    compiled = torch.compile(program, backend="inductor")
    for x in (torch.randn(IMAGE), torch.randn(IMAGE).contiguous(memory_format=torch.channels_last)):
        torch.testing.assert_close(compiled(x), torch.softmax(x * 2, 1) + 1)
    assert ProgramClass.LANES in classes(made)


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "add_rmsnorm", "softmax"])
def test_operators_along_an_axis_are_what_torch_asks_of_operators(name: str) -> None:
    """Schemas, fakes, gradients, and programs of sizes that are symbols."""
    made = Operator(_spec(name))
    along = made._along
    assert along is not None
    reads = made.operators.calls.reads
    tensors = [torch.randn(IMAGE) if t.kind.is_elem else torch.randn(6) for t in reads]
    scalars = [value for _, value in made.spec.scalars]
    for op, needs in ((along.plain, False), (along.saving, True)):
        given = [t.clone().requires_grad_(needs) for t in tensors]
        tests = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
        found = torch.library.opcheck(op, (*given, *scalars, None, 1), test_utils=tests)
        assert set(found.values()) == {"SUCCESS"}


def _spec(name: str) -> Any:
    from normgen.spec.reader import load

    return load(name)


@pytest.mark.parametrize("axis", [2, -2])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_examples_of_an_operator_along_an_axis_are_calls_of_their_own(direction: str, axis: int) -> None:
    made = operator("rmsnorm")
    along = made._along
    assert along is not None
    x, weight = torch.randn(3, 2, 4, 6, 5), torch.randn(6)  # the examples are the second size
    eps = dict(made.spec.scalars)["eps"]
    if direction == "forward":
        found = torch.vmap(lambda one: along.plain(one, weight, eps, None, axis), in_dims=1)(x)
        each = [along.plain(one, weight, eps, None, axis) for one in x.unbind(1)]
    else:
        kept = made.operators.kept([True, True], (x.select(1, 0), weight), torch.float32)
        names = made.operators.backward_takes

        def backward(one: Tensor) -> Tensor:
            known = {"dy": one, "x": one + 1, "weight": weight, "rstd": one.select(2, 0).abs()}
            reads = [known[u.name] for u in kept.uses.reads]
            return along.backward(*made.operators.backward_args(kept.uses, reads, (eps,)), axis)[0]

        assert set(names) >= {"dy", "x"}
        found, each = torch.vmap(backward, in_dims=1)(x), [backward(one) for one in x.unbind(1)]
    for one, other in zip(found, each, strict=True):
        torch.testing.assert_close(one, other)


def test_a_dispatch_mode_sees_one_operator_and_no_copy(made: list[Any]) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(IMAGE)
    with Seeing():
        found = function("softmax")(x, 1)
    assert [name for name in seen if "normgen" in name] == ["normgen.softmax_saving_along.default"]
    assert not [name for name in seen if any(word in name for word in ("clone", "copy", "contiguous"))]
    torch.testing.assert_close(found, torch.softmax(x, 1))
    assert classes(made) == [ProgramClass.LANES]
