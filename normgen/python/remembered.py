"""The one memory of calls: what follows from a form, bounded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

V = TypeVar("V")


class Remembered(dict[Any, Any]):
    """What follows from the calls that were seen: the newest `most` entries, as shapes may never repeat.

    An operator has one. A call of a new shape adds two to four entries, so 4096 hold some 1024 shapes.
    """

    def __init__(self, most: int = 4096) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) >= self.most and key not in self:
            with contextlib.suppress(RuntimeError, StopIteration):  # another thread was quicker
                self.pop(next(iter(self)), None)
        super().__setitem__(key, value)

    def once(self, make: Callable[..., V], *of: Any) -> V:
        """make(*of), of which the first result is kept."""
        key = (make, *of)
        found: V | None = self.get(key)
        if found is None:
            found = self[key] = make(*of)
        return found
