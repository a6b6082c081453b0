"""Databases of studies as a reader opens them, closed again: Optuna leaves that to the garbage collector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import optuna

from normgen.tuning.search.dashboard import close_storage


@contextmanager
def opened(url: str) -> Iterator[optuna.storages.RDBStorage]:
    storage = optuna.storages.RDBStorage(url)
    try:
        yield storage
    finally:
        close_storage(storage)
