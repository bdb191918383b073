"""Check the rules between keys. Each names the keys it needs and is skipped where one of them is wrong by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from launcher.config.document.schema import Job, Slurm
from launcher.config.document.source import Problem, is_below, value_at
from launcher.config.document.texts import check_texts
from launcher.gres import read_gpus
from launcher.hosts import hosts_or_none
from launcher.redact import secret_name

Values = dict[str, Any]
Problems = Iterator[Problem]
Rule = Callable[[Job, Values], Problems]
_RULES: list[tuple[tuple[str, ...], Rule]] = []


def rule(*needs: str) -> Callable[[Rule], Rule]:
    """Register a rule that needs these keys to be right."""

    def add(function: Rule) -> Rule:
        _RULES.append((needs, function))
        return function

    return add


def check_rules(values: Values, job: Job, wrong: set[str]) -> list[Problem]:
    """List every broken rule. ``job`` has defaults where a key is among the ``wrong`` ones; ``values`` are interpolated."""
    problems = [p for p in check_texts(values) if p.path not in wrong]
    wrong = wrong | {p.path for p in problems}
    for needs, function in _RULES:
        if not any(is_below(path, need) or is_below(need, path) for path in wrong for need in needs):
            problems += function(job, values)
    return problems


def is_set(values: Values, path: str) -> bool:
    """Tell whether the job sets this key itself rather than leaving it to its default."""
    return value_at(values, path) is not None


# --- what to run --------------------------------------------------------------------------------------------------------


@rule("task", "function", "script")
def one_kind_of_work(job: Job, values: Values) -> Problems:
    """Exactly one of task, function and script."""
    named = [key for key in ("task", "function", "script") if getattr(job, key) is not None]
    if not named:
        yield Problem("", "the job does not say what to run; set task, function or script")
    elif len(named) > 1:
        yield Problem(named[1], f"set only one of task, function and script, not {' and '.join(named)}")


@rule("task", "function", "script", "args")
def args_are_for_scripts(job: Job, values: Values) -> Problems:
    """A task or function takes keyword arguments only."""
    if job.args and job.script is None and (job.task or job.function):
        yield Problem("args", "is only for scripts; a task or function takes params")


@rule("script")
def script_form(job: Job, values: Values) -> Problems:
    """``-m package.module`` or a file."""
    if not re.fullmatch(r"-m\s+[^\W\d]\w*(\.[^\W\d]\w*)*|(?!-).*", job.script or ""):
        yield Problem(
            "script", 'must be a file, or "-m package.module" and nothing else; write the arguments under args', "value"
        )


@rule("checkpoint.watch", "task", "function")
def watch_is_for_scripts(job: Job, values: Values) -> Problems:
    """The launcher itself saves the checkpoints of a task or function."""
    pattern = job.checkpoint.watch
    if pattern is None:
        return
    if job.task or job.function:
        yield Problem(
            "checkpoint.watch", "is only for scripts; the launcher itself saves the checkpoints of a task or function"
        )
    if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        yield Problem("checkpoint.watch", "must be a pattern below the run directory, such as out/*.pt", "value")


# --- resources ----------------------------------------------------------------------------------------------------------


@rule("distributed.backend", "resources.gpus_per_node")
def nccl_needs_gpus(job: Job, values: Values) -> Problems:
    """NCCL works between GPUs only."""
    if job.distributed.backend == "nccl" and job.resources.gpus_per_node == 0:
        yield Problem(
            "distributed.backend", "nccl needs GPUs, but resources.gpus_per_node is 0; set auto or gloo", "value"
        )


@rule("distributed.backend", "resources.gpus_per_node", "resources.tasks_per_node")
def one_rank_per_gpu(job: Job, values: Values) -> Problems:
    """NCCL refuses two ranks on one GPU ("Duplicate GPU detected")."""
    gpus, tasks = job.resources.gpus_per_node, job.resources.tasks_per_node
    if tasks is not None and 0 < gpus < tasks and job.distributed.backend != "gloo":
        shared = f"{tasks} workers cannot share {gpus} GPU{'s' if gpus > 1 else ''}"
        said = f"{shared}: NCCL takes one rank per GPU; request {tasks} GPUs, or remove this key"
        yield Problem("resources.tasks_per_node", said, "value")


@rule("resources.nodes", "resources.tasks_per_node", "resources.gpus_per_node", "resources.spare_nodes")
def possible_size(job: Job, values: Values) -> Problems:
    """The size is one that a cluster can have: a typing error is caught here."""
    r = job.resources
    ranks = r.most_nodes * (r.tasks_per_node or max(r.gpus_per_node, 1))
    if ranks > 1_000_000 or r.spare_nodes > 100_000:
        yield Problem(
            "resources", f"{ranks:,} ranks and {r.spare_nodes:,} spare nodes are more than any cluster has", "key"
        )


@rule("resources.replace", "resources.nodes", "resources.spare_nodes", "slurm.nodelist")
def can_be_replaced(job: Job, values: Values) -> Problems:
    """A run waits for no replacement: it trains on without the node, or is requeued. A job that is bound to hosts gets no other."""
    if not job.resources.replace:
        return
    if not job.resources.spare_nodes and job.resources.least_nodes == job.resources.most_nodes:
        said = "needs nodes that the run can do without: set resources.spare_nodes, or a range such as resources.nodes: 2-4"
        yield Problem("resources.replace", said, "value")
    if job.slurm.nodelist:
        yield Problem(
            "resources.replace", "another host cannot replace one of slurm.nodelist; remove one of the two", "value"
        )


@rule("restart.queue_early", "restart.requeue", "sweep")
def can_be_queued_early(job: Job, values: Values) -> Problems:
    """The next attempt of an array's element cannot be queued beside the array."""
    if job.restart.queue_early and (job.sweep or not job.restart.requeue):
        why = "a sweep is one array job" if job.sweep else "restart.requeue is off"
        yield Problem("restart.queue_early", f"{why}: there is no next attempt to queue; remove this key", "value")


