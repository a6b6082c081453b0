"""Norms that end in fp8 for vLLM's compiler pass `RMSNormQuantFusionPass`, where `VLLM_PLUGINS` names them.

    VLLM_PLUGINS=normgen,normgen_norm_quant vllm serve MODEL

The pass replaces a norm and the quantiser behind it by one of vLLM's operators, which it takes from a dict of its
module, `FUSED_OPS`. No interface changes that dict: this plugin puts operators of ours, of the same schemas and bits,
in the places of those it knows. What one of ours does not have it hands to vLLM's own.
"""

# Without `from __future__ import annotations`, as vllm.py.
import functools
import importlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from normgen.engines.vllm import _capability, _is_like, _is_rows, _is_scalar, _is_weight, is_batch_invariant
from normgen.python.handle import Kernel, kernel
from normgen.torch.calls import name_of
from normgen.torch.operators import operator

PLUGIN = "normgen_norm_quant"
PASS = "vllm.compilation.passes.fusion.rms_quant_fusion"
GROUP = 128
LEAST_CAPABILITY = (8, 9)  # sm_89 has conversions to fp8
_LIBRARY = torch.library.Library("normgen", "FRAGMENT")
_LOG = logging.getLogger(__name__)


def rms_norm_static_fp8_quant(result: Tensor, input: Tensor, weight: Tensor, scale: Tensor, epsilon: float) -> bool:
    if not (_fits(epsilon, result, input, weight) and _is_number(scale, input)):
        return False
    return _run("vllm_rmsnorm_to_fp8", (input, weight, scale.reshape(())), {"q": result}, epsilon)


def fused_add_rms_norm_static_fp8_quant(
    result: Tensor, input: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, epsilon: float
) -> bool:
    if not (_fits(epsilon, result, input, weight, residual) and _is_number(scale, input)):
        return False
    given = (input, residual, weight, scale.reshape(()))
    return _run("vllm_add_rmsnorm_to_fp8", given, {"h": residual, "q": result}, epsilon)


def rms_norm_dynamic_per_token_quant(
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
    scale_ub: Tensor | None,
    residual: Tensor | None,
) -> bool:
    if not _fits(epsilon, result, input, weight, residual) or (
        scale_ub is not None and not _is_number(scale_ub, input)
    ):
        return False
    tokens = input.numel() // input.shape[-1]
    if not _is_scale(scale, input) or scale.numel() != tokens or not scale.is_contiguous():
        return False
    written = {"scale": scale.view(input.shape[:-1]), "q": result}
    return _dynamic("vllm_{}rmsnorm_to_fp8_token", input, weight, residual, scale_ub, written, epsilon)


def rms_norm_per_block_quant(
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
    scale_ub: Tensor | None,
    residual: Tensor | None,
    group_size: int,
    is_scale_transposed: bool,
) -> bool:
    if group_size != GROUP or not _fits(epsilon, result, input, weight, residual) or input.dim() != 2:
        return False
    if input.shape[-1] % GROUP or (scale_ub is not None and not _is_number(scale_ub, input)):
        return False
    tokens, groups = input.shape[0], input.shape[-1] // GROUP
    if not _is_scale(scale, input) or scale.shape != (tokens, groups):
        return False
    lines = (1, max(tokens, 1)) if is_scale_transposed else (max(groups, 1), 1)
    along = scale.stride(0 if is_scale_transposed else 1)
    apart = scale.stride(1 if is_scale_transposed else 0)
    if along != 1 or apart < max(lines):
        return False
    written, layout = {"scale": scale, "q": result}, "column_major" if is_scale_transposed else ""
    return _dynamic("vllm_{}rmsnorm_to_fp8_group", input, weight, residual, scale_ub, written, epsilon, layout)


# vLLM's operator -> its schema, and what runs it: False where it is left to vLLM.
OPERATORS: dict[str, tuple[str, Callable[..., bool]]] = {
    "rms_norm_static_fp8_quant": (
        "(Tensor! result, Tensor input, Tensor weight, Tensor scale, float epsilon) -> ()",
        rms_norm_static_fp8_quant,
    ),
    "fused_add_rms_norm_static_fp8_quant": (
        "(Tensor! result, Tensor input, Tensor! residual, Tensor weight, Tensor scale, float epsilon) -> ()",
        fused_add_rms_norm_static_fp8_quant,
    ),
    "rms_norm_dynamic_per_token_quant": (
        "(Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon, Tensor? scale_ub, "
        "Tensor!? residual) -> ()",
        rms_norm_dynamic_per_token_quant,
    ),
    "rms_norm_per_block_quant": (
        "(Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon, Tensor? scale_ub, "
        "Tensor!? residual, int group_size, bool is_scale_transposed) -> ()",
        rms_norm_per_block_quant,
    ),
}


