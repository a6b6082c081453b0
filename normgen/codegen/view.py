"""What the kernel template prints: lines, loops and sections in order. No decision is left to the template."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class State:
    """The packed state of all row reductions of one look, exchanged in one tree."""

    type: str  # Look1
    variable: str  # look1
    doc: str
    components: tuple[str, ...]
    identity: tuple[str, ...]
    combine_lets: tuple[str, ...]
    combine: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One walk of a thread over its vectors of the row.

    head    once per vector, before its elements (reads)
    peek    once per element, in a pass before that of `elem`
    move    once per vector, between the two
    elem    once per element
    tail    once per vector, after its elements (writes)
    edge    once after the loop, by the lanes that own an element outside of the whole vectors
    first   and `last`: the steps that it walks; last "" stands for all that are left
    """

    comment: str = ""
    unroll: str = ""
    guard: str = ""
    head: tuple[str, ...] = ()
    peek: tuple[str, ...] = ()
    move: tuple[str, ...] = ()
    elem: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    edge: tuple[str, ...] = ()
    first: str = "0"
    last: str = ""
    kind: str = "loop"

    def texts(self) -> tuple[str, ...]:
        return (*self._walk, *self.edge)

    @property
    def _walk(self) -> tuple[str, ...]:
        return (*self.head, *self.peek, *self.move, *self.elem, *self.tail)

    @property
    def uses_vector(self) -> bool:
        """Whether any line names the vector index: nvcc warns about a variable nobody reads."""
        return any(re.search(r"\bvector\b", line) for line in (self.guard, *self._walk))


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Straight-line text."""

    lines: tuple[str, ...]
    kind: str = "lines"

    def texts(self) -> tuple[str, ...]:
        return self.lines


Section = Loop | Lines


@dataclass(frozen=True, kw_only=True)
class KernelView:
    """One kernel, ready to print. `row_loop` wraps `body` when the grid is persistent."""

    name: str
    comment: tuple[str, ...]
    params: tuple[str, ...]
    launch_bounds: str
    constants: tuple[tuple[str, str, str], ...]  # name, value, comment
    steps: str  # name of the number of vectors a thread owns
    shared: tuple[str, ...] = ()
    prologue: tuple[Section, ...] = ()
    row_loop: str = ""
    body: tuple[Section, ...] = ()
    epilogue: tuple[Section, ...] = ()


@dataclass(kw_only=True)
class SectionList:
    """Collects sections in order and drops empty ones."""

    sections: list[Section] = field(default_factory=list)

    def lines(self, *lines: str) -> None:
        if lines:
            self.sections.append(Lines(lines=lines))

    def loop(self, loop: Loop) -> None:
        if loop.head or loop.elem or loop.tail:
            self.sections.append(loop)

    def done(self) -> tuple[Section, ...]:
        return tuple(self.sections)
