"""vLLM's layer RMSNorm by our kernels, where `VLLM_PLUGINS` names it: for a vLLM whose IR has gone.

    VLLM_PLUGINS=normgen_layers vllm serve MODEL

The layer registers itself by `CustomOp.register_oot`, vLLM's place for layers from outside, and is made wherever a
model makes an `RMSNorm`. Where a call is none of ours, vLLM's forward runs.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

from normgen.engines.vllm import (
    _is_like,
    _is_rows,
    _is_scalar,
    _is_weight,
    fused_add_rms_norm,
    is_batch_invariant,
    rms_norm,
)

PLUGIN = "normgen_layers"
LAYERS = "vllm.model_executor.layers.layernorm"
_LOG = logging.getLogger(__name__)


def forward(own: Callable[..., Any], module: Any, x: Any, residual: Any = None) -> Any:
    """The forward of a layer; `own` is vLLM's, for the calls that we do not have."""
    is_passed = module.pass_weight if residual is None else module.pass_weight_add
    weight = module.weight.data if is_passed else None
    if module.variance_size_override is not None or not _is_scalar(module.variance_epsilon):
        return own(x, residual)
    if not (_is_rows(x) and _is_weight(weight, x)):
        return own(x, residual)
    if residual is None:
        return rms_norm(x, weight, module.variance_epsilon)
    if not _is_like(residual, x):
        return own(x, residual)
    return fused_add_rms_norm(x, residual, weight, module.variance_epsilon)


def register() -> tuple[str, ...]:
    """Entry point of the group `vllm.general_plugins`. Returns the names of the layers that are now ours.

    Without `VLLM_PLUGINS` vLLM loads every plugin; this one then does nothing, as nobody asked for it.
    """
    if PLUGIN not in os.environ.get("VLLM_PLUGINS", "").replace(" ", "").split(","):
        return ()
    try:
        whose = importlib.import_module(LAYERS).RMSNorm
        others = importlib.import_module("vllm.model_executor.custom_op").op_registry_oot
    except (ImportError, AttributeError) as error:
        _LOG.warning("normgen is no layer of this vLLM: %s", error)
        return ()
    if is_batch_invariant():
        _LOG.warning("normgen is no layer of a vLLM that is to be batch-invariant")
        return ()
    if "RMSNorm" in others:
        return ("RMSNorm",) if others["RMSNorm"].__module__ == __name__ else ()

    class RMSNorm(whose):  # type: ignore[misc, valid-type]
        __doc__ = whose.__doc__

        def forward_native(self, x: Any, residual: Any = None) -> Any:
            return forward(super().forward_native, self, x, residual)

        def forward_cuda(self, x: Any, residual: Any = None) -> Any:
            return forward(super().forward_cuda, self, x, residual)

    name = whose.name
    whose.register_oot(RMSNorm)
    RMSNorm.name = name  # by which `custom_ops` switches the layer on and off
    return ("RMSNorm",)
