"""A handle for any number of rows: each call runs the schedule of its band of row counts (`suites.bands`).

norm = normgen.kernel("rmsnorm", shape=(-1, 4096), dtype="bf16")
y, rstd = norm(x, weight)                # x: [.., 4096], of any number of rows

The kernel for one row is compiled when the handle is made, that of another band at the first call in it: some 0.1 s, or
what a look-up and a load take where its cubin is cached. `prepare` compiles ahead, as before a CUDA graph is captured.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from normgen.cuda.arrays import view
from normgen.problem.problem import Problem
from normgen.python.kernels import Kernel
from normgen.schedule.schedule import Schedule
from normgen.suites.bands import Bands


class AnyRows(Kernel):
    """One problem's kernels for any number of rows: the one for a single row, which hands calls of other bands on.

    bands   which row counts share a schedule
    choose  row count of a band -> its schedule, and where that comes from
    make    the kernel of a problem and a schedule
    kernel  the arguments of `Kernel`, for a single row
    """

    def __init__(
        self,
        *,
        bands: Bands,
        choose: Callable[[int], tuple[Schedule, str]],
        make: Callable[[Problem, Schedule, str], Kernel],
        **kernel: Any,
    ) -> None:
        super().__init__(**kernel)
        self.bands = bands
        self._choose, self._make = choose, make
        self._by_band: dict[int, Kernel] = {bands.band(1): self}
        self._by_schedule: dict[Schedule, Kernel] = {self.schedule: self}
        self._making = threading.Lock()
        reads = [t for t in self.problem.tensors if not t.is_written]
        self._counted = next((i for i, t in enumerate(reads) if t.kind.is_elem), 0)
        self._counted_name = reads[self._counted].name

    def __call__(self, /, *inputs: Any, stream: Any = None, **named: Any) -> Any:
        """As `Kernel.__call__`; rows are those of the first input of rows."""
        known = self.repeated(inputs, named, stream)
        if known is not NotImplemented:
            return known
        return self.kernel_for(self._rows(inputs, named)).checked(inputs, named, stream)

    def kernel_for(self, rows: int) -> Kernel:
        """The kernel that runs so many rows; compiled if it is the first of its band."""
        band = self.bands.band(rows)
        found = self._by_band.get(band)
        if found is None:
            with self._making:
                found = self._by_band.get(band) or self._made(band)
                self._by_band[band] = found
        return found

    def prepare(self, first: int = 1, last: int = 16384) -> AnyRows:
        """Compile every kernel that `first` to `last` rows need. Returns the handle."""
        rows = first
        while rows < last:
            self.kernel_for(rows)
            rows = max(rows + 1, math.ceil(rows * 2**0.25))
        self.kernel_for(last)
        return self

    def _made(self, band: int) -> Kernel:
        schedule, origin = self._choose(band)
        if schedule not in self._by_schedule:  # the text of a schedule is the same for any number of rows
            made = self._make(self.problem.with_rows(band), schedule, origin)
            made.join(self)
            self._by_schedule[schedule] = made
        return self._by_schedule[schedule]

    def _rows(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> int:
        """Of the call's array; 1 where there is none: its kernel says what is wrong."""
        array = inputs[self._counted] if len(inputs) > self._counted else named.get(self._counted_name)
        if array is None:
            return 1
        shape = getattr(array, "shape", None)
        if not isinstance(shape, tuple):
            shape = view(array).shape
        return math.prod(shape[:-1])

    def __repr__(self) -> str:
        tuned = ", ".join(map(str, self.bands.tuned)) or "none"
        about = f"{self.problem.name} for any number of rows of {self.problem.cols}"
        lines = [f"<normgen kernel {about}; tuned rows: {tuned}"]
        for schedule, made in self._by_schedule.items():
            bands = ", ".join(str(band) for band, kernel in sorted(self._by_band.items()) if kernel is made)
            lines.append(f"  about {bands} rows: {schedule} ({made.origin})")
        return "\n".join(lines) + ">"
