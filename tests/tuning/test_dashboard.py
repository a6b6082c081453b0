"""A search in a database is the search as it was told: knobs as parameters, µs as values, reasons of failures."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import pytest

from normgen.errors import UsageError
from normgen.schedule.schedule import Schedule
from normgen.tuning.search.dashboard import StudyCopy
from normgen.tuning.search.search import Search
from tests.tuning.storages import opened
from tests.tuning.test_search import DEFAULT, LEGAL, PREDICTED, truth


def searched(copy: StudyCopy | None, trials: int = 16) -> Search:
    """Points with params=early fail."""
    search = Search(LEGAL, predicted=PREDICTED, seeds=(DEFAULT,), copy=copy)
    while search.trials < trials:
        for proposal in reversed(search.ask(8)):  # told in another order than asked
            us = truth(proposal.schedule) if proposal.schedule.params == "late" else None
            search.tell(proposal.number, us, reason="" if us else "spilled")
    return search


def test_the_study_in_sqlite_has_every_knob_and_every_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    copy = StudyCopy(url, "layernorm 8192x768")
    copy.describe(device="NVIDIA H200", place="fresh")
    search = searched(copy)
    assert copy.lost == ""

    with opened(url) as storage:
        study = optuna.load_study(study_name="layernorm 8192x768", storage=storage)
        assert study.direction is optuna.study.StudyDirection.MINIMIZE
        assert study.user_attrs == {"device": "NVIDIA H200", "place": "fresh"}
        trials, best = study.get_trials(), study.best_trial
    assert len(trials) == search.trials == 16
    states = {t.state for t in trials}
    assert states == {optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL}
    for trial in trials:
        schedule = Schedule(**trial.params)
        assert schedule in LEGAL
        assert trial.value == (truth(schedule) if schedule.params == "late" else None)
        assert trial.user_attrs == ({} if schedule.params == "late" else {"reason": "spilled"})
        assert trial.duration is not None
    assert search.best is not None
    assert Schedule(**best.params) == search.best[0]
    assert best.value == search.best[1]


def test_a_copy_changes_nothing_in_the_search(tmp_path: Path) -> None:
    with_copy = searched(StudyCopy(f"sqlite:///{tmp_path / 'a.db'}", "a")).study.get_trials()
    without = searched(None).study.get_trials()
    assert [(t.params, t.value) for t in with_copy] == [(t.params, t.value) for t in without]


def test_two_runs_are_two_studies_of_one_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    for name in ("one", "two"):
        searched(StudyCopy(url, name), trials=8)
    with opened(url) as storage:
        counts = {s.study_name: s.n_trials for s in optuna.get_all_study_summaries(storage)}
    assert counts == {"one": 8, "two": 8}


def test_a_copy_that_is_gone_holds_its_database_open_no_longer(tmp_path: Path) -> None:
    """At once, not when the garbage collector comes by: Python 3.13 warns of connections that it closes."""
    file = tmp_path / "studies.db"

    def is_open() -> bool:
        return any(os.path.realpath(f"/proc/self/fd/{fd}") == str(file) for fd in os.listdir("/proc/self/fd"))

    gc.disable()
    try:
        copy = StudyCopy(f"sqlite:///{file}", "a")
        assert is_open()
        del copy
        assert not is_open()
    finally:
        gc.enable()


def test_a_database_lost_during_a_search_does_not_end_it(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    copy = StudyCopy(f"sqlite:///{path}", "a")
    path.write_bytes(b"no longer a database" * 1000)
    search = searched(copy)
    assert search.trials == 16
    assert "not a database" in copy.lost


@pytest.mark.parametrize("url", ["sqlite:////no/such/folder/studies.db", "studies.db", "nosuchdatabase://host/name"])
def test_a_storage_that_cannot_be_opened_is_an_error_with_a_hint(url: str) -> None:
    with pytest.raises(UsageError, match=r"a database that can be opened(.|\n)*sqlite:///studies\.db"):
        StudyCopy(url, "a")


def test_optuna_dashboard_opens_the_study(tmp_path: Path) -> None:
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed (extra [dashboard])")
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    searched(StudyCopy(url, "layernorm 8192x768"))
    answered: list[str] = []

    def get(path: str) -> dict[str, Any]:
        """The JSON that the dashboard's own server would answer."""
        environ: dict[str, Any] = {"PATH_INFO": path}
        setup_testing_defaults(environ)
        with opened(url) as storage:
            app = dashboard.wsgi(storage)
            body = b"".join(app(environ, lambda status, *_: answered.append(status)))
        found: dict[str, Any] = json.loads(body)
        return found

    (study,) = get("/api/studies")["study_summaries"]
    assert study["study_name"] == "layernorm 8192x768"
    detail = get(f"/api/studies/{study['study_id']}")
    assert answered == ["200 OK", "200 OK"]
    assert len(detail["trials"]) == 16
    assert {p["name"] for p in detail["trials"][0]["params"]} == set(Schedule().as_dict())
    assert {t["state"] for t in detail["trials"]} == {"Complete", "Fail"}
