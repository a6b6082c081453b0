"""The problem that a command line names."""

from __future__ import annotations

from typing import Any

from normgen.cli.options import problem_arguments
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import load


def read_problem(options: dict[str, Any]) -> Problem:
    return problem_for(load(options["op"]), **problem_arguments(options))
