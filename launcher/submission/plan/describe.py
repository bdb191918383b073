"""Describe a plan: the lines that `launcher plan` prints before the script, and its warnings. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from launcher.config.document.schema import Distributed, Job
from launcher.run.spec import RunSpec
from launcher.run.units import plural, short_list, size, tilde, whole_number
from launcher.submission.facts.facts import CodeFacts, Facts
from launcher.submission.plan import limits, staging
from launcher.submission.plan.submission_plan import SubmissionPlan


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.3g}"


def plan_summary(job: Job, plan: SubmissionPlan, facts: Facts) -> tuple[str, ...]:
    """Return the heading, then one line a topic; warnings last."""
    spec = plan.spec
    kind = "GPU-h" if spec.gpus_per_node else "CPU-h"
    cost = f"{_hours(plan.gpu_hours)} {kind} per attempt, at most {_hours(plan.gpu_hours_max)}"
    rows = [
        ("slurm", _slurm(job, spec)) if plan.backend == "slurm" else ("where", _here(spec, facts)),
        ("cost", "none: this machine" if plan.backend == "local" else cost),
        ("node", _node(job, spec, plan.backend)),
        ("python", _python(facts) + staging.told(job, facts)),
        ("code", _code(plan, facts)),
        ("run", _run(plan, facts)),
        ("stop", _stop(spec, facts)),
        *(("warning", text) for text in plan.warnings),
    ]
    return (_heading(spec), *(f"  {word:<8} {text}" for word, text in rows))


def _heading(spec: RunSpec) -> str:
    each = f"{spec.gpus_per_node} GPUs" if spec.gpus_per_node > 1 else "1 GPU"
    if not spec.gpus_per_node:
        each = plural(spec.tasks_per_node, "rank")
    ranks = f" = {plural(spec.world_size, 'rank')}" if spec.gpus_per_node or spec.nodes > 1 else " on CPUs"
    spare = f" (+ {spec.spare_nodes} spare)" if spec.spare_nodes else ""
    work = f"{spec.work.kind} {spec.work.target}"
    nodes = plural(spec.nodes, "node")
    if spec.needed_nodes < spec.nodes:
        nodes, ranks = f"{spec.needed_nodes} to {nodes}", f" = up to {plural(spec.world_size, 'rank')}"
    lost = ", missing nodes are replaced" if spec.replace else ""
    return f"{spec.name}: {nodes}{spare} x {each}{ranks}, {work}{lost}"


def _slurm(job: Job, spec: RunSpec) -> str:
    slurm = job.slurm
    parts = [slurm.partition or "default partition"]
    parts += [f"{k} {v}" for k, v in (("account", slurm.account), ("qos", slurm.qos)) if v]
    limit = f"{spec.timeout_min // 60}:{spec.timeout_min % 60:02d}:00"
    return ", ".join([*parts, f"{limit} per attempt", f"{_hours(spec.restart.max_total_hours)} h in all"])


def _here(spec: RunSpec, facts: Facts) -> str:
    nodes = f", {spec.all_nodes} nodes simulated" if spec.all_nodes > 1 else ""
    has = plural(facts.gpus_here, "GPU") if facts.gpus_here else "no GPU"
    return f"this machine ({facts.cpus_here} CPUs, {has}){nodes}; no SLURM"


def _node(job: Job, spec: RunSpec, backend: str) -> str:
    cpus = spec.tasks_per_node * spec.cpus_per_task
    each = f"{plural(cpus, 'CPU')} ({plural(spec.tasks_per_node, 'rank')} x {spec.cpus_per_task})"
    image = f", in {job.environment.container}" if job.environment.container else ""
    if backend == "local":
        return f"1 agent, {each}{image}"
    gpus = f"{plural(spec.gpus_per_node, 'GPU')}, " if spec.gpus_per_node else ""
    memory = f"{spec.mem_gb:g} GB" if spec.mem_gb else "site default"
    return f"1 SLURM task, {each}, {gpus}memory: {memory}{image}"


def _python(facts: Facts) -> str:
    python = facts.interpreter
    if not python.checked:
        inside = " inside the container" if python.origin == "container" else ""
        return f"{python.path}{inside}, not checked from here"
    torch = python.packages.get("torch", "").split("+")[0]
    return f"{tilde(python.path, facts.home)} ({'.'.join(python.version.split('.')[:2])}, torch {torch})"


def _code(plan: SubmissionPlan, facts: Facts) -> str:
    if facts.code.kept:
        return "as copied when the run was submitted"
    if not plan.snapshot:
        return f"{tilde(facts.code.root, facts.home)}, linked, not copied: later edits reach the queued job"
    text = f"{plural(len(facts.code.files), 'file')}, {size(facts.code.size)}"
    if facts.code.git and facts.code.commit:
        text += f" from {facts.code.commit[:7]}{' + diff' if facts.code.dirty else ''}"
    if plan.link:
        text += f"; {', '.join(f'{p}/' for p in plan.link)} linked, not copied"
    return text


def _run(plan: SubmissionPlan, facts: Facts) -> str:
    shown = f"{(facts.runs_dir_shown or facts.runs_dir).rstrip('/')}/{plan.spec.id}"
    if plan.run_dir != f"{facts.runs_dir}/{plan.spec.id}":
        shown = tilde(plan.run_dir, facts.home)
    return shown + (f" ({size(facts.free_bytes)} free)" if facts.free_bytes is not None else "")


def _stop(spec: RunSpec, facts: Facts) -> str:
    alone = spec.work.kind in ("script", "module") and not facts.code.attaches
    how = "TERM to every rank" if alone else "save at an agreed step"
    if spec.batch == "local":
        return f"{how}, then end"
    grace = f"up to {spec.site.grace_s} s grace" if spec.site.grace_s else f"{spec.site.kill_wait_s} s to do it"
    if not spec.restart.requeue:
        then = "end: restart.requeue is false"
    elif spec.site.preempt_mode == "CANCEL" or not spec.site.requeue_allowed:
        then = "a continuation job: this site does not requeue"
    else:
        then = "requeue"
    return f"{how}, {grace}, then {then}"


def plan_warnings(spec: RunSpec, facts: Facts, partition: str | None) -> tuple[str, ...]:
    """Return what a user should know before the job is queued, a sentence each. ``partition``: the job's, as it is written."""
    itself = "" if spec.checkpoint.watch else saves_itself(spec, facts.code)
    links = (f"{path} points outside the code and stays a link to {target}" for path, target in facts.code.outside)
    stranger = f"{facts.doubt}: read it before you submit it, which needs --trust" if facts.doubt else ""
    found = (
        stranger,
        itself,
        *_of_code(spec, facts),
        *_of_environment(spec, facts),
        *_of_site(spec, facts, partition),
        *links,
        *staging.warnings(facts),
    )
    return tuple(filter(None, found))


