"""The provider "normgen" in vLLM's own IR, layers and compiler passes: the client's files, nothing in their place.

Its release is 336 MB: where it is not installed these tests skip. Without a GPU and without its compiled libraries, the
Python files of the wheel do (`pip install --no-deps vllm`, and what they import).
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
if not torch.cuda.is_available():
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # its platform, which it takes where it was built for one
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ir = pytest.importorskip("vllm.ir", reason="vllm is not installed", exc_type=ImportError)

from normgen.engines import vllm as ours  # noqa: E402  (of what is not always there)

ROOT = Path(__file__).parents[2]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True, scope="module")
def _provider() -> None:
    assert ours.register() == ("rms_norm", "fused_add_rms_norm", "gelu_and_mul_sparse")
    assert ours.register() == tuple(ours.PROVIDED)  # as vLLM may call it again


@contextmanager
def provider(*names: str) -> Iterator[None]:
    with ExitStack() as stack:
        for name in ours.PROVIDED:
            stack.enter_context(getattr(ir.ops, name).set_priority(list(names)))
        yield


def both(op: Any, *args: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What the provider gives, through vLLM's dispatcher, and what the IR's own implementation does."""
    found = []
    for names in (("normgen", "native"), ("native",)):
        with provider(*names):
            assert op.dispatch(*args).provider == names[0]
            result = op(*args)
        found.append(result if isinstance(result, tuple) else (result,))
    return found[0], found[1]


