"""docs/ladder.md and a page a ladder: each rung with its idea, its check, its times beside the source's, its kernel."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from normgen.device import Device, target
from normgen.ladder.climb import WRONG, Climb, Climbed, RungLaunch, why_behind
from normgen.ladder.kernels import comparable, own_text, parts_of
from normgen.ladder.rungs import Ladder, Rung
from normgen.pipeline import emit_alone
from normgen.records.place import place_of
from normgen.text import figure
from normgen.tuning.result import NOT_MEASURED

FOLDER = "ladders"  # of the pages, beside the index
CONTEXT = 1  # lines of a difference around what changed


def kernel_of(ladder: Ladder, rung: Rung, device: Device, block: str = "") -> str:
    """The emitted kernels of a rung at a launch, or at the source's fastest, without the device library."""
    chosen = next((b for b in rung.blocks if b.block == block), rung.best)
    if chosen is None:
        return f"// {rung.name}: {rung.missing}\n"
    return "\n".join(own_text(emit_alone(p.problem, p.schedule)) for p in parts_of(ladder, rung, chosen, device))


def difference(before: str, after: str) -> str:
    """What changed between two kernels, names aside."""
    lines = difflib.unified_diff(
        comparable(before).splitlines(), comparable(after).splitlines(), lineterm="", n=CONTEXT
    )
    return "\n".join(list(lines)[2:])


def index(climbs: Sequence[tuple[Ladder, Climb]]) -> str:
    """A line of Markdown for each ladder, with a link to its page."""
    lines = [
        "A ladder is a file of `specs/ladders/`: the kernels of a source, each a rung, written as knobs on `plain`.",
        "`normgen ladder NAME` proves and times them; `--schedule layernorm/v3` begins from a rung. The sources'",
        "figures are of the GPU that is named beside them: compare how rungs stand to each other, not the two columns.",
        "",
        "| ladder | what it climbs | from | rungs |",
        "|---|---|---|---|",
    ]
    for ladder, _ in climbs:
        link = f"[{ladder.name}]({FOLDER}/{ladder.name}.md)"
        lines.append(f"| {link} | {ladder.summary} | {_linked(ladder)} | {len(ladder.rungs)} |")
    return "\n".join(lines) + "\n"


def page(climbs: Sequence[tuple[Ladder, Climb]]) -> str:
    """The pages of ladders in Markdown, one after another."""
    return "\n".join("\n".join(_page_lines(ladder, found)) + "\n" for ladder, found in climbs)


def _linked(ladder: Ladder) -> str:
    source = ladder.source
    return f"[{source.title}]({source.url})" if source.url else source.title


def _page_lines(ladder: Ladder, found: Climb) -> list[str]:
    source = ladder.source
    after, gpu = f"after {source.follows}" if source.follows else "", f"on a {source.gpu}" if source.gpu else ""
    origin = f"Source: {', '.join(filter(None, (_linked(ladder), after, gpu)))}. {source.note}".rstrip()
    lines = [f"# {ladder.name}", "", ladder.summary, "", origin, ""]
    how = "measured" if found.measured else f"{NOT_MEASURED},"
    climbed = {rung.name: rung for rung in found.rungs}
    if any(rung.launches for rung in found.rungs):
        lines += [
            f"{found.problem}, {how} on {found.device}, {place_of(found.place).words}:",
            "",
            *_table(ladder, found),
            "",
        ]
        behind = why_behind(ladder, found)
        lines += [f"The {behind}.", ""] if behind else []
    device, before = target("h200"), ""
    for rung in ladder.rungs:
        one = climbed.get(rung.name)
        lines += [f"## {ladder.name}/{rung.name}: {rung.title}", "", _literal(rung.idea), ""]
        if rung.missing:
            lines += [f"Not in the language: {rung.missing}.", ""]
            continue
        lines += _facts(rung, one)
        kernel = kernel_of(ladder, rung, device, one.block if one else "")
        lines += _kernel_part(before, kernel, rung)
        before = kernel
    return lines[:-1]


def _literal(text: str) -> str:
    """The text as Markdown that shows it as it is: `__restrict__` is a name, and no emphasis."""
    return re.sub(r"([_*<])", r"\\\1", text)


def _facts(rung: Rung, found: Climbed | None) -> list[str]:
    several = "; ".join(f"{k.op}: `{k.knobs}`" for k in rung.kernels)
    knobs = several or (f"`{rung.knobs}`" if rung.knobs else "none but those of a launch")
    lines = [f"* Knobs on `plain`: {knobs}", f"* To see: {_literal(rung.look)}"]
    if found is not None:
        state = f"{found.state}: {_literal(found.reason)}" if found.reason else found.state
        lines.append(f"* Check at {found.block}: {state}")
    if found is not None and found.state == WRONG:
        lines += ["", "```", *found.checked, "```"]
    return [*lines, ""]


def _kernel_part(before: str, kernel: str, rung: Rung) -> list[str]:
    changed = difference(before, kernel) if before else ""
    is_smaller = before and len(changed) < len(kernel)
    head, kind, text = ("The kernel", "cuda", kernel)
    if is_smaller:
        head, kind, text = ("What changes in the kernel", "diff", changed)
    if rung.kernels:
        head = f"The {len(rung.kernels)} kernels" if not is_smaller else head
    return ["<details>", f"<summary>{head}</summary>", "", f"```{kind}", text.rstrip(), "```", "", "</details>", ""]


def _table(ladder: Ladder, found: Climb) -> list[str]:
    """A line a rung: its launches, µs of each and the source's."""
    head = ("rung", "check", "fastest launch", "µs", found.unit, "all launches: µs", "source")
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for rung in found.rungs:
        if rung.best is None:
            rows.append(f"| {rung.name} | {rung.state} | | | | | |")
            continue
        best, launches = rung.best, rung.launches
        every = ", ".join(f"{one.block}: {figure(one.us)}" for one in launches) if len(launches) > 1 else ""
        state = rung.state + (", as expected" if rung.state == WRONG and rung.is_unsafe else "")
        rate = figure(best.rate) + found.own_unit(rung)
        cells = [rung.name, state, best.block, figure(best.us), rate, every, _source(launches, ladder)]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _source(launches: Sequence[RungLaunch], ladder: Ladder) -> str:
    """The source's fastest launch, all of them behind it."""
    timed = [one for one in launches if one.source_ms is not None]
    if not timed:
        return ""
    best = min(timed, key=lambda one: one.source_ms or 0.0)
    rate = f", {figure(best.source_gb_per_s)} GB/s" if best.source_gb_per_s else ""
    every = ", ".join(f"{one.block}: {figure(1e3 * (one.source_ms or 0.0))}" for one in timed)
    return f"{figure(1e3 * (best.source_ms or 0.0))} µs at {best.block}{rate} on {ladder.source.gpu} ({every})"
