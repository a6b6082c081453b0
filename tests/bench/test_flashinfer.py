"""FlashInfer's kernels as a peer, seen by made-up functions of its signatures: no GPU takes part."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from normgen.bench.expected import Expected
from normgen.bench.peers import Options
from normgen.errors import NotOfferedError
from normgen.program.source import problem_for
from normgen.spec.reader import load
from tests.bench.test_engines import tensors_of

torch = pytest.importorskip("torch", reason="torch is not installed")


def _norm(x: Any, weight: Any, eps: float) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


class Library:
    """The functions, as FlashInfer's kernels compute them; `called`: their names."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.norm = SimpleNamespace(layernorm=self.layernorm)
        self.sampling = SimpleNamespace(softmax=self.softmax)

    def gemma_rmsnorm(self, x: Any, weight: Any, eps: float) -> Any:
        self.called.append("gemma_rmsnorm")
        return _norm(x, weight.float() + 1, eps)

    def gemma_fused_add_rmsnorm(self, x: Any, residual: Any, weight: Any, eps: float) -> None:
        self.called.append("gemma_fused_add_rmsnorm")
        total = x.float() + residual.float()
        residual.copy_(total)
        x.copy_(_norm(total, weight.float() + 1, eps))

    def layernorm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        self.called.append("layernorm")
        assert (weight.dtype, bias.dtype) == (torch.float32, torch.float32)
        return torch.nn.functional.layer_norm(x.float(), x.shape[1:], weight, bias, eps).to(x.dtype)

    def softmax(self, logits: Any) -> Any:
        self.called.append("softmax")
        return logits.float().softmax(-1)


PEER = "normgen.bench.peers.engines.flashinfer"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """The package `flashinfer`, and a peer that imports it."""
    made = Library()
    monkeypatch.setitem(sys.modules, "flashinfer", made)
    real = sys.modules.pop(PEER, None)
    yield made
    sys.modules.pop(PEER, None)
    if real is not None:
        sys.modules[PEER] = real


def peer() -> Any:
    return importlib.import_module(PEER)


F32_PARAMETERS = {"weight": "f32", "bias": "f32"}
OFFERED: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma_rmsnorm": ("gemma_rmsnorm", {"dtype": "bf16", "without": ["residual", "h", "rstd"]}),
    "gemma_fused_add_rmsnorm": (
        "gemma_rmsnorm",
        {"dtype": "bf16", "without": ["rstd"], "in_place": {"h": "residual", "y": "x"}},
    ),
    "layernorm": ("layernorm", {"dtype": "bf16", "dtypes": F32_PARAMETERS, "without": ["mean", "rstd"]}),
    "softmax": ("softmax", {"dtype": "f32"}),
}


@pytest.mark.parametrize("name", OFFERED)
def test_what_flashinfer_computes_is_the_problem(name: str, library: Library) -> None:
    op, asked = OFFERED[name]
    problem = problem_for(load(op), shape="36x512", **asked)
    inputs, tensors = tensors_of(problem)
    expected = Expected(problem, inputs, seed=0)
    results = peer().prepare(problem, [tensors], Options())(0)
    assert library.called == [name]
    assert expected.missing(results) == ()
    for result in results:
        roundoff = torch.finfo(results[result].dtype).eps / 2
        assert expected.share(result, results[result].double().numpy(), peer_roundoff=roundoff) < 1, result


def test_problems_that_flashinfer_has_no_kernel_for_are_not_offered(library: Library) -> None:
    refused: list[tuple[str, str, dict[str, Any]]] = [
        ("overwrites residual, x", "gemma_rmsnorm", {"without": ["rstd"]}),
        ("has no h", "gemma_rmsnorm", {"without": ["residual", "rstd"]}),
        ("takes rows of bfloat16 and parameters of float32", "layernorm", {"without": ["mean", "rstd"]}),
        ("needs a bias", "layernorm", {"without": ["mean", "rstd", "bias"]}),
        ("has no mean", "layernorm", {"dtypes": F32_PARAMETERS}),
        ("takes and gives float32", "softmax", {}),
        ("no masked_softmax forward", "masked_softmax", {}),
    ]
    for why, op, asked in refused:
        with pytest.raises(NotOfferedError, match=why):
            peer().prepare(problem_for(load(op), shape="36x512", dtype="bf16", **asked), [{}], Options())
    assert library.called == []
