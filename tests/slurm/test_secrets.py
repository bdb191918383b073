"""Facts about secrets on a real SLURM: passed by name, they are in one file of the run, 0600, and nowhere else."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import inflict
import psutil
import pytest
from cluster import Cluster
from harness import PATIENCE_S, Run, seldom, submit

KEY = "c0ffee" + "4f" * 17
TOKEN = "t0k3n-of-the-hook-9471"
PASSWORD = "p4ssw0rd-of-the-server-5526"
SECRETS = (KEY, TOKEN, PASSWORD)


def holders(folder: Path) -> set[str]:
    """Files below ``folder`` that hold any of the secrets; files and folders may come and go meanwhile."""
    found = set()
    for above, _, names in os.walk(folder):
        for path in (Path(above, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
                if any(secret.encode() in data for secret in SECRETS):
                    found.add(str(path.relative_to(folder)))
    return found


def command_lines() -> str:
    """Every process's arguments on every host (they share one process table here)."""
    out = []
    for process in psutil.process_iter():
        try:
            out += process.cmdline()
        except psutil.Error:
            continue
    return "\n".join(out)


@pytest.mark.parametrize("share", seldom(["none", "group"], "none"))
def test_secrets_are_nowhere_but_in_their_file(cluster: Cluster, tmp_path: Path, share: str) -> None:
    """A key, a hook's token and a server's password, all of them failing loudly, through a whole life with a requeue.

    Looked for in every file of the run and of SLURM's own state, in ``scontrol show job``, in every process's arguments
    all the while, and in what status, why, logs and report say.
    """
    # Not in ``cluster.env``: the job that preempts would be submitted with them, and SLURM keeps what sbatch's caller had.
    user = {
        **cluster.env,
        "WANDB_API_KEY": KEY,
        "WANDB_MODE": "offline",
        "HOOK": f"json://ann:{TOKEN}@127.0.0.1:9/{TOKEN}",
        "MLFLOW_TRACKING_URI": f"http://ann:{PASSWORD}@127.0.0.1:9",
    }
    job = {
        "environment": {"pass": ["WANDB_API_KEY", "MLFLOW_TRACKING_URI"]},
        "notify": {"urls": ["HOOK"], "on": ["started", "preempted", "completed"]},
        "trackers": {"mlflow": {}, "wandb": {}, "tensorboard": True},
        "share": share,
    }
    run: Run = submit(tmp_path, user, 2, **job)
    shown = [cluster.run(["scontrol", "show", "job", run.job_id]).stdout]
    run.wait_saved(1)
    seen, kept, held = [command_lines()], holders(cluster.directory), holders(run.paths.root)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (run.paths.root, run.paths.passed, run.paths.secret)}
    inflict.preempt(cluster, run.state()["nodes"])
    end = time.monotonic() + PATIENCE_S
    while run.outcome() is None or run.processes():
        assert time.monotonic() < end, run.agent_logs()
        seen.append(command_lines())
        time.sleep(0.2)
    shown.append(cluster.run(["scontrol", "show", "job", run.job_id], check=False).stdout)
    env = {**os.environ, **user, "XDG_STATE_HOME": str(tmp_path / "state")}
    for words in (["status", "--json"], ["why", "--json"], ["logs"], ["report", "-o", str(tmp_path / "page.html")]):
        verb, *rest = words
        done = subprocess.run(
            [sys.executable, "-m", "launcher", verb, run.paths.id, *rest], env=env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        shown += [done.stdout, done.stderr]
    warned = " ".join(e["text"] for e in run.told("warning"))
    left = holders(run.paths.root)

    assert "completed" == (run.outcome() or {})["state"]
    assert all(word in warned for word in ("tracker mlflow", "a notification ")), warned
    assert ({"passed.json"}, set()) == (held, left)
    assert set() == kept | holders(cluster.directory)
    assert not [s for s in SECRETS if s in "\n".join(shown)]
    assert not [s for s in SECRETS if s in "\n".join(seen)]
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert not [s for s in SECRETS if s in (tmp_path / "page.html").read_text()]
    assert {run.paths.id: 0o750 if share == "group" else 0o700, "passed.json": 0o600, "secret": 0o600} == modes
    cluster.cancel_all()
