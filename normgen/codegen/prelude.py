"""Chooses which parts of the prelude a kernel needs and renders them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import jinja2

LOAD_BUILTINS = {"default": "*address", "streaming": "__ldcs(address)", "cache_global": "__ldcg(address)"}
STORE_BUILTINS = {
    "default": "*address = value",
    "streaming": "__stcs(address, value)",
    "cache_global": "__stcg(address, value)",
}
POLICIES = ("evict_first", "evict_last")  # L2 eviction priorities; they need createpolicy (sm_80)


@dataclass(frozen=True)
class Word:
    """One PTX access width: its C type, PTX suffix and register operands."""

    type: str
    suffix: str
    constraint: str
    fields: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.fields)

    @property
    def outputs(self) -> str:
        return ", ".join(f'"={self.constraint}"(value{f})' for f in self.fields)

    @property
    def inputs(self) -> str:
        return ", ".join(f'"{self.constraint}"(value{f})' for f in self.fields)

    def registers(self, first: int) -> str:
        names = ", ".join(f"%{first + i}" for i in range(self.count))
        return f"{{{names}}}" if self.count > 1 else names


WORDS = (
    Word("unsigned short", ".u16", "h", ("",)),
    Word("unsigned", ".u32", "r", ("",)),
    Word("uint2", ".v2.u32", "r", (".x", ".y")),
    Word("uint4", ".v4.u32", "r", (".x", ".y", ".z", ".w")),
)


@cache
def environment() -> jinja2.Environment:
    """Templates print what they are given: an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("normgen.codegen", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # CUDA text, not HTML
    )


def instructions(*, dtypes: Iterable[str], loads: Iterable[str], stores: Iterable[str], features: Iterable[str]) -> str:
    """The hardware-instruction part: only what this kernel uses, in a fixed order."""
    return (
        environment()
        .get_template("instructions.cu.j2")
        .render(
            dtypes=sorted(dtypes),
            loads=[h for h in ("default", "streaming", "cache_global", "no_allocate", *POLICIES) if h in set(loads)],
            stores=[h for h in ("default", "streaming", "cache_global", *POLICIES) if h in set(stores)],
            features=sorted(features),
            load_builtins=LOAD_BUILTINS,
            store_builtins=STORE_BUILTINS,
            policies=POLICIES,
            words=WORDS,
        )
    )
