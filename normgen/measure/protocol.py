"""What `judge` asks of a device, and how a device says that a kernel is to blame.

`gpu.GpuBench` does it on a GPU; `isolation.bench.WorkerBench` does it in another process that owns such a bench.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from normgen.codegen.module import Module
from normgen.measure import timing
from normgen.measure.faults import DeviceLostError as DeviceLostError
from normgen.measure.faults import KernelFaultError as KernelFaultError
from normgen.records.place import Context
from normgen.records.verified import Verified

ROOF_PREFIX = "roof: "
BASE, BASE_AGAIN = "chain without the kernel", "chain without the kernel again"  # one graph, twice in each round


def roof_name(key: str) -> str:
    """What records and results call a roof: `copy` of the key `roof: copy`."""
    return key.removeprefix(ROOF_PREFIX)


def roof_family(key: str) -> str:
    """`elementwise` of the key `roof: elementwise 16x4`."""
    name = roof_name(key)
    return next((family for family in ("two launches",) if name.startswith(family)), name.partition(" ")[0])


def twin_name(key: str, context: Context | None = None) -> str:
    """The key of a second replay of a kernel, or of a chain without one: in its bench's own context, or in another."""
    return f"{key} again" if context is None else f"{key} in {context}"


def twins_of(key: str) -> tuple[str, ...]:
    """Every key that a twin of a kernel can have."""
    return tuple(twin_name(key, context) for context in (None, *Context))


@dataclass(frozen=True, kw_only=True)
class Check:
    """A kernel's result against the reference: `error` per written tensor as a fraction of its bound.

    `verified`: where, and by which calls; None of a wrong kernel.
    """

    ok: bool
    summary: str
    error: dict[str, float] = field(default_factory=dict)
    verified: Verified | None = None


class Bench(timing.Timer, Protocol):
    """A device that holds one problem's data: it checks kernels and replays them.

    Any call may raise KernelFaultError: that kernel is out, the others can still be used. DeviceLostError: nothing
    can be used any more.
    """

    @property
    def roofs(self) -> Sequence[str]:
        """Keys of the hand-written kernels that move the problem's bytes."""

    @property
    def bases(self) -> Sequence[str]:
        """Keys of the chain without a kernel, whose time is T0; none alone."""

    def load(self, key: str, module: Module, cubin: Any) -> None:
        """Make a kernel ready under `key`. Raises NormgenError when the device refuses it."""

    def check(self, key: str, *, full: bool) -> Check:
        """Run a loaded kernel on poisoned outputs and compare: some rows of one call, or in full all the calls."""

    def unload(self, key: str) -> None:
        """Forget a kernel and its replays."""

    def expect(self, best_us: float) -> None:
        """The best so far: what takes many times as long may be given up with the outcome `timeout`."""

    def conditions(self) -> Mapping[str, Any]:
        """SM clock, reasons for a lower one, and redone windows since the last call, as plain values."""
