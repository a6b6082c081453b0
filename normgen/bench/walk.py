"""One measurement after another, until the time is up, the device is lost or the user stops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from normgen.bench.runner import DEVICE_LOST, INTERRUPTED, TIME_LIMIT
from normgen.tuning.bench import DeviceLostError
from normgen.tuning.progress import Progress

Item = TypeVar("Item")


def walk(
    items: Sequence[Item],
    label: Callable[[Item], str],
    measure: Callable[[Item], str],
    save: Callable[[], None],
    *,
    progress: Progress,
    limit_s: float | None,
) -> str:
    """Measure every item and save after each one. Returns why it ended early; "" when it did not.

    measure   does one item, and says in a line what was found
    limit_s   begin no item later than this
    """
    began = time.monotonic()
    try:
        for number, item in enumerate(items, start=1):
            if limit_s is not None and time.monotonic() - began > limit_s:
                return TIME_LIMIT
            at = f"[{number}/{len(items)}]"
            progress.phase(f"{at} {label(item)}")
            progress.note(f"{at} {measure(item)}")
            save()
    except KeyboardInterrupt:
        return INTERRUPTED
    except DeviceLostError as error:
        return f"{DEVICE_LOST}: {error.rule}"
    return ""
