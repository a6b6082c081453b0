"""One walk of a thread over its vectors of the row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from normgen.codegen.access import Access, Span
from normgen.codegen.statements import Comment, Gap, If, Let, Statement, loop, when

Statements = Sequence[Statement]
UNROLL = "#pragma unroll"


def each_element(inner: Statements) -> Statement:
    """`inner`, of each element of a thread's vector."""
    return loop("i", "kVector", inner, unroll=UNROLL)


@dataclass(frozen=True, kw_only=True)
class Walk:
    """What a thread does in one walk.

    head    once per vector, before its elements (reads)
    peek    once per element, in a pass before that of `elem`
    move    once per vector, between the two
    elem    once per element
    plain   instead of `elem`, of each element of the vectors of which `named` is not true
    named   whether a vector has a column that a value of the row names, as its label: few have
    tail    once per vector, after its elements (writes)
    edge    once after the loop, by the lanes that own an element outside of the whole vectors
    span    the steps that it walks
    also    a further condition of each step
    always  whether steps without a vector are walked, too
    backwards  whether the last step comes first
    """

    comment: str = ""
    head: Statements = ()
    peek: Statements = ()
    move: Statements = ()
    elem: Statements = ()
    plain: Statements = ()
    named: str = ""
    tail: Statements = ()
    edge: Statements = ()
    also: str = ""
    always: bool = False
    backwards: bool = False
    span: Span | None = None

    @property
    def inner(self) -> list[Statement]:
        """What is done at one site: a vector's statements."""
        peek, elem = ([each_element(part)] if part else [] for part in (self.peek, self.elem))
        if self.named:
            elem = [If(self.named, tuple(elem), otherwise=(each_element(self.plain),))]
        return [*self.head, *peek, *self.move, *elem, *self.tail]

    def statements(self, access: Access) -> list[Statement]:
        """The loop, and behind it the edge."""
        if not (self.head or self.elem or self.tail or self.move):
            return []
        inner = self.inner
        if access.plan.cut.shifted:
            inner.insert(0, Let("const int", "column", "head + vector * kVector"))
        guard = "" if self.always else f"{self.also} && ({access.guard})" if self.also else access.guard
        body = [Let("const int", "vector", "row_thread + step * kThreadsPerRow"), *when(guard, *inner)]
        span = self.span
        first, last = (span.first, span.last or access.steps) if span else ("0", access.steps)
        walk = loop("step", last, body, first=first, unroll=span.unroll if span else UNROLL)
        if self.backwards:
            walk = replace(walk, head=f"for (int step = {last} - 1; step >= {first}; --step)")
        comment = [Comment(self.comment)] if self.comment else []
        edge = [If("has_edge", tuple(self.edge))] if self.edge else []
        return [Gap(), *comment, walk, *edge, Gap()]
