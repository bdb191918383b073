"""The fork server: a process that has imported torch once and forks a worker in milliseconds.

Python's own (multiprocessing.forkserver) cannot give a worker its log, session and socket, reports exits through the
resource tracker's rules, and leaves orphans behind. This one

- has one thread (counted after importing torch), so forking it is safe;
- runs with the signals of a step (`GUARDED`) blocked from before its first instruction: SLURM sends a step's signals to every process;
- gives every worker a session of its own and SIGKILL when the fork server ends (PDEATHSIG);
- is a subreaper: a worker's orphans become its children, whatever their session, and are ended with the round;
- ends everything and itself when the agent's end of the socket closes, however the agent died.

Requests and answers are JSON over one SEQPACKET socket pair, which keeps messages apart; ``fork`` carries descriptors.
This module is the server's side; `launcher.node.forkserver.client` is the agent's.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from launcher.node.forkserver import child, proctable
from launcher.node.forkserver.child import GUARDED
from launcher.node.forkserver.imports import modules_by_name

_CLEAR_POLL_S = 0.02
"""How often a round that is being cleared is checked, beside every exit."""
_MOST_BYTES = 2**18
"""More than a socket's buffer, and so a message, can hold."""


def send_message(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message whole, with descriptors. Raises OSError when the other side is gone, BlockingIOError when it is busy."""
    socket.send_fds(sock, [json.dumps(message).encode()], list(fds))


def receive_message(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive one message and its descriptors; None when the other side is gone. Raises BlockingIOError."""
    try:
        data, fds, _, _ = socket.recv_fds(sock, _MOST_BYTES, 64)
    except BlockingIOError:
        raise
    except OSError:
        return None
    return (json.loads(data), fds) if data else None


class _Server:
    """Forks, reaps and clears in one loop."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.pid = os.getpid()
        self.running: dict[int, tuple[str, int]] = {}
        """Of each live worker or store, by pid: key and round."""
        self.clearing: set[int] = set()
        self.wakeup, self.alarm = socket.socketpair()

    def serve(self) -> None:
        """Answer until the agent is gone, then end everything below."""
        self.wakeup.setblocking(False)
        self.alarm.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.alarm.fileno(), warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        poller.register(self.wakeup, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poller.poll(_CLEAR_POLL_S * 1000 if self.clearing else None)}
                with contextlib.suppress(BlockingIOError):
                    while self.wakeup.fileno() in ready and self.wakeup.recv(4096):
                        pass
                self.reap()
                if self.sock.fileno() in ready:
                    if (request := receive_message(self.sock)) is None:
                        return
                    self.obey(*request)
                self.clear_step()
        except OSError:
            return  # the agent went away while it was being answered
        finally:
            if os.getpid() == self.pid:  # a script that is over leaves by this way, too
                self.end_all()

    def obey(self, request: dict[str, Any], fds: list[int]) -> None:
        """Carry out one request."""
        op = request["op"]
        if op == "fork":
            self.fork(request, fds)
        elif op == "signal":
            for pid, (key, _) in self.running.items():
                if key == request["key"]:
                    os.kill(pid, request["signal"])  # one that has ended is a zombie still: no error
        elif op == "clear":
            self.clearing.add(request["round"])

    def fork(self, request: dict[str, Any], fds: list[int]) -> None:
        """Fork one worker; its descriptors belong to it alone afterwards."""
        key = request["key"]
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            send_message(self.sock, {"answer": key, "error": f"The fork server cannot fork: {error}"})
            return
        finally:
            if os.getpid() == parent:
                for fd in fds:
                    os.close(fd)
        if pid == 0:
            self._in_child(parent, request, fds)
        self.running[pid] = (key, request["round"])
        send_message(self.sock, {"answer": key, "pid": pid})

    def _in_child(self, parent: int, request: dict[str, Any], fds: list[int]) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            proctable.die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            for sock in (self.sock, self.wakeup, self.alarm):
                sock.close()
            code = child.become_worker(request, fds)
        except BaseException:
            traceback.print_exc()
        if request.get("script"):
            # Out of the server's loop to the end of its main program, where Python closes what the script left open.
            sys.exit(code)
        child.exit_like_python(code)

    def reap(self) -> None:
        """Report every child that has ended; kill what is left of a group whose head failed."""
        while True:
            try:
                # WNOWAIT: as long as the zombie holds its pid, the group's number cannot be somebody else's
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            known = self.running.pop(ended.si_pid, None)
            if known is not None and ended.si_status != 0:
                _kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            if known is not None:
                exit_code = os.waitstatus_to_exitcode(status)
                send_message(self.sock, {"exit": known[0], "status": exit_code})

    def clear_step(self) -> None:
        """KILL what is left of the rounds being cleared; report it when nothing is."""
        if not self.clearing:
            return
        newest = max(self.clearing)
        heads = [pid for pid, (_, round_) in self.running.items() if round_ <= newest]
        if heads:  # their exits are reported; reading the whole table (5 ms) can wait for the last one
            for pid in heads:
                _kill_group(pid)
            return
        left = proctable.below(os.getpid(), proctable.table(), spare=self.running)  # of later rounds
        proctable.kill_all(left)
        if not left:
            for round_ in sorted(self.clearing):
                send_message(self.sock, {"answer": f"clear {round_}"})
            self.clearing.clear()

    def end_all(self) -> None:
        """End everything below, reporting nothing: the agent is gone."""
        while left := proctable.below(os.getpid(), proctable.table()):
            proctable.kill_all(left)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.005)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # between fork and setsid the group does not exist yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# --- the process ---


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def main() -> None:
    """``python -c … ROOT FD PARENT_PID FILES MODULE…``: import the modules, then serve the agent at the other end of FD.

    FILES is how many files may be open.
    """
    _, fd, parent, files, *preload = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    proctable.die_with_parent()  # only while importing, when the socket is not read; afterwards its end is seen
    if os.getppid() != int(parent):
        sys.exit(1)  # it ended before the line above
    proctable.become_subreaper()
    for signum in GUARDED:  # blocked; but an ignored one would stay so in programs that workers start
        signal.signal(signum, signal.SIG_DFL)
    sock = socket.socket(fileno=int(fd))
    environ = dict(os.environ)
    gc.disable()  # what is imported stays: collections took a tenth of torch's import time
    try:
        with modules_by_name():
            for name in preload:
                if not name.startswith("?") or _exists(name[1:]):
                    importlib.import_module(name.lstrip("?"))
    except BaseException:
        send_message(sock, {"answer": "ready", "error": traceback.format_exc()[-_MOST_BYTES // 4 :]})
        sys.exit(1)
    # torch._dynamo sets TORCHINDUCTOR_CACHE_DIR at its import: a script's own setdefault would have no effect.
    os.environ.clear()
    os.environ.update(environ)
    # OpenBLAS (numpy's) starts threads when imported with OMP_NUM_THREADS > 1, and ends them before the first fork.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
    gc.freeze()  # a collection in a worker would touch, and so copy, every page of torch's objects
    gc.enable()
    proctable.die_with_parent(0)
    if os.getppid() != int(parent):
        sys.exit(1)
    threads = len(os.listdir("/proc/self/task"))
    try:
        send_message(sock, {"answer": "ready", "threads": threads})
    except OSError:
        return  # the agent did not wait
    _Server(sock).serve()