def is_close_to_native(got: Any, want: Any, device: str) -> bool:
    """On the CPU bit for bit. A kernel's statistic may differ in its last bit, and with it some elements by a unit."""
    if device == "cpu" or not got.numel():
        return torch.equal(got, want)
    differ = (got != want).float().mean().item()
    unit = torch.finfo(got.dtype).eps
    return differ < (0.9 if got.dtype == torch.float32 else 0.02) and torch.allclose(
        got, want, rtol=2 * unit, atol=unit
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight", [*DTYPES, None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_have_the_ir_s_bits_in_every_dtype(dtype: Any, weight: Any, device: str) -> None:
    torch.manual_seed(0)
    for shape in ((64, 1024), (3, 5, 256), (0, 128), (1, 7), (96,)):
        x, residual = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        w = None if weight is None else (1 + torch.randn(shape[-1], device=device)).to(weight)
        for op, args in ((ir.ops.rms_norm, (x, w, 1e-6)), (ir.ops.fused_add_rms_norm, (x, residual, w, 1e-5))):
            kept = [t.clone() for t in args if isinstance(t, torch.Tensor)]
            got, want = both(op, *args)
            for a, b in zip(got, want, strict=True):
                assert a.dtype == b.dtype
                assert a.shape == b.shape
                assert is_close_to_native(a, b, device), (op.name, shape)
            assert all(
                torch.equal(a, b) for a, b in zip(kept, [t for t in args if isinstance(t, torch.Tensor)], strict=True)
            )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sparse_gate_has_the_ir_s_roundings(dtype: Any, approximate: str, device: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(16, 2048, device=device).to(dtype)
    (got,), (want,) = both(ir.ops.gelu_and_mul_sparse, x, 1.25, approximate)
    assert (want != 0).sum() > 1000
    unit = torch.finfo(dtype).eps
    if dtype != torch.float32:
        assert (got != want).sum() <= 0.001 * (want != 0).sum()
    torch.testing.assert_close(got, want, rtol=4 * unit, atol=16 * torch.finfo(torch.float32).eps)


def refused(device: str) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """What we do not run as it lies: why, the operation, its arguments."""

    def made(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(shape, device=device).to(dtype)

    x, w = made(8, 64), made(64)
    wide = made(8, 2, 64)
    for name, before in (("rms_norm", ()), ("fused_add_rms_norm", (made(8, 64),))):
        yield "variance_size", name, (x, *before, w, 1e-6, 32)
        yield "a weight of another length", name, (x, *before, made(32), 1e-6)
        yield "a weight with gaps", name, (x, *before, made(128)[::2], 1e-6)
        yield "a weight of another dtype of ours", name, (x, *before, made(64).double(), 1e-6)
        yield "an eps that float32 does not hold", name, (x, *before, w, 1e39)
    yield "a multiplier that float32 does not hold", "gelu_and_mul_sparse", (x, -1e39)
    yield "float64", "rms_norm", (x.double(), w, 1e-6)
    yield "columns apart", "rms_norm", (made(64, 8).t(), w, 1e-6)
    yield "rows at two distances", "rms_norm", (wide.transpose(0, 1), w, 1e-6)
    queries = made(8, 192).split([128, 32, 32], -1)[0].view(8, 2, 64)
    yield "heads of the queries in one projection", "rms_norm", (queries, w, 1e-6)
    yield "rows that overlap", "rms_norm", (x.flatten().as_strided((8, 64), (1, 1)), w, 1e-6)
    with warnings.catch_warnings(action="ignore"):  # its interface is a prototype
        ragged = torch.nested.nested_tensor([x[:3].clone(), x[3:].clone()])
    yield "rows of several lengths", "rms_norm", (ragged, w, 1e-6)
    yield "another layout", "rms_norm", (x.to_sparse(), w, 1e-6)
    yield "a weight of another layout", "rms_norm", (x, w.to_sparse(), 1e-6)
    yield "elsewhere", "rms_norm", (x.to("meta"), w.to("meta"), 1e-6)
    yield "a residual of another dtype", "fused_add_rms_norm", (x, x.float(), w, 1e-6)
    yield "a residual of another shape", "fused_add_rms_norm", (x, x[:4], w, 1e-6)
    yield "another gelu", "gelu_and_mul_sparse", (x, 1.0, "sigmoid")
    yield "an odd width", "gelu_and_mul_sparse", (made(8, 63), 1.0)


@pytest.mark.parametrize("device", DEVICES)
def test_supports_args_says_no_where_we_do_not_have_it(device: str) -> None:
    for why, name, args in refused(device):
        with provider("normgen", "native"):
            assert getattr(ir.ops, name).dispatch(*args).provider == "native", why


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_a_slice_are_read_where_they_lie(device: str) -> None:
    torch.manual_seed(2)
    whole = torch.randn(8, 3, 128, device=device).bfloat16()
    weight = torch.randn(64, device=device).bfloat16()
    for x in (whole[:, 1, :64], whole[..., 64:], whole[2:5, :, :64], whole[:1, :1, :64]):
        assert not x.is_contiguous() or x.numel() == 64
        got, want = both(ir.ops.rms_norm, x, weight, 1e-6)
        assert is_close_to_native(got[0], want[0], device)


class _Graphs:
    """Keeps what a compiler is given."""

    def __init__(self, before: Callable[[Any], None] | None = None) -> None:
        self.targets: list[str] = []
        self._before = before

    def __call__(self, graph: Any) -> None:
        if self._before is not None:
            self._before(graph)
        self.targets = [str(node.target) for node in graph.nodes if node.op == "call_function"]

    @property
    def of_ours(self) -> list[str]:
        return [name.split(".")[1].rpartition("_")[0] for name in self.targets if name.startswith("normgen.")]


@pytest.mark.parametrize("is_symbolic", [False, True])
def test_a_call_stays_one_operator_under_tracing(is_symbolic: bool) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x, weight = torch.randn(6, 64).bfloat16(), torch.randn(64).bfloat16()
    for name, args in (("rms_norm", (x, weight)), ("fused_add_rms_norm", (x, x + 1, weight))):
        run = getattr(ir.ops, name).impls["normgen"].impl_fn
        traced = make_fx(lambda *a, run=run: run(*a, 1e-6), tracing_mode="symbolic" if is_symbolic else "fake")(*args)
        called = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
        assert len([name for name in called if name.startswith("normgen.")]) == 1
        assert not [name for name in called if name.startswith("aten.") and "sym_size" not in name]


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_compiled_function_calls_the_provider_by_name(is_dynamic: bool, is_wrapped: bool) -> None:
    """vLLM's operators in the graph, or its dispatcher traced through, as where a platform turns the wrapping off."""
    torch.manual_seed(3)
    weight = torch.randn(64).bfloat16()

    def layer(x: Any, residual: Any) -> Any:
        y, total = ir.ops.fused_add_rms_norm(x * 2, residual, weight, 1e-6)
        return ir.ops.rms_norm(y + 1, weight, 1e-6), total

    torch._dynamo.reset()
    with provider("normgen", "native"), ir.enable_torch_wrap(is_wrapped), torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, dynamic=is_dynamic, backend="aot_eager")
        for rows in (4, 6, 9):
            x, residual = (torch.randn(rows, 64).bfloat16() for _ in range(2))
            got = compiled(x, residual)
            with provider("native"):
                want = layer(x, residual)
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.fixture(scope="module")
def configured() -> Any:
    """vLLM's configuration that names us, its layers, and its pass that lowers the IR; they import much of vLLM."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import vllm.compilation.passes.ir.lowering_pass
            import vllm.config
            import vllm.model_executor.layers.layernorm
        except ImportError as error:
            pytest.skip(f"vllm's layers need what is not installed: {error}")
        names = {name: ["normgen"] for name in ours.PROVIDED}
        priority = vllm.config.kernel.IrOpPriorityConfig(**names)
        return vllm.config.VllmConfig(
            device_config=vllm.config.DeviceConfig(device="cpu"),
            kernel_config=vllm.config.KernelConfig(ir_op_priority=priority),
        )


def layers(config: Any) -> tuple[Any, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    with set_current_vllm_config(config):
        torch.manual_seed(4)
        norm, gemma = RMSNorm(96).bfloat16(), GemmaRMSNorm(96)
        for module in (norm, gemma):
            module.weight.data.normal_()
    return norm, gemma


def test_vllm_s_layers_run_the_provider_that_its_configuration_names(configured: Any) -> None:
    priority = configured.kernel_config.ir_op_priority
    assert priority.rms_norm == priority.fused_add_rms_norm == ["normgen", "native"]
    assert len(priority.compute_hash()) == 64  # it reads the provider's source
    norm, gemma = layers(configured)
    x, residual = (torch.randn(5, 96).bfloat16() for _ in range(2))

    def run() -> list[Any]:
        return [
            norm(x.clone()),
            *norm(x.clone(), residual.clone()),
            gemma(x.clone()),
            *gemma(x.clone(), residual.clone()),
        ]

    with torch.no_grad():
        with priority.set_priority():
            assert ir.ops.rms_norm.get_priority() == ["normgen", "native"]
            got = run()
        with provider("native"):
            want = run()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_vllm_s_own_pass_lowers_a_layer_to_our_operator(configured: Any, is_dynamic: bool) -> None:
    from vllm.compilation.passes.ir.lowering_pass import VllmIRLoweringPass

    norm, gemma = layers(configured)
    lowering = VllmIRLoweringPass(configured)
    graphs = _Graphs(lowering)

    def block(x: Any, residual: Any) -> Any:
        y, total = gemma(norm(x * 2), residual)
        return y + 1, total

    torch._dynamo.reset()
    patched = torch._inductor.config.patch(post_grad_custom_post_pass=graphs, fx_graph_cache=False)
    with configured.kernel_config.ir_op_priority.set_priority(), patched, torch.no_grad():
        compiled = torch.compile(block, fullgraph=True, dynamic=is_dynamic)
        for rows in (5, 7):
            x, residual = (torch.randn(rows, 96).bfloat16() for _ in range(2))
            got = compiled(x, residual)
            with provider("native"):
                want = block(x, residual)
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    chosen = {op: set(impls.values()) for op, impls in lowering.selected_impls.items()}
    assert chosen == {"rms_norm": {"normgen"}, "fused_add_rms_norm": {"normgen"}}
    assert [name.rpartition("_")[0] for name in graphs.of_ours] == ["vllm_ir_rmsnorm", "vllm_ir_add_rmsnorm"]
    assert lowering.uuid()


def test_vllm_finds_the_plugin_and_uses_nothing_of_it_unasked(tmp_path: Path) -> None:
    """As installed: by the entry point that pyproject.toml declares."""
    made = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(made, cwd=ROOT, check=True, capture_output=True)
    program = (
        "import vllm.plugins, sys\n"
        "vllm.plugins.load_general_plugins()\n"
        "import vllm.ir.ops as ops\n"
        "for name in ('rms_norm', 'fused_add_rms_norm', 'gelu_and_mul_sparse'):\n"
        "    op = getattr(ops, name)\n"
        "    assert 'normgen' in op.impls and op.impls['normgen'].supported, op.impls\n"
        "    assert op.get_priority() == [], name\n"
        "import torch\n"
        "x = torch.ones(2, 8)\n"
        "assert ops.rms_norm.dispatch(x, None, 1e-6).provider == 'native'\n"
        "assert not torch.cuda.is_initialized()\n"
        "print('found')\n"
    )
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, "VLLM_PLUGINS": "normgen"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip().endswith("found"), done.stderr


def test_an_operation_of_another_schema_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    op = ir.ops.rms_norm
    taken = op.impls.pop("normgen")
    kept = op._schema_str
    try:
        op._schema_str = "(Tensor x) -> Tensor"
        assert ours.register() == ("fused_add_rms_norm", "gelu_and_mul_sparse")
        assert "no provider of vllm.ir.ops.rms_norm" in caplog.text
    finally:
        op._schema_str = kept
        op.impls["normgen"] = taken


def test_a_batch_invariant_vllm_runs_none_of_our_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands of row counts have schedules of their own, and orders of sums."""
    x, weight = torch.randn(3, 64), torch.ones(64)
    calls = {"rms_norm": (x, weight, 1e-6), "fused_add_rms_norm": (x, x, weight, 1e-6), "gelu_and_mul_sparse": (x, 1.0)}
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with provider("normgen", "native"):
        for wanted in ("native", "normgen"):
            ours.is_batch_invariant.cache_clear()
            for name, args in calls.items():
                assert getattr(ir.ops, name).dispatch(*args).provider == wanted
            monkeypatch.undo()


@pytest.fixture
def layered(configured: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's configuration, with our layer in its registry of layers from outside."""
    from vllm.model_executor.custom_op import op_registry_oot

    from normgen.engines import vllm_layers

    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert vllm_layers.register() == ()
    monkeypatch.setenv("VLLM_PLUGINS", "normgen_layers")
    assert vllm_layers.register() == vllm_layers.register() == ("RMSNorm",)
    yield configured
    op_registry_oot.pop("RMSNorm")


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_model_s_layer_is_ours_where_the_plugin_of_layers_is_named(layered: Any, is_compiled: bool) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm

    norm, _ = layers(layered)
    assert isinstance(norm, RMSNorm)
    assert type(norm).__module__ == "normgen.engines.vllm_layers"
    assert type(norm).name == "rms_norm"
    with set_current_vllm_config(layered):
        part = RMSNorm(96, var_hidden_size=48).bfloat16()  # vLLM's own forward
    graphs = _Graphs()
    patched = torch._inductor.config.patch(post_grad_custom_post_pass=graphs, fx_graph_cache=False)
    torch._dynamo.reset()

    def block(x: Any, residual: Any) -> Any:
        y, total = norm(x, residual)
        return norm(y), total

    with provider("native"), torch.no_grad(), patched:
        for rows in (3, 5):
            x, residual = (torch.randn(rows, 96).bfloat16() for _ in range(2))
            got = (torch.compile(block, fullgraph=True, dynamic=True) if is_compiled else block)(x, residual)
            y, total = ir.ops.fused_add_rms_norm(x, residual, norm.weight.data, 1e-6)
            assert torch.equal(got[0], ir.ops.rms_norm(y, norm.weight.data, 1e-6))
            assert torch.equal(got[1], total)
        x = torch.randn(3, 96).bfloat16()
        norm.variance_epsilon = 1e39  # which float32 does not hold: vLLM's own forward
        assert torch.equal(norm(x), ir.ops.rms_norm(x, norm.weight.data, 1e39))
        assert torch.equal(part(x), ir.ops.rms_norm(x, part.weight.data, 1e-6, 48))
    if is_compiled:
        assert [name.rpartition("_")[0] for name in graphs.of_ours] == ["vllm_ir_add_rmsnorm", "vllm_ir_rmsnorm"]


def test_a_device_s_capability_is_asked_outside_of_a_compiled_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, index))
    ours._capability.cache_clear()
    compiled = torch.compile(
        lambda x: x + 1 if ours._is_new_enough(5) and not ours._is_new_enough(4) else x, fullgraph=True, backend="eager"
    )
    assert compiled(torch.zeros(())).item() == 1
    ours._capability.cache_clear()
