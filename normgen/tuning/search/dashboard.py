"""A search as a study in a database: `optuna-dashboard sqlite:///file.db` shows it while it runs and afterwards.

The search itself keeps its study in memory: to ask and tell a trial of 30 knobs takes 3.6 ms there, 45 ms in SQLite
on a RAM disk and 220 ms on a slow one, beside 17 ms to time a kernel. What it was told is copied, one
transaction a trial.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import optuna

from normgen.errors import UsageError

HINT = "for example sqlite:///studies.db, or postgresql://user@host/database with its driver installed"


class StudyCopy:
    """Finished trials of a search, copied into a study of `url` named `name`.

    Raises UsageError when the database cannot be opened. One that is lost later does not end the search: `lost`
    then says why, and nothing more is copied. The database is closed when this object is gone.
    """

    def __init__(self, url: str, name: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.lost = ""
        try:
            storage = optuna.storages.RDBStorage(url)
            weakref.finalize(self, close_storage, storage)
            self.study = optuna.create_study(
                storage=storage, study_name=name, direction="minimize", load_if_exists=True
            )
        except Exception as error:  # SQLAlchemy's, its drivers' and the missing driver's errors share no base
            raise UsageError("the storage is a database that can be opened", received=_why(error), hint=HINT) from error

    def describe(self, **facts: str) -> None:
        """Facts of the run that the dashboard lists beside the study."""
        self._try(lambda: [self.study.set_user_attr(name, value) for name, value in facts.items()])

    def add(self, trial: optuna.trial.FrozenTrial) -> None:
        """Copy a finished trial: its knobs, its µs, its reason."""
        if not self.lost:
            self._try(lambda: self.study.add_trial(trial))

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:  # as above; a dashboard is not worth a run
            self.lost = _why(error)


def close_storage(storage: optuna.storages.RDBStorage) -> None:
    """Close its connections: Optuna leaves them to the garbage collector, of which Python 3.13 warns."""
    storage.remove_session()
    storage.engine.dispose()


def _why(error: BaseException) -> str:
    """The first line of what the driver said; Optuna and SQLAlchemy wrap it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]
