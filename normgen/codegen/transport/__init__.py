"""How rows reach the threads: one file for each technique, behind the protocol of `transport.Transport`.

A new asynchronous copy is a `ring.Copier` of its own and a row of COPIERS.
"""

from __future__ import annotations

from collections.abc import Callable

from normgen.codegen.access import Access
from normgen.codegen.transport.bulk import Bulk
from normgen.codegen.transport.cp_async import CpAsync
from normgen.codegen.transport.direct import Direct
from normgen.codegen.transport.register_ahead import RegisterAhead
from normgen.codegen.transport.ring import Copier, Ring
from normgen.codegen.transport.transport import Transport
from normgen.knobs import Copy

COPIERS: dict[Copy, Callable[[Access], Copier]] = {Copy.CP_ASYNC: CpAsync, Copy.BULK: Bulk}


def transport_of(access: Access, *, reduction_frees: bool) -> Transport:
    """The technique of a kernel; `reduction_frees`: all threads of a row pass a barrier in its first reduction."""
    copier = COPIERS.get(access.plan.schedule.copy)
    if copier is not None:
        return Ring(access, copier(access), reduction_frees=reduction_frees)
    return RegisterAhead(access) if access.plan.walks_registers else Direct(access)
