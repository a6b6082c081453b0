"""The table of techniques: how many shipped winners use each, and what doing without costs.

Counts come from `generated/records`, times from `generated/evidence/techniques_<gpu>.json`, which is what
`normgen bench --ablation` wrote. A measurement is in the table where its tuned schedule uses the technique and the
other schedule does not, as the emitter is today; the other measurements are listed with what they compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from normgen.bench.ablation import Ablation, Line
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.program.source import problem_for
from normgen.records.questions import problem_of
from normgen.records.record import Record
from normgen.records.winners import kept
from normgen.schedule.schedule import Schedule, changed
from normgen.spec.reader import load
from normgen.studies.techniques import all_techniques, changes
from normgen.trials.file import read


def techniques_part(root: Path) -> str:
    """For each GPU: one line a technique and measured shape, then the techniques that no winner uses.

    Not of a GPU that was not asked, where another one was.
    """
    files = sorted((root / "generated" / "records").glob("*.jsonl"))
    evidence = [root / "generated" / "evidence" / f"techniques_{file.stem}.json" for file in files]
    asked = any(path.is_file() for path in evidence)
    pairs = zip(files, evidence, strict=True)
    parts = [_of_gpu(file, path) for file, path in pairs if path.is_file() or not asked]
    return "\n".join(parts) or "No results are shipped yet.\n"


def _of_gpu(records: Path, evidence: Path) -> str:
    counts, total = usage(kept(records))
    lines, misfiled = ablation_lines(evidence)
    head = ("technique", "what it is", "winners", "shape", "with, µs", "without, µs", "gain", "without it")
    rows = [row for name in counts if counts[name] for row in _rows(name, f"{counts[name]} of {total}", lines)]
    unused = ", ".join(f"`{name}`" for name, count in counts.items() if not count)
    text = f"### {records.stem}\n\n{markdown_table(head, rows)}"
    return text + (f"\nIn no winner: {unused}.\n" if unused else "") + _left_out(misfiled)


def usage(records: tuple[Record, ...]) -> tuple[dict[str, int], int]:
    """How many winners use each technique, and how many winners there are. Those of another spec text do not count."""
    present = [r for r in records if r.measured and r.problem.spec_sha256 == load(r.problem.op).sha256]
    problems = [problem_of(record.problem, load(record.problem.op)) for record in present]
    pairs = list(zip(present, problems, strict=True))
    counts = {t.name: sum(t.is_in(r.schedule, problem) for r, problem in pairs) for t in all_techniques()}
    return counts, len(present)


def ablation_lines(evidence: Path) -> tuple[list[Line], list[Line]]:
    """The lines of a recorded ablation that measured their technique, and those that measured something else.

    No lines where it was not run. Raises UsageError for another file.
    """
    judged = [(one, _is_of_its_technique(one)) for one in read(Ablation, evidence).lines] if evidence.is_file() else []
    return [line for line, good in judged if good], [line for line, good in judged if not good]


def _is_of_its_technique(line: Line) -> bool:
    """Whether the tuned schedule uses the line's technique, and the other one, if any, does not."""
    technique = {t.name: t for t in all_techniques()}[line.technique]
    own = changed(Schedule(), line.schedule)
    other = changed(own, line.changed)
    problem = _problem(line.label)
    return technique.is_in(own, problem) and not (line.changed and technique.is_in(other, problem))


def _problem(label: str) -> Problem:
    """The problem of a label such as `rmsnorm fwd 4096x4096 bf16 cold`, without what is unusual about it."""
    op, way, shape, dtype, *_ = label.split()
    directions = {direction.short: direction.value for direction in Direction}
    return problem_for(load(op), shape=shape, dtype=dtype, direction=directions[way])


def _left_out(lines: list[Line]) -> str:
    """One line a measurement that the table leaves out: what it was recorded as, and the knobs that it does compare."""
    if not lines:
        return ""
    why = "Left out of the table: measurements recorded under a technique in which their two kernels do not differ."
    return "\n".join(("", why, "", *(_compared(line) for line in lines))) + "\n"


def _compared(line: Line) -> str:
    own = changed(Schedule(), line.schedule)
    knobs = " ".join(f"{name}={getattr(own, name)}" for name in changes(own, changed(own, line.changed)))
    found = f"`{knobs}` against `{line.changed}`" if knobs else line.note
    return f"- `{line.technique}`, {line.label}: {found}"


def _rows(name: str, winners: str, lines: list[Line]) -> Iterator[tuple[str, ...]]:
    """The technique's measured shapes, its name and count beside the first; one empty line if there is none."""
    summaries = {t.name: t.summary for t in all_techniques()}
    head = (f"`{name}`", summaries[name], winners)
    mine = [line for line in lines if line.technique == name]
    if not mine:
        yield (*head, "not measured", "", "", "", "")
    for number, line in enumerate(sorted(mine, key=lambda line: line.label)):
        yield (*(head if number == 0 else ("", "", "")), *_figures(line))


def _figures(line: Line) -> tuple[str, ...]:
    gain = line.gain
    interval = f"{gain.median:.3f} [{gain.low:.3f}, {gain.high:.3f}]" if gain else ""
    times = (f"{us:.4g}" if us else "" for us in (line.with_us, line.without_us))
    return (line.label, *times, interval, f"`{line.changed}`" if line.changed else line.note)


def markdown_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
