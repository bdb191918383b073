"""sbatch's options that are neither amounts nor the program: the ``slurm`` section, name, sweep and the rest."""

from __future__ import annotations

import re

from launcher.config.convert.amounts import smallest_count
from launcher.config.convert.draft import Draft

__all__ = ["put_slurm"]

_SAME = ("partition", "account", "qos", "constraint", "reservation", "exclude", "nodelist", "dependency", "comment")
_READ = {
    "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "cpus-per-task", "cpus-per-gpu", "mem",
    "mem-per-cpu", "mem-per-gpu", "time", "gres",
}  # fmt: skip
_DROPPED = {"requeue", "no-kill", "open-mode", "parsable", "get-user-env", "verbose", "quiet", "gpus-per-socket"}


def put_slurm(draft: Draft, given: dict[str, str]) -> None:
    """Everything of ``given`` that `put_resources` has not read."""
    for option, value in given.items():
        if option in _SAME and value:
            draft.put(f"slurm.{option}", value)
        elif option in _SPECIAL:
            _SPECIAL[option](draft, value)
        elif option not in _READ and option not in _DROPPED:
            _other(draft, option, value)


def _other(draft: Draft, option: str, value: str) -> None:
    if option in ("output", "error", "input"):
        draft.leave("--output and --error: every rank's log lies in the run's logs/ (launcher logs RUN).")
    elif option in (
        "export",
        "wait",
        "wrap",
        "test-only",
        "hold",
        "ntasks-per-gpu",
        "ntasks-per-socket",
        "ntasks-per-core",
    ):
        draft.leave(f"--{option}{'=' + value if value else ''}.")
    elif re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", option):
        draft.item("slurm.extra", option, value if value else True)
    else:
        draft.leave(f"#SBATCH -{option} {value}".rstrip() + ".")


def _name(draft: Draft, value: str) -> None:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-._")[:40]
    if name:
        draft.put("name", name)


def _exclusive(draft: Draft, value: str) -> None:
    if value in ("", "exclusive"):
        draft.put("slurm.exclusive", True)
    else:
        draft.leave(f"--exclusive={value}.")


def _signal(draft: Draft, value: str) -> None:
    found = re.search(r"@(\d+)$", value)
    if found and int(found.group(1)) >= 5:
        draft.put("restart.signal_lead_s", int(found.group(1)))


def _array(draft: Draft, value: str) -> None:
    """Simple ranges and lists become a sweep over ``params.array_task_id``."""
    text, _, most = value.partition("%")
    values: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if not found:
            draft.leave(f"--array={value}: write sweep.")
            return
        first, last, step = int(found.group(1)), int(found.group(2) or found.group(1)), int(found.group(3) or 1)
        values += range(first, min(last, first + 10_000) + 1, max(step, 1))
    whole = values == list(range(values[0], values[0] + len(values)))
    sweep: dict[str, object] = {
        "params.array_task_id": f"range({values[0]}, {values[-1] + 1})" if whole and len(values) > 4 else values
    }
    if smallest_count(most):
        sweep["array_parallelism"] = smallest_count(most)
    draft.put("sweep", sweep)


def _mail_type(draft: Draft, value: str) -> None:
    draft.put("slurm.mail_type", value.upper())


def _mail_user(draft: Draft, value: str) -> None:
    draft.put("slurm.mail_user", value)


def _chdir(draft: Draft, value: str) -> None:
    draft.put("code.dir", value)


def _no_requeue(draft: Draft, _value: str) -> None:
    draft.put("restart.requeue", False)


_SPECIAL = {
    "job-name": _name,
    "exclusive": _exclusive,
    "signal": _signal,
    "array": _array,
    "mail-type": _mail_type,
    "mail-user": _mail_user,
    "chdir": _chdir,
    "no-requeue": _no_requeue,
}
