"""Run a plan on this machine: detached through submitit's LocalExecutor, or as children of ``launcher run``.

One local task stands for each node. ``python -m launcher.submission.backends.local`` is the detached starter: it reads
what to start from its standard input, and answers with the controller's process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from launcher.errors import SubmitError
from launcher.node.forkserver.proctable import die_with_parent
from launcher.opening import open_to_append
from launcher.run.held_signals import signals_held
from launcher.run.processes import is_alive
from launcher.slurm.environ import environment_for_sbatch
from launcher.submission.backends.slurm import python_path

if TYPE_CHECKING:
    from launcher.submission.plan.submission_plan import SubmissionPlan

_NO_LIMIT_MIN = 60 * 24 * 365
"""submitit's local executor kills at its time limit; on one's own machine there is none."""
_START_TIMEOUT_S = 120
_SHARED = 0o027
"""The umask with which a shared run's logs are opened: agents have their own."""


def start_detached(plan: SubmissionPlan) -> int:
    """Start the plan's agents, detached from this terminal; return the controller's process id.

    Raises SubmitError.
    """
    order = {
        "folder": plan.submitit_dir,
        "command": plan.command,
        "run_dir": plan.run_dir,
        "tasks": plan.spec.all_nodes,
        "gpus": plan.spec.gpus_per_node,
    }
    # This environment without an outer job's variables; the starter must be able to import the launcher.
    env = environment_for_sbatch(os.environ, {}, plan.spec.pass_names)
    env["PYTHONPATH"] = python_path(str(Path(__file__).parents[3]))
    env["LAUNCHER_SUBMIT_DIR"] = os.getcwd()
    log = Path(plan.submitit_dir) / "controller.log"
    with os.fdopen(open_to_append(log, 0o640), "ab") as errors:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "launcher.submission.backends.local"],
                input=json.dumps(order).encode(),
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # closing the terminal, or Ctrl-C in it, must not end the run
                timeout=_START_TIMEOUT_S,
                check=False,
                env=env,
                umask=_SHARED if plan.spec.share == "group" else -1,
                cwd="/",  # `python -m` looks there first, also in submitit's controller: here, others may have left modules
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SubmitError(f"the local run could not be started: {error}") from None
    try:
        return int(done.stdout.split()[-1])
    except (IndexError, ValueError):
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise SubmitError(
            f"the local run could not be started: {last[0] if last else 'its controller did not answer'}"
        ) from None


def _start(order: dict[str, Any]) -> None:
    """Hand over to submitit, in the starter. submitit's controller outlives this process."""
    from submitit import LocalExecutor

    from launcher.node.agent.main import AgentMain

    executor = LocalExecutor(folder=order["folder"], python=order["command"])
    executor.update_parameters(
        tasks_per_node=order["tasks"],
        gpus_per_node=order["gpus"],
        timeout_min=_NO_LIMIT_MIN,
        stderr_to_stdout=True,
    )
    saved = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # the controller must not hold the pipe on which the pid is awaited
    job = executor.submit(AgentMain(order["run_dir"]))
    os.write(saved, f"{job.job_id}\n".encode())


class Foreground:
    """Run agents as children of this process, for ``launcher run``: they end when it does."""

    def __init__(self, plan: SubmissionPlan) -> None:
        self._plan = plan
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start one agent per node. Raises SubmitError."""
        plan = self._plan
        for node in range(plan.spec.all_nodes):
            words = ["-m", "launcher.node.agent", plan.run_dir, "--node", str(node)]
            line = f'exec {plan.command} -u "$@"'  # plan.command is a quoted piece of shell
            log = Path(plan.submitit_dir) / f"run_{node}_log.out"
            # No signal strikes before `kill` knows of what was started.
            with os.fdopen(open_to_append(log, 0o640), "ab") as out, signals_held():
                if plan.spec.share == "group":
                    os.fchmod(out.fileno(), 0o640)
                try:
                    self.agents.append(
                        subprocess.Popen(
                            ["/bin/bash", "-c", line, "agent", *words],
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,  # Ctrl-C is for this process alone: it stops the run politely
                            preexec_fn=_die_with(os.getpid()),
                            env=self._environment(node),
                        )
                    )
                except OSError as error:
                    self.kill()
                    raise SubmitError(f"an agent could not be started: {error}") from None

    def _environment(self, node: int) -> dict[str, str]:
        env = environment_for_sbatch(os.environ, {}, self._plan.spec.pass_names)
        env["SUBMITIT_LOCAL_GLOBALID"] = str(node)
        if not self._plan.spec.gpus_per_node:
            env["CUDA_VISIBLE_DEVICES"] = ""
        return env

    def alive(self) -> bool:
        """Return whether any agent runs."""
        return any(agent.poll() is None for agent in self.agents)

    def said(self) -> str:
        """Return nothing: agents write to their logs."""
        return ""

    def terminate(self) -> None:
        """Send TERM to every agent: with a request file a save and stop, without one a cancel."""
        for agent in self.agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)

    def wait(self, given_up: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until every agent has ended by itself, ``given_up`` says so, or ``timeout_s`` has passed."""
        end = time.monotonic() + timeout_s
        while self.alive() and not given_up() and time.monotonic() < end:
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill every agent and wait until their workers, which end with them (PDEATHSIG), have ended, too."""
        below: list[psutil.Process] = []
        for agent in self.agents:
            if agent.poll() is None:
                with contextlib.suppress(psutil.Error):
                    below += psutil.Process(agent.pid).children(recursive=True)
                agent.kill()
        for agent in self.agents:
            agent.wait()
        psutil.wait_procs(below, timeout=10)


def _die_with(parent: int) -> Callable[[], None]:
    """Return what the child does before exec: get TERM when the parent dies, however it dies (PR_SET_PDEATHSIG)."""

    def arrange() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # this command's handler would never run here
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def terminate(pid: int, started: object, run_dir: Path) -> bool:
    """Send TERM to the run's controller, which hands it on to every agent.

    Return False, without a signal, for a process that has ended, or is not known to be that of the run in ``run_dir``: by the
    moment of its start, and by the run's folder in its words or environment, or in those of what it has started.
    """
    if started is None or not is_alive(pid, started):
        return False
    try:
        process = psutil.Process(pid)
        if not any(_names(one, run_dir) for one in (process, *process.children(recursive=True))):
            return False
        os.kill(pid, signal.SIGTERM)
    except (psutil.Error, OSError):
        return False
    return True


def _names(process: psutil.Process, run_dir: Path) -> bool:
    """Return whether the words or the LAUNCHER_RUN_DIR of a process lead to the run's folder, or into it."""
    try:
        words = [*process.cmdline(), process.environ().get("LAUNCHER_RUN_DIR", "")]
    except psutil.Error:
        return False
    for word in words:
        head, named, rest = word.rpartition(f"/{run_dir.name}")
        with contextlib.suppress(OSError, ValueError):
            if named and rest[:1] in ("", "/") and os.path.samefile(head + named, run_dir):
                return True
    return False


if __name__ == "__main__":
    _start(json.load(sys.stdin))
    sys.stdout.flush()
    os._exit(0)  # no farewell of submitit's: the controller lives on
