"""What several peers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch

from normgen.bench.peers import Call, Tensors
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem
from normgen.problem.scales import ScaleLayout
from normgen.spec.reader import is_built_in

Function = Callable[[Tensors], Tensors]


def versions_of(*packages: str) -> dict[str, str]:
    """Installed versions by distribution name; one without metadata is left out."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def operation(problem: Problem) -> tuple[str, str]:
    """(built-in spec, direction), by which libraries' functions are known; "" for a spec that only has such a name."""
    return problem.spec.name if is_built_in(problem.spec) else "", problem.direction.value


def pick(functions: Mapping[tuple[str, str], Any], problem: Problem) -> Any:
    """The entry for the problem's operation and direction. Raises NotOfferedError if there is none."""
    key = operation(problem)
    if key not in functions:
        raise NotOfferedError(f"no {problem.spec.name} {problem.direction.value}")
    return functions[key]


def scalar(problem: Problem, name: str) -> float:
    return float(dict(problem.spec.scalars)[name])


def require(problem: Problem, *names: str) -> None:
    """Raises NotOfferedError if a parameter is absent that the library insists on."""
    for name in names:
        if name in problem.absent:
            raise NotOfferedError(f"needs a {name}")


def on_sets(function: Function, sets: Sequence[Tensors]) -> Call:
    """`call(i)` of a function of one set's tensors."""
    return lambda i: function(sets[i])


def laid_out(problem: Problem, function: Function) -> Function:
    """The function, which has its scales row by row, with one more kernel that gives them the problem's layout.

    Raises NotOfferedError for packed ones.
    """
    if ScaleLayout.PACKED in dict(problem.layout).values():
        raise NotOfferedError("has no packed scales")
    pitches = {name: problem.pitches[name] for name, _ in problem.layout}

    def run(t: Tensors) -> Tensors:
        results = function(t)
        columns = {name: results[name].t() for name in pitches if name in results}
        padded = {n: torch.nn.functional.pad(c, (0, pitches[n] - problem.rows)) for n, c in columns.items()}
        return {**results, **{name: lines[:, : problem.rows].t() for name, lines in padded.items()}}

    return run if pitches else function


def require_layout(problem: Problem, **layout: str) -> None:
    """Raises NotOfferedError unless the problem's scales lie as the library's do."""
    if dict(problem.layout) != layout:
        raise NotOfferedError(f"has its scales {' and '.join(layout.values()) or 'row_major'}")


def in_place(problem: Problem, **over: str) -> None:
    """Raises NotOfferedError unless the problem's outputs take the places that the library's take."""
    if dict(problem.in_place) != over:
        raise NotOfferedError(f"overwrites {', '.join(over.values())}")


def without(problem: Problem, *names: str) -> None:
    """Raises NotOfferedError if a tensor is there that the library does not know."""
    for name in names:
        if name in problem.present:
            raise NotOfferedError(f"has no {name}")


def column(statistic: Any) -> Any:
    """[rows] as [rows, 1], the form in which torch keeps statistics."""
    return statistic.unsqueeze(1)


def by_autograd(forward: Function, problem: Problem, sets: Sequence[Tensors]) -> Call:
    """The backward of `forward` (which gives y) through autograd, for a library that offers no other way to it.

    The forward runs here, once a set, and keeps what it saves; a call runs the backward alone.
    """
    wrt = [t.name[1:] for t in problem.tensors if t.is_written]
    kept = []
    for tensors in sets:
        leaves = {name: tensors[name].detach().requires_grad_() for name in wrt if name in tensors}
        if len(leaves) != len(wrt):
            raise NotOfferedError("autograd needs every tensor it differentiates by")
        with torch.enable_grad():
            kept.append((forward({**tensors, **leaves})["y"], list(leaves.values()), tensors["dy"]))

    def call(i: int) -> Tensors:
        y, leaves, dy = kept[i]
        gradients = torch.autograd.grad(y, leaves, dy, retain_graph=True)
        return {f"d{name}": gradient for name, gradient in zip(wrt, gradients, strict=True)}

    return call
