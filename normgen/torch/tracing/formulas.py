"""The formulas of a spec that is traced: named expressions, which of them are kept, and how they are called."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import replace

from normgen.spec import names
from normgen.spec.formula import Binary, Call, Cast, Expression, Name, Number, Power, nodes
from normgen.spec.writing import written
from normgen.torch.tracing.values import Value

_LONGEST = 90  # characters of a formula that takes others in


def names_for(wanted: str) -> str:
    """A name that a spec may have, made from another one."""
    found = "_".join(part for part in re.split(r"[^A-Za-z0-9]+", wanted) if part)[: names.LONGEST_NAME - 4]
    found = found.strip("_") or "value"
    if not found[0].isalpha():
        found = f"v{found}"
    return f"{found}_in" if names.refusal(found) or keyword.iskeyword(found) else found


class Formulas:
    """Named expressions, in order. An expression has one name, however often it is computed."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, Expression]] = []
        self.all: dict[str, Expression] = {}
        self.by_tree: dict[Expression, str] = {}
        self.is_kept: set[str] = set()
        self.taken: set[str] = set()

    def named(self, wanted: str) -> str:
        found, count = names_for(wanted), 1
        base = found
        while found in self.taken or f"d{found}" in self.taken or (found[0] == "d" and found[1:] in self.taken):
            count += 1
            found = f"{base}_{count}"
        self.taken.add(found)
        return found

    def let(self, tree: Expression, wanted: str, *, keep: bool = False) -> Expression:
        if isinstance(tree, Name | Number):
            return tree
        name = self.by_tree.get(tree)
        if name is None:
            name = self.by_tree[tree] = self.named(wanted)
            self.all[name] = tree
            if keep:
                self.is_kept.add(name)
        return Name(name)

    def folded(self, outputs: Mapping[str, Value]) -> None:
        """Sets `kept`: formulas that the outputs use, those that are used once and have no name of the author's
        within the formula that uses them.
        """
        final = dict(self.all)
        for name, value in outputs.items():
            tree = value.tree
            if isinstance(tree, Name) and tree.name in final and tree.name == name:
                continue
            final[name] = tree
        counts: dict[str, int] = dict.fromkeys(final, 0)
        waiting, reached = list(outputs), set()
        while waiting:
            name = waiting.pop()
            if name in reached:
                continue
            reached.add(name)
            for node in nodes(final[name]):
                if isinstance(node, Name) and node.name in final:
                    counts[node.name] += 1
                    waiting.append(node.name)
        done: dict[str, Expression] = {}
        for name, tree in final.items():
            if name not in reached:
                continue
            tree = _replaced(tree, {n: t for n, t in done.items() if counts[n] == 1 and self.is_inlined(n, t, outputs)})
            done[name] = tree
        used = {n.name for name, tree in done.items() for n in nodes(tree) if isinstance(n, Name)} | set(outputs)
        self.kept = [(name, tree) for name, tree in done.items() if name in used]
        left = {n.name for _, tree in self.kept for n in nodes(tree) if isinstance(n, Name)} | set(outputs)
        self.kept = [(name, tree) for name, tree in self.kept if name in left]

    def is_inlined(self, name: str, tree: Expression, outputs: Mapping[str, Value]) -> bool:
        return name not in self.is_kept and name not in outputs and len(written(tree)) <= _LONGEST


def _replaced(tree: Expression, by: Mapping[str, Expression]) -> Expression:
    match tree:
        case Name(name=name):
            return by.get(name, tree)
        case Binary(operator=op, left=left, right=right):
            return Binary(op, _replaced(left, by), _replaced(right, by))
        case Call(function=function, args=args):
            return Call(function, tuple(_replaced(arg, by) for arg in args))
        case Cast(arg=arg, to=to):
            return Cast(_replaced(arg, by), to)
        case Power(base=base):
            return replace(tree, base=_replaced(base, by))
    return tree
