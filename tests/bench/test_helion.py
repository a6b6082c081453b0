"""Helion's functions by its interpreter against the float64 reference: its compiler needs a GPU."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from normgen.bench.expected import Expected
from normgen.bench.peers import Options
from normgen.errors import NotOfferedError
from normgen.measure.data import sample_inputs
from normgen.program.source import problem_for
from normgen.spec.reader import load
from tests.bench.test_peers import torch_sets

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("helion", reason="Helion is not installed, or not for this torch", exc_type=ImportError)

WITHOUT = {
    "add_layernorm": ("residual2", "h", "mean", "rstd"),
    "layernorm": (),
    **dict.fromkeys(("rmsnorm", "add_rmsnorm", "gate_rmsnorm"), ("rstd",)),
    **dict.fromkeys(("rmsnorm_to_fp8_token", "add_rmsnorm_to_fp8_token"), ("scale_ub",)),
}


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HELION_INTERPRET", "1")
    return importlib.reload(importlib.import_module("normgen.bench.peers.helion"))


OPS = """
    rmsnorm layernorm softmax add_rmsnorm add_layernorm gate_rmsnorm layernorm_to_int8 rmsnorm_to_fp8
    rmsnorm_to_fp8_token add_rmsnorm_to_fp8_token quantize_to_fp8_group silu_mul_to_fp8_group swiglu
"""


@pytest.mark.parametrize("op", OPS.split())
def test_helion_computes_what_the_reference_says(op: str, peer: Any) -> None:
    problem = problem_for(load(op), shape="30x384", dtype="bf16", without=WITHOUT.get(op, ()))
    inputs = sample_inputs(problem, seed=0)
    results = peer.prepare(problem, torch_sets(inputs), Options())(0)
    expected = Expected(problem, inputs, seed=0)
    assert expected.missing(results) == ()
    for name in expected.tensors.keys() & results.keys():
        dtype = results[name].dtype
        roundoff = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0
        assert expected.share(name, results[name].double().numpy(), peer_roundoff=roundoff) < 1, name


def test_every_function_is_compared(peer: Any) -> None:
    assert {op for op, _ in peer._FUNCTIONS} == set(OPS.split())


def test_what_helion_has_no_function_for_is_not_offered(peer: Any) -> None:
    sets = [{"x": torch.zeros(8, 384)}]
    with pytest.raises(NotOfferedError, match="no layernorm backward"):
        peer.prepare(problem_for(load("layernorm"), shape="8x384", direction="backward"), sets, Options())
    with pytest.raises(NotOfferedError, match="has no rstd"):
        peer.prepare(problem_for(load("rmsnorm"), shape="8x384"), sets, Options())
