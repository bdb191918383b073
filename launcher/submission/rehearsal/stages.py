"""Where a rehearsal runs: this machine, or nodes of SLURM's in a new allocation or the one around this process."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from launcher.config.document.schema import Resources
from launcher.config.load.load import LoadedJob
from launcher.errors import LauncherError, SubmitError
from launcher.frozen import frozen
from launcher.run.units import plural
from launcher.slurm.commands import ask
from launcher.slurm.environ import job_environ
from launcher.slurm.hosts import expand_hosts
from launcher.submission.backends.local import Foreground
from launcher.submission.backends.slurm import environment_for_sbatch
from launcher.submission.facts.facts import Facts
from launcher.submission.plan.plan import SubmissionPlan, plan

MOST_CPU_RANKS = 8
"""With more CPU workers on one machine a rehearsal would measure the machine, not the job."""
REHEARSAL_MIN = 30
"""Time limit of an allocation for a rehearsal."""
_ASKED = ("partition", "account", "qos", "constraint", "exclude", "nodelist", "mem", "cpus_per_task", "gres", "gpus_per_node",
          "ntasks_per_node")  # fmt: skip
"""submitit's parameters that say which nodes a job needs; sbatch's, salloc's and srun's options of the same names."""
_GRANTED = re.compile(r"Granted job allocation (\d+)")


class Agents(Protocol):
    """The agents of a rehearsed run."""

    def start(self) -> None:
        """Start one per node. Raises SubmitError."""

    def alive(self) -> bool:
        """Return whether any of them runs."""

    def kill(self) -> None:
        """Kill those that still run."""

    def said(self) -> str:
        """Return why they could not start, where that is known."""


def fit(nodes: int, tasks_per_node: int, gpus_per_node: int, gpus_here: int) -> tuple[int, int, int, list[str]]:
    """Fit a job's shape into this machine; return nodes, tasks per node, GPUs per node and notes."""
    notes = []
    gpus = gpus_per_node
    if gpus and gpus * nodes > gpus_here:
        has = plural(gpus_here, "GPU") if gpus_here else "no GPU"
        notes.append(f"on CPUs with gloo: the job asks for {gpus * nodes} GPUs, this machine has {has}")
        gpus = 0
    if gpus == 0 and nodes * tasks_per_node > MOST_CPU_RANKS:
        world = nodes * tasks_per_node
        tasks_per_node = min(tasks_per_node, MOST_CPU_RANKS // 2)
        nodes = max(1, min(nodes, MOST_CPU_RANKS // tasks_per_node))
        notes.append(f"with {nodes * tasks_per_node} ranks on {nodes} simulated nodes instead of {world}")
    return nodes, tasks_per_node, gpus, notes


@frozen
class LocalStage:
    """This machine; every node is simulated."""

    facts: Facts
    backend: Literal["local", "slurm"] = "local"
    job_id: str | None = None

    def fit(self, wanted: Resources) -> tuple[Resources, list[str]]:
        """What of a job's shape can be played here, and notes on what cannot."""
        tasks = wanted.tasks_per_node or wanted.gpus_per_node or 1
        nodes, tasks, gpus, notes = fit(wanted.nodes, tasks, wanted.gpus_per_node, self.facts.gpus_here)
        return replace(wanted, nodes=nodes, tasks_per_node=tasks, gpus_per_node=gpus, spare_nodes=0), notes

    def agents(self, made: SubmissionPlan) -> Agents:
        """The agents of a run, not started yet."""
        return Foreground(made)


@frozen
class SlurmStage:
    """Nodes that SLURM has allocated."""

    facts: Facts
    job_id: str | None
    nodes: tuple[str, ...]
    backend: Literal["local", "slurm"] = "slurm"

    def fit(self, wanted: Resources) -> tuple[Resources, list[str]]:
        """What of a job's shape can be played here, and notes on what cannot."""
        shaped = replace(wanted, nodes=min(wanted.nodes, len(self.nodes)), spare_nodes=0)
        if shaped.nodes == wanted.nodes:
            return shaped, []
        return shaped, [f"on {plural(shaped.nodes, 'node')} instead of {wanted.nodes}"]

    def agents(self, made: SubmissionPlan) -> Agents:
        """The agents of a run, not started yet."""
        return Step(made, str(self.job_id))


Stage: TypeAlias = LocalStage | SlurmStage
"""Where the agents run."""


class Step:
    """Run agents as a step of an allocation, one task per node, as in a batch job."""

    def __init__(self, made: SubmissionPlan, job_id: str) -> None:
        self._plan = made
        self._job_id = job_id
        self._log = Path(made.submitit_dir) / "srun_log.out"
        self._srun: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """See `Agents`."""
        with self._log.open("ab") as log:
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
        gpus = [
            f"--{key.replace('_', '-')}={made.parameters[key]}"
            for key in ("gres", "gpus_per_node")
            if key in made.parameters
        ]
        line = f'exec {made.command} -u "$@"'  # plan.command is a quoted piece of shell
        return [
            "srun", f"--jobid={self._job_id}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1",
            f"--job-name={made.spec.id}", f"--output={made.submitit_dir}/run_%t_log.out", *gpus, *made.parameters["srun_args"],
            "/bin/bash", "-c", line, "agent", "-m", "launcher.node.agent", made.run_dir,
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        env = environment_for_sbatch(os.environ, {}, self._plan.spec.pass_names)
        env["PYTHONPATH"] = os.pathsep.join([*self._plan.python_path, *filter(None, [env.get("PYTHONPATH")])])
        return env

    def alive(self) -> bool:
        """See `Agents`."""
        return self._srun is not None and self._srun.poll() is None

    def said(self) -> str:
        """See `Agents`: srun's last words."""
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return re.sub(r"^srun: (error: )?", "", lines[-1]) if lines else ""

    def kill(self) -> None:
        """See `Agents`: the step alone, the allocation stays."""
        if self._srun is None or self._srun.poll() is not None:
            return
        steps = ask("squeue", "--noheader", "--steps", f"--jobs={self._job_id}", "--format=%i %j")
        for line in steps.out.splitlines():
            step, _, name = line.strip().partition(" ")
            if name.strip() == self._plan.spec.id:
                ask("scancel", "--signal=KILL", step)
        try:
            self._srun.wait(10)
        except subprocess.TimeoutExpired:
            self._srun.kill()
            self._srun.wait()


@contextlib.contextmanager
def on_slurm(
    loaded: LoadedJob, facts: Facts, tell: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> Iterator[SlurmStage]:
    """Get nodes for a rehearsal: those of the allocation around this process, else new ones until the end.

    Raises SubmitError when SLURM grants none.
    """
    inside = job_environ(environ)
    if inside.inside:
        nodes = tuple(expand_hosts(environ.get("SLURM_JOB_NODELIST") or inside.node_list))
        tell(f"on {', '.join(nodes)}, in job {inside.job_id}, which is kept")
        yield SlurmStage(facts, inside.job_id, nodes)
        return
    name = f"dry-run-{facts.run_id}"
    try:
        yield _granted(name, loaded, facts, tell)
    finally:
        # By its name: SLURM may have granted it in the moment of ^C.
        ask("scancel", f"--name={name}", f"--user={os.getuid()}")


def _granted(name: str, loaded: LoadedJob, facts: Facts, tell: Callable[[str], None]) -> SlurmStage:
    partition = facts.slurm.partition  # as many nodes as it gives at once, without spares
    limits = [partition.max_nodes, partition.usable_nodes or partition.nodes] if partition else []
    most = min([loaded.job.resources.nodes, *(n for n in limits if n)])
    resources = replace(loaded.job.resources, nodes=most, spare_nodes=0)
    made = plan(replace(loaded, job=replace(loaded.job, resources=resources, sweep={}, after=None)), facts)
    parameters: dict[str, Any] = {**made.parameters, **made.parameters["additional_parameters"]}
    words = [f"--{key.replace('_', '-')}={parameters[key]}" for key in _ASKED if key in parameters]
    words += [f"--{key}={parameters[key]}" for key in ("reservation",) if key in parameters]
    words += ["--exclusive"] if parameters.get("exclusive") else []
    most_s = partition.max_time_s if partition else None
    limit = min(REHEARSAL_MIN, int((most_s or 3600) // 60))
    where = f"partition {parameters['partition']}" if parameters.get("partition") else "the default partition"
    tell(f"asking {where} for {plural(made.spec.nodes, 'node')} (^C gives up)")
    done = subprocess.run(
        ["salloc", "--no-shell", f"--job-name={name}", f"--nodes={made.spec.nodes}", f"--time={max(1, limit)}", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env=environment_for_sbatch(os.environ, {}, made.spec.pass_names),
    )  # fmt: skip
    found = _GRANTED.search(done.stderr)
    if done.returncode != 0 or found is None:
        lines = [re.sub(r"^salloc: (error: )?", "", line).strip() for line in done.stderr.splitlines()]
        raise SubmitError(
            f"SLURM granted no nodes for the rehearsal: {'; '.join(filter(None, lines)) or 'it gave no reason'}"
        )
    nodes = _nodes_of(found[1])
    tell(f"on {', '.join(nodes)}, job {found[1]}")
    return SlurmStage(facts, found[1], nodes)


def _nodes_of(job_id: str) -> tuple[str, ...]:
    for _ in range(20):
        answer = ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%N")
        if answer.ok and answer.out.strip():
            return tuple(expand_hosts(answer.out.strip()))
        time.sleep(0.5)
    raise LauncherError(f"SLURM does not say which nodes job {job_id} has")
