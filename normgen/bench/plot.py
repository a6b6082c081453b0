"""% of roofline over cols, one panel an operation and dtype, one line a provider.

A line goes through the median of the entries of each cols. Rows that are not whole 16-byte vectors (odd cols, a pitch,
a base that is off) are another matter at nearly the same cols: they are open circles beside the line.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normgen.bench.result import EntryResult, Results
from normgen.bench.table import OURS
from normgen.dtypes import dtype
from normgen.errors import UsageError
from normgen.files.private import write_output
from normgen.records.statistics import median

Points = list[tuple[int, float]]
VECTOR_BYTES = 16


@dataclass(kw_only=True)
class Curve:
    """One provider in one panel: (cols, % of roofline) of its entries with whole vectors, and of the others."""

    whole: Points = field(default_factory=list)
    odd: Points = field(default_factory=list)

    @property
    def line(self) -> Points:
        """The median at each cols, in order of cols."""
        by_cols: dict[int, list[float]] = {}
        for cols, percent in self.whole:
            by_cols.setdefault(cols, []).append(percent)
        return [(cols, median(found)) for cols, found in sorted(by_cols.items())]


def panels(results: Results) -> dict[str, dict[str, Curve]]:
    """Panel title -> provider -> its curve."""
    found: dict[str, dict[str, Curve]] = {}
    for entry in sorted(results.entries, key=lambda e: (e.cols, e.rows)):
        panel = found.setdefault(_title(entry), {})
        for name, provider in ((OURS, entry.ours), *entry.peers.items()):
            percent = entry.percent_of_roof(provider)
            if percent is not None:
                curve = panel.setdefault(name, Curve())
                (curve.whole if _is_whole(entry) else curve.odd).append((entry.cols, percent))
    return {title: curves for title, curves in sorted(found.items()) if curves}


def _is_whole(entry: EntryResult) -> bool:
    sizes = (entry.cols, entry.pitch)
    width = max(VECTOR_BYTES // dtype(entry.label.split()[3]).bytes, 1)
    return all(size % width == 0 for size in sizes) and entry.align % VECTOR_BYTES == 0


def _title(entry: EntryResult) -> str:
    return f"{entry.op} {entry.direction} {entry.label.split()[3]} {entry.place}"


def require_matplotlib() -> Any:
    """`matplotlib.figure`. Raises UsageError without it: the plot is an extra."""
    try:
        from matplotlib import figure
    except ImportError as error:
        hint = "pip install 'normgen[plot]'"
        raise UsageError("--plot needs matplotlib", received=str(error), hint=hint) from None
    return figure


def save(picture: Any, path: Path) -> None:
    """Write a picture; the suffix of its file says the format. Raises UsageError for a file that cannot be written."""
    drawing = io.BytesIO()
    try:
        picture.savefig(drawing, dpi=120, format=path.suffix.removeprefix(".") or "png")
        write_output(path, drawing.getvalue())
    except (OSError, ValueError) as error:
        raise UsageError("cannot write the plot", received=f"{path}: {error}") from None


def plot(results: Results, path: Path) -> None:
    """Write the picture to `path`; its suffix says the format.

    Raises UsageError for results without a time, and for a file that cannot be written.
    """
    figures, drawn = require_matplotlib(), panels(results)
    if not drawn:
        raise UsageError("a plot needs at least one time", received=f"{len(results.entries)} entries without any")
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    picture = figures.Figure(figsize=(5.2 * columns, 3.8 * rows + 0.6), layout="constrained")
    axes = picture.subplots(rows, columns, squeeze=False)
    colours = {name: f"C{i}" for i, name in enumerate((OURS, *results.peers))}
    for axis, (title, curves) in zip(axes.flat, drawn.items(), strict=False):
        _draw(axis, curves, colours)
        axis.set_title(title)
    for axis in list(axes.flat)[len(drawn) :]:
        axis.set_axis_off()
    has_odd = any(curve.odd for curves in drawn.values() for curve in curves.values())
    _name(picture, colours, f"{results.suite} on {results.device.get('name', '')}", has_odd=has_odd)
    save(picture, path)


def _draw(axis: Any, curves: dict[str, Curve], colours: dict[str, str]) -> None:
    """One panel; ours is drawn last, above the peers."""
    for name, curve in sorted(curves.items(), key=lambda item: item[0] == OURS):
        look = {"color": colours[name], "lw": 2.4 if name == OURS else 1.2}
        if curve.line:
            axis.plot(*zip(*curve.line, strict=True), **look)
            axis.plot(*zip(*curve.whole, strict=True), ls="", marker="o", markersize=3.5, color=colours[name])
        if curve.odd:
            odd = {"ls": "", "marker": "o", "markersize": 5, "markerfacecolor": "none", "color": colours[name]}
            axis.plot(*zip(*curve.odd, strict=True), **odd)
    cols = [c for curve in curves.values() for c, _ in (*curve.whole, *curve.odd)]
    top = max(percent for curve in curves.values() for _, percent in (*curve.whole, *curve.odd))
    axis.axhline(100, color="black", lw=0.8, ls=":")
    axis.set_xscale("log", base=2)
    axis.set(
        xlabel="cols", ylabel="% of roofline", ylim=(0, max(105, 1.05 * top)), xlim=(min(cols) / 1.5, max(cols) * 1.5)
    )
    ticks = [2**i for i in range(31) if min(cols) / 1.5 <= 2**i <= max(cols) * 1.5]
    axis.set_xticks(ticks[:: max(1, -(-len(ticks) // 8))])
    axis.xaxis.set_major_formatter(lambda value, _: size_text(round(value)))
    axis.minorticks_off()
    axis.grid(visible=True, alpha=0.3)


def size_text(size: int) -> str:
    """`4096` as `4K`, `1048576` as `1M`: how people name cols."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def _name(picture: Any, colours: dict[str, str], title: str, *, has_odd: bool) -> None:
    """The title, and one legend for all panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c, lw=2.4 if name == OURS else 1.2, label=name) for name, c in colours.items()]
    if has_odd:
        hollow = Line2D([], [], ls="", marker="o", markerfacecolor="none", color="black")
        hollow.set_label("not whole 16-byte vectors")
        handles.append(hollow)
    picture.suptitle(title)
    picture.legend(handles=handles, loc="outside lower center", ncols=len(handles))
