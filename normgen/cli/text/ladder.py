"""What `normgen ladder` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from normgen.ladder.climb import UNCHECKED, WRONG, Climb, Climbed, RungLaunch, why_behind
from normgen.ladder.rungs import Ladder
from normgen.records.place import place_of
from normgen.text import figure, table
from normgen.tuning.result import NOT_MEASURED


def list_text(ladders: Iterable[Ladder]) -> str:
    """All ladders and their rungs; of those that the language lacks, why."""
    lines: list[str] = []
    for ladder in ladders:
        lines += [f"{ladder.name}: {ladder.summary}", f"  from {ladder.source.title}"]
        width = max(len(rung.name) for rung in ladder.rungs)
        for rung in ladder.rungs:
            state = f" (not in the language: {rung.missing})" if rung.missing else ""
            lines.append(f"  {rung.name.ljust(width)}  {rung.title}{state}")
        lines.append("")
    return "\n".join(
        [
            *lines,
            "normgen ladder NAME proves and times each; --schedule layernorm/v3 starts from one anywhere",
        ]
    )


def climb_text(ladder: Ladder, found: Climb, measured: Climb | None = None) -> str:
    """The rungs, the sweep over launches beside the source's, and what is wrong or missing.

    measured  beside a prediction: what was measured of this ladder, of which the rungs that were climbed are shown
    """
    source = ladder.source
    times = "" if found.measured else f" ({NOT_MEASURED})"
    lines = [
        f"{ladder.name}: {ladder.summary}",
        f"{found.problem} on {found.device}, {place_of(found.place).words}{times}",
    ]
    where = f", on a {source.gpu}" if source.gpu else ""
    lines.append(f"source: {source.title}{where}. {source.note}".rstrip())
    lines += _times(ladder, found)
    if measured is not None:
        names = [rung.name for rung in found.rungs]
        shown = replace(measured, rungs=tuple(rung for rung in measured.rungs if rung.name in names))
        lines += [
            "",
            f"measured: {shown.problem} on {shown.device}, {place_of(shown.place).words}, as it ships with normgen",
        ]
        lines += _times(ladder, shown)
    lines += [""] + [f"{r.name}: {r.state}: {r.reason}" for r in found.rungs if r.reason]
    wrong = [rung for rung in found.rungs if rung.state == WRONG]
    lines += [line for rung in wrong for line in ("", f"{rung.name} on all families of rows:", *rung.checked)]
    return "\n".join(lines).rstrip()


def _times(ladder: Ladder, found: Climb) -> list[str]:
    """The rungs, the sweep over their launches, and why the record is behind the default where it is."""
    sweep, behind = _sweep_table(found), why_behind(ladder, found)
    lines = ["", _rungs_table(ladder, found)]
    lines += ["", "µs by launch (threads a block), the source's in brackets", sweep] if sweep else []
    return [*lines, *(["", behind] if behind else [])]


def _rungs_table(ladder: Ladder, found: Climb) -> str:
    has_source = any(rung.best and rung.best.ms for rung in ladder.rungs)
    head = ["rung", "check", "launch", "µs" if found.measured else "predicted µs", found.unit, "x first"]
    head += ["source µs", "source GB/s", "source x first"] if has_source else []
    known = {rung.name: rung for rung in ladder.rungs}
    own = {
        name for name, rung in known.items() if rung.problem
    }  # problems of their own: times say nothing beside others
    first = next((r.best for r in found.rungs if r.best and r.name not in own), None)
    source_first = next((r.best.ms for r in ladder.rungs if r.best and r.best.ms), None)
    rows = []
    for rung in found.rungs:
        row = [rung.name, _state(rung), *_best(found, rung, None if rung.name in own else first)]
        if has_source:
            block = known[rung.name].best if rung.name in known else None
            ms = block.ms if block else None
            row += [
                figure(1e3 * ms if ms else None),
                figure(block.gb_per_s if block else None),
                figure(source_first / ms if ms and source_first else None, 3),
            ]
        rows.append([*row, known[rung.name].title if rung.name in known else rung.title])
    return table([*head, "idea"], rows)


def _state(rung: Climbed) -> str:
    return f"{rung.state}, as expected" if rung.state == WRONG and rung.is_unsafe else rung.state


def _best(found: Climb, rung: Climbed, first: RungLaunch | None) -> list[str]:
    best = rung.best
    if best is None or best.us is None:
        return ["-"] * 4
    faster = first.us / best.us if first and first.us else None
    return [best.block, figure(best.us), figure(best.rate) + found.own_unit(rung), figure(faster, 3)]


def _sweep_table(found: Climb) -> str:
    """A line a rung, a column a launch; empty where no rung has several."""
    swept = [rung for rung in found.rungs if len(rung.launches) > 1]
    blocks = list(dict.fromkeys(launch.block for rung in swept for launch in rung.launches))
    if not swept:
        return ""
    return table(["rung", *blocks, ""], [[rung.name, *_cells(rung, blocks), ""] for rung in swept])


def _cells(rung: Climbed, blocks: Sequence[str]) -> list[str]:
    by_block = {launch.block: launch for launch in rung.launches}
    return [_cell(by_block.get(block)) for block in blocks]


def _cell(launch: RungLaunch | None) -> str:
    if launch is None:
        return ""
    own = figure(launch.us) if launch.us is not None else "refused" if launch.reason else UNCHECKED
    return f"{own} ({figure(1e3 * launch.source_ms)})" if launch.source_ms else own
