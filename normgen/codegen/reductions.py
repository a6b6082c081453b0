"""The row reductions of one look: one packed state, its combine function, its step per element."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy as sp

from normgen.codegen.printer import FormulaPrinter, Printer
from normgen.codegen.statements import Do, Let, Statement, Struct, broken, text_of
from normgen.program.ir import Reduce
from normgen.program.monoid import LOWEST, SUM, Recipe, symbol

CONSTANTS = {LOWEST.name: "-3.402823466e+38f"}


@dataclass(frozen=True, kw_only=True)
class State:
    """The packed state of all row reductions of one look, exchanged in one tree."""

    type: str  # Look1
    variable: str  # look1
    doc: str
    components: tuple[str, ...]
    identity: tuple[str, ...]
    lets: tuple[Let, ...]  # of combine
    combined: tuple[str, ...]
    added: tuple[str, ...]  # components that elements are only added to
    are_largest: bool  # whether all components are largest absolute values

    def struct(self, *, shuffled: bool, short: bool) -> Struct:
        """The type; the library's trees call its `combine`, those of lanes `shuffle_xor`, short ones `of_warp`."""
        kind = self.type
        words = [f"__shfl_xor_sync(mask, s.{name}, offset)" for name in self.components]
        shuffle = (
            f"  static __device__ __forceinline__ {kind} shuffle_xor(const {kind}& s, int offset, unsigned mask) {{",
            *_body([Do(f"return {{{', '.join(words)}}}")]),
            "  }",
        )
        body = _body([*self.lets, Do(f"return {{{', '.join(self.combined)}}}")])
        return Struct(
            (
                *broken(f"struct {kind} {{  // state of {self.doc}", "// "),
                f"  float {', '.join(self.components)};",
                f"  static __device__ __forceinline__ {kind} combine(const {kind}& a, const {kind}& b) {{",
                *body,
                "  }",
                *(shuffle if shuffled and not (short and self.are_largest) else ()),
                *(self._of_warp() if short else ()),
                "};",
            )
        )

    def _of_warp(self) -> tuple[str, ...]:
        """How the states of a warp become one, in the fewest steps."""
        largest = ", ".join(f"largest_of_warp(s.{name})" for name in self.components)
        found = f"{{{largest}}}" if self.are_largest else "reduce_lanes<32>(s)"
        return (
            f"  static __device__ __forceinline__ {self.type} of_warp(const {self.type}& s) {{",
            *_body([Do(f"return {found}")]),
            "  }",
        )

    def start(self) -> list[Statement]:
        """Before the look: the state of no element, and the running sums of a thread."""
        lowest = "the lowest finite number: -inf - -inf is NaN" if CONSTANTS[LOWEST.name] in self.identity else ""
        why = "short chains of additions: few roundings, and none waits for another"
        sums = [
            Do(f"float {self.sums(name)}[kRunningSums] = {{}}", "" if i else why) for i, name in enumerate(self.added)
        ]
        return [Do(f"{self.type} {self.variable} = {{{', '.join(self.identity)}}}", lowest), *sums]

    def sums(self, component: str) -> str:
        """The running sums of one component."""
        return f"{self.variable}_{component}"

    def end(self) -> list[Statement]:
        """After the look: what a thread has added up."""
        return [Do(f"{self.variable}.{name} = sum_in_pairs({self.sums(name)})") for name in self.added]


def _body(statements: Sequence[Statement]) -> list[str]:
    """The lines of a function of the struct, which itself is indented by two."""
    return [line[2:] for line in text_of(statements, 6).splitlines()]


