"""% of roof over cols, one panel an operation and dtype, one line a provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normgen.bench.result import EntryResult, Results
from normgen.bench.table import OURS
from normgen.errors import UsageError

Line = list[tuple[int, float]]


def panels(results: Results) -> dict[str, dict[str, Line]]:
    """Panel title -> provider -> (cols, % of roof), in order of cols; where cols agree, of rows."""
    found: dict[str, dict[str, Line]] = {}
    for entry in sorted(results.entries, key=lambda e: (e.cols, e.rows)):
        panel = found.setdefault(_title(entry), {})
        for name, provider in ((OURS, entry.ours), *entry.peers.items()):
            percent = entry.percent_of_roof(provider)
            if percent is not None:
                panel.setdefault(name, []).append((entry.cols, percent))
    return {title: lines for title, lines in sorted(found.items()) if lines}


def _title(entry: EntryResult) -> str:
    return f"{entry.op} {entry.direction} {entry.label.split()[3]} {entry.cache}"


def require_matplotlib() -> Any:
    """`matplotlib.figure`. Raises UsageError without it: the plot is an extra."""
    try:
        from matplotlib import figure
    except ImportError as error:
        hint = "pip install 'normgen[plot]'"
        raise UsageError("--plot needs matplotlib", received=str(error), hint=hint) from None
    return figure


def plot(results: Results, path: Path) -> None:
    """Write the picture to `path`; its suffix says the format."""
    figures, drawn = require_matplotlib(), panels(results)
    if not drawn:
        raise UsageError("a plot needs at least one time", received=f"{len(results.entries)} entries without any")
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    picture = figures.Figure(figsize=(5.2 * columns, 3.8 * rows), layout="constrained")
    axes = picture.subplots(rows, columns, squeeze=False)
    colours = {name: f"C{i}" for i, name in enumerate((OURS, *results.peers))}
    for axis, (title, lines) in zip(axes.flat, drawn.items(), strict=False):
        for name, points in lines.items():
            width = 2.4 if name == OURS else 1.2
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, lw=width, color=colours[name], label=name)
        axis.axhline(100, color="black", lw=0.8, ls=":")
        axis.set(title=title, xlabel="cols", ylabel="% of roof", ylim=(0, None))
        axis.set_xscale("log", base=2)
    for axis in list(axes.flat)[len(drawn) :]:
        axis.set_axis_off()
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    picture.suptitle(f"{results.suite} on {results.device.get('name', '')}")
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    try:
        picture.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UsageError("cannot write the plot", received=f"{path}: {error}") from None
