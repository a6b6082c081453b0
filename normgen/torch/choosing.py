"""What a compiler gets in the place of a call, our kernel or the formulas to fuse, and where it was which.

A kernel that a compiler does not look into costs the host a launch of its own, and keeps its neighbours from being
fused with it: an elem output is read once more than it had to be. Against these stands what the
compiler's own program takes longer, by prices beside torch.compile's (`generated/evidence/bench_*_h200.json`, 81 calls
that move 16 MB and more): the median of its price over ours is 2.3 where columns are in groups, 1.6 where a row is
longer than 16384, and 1.2 otherwise. Only the first two can be worth it, for large calls; so a plain norm is left to
the compiler.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normgen.operators.forms import Uses
from normgen.spec.spec import Spec
from normgen.torch.calls import autocast_dtype

_CALL_US = 5.0  # host time of a call of ours (H200, 1x1024 bf16 rmsnorm: 4.7), which a fused formula does not have
_US_PER_BYTE = 0.25e-6  # of large calls, ours (H200, the same evidence)
_OF_GROUPS, _OF_WIDE, _OF_OTHERS = 1.3, 0.6, 0.2  # what a compiler's program takes longer, as shares of our price
_WIDE = 16384  # columns
_NEVER = 1 << 62
_WHOLE, _FEW_ROWS, _MANY_ROWS = 64, 16, 1024  # of products: see `is_worth_products`


def least_elements(spec: Spec, uses: Uses) -> tuple[int, int]:
    """From how many elements [rows, cols] on a kernel is worth its call: in rows of up to 16384, and in wider ones."""
    reads = sum(use.dtype.bytes / use.dtype.packed for use in uses.reads if use.kind.is_elem and not use.group)
    writes = sum(use.dtype.bytes / use.dtype.packed for use in uses.writes if use.kind.is_elem and not use.group)

    def least(share: float) -> int:
        ahead = share * (reads + writes) - writes
        return int(_CALL_US / (_US_PER_BYTE * ahead)) if ahead > 0 else _NEVER

    return least(_OF_GROUPS if spec.group else _OF_OTHERS), least(_OF_GROUPS if spec.group else _OF_WIDE)


def is_worth_a_call(least: tuple[int, int], first: Any) -> bool:
    """By the sizes of the first tensor of rows; of a compiler's symbols, it guards what is asked here."""
    narrow, wide = least
    if min(narrow, wide) >= _NEVER:
        return False
    elements = first.numel()
    # A branch, and not bool(): of a compiler's symbol that is a symbol again.
    return True if elements >= wide and (elements >= narrow or first.shape[-1] > _WIDE) else False  # noqa: SIM210


def why_no_products(weight: Any) -> str:
    """Why our kernels leave products with a weight [cols, inner] to torch, whatever the rows; or nothing."""
    return (
        f"its weight {list(weight.shape)} is not of whole tiles of {_WHOLE}"
        if any(n % _WHOLE for n in weight.shape)
        else ""
    )


def is_worth_products(x: Any, weight: Any, *, of_few: bool = True, of_many: bool = True) -> bool:
    """Whether our kernels multiply rows [.., inner] by a weight [cols, inner] in no more time than torch does.

    On sm_90, of 16 bits: few rows, which read each weight once (of_few), and many, which fill the tensor cores
    (of_many; H200, `torch.matmul`'s time over ours: 0.96 to 1.27 of 1 to 16 rows, 0.98 to 1.01 of 4096 and more, and
    0.76 to 1.08 of 64 and 256). On the CPU, of float32 and float64, where our formulas are torch's own products.
    """
    device, dtype = x.device, x.dtype
    if weight.device != device or x.shape[-1] != weight.shape[1] or not x.numel():
        return False
    cast = autocast_dtype(device.type)
    if cast is not None and torch.float64 not in (dtype, weight.dtype):
        dtype = cast
    elif weight.dtype != dtype:
        return False
    if device.type == "cpu":
        return dtype in (torch.float32, torch.float64)
    if dtype not in (torch.bfloat16, torch.float16) or not x.is_cuda or not _is_hopper(device.index):
        return False
    rows = x.numel() // x.shape[-1]
    # A branch, as in `is_worth_a_call`: a compiler's symbol becomes a bool.
    return True if (of_many and rows >= _MANY_ROWS) or (of_few and rows <= _FEW_ROWS) else False  # noqa: SIM210


_hopper: dict[int, bool] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_hopper(index: int) -> bool:
    if index not in _hopper:
        _hopper[index] = torch.cuda.get_device_capability(index) == (9, 0)
    return _hopper[index]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A call that was compiled.

    where     the module that `replace` changed, by its name; else file and line of the call, or the function's name
    function  ours
    kernel    whether the compiled program calls our kernel; else it has the formulas
    asked     whether the caller said so (`opaque`); else the estimate did
    """

    where: str
    function: str
    kernel: bool
    asked: bool

    def __str__(self) -> str:
        what = "our kernel" if self.kernel else "the formulas, fused by the compiler"
        return f"{self.where}: {self.function}: {what}{', as asked for' if self.asked else ''}"


_sites: dict[str, Site] = {}
_noting = threading.Lock()


def note(where: str, function: str, kernel: bool, asked: bool) -> None:
    """Run while a compiler traces a call; `where` is "" of one that no line is known of."""
    site = Site(where=where or function, function=function, kernel=kernel, asked=asked)
    with _noting:
        _sites[site.where] = site


def sites() -> Sequence[Site]:
    """The calls that torch.compile has compiled in this process, each with what ran in its place: the last time it was.

    Eager calls on a CUDA device always run our kernels.
    """
    with _noting:
        return list(_sites.values())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def line_of_call() -> str:
    """Where the author's program calls a function, as the compiler's trace says; "" of a compiler without one."""
    try:
        stack = torch._guards.TracingContext.extract_stack()
    except Exception:
        return ""
    ours = str(Path(__file__).parent)
    outside = [frame for frame in stack if not frame.filename.startswith((ours, "<normgen"))]
    return f"{outside[-1].filename}:{outside[-1].lineno}" if outside else ""
