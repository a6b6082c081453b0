"""The statements of a kernel. A statement knows which identifiers it reads; nothing searches finished text.

    Comment   // words
    Let       a constant or variable that is declared with its value; dropped where nobody reads it
    Setting   a constant whose value a schedule chooses: Config has it
    Set       an assignment
    Do        any other declaration, or a call
    For       a loop, or a function
    If        a branch
    Struct    a type with its functions
    Gap       a blank line

`pruned` drops what nobody reads, `text_of` prints. An expression is text in which names of the spec are marked
(spelling.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from normgen.codegen.spelling import unmarked, words

WIDTH = 120


def identifiers(text: str) -> frozenset[str]:
    """The identifiers of an expression."""
    return frozenset(word for word, _ in words(text) if not word[0].isdigit())


@dataclass(frozen=True)
class Gap:
    """A blank line; several of them, and one at the start or end of a block, are none."""


@dataclass(frozen=True)
class Comment:
    text: str


@dataclass(frozen=True)
class Let:
    """`type` `name` = `value`, without side effects; the type of a pointer to arrays has {} in the name's place."""

    type: str
    name: str
    value: str
    comment: str = ""

    @property
    def is_type(self) -> bool:
        return self.type == "using"

    @property
    def is_constant(self) -> bool:
        """Whether it is known when the text is compiled, or a type."""
        return self.is_type or self.type.startswith("constexpr ")

    @cached_property
    def reads(self) -> frozenset[str]:
        return identifiers(f"{self.type} {self.value}") - {self.name}

    @property
    def text(self) -> str:
        declared = self.type.format(self.name) if "{}" in self.type else f"{self.type} {self.name}"
        return f"{declared} = {self.value};"


@dataclass(frozen=True)
class ConfigSetting(Let):
    """A constant or type of the kernel's Config: `chosen` under one schedule."""

    chosen: int | str = 0


@dataclass(frozen=True)
class TypeSetting(ConfigSetting):
    """A type of the kernel's Config whose functions have a text of their own where Config is known: `members`."""

    members: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Do:
    """Another statement, its semicolon left out."""

    expression: str
    comment: str = ""

    @cached_property
    def reads(self) -> frozenset[str]:
        return identifiers(self.expression)

    @property
    def text(self) -> str:
        return f"{self.expression};"


@dataclass(frozen=True)
class Set:
    """`target` = `value`, or another assignment: `operator` says which."""

    target: str
    value: str
    operator: str = "="
    comment: str = ""

    @cached_property
    def reads(self) -> frozenset[str]:
        return identifiers(f"{self.target} {self.value}")

    @property
    def text(self) -> str:
        return f"{self.target} {self.operator} {self.value};"


@dataclass(frozen=True)
class For:
    """`head` { body } `tail`; with `unroll`, behind that line."""

    head: str
    body: tuple[Statement, ...]
    unroll: str = ""
    tail: str = ""

    @cached_property
    def reads(self) -> frozenset[str]:
        return identifiers(f"{self.head} {self.unroll}") | reads_of(self.body)


@dataclass(frozen=True)
class If:
    """`if (condition)`, and `else`; with `alone`, a single statement on the same line."""

    condition: str
    body: tuple[Statement, ...]
    alone: bool = False
    otherwise: tuple[Statement, ...] = ()

    @cached_property
    def reads(self) -> frozenset[str]:
        return identifiers(self.condition) | reads_of(self.body) | reads_of(self.otherwise)


@dataclass(frozen=True)
class Struct:
    """A type: what it holds, and its functions."""

    name: str
    body: tuple[Statement, ...]
    comment: str

    @cached_property
    def reads(self) -> frozenset[str]:
        return reads_of(self.body)


Statement = Gap | Comment | Let | Set | Do | For | If | Struct


def constant(name: str, value: str, comment: str = "") -> Let:
    """A constant that follows from others."""
    return Let("constexpr int", name, value, comment)


def setting(name: str, number: int, comment: str = "") -> ConfigSetting:
    """A constant that differs from schedule to schedule, or from problem to problem."""
    return ConfigSetting("constexpr int", name, f"Config::{name}", comment, number)


def type_setting(name: str, chosen: str, members: Mapping[str, str] | None = None) -> TypeSetting:
    """A type that differs from schedule to schedule."""
    return TypeSetting("using", name, f"typename Config::{name}", "", chosen, members or {})


def loop(variable: str, bound: str, body: Sequence[Statement], *, first: str = "0", unroll: str = "") -> For:
    """`for (int i = 0; i < bound; ++i)`."""
    head = f"for (int {variable} = {first}; {variable} < {bound}; ++{variable})"
    return For(head, tuple(body), unroll)


def function(name: str, parameters: str, body: Sequence[Statement]) -> For:
    """A lambda within the kernel."""
    return For(f"const auto {name} = [&]({parameters})", tuple(body), tail=";")


def when(condition: str, *body: Statement) -> tuple[Statement, ...]:
    """The statements, behind the condition if there is one."""
    return (If(condition, body),) if condition else body


