"""Row problems drawn at random by a fixed seed: the same list for ever, so that what was timed keeps its number."""

from __future__ import annotations

import random
from collections.abc import Callable

SEED = 20261127
COUNT = 220
FEWEST, MOST = 2**12, 2**27  # elements
ALIGNED = 8  # cols are a multiple of it, but of odd rows
BOTH = (
    "layernorm", "rmsnorm", "softmax", "add_rmsnorm", "add_layernorm", "log_softmax", "swiglu", "geglu", "gate_rmsnorm",
    "dyt",
)  # fmt: skip
FORWARD = (
    "layernorm", "rmsnorm", "softmax", "add_rmsnorm", "add_layernorm", "log_softmax", "cross_entropy", "swiglu",
    "geglu", "rmsnorm_to_fp8", "rmsnorm_to_fp8_token", "rmsnorm_to_fp8_group", "add_rmsnorm_to_fp8_group",
    "silu_mul_to_fp8_group", "quantize_to_fp8_token", "layernorm_to_int8", "rmsnorm_to_mxfp4", "gate_rmsnorm", "dyt",
    "kl_div", "row_sum", "causal_softmax",
)  # fmt: skip
WIDTHS = (768, 1024, 1536, 2048, 2560, 2880, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 14336, 16384)  # of models
GROUP = 128  # cols that share a scale, at most
FEW = 64  # rows at most; a causal square has as many at least
DTYPES = ("bf16", "bf16", "bf16", "f32", "f16")


def problems(count: int = COUNT, seed: int = SEED) -> list[dict[str, str]]:
    """The first `count` problems, each as `tune` is asked for it: op, shape, dtype, and direction where backward."""
    draw, found = random.Random(seed), list[dict[str, str]]()
    while len(found) < count:
        backward = draw.random() < 0.4
        op = draw.choice(BOTH if backward else FORWARD)
        rows, cols = draw.choice(_KINDS)(draw)
        if "group" in op or "mxfp4" in op:
            cols = max(GROUP, cols // GROUP * GROUP)
        if op == "causal_softmax":
            rows = max(rows, FEW)
        if FEWEST <= rows * cols <= MOST:
            asked = {"op": op, "shape": f"{rows}x{cols}", "dtype": draw.choice(DTYPES)}
            found.append(asked | ({"direction": "backward"} if backward else {}))
    return found


Kind = Callable[[random.Random], tuple[int, int]]


def _octaves(draw: random.Random, low: int, high: int) -> int:
    """A number between two powers of two, every octave alike."""
    return int(2 ** draw.uniform(low, high))


def _few(draw: random.Random) -> tuple[int, int]:
    return draw.randint(1, FEW), ALIGNED * _octaves(draw, 4, 12)


def _many(draw: random.Random) -> tuple[int, int]:
    return _octaves(draw, 8, 16), ALIGNED * _octaves(draw, 2, 11)


def _model(draw: random.Random) -> tuple[int, int]:
    return 2 ** draw.randint(4, 14), draw.choice(WIDTHS)


def _giant(draw: random.Random) -> tuple[int, int]:
    return draw.randint(1, FEW), ALIGNED * _octaves(draw, 13, 17)


def _odd(draw: random.Random) -> tuple[int, int]:
    return _octaves(draw, 3, 14), _octaves(draw, 5, 14) | 1


_KINDS: tuple[Kind, ...] = (_few, _many, _many, _model, _model, _giant, _odd)
