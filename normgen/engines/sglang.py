"""SGLang's RMSNorm by our kernels, where `SGLANG_PLUGINS` names normgen, else nothing changes.

    SGLANG_PLUGINS=normgen python -m sglang.launch_server --model-path MODEL

SGLang finds `register` by the entry point group `sglang.srt.plugins`. Its registry of hooks puts ours around
`RMSNorm.forward_cuda`, which asks first whether a call is one of ours and else runs SGLang's own. Bits are those of its
native forward: with float32 to the end, or rounded before the weight where a model says `cast_x_before_out_mul`.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

from normgen.engines.vllm import _is_like, _is_rows, _is_scalar, _is_weight
from normgen.torch.operators import operator

PLUGIN = "normgen"
TARGET = "sglang.srt.layers.layernorm.RMSNorm.forward_cuda"
_LOG = logging.getLogger(__name__)
_MODES = ("override_orig_dtype", "fp32_residual", "variance_size_override")


@functools.lru_cache(maxsize=64)
def _function(preset: str, *returns: str) -> Callable[..., Any]:
    return operator(preset, returns=returns, opaque=True, rows="any").function


def forward(
    own: Callable[..., Any],
    module: Any,
    x: Any,
    residual: Any = None,
    post_residual_addition: Any = None,
    quant_linear: Any = None,
) -> Any:
    """`RMSNorm.forward_cuda` of a module; `own` is SGLang's, for the calls that we do not have."""
    weight = module.weight.data
    if not _is_ours(module, x, weight, residual) or post_residual_addition is not None or quant_linear is not None:
        return own(module, x, residual, post_residual_addition, quant_linear)
    eps = module.variance_epsilon
    is_rounded = module.cast_x_before_out_mul
    if residual is None:
        return _function("vllm_ir_rmsnorm" if is_rounded else "rmsnorm", "y")(x, weight, eps=eps, dtype=x.dtype)
    run = _function("vllm_ir_add_rmsnorm" if is_rounded else "add_rmsnorm", "y", "h")
    return run(x, residual, weight, eps=eps, dtype=x.dtype)


def _is_ours(module: Any, x: Any, weight: Any, residual: Any) -> bool:
    if any(getattr(module, name, None) for name in _MODES) or module._quant_linear is not None:
        return False
    if module.cast_x_before_out_mul and weight.dtype != x.dtype:  # the result then has the weight's dtype
        return False
    if not (x.numel() and _is_scalar(module.variance_epsilon) and _is_rows(x) and _is_weight(weight, x)):
        return False
    return (residual is None or _is_like(residual, x)) and not _is_batch_invariant()


def _is_batch_invariant() -> bool:
    module = importlib.import_module("sglang.srt.batch_invariant_ops")
    return bool(module.is_batch_invariant_mode_enabled())


def register() -> bool:
    """Put our forward around SGLang's, and say whether; without `SGLANG_PLUGINS` naming us nothing is done.

    SGLang runs every plugin where the variable is not set; nobody asked for this one then.
    """
    if PLUGIN not in os.environ.get("SGLANG_PLUGINS", "").replace(" ", "").split(","):
        return False
    try:
        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        hooks.HookRegistry.register(TARGET, forward, hooks.HookType.AROUND)
    except (ImportError, AttributeError) as error:
        _LOG.warning("normgen runs no norm of this SGLang: %s", error)
        return False
    return True
