"""How rows reach the threads: what every technique offers, and the slots of shared memory that several use."""

from __future__ import annotations

from collections.abc import Iterator

from normgen.codegen.access import EDGE, Access
from normgen.codegen.statements import Do, If, Let, Set, Statement, constant, setting
from normgen.program.ir import Load
from normgen.schedule.plan import Waiting


class Transport:
    """One way for a row to reach its threads. A technique overrides what it does; the rest is nothing.

    A kernel calls in this order: `constants`, `shared`, `pointers`, `prologue`; then for each row `ask`, `start`,
    `arrive` (a hybrid row's rest within its first look), `after_first_look`, `after_last_look`.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.plan = access.plan
        self.slots = Slots(access)

    def constants(self) -> list[Let]:
        return self.slots.constants()

    def shared(self) -> list[Statement]:
        return []

    def pointers(self) -> list[Statement]:
        return self.slots.pointers()

    def prologue(self) -> list[Statement]:
        """Before the row loop."""
        return []

    def start_fetching(self) -> list[Statement]:
        """Before the row loop, after everything that other parts set up: the first row to registers."""
        return []

    def ask(self) -> list[Statement]:
        """Within a row, before its values are read."""
        return []

    def start(self) -> list[Statement]:
        """The row is asked for, or read."""
        return []

    def arrive(self) -> list[Statement]:
        """The row, or the part of it that waits in shared memory, is there."""
        return []

    def after_first_look(self) -> list[Statement]:
        return []

    def after_last_look(self) -> list[Statement]:
        return []

    def row_value(self, load: Load) -> str:
        """The text of a value of the row that is read with it."""
        return self.access.read_row_value(load.name, self.access.valid_row)

    def slot(self, tensor: str) -> str:
        """Address of this thread's slot of `step`."""
        return self.slots.of(tensor)


class Slots:
    """The places of a thread's vectors in shared memory: every thread has its own, so that no look needs a barrier."""

    def __init__(self, access: Access, *, by_row: bool = False) -> None:
        self.access = access
        self.plan = access.plan
        self.by_row = by_row  # rows side by side lie one after another, not thread by thread

    @property
    def steps(self) -> str:
        """Slots of a thread in one row tile."""
        return "kSlotSteps" if self.plan.is_hybrid else "kSteps"

    @property
    def step(self) -> str:
        return "(step - kHeldSteps)" if self.plan.is_hybrid else "step"

    def of(self, tensor: str) -> str:
        staged = self.plan.is_staged
        if self.by_row:
            row = "(stage * kRowsPerBlock + block_row)" if staged else "block_row"
            return f"{tensor}_shared + (({row} * {self.steps} + {self.step}) * kThreadsPerRow + row_thread) * kVector"
        step = f"(stage * kSteps + {self.step})" if staged else self.step
        return f"{tensor}_shared + ({step} * kThreads + threadIdx.x) * kVector"

    def _starts(self) -> Iterator[tuple[str, str]]:
        """(tensor, start of its slots), one behind another; last ("", what lies behind them all)."""
        stages = "kStages * " if self.plan.is_staged else ""
        start = "dynamic_shared()"
        for load in self.plan.held if self.plan.slot_bytes else ():
            yield load.name, start
            start = f"{load.name}_shared + {stages}{self.steps} * kThreads * kVector"
        yield "", start

    def pointers(self) -> list[Statement]:
        *starts, _ = self._starts()
        found: list[Statement] = []
        for tensor, start in starts:
            ctype = self.access.ctype(tensor)
            found.append(Let(f"{ctype}*", f"{tensor}_shared", f"reinterpret_cast<{ctype}*>({start})"))
        return found

    @property
    def behind(self) -> str:
        """The start of what a block keeps in shared memory beside its slots."""
        return list(self._starts())[-1][1]

    def constants(self) -> list[Let]:
        found: list[Let] = []
        if self.plan.is_staged:
            found.append(setting("kStages", self.plan.schedule.stages, "row tiles in shared memory"))
        if self.plan.is_hybrid:
            found.append(setting("kHeldSteps", self.plan.held_steps, "vectors of a thread in registers"))
            found.append(constant("kSlotSteps", "kSteps - kHeldSteps", "vectors of a thread in shared memory"))
        return found

    def reads(self) -> list[Statement]:
        """A thread's vectors from its slots to its registers."""
        return [Set(f"{ld.name}_held[step]", f"read<kVector>({self.of(ld.name)})") for ld in self.plan.held]


def holders(access: Access) -> list[Statement]:
    """Where a row waits within a thread."""
    plan = access.plan
    if Waiting.REGISTERS in plan.places and plan.held:
        return access.declarations(plan.held, "kHeldSteps" if plan.is_hybrid else "kSteps")
    if Waiting.SHARED in plan.places and plan.cut.edged:
        return [Do(f"{access.vec(h.name, EDGE)} {h.name}_edge = {{}}") for h in plan.held]
    return []


def fetched(access: Access) -> list[Statement]:
    """Within a function that fetches a tile: the row, and where it starts in each tensor."""
    row, found = access.fetched_row()
    starts = [access.row_pointer(access.plan.problem.tensor(load.name), row) for load in access.plan.held]
    return [*found, *starts]


def fetch_if(access: Access, call: str, row: str, elected: str = "") -> Statement:
    """Ask for the row tile that starts at `row`, if there is one; where one thread does that, `elected` is it."""
    condition = f"{elected} && {access.is_tile(row)}" if elected else access.is_tile(row)
    return If(condition, (Do(call.format(row)),), alone=True)


def fetch_later(access: Access, call: str, name: str, row: str, elected: str = "") -> list[Statement]:
    """Ask for the row tile that starts at `row`, called `name`, if there is one.

    It may lie past the largest int; of last rows first it may lie below 0.
    """
    kind = "int" if access.plan.descends else "unsigned"
    return [Let(f"const {kind}", name, row), fetch_if(access, call, name, elected)]
