"""What torch asks of an operator: gradients of what needs them, fakes, compilers, dispatch modes, processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402
from normgen.errors import UsageError  # noqa: E402

Call = Callable[..., Any]


def sample(device: str, *, needs: bool = True) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, residual and weight."""
    sizes = ((3, 5, 64), (3, 5, 64), (64,))
    return tuple(torch.randn(size, device=device, requires_grad=needs) for size in sizes)  # type: ignore[return-value]


def by_torch(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + residual
    return torch.nn.functional.rms_norm(h, h.shape[-1:], weight, 1e-6), h


def kept_by(y: torch.Tensor) -> Any:
    """What the node of an eager call keeps."""
    step, *_ = y.grad_fn.call
    return step.kept


@pytest.mark.parametrize("needed", [("x",), ("weight",), ("residual", "weight")])
def test_only_the_gradients_that_are_needed_are_found(needed: tuple[str, ...], device: str) -> None:
    named = dict(zip(("x", "residual", "weight"), sample(device, needs=False), strict=True))
    for name in needed:
        named[name].requires_grad_()
    y, _ = ng.add_rms_norm(**named)
    assert kept_by(y).uses.form.gradients == needed
    y.sum().backward()
    assert {name for name, tensor in named.items() if tensor.grad is not None} == set(needed)


def test_what_is_saved_is_the_sum_and_its_statistic_and_no_input_that_the_gradient_does_not_read() -> None:
    y, _ = ng.add_rms_norm(*sample("cpu"))
    assert set(kept_by(y).saved) == {"h", "weight", "rstd"}
    x = torch.randn(4, 8, requires_grad=True)
    assert kept_by(ng.softmax(x)).saved == ("y",)
    bias = torch.randn(8, requires_grad=True)
    assert kept_by(ng.layer_norm(x.detach(), None, bias)).saved == ()


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_an_output_that_is_not_used_has_the_gradient_0(used: tuple[int, ...], device: str) -> None:
    leaves = sample(device)
    got = torch.autograd.grad(sum(ng.add_rms_norm(*leaves)[i].square().sum() for i in used), leaves, allow_unused=True)
    want = torch.autograd.grad(sum(by_torch(*leaves)[i].square().sum() for i in used), leaves, allow_unused=True)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-4, atol=1e-5)


def test_gradients_in_float64_are_those_of_finite_differences() -> None:
    leaves = tuple(t.detach()[..., :6].double().requires_grad_() for t in sample("cpu"))
    assert torch.autograd.gradcheck(ng.add_rms_norm, leaves)
    assert torch.autograd.gradgradcheck(ng.add_rms_norm.operator.decomposition, leaves)


