"""A suite's results as text: one row an entry, then what matters of all of them."""

from __future__ import annotations

from collections import Counter

from normgen.bench.result import EntryResult, Provider, Results
from normgen.records.statistics import Ratio
from normgen.text import figure, legend, table

REASON_LENGTH = 28
OURS = "normgen"
EARLY = "early"  # marks a kernel that overlaps with the one before it (programmatic dependent launch)
ALONE = "alone"  # marks what was timed back to back with itself


def results_text(results: Results) -> str:
    """The table, why cells are empty, and the summary."""
    device = results.device.get("name", "")
    times = results_table(results)
    lines = [f"{results.suite} on {device}: {results.summary}", "", times, *legend(times), ""]
    if any(entry.ours.overlaps for entry in results.entries):
        lines += [f"{EARLY}: starts while the kernel before it ends; peers wait for its end", ""]
    lines += failures(results)
    return "\n".join([*lines, summary(results)])


def results_table(results: Results) -> str:
    """Marginal times in µs, alone times, ours first and a peer's in its cell.

    `x roofline` and `x copy` are ours over the best hand-written kernel and the memcpy node, `x peer` is the best
    peer's marginal time over ours and `of chains` the same of T. What each takes alone comes then, where it was asked
    for, and of products their rates.
    """
    alone = any(p.alone_us for entry in results.entries for p in (entry.ours, *entry.peers.values()))
    timed = "marginal µs" if any(entry.chain_us for entry in results.entries) else "µs"
    ours = ("entry", timed, "T0", "T", "GB/s", "% of roofline", "x roofline", "x copy")
    names = (OURS, *results.peers) if alone else ()
    header = [*ours, *(f"{name} µs" for name in results.peers), "x peer", "of chains", "best"]
    header += [f"{name} {ALONE} µs" for name in names]
    rows = [_row(entry, results.peers, names) for entry in results.entries]
    if any(entry.flops for entry in results.entries):
        for name in (OURS, *results.peers):
            header.append(f"{name} TFLOP/s")
            for row, entry in zip(rows, results.entries, strict=True):
                row.append(figure(entry.tflops(entry.ours if name == OURS else entry.peers.get(name))))
    return table(header, rows)


def _row(entry: EntryResult, peers: tuple[str, ...], alone: tuple[str, ...]) -> list[str]:
    ours, faster, chains = entry.ours, entry.faster, entry.chain_faster
    price, is_alone = ours.price_us, entry.chain_us is None and ours.us is not None
    cells = [
        entry.label,
        cell(ours)
        + (f" [{figure(price.low)}, {figure(price.high)}]" if price else "")
        + (f" {ALONE}" if is_alone else "")
        + (f" {EARLY}" if ours.overlaps else ""),
        figure(entry.chain_us.median) if entry.chain_us else "-",
        figure(ours.us) if entry.chain_us else "-",
        figure(entry.gb_per_s),
        figure(entry.percent_of_roof(ours), 3),
        f"{ours.to_roof.median:.3f}" if ours.to_roof else "-",
        f"{ours.to_copy.median:.3f}" if ours.to_copy else "-",
        *(cell(entry.peers.get(name)) for name in peers),
        f"{faster.median:.3f}" if faster else "-",
        f"{chains.median:.3f}" if chains and entry.chain_us else "-",
        (entry.best_peer or "-") + (f"  ({ours.note})" if ours.note else ""),
    ]
    providers = {OURS: ours, **entry.peers}
    return cells + [figure(providers[name].alone_us) if name in providers else "-" for name in alone]


def cell(provider: Provider | None) -> str:
    """A marginal time, alone a time, or in a word why there is none."""
    if provider is None:
        return "-"
    return figure(provider.cost_us) if provider.us is not None else short(provider.failed)


def short(reason: str) -> str:
    """A reason's first words, for a cell; the whole of it stands under the table."""
    first = reason.split("\n")[0].split(":")[0].strip()
    return first if len(first) <= REASON_LENGTH else first[: REASON_LENGTH - 1].rstrip() + "…"


def failures(results: Results) -> list[str]:
    """Each reason once, with how many entries have it; of peers that offer nothing of the kind only the number."""
    reasons: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for entry in results.entries:
        for name, provider in ((OURS, entry.ours), *entry.peers.items()):
            if provider.failed:
                key = (name, provider.failed)
                reasons[key] += 1
                first.setdefault(key, entry.label)
    lines = [
        f"{name}: {reason}  ({first[name, reason]}{f' and {count - 1} more' if count > 1 else ''})"
        for (name, reason), count in reasons.items()
    ]
    return [*lines, ""] if lines else []


def summary(results: Results) -> str:
    """`38 entries in 412 s; against the best peer: geometric mean 1.213 x faster over 38, worst 1.004 x at ...`

    By marginal times; alone, by times.
    """
    parts = [f"{len(results.entries)} entries in {results.seconds:.0f} s"]
    mean, worst = results.geometric_mean, results.worst
    if mean is not None and worst is not None and worst.faster is not None:
        parts.append(
            f"against the best peer: geometric mean {mean:.3f} x faster over {len(results.compared)}, "
            f"worst {ratio_text(worst.faster)} at {worst.label} ({worst.best_peer})"
        )
    figures = results.figures()
    if figures["geometric_mean_of_chains"] is not None and any(e.chain_us for e in results.entries):
        parts.append(f"of whole chains {figures['geometric_mean_of_chains']:.3f} x")
    if figures["geometric_mean_to_roof"] is not None:
        of_each = [f"{share:.3f} x {family}" for family, share in sorted(results.mean_to_roofs().items())]
        each = f" ({', '.join(of_each)})" if len(of_each) > 1 else ""
        parts.append(f"geometric mean {figures['geometric_mean_to_roof']:.3f} x the roofline{each}")
    slowest = max((e for e in results.entries if e.ours.to_roof), key=_to_roof, default=None)
    if slowest is not None and slowest.ours.to_roof is not None:
        parts.append(f"farthest from the roofline {ratio_text(slowest.ours.to_roof)} at {slowest.label}")
    if results.note:
        parts.append(results.note if results.finished else f"NOT FINISHED: {results.note}")
    return "; ".join(parts)


def _to_roof(entry: EntryResult) -> float:
    return entry.ours.to_roof.median if entry.ours.to_roof else 0.0


def ratio_text(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} x [{ratio.low:.3f}, {ratio.high:.3f}]"
