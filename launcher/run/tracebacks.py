"""Tracebacks and stack dumps out of log lines; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

from launcher.frozen import frozen
from launcher.run.event_parts import Frame
from launcher.run.units import whole_number

_FILE = re.compile(r'^\s*File "(?P<file>.+?)", line (?P<line>\d+|\?\?\?)(?:,)? in (?P<function>.+?)\s*$')
_ERROR = re.compile(r"^(?P<type>(?:[A-Za-z_][\w]*\.)*[A-Za-z_]\w*)(?:: (?P<message>.*))?$")
_NAMED = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)): (.*)$")
"""An exception by its name alone, without a traceback above it."""
_PARTING_LINES = 4
_CRASH = "Fatal Python error"
_CRASH_FRAMES = 15
"""So many of the innermost frames leave room for what the process said before."""
_OURS = re.compile(
    r'^\s*File "[^"]*/launcher/(training|node|run)/[^"]*\.py", line |^\s*File "<frozen (runpy|importlib)'
)
_HEADS = ("Current thread 0x", "Thread 0x")
_OF_PYTHON = re.compile(r"/lib/python[\d.]+/(?!site-packages|dist-packages)|^<frozen ")
_NOBODYS = re.compile(
    r"^(Extension modules:|frame #\d+: .* \(0x[0-9a-f]+ in |Exception raised from .*\(most recent call first\):)"
)
_NO_NAME = re.compile(r"^\[W\S* \S+ socket\.cpp:\d+\] \[c10d\] The hostname of the client socket cannot be retrieved")
"""torch warns in this way where hosts have no names to their addresses: it works."""
_THREAD = re.compile(r"^Exception in thread (.+):$")
WAITS = re.compile(r"torch/distributed/|nn/parallel/distributed\.py|autograd/graph\.py")
"""Files of a stack that waits for other ranks: in a collective, or in a backward pass that reduces gradients."""
_PREFIX = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
"""torchrun and torch's own excepthook put ``[rank3]: `` before every line."""


@frozen
class Trace:
    """A traceback or stack: outermost frame first."""

    exception: str = ""
    message: str = ""
    frames: list[Frame] = field(default_factory=list)


def _bare(lines: Iterable[str]) -> list[str]:
    return [_PREFIX.sub("", line.rstrip("\n")) if line[:1] == "[" else line.rstrip("\n") for line in lines]


def last_traceback(lines: Iterable[str]) -> Trace | None:
    """The last Python traceback in ``lines``; of a chain ("During handling ...") the last exception."""
    bare = _bare(lines)
    for start in range(len(bare) - 1, -1, -1):
        if bare[start].lstrip().startswith(("Traceback (most recent", "Original Traceback (most recent")):
            found = _traceback(bare[start + 1 :])
            if found is not None:
                return found
    return _loose_error(bare)


def before_traceback(lines: Iterable[str]) -> list[str]:
    """The lines above the first traceback."""
    bare = _bare(lines)
    return bare[: next((i for i, line in enumerate(bare) if line.startswith("Traceback (most recent")), len(bare))]


def thread_tracebacks(lines: Iterable[str]) -> list[tuple[str, Trace]]:
    """Threads that ended by an exception (`threading.excepthook`): each with its name; the process goes on without it."""
    bare = _bare(lines)
    found = [(match[1], _traceback(bare[i + 2 :])) for i, line in enumerate(bare) if (match := _THREAD.match(line))]
    return [(name, trace) for name, trace in found if trace is not None]


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
    line = whole_number(match["line"]) or 0
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


class _Stack(NamedTuple):
    """A stack as faulthandler dumps it: innermost frame first."""

    lines: range
    current: bool
    """Of the thread that died."""
    frames: tuple[Frame, ...]

    @property
    def users(self) -> bool:
        """Whether a frame is neither the launcher's nor Python's own."""
        return any(not (_OURS.match(f'File "{f.file}", line ') or _OF_PYTHON.search(f.file)) for f in self.frames)


def _stacks(bare: list[str]) -> list[_Stack]:
    found = []
    for start, line in enumerate(bare):
        if line.startswith(_HEADS):
            end = next((i for i in range(start + 1, len(bare)) if not bare[i].startswith("  ")), len(bare))
            found.append(_Stack(range(start, end), line.startswith("Current"), _dumped(tuple(bare[start + 1 : end]))))
    return found


@lru_cache(maxsize=256)  # thousands of ranks stand in a few places
def _dumped(lines: tuple[str, ...]) -> tuple[Frame, ...]:
    return tuple(_frame(match) for line in lines if (match := _FILE.match(line)))


def _telling(stacks: list[_Stack]) -> _Stack:
    """The stack of the thread that died, else of the main thread, which is dumped last; one with a user's frame before others."""
    users = [s for s in stacks if s.users]
    filled = [s for s in stacks if s.frames]
    return ([s for s in users if s.current] or users or filled or stacks)[-1]


def last_stack(lines: Iterable[str]) -> Trace | None:
    """The last stack dumped by faulthandler: of the thread that died, else of the main thread. Outermost frame first.

    The launcher's own threads have frames of the launcher and of Python alone: they are passed over.
    """
    bare = _bare(lines)
    stacks = _stacks(bare)
    if not stacks:
        return None
    titles = [line.partition(": ")[2] for line in bare if line.startswith(_CRASH)]
    return Trace(titles[-1] if titles else "", "", list(reversed(_telling(stacks).frames)))


def users_lines(lines: Iterable[str]) -> list[str]:
    """The lines of a log without what the launcher and Python put into a traceback or a crash.

    That is the launcher's own frames, all stacks of a crashed process but the telling one, that one's outer frames, the
    list of extension modules, and the frames of torch's C++ (dozens for one line that says something).
    """
    every = list(lines)
    bare = _bare(every)
    crash = next((i for i, line in enumerate(bare) if line.startswith(_CRASH)), len(bare))
    stacks = [s for s in _stacks(bare) if s.lines.start > crash]
    dropped = {i for s in stacks for i in s.lines}
    if stacks:
        dropped -= set(_telling(stacks).lines[: _CRASH_FRAMES + 1])
    kept: list[str] = []
    skips_code = False
    for i, line in enumerate(bare):
        skips_code = bool(_OURS.match(line)) or (skips_code and line.startswith("    "))
        if not (skips_code or i in dropped or _NOBODYS.match(line) or _NO_NAME.match(line)):
            kept.append(every[i])
    return kept
