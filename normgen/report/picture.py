"""docs/prices.svg: what other libraries' kernels cost beside ours, a dot an entry and peer, over the bytes it moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normgen.bench.result import Results

WIDTH, HEIGHT = 880, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 16, 52, 46
# Okabe and Ito 2008, Color universal design: told apart by those who do not see red and green as two colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A peer's marginal time over ours, at an entry that moves so many bytes."""

    peer: str
    bytes: int
    ratio: float
    label: str


def dots_of(results: Sequence[Results]) -> list[Dot]:
    """Every entry and peer that have a marginal time both."""
    found = []
    for result in results:
        for entry in result.entries:
            for peer, provider in entry.peers.items():
                ratio = provider.our_price_to_this or (None if provider.price_us else provider.ours_to_this)
                if ratio is not None and ratio.median > 0 and entry.bytes > 0:
                    found.append(Dot(peer=peer, bytes=entry.bytes, ratio=1 / ratio.median, label=entry.label))
    return found


def svg(results: Sequence[Results]) -> str:
    """The picture as text: the same for the same evidence."""
    dots = dots_of(results)
    peers = sorted({dot.peer for dot in dots})
    device = ", ".join(dict.fromkeys(result.device["name"] for result in results))
    low, high = (f(dot.bytes for dot in dots) for f in (min, max))
    top = max(2.0, max(dot.ratio for dot in dots) * 1.1)
    bottom = min(0.8, min(dot.ratio for dot in dots) / 1.1)

    def x(size: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(size / low) / math.log(high / low)

    def y(ratio: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * math.log(top / ratio) / math.log(top / bottom)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 18, f"Marginal time of other libraries' kernels over ours, on an {device}", size=14),
    ]
    for ratio in (0.5, 1, 2, 4, 8, 16):
        if bottom <= ratio <= top:
            colour = "#000" if ratio == 1 else "#ddd"
            lines.append(f'<path d="M{LEFT} {y(ratio):.1f}H{WIDTH - RIGHT}" stroke="{colour}"/>')
            lines.append(_text(LEFT - 6, y(ratio) + 4, f"{ratio:g} x", anchor="end"))
    for power in range(10, 34, 4):
        if low <= 1 << power <= high:
            lines.append(f'<path d="M{x(1 << power):.1f} {HEIGHT - BOTTOM}v5" stroke="#000"/>')
            lines.append(_text(x(1 << power), HEIGHT - BOTTOM + 18, _size(1 << power), anchor="middle"))
    lines.append(_text(WIDTH / 2, HEIGHT - 10, "bytes a launch moves; above the line ours costs less", anchor="middle"))
    for number, peer in enumerate(peers):
        colour, at = COLOURS[number % len(COLOURS)], LEFT + 110 * number
        lines.append(f'<circle cx="{at + 5}" cy="34" r="4" fill="{colour}"/>')
        lines.append(_text(at + 14, 38, peer))
        for dot in (d for d in dots if d.peer == peer):
            lines.append(
                f'<circle cx="{x(dot.bytes):.1f}" cy="{y(dot.ratio):.1f}" r="3.5" fill="{colour}" fill-opacity="0.7">'
                f"<title>{dot.label}, {peer}: {dot.ratio:.2f} x</title></circle>"
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{text}</text>'


def _size(size: int) -> str:
    for power, unit in ((30, "GB"), (20, "MB"), (10, "kB")):
        if size >= 1 << power:
            return f"{size >> power} {unit}"
    return f"{size} B"
