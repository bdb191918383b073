"""The agent's side of the fork server: start it, ask for workers, learn of their ends, survive its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.errors import LauncherError
from launcher.node.forkserver import proctable
from launcher.node.forkserver.child import GUARDED, ROOT
from launcher.node.forkserver.server import receive_message, send_message
from launcher.run import open_files

MARK_VARIABLE = "LAUNCHER_FORKSERVER"
_START = (  # as `launcher.node.forkserver.child` begins a new interpreter
    "import sys; getattr(sys.flags, 'safe_path', False) or sys.path.pop(0); sys.path.append(sys.argv[1]); "
    "from launcher.node.forkserver.server import main; main()"
)
_SWEEP_POLL_S = 0.005
_CLEAR_S = 6.0
"""A fork server that has not cleared a round by then is stopped (SIGSTOP): it is killed, and another one started."""
_STUCK_S = 20.0
"""Longer than the leader waits for a round's end: it has excluded the node by then."""

OnExit = Callable[[int], None]
"""Takes the status as `os.waitstatus_to_exitcode` gives it (negative: killed by that signal)."""


class ForkServerError(LauncherError):
    """The fork server could not start or could not fork."""


class ForkServer:
    """A fork server process and what it forked; belongs to the event loop it is started in.

    ``preload`` are modules it imports once; ``environ`` is its environment and so every worker's base.
    """

    def __init__(self, *, preload: Sequence[str], environ: Mapping[str, str]) -> None:
        self._preload = list(preload)
        self._mark = secrets.token_hex(8)
        self.environ = dict(environ)
        """Its own, and so the base of every worker's."""
        self._python = sys.executable
        self.variables: dict[str, str] = {}
        """Of what it forks from now on, beyond those that it was started with."""
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._ready: asyncio.Future[dict[str, Any]]
        self._asked: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._pids: dict[str, int] = {}
        self._on_exit: dict[str, OnExit] = {}
        self._sending = asyncio.Lock()
        self._anew = asyncio.Lock()
        self._cleanup: asyncio.Task[None] | None = None
        self.stopping = False

    @property
    def pid(self) -> int | None:
        """The process, or None while there is none."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process; `ready` tells when it has imported everything. Call on the main thread.

        PDEATHSIG follows the *thread* that forks, so a pool's thread would end the fork server with itself.
        """
        proctable.become_subreaper()  # should the fork server be killed, its orphans come here
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        numbers = (theirs.fileno(), os.getpid(), open_files.BEFORE)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, GUARDED)
        try:
            self._process = subprocess.Popen(
                [self._python, "-u", "-c", _START, ROOT, *map(str, numbers), *self._preload],
                env={**self.environ, MARK_VARIABLE: self._mark},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's ^C and ^Z are the agent's business too
            )
        except OSError:
            mine.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        loop = asyncio.get_running_loop()
        self._ready = self._asked["ready"] = loop.create_future()
        self._sock = mine
        loop.add_reader(mine, self._readable, mine)

    async def start_anew(self, environ: Mapping[str, str], python: str) -> None:
        """End it and what it has forked, and start it by the interpreter ``python`` with another environment. Raises ForkServerError."""
        async with self._anew:  # a caller that was cancelled may have left one under way
            try:
                await self.stop()
            finally:
                self.stopping = False
            self.environ, self._python, self.variables = dict(environ), python, {}
            try:
                self.start()
            except OSError as error:
                raise ForkServerError(f"{python} cannot be started: {error.strerror or error}") from None

    async def ready(self) -> dict[str, Any]:
        """Wait until it has imported; raises ForkServerError when it cannot (the text is Python's traceback).

        One that died, or could not import before, is started again.
        """
        await self._cleaned_up()
        if self._sock is None:
            if self.stopping:
                raise ForkServerError("The fork server has been stopped.")
            try:
                self.start()
            except OSError as error:
                raise ForkServerError(f"The fork server cannot be started: {error.strerror or error}.") from None
        return await asyncio.shield(self._ready)

    async def fork(
        self,
        key: str,
        round_: int,
        main: str,
        fds: list[int],
        on_exit: OnExit = lambda status: None,
        **how: Any,
    ) -> int:
        """Fork one process that runs ``main`` (``module:function``); returns its pid. ``on_exit`` is called when it has ended.

        ``fds`` are its log and, optionally, its socket: they stay the caller's to close. ``how``: env, cwd, cpus,
        script, exec, pass_fd (see `launcher.node.forkserver.server`). Raises ForkServerError.
        """
        await self.ready()
        self._on_exit[key] = on_exit
        how["env"] = {**self.variables, **how.get("env", {})}
        answer = await self._ask(key, {"op": "fork", "key": key, "round": round_, "main": main, **how}, fds)
        return int(answer["pid"])

    async def _ask(self, name: str, request: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Send one request and return the server's answer to ``name``. Raises ForkServerError."""
        answer = self._asked.setdefault(name, asyncio.get_running_loop().create_future())
        await self._send(request, fds)
        return await asyncio.shield(answer)

    async def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one request; waits, without holding up the heartbeats, when the server is busy or stopped."""
        async with self._sending:
            while self._sock is not None:
                try:
                    return send_message(self._sock, message, fds)
                except BlockingIOError:
                    await asyncio.sleep(0.002)
                except OSError as error:
                    raise ForkServerError(f"The fork server has ended ({error}).") from None
            raise ForkServerError("The fork server has ended.")

    async def signal(self, key: str, signum: int) -> None:
        """Signal one worker, unless it has ended.

        The server does it, being the parent: it alone knows that the pid is still that worker's.
        """
        if key in self._pids:
            with contextlib.suppress(ForkServerError):
                await self._send({"op": "signal", "key": key, "signal": int(signum)})

    def pid_of(self, key: str) -> int | None:
        """Return the live process of ``key``."""
        return self._pids.get(key)

    async def clear(self, round_: int) -> None:
        """KILL every process of ``round_`` and older ones, children and orphans included; return when none is left.

        A fork server that does not do it in `_CLEAR_S` is killed itself, and started again.
        """
        if "ready" in self._asked:
            return  # still importing: it has forked nothing
        cleared = asyncio.ensure_future(self._ask(f"clear {round_}", {"op": "clear", "round": round_}))
        await asyncio.wait({cleared}, timeout=_CLEAR_S)
        if not cleared.done() and self._process is not None:
            self._process.kill()  # its workers die with it; the end of its socket leads to `_lost`
        with contextlib.suppress(ForkServerError):
            await cleared
        await self._cleaned_up()

    # --- what the server reports ---

    def _readable(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            if (received := receive_message(sock)) is None:
                self._lost()
            else:
                self._heard(received[0])

    def _heard(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            key = message["exit"]
            self._pids.pop(key, None)
            return self._on_exit.pop(key)(message["status"])
        name = message["answer"]
        if "pid" in message:
            self._pids[name] = message["pid"]
        if (answer := self._asked.pop(name, None)) is not None:
            if "error" in message:
                _fail(answer, message["error"])
            else:
                answer.set_result(message)

    def _lost(self) -> None:
        """Handle the server's death: workers die with it (PDEATHSIG); make sure of it, then report their ends."""
        if self._sock is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock)
        self._sock.close()
        self._sock = None
        was_ready = self._ready.done() and self._ready.exception() is None
        for answer in self._asked.values():
            _fail(answer, "The fork server died.")
        self._asked.clear()
        self._cleanup = loop.create_task(self._clean_up(again=was_ready))

    async def _clean_up(self, *, again: bool) -> None:
        """End, reap and report what the dead fork server left: its orphans are this process's children now (subreaper).

        A process that the kernel holds (state D) is not waited for beyond `_STUCK_S`: SLURM deals with it when this one has ended.
        """
        end = time.monotonic() + _STUCK_S
        while left := self._orphans():
            if time.monotonic() >= end:
                held = ", ".join(f"{proc.pid} (state {proc.state})" for proc in left)
                print(f"killed, and not ended after {_STUCK_S:.0f} s: {held}", file=sys.stderr, flush=True)
                break
            proctable.kill_all(left)
            for proc in left:
                if proc.ppid == os.getpid() and proc.pid != self.pid:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(proc.pid, os.WNOHANG)
            if self._process is not None:
                self._process.poll()
            await asyncio.sleep(_SWEEP_POLL_S)
        ended, self._pids = list(self._pids), {}
        for key in ended:
            self._on_exit.pop(key)(-signal.SIGKILL)
        if again and not self.stopping:
            with contextlib.suppress(OSError):  # `ready` tries once more, and tells
                self.start()  # at once: the next round is about to be asked for

    async def _cleaned_up(self) -> None:
        """Wait until a dead fork server's processes are ended and reported."""
        if self._cleanup is not None:
            await asyncio.wait({self._cleanup})

    def _orphans(self) -> list[proctable.Proc]:
        """Return the descendants of this process that came out of the fork server, known by their environment.

        Others, such as the leader's ``scontrol``, have another environment. A zombie's cannot be read any more: those
        of another session than ours are the fork server's, whose processes all have sessions of their own.
        """
        found = proctable.table()
        me = found.get(os.getpid())
        mark = f"{MARK_VARIABLE}={self._mark}".encode()
        known = set(self._pids.values())
        if self._process is not None and self._process.returncode is None:
            known.add(self._process.pid)
        left = []
        for proc in proctable.below(os.getpid(), found):
            if me is not None and proc.sid == me.sid:
                continue
            ended = proc.state == "Z" and proc.ppid == os.getpid()
            if ended or proc.pid in known or proc.sid in known or proctable.marked(proc.pid, mark):
                left.append(proc)
        return left

    async def stop(self) -> None:
        """End the fork server and everything it forked; returns when nothing of it is left."""
        self.stopping = True
        self._lost()
        await self._cleaned_up()


def _fail(future: asyncio.Future[Any], text: str) -> None:
    future.set_exception(ForkServerError(text))
    future.exception()  # that nobody is waiting is no error
