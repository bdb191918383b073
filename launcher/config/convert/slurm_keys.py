"""Convert sbatch's options that are neither amounts nor the program: the ``slurm`` section, name, sweep and the rest."""

from __future__ import annotations

import re

from launcher.config.check.rules import OWNED_OPTIONS
from launcher.config.convert.amounts import smallest_count
from launcher.config.convert.draft import Draft

_DROPPED = {
    "requeue", "no-kill", "open-mode", "parsable", "get-user-env", "verbose", "quiet", "gpus-per-socket",
    "gres", "cpus-per-gpu", "mem-per-cpu", "mem-per-gpu",
}  # fmt: skip
"""Options without effect on a job file, and those that `put_resources` reads beside the ones with a key in ``resources``."""
_LEFT = {"export", "wait", "wrap", "test-only", "hold", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core"}


def put_slurm(draft: Draft, given: dict[str, str]) -> None:
    """Convert every option that `put_resources` has not read."""
    for option, value in given.items():
        key = OWNED_OPTIONS.get(option, "")
        if option not in _DROPPED and not key.startswith("resources."):
            _put(draft, option, value, key)


def _put(draft: Draft, option: str, value: str, key: str) -> None:
    if option == "exclusive" and value in ("", "exclusive"):
        draft.put("slurm.exclusive", True)
    elif option == "exclusive" or option in _LEFT:
        draft.leave(f"--{option}{'=' + value if value else ''}: a job file has no key for it.")
    elif key.startswith("slurm.") or option == "chdir":
        if value:
            draft.put(key, value.upper() if option == "mail-type" else value)
    elif option == "job-name":
        if name := re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-._")[:40]:
            draft.put("name", name)
    elif option == "signal":
        if (found := re.search(r"@(\d{1,9})$", value)) and int(found[1]) >= 5:
            draft.put("restart.signal_lead_s", int(found[1]))
    elif option == "array":
        _array(draft, value)
    elif option == "no-requeue":
        draft.put("restart.requeue", False)
    elif option in ("output", "error", "input"):
        draft.leave("--output and --error: the run's logs/ holds a log per rank (launcher logs RUN).")
    elif re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", option):
        draft.item("slurm.extra", option, value if value else True)
    else:
        draft.leave(f"#SBATCH -{option} {value}".rstrip() + ": launcher init does not know this option.")


def _array(draft: Draft, value: str) -> None:
    """Convert simple ranges and lists to a sweep over ``params.array_task_id``."""
    text, _, most = value.partition("%")
    values: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part)
        if not found or len(values) > 10_000:
            draft.leave(f"--array={value}: write the values under sweep.")
            return
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        values += range(first, min(last, first + 10_000) + 1, max(step, 1))
    whole = values == list(range(values[0], values[0] + len(values)))
    sweep: dict[str, object] = {
        "params.array_task_id": f"range({values[0]}, {values[-1] + 1})" if whole and len(values) > 4 else values
    }
    if smallest_count(most):
        sweep["array_parallelism"] = smallest_count(most)
    draft.put("sweep", sweep)
