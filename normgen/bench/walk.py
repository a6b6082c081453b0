"""One measurement after another, until the time is up, the device is lost or the user stops it; and the run's head."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from normgen.bench.contest import Venue
from normgen.bench.result import Run, opening
from normgen.bench.runner import DEVICE_LOST, INTERRUPTED, TIME_LIMIT
from normgen.measure.protocol import DeviceLostError
from normgen.tuning.progress import Progress
from normgen.tuning.tuner import environment

Item = TypeVar("Item")
Found = TypeVar("Found", bound=Run)


def walk(
    items: Sequence[Item],
    label: Callable[[Item], str],
    measure: Callable[[Item], str],
    found: Callable[[Mapping[str, Any]], Found],
    *,
    venue: Venue,
    options: Mapping[str, Any],
    progress: Progress,
    limit_s: float | None,
    on_results: Callable[[Found], None],
) -> Found:
    """Measure every item; `on_results` gets what there is after each one. Returns the whole run.

    measure   does one item, and says in a line what was found
    found     the run so far, of the fields of its head
    options   what was asked for besides the venue's
    limit_s   begin no item later than this
    """
    began = time.monotonic()
    asked = {**options, "samples": venue.samples, "seed": venue.seed}
    head = opening(venue.facts, environment(measured=True), asked)

    def so_far(note: str) -> Found:
        return found({**head, "seconds": time.monotonic() - began, "finished": not note, "note": note})

    def step(at: str, item: Item) -> None:
        progress.phase(f"{at} {label(item)}")
        progress.note(f"{at} {measure(item)}")
        on_results(so_far("still running"))

    return so_far(_each(items, step, began, limit_s))


def _each(items: Sequence[Item], step: Callable[[str, Item], None], began: float, limit_s: float | None) -> str:
    """Do every item. Returns why that ended early; "" when it did not."""
    try:
        for number, item in enumerate(items, start=1):
            if limit_s is not None and time.monotonic() - began > limit_s:
                return TIME_LIMIT
            step(f"[{number}/{len(items)}]", item)
    except KeyboardInterrupt:
        return INTERRUPTED
    except DeviceLostError as error:
        return f"{DEVICE_LOST}: {error.rule}"
    return ""
