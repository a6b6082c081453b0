"""The plots of the page as PNG files, drawn by matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normgen.errors import UsageError
from normgen.files.private import write_output
from normgen.records.record import Outcome
from normgen.report.evidence import SEARCH, Evidence, Series
from normgen.report.importance import knob_shares
from normgen.report.view import RoofLine, families_of, family_of, labels_of, roof_lines

COLOURS = ("#2a78d6", "#c2410c", "#0f8a5f", "#6d4bc3", "#b8860b", "#c2317c", "#4b6b1f", "#0e7490")
GREY = "#b4b2aa"
DASHES = ("-", "--", ":", "-.")
DPI = 160
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#bbbbbb",
    "axes.grid": True,
    "grid.color": "#e9e8e3",
    "axes.axisbelow": True,
    "font.size": 9,
    "legend.frameon": False,
}


class PlotStyle:
    """A colour for each op, direction, dtype and place, the same in every plot; a dash for each run of one.

    No colour stands for two of them: the eight with most points have one, the others are grey.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._families = families_of(evidence)[: len(COLOURS)]
        self._seen: dict[Any, int] = {}

    def colour(self, family: tuple[str, str, str, str]) -> str:
        return COLOURS[self._families.index(family)] if family in self._families else GREY

    def dash(self, family: tuple[str, str, str, str]) -> str:
        """The next unused dash of the family."""
        self._seen[family] = self._seen.get(family, -1) + 1
        return DASHES[self._seen[family] % len(DASHES)]


def draw(evidence: Evidence, folder: Path) -> tuple[Path, ...]:
    """Write search_progress.png, percent_of_roof.png and knob_importance.png; those with nothing to show are left out.

    Raises UsageError when matplotlib is not installed.
    """
    figure_of = _matplotlib()
    labelled = list(zip(labels_of(evidence.series), evidence.series, strict=True))
    measured = [(label, s) for label, s in labelled if s.timed]
    looks = PlotStyle(evidence)
    searches = [(label, s) for label, s in measured if s.kind == SEARCH]
    drawings = (
        ("search_progress.png", _progress(figure_of, searches, looks)),
        ("percent_of_roof.png", _roof(figure_of, roof_lines(evidence), looks)),
        ("knob_importance.png", _importance(figure_of, measured)),
    )
    written = []
    for name, figure in drawings:
        if figure is not None:
            picture = io.BytesIO()
            figure.savefig(picture, format="png", dpi=DPI, metadata={"Software": None})
            write_output(folder / name, picture.getvalue())
            written.append(folder / name)
    return tuple(written)


def _matplotlib() -> Any:
    """A function that makes a styled figure without a display: (width, height in inches) -> Figure."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        hint = "pip install 'normgen[plot]'; the HTML page needs no matplotlib"
        raise UsageError("PNG plots are drawn by matplotlib", received=str(error), hint=hint) from None
    matplotlib.rcParams.update(STYLE)

    def figure_of(width: float, height: float) -> Any:
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure

    return figure_of


def _progress(figure_of: Any, runs: Sequence[tuple[str, Series]], looks: PlotStyle) -> Any:
    """Best-so-far relative to the run's best against evaluations; failures as crosses in lanes below."""
    if not runs:
        return None
    figure = figure_of(9, 4.2 + 0.4 * len(runs))
    axes, lanes = figure.subplots(2, 1, sharex=True, height_ratios=(4, 0.25 * len(runs)))
    highest = 1.0
    for i, (label, series) in enumerate(runs):
        family, best = family_of(series), series.best_us or 1.0
        colour, dash = looks.colour(family), looks.dash(family)
        steps = [(n, us / best) for n, us in enumerate(series.best_so_far(), start=1) if us is not None]
        highest = max(highest, steps[0][1])
        axes.step(*zip(*steps, strict=True), where="post", color=colour, linestyle=dash, linewidth=1.8, label=label)
        dots = [(n, t.cost_us / best) for n, t in enumerate(series.trials, 1) if t.outcome is Outcome.OK and t.cost_us]
        axes.scatter(*zip(*dots, strict=True), s=5, color=colour, alpha=0.35, linewidths=0)
        failed = [n for n, t in enumerate(series.trials, 1) if t.outcome is not Outcome.OK]
        lanes.scatter(failed, [-i] * len(failed), marker="x", s=14, color=colour, linewidths=1)
    room = max(highest - 1, 0.05) * 0.15
    axes.set(ylim=(1 - room, highest + room), ylabel="time / best of the run")
    figure.legend(loc="outside lower center", fontsize=8, ncols=2)
    lanes.set(ylim=(-len(runs) + 0.5, 0.5), yticks=[], ylabel="failed", xlabel="evaluations")
    lanes.grid(visible=False)
    return figure


def _roof(figure_of: Any, lines: Sequence[RoofLine], looks: PlotStyle) -> Any:
    """% of roofline over cols, one line per op, direction, dtype, place and device."""
    if not lines:
        return None
    figure = figure_of(9, 4.5)
    axes = figure.subplots()
    devices = sorted({line.device for line in lines})
    for line in lines:
        colour = looks.colour((line.op, line.direction, line.dtype, line.place))
        dash = DASHES[devices.index(line.device) % len(DASHES)]
        label = f"{line.label}, {line.device}" if len(devices) > 1 else line.label
        axes.plot(
            *zip(*line.middle(), strict=True),
            color=colour,
            linestyle=dash,
            linewidth=1.6,
            marker="o",
            markersize=3,
            label=label,
        )
        for confirmed in (True, False):
            points = [(p.cols, p.percent_of_roof) for p in line.points if p.confirmed is confirmed]
            xs, ys = zip(*points, strict=True) if points else ((), ())
            faces = colour if confirmed else "white"
            axes.scatter(xs, ys, s=30, edgecolors=colour, facecolors=faces, zorder=3)
    axes.axhline(100, color="#1c1c1a", linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda cols, _: f"{cols:,.0f}")
    axes.margins(x=0.08)
    axes.set(xlabel="cols", ylabel="% of roofline (a copy of the same bytes)")
    figure.legend(loc="outside lower center", fontsize=8, ncols=3)
    return figure


def _importance(figure_of: Any, measured: Sequence[tuple[str, Series]]) -> Any:
    """Share of the variance of log time per knob, one panel per series; the tick is what chance would show."""
    panels = [(label, shares) for label, s in measured if (shares := knob_shares(s.timed))]
    if not panels:
        return None
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = figure_of(9, 0.8 + 2.8 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (label, shares) in zip(grid.flat, panels, strict=False):
        names = [s.knob for s in reversed(shares)]
        axes.barh(names, [100 * s.share for s in reversed(shares)], color=COLOURS[0], height=0.65)
        axes.scatter([100 * s.chance for s in reversed(shares)], names, marker="|", s=60, color="#1c1c1a", zorder=3)
        axes.set_title(label, fontsize=9, loc="left")
        axes.set(xlabel="% of the variance of log time", xlim=(0, 100))
        axes.grid(visible=False, axis="y")
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    return figure
