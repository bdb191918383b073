"""Convert the options of srun, and the variables that ``--export`` of sbatch and srun gives."""

from __future__ import annotations

from collections.abc import Callable

from launcher.config.convert.draft import Draft
from launcher.config.convert.launch import Launch

_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
_SIZES = ("nodes", "ntasks", "ntasks-per-node", "mem-per-cpu", "mem-per-gpu", "cpus-per-gpu")
_HARMLESS = {
    *_GPUS, *_SIZES, "cpus-per-task", "mem", "export", "chdir", "cpu-bind", "gpu-bind", "kill-on-bad-exit", "label", "unbuffered", "output",
    "error", "input", "open-mode", "job-name", "jobid", "mpi", "exact", "overlap", "wait", "quiet", "verbose", "exclusive", "account",
    "partition", "qos", "constraint", "gres-flags", "pty", "comment", "preserve-env", "disable-status", "oversubscribe",
    "container-image", "no-kill", "immediate", "slurmd-debug", "propagate",
}  # fmt: skip
"""Options that are converted, that the launcher's own step replaces, or that srun itself ignores inside a job."""


def with_step(draft: Draft, given: dict[str, str], launch: Launch | None) -> dict[str, str]:
    """Return sbatch's options with what srun asks for the training; what is not taken over is noted."""
    srun = launch.srun if launch else {}
    result = dict(given)
    has_gpus = any(option in given for option in _GPUS)
    for option, value in srun.items():
        if option == "cpus-per-task":
            result |= {name: srun[name] for name in (option, "ntasks", "ntasks-per-node") if srun.get(name)}
        elif option == "mem":
            result |= {option: value} if value != "0" else {}
        elif option in _GPUS and value not in ("", "none", "0"):
            if not has_gpus:
                result[option] = value
            elif given.get(option, value) != value:
                draft.leave(
                    f"srun --{option}={value}: the job's {option} is {given[option]}; set resources.gpus_per_node."
                )
        elif option in _SIZES:
            result.setdefault(option, value)
            if option == "nodes" and result[option] != value:
                draft.leave(f"srun --nodes={value}: the job has {result[option]}; set resources.nodes.")
        elif option in ("cpu-bind", "gpu-bind"):
            draft.leave(f"srun --{option}: the launcher binds every worker to its own cores and GPU.")
        elif option not in _HARMLESS and "container" not in option:
            draft.leave(f"srun --{option}{'=' + value if value else ''}: the launcher starts its own step without it.")
    return result


def put_export(draft: Draft, where: str, text: str, variable: Callable[[str, str | None], None]) -> None:
    """Convert ``ALL,NAME,NAME=value``: ``variable`` takes each name, with its value where it has one."""
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if name in ("NONE", "NIL"):
            draft.leave(f"{where}={name}: a job file has no key for it.")
        elif name and name != "ALL":
            variable(name, value if equals else None)
