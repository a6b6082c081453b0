"""The words of this project that a stranger does not know, each with its meaning: for docs, help and printed tables.

docs/measuring.md lists them, `--help` and tables explain those that they use, and a test refuses a page that uses one
before it is explained.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word with its meaning.

    says      what it means, in words of the field
    form      a regular expression of how it is written; by default the name, with or without an s
    label     how a printed table has it, where that says more than `form`: a regular expression
    instead   names of the same thing that headers, records or options keep
    """

    name: str
    says: str
    form: str = ""
    label: str = ""
    instead: tuple[str, ...] = ()

    def is_in(self, text: str, *, printed: bool = False) -> bool:
        """Whether a text uses the word; `printed`: whether a table does."""
        return re.search(self.label if printed and self.label else self.form or rf"\b{self.name}s?\b", text) is not None


_NEVER = r"(?!)"

WORDS: tuple[Word, ...] = (
    Word(
        name="marginal time",
        says="what a kernel adds to the time of the two kernels around it: T - T0, median over interleaved rounds",
        form=r"\bmarginal (?:time|µs)",
        instead=("price", "`price_us`"),
    ),
    Word(
        name="chain",
        says="a kernel that writes the input, the kernel itself, one that reads the output: T; without the kernel: T0",
        form=r"\bchains?\b(?!=)",
        label=r"\bT0\b|\bchains?\b",
    ),
    Word(
        name="roofline",
        says="the fastest hand-written kernel that moves the same bytes, in the same run; it is measured, so that a "
        "kernel may reach more than 100 % of it",
        form=r"\brooflines?\b",
        instead=("roof", "`roof_us`"),
    ),
    Word(
        name="fresh",
        says="the kernel finds its main input in L2, as a producer has just written it; weights come from DRAM",
        instead=("`--setting fresh`",),
    ),
    Word(
        name="cold, hot",
        says="the kernel finds nothing in L2 (cold), or everything (hot)",
        form=r"\b(?:cold|hot)\b(?! start)",
        instead=("`--setting cold`",),
    ),
    Word(
        name="alone",
        says="timed back to back with itself, with no other kernel around it",
        form=r"\balone µs|\b(?:fresh|cold|hot) alone\b|\b[Tt]imed alone\b|`alone`|^alone$",
        instead=("`--context alone`",),
    ),
    Word(name="memcpy node", says="a copy of as many bytes in a CUDA graph, which no kernel of ours makes"),
    Word(name="noise floor", says="how far two timings of the same kernel differ in this run"),
    Word(name="peer", says="another library's kernel, on the same inputs in the same run"),
    Word(name="spec", says="an operation as a TOML file: tensors with roles, and formulas", label=_NEVER),
    Word(
        name="schedule",
        says="how a kernel runs, never what it computes: threads a row, vector width, buffers",
        label=_NEVER,
    ),
    Word(name="knob", says="one choice of how a kernel runs, such as `vector=float4`"),
    Word(name="record", says="one result, measured or predicted, with its evidence: a line of JSON", label=_NEVER),
    Word(name="suite", says="a TOML file of problems that are tuned or timed together", label=_NEVER),
    Word(
        name="pass",
        says="one time that a kernel goes over a row, in memory or where it is held",
        form=r"\bpass(?:es)? over\b|^pass$",
    ),
    Word(name="rung", says="one of the kernels of a tutorial or library, by name: `layernorm/v3`", label=_NEVER),
    Word(name="ladder", says="the kernels of a tutorial or library, the simplest first", label=_NEVER),
    Word(
        name="handle",
        says="what `normgen.kernel(...)` returns: a kernel, compiled and ready to be called",
        label=_NEVER,
    ),
)


def used(text: str, *, printed: bool = False) -> tuple[Word, ...]:
    """The words that a text uses, in the order of the table."""
    return tuple(word for word in WORDS if word.is_in(text, printed=printed))


def legend(*texts: str, width: int = 110) -> list[str]:
    """Lines that explain the words of printed tables."""
    lines: list[str] = []
    for word in used("\n".join(texts), printed=True):
        lines += textwrap.wrap(f"{word.name}: {word.says}", width, initial_indent="  ", subsequent_indent="    ")
    return lines
