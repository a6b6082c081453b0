"""The row reductions of one look: one packed state, its combine function, its step per element."""

from __future__ import annotations

from collections.abc import Mapping

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


def step_lines(state: State, reduces: tuple[Reduce, ...], names: Mapping[str, str]) -> list[str]:
    """Statements that add one element to the state; `names` prints the values an argument reads."""
    lines: list[str] = []
    for reduce in reduces:
        prefix = _let_prefix(reduce, reduces)
        arguments: dict[sp.Symbol, sp.Expr] = {}
        texts = dict(names)
        for arg_name, expr in zip(reduce.monoid.args, reduce.args, strict=True):
            if expr.is_Symbol or _uses(reduce.monoid.step, symbol(arg_name)) <= 1:
                arguments[symbol(arg_name)] = expr
            else:
                local = f"{prefix}term"
                lines.append(f"const float {local} = {Printer(names).text(expr)};")
                texts[f"@{local}"] = local
                arguments[symbol(arg_name)] = sp.Symbol(f"@{local}", real=True)
        own = {
            symbol(component): f"{state.variable}.{name}"
            for component, name in zip(reduce.monoid.state, reduce.names, strict=True)
        }
        lets, results = _print_recipe(reduce.monoid.step, own, arguments, texts, prefix)
        lines += lets
        lines += _assignments(reduce, list(own.values()), results)
    return lines


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


def _assignments(reduce: Reduce, targets: list[str], results: list[str]) -> list[str]:
    """Components whose new value reads another component are assigned first, while that still holds its old value."""
    order = sorted(range(len(targets)), key=lambda i: not any(t in results[i] for j, t in enumerate(targets) if j != i))
    lines = []
    for i in order:
        added = results[i].removeprefix(f"{targets[i]} + ")
        is_sum = len(targets) == 1 and reduce.monoid.name == "sum" and added != results[i]
        lines.append(f"{targets[i]} += {added};" if is_sum else f"{targets[i]} = {results[i]};")
    return lines
