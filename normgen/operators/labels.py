"""What a loss is told of its labels beside them, judged as its caller wrote it: a kernel gets it rounded to float32."""

from __future__ import annotations

import operator
from typing import Any

from normgen.errors import UsageError
from normgen.python.arguments import is_truth

_HELD = 1 << 24  # float32 holds every whole number up to it


def ignore_index_of(value: Any) -> int:
    """The label that does not count. Raises UsageError for what no label is, and for what float32 does not hold."""
    if type(value) is int and -_HELD <= value <= _HELD:
        return value
    rule = "ignore_index is a whole number of 64 bits that float32 holds exactly"
    hint = f"it holds all of them up to {_HELD}; torch's default is -100"
    if is_truth(value):
        raise UsageError(rule, received=repr(value), hint=hint)
    if isinstance(value, int):
        index = value
    else:
        try:
            index = operator.index(value)
        except TypeError:
            raise UsageError(rule, received=repr(value), hint=hint) from None
    if not -_HELD <= index <= _HELD:
        step = 1 << abs(index).bit_length() - 24  # from one number of float32 to the next
        if index % step or not -(1 << 63) <= index < 1 << 63:
            raise UsageError(rule, received=repr(value), hint=hint)
    return index


def label_smoothing_of(value: Any) -> float:
    """The share of a label that all columns have. Raises UsageError for what is none from 0 to 1, NaN too."""
    if type(value) is float and 0 <= value <= 1:
        return value
    rule = "label_smoothing is a number from 0 to 1"
    if isinstance(value, bool | str):
        raise UsageError(rule, received=repr(value))
    try:
        share = float(value)
    except (TypeError, ValueError):
        raise UsageError(rule, received=repr(value)) from None
    if not 0 <= share <= 1:
        raise UsageError(rule, received=repr(value))
    return share
