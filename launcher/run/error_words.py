"""What the words of an error mean, where no type tells it: those of torch, gloo, NCCL, CUDA and the kernel. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ALLOC_FAILED = r"CU(BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED"
_OUT_OF_CUDA = re.compile(rf"cuda.{{0,60}}out of memory|OutOfMemoryError|{_ALLOC_FAILED}", re.IGNORECASE)
_FAULT_OF_CUDA = re.compile(
    r"(?:CUDA error: |Cuda failure (?:\d+ )?')(device-side assert triggered|an illegal memory access was encountered|misaligned address"
    r"|an illegal instruction was encountered|invalid program counter|unspecified launch failure|the launch timed out and was terminated"
    r"|operation not supported on global/shared address space)"
)
"""What a kernel did wrong, in the words of `cudaGetErrorString`; NCCL quotes them."""
_FAULT_OF_GPU = re.compile(
    r"(?:CUDA error: |Cuda failure (?:\d+ )?')(uncorrectable ECC error encountered|uncorrectable NVLink error detected during the execution"
    r"|hardware stack error|CUDA-capable device\(s\) is/are busy or unavailable|unknown error"
    r"|Invalid access of peer GPU memory over nvlink or a hardware error)|(?:GPU is lost|GPU has fallen off the bus)"
)
_OUT_OF_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|ENOSPC|EDQUOT"
    r"|inline_container\.cc.*(unexpected pos|file write failed)",  # what torch.save says of a disk that takes no more
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(
    r"can(no|')t allocate memory|not enough memory|std::bad_alloc|unable to allocate [\d.]+ [KMGTP]?i?B", re.IGNORECASE
)
_OUT_OF_SHM = re.compile(
    r"(insufficient|out of) shared memory|unable to (mmap|write|allocate).*shared memory"
    r"|/dev/shm.*(No space left|ENOSPC)|(No space left|ENOSPC).*/dev/shm"
    r"|unable to \w+[^<]*</torch_\d",  # the names that torch gives its files in shared memory
    re.IGNORECASE,
)
_NOT_SHM = re.compile(r"too many open files|no such file|permission denied|cannot allocate memory", re.IGNORECASE)
"""Why a file in shared memory could not be used although there is room for it."""
_LATE = re.compile(
    r"Watchdog caught collective operation|NCCL operations have failed or timed out|collective operation timeout|nccl.{0,60}\btimed out\b"
    r"|Monitored ?Barrier|store[- ]based barrier|Timed out waiting \d+ ?ms for (recv|send)|Timed out in a collective|StragglerError"
    r"|wait timeout after|store->get\(.*(timed? ?out|timeout)|\bRead timeout \[|Application timeout caused pair closure"
    r"|\bSocket Timeout\b|client socket has timed out",  # of the store, at which the ranks meet
    re.IGNORECASE,
)
"""What torch, gloo and NCCL say of a collective that the others did not join."""
_PEER_GONE = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|closed by peer|peer closed|socket (closed|is closed)"
    r"|remote process (exited|has terminated)|remote error|application timeout caused pair closure"
    r"|recvvalue failed|sendbytes failed|recvbytes failed|failed to recv|distnetworkerror|diststoreerror"
    r"|nccl communicator was aborted|ncclremoteerror|ncclsystemerror|ncclinternalerror|could not connect|no route to host"
    r"|no error was reported by the peer"
    r"|gloo connectfullmesh failed|store.*(closed|gone|timed? ?out)|wait timeout after|timed out waiting \d+ ?ms for (recv|send)"
    r"|watchdog caught collective operation timeout"
)
"""In lower case, as the text that is searched: with IGNORECASE a log's end takes 0.6 ms instead of 0.03, and many ranks lose a peer at once."""
_RAISES = re.compile(r"(^|[:;]\s*)(raise|assert)\b")
_OF_COLLECTIVES = re.compile(r"^(RuntimeError|torch\.|(\w+\.)*(Dist\w*Error|StragglerError|RendezvousTimeoutError)$)")
"""torch raises from its collectives nothing else."""


def kind_of_words(exception: str, message: str) -> str | None:
    """Return the kind (`launcher.run.causes.CAUSES`) of an exception that the user's own code did not raise; None: no special one."""
    said, name = f"{exception}: {message}", exception.rpartition(".")[2]
    if _OUT_OF_CUDA.search(said):
        return "cuda_oom"
    if (fault := fault_of_gpu(said)) is not None:
        return fault[0]
    if name in ("ImportError", "ModuleNotFoundError"):
        return "import"
    if is_out_of_shm(said):
        return "shm"
    if _OUT_OF_DISK.search(said):
        return "disk_full"
    if _OF_COLLECTIVES.match(exception) and is_late_collective([said.replace("\n", " ")]):
        return "timeout"
    return "host_memory" if name.endswith("MemoryError") or _OUT_OF_MEMORY.search(said) else None


def fault_of_gpu(text: str) -> tuple[str, str] | None:
    """Return the kind, "cuda" (a kernel's fault) or "gpu" (a GPU has failed), and CUDA's words for it; None: neither."""
    for kind, fault in (("gpu", _FAULT_OF_GPU), ("cuda", _FAULT_OF_CUDA)):
        if found := fault.search(text):
            return kind, found[1] or found[0]
    return None


def is_late_collective(lines: Iterable[str]) -> bool:
    """Return whether one of the lines says that a collective timed out."""
    return any(_LATE.search(line) for line in lines)


def is_lost_peer(text: str) -> bool:
    """Return whether the words are torch's for another rank that is gone, or did not come."""
    return bool(_PEER_GONE.search(text.lower()))


def is_lost_collective(exception: str, message: str) -> bool:
    """Return whether the exception is one of torch's collectives and only says that another rank is gone, or did not come.

    Sockets of the user's own (an upload, a data server) raise the same words with other types.
    """
    return bool(_OF_COLLECTIVES.match(exception)) and is_lost_peer(f"{exception}: {message}")


def is_out_of_shm(text: str) -> bool:
    """Return whether it says that shared memory ran out: what a loader's worker leaves behind that SIGBUS killed."""
    return any(_OUT_OF_SHM.search(line) and not _NOT_SHM.search(line) for line in text.splitlines())


def raises(code: str) -> bool:
    """Return whether a line of code raises an exception itself: the words of this one are the author's own."""
    return bool(_RAISES.search(code.strip()))
