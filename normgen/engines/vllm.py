"""The provider "normgen" of vLLM's IR: our kernels where the engine's priorities name them, else nothing changes.

vllm serve MODEL --ir-op-priority '{"rms_norm": ["normgen"], "fused_add_rms_norm": ["normgen"]}'

vLLM finds `register` by the entry point group `vllm.general_plugins` and calls it in each of its processes. Bits are
those of the IR's native implementations, by the presets `vllm_ir_*`; rows of any number run the schedule of their band.
"""

# Without `from __future__ import annotations`: vLLM reads these functions' annotations as objects.
import functools
import importlib
import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from normgen.dtypes import F32
from normgen.torch.operators import Operator, operator

PROVIDER = "normgen"
LEAST_CAPABILITY = (7, 5)  # sm_75
_DTYPES = frozenset((torch.float32, torch.float16, torch.bfloat16))
_LOG = logging.getLogger(__name__)


def _made(preset: str, *returns: str) -> Operator:
    return operator(preset, returns=returns, opaque=True, rows="any")


# Made when this is imported: a program that vLLM compiled before, and loads, names them.
_RMS_NORM = _made("vllm_ir_rmsnorm", "y")
_ADD_RMS_NORM = _made("vllm_ir_add_rmsnorm", "y", "h")
_GELU_SPARSE = {
    "none": _made("vllm_ir_gelu_mul_sparse", "y"),
    "tanh": _made("vllm_ir_gelu_tanh_mul_sparse", "y"),
}
_rms_norm, _add_rms_norm = _RMS_NORM.function, _ADD_RMS_NORM.function
_gelu_sparse, _gelu_tanh_sparse = (made.function for made in _GELU_SPARSE.values())


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return _rms_norm(x, weight, epsilon, dtype=x.dtype)


def rms_norm_takes(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    if variance_size is not None or not _is_scalar(epsilon):
        return False
    return _is_rows(x) and _is_weight(weight, x) and not _is_batch_invariant()


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    y, residual = _add_rms_norm(x, x_residual, weight, epsilon, dtype=x.dtype)
    return y, residual


def fused_add_rms_norm_takes(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return rms_norm_takes(x, weight, epsilon, variance_size) and _is_like(x_residual, x)


def gelu_and_mul_sparse(x: Tensor, std_multiplier: float, approximate: str = "none") -> Tensor:
    cols = x.shape[-1] // 2
    run = _gelu_tanh_sparse if approximate == "tanh" else _gelu_sparse
    return run(x[..., :cols], x[..., cols:], std_multiplier, dtype=x.dtype)


def gelu_and_mul_sparse_takes(x: Tensor, std_multiplier: float, approximate: str = "none") -> bool:
    if not isinstance(approximate, str) or approximate not in _GELU_SPARSE or not _is_rows(x):
        return False
    if not _is_scalar(std_multiplier) or _is_batch_invariant():
        return False
    return _known(x.shape[-1] % 2 == 0) and _known(x.shape[-1] >= 2)


# vLLM's operation -> what runs it, and the question whether it runs these arguments.
PROVIDED: dict[str, tuple[Callable[..., Any], Callable[..., bool]]] = {
    "rms_norm": (rms_norm, rms_norm_takes),
    "fused_add_rms_norm": (fused_add_rms_norm, fused_add_rms_norm_takes),
    "gelu_and_mul_sparse": (gelu_and_mul_sparse, gelu_and_mul_sparse_takes),
}


def register() -> tuple[str, ...]:
    """Offer our kernels to vLLM's IR as the provider "normgen". Returns the operations that now have it.

    May be called again. Nothing is raised, as that would end an engine that does not ask for normgen: an operation
    whose schema is another one in this vLLM, and a vLLM without the IR, are said in the log.
    """
    try:
        known = importlib.import_module("vllm.ir.ops")
    except ImportError as error:
        _LOG.debug("normgen is no provider in this vLLM, which has no vllm.ir: %s", error)
        return ()
    found = []
    for name, (run, takes) in PROVIDED.items():
        op = getattr(known, name, None)
        if op is None:
            continue
        if PROVIDER not in op.impls:
            try:
                op.register_impl(PROVIDER, supported=torch.version.hip is None, supports_args=takes)(run)
            except (AssertionError, TypeError, ValueError) as error:
                _LOG.warning("normgen is no provider of vllm.ir.ops.%s: %s", name, error)
                continue
        found.append(name)
    return tuple(found)


# What a kernel takes as it lies. vLLM asks with fake tensors too, whose sizes may be symbols: nothing is guarded here,
# so that what cannot be told without a guard is a no.


def _is_rows(x: Tensor) -> bool:
    """Whether x has a dtype of ours, is where our kernels run, and its rows lie at one distance without gaps."""
    if x.is_nested or x.layout != torch.strided or x.dtype not in _DTYPES or not x.dim() or not _runs_on(x.device):
        return False
    if type(x) is Tensor and x.is_contiguous():
        return _known(x.shape[-1] > 0)
    sizes, strides = x.shape, x.stride()
    if not (_known(strides[-1] == 1) and _known(sizes[-1] > 0)):
        return False
    if x.dim() > 1 and not _known(strides[-2] >= sizes[-1]):
        return False
    return all(_known(strides[i] == strides[i + 1] * sizes[i + 1]) for i in range(x.dim() - 2))


def _is_weight(weight: Tensor | None, x: Tensor) -> bool:
    if weight is None:
        return True
    if weight.layout != torch.strided or weight.dtype not in _DTYPES or weight.device != x.device or weight.dim() != 1:
        return False
    return _known(weight.shape[0] == x.shape[-1]) and (_known(weight.stride(0) == 1) or _known(weight.shape[0] == 1))


def _is_like(residual: Tensor, x: Tensor) -> bool:
    if residual.is_nested or residual.dtype != x.dtype or residual.device != x.device or residual.dim() != x.dim():
        return False
    return all(_known(a == b) for a, b in zip(residual.shape, x.shape, strict=True)) and _is_rows(residual)


def _is_scalar(value: Any) -> bool:
    """Whether a kernel takes a number: none between float32's largest and infinity."""
    return isinstance(value, int | float) and not F32.largest < abs(value) < math.inf


def _known(condition: Any) -> bool:
    return condition if type(condition) is bool else bool(statically_known_true(condition))


def _runs_on(device: torch.device) -> bool:
    """On CUDA from sm_75 on; on the CPU the formulas run as torch's operations. Nowhere else."""
    if device.type == "cuda":
        return bool(_is_new_enough(device.index or 0))
    return bool(device.type == "cpu")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_new_enough(index: int) -> bool:
    return _capability(index) >= LEAST_CAPABILITY


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_batch_invariant() -> bool:
    """Whether this vLLM is to give a row the same bits whatever stands beside it: bands have schedules of their own."""
    return is_batch_invariant()


@functools.lru_cache(maxsize=1)
def is_batch_invariant() -> bool:
    try:
        return bool(importlib.import_module("vllm.envs").VLLM_BATCH_INVARIANT)
    except (ImportError, AttributeError):
        return False


@functools.lru_cache(maxsize=64)
def _capability(index: int) -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability(index)
    return major, minor