def test_a_second_derivative_is_refused_where_it_is_asked_for_and_not_before(device: str) -> None:
    x = torch.randn(3, 8, device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(ng.softmax(x).square().sum(), x, create_graph=True)
    with pytest.raises(UsageError, match=r"first derivative and no second one.*\n.*'softmax'\n  hint:.*decomposition"):
        gradient.sum().backward()


def test_a_call_without_gradients_keeps_nothing_and_is_not_dispatched(device: str) -> None:
    x, residual, weight = sample(device)
    seen: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with torch.no_grad():
        y, _ = ng.add_rms_norm(x, residual, weight)
        assert y.grad_fn is None
        with Watch():
            watched, _ = ng.add_rms_norm(x, residual, weight)
    assert torch.equal(y, watched)
    assert seen[0] == "normgen.add_rmsnorm.default"  # who looks on sees one operator
    with torch.inference_mode():
        assert torch.equal(ng.add_rms_norm(x, residual, weight)[0], y)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck's own, in torch 2.14
def test_torchs_checks_of_an_operator_pass(device: str) -> None:
    x, residual, weight = sample(device)
    detached = [t.detach() for t in (x, residual, weight)]
    label = torch.arange(15, device=device).reshape(3, 5)
    norm, loss = ng.operator("add_rmsnorm").operators, ng.operator("cross_entropy").operators
    torch.library.opcheck(norm.saving, (x, residual, weight, 1e-6, torch.float32))
    torch.library.opcheck(norm.plain, (*detached, 1e-6, torch.float32))
    for _ in range(2):
        with torch.no_grad():
            norm.plain(x, residual, weight, 1e-6, torch.float32)
        y, _ = norm.plain(x, residual, weight, 1e-6, torch.float32)
        with pytest.raises(UsageError, match=r"keeps nothing for a backward pass\n.*for add_rmsnorm_saving"):
            y.sum().backward()
    torch.library.opcheck(loss.decomposed, (x, label, -100.0, 0.1, 0.0, torch.float32))


@pytest.mark.parametrize(("op", "opaque"), [("add_rmsnorm", True), ("add_rmsnorm", False), ("cross_entropy", False)])
def test_a_compiler_takes_a_call_whole_and_once_for_all_sizes(op: str, opaque: bool, device: str) -> None:
    call = {"add_rmsnorm": ng.add_rms_norm, "cross_entropy": ng.cross_entropy}[op]
    graphs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(graph.code)
        return aot_eager(graph, inputs)

    def around(*args: Any) -> Any:
        found = call(args[0] * 2, *args[1:], opaque=opaque)
        return found[0] + found[1] if isinstance(found, tuple) else found

    torch.compiler.reset()
    compiled = torch.compile(around, backend=backend, fullgraph=True, dynamic=True)
    for rows, cols in ((6, 64), (11, 80)):
        x = torch.randn(rows, cols, device=device, requires_grad=True)
        others: tuple[Any, ...] = (torch.randint(0, cols, (rows,), device=device),)
        if op == "add_rmsnorm":
            others = (torch.randn(rows, cols, device=device), torch.randn(cols, device=device, requires_grad=True))
        with torch._dynamo.config.patch(error_on_recompile=True):
            got = compiled(x, *others)
        want = around(x, *others)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        leaves = [t for t in (x, *others) if t.requires_grad]
        by = torch.randn_like(got)
        for one, other in zip(torch.autograd.grad(got, leaves, by), torch.autograd.grad(want, leaves, by), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert f"torch.ops.normgen.{op}_call_" in graphs[-1]
    assert (ng.sites()[-1].kernel, ng.sites()[-1].asked) == (opaque, True)


@pytest.mark.parametrize(("dtype", "said"), [(None, None), (torch.bfloat16, None), (torch.float32, torch.float32)])
def test_an_exported_program_says_a_dtype_only_where_it_is_another(dtype: Any, said: Any, device: str) -> None:
    """AOTInductor of torch 2.11 hands an operator another dtype than the program says: float16 became float32."""

    class Norm(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return ng.rms_norm(x, weight, dtype=dtype)

    x, weight = torch.randn(3, 64, device=device).bfloat16(), torch.ones(64, device=device)
    with torch.no_grad():
        exported = torch.export.export(Norm(), (x, weight))
        (node,) = (n for n in exported.graph.nodes if n.op == "call_function")
        assert node.args[-1] is said
        for given in (None, torch.bfloat16, torch.float32):
            assert node.target(x, weight, 1e-6, given).dtype is (given or torch.bfloat16)


@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")  # torch's own, as it decomposes
@pytest.mark.parametrize("strict", [False, True])
def test_an_operator_can_be_exported(strict: bool, device: str) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = ng.RMSNorm(64, device=device)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x) + 1

    x = torch.randn(3, 64, device=device)
    rows = torch.export.Dim("rows", min=2, max=1000)
    with torch.no_grad():
        exported = torch.export.export(Block(), (x,), dynamic_shapes={"x": {0: rows}}, strict=strict)
        assert "normgen.rmsnorm.default" in exported.run_decompositions().graph_module.code
    assert "normgen.rmsnorm" in exported.graph_module.code
    again = torch.randn(7, 64, device=device)
    torch.testing.assert_close(exported.module()(again), torch.nn.functional.rms_norm(again, (64,)) + 1)


@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")
@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_exported_program_can_be_of_torchs_operations_alone(needs_grad: bool, device: str) -> None:
    """As an exporter to ONNX asks for."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = ng.LayerNorm(64, device=device)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x) + 1

    block, x = Block(), torch.randn(3, 64, device=device)
    with torch.set_grad_enabled(needs_grad):
        exported = torch.export.export(block, (x,))
    assert f"normgen.layernorm{'_saving' * needs_grad}.default" in exported.graph_module.code
    table = {op: way for op, way in torch._decomp.decomposition_table.items() if "normgen" in str(op)}
    plain = exported.run_decompositions(table)
    assert "normgen" not in plain.graph_module.code
    assert "aten.mean.dim" in plain.graph_module.code  # what a reader of the program knows a mean by
    torch.testing.assert_close(plain.module()(x), torch.nn.functional.layer_norm(x, (64,)) + 1)


LOADER = """
import sys, torch

def load(file):
    try:
        return tuple(torch.export.load(file).module()(torch.ones(3, 64)).shape)
    except RuntimeError:
        return "refused"

print(*map(load, sys.argv[1:]))
import normgen.torch
print(*map(load, sys.argv[1:]))
"""


@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")
def test_who_loads_an_exported_program_needs_our_operators_but_for_the_formulas(tmp_path: Path) -> None:
    """As docs/frameworks.md says."""

    class Block(torch.nn.Module):
        def __init__(self, call: Call) -> None:
            super().__init__()
            self.call = call

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.call(x)

    own = ng.operator('name = "twice"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "2 * x"\n')
    calls = {"kernel": ng.rms_norm, "own": own, "formulas": lambda x: ng.rms_norm(x, opaque=False)}
    files = []
    for name, call in calls.items():
        with torch.no_grad():
            exported = torch.export.export(Block(call), (torch.randn(3, 64),))
        exported = exported.run_decompositions() if name == "formulas" else exported
        assert ("normgen" in exported.graph_module.code) is (name != "formulas")
        files.append(str(tmp_path / f"{name}.pt2"))
        torch.export.save(exported, files[-1])
    command = [sys.executable, "-W", "ignore", "-c", LOADER, *files]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["refused refused (3, 64)", "(3, 64) refused (3, 64)"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_keeps_the_result_of_torchs_own_operation(dtype: torch.dtype) -> None:
    x = torch.randn(5, 256, device="cuda", dtype=dtype, requires_grad=True)
    weight, bias = torch.randn(2, 256, device="cuda", requires_grad=True).unbind()
    pairs: list[tuple[Call, Call]] = [
        (lambda: ng.rms_norm(x, weight, 1e-6), lambda: torch.nn.functional.rms_norm(x, (256,), weight, 1e-6)),
        (lambda: ng.layer_norm(x, weight, bias), lambda: torch.nn.functional.layer_norm(x, (256,), weight, bias)),
        (lambda: ng.softmax(x), lambda: torch.softmax(x, -1)),
    ]
    with torch.autocast("cuda", dtype):
        for ours, theirs in pairs:
            got, want = ours(), theirs()
            assert got.dtype == want.dtype
            near = 1e-5 if want.dtype == torch.float32 else torch.finfo(want.dtype).eps
            torch.testing.assert_close(got, want, rtol=near, atol=near)
            by = torch.randn_like(got)
            one, other = torch.autograd.grad(got, x, by)[0], torch.autograd.grad(want, x, by)[0]
            torch.testing.assert_close(one, other, rtol=2**-6, atol=2**-8)


WORKER = """
import os, sys, torch, torch.distributed as dist
import normgen.torch as ng
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
def model(norms):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), norms.RMSNorm(32), torch.nn.Linear(32, 32), norms.LayerNorm(32))
ours, theirs = model(ng), model(torch.nn)
x = torch.randn(8, 16)
theirs(x).square().sum().backward()
wrapped = torch.nn.parallel.DistributedDataParallel(ours)
(2 * wrapped(x[rank::2]).square().sum()).backward()  # DDP takes the mean of two processes
for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
dist.destroy_process_group()
print("equal")
"""


def test_two_processes_train_as_one(tmp_path: Any) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", WORKER]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    assert [process.communicate(timeout=120)[0].strip() for process in started] == ["equal", "equal"]


def test_normgen_itself_imports_no_torch() -> None:
    program = "import sys, normgen, normgen.python.handle, normgen.cli.main; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("asked", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.bfloat16])
def test_a_result_has_the_dtype_that_is_asked_for(asked: torch.dtype, stored: torch.dtype, device: str) -> None:
    """float64 too, which no kernel stores: what is asked for, not what is read, then says how to compute."""
    x, residual, weight = (t.to(stored).requires_grad_() for t in sample(device, needs=False))
    call = ng.add_rms_norm
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: call(*given, dtype=asked), fullgraph=True, backend="eager")
    for found in (call, call.operator.decomposition):
        y, h = found(x, residual, weight, dtype=asked)
        assert y.dtype == h.dtype == asked
        gradients = torch.autograd.grad(y.sum() + h.sum(), (x, weight))
        assert [g.dtype for g in gradients] == [stored, stored]
        expected = by_torch(x.double(), residual.double(), weight.double())[0]
        eps = torch.finfo(asked).eps  # a handful of roundings, in float32 or float64
        torch.testing.assert_close(y.double(), expected, rtol=8 * eps, atol=8 * eps)
    with torch.no_grad():
        assert [t.dtype for t in compiled(x, residual, weight)] == [asked, asked]


@pytest.mark.parametrize("name", ["add_rms_norm", "add_layer_norm", "add_llama_rms_norm", "add_gemma_rms_norm"])
def test_a_sum_takes_the_rows_before_the_weight(name: str, device: str) -> None:
    """By position, whatever of them a spec can do without: one row and its weight have the same shape."""
    x, residual, weight = (t.reshape(-1, 64)[:1] for t in sample(device, needs=False))
    call = getattr(ng, name)
    found = call(x, residual, weight[0])
    for a, b in zip(found, call(x, residual=residual, weight=weight[0]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    torch.testing.assert_close(found[1], x + residual)
