"""Random specs that the reader accepts or refuses, and a random question about each; the same draw, the same spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from normgen.device import TARGETS, Device
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.default import default_schedule
from normgen.schedule.knobs import KNOBS
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.functions import CONDITIONS, ELEMENTWISE, POSITIONS, REDUCTIONS
from normgen.spec.reader import parse
from tests.codegen.in_place import pairs_of

H200 = TARGETS["h200"]
GROUP = 8
BATCHED = 3  # one of so many specs that read b has another b for each batch
NUMBERS = ("0", "1", "2", "3", "0.5", "0.1", "1e-5", "1e30", "1e-30", "-1", "-2.5", "7", "cols", "col", "row", "inf")
INDICES = ("0", "2", "-1", "row", "row % cols", "argmax(x)", "argmin(x)", "floor(mean(abs(x)))", "300")
EXPONENTS = ("2", "3", "-1", "-2", "0.5", "-0.5", "5", "1.5", "-1.5", "1", "0", "-5", "0.3", "(-1/3)")
UNARY = tuple(name for name, function in ELEMENTWISE.items() if function.takes == 1)
BINARY = tuple(name for name, function in ELEMENTWISE.items() if function.takes == 2)
COMPARISONS = tuple(name for name, function in CONDITIONS.items() if name not in ("and", "or", "not"))
COLS = (1, 2, 3, 8, 33, 64, 96, 256)
SCHEDULE_TRIES = 40
_WORD = re.compile(r"[a-z]\w*")


@dataclass(frozen=True)
class Asked:
    """A spec as text, and what is asked of it."""

    text: str
    cols: int
    dtype: str
    direction: str
    seed: int  # of the schedule

    def problem(self) -> Problem:
        """Raises NormgenError for what the reader or the compiler refuses."""
        spec = parse(self.text, file="fuzz.toml")
        plain = {"shape": (24, self.cols), "dtype": self.dtype, "direction": self.direction}
        if any(t.kind.by_batch for t in spec.tensors):
            others = [t.name for t in spec.tensors if not (t.role.is_written or t.kind.by_batch)]
            return problem_for(spec, **plain, batches=4, gradients=others if self.direction == "backward" else None)
        problem = problem_for(spec, **plain)
        if self.seed % 4:
            return problem
        question = replace(problem.question, in_place=tuple(pairs_of(problem).items()))
        return problem_for(spec, **question.arguments())

    def schedules(self, problem: Problem, device: Device = H200) -> list[Schedule]:
        """The default one, and another legal one where a few random points have one."""
        rng, found = Random(self.seed), [default_schedule(problem, device)]
        for _ in range(SCHEDULE_TRIES):
            point = Schedule(**{name: rng.choice(knob.values) for name, knob in KNOBS.items()})
            if refusal(problem, point, device) is None:
                return [*found, point]
        return found

    def __str__(self) -> str:
        return f"{self.text}# {self.cols} cols, {self.dtype}, {self.direction}, schedule seed {self.seed}\n"


def draw(rng: Random) -> Asked:
    """A spec of a few formulas over an input, parameters and scalars; most are legal."""
    names, formulas = ["x", "x", "w", "b", "z", "eps"], dict[str, str]()
    for number in range(rng.randint(0, 3)):
        name = rng.choice((f"v{number}", f"m{number}"))
        tree = _expression(rng, names, rng.randint(1, 3))
        if name.startswith("m"):
            tree = tree if _reads_x({**formulas, name: tree}, name) else f"x - {tree}"
            tree = f"{rng.choice((*REDUCTIONS, *POSITIONS))}({tree})"
        formulas[name] = tree
        names += [name, name]
    formulas["y"] = _expression(rng, names, rng.randint(1, 4))
    formulas = {name: text for name, text in formulas.items() if name == "y" or _uses(name, formulas, "y")}
    if not _reads_x(formulas, "y"):
        formulas["y"] = f"(x {rng.choice('+-*/')} {formulas['y']})"
    words = {word for text in formulas.values() for word in _WORD.findall(text)}
    lines = ['name = "fuzz"', "[tensors]", 'x = "input"']
    lines += ['z = { role = "input", optional = true, absent = "0" }'] if "z" in words else []
    lines += ['w = { role = "parameter", optional = true, absent = "1" }'] if "w" in words else []
    lines += ['b = "parameter"'] if "b" in words else []
    lines += ['seed = "seed"'] if "seed" in words else []
    lines += [f'{name} = "statistic"' for name in formulas if name.startswith("m") and rng.random() < 0.3]
    lines += ['y = "output"']
    lines += ["[scalars]", f"eps = {rng.choice(('1e-5', '1.5', '0', '-2.0', '3e4'))}"] if "eps" in words else []
    lines += ["[formulas]", *(f'{name} = "{text}"' for name, text in formulas.items())]
    direction = "backward" if rng.random() < 0.4 else "forward"
    dtype = rng.choice(("f32", "f32", "bf16", "f16"))
    cols, seed = rng.choice(COLS), rng.randrange(1 << 30)
    text = "\n".join(lines) + "\n"
    text = text.replace('b = "parameter"', 'b = "batch_parameter"') if seed % BATCHED == 0 else text
    return Asked(text, cols, dtype, direction, seed)


def _expression(rng: Random, names: Sequence[str], depth: int) -> str:
    """Brackets around everything or, as people write, left to the precedence of the operators."""
    if rng.random() < 0.02:
        return "random(seed)"
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(NUMBERS) if rng.random() < 0.2 else rng.choice(names)

    def part() -> str:
        return _expression(rng, names, depth - 1)

    kind = rng.random()
    if kind < 0.5:
        left, right = part(), part()
        right = left if rng.random() < 0.08 else right  # what algebra would fold
        text = f"{left} {rng.choice('+-*/')} {right}"
        return text if rng.random() < 0.2 else f"({text})"
    if kind < 0.58:
        return f"({part()})**{rng.choice(EXPONENTS)}"
    if kind < 0.74:
        return f"{rng.choice(UNARY)}({part()})"
    if kind < 0.8:
        return f"{rng.choice(BINARY)}({part()}, {part()})"
    if kind < 0.86:
        return f"where({_condition(rng, part)}, {part()}, {part()})"
    if kind < 0.88:
        return f"clamp({part()}, {part()}, {part()})" if rng.random() < 0.5 else f"({_condition(rng, part)})"
    if kind < 0.9:
        return f"cast({part()}, {rng.choice(('x', 'bf16', 'f16', 'f32', 'f8e4m3'))})"
    if kind < 0.92:
        return f"{rng.choice(tuple(POSITIONS))}({part()})"
    if kind < 0.93:
        return f"take({part()}, {rng.choice(INDICES)})"
    if kind < 0.97:
        return f"{rng.choice(tuple(REDUCTIONS))}({part()}{f', {GROUP}' if rng.random() < 0.2 else ''})"
    return f"-{part()}"


def _condition(rng: Random, part: Callable[[], str]) -> str:
    kind = rng.random()
    if kind < 0.6:
        return f"{part()} {rng.choice(COMPARISONS)} {part()}"
    if kind < 0.8:
        return rng.choice(("col < 4", "col <= row % cols", "row % 3 == col % 3", "col + 2 > cols", "row != 1"))
    return f"not {part()}" if kind < 0.85 else f"{part()} > 0 {rng.choice(('and', 'or'))} {part()} != 1"


def _reads_x(formulas: dict[str, str], name: str) -> bool:
    return _uses("x", formulas, name)


def _uses(name: str, formulas: dict[str, str], root: str) -> bool:
    """Whether the formula of `root` needs `name`, directly or through others."""
    words = set(_WORD.findall(formulas[root]))
    return name in words or any(_uses(name, formulas, other) for other in words & formulas.keys() - {root})
