"""Build a cluster in its directory, write its configuration, and sweep it away."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys

import conf
import daemons
import network
import release
from layout import GPUS, HOSTS, ClusterError, Layout, remove_tree, sh, write_whole

# In the cluster's directory; its mark comes last, so that a `down` that was interrupted can be called again.
_MADE = (
    "etc", "log", "state", "spool", "dev", "bin", "programs", "mysql",
    "munge.seed", "settings.new", "settings.json", "cluster.new", "cluster.json",
)  # fmt: skip


def start_anew(layout: Layout) -> None:
    """Build it, and once more where it did not come up: of some hundred starts one waited for a slurmdbd in vain.

    Whatever was here is swept away first: half of an old cluster is of no use. Nothing runs on where this fails; the logs stay.
    """
    sweep(layout)
    try:
        _build(layout)
    except ClusterError as error:
        said = [f"{name}: {text}" for name in ("slurmdbd", "slurmctld") if (text := daemons.last_words(layout, name))]
        print("\n".join([f"cluster: {error}; once more from the start", *said]), file=sys.stderr)
        sweep(layout)
        _build(layout)


def _build(layout: Layout) -> None:
    layout.root.mkdir(parents=True, exist_ok=True)
    layout.write_facts(release=release.own())  # from here on `down` knows that this directory is ours
    for name in ("etc", "log", "state", "spool", "dev"):
        (layout.root / name).mkdir(exist_ok=True)
    layout.run.mkdir(exist_ok=True)
    layout.run.chmod(0o755)  # whatever the umask: MariaDB runs as another user
    layout.storage_password.touch(0o600)
    layout.storage_password.write_text(secrets.token_hex(16))
    network.build(layout)
    write_conf(layout, {})
    for i in range(GPUS):
        os.mknod(layout.root / "dev" / f"fakegpu{i}", 0o20666, os.makedev(1, 3))
    daemons.start_munged(layout)
    daemons.start_mariadb(layout)
    daemons.start_slurmdbd(layout)
    daemons.start_slurmctld(layout)
    for host in HOSTS:
        (layout.root / "spool" / host).mkdir(exist_ok=True)
        daemons.start_slurmd(layout, host)
    release.write_commands(layout.bin)
    daemons.wait_ready(layout, idle=True)


def write_conf(layout: Layout, settings: dict[str, str]) -> None:
    """slurm.conf and its kin, with what `set` changes."""
    layout.etc.mkdir(exist_ok=True)
    for name, text in texts(layout, settings).items():
        path = layout.etc / name
        if path.exists() and path.read_text() == text:
            continue  # `hosts` is bind-mounted: an unchanged file must stay the same file
        write_whole(path, text, 0o600 if name == "slurmdbd.conf" else 0o644)


def texts(layout: Layout, settings: dict[str, str]) -> dict[str, str]:
    """Their texts by name."""
    return {
        "slurm.conf": conf.slurm_conf(layout, {**release.settings(), **settings}, version()),
        "gres.conf": conf.gres_conf(layout),
        "cgroup.conf": conf.cgroup_conf(version()),
        "hosts": conf.hosts_file(layout),
        "slurmdbd.conf": conf.slurmdbd_conf(layout),
    }


def version() -> tuple[int, ...]:
    """SLURM's version, as (22, 5, 8)."""
    return tuple(int(n) for n in re.findall(r"\d+", sh("slurmctld", "-V"))[:3])


def sweep(layout: Layout) -> None:
    """End and remove what the cluster has; raises ClusterError where the directory is none of its."""
    # cluster.new alone: an `up` was killed before it had made its mark
    if layout.root.exists() and {*os.listdir(layout.root)} - {"cluster.new"} and not layout.is_ours():
        raise ClusterError(f"{layout.root} is not a cluster's directory and not empty")
    network.destroy(layout)
    remove_tree(layout.run)
    for name in _MADE:
        remove_tree(layout.root / name)
    # In a release's system it is mounted there, and stays; so does what others have put there.
    with contextlib.suppress(OSError):
        layout.root.rmdir()