@rule("environment.stage", "environment.container")
def containers_are_one_file(job: Job, values: Values) -> Problems:
    """What a container imports is in its image."""
    if job.environment.stage and job.environment.container:
        said = "Python starts from the container's image, which is one file already; remove this key"
        yield Problem("environment.stage", said, "key")


@rule("slurm.gres", "resources.gpus_per_node")
def gres_agrees(job: Job, values: Values) -> Problems:
    """The number of GPUs in --gres equals gpus_per_node, which sets the number of workers."""
    found = read_gpus(job.slurm.gres or "")
    if found and (count := sum(count for _, count in found)) != job.resources.gpus_per_node:
        ours = job.resources.gpus_per_node
        said = f"the number of GPUs per node is {count} here and {ours} in resources.gpus_per_node; make them equal"
        yield Problem("slurm.gres", said, "value")


@rule("slurm.nodelist", "slurm.exclude", "resources.nodes", "resources.spare_nodes")
def enough_hosts(job: Job, values: Values) -> Problems:
    """sbatch refuses a node list longer than the node count, and a host both wanted and excluded."""
    total = job.resources.most_nodes + job.resources.spare_nodes
    wanted, excluded = (hosts_or_none(text or "") for text in (job.slurm.nodelist, job.slurm.exclude))
    for key, hosts in (("nodelist", wanted), ("exclude", excluded)):
        if hosts is None:
            yield Problem(f"slurm.{key}", "is not a host list; write it like gpu[01-04],gpu09", "value")
    if wanted and len(wanted) > total:
        said = f"names {len(wanted)} hosts, but resources.nodes and spare_nodes request {total}"
        yield Problem("slurm.nodelist", said, "value")
    if both := sorted({*(wanted or [])} & {*(excluded or [])}):
        yield Problem("slurm.exclude", f"{both[0]} is in both nodelist and exclude; remove it from one", "value")


# --- times --------------------------------------------------------------------------------------------------------------


@rule("resources.timeout_min", "distributed.init_timeout_min")
def init_timeout_within_limit(job: Job, values: Values) -> Problems:
    """An init timeout beyond the time limit could never be reported."""
    wait, limit = job.distributed.init_timeout_min, job.resources.timeout_min
    if is_set(values, "distributed.init_timeout_min") and wait >= limit:
        yield Problem(
            "distributed.init_timeout_min", f"must be less than resources.timeout_min ({limit}), not {wait:g}", "value"
        )


