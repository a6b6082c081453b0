"""The backward RowProgram of a forward RowProgram: reverse mode, then the algebra of textbooks.

    layernorm, saved mean and rstd:

    xhat = (x - mean) * rstd        dxhat = dy * weight
    dx = rstd * (dxhat - mean(dxhat) - xhat * mean(dxhat * xhat))
    dweight = sum_rows(dy * xhat)   dbias = sum_rows(dy)

Rules. elem -> row fan-in is a row reduction, elem -> groups one over groups, elem -> col fan-in a column reduction; the
cotangent of a row or of groups is broadcast to the elems that it sums. The gradient of a tensor of one number is a
total: the cotangent of a scalar value is kept as the row values that it is the sum of. The scalars of a call have no
gradient. The gradient of roll(x, k) is roll(dy, -k). The gradients of a contraction's sides are contractions: of
y = x @ w they are dx = Σ_cols dy w and dw = Σ_rows x dy. A maximum of a row passes no gradient, and that is proven:
its cotangent must cancel to 0, as it does in softmax, where the maximum only shifts. The elements that are the extremum
of a group of columns share its gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import sympy as sp

from normgen.dtypes import F32
from normgen.errors import ProgramError, did_you_mean
from normgen.program.cleanup import without_dead_code
from normgen.program.functions import INFINITY, PARTIAL, equal, needs_of, roll, unequal, where
from normgen.program.gradient.algebra import Algebra
from normgen.program.gradient.chain_order import in_chain_order
from normgen.program.gradient.defined import Defined
from normgen.program.gradient.derivative import derivative
from normgen.program.gradient.inner_sums import InnerSums
from normgen.program.gradient.monomials import UNIT, Poly, add_into, expression, monomial, raised
from normgen.program.gradient.normalised import fresh, name_terms
from normgen.program.gradient.rolled import Rolled
from normgen.program.gradient.shared_terms import share_terms
from normgen.program.gradient.writer import GradientWriter
from normgen.program.ir import (
    SIZES,
    Load,
    Map,
    Reduce,
    RowProgram,
    Statement,
    Store,
    check,
    defined_names,
    is_stage,
    kind_of,
    used_exprs,
    used_names,
    value_kinds,
)
from normgen.program.monoid import DOT, symbol
from normgen.program.ordered import opened
from normgen.program.rewrites.contractions import factors_leave
from normgen.program.rewrites.rolls import is_rolled, rolls_to_loads
from normgen.spec.spec import Kind, join

LONGEST_WRITTEN_OUT = 200  # operations of a branch: names in names would grow without end
MOST_TERMS = 16  # of a cotangent that is written out: no built-in operation has more than 10


@dataclass(frozen=True, kw_only=True)
class GradientTensor:
    """One tensor of a backward program; its dtype is that of the forward tensor `of` (dx of x, dy of y).

    value  what is stored there: gradients [rows, cols] of one value are equal
    """

    name: str
    kind: Kind
    is_written: bool
    of: str
    value: str = ""


def differentiate(
    program: RowProgram,
    *,
    wrt: tuple[str, ...] | None = None,
    saved: tuple[str, ...] = (),
    cotangents: tuple[str, ...] | None = None,
    accumulate: bool | tuple[str, ...] = False,
    unread: tuple[Load, ...] = (),
) -> RowProgram:
    """The program that computes d<input> for each input in `wrt` from d<output> of each stored elem tensor and total.

    wrt         loaded tensors to differentiate by; None: all of them, and those of `unread`
    unread      tensors that the program does not load, as it would: their gradients are 0
    saved       forward values (row or elem) that are loaded; what is not saved is recomputed
    cotangents  stored tensors whose gradient is given; None: elem and scalar outputs. Others count as constants
    accumulate  add to the gradients instead of overwriting them: all, or the tensors named (`dweight`). The program
                neither reads nor stores an accumulated gradient that is 0
    Errors: ProgramError for an unknown name, a monoid other than sum, max, absmax, a maximum of a row that does more
    than shift, and a function without a derivative.
    """
    program = factors_leave(program) if check(program).dots else program
    inputs = {s.name: s for s in (*program.loads, *unread)}
    stored = {s.tensor: s for s in program.stores}
    chosen = tuple(inputs) if wrt is None else _known(wrt, inputs, "gradients are taken by loaded tensors")
    outputs = (s.tensor for s in program.stores if s.kind.is_elem or s.kind is Kind.SCALAR)
    sources = tuple(outputs) if cotangents is None else cotangents
    _known(sources, stored, "cotangents belong to stored tensors")
    if not sources:
        raise ProgramError("a backward pass needs an output", received=program.name)
    _check_saved(program, saved)
    reverse = _Reverse(program, chosen, saved, {t: stored[t] for t in sources})
    gradients = reverse.sweep()
    writer = reverse.writer()
    names = {f"d{n}" for n in chosen}
    added = names if accumulate is True else set(accumulate or ())
    _known(tuple(added), names, "only a gradient can be accumulated")
    for name in sorted(chosen, key=lambda n: _elem_first(inputs[n].kind)):
        writer.gradient(f"d{name}", inputs[name], gradients.get(name, {}), accumulate=f"d{name}" in added)
    _require_finite(program, writer.statements)
    statements = in_chain_order(writer.statements, reverse.forward, reverse.given())
    statements = named_by_gradients(statements)
    statements = share_terms(statements, reverse.kinds | reverse.algebra.kinds, reverse.taken)
    derived = RowProgram(f"{program.name}_backward", _in_order(statements, reverse), program.scalars)
    derived = check(without_dead_code(derived))  # eps, where the forward pass saved what it is in
    if is_rolled(derived):
        rolls_to_loads(derived)  # refuses what no other column's thread can compute
    return derived


def _require_finite(program: RowProgram, statements: Iterable[Statement]) -> None:
    """Raises ProgramError for a constant of a gradient that no float32 holds.

    Algebra finds 1/0 or 0/0 in v / (w - w), and 1e60 in the gradient of erf(x / 1e30).
    """
    for expr in (e for statement in statements for e in used_exprs(statement)):
        if expr.has(sp.nan, sp.zoo, sp.oo, -sp.oo):
            hint = "the formula divides by an expression that is always 0, or takes its logarithm"
            raise ProgramError("a gradient has a constant factor that is no number", received=program.name, hint=hint)
        for number in expr.atoms(sp.Number):
            if not F32.holds(float(number)):
                hint = "scale the formula's constants, whose products or powers the gradient takes"
                rule = f"a constant of a gradient must fit float32, but {number!s} stands in it"
                raise ProgramError(rule, received=program.name, hint=hint)


def backward_tensors(
    program: RowProgram,
    saved: tuple[str, ...] = (),
    *,
    wrt: tuple[str, ...] | None = None,
    cotangents: tuple[str, ...] | None = None,
    unread: tuple[Load, ...] = (),
) -> tuple[GradientTensor, ...]:
    """Every tensor of `differentiate(program, ...)` in the order of a call.

    For layernorm with saved mean and rstd: dx, dweight, dbias, dy, x, weight, mean, rstd.
    """
    backward = differentiate(program, wrt=wrt, saved=saved, cotangents=cotangents, unread=unread)
    forward_inputs = {s.name for s in program.loads}
    order = [*forward_values(program), *(load.name for load in unread)]
    written = [
        GradientTensor(name=s.tensor, kind=s.kind, is_written=True, of=s.tensor[1:], value=s.value)
        for s in backward.stores
    ]
    written.sort(key=lambda t: order.index(t.of))
    read = []
    for load in backward.loads:
        is_cotangent = load.name not in order
        of = load.name[1:] if is_cotangent else load.name
        read.append(GradientTensor(name=load.name, kind=load.kind, is_written=False, of=of))
    read.sort(key=lambda t: (_elem_first(t.kind), t.name in order, t.name not in forward_inputs, t.of))
    return (*written, *read)


def forward_values(program: RowProgram) -> tuple[str, ...]:
    """Names of all values and stored tensors, in order of definition."""
    names = [n for s in program.statements for n in (defined_names(s) if not isinstance(s, Store) else (s.tensor,))]
    return tuple(dict.fromkeys(names))


def _known(names: tuple[str, ...], known: Collection[str], rule: str) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise ProgramError(rule, received=name, hint=did_you_mean(name, known))
    return names


def _elem_first(kind: Kind) -> tuple[bool, bool]:
    """The order of tensors: elem, col, row."""
    return not kind.by_col, not kind.by_row


def _check_saved(program: RowProgram, saved: tuple[str, ...]) -> None:
    kinds = value_kinds(program)
    loads = {s.name for s in program.loads}
    candidates = {n for n, k in kinds.items() if k.by_row and n not in loads}
    _known(saved, candidates, "the forward saves row or elem values that it computes")


class _Reverse:
    """One sweep from the outputs to the inputs."""

    def __init__(
        self, program: RowProgram, wrt: tuple[str, ...], saved: tuple[str, ...], sources: dict[str, Store]
    ) -> None:
        self.taken = {*value_kinds(program), *map(str, SIZES), *(s.tensor for s in program.stores)}
        self.wrt = wrt
        gradients = [*(f"d{n}" for n in wrt), *(f"d{t}" for t in sources)]
        for name in gradients:
            if name in self.taken:
                raise ProgramError("the name of a gradient must be free in the forward program", received=name)
            self.taken.add(name)
        self.forward = name_terms(program, self.taken)
        self.kinds = value_kinds(RowProgram(program.name, self.forward, program.scalars))
        self.kinds.update((f"d{tensor}", store.kind) for tensor, store in sources.items())
        self.loaded = {s.name: s for s in program.loads}
        given = (*saved, *(f"d{t}" for t in sources))
        self.loaded.update((name, Load(name, self.kinds[name])) for name in given)
        self.algebra = Algebra(list(map(_opened, self.forward)), self.kinds, frozenset(saved))
        self.sources = sources
        self.named: dict[sp.Symbol, Poly] = {}
        self.dots: dict[sp.Symbol, Reduce] = {}
        self.inner_sums = InnerSums(
            algebra=self.algebra,
            forward=self.forward,
            dots=self.dots,
            named=self.named,
            fresh=lambda wanted: fresh(wanted, self.taken),
        )
        self.rolled = Rolled(self.forward, self.algebra, lambda wanted: fresh(wanted, self.taken))
        self.cotangents: dict[str, Poly] = {}
        self.active = self._active()
        self.maps = {s.name: s for s in self.forward if isinstance(s, Map) and s.kind.within_row}
        self.steep: dict[sp.Symbol, sp.Expr] = {}
        self.defined = Defined(self.forward, self.kinds)
        self.masks: dict[sp.Expr, bool] = {}

    def _active(self) -> set[str]:
        """Values that depend on an input in `wrt`."""
        active = set(self.wrt)
        for statement in self.forward:
            if used_names(statement) & active and not (isinstance(statement, Reduce) and statement.monoid.is_flat):
                active.update(defined_names(statement))
        return active

    def sweep(self) -> dict[str, Poly]:
        """The gradient of each input, before it is written."""
        for tensor, store in self.sources.items():
            given: Poly = {((symbol(f"d{tensor}"), sp.Integer(1)),): sp.Integer(1)}
            self._receive(store.value, given)
        for statement in reversed(self.forward):
            try:
                self._through(statement)
            except ProgramError as error:
                value = defined_names(statement)[0]
                raise ProgramError(error.rule, received=error.received, hint=error.hint, value=value) from None
        return {name: self.cotangents[name] for name in self.wrt if self.cotangents.get(name)}

    def _through(self, statement: Statement) -> None:
        if isinstance(statement, Map):
            self._through_map(statement)
        elif isinstance(statement, Reduce) and statement.is_dot:
            self._through_dot(statement)
        elif isinstance(statement, Reduce):
            self._through_reduce(statement)

    def writer(self) -> GradientWriter:
        forward = (*self.forward, *self.rolled.maps)
        return GradientWriter(self.algebra, forward, self.loaded, self.named, self.dots, self.taken)

    def given(self) -> tuple[sp.Symbol, ...]:
        """The cotangents that have a name: those of the outputs, and those of values."""
        return (*(symbol(f"d{t}") for t in self.sources), *self.named)

    def _receive(self, name: str, poly: Poly) -> None:
        add_into(self.cotangents.setdefault(name, {}), self.algebra.poly(poly))

    def _dependencies(self, statement: Map | Reduce) -> list[str]:
        names = (s.name for e in used_exprs(statement) for s in e.free_symbols if s not in SIZES)
        return sorted({n for n in names if n in self.active})

    def _through_map(self, statement: Map) -> None:
        cotangent = self.cotangents.get(statement.name)
        if not cotangent or statement.name not in self.active:
            return
        expr = opened(statement.expr)
        if isinstance(expr, roll):
            self._fan_in(expr.args[0].name, self.rolled.poly(cotangent, -expr.args[1]), from_kind=Kind.ELEM)
            return
        expr = expr.replace(where, self._where) if expr.has(where) else expr
        dependencies = self._dependencies(replace(statement, expr=expr))
        locals_ = {n: self.algebra.poly(derivative(expr, symbol(n))) for n in dependencies}
        cotangent = self._named(statement, cotangent, locals_)
        for name, local in locals_.items():
            self._fan_in(name, self._times(statement, cotangent, local), from_kind=statement.kind)

    def _times(self, statement: Map | Reduce, cotangent: Poly, local: Poly) -> Poly:
        """cotangent * local; where branches that are not taken leave the cotangent 0, nothing of an infinite local."""
        is_total = isinstance(statement, Reduce) and statement.kind is Kind.SCALAR
        if is_total or not (self._is_masked(cotangent) and self._may_be_no_number(local)):
            return self.algebra.times(cotangent, local)
        if not self._is_bare(cotangent):
            cotangent = self._under_a_name(statement, cotangent)
        (((value, _),),) = cotangent
        taken: Poly = {}
        for term, number in local.items():
            add_into(taken, {((where(unequal(value, 0), expression(term), 0), sp.Integer(1)),): number})
        return self.algebra.times(cotangent, taken)

    def _is_masked(self, poly: Poly) -> bool:
        """Whether every term has a factor that is 0 where a branch is not taken."""
        return all(any(self._is_mask(atom) for atom, _ in term) for term in poly)

    def _is_mask(self, atom: sp.Expr) -> bool:
        """Found once: cotangents share those behind them."""
        if atom not in self.masks:
            self.masks[atom] = self._find_mask(atom)
        return self.masks[atom]

    def _find_mask(self, atom: sp.Expr) -> bool:
        if isinstance(atom, where):
            return 0 in atom.args[1:]
        atom = self.rolled.origin(atom)
        if atom in self.named:
            return self._is_masked(self.named[atom])
        inner = self.algebra.sums.get(atom) or self.algebra.group_sums.get(atom)
        return inner is not None and any(self._is_mask(a) for a, _ in inner)

    def _may_be_no_number(self, local: Poly) -> bool:
        """Whether a term divides by what may be 0, as a sum may be that is no value of the forward pass."""
        atoms = [sp.Pow(a, p) for term in local for a, p in term]
        counts = {s for e in atoms for s in e.free_symbols if s in self.algebra.group_sums}
        return bool(counts) or any(map(self.defined.may_be_no_number, atoms))

    def _where(self, condition: sp.Expr, *branches: sp.Expr) -> sp.Expr:
        """With the values written out whose derivative may be infinite where their branch is not taken: 0/0 is NaN."""
        return where(condition, *(b.xreplace({v: self._steep(v) for v in b.free_symbols}) for b in branches))

    def _steep(self, value: sp.Symbol) -> sp.Expr:
        """What a value within the row is computed from, if that or a part of it is steep; else the value."""
        if value not in self.steep:
            self.steep[value] = value
            if value.name in self.maps and not isinstance(self.maps[value.name].expr, roll):
                expr = opened(self.maps[value.name].expr)
                expr = expr.xreplace({v: self._steep(v) for v in expr.free_symbols})
                is_short = expr.count_ops() <= LONGEST_WRITTEN_OUT
                self.steep[value] = expr if is_short and self._is_steep(expr) else value
        return self.steep[value]

    def _is_steep(self, expr: sp.Expr) -> bool:
        """Whether it divides by, or takes a root or the logarithm of, what varies along the row."""
        powers = (p for p in expr.atoms(sp.Pow) if not (p.exp.is_Integer and p.exp > 0))
        inner = [*(p.base for p in powers), *(arg for call in expr.atoms(*PARTIAL) for arg, _ in needs_of(call))]
        return expr.has(INFINITY) or any(kind_of(e, self.kinds).within_row for e in inner)

    def _through_dot(self, statement: Reduce) -> None:
        """The gradient of each side is a contraction of the cotangent and the other side."""
        cotangent = self.cotangents.get(statement.names[0])
        if not cotangent or not self.active & set(statement.names):
            return
        if not self._is_bare(cotangent):
            cotangent = self._under_a_name(statement, cotangent)
        ((((given, _),), number),) = cotangent.items()
        for at, side in enumerate(map(opened, statement.args)):
            local = side.replace(where, self._where) if side.has(where) else side
            dependencies = [n for n in sorted(s.name for s in local.free_symbols) if n in self.active]
            if not dependencies:
                continue
            other, kind = statement.args[1 - at], kind_of(side, self.kinds)
            over = kind_of(other, self.kinds).of_batch & ~statement.over
            wish = f"d{side.name}_dot" if side.is_Symbol else f"d{statement.names[0]}_{('left', 'right')[at]}"
            value = symbol(fresh(wish, self.taken))
            args = (other, given) if at else (given, other)
            self.dots[value] = Reduce((value.name,), kind, DOT, args, over=over)
            self.algebra.kinds[value.name] = kind
            whole: Poly = {((value, sp.Integer(1)),): number}
            for name in dependencies:
                slope = self.algebra.poly(derivative(local, symbol(name)))
                self._fan_in(name, self._times(statement, whole, slope), from_kind=kind)

    def _through_reduce(self, statement: Reduce) -> None:
        cotangents = [self.cotangents.get(n) for n in statement.names]
        if not any(cotangents) or not self.active & set(statement.names):
            return
        if statement.monoid.is_idempotent and not statement.group:
            name = statement.monoid.name
            taken = "abs(take(x, argmax(abs(x))))" if name == "absmax" else f"take(x, arg{name}(x))"
            raise ProgramError(
                f"the gradient of {name} is supported only where it cancels, as in softmax",
                received=f"{statement.names[0]} = {name}({statement.args[0]})",
                hint=f"{taken} has one, which the first of equal elements gets; constant({name}(x)) counts as a number",
            )
        if statement.monoid.name != "sum" and not statement.group:
            raise ProgramError(
                "sums are differentiated, and extrema whose gradient cancels",
                received=statement.monoid.name,
                hint="differentiate the program as written, before rewrites such as welford or online",
            )
        term, cotangent = opened(statement.args[0]), cotangents[0] or {}
        term = term.replace(where, self._where) if term.has(where) else term
        share: Poly = {UNIT: sp.Integer(1)}
        if statement.monoid.is_idempotent:
            term = sp.Abs(term) if statement.monoid.name == "absmax" else term
            share = self._share(term, symbol(statement.names[0]))
        for name in self._dependencies(replace(statement, args=(term,))):
            local = self.algebra.times(share, self.algebra.poly(derivative(term, symbol(name))))
            of_kind = Kind.ROW if statement.kind is Kind.SCALAR else Kind.ELEM
            if statement.is_of_side:
                of_kind = join([statement.kind, statement.over])
            self._fan_in(name, self._times(statement, cotangent, local), from_kind=of_kind)

    def _share(self, term: sp.Expr, extremum: sp.Symbol) -> Poly:
        """What an element has of the gradient of its group's extremum: equal ones share it."""
        share = ((where(equal(term, extremum), 1, 0), sp.Integer(1)),)
        self.algebra.counts[share] = extremum.name
        ((count, number),) = self.algebra.group_sum({share: sp.Integer(1)}).items()
        return self.algebra.times({share: sp.Integer(1)}, {monomial(raised(count, sp.Integer(-1))): 1 / number})

    def _fan_in(self, name: str, poly: Poly, *, from_kind: Kind) -> None:
        """Contributions are summed over the columns where they go to a value of the row, of a group or of all rows."""
        to_kind = self.kinds[name]
        if from_kind.is_left and to_kind.is_row:
            self._receive(name, self.inner_sums.of(poly))
            return
        is_over_rows = from_kind.is_left and to_kind.is_inner  # as those of columns, behind all else
        if from_kind.by_inner and to_kind is not from_kind and not is_over_rows:
            lost = " and ".join((from_kind & ~to_kind).axes)
            raise ProgramError(
                f"the gradient of '{name}' sums that of a side of a product over {lost}, in a kernel of its own",
                received=f"{name} : {to_kind}",
                hint="scale in a spec of its own, whose output is the side",
            )
        if from_kind.by_col and to_kind.is_groups:
            poly = self.algebra.group_sum(poly)
        elif from_kind.within_row and not to_kind.within_row:
            poly = self.algebra.row_sum(poly)
            if from_kind.is_groups:  # its value is in each column of its group
                poly = self.algebra.times(poly, {UNIT: sp.Rational(1, self.algebra.group)})
        self._receive(name, poly)

    def _named(self, statement: Map, cotangent: Poly, locals_: dict[str, Poly]) -> Poly:
        """The cotangent under the name d<value>, where sharing it hides nothing that could cancel.

        Row factors must stay visible: they leave row reductions, and row sums in them cancel. A long
        cotangent of a purely elementwise map gets a name too, or its terms would be written out per use; one of very
        many terms gets one anywhere, or formulas in formulas would double them without end.
        """
        if len(cotangent) > MOST_TERMS:
            return self._under_a_name(statement, cotangent)
        if not statement.kind.is_elem or (len(cotangent) == 1 and next(iter(cotangent)) in self._bare()):
            return cotangent
        if all(local == {UNIT: 1} for local in locals_.values()):  # h = x + residual: dx is dh
            return cotangent
        has_rows = any(self.algebra.split_groups(term)[0] != UNIT for term in cotangent)
        reads_rows = any(self.kinds[n].is_row or self.kinds[n].is_groups for n in locals_)
        is_reused = len(locals_) > 1 or any(len(local) > 1 for local in locals_.values())
        if has_rows and (reads_rows or len(cotangent) == 1 or not is_reused):
            return cotangent
        return self._under_a_name(statement, cotangent)

    def _under_a_name(self, statement: Map | Reduce, cotangent: Poly) -> Poly:
        """Of what varies along the row alone it varies so too: of x in sum(x) the cotangent is one of the row."""
        value = symbol(fresh(f"d{defined_names(statement)[0]}", self.taken))
        self.named[value] = cotangent
        kinds = (self.algebra.kind(atom) for term in cotangent for atom, _ in term)
        self.algebra.kinds[value.name] = join([Kind.ROW, *kinds])
        return {((value, sp.Integer(1)),): sp.Integer(1)}

    def _is_bare(self, cotangent: Poly) -> bool:
        """Whether it is a given value and no multiple of one."""
        return len(cotangent) == 1 and next(iter(cotangent)) in self._bare() and set(cotangent.values()) == {1}

    def _bare(self) -> set[tuple[tuple[sp.Symbol, sp.Integer], ...]]:
        return {((value, sp.Integer(1)),) for value in self.given()}


