"""The book's table of contents: every page once, what one learns from apart from what one looks up, offline."""

from __future__ import annotations

import re

from .pages import ROOT

SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
LINE = re.compile(r"^( *)- ([^:]+):(?: (\S+\.md))?$")
ELSEWHERE = {"index.md", "contributing.md", "changelog.md", "security.md", "examples.md"}  # pages made of other files


def sections() -> dict[str, list[str]]:
    """The pages of the table of contents by its first headings."""
    found: dict[str, list[str]] = {}
    for line in SETTINGS.partition("\nnav:\n")[2].splitlines():
        match = LINE.match(line)
        assert match, f"mkdocs.yml has a line that is no page and no heading: {line!r}"
        indent, title, page = match.groups()
        if len(indent) == 2:
            found[title] = []
            heading = title
        if page:
            found[heading].append(page)
    return found


def test_the_contents_name_every_page_once() -> None:
    named = [page for pages in sections().values() for page in pages]
    docs = ROOT / "docs"
    assert len(named) == len(set(named))
    assert set(named) == {str(page.relative_to(docs)) for page in docs.rglob("*.md")} | ELSEWHERE


def test_what_one_learns_from_stands_apart_from_what_one_looks_up() -> None:
    found = sections()
    assert list(found)[:3] == ["Start", "Learn", "Use"]
    ladders = {f"ladders/{page.name}" for page in (ROOT / "docs" / "ladders").glob("*.md")}
    assert set(found["Learn"]) == {"tutorial.md", "examples.md", "notebooks.md", "faq.md", "ladder.md", *ladders}
    assert {"reference.md", "language.md", "knobs.md", "api.md", "records.md"} <= set(found["Reference"])


def test_the_site_takes_nothing_from_a_network() -> None:
    assert "\n  font: false" in SETTINGS
    assert "\nplugins: [search]" in SETTINGS
    assert "http" not in SETTINGS
