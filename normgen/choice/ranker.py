"""Boosted trees that order schedules: a file of numbers, and their sum for many schedules at once.

A score is about the root of `log(us / least)`: how far a schedule is behind the fastest that was timed of its problem.
`studies/rank.py` fits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from normgen.choice.features import Features
from normgen.files.decoded import parse_json

FILE = Path(__file__).with_name("ranker.json")


class Split(NamedTuple):
    """A node of a tree: schedules whose feature is at most `bound` go to `low`; a leaf is its value."""

    feature: int
    bound: float
    low: Split | float
    high: Split | float


@dataclass(frozen=True, kw_only=True)
class Ranker:
    """Trees over named features.

    archs    compute capabilities, as sm_NN, of the GPUs whose timings it was fitted to
    data     what it was fitted to and by: names of files with their problems and points
    """

    archs: tuple[int, ...]
    data: Mapping[str, Any]
    names: tuple[str, ...]
    trees: tuple[Split | float, ...]

    def scores(self, features: Features) -> NDArray[np.float64]:
        """[schedules]: the least is the best."""
        columns = [features[name] for name in self.names]
        alike = [column[0] if column.min() == column.max() else None for column in columns]
        total = np.zeros(len(columns[0]))
        every = np.arange(len(total))
        for tree in self.trees:
            waiting = [(tree, every)]
            while waiting:
                node, rows = waiting.pop()
                while isinstance(node, Split) and (value := alike[node.feature]) is not None:
                    node = node.low if value <= node.bound else node.high
                if not isinstance(node, Split):
                    total[rows] += node
                    continue
                is_low = columns[node.feature][rows] <= node.bound
                waiting += [(node.low, rows[is_low]), (node.high, rows[~is_low])]
        return total

    def as_dict(self, scale: float) -> dict[str, Any]:
        """As in the file: a tree is the list of its nodes, each in front of those below it; a split by two numbers, its
        feature and bound, a leaf by one below 0, which counts down from `most` in steps of 1 / scale.
        """
        most = 1 + max(round(leaf * scale) for tree in self.trees for leaf in _leaves(tree))
        trees = [list(_written(tree, scale, most)) for tree in self.trees]
        facts = {"archs": self.archs, "data": self.data, "names": self.names}
        return {**facts, "scale": scale, "most": most, "trees": trees}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """What `as_dict` wrote. Raises LookupError, ValueError or TypeError for anything else."""
        scale, most = float(found["scale"]), int(found["most"])
        names = tuple(map(str, found["names"]))
        if not scale > 0:
            raise ValueError(f"a scale above 0, not {scale}")
        trees = tuple(_whole(list(tree), scale, most, len(names)) for tree in found["trees"])
        return cls(archs=tuple(found["archs"]), data=found["data"], names=names, trees=trees)


def _leaves(node: Split | float) -> Iterator[float]:
    if isinstance(node, Split):
        yield from _leaves(node.low)
        yield from _leaves(node.high)
    else:
        yield node


def _written(node: Split | float, scale: float, most: int) -> Iterator[float]:
    if isinstance(node, Split):
        yield from (node.feature, node.bound)
        yield from _written(node.low, scale, most)
        yield from _written(node.high, scale, most)
    else:
        yield round(node * scale) - most


def _whole(numbers: list[float], scale: float, most: int, features: int) -> Split | float:
    """The tree of a list of numbers. Raises ValueError or TypeError where they are none."""
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a tree is made of finite numbers")
    rest = iter(numbers)
    try:
        tree = _read(rest, scale, most, features)
    except StopIteration:
        raise ValueError("a tree ends within a node") from None
    except RecursionError:
        raise ValueError("a tree has too many levels") from None
    if next(rest, None) is not None:
        raise ValueError("numbers stand behind a tree")
    return tree


def _read(numbers: Iterator[float], scale: float, most: int, features: int) -> Split | float:
    first = next(numbers)
    if first < 0:
        return (first + most) / scale
    if first not in range(features):
        raise ValueError(f"a split by one of {features} features, not by {first}")
    bound = next(numbers)
    low = _read(numbers, scale, most, features)
    return Split(int(first), bound, low, _read(numbers, scale, most, features))


@functools.cache
def shipped_ranker() -> Ranker:
    """The ranker that comes with the package."""
    return Ranker.of(parse_json(FILE.read_bytes()))