def state_of(look: int, reduces: tuple[Reduce, ...], values: Iterable[str]) -> State:
    """Struct, identity and combine of the packed state; `look` counts from 1, `values` orders names in its comment."""
    author = FormulaPrinter(values)
    lets: list[Let] = []
    combined: list[str] = []
    for reduce in reduces:
        prefix = _let_prefix(reduce, reduces)
        names: dict[sp.Symbol, str] = {}
        for side in "ab":
            for component, name in zip(reduce.monoid.state, reduce.names, strict=True):
                names[symbol(f"{side}_{component}")] = f"{side}.{name}"
        recipe = _renamed(reduce.monoid.combine, names, {}, {}, prefix)
        lets += recipe.lets
        combined += map(recipe.printer.text, recipe.results)
    printer = Printer(CONSTANTS)
    return State(
        type=f"Look{look}",
        variable=f"look{look}",
        doc=f"look {look}: " + ", ".join(f"{r.monoid.name}({', '.join(map(author.text, r.args))})" for r in reduces),
        components=tuple(name for r in reduces for name in r.names),
        identity=tuple(printer.text(e) for r in reduces for e in r.monoid.identity),
        lets=tuple(lets),
        combined=tuple(combined),
        added=tuple(name for r in reduces for name in r.names if r.monoid == SUM),
        are_largest=all(r.monoid.name == "absmax" for r in reduces),
    )


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How the elements of a vector enter the state of a look.

    before  once per vector
    peek    once per element, in a pass of its own; empty: no reduction of this look needs it
    move    once per vector, between the passes
    elem    once per element
    after   once per vector, behind its elements
    """

    before: tuple[Statement, ...] = ()
    peek: tuple[Statement, ...] = ()
    move: tuple[Statement, ...] = ()
    elem: tuple[Statement, ...]
    after: tuple[Statement, ...] = ()


def steps_of(
    state: State, reduces: tuple[Reduce, ...], names: Mapping[str, str], index: str, *, by_vector: bool
) -> Steps:
    """Statements that add a vector of elements to the state, or (not `by_vector`) a single one.

    `names` prints the values an argument reads, `index` is the element's in its vector: 0 of a single one at an edge.
    """
    before: list[Statement] = []
    peek: list[Statement] = []
    move: list[Statement] = []
    elem: list[Statement] = []
    after: list[Statement] = []
    running = "0" if index == "0" else f"{index} % kRunningSums"
    for reduce in reduces:
        prefix = _let_prefix(reduce, reduces)
        own = {
            symbol(component): f"{state.sums(name)}[{running}]" if name in state.added else f"{state.variable}.{name}"
            for component, name in zip(reduce.monoid.state, reduce.names, strict=True)
        }
        vector = reduce.monoid.vector_step if by_vector else None
        if vector is None:
            elem += _step(reduce, reduce.monoid.step, own, names, prefix)
            continue
        reference = f"{prefix}{vector.reference}"
        known = {**own, symbol(vector.reference): reference}
        start = _renamed(Recipe((vector.start,)), own, {}, names, prefix)
        before.append(Do(f"float {reference} = {start.texts[0]}"))
        peeked = Recipe((vector.peek,))
        lines, arguments, texts = _arguments(reduce, peeked, names, prefix)
        peek += [*lines, Do(f"{reference} = {_renamed(peeked, known, arguments, texts, prefix).texts[0]}")]
        move += _renamed(vector.move, known, {}, names, prefix).assignments(list(own.values()))
        in_vector = dict(own)
        if vector.added:
            sums = f"{prefix}{vector.added}s"
            in_vector[symbol(vector.added)] = f"{sums}[i % kRunningSums]"
            before.append(Do(f"float {sums}[kRunningSums] = {{}}"))
            after.append(Do(f"{own[symbol(vector.added)]} += sum_in_pairs({sums})"))
        elem += _step(reduce, vector.step, in_vector, names, prefix)
    return Steps(before=tuple(before), peek=tuple(peek), move=tuple(move), elem=tuple(elem), after=tuple(after))


def single_step(reduce: Reduce, variable: str, names: Mapping[str, str], *, prefix: str) -> list[Statement]:
    """One more element enters the variable of a monoid of one component; locals of several need a prefix each."""
    return _step(reduce, reduce.monoid.step, {symbol(reduce.monoid.state[0]): variable}, names, prefix)


def single_combine(reduce: Reduce, variable: str, other: str) -> list[Statement]:
    """Another state enters the variable of a monoid of one component."""
    [component] = reduce.monoid.state
    names = {symbol(f"a_{component}"): variable, symbol(f"b_{component}"): other}
    return _renamed(reduce.monoid.combine, names, {}, {}, "").assignments([variable])


def single_identity(reduce: Reduce) -> str:
    """The state of no element, of a monoid of one component."""
    return Printer(CONSTANTS).text(reduce.monoid.identity[0])


def _step(
    reduce: Reduce, recipe: Recipe, own: Mapping[sp.Symbol, str], names: Mapping[str, str], prefix: str
) -> list[Statement]:
    lines, arguments, texts = _arguments(reduce, recipe, names, prefix)
    renamed = _renamed(recipe, own, arguments, texts, prefix)
    return [*lines, *renamed.lets, *renamed.assignments(list(own.values()))]


def _arguments(
    reduce: Reduce, recipe: Recipe, names: Mapping[str, str], prefix: str
) -> tuple[list[Let], dict[sp.Symbol, sp.Expr], dict[str, str]]:
    """(locals for arguments that the recipe reads more than once, arguments by symbol, names with those locals)."""
    lets: list[Let] = []
    arguments: dict[sp.Symbol, sp.Expr] = {}
    texts = dict(names)
    for arg_name, expr in zip(reduce.monoid.args, reduce.args, strict=True):
        if expr.is_Symbol or (_uses(recipe, symbol(arg_name)) <= 1 and _is_kept(recipe, expr)):
            arguments[symbol(arg_name)] = expr
        else:
            local = f"{prefix}term"
            lets.append(Let(f"const float {local}", Printer(names).text(expr)))
            texts[f"@{local}"] = local
            arguments[symbol(arg_name)] = sp.Symbol(f"@{local}", real=True)
    return lets, arguments, texts


def _let_prefix(reduce: Reduce, group: tuple[Reduce, ...]) -> str:
    """Locals of two monoids with lets in one look must not collide."""
    return f"{reduce.names[0]}_" if len(group) > 1 else ""


def _is_kept(recipe: Recipe, expr: sp.Expr) -> bool:
    """Whether the expression stands in the recipe as it is.

    sympy writes |exp(z)| with the real part of z, and has no extremum of what it takes for complex: log(minimum(0, b)).
    """
    if expr.is_extended_real:
        return True
    refused = (sp.Abs, sp.Min, sp.Max) if expr.is_extended_real is False else (sp.Abs,)
    return not any(e.has(*refused) for e in recipe.results)


def _uses(recipe: Recipe, argument: sp.Symbol) -> int:
    exprs = [*recipe.results, *(e for _, e in recipe.lets)]
    return sum(e.count(argument) for e in exprs)


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """A recipe whose symbols stand for C text: its lets, its results, and who prints them."""

    lets: tuple[Let, ...]
    results: tuple[sp.Expr, ...]
    printer: Printer

    @property
    def texts(self) -> list[str]:
        return [self.printer.text(e) for e in self.results]

    def assignments(self, targets: list[str]) -> list[Statement]:
        """The results replace the targets; one that reads another target comes while that has its old value."""
        own = [_text_symbol(target) for target in targets]
        order = sorted(range(len(own)), key=lambda i: not (self.results[i].free_symbols & {*own[:i], *own[i + 1 :]}))
        statements: list[Statement] = []
        for i in order:
            result = self.results[i]
            if isinstance(result, sp.Add) and own[i] in result.args:
                added = sp.Add(*(term for term in result.args if term != own[i]))
                statements.append(Do(f"{targets[i]} += {self.printer.text(added)}"))
            elif result != own[i]:
                statements.append(Do(f"{targets[i]} = {self.printer.text(result)}"))
        return statements


def _text_symbol(text: str) -> sp.Symbol:
    return sp.Symbol(f"@{text}", real=True)


def _renamed(
    recipe: Recipe,
    names: Mapping[sp.Symbol, str],
    arguments: Mapping[sp.Symbol, sp.Expr],
    texts: Mapping[str, str],
    prefix: str,
) -> Renamed:
    """The recipe in C names. Its symbols are renamed first: a program may use the same names."""
    renamed: dict[sp.Symbol, sp.Expr] = dict(arguments)
    printed = dict(CONSTANTS)
    for sym, text in names.items():
        renamed[sym] = _text_symbol(text)
        printed[f"@{text}"] = text
    printed.update(texts)
    lets: list[Let] = []
    for let, expr in recipe.lets:
        local = prefix + let
        lets.append(Let(f"const float {local}", Printer(printed).text(expr.xreplace(renamed))))
        renamed[symbol(let)] = _text_symbol(local)
        printed[f"@{local}"] = local
    return Renamed(
        lets=tuple(lets), results=tuple(e.xreplace(renamed) for e in recipe.results), printer=Printer(printed)
    )
