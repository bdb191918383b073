"""Collect what this user's runs have seen of each host: failures, hangs, failed checks, slow steps. Pure but for `load`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from launcher.frozen import frozen
from launcher.report.formats import duration, median
from launcher.report.model.history import as_dict, as_list, as_text, own_time
from launcher.run import event_lines
from launcher.run import events as ev
from launcher.run.events import Event
from launcher.run.files import read_thinned
from launcher.run.paths import RunPaths

SLOW = 0.1
"""A host whose steps take this much longer than those of the run's median rank is slow."""
_MIN_SAMPLES = 3


@frozen
class HostTrace:
    """What one run has recorded of its hosts."""

    run: str
    events: list[Event]
    samples: list[dict[str, Any]]


@dataclass
class HostRecord:
    """One host; counts are of events, not of processes."""

    host: str
    runs: set[str] = field(default_factory=set)
    joined: set[tuple[str, int | None]] = field(default_factory=set)
    """Runs and attempts in which it took part, however often its agent joined."""
    lost: int = 0
    """Times that its agent stopped responding or lost its connection."""
    failed: int = 0
    """Times that a worker on it was the first to fail. Programs fail, too: a few prove nothing."""
    hung: int = 0
    """Times that the others waited for a rank on it."""
    checks_failed: int = 0
    """Times that it failed a check before the first round."""
    excluded: int = 0
    slower: list[float] = field(default_factory=list)
    """Per run: how much longer its steps took than the median rank's, 0.05 for 5 %."""
    last_t: float | None = None
    last: str = ""
    """Its latest trouble."""

    @property
    def slow_by(self) -> float | None:
        """The median over runs; None where nothing can be compared (one host, no samples)."""
        return median(self.slower) if self.slower else None

    @property
    def troubles(self) -> int:
        """What sorts hosts: everything that went wrong on it."""
        return self.lost + self.failed + self.hung + self.checks_failed

    @property
    def suspect(self) -> bool:
        """The host itself looks bad: lost, failing checks or hung more than once, or slow."""
        return self.lost + self.hung + self.checks_failed > 1 or (self.slow_by or 0.0) >= SLOW

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        values = {
            **vars(self),
            "runs": len(self.runs),
            "attempts": len(self.joined),
            "slow_by": self.slow_by,
            "suspect": self.suspect,
        }
        del values["slower"], values["joined"]
        return values


_TELLING = (ev.NodeJoined, ev.NodeLost, ev.WorkerFailed, ev.Hang, ev.PreflightDone, ev.Excluded)


def load(paths: RunPaths) -> HostTrace:
    """Read one run's events and samples; torn and missing files are tolerated."""
    # A median is wanted, of every run on the list: some hundred samples tell it.
    samples = read_thinned(paths.samples, most_lines=300, most_bytes=2 << 20)
    return HostTrace(paths.id, event_lines.read(paths.events, *_TELLING), samples)


def gather(traces: Iterable[HostTrace]) -> list[HostRecord]:
    """Records of every host that any run has seen, the most troubled first."""
    hosts: dict[str, HostRecord] = {}
    for trace in traces:
        for event in trace.events:
            _note(hosts, trace.run, event)
        for host, slower in _slower(trace.samples).items():
            _record(hosts, host).slower.append(slower)
    return sorted(hosts.values(), key=lambda r: (not r.suspect, -r.troubles, -(r.slow_by or 0.0), r.host))


def _record(hosts: dict[str, HostRecord], name: object) -> HostRecord:
    """Simulated nodes of one machine, ``HOST/0``, ``HOST/1``, are that machine."""
    host = as_text(name).partition("/")[0]
    return hosts.setdefault(host, HostRecord(host))


def _trouble(hosts: dict[str, HostRecord], host: object, event: Event, text: str) -> HostRecord:
    record, t = _record(hosts, host), event.t
    if record.last_t is None or t >= record.last_t:
        record.last_t, record.last = t, text
    return record


def _note(hosts: dict[str, HostRecord], run: str, event: Event) -> None:
    match event:
        case ev.NodeJoined(host=str(host)):
            record = _record(hosts, host)
            record.runs.add(run)
            record.joined.add((run, event.attempt))
        case ev.NodeLost(host=str(host)) if event.why != "cut_off":
            _trouble(hosts, host, event, f"lost ({event.why or 'silent'})").lost += 1
        case ev.WorkerFailed(host=str(host)) if len({r.host for r in event.ranks}) < 2:  # else the program is to blame
            cause = event.cause
            words = (cause.text or cause.kind if cause else None) or "a worker failed"
            _trouble(hosts, host, event, words).failed += 1
        case ev.Hang():
            for host in dict.fromkeys(r.host for r in event.laggards if r.host and r.exit_code is None):
                _trouble(hosts, host, event, f"hung for {duration(event.limit_s)}").hung += 1
        case ev.PreflightDone():
            _failed_checks(hosts, event)
        case ev.Excluded():
            for host in dict.fromkeys(event.hosts):
                _trouble(hosts, host, event, f"excluded: {event.why or ''}").excluded += 1


def _failed_checks(hosts: dict[str, HostRecord], event: ev.PreflightDone) -> None:
    failed: dict[str, str] = {}
    for check in event.checks:
        if check.ok is False and check.host:
            failed.setdefault(check.host, f"{check.name or ''}: {check.detail}" if check.detail else "")
    for host, text in failed.items():
        _trouble(hosts, host, event, text or "failed a check").checks_failed += 1


def _slower(samples: list[dict[str, Any]]) -> dict[str, float]:
    """How much longer each host's steps took than the median rank's, over one run; {} with a single host."""
    ratios: dict[str, list[float]] = {}
    for sample in samples:
        times: dict[str, list[float]] = {}
        for rank in map(as_dict, as_list(sample.get("ranks"))):
            took = own_time(rank)
            if took is not None and took > 0 and rank.get("host"):
                times.setdefault(as_text(rank["host"]).partition("/")[0], []).append(took)
        if len(times) < 2:
            continue
        middle = median(t for several in times.values() for t in several)
        for host, several in times.items():
            ratios.setdefault(host, []).append(median(several) / middle - 1.0)
    return {host: median(values) for host, values in ratios.items() if len(values) >= _MIN_SAMPLES}
