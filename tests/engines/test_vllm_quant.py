"""Norms that end in fp8, in the places of vLLM's operators: its schemas, its pass, its quantiser's native results."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)

if not torch.cuda.is_available():
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # its platform, which it takes where it was built for one

from normgen.engines import vllm_quant as ours  # noqa: E402  (of what is not always there)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
E4M3 = torch.float8_e4m3fn


def drawn(rows: int, cols: int, dtype: Any, device: str) -> tuple[Any, Any, Any]:
    """A row of zeros and rows of several sizes; the residual; the weight."""
    torch.manual_seed(rows + cols)
    size = torch.exp2(torch.empty(rows, 1, device=device).uniform_(-6, 6))
    x, residual = ((size * torch.randn(rows, cols, device=device)).to(dtype) for _ in range(2))
    x[0], residual[0] = 0, 0
    return x, residual, (1 + 0.5 * torch.randn(cols, device=device)).to(dtype)


def normed(row: Any, weight: Any, eps: float) -> Any:
    """T(T(row * s) * weight), in float32."""
    row = row.float()
    s = torch.rsqrt(row.pow(2).mean(dim=-1, keepdim=True) + eps)
    return ((row * s).to(weight.dtype) * weight).float()


def fp8(value: Any) -> Any:
    return value.clamp(-448, 448).to(E4M3)


def same(got: Any, want: Any, device: str) -> bool:
    """On the CPU bit for bit; on a GPU but for elements behind a statistic whose last bit differs."""
    got, want = (t.contiguous().view(torch.uint8) if t.dtype == E4M3 else t for t in (got, want))
    if device == "cpu":
        return torch.equal(got, want)
    if got.dtype == torch.float32:
        return torch.allclose(got, want, rtol=2e-2)
    return (got != want).float().mean().item() < 0.02


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_static_scale(dtype: Any, has_residual: bool, device: str) -> None:
    x, residual, weight = drawn(33, 256, dtype, device)
    scale, result = torch.full((1,), 0.013, device=device), torch.empty(x.shape, dtype=E4M3, device=device)
    row, total = x, (x.float() + residual.float()).to(dtype)
    if has_residual:  # the kernel normalises the stored sum
        row, kept = total, residual.clone()
        ours.defined("fused_add_rms_norm_static_fp8_quant")(result, x, kept, weight, scale, 1e-6)
        assert torch.equal(kept, total)
    else:
        ours.defined("rms_norm_static_fp8_quant")(result, x, weight, scale, 1e-6)
    assert same(result, fp8(normed(row, weight, 1e-6) * scale.reciprocal()), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bound", [None, 1.5])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_for_each_token(dtype: Any, has_residual: bool, bound: float | None, device: str) -> None:
    x, residual, weight = drawn(33, 256, dtype, device)
    scale, result = torch.empty(33, 1, device=device), torch.empty(x.shape, dtype=E4M3, device=device)
    most = None if bound is None else torch.full((1,), bound, device=device)
    kept = residual.clone() if has_residual else None
    ours.defined("rms_norm_dynamic_per_token_quant")(result, x, weight, scale, 1e-5, most, kept)
    row = x.float() + (residual.float() if has_residual else 0)
    y = normed(row, weight, 1e-5)
    amax = y.abs().amax(dim=-1, keepdim=True).clamp(max=torch.inf if bound is None else bound)
    want = (amax / 448).clamp(min=1 / (448 * 512))
    assert same(scale, want, device)
    assert same(result, fp8(y / scale), device)
    assert kept is None or torch.equal(kept, row.to(dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_for_each_128_columns(dtype: Any, has_residual: bool, is_transposed: bool, device: str) -> None:
    x, residual, weight = drawn(36, 512, dtype, device)
    result = torch.empty(x.shape, dtype=E4M3, device=device)
    scale = torch.empty(4, 36, device=device).t() if is_transposed else torch.empty(36, 4, device=device)
    kept = residual.clone() if has_residual else None
    ours.defined("rms_norm_per_block_quant")(result, x, weight, scale, 1e-6, None, kept, 128, is_transposed)
    row = x.float() + (residual.float() if has_residual else 0)
    y = normed(row, weight, 1e-6).view(36, 4, 128)
    want = (y.abs().amax(dim=-1) / 448).clamp(min=1 / (448 * 512))
    assert same(scale, want, device)
    assert same(result, fp8(y / scale.unsqueeze(-1)).view(36, 512), device)
    assert kept is None or torch.equal(kept, row.to(dtype))


def test_what_we_do_not_have_goes_to_vllm_s_own_operator() -> None:
    x, _, weight = drawn(4, 256, torch.bfloat16, "cpu")
    result, scale = torch.empty(x.shape, dtype=E4M3), torch.empty(4, 4)
    cases = [
        (result, x, weight, scale, 1e-6, None, None, 64, False),
        (result, x, weight.float(), torch.empty(4, 2), 1e-6, None, None, 128, False),
        (result, x.t().contiguous().t(), weight, torch.empty(4, 2), 1e-6, None, None, 128, False),
        (result.view(torch.int8), x, weight, torch.empty(4, 2), 1e-6, None, None, 128, False),
        (result, x, weight, torch.empty(4, 2).double(), 1e-6, None, None, 128, False),
        (result, x, weight, torch.empty(8), 1e-6, None, None, 128, False),
        (result, x, weight, torch.empty(4, 2, device="meta"), 1e-6, None, None, 128, False),
        (result.to("meta"), x, weight, torch.empty(4, 2), 1e-6, None, None, 128, False),
    ]
    for args in cases:
        assert not ours.rms_norm_per_block_quant(*args)
    assert not ours.rms_norm_static_fp8_quant(result, x, weight, torch.ones(2), 1e-6)
    assert not ours.rms_norm_static_fp8_quant(result, x, weight, torch.ones(1), 1e39)  # which float32 does not hold
    assert not ours.rms_norm_dynamic_per_token_quant(result, x, weight, torch.ones(3), 1e-6, None, None)
    one, none = torch.tensor(1.0).bfloat16(), torch.empty((), dtype=E4M3)
    assert not ours.rms_norm_dynamic_per_token_quant(none, one, weight, torch.ones(1), 1e-6, None, None)
    # No tokens are ours too.
    assert ours.rms_norm_per_block_quant(result[:0], x[:0], weight, torch.empty(0, 2), 1e-6, None, None, 128, False)


def test_nothing_is_offered_where_the_engine_does_not_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert ours.register() == ()
    monkeypatch.setenv("VLLM_PLUGINS", "normgen")
    assert ours.register() == ()
    monkeypatch.setenv("VLLM_PLUGINS", "normgen_norm_quant")
    monkeypatch.setattr(ours, "is_batch_invariant", lambda: True)
    assert ours.register() == ()


@pytest.fixture(scope="module")
def fusion() -> Any:
    """vLLM's module of the pass. Its compiled library is not loaded here: the operators' schemas are read from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vllm = pytest.importorskip("vllm", reason="vllm is not installed", exc_type=ImportError)
        compiled = Path(vllm.__file__).parent / "_C_stable_libtorch.abi3.so"
        if not compiled.is_file():
            pytest.skip("vllm's compiled library, which has the schemas of its operators, is not there")
        library = torch.library.Library("_C", "FRAGMENT")
        for schema in schemas(compiled.read_bytes()):
            if not hasattr(torch.ops._C, schema.partition("(")[0]):
                library.define(schema)
        try:
            import vllm.compilation.passes.fusion.rms_quant_fusion as found
        except ImportError as error:
            pytest.skip(f"vllm's passes need what is not installed: {error}")
        yield found
        library._destroy()


