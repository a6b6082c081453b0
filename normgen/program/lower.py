"""Spec -> RowProgram (forward): reductions named, equal ones shared, absent tensors filled in, dead code removed.

The author's order of operations is part of the accuracy contract, but sympy sorts and merges as it likes:
`x - m - l` may come back as `x - l - m`, `2*(x - m)` as `2*x - 2*m`, `(x/m)*(x/m)` as `x**2/m**2`. Wherever
that could change rounding or overflow, the inner term becomes a value of its own (`y_part`), which no rebuild
of an expression can take apart. Products and quotients keep their order and their brackets as `Ordered` ones.

Real numbers are neither NaN nor infinite, so sympy folds `x - x` to 0, `0*x` to 0, `log(exp(x))` to x and drops one
side of a maximum. An operation that is not there any more once sympy has built it is built again over values of
their own: `y_part - x`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import sympy as sp

from normgen.dtypes import F32
from normgen.errors import SpecError, UsageError, did_you_mean
from normgen.program.cleanup import without_dead_code
from normgen.program.functions import COL, INFINITY, MEANINGS, ROW, TERM, Opaque, Stored, cast, remainder, roll
from normgen.program.ir import (
    COLS,
    INNER,
    Load,
    Map,
    Random,
    Reduce,
    RowProgram,
    Statement,
    Store,
    check,
    free_name,
    kind_of,
)
from normgen.program.monoid import ARGMAX, ARGMIN, DOT, MONOIDS, SUM, Monoid, symbol
from normgen.program.ordered import is_product, opened, product, quotient, settled
from normgen.spec.checks import draws
from normgen.spec.formula import (
    Binary,
    Call,
    Cast,
    Expression,
    Name,
    Number,
    Power,
    Roll,
    group_of,
    is_dot,
    names_in,
    nodes,
    parse_formula,
    roll_of,
    totalled,
)
from normgen.spec.functions import INFINITY as INFINITY_NAME
from normgen.spec.functions import POSITIONS, RANDOM, REDUCTIONS, TAKE
from normgen.spec.spec import Formula, Kind, Spec, Tensor, join

_MONOIDS = {name: SUM if name == "mean" else MONOIDS[name] for name in REDUCTIONS | POSITIONS}


def lower(spec: Spec, *, present: frozenset[str] | None = None) -> RowProgram:
    """The forward program of `spec` as its author wrote it, for the tensors that are `present` (default: all).

    Statements: loads in the spec's order, then reductions and maps in the order of the formulas, then stores
    (outputs before statistics). An optional tensor that is not present is replaced by its `absent` formula
    or, when written, not stored.

    Errors: UsageError for an unknown or a missing tensor; SpecError for a formula that cannot be lowered.

    Raises UsageError for a name in `present` that the spec does not have.
    """
    names = {t.name for t in spec.tensors}
    present = frozenset(names) if present is None else present
    for name in sorted(present - names):
        raise UsageError(f"spec '{spec.name}' has no such tensor", received=name, hint=did_you_mean(name, names))
    for tensor in spec.tensors:
        if not tensor.optional and tensor.name not in present:
            raise UsageError(f"tensor '{tensor.name}' of spec '{spec.name}' is not optional")
    stored = [t for t in (*spec.outputs, *spec.statistics) if t.name in present]
    lowering = _Lowering(spec, present)
    for name in lowering.order():
        lowering.define(name)
    stores = [lowering.store(tensor) for tensor in stored]
    program = RowProgram(
        name=spec.name,
        statements=(*lowering.loads(), *lowering.statements, *stores),
        scalars=tuple(name for name, _ in spec.scalars),
    )
    return check(without_dead_code(check(program)))


def formula_of(spec: Spec, value: str, *, present: frozenset[str]) -> Formula | None:
    """The formula that a value of `lower(spec, present=present)` is a part of; None of other names."""
    lowering = _Lowering(spec, present)
    for name in lowering.order():
        lowering.define(name)
    owner = lowering.owners.get(value)
    return None if owner is None else lowering.formulas[owner]


def load_of(tensor: Tensor) -> Load:
    """How a program reads a tensor."""
    return Load(tensor.name, tensor.kind.in_rows, group=tensor.group)


@dataclass
class _Lowering:
    spec: Spec
    present: frozenset[str]
    statements: list[Statement] = field(default_factory=list)
    kinds: dict[str, Kind] = field(default_factory=dict)
    values: dict[str, sp.Expr] = field(default_factory=dict)  # what a formula's name stands for
    shared: dict[tuple[str, *tuple[sp.Expr, ...]], sp.Expr] = field(default_factory=dict)  # (operation, arguments)
    open: list[str] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)  # the formula of each value that is computed

    def __post_init__(self) -> None:
        self.formulas = {f.name: f for f in self.spec.formulas}
        self.taken = {t.name for t in self.spec.tensors} | {n for n, _ in self.spec.scalars} | set(self.formulas)
        self.taken |= {COLS.name, INNER.name}
        self.draws = draws(self.spec)
        self.values |= {COLS.name: COLS, INNER.name: INNER, INFINITY_NAME: INFINITY, ROW.name: ROW, COL.name: COL}
        self.values |= {TERM.name: TERM}
        for name, _ in self.spec.scalars:
            self.kinds[name], self.values[name] = Kind.SCALAR, symbol(name)
        for tensor in self.spec.tensors:
            if not tensor.role.is_written and tensor.name in self.present:
                self.kinds[tensor.name], self.values[tensor.name] = tensor.kind.in_rows, symbol(tensor.name)
            elif tensor.absent is not None:
                self.formulas[tensor.name] = Formula(name=tensor.name, text=tensor.absent, line=tensor.line)

    def loads(self) -> tuple[Load, ...]:
        read = (t for t in self.spec.tensors if not t.role.is_written and t.name in self.present)
        return tuple(map(load_of, read))

    def store(self, tensor: Tensor) -> Store:
        """Store a written tensor; a value of a smaller kind, or a constant, is broadcast first."""
        name, kind = tensor.name, tensor.kind
        if self.values[name] != symbol(name):
            self.statements.append(Map(name, kind, self.values[name]))
        return Store(name, name, kind)

    # names

    def fresh(self, wish: str) -> str:
        return free_name(wish, self.taken, self.kinds)

    def kind_of(self, expr: sp.Expr) -> Kind:
        return kind_of(expr, self.kinds)

    def map(self, name: str, expr: sp.Expr) -> sp.Expr:
        self.kinds[name], self.owners[name] = self.kind_of(expr), self.open[-1]
        self.shared.setdefault(("part", expr), symbol(name))
        self.statements.append(Map(name, self.kinds[name], expr))
        return symbol(name)

    # formulas

    def order(self) -> list[str]:
        """The author's order, but named reductions first: an equal inline reduction then gets the author's name."""
        names = [f.name for f in self.spec.formulas]
        return sorted(names, key=lambda name: not _is_reduction(self.tree(name)))

    def tree(self, name: str) -> Expression:
        formula = self.formulas[name]
        return parse_formula(formula.text, file=self.spec.file, line=formula.line)

    def define(self, name: str) -> None:
        """Lower the formula of `name` and, first, every formula it reads."""
        if name in self.values:
            return
        formula = self.formulas[name]
        if name in self.open:
            cycle = " -> ".join([*self.open[self.open.index(name) :], name])
            raise SpecError(
                "formulas must not depend on themselves", file=self.spec.file, line=formula.line, received=cycle
            )
        self.open.append(name)
        tree = self.tree(name)
        for other in dict.fromkeys(n.name for n in names_in(tree)):
            if other not in self.values and other not in self.formulas:
                raise self.error(name, f"unknown name '{other}'")
            self.define(other)
        self.values[name] = self.named(name, tree)
        self.open.pop()

    def error(self, formula: str, rule: str) -> SpecError:
        found = self.formulas[formula]
        return SpecError(
            f"{rule} in the formula of '{formula}'", file=self.spec.file, line=found.line, received=found.text
        )

    def named(self, name: str, tree: Expression) -> sp.Expr:
        """The value of a formula, under the author's name unless it is a constant or is stored with a larger kind."""
        written = {t.name: t.kind for t in self.spec.tensors if t.role.is_written}.get(name)
        if (inner := totalled(tree)) is not None:
            return self.total(name, inner)
        if isinstance(tree, Call) and _is_reduction(tree):
            if is_dot(tree):
                expr = self.contraction(name, tree, wish=name)
            else:
                expr = self.reduction(name, tree, wish=None if written is not None and written.by_col else name)
        else:
            expr = settled(self.expr(name, tree))
        if expr == symbol(name) or expr.is_number:
            return expr
        if written is not None and self.kind_of(expr) is not written:
            return self.part(name, expr)
        return self.map(name, expr)

    def total(self, name: str, tree: Expression) -> sp.Expr:
        """The sum over all rows of a row value or, of elements, of their sums over the columns."""
        by_columns = Call("sum", (tree,)) if name in self.spec.elem_totals else tree
        term = settled(self.expr(name, by_columns))
        self.kinds[name] = Kind.SCALAR
        self.statements.append(Reduce((name,), Kind.SCALAR, SUM, (term,)))
        return symbol(name)

    def part(self, owner: str, expr: sp.Expr) -> sp.Expr:
        """`expr` as a value of its own, so that sympy cannot merge it with what surrounds it."""
        return expr if not expr.args or expr.is_number else self.own(owner, expr)

    def own(self, owner: str, expr: sp.Expr) -> sp.Expr:
        """As `part`, under a second name where `expr` is a name or a number."""
        expr = settled(expr)
        key = ("part", expr)
        if key not in self.shared:
            self.shared[key] = self.map(self.fresh(f"{owner}_part"), expr)
        return self.shared[key]

    def expr(self, owner: str, tree: Expression) -> sp.Expr:
        """The value of a part of a formula; SpecError where it is a constant that no float32 holds."""
        found = self.raw(owner, tree)
        if found.is_number and not _is_float32(found):
            raise self.error(owner, f"a constant must fit float32, but {found!s} stands")
        if not found.is_number or found.is_Rational:
            return found
        return sp.Float(float(found)) or sp.Integer(0)  # sympy's Float 0 is not its 0

    def raw(self, owner: str, tree: Expression) -> sp.Expr:
        match tree:
            case Number(value=value):
                exact = value.denominator & (value.denominator - 1) == 0 and value.denominator <= 1024
                return sp.Rational(value.numerator, value.denominator) if exact else sp.Float(float(value))
            case Name(name=name):
                return self.values[name]
            case Binary(operator="%", left=left, right=right):
                return remainder(self.raw(owner, left), self.raw(owner, right))
            case Binary(operator=operator, left=left, right=right):
                a, b = self.expr(owner, left), self.expr(owner, right)
                return self.sum(owner, operator, a, b) if operator in "+-" else self.product(owner, operator, a, b)
            case Power(base=base, exponent=exponent):
                return self.power(owner, self.expr(owner, base), sp.Rational(exponent.numerator, exponent.denominator))
            case Cast(arg=arg, to=to):
                return cast(self.expr(owner, arg), Stored(to))
            case Call(function=function, args=(x, index)) if function == TAKE:
                return self.raw(owner, _taken(x, index))
            case Call() if is_dot(tree):
                return self.contraction(owner, tree)
            case Call(args=(x, _)) if columns := roll_of(tree):
                return self.rolled(owner, self.expr(owner, x), _columns(columns))
            case Call(function=function) if function == RANDOM:
                return self.random(owner, tree)
            case Call(function=function):
                if function in _MONOIDS:
                    return self.reduction(owner, tree)
                return self.function(owner, function, [self.expr(owner, arg) for arg in tree.args])

    def sum(self, owner: str, operator: str, a: sp.Expr, b: sp.Expr) -> sp.Expr:
        a, b = (self.part(owner, e) if e.is_Add and other != 0 else e for e, other in ((a, b), (b, a)))
        found = a + b if operator == "+" else a - b
        if (found.is_Add and len(found.args) == 2) or 0 in (a, b) or (a.is_number and b.is_number):
            return found
        a = self.own(owner, a)
        return a + b if operator == "+" else a - b

    def product(self, owner: str, operator: str, a: sp.Expr, b: sp.Expr) -> sp.Expr:
        if operator == "/" and b == 0:
            raise self.error(owner, "division by 0")
        if operator == "/" and b.is_Pow and b.exp < 0:
            b = self.part(owner, b)
        if not (a.is_number and b.is_number):
            a, b = (self.own(owner, e) if e == 0 else e for e in (a, b))  # 0 times NaN is NaN
        if _merges(a, b):
            a, b = (self.part(owner, e) if len(_bases(e)) > 1 else e for e in (a, b))
        for number, other in ((a, b), (b, a)):
            if number.is_number and number not in (0, 1, -1) and other.is_Add:
                a, b = (self.part(owner, e) if e is other else e for e in (a, b))
        return product(a, b) if operator == "*" else quotient(a, b)

    def power(self, owner: str, base: sp.Expr, exponent: sp.Rational) -> sp.Expr:
        if base == 0 and exponent < 0:
            raise self.error(owner, "division by 0")
        if is_product(base) or base.is_Pow:
            base = self.part(owner, base)
        found = base**exponent
        is_kept = found.is_Pow and found.args == (base, exponent)
        return found if is_kept or exponent in (0, 1) else self.part(owner, base) ** exponent

    def function(self, owner: str, function: str, args: list[sp.Expr]) -> sp.Expr:
        match function:
            case "sqrt" | "rsqrt":
                return self.power(owner, args[0], sp.Rational(1 if function == "sqrt" else -1, 2))
            case "sigmoid":
                return 1 / (1 + self.function(owner, "exp", [-args[0]]))
        args = [self.real(owner, arg) for arg in args]
        make = MEANINGS[function].make
        found = make(*args)
        # exp(log(cast(x))) is cast(x) to sympy, and NaN where x is negative to a kernel.
        if isinstance(found, Opaque) and not any(arg.has(found) for arg in args):
            return found
        is_kept = found.func is make and set(found.args) == set(args)
        return found if is_kept else make(*(self.part(owner, arg) for arg in args))

    def real(self, owner: str, arg: sp.Expr) -> sp.Expr:
        """sympy compares real numbers only, and log(minimum(-1, x)) is NaN to a kernel but complex to sympy."""
        return self.part(owner, arg) if arg.is_extended_real is False else arg

    def random(self, owner: str, call: Call) -> sp.Expr:
        """The symbol of random numbers: each call that a formula makes has its own."""
        (seed,) = (name.name for name in names_in(call))
        number, name = self.draws[self.open[-1], call.column], self.fresh(f"{owner}_random")
        self.kinds[name] = Kind.ELEM
        self.statements.append(Random(name, seed, number))
        return symbol(name)

    def rolled(self, owner: str, value: sp.Expr, columns: sp.Expr) -> sp.Expr:
        """The symbol of a rolled value, which has a name before it is rolled; of a row's value, that."""
        if columns == 0 or not self.kind_of(value).by_col:
            return value
        value = value if value.is_Symbol else self.own(owner, value)
        key = (roll.__name__, value, columns)
        if key not in self.shared:
            self.shared[key] = self.map(self.fresh(f"{value.name}_rolled"), roll(value, columns))
        return self.shared[key]

    def contraction(self, owner: str, call: Call, wish: str | None = None) -> sp.Expr:
        """The symbol of a product of matrices; equal products are one."""
        left, right = (settled(self.real(owner, self.expr(owner, arg))) for arg in call.args)
        kinds = self.kind_of(left), self.kind_of(right)
        over = kinds[0] & kinds[1]
        if not all(kind.is_matrix for kind in kinds):
            raise self.error(owner, "a side of '@' without its absent tensors has no two axes,")
        key = (DOT.name, left, right)
        if key not in self.shared:
            name = wish or self.fresh(f"{owner}_{DOT.name}")
            self.kinds[name], self.owners[name] = join(kinds) & ~over, self.open[-1]
            self.statements.append(Reduce((name,), self.kinds[name], DOT, (left, right), over=over))
            self.shared[key] = symbol(name)
        return self.shared[key]

    def reduction(self, owner: str, call: Call, wish: str | None = None) -> sp.Expr:
        """The symbol of a row reduction's result (for `mean`: over cols); equal reductions are one."""
        arg = settled(self.real(owner, self.expr(owner, call.args[0])))
        monoid, group = _MONOIDS[call.function], group_of(call)
        kind = self.kind_of(arg)
        over = (kind if kind.within_row else self.written_kind(call.args[0])).own_axis
        length = sp.Integer(group) if group else INNER if over.by_inner else COLS
        if kind.within_row and not kind.by_row:
            raise self.error(owner, f"{call.function} reduces a row, so it reads a row input")
        # A row of groups is what may be left of an elem without its absent input.
        if not kind.within_row or (kind.is_groups and group):
            return self.of_constant(owner, call.function, arg, count=length)
        key = (f"{monoid.name} {group}", arg)
        if key not in self.shared:
            self.shared[key] = self.reduce(self.reduction_name(owner, arg, monoid, wish), monoid, arg, group, over)
        total = self.shared[key]
        return quotient(total, length) if call.function == "mean" else total

    def of_constant(self, owner: str, function: str, value: sp.Expr, *, count: sp.Expr) -> sp.Expr:
        """The reduction of a value that is the same in each of `count` columns."""
        match function:
            case "sum":
                return self.product(owner, "*", count, value)
            case "absmax":
                return self.function(owner, "abs", [value])
            case "argmax" | "argmin":
                return sp.Integer(0)
        return value

    def reduction_name(self, owner: str, arg: sp.Expr, monoid: Monoid, wish: str | None) -> str:
        if wish is not None:
            return wish
        if arg.is_Pow and arg.base.is_Symbol and arg.exp == 2 and monoid is SUM:
            return self.fresh(f"{arg.base.name}_squares")
        return self.fresh(f"{arg.name if arg.is_Symbol else owner}_{monoid.name}")

    def written_kind(self, tree: Expression) -> Kind:
        """The kind of a formula whose tensors are all there."""
        named = {node.name for node in nodes(tree) if isinstance(node, Name)}
        formulas = (self.formulas[name] for name in named if name in self.formulas)
        tensors = (t.kind.in_rows for t in self.spec.tensors if t.name in named and not t.role.is_written)
        return join([*tensors, *(self.written_kind(parse_formula(f.text)) for f in formulas)])

    def reduce(self, name: str, monoid: Monoid, arg: sp.Expr, group: int, over: Kind) -> sp.Expr:
        kind = Kind.GROUPS if group else Kind.ROW
        names: tuple[str, ...] = (name,)
        args: tuple[sp.Expr, ...] = (arg,)
        if monoid in (ARGMAX, ARGMIN):  # a position is found with its value
            names, args = (name, self.fresh(f"{name}_value")), (arg, COL)
        self.kinds |= dict.fromkeys(names, kind)
        self.owners |= dict.fromkeys(names, self.open[-1])
        self.statements.append(Reduce(names, kind, monoid, args, group=group, over=over))
        return symbol(name)


