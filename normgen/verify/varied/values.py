"""What a caller may vary beside the rows of the first input, and the values that a check gives it.

A *variation* is one value of one thing that a caller chooses. Each thing varies along the axis that costs least:

* Another input, a label and a gradient that comes in vary **by row**. A family of rows "residual zeros" has normal rows
  of the first input and zeros in `residual`; all other inputs are ordinary, so that each is alone at an extreme.
* A parameter varies **by column**: of one tensor some columns are negative, some 0, some 1 (`in_columns`); one number
  on the device varies by call, with the sign of `sign_of_call`.
* A run-time scalar varies **by call**. `combinations` covers every pair of two scalars' values, the default among them,
  in few calls: the first `FULL_VALUES` have all scalars off their defaults and every family of rows; then come small
  and large values, with rows in which they show (`spread_families`); the others are dealt out to the calls that a
  check makes anyway (`measure/calls.py`).

Nothing is varied to where the formula has no value: `families.py` drops a value of a scalar at which rows are not
finite that are so at the default, and a parameter's signs where they are not. Ranges that a spec gives are its
contract, and go before this rule. What the reference does not depend on counts as not shown (`effects.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import combinations as pairs
from itertools import combinations_with_replacement, product

import numpy as np

from normgen.dtypes import F32, DType
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse
from normgen.spec.formula import Binary, Call, Expression, Name, Number, nodes, parse_formula
from normgen.spec.functions import CONDITIONS
from normgen.spec.spec import Spec
from normgen.verify.contraction.sides import main_input
from normgen.verify.interpret import Array
from normgen.verify.varied.limits import draw_edges, limits

Draw = Callable[[np.random.Generator, int, int, DType], Array]
THIRTY = 30.0  # exp(-30) is lost beside 1 in float32, and a sigmoid or a tanh of it is 0 or 1
LOW = -2000.0  # below what callers mean by -inf: beside a number of ordinary size nothing is left of its exponential
ORDINARY = "normal"  # the family of the first input in rows where another one is at an extreme
TINY_DEFAULT = 0.01  # a default below it keeps from 0: an eps
LARGE_SCALARS = (0.1, 8.0)  # of such a scalar: what changes rows of a variance of 1, and more than their elements
HALF = 0.5  # a scale by which division is exact
SPREAD = 64.0  # times smaller, and larger: a wrong kernel may tell scalars by a threshold anywhere between
FULL_VALUES = 2  # of a scalar, that meet every family of rows
IGNORED = (0.0, -1.0, 255.0)  # labels that callers leave out beside -100: padding, no class, the last one of a byte
APART = 1 / 32  # the values of the n-th scalar are larger by n times this share: no two scalars are ever equal


def _zeros(_rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    return np.zeros((rows, cols))


def _thirties(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    signs = rng.choice([-1.0, 1.0], (rows, cols))
    return np.asarray(min(THIRTY, dtype.largest / 2) * rng.uniform(0.9, 1.1, (rows, cols)) * signs)


def _huge(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    top = min(dtype.largest, math.sqrt(F32.largest / cols) / 4) / 2
    return np.asarray(rng.uniform(0.25, 1.0, (rows, cols)) * rng.choice([-1.0, 1.0], (rows, cols)) * top)


def _zero_or_one(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    return rng.integers(0, 1, (rows, cols), endpoint=True).astype(np.float64)


def _hidden(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    found = rng.standard_normal((rows, cols))
    hidden = rng.random((rows, cols)) < rng.uniform(0.2, 0.8, (rows, 1))
    return np.where(hidden | (cols == 1), -np.inf, found)


def _low(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    return LOW + rng.uniform(-SPREAD, SPREAD, (rows, cols))


def _lowest(_rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    return np.full((rows, cols), dtype.least)


EDGES = "edges"  # drawn by `limits.draw_edges`
HIDDEN, LOWEST = "hidden", "lowest"
MASKS: dict[str, Draw] = {HIDDEN: _hidden, "low": _low, LOWEST: _lowest}  # where a formula takes a row's maximum
EXTREMES: dict[str, Draw] = {
    "zeros": _zeros,
    "thirties": _thirties,
    "huge": _huge,
    "zero_or_one": _zero_or_one,
    **MASKS,
}
EXTREMES_ARE: dict[str, str] = {
    "zeros": "all 0",
    "thirties": "of a size near 30, with either sign",
    "huge": "as large as its dtype and the sum of squares of a row in float32 allow",
    "zero_or_one": "exactly 0 or 1 in each column",
    HIDDEN: "-inf in some columns, where a formula takes the row's maximum",
    "low": "near -2000 in every column, there too",
    LOWEST: "the lowest finite number of its dtype in every column, there too, the first input being 0: no other sum "
    "with it is exact",
    EDGES: "where a formula compares, clamps or rounds it, the first input too: in half of the columns a limit itself, "
    "in others the number next to it, below and above",
}
PARAMETERS_ARE = ("as usual", "negative and of any size up to 3", "exactly 0", "exactly 1")
BEYOND_IS = "some output comes to the largest number of f16 or of 8 bits, and goes beyond"
NOT_VARIED = (
    "two inputs at an extreme in one row: each is there while the others are ordinary",
    "every pair of a scalar's value and a number of rows, a pitch or a grid: values of scalars are dealt out to calls",
    "pairs of values of three or more scalars with one another, but for those of a call",
    "a scalar to where rows are not finite that are so at its default, unless its spec gives ranges; a verdict names a "
    "scalar that has no other value, and every value on which no element depended",
    "every number of columns: a kernel of fixed columns is checked at these, one of any columns at four lengths",
    "rows in number above columns where no formula names row numbers and the columns are more than 128; rows beyond "
    "2^16 where the columns are more than 255, rows are summed, scales lie column by column, or blocks of the grid "
    "share rows",
    "an input exactly at a limit that depends on another tensor, or that it reaches through a reduction or a function",
    "a random number exactly at a constant of the formula",
    "ties between numbers of 8 bits where float32 does not hold what is stored",
    "scalars, labels and other inputs for each candidate of a tune: a candidate has one call with its scalars at their "
    "defaults and every family of rows, the winner has all calls",
)
INDICES: dict[str, Callable[[int], float]] = {
    "-1": lambda _: -1.0,
    "0": lambda _: 0.0,
    "cols-1": lambda cols: cols - 1.0,
    "cols": lambda cols: float(cols),
    "2^30": lambda _: 2.0**30,
    "2^31": lambda _: 2.0**31,
    "2^40": lambda _: 2.0**40,
    "-2^63": lambda _: -(2.0**63),
}


def extremes(problem: Problem, *, takes_maximum: bool) -> tuple[str, ...]:
    """The families of rows in which one input other than the first is at an extreme, in the order of the tensors."""
    first, found = main_input(problem), list[str]()
    for tensor in _given_by_row(problem):
        if tensor.name == first:
            kinds = []
        elif is_index(tensor):
            known = [name for name, value in INDICES.items() if _fits(tensor.dtype, value(problem.cols))]
            known = [name for name in known if name != "2^30" or "2^31" not in known]  # of 32 bits the largest
            kinds = [*known, *compared_scalars(problem.spec).get(tensor.name, ())]
        elif tensor.dtype.least >= 0:  # scales without sign or zero
            kinds = ["huge"]
        else:
            kinds = [kind for kind in EXTREMES if kind not in MASKS or (takes_maximum and not tensor.of)]
        if not tensor.dtype.is_integer and limits(problem.spec, tensor.name, dict(problem.spec.scalars)):
            kinds = [*kinds, EDGES]
        found += [f"{tensor.name} {kind}" for kind in kinds]
    return tuple(found)


def spread_families(families: Collection[str]) -> tuple[str, ...]:
    """Those of a problem's rows that tell further values of scalars: an eps in tiny ones, a limit at itself.

    A scale of the other sign shows in rows far from 0 on one side, where a maximum is a minimum; and labels are what a
    scalar says.
    """
    known = {"", *EXTREMES, *INDICES}
    own = (ORDINARY, "tiny", "large_mean")
    told = [name for name in families if name in own or name.partition(" ")[2] not in known]
    return tuple(told or families)


def _given_by_row(problem: Problem) -> Iterator[TensorUse]:
    written = {t.name for t in problem.spec.tensors if t.role.is_written}
    is_backward = problem.direction is Direction.BACKWARD
    for tensor in problem.tensors:
        is_given = not tensor.is_written and not (is_backward and tensor.name in written)
        is_row = tensor.kind.is_elem or tensor.kind.is_left or tensor.kind.is_row
        is_any = tensor.dtype.is_integer and tensor.dtype.bytes == 1  # whole numbers of 8 bits are any as they are
        if is_given and is_row and not is_any:
            yield tensor


def is_index(tensor: TensorUse) -> bool:
    """Whether its numbers are those of columns: labels."""
    return tensor.dtype.is_integer and tensor.dtype.bytes > 1


def _fits(dtype: DType, value: float) -> bool:
    return dtype.least <= value <= dtype.largest


def of_tensor(family: str) -> str:
    """The input that is at an extreme in rows of a family; "" of the first input's own families."""
    name, _, kind = family.partition(" ")
    return name if kind else ""


