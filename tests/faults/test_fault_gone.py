"""The run's folder is deleted or moved under a job on the real cluster: one sentence, a failed job, nothing left running."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from harness import ONE_HOST, Run, digest, submit

Undisturbed = Callable[[int], str]
PATIENCE_S = 4.0
"""Of this run's own copy of the launcher, in place of five minutes."""


def impatient(cluster: Cluster, tmp_path: Path, **job: Any) -> Run:
    """A run that waits only seconds for its folder; it has a checkpoint and goes on."""
    run = submit(tmp_path, cluster.env, 3, resources=ONE_HOST, slurm={"extra": {"hold": True}}, **job)
    module = run.paths.lib / "launcher" / "run" / "asking.py"
    text = module.read_text()
    assert "PATIENCE_S = 300.0" in text
    module.write_text(text.replace("PATIENCE_S = 300.0", f"PATIENCE_S = {PATIENCE_S}"))
    cluster.run(["scontrol", "release", run.job_id])
    run.wait_saved(1)
    run.wait_step(13)
    return run


def said(cluster: Cluster, tmp_path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """What a verb says on the login host."""
    env = {"LAUNCHER_RUNS_DIR": str(tmp_path / "runs"), "XDG_STATE_HOME": str(tmp_path / "state")}
    return cluster.run([sys.executable, "-m", "launcher", *words], env=env, check=False)


def failed(cluster: Cluster, job: str) -> str:
    """The job ended failed by its leader's word, and SLURM does not bring it back; its comment."""
    facts = cluster.wait_job(job, "FAILED", "COMPLETED", "REQUEUED")
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"], facts["Requeue"]) == ("FAILED", "66:0", "0", "0")
    shown = cluster.run(["scontrol", "show", "job", job]).stdout
    return re.findall(r"^ +Comment=(.*)$", shown, re.MULTILINE)[0].strip()


def test_a_folder_that_is_deleted_under_a_job(clean: Cluster, tmp_path: Path) -> None:
    """FAILED by 66; the job's comment and every verb have the sentence; no process is left."""
    run = impatient(clean, tmp_path, params={"step_s": 0.1})
    job, root = run.job_id, run.paths.root

    while root.exists():
        shutil.rmtree(root, ignore_errors=True)  # the leader writes meanwhile
    comment = failed(clean, job)
    run.wait_no_process()

    sentence = f"The run's folder {root} is gone: it was deleted, or moved to another file system"
    assert comment.startswith(f"launcher: {sentence}")
    told = said(clean, tmp_path, "why", root.name)
    assert told.returncode == 7
    assert sentence in told.stderr
    assert told.stderr.endswith(f"SLURM job {job}: FAILED, exit code 66:0.\n")
    assert not root.exists()


def test_a_folder_that_is_moved_under_a_job(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The same with the new place, where the log has the sentence, too; `resubmit` goes on there to the undisturbed end."""
    run = impatient(clean, tmp_path, params={"step_s": 0.1})
    job, root, new = run.job_id, run.paths.root, tmp_path / "kept" / "moved"
    new.parent.mkdir()
    root.rename(new)
    comment = failed(clean, job)
    run.wait_no_process()

    assert f"was moved to {new}" in comment
    moved = Run(new)
    assert moved.outcome()["reason"] in comment
    assert f"was moved to {new}" in moved.agent_logs()
    told = said(clean, tmp_path, "why", root.name)
    assert (told.returncode, f"was moved to {new}." in told.stdout) == (0, True), told

    done = said(clean, tmp_path, "resubmit", new, "slurm.extra.hold=false")
    assert done.returncode == 0, done.stderr
    outcome = moved.wait_end()
    assert outcome["state"] == "completed", outcome
    assert digest(moved) == undisturbed(3)
    moved.wait_no_process()
    assert not root.exists()


@pytest.mark.long
def test_a_pending_job_whose_folder_is_deleted(clean: Cluster, tmp_path: Path) -> None:
    """It fails at once; `why` says what became of the folder and of the job.

    SLURM cannot open its log, and since 23.02 makes a folder for it: then no task finds the run.
    """
    run = submit(tmp_path, clean.env, 3, resources=ONE_HOST, slurm={"extra": {"hold": True}})
    job, root = run.job_id, run.paths.root
    shutil.rmtree(root)
    clean.run(["scontrol", "release", job])

    code = "72:0" if clean.version >= (23, 2) else "0:53"
    assert clean.wait_job(job, "FAILED", "COMPLETED")["ExitCode"] == code
    told = said(clean, tmp_path, "why", root.name)
    assert f"the folder of {root.name}, {root}, is not there: it was deleted or moved" in told.stderr
    assert told.stderr.endswith(f"SLURM job {job}: FAILED, exit code {code}.\n")


@pytest.mark.long
def test_a_leader_that_cannot_begin_is_told_by_its_sentence(clean: Cluster, tmp_path: Path) -> None:
    """Before its attempt has begun: the outcome and `why` have the leader's words, not its death."""
    run = submit(
        tmp_path, clean.env, 3, resources=ONE_HOST, slurm={"extra": {"hold": True}}, restart={"requeue": False}
    )
    run.paths.checkpoints.rmdir()
    run.paths.checkpoints.touch()
    clean.run(["scontrol", "release", run.job_id])

    sentence = f"The leader could not begin: The run directory {run.paths.root} does not answer: [Errno 17] File exists"
    assert run.wait_end()["reason"].startswith(sentence)
    told = said(clean, tmp_path, "why", run.paths.id)
    assert told.stdout.startswith(sentence)
    run.wait_no_process()