def schemas(data: bytes) -> dict[str, None]:
    texts = (" ".join(m.group().decode().split()) for m in re.finditer(rb"[ -~\n]{12,2000}", data))
    pattern = re.compile(r"[a-z_0-9]+\(.*\) -> (\(.*\)|[A-Za-z\[\]]+)")
    return {text: None for text in texts if pattern.fullmatch(text) and ("Tensor" in text or "int" in text)}


def test_each_of_vllm_s_fused_operators_has_one_of_ours_of_its_schema(fusion: Any) -> None:
    there = dict(fusion.FUSED_OPS)
    assert ours.offered(there) == set(ours.OPERATORS)
    assert there.keys() == fusion.FUSED_OPS.keys()
    assert all(op._schema.name.startswith("normgen::vllm_") for op in there.values())


def test_another_schema_is_left_to_vllm(fusion: Any, caplog: pytest.LogCaptureFixture) -> None:
    key = next(iter(fusion.FUSED_OPS))
    library = torch.library.Library("_C", "FRAGMENT")
    library.define("rms_norm_static_fp8_quant.other(Tensor! result, Tensor input, Tensor scale) -> ()")
    there = {key: torch.ops._C.rms_norm_static_fp8_quant.other}
    assert ours.offered(there) == set()
    assert "another one here" in caplog.text
    library._destroy()


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("form", ["static", "token"])
def test_vllm_s_pass_puts_our_operator_into_a_compiled_program(
    fusion: Any, form: str, has_residual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layer, its quantiser's native form, its patterns; the results are those of the program without the pass."""
    from vllm import ir
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

    monkeypatch.setenv("VLLM_PLUGINS", "normgen,normgen_norm_quant")
    monkeypatch.setattr(fusion, "FUSED_OPS", dict(fusion.FUSED_OPS))
    assert ours.register() == tuple(sorted(ours.OPERATORS))
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    x, residual, weight = drawn(6, 256, torch.bfloat16, "cpu")
    scale = torch.full((1,), 0.02)
    with set_current_vllm_config(config):
        shape = GroupShape.PER_TENSOR if form == "static" else GroupShape.PER_TOKEN
        quantiser = QuantFP8(form == "static", shape)
        lowering = fusion.RMSNormQuantFusionPass(config)
    seen: list[str] = []

    def fused(graph: Any) -> None:
        lowering(graph)
        seen.extend(str(node.args[0]) for node in graph.nodes if "auto_functionalized" in str(node.target))

    def block(x: Any, residual: Any) -> Any:
        if has_residual:
            y, total = ir.ops.fused_add_rms_norm(x, residual, weight, 1e-6)
        else:
            y, total = ir.ops.rms_norm(x, weight, 1e-6), x
        return *quantiser.forward_native(y, scale if form == "static" else None), total

    torch._dynamo.reset()
    patched = torch._inductor.config.patch(post_grad_custom_post_pass=fused, fx_graph_cache=False)
    with patched, torch.no_grad(), ir.ops.rms_norm.set_priority(["native"]):
        got = torch.compile(block, fullgraph=True)(x, residual)
    want = block(x, residual)
    assert [name for name in seen if name.startswith("normgen.vllm_")]
    assert torch.allclose(got[1].float().flatten(), want[1].float().flatten(), rtol=1e-6)
    assert torch.equal(got[2], want[2])
    differ = (got[0].view(torch.uint8) != want[0].view(torch.uint8)).float().mean().item()
    # vLLM's fused kernel normalises the stored sum, and divides by a token's scale: its native forms do not.
    assert differ == 0 if form == "static" and not has_residual else differ < 0.02


@pytest.mark.parametrize("form", ["static", "token", "group"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_our_operators_have_the_bits_of_vllm_s_norm_and_then_its_native_quantiser(
    fusion: Any, form: str, dtype: Any
) -> None:
    """Without a residual, whose sum the fused kernels round elsewhere; of a token the scale, by which they divide."""
    from vllm import ir
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

    assert fusion.FUSED_OPS
    x, _, weight = drawn(40, 512, dtype, "cpu")
    y = ir.ops.rms_norm.impls["native"].impl_fn(x, weight, 1e-6)
    result, static = torch.empty(x.shape, dtype=E4M3), torch.full((1,), 0.017)
    shape = {"static": GroupShape.PER_TENSOR, "token": GroupShape.PER_TOKEN, "group": GroupShape(1, 128)}[form]
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        want, want_scale = QuantFP8(form == "static", shape).forward_native(y, static if form == "static" else None)
    scale = torch.empty(want_scale.shape)
    if form == "static":
        ours.defined("rms_norm_static_fp8_quant")(result, x, weight, static, 1e-6)
    elif form == "token":
        ours.defined("rms_norm_dynamic_per_token_quant")(result, x, weight, scale, 1e-6, None, None)
        want = fp8(y.float() / want_scale)
    else:
        ours.defined("rms_norm_per_block_quant")(result, x, weight, scale, 1e-6, None, None, 128, False)
    assert form == "static" or torch.equal(scale, want_scale)
    assert torch.equal(result.view(torch.uint8), want.view(torch.uint8))
