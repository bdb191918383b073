"""What a job looked for in vain in its copy of the code, though it lies in the code directory: the command that links it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path, PurePath

from launcher.report.model.history import History, as_dict, as_list, as_text
from launcher.run.tracebacks import Trace

_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")


def remedy(h: History, trace: Trace | None) -> str:
    """What to do about a FileNotFoundError of a path that is not copied; empty where that is not its cause."""
    root = as_text(h.submission.get("code_root"))
    if trace is None or not root or trace.exception != "FileNotFoundError" or not h.paths.code.is_dir():
        return ""
    for quoted in _QUOTED.findall(trace.message):
        try:  # a script knows its own place without links, a sweep's point has its code by one
            code = os.path.realpath(h.paths.code)
            name = os.path.relpath(os.path.realpath(Path(code, *quoted)), code)
        except ValueError:  # no path at all
            continue
        if name.startswith("..") or os.path.lexists(Path(code, name)) or not os.path.exists(Path(root, name)):
            continue
        links = dict.fromkeys([*map(str, as_list(h.submission.get("code_link"))), _to_link(h, PurePath(name))])
        word = shlex.quote(f"code.link=[{','.join(links)}]")
        return f"{name} is in {root}, but is not copied into the run; link it: launcher resubmit {{run}} --code {word}"
    return ""


def _to_link(h: History, name: PurePath) -> str:
    """The outermost folder that the copy lacks. Of a folder that it has, all: a file that is missed there is rarely alone.

    But never the folder of the script, whose code is to be a copy.
    """
    missing = next(path for path in [*reversed(name.parents), name] if not os.path.lexists(h.paths.code / path))
    folder, script = missing.parent, PurePath(as_text(as_dict(h.spec.get("work")).get("target")))
    return str(missing if missing != name or folder in (PurePath(), *script.parents) else folder)
