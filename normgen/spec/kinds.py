"""The kind of every formula of a spec, and what must hold for it: reductions, products of matrices, what is stored.

A product `a @ b` sums the one axis of inner and cols that both sides have. A kernel of products has tiles of their
result and no whole row of it. So all products of a spec give values along the same axes, their sides are made of
tensors, and what is reduced is a side, over inner, or the result: then no element reads what comes of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from normgen.errors import SpecError
from normgen.spec.formula import (
    Binary,
    Call,
    Expression,
    Name,
    children,
    group_of,
    is_dot,
    nodes,
    pointed,
    roll_of,
    totalled,
)
from normgen.spec.functions import COLS, CONSTANTS, INNER, POSITIONS, POWER, RANDOM, ROW_REDUCTIONS, TAKE, TERM
from normgen.spec.spec import Formula, Kind, Role, Spec, join
from normgen.spec.writing import written

_SUMMED = Kind.INNER | Kind.COL  # what a product may sum: a formula has no other name for the rows of a tensor
_LENGTHS = {INNER: Kind.INNER, COLS: Kind.COL}
_NO_AXES = Kind.SCALAR


def checked_kinds(
    spec: Spec, formulas: Mapping[str, Formula], trees: Mapping[str, Expression], order: tuple[str, ...]
) -> dict[str, Kind]:
    """The kind of every name; `order` has the keys of `trees` and `formulas`, each after what it reads.

    Raises SpecError with the line, and the column of the formula, of what has no meaning.
    """
    has_products = any(is_dot(node) for tree in trees.values() for node in nodes(tree))
    check_tensors = _check_tensors if has_products else _check_no_inner
    check_tensors(spec)
    kinds = {t.name: t.kind.in_rows for t in spec.tensors if not t.role.is_written}
    kinds |= dict.fromkeys((*(n for n, _ in spec.scalars), *CONSTANTS), Kind.SCALAR)
    found = _Kinds(spec, kinds | {"row": Kind.ROW, "col": Kind.COL, TERM: Kind.INNER}, has_products)
    tensors = {t.name: t for t in spec.tensors}
    for key in order:
        name = formulas[key].name
        kind = found.define(formulas[key], trees[key], is_value=key == name)
        if kind.by_inner and name in tensors and not tensors[name].kind.by_inner:
            rule = f"{tensors[name].role} '{name}' does not vary along inner, but its formula is [{_axes(kind)}]"
            hint = "a product sums inner, x @ w, and so do sum(x) and mean(x)"
            raise SpecError(rule, file=spec.file, line=formulas[key].line, received=formulas[key].text, hint=hint)
    for tensor in (t for t in spec.tensors if t.role.is_written and t.kind.is_row):
        if (kind := found.kinds[tensor.name]).within_row:
            rule = f"{tensor.role} '{tensor.name}' has one value per row, but its formula is [{_axes(kind)}]"
            hint = "reduce it with sum, mean, max or absmax, or make it an output"
            raise SpecError(rule, file=spec.file, line=formulas[tensor.name].line, hint=hint)
    for tensor in (t for t in spec.tensors if t.role.is_written and t.kind.is_groups):
        if not (kind := found.kinds[tensor.name]).is_groups:
            rule = f"{tensor.role} '{tensor.name}' has one value per group, but its formula is [{_axes(kind)}]"
            whole = "a value of the whole row has the role statistic; one of a group is reduced in groups"
            formula, hint = formulas[tensor.name], f"{whole}: absmax(x, {spec.group})"
            raise SpecError(rule, file=spec.file, line=formula.line, received=formula.text, hint=hint)
    return found.kinds


def is_draw(node: Expression) -> bool:
    return isinstance(node, Call) and node.function == RANDOM


def _axes(kind: Kind) -> str:
    return ", ".join(kind.axes)


def _check_no_inner(spec: Spec) -> None:
    """A product of matrices sums the axis; without one its values would never become rows and columns."""
    for tensor in spec.tensors:
        if tensor.kind.by_inner:
            rule = f"{tensor.role} '{tensor.name}' varies along inner, which no formula sums in a product"
            hint = "write x @ w; the axis of rows that nothing multiplies is cols"
            raise SpecError(rule, file=spec.file, line=tensor.line, received=f"[{_axes(tensor.kind)}]", hint=hint)


def _check_tensors(spec: Spec) -> None:
    """A kernel of products has no heads, totals, random numbers yet, of batches matrices and of groups scales alone."""
    for tensor in spec.tensors:
        of_batch = tensor.kind.by_batch and not tensor.kind.is_batch_matrix
        if of_batch or tensor.kind.is_spread or tensor.role in (Role.SEED, Role.SCALAR_OUTPUT):
            rule = f"a spec with a product of matrices has no {tensor.role} yet"
            hint = "what stands before or behind the product is a spec of its own"
            raise SpecError(rule, file=spec.file, line=tensor.line, received=tensor.name, hint=hint)


@dataclass
class _Kinds:
    """Names so far: their kinds, which of them products are a part of, and of what sums they are quotients."""

    spec: Spec
    kinds: dict[str, Kind]
    has_products: bool
    behind: set[str] = field(default_factory=set)  # names of what is made of a product
    unmoved: dict[str, str] = field(default_factory=dict)  # names of what cannot be rolled, and why
    awaiting: set[str] = field(default_factory=set)  # of what is made of all columns: see `awaited`
    reducing: int = 0  # reductions around the part that is looked at
    reductions: list[Call] = field(default_factory=list)  # of columns, in a spec with products
    sums: dict[str, tuple[Kind, Kind]] = field(default_factory=dict)  # of names: see `quotient`
    first: tuple[Formula, Kind] | None = None  # that of the first product, and its kind: it sums the third axis

    def define(self, formula: Formula, tree: Expression, *, is_value: bool) -> Kind:
        """The kind of a formula; it is that of its name if that stands for it, not if it may be absent."""
        self.formula = formula
        kind = self.kind_of(tree)
        written = next((t.kind for t in self.spec.tensors if t.name == formula.name and t.role.is_written), kind)
        self.check_elements(written, tree)
        found = self.quotient(tree)
        if is_value:
            self.kinds[formula.name] = kind
            self.sums[formula.name] = found
        if self.is_behind(tree):
            self.behind.add(formula.name)
        if why := self.why_unmoved(tree):
            self.unmoved[formula.name] = why
        if self.awaited(tree):
            self.awaiting.add(formula.name)
        return kind

    def error(self, rule: str, node: Expression, *, hint: str | None = None) -> SpecError:
        where = f"{rule} (column {node.column + 1} of the formula)"
        received = pointed(self.formula.text, node.column)
        return SpecError(where, file=self.spec.file, line=self.formula.line, received=received, hint=hint)

    def is_behind(self, tree: Expression) -> bool:
        """Whether a product is a part of it."""
        return any(is_dot(node) or (isinstance(node, Name) and node.name in self.behind) for node in nodes(tree))

    def kind_of(self, tree: Expression) -> Kind:
        if is_draw(tree):
            return Kind.ELEM
        if isinstance(tree, Name):
            return self.kinds[tree.name]
        is_reduction = isinstance(tree, Call) and tree.function in ROW_REDUCTIONS
        parts = [self.kind_within(child) if is_reduction else self.kind_of(child) for child in children(tree)]
        if isinstance(tree, Call) and is_dot(tree):
            return self.product(tree, *parts)
        kind = join(parts)
        if kind.by_row and kind.by_inner and kind.by_col:
            rule = "no value varies along rows, inner and cols"
            raise self.error(rule, tree, hint="write x @ w for the sum of the products over inner")
        if isinstance(tree, Call) and tree.function == POWER:
            self.check_exponent(tree.args[1])
        if roll_of(tree):
            self.check_roll(tree, parts[0])
        if totalled(tree) is not None and not (kind.is_elem or kind.is_row):
            rule = f"total adds values of rows or of elements, but here of {kind}"
            raise self.error(rule, tree, hint="total(loss) of a loss for each row, or total(x * y) of elements")
        if isinstance(tree, Call) and tree.function in ROW_REDUCTIONS:
            return self.reduced(tree, parts, kind)
        self.check_elements(kind, tree)
        return kind

    def check_exponent(self, exponent: Expression) -> None:
        """It is the same for all rows and columns, and a number of the call: a scalar of the device has a gradient."""
        known = {name for name, _ in self.spec.scalars} | {COLS, INNER}
        others: list[Expression] = [n for n in nodes(exponent) if isinstance(n, Name) and n.name not in known]
        others += [node for node in nodes(exponent) if isinstance(node, Call)]
        if others:
            rule = "an exponent is made of numbers and of [scalars]"
            hint = "by a tensor or a formula p, where x > 0, write exp(p * log(x)), which has a gradient by p too"
            raise self.error(rule, min(others, key=lambda node: node.column), hint=hint)

    def check_roll(self, tree: Expression, kind: Kind) -> None:
        """A rolled value is computed of the tensors' elements in the columns that it comes from."""
        if self.has_products:
            hint = "what stands before or behind the product is a spec of its own"
            raise self.error("a spec with a product of matrices rolls no rows yet", tree, hint=hint)
        if not kind.by_col:
            hint = "a value of the whole row is the same in each column: write it without roll"
            if kind.is_groups:
                hint = "by whole groups, roll what is reduced: sum(roll(x, k), G) with k a multiple of G"
            raise self.error(f"roll moves values of columns, but here of {kind}", tree, hint=hint)
        if why := self.why_unmoved(children(tree)[0]):
            raise self.error(
                f"roll moves what is made of tensors, not {why}", tree, hint="store it; a spec of its own rolls it"
            )

    def why_unmoved(self, tree: Expression) -> str:
        """What of an expression no other column's thread can compute; empty where there is nothing of it."""
        if is_draw(tree):
            return "random numbers, which are those of their column"
        if isinstance(tree, Name):
            return self.unmoved.get(tree.name, "")
        if isinstance(tree, Call) and tree.function in ROW_REDUCTIONS:
            return "values of groups of columns" if group_of(tree) else ""
        return next(filter(None, map(self.why_unmoved, children(tree))), "")

    def check_elements(self, kind: Kind, tree: Expression) -> None:
        """No element of a product's kernel, of that kind, waits for its row's last one, where it is not reduced again.

        A program knows which chain of two reductions is one: that of a softmax's maximum and sum.
        """
        if self.has_products and not self.reducing and kind.within_row and (found := self.awaited(tree)):
            rule = "what is made of all columns is known behind the last one, and no element of a kernel of products"
            raise self.error(f"{rule} reads it", found, hint="store it; a spec of its own reads it")

    def awaited(self, tree: Expression) -> Expression | None:
        """The part of it that reduces columns, or has the name of what does, in a spec with products."""
        return next((node for node in nodes(tree) if self.is_awaited(node)), None)

    def is_awaited(self, node: Expression) -> bool:
        return any(node is call for call in self.reductions) or (isinstance(node, Name) and node.name in self.awaiting)

    def kind_within(self, tree: Expression) -> Kind:
        """That of what a reduction has between its brackets."""
        self.reducing += 1
        kind = self.kind_of(tree)
        self.reducing -= 1
        return kind

    def product(self, tree: Call, left: Kind, right: Kind) -> Kind:
        """That of `a @ b`: the axes that either side has alone."""
        if self.is_behind(tree.args[0]) or self.is_behind(tree.args[1]):
            hint = "name the first product, h = a @ b: as the output of one spec it is an input of the next"
            raise self.error("the sides of '@' are made of tensors, and a product is not one of them", tree, hint=hint)
        shared, sides = left & right & _SUMMED, f"left of it is [{_axes(left)}], right [{_axes(right)}]"
        if len(shared.axes) != 1:
            rule = f"'@' sums the one axis, inner or cols, that both sides have: {sides}"
            hint = 'axes = ["rows", "inner"] of an input, ["inner", "cols"] or ["cols", "inner"] of a parameter'
            raise self.error(rule, tree, hint=hint)
        if left & right != shared:
            hint = f"write {_summed(tree)} for the product of two rows"
            raise self.error(f"only the axis that '@' sums is that of both sides: {sides}", tree, hint=hint)
        if not (left.is_matrix and right.is_matrix):
            hint = f"write {_summed(tree)} for the product of each row with a vector"
            raise self.error(f"the sides of '@' have two axes each: {sides}", tree, hint=hint)
        kind = join([left, right]) & ~shared
        formula, first = self.first = self.first or (self.formula, kind)
        if first is not kind:
            rule = f"all products of a spec sum the same axis to values along the same axes: here {sides}"
            hint = f"that of '{formula.name}' gives values [{_axes(first)}]; a spec of its own has this one"
            raise self.error(rule, tree, hint=hint)
        return kind

    def reduced(self, tree: Call, parts: list[Kind], kind: Kind) -> Kind:
        if tree.function == TAKE and parts[1].within_row:
            hint = f'label = {{ role = "row_input", dtypes = ["i64"] }}, then {TAKE}(x, label)'
            raise self.error(f"{TAKE}(x, index) has one index for each row", tree, hint=hint)
        group = group_of(tree)
        if group:
            kind = parts[0]
        if not (kind.by_row and kind.within_row) or kind.by_group:
            hint = (
                "what it reduces must name an input; of numbers alone, or of values of rows, write the formula itself"
            )
            raise self.error(f"{tree.function} reduces a row, so it reads a row input", tree, hint=hint)
        if kind.by_inner and (group or tree.function in POSITIONS or tree.function == TAKE):
            rule = f"of inner there are sum, mean, max, min and absmax of all of it, not {tree.function} as here"
            raise self.error(rule, tree, hint="give the tensor the axes rows and cols, in a spec of its own")
        if self.has_products and kind.by_col:
            if tree.function in POSITIONS or tree.function == TAKE:
                rule = f"{tree.function} of columns asks for a whole row, and a kernel of products has none"
                raise self.error(rule, tree, hint="sum, mean, max, min and absmax are made of those of its tiles")
            if not group:  # which lies in a tile
                self.reductions.append(tree)
        return Kind.GROUPS if group else kind & ~kind.own_axis

    def quotient(self, tree: Expression) -> tuple[Kind, Kind]:
        """The axes of the sums that are factors of a product, and those whose lengths divide it.

        sum(x * x) / cols of an x [rows, inner] is a mean to nobody.
        """
        match tree:
            case Name(name=name):
                return self.sums.get(name, (_NO_AXES, _NO_AXES))
            case Call(function="sum", args=(arg,)):
                return self.divided(tree, self.kind_within(arg).own_axis, self.quotient(arg)[1])
            case Call(function="divide", args=(left, right)):
                return self.quotient(Binary("/", left, right, tree.column))
            case Binary(operator="*" | "/" as operator, left=left, right=right):
                (summed, divided), (others, below) = self.quotient(left), self.quotient(right)
                lengths = _lengths(right) if operator == "/" else _NO_AXES
                return self.divided(tree, summed | others, divided | below | lengths)
        for child in children(tree):
            self.quotient(child)
        return _NO_AXES, _NO_AXES

    def divided(self, tree: Expression, summed: Kind, lengths: Kind) -> tuple[Kind, Kind]:
        """What `quotient` finds. Raises SpecError where none of the lengths is that of a sum."""
        if summed and lengths and not summed & lengths:
            hint = f"write mean(x), or / {_names(summed)}"
            raise self.error(f"a sum over {_names(summed)} is divided by {_names(lengths)}", tree, hint=hint)
        return summed, lengths


def _summed(product: Call) -> str:
    """A product of two rows as a formula has it."""
    left, right = product.args
    return written(Call("sum", (Binary("*", left, right),)))


def _lengths(tree: Expression) -> Kind:
    """The axes whose lengths are factors of a divisor."""
    match tree:
        case Name(name=name):
            return _LENGTHS.get(name, _NO_AXES)
        case Binary(operator="*", left=left, right=right):
            return _lengths(left) | _lengths(right)
    return _NO_AXES


def _names(axes: Kind) -> str:
    return " and ".join(name for name, axis in _LENGTHS.items() if axis in axes)