def reads_of(statements: Iterable[Statement]) -> frozenset[str]:
    """Identifiers that the statements read, those of variables they declare themselves among them."""
    return frozenset().union(*(s.reads for s in statements if not isinstance(s, Gap | Comment)))


def pruned(statements: Sequence[Statement], read_later: frozenset[str] = frozenset()) -> tuple[Statement, ...]:
    """The statements without variables that nobody reads, and without loops and branches that do nothing."""
    kept: list[Statement] = []
    read = set(read_later)
    for statement in reversed(statements):
        match statement:
            case Gap() | Comment():
                kept.append(statement)
                continue
            case Let() if statement.name not in read:
                continue
            case For():
                statement = replace(statement, body=pruned(statement.body))
                if not statement.body and not statement.tail:
                    continue
            case If():
                body, otherwise = pruned(statement.body), pruned(statement.otherwise)
                if not body and not otherwise:
                    continue
                statement = replace(statement, body=body, otherwise=otherwise)
        kept.append(statement)
        read |= statement.reads
    return tuple(reversed(kept))


def text_of(statements: Sequence[Statement], indent: int = 0) -> str:
    """The statements as text, each line with its end; none crosses the right margin if it can be broken."""
    return "".join(f"{line}\n" for line in _lines(statements, " " * indent))


def _lines(statements: Sequence[Statement], indent: str) -> list[str]:
    lines: list[str] = []
    for statement in statements:
        if isinstance(statement, Gap):
            if lines and lines[-1]:
                lines.append("")
            continue
        lines += _statement_lines(statement, indent)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _statement_lines(statement: Statement, indent: str) -> Iterator[str]:
    match statement:
        case Comment():
            yield from broken(f"{indent}// {statement.text}", "// ")
        case Let() | Set() | Do():
            yield from _with_comment(indent, statement.text, statement.comment)
        case If() if line := _line(statement):
            yield from broken(indent + line, "    ")
        case For() | If():
            unroll = statement.unroll if isinstance(statement, For) else ""
            if unroll:
                yield f"{indent}{unroll}"
            head = statement.head if isinstance(statement, For) else f"if ({statement.condition})"
            yield from broken(f"{indent}{head} {{", "    ")
            yield from _lines(statement.body, indent + "  ")
            if isinstance(statement, If) and statement.otherwise:
                yield f"{indent}}} else {{"
                yield from _lines(statement.otherwise, indent + "  ")
            yield f"{indent}}}{statement.tail if isinstance(statement, For) else ''}"
        case Struct():
            yield from broken(f"{indent}struct {statement.name} {{  // {statement.comment}", "// ")
            for member in statement.body:
                yield from _member_lines(member, indent)
            yield f"{indent}}};"


def _line(statement: Statement) -> str:
    """The statement in one line, however long; none of what has more."""
    match statement:
        case Let() | Set() | Do():
            return statement.text + (f"  // {statement.comment}" if statement.comment else "")
        case If(alone=True, body=[inner]) if line := _line(inner):
            return f"if ({statement.condition}) {line}"
    return ""


def _member_lines(member: Statement, indent: str) -> Iterator[str]:
    """Those of a function's body are broken two columns early, its head and the names of components never."""
    assert isinstance(member, Do | For)
    yield f"{indent}  {member.text if isinstance(member, Do) else f'{member.head} {{'}"
    if isinstance(member, For):
        yield from (line[2:] for line in _lines(member.body, indent + " " * 6))
        yield f"{indent}  }}"


def _with_comment(indent: str, text: str, comment: str) -> list[str]:
    if not comment:
        return broken(indent + text, "    ")
    line = f"{indent}{text}  // {comment}"
    return [line] if len(unmarked(line)) <= WIDTH else [f"{indent}// {comment}", *broken(indent + text, "    ")]


def broken(line: str, further: str) -> list[str]:
    """The line, in several where it is too long: at the outermost comma or operator, as late as may be."""
    indent = line[: len(line) - len(line.lstrip())]
    lines = []
    while len(unmarked(line)) > WIDTH:
        at = _break(line, len(indent) + 4)
        if at is None:
            break
        lines.append(line[:at].rstrip())
        line = indent + further + line[at:].lstrip()
    return [*lines, line]


def _break(line: str, least: int) -> int | None:
    comment = line.lstrip().startswith("//")
    depth, best, weakest = 0, None, (1 << 30, False)
    for at, char in enumerate(line):
        if at > WIDTH and len(unmarked(line[:at])) > WIDTH:
            break
        opens_template = char == "<" and line[at - 1].isalnum() and line[at + 1 : at + 2].strip() not in ("", "=", "<")
        closes_template = char == ">" and line[at - 1] not in " ->"
        depth += (char in "([{" or opens_template) - (char in ")]}" or closes_template)
        binds = (depth, line[at - 1] not in ",;")
        can = char == " " and (comment or line[at - 1] in ",;=+&|?" or line[at - 2 : at] in (" -", " *", " :"))
        if at > least and can and (comment or binds <= weakest):
            best, weakest = at, binds
    return best