@functools.lru_cache(maxsize=len(OPERATORS))
def defined(name: str) -> Any:
    """Our operator `torch.ops.normgen.vllm_<name>`, of the schema of vLLM's `torch.ops._C.<name>`."""
    schema, ours = OPERATORS[name]

    def run(*args: Any) -> None:
        if not ours(*args):
            getattr(torch.ops._C, name).default(*args)

    _LIBRARY.define(f"vllm_{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    for backend in ("CPU", "CUDA"):
        _LIBRARY.impl(f"vllm_{name}", run, backend)
    torch.library.register_fake(f"normgen::vllm_{name}", lambda *_: None, lib=_LIBRARY)
    return getattr(torch.ops.normgen, f"vllm_{name}").default


def register() -> tuple[str, ...]:
    """Entry point of the group `vllm.general_plugins`: where `VLLM_PLUGINS` names this plugin, offer our operators.

    Returns the names of those that the pass now takes from us. Without that variable vLLM loads every plugin; this one
    then does nothing, as nobody asked for it.
    """
    if PLUGIN not in os.environ.get("VLLM_PLUGINS", "").replace(" ", "").split(","):
        return ()
    if is_batch_invariant():
        _LOG.warning("normgen quantises no norm of a vLLM that is to be batch-invariant")
        return ()
    try:
        fused: dict[Any, Any] = importlib.import_module(PASS).FUSED_OPS
    except (ImportError, AttributeError) as error:  # the attribute: of an operator that this build of vLLM has not
        _LOG.warning("normgen quantises no norm of this vLLM: %s", error)
        return ()
    return tuple(sorted(offered(fused)))


def offered(fused: dict[Any, Any]) -> set[str]:
    """Put our operators in the places of vLLM's that have the same schema; the names of these."""
    found = set()
    for key, op in fused.items():
        space, _, name = op._schema.name.partition("::")
        if space != "_C" or name not in OPERATORS:
            continue
        ours = defined(name)
        if _arguments(ours) != _arguments(op):
            _LOG.warning("normgen leaves %s to vLLM, whose schema is another one here: %s", name, op._schema)
            continue
        fused[key] = ours
        found.add(name)
    return found


def _arguments(op: Any) -> list[tuple[str, str, bool]]:
    return [(a.name, str(a.type), bool(a.alias_info and a.alias_info.is_write)) for a in op._schema.arguments]


def _fits(epsilon: float, result: Tensor, input: Tensor, weight: Tensor, residual: Tensor | None = None) -> bool:
    """Whether we read and write these as they lie: a row and its weight of one dtype, as vLLM's kernels have."""
    if not _is_scalar(epsilon) or weight.dtype != input.dtype or not (_is_rows(input) and _is_weight(weight, input)):
        return False
    if residual is not None and not _is_like(residual, input):
        return False
    if result.dtype != torch.float8_e4m3fn or result.shape != input.shape or result.device != input.device:
        return False
    if not result.is_contiguous():
        return False
    return not input.is_cuda or _capability(input.get_device()) >= LEAST_CAPABILITY


def _is_number(scale: Tensor, input: Tensor) -> bool:
    return _is_scale(scale, input) and scale.numel() == 1


def _is_scale(scale: Tensor, input: Tensor) -> bool:
    return bool(scale.dtype == torch.float32 and scale.device == input.device)


def _dynamic(
    preset: str,
    input: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    scale_ub: Tensor | None,
    written: dict[str, Tensor],
    epsilon: float,
    layout: str = "",
) -> bool:
    bound = () if scale_ub is None else (scale_ub.reshape(()),)
    if residual is None:
        return _run(preset.format(""), (input, weight, *bound), written, epsilon, layout)
    given = (input, residual, weight, *bound)
    return _run(preset.format("add_"), given, {"h": residual, **written}, epsilon, layout)


def _run(
    preset: str, given: tuple[Tensor, ...], written: Mapping[str, Tensor], epsilon: float, layout: str = ""
) -> bool:
    """Write what a preset says of `given`; a residual is overwritten by the sum, "h"."""
    first = given[0]
    if not first.is_cuda or not first.numel():
        results = _formulas(preset, tuple(written))(*given, eps=epsilon)
        for result, place in zip(results if isinstance(results, tuple) else (results,), written.values(), strict=True):
            place.copy_(result)
        return True
    has_bound = len(given) > (3 if "h" in written else 2) and "scale" in written
    made = _kernel(preset, first.shape[-1], name_of(first.dtype), first.get_device(), has_bound, layout)
    made(*given, **{name: place for name, place in written.items() if name != "h"}, eps=epsilon)
    return True


@functools.lru_cache(maxsize=256)
def _formulas(preset: str, returns: tuple[str, ...]) -> Any:
    return operator(preset, returns=returns).function


@functools.lru_cache(maxsize=256)
def _kernel(preset: str, cols: int, dtype: str, device: int, has_bound: bool, layout: str) -> Kernel:
    """For any number of rows."""
    return kernel(
        preset,
        shape=(-1, cols),
        dtype=dtype,
        present=("scale_ub",) if has_bound else (),
        in_place={"h": "residual"} if "_add_" in preset else {},
        layout={"scale": layout} if layout else {},
        device=device,
    )
