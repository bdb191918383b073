"""Metrics and samples over a run's life, thinned to what a screen can show."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from launcher.frozen import frozen
from launcher.report.formats import median
from launcher.report.model.history import as_dict, as_list, as_number, own_time

MAX_POINTS = 800
"""More would not be seen in a chart of some hundred pixels."""


@dataclass
class Series:
    """One line of a chart; ``x`` is a step or a time in seconds since the epoch."""

    name: str
    x: list[float] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)
    broken: int = 0
    """Values that were not finite."""

    def thin(self, most: int = MAX_POINTS) -> Series:
        """At most about ``most`` points: of each stretch its lowest and its highest, so that spikes stay."""
        if len(self.x) <= most:
            return self
        width = math.ceil(len(self.x) / (most / 2))
        keep: list[int] = []
        for a in range(0, len(self.x), width):
            part = range(a, min(a + width, len(self.x)))
            known = [(value, i) for i in part if (value := self.y[i]) is not None]
            gaps = [i for i in part if self.y[i] is None][:1]
            keep += sorted({min(known)[1], max(known)[1], *gaps}) if known else [a]
        return Series(self.name, [self.x[i] for i in keep], [self.y[i] for i in keep], self.broken)

    def as_json(self) -> dict[str, Any]:
        """For the page's charts."""
        return {
            "name": self.name,
            "x": [round(v, 3) for v in self.x],
            "y": [
                None if v is None or not math.isfinite(v) else float(f"{v:.6g}") for v in self.y
            ],  # a sum may overflow
        }


def metric_series(lines: list[dict[str, Any]]) -> list[Series]:
    """Each metric over steps; of a step done twice the later value counts."""
    values: dict[str, dict[float, float | None]] = {}
    for line in lines:
        step = as_number(line.get("step"))
        if step is None:
            continue
        for name, raw in as_dict(line.get("metrics")).items():
            if isinstance(raw, (int, float, str)) and not isinstance(raw, bool):
                values.setdefault(str(name), {})[step] = as_number(raw)
    out = []
    for name, by_step in values.items():
        steps = sorted(by_step)
        found = [by_step[step] for step in steps]
        out.append(Series(name, steps, found, broken=found.count(None)))
    return out


def charts(series: list[Series]) -> list[list[Series]]:
    """Series that belong into one chart: those of one stem (``loss``, ``val_loss``, ``test/loss``); losses first."""
    groups: dict[str, list[Series]] = {}
    for one in series:
        groups.setdefault(_stem(one.name), []).append(one)
    order = sorted(groups, key=lambda stem: (0 if stem == "loss" else 1 if "acc" in stem else 2, stem))
    return [sorted(groups[stem], key=lambda s: len(s.name)) for stem in order]


def _stem(name: str) -> str:
    lowered = name.lower()
    for prefix in ("train", "val", "valid", "validation", "test", "eval"):
        for mark in ("_", "/", ".", "-"):
            if lowered.startswith(prefix + mark):
                return lowered[len(prefix) + 1 :]
    return lowered


_GAUGES = {
    "gpu": ("gpu_percent", 1.0), "cpu": ("cpu_percent", 1.0), "gpu_memory": ("gpu_mem_bytes", 1e9), "memory": ("rss_bytes", 1e9),
    "gpu_power": ("gpu_power_w", 1.0),
}  # fmt: skip
"""What is drawn of a rank's samples: the key, and how much is one."""


def usage(samples: list[dict[str, Any]]) -> dict[str, list[Series]]:
    """Throughput, GPU and CPU use and memory over time: means and extremes over ranks."""
    speed = Series("steps/s")
    last: tuple[float, float, object] | None = None
    tracks = {name: [Series("highest"), Series("mean"), Series("lowest")] for name in _GAUGES}
    for line in samples:
        t, ranks = as_number(line.get("t")), [r for r in as_list(line.get("ranks")) if isinstance(r, dict)]
        if t is None or not ranks:
            continue
        step = max((s for s in (as_number(r.get("step")) for r in ranks) if s is not None), default=None)
        place = (line.get("attempt"), line.get("round"))
        if step is not None:
            if last is not None and last[2] == place and t > last[0] and step >= last[1]:
                speed.x.append(t)
                speed.y.append((step - last[1]) / (t - last[0]))
            elif last is not None and last[2] != place:
                for one in chain([speed], *tracks.values()):
                    one.x.append(t - 0.001)  # a break: nothing ran between two rounds
                    one.y.append(None)
            last = (t, step, place)
        for name, (key, unit) in _GAUGES.items():
            known = [v / unit for r in ranks if (v := as_number(r.get(key))) is not None]
            values = (max(known), sum(known) / len(known), min(known)) if known else (None, None, None)
            for one, value in zip(tracks[name], values, strict=True):
                one.x.append(t)
                one.y.append(value)
    shown = {"throughput": [speed]} if speed.x else {}
    shown |= {name: three for name, three in tracks.items() if any(v is not None for v in three[0].y)}
    return {name: [one.thin() for one in group] for name, group in shown.items()}


@frozen
class RankSpread:
    """Step times of one rank over the run, in seconds."""

    rank: int
    host: str
    low: float
    """10th percentile."""
    middle: float
    high: float
    """90th percentile."""
    over: float
    """By what share its median exceeds the median of all ranks."""

    @property
    def straggler(self) -> bool:
        """Whether it stands out: a tenth slower than the middle of all."""
        return self.over >= 0.1


def spreads(samples: list[dict[str, Any]]) -> list[RankSpread]:
    """Step-time spread of every rank, by rank; the host is where it ran last."""
    times: dict[int, list[float]] = {}
    hosts: dict[int, str] = {}
    for line in samples:
        for r in as_list(line.get("ranks")):
            seconds = own_time(as_dict(r))
            if seconds and isinstance(r.get("rank"), int):
                times.setdefault(r["rank"], []).append(seconds)
                hosts[r["rank"]] = str(r.get("host") or "")
    middles = {rank: median(values) for rank, values in times.items()}
    middle = median(middles.values())
    out = []
    for rank, values in sorted(times.items()):
        values.sort()
        low, high = values[int(0.1 * (len(values) - 1))], values[round(0.9 * (len(values) - 1))]
        over = middles[rank] / middle - 1 if middle > 0 else 0.0
        out.append(RankSpread(rank, hosts[rank], low, middles[rank], high, over))
    return out
