"""What operators remember of the calls they have seen."""

from __future__ import annotations

import contextlib
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(dict[K, V]):
    """What follows from a call's shapes: of the last 1024 that were new, as shapes may never repeat."""

    MOST = 1024

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.MOST and key not in self:
            with contextlib.suppress(RuntimeError, StopIteration):  # another thread was quicker
                self.pop(next(iter(self)), None)
        super().__setitem__(key, value)
