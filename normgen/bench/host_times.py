"""What a call costs the host: our handles and functions beside torch's own, round by round in one run.

A round queues a batch of calls of each contender and times the host alone; the GPU is waited for between batches. The
kernels of one row are shorter than the calls, so that the queue never fills.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from normgen.bench.rounds import Rounds, against, interleaved
from normgen.cuda.driver import device_facts
from normgen.errors import NoDeviceError
from normgen.python.handle import kernel
from normgen.python.repeat import IS_BUILT
from normgen.torch.functional import function
from normgen.trials.head import opening

CALLS = 200  # of a batch
BASE = "torch.add(out=)"


def host_times(
    *, rows: int = 1, cols: int = 1024, dtype: str = "bfloat16", rounds: int = 60, device: int = 0
) -> Rounds:
    """Host µs a call of each contender. Raises NoDeviceError where torch sees no GPU."""
    if not torch.cuda.is_available():
        raise NoDeviceError("torch sees a GPU", received="none")
    batches = {name: partial(_batch, c) for name, c in _contenders(rows, cols, getattr(torch, dtype), device).items()}
    wait = partial(torch.cuda.synchronize, device)
    found = interleaved(batches, rounds, scale=1e6 / CALLS, wait=wait, is_whole=False)
    wait()
    how = "native launcher" if IS_BUILT else "no launcher: calls are checked in Python"
    asked = {"rows": rows, "cols": cols, "dtype": dtype, "launcher": IS_BUILT, "rounds": rounds}
    return Rounds(
        **opening(device_facts(device), {"torch": torch.__version__}, asked),
        finished=True,
        note="",
        name="host",
        about=f"host time of a call, {rows}x{cols} {dtype}, {how}",
        unit="µs",
        base=BASE,
        contenders=tuple(against(found, BASE)),
    )


def _batch(call: Callable[[], Any]) -> None:
    for _ in range(CALLS):
        call()


def _contenders(rows: int, cols: int, kind: Any, device: int) -> dict[str, Callable[[], Any]]:
    place = {"device": f"cuda:{device}", "dtype": kind}
    x, w, b = torch.randn(rows, cols, **place), torch.randn(cols, **place), torch.randn(cols, **place)
    y, rms_norm = torch.empty_like(x), function("rms_norm")
    asked: dict[str, Any] = {"shape": (rows, cols), "dtype": kind, "device": device}
    rms = kernel("rmsnorm", without=("rstd",), **asked)
    any_rows = kernel("rmsnorm", without=("rstd",), rows="any", **asked)
    layer = kernel("layernorm", **asked)
    stream = int(torch.cuda.current_stream(device).cuda_stream)
    return {
        BASE: lambda: torch.add(x, x, out=y),
        "F.rms_norm": lambda: functional.rms_norm(x, (cols,), w),
        "F.layer_norm": lambda: functional.layer_norm(x, (cols,), w, b),
        "rmsnorm, out=": lambda: rms(x, w, out=y),
        "rmsnorm, out= and stream=": lambda: rms(x, w, out=y, stream=stream),
        "rmsnorm of any rows, out=": lambda: any_rows(x, w, out=y),
        "rmsnorm, allocating": lambda: rms(x, w),
        "layernorm with statistics, allocating": lambda: layer(x, w, b),
        "normgen.torch.rms_norm": lambda: rms_norm(x, w),
        "F.rms_norm, compiled": _compiled(lambda a, c: functional.rms_norm(a, (cols,), c), x, w),
        "normgen.torch.rms_norm, compiled": _compiled(rms_norm, x, w),
        "normgen.torch.rms_norm, compiled, opaque": _compiled(lambda a, c: rms_norm(a, c, opaque=True), x, w),
    }


def _compiled(call: Callable[..., Any], *tensors: Any) -> Callable[[], Any]:
    made = torch.compile(call, fullgraph=True)
    return lambda: made(*tensors)
