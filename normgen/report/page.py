"""The HTML page: one file that needs no network, with its figures embedded as JSON."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jinja2

from normgen.report.evidence import Evidence
from normgen.report.view import page_data

SCRIPTS = ("base.js", "progress.js", "roof.js", "knobs.js", "peers.js", "table.js", "about.js", "start.js")


def render(evidence: Evidence) -> str:
    """The page as text. It carries a content policy that forbids every request, so it is what it says it is."""
    data = page_data(evidence)
    templates = _environment()
    return templates.get_template("page.html.j2").render(
        style=_text("page.css"),
        scripts="\n".join(_text(name) for name in SCRIPTS),
        data=embedded(data),
        generated=data["generated"],
        version=data["normgen"],
    )


def embedded(data: dict[str, Any]) -> str:
    """JSON that may stand inside a <script> element: no `<` in it can end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _environment() -> jinja2.Environment:
    # The values are trusted text of this package and JSON escaped by `embedded`; the page's script sets text only.
    return jinja2.Environment(
        loader=jinja2.PackageLoader("normgen.report"), undefined=jinja2.StrictUndefined, autoescape=False
    )


def _text(name: str) -> str:
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0]
