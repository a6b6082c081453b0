"""What names from outside add to paths and C identifiers.

The op, the arch and the GPU of a record become file names, namespaces and folders. Each passes `name_part` first, so
that none can leave its folder or end an identifier.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from normgen.errors import UsageError

ARCHS = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)  # every sm_NN that NVRTC 13 compiles for
LONGEST = 80
_NOT_PLAIN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SPEC_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


class NamePart(StrEnum):
    """What a name names."""

    OP = "a spec's name"
    ARCH = "an arch"
    GPU = "a GPU's name"
    SUITE = "a suite's name"


def is_plain(text: str, *, besides: str = "") -> bool:
    """Whether a text has no control or format characters, line ends or halves of a character, but for those `besides`.

    Terminals, logs and headers take a plain text as it stands: nothing in it moves the cursor, ends a line or turns
    the direction of what follows.
    """
    return not any(unicodedata.category(c) in _NOT_PLAIN and c not in besides for c in text)


def escaped(text: str) -> str:
    """The text with what is not plain as Python writes it: `\\x1b`; ends of lines stay."""
    return "".join(c if is_plain(c, besides="\n") else ascii(c)[1:-1] for c in text)


def plain_path(path: str | Path) -> Path:
    """The path of a file that commands and records name. Raises UsageError where its text is not plain."""
    if not is_plain(str(path)):
        raise UsageError("a path has no control characters", received=ascii(str(path))[:LONGEST])
    return Path(path)


def name_part(part: NamePart, value: object) -> str:
    """The text that stands in paths and identifiers. Raises UsageError for a name that cannot stand there."""
    rule, text_of = _RULES[part]
    text = text_of(value)
    if not text or len(text) > LONGEST:
        raise UsageError(f"{part} {rule}", received=ascii(value)[:LONGEST])
    return text


def _spec_name(value: object) -> str:
    return value if isinstance(value, str) and _SPEC_NAME.fullmatch(value) else ""


def _arch(value: object) -> str:
    return str(value) if type(value) is int and value in ARCHS else ""


def _slug(value: object) -> str:
    """`nvidia-rtx-a6000`."""
    return re.sub(r"[^a-z0-9_]+", "-", value.lower()).strip("-") if isinstance(value, str) else ""


_SHORT = f"and at most {LONGEST} characters"
_RULES: dict[NamePart, tuple[str, Callable[[object], str]]] = {
    NamePart.OP: (f"is lower-case letters, digits and inner underscores, {_SHORT}", _spec_name),
    NamePart.ARCH: (f"is one of {', '.join(map(str, ARCHS))}", _arch),
    NamePart.GPU: (f"has a letter or digit {_SHORT}", _slug),
    NamePart.SUITE: (f"has a letter or digit {_SHORT}", _slug),
}