def _columns(roll: Roll) -> sp.Expr:
    """By how many columns; of a share of the row, the part beyond whole rows."""
    return sp.Rational(roll.share.numerator, roll.share.denominator) % 1 * COLS + roll.by


def _is_float32(number: sp.Expr) -> bool:
    """Whether float32 holds a constant: log(0), sqrt(-1), exp(200) and what algebra folds to NaN are none."""
    value = complex(number)
    return value.imag == 0 and F32.holds(value.real)


def _is_reduction(tree: Expression) -> bool:
    """Is the whole formula one reduction, without a factor?"""
    return isinstance(tree, Call) and (is_dot(tree) or (tree.function in _MONOIDS and tree.function != "mean"))


def _taken(x: Expression, index: Expression) -> Expression:
    """take(x, index) in other words."""
    return Call("sum", (Call("where", (Call("==", (Name(COL.name), index)), x, Number(Fraction(0)))),))


def _bases(expr: sp.Expr) -> frozenset[sp.Expr]:
    """The bases whose powers make up a product, constants aside."""
    factors = sp.Mul.make_args(opened(expr))
    return frozenset(factor.as_base_exp()[0] for factor in factors if not factor.is_number)


def _merges(a: sp.Expr, b: sp.Expr) -> bool:
    """Would sympy collect powers of a common base across these two factors?"""
    return bool(_bases(a) & _bases(b))
