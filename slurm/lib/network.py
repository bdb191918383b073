"""Hosts as network namespaces, joined by a bridge inside the head's own: no rule of the machine's firewall applies."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from layout import HEAD, HOSTS, ClusterError, Layout, claim_subnet, sh


def build(layout: Layout) -> None:
    """Namespaces, bridge and cables; claims the subnet on the way."""
    head = layout.netns(HEAD)
    for host in (HEAD, *HOSTS):
        sh("ip", "netns", "add", layout.netns(host))
        sh("ip", "-n", layout.netns(host), "link", "set", "lo", "up")
    claim_subnet(layout)
    sh("ip", "-n", head, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
    sh("ip", "-n", head, "addr", "add", f"{layout.address(HEAD)}/24", "dev", "br0")
    sh("ip", "-n", head, "link", "set", "br0", "up")
    sh("ip", "-n", head, "link", "set", "uplink", "master", "br0", "up")
    for host in HOSTS:
        ns, port = layout.netns(host), layout.bridge_port(host)
        sh("ip", "-n", head, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns)
        sh("ip", "-n", head, "link", "set", port, "master", "br0", "up")
        sh("ip", "-n", ns, "addr", "add", f"{layout.address(host)}/24", "dev", "eth0")
        sh("ip", "-n", ns, "link", "set", "eth0", "up")
        # Another network than the hosts' own is unreachable at once, not after a time-out.


def plug(layout: Layout, host: str, *, in_: bool) -> None:
    """Plug a host's cable in, or pull it at the switch: packets vanish, as they do in life."""
    sh("ip", "-n", layout.netns(HEAD), "link", "set", layout.bridge_port(host), "up" if in_ else "down")


def is_plugged(layout: Layout, host: str) -> bool:
    """Whether a host's cable is in."""
    out = sh("ip", "-n", layout.netns(HEAD), "-o", "link", "show", layout.bridge_port(host), check=False)
    return "state UP" in out


def namespace_names(layout: Layout) -> list[str]:
    """The cluster's namespaces that exist, half-made ones included."""
    prefix = layout.netns("")
    with contextlib.suppress(OSError):
        return sorted(n for n in os.listdir("/run/netns") if n.startswith(prefix))
    return []


def pids(names: list[str]) -> list[int]:
    """Every process inside the named network namespaces."""
    inodes = set()
    for name in names:
        with contextlib.suppress(OSError):
            st = os.stat(f"/run/netns/{name}")
            inodes.add((st.st_dev, st.st_ino))
    out = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                st = os.stat(f"/proc/{entry}/ns/net")
                if (st.st_dev, st.st_ino) in inodes:
                    out.append(int(entry))
    return out


def kill_all(names: list[str], limit_s: float = 30) -> None:
    """SIGKILL every process of the named namespaces until none is left (they may fork meanwhile)."""
    end = time.monotonic() + limit_s
    while left := [p for p in pids(names) if not _is_zombie(p)]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise ClusterError(f"processes that SIGKILL does not end: {left}")
        time.sleep(0.05)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def destroy(layout: Layout) -> None:
    """Kill what runs in the cluster's namespaces and remove them with bridge and cables."""
    names = namespace_names(layout)
    kill_all(names)
    for name in names:
        sh("ip", "netns", "del", name, check=False)
        leftover = Path("/run/netns") / name
        if leftover.exists():  # a file without a namespace: `ip netns add` was killed half-way
            leftover.unlink()
    if Path(f"/sys/class/net/{layout.root_link}").exists():
        sh("ip", "link", "del", layout.root_link, check=False)
