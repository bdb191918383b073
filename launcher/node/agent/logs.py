"""Opens workers' logs, links the latest, reads their ends and removes old ones. It blocks: agents call it in threads."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from launcher.opening import open_to_append, read_tail
from launcher.redact import redact
from launcher.run.paths import RunPaths
from launcher.run.tracebacks import users_lines

KEEP_ROUNDS = 20
"""Rounds of an attempt whose logs are kept: a run that restarts for days must not fill the disk."""
_TAIL_BYTES = 65536
_LONG_TAIL_BYTES = 1 << 20
"""So much is read where one line fills the usual tail: an error's message may show a whole tensor."""
_TAIL_LINES = 30
_LINE_CHARS = 2000


def open_log(path: Path, *, share: str) -> int:
    """Open ``path`` for appending, with its folders; ``share`` decides who may read. Raises OSError."""
    group = share == "group"
    mode = 0o750 if group else 0o700
    for folder in (path.parents[2], path.parents[1], path.parents[0]):
        folder.mkdir(mode=mode, exist_ok=True)
    return open_to_append(path, 0o640 if group else 0o600)


def last_lines(path: Path, offset: int = 0, secrets: Sequence[str] = ()) -> list[str]:
    """Return the user's last lines of ``path`` beyond ``offset`` bytes, without ``secrets``; none when it cannot be read."""
    try:
        text = _whole_lines(path, offset, _TAIL_BYTES)
        if not text.strip():
            text = _whole_lines(path, offset, _LONG_TAIL_BYTES)
    except OSError:
        return []
    lines = [line.rstrip()[:_LINE_CHARS] for line in redact(text, secrets).splitlines() if line.strip()]
    return users_lines(lines)[-_TAIL_LINES:]


def _whole_lines(path: Path, offset: int, most: int) -> str:
    """Return the lines in the last ``most`` bytes of ``path``, beyond ``offset``. Raises OSError."""
    data, begin = read_tail(path, most)
    text = data[max(0, offset - begin) :].decode(errors="replace")
    if begin > offset:
        text = "".join(text.splitlines(keepends=True)[1:])  # the rest of a line: half of a secret would not be found
    return text


def link_latest(paths: RunPaths, target: Path) -> None:
    """Point the run's ``log`` at ``target``; readers never find it missing."""
    new = paths.latest_log.with_name(".log.new")
    try:
        new.unlink(missing_ok=True)
        new.symlink_to(os.path.relpath(target, paths.root))
        new.replace(paths.latest_log)
    except OSError:
        pass  # a convenience


def prune(paths: RunPaths, attempt: int, round_: int) -> None:
    """Remove the logs of rounds older than the last `KEEP_ROUNDS`."""
    try:
        entries = list(paths.attempt_logs(attempt).iterdir())
    except OSError:
        return
    for entry in entries:
        found = re.fullmatch(r"round-(\d+)", entry.name)
        if found and int(found.group(1)) <= round_ - KEEP_ROUNDS:
            shutil.rmtree(entry, ignore_errors=True)
