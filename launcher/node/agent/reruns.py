"""The reruns of a hold on one node: runs that train, one at a time, with the fork server that has torch imported.

A rerun has an agent here, and on its first node a leader, of its own: they are what runs in any other allocation. They share this
process with the agent of the hold, which hears the signals for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from launcher.errors import LauncherError, RunDirError
from launcher.node.agent.description import gloo_interface
from launcher.node.agent.environment import DETERMINISTIC, base_environment
from launcher.node.agent.leader_search import LeaderSearch
from launcher.node.agent.leading import lead_and_obey
from launcher.node.agent.membership import Doors
from launcher.node.agent.read_run import read_run
from launcher.node.agent.store import Tell
from launcher.node.forkserver.client import ForkServer
from launcher.node.leader.leader import Leader
from launcher.node.policy.decisions import Kind
from launcher.node.wire import connection
from launcher.node.wire import messages as wire
from launcher.node.wire.hold_messages import EndRerun, ForwardStop, JoinedRerun, JoinRerun, LeftRerun
from launcher.redact import redact
from launcher.run.open_files import as_before
from launcher.run.own_folder import require_only_own_writers, require_own
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.slurm.environ import replaced_environ

_SETUP_S = 300.0
_SEEN_S = 60.0
"""A rerun's folder, just made, may be seen so late through NFS; then somebody who waits is told that it is not there."""
_OF_THE_RUN = ("LAUNCHER_RUN_DIR", "PYTHONPATH", "PWD", "SHLVL", "_")
"""Variables that always differ between two runs, or say nothing: torch is not imported again for them."""
_KEYS = {
    "PYTHONHASHSEED": "seed",
    "OMP_NUM_THREADS": "resources.cpus_per_task",
    "GLOO_SOCKET_IFNAME": "distributed.interface",
    "NCCL_SOCKET_IFNAME": "distributed.interface",
    **dict.fromkeys(DETERMINISTIC, "deterministic"),
}
"""The keys of the job by which variables are set, where `base_environment` sets them."""


class RerunAgent(Protocol):
    """The agent of a rerun (`launcher.node.agent.agent.Agent`)."""

    async def run(self) -> int:
        """Join the leader, and do what it says."""

    def signalled(self, name: str) -> None:
        """Take a signal of this process."""


