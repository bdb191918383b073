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
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError
from launcher.node.forkserver import proctable
from launcher.node.forkserver.child import GUARDED
from launcher.node.forkserver.server import receive_message, send_message

MARK_VARIABLE = "LAUNCHER_FORKSERVER"
_START = "import sys; del sys.path[0]; sys.path.append(sys.argv[1]); from launcher.node.forkserver.server import main; main()"
_ROOT = str(Path(__file__).parents[3])
"""Where this package lies: last on the fork server's path, so that it is found however the agent found it."""
_SWEEP_POLL_S = 0.005
_CLEAR_S = 6.0
"""A fork server that has not cleared a round by then is stopped (SIGSTOP): it is killed, and another one started."""

OnExit = Callable[[str, int, float], None]
"""Key, status as `os.waitstatus_to_exitcode` gives it (negative: killed by that signal), time."""


class ForkServerError(LauncherError):
    """The fork server could not start or could not fork."""


class ForkServer:
    """A fork server process and what it forked; belongs to the event loop it is started in.

    ``preload`` are modules it imports once; ``environ`` is its environment and so every worker's base.
    """

    def __init__(self, *, preload: Sequence[str], environ: Mapping[str, str], on_exit: OnExit) -> None:
        self._preload = list(preload)
        self._mark = secrets.token_hex(8)
        self._environ = {**environ, MARK_VARIABLE: self._mark}
        self._on_exit = on_exit
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._ups: dict[str, asyncio.Future[int]] = {}
        self._pids: dict[str, int] = {}
        self._sending = asyncio.Lock()
        self._clears: dict[int, asyncio.Future[None]] = {}
        self._losses: set[asyncio.Task[None]] = set()
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
        before = signal.pthread_sigmask(signal.SIG_BLOCK, GUARDED)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _START, _ROOT, str(theirs.fileno()), str(os.getpid()), *self._preload],
                env=self._environ,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's ^C and ^Z are the agent's business too
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._sock = mine
        loop.add_reader(mine, self._readable)

    async def ready(self) -> dict[str, Any]:
        """Wait until it has imported; raises ForkServerError when it cannot (the text is Python's traceback).

        One that died, or could not import before, is started again.
        """
        while self._losses:
            await asyncio.gather(*self._losses)
        if self._sock is None and not self.stopping:
            self.start()
        if self._ready is None:
            raise ForkServerError("The fork server has been stopped.")
        return await asyncio.shield(self._ready)

    async def fork(self, key: str, round_: int, main: str, fds: list[int], **how: Any) -> int:
        """Fork one process that runs ``main`` (``module:function``); returns its pid.

        ``fds`` are its log and, optionally, its socket: they stay the caller's to close. ``how``: env, cwd, cpus,
        script, exec, pass_fd (see `launcher.node.forkserver.server`). Raises ForkServerError.
        """
        await self.ready()
        up: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ups[key] = up
        try:
            await self._send({"op": "fork", "key": key, "round": round_, "main": main, **how}, fds)
            return await up
        finally:
            self._ups.pop(key, None)

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

    async def signal(self, key: str, signum: int, *, group: bool = False) -> None:
        """Signal one worker (or its group); those that have ended are passed over.

        The server does it, being the parent: it alone knows that the pid is still that worker's.
        """
        if key in self._pids:
            with contextlib.suppress(ForkServerError):
                await self._send({"op": "signal", "key": key, "signal": int(signum), "group": group})

    def pid_of(self, key: str) -> int | None:
        """Return the live process of ``key``."""
        return self._pids.get(key)

    async def clear(self, round_: int) -> None:
        """KILL every process of ``round_`` and older ones, children and orphans included; returns when none is left.

        A fork server that does not do it in `_CLEAR_S` is killed itself, and started again.
        """
        if self._ready is not None and not self._ready.done():
            return  # still importing: it has forked nothing
        if self._sock is not None:
            waiting = self._clears.get(round_)
            if waiting is None:
                waiting = self._clears[round_] = asyncio.get_running_loop().create_future()
                with contextlib.suppress(ForkServerError):
                    await self._send({"op": "clear", "round": round_})
            if self._sock is not None:
                await asyncio.wait({waiting}, timeout=_CLEAR_S)
                if not waiting.done() and self._process is not None:
                    self._process.kill()  # its workers die with it; the end of its socket leads to `_lost`
                await asyncio.shield(waiting)
                return
        await self._sweep()

    # --- what the server reports ---

    def _readable(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(BlockingIOError):
                if (answer := receive_message(self._sock)) is None:
                    self._lost()
                else:
                    self._heard(answer[0])

    def _heard(self, message: dict[str, Any]) -> None:
        op, key = message["op"], message.get("key", "")
        up = self._ups.get(key)
        if op == "ready" and self._ready is not None:
            self._ready.set_result(message)
        elif op == "broken" and self._ready is not None:
            _fail(self._ready, message["error"])
        elif op == "up":
            self._pids[key] = message["pid"]
            if up is not None and not up.done():
                up.set_result(message["pid"])
        elif op == "failed" and up is not None:
            _fail(up, f"The fork server cannot fork: {message['error']}")
        elif op == "exit":
            self._pids.pop(key, None)
            self._on_exit(key, message["status"], message["t"])
        elif op == "cleared" and (done := self._clears.pop(message["round"], None)) is not None:
            done.set_result(None)

    def _lost(self) -> None:
        """Handle the server's death: workers die with it (PDEATHSIG); make sure of it, then report their ends."""
        if self._sock is None:
            return
        was_ready = self._ready is not None and self._ready.done() and self._ready.exception() is None
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()
        self._sock = None
        for future in [self._ready, *self._ups.values()]:
            if future is not None and not future.done():
                _fail(future, "The fork server died.")
        task = asyncio.get_running_loop().create_task(self._bury(again=was_ready))
        self._losses.add(task)
        task.add_done_callback(self._losses.discard)

    async def _bury(self, *, again: bool) -> None:
        await self._sweep()
        ended, self._pids = list(self._pids), {}
        for key in ended:
            self._on_exit(key, -signal.SIGKILL, time.time())
        for done in self._clears.values():
            if not done.done():
                done.set_result(None)
        self._clears.clear()
        if again and not self.stopping:
            self.start()  # at once: the next round is about to be asked for

    async def _sweep(self) -> None:
        """End and reap the fork server's orphans: without it they are this process's children (subreaper)."""
        while left := self._orphans():
            proctable.kill_all(left)
            for proc in left:
                if proc.ppid == os.getpid() and proc.pid != self.pid:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(proc.pid, os.WNOHANG)
            if self._process is not None:
                self._process.poll()
            await asyncio.sleep(_SWEEP_POLL_S)

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
        if self._sock is not None:
            self._lost()
        while self._losses:
            await asyncio.gather(*self._losses)
        if self._process is not None:
            while self._process.poll() is None:
                await asyncio.sleep(_SWEEP_POLL_S)


def _fail(future: asyncio.Future[Any], text: str) -> None:
    if not future.done():
        future.set_exception(ForkServerError(text))
        future.exception()  # that nobody is waiting is no error
