"""The frames of emitted text. They print what they are given, and decide nothing."""

from __future__ import annotations

from functools import cache

import jinja2


@cache
def environment() -> jinja2.Environment:
    """The templates of this folder; an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("normgen.codegen", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # CUDA text, not HTML
    )


def tidy(text: str) -> str:
    """No trailing spaces, no more than one blank line in a row, one end of line at the end."""
    lines: list[str] = []
    for line in map(str.rstrip, text.strip("\n").split("\n")):
        if line or lines[-1]:
            lines.append(line)
    return "\n".join(lines).rstrip("\n") + "\n"
