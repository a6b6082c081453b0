"""What `normgen compare` prints."""

from __future__ import annotations

from normgen.records.compare import FASTER, SAME, SLOWER, UNMEASURED, Comparison
from normgen.text import figure, table


def comparison_text(found: Comparison) -> str:
    """A table, what only one file has, and the counts."""
    rows = [[p.verdict, figure(p.before_us), figure(p.after_us), figure(p.ratio), p.problem] for p in found.pairs]
    lines = [table(("", "before µs", "after µs", "ratio", "problem"), rows), ""]
    lines += [f"only before: {name}" for name in found.only_before]
    lines += [f"only after: {name}" for name in found.only_after]
    counts = [f"{found.count(v)} {v.lower()}" for v in (FASTER, SLOWER, SAME, UNMEASURED) if found.count(v)]
    return "\n".join([*lines, ", ".join(counts)])
