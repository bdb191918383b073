"""Convert a hydra-submitit config, whole or its launcher part alone, to a job file."""

from __future__ import annotations

import re
from typing import Any

from launcher.config.convert.draft import Draft
from launcher.config.document.source import read_value, read_yaml
from launcher.errors import ConfigError

_RESOURCES = ("nodes", "gpus_per_node", "cpus_per_task", "mem_gb", "timeout_min")
_SLURM = ("partition", "account", "qos", "constraint", "exclude", "comment", "gres")
_DROPPED = {
    "_target_", "submitit_folder", "name", "defaults", "tasks_per_node", "array_parallelism", "setup", "additional_parameters",
    "signal_delay_s", "max_num_timeout", "mem_per_cpu", "mem_per_gpu", "cpus_per_gpu", "gpus_per_task", "stderr_to_stdout",
}  # fmt: skip
_HYDRAS = re.compile(r"\$\{(hydra|now|trainer|job)[:.]")


def convert_hydra(text: str, filename: str) -> str:
    """Return the job file for a config with a submitit launcher. Raises ConfigError when it has none."""
    document = read_yaml(text, filename)
    unreadable = [p for p in document.problems if not p.path]
    if unreadable:
        raise ConfigError([f"{p.origin}: {p.message}" for p in unreadable])
    data = document.data if isinstance(document.data, dict) else {}
    hydra = data.get("hydra") if isinstance(data.get("hydra"), dict) else {}
    found = (hydra or {}).get("launcher") or (data if _is_launcher(data) else None)
    if not isinstance(found, dict):
        raise ConfigError(
            f"{filename} has no submitit launcher: neither hydra.launcher nor its keys, such as timeout_min and nodes"
        )
    draft = Draft(filename)
    draft.put("script", "main.py", "write the name of your Hydra program here")
    _put_sweep(draft, hydra or {}, found)
    _put_launcher(draft, found)
    draft.leave("the Hydra config itself: the program reads it as before. Its overrides are under args.")
    return draft.text()


def _is_launcher(data: dict[str, Any]) -> bool:
    return (
        "submitit" in str(data.get("_target_", ""))
        or len(set(data) & {*_RESOURCES, "tasks_per_node", "partition"}) >= 2
    )


def _put_launcher(draft: Draft, given: dict[str, Any]) -> None:
    for key in _RESOURCES:
        if (value := _known(draft, key, given.get(key))) is not None:
            draft.put(f"resources.{key}", value)
    gpus, tasks = given.get("gpus_per_node") or 0, _known(draft, "tasks_per_node", given.get("tasks_per_node"))
    if isinstance(tasks, int) and tasks != max(int(gpus), 1):
        draft.put("resources.tasks_per_node", tasks)
    for key in _SLURM:
        if (value := _known(draft, key, given.get(key))) is not None:
            draft.put(f"slurm.{key}", str(value))
    for key in ("mem_per_cpu", "mem_per_gpu"):
        if (value := _known(draft, key, given.get(key))) is not None:
            draft.item("slurm.extra", key.replace("_", "-"), str(value))
    for key, value in (given.get("additional_parameters") or {}).items():
        _additional(draft, key.replace("_", "-"), value)
    for line in given.get("setup") or []:
        draft.add("environment.setup", str(line))
    if isinstance(given.get("signal_delay_s"), int) and given["signal_delay_s"] >= 5:
        draft.put("restart.signal_lead_s", given["signal_delay_s"])
    if given.get("max_num_timeout") is not None:
        draft.leave(
            "max_num_timeout: attempts are not limited while the run makes progress; set restart.max_total_hours to limit them."
        )
    for key in given:
        if key not in {*_RESOURCES, *_SLURM, *_DROPPED}:
            draft.leave(f"{key}: a job file has no such key.")


def _known(draft: Draft, key: str, value: Any) -> Any:
    """The value, or None where only Hydra can resolve it."""
    if isinstance(value, str) and _HYDRAS.search(value):
        draft.leave(f"{key}: only Hydra knows {value}; write the value itself.")
        return None
    return value


def _additional(draft: Draft, key: str, value: Any) -> None:
    if key in ("mail-type", "mail-user", "reservation", "nodelist", "dependency"):
        draft.put(f"slurm.{key.replace('-', '_')}", str(value))
    elif isinstance(value, (str, int, float, bool)):
        draft.item("slurm.extra", key, value)


# --- sweeps -------------------------------------------------------------------------------------------------------------


def _put_sweep(draft: Draft, hydra: dict[str, Any], launcher: dict[str, Any]) -> None:
    params = (hydra.get("sweeper") or {}).get("params") or {}
    args, sweep = [], {}
    for key, value in params.items():
        name = re.sub(r"[^\w.]+", "_", key.lstrip("+~")).strip("_.")
        values = _values(value)
        if values is None:
            draft.leave(f"hydra.sweeper.params {key}: {value}; write the values under sweep.")
            continue
        args.append(f"{key}=${{params.{name}}}")
        sweep[f"params.{name}"] = values
    own = ["hydra.run.dir=${run.dir}/hydra"]
    if str(hydra.get("mode", "")).upper() == "MULTIRUN":
        own.append("hydra.mode=RUN")
        draft.leave("hydra.mode MULTIRUN: the launcher makes the points, and Hydra runs one at a time.")
    draft.put("args", [*args, *own])
    if args:
        if isinstance(launcher.get("array_parallelism"), int):
            sweep["array_parallelism"] = launcher["array_parallelism"]
        draft.put("sweep", sweep)


def _values(value: Any) -> Any:
    """Hydra's ``0.1,0.01``, ``choice(a, b)`` and ``range(0, 4)`` of whole numbers."""
    if not isinstance(value, str):
        return [value]
    if found := re.fullmatch(r"range\((?:start=)?(-?\d+)(?:,\s*(?:stop=)?(-?\d+))?(?:,\s*(?:step=)?(-?\d+))?\)", value):
        return f"range({', '.join(n for n in found.groups() if n)})"
    if found := re.fullmatch(r"choice\((.*)\)", value):
        value = found.group(1)
    elif re.fullmatch(r"\w+\(.*\)", value):
        return None
    values, wrong = read_value(f"[{value}]")
    return None if wrong else values
