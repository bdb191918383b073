#!/usr/bin/env python3
"""Measure the simulation of `benchmarks/scale.py` at several sizes and draw it beside the formulas of docs/scale.md.

    python benchmarks/scale_plot.py [--nodes 10 100 500 1000 2000 4000] [--draw]

Writes docs/scale.json, one object a size, and docs/pictures/scale.svg. ``--draw``: only the picture, from the points on file.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
POINTS, PICTURE = ROOT / "docs" / "scale.json", ROOT / "docs" / "pictures" / "scale.svg"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 440, 60, 20, 200, 50
LOW, HIGH = (8, 0.01), (20000, 100.0)
"""The corners: nodes, and seconds or cores."""
CURVES: dict[str, tuple[str, str, Callable[[float], float]]] = {
    "leader_cpu": ("cores of the leader", "#1b6ca8", lambda n: 0.01 + 0.9e-4 * n),
    "ordered_s": ("s to the round ordered", "#2a9d5c", lambda n: 0.1 + 0.8e-3 * n),
    "restart_s": ("s from a kill to the next round", "#c77d0a", lambda n: 0.1 + 6.5e-4 * n),
    "agreed_s": ("s to agree where to stop", "#b3324b", lambda n: 0.01 + 1.9e-4 * n),
}
"""Key of scale.py: its words, its colour, its formula."""


def place(nodes: float, value: float) -> tuple[float, float]:
    """Where a point lies; both axes are logarithmic."""
    x, y = (
        (math.log(v) - math.log(low)) / (math.log(high) - math.log(low))
        for v, low, high in zip((nodes, value), LOW, HIGH, strict=True)
    )
    return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)


def draw(points: list[dict[str, float]]) -> str:
    """Return the picture: formulas as lines, what was measured as dots."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for nodes in (10, 100, 1000, 10000):
        (x, low), (_, high) = place(nodes, LOW[1]), place(nodes, HIGH[1])
        parts.append(f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{low + 18:.1f}" text-anchor="middle">{nodes:,}</text>')
    for value in (0.01, 0.1, 1, 10, 100):
        (left, y), (right, _) = place(LOW[0], value), place(HIGH[0], value)
        parts.append(f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">nodes of 8 ranks</text>'
    )
    for name, (_, colour, formula) in CURVES.items():
        sizes = [LOW[0] * (HIGH[0] / LOW[0]) ** (i / 60) for i in range(61)]
        line = " ".join("{:.1f},{:.1f}".format(*place(n, formula(n))) for n in sizes)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for point in points:
            x, y = place(point["nodes"], max(point[name], LOW[1]))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
    above = 0.0
    for words, colour, formula in sorted(
        CURVES.values(), key=lambda curve: -curve[2](HIGH[0])
    ):  # words side by side are unreadable
        x, y = place(HIGH[0], formula(HIGH[0]))
        above = max(y + 4, above + 15)
        parts.append(f'<text x="{x + 6:.1f}" y="{above:.1f}" fill="{colour}">{words}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 500, 1000, 2000, 4000])
    parser.add_argument("--draw", action="store_true")
    args = parser.parse_args()
    if not args.draw:
        points = []
        for nodes in args.nodes:
            words = [
                sys.executable,
                str(ROOT / "benchmarks" / "scale.py"),
                "--nodes",
                str(nodes),
                "--seconds",
                "10",
                "--json",
            ]
            points.append(json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
            print(points[-1], flush=True)
        POINTS.write_text("[\n" + ",\n".join(map(json.dumps, points)) + "\n]\n")
    PICTURE.write_text(draw(json.loads(POINTS.read_text())))


if __name__ == "__main__":
    main()
