"""Tracebacks and stack dumps out of log lines; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field

from launcher.frozen import frozen
from launcher.run.event_parts import Frame

_FILE = re.compile(r'^\s*File "(?P<file>.+?)", line (?P<line>\d+|\?\?\?)(?:,)? in (?P<function>.+?)\s*$')
_ERROR = re.compile(r"^(?P<type>(?:[A-Za-z_][\w]*\.)*[A-Za-z_]\w*)(?:: (?P<message>.*))?$")
_NAMED = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)): (.*)$")
"""An exception by its name alone, without a traceback above it."""
_PARTING_LINES = 4
_OURS = re.compile(
    r'^\s*File "[^"]*/launcher/(training|node|run)/[^"]*\.py", line |^\s*File "<frozen (runpy|importlib)'
)
_HEAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+")
_OF_PYTHON = re.compile(r"/lib/python[\d.]+/(?!site-packages|dist-packages)|^<frozen ")
_PREFIX = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
"""torchrun and torch's own excepthook put ``[rank3]: `` before every line."""


@frozen
class Trace:
    """A traceback or stack: outermost frame first."""

    exception: str = ""
    message: str = ""
    frames: list[Frame] = field(default_factory=list)


def _bare(lines: Iterable[str]) -> list[str]:
    return [_PREFIX.sub("", line.rstrip("\n")) for line in lines]


def last_traceback(lines: Iterable[str]) -> Trace | None:
    """The last Python traceback in ``lines``; of a chain ("During handling ...") the last exception."""
    bare = _bare(lines)
    for start in range(len(bare) - 1, -1, -1):
        if bare[start].lstrip().startswith(("Traceback (most recent", "Original Traceback (most recent")):
            found = _traceback(bare[start + 1 :])
            if found is not None:
                return found
    return _loose_error(bare)


def parting_traceback(lines: Iterable[str]) -> Trace | None:
    """`last_traceback`, where it is what the process said last: one that was handled long before its end tells nothing."""
    said = [line for line in lines if line.strip()]
    ends = [i for i, line in enumerate(_bare(said)) if _FILE.match(line) or _NAMED.match(line)]
    return last_traceback(said) if ends and len(said) - ends[-1] <= _PARTING_LINES else None


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
    line = int(match["line"]) if match["line"].isdigit() else 0
    return Frame(file=match["file"], line=line, function=match["function"], code=code)


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
        if match := _NAMED.match(line):
            return Trace(match[1], match[2])
    return None


def last_stack(lines: Iterable[str]) -> Trace | None:
    """The last stack dumped by faulthandler: of the thread that died, else of the main thread. Outermost frame first.

    The launcher's own threads have frames of the launcher and of Python alone: they are passed over.
    """
    stacks: list[tuple[str, list[Frame]]] = []
    title = ""
    for line in _bare(lines):
        if line.startswith("Fatal Python error"):
            title = line.partition(": ")[2]
        if _HEAD.match(line):
            stacks.append((line, []))
        elif (match := _FILE.match(line)) and stacks:
            stacks[-1][1].append(_frame(match))
    if not stacks:
        return None
    users = [s for s in stacks if any(not (_OURS.match(_quoted(f)) or _OF_PYTHON.search(f.file)) for f in s[1])]
    current = [s for s in users if s[0].startswith("Current")]
    filled = [s for s in stacks if s[1]]
    chosen = (current or users or filled or stacks)[-1]
    return Trace(title, "", list(reversed(chosen[1])))


def _quoted(frame: Frame) -> str:
    return f'File "{frame.file}", line '


def users_lines(lines: Iterable[str]) -> list[str]:
    """The lines of a log without what the launcher and Python put into a traceback or a crash.

    That is the launcher's own frames, the other threads of a process that crashed, and the list of extension modules.
    """
    kept: list[str] = []
    skips_code = skips_thread = crashed = False
    for line in lines:
        bare = _PREFIX.sub("", line)
        crashed = crashed or bare.startswith("Fatal Python error")
        if _HEAD.match(bare):
            skips_thread = crashed and bare.startswith("Thread")
        in_frame = skips_code and bare.startswith("    ")
        skips_code = bool(_OURS.match(bare)) or in_frame
        if skips_code or (skips_thread and bare.startswith(("Thread", "  "))) or bare.startswith("Extension modules:"):
            continue
        kept.append(line)
    return kept
