"""Expressions of kernels with what is known when they are compiled written out.

Emitted expressions keep two habits, by which their parts are found without a grammar: a binary operator stands between
spaces, and the angle brackets of templates do not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping

CHOICE = (" ? ", " : ")
TRUE, FALSE = "true", "false"
_WORD = re.compile(r"(?<![\w.:])[A-Za-z_]\w*(?:::\w+)*(?![\w:])")
_RETURN = re.compile(r"( ?return )([^;]+)(; |)")
_OPEN, _CLOSE = "([{", ")]}"
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (  # what binds least comes first
    {" || ": lambda a, b: int(bool(a or b))},
    {" && ": lambda a, b: int(bool(a and b))},
    {" == ": operator.eq, " != ": operator.ne},
    {" < ": operator.lt, " <= ": operator.le, " > ": operator.gt, " >= ": operator.ge},
    {" + ": operator.add, " - ": operator.sub},
    {" * ": operator.mul, " / ": operator.floordiv, " % ": operator.mod},
)
_COMPARED = (*_LEVELS[2], *_LEVELS[3])
_LOOSER = (CHOICE[0], *_LEVELS[4])  # than a quotient
_LOOSE = (CHOICE[0], *_LEVELS[0], *_LEVELS[1], *_COMPARED, " & ", " ^ ", " | ", " << ", " >> ")  # than a sum


def outside(text: str, operators: tuple[str, ...]) -> list[tuple[str, str]]:
    """The text cut at operators outside of brackets: (operator in front, part); that of the first part is empty."""
    parts, depth, start, before, at = list[tuple[str, str]](), 0, 0, "", 0
    while at < len(text):
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        found = next((o for o in operators if text.startswith(o, at)), "") if depth == 0 else ""
        if found:
            parts.append((before, text[start:at]))
            before, start = found, at + len(found)
        at = start if found else at + 1
    return [*parts, (before, text[start:])]


def chosen(text: str) -> tuple[str, str, str] | None:
    """(Condition, one branch, the other) of a choice outside of brackets."""
    condition, *rest = outside(text, CHOICE[:1])
    if not rest:
        return None
    behind = text[len(condition[1]) + len(CHOICE[0]) :]
    depth, cut = 0, 0
    for mark, part in outside(behind, CHOICE):
        depth += (mark == CHOICE[0]) - (mark == CHOICE[1])
        if depth < 0:
            return condition[1], behind[:cut], behind[cut + len(CHOICE[1]) :]
        cut += len(mark) + len(part)
    return None


def inner(text: str) -> str:
    """The text without brackets around all of it."""
    while text.startswith("(") and _closed_at(text, 0) == len(text) - 1:
        text = text[1:-1]
    return text


def _closed_at(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        if depth == 0:
            return at
    return -1


def value(text: str, known: Mapping[str, int]) -> int | None:
    """The number that an expression of whole numbers is, by the constants that are `known`; None of any other."""
    text = inner(text.strip())
    if choice := chosen(text):
        condition = value(choice[0], known)
        return None if condition is None else value(choice[1 if condition else 2], known)
    for level in _LEVELS:
        [(_, first), *others] = outside(text, tuple(level))
        if others:
            if others[0] == (" < ", first):
                return 0
            found = value(first, known)
            for mark, part in others:
                other = value(part, known)
                if found is None or other is None or (mark in (" / ", " % ") and (found < 0 or other <= 0)):
                    return None
                found = int(level[mark](found, other))
            return found
    if text.startswith("!"):
        found = value(text[1:], known)
        return None if found is None else int(not found)
    if text in (TRUE, FALSE):
        return int(text == TRUE)
    return int(text) if text.isdigit() else known.get(text)


class Known:
    """What is known where a statement stands.

    numbers  constants by name
    names    what stands for an identifier
    calls    what stands for a call, by its function: a format of its arguments
    """

    def __init__(
        self, numbers: Mapping[str, int], names: Mapping[str, str], calls: Mapping[str, str] | None = None
    ) -> None:
        self.numbers, self.names, self.calls = dict(numbers), dict(names), dict(calls or {})

    def copy(self) -> Known:
        return Known(self.numbers, self.names, self.calls)

    def text(self, text: str) -> str:
        """The expression with names written out, and without what they settle."""
        for function, written in self.calls.items():
            while (at := text.find(f"{function}(")) >= 0:
                start = at + len(function)
                end = _closed_at(text, start)
                arguments = [part for _, part in outside(text[start + 1 : end], (", ",))]
                if " / " in written:
                    arguments = [f"({a})" if len(outside(a, _LOOSER)) > 1 else a for a in arguments]
                text = text[:at] + written.format(*arguments) + text[end + 1 :]
        return self._settled(_WORD.sub(self._named, text))

    def _named(self, found: re.Match[str]) -> str:
        word = found.group()
        outer, colons, member = word.partition("::")
        return self.names.get(word) or self.names.get(outer, outer) + colons + member

    def _settled(self, text: str) -> str:
        if returned := _RETURN.fullmatch(text):
            return returned[1] + self._settled(returned[2]) + returned[3]
        text = "".join(self._brackets(text))
        if choice := chosen(text):
            condition = self._settled(choice[0])
            decided = value(condition, self.numbers)
            if decided is not None:
                return self._settled(choice[1 if decided else 2])
            return CHOICE[0].join((condition, CHOICE[1].join(map(self._settled, choice[1:]))))
        for mark, decides in ((" || ", 1), (" && ", 0)):
            parts = [part for _, part in outside(text, (mark,))]
            if len(parts) > 1:
                return self._joined(parts, mark, decides)
        if len(outside(text, _COMPARED)) > 1:
            found = value(text, self.numbers)
            return text if found is None else (FALSE, TRUE)[found]
        return self._sum(text)

    def _joined(self, parts: list[str], mark: str, decides: int) -> str:
        """Conditions side by side: `decides` is the value of one that settles them all."""
        left = []
        for part in map(self._settled, parts):
            found = value(part, self.numbers)
            if found is None:
                left.append(part)
            elif bool(found) == bool(decides):
                return (FALSE, TRUE)[decides]
        return mark.join(left) or (TRUE, FALSE)[decides]

    def _sum(self, text: str) -> str:
        """Without terms of 0 and factors of 1."""
        terms = [(mark, self._product(part)) for mark, part in outside(text, (" + ", " - "))]
        if len(terms) == 1:
            return terms[0][1]
        left = [term for term in terms if term[1] != "0"] or terms[:1]
        left = [("", "0"), *left] if left[0][0] == " - " else left
        first = inner(left[0][1])
        if len(outside(first, _LOOSE)) == 1:  # a sum within brackets
            left[0] = ("", first)
        return left[0][1] + "".join(mark + part for mark, part in left[1:])

    def _product(self, text: str) -> str:
        factors = outside(text, (" * ", " / ", " % "))
        if len(factors) == 1:
            return text
        numbers = [value(part, self.numbers) for _, part in factors]
        if any(n == 0 and mark in ("", " * ") for (mark, _), n in zip(factors, numbers, strict=True)) or (
            factors[-1][0] == " % " and numbers[-1] == 1
        ):
            return "0"
        left = [f for f, n in zip(factors, numbers, strict=True) if n != 1 or f[0] == " % "]
        if not left:
            return "1"
        if left[0][0] == " / " or left[0][0] == " % ":
            return text
        return left[0][1] + "".join(mark + part for mark, part in left[1:])

    def _brackets(self, text: str) -> Iterator[str]:
        """The text with what stands in its brackets settled; brackets around one word go."""
        at = 0
        while at < len(text):
            if text[at] not in _OPEN or (end := _closed_at(text, at)) < 0:
                yield text[at]
                at += 1
                continue
            parts = [self._settled(part) for _, part in outside(text[at + 1 : end], (", ",))]
            is_call = text[at] != "(" or (at > 0 and (text[at - 1].isalnum() or text[at - 1] in "_>)]"))
            alone = not is_call and len(parts) == 1 and re.fullmatch(r"\w+", parts[0])
            yield parts[0] if alone else f"{text[at]}{', '.join(parts)}{text[end]}"
            at = end + 1
