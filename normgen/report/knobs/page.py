"""docs/knobs.md: each knob with its picture, and its values with what they are good for and when they win."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from normgen.knobs import TABLE, Knob
from normgen.report.knobs.pictures import PICTURES, pictures
from normgen.report.knobs.worth import KnobEvidence, MeasuredRatio, Winners, evidence
from normgen.report.techniques import markdown_table

MANY = 16  # values without a gap, of which the first and the last are named
HEAD = ("value", "what it does", "from", "called elsewhere", "winners", "when it wins: cost without / with")


def knobs_part(root: Path) -> str:
    """Every knob, in the order of the table."""
    drawn, found = pictures(), evidence(root)
    return "\n".join(_knob(knob, drawn.get(knob.name), found) for knob in TABLE).rstrip() + "\n"


def _knob(knob: Knob, picture: str | None, found: KnobEvidence) -> str:
    values = ", ".join(_runs(knob))
    lines = [f"### {knob.name}", "", f"{knob.meaning}. Values (plain in bold): {values}.", ""]
    if "" in knob.words and knob.words[""] != knob.meaning:
        lines += [f"Beyond the plain value: {knob.words['']}.", ""]
    if knob.taught:
        taught = ", ".join(f"`{value}`" for value in knob.values if value in knob.taught)
        lines += [f"For ladders, `--schedule` and specs that name them, but in no search: {taught}.", ""]
    lines += ["```text", picture, "```", ""] if picture else [f"No picture: {PICTURES[knob.name]}.", ""]
    rows = list(_rows(knob, found))
    kept = [number for number in range(len(HEAD)) if any(row[number] for row in rows)]
    shown = [tuple(row[number] for number in kept) for row in rows]
    return "\n".join([*lines, markdown_table(tuple(HEAD[number] for number in kept), shown)] if rows else lines)


def _runs(knob: Knob) -> Iterator[str]:
    """The values one by one; of many without a gap, and of many as far apart behind these, the first and the last."""
    whole = sum(1 for number, value in enumerate(knob.values, 1) if value == number)
    if whole <= MANY:
        yield from (f"**{value}**" if value == knob.plain else str(value) for value in knob.values)
        return
    yield f"**{knob.plain}** to {whole}"
    further = knob.values[whole:]
    if further:
        step = further[1] - further[0]
        assert further == tuple(range(further[0], further[-1] + 1, step))
        yield f"{further[0]} to {further[-1]} by {step}"


def _rows(knob: Knob, found: KnobEvidence) -> Iterator[tuple[str, ...]]:
    """A line for each value that has words, another name, a winner or a figure."""
    for value in knob.values:
        name, known = str(value), (knob.name, value)
        won, ratios = found.winners.get(known), found.ratios.get(known, ())
        if name in knob.words or name in knob.elsewhere or won or ratios:
            yield (
                f"`{knob.name}={name}`" + (" (plain)" if value == knob.plain else ""),
                knob.words.get(name, ""),
                f"sm_{knob.least_arch[name]}" if name in knob.least_arch else "",
                ", ".join(f"`{other}`" for other in knob.elsewhere.get(name, ())),
                _won(won),
                _wins(ratios),
            )


def _won(won: Winners | None) -> str:
    if won is None:
        return "none"
    cols = f"{won.least_cols}" if won.least_cols == won.most_cols else f"{won.least_cols} to {won.most_cols}"
    return f"{won.count} of {won.of}: {cols} cols"


def _wins(ratios: tuple[MeasuredRatio, ...]) -> str:
    """The largest ratio, and the least where there are several."""
    if not ratios:
        return "not measured apart"
    most, least = ratios[0], ratios[-1]
    text = f"{most.ratio:.3f} x: {most.where}"
    return text if len(ratios) == 1 else f"{text}; least {least.ratio:.3f} x: {least.where}"
