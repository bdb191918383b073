"""A plan in words: the lines that `launcher plan` prints before the script, and its warnings. Pure."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from launcher.config.document.schema import Job
from launcher.run.spec import RunSpec
from launcher.run.units import plural, size
from launcher.submission.facts.facts import CodeFacts, Facts
from launcher.submission.plan import limits

if TYPE_CHECKING:
    from launcher.submission.plan.plan import SubmissionPlan

__all__ = ["clock", "saves_itself", "summary", "warnings"]


def clock(minutes: float) -> str:
    """Minutes as hours: 24:00:00."""
    return f"{int(minutes) // 60}:{int(minutes) % 60:02d}:00"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.3g}"


def _tilde(path: str, home: str) -> str:
    return "~" + path[len(home) :] if home and path.startswith(home.rstrip("/") + "/") else path


def summary(job: Job, plan: SubmissionPlan, facts: Facts) -> tuple[str, ...]:
    """The heading, then one line a topic; warnings last."""
    spec = plan.spec
    rows = [
        ("slurm", _slurm(job, spec)) if plan.backend == "slurm" else ("where", _here(spec, facts)),
        ("cost", _cost(plan)),
        ("node", _node(job, spec, plan.backend)),
        ("python", _python(job, facts)),
        ("code", _code(plan, facts)),
        ("run", _run(plan, facts)),
        ("stop", _stop(job, spec)),
        *(("warning", text) for text in plan.warnings),
    ]
    return (_heading(spec), *(f"  {word:<8} {text}" for word, text in rows))


def _heading(spec: RunSpec) -> str:
    each = f"{spec.gpus_per_node} GPUs" if spec.gpus_per_node > 1 else "1 GPU"
    if not spec.gpus_per_node:
        each = plural(spec.tasks_per_node, "rank")
    ranks = f" = {plural(spec.world_size, 'rank')}" if spec.gpus_per_node or spec.nodes > 1 else " on CPUs"
    spare = f" (+ {spec.spare_nodes} spare)" if spec.spare_nodes else ""
    return f"{spec.name}: {plural(spec.nodes, 'node')}{spare} x {each}{ranks}, {what(spec)}"


def what(spec: RunSpec) -> str:
    """What the workers run: ``script train.py``, ``module lab.train``, ``task package:Class``."""
    return f"{spec.work.kind} {spec.work.target}"


def _slurm(job: Job, spec: RunSpec) -> str:
    slurm = job.slurm
    parts = [slurm.partition or "default partition"]
    parts += [f"{k} {v}" for k, v in (("account", slurm.account), ("qos", slurm.qos)) if v]
    parts += [f"{clock(spec.timeout_min)} per attempt", f"{_hours(spec.restart.max_total_hours)} h in all"]
    return ", ".join(parts)


def _here(spec: RunSpec, facts: Facts) -> str:
    nodes = f", {spec.nodes + spec.spare_nodes} nodes simulated" if spec.nodes + spec.spare_nodes > 1 else ""
    has = f"{facts.gpus_here} GPUs" if facts.gpus_here else "no GPU"
    return f"this machine ({facts.cpus_here} CPUs, {has}){nodes}; no SLURM"


def _cost(plan: SubmissionPlan) -> str:
    kind = "GPU-h" if plan.spec.gpus_per_node else "CPU-h"
    if plan.backend == "local":
        return "none: this machine"
    return f"{_hours(plan.gpu_hours)} {kind} per attempt, at most {_hours(plan.gpu_hours_max)}"


def _node(job: Job, spec: RunSpec, backend: str) -> str:
    cpus = spec.tasks_per_node * spec.cpus_per_task
    each = f"{plural(cpus, 'CPU')} ({plural(spec.tasks_per_node, 'rank')} x {spec.cpus_per_task})"
    image = f", in {job.environment.container}" if job.environment.container else ""
    if backend == "local":
        return f"1 agent, {each}{image}"
    gpus = f"{plural(spec.gpus_per_node, 'GPU')}, " if spec.gpus_per_node else ""
    memory = f"{spec.mem_gb:g} GB" if spec.mem_gb else "site default"
    return f"1 SLURM task, {each}, {gpus}memory: {memory}{image}"


def _python(job: Job, facts: Facts) -> str:
    python = facts.interpreter
    if not python.checked:
        return f"{python.path} inside the container, not checked from here"
    torch = python.packages.get("torch", "").split("+")[0]
    return f"{_tilde(python.path, facts.home)} ({'.'.join(python.version.split('.')[:2])}, torch {torch})"


def _code(plan: SubmissionPlan, facts: Facts) -> str:
    if facts.code.kept:
        return "as copied when the run was submitted"
    if not plan.snapshot:
        return f"{_tilde(facts.code.root, facts.home)}, linked, not copied: later edits reach the queued job"
    text = f"{plural(len(facts.code.files), 'file')}, {size(facts.code.size)}"
    if facts.code.git and facts.code.commit:
        text += f" from {facts.code.commit[:7]}{' + diff' if facts.code.dirty else ''}"
    if plan.link:
        text += f"; {', '.join(f'{p}/' for p in plan.link)} linked, not copied"
    return text


def _run(plan: SubmissionPlan, facts: Facts) -> str:
    shown = f"{(facts.runs_dir_shown or facts.runs_dir).rstrip('/')}/{plan.spec.id}"
    if plan.run_dir != f"{facts.runs_dir}/{plan.spec.id}":
        shown = _tilde(plan.run_dir, facts.home)
    return shown + (f" ({size(facts.free_bytes)} free)" if facts.free_bytes is not None else "")


def _stop(job: Job, spec: RunSpec) -> str:
    how = "TERM to every rank" if spec.work.kind in ("script", "module") else "save at an agreed step"
    if spec.batch == "local":
        return f"{how}, then end"
    grace = f", up to {spec.site.grace_s} s grace" if spec.site.grace_s else f", {spec.site.kill_wait_s} s to do it"
    if not spec.restart.requeue:
        then = "end: restart.requeue is false"
    elif spec.site.preempt_mode == "CANCEL" or not spec.site.requeue_allowed:
        then = "a continuation job: this site does not requeue"
    else:
        then = "requeue"
    return f"{how}{grace}, then {then}"


def warnings(job: Job, spec: RunSpec, facts: Facts) -> tuple[str, ...]:
    """What a user should know before the queue, a sentence each."""
    said = [
        _script(spec, facts),
        *_spawns(spec, facts),
        *_left_out(facts),
        *_editable(facts),
        *_environment(facts),
        *_site(job, spec, facts),
        _contained(spec),
    ]
    said += [f"{path} points outside the code and stays a link to {target}" for path, target in facts.code.outside]
    return tuple(s for s in said if s)


def _script(spec: RunSpec, facts: Facts) -> str:
    said = saves_itself(spec, facts.code)
    return said if not spec.checkpoint.watch else ""


def saves_itself(spec: RunSpec, code: CodeFacts) -> str:
    """The sentence about a script that the launcher can neither save nor resume; empty for any other work."""
    if spec.work.kind not in ("script", "module") or code.attaches:
        return ""
    name = PurePath(spec.work.target).name if spec.work.kind == "script" else spec.work.target
    return f"{name} must save and resume itself: launcher.attach() is not used"


def _spawns(spec: RunSpec, facts: Facts) -> list[str]:
    """Ranks that a script starts wait for a store that nobody opens: TORCHELASTIC_USE_AGENT_STORE makes all of them clients."""
    return [
        f"{call.place} calls {call.name}: ranks that it starts hang, because the launcher starts every rank itself; "
        "call the function directly, with RANK, LOCAL_RANK and WORLD_SIZE from the environment"
        for call in facts.code.spawns
        if spec.world_size > 1 or {"2", "nprocs", "**"} & set(call.arguments)
    ]


def _left_out(facts: Facts) -> list[str]:
    """What the job would look for in vain on the nodes. It may also be a folder that it makes and writes."""
    why = ", which git ignores" if facts.code.git else ""
    return [
        f"{key} {'name' if key == 'args' else 'names'} {path}{why}: it is not copied; if the job reads it, add it to code.link"
        for key, path in facts.code.left_out
    ]


def _contained(spec: RunSpec) -> str:
    if spec.batch != "slurm" or not spec.container or not spec.spare_nodes:
        return ""
    return "containers and spare nodes: if the first node's host dies, the job waits for scancel and launcher resubmit"


def _editable(facts: Facts) -> list[str]:
    """Editable packages whose source is not part of the copy: their later edits reach queued runs."""
    root = PurePath(facts.code.root)
    said = []
    for name, source in facts.interpreter.editable:
        path = PurePath(source)
        if name in ("ddp-launcher", "launcher") or path == root or root in path.parents:
            continue
        said.append(f"{name} is installed editable from {_tilde(source, facts.home)}: later edits reach the queued job")
    return said


def _environment(facts: Facts) -> list[str]:
    said = [f"{name} is to be passed (environment.pass, notify.urls) but is not set here" for name in facts.unset_pass]
    if facts.sbatch_variables:
        said.append(f"taken from your environment by sbatch: {', '.join(facts.sbatch_variables)}")
    if facts.debug_detail:
        said.append("TORCH_DISTRIBUTED_DEBUG=DETAIL is set: DDP on gloo crashes with it")
    if facts.interpreter.checked and "numpy" not in facts.interpreter.packages:
        said.append("numpy is not installed beside torch: torch warns at every start")
    return said


def _site(job: Job, spec: RunSpec, facts: Facts) -> list[str]:
    if spec.batch != "slurm":
        workers = spec.tasks_per_node * (spec.nodes + spec.spare_nodes)
        if workers * spec.cpus_per_task <= facts.cpus_here:
            return []
        return [f"{workers} workers x {plural(spec.cpus_per_task, 'CPU')} share this machine's {facts.cpus_here}"]
    if facts.slurm.silent:
        return [f"{facts.slurm.silent.rstrip('.')}; its limits are not checked"]
    if not facts.slurm.known:
        return []
    said = limits.warnings(spec, facts.slurm.partition)
    if spec.restart.requeue and spec.site.has_epilog:
        said.append("this site runs an epilog: coming back after a stop takes that much longer")
    if spec.restart.signal_lead_s >= spec.timeout_min * 60:
        said.append("restart.signal_lead_s is longer than the time limit: saving begins at once")
    return said
