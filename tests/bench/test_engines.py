"""vLLM's kernels as a peer, seen by made-up operators of the schemas of its library: no GPU takes part."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normgen.bench.expected import Expected
from normgen.bench.peers import Options
from normgen.errors import NotOfferedError
from normgen.measure.data import sample_inputs
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import load

torch = pytest.importorskip("torch", reason="torch is not installed")
SCHEMAS = """
    rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()
    fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()
    rms_norm_static_fp8_quant(Tensor! result, Tensor input, Tensor weight, Tensor scale, float epsilon) -> ()
    fused_add_rms_norm_static_fp8_quant(Tensor! result, Tensor input, Tensor! residual, Tensor weight, Tensor scale,
        float epsilon) -> ()
    rms_norm_dynamic_per_token_quant(Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon,
        Tensor? scale_ub, Tensor!? residual) -> ()
    rms_norm_per_block_quant(Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon,
        Tensor? scale_ub, Tensor!? residual, int group_size, bool is_scale_transposed) -> ()
"""
E4M3 = torch.float8_e4m3fn


def _norm(x: Any, weight: Any, eps: float) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(weight.dtype) * weight


def _fp8(value: Any) -> Any:
    return value.clamp(-448, 448).to(E4M3)


class Library:
    """The operators, as vLLM's kernels compute them; `called`: their names."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def rms_norm(self, result: Any, x: Any, weight: Any, eps: float) -> None:
        result.copy_(_norm(x, weight, eps))

    def fused_add_rms_norm(self, x: Any, residual: Any, weight: Any, eps: float) -> None:
        residual.copy_(x.float() + residual.float())
        x.copy_(_norm(residual, weight, eps))

    def rms_norm_static_fp8_quant(self, result: Any, x: Any, weight: Any, scale: Any, eps: float) -> None:
        result.copy_(_fp8(_norm(x, weight, eps).float() / scale))

    def fused_add_rms_norm_static_fp8_quant(
        self, result: Any, x: Any, residual: Any, weight: Any, scale: Any, eps: float
    ) -> None:
        residual.copy_(x.float() + residual.float())
        result.copy_(_fp8(_norm(residual, weight, eps).float() / scale))

    def rms_norm_dynamic_per_token_quant(
        self, result: Any, x: Any, weight: Any, scale: Any, eps: float, bound: Any, residual: Any
    ) -> None:
        assert scale.shape == (len(x), 1)
        assert scale.is_contiguous()
        self.rms_norm_per_block_quant(result, x, weight, scale, eps, bound, residual, x.shape[1], False)

    def rms_norm_per_block_quant(
        self,
        result: Any,
        x: Any,
        weight: Any,
        scale: Any,
        eps: float,
        bound: Any,
        residual: Any,
        size: int,
        by_col: bool,
    ) -> None:
        assert scale.stride(0 if by_col else 1) == 1
        if residual is not None:
            x = x.float() + residual.float()
            residual.copy_(x)
        y = _norm(x, weight, eps).float().unflatten(-1, (-1, size))
        amax = y.abs().amax(-1)
        scale.copy_((amax if bound is None else amax.minimum(bound)) / 448).clamp_(min=1 / (448 * 512))
        result.copy_(_fp8(y / scale.unsqueeze(-1)).flatten(1))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """`torch.ops._C` with made-up operators that take what the schemas say."""
    made, parsed = Library(), {}
    for text in " ".join(SCHEMAS.split()).replace("-> () ", "-> ()\n").splitlines():
        schema = torch._C.parse_schema(text)
        parsed[schema.name] = schema

    def operator(name: str) -> Any:
        def run(*given: Any) -> None:
            assert len(given) == len(parsed[name].arguments)
            made.called.append(name)
            getattr(made, name)(*given)

        return SimpleNamespace(default=run)

    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(**{name: operator(name) for name in parsed}), raising=False)
    return made


def tensors_of(problem: Problem) -> tuple[Any, dict[str, Any]]:
    inputs, found = sample_inputs(problem, seed=0), {}
    for name, array in inputs.arrays.items():
        of_bits = torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16) if array.itemsize == 2 else None
        found[name] = torch.from_numpy(array.copy()) if of_bits is None else of_bits
    return inputs, found


IN_PLACE = {"h": "residual"}
OFFERED: dict[str, tuple[str, dict[str, Any]]] = {
    "rmsnorm": ("rms_norm", {}),
    "vllm_ir_rmsnorm": ("rms_norm", {}),
    "vllm_add_rmsnorm": ("fused_add_rms_norm", {"in_place": {**IN_PLACE, "y": "x"}}),
    "vllm_rmsnorm_to_fp8": ("rms_norm_static_fp8_quant", {}),
    "vllm_add_rmsnorm_to_fp8": ("fused_add_rms_norm_static_fp8_quant", {"in_place": IN_PLACE}),
    "vllm_rmsnorm_to_fp8_token": ("rms_norm_dynamic_per_token_quant", {}),
    "vllm_add_rmsnorm_to_fp8_token": ("rms_norm_dynamic_per_token_quant", {"in_place": IN_PLACE}),
    "vllm_rmsnorm_to_fp8_group": ("rms_norm_per_block_quant", {}),
    "vllm_add_rmsnorm_to_fp8_group": (
        "rms_norm_per_block_quant",
        {"in_place": IN_PLACE, "layout": {"scale": "column_major"}},
    ),
}


@pytest.mark.parametrize("op", OFFERED)
def test_what_vllm_computes_is_the_presets_problem(op: str, library: Library) -> None:
    peer: Any = importlib.import_module("normgen.bench.peers.engines.vllm")
    name, asked = OFFERED[op]
    without = ["rstd", *(["scale_ub"] if "token" in op or "group" in op else [])]
    problem = problem_for(load(op), shape="36x512", dtype="bf16", without=without, **asked)
    inputs, tensors = tensors_of(problem)
    expected = Expected(problem, inputs, seed=0)
    results = peer.prepare(problem, [tensors], Options())(0)
    assert library.called == [name]
    assert expected.missing(results) == ()
    for result in results:
        use = problem.tensor(result)
        roundoff = 0.0 if use.dtype.name == "f8e4m3" else torch.finfo(results[result].dtype).eps / 2
        got = results[result].double().numpy()
        assert expected.share(result, got, peer_roundoff=roundoff) < 1, result


def test_problems_that_do_not_lie_as_vllm_writes_are_not_offered(library: Library) -> None:
    peer: Any = importlib.import_module("normgen.bench.peers.engines.vllm")
    refused = {
        "overwrites residual": ("vllm_add_rmsnorm_to_fp8", {"without": ["rstd"]}),
        "has no rstd": ("rmsnorm", {}),
        "no softmax forward": ("softmax", {}),
    }
    for why, (op, asked) in refused.items():
        with pytest.raises(NotOfferedError, match=why):
            peer.prepare(problem_for(load(op), shape="36x512", dtype="bf16", **asked), [{}], Options())
    assert library.called == []


def test_without_vllms_compiled_library_its_kernels_are_not_offered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    peer: Any = importlib.import_module("normgen.bench.peers.engines.vllm")
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(), raising=False)
    here = SimpleNamespace(submodule_search_locations=[str(tmp_path)], origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(peer.importlib.util, "find_spec", lambda _: here)
    with pytest.raises(NotOfferedError, match="its compiled library has no rms_norm here"):
        peer.operator("rms_norm")
    (tmp_path / "_C.abi3.so").write_text("no library")
    with pytest.raises(OSError, match=r"_C\.abi3\.so"):
        peer.operator("rms_norm")
