"""Convert sbatch's options that are neither amounts nor the program: the ``slurm`` section, name, sweep and the rest."""

from __future__ import annotations

import re

from launcher.config.check.rules import OWNED_OPTIONS
from launcher.config.convert.directives import smallest_count
from launcher.config.convert.draft import Draft, literal
from launcher.config.document.clock_times import minutes
from launcher.hosts import hosts_or_none

_DROPPED = {
    "requeue", "no-kill", "open-mode", "parsable", "get-user-env", "verbose", "quiet", "gres", "cpus-per-gpu", "mem-per-cpu",
    "mem-per-gpu", "export", "chdir",
}  # fmt: skip
"""Options without effect on a job file, and those that are read elsewhere beside the ones with a key in ``resources``."""
UNCONVERTED = {
    "wait", "wrap", "test-only", "hold", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "gpus-per-socket", "clusters",
    "distribution", "export-file",
}  # fmt: skip


def put_slurm(draft: Draft, given: dict[str, str]) -> None:
    """Convert every option that `put_resources` has not read."""
    own = "environment.container" in draft.values
    for option, value in given.items():
        key = OWNED_OPTIONS.get(option, "")
        if option.startswith("container-"):
            _put_container(draft, option, value, own=own)
        elif option not in _DROPPED and option != "array" and not key.startswith("resources."):
            _put(draft, option, value, key)
    _require_hosts(draft)


def _put_container(draft: Draft, option: str, value: str, *, own: bool) -> None:
    """Convert an option of pyxis, unless the training is started in a container of its ``own``."""
    word = f"--{option}{'=' + value if value else ''}"
    if own:
        draft.leave(f"{word}: the training has a container of its own.")
    elif option == "container-image":
        draft.put("environment.container", literal(value))
    else:
        draft.add("environment.container_args", literal(word))


def _require_hosts(draft: Draft) -> None:
    """Leave out hosts that sbatch and `plan` refuse: more than nodes, or wanted and excluded."""
    wanted, excluded = draft.values.get("slurm.nodelist", ""), draft.values.get("slurm.exclude", "")
    hosts = hosts_or_none(wanted) or []
    most = int(str(draft.values.get("resources.nodes", 1)).rpartition("-")[2])
    if len(hosts) > most:
        draft.leave(f"--nodelist={wanted}: more hosts than nodes.")
        del draft.values["slurm.nodelist"]
    elif {*hosts} & {*(hosts_or_none(excluded) or [])}:
        draft.leave(f"--exclude={excluded}: one of these hosts is in --nodelist.")
        del draft.values["slurm.exclude"]


def _put(draft: Draft, option: str, value: str, key: str) -> None:
    if option == "exclusive" and value in ("", "exclusive"):
        draft.put("slurm.exclusive", True)
    elif option == "exclusive" or option in UNCONVERTED:
        draft.leave(f"--{option}{'=' + value if value else ''}: a job file has no key for it.")
    elif key.startswith("slurm."):
        if value := re.sub(r"\s+", "", value) if option == "constraint" else value:
            draft.put(key, literal(value.upper() if option == "mail-type" else value))
    elif option == "job-name":
        if name := re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-._")[:40]:
            draft.put("name", name)
    elif option == "signal":
        _signal(draft, value)
    elif option == "gpu-bind":  # srun takes it over: the agent of a node would see one of its GPUs
        draft.leave("--gpu-bind: the launcher binds every worker to its own cores and GPU.")
    elif option == "no-requeue":
        draft.put("restart.requeue", False)
    elif option in ("output", "error", "input"):
        draft.leave("--output and --error: the run's logs/ holds a log per rank (launcher logs RUN).")
    elif re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", option):
        draft.item("slurm.extra", option, literal(value) if value else True)
    else:
        draft.leave(f"#SBATCH -{option} {value}".rstrip() + ": launcher init does not know this option.")


def _signal(draft: Draft, value: str) -> None:
    """Convert ``--signal=USR1@90``; a lead of a whole attempt would stop each of them as it starts."""
    found = re.search(r"@(\d{1,9})$", value)
    if not found or int(found[1]) < 5:
        return
    limit_min = int(str(minutes(draft.values.get("resources.timeout_min", 60))))
    if int(found[1]) < limit_min * 60:
        draft.put("restart.signal_lead_s", int(found[1]))
    else:
        draft.leave(f"--signal={value}: the time limit is shorter than that.")


def put_array(draft: Draft, value: str) -> bool:
    """Convert a range or list to a sweep over ``params.array_task_id``; tell whether SLURM's numbers are the same here."""
    text, _, most = value.partition("%")
    values: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part)
        if not found or len(values) > 10_000:
            draft.leave(f"--array={value}: write the values under sweep.")
            return False
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        values += range(first, min(last, first + 10_000) + 1, max(step, 1))
    whole = values == list(range(values[0], values[0] + len(values)))
    sweep: dict[str, object] = {
        "params.array_task_id": f"range({values[0]}, {values[-1] + 1})" if whole and len(values) > 4 else values
    }
    if smallest_count(most):
        sweep["array_parallelism"] = smallest_count(most)
    draft.put("sweep", sweep)
    if not (whole and values[0] == 0):
        said = "SLURM_ARRAY_TASK_ID counts the elements from 0; the script's number is ${params.array_task_id}"
        draft.leave(f"--array={value}: {said}.")
    return whole and values[0] == 0
