"""Random specs that the reader accepts or refuses, and a random question about each; the same draw, the same spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from normgen.choice.first import default_schedule
from normgen.device import TARGETS, Device
from normgen.knobs import KNOBS
from normgen.problem.problem import Problem, why_not_side_by_side
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.functions import CONDITIONS, ELEMENTWISE, POSITIONS, REDUCTIONS
from normgen.spec.reader import parse
from tests.codegen.in_place import pairs_of

H200 = TARGETS["h200"]
GROUP = 8
BATCHED = 3  # one of so many specs that read b has another b for each batch, or for each head
GROUPED = 4  # one of so many that read w or b has one for each group of columns, where cols are whole ones
NUMBERS = ("0", "1", "2", "3", "0.5", "0.1", "1e-5", "1e30", "1e-30", "-1", "-2.5", "7", "cols", "col", "row", "inf")
INFINITIES = ("inf", "-inf")
INDICES = ("0", "2", "-1", "row", "row % cols", "argmax(x)", "argmin(x)", "floor(mean(abs(x)))", "300", "label")
EXPONENTS = ("2", "3", "-1", "-2", "0.5", "-0.5", "5", "1.5", "-1.5", "1", "0", "-5", "0.3", "(-1/3)")
SCALAR_EXPONENTS = ("eps", "(eps - 1)")
ROLLS = ("1", "-1", "3", "-2", "cols - 1", "1 - cols", "cols / 2", "1 - cols / 2")
UNARY = tuple(name for name, function in ELEMENTWISE.items() if function.takes == 1)
BINARY = tuple(name for name, function in ELEMENTWISE.items() if function.takes == 2)
COMPARISONS = tuple(name for name, function in CONDITIONS.items() if name not in ("and", "or", "not"))
COLS = (1, 2, 3, 8, 33, 64, 96, 256)
WHOLE_GROUPS = (8, 16, 40, 64, 96, 256)
CASTS = ("x", "bf16", "f16", "f32", "f8e4m3", "f8e5m2", "f8e8m0", "i8", "u8", "i32")
QUANTISED = ("f8e4m3", "f8e5m2", "f8e8m0", "i8", "u8", "bool", "i32")
# Tensors and scalars that a formula may name, and how often a spec has them at hand.
READ = {
    "z": ('{ role = "input", optional = true, absent = "0" }', 1.0),
    "w": ('{ role = "parameter", optional = true, absent = "1" }', 1.0),
    "b": ('"parameter"', 1.0),
    "r": ('"row_input"', 0.3),
    "label": ('{ role = "row_input", dtypes = ["i64", "i32"] }', 0.2),
    "s": ('"scalar_input"', 0.2),
    "p": ('"scalar_parameter"', 0.2),
}
BESIDE = (2, 3, 8, 12, 24)  # rows side by side, of 24
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
    more: Mapping[str, Any] = field(default_factory=dict)  # of the question

    def problem(self) -> Problem:
        """Raises NormgenError for what the reader or the compiler refuses."""
        spec = parse(self.text, file="fuzz.toml")
        plain = {"shape": (24, self.cols), "dtype": self.dtype, "direction": self.direction, **self.more}
        if any(t.kind.by_batch for t in spec.tensors):
            others = [t.name for t in spec.tensors if t.has_gradient and not (t.role.is_written or t.kind.by_batch)]
            plain |= {"batches": 4} | ({"gradients": others} if self.direction == "backward" else {})
            return problem_for(spec, **plain)
        problem = problem_for(spec, **plain)
        if self.seed % 6 == 5 and not why_not_side_by_side(spec, problem.tensors):
            problem = problem_for(spec, **plain, col_stride=BESIDE[self.seed // 6 % len(BESIDE)])
        if self.seed % 4:
            return problem
        return problem_for(spec, **problem.arguments() | {"in_place": pairs_of(problem)})

    def schedules(self, problem: Problem, device: Device = H200) -> list[Schedule]:
        """The default one, and another legal one where a few random points have one."""
        rng, found = Random(self.seed), [default_schedule(problem, device)]
        for _ in range(SCHEDULE_TRIES):
            point = Schedule(**{name: rng.choice(knob.values) for name, knob in KNOBS.items()})
            if refusal(problem, point, device) is None:
                return [*found, point]
        return found

    def kept(self) -> dict[str, Any]:
        return {"asked": {name: value for name, value in asdict(self).items() if name != "text"}}

    def __str__(self) -> str:
        return (
            f"{self.text}# {self.cols} cols, {self.dtype}, {self.direction}, {self.more}, schedule seed {self.seed}\n"
        )


def draw(rng: Random) -> Asked:
    """A spec of a few formulas over inputs, parameters and scalars; most are legal."""
    groups = 0.25 if rng.random() < 0.3 else 0.03  # how often a reduction runs over groups
    pen = _Pen(rng, ["x", "x", "eps", *(name for name, (_, share) in READ.items() if rng.random() < share)], groups)
    formulas = dict[str, str]()
    for number in range(rng.randint(0, 3)):
        name = rng.choice((f"v{number}", f"m{number}", f"g{number}" if rng.random() < 4 * groups else f"v{number}"))
        tree = pen.expression(rng.randint(1, 3))
        if name[0] in "mg":
            tree = tree if _reads_x({**formulas, name: tree}, name) else f"x - {tree}"
            tree = f"{rng.choice((*REDUCTIONS, *POSITIONS))}({tree})" if name[0] == "m" else pen.over_groups(tree)
        formulas[name] = tree
        pen.names += [name, name]
    formulas["y"] = pen.expression(rng.randint(1, 4))
    if not _reads_x(formulas, "y"):
        formulas["y"] = f"(x {rng.choice('+-*/')} {formulas['y']})"
    if rng.random() < 0.08:
        formulas["t"] = f"total({pen.expression(2)})"
    written = {"y": "output", "t": "scalar_output"} | _written(rng, formulas)
    roots = [name for name in written if name in formulas]
    formulas = {name: text for name, text in formulas.items() if any(_uses(name, formulas, root) for root in roots)}
    words = {word for text in formulas.values() for word in _WORD.findall(text)}
    direction = "backward" if rng.random() < 0.45 else "forward"
    lines = ['name = "fuzz"', "[tensors]", 'x = "input"']
    lines += [f"{name} = {role}" for name, (role, _) in READ.items() if name in words]
    lines += ['seed = "seed"'] if "seed" in words else []
    lines += [f'{name} = "{role}"' for name, role in written.items() if name in formulas and name != "y"]
    stored = rng.choice(QUANTISED) if rng.random() < (0.2 if direction == "forward" else 0.05) else ""
    lines += [f'y = {{ role = "output", dtypes = ["{stored}"] }}' if stored else 'y = "output"']
    lines += ["[scalars]", f"eps = {rng.choice(('1e-5', '1.5', '0', '-2.0', '3e4'))}"] if "eps" in words else []
    lines += ["[formulas]", *(f'{name} = "{text}"' for name, text in formulas.items())]
    saved = [name for name, role in written.items() if role in ("statistic", "output") and name in formulas]
    lines += ["[backward]", f"saved = {[rng.choice(saved)]}".replace("'", '"')] if rng.random() < 0.2 else []
    dtype = rng.choice(("f32", "f32", "bf16", "f16"))
    has_groups = any(f", {GROUP})" in text for text in formulas.values())
    cols, seed = rng.choice(WHOLE_GROUPS if has_groups else COLS), rng.randrange(1 << 30)
    text = "\n".join(lines) + "\n"
    shared = ("batch_parameter", "head_parameter")[seed // BATCHED % 2]
    text = text.replace('b = "parameter"', f'b = "{shared}"') if seed % BATCHED == 0 else text
    group = rng.choice([size for size in (1, 2, 3, GROUP, 11, cols) if cols % size == 0])
    if seed // 16 % GROUPED == 0:
        text = re.sub(r'^(b) = ("\w+parameter")$', rf"\1 = {{ role = \2, group = {group} }}", text, flags=re.MULTILINE)
    elif seed // 16 % GROUPED == 1:
        text = re.sub(r'^(w = \{ role = "parameter")', rf"\1, group = {group}", text, flags=re.MULTILINE)
    more = _promises(rng, direction, cols) if rng.random() < 0.4 else {}
    absent = [name for name in ("z", "w") if f"\n{name} = " in text and rng.random() < 0.2]
    return Asked(text, cols, dtype, direction, seed, more | ({"without": absent} if absent else {}))


def _written(rng: Random, formulas: Mapping[str, str]) -> dict[str, str]:
    """The roles of those formulas that are stored besides y."""
    chances = {
        "v": (("output", 0.15),),
        "m": (("statistic", 0.3), ("row_output", 0.2)),
        "g": (("group_statistic", 0.5),),
    }
    found = {}
    for name in formulas:
        for role, chance in chances.get(name[0], ()):
            if rng.random() < chance:
                found[name] = role
    return found


def _promises(rng: Random, direction: str, cols: int) -> dict[str, Any]:
    """One or two things that a question says besides its shape."""
    known: dict[str, Any] = {
        "pitch": cols + rng.choice((3, 8)),
        "any_cols": True,
        "batch_invariant": True,
        "stable_parameters": True,
        "dtypes": {"y": rng.choice(("f32", "bf16", "f16"))},
    }
    known |= {"deterministic": True, "accumulate": True, "gradients": ["x"]} if direction == "backward" else {}
    return {name: known[name] for name in rng.sample(sorted(known), rng.randint(1, 2))}


@dataclass
class _Pen:
    """Writes expressions over names, a reduction in so many over groups of columns."""

    rng: Random
    names: list[str]
    groups: float

    def over_groups(self, tree: str) -> str:
        return f"{self.rng.choice(tuple(REDUCTIONS))}({tree}, {GROUP})"

    def expression(self, depth: int) -> str:
        """Brackets around everything or, as people write, left to the precedence of the operators."""
        rng = self.rng
        if rng.random() < 0.02:
            return "random(seed)"
        if depth == 0 or rng.random() < 0.1:
            return rng.choice(NUMBERS) if rng.random() < 0.2 else rng.choice(self.names)

        def part() -> str:
            return self.expression(depth - 1)

        kind = rng.random()
        if kind < 0.03:
            return self.pattern(self.by_row(part()))
        if kind < 0.46:
            left, right = part(), part()
            right = left if rng.random() < 0.08 else right  # what algebra would fold
            text = f"{left} {rng.choice('+-*/')} {right}"
            return text if rng.random() < 0.2 else f"({text})"
        if kind < 0.53:
            return f"({part()})**{rng.choice(EXPONENTS if rng.random() < 0.9 else SCALAR_EXPONENTS)}"
        if kind < 0.68:
            return f"{rng.choice(UNARY)}({part()})"
        if kind < 0.74:
            return f"{rng.choice(BINARY)}({part()}, {part()})"
        if kind < 0.82:
            other = rng.choice(INFINITIES) if rng.random() < 0.25 else part()
            branches = [part(), other] if rng.random() < 0.5 else [other, part()]
            return f"where({self.condition(part)}, {', '.join(branches)})"
        if kind < 0.85:
            return f"clamp({part()}, {part()}, {part()})" if rng.random() < 0.5 else f"({self.condition(part)})"
        if kind < 0.88:
            return f"cast({part()}, {rng.choice(CASTS)})"
        if kind < 0.9:
            return f"{rng.choice(tuple(POSITIONS))}({self.by_row(part())})"
        if kind < 0.92:
            index = rng.choice(INDICES)
            return f"take({self.by_row(part())}, {index if index != 'label' or 'label' in self.names else 'row'})"
        if kind < 0.97:
            inner = self.by_row(part())
            is_grouped = rng.random() < self.groups
            return self.over_groups(inner) if is_grouped else f"{rng.choice(tuple(REDUCTIONS))}({inner})"
        if kind < 0.985:
            return f"roll({self.by_row(part())}, {rng.choice(ROLLS)})"
        return f"-{part()}"

    def pattern(self, e: str) -> str:
        """What rewrites look for: a variance, the parts of a softmax, a root mean square."""
        known = (
            "mean(({e} - mean({e}))**2)",
            "sum(exp({e} - max({e})))",
            "exp({e} - max({e}))",
            "rsqrt(mean({e} * {e}) + 1)",
        )
        return self.rng.choice(known).format(e=e)

    def by_row(self, tree: str) -> str:
        """What a reduction may take: it has a value for each element, or a formula that may have one."""
        return tree if re.search(r"\b(x|z|v\d|random)\b", tree) else f"({self.rng.choice(('x', 'x', 'z'))} * {tree})"

    def condition(self, part: Callable[[], str]) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.55:
            return f"{part()} {rng.choice(COMPARISONS)} {part()}"
        if kind < 0.65:
            return f"{part()} {rng.choice(COMPARISONS)} {rng.choice(INFINITIES)}"
        if kind < 0.8:
            return rng.choice(("col < 4", "col <= row % cols", "row % 3 == col % 3", "col + 2 > cols", "row != 1"))
        return f"not {part()}" if kind < 0.85 else f"{part()} > 0 {rng.choice(('and', 'or'))} {part()} != 1"


def _reads_x(formulas: dict[str, str], name: str) -> bool:
    return _uses("x", formulas, name)


def _uses(name: str, formulas: dict[str, str], root: str) -> bool:
    """Whether the formula of `root` is that of `name` or needs it, directly or through others."""
    if name == root:
        return True
    words = set(_WORD.findall(formulas[root]))
    return name in words or any(_uses(name, formulas, other) for other in words & formulas.keys() - {root})
