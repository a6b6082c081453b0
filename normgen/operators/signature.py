"""A Python function with a spec's tensors and scalars as its parameters: the quickest way to bind them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normgen.errors import UsageError
from normgen.spec.spec import Spec, Tensor


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A parameter behind the first that a framework's function of the same name has, and a spec has not.

    parameter  with its default; several with commas between them. One of an option's name is that option
    lines  what a call does with it, as Python, by the names of the parameters: where it is said as the framework says
           it, `return run_beside_(call_, ...)`. It reads nothing but its arguments, as `traced` does
    run    run_beside_
    """

    parameter: str
    lines: str
    run: Callable[..., Any]


def as_called(error: UsageError, spec: Spec, name: str, takes: Mapping[str, str]) -> UsageError:
    """The refusal in the words of the function that was called, which names itself and its tensors by `takes`."""
    rule = error.rule.replace(f"of spec '{spec.name}'", f"of '{spec.name}'")
    for known, called in ((spec.name, name), *takes.items()):
        rule = rule.replace(f"'{known}'", f"'{called}'")
    return type(error)(rule, received=error.received, hint=error.hint) if name != spec.name or takes else error


def functions_of(
    spec: Spec,
    reads: Sequence[Tensor],
    run: Callable[..., Any],
    *,
    name: str,
    takes: Mapping[str, str],
    defaults: Mapping[str, float],
    options: Mapping[str, Any],
    module: str,
    says: str,
    traced: tuple[Callable[[], bool], Callable[..., Any], Callable[[], str]] | None = None,
    beside: Beside | None = None,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(The function that hands its arguments to `run`, one that returns them): tensors, scalars, then the options.

    takes    names the first parameters, in order, and what they are called: one in front of a tensor that is not
             optional has no default, None being said; `defaults` other values of scalars than the spec's
    options  further arguments, by name alone -> default; a tensor or a scalar of such a name ends with an underscore
    says     the end of its docstring: what a call returns
    traced   (whether a compiler traces the call, what then takes all arguments in a row, the last of them): a compiler
             guards each attribute that a call reads on its way, and this way reads none
    """

    def parameter(of: str) -> str:
        return f"{of}_" if of in options else of

    called = {t.name: parameter(takes.get(t.name, t.name)) for t in reads}
    scalars = {n: parameter(takes.get(n, n)) for n, _ in spec.scalars}
    order = sorted(reads, key=lambda t: ([*takes, t.name].index(t.name), t.optional))
    asked = max((place for place, t in enumerate(order) if not t.optional), default=-1)
    tensors = [f"{called[t.name]}{'=None' if place > asked else ''}" for place, t in enumerate(order)]
    values = [f"{scalars[n]}={defaults.get(n, value)!r}" for n, value in spec.scalars]
    between = [beside.parameter] if beside else []
    said = [one.partition("=")[0].strip() for one in beside.parameter.split(",")] if beside else []
    ours = [f"{option}={value!r}" for option, value in options.items()]
    behind = [f"{option}={value!r}" for option, value in options.items() if option not in said]
    parameters = ", ".join((*tensors, *values, *["*"] * bool(ours), *ours))
    public = ", ".join((*tensors[:1], *between, *tensors[1:], *values, *["*"] * bool(behind), *behind))
    first = textwrap.indent(beside.lines, " " * 8) if beside else ""
    bound = ", ".join(
        (f"({', '.join(called.values())},)", f"({''.join(f'{n}, ' for n in scalars.values())})", *options)
    )
    in_a_row = ", ".join((*called.values(), *scalars.values(), *options, "where_()"))
    way = f"        if is_traced_():\n            return traced_({in_a_row})\n" if traced else ""
    text = (  # no name of a spec ends with an underscore
        "def made_(run_, bind_, is_traced_, traced_, where_, run_beside_):\n"
        f"    def call_({public}):\n{first}{way}        return run_({bound})\n"
        f"    def bound_({parameters}):\n        return bind_({bound})\n"
        "    return call_, bound_\n"
    )
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, f"<{module} operator {name}>", "exec"), scope)
    function, binder = scope["made_"](run, lambda *found: found, *(traced or (None,) * 3), beside and beside.run)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = _described(spec, reads, called, says)
    function.__module__ = module
    return function, binder


def _described(spec: Spec, reads: Sequence[Tensor], called: Mapping[str, str], says: str) -> str:
    formulas = "\n".join(f"    {formula.name} = {formula.text}" for formula in spec.formulas)
    about = [f"{called[t.name]}: [{', '.join(_axes(t))}]{_says(t)}" for t in reads]
    return "\n\n".join((spec.summary, formulas, "\n".join(about), says, spec.paper)).strip()


def _axes(tensor: Tensor) -> list[str]:
    written = {"rows": "..", "groups": f"cols / {tensor.group}"}
    return [written.get(axis, axis) for axis in tensor.kind.axes]


def _says(tensor: Tensor) -> str:
    return (", may be None" if tensor.optional else "") + (f"; {tensor.doc}" if tensor.doc else "")
