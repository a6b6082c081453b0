"""All cells, in as many processes as there are cores, into one file that a later run goes on with."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from normgen.bench.accuracy.cells import Cell, CellsAsked, MeasuredCell
from normgen.bench.accuracy.kernels import KernelRunner, OnCpu, OnGpu
from normgen.bench.accuracy.measure import measure
from normgen.bench.peers import load_peer, missing_packages
from normgen.errors import VerificationError
from normgen.trials.file import resumed
from normgen.trials.head import Run, opening
from normgen.trials.run import RunProgress, run
from normgen.trials.versions import versions


@dataclass(frozen=True, kw_only=True)
class Table(Run):
    """What was found so far; `where`: the GPU, or the CPU executor; `torch`: its versions, none where it is not."""

    TRIALS = "cells"
    WRITER = "`normgen study accuracy`"
    EXACT = True

    where: str
    torch: Mapping[str, str] = field(hash=False)
    cells: tuple[MeasuredCell, ...] = ()

    @property
    def exit_code(self) -> int:
        """4 where a cell is over its bound."""
        return super().exit_code or (VerificationError.exit_code if self.over else 0)

    @property
    def over(self) -> tuple[str, ...]:
        """The tensors of cells with an element over its bound."""
        return tuple(f"{m.cell}: {name}" for m in self.cells for name, found in m.tensors.items() if found.is_over)

    @property
    def above(self) -> tuple[str, ...]:
        """Those whose error is too far above torch's, which may be chance."""
        marked = ((m, n) for m in self.cells for n, found in m.tensors.items() if found.is_above and not found.is_worse)
        return tuple(f"{m.cell}: {name}" for m, name in marked)

    @property
    def worse(self) -> tuple[str, ...]:
        """Those whose error is too far above torch's, beyond chance."""
        return tuple(f"{m.cell}: {name}" for m in self.cells for name, found in m.tensors.items() if found.is_worse)


def place_of(index: int | None) -> KernelRunner:
    return OnCpu() if index is None else OnGpu(index)


def torch_versions() -> dict[str, str]:
    """What `head` says of torch: nothing where it is not installed."""
    return {} if missing_packages("torch") else load_peer("torch").versions()


def fill(
    path: Path,
    asked: CellsAsked,
    *,
    index: int | None,
    seed: int,
    workers: int,
    torch: Mapping[str, str],
    progress: RunProgress,
) -> Table:
    """Measure what `path` does not hold yet of the cells asked for; the table of them.

    index    number of a GPU; None: the CPU executor
    workers  processes; 1: this one
    Raises UsageError when the file is of another device, seed or version.
    """
    place = place_of(index)
    where = "CPU executor" if place.index is None else place.facts.name
    opened = Table(**opening(place.facts, versions(), {"seed": seed}), where=where, torch=torch)
    cells = list(asked.cells())
    found = run(
        opened.going_on(resumed(Table, path)),
        cells,
        lambda cell: [measure(cell, place, seed=seed)],
        progress=progress,
        words=lambda measured: f"{measured[0].marked} marked" if measured[0].marked else "",
        path=path,
        spread=None if workers == 1 else partial(_each, index=index, seed=seed, workers=workers),
    )
    by_cell = {m.cell: m for m in found.cells}
    return found.with_trials(by_cell[cell] for cell in cells if cell in by_cell)


def _each(
    cells: Sequence[Cell], *, index: int | None, seed: int, workers: int
) -> Iterator[tuple[Cell, list[MeasuredCell]]]:
    """The cells as they are done; few are under way at once, so that Ctrl-C has little to wait for."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_open, initargs=(index,)) as pool:
        left, running = iter(cells), set[Future[MeasuredCell]]()
        try:
            while True:
                for cell in islice(left, 2 * workers - len(running)):
                    running.add(pool.submit(_measure, cell, seed))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from ((found.cell, [found]) for found in (future.result() for future in done))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_PLACE: list[KernelRunner] = []  # of a worker process


def _open(index: int | None) -> None:
    """Ctrl-C is for the process that waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _PLACE[:] = [place_of(index)]


def _measure(cell: Cell, seed: int) -> MeasuredCell:
    return measure(cell, _PLACE[0], seed=seed)
