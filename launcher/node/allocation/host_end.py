"""Whether this host is being shut down: init then sends TERM to every process of it, which is no wish to end the run."""

from __future__ import annotations

from pathlib import Path

from launcher.opening import read_whole

_NOTICE = Path("/run/nologin")
"""systemd writes it when the host goes down (systemd-user-sessions.service), and some minutes before where that was announced."""
_WORDS = b"System is going down"
"""What it says then. While the host starts it says otherwise, and administrators who keep users out write words of their own."""


def is_shutting_down() -> bool:
    """Whether systemd says so; never raises."""
    try:
        return _WORDS in read_whole(_NOTICE)
    except OSError:
        return False
