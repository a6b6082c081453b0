"""One measurement after another, until all are done, the time is up, the device is lost or the user stops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from normgen.measure.faults import DeviceLostError
from normgen.trials.file import Book
from normgen.trials.head import DEVICE_LOST, INTERRUPTED, RUNNING, TIME_LIMIT, Run


class Case(Protocol):
    """What is measured: `key` tells it from every other case of its run, as it does the case's trials."""

    @property
    def label(self) -> str: ...

    @property
    def key(self) -> str: ...


class RunProgress(Protocol):
    def phase(self, name: str) -> None:
        """Another case began."""

    def note(self, text: str) -> None:
        """What the user should know, in one line."""


class How(TypedDict, total=False):
    """How a run goes.

    path        the file that trials are written into as they come
    limit_s     begin no case later than this
    on_results  gets what there is after each case
    """

    path: Path | None
    limit_s: float | None
    on_results: Callable[[Any], None]


R = TypeVar("R", bound=Run)
C = TypeVar("C", bound=Case)


def run(
    opened: R,
    cases: Sequence[C],
    measure: Callable[[C], Sequence[Any]] | None = None,
    *,
    progress: RunProgress,
    words: Callable[[Sequence[Any]], str],
    spread: Callable[[Sequence[C]], Iterator[tuple[C, Sequence[Any]]]] | None = None,
    **how: Unpack[How],
) -> R:
    """Find the trials of every case of which `opened` has none. Returns the whole run.

    words   what is said of a case's trials, behind its label
    spread  instead of `measure`: measures the cases it is given as it likes, side by side perhaps
    An interrupt, a time limit or a lost device ends the run with what there is: `finished` and `note` say so.
    """
    path, limit_s, on_results = how.get("path"), how.get("limit_s"), how.get("on_results", lambda _: None)
    began, trials = time.monotonic(), list(opened.trials)
    done = {trial.key for trial in trials}
    left = [case for case in cases if not done or case.key not in done]

    def so_far(note: str) -> R:
        seconds = opened.seconds + time.monotonic() - began
        return opened.with_trials(trials, seconds=seconds, finished=not note, note=note)

    def at(case: C, number: int) -> str:
        return f"[{number + len(cases) - len(left)}/{len(cases)}] {case.label}"

    def one_by_one() -> Iterator[tuple[C, Sequence[Any]]]:
        for number, case in enumerate(left, start=1):
            if limit_s is not None and time.monotonic() - began > limit_s:
                raise _TimeUp
            progress.phase(at(case, number))
            assert measure is not None, "cases are measured one by one, or spread"
            yield case, measure(case)

    book, note = Book(path, so_far(RUNNING)), ""
    try:
        start = time.monotonic()
        for number, (case, found) in enumerate(spread(left) if spread else one_by_one(), start=1):
            trials += found
            book.add(found)
            said = words(found)
            progress.note(f"{at(case, number)}{': ' if said else ''}{said} ({time.monotonic() - start:.1f} s)")
            on_results(so_far(RUNNING))
            start = time.monotonic()
    except _TimeUp:
        note = TIME_LIMIT
    except KeyboardInterrupt:
        note = INTERRUPTED
    except DeviceLostError as error:
        progress.note(str(error))
        note = f"{DEVICE_LOST}: {error.rule}"
    return book.close(so_far(note))


class _TimeUp(Exception):
    pass
