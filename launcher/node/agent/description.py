"""Describes a node once, for the agent's ``hello``. It imports no torch: its version is read from files."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from launcher.node.agent.gpus import Gpus
from launcher.node.wire.messages import NodeFacts
from launcher.run.asking import exists, patiently
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.slurm.probe import torch_versions

_NVML_S = 15.0
"""The preflight, which comes after it, says the same of a driver that is stuck, and the node is not used."""

_MOST_ASKED = 4
_HOST_ONLY = ("docker", "br-", "virbr", "veth", "cni", "podman", "lxc", "lxdbr", "tun", "tap", "idrac", "usb")


def node_facts(
    spec: RunSpec, paths: RunPaths, *, host: str, local_address: str, others: Sequence[str] = ()
) -> NodeFacts:
    """Describe this node. It blocks (NVML, DNS, the run directory), so agents call it in a thread.

    ``local_address`` is this end of the connection to the leader; ``others`` are the names of the other nodes.
    """
    address = node_address(spec, host, local_address, others)
    gpus = gpu_facts() if spec.gpus_per_node else {"gpus": 0}
    asked: dict[str, Any] = {**gpus, **torch_versions(), **disk(paths.root)}
    return NodeFacts(
        cpus=len(os.sched_getaffinity(0)),
        mem_bytes=int(psutil.virtual_memory().total),
        python=platform.python_version(),
        kernel=platform.release(),
        address=address,
        master_addr=master_address(spec, host, address),
        sees_run_dir=_sees(paths),
        warnings=_warnings(lonely=spec.batch == "slurm" and len(others) > 0 and _is_loopback(address)),
        **asked,
    )


def gpu_facts(*, within_s: float = _NVML_S) -> dict[str, Any]:
    """Ask NVML about the GPUs, in a thread that nothing waits for: a driver that is stuck never answers."""
    found: dict[str, Any] = {}

    def ask() -> None:
        gpus = Gpus()
        found.update(gpus=len(gpus), gpu_problem=gpus.problem or None, **gpus.describe())

    thread = threading.Thread(target=ask, name="gpu-facts", daemon=True)
    thread.start()
    thread.join(within_s)
    return found or {"gpus": 0, "gpu_problem": f"NVML did not answer within {within_s:g} s"}


def _warnings(*, lonely: bool) -> list[str]:
    found = []
    if lonely:
        found.append(
            "this node knows no address of its own but 127.0.0.1: set distributed.interface to the network of the nodes"
        )
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


def node_address(spec: RunSpec, host: str, local_address: str, others: Sequence[str] = ()) -> str:
    """Return the address at which other nodes reach this one.

    It is that of the named interface, of the way to the leader, of the host's name, or of the way to one of ``others``.
    """
    if spec.interface and (named := _of_interface(spec.interface.removeprefix("="))):
        return named
    if spec.batch == "local":
        return "127.0.0.1"
    if not _is_loopback(local_address):
        return local_address.removeprefix("::ffff:")
    resolved = resolve_host(host)
    if not _is_loopback(resolved):
        return resolved
    ways = (_way_to(other) for other in others[:_MOST_ASKED])
    return next(filter(None, ways), None) or _of_some_interface() or "127.0.0.1"


def _way_to(name: str) -> str | None:
    """Return the address with which this node would connect to another one, as its routes say; nothing is sent."""
    to = resolve_host(name)
    if _is_loopback(to):
        return None
    try:
        with socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((to, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _of_some_interface() -> str | None:
    """Return the address of an interface that is up, IPv4 before IPv6; not one of this host's own (of containers, of its management)."""
    up = {name for name, one in psutil.net_if_stats().items() if one.isup and not name.startswith(_HOST_ONLY)}
    entries = [entry for name, each in psutil.net_if_addrs().items() if name in up for entry in each]
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in entries:
            address = str(entry.address).partition("%")[0]
            if entry.family == family and not _is_loopback(address) and not ipaddress.ip_address(address).is_link_local:
                return address
    return None


def master_address(spec: RunSpec, host: str, address: str) -> str:
    """Return MASTER_ADDR for rounds whose first node this is: SLURM's name for it, if that resolves to it."""
    if spec.batch == "local" or spec.interface:
        return address
    return host if not _is_loopback(resolve_host(host)) else address


def gloo_interface(spec: RunSpec, others: Sequence[str] = ()) -> str | None:
    """Return the interface that gloo must use; None when it finds one itself, by resolving this host's name.

    Debian writes 127.0.1.1 for it into /etc/hosts: then no other node can reach what gloo binds.
    """
    if spec.interface and not spec.interface.startswith("^"):  # that excludes some
        return None
    if spec.batch == "local":
        return "lo"  # nobody else shall reach it
    if not _is_loopback(resolve_host(socket.gethostname())):
        return None
    address = node_address(spec, socket.gethostname(), "", others)
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None
