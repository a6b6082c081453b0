"""The row reductions of one look: one packed state, its combine function, its step per element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy as sp

from normgen.codegen.printer import Printer
from normgen.codegen.view import State
from normgen.program.ir import Reduce
from normgen.program.monoid import LOWEST, Recipe, symbol

CONSTANTS = {LOWEST.name: "-3.402823466e+38f"}


def state_of(look: int, reduces: tuple[Reduce, ...]) -> State:
    """Struct, identity and combine of the packed state; `look` counts from 1."""
    lets: list[str] = []
    combined: list[str] = []
    for reduce in reduces:
        prefix = _let_prefix(reduce, reduces)
        names: dict[sp.Symbol, str] = {}
        for side in "ab":
            for component, name in zip(reduce.monoid.state, reduce.names, strict=True):
                names[symbol(f"{side}_{component}")] = f"{side}.{name}"
        more_lets, results = _print_recipe(reduce.monoid.combine, names, {}, {}, prefix)
        lets += more_lets
        combined += results
    printer = Printer(CONSTANTS)
    return State(
        type=f"Look{look}",
        variable=f"look{look}",
        doc=f"Look {look}: " + ", ".join(f"{r.monoid.name}({', '.join(map(str, r.args))})" for r in reduces),
        components=tuple(name for r in reduces for name in r.names),
        identity=tuple(printer.text(e) for r in reduces for e in r.monoid.identity),
        combine_lets=tuple(lets),
        combine=tuple(combined),
    )


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How the elements of a vector enter the state of a look.

    before  once per vector
    peek    once per element, in a pass of its own; empty: no reduction of this look needs it
    move    once per vector, between the passes
    elem    once per element
    """

    before: tuple[str, ...] = ()
    peek: tuple[str, ...] = ()
    move: tuple[str, ...] = ()
    elem: tuple[str, ...]


def steps_of(state: State, reduces: tuple[Reduce, ...], names: Mapping[str, str], *, by_vector: bool) -> Steps:
    """Statements that add a vector of elements to the state, or (not `by_vector`) a single one.

    `names` prints the values an argument reads.
    """
    before: list[str] = []
    peek: list[str] = []
    move: list[str] = []
    elem: list[str] = []
    for reduce in reduces:
        prefix = _let_prefix(reduce, reduces)
        own = {
            symbol(component): f"{state.variable}.{name}"
            for component, name in zip(reduce.monoid.state, reduce.names, strict=True)
        }
        vector = reduce.monoid.vector_step if by_vector else None
        if vector is None:
            elem += _step(reduce, reduce.monoid.step, own, names, prefix)
            continue
        reference = f"{prefix}{vector.reference}"
        known = {**own, symbol(vector.reference): reference}
        start = _print_recipe(Recipe((vector.start,)), own, {}, names, prefix)[1][0]
        before.append(f"float {reference} = {start};")
        peeked = Recipe((vector.peek,))
        lines, arguments, texts = _arguments(reduce, peeked, names, prefix)
        result = _print_recipe(peeked, known, arguments, texts, prefix)[1][0]
        peek += [*lines, f"{reference} = {result};"]
        move += _assignments(list(own.values()), _print_recipe(vector.move, known, {}, names, prefix)[1])
        elem += _step(reduce, vector.step, own, names, prefix)
    return Steps(before=tuple(before), peek=tuple(peek), move=tuple(move), elem=tuple(elem))


def _step(
    reduce: Reduce, recipe: Recipe, own: Mapping[sp.Symbol, str], names: Mapping[str, str], prefix: str
) -> list[str]:
    lines, arguments, texts = _arguments(reduce, recipe, names, prefix)
    lets, results = _print_recipe(recipe, own, arguments, texts, prefix)
    return [*lines, *lets, *_assignments(list(own.values()), results)]


def _arguments(
    reduce: Reduce, recipe: Recipe, names: Mapping[str, str], prefix: str
) -> tuple[list[str], dict[sp.Symbol, sp.Expr], dict[str, str]]:
    """(locals for arguments that the recipe reads more than once, arguments by symbol, names with those locals)."""
    lines: list[str] = []
    arguments: dict[sp.Symbol, sp.Expr] = {}
    texts = dict(names)
    for arg_name, expr in zip(reduce.monoid.args, reduce.args, strict=True):
        if expr.is_Symbol or _uses(recipe, symbol(arg_name)) <= 1:
            arguments[symbol(arg_name)] = expr
        else:
            local = f"{prefix}term"
            lines.append(f"const float {local} = {Printer(names).text(expr)};")
            texts[f"@{local}"] = local
            arguments[symbol(arg_name)] = sp.Symbol(f"@{local}", real=True)
    return lines, arguments, texts


def _let_prefix(reduce: Reduce, group: tuple[Reduce, ...]) -> str:
    """Locals of two monoids with lets in one look must not collide."""
    return f"{reduce.names[0]}_" if len(group) > 1 else ""


def _uses(recipe: Recipe, argument: sp.Symbol) -> int:
    exprs = [*recipe.results, *(e for _, e in recipe.lets)]
    return sum(e.count(argument) for e in exprs)


def _print_recipe(
    recipe: Recipe,
    names: Mapping[sp.Symbol, str],
    arguments: Mapping[sp.Symbol, sp.Expr],
    texts: Mapping[str, str],
    prefix: str,
) -> tuple[list[str], list[str]]:
    """Lets and results as C text. Symbols of the recipe are renamed first: a program may use the same names."""
    renamed: dict[sp.Symbol, sp.Expr] = dict(arguments)
    printed = dict(CONSTANTS)
    for sym, text in names.items():
        renamed[sym] = sp.Symbol(f"@{text}", real=True)
        printed[f"@{text}"] = text
    printed.update(texts)
    lets: list[str] = []
    for let, expr in recipe.lets:
        local = prefix + let
        lets.append(f"const float {local} = {Printer(printed).text(expr.xreplace(renamed))};")
        renamed[symbol(let)] = sp.Symbol(f"@{local}", real=True)
        printed[f"@{local}"] = local
    return lets, [Printer(printed).text(e.xreplace(renamed)) for e in recipe.results]


def _assignments(targets: list[str], results: list[str]) -> list[str]:
    """Components whose new value reads another component are assigned first, while that still holds its old value."""
    order = sorted(range(len(targets)), key=lambda i: not any(t in results[i] for j, t in enumerate(targets) if j != i))
    lines = []
    for i in order:
        if results[i] == targets[i]:
            continue
        added = results[i].removeprefix(f"{targets[i]} + ").removesuffix(f" + {targets[i]}")
        lines.append(f"{targets[i]} += {added};" if added != results[i] else f"{targets[i]} = {results[i]};")
    return lines
