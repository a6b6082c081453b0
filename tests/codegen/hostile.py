"""Specs whose names are those that emitted text uses itself."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence

from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.spec.names import refusal
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from tests.codegen.covering import Case, cover, pool
from tests.codegen.layouts import DEVICE

LAYERNORM = """
name = "hostile"
[tensors]
{0} = "input"
{1} = {{ role = "parameter", optional = true, absent = "1" }}
{2} = {{ role = "parameter", optional = true, absent = "0" }}
{3} = "statistic"
{4} = "statistic"
{5} = "output"
[scalars]
{6} = 1.5
[formulas]
{3} = "mean({0})"
{7} = "mean(({0} - {3})**2)"
{4} = "rsqrt({7} + {6} * {6})"
{8} = "({0} - {3}) * {4}"
{5} = "{8} * {1} + {2} * {6}"
[backward]
saved = ["{3}", "{4}"]
"""
COUNT = 9  # names of LAYERNORM
MOST = 40  # kernels of a covering sample
# What the text of a kernel is made of; then C++, CUDA and the executor's shim; then what is made of the name x.
KNOWN = """
i shift active column fetch pack own_row valid_row pass1 Pass1 pass2 kCols kVector kSteps kThreads Vec reduce_row lane
row_thread read write Default EvictLast griddepcontrol_wait slot row rows step steps edge has_edge vector vectors
first_row total cell partials sums group_sums partial_row next_row refill_row State shuffle_xor other
blocks tensor ticket term delta share element parity stage values combine unroll blockIdx threadIdx workspace shared
for_each int float double char template switch operator this half unix linux NAN INT_MAX NormgenIndex gamma mask load
index begin min expf std main
x x_i x_row row_x x_held x_next x_edge x_edge_next x_values x_vec x_pitch row_x_i x_sum dx_row row_row_x x_shared
"""


def names_of(text: str) -> list[str]:
    """The words that a spec may use, each once."""
    return [name for name in dict.fromkeys(text.split()) if refusal(name) is None]


def specs(names: Sequence[str]) -> list[Spec]:
    """Every name in one spec at least, in another role each time; what is short is filled up."""
    found = []
    waiting = list(names)
    while waiting:
        taken: list[str] = []
        for name in (*waiting, *(f"other{k}" for k in range(COUNT))):
            clash = any(a == f"d{b}" for a, b in ((name, t) for t in taken)) or any(t == f"d{name}" for t in taken)
            if len(taken) < COUNT and not clash:
                taken.append(name)
        waiting = [name for name in waiting if name not in taken]
        shift = len(found) % COUNT
        found.append(parse(LAYERNORM.format(*taken[shift:], *taken[:shift])))
    return found


def covering(spec: Spec, shapes: Iterable[str], direction: str, *, seed: int = 0) -> list[Case]:
    """Cases of a spec that cover the knobs, with rows that start anywhere and with aligned ones."""
    cases = []
    for shape in shapes:
        odd = int(shape.split("x")[-1]) % 8 != 0
        problem = problem_for(spec, shape=shape, direction=direction, align=4 if odd else 16)
        cases += pool(problem, DEVICE, random.Random(seed))
    return cover(cases, MOST)


def own_identifiers(cases: Iterable[Case]) -> set[str]:
    """The identifiers of emitted texts, those that stem from the specs' names included."""
    texts = (re.sub(r"//[^\n]*", "", emit(*case).source) for case in cases)
    return {word for text in texts for word in re.findall(r"(?<![\w.])[A-Za-z_]\w*", text)}
