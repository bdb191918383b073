"""Where a rehearsal runs: this machine, or nodes of SLURM's in a new allocation or the one around this process."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from launcher.config.document.schema import Resources
from launcher.config.load.load import LoadedJob
from launcher.errors import LauncherError, SubmitError
from launcher.frozen import frozen
from launcher.hosts import expand_hosts
from launcher.opening import open_to_append
from launcher.run.held_signals import signals_held
from launcher.run.units import plural
from launcher.slurm.commands import ask
from launcher.slurm.environ import environment_for_sbatch, job_environ
from launcher.submission.backends.local import Foreground
from launcher.submission.backends.slurm import python_path
from launcher.submission.facts.facts import Facts
from launcher.submission.plan.plan import plan
from launcher.submission.plan.submission_plan import SubmissionPlan

MOST_CPU_RANKS = 8
"""With more CPU workers on one machine a rehearsal would measure the machine, not the job."""
REHEARSAL_MIN = 30
"""Time limit of an allocation for a rehearsal."""
_ASKED = ("partition", "account", "qos", "constraint", "exclude", "nodelist", "mem", "cpus_per_task", "gres", "gpus_per_node",
          "ntasks_per_node", "reservation")  # fmt: skip
"""submitit's parameters that say which nodes a job needs; sbatch's, salloc's and srun's options of the same names."""
_GRANT_S = 7 * 86_400.0
"""salloc may wait so long for nodes."""
_GRANTED = re.compile(r"Granted job allocation (\d+)")


class Step:
    """Run agents as a step of an allocation, one task per node, as in a batch job."""

    def __init__(self, made: SubmissionPlan, job_id: str) -> None:
        self._plan = made
        self._job_id = job_id
        self._log = Path(made.submitit_dir) / "srun_log.out"
        self._srun: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start one per node. Raises SubmitError."""
        # No signal strikes before `kill` knows of what was started.
        with os.fdopen(open_to_append(self._log, 0o640), "ab") as log, signals_held():
            try:
                self._srun = subprocess.Popen(
                    self._words(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self._environment(),
                    start_new_session=True,  # Ctrl-C is for this process alone
                )  # fmt: skip
            except OSError as error:
                raise SubmitError(f"srun could not be started: {error}") from None

    def _words(self) -> list[str]:
        made = self._plan
        nodes = made.spec.nodes
        gpus = _options(made.parameters, ("gres", "gpus_per_node"))
        line = f'exec {made.command} -u "$@"'  # plan.command is a quoted piece of shell
        return [
            "srun", f"--jobid={self._job_id}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}",
            f"--job-name={made.spec.id}", f"--output={made.submitit_dir}/run_%t_log.out", *gpus, *made.parameters["srun_args"],
            "/bin/bash", "-c", line, "agent", "-m", "launcher.node.agent", made.run_dir,
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        env = environment_for_sbatch(os.environ, {}, self._plan.spec.pass_names)
        return {**env, "PYTHONPATH": python_path(*self._plan.python_path)}

    def alive(self) -> bool:
        """Return whether any of them runs."""
        return self._srun is not None and self._srun.poll() is None

    def said(self) -> str:
        """Return why they could not start, where that is known: srun's last words."""
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return re.sub(r"^srun: (error: )?", "", lines[-1]) if lines else ""

    def kill(self) -> None:
        """Kill those that still run: the step alone, the allocation stays. A second ^C does not keep it from that."""
        if self._srun is None or self._srun.poll() is not None:
            return
        with signals_held():
            steps = ask("squeue", "--noheader", "--steps", f"--jobs={self._job_id}", "--format=%i %j", apart=True)
            for line in steps.out.splitlines():
                step, _, name = line.strip().partition(" ")
                if name.strip() == self._plan.spec.id:
                    ask("scancel", "--signal=KILL", step, apart=True)
            try:
                self._srun.wait(10)
            except subprocess.TimeoutExpired:
                self._srun.kill()
                self._srun.wait()


Agents: TypeAlias = Foreground | Step
"""The agents of a rehearsed run."""


@frozen
class Stage:
    """This machine, where every node is simulated, or nodes that SLURM has allocated."""

    facts: Facts
    job_id: str
    """The allocation's; without one this process's id."""
    nodes: tuple[str, ...] = ()
    """The nodes of the allocation."""
    kept: bool = False
    """The runs stay, and have their names in the index."""

    def fit(self, wanted: Resources) -> tuple[Resources, list[str]]:
        """Return the job's shape as it fits here, and notes on what was changed. A machine runs few CPU ranks."""
        if self.nodes:
            shaped = replace(wanted, nodes=min(wanted.most_nodes, len(self.nodes)), spare_nodes=0)
            less = shaped.most_nodes < wanted.least_nodes
            return shaped, [f"on {plural(shaped.most_nodes, 'node')} instead of {wanted.nodes}"] if less else []
        notes, here = [], self.facts.gpus_here
        nodes, gpus, tasks = wanted.most_nodes, wanted.gpus_per_node, wanted.tasks_per_node or wanted.gpus_per_node or 1
        if gpus * nodes > here:
            has = plural(here, "GPU") if here else "no GPU"
            notes.append(f"on CPUs with gloo: the job asks for {gpus * nodes} GPUs, this machine has {has}")
            gpus = 0
        if gpus == 0 and (world := nodes * tasks) > MOST_CPU_RANKS:
            tasks = min(tasks, MOST_CPU_RANKS // 2)
            nodes = max(1, min(nodes, MOST_CPU_RANKS // tasks))
            notes.append(f"with {nodes * tasks} ranks on {nodes} simulated nodes instead of {world}")
        return replace(wanted, nodes=nodes, tasks_per_node=tasks, gpus_per_node=gpus, spare_nodes=0), notes

    def agents(self, made: SubmissionPlan) -> Agents:
        """Return the agents of a run, not started yet."""
        return Step(made, self.job_id) if self.nodes else Foreground(made)


def hosts_around() -> tuple[str, ...]:
    """Return the hosts of the allocation around this process. Raises SubmitError where its variables do not tell them."""
    try:
        hosts = expand_hosts(os.environ.get("SLURM_JOB_NODELIST") or job_environ().node_list)
    except ValueError as error:
        raise SubmitError(f"the hosts of the allocation cannot be read from SLURM_JOB_NODELIST: {error}") from None
    if not hosts:
        raise SubmitError(f"SLURM_JOB_ID is {job_environ().job_id}, but SLURM_JOB_NODELIST, its hosts, is not set")
    return tuple(hosts)


@contextlib.contextmanager
def on_slurm(loaded: LoadedJob, facts: Facts, tell: Callable[[str], None]) -> Iterator[Stage]:
    """Get nodes for a rehearsal: those of the allocation around this process, else new ones until the end.

    Raises SubmitError when SLURM grants none.
    """
    inside = job_environ()
    if inside.inside:
        nodes = hosts_around()
        tell(f"on {', '.join(nodes)}, in job {inside.job_id}, which is kept")
        yield Stage(facts, inside.job_id, nodes)
        return
    name = f"dry-run-{facts.run_id}"
    try:
        yield _granted(name, loaded, facts, tell)
    finally:
        # By its name: SLURM may have granted it in the moment of ^C. And a second ^C must not leave it.
        with signals_held():
            ask("scancel", f"--name={name}", f"--user={os.getuid()}", apart=True)


def _granted(name: str, loaded: LoadedJob, facts: Facts, tell: Callable[[str], None]) -> Stage:
    partition = facts.slurm.partition  # as many nodes as it gives at once, without spares
    limits = [partition.max_nodes, partition.usable_nodes or partition.nodes] if partition else []
    most = min([loaded.job.resources.most_nodes, *(n for n in limits if n)])
    resources = replace(loaded.job.resources, nodes=most, spare_nodes=0)
    made = plan(replace(loaded, job=replace(loaded.job, resources=resources, sweep={}, after=None)), facts)
    parameters = {**made.parameters, **made.parameters["additional_parameters"]}
    exclusive = ["--exclusive"] if parameters.get("exclusive") else []
    most_s = partition.max_time_s if partition else None
    limit = min(REHEARSAL_MIN, int((most_s or 3600) // 60))
    where = f"partition {parameters['partition']}" if parameters.get("partition") else "the default partition"
    tell(f"asking {where} for {plural(made.spec.nodes, 'node')} (^C gives up)")
    answer = ask(
        "salloc", "--no-shell", f"--job-name={name}", f"--nodes={made.spec.nodes}", f"--time={max(1, limit)}",
        *_options(parameters, _ASKED), *exclusive, timeout_s=_GRANT_S,
        environ=environment_for_sbatch(os.environ, {}, made.spec.pass_names),
    )  # fmt: skip
    found = _GRANTED.search(answer.err)
    if not answer.ok or found is None:
        raise SubmitError(f"SLURM granted no nodes for the rehearsal: {answer.problem or 'salloc named no job'}")
    nodes = _nodes_of(found[1])
    tell(f"on {', '.join(nodes)}, job {found[1]}")
    return Stage(facts, found[1], nodes)


def _options(parameters: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return submitit's parameters of these names as options of sbatch, salloc or srun."""
    return [f"--{name.replace('_', '-')}={parameters[name]}" for name in names if name in parameters]


def _nodes_of(job_id: str) -> tuple[str, ...]:
    for _ in range(20):
        answer = ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%N")
        if answer.ok and answer.out.strip():
            return tuple(expand_hosts(answer.out.strip()))
        time.sleep(0.5)
    raise LauncherError(f"SLURM does not say which nodes job {job_id} has")