@rule("resources.timeout_min", "restart.signal_lead_s")
def signal_within_limit(job: Job, values: Values) -> Problems:
    """A lead longer than the limit would stop every attempt as it starts."""
    lead, limit = job.restart.signal_lead_s, job.resources.timeout_min
    if is_set(values, "restart.signal_lead_s") and lead >= limit * 60:
        yield Problem(
            "restart.signal_lead_s", f"must be less than resources.timeout_min ({limit * 60} s), not {lead}", "value"
        )


@rule("resources.timeout_min", "restart.max_total_hours")
def total_holds_one_attempt(job: Job, values: Values) -> Problems:
    """The limit of all attempts is not below that of one: the run would end failed in the middle of it."""
    total, limit = job.restart.max_total_hours, job.resources.timeout_min
    if total * 60 >= limit:
        return
    if is_set(values, "restart.max_total_hours"):
        said = f"{total:g} h for all attempts is less than the limit of one (resources.timeout_min: {limit})"
        yield Problem("restart.max_total_hours", said, "value")
    else:
        said = f"is more than restart.max_total_hours, the limit of all attempts ({total:g} h); set that key, too"
        yield Problem("resources.timeout_min", said, "value")


@rule("checkpoint")
def intervals(job: Job, values: Values) -> Problems:
    """The bounds are in order, the steps to keep are saved steps, and nothing is set for saving that is off."""
    c = job.checkpoint
    if c.min_interval_min > c.max_interval_min:
        key = "min" if is_set(values, "checkpoint.min_interval_min") else "max"
        said = f"min_interval_min ({c.min_interval_min:g}) must not exceed max_interval_min ({c.max_interval_min:g})"
        yield Problem(f"checkpoint.{key}_interval_min", said, "value")
    if c.interval_steps and c.keep_every_steps and c.keep_every_steps % c.interval_steps:
        said = f"must be a multiple of interval_steps ({c.interval_steps}), not {c.keep_every_steps}: no other step is saved"
        yield Problem("checkpoint.keep_every_steps", said, "value")
    if not c.enabled:
        for key in ("interval_steps", "interval_min", "keep_every_steps"):
            if getattr(c, key) is not None:
                yield Problem(f"checkpoint.{key}", "has no effect while checkpoint.enabled is false")


# --- the process group --------------------------------------------------------------------------------------------------


@rule("distributed.port_range")
def ports(job: Job, values: Values) -> Problems:
    """The range has two ends with room between them for the candidates."""
    ports = job.distributed.port_range
    if len(ports) != 2 or ports[1] - ports[0] < 31:
        said = f"must be the first and the last of at least 32 ports, such as [20000, 32000], not {ports}"
        yield Problem("distributed.port_range", said, "value")


# --- SLURM --------------------------------------------------------------------------------------------------------------

OWNED_OPTIONS = {
    **{f.name.replace("_", "-"): f"slurm.{f.name}" for f in fields(Slurm) if f.name not in ("extra", "srun_args")},
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task"), "resources.gpus_per_node"),
    **dict.fromkeys(("ntasks", "ntasks-per-node"), "resources.tasks_per_node"),
    **dict.fromkeys(("requeue", "no-requeue"), "restart.requeue"),
    **dict.fromkeys(
        ("error", "input", "no-kill", "open-mode", "output", "parsable", "quiet", "test-only", "wait", "wrap"), ""
    ),
    "array": "sweep",
    "chdir": "code.dir",
    "container-image": "environment.container",
    "container-mounts": "environment.container_args",
    "cpus-per-task": "resources.cpus_per_task",
    "export": "environment.pass",
    "job-name": "name",
    "mem": "resources.mem_gb",
    "nodes": "resources.nodes",
    "signal": "restart.signal_lead_s",
    "time": "resources.timeout_min",
}
"""sbatch options that have a key of their own ("" where the launcher alone decides)."""


