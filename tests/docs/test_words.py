"""The project's words: each is explained before it is used, in README, in help and on the first screen of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from normgen.bench.result import Results
from normgen.bench.table import results_text
from normgen.cli import main as cli
from normgen.cli.text.ladder import climb_text, list_text
from normgen.ladder.climb import read_climbs
from normgen.ladder.rungs import list_ladders, load_ladder
from normgen.report.readme import ROOT
from normgen.text.words import WORDS, legend, used
from normgen.trials.file import read

SCREEN = 40  # lines
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "measuring.md"]
GLOSSARY = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*measuring\.md#words\)")
# What was said before, and is no word of the field: README, help and printed results do without.
RETIRED = {
    r"\b[Pp]rices?\b": "marginal time",
    r"\broofs?\b": "roofline",
    r"\b(?:a|one|two|three|each|every|second|third|last|first|later|another|between|the|no) looks?\b|\blooked at\b"
    r"|\blooks (?:at memory|at every row)\b|\bbetween the looks\b": "pass",
    r"\btrips?\b": "iteration",
    r"\bwalk(?:s|ed|ers?|ing)?\b": "loop over",
    r"\bedges?\b(?!=)": "end of a row, tail",
    r"\bslots?\b": "buffer, stage",
    r"\b(?:of|from|for|in) (?:a|one|another|other|its own) places?\b|\| place \|": "setting and context",
    r"\b(?:behind|in front of) (?:it|itself|them)\b": "after, before",
}


def prose(text: str, lines: int | None = None) -> list[str]:
    """The paragraphs of a page, or of its first lines, without code, comments, addresses and rows of figures."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = "\n".join(text.splitlines()[:lines])
    text = re.sub(r"<!--.*?-->|`[^`\n]*`", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*\d µs.*\|$|^\|( [^|]*\|){7,}$", "", text, flags=re.MULTILINE)
    return [part for part in re.split(r"\n\s*\n", text) if part.strip()]


def unexplained(paragraphs: list[str]) -> list[str]:
    """The words that stand in a paragraph and are neither bold in it or before it, nor linked to the glossary.

    A link to the glossary explains the words of its text; one whose text is `words` explains all that come after it.
    """
    known: set[str] = set()
    missing: list[str] = []
    for paragraph in paragraphs:
        links = LINK.findall(paragraph)
        if "words" in links:
            break
        bold = " ".join([*re.findall(r"\*\*([^*]+)\*\*", paragraph), *links])
        known |= {word.name for word in used(re.sub(r"\s+", " ", bold))}
        plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"\s+", " ", paragraph))
        missing += [word.name for word in used(plain) if word.name not in known]
    return missing


def private(text: str) -> list[str]:
    """The private words of a text."""
    text = re.sub(r"\]\([^)]*\)", "]", text)  # addresses
    return [found[0] for form in RETIRED for found in re.finditer(form, text)]


def helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Each command's path and help."""
    context = command.context_class(command, info_name=path)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            assert one is not None
            yield from helps(one, f"{path} {name}")


HELPS = dict(helps(cli.cli, "normgen"))


def test_the_glossary_stands_on_the_first_screen_of_the_page_on_measuring() -> None:
    screen = "\n".join(GLOSSARY.splitlines()[:SCREEN])
    for word in WORDS:
        assert f"| **{word.name}** | {word.says} |" in screen
        assert word.is_in(word.name), f"{word.name} is not found by its own form"
        assert {one.name for one in used(word.says)} <= {word.name}, f"{word.name} is explained by another word"


def test_the_readme_explains_each_word_where_it_is_first_used() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert unexplained(prose(text)) == []
    assert private("\n".join(prose(text))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_first_screen_of_a_page_explains_its_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert unexplained(prose(text, SCREEN)) == []
    assert private("\n".join(prose(text, SCREEN))) == []


def test_a_word_before_its_explanation_is_found() -> None:
    assert unexplained(["A record is kept.", "A **record** is a line."]) == ["record"]
    assert unexplained(["A **record** is a line.", "A record is kept."]) == []
    assert unexplained(["A [record](docs/measuring.md#words) is kept, with its knobs."]) == ["knob"]
    assert unexplained(["In our [words](measuring.md#words):", "a record and its knobs."]) == []
    assert unexplained(prose("`record`\n\n```sh\nrecord\n```\n")) == []
    assert private("three looks at a row, 97 % of roof, the price of a trip") != []
    assert private("it looks right, in place, a copy looks at nothing") == []


@pytest.mark.parametrize("path", HELPS)
def test_help_explains_its_words_and_has_no_private_one(path: str) -> None:
    own, _, words = HELPS[path].partition("\nWords:\n")
    shown = re.sub(r"\{[^{}]*\}", "", re.sub(r"\{[^{}]*\}", "", own), flags=re.DOTALL)  # the keys of --json
    assert private(shown) == []
    for word in used(own):
        assert re.search(rf"^  {re.escape(word.name)} ", words, re.MULTILINE), f"{path} does not explain {word.name}"


def test_printed_tables_explain_their_words_and_have_no_private_one() -> None:
    file = ROOT / "generated" / "evidence" / "bench_decode_h200.json"
    text = results_text(read(Results, file))
    table = text.split("\n\n")[1]
    assert private(text) == []
    assert {word.name for word in used(table, printed=True)} >= {"marginal time", "chain", "roofline", "fresh"}
    assert legend(table)
    for line in legend(table):
        assert line in table.splitlines()


def test_ladders_are_printed_without_private_words() -> None:
    ladders = [load_ladder(name) for name in list_ladders()]
    assert private(list_text(ladders)) == []
    file = ROOT / "generated" / "evidence" / "ladder_h200.json"
    for one in read_climbs(file):
        assert private(climb_text(load_ladder(one.ladder), one)) == [], one.ladder