def beside(family: str) -> str:
    """The family of the first input in rows of a family: its own, unless another input is at an extreme."""
    kind = family.partition(" ")[2]
    return "zeros" if kind == LOWEST else ORDINARY if kind else family


def is_covered(problem: Problem, family: str) -> bool:
    """Whether the spec's accuracy contract holds in rows of a family: labels are no matter of accuracy."""
    contract = problem.spec.accuracy_rows
    if not contract or family in contract:
        return True
    name = of_tensor(family)
    return ORDINARY in contract and any(is_index(t) for t in problem.tensors if t.name == name)


def draw_extreme(
    family: str, tensor: TensorUse, problem: Problem, count: int, scalars: Mapping[str, float], rng: np.random.Generator
) -> Array:
    """`count` rows of the tensor that the family names: [count, cols], or [count, 1] of a tensor of rows."""
    cols, kind = problem.cols, family.partition(" ")[2]
    width = problem.inner if tensor.kind.by_inner else cols if tensor.kind.by_col else 1
    if kind == EDGES:
        return draw_edges(limits(problem.spec, tensor.name, scalars) or (0.0,), rng, count, width, tensor.dtype)
    if is_index(tensor):
        value = INDICES[kind](cols) if kind in INDICES else scalars[kind]
        return np.full((count, width), value)
    return EXTREMES[kind](rng, count, width, tensor.dtype)


