"""A ladder as a picture: time over threads a block, a line a rung, the source's beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normgen.bench.plot import require_matplotlib, save
from normgen.errors import UsageError
from normgen.ladder.climb import Climb, Climbed
from normgen.ladder.rungs import Ladder


def plot(ladder: Ladder, found: Climb, path: Path) -> None:
    """Write the picture to `path`, whose suffix says the format. Raises UsageError where nothing was timed."""
    figures = require_matplotlib()
    timed = [rung for rung in found.rungs if rung.best is not None]
    if not timed:
        raise UsageError("a plot needs at least one time", received=ladder.name)
    has_source = any(launch.source_ms for rung in timed for launch in rung.launches)
    picture = figures.Figure(figsize=(6.4 if not has_source else 11.5, 4.6), layout="constrained")
    axes = picture.subplots(1, 2 if has_source else 1, squeeze=False)[0]
    blocks = list(dict.fromkeys(launch.block for rung in timed for launch in rung.launches if launch.block != "own"))
    how = "measured" if found.measured else "predicted"
    _draw(axes[0], timed, blocks, is_source=False)
    axes[0].set_title(f"{found.device}, {how}")
    if has_source:
        _draw(axes[1], timed, blocks, is_source=True)
        axes[1].set_title(f"the source's {ladder.source.gpu}")
    picture.suptitle(f"{ladder.name}: {found.problem}")
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(timed))
    save(picture, path)


def _draw(axis: Any, rungs: list[Climbed], blocks: list[str], *, is_source: bool) -> None:
    """One panel; our own schedules, which have one launch, are level lines."""
    for number, rung in enumerate(rungs):
        points = [
            (blocks.index(one.block), 1e3 * one.source_ms if is_source and one.source_ms else one.us)
            for one in rung.launches
            if one.block in blocks and (one.source_ms if is_source else one.us)
        ]
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", color=f"C{number}", label=rung.name)
        elif not is_source and rung.best is not None:
            axis.axhline(rung.best.us, color=f"C{number}", ls="--", label=rung.name)
    axis.set_xticks(range(len(blocks)), blocks, rotation=0 if max(map(len, blocks), default=0) < 6 else 30)
    axis.set_yscale("log")
    axis.set(xlabel="launch", ylabel="µs")
    axis.grid(visible=True, which="both", alpha=0.3)
