"""A run's candidates as an Optuna study in a shared database.

Every candidate becomes one finished trial: knobs as parameters, µs as value, its whole record as the attribute
`record`. optuna-dashboard shows it, and whoever takes a dead host's job over reads there what is measured already.
"""

from __future__ import annotations

import time
from typing import Self

import optuna
import sqlalchemy as sql

from normgen.knobs import TABLE
from normgen.records.record import Record, parse_line
from normgen.suites.jobs import StorageError, storage_url
from normgen.tuning.search.dashboard import close_storage

_ATTEMPTS = 5
# A study takes a number outside the range of its earlier trials, but no new category.
_DISTRIBUTIONS: dict[str, optuna.distributions.BaseDistribution] = {
    k.name: (
        optuna.distributions.IntDistribution(min(k.values), max(k.values))
        if isinstance(k.plain, int)
        else optuna.distributions.CategoricalDistribution(k.values)
    )
    for k in TABLE
}


class SharedStudy:
    """One job's candidates; several processes may add to it."""

    def __init__(self, url: str, name: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name = name
        self._storage = _storage(url)
        self._study = _open(self._storage, name)

    def close(self) -> None:
        close_storage(self._storage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def records(self) -> tuple[Record, ...]:
        """What any host has recorded, in order; trials that are none are left out."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            try:
                found.append(parse_line(str(trial.user_attrs.get("record"))))
            except ValueError:
                continue
        return tuple(found)

    def add(self, record: Record) -> None:
        """Enter a candidate. Raises StorageError when the database does not answer."""
        us = record.us
        is_usable = record.is_usable and us is not None
        state = optuna.trial.TrialState.COMPLETE if is_usable else optuna.trial.TrialState.FAIL
        trial = optuna.trial.create_trial(
            params=record.schedule.as_dict(),
            distributions=_DISTRIBUTIONS,
            value=us if is_usable else None,
            state=state,
            user_attrs={"record": record.line().strip(), "outcome": record.outcome.value, "reason": record.reason},
        )
        try:
            self._study.add_trial(trial)
        except ValueError as error:
            raise StorageError(
                "the shared study was begun by a version with other knobs",
                received=str(error),
                hint="begin the suite again under another name",
            ) from None
        except (sql.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            raise StorageError("the shared study does not take the candidate", received=str(error)) from None


def _storage(url: str) -> optuna.storages.RDBStorage:
    """Of two processes that create the tables at the same moment one is refused, and tries again."""
    for attempt in range(_ATTEMPTS):
        try:
            return optuna.storages.RDBStorage(storage_url(url), engine_kwargs={"pool_pre_ping": True})
        except (sql.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            if attempt == _ATTEMPTS - 1:
                raise StorageError("the shared study cannot be opened", received=str(error)) from None
            time.sleep(0.2 * (attempt + 1))
    raise AssertionError("unreachable")


def _open(storage: optuna.storages.RDBStorage, name: str) -> optuna.Study:
    try:
        return optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
    except (sql.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        close_storage(storage)
        raise StorageError("the shared study cannot be opened", received=str(error)) from None


def study_names(url: str, prefix: str) -> list[str]:
    """The studies whose names begin so."""
    storage = _storage(url)
    try:
        return [name for name in optuna.get_all_study_names(storage) if name.startswith(prefix)]
    finally:
        close_storage(storage)


def delete_studies(url: str, prefix: str) -> None:
    """Remove the studies whose names begin so."""
    names, storage = study_names(url, prefix), _storage(url)
    try:
        for name in names:
            optuna.delete_study(study_name=name, storage=storage)
    finally:
        close_storage(storage)
