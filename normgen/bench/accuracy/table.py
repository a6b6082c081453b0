"""All cells, in as many processes as there are cores, into one file that a later run goes on with."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from normgen.bench.accuracy.cells import Asked, Cell, Measured, measured_from
from normgen.bench.accuracy.kernels import OnCpu, OnGpu, Place
from normgen.bench.accuracy.measure import measure
from normgen.bench.peers import load_peer, missing_packages
from normgen.errors import UsageError
from normgen.files.decoded import parse_json
from normgen.records import lines
from normgen.tuning.run import versions

SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class Table:
    """What was found so far; `head`: schema, device, where, seed, versions, torch's version or null."""

    head: Mapping[str, Any]
    cells: tuple[Measured, ...]

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


def place_of(index: int | None) -> Place:
    return OnCpu() if index is None else OnGpu(index)


def torch_versions() -> dict[str, str]:
    """What `head` says of torch: nothing where it is not installed."""
    return {} if missing_packages("torch") else load_peer("torch").versions()


def head_of(place: Place, seed: int, torch: Mapping[str, str]) -> dict[str, Any]:
    where = "CPU executor" if place.index is None else place.facts.name
    return {"schema": SCHEMA, "where": where, "seed": seed, "versions": versions(), "torch": dict(torch)}


def read_table(path: Path) -> Table:
    """A file of results; a damaged line is left out. Raises UsageError for a file of something else."""
    found = lines.read(path, _line)
    if not found.found or isinstance(found.found[0], Measured):
        why = str(found.damaged[0]) if found.damaged else str(path)
        raise UsageError("an accuracy table is read from a file of its cells", received=why)
    lines.told(found.damaged)
    cells = (line for line in found.found if isinstance(line, Measured))
    return Table(head=found.found[0], cells=tuple({m.cell: m for m in cells}.values()))


def _line(text: str) -> Measured | dict[str, Any]:
    """A cell, or the head. Raises ValueError."""
    data = parse_json(text)
    if not isinstance(data, dict):
        raise ValueError("no cell of an accuracy table: not an object")
    if "cell" in data:
        return measured_from(data)
    if data.get("schema") != SCHEMA:
        raise ValueError("no head of an accuracy table of today")
    return data


def fill(
    path: Path,
    asked: Asked,
    *,
    index: int | None,
    seed: int,
    workers: int,
    torch: Mapping[str, str],
    tell: Callable[[int, int, Measured], None] = lambda *_: None,
) -> Table:
    """Measure what `path` does not hold yet of the cells asked for; the whole table.

    index    number of a GPU; None: the CPU executor
    workers  processes; 1: this one
    Raises UsageError when the file is of another device, seed or version.
    """
    head = head_of(place_of(index), seed, torch)
    before = read_table(path) if path.exists() and path.stat().st_size else None
    if before is not None and (known := before.head) != head:
        differing = sorted(name for name in {*head, *known} if head.get(name) != known.get(name))
        hint = "give another file"
        raise UsageError("a table goes on where it was made", received=f"another {', '.join(differing)}", hint=hint)
    if before is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines.append(path, json.dumps(head) + "\n")
    cells, known_cells = list(asked.cells()), {m.cell for m in before.cells} if before else set[Cell]()
    missing = [cell for cell in cells if cell not in known_cells]
    done = len(cells) - len(missing)
    for measured in _each(missing, index=index, seed=seed, workers=workers):
        lines.append(path, json.dumps(measured.as_dict()) + "\n")
        done += 1
        tell(done, len(cells), measured)
    wanted = set(cells)
    found = {m.cell: m for m in read_table(path).cells if m.cell in wanted}
    return Table(head=head, cells=tuple(found[cell] for cell in cells))


def _each(cells: Sequence[Cell], *, index: int | None, seed: int, workers: int) -> Iterator[Measured]:
    """The cells as they are done; few are under way at once, so that Ctrl-C has little to wait for."""
    if workers == 1:
        place = place_of(index)
        yield from (measure(cell, place, seed=seed) for cell in cells)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_open, initargs=(index,)) as pool:
        left, running = iter(cells), set[Future[Measured]]()
        try:
            while True:
                for cell in islice(left, 2 * workers - len(running)):
                    running.add(pool.submit(_measure, cell, seed))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_PLACE: list[Place] = []  # of a worker process


def _open(index: int | None) -> None:
    """Ctrl-C is for the process that waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _PLACE[:] = [place_of(index)]


def _measure(cell: Cell, seed: int) -> Measured:
    return measure(cell, _PLACE[0], seed=seed)
