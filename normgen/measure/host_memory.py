"""Whether a check fits the memory of the host: asked before it begins, not found out by the system's last measures."""

from __future__ import annotations

import contextlib
import math
import os
import resource
from pathlib import Path

from normgen.errors import UsageError
from normgen.problem.problem import Problem

# An element in float64, as it is drawn and while its neighbours are. With this and the next line the estimate is 66 to
# 70 bytes an f32 element. Peaks at 38 x 500000 were 55 (layernorm forward), 65 (its backward), 69 (softmax backward).
DRAWN_BYTES = 48
ROW_VALUES = 48  # float64 values for each column while a row's reference and bounds are computed


def needed_bytes(problem: Problem) -> int:
    """What checking this many rows takes at its peak: all tensors, the largest as it is drawn, a row's reference."""
    stored = sum(t.dtype.bytes * math.prod(problem.shape_of(t)) for t in problem.tensors if t.kind.within_row)
    return stored + problem.cols * (DRAWN_BYTES * problem.rows + 8 * ROW_VALUES)


def free_bytes() -> int:
    """Memory that this process can still get: of the machine, of its control group, of its own limit of addresses."""
    page = os.sysconf("SC_PAGE_SIZE")
    found = [os.sysconf("SC_PHYS_PAGES") * page]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        found.append(int(most) - int(used))
    return min(*found, free_addresses())


def free_addresses() -> int:
    """Address space that the process may still take (`ulimit -v`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return 1 << 47
    with contextlib.suppress(OSError, ValueError):
        return limit - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return limit


def require_memory(problem: Problem, *, addresses: int = 0) -> None:
    """Raise UsageError unless a check of this many rows fits, and `addresses` bytes of address space besides."""
    needed, free = needed_bytes(problem), free_bytes()
    if needed > free:
        inner = f", inner {problem.inner}," if problem.inner else ""
        received = f"{problem.rows} x {problem.cols}{inner} takes {_gb(needed)}, and {_gb(free)} are free"
        hint = "take fewer cols, or a smaller inner" if problem.inner else "take fewer cols"
        raise UsageError("a check fits the memory of the host", received=received, hint=hint)
    if needed + addresses > free_addresses():
        received = f"{_gb(needed + addresses)}, and {_gb(free_addresses())} are free"
        raise UsageError("a check fits the address space of the process", received=received, hint="see ulimit -v")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
