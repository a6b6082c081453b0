"""How Liger's cross entropy is launched, seen by a made-up kernel in the place of Triton's: no GPU takes part."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
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
# Of liger-kernel 0.8.5
ARGUMENTS = """
    X_ptr X_stride Y_ptr Y_stride weight_ptr loss_ptr z_loss_ptr loss_stride token_accuracy_ptr token_accuracy_stride
    predicted_tokens_ptr predicted_tokens_stride n_cols n_non_ignore sum_non_ignore_weight weight_sum ignore_index
    lse_square_scale label_smoothing reduction softcap RETURN_Z_LOSS RETURN_TOKEN_ACCURACY RETURN_PREDICTED_TOKENS
    BLOCK_SIZE HAS_WEIGHT HAS_SOFTCAPPING HAS_GRADIENTS
"""


class Kernel:
    """What Liger's kernel computes, in torch: the gradient over the logits, the loss of each row."""

    def __init__(self, arguments: str) -> None:
        self.arg_names = arguments.split()
        self.launches: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*, num_warps: int, **given: Any) -> None:
            assert set(given) == set(self.arg_names)
            self.launches.append({**given, "grid": grid, "num_warps": num_warps})
            x, label = given["X_ptr"], given["Y_ptr"].long()
            assert grid == (len(x),)
            assert given["X_stride"] == x.stride(0)
            assert given["n_cols"] == x.shape[1] <= given["BLOCK_SIZE"]
            counts, smooth = label != given["ignore_index"], given["label_smoothing"]
            wide, column = x.double(), label.clamp(min=0).unsqueeze(1)
            lse = wide.logsumexp(1, keepdim=True)
            wanted = torch.full_like(wide, smooth / x.shape[1]).scatter_add_(
                1, column, torch.full_like(lse, 1 - smooth)
            )
            d = (wide - lse).exp() * (1 + 2 * given["lse_square_scale"] * lse) - wanted
            loss = ((lse - wide) * wanted).sum(1) + given["lse_square_scale"] * lse[:, 0] ** 2
            each = given["n_non_ignore"] if given["reduction"] == "mean" else 1.0
            given["loss_ptr"].copy_(torch.where(counts, loss / each, 0.0))
            x.copy_(torch.where(counts.unsqueeze(1), d / each, 0.0))

        return launch


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """The peer's module with a made-up liger_kernel of the functions that it names."""
    made = Kernel(ARGUMENTS)
    names = {
        "layer_norm": ("layer_norm_backward", "layer_norm_forward"),
        "rms_norm": ("rms_norm_backward", "rms_norm_forward"),
        "utils": ("calculate_settings",),
        "cross_entropy": (),
    }
    for name in ("liger_kernel", "liger_kernel.ops", *(f"liger_kernel.ops.{name}" for name in names)):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, functions in names.items():
        for function in functions:
            setattr(sys.modules[f"liger_kernel.ops.{name}"], function, None)
    module: Any = sys.modules["liger_kernel.ops.cross_entropy"]
    module.liger_cross_entropy_kernel, module.MAX_FUSED_SIZE = made, 32768
    monkeypatch.delitem(sys.modules, "normgen.bench.peers.liger", raising=False)
    yield made
    sys.modules.pop("normgen.bench.peers.liger", None)


def problem_of(**asked: Any) -> Problem:
    asked = {"in_place": {"dlogits": "x"}, "without": ["lse"], **asked}
    return problem_for(load("cross_entropy_grad"), shape="40x300", **asked)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("without", [["lse"], ["lse", "grad_scale"]], ids=["mean", "none"])
def test_its_cross_entropy_is_ours(kernel: Kernel, without: list[str], dtype: str) -> None:
    peer = importlib.import_module("normgen.bench.peers.liger")
    problem = problem_of(without=without, dtype=dtype)
    inputs = sample_inputs(problem, seed=0)
    tensors = {}
    for name, array in inputs.arrays.items():
        of_bits = torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16) if array.itemsize == 2 else None
        tensors[name] = torch.from_numpy(array.copy()) if of_bits is None else of_bits
    call = peer.prepare(problem, [tensors], Options())
    results = call(0)
    assert results["dlogits"] is tensors["x"]
    assert set(results) == ({"dlogits", "loss"} if "grad_scale" in without else {"dlogits"})
    expected = Expected(problem, inputs, seed=0)
    assert expected.missing(results) == ()
    for name, result in results.items():
        roundoff = torch.finfo(result.dtype).eps / 2
        assert expected.share(name, result.double().numpy(), peer_roundoff=roundoff) < 0.5, name
    (launch,) = kernel.launches
    assert (launch["BLOCK_SIZE"], launch["num_warps"], launch["HAS_GRADIENTS"]) == (512, 32, True)


def test_logits_that_stay_are_not_offered(kernel: Kernel) -> None:
    peer = importlib.import_module("normgen.bench.peers.liger")
    with pytest.raises(NotOfferedError, match="overwrites the logits"):
        peer.prepare(problem_of(in_place={}), [{}], Options())
    assert not kernel.launches


def test_a_version_with_other_arguments_is_not_offered(kernel: Kernel) -> None:
    peer = importlib.import_module("normgen.bench.peers.liger")
    kernel.arg_names.append("HAS_CURVATURE")
    with pytest.raises(NotOfferedError, match="another one") as refused:
        peer.prepare(problem_of(), [{"grad_scale": torch.ones(1)}], Options())
    assert refused.value.received == "HAS_CURVATURE"


def test_an_older_version_gets_what_it_takes(kernel: Kernel) -> None:
    """Some kernels do not tell which token they predict."""
    peer = importlib.import_module("normgen.bench.peers.liger")
    kernel.arg_names = [name for name in kernel.arg_names if "predicted" not in name.lower()]
    x = torch.randn(40, 300)
    label = torch.zeros(40, dtype=torch.int64)
    call = peer.prepare(problem_of(), [{"x": x, "label": label, "grad_scale": torch.full((1,), 0.5)}], Options())
    call(0)
    assert kernel.launches[0]["n_non_ignore"] == 2.0
