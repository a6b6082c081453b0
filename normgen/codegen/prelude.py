"""Chooses which parts of the prelude a kernel, or several kernels in one text, need and renders them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

from normgen.codegen.view import State
from normgen.dtypes import DTYPES
from normgen.schedule.plan import UNEVEN

LOAD_BUILTINS = {"default": "*address", "streaming": "__ldcs(address)", "cache_global": "__ldcg(address)"}
STORE_BUILTINS = {
    "default": "*address = value",
    "streaming": "__stcs(address, value)",
    "cache_global": "__stcg(address, value)",
}
# The trees that exchange states by shuffles.
SHUFFLED = ("lanes", "block_shuffle", "block_shuffle_rows", "cluster", "cluster_rows")
POLICIES = ("evict_first", "evict_last")  # L2 eviction priorities; they need createpolicy (sm_80)


@dataclass(frozen=True)
class Word:
    """One PTX access width: its C type, PTX suffix and register operands.

    A byte has no register of its own: its `carrier` type has.
    """

    bytes: int
    type: str
    suffix: str
    constraint: str
    fields: tuple[str, ...]
    carrier: str = ""

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
    Word(1, "unsigned char", ".u8", "h", ("",), "unsigned short"),
    Word(2, "unsigned short", ".u16", "h", ("",)),
    Word(4, "unsigned", ".u32", "r", ("",)),
    Word(8, "uint2", ".v2.u32", "r", (".x", ".y")),
    Word(16, "uint4", ".v4.u32", "r", (".x", ".y", ".z", ".w")),
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


def instructions(
    *,
    dtypes: Iterable[str],
    loads: Iterable[str],
    stores: Iterable[str],
    features: Iterable[str],
    bulk_loads: Iterable[str] = (),
) -> str:
    """The hardware-instruction part: only what this kernel uses, in a fixed order.

    `bulk_loads` are the L2 priorities of bulk copies, "" for none.
    """
    return (
        environment()
        .get_template("instructions.cu.j2")
        .render(
            dtypes=sorted(dtypes),
            loads=[h for h in ("default", "streaming", "cache_global", "no_allocate", *POLICIES) if h in set(loads)],
            stores=[h for h in ("default", "streaming", "cache_global", *POLICIES) if h in set(stores)],
            features=sorted(features),
            bulk_loads=sorted(set(bulk_loads)),
            load_builtins=LOAD_BUILTINS,
            store_builtins=STORE_BUILTINS,
            policies=POLICIES,
            words=[word for word in WORDS if word.bytes >= min(2, *(DTYPES[name].bytes for name in dtypes))],
        )
    )


def instructions_of(text: str, dtypes: Iterable[str]) -> str:
    """The hardware instructions that `text` calls."""
    features = ["extremum"] if re.search(r"\b(maximum|minimum)\(", text) else []
    by_name = ("dynamic_shared", "named_barrier", "opaque", "exp_approximate")
    features += [name for name in by_name if f"{name}(" in text]
    features += ["power"] if "power<" in text else []
    features += ["cp_async"] if "cp_async_commit()" in text else []
    bulk_loads = re.findall(r"\bbulk_load_?([a-z_]*)\(", text)
    features += ["bulk", "mbarrier"] if bulk_loads else []
    features += ["cluster"] if "cluster_rank()" in text else []
    features += ["cluster_load"] if "cluster_load(" in text else []
    features += ["cluster_send", "mbarrier"] if "cluster_send(" in text else []
    features += ["dependent_launch"] if "dependency_wait()" in text else []
    return instructions(
        dtypes=dtypes,
        loads=re.findall(r"\bload_([a-z_]+)\(", text),
        stores=re.findall(r"\bstore_([a-z_]+)\(", text),
        bulk_loads=bulk_loads,
        features=features,
    )


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Which vector accesses of vectors.cu.j2 a text uses: element types, and cache hints by use."""

    ctypes: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    slot_copies: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    packed: tuple[str, ...] = ()

    def __or__(self, other: Vectors) -> Vectors:
        def both(name: str) -> tuple[str, ...]:
            return tuple(sorted({*getattr(self, name), *getattr(other, name)}))

        return Vectors(**{name: both(name) for name in self.__dataclass_fields__})

    def text(self) -> str:
        stored = [d for d in DTYPES.values() if d.ctype in self.ctypes]
        return (
            environment()
            .get_template("vectors.cu.j2")
            .render(
                ctypes=self.ctypes,
                narrow=[d for d in stored if d.bytes < 4],
                smallest=min(d.bytes for d in stored),
                reads=self.reads,
                writes=self.writes,
                slot_copies=self.slot_copies,
                windows=self.windows,
                packed=self.packed,
            )
        )


def states_text(states: Sequence[State], *, shuffles: bool) -> str:
    """The packed states of the looks: struct, combine and, with shuffles, the exchange with another lane."""
    return environment().get_template("states.cu.j2").render(states=states, shuffles=shuffles)


def trees_text(methods: Iterable[str]) -> str:
    """The trees that combine the states of the threads of a row; they find `combine` by the state's type."""
    found = frozenset(methods)
    return (
        environment()
        .get_template("reduce.cu.j2")
        .render(
            methods=found,
            shuffles=any(map(shuffles, found)),
            cooperative=any("cooperative" in method for method in found),
            even_part=any(method.startswith(UNEVEN) and method != f"{UNEVEN}tree" for method in found),
        )
    )


def shuffles(method: str) -> bool:
    """Whether a tree exchanges states by shuffles."""
    return method.removeprefix(UNEVEN) in SHUFFLED


def tidy(text: str) -> str:
    """No trailing spaces, no more than one blank line in a row: the templates need not care."""
    lines = [line.rstrip() for line in text.split("\n")]
    out = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    return out + "\n"
