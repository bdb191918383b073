"""The frame of a traceback that is the user's own, in words; pure but for `tail`."""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path

from launcher.opening import read_tail
from launcher.report.formats import clean
from launcher.run.event_parts import Frame

_STDLIB = tuple({os.path.realpath(sysconfig.get_paths()[k]) for k in ("stdlib", "platstdlib")})
_MOST_FRAMES = 7
_LIBRARY = re.compile(
    r"(site|dist)-packages/|^<(?!stdin)|/lib/python\d|/launcher/(training|node|runtime|run)/|importlib/_bootstrap"
)


def place_words(frames: list[Frame], code_dir: str = "") -> str:
    """``train.py:118 in step  loss = criterion(model(x), y)``, relative to the job's code; "" where there are no frames."""
    frame = user_frame(frames, code_dir)
    if frame is None:
        return ""
    outer = [f for f in frames[: frames.index(frame) + 1] if f.file == frame.file and f.function]
    # A comprehension or a lambda has the name of the function that it stands in.
    function = next((f.function for f in reversed(outer) if not (f.function or "").startswith("<")), "")
    where = clean(f"{shorten(frame.file or '', code_dir)}:{frame.line}{f' in {function}' if function else ''}", 160)
    what = clean(frame.code or "", 160)
    return f"{where}  {what}" if what else where


def stack_words(frames: list[Frame]) -> str:
    """``select (selectors.py:415) in get (queues.py:103) in load (train.py:31)``; of frames in one library's file the innermost."""
    told: list[str] = []
    before = None
    for frame in reversed(frames):
        of_library = bool(_LIBRARY.search(frame.file or ""))
        if of_library and frame.file == before:
            continue
        before = frame.file
        told.append(f"{frame.function} ({os.path.basename(frame.file or '')}:{frame.line})")
    return clean(" in ".join(told[:_MOST_FRAMES]), 300) if len(told) > 1 else ""


def shorten(file: str, code_dir: str) -> str:
    """``file`` relative to the job's code where it lies there; otherwise its last three parts."""
    if code_dir and file.startswith(code_dir.rstrip("/") + "/"):
        return file[len(code_dir.rstrip("/")) + 1 :]
    parts = Path(file).parts
    return file if len(parts) <= 3 else "…/" + "/".join(parts[-3:])


def frames_of(told: list[Frame]) -> list[Frame]:
    """Frames as a worker reported them, innermost first, turned outermost first."""
    return [f for f in reversed(told) if f.file is not None]


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


def tail(path: Path, size: int = 65536) -> list[str]:
    """The last lines of a log, at most ``size`` bytes; empty when it cannot be read."""
    try:
        data, begin = read_tail(path, size)
    except OSError:
        return []
    return data.decode("utf-8", "replace").splitlines()[begin > 0 :]
