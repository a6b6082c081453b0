"""The samplers that a search can be given, by name; nothing of Optuna is loaded here."""

from __future__ import annotations

import importlib.util

from normgen.errors import UsageError, did_you_mean

SAMPLERS = ("normgen", "tpe", "gp", "random")
_GP_NEEDS = ("scipy", "torch")


def require_sampler(name: str) -> None:
    """Raises UsageError for a name that is none of SAMPLERS, or where a library that Optuna's needs is missing."""
    if name not in SAMPLERS:
        hint = did_you_mean(name, SAMPLERS) or ", ".join(SAMPLERS)
        raise UsageError("there is no such sampler", received=name, hint=hint)
    lacking = [library for library in _GP_NEEDS if importlib.util.find_spec(library) is None]
    if name == "gp" and lacking:
        rule = f"the sampler gp is Optuna's GPSampler, which needs {' and '.join(_GP_NEEDS)}"
        raise UsageError(rule, received=f"no {', no '.join(lacking)}", hint=f"pip install {' '.join(lacking)}")
