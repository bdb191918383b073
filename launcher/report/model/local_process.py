"""Which process runs a local run, as its files tell."""

from __future__ import annotations

from launcher.report.model.history import History, as_number, as_text
from launcher.run.events import AttemptStarted, RunSubmitted


def local_process(h: History) -> tuple[int | None, object, str | None]:
    """Process id, mark (`launcher.run.processes`) and host of what runs a local run; None for what its files do not tell."""
    newest = h.last(RunSubmitted, AttemptStarted)
    led = (
        [s for s in (h.state, newest.raw) if s.get("attempt") == newest.attempt]
        if isinstance(newest, AttemptStarted)
        else []
    )
    for source in (*led, h.submission):
        pid = as_number(source.get("leader_pid", source.get("pid")))
        if pid is not None:
            host = as_text(source.get("leader_host", source.get("host"))) or None
            return int(pid), source.get("pid_started"), host
    return None, None, as_text(h.submission.get("host")) or None
