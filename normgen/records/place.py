"""Where a kernel is timed: what runs before and behind it, and what it finds in the L2.

In place, a kernel K stands in a chain [P][K][C]: a producer P has just written, and a consumer C reads what K wrote.
The chain takes T, without K it takes T0; the kernel's *price* is T - T0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from normgen.errors import UsageError, did_you_mean


class Context(StrEnum):
    """What runs before and behind a kernel.

    between  plain kernels with a fixed launch shape: the default
    chain    the same, starting early (programmatic dependent launch), as the kernels of a model that uses it do
    matmul   matrix products [rows, cols] x [cols, cols] of cuBLAS
    alone    the kernel itself, again and again: no chain, and no price
    """

    BETWEEN = "between"
    CHAIN = "chain"
    MATMUL = "matmul"
    ALONE = "alone"


class Setting(StrEnum):
    """What a kernel finds in the L2.

    fresh  what P has just written, the main input; everything else, weights too, comes from DRAM: the default
    cold   nothing of its own: P wrote another buffer as large as the main input
    hot    everything
    """

    FRESH = "fresh"
    COLD = "cold"
    HOT = "hot"


_FINDS = {Setting.FRESH: "its main input", Setting.COLD: "nothing", Setting.HOT: "everything"}
_STANDS = {
    Context.BETWEEN: "between plain kernels",
    Context.CHAIN: "between kernels that start early",
    Context.MATMUL: "between matrix products",
    Context.ALONE: "back to back with itself",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A context and a setting. Alone, where nothing is produced, fresh is the same as cold."""

    context: Context = Context.BETWEEN
    setting: Setting = Setting.FRESH

    @property
    def is_hot(self) -> bool:
        """What the cost model asks."""
        return self.setting is Setting.HOT

    def as_dict(self) -> dict[str, str]:
        return {"context": self.context.value, "setting": self.setting.value}

    @property
    def words(self) -> str:
        """As a result says it: `with its main input in L2, between plain kernels (fresh)`."""
        return f"with {_FINDS[self.setting]} in L2, {_STANDS[self.context]} ({self})"

    def options(self) -> list[str]:
        """As options of a command line; only what differs from the default."""
        words = ["--setting", self.setting.value] if self.setting is not Setting.FRESH else []
        return words + (["--context", self.context.value] if self.context is not Context.BETWEEN else [])

    def __str__(self) -> str:
        """`fresh`, `hot alone`: a context other than the default one is said."""
        return self.setting.value + (f" {self.context.value}" if self.context is not Context.BETWEEN else "")


DEFAULT_PLACE = Place()


def place_of(text: str) -> Place:
    """The place of what `str` makes of one. Raises UsageError for another text."""
    setting, _, context = text.partition(" ")
    return place_named(setting, context or Context.BETWEEN.value)


def place_named(setting: str, context: str) -> Place:
    """The place of a command line's or a file's words. Raises UsageError for an unknown one."""
    if setting not in list(Setting):
        rule = f"the setting is one of {', '.join(Setting)}"
        raise UsageError(rule, received=setting, hint=did_you_mean(setting, Setting))
    if context not in list(Context):
        rule = f"the context is one of {', '.join(Context)}"
        raise UsageError(rule, received=context, hint=did_you_mean(context, Context))
    return Place(setting=Setting(setting), context=Context(context))
