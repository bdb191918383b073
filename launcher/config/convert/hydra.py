"""Convert a hydra-submitit config, whole or its launcher part alone, to a job file."""

from __future__ import annotations

import re
from typing import Any

from launcher.config.check.rules import OWNED_OPTIONS
from launcher.config.convert.amounts import Amounts, put_memory, put_time_limit, put_total
from launcher.config.convert.directives import long_name, smallest_count
from launcher.config.convert.draft import Draft
from launcher.config.convert.slurm_keys import UNCONVERTED
from launcher.config.document.source import read_value, read_yaml
from launcher.errors import ConfigError
from launcher.gres import read_gpus

_RESOURCES = ("nodes", "gpus_per_node", "cpus_per_task", "mem_gb", "timeout_min")
_SLURM = ("partition", "account", "qos", "constraint", "exclude", "comment", "gres")
_DROPPED = {
    "_target_", "submitit_folder", "name", "defaults", "tasks_per_node", "array_parallelism", "setup", "additional_parameters",
    "signal_delay_s", "max_num_timeout", "cpus_per_gpu", "gpus_per_task", "stderr_to_stdout",
}  # fmt: skip
_PER = ("mem_per_cpu", "mem_per_gpu")


def convert_hydra(text: str, filename: str) -> str:
    """Return the job file for a config with a submitit launcher. Raises ConfigError when it has none."""
    document = read_yaml(text, filename)
    unreadable = [p for p in document.problems if not p.path]
    if unreadable:
        raise ConfigError([f"{p.origin}: {p.message}" for p in unreadable])
    data = _mapping(document.data)
    hydra = _mapping(data.get("hydra"))
    given = _mapping(hydra.get("launcher")) or (data if _is_launcher(data) else {})
    if not given:
        raise ConfigError(
            f"{filename} has no submitit launcher: neither hydra.launcher nor its keys, such as timeout_min and nodes"
        )
    draft = Draft(filename)
    draft.put("script", "main.py", "write the name of your Hydra program here")
    _put_sweep(draft, hydra, given)
    _put_launcher(draft, given)
    draft.leave("the Hydra config itself: the program reads it as before. Its overrides are under args.")
    return draft.text()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_launcher(data: dict[str, Any]) -> bool:
    return (
        "submitit" in str(data.get("_target_", ""))
        or len(set(data) & {*_RESOURCES, "tasks_per_node", "partition"}) >= 2
    )


def _put_launcher(draft: Draft, given: dict[str, Any]) -> None:
    known = {key: given[key] for key in (*_RESOURCES, "tasks_per_node", *_SLURM, *_PER) if given.get(key) is not None}
    for key, value in known.items():
        if isinstance(value, str) and re.search(r"\$\{(hydra|now|trainer|job)[:.]", value):
            draft.leave(f"{key}: only Hydra knows {value}; write the value itself.")
        elif key in _RESOURCES:
            draft.put(f"resources.{key}", value)
        elif key in _SLURM:
            draft.put(f"slurm.{key}", str(value))
        elif key in _PER:
            draft.item("slurm.extra", key.replace("_", "-"), str(value))
        elif isinstance(value, int) and value != (smallest_count(str(known.get("gpus_per_node"))) or 1):
            draft.put("resources.tasks_per_node", value)
    put_total(draft)
    _put_per_gpu(draft, given)
    for name, value in _mapping(given.get("additional_parameters")).items():
        _put_additional(draft, name, value)
    if "resources.mem_gb" in draft.values:
        for option in ("mem-per-cpu", "mem-per-gpu"):
            if (value := draft.values.get("slurm.extra", {}).pop(option, None)) is not None:
                draft.leave(f"{option.replace('-', '_')} {value}: resources.mem_gb is the memory of a node.")
        if not draft.values.get("slurm.extra", True):
            del draft.values["slurm.extra"]
    setup = given.get("setup") or []
    for line in setup if isinstance(setup, list) else [setup]:
        draft.add("environment.setup", str(line))
    lead_s = given.get("signal_delay_s")
    if isinstance(lead_s, int) and lead_s >= 5:
        draft.put("restart.signal_lead_s", lead_s)
    if given.get("max_num_timeout") is not None:
        draft.leave(
            "max_num_timeout: attempts are not limited while the run makes progress; set restart.max_total_hours to limit them."
        )
    for key in given:
        if key not in {*_RESOURCES, *_SLURM, *_PER, *_DROPPED}:
            draft.leave(f"{key}: a job file has no such key.")