def _opened(statement: Statement) -> Statement:
    """The statement with sympy's products, in which the algebra finds equal terms."""
    match statement:
        case Map(expr=expr):
            return replace(statement, expr=opened(expr))
        case Reduce(args=args):
            return replace(statement, args=tuple(map(opened, args)))
        case _:
            return statement


def named_by_gradients(statements: list[Statement]) -> list[Statement]:
    """With a contraction that a gradient is, and nothing else reads, under the gradient's name."""
    readers = Counter(name for s in statements for name in used_names(s))
    dots = {s.names[0] for s in statements if isinstance(s, Reduce) and s.is_dot and readers[s.names[0]] == 1}
    names = {s.expr.name: s.name for s in statements if isinstance(s, Map) and s.expr.is_Symbol and s.expr.name in dots}
    found: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Reduce) and statement.names[0] in names:
            found.append(replace(statement, names=(names[statement.names[0]],)))
        elif not (isinstance(statement, Map) and statement.name in names.values()):
            found.append(statement)
    return found


def _in_order(statements: list[Statement], reverse: _Reverse) -> tuple[Statement, ...]:
    """Loads, then by how many row reductions a statement waits for, a stage's reductions together; results last."""
    stages: dict[str, int] = {}
    keys: list[tuple[int, int, int]] = []
    load_order = [*(f"d{t}" for t in reverse.sources), *reverse.loaded]
    for statement in statements:
        need = max((stages.get(n, 0) for n in used_names(statement)), default=0)
        for name in defined_names(statement):
            stages[name] = need + is_stage(statement)
        if isinstance(statement, Load):
            keys.append((-1, 0, load_order.index(statement.name)))
        else:
            is_sum = is_stage(statement)
            is_over_rows = isinstance(statement, Reduce) and not (is_sum or statement.kind.by_row)
            is_late = isinstance(statement, Store) or is_over_rows
            keys.append((len(statements) if is_late else need, int(is_sum), 0))
    ordered = sorted(range(len(statements)), key=lambda i: (keys[i], i))
    return tuple(statements[i] for i in ordered)