def saves_itself(spec: RunSpec, code: CodeFacts) -> str:
    """Return the sentence about a script that the launcher can neither save nor resume; empty for any other work."""
    if spec.work.kind not in ("script", "module") or code.attaches:
        return ""
    name = PurePath(spec.work.target).name if spec.work.kind == "script" else spec.work.target
    return f"{name} must save and resume itself: launcher.attach() is not used"


def _of_code(spec: RunSpec, facts: Facts) -> Iterator[str]:
    """Warn of ranks that the script starts, of paths that are not copied, of editable packages elsewhere."""
    if spec.work.kind in ("script", "module") and spec.collective_timeout_min != Distributed().collective_timeout_min:
        yield "distributed.collective_timeout_min does nothing for a script: it passes its own timeout to init_process_group"
    # A rank that a script starts waits for a store that nobody opens: TORCHELASTIC_USE_AGENT_STORE makes all ranks clients.
    for call in facts.code.spawns:
        if spec.world_size > 1 or {"2", "nprocs", "**"} & set(call.arguments):
            yield (
                f"{call.place} calls {call.name}: ranks that it starts hang, because the launcher starts every rank itself; "
                "call the function directly, with RANK, LOCAL_RANK and WORLD_SIZE from the environment"
            )
    # 3.14 starts processes by forkserver, which imports the script again in each of them: a loader's process trains, and waits for ranks.
    if facts.code.unguarded_loader and _minor(facts.interpreter.version) >= 14:
        yield (
            f"{facts.code.unguarded_loader}: Python 3.14 runs the script again in its loader processes, where it fails or hangs; put the "
            'work under the usual `if __name__` guard or pass multiprocessing_context="fork"'
        )
    why = ", which git ignores" if facts.code.git else ""
    for key, path in facts.code.left_out:  # it may also be a folder that the job makes and writes
        names = "name" if key == "args" else "names"
        yield f"{key} {names} {path}{why}: it is not copied; if the job reads it, add it to code.link"
    if facts.code.closed:
        yield f"{short_list(facts.code.closed)} in {facts.code.root} cannot be read (permission denied) and will not be copied"
    if spec.share == "group" and facts.code.private:
        yield f"share: the group will not read {short_list(facts.code.private)} of {facts.code.root}: the originals are open to you alone"
    root = PurePath(facts.code.root)
    for name, source in facts.interpreter.editable:
        if name not in ("ddp-launcher", "launcher") and not PurePath(source).is_relative_to(root):
            yield f"{name} is installed editable from {tilde(source, facts.home)}: later edits reach the queued job"


