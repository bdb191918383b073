"""Describes a node once, for the agent's ``hello``. It imports no torch: its version is read from files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
from pathlib import Path
from typing import Any

import psutil

from launcher.node.agent.gpus import Gpus
from launcher.node.wire.messages import NodeFacts
from launcher.run.asking import exists, patiently
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec


def node_facts(spec: RunSpec, paths: RunPaths, *, host: str, local_address: str) -> NodeFacts:
    """Describe this node. It blocks (NVML, DNS, the run directory), so agents call it in a thread.

    ``local_address`` is this end of the connection to the leader.
    """
    gpus = Gpus()
    address = node_address(spec, host, local_address)
    asked: dict[str, Any] = {**gpus.describe(), **torch_versions(), **disk(paths.root)}
    return NodeFacts(
        gpus=len(gpus),
        cpus=len(os.sched_getaffinity(0)),
        mem_bytes=int(psutil.virtual_memory().total),
        python=platform.python_version(),
        kernel=platform.release(),
        address=address,
        master_addr=master_address(spec, host, address),
        sees_run_dir=_sees(paths),
        gpu_problem=(gpus.problem or None) if spec.gpus_per_node else None,
        warnings=_warnings(),
        **asked,
    )


def _warnings() -> list[str]:
    found = []
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        found.append("TORCH_DISTRIBUTED_DEBUG=DETAIL is set: DDP on gloo crashes with it")
    if not_staged := os.environ.get("LAUNCHER_NOT_STAGED"):  # stage.sh
        found.append(not_staged)
    return found


def _sees(paths: RunPaths) -> bool:
    """Return whether this node can use the run directory, asking patiently: a node that says no is out for the whole attempt."""
    try:
        found = patiently(lambda: exists(paths.spec, paths.root), paths.root)
    except OSError:
        return False
    return found and os.access(paths.root, os.R_OK | os.W_OK | os.X_OK)


def disk(root: Path) -> dict[str, int | None]:
    """Return the free space and inodes of the run directory's file system."""
    try:
        found = os.statvfs(root)
    except OSError:
        return {"free_bytes": None, "free_inodes": None}
    # file systems without a fixed number of inodes (btrfs, some parallel ones) say 0 of 0
    return {
        "free_bytes": found.f_bavail * found.f_frsize,
        "free_inodes": found.f_favail if found.f_files else None,
    }


def torch_versions() -> dict[str, str | None]:
    """Read the versions of torch, its CUDA and NCCL's package (the one for that CUDA first) from files."""
    versions: dict[str, str | None] = {"torch": None, "cuda": None, "nccl": None}
    try:
        versions["torch"] = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return versions
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        try:
            text = Path(spec.origin).with_name("version.py").read_text()
        except OSError:
            text = ""
        if found := re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE):
            versions["cuda"] = found.group(1)
    for major in sorted(("13", "12", "11"), key=lambda m: m != str(versions["cuda"]).split(".")[0]):
        try:
            versions["nccl"] = importlib.metadata.version(f"nvidia-nccl-cu{major}")
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


# --- addresses ---


def resolve_host(name: str) -> str:
    """Return the address that a name resolves to here; "" when it does not."""
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError, IndexError):
        return ""


def _is_loopback(address: str) -> bool:
    return address in ("", "::1") or address.removeprefix("::ffff:").startswith("127.")


def _of_interface(name: str) -> str | None:
    found = {entry.family: str(entry.address) for entry in reversed(psutil.net_if_addrs().get(name, []))}
    return found.get(socket.AF_INET) or found.get(socket.AF_INET6)


def node_address(spec: RunSpec, host: str, local_address: str) -> str:
    """Return the address at which other nodes reach this one: by the named interface, the way to the leader or the host's name."""
    if spec.interface and (named := _of_interface(spec.interface)):
        return named
    if spec.batch == "local":
        return "127.0.0.1"
    if not _is_loopback(local_address):
        return local_address.removeprefix("::ffff:")
    resolved = resolve_host(host)
    if not _is_loopback(resolved):
        return resolved
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == socket.AF_INET and not _is_loopback(entry.address) and not name.startswith("docker"):
                return str(entry.address)
    return "127.0.0.1"


def master_address(spec: RunSpec, host: str, address: str) -> str:
    """Return MASTER_ADDR for rounds whose first node this is: SLURM's name for it, if that resolves to it."""
    if spec.batch == "local" or spec.interface:
        return address
    return host if not _is_loopback(resolve_host(host)) else address


def gloo_interface(spec: RunSpec) -> str | None:
    """Return the interface that gloo must use; None when it finds one itself, by resolving this host's name.

    Debian writes 127.0.1.1 for it into /etc/hosts: then no other node can reach what gloo binds.
    """
    if spec.interface:
        return None
    if spec.batch == "local":
        return "lo"  # nobody else shall reach it
    if not _is_loopback(resolve_host(socket.gethostname())):
        return None
    address = node_address(spec, socket.gethostname(), "")
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None
