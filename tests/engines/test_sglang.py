"""SGLang's RMSNorm by our kernels: its registry of hooks, its layer, its loader of plugins; nothing in their place."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        layernorm = pytest.importorskip(
            "sglang.srt.layers.layernorm", reason="sglang is not installed", exc_type=ImportError
        )
    except RuntimeError as error:
        pytest.skip(f"sglang's layers do not import here: {error}", allow_module_level=True)

from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402  (of what is not always there)

from normgen.engines import sglang as ours  # noqa: E402

ROOT = Path(__file__).parents[2]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def hooked() -> Iterator[Any]:
    """SGLang's class with our hook on it, as its own registry puts it there."""
    own = layernorm.RMSNorm.forward_cuda
    before = os.environ.pop("SGLANG_PLUGINS", None)
    assert not ours.register()
    os.environ["SGLANG_PLUGINS"] = "other, normgen"
    assert ours.register()
    HookRegistry.apply_hooks()
    assert layernorm.RMSNorm.forward_cuda is not own
    yield layernorm.RMSNorm
    layernorm.RMSNorm.forward_cuda = own
    os.environ.pop("SGLANG_PLUGINS")
    if before is not None:
        os.environ["SGLANG_PLUGINS"] = before


def drawn(module: Any, dtype: Any, weight: Any, device: str, **options: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    norm = module(128, eps=1e-6, weight_dtype=weight, **options).to(device)
    norm.weight.data.normal_(1, 0.3)
    return norm, *(torch.randn(9, 128, device=device).to(dtype) for _ in range(2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_has_the_bits_of_sglang_s_native_forward(hooked: Any, dtype: Any, weight: Any, device: str) -> None:
    for is_rounded in (False, True):
        norm, x, residual = drawn(hooked, dtype, weight, device, cast_x_before_out_mul=is_rounded)
        if is_rounded and dtype != weight:
            assert not ours._is_ours(norm, x, norm.weight.data, None)
            continue
        with torch.no_grad():
            got = (norm.forward_cuda(x), *norm.forward_cuda(x, residual))
            want = (norm.forward_native(x), *norm.forward_native(x, residual))
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype
            if device == "cpu":
                assert torch.equal(a, b)
            torch.testing.assert_close(a, b, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_what_we_do_not_have_goes_to_sglang(hooked: Any) -> None:
    asked: list[tuple[Any, ...]] = []

    def own(*args: Any) -> str:
        asked.append(args)
        return "own"

    norm, x, residual = drawn(hooked, torch.bfloat16, torch.bfloat16, "cpu")
    assert isinstance(ours.forward(own, norm, x), torch.Tensor)
    large = drawn(hooked, torch.bfloat16, torch.bfloat16, "cpu")[0]
    large.variance_epsilon = 1e39  # which float32 does not hold
    for module, args in (
        (norm, (x, residual, residual)),
        (norm, (x, None, None, object())),
        (norm, (x, residual.float())),
        (norm, (x[:0],)),
        (norm, (x.t().contiguous().t(),)),
        (drawn(hooked, torch.bfloat16, torch.bfloat16, "cpu", var_hidden_size=64)[0], (x,)),
        (large, (x,)),
        (drawn(hooked, torch.bfloat16, torch.bfloat16, "cpu", fp32_residual=True)[0], (x, residual)),
        (drawn(hooked, torch.bfloat16, torch.bfloat16, "cpu", override_orig_dtype=torch.float32)[0], (x,)),
    ):
        assert ours.forward(own, module, *args) == "own"
    assert len(asked) == 9


def test_sglang_s_loader_hooks_the_layer_where_it_is_named_and_nowhere_else(tmp_path: Path) -> None:
    made = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(made, cwd=ROOT, check=True, capture_output=True)
    program = (
        "from sglang.srt.plugins import load_plugins\n"
        "from sglang.srt.plugins.hook_registry import HookRegistry\n"
        "HookRegistry.apply_hooks = classmethod(lambda cls: None)\n"  # the layer imports all of SGLang
        "load_plugins()\n"
        "print('found', sorted(name for name, hooks in HookRegistry._hooks.items() if hooks))\n"
    )
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    for named, found in (("normgen", f"found ['{ours.TARGET}']"), ("", "found []")):
        environment = {**os.environ, "PYTHONPATH": path, "SGLANG_PLUGINS": named}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.stdout.strip().splitlines()[-1:] == [found], done.stderr