def _minor(version: str) -> int:
    """Return 14 of "3.14.8", 0 of a version that is not known."""
    parts = version.split(".")
    return whole_number(parts[1]) or 0 if len(parts) > 1 else 0


def _of_environment(spec: RunSpec, facts: Facts) -> Iterator[str]:
    for name in facts.unset_pass:
        yield f"{name} is not set, but environment.pass or notify.urls names it; export it before you submit"
    if facts.sbatch_variables:
        yield f"in sbatch, your environment overrides the job: unset {', '.join(facts.sbatch_variables)} if you do not mean that"
    if facts.debug_detail:
        yield "TORCH_DISTRIBUTED_DEBUG=DETAIL is set: DDP on gloo crashes with it"
    if not facts.interpreter.checked:
        return
    if "numpy" not in facts.interpreter.packages:
        yield "numpy is not installed beside torch: torch warns at every start"
    wanted = [(f"trackers.{name}", name, name) for name in spec.trackers]
    for key, package, extra in [*wanted, *([("notify", "apprise", "notify")] if spec.notify else [])]:
        if package not in facts.interpreter.packages:
            yield f"{key} does nothing: {package} is not installed beside torch; there: pip install 'ddp-launcher[{extra}]'"


def _of_site(spec: RunSpec, facts: Facts, partition: str | None) -> Iterator[str]:
    if spec.batch != "slurm":
        workers = spec.tasks_per_node * spec.all_nodes
        if workers * spec.cpus_per_task > facts.cpus_here:
            yield f"{workers} workers x {plural(spec.cpus_per_task, 'CPU')} share this machine's {facts.cpus_here}"
        return
    if facts.slurm.silent:
        yield f"{facts.slurm.silent.rstrip('.')}; its limits are not checked"
    elif facts.slurm.known:
        yield from limits.unknown_partitions(partition, facts.slurm.partitions)
        yield from limits.limit_warnings(spec, facts.slurm.partition)
        if spec.restart.requeue and spec.site.has_epilog:
            yield "this site runs an epilog: a requeued job starts that much later"
        if spec.restart.signal_lead_s >= spec.timeout_min * 60:
            yield "restart.signal_lead_s is longer than the time limit: the job saves as soon as it starts"
