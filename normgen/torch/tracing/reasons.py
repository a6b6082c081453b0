"""Why a function is not traced, in its author's words: the operation that was called, the reason, the way out."""

from __future__ import annotations

import math
from typing import Any

import torch

_LARGEST = 2.0**127  # of the language's constants

CALLED = "normgen_called"  # in a node's notes: the function that its author called

DRAWS = (
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu"),
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli"),
    *("native_dropout", "gumbel_softmax", "normal", "uniform", "exponential", "poisson", "multinomial"),
)
_SHAPES = ("view", "reshape", "unflatten", "expand", "view_as", "reshape_as", "unfold", "pixel_shuffle")
_PARTS = ("chunk", "split", "split_with_sizes", "tensor_split", "unbind", "narrow", "unsafe_chunk", "unsafe_split")
_NORMS = ("group_norm", "batch_norm", "instance_norm", "native_batch_norm", "local_response_norm")
_ACROSS = (*_NORMS, "conv1d", "conv2d", "conv3d", "avg_pool1d", "max_pool1d")

_CUT = "cut outside, where a part of a row is a tensor whose rows lie a pitch apart: f(*x.chunk(2, -1))"
_HEADS = "pass heads as an axis of their own, [.., heads, cols]; groups of columns are said in a spec: absmax(x, 128)"
_LAST = "a row is the last axis: give another one as the last, x.movedim(1, -1), and move it back outside"
_OUTSIDE = "rows are multiplied by a matrix that is an argument, x @ w; another product stays outside"
_WITHOUT = "call eval() first, or write a spec for normgen.torch.operator, where random numbers come from random(seed)"
_MASK = "pass a mask, or what else has sizes of its own, as an argument"
_PAIRS = "all pairs of columns are a product of matrices, or are made outside"
BETWEEN = "leave it outside: fuse what stands before it and what stands behind it, each as a function of its own"

PART_WRITTEN = "x[..] = .."
OF_ROWS = "it is not rows times a matrix"
OF_PRODUCT = "it takes what another product gave"
WHOLE_ROW = "it goes along the columns that a product gave, of which no kernel has a whole row"
OF_NUMBER = "a function that is traced does not ask for the number of rows"
READS = ("numpy", "tolist", "item", "data_ptr")  # take what is in a tensor out of torch
TWICE = "it sets rows beside rows, or columns beside columns, and a kernel has each of them once"
NO_NUMBER = "the number of rows is no part of a formula"
NO_VALUE = "what is in a tensor is no part of a formula"
NO_DATA = "a function that is traced does not ask what is in a tensor"
BEYOND = "a constant of a formula is below 1.7e38"
_BY_NAME = {
    "cat": "pass its parts as tensors of their own",
    "take_along_dim": "take one element of each row with torch.gather",
    PART_WRITTEN: "choose with torch.where(torch.arange(x.shape[-1]) == 0, 0, x)",
    **dict.fromkeys(("cuda", "cpu", "to"), "move tensors to another device outside"),
    "grad": "both directions follow from the function: give back what stands in front of torch.autograd.grad",
    **dict.fromkeys(
        ("scatter", "scatter_", "index_fill", "index_fill_"),
        "choose with torch.where(torch.arange(x.shape[-1]) == label[:, None], value, x)",
    ),
    "stack": "pass its parts as tensors of their own",
    "index": "take one element of each row with torch.gather",
    "x[..]": "take one element of each row with torch.gather",
    **dict.fromkeys(_PARTS, _CUT),
    **dict.fromkeys(("mm", "addmm", "bmm", "matmul", "linear", "einsum", "scaled_dot_product_attention"), _OUTSIDE),
    **dict.fromkeys(("tril", "triu"), "compare numbers: torch.arange(cols) <= a number of each row; or pass the mask"),
    **dict.fromkeys(_NORMS, _LAST),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "logcumsumexp", "sort", "argsort", "flip", "roll"), BETWEEN),
}
_BY_REASON = {
    OF_ROWS: _OUTSIDE,
    OF_PRODUCT: "trace each product, and what stands around it, as a function of its own",
    WHOLE_ROW: "give the product back, and reduce its rows in a function of its own",
    "it takes a part of the rows or columns": _CUT,
    "it cuts rows or columns into parts": _HEADS,
    "it repeats rows or columns": _MASK,
    "it goes over rows, not along the columns of each": _LAST,
    TWICE: _PAIRS,
    "arithmetic is that of float32, not of float64": "take the double() out: float32 is what every operation runs in",
    NO_NUMBER: "pass it as a tensor of one number, or multiply outside",
    NO_VALUE: "keep it a tensor: x.max() for x.max().item()",
    BEYOND: "say a smaller one, as in torch.nan_to_num(x, posinf=1e38, neginf=-1e38)",
    "NaN is no constant of a formula": "write its formula out, without the branch for NaN",
}


def why_no_constant(value: float) -> str:
    """Why a number cannot stand in a formula; nothing of one that can."""
    if math.isnan(value):
        return "NaN is no constant of a formula"
    return BEYOND if _LARGEST < abs(value) < math.inf else ""


def called(node: Any) -> str:
    """The name of its operation, without overload."""
    target = node.target
    found = target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else target.__name__
    return str(found)


def name_of_call(function: Any) -> str:
    """What its author called: `chunk`, `x[..]`; nothing of an attribute such as x.T."""
    name = str(getattr(function, "__name__", "")).strip("_")
    return {"get": "", "set": "", "getitem": "x[..]", "setitem": PART_WRITTEN}.get(name, name)


def title(node: Any) -> str:
    """The operation of a node, as its author called it, or as torch does."""
    return str((node.meta.get("custom") or {}).get(CALLED) or called(node).strip("_"))


def hint_for(name: str, reason: str = "") -> str | None:
    """The way out for an operation that is refused for a reason."""
    return _BY_REASON.get(reason) or _BY_NAME.get(name)


def unknown(name: str) -> tuple[str, str | None]:
    """The rule and the hint of an operation that the language does not have."""
    if name in DRAWS:
        return f"'{name}' draws random numbers, and a function that is traced draws none", _WITHOUT
    if name in _PARTS:
        return f"'{name}' takes parts of rows, and a function that is traced takes whole ones", _CUT
    return f"'{name}' is not row-wise, or not in the language", hint_for(name) or BETWEEN


def untraceable(name: str) -> tuple[str, str | None]:
    """The rule and the hint where torch itself refuses an operation on rows and columns of any number."""
    if name in DRAWS or name in _ACROSS:
        return unknown(name)
    if name in READS:
        return NO_DATA, BETWEEN
    if name in _SHAPES:
        rule = f"'{name}' is given numbers for sizes that a function that is traced leaves open"
        return rule, f"take the sizes of rows from x.shape; {_HEADS}"
    rule = f"'{name or 'an operation'}' does not take these tensors when their rows, and columns, may be any number"
    return rule, hint_for(name) or _MASK
