"""Tracebacks and stack dumps out of log lines, and the frame in them that is the user's own; pure but for `tail`."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher.frozen import frozen
from launcher.report.formats import clean

__all__ = ["Frame", "Trace", "frames_of", "last_stack", "last_traceback", "tail", "user_frame"]

_FILE = re.compile(r'^\s*File "(?P<file>.+?)", line (?P<line>\d+|\?\?\?)(?:,)? in (?P<function>.+?)\s*$')
_ERROR = re.compile(r"^(?P<type>(?:[A-Za-z_][\w]*\.)*[A-Za-z_]\w*)(?:: (?P<message>.*))?$")
_PREFIX = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
"""torchrun and torch's own excepthook put ``[rank3]: `` before every line."""
_STDLIB = tuple({os.path.realpath(sysconfig.get_paths()[k]) for k in ("stdlib", "platstdlib")})
_LIBRARY = re.compile(
    r"(site|dist)-packages/|^<(?!stdin)|/lib/python\d|/launcher/(training|node|runtime|run)/|importlib/_bootstrap"
)


@frozen
class Frame:
    """One place in the code."""

    file: str
    line: int
    function: str = ""
    code: str = ""

    def words(self, code_dir: str = "") -> str:
        """``train.py:118  loss = criterion(model(x), y)``, relative to the job's code."""
        where = clean(f"{shorten(self.file, code_dir)}:{self.line}", 120)
        what = clean(self.code or (f"in {self.function}" if self.function else ""), 160)
        return f"{where}  {what}" if what else where


@frozen
class Trace:
    """A traceback or stack: outermost frame first."""

    exception: str = ""
    message: str = ""
    frames: list[Frame] = field(default_factory=list)


def shorten(file: str, code_dir: str) -> str:
    """``file`` relative to the job's code where it lies there; otherwise its last three parts."""
    if code_dir and file.startswith(code_dir.rstrip("/") + "/"):
        return file[len(code_dir.rstrip("/")) + 1 :]
    parts = Path(file).parts
    return file if len(parts) <= 3 else "…/" + "/".join(parts[-3:])


def frames_of(values: Iterable[Any]) -> list[Frame]:
    """Frames as a worker reported them, innermost first ([{file, line, function, code}]), turned outermost first."""
    out = []
    for value in reversed(list(values)):
        if isinstance(value, dict) and isinstance(value.get("file"), str):
            line = value.get("line")
            name, code = str(value.get("function") or ""), str(value.get("code") or "").strip()
            out.append(Frame(value["file"], line if isinstance(line, int) else 0, name, code))
    return out


def user_frame(frames: list[Frame], code_dir: str = "") -> Frame | None:
    """The innermost frame of the user's own code: below the job's directory, else outside any library, else the last."""
    own = [
        f for f in frames if code_dir and f.file.startswith(code_dir.rstrip("/") + "/") and "-packages/" not in f.file
    ]
    outside = [f for f in frames if not _LIBRARY.search(f.file) and not os.path.realpath(f.file).startswith(_STDLIB)]
    for choice in (own, outside, frames):
        if choice:
            return choice[-1]
    return None


def _bare(lines: Iterable[str]) -> list[str]:
    return [_PREFIX.sub("", line.rstrip("\n")) for line in lines]


def last_traceback(lines: Iterable[str]) -> Trace | None:
    """The last Python traceback in ``lines``; of a chain ("During handling ...") the last exception."""
    bare = _bare(lines)
    for start in range(len(bare) - 1, -1, -1):
        if bare[start].lstrip().startswith("Traceback (most recent call last)"):
            found = _traceback(bare[start + 1 :])
            if found is not None:
                return found
    return _loose_error(bare)


def _traceback(lines: list[str]) -> Trace | None:
    frames: list[Frame] = []
    for i, line in enumerate(lines):
        if match := _FILE.match(line):
            code = lines[i + 1].strip() if i + 1 < len(lines) and not _FILE.match(lines[i + 1]) else ""
            frames.append(_frame(match, code))
        elif line and not line[0].isspace():
            error = _ERROR.match(line)
            if error is None:
                return None
            return Trace(error["type"], _message(error["message"] or "", lines[i + 1 :]), frames)
    return None


def _frame(match: re.Match[str], code: str = "") -> Frame:
    return Frame(match["file"], int(match["line"]) if match["line"].isdigit() else 0, match["function"], code)


def _message(first: str, following: list[str]) -> str:
    """The message with its further lines, up to an empty one or something that begins anew."""
    out = [first]
    for line in following[:20]:
        if not line.strip() or line.startswith(("Traceback", "During handling", "The above exception", "[")):
            break
        out.append(line)
    return "\n".join(out).strip()


def _loose_error(lines: list[str]) -> Trace | None:
    """``SomeError: message`` without a traceback above it: the log was cut, or a program prints its own."""
    for line in reversed(lines):
        match = re.match(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)): (.*)$", line)
        if match:
            return Trace(match[1], match[2])
    return None


def last_stack(lines: Iterable[str]) -> Trace | None:
    """The last stack dumped by faulthandler: of the main thread where there are several. Outermost frame first."""
    bare = _bare(lines)
    stacks: list[tuple[str, list[Frame]]] = []
    title = ""
    for line in bare:
        if line.startswith("Fatal Python error"):
            title = line.partition(": ")[2]
        if re.match(r"^(Current thread|Thread) 0x[0-9a-f]+", line):
            stacks.append((line, []))
        elif (match := _FILE.match(line)) and stacks:
            stacks[-1][1].append(_frame(match))
    if not stacks:
        return None
    current = [s for s in stacks if s[0].startswith("Current") and s[1]]
    chosen = current[-1] if current else next((s for s in reversed(stacks) if s[1]), stacks[-1])
    return Trace(title, "", list(reversed(chosen[1])))


def tail(path: Path, size: int = 65536) -> list[str]:
    """The last lines of a log, at most ``size`` bytes; empty when it cannot be read."""
    try:
        with path.open("rb") as f:
            f.seek(0, os.SEEK_END)
            end = f.tell()
            f.seek(max(0, end - size))
            raw = f.read(size)
    except OSError:
        return []
    lines = raw.decode("utf-8", "replace").splitlines()
    return lines[1:] if end > size else lines