@rule("slurm.extra", "resources.mem_gb")
def extra_options(job: Job, values: Values) -> Problems:
    """Extra options are long names that no key of their own sets."""
    for name in job.slurm.extra:
        option = name.replace("_", "-")
        path = f"slurm.extra.{name}"
        if not re.fullmatch(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*", name) or len(name) < 2:
            yield Problem(
                path, f'"{name[:60]}" is not an sbatch option; write its long name without dashes, such as mem-per-gpu'
            )
        elif option in ("mem-per-cpu", "mem-per-gpu") and job.resources.mem_gb is not None:
            yield Problem(path, "set either resources.mem_gb or this option, not both")
        elif option == "clusters":
            yield Problem(
                path, "only this machine's cluster is asked for the job; submit on a login node of the other one"
            )
        elif option in OWNED_OPTIONS:
            instead = OWNED_OPTIONS[option]
            yield Problem(
                path, f"set {instead} instead" if instead else f"the launcher alone decides about --{option}; remove it"
            )


@rule("slurm.dependency", "after")
def one_dependency(job: Job, values: Values) -> Problems:
    """A job has one dependency, and ``after`` becomes one."""
    if job.slurm.dependency and job.after:
        yield Problem("after", "set either slurm.dependency or after, not both")


# --- environment --------------------------------------------------------------------------------------------------------

OWNED_VARIABLES = re.compile(
    r"(?:RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_\w+|MASTER_ADDR|MASTER_PORT"
    r"|TORCHELASTIC_\w+|CUDA_VISIBLE_DEVICES|SLURM_\w+|SBATCH_\w+|LAUNCHER_\w+)"
)
"""What the launcher or SLURM sets for every worker."""
_LONGEST_VARIABLE = 32 * 4096
"""Linux starts no program with a longer one: name, value, an equals sign and a byte 0 (execve(2), MAX_ARG_STRLEN)."""


@rule("environment.variables")
def variables(job: Job, values: Values) -> Problems:
    """Variables have valid names, hold no secret, are none that the launcher sets, and no longer than a program's may be."""
    for name, value in job.environment.variables.items():
        path = f"environment.variables.{name}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield Problem(path, "the name of an environment variable has only letters, digits and underscores")
        elif secret_name(name):
            said = f"{name} is a secret; export it before you submit and write environment: {{pass: [{name}]}} instead"
            yield Problem(path, said)
        elif OWNED_VARIABLES.fullmatch(name):
            yield Problem(path, f"the launcher or SLURM sets {name} for every worker; remove it")
        elif len(name) + len(value.encode()) + 2 > _LONGEST_VARIABLE:
            yield Problem(
                path, "is too long: Linux starts no program with a variable of 128 KiB; write it to a file", "value"
            )


@rule("environment.setup", "environment.container_args", "slurm.extra", "slurm.comment", "slurm.srun_args")
def no_secret_in_the_script(job: Job, values: Values) -> Problems:
    """What the sbatch script or a command line shows holds no secret; ``X=$Y`` holds no value."""
    lists = {
        "environment.setup": job.environment.setup,
        "environment.container_args": job.environment.container_args,
        "slurm.srun_args": job.slurm.srun_args,
    }
    shown = {f"{key}[{index}]": text for key, texts in lists.items() for index, text in enumerate(texts)}
    shown |= {f"slurm.extra.{name}": f"{name}={value}" for name, value in job.slurm.extra.items()}
    for path, text in {**shown, "slurm.comment": job.slurm.comment or ""}.items():
        for name in secrets_set_in(text):
            said = f"sets the secret {name}; export it before you submit and list {name} under environment.pass instead"
            yield Problem(path, said, "value")


def secrets_set_in(text: str) -> list[str]:
    """List the secrets that a text gives a value: ``TOKEN=abc``, not ``TOKEN=$MINE``."""
    names = re.findall(r"(?<![^\s;&,=])([A-Za-z_]\w*)=(?![\"']?[$`]|[\s,]|$)", text)
    return [name for name in names if secret_name(name)]


@rule("environment")
def passed_once(job: Job, values: Values) -> Problems:
    """A variable has one source; the key is ``pass``, not Python's ``pass_``."""
    if "pass_" in (values.get("environment") or {}):
        yield Problem("environment.pass_", 'unknown key "pass_"; did you mean "pass"?')
    for index, name in enumerate(job.environment.pass_):
        if name in job.environment.variables:
            yield Problem(
                f"environment.pass[{index}]",
                f"{name} is also set under environment.variables; keep one of the two",
                "value",
            )


@rule("code.link")
def links(job: Job, values: Values) -> Problems:
    """A link lies inside the code directory."""
    for index, path in enumerate(job.code.link):
        if path.startswith(("/", "~")) or ".." in path.split("/") or path.strip("./") == "":
            said = "must be a directory below code.dir, such as data; an absolute path needs no link"
            yield Problem(f"code.link[{index}]", said, "value")
