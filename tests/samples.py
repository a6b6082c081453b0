"""How large the samples of long tests are: small in a normal run, whole by `pytest --full`."""

from __future__ import annotations

import os

VARIABLE = "NORMGEN_TESTS"
# The operations whose kernels the long tests draw over all knobs and layouts: together they use every technique of
# the emitter. The others that ship are formulas over the same techniques, and have their own tests in tests/family.
CORE = ("layernorm", "log_softmax", "rmsnorm", "row_max_sum", "row_sum", "softmax")


def is_full() -> bool:
    return os.environ.get(VARIABLE) == "full"


def take_whole() -> None:
    """From here on, for this process and those that it starts: before a test module is imported."""
    os.environ[VARIABLE] = "full"


def sized(normal: int, whole: int) -> int:
    return whole if is_full() else normal
