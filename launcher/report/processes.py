"""Whether the process that runs a local run still lives, as far as this host can tell."""

from __future__ import annotations

import os

from launcher.report.history import History, as_number, as_text

__all__ = ["is_alive", "local_process"]


def local_process(h: History) -> tuple[int | None, float | None, str | None]:
    """Process id, start time and host of what runs a local run, as far as its files tell."""
    submitted = (h.last("submitted") or {}).get("t", 0.0)
    picture = h.state if (as_number(h.state.get("t")) or 0.0) > submitted else {}
    started = h.last("attempt_started") or {}
    for source in (picture, started if started.get("t", 0.0) >= submitted else {}, h.submission):
        pid = as_number(source.get("leader_pid", source.get("pid")))
        if pid is not None:
            host = as_text(source.get("leader_host", source.get("host"))) or None
            return int(pid), as_number(source.get("pid_started")), host
    return None, None, as_text(h.submission.get("host")) or None


def is_alive(pid: int, begun: float | None) -> bool:
    """Whether the process exists, is no zombie, and is not a later one of the same number (``begun``: its start)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        if fields[0] in (b"Z", b"X"):
            return False
        return begun is None or abs(_boot_t() + int(fields[19]) / os.sysconf("SC_CLK_TCK") - begun) < 5.0
    except (OSError, IndexError, ValueError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _boot_t() -> float:
    with open("/proc/stat") as f:
        return next(float(line.split()[1]) for line in f if line.startswith("btime"))
