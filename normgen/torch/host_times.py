"""What a call costs the host: our handles and functions beside torch's own, round by round in one run.

A round queues a batch of calls of each contender and times the host alone; the GPU is waited for between batches. The
kernels of one row are shorter than the calls, so that the queue never fills.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from normgen.errors import NoDeviceError
from normgen.python.handle import kernel
from normgen.python.repeat import IS_BUILT
from normgen.records.statistics import Ratio, median, paired_ratio
from normgen.text import figure, table
from normgen.torch.functional import function

CALLS = 200  # of a batch
BASE = "torch.add(out=)"


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """Host µs a call by contender, round by round."""

    rows: int
    cols: int
    dtype: str
    launcher: bool
    series: Mapping[str, tuple[float, ...]] = field(hash=False)

    def ratio_to(self, name: str, base: str) -> Ratio:
        return paired_ratio(self.series[name], self.series[base])

    def as_dict(self) -> dict[str, Any]:
        """The object `normgen bench --host --json -` prints."""
        return {
            **{name: getattr(self, name) for name in ("rows", "cols", "dtype", "launcher")},
            "median_us": {name: median(times) for name, times in self.series.items()},
            "rounds_us": {name: list(times) for name, times in self.series.items()},
        }

    def __str__(self) -> str:
        lines = [
            [name, figure(median(times)), f"{r.median:.2f}", f"{r.low:.2f} .. {r.high:.2f}"]
            for name, times in self.series.items()
            for r in (self.ratio_to(name, BASE),)
        ]
        how = "native launcher" if self.launcher else "no launcher: calls are checked in Python"
        head = f"host time of a call, {self.rows}x{self.cols} {self.dtype}, {how}"
        return "\n".join([head, "", table(["call", "µs", f"of {BASE}", "95 %"], lines)])


def host_times(
    *, rows: int = 1, cols: int = 1024, dtype: str = "bfloat16", rounds: int = 60, device: int = 0
) -> HostTimes:
    """Time them. Raises NoDeviceError where torch sees no GPU."""
    if not torch.cuda.is_available():
        raise NoDeviceError("torch sees a GPU", received="none")
    contenders = _contenders(rows, cols, getattr(torch, dtype), device)
    series: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 3):
        for name, call in contenders.items():
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            spent = (time.perf_counter() - start) / CALLS * 1e6
            if number >= 3:  # the first rounds compile, load and learn
                series[name].append(spent)
    torch.cuda.synchronize(device)
    times = {name: tuple(found) for name, found in series.items()}
    return HostTimes(rows=rows, cols=cols, dtype=dtype, launcher=IS_BUILT, series=times)


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