class Reruns:
    """The reruns on this node, one at a time."""

    def __init__(
        self,
        hold: RunSpec,
        paths: RunPaths,
        server: ForkServer,
        environ: Mapping[str, str],
        tell: Tell,
        make_agent: Callable[..., RerunAgent],
        others: Sequence[str],
    ) -> None:
        """``server``: the hold's. ``environ``: of this process, before the hold's own variables were set. ``tell``: tells its leader.

        ``others``: the names of the hold's other nodes.
        """
        self._hold = hold
        self._paths = paths
        self._server = server
        self._tell = tell
        self._make_agent = make_agent
        self._others = others
        self._environ = dict(environ)
        self._started_for = hold
        """The run with whose environment the fork server was started."""
        self._base = dict(server.environ)
        self._sound = True
        """The fork server is as these two say."""
        self._task: asyncio.Future[None] | None = None
        self._of_rerun: RerunAgent | None = None
        self._leader: Leader | None = None
        self._stop: ForwardStop | None = None
        """The stop that was asked for last."""

    # --- what the hold's leader says ---

    def obey(self, order: wire.ToAgent) -> None:
        """Do what it says."""
        match order:
            case JoinRerun():
                self._task = asyncio.ensure_future(self._join(order, self._task))
            case ForwardStop():
                self._stop = order
                self._forward()
            case EndRerun() if self._task is not None:
                self._task.cancel()

    def _forward(self) -> None:
        """Have the rerun's leader stop it, as soon as there is one."""
        if self._leader is not None and self._stop is not None and self._leader.paths.id == self._stop.run:
            self._leader.stop(Kind(self._stop.cause), self._stop.text, self._stop.left_s)

    def signalled(self, name: str) -> None:
        """Hand on a signal of this process: SLURM sends it to the rerun's scripts, too. On one's own machine only the hold is meant."""
        if self._of_rerun is not None and self._hold.batch == "slurm":
            self._of_rerun.signalled(name)

    async def end(self) -> None:
        """End what is left of a rerun."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # --- one rerun ---

    async def _join(self, order: JoinRerun, before: asyncio.Future[None] | None) -> None:
        """Take part in a rerun to its end here, and tell the hold's leader how that was."""
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        end = LeftRerun(run=order.run, problem="it was ended by its hold")
        try:
            end = await self._take_part(order)
        except LauncherError as error:
            end = LeftRerun(run=order.run, problem=str(error))
        except Exception as error:
            traceback.print_exc()
            end = LeftRerun(run=order.run, problem=f"{type(error).__name__}: {error}")
        finally:
            self._of_rerun = self._leader = None
            self._tell(end)

    async def _take_part(self, order: JoinRerun) -> LeftRerun:
        try:
            paths = self._paths.beside(order.run)
        except ValueError as error:
            raise RunDirError(str(error)) from None
        spec, secret, passed = await asyncio.to_thread(self._read, paths)
        environ = await self._environ_of(spec, passed)
        # Its leader's trackers and notifications read theirs in this process.
        with replaced_environ({**environ, **spec.variables, **passed}):
            restarted = await self._fit_server(spec, passed, environ)
            self._tell(JoinedRerun(run=order.run, restarted=restarted))
            doors = Doors(spec, secret, connection.allocation_life(os.environ), order.hosts, order.node)
            search = LeaderSearch(spec, paths, doors, environ={})  # it asks SLURM nothing: it never leads by itself
            host = order.hosts[order.node]
            agent = self._make_agent(
                spec, paths, node=order.node, host=host, search=search, server=self._server, borrowed=True
            )
            self._of_rerun = agent
            if order.node > 0:
                lost = await agent.run() != 0
                return LeftRerun(
                    run=order.run, problem="its agent did not reach the leader of the rerun" if lost else ""
                )
            from launcher.node.allocation.held_allocation import allocation_of_rerun

            self._leader = Leader(spec, paths, host, order.hosts, allocation_of_rerun(spec, paths))
            self._forward()
            end = await lead_and_obey(self._leader, agent.run(), doors)
            return LeftRerun(run=order.run, reason=end.reason)

    def _read(self, paths: RunPaths) -> tuple[RunSpec, str, dict[str, Any]]:
        """Read the rerun's files. Raises RunDirError where it is none of this hold, LauncherError where it is not the user's own."""
        found = read_run(paths, _SEEN_S)
        require_own(paths.root)
        require_only_own_writers(paths)
        if found[0].held_by != self._hold.id:
            raise RunDirError(f"{paths.id} is no rerun of {self._hold.id}")
        return found

    # --- the fork server ---

    async def _environ_of(self, spec: RunSpec, passed: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which the rerun's job would start its agents. Raises RunDirError where its setup lines fail.

        The hold's own lines have been run: those of the rerun begin with them (`launcher.submission.reruns`).
        """
        more = spec.setup[len(self._hold.setup) :]
        environ = await _after_setup(more, self._environ, list(passed.values())) if more else self._environ
        return {**environ, "PYTHONPATH": _path(environ.get("PYTHONPATH", ""), self._hold, spec)}

    async def _fit_server(self, spec: RunSpec, passed: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
        """Have the fork server's environment be the run's; return the keys of the job for which it was started anew.

        Variables are read when torch is imported. Those that only name the run, its folder among them, are set in each worker.
        """
        interface = await asyncio.to_thread(gloo_interface, spec, self._others)
        wanted = base_environment(environ, spec, passed, gloo_interface=interface)
        keys = differing_keys(self._started_for, self._base, spec, wanted)
        server = self._server
        if keys or not self._sound:
            self._sound = False
            await asyncio.shield(server.start_anew(wanted, spec.python))
            self._started_for, self._base, self._sound = spec, wanted, True
        else:
            server.variables = {name: value for name, value in wanted.items() if self._base.get(name) != value}
        return keys


def differing_keys(before: RunSpec, base: Mapping[str, str], spec: RunSpec, wanted: Mapping[str, str]) -> list[str]:
    """Return the keys of ``spec``'s job for which its fork server cannot be the one that ``before`` was given. Pure.

    ``base`` and ``wanted`` are the environments of both.
    """
    keys = set()
    for name in (base.keys() | wanted.keys()) - set(_OF_THE_RUN):
        old, new = base.get(name), wanted.get(name)
        if old == new or _impersonal(old, before) == _impersonal(new, spec):
            continue
        if name in spec.variables or name in before.variables:
            keys.add(f"environment.variables.{name}")
        elif name in spec.pass_names or name in before.pass_names:
            keys.add(f"{name} (environment.pass)")
        else:
            keys.add(_KEYS.get(name, "environment.setup" if spec.setup != before.setup else name))
    if spec.python != before.python:
        keys.add("environment.python")
    return sorted(keys)


def _impersonal(value: str | None, spec: RunSpec) -> str | None:
    """Return a variable's value without the run's own folder and id."""
    return value and value.replace(spec.run_dir, "{run.dir}").replace(spec.id, "{run.id}")


def _path(path: str, hold: RunSpec, spec: RunSpec) -> str:
    """Return PYTHONPATH with the rerun's own copies of editable packages in place of the hold's."""
    code = f"{hold.run_dir}/code"
    first, *rest = path.split(os.pathsep)  # the launcher itself is the hold's
    others = [entry for entry in rest if entry != code and not entry.startswith(f"{code}/")]
    return os.pathsep.join([first, *spec.code_path, *others])


async def _after_setup(lines: list[str], environ: Mapping[str, str], secrets: list[str]) -> dict[str, str]:
    """Return the environment after the shell ``lines``. Raises RunDirError when one fails to leave any.

    Cancelled, it ends the shell with everything in it.
    """
    text = "\n".join(["{ :", *lines, "} >&2", "env -0"])
    folder = environ.get("SLURM_SUBMIT_DIR") or environ.get("LAUNCHER_SUBMIT_DIR") or "/"
    # No pipe for errors: it would be waited for as long as something in the background holds it.
    with tempfile.TemporaryFile() as errors:
        try:
            # One that does not answer must keep a thread waiting, not this process.
            await asyncio.to_thread(os.stat, folder)
            # Not asyncio's: cancelled while it starts a process, it kills that one alone.
            shell = subprocess.Popen(
                as_before(["/bin/bash", "-c", text]), env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                cwd=folder, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise RunDirError(f"environment.setup failed: {error}") from None
        told = await _told(shell)
        errors.seek(0)
        last = redact(errors.read().decode(errors="replace"), secrets).strip().splitlines()[-1:]
    pairs = (entry.partition(b"=") for entry in told.split(b"\0") if entry)
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    if not found:
        raise RunDirError(f"environment.setup failed: {last[0] if last else f'exit code {shell.returncode}'}")
    return found


async def _told(shell: subprocess.Popen[bytes]) -> bytes:
    """Return what the shell prints to its end. Raises RunDirError where it does not end; then, or cancelled, its session is killed."""
    telling = asyncio.ensure_future(asyncio.to_thread(shell.communicate))
    try:
        await asyncio.wait({telling}, timeout=_SETUP_S)
        if not telling.done():
            raise RunDirError(f"environment.setup failed: it did not end within {_SETUP_S:.0f} s")
    finally:
        if not telling.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            await asyncio.wait({telling}, timeout=1.0)
    return telling.result()[0]
