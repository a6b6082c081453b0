"""A kernel before it is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from normgen.codegen.access import policy
from normgen.codegen.chain import CHAINS, asking
from normgen.codegen.config.rows import DIVISIONS, ORDERS
from normgen.codegen.statements import ConfigSetting, Statement, Struct
from normgen.knobs import DependentLaunch, Division, LoadHint, RowOrder, StoreHint
from normgen.schedule.schedule import Schedule

# library/plain.cuh
PLAIN: dict[str, str | int] = {
    "Load": policy(LoadHint.DEFAULT),
    "Store": policy(StoreHint.DEFAULT),
    "Chain": CHAINS[DependentLaunch.OFF],
    "Params": asking(Schedule().params),
    "Order": ORDERS[RowOrder.ASCENDING],
    "Division": DIVISIONS[Division.IEEE],
    "kCluster": 1,
    "kBlocksPerSm": 0,
}


@dataclass(frozen=True, kw_only=True)
class KernelText:
    """One kernel, ready to print: `bounds` are those of its launch, which read what `config` has of Config.

    types  the states of its looks, which stand before it: kernels of one header share them
    """

    name: str
    comment: tuple[str, ...]
    params: tuple[str, ...]
    bounds: str
    config: Mapping[str, int | str]
    body: tuple[Statement, ...]
    types: tuple[Struct, ...] = ()

    @property
    def settings(self) -> dict[str, int | str]:
        """All that it reads of Config."""
        return {s.name: s.chosen for s in self.body if isinstance(s, ConfigSetting)} | dict(self.config)
