"""The problem that a command line names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from normgen.cli.options import parse_pairs, problem_arguments
from normgen.dtypes import F32
from normgen.errors import UsageError, did_you_mean
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.checks import equal_to_whole
from normgen.spec.reader import load
from normgen.spec.spec import Spec


def read_problem(options: dict[str, Any]) -> Problem:
    return problem_for(load(options["op"]), **problem_arguments(options))


def read_scalars(spec: Spec, words: Sequence[str]) -> dict[str, float]:
    """Values of scalars from `eps=1e-3` words.

    Raises UsageError for a name that is no scalar, no number of float32, one outside the ranges of the spec, and no
    whole number where labels are held to it.
    """
    defaults, labels, found = dict(spec.scalars), equal_to_whole(spec), {}
    for name, text in parse_pairs(" ".join(words)).items():
        if name not in defaults:
            hint = did_you_mean(name, defaults) if defaults else f"'{spec.name}' has no scalar"
            raise UsageError("a value is set of a scalar of the spec", received=f"{name}={text}", hint=hint)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and F32.holds(value)):
            raise UsageError("a scalar is a finite number that fits float32", received=f"{name}={text}")
        if name in labels and not value.is_integer():
            rule = f"the scalar '{name}' is a whole number: labels are held to it"
            raise UsageError(rule, received=f"{name}={text}")
        if not spec.allows(name, value):
            ranges = ", ".join(f"{low:g} to {high:g}" for low, high in dict(spec.scalar_ranges)[name])
            raise UsageError("a scalar lies in a range of its spec", received=f"{name}={text}", hint=ranges)
        found[name] = value
    return found
