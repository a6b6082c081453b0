"""Specs of products at random: what stands in the sides, beside the sums and behind them, of all kinds."""

from __future__ import annotations

import random
import re

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
