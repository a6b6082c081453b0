"""A process that claims jobs, in a module that imports the store alone: several are started for one test."""

from __future__ import annotations

import os
from typing import Any

from normgen.suites.jobs import JobStore


def claim_all(url: str, suite: str, answers: Any) -> None:
    store = JobStore(url)
    while (job := store.claim(suite)) is not None:
        answers.put((os.getpid(), job.number))
        assert store.finish(job, "{}")