def _put_per_gpu(draft: Draft, given: dict[str, Any]) -> None:
    """Convert amounts for each GPU or task, where the others tell what they are for a node."""
    values = draft.values
    tasks, each = given.get("tasks_per_node"), given.get("gpus_per_task")
    if isinstance(tasks, int) and isinstance(each, int) and "resources.gpus_per_node" not in values:
        draft.put("resources.gpus_per_node", tasks * each)
        if each == 1:
            values.pop("resources.tasks_per_node", None)
    elif each is not None:
        draft.leave(f"gpus_per_task {each}: set resources.gpus_per_node.")
    count = sum(count for _, count in read_gpus(str(values.get("slurm.gres", ""))))
    if count and "resources.gpus_per_node" not in values:
        draft.put("resources.gpus_per_node", count)
    gpus, cpus = values.get("resources.gpus_per_node"), given.get("cpus_per_gpu")
    workers = values.get("resources.tasks_per_node", gpus)
    if (
        isinstance(cpus, int)
        and isinstance(gpus, int)
        and isinstance(workers, int)
        and "resources.cpus_per_task" not in values
    ):
        draft.put("resources.cpus_per_task", max(cpus * gpus // max(workers, 1), 1))
    elif cpus is not None:
        draft.leave(f"cpus_per_gpu {cpus}: set resources.cpus_per_task.")


def _put_additional(draft: Draft, name: str, value: Any) -> None:
    """Convert one option of sbatch under ``additional_parameters``."""
    option = long_name(name.replace("_", "-"))
    key = OWNED_OPTIONS.get(option, "")
    if not isinstance(value, (str, int, float, bool)) or option in UNCONVERTED:
        draft.leave(f"additional_parameters {name}: a job file has no key for it.")
    elif option == "exclusive":
        draft.put(key, value is not False)
    elif key.startswith("slurm."):
        draft.put(key, str(value))
    elif option == "mem":
        put_memory(draft, {option: str(value)}, Amounts(), 0)
    elif option == "time":
        put_time_limit(draft, str(value))
    elif option in OWNED_OPTIONS:
        said = f"set {key} instead" if key else "the launcher alone decides about it"
        draft.leave(f"additional_parameters {name}={value}: {said}.")
    else:
        draft.item("slurm.extra", option, value)


# --- sweeps -------------------------------------------------------------------------------------------------------------


def _put_sweep(draft: Draft, hydra: dict[str, Any], launcher: dict[str, Any]) -> None:
    params = _mapping(_mapping(hydra.get("sweeper")).get("params"))
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
    elif launcher.get("array_parallelism") is not None:
        draft.leave(f"array_parallelism {launcher['array_parallelism']}: set it under sweep, beside the values.")


def _values(value: Any) -> Any:
    """Read Hydra's ``0.1,0.01``, ``choice(a, b)`` and ``range(0, 4)`` of whole numbers."""
    if not isinstance(value, str):
        return [value]
    if found := re.fullmatch(r"range\((?:start=)?(-?\d+)(?:,\s*(?:stop=)?(-?\d+))?(?:,\s*(?:step=)?(-?\d+))?\)", value):
        return f"range({', '.join(n for n in found.groups() if n)})"
    if found := re.fullmatch(r"choice\((.*)\)", value):
        value = found[1]
    elif re.fullmatch(r"\w+\(.*\)", value):
        return None
    values, wrong = read_value(f"[{value}]")
    return None if wrong else values
