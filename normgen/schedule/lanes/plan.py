"""Every fact that follows from a schedule of rows side by side.

A thread owns `vector` neighbouring rows, which lie side by side: one access reads an element of each. `rows_per_block`
threads side by side own a block's rows, and `threads_per_row` of these lines of threads share the columns: part p has
columns p, p + parts, p + 2 * parts and so on.

    thread 0 .. slots - 1          part 0 of the block's rows, `vector` rows a thread
    thread slots .. 2 * slots - 1  part 1
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from normgen.knobs import Hold
from normgen.problem.problem import Problem
from normgen.schedule.columns import most, where
from normgen.schedule.plan import WARP, Plan, Sums, is_spared, sums_pitch
from normgen.schedule.schedule import Schedule

CHUNK = 8  # columns that one maximum serves, of elements in registers
OTHER_REGISTERS = 26  # of a thread: addresses, counters, what a vector's elements pass through


def steps_of_part(problem: Problem, s: Schedule) -> int:
    """Columns that the first part has of a row: no other has more."""
    return -(-problem.cols // s.threads_per_row)


def rows_of_block(s: Schedule) -> int:
    return s.rows_per_block * s.vector


def parts_of_warp(s: Schedule) -> int:
    """Parts of a row that lie in one warp."""
    return most(1, WARP // s.rows_per_block)


def groups_of_parts(s: Schedule) -> int:
    """Parts that are combined by way of shared memory, once the lanes of each warp have combined theirs."""
    return most(1, s.threads_per_row // parts_of_warp(s))


def vector_registers(problem: Problem, s: Schedule) -> int:
    """Registers of a vector of each row input, as it is stored."""
    return sum(-(-s.vector * t.dtype.bytes // 4) for t in problem.elem_inputs)


def held_registers(problem: Problem, s: Schedule) -> int:
    """Registers of a thread that hold its elements between the looks."""
    return where(s.hold == Hold.REGISTERS, steps_of_part(problem, s) * vector_registers(problem, s), 0)


def held_bytes(problem: Problem, s: Schedule) -> int:
    """Shared memory in which the elements of a block wait between the looks."""
    held = steps_of_part(problem, s) * s.threads * s.vector * problem.row_input_bytes
    return where(s.hold == Hold.SHARED, held, 0)


def sums_bytes(problem: Problem) -> int:
    """Shared memory of a block's sums over its rows."""
    return problem.column_outputs * sums_pitch(problem) * 4


@dataclass(frozen=True, kw_only=True)
class LanePlan(Plan):
    """One kernel of rows side by side, decided."""

    @property
    def in_registers(self) -> bool:
        """Whether a thread's elements stay in its registers between the looks."""
        return self.schedule.hold is Hold.REGISTERS

    @property
    def in_shared(self) -> bool:
        """The same in shared memory."""
        return self.schedule.hold is Hold.SHARED

    @property
    def steps(self) -> int:
        return steps_of_part(self.problem, self.schedule)

    @property
    def together(self) -> int:
        """Parts of a row in one warp."""
        return parts_of_warp(self.schedule)

    @property
    def groups(self) -> int:
        """Parts that meet in shared memory."""
        return groups_of_parts(self.schedule)

    @property
    def rows_per_tile(self) -> int:
        return rows_of_block(self.schedule)

    @cached_property
    def area(self) -> int:
        """Floats of the states of one look that wait for each other: of the largest look."""
        widest = max((sum(len(r.names) for r in look) for look in self.looks), default=0)
        return widest * self.groups * self.rows_per_tile if self.groups > 1 else 0

    @property
    def least_blocks(self) -> int:
        """Blocks that must fit an SM. Unbound, NVRTC 13.0 keeps few loads of a block of 1024 threads on their way."""
        return self.schedule.blocks_per_sm or 1

    @property
    def chunk(self) -> int:
        """Columns of a thread that one maximum serves, where sums are relative to it."""
        most = self.schedule.unroll or CHUNK
        return max(1, min(most, self.problem.cols // self.schedule.threads_per_row))

    @property
    def always(self) -> int:
        """The looks that no block is spared."""
        return sum(not is_spared(look) for look in self.looks)

    @property
    def areas(self) -> int:
        """Two, by turns, where a fast warp could leave a later look's states while a slow one still reads; and one for
        each look that a block may be spared, whose barrier keeps no other apart.
        """
        return min(2, self.always) + len(self.looks) - self.always

    def area_of(self, look: int) -> int:
        """The area of a look's states."""
        before = sum(not is_spared(found) for found in self.looks[:look])
        return min(2, self.always) + look - before if is_spared(self.looks[look]) else before % 2

    @property
    def exchange_bytes(self) -> int:
        return self.areas * self.area * 4

    @property
    def shared_bytes(self) -> int:
        """Held elements, then the block's sums over rows, then the states of parts."""
        return held_bytes(self.problem, self.schedule) + sums_bytes(self.problem) + self.exchange_bytes

    @cached_property
    def sums(self) -> Sums | None:
        """A block adds its rows in shared memory, a warp its own columns; a second kernel adds the blocks."""
        stores = tuple(store for store, _ in self.program.col_terms)
        if not stores:
            return None
        row_bytes = len(stores) * sums_pitch(self.problem) * 4
        return Sums(
            way=self.schedule.columns,
            stores=stores,
            totals=(),
            by_batch=False,
            total_bytes=0,
            pitch=sums_pitch(self.problem),
            in_registers=False,
            in_shared=True,
            groups=1,
            shared_bytes=row_bytes,
            fixed_bytes=0,
            column_bytes=0,
            block_bytes=row_bytes,
            batch_bytes=0,
        )
