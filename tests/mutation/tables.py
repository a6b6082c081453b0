"""What a run found, as text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from tests.mutation.judge import Outcome
from tests.mutation.kernel_run import Result, share_equivalent, share_killed

COLUMNS = (
    ("made", tuple(Outcome)),
    ("compile", (Outcome.DOES_NOT_COMPILE,)),
    ("fault", (Outcome.FAULT,)),
    ("numbers", (Outcome.NUMBERS,)),
    ("hang", (Outcome.HANG,)),
    ("same code", (Outcome.SAME_CODE,)),
    ("argued", (Outcome.ARGUED,)),
    ("survived", (Outcome.SURVIVED,)),
)


def kernel_report(results: Sequence[Result]) -> str:
    """Counts by class and by kernel, every survivor with its change, and the sums."""
    parts = [
        table("class", results, lambda r: r.mutant.kind),
        table("kernel", results, lambda r: r.mutant.case),
        "\n".join(survivors(results)) or "no survivors",
        summary(results),
    ]
    return "\n\n".join(parts)


def table(title: str, results: Sequence[Result], key: Callable[[Result], str]) -> str:
    """A line for each value of the key and one for all; killed by what, equivalent why, survived."""
    counts: dict[str, Counter[Outcome]] = defaultdict(Counter)
    for result in results:
        counts[key(result)][result.verdict.outcome] += 1
        counts["all"][result.verdict.outcome] += 1
    rows = sorted(name for name in counts if name != "all")
    width = max(map(len, [*counts, title]))
    lines = [f"{title:{width}}  " + "  ".join(f"{head:>9}" for head, _ in COLUMNS)]
    for name in [*rows, "all"]:
        cells = (sum(counts[name][outcome] for outcome in outcomes) for _, outcomes in COLUMNS)
        lines.append(f"{name:{width}}  " + "  ".join(f"{cell or '.':>9}" for cell in cells))
    return "\n".join(lines)


def survivors(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.verdict.outcome is Outcome.SURVIVED:
            yield f"survived: {result.mutant.name}\n{result.mutant.diff()}"


def summary(results: Sequence[Result]) -> str:
    wrong = [r for r in results if r.verdict.outcome.is_wrong]
    killed = sum(r.verdict.outcome.is_killed for r in wrong)
    classes, kernels = len({r.mutant.kind for r in results}), len({r.mutant.case for r in results})
    return (
        f"{len(results)} mutants of {classes} classes in {kernels} kernels; "
        f"equivalent: {len(results) - len(wrong)} ({share_equivalent(results):.1%}); "
        f"killed: {killed} of {len(wrong)} wrong ones ({share_killed(results):.1%})"
    )
