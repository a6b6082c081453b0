"""A kernel of one schedule, for its reader: what its Config settles is written out.

In a header one text serves the Configs of many shapes. A reader of one kernel has one Config: its constants are
numbers, its types have their names, a condition that they decide is gone with the branch that is not taken, and the
kernel is no template. It computes what the template does, nine kernels in ten in the same machine code; in the others
registers and order differ (tests/codegen/test_alone.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from normgen.codegen.chain import UNCHAINED
from normgen.codegen.config.constants import FALSE, TRUE, Known, inner, value
from normgen.codegen.config.kernel_text import PLAIN, KernelText
from normgen.codegen.statements import (
    Comment,
    ConfigSetting,
    Do,
    For,
    Gap,
    If,
    Let,
    Set,
    Statement,
    TypeSetting,
    identifiers,
    pruned,
)

_BOUNDS = re.compile(r"Config::(\w+)")
_ALIAS = re.compile(r"[a-z_]\w*|\d+")
_QUOTIENT = re.compile(r"(?<![\w*/%] )(?<![\w!)>\]])\(([\w.!]+ / \w+)\)(?! [*/%])")
_WHOLE = ("const int", "const bool", "const long long")
_COUNTER = re.compile(r"(?:int|unsigned) (\w+) = 0")


def alone(kernel: KernelText) -> KernelText:
    """The kernel without its Config."""
    settings = PLAIN | kernel.settings
    types = [s for s in kernel.body if isinstance(s, TypeSetting)]
    calls = {name: text for s in types for name, text in s.members.items()}
    in_parts = {s.name for s in types if s.members}  # its functions are written out, and the type where that is not so
    names = {name: text for name, text in settings.items() if isinstance(text, str) and name not in in_parts}
    sizes_of_types = {name: text for name, text in calls.items() if text.isdigit()}
    known = Known({}, names | sizes_of_types, calls)
    chain = str(settings["Chain"])
    sizes = [str(settings.get(name, 0)) for name in _BOUNDS.findall(kernel.bounds)] or [kernel.bounds]
    pointer = "{} __restrict__ {}" if chain in UNCHAINED else "{} {}"
    return replace(
        kernel,
        config={},
        bounds=", ".join(size for i, size in enumerate(sizes) if i == 0 or size != "0"),
        params=tuple(_param(text, pointer) for text in kernel.params),
        body=pruned(without_counters(_settled(kernel.body, known))),
    )


def _param(text: str, pointer: str) -> str:
    """A parameter whose type asks no Config."""
    found = re.fullmatch(r"Input<Config, (.+)> (\S+)", text)
    return pointer.format(f"const {found[1]}*", found[2]) if found else text


def _settled(statements: Iterable[Statement], known: Known) -> Sequence[Statement]:
    """The statements with what is known written out; what they declare is known behind them."""
    found: list[Statement] = []
    for statement in statements:
        written = tuple(_written(statement, known))
        if isinstance(statement, If) and not written:
            while found and isinstance(found[-1], Comment):  # it says what is not done
                found.pop()
        found += written
    return found


def _written(statement: Statement, known: Known) -> Iterator[Statement]:
    match statement:
        case ConfigSetting() if statement.is_type:  # one without a name in the text is dropped with what nobody reads
            yield Let("using", statement.name, str(statement.chosen))
        case ConfigSetting():
            yield from _constant(statement, int(statement.chosen), known)
        case Let() if statement.is_constant:
            text = known.text(statement.value)
            number = None if statement.is_type else value(text, known.numbers)
            if number is None:
                yield replace(statement, value=text)
            else:
                yield from _constant(statement, number, known)
        case Let():
            text = _plain(known.text(statement.value))
            if statement.type in _WHOLE and _ALIAS.fullmatch(text):
                known.names[statement.name] = text
            else:
                yield replace(statement, value=text)
        case Set():
            yield replace(statement, target=known.text(statement.target), value=_plain(known.text(statement.value)))
        case Do():
            text = known.text(statement.expression)
            if text and not any(f"{name}<" in text for name, instead in known.calls.items() if not instead):
                yield replace(statement, expression=_plain(text))
        case For():
            body = tuple(_settled(statement.body, known.copy()))
            yield replace(statement, head=known.text(statement.head), body=body)
        case If():
            yield from _branch(statement, known)
        case _:
            yield statement


def _constant(constant: Let, number: int, known: Known) -> Iterator[Statement]:
    """A number keeps its name; of a flag the text has the value alone."""
    if constant.type == "constexpr bool":
        known.names[constant.name] = TRUE if number else FALSE
        return
    known.numbers[constant.name] = number
    yield Let(constant.type, constant.name, str(number), constant.comment)


def _branch(statement: If, known: Known) -> Iterator[Statement]:
    condition = known.text(statement.condition)
    decided = value(condition, known.numbers)
    if decided is not None:
        yield from _settled(statement.body if decided else statement.otherwise, known)
        return
    body = tuple(_settled(statement.body, known.copy()))
    otherwise = tuple(_settled(statement.otherwise, known.copy()))
    yield replace(statement, condition=condition, body=body, otherwise=otherwise)


def without_counters(body: Sequence[Statement]) -> Sequence[Statement]:
    """The body without counters that are only counted: they chose between slots of an exchange without any."""
    for declared in body:
        counter = isinstance(declared, Do) and _COUNTER.fullmatch(declared.expression)
        if counter and not _is_read(counter[1], body):
            body = _without(counter[1], body)
    return body


def _counts(statement: Statement, name: str) -> bool:
    text = statement.expression if isinstance(statement, Do) else ""
    return bool(re.fullmatch(rf"(?:(?:int|unsigned) {name} = 0|{name} \^= 1|\+\+{name})", text))


def _is_read(name: str, body: Iterable[Statement]) -> bool:
    for statement in body:
        if isinstance(statement, For | If):
            branches = (*statement.body, *(statement.otherwise if isinstance(statement, If) else ()))
            if name in identifiers(statement.head if isinstance(statement, For) else statement.condition):
                return True
            if _is_read(name, branches):
                return True
        elif not isinstance(statement, Gap | Comment) and name in statement.reads and not _counts(statement, name):
            return True
    return False


def _without(name: str, body: Iterable[Statement]) -> Sequence[Statement]:
    return [
        replace(s, body=tuple(_without(name, s.body))) if isinstance(s, For) else s
        for s in body
        if not _counts(s, name)
    ]


def _plain(text: str) -> str:
    """Names of a type that depends on no Config need no `typename`; a default needs no name.

    A quotient needs no brackets where sums alone are around it.
    """
    text = inner(text.replace("typename ", "").replace("::template ", "::"))
    text = _QUOTIENT.sub(r"\1", text)
    return text.replace(f", {PLAIN['Load']}>", ">").replace(f"<{PLAIN['Store']}>", "")
