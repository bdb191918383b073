"""Facts about containers on a real SLURM. Apptainer itself is not here: a stand-in takes its command line.

The stand-in starts the agent in a mount namespace without any of SLURM's commands, as in a container. It proves the words
of the command line, and that a leader that cannot ask SLURM itself is answered through the batch script; not Apptainer.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import Run, submit

STAND_IN = r"""#!/bin/bash
[ "$1" = exec ] || exit 97
shift
while [[ "$1" == --* ]]; do
  case "$1" in
    --bind) [ -e "$2" ] || exit 96; shift 2;;
    --pwd) dir=$2; shift 2;;
    --env) export "$2"; shift 2;;
    *) echo "apptainer: $1?" >&2; exit 98;;
  esac
done
[[ "$1" == *.sif ]] || exit 95
shift
trap - TERM USR2
exec unshare --mount /bin/bash -c '
  room=$(mktemp -d)
  mount -t tmpfs none "$room" && mkdir "$room/bin" "$room/real" && mount --bind /usr/bin "$room/real"
  cp -s "$room"/real/* "$room/bin/"
  rm "$room"/bin/{sacct,sbatch,scancel,scontrol,sinfo,squeue,srun}
  mount --bind "$room/bin" /usr/bin
  hash -r
  cd "$1" && shift
  command -v scontrol sbatch squeue >>"$HERE/found"
  echo "$PWD" >>"$HERE/inside"
  exec "$@"' container "$dir" "$@"
"""


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of two nodes in containers, with one checkpoint, going on."""
    cluster.cancel_all()
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apptainer").write_text(STAND_IN)
    (folder / "apptainer").chmod(0o755)
    monkeypatch.setitem(cluster.env, "PATH", f"{folder}:{cluster.env['PATH']}")
    monkeypatch.setitem(cluster.env, "HERE", str(tmp_path))
    environment = {"container": "/img/lab.sif", "python": sys.executable}
    one = submit(tmp_path, cluster.env, 2, environment=environment)
    one.wait_saved(1)
    one.wait_step(13)
    assert [str(one.paths.lib)] * 2 == (tmp_path / "inside").read_text().split()
    assert "" == (tmp_path / "found").read_text()
    return one


def test_a_preempted_run_comes_back_though_its_agents_have_no_scontrol(cluster: Cluster, run: Run) -> None:
    """The leader learns that it was preempted, saves and requeues through the batch script; no step is lost."""
    cluster.set(GraceTime=20)
    inflict.preempt(cluster, run.state()["nodes"])
    outcome = run.wait_end()
    run.wait_no_process()

    assert "completed" == outcome["state"], outcome
    assert "preempted" in {e["meaning"] for e in run.told("signal")}
    assert ["requeue"] == [e["how"] for e in run.told("requeued")]
    assert [0] == [e["lost_steps"] for e in run.told("stopped")]
    assert [] == list(run.paths.root.glob("courier.*"))


def test_a_cancelled_run_in_a_container_stays_cancelled(cluster: Cluster, run: Run) -> None:
    """scancel is told from a preemption inside a container too."""
    job = run.job_id
    cluster.run(["scancel", job])
    outcome = run.wait_end()
    run.wait_no_process()
    cluster.wait(lambda: cluster.job(job).get("JobState", "") in ("CANCELLED", ""), "the job's end")
    time.sleep(3)

    assert "cancelled" == outcome["state"], outcome
    assert cluster.job(job).get("JobState", "") in ("CANCELLED", "")
    assert 1 == len(run.told("attempt_started"))


@pytest.mark.long
def test_a_killed_leader_in_a_container_is_mended_outside(cluster: Cluster, run: Run) -> None:
    """kill -9 of the leader: the batch script's teardown, outside the container, requeues the run."""
    inflict.kill_agent(run, 0)
    outcome = run.wait_end()
    run.wait_no_process()

    assert "completed" == outcome["state"], outcome
    assert 2 == len(run.told("attempt_started"))
