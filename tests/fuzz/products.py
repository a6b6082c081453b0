"""Specs of products at random: what stands in the sides, beside the sums and behind them, of all kinds."""

from __future__ import annotations

import random
import re
from typing import Any

from normgen.device import target
from normgen.errors import NormgenError
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import schedule_from
from normgen.spec.reader import load, parse
from tests.fuzz.exact import Exact

H200 = target("h200")
TRIES = 200  # of knobs, one in five of which is legal
GENERAL = 0.6  # share of the draws whose cols and inner are run-time values
CUTS = {"tile_m": (16, 32), "tile_n": (16, 32), "tile_k": (8, 16), "thread_m": (1, 2, 4, 8), "thread_n": (1, 2, 4, 8)}
WAYS: dict[str, tuple[Any, ...]] = {"hold": ("shared", "reload"), "copy": ("direct", "cp_async"), "stages": (1, 2, 3)}
WAYS |= {"vector": (1, 2, 4), "softmax": ("two_pass", "online")}
TENSORS = {
    "x": '{ role = "input", axes = ["rows", "inner"] }',
    "z": '{ role = "input", axes = ["rows", "inner"] }',
    "w": '{{ role = "parameter", axes = {} }}',
    "v": '{{ role = "parameter", axes = {} }}',
    "gain": '{ role = "parameter", axes = ["inner"], optional = true, absent = "1" }',
    "scale": '"row_input"',
    "bias": '"parameter"',
    "res": '"input"',
    "alpha": '"scalar_input"',
}
ORDERS = ('["inner", "cols"]', '["cols", "inner"]')
AROUND = ("exp({})", "tanh({})", "sigmoid({})", "abs({})", "maximum({}, 0)", "({0}) * ({0})", "sqrt(abs({}) + 0.5)")
AROUND += ("-({})", "(({}) + 0.3)")
LEFT = (
    "x",
    "where(term % 3 <= row % inner, x, 0)",
    "x * gain",
    "x * z",
    "x * scale",
    "x + scale",
    "gain * x * 0.5",
    "x / (abs(gain) + 1)",
)
RIGHT = ("w", "where(term == col % 5, w, 1)", "v", "w * gain", "w * bias", "w + v")


class Draw:
    """One spec's text, from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def around(self, inside: str, chance: float) -> str:
        """The expression within a few functions."""
        while self.rng.random() < chance:
            inside, chance = f"({self.rng.choice(AROUND).format(inside)})", 0.6 * chance
        return inside

    def text(self) -> str:
        rng = self.rng
        formulas: list[tuple[str, str]] = []
        if has_row_value := rng.random() < 0.6:
            reduced = self.around(rng.choice(("x", "x * x", "x * gain", "z")), 0.4)
            formulas.append(("s", f"{rng.choice(('sum', 'mean', 'max', 'min', 'absmax'))}({reduced})"))
        left = LEFT + (("x * s",) if has_row_value else ())
        products = [f"p{number}" for number in range(rng.choice((1, 1, 2, 3)))]
        for name in products:
            sides = [self.around(rng.choice(side), 0.4) for side in (left, RIGHT)]
            formulas.append((name, "({}) @ ({})".format(*sides)))
        others = ["bias", "res", "scale", "alpha", *(["s"] if has_row_value else [])]
        terms = [self.around(name, 0.5) for name in products]
        terms += [self.around(name, 0.2) for name in rng.sample(others, rng.randint(0, 3))]
        result = terms[0]
        for term in terms[1:]:
            result = f"({result}) {rng.choice('+*-')} ({term})"
        formulas.append(("y", result))
        read = set(re.findall(r"[a-z]+[0-9]*", " ".join(text for _, text in formulas)))
        lines = [
            f"{name} = {said.format(rng.choice(ORDERS))}" if name in "wv" else f"{name} = {said}"
            for name, said in TENSORS.items()
            if name in read
        ]
        if has_row_value and rng.random() < 0.6:
            lines.append(f's = "{rng.choice(("row_output", "statistic"))}"')
        said = [f'{name} = "{text}"' for name, text in formulas]
        return "\n".join(['name = "drawn"', "[tensors]", *lines, 'y = "output"', "[formulas]", *said])


# Specs by name: a product alone, two of one side, a norm in front, a residual behind, a map in front.
KNOWN = ("linear", "linear_swiglu", "rmsnorm_linear", "linear_add", "linear_add_rms", "softmax_v", "bmm")
SILU = """name = "drawn"
[tensors]
x = { role = "input", axes = ["rows", "inner"] }
w = { role = "parameter", axes = ["inner", "cols"] }
y = "output"
[formulas]
y = "x * sigmoid(x) @ w"
"""


def draw_product(rng: random.Random) -> Exact:
    """A spec, and one legal schedule of small tiles, which the check calls at sizes around these."""
    return with_tiles(Draw(rng.randrange(2**32)).text(), rng)


def known_products(rng: random.Random) -> dict[str, Exact]:
    texts = {name: load(name).text for name in KNOWN} | {"silu": SILU}
    return {name: with_tiles(text, rng) for name, text in texts.items()}


def with_tiles(text: str, rng: random.Random) -> Exact:
    """With random sizes around those of the tiles, where the spec has a problem at all."""
    question: dict[str, Any] = {}
    for _ in range(TRIES):
        knobs = {name: rng.choice(values) for name, values in (CUTS | WAYS).items()}
        rows, cols, inner = (_around(rng, knobs[f"tile_{axis}"]) for axis in "mnk")
        dtype, any_cols = rng.choice(("f32", "f32", "bf16", "f16")), rng.random() < GENERAL
        question = {"shape": f"{rows}x{cols}", "inner": inner, "dtype": dtype, "any_cols": any_cols}
        try:
            problem = problem_for(parse(text), **question)
            if refusal(problem, schedule_from(knobs), H200) is None:
                return Exact(text, question, [knobs])
        except NormgenError:
            break  # refused: the step says with which words
    return Exact(text, question, [])


def _around(rng: random.Random, tile: int) -> int:
    return rng.choice((1, tile - 1, tile, tile + 1, 2 * tile, 4 * rng.randint(1, 12)))