def in_columns(values: Array, rng: np.random.Generator) -> Array:
    """A parameter with both signs, zeros and ones: of 8 columns 1 is 0, 1 is 1, 3 are negated and 3 as they were.

    Those that are negated are of any size up to 3 times what they were.
    """
    lot, size = rng.random((2, *values.shape))
    found = np.where(lot < 1 / 2, -3 * size * values, values)
    return np.where(lot < 1 / 8, 0.0, np.where(lot > 7 / 8, 1.0, found))


def as_large(size: float, shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> Array:
    """A parameter of about this size: in half of the columns within 2 % of it, in others up to 8 times off."""
    near, far = rng.uniform(0.98, 1.02, shape), 2.0 ** rng.uniform(-3.0, 3.0, shape)
    lot = rng.random(shape)
    values = size * np.where(lot < 1 / 2, near, far) * np.where(lot % (1 / 4) < 1 / 8, -1.0, 1.0)
    return np.asarray(np.clip(values if len(shape) and values.size > 1 else size * near, dtype.least, dtype.largest))


def middles(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Half of what lies in the middle between two numbers of int8 and of f8e4m3: 8.5, 9.5 ... 15.5, of either sign."""
    return np.asarray(HALF * rng.choice(np.arange(8.5, 16.0), shape) * rng.choice([-1.0, 1.0], shape))


def sign_of_call(problem: Problem) -> float:
    """Of one number on the device: calls of an odd number of rows have it negative."""
    return -1.0 if problem.rows % 2 else 1.0


def compared_scalars(spec: Spec) -> dict[str, tuple[str, ...]]:
    """The scalars that each tensor is compared with in some formula: the ignored label."""
    names = {name for name, _ in spec.scalars}
    found: dict[str, dict[str, None]] = {}
    for tree in _trees(spec):
        for node in nodes(tree):
            if isinstance(node, Call) and node.function in CONDITIONS:
                operands = [arg.name for arg in node.args if isinstance(arg, Name)]
                for tensor in (n for n in operands if n not in names):
                    found.setdefault(tensor, {}).update(dict.fromkeys(n for n in operands if n in names))
    return {tensor: tuple(scalars) for tensor, scalars in found.items() if scalars}


def _trees(spec: Spec) -> Iterator[Expression]:
    texts = [f.text for f in spec.formulas] + [t.absent for t in spec.tensors if t.absent]
    return (parse_formula(text) for text in texts)


def label_scalars(spec: Spec, tensors: tuple[TensorUse, ...]) -> dict[str, tuple[str, ...]]:
    """`compared_scalars` of the tensors that hold labels."""
    labels = {t.name for t in tensors if is_index(t)}
    return {name: scalars for name, scalars in compared_scalars(spec).items() if name in labels}


def candidates(problem: Problem) -> dict[str, tuple[float, ...]]:
    """Values for each scalar beside its default, as float32 holds them: those of its ranges, else by its default."""
    labels = {n for names in label_scalars(problem.spec, problem.tensors).values() for n in names}
    ranges = dict(problem.spec.scalar_ranges)
    found: dict[str, tuple[float, ...]] = {}
    for number, (name, default) in enumerate(problem.spec.scalars):
        if name in ranges:
            values = [v for low, high in ranges[name] for v in (high, low, (low + high) / 2)]
            values += [low + (high - low) / SPREAD for low, high in ranges[name]]
        elif name in labels:
            values = list(IGNORED)
        else:
            values = [value * (1 + number * APART) for value in _others(default)]
        told = (float(np.float32(value)) for value in values)
        found[name] = tuple(dict.fromkeys(v for v in told if v != float(np.float32(default))))
    return found


def _others(default: float) -> tuple[float, ...]:
    """Two values that meet every family of rows, then others, small and large ones among them."""
    size, sign = abs(default), math.copysign(1.0, default)
    if size == 0:
        return 0.1, -0.1, 1.5, 0.1 / SPREAD / 8, 1.5 * SPREAD
    if size < TINY_DEFAULT:
        small, large = LARGE_SCALARS
        return tuple(sign * v for v in (small, large, large * SPREAD, math.sqrt(size * small)))
    if size < 1:
        return sign * (1 + size) / 2, sign * size / 2, -sign * (1 + size), sign * size / SPREAD, sign * size * SPREAD
    return sign * size / 2, sign * size * 2, -sign * size * 2, sign * size / SPREAD / 8, sign * size * SPREAD


def combinations(values: Mapping[str, tuple[float, ...]]) -> list[dict[str, float]]:
    """Values of scalars, call by call; a default is left out.

    Every value is in one of the first, the n-th of which has the n-th value of each scalar; every two of two scalars'
    defaults and first two values are in some call. A scalar that has no further value stays at its default.
    """
    levels: dict[str, tuple[float | None, ...]] = {name: (*found, None) for name, found in values.items() if found}
    paired = {name: (*found[:-1][:2], None) for name, found in levels.items()}
    both = [{a: x, b: y} for a, b in pairs(levels, 2) for x, y in product(paired[a], paired[b])]
    count = max((len(found) - 1 for found in levels.values()), default=0)
    chosen = [{name: found[n % (len(found) - 1)] for name, found in levels.items()} for n in range(count)]
    left = dict.fromkeys(met for one in both for met in _met(one))
    for one in (dict.fromkeys(levels), *chosen):  # the plain call has every scalar at its default
        for met in _met(one):
            left.pop(met, None)
    while left:
        here = dict(next(iter(left)))
        for name, found in levels.items():
            if name not in here:
                news = [(len([met for met in _met(here | {name: value}) if met in left]), value) for value in found]
                here[name] = max(news, key=lambda new: new[0])[1]
        chosen.append(here)
        for met in _met(here):
            left.pop(met, None)
    return [{name: value for name, value in one.items() if value is not None} for one in chosen]


def _met(one: Mapping[str, float | None]) -> set[frozenset[tuple[str, float | None]]]:
    """The values, and the pairs of values, that a call has."""
    return {frozenset(both) for both in combinations_with_replacement(one.items(), 2)}


def rows_modulo(spec: Spec) -> int | None:
    """The largest constant that a formula takes row numbers modulo; 0 where it names them otherwise, None: nowhere."""
    found: int | None = None
    for tree in _trees(spec):
        if any(isinstance(node, Name) and node.name == "row" for node in nodes(tree)):
            found = found or 0
        for node in nodes(tree):
            match node:
                case Binary(operator="%", left=Name(name="row"), right=Number(value=value)):
                    found = max(found or 0, math.ceil(value))
    return found


def as_text(name: str, value: float) -> str:
    """A scalar's value as verdicts and records say it: "eps=0.1"."""
    return f"{name}={value:.6g}"
