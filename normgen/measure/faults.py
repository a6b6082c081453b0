"""How a device says that a kernel, or the device itself, cannot be used any more.

This file imports nothing heavy: the parent of a worker process starts it before anything else is loaded.
"""

from __future__ import annotations

from normgen.errors import NormgenError
from normgen.records.verified import Outcome


class DeviceLostError(NormgenError):
    """A fault after which this process cannot use the device: its bench ends here."""

    exit_code = 6


class KernelFaultError(NormgenError):
    """A loaded kernel cannot be used; `key` names it, `outcome` is what its record says."""

    exit_code = 4

    def __init__(self, rule: str, *, key: str, outcome: Outcome, received: str | None = None) -> None:
        self.key = key
        self.outcome = outcome
        super().__init__(rule, received=received)
