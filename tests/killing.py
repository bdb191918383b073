"""Ends processes by SIGKILL at the n-th system call that changes the disk.

Seccomp stops a process, whichever thread of it, at every such call *before* it happens, and ptrace tells this one, its
parent: C code and Python alike, nothing patched. Linux on x86-64 and aarch64.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_CALLS = {
    "x86_64": {
        1: "write", 18: "pwrite64", 20: "writev", 74: "fsync", 75: "fdatasync", 77: "ftruncate", 82: "rename",
        83: "mkdir", 84: "rmdir", 87: "unlink", 258: "mkdirat", 263: "unlinkat", 264: "renameat", 316: "renameat2",
    },
    "aarch64": {
        64: "write", 68: "pwrite64", 66: "writev", 82: "fsync", 83: "fdatasync", 46: "ftruncate", 34: "mkdirat",
        35: "unlinkat", 38: "renameat", 276: "renameat2",
    },
}  # fmt: skip
CALLS = _CALLS.get(platform.machine(), {})
"""System calls that change a file system, by number."""

_TRACEME, _CONT, _SETOPTIONS, _SYSCALL_INFO = 0, 7, 0x4200, 0x420E
_OPTIONS = 0x8 | 0x80 | 0x100000  # threads too, seccomp's stops, and nobody outlives this process
_EVENT_SECCOMP = 7
_WALL = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


_ended: dict[int, int] = {}
"""Exit codes of everything that was waited for."""


class _Info(ctypes.Structure):
    """``struct ptrace_syscall_info``, as far as it is needed."""

    _fields_ = [
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("ip", ctypes.c_uint64),
        ("sp", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 6),
        ("data", ctypes.c_uint64),
    ]


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction))]


def _stop_at_calls() -> None:
    """Have every one of ``CALLS`` of this process and its threads stop for the tracer."""
    lines = [(0x20, 0, 0, 0)]  # load the call's number
    lines += [(0x15, len(CALLS) - i, 0, number) for i, number in enumerate(CALLS)]
    lines += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x7FF00000)]  # allow; trace
    program = (_Instruction * len(lines))(*lines)
    given = _Program(len(lines), program)
    if _libc.prctl(38, 1, 0, 0, 0) or _libc.prctl(22, 2, ctypes.byref(given)):
        raise OSError(ctypes.get_errno(), "seccomp")


@dataclass
class Killing:
    """Runs functions in processes of their own; one of them dies at its ``at``-th call below ``root``."""

    root: Path
    victim: str = ""
    at: int = -1
    alone: bool = True
    """The others live on, to whatever end they come; else all die with it."""
    meanwhile: Callable[[], None] | None = None
    """Instead of dying, the victim stands still before that call while this is done (the others die), and then goes on."""
    made: dict[str, list[str]] = field(default_factory=dict)
    """The calls each process made, the one it died at included."""
    codes: dict[str, int] = field(default_factory=dict)
    """Exit codes; minus the signal for those that were killed."""
    _names: dict[int, str] = field(default_factory=dict)

    def run(self, crew: dict[str, Callable[[], None]], started: Callable[[], None] = lambda: None) -> None:
        """Run the crew to its end; ``started`` is called here once all of it lives."""
        for name, function in crew.items():
            self._names[_start(function)] = name
            self.made[name] = []
        started()
        while len(self.codes) < len(crew):
            self._next()

    def _next(self) -> None:
        tid, status = os.waitpid(-1, _WALL)
        if not os.WIFSTOPPED(status):
            _ended[tid] = os.waitstatus_to_exitcode(status)  # perhaps another crew's, whose victim stands still
            self._count()
            return
        event, number = status >> 16, os.WSTOPSIG(status)
        if event == _EVENT_SECCOMP and self._is_due(tid) and self._struck(_process_of(tid)):
            return
        passed_on = 0 if event or number == signal.SIGSTOP else number  # a new thread begins with SIGSTOP
        _libc.ptrace(_CONT, tid, None, passed_on)

    def _count(self) -> None:
        self.codes.update({name: _ended[pid] for pid, name in self._names.items() if pid in _ended})

    def _struck(self, victim: int) -> bool:
        """Do to the victim and the others what is to be done; whether the victim is dead."""
        others = {pid: name for pid, name in self._names.items() if pid != victim and name not in self.codes}
        for other in others if self.meanwhile or not self.alone else []:
            os.kill(other, signal.SIGKILL)
        if self.meanwhile is None:
            os.kill(victim, signal.SIGKILL)
            return True
        while not set(others.values()) <= set(self.codes):
            self._next()
        self.meanwhile()
        self._count()
        return False

    def _is_due(self, tid: int) -> bool:
        call = _call(tid, str(self.root))
        pid = _process_of(tid)
        if call is None or pid not in self._names:
            return False
        name = self._names[pid]
        self.made[name].append(call)
        return name == self.victim and len(self.made[name]) == self.at + 1


def _start(function: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _libc.ptrace(_TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            _stop_at_calls()
            function()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.waitpid(pid, _WALL)
    _ended.pop(pid, None)  # numbers come again
    if _libc.ptrace(_SETOPTIONS, pid, None, _OPTIONS):
        raise OSError(ctypes.get_errno(), "ptrace")
    _libc.ptrace(_CONT, pid, None, None)
    return pid


def _call(tid: int, root: str) -> str | None:
    """``name path`` of the call a thread stands before; None where it is not about anything below ``root``."""
    info = _Info()
    if _libc.ptrace(_SYSCALL_INFO, tid, ctypes.sizeof(info), ctypes.addressof(info)) <= 0:
        return None
    name = CALLS.get(info.number, "")
    try:
        if name in ("write", "pwrite64", "writev", "fsync", "fdatasync", "ftruncate"):
            path = os.readlink(f"/proc/{tid}/fd/{info.args[0]}")
        else:
            path = _text(tid, info.args[1 if name.endswith(("at", "at2")) else 0])
    except OSError:
        return None
    inside = path.startswith(root) or not path.startswith("/")  # shutil.rmtree goes by names within a folder
    return f"{name} {Path(path).name}" if inside else None


def _text(tid: int, address: int) -> str:
    with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(400).split(b"\0")[0].decode()


def _process_of(tid: int) -> int:
    for line in Path(f"/proc/{tid}/status").read_text().splitlines():
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    return tid
