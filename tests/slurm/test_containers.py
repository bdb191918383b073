"""Facts about containers on a real SLURM, by Apptainer itself where it could be had (``.ci/apptainer``).

Elsewhere a stand-in takes its command line and starts the agent in a mount namespace without any of SLURM's commands. It
proves the words of the command line, and that a leader that cannot ask SLURM itself is answered through the batch script.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import contained
import pytest
from cluster import Cluster
from harness import Run, submit
from held import Held

from launcher.frozen import frozen

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


@frozen
class Runtime:
    """A folder with the command ``apptainer``, an image, and the arguments it needs here."""

    folder: Path
    image: Path
    args: list[str]

    @property
    def is_real(self) -> bool:
        """Whether it is Apptainer itself: the stand-in's image is empty."""
        return self.image.stat().st_size > 0


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    """Apptainer and an image without SLURM; Python and the libraries come from this machine."""
    room = tmp_path_factory.mktemp("image")
    command = contained.apptainer()
    if command is None:
        (room / "apptainer").write_text(STAND_IN)
        (room / "apptainer").chmod(0o755)
        (room / "lab.sif").touch()
        return Runtime(room, room / "lab.sif", [])
    return Runtime(Path(command).parent, *contained.build_image(command, room))


@pytest.fixture
def environment(cluster: Cluster, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`environment` of a job whose agents and workers are in the image."""
    cluster.cancel_all()
    monkeypatch.setitem(cluster.env, "PATH", f"{runtime.folder}:{cluster.env['PATH']}")
    monkeypatch.setitem(cluster.env, "HERE", str(tmp_path))
    return {"container": str(runtime.image), "container_args": runtime.args, "python": sys.executable}


@pytest.fixture
def patient(cluster: Cluster) -> None:
    """A leader that is told to end has a minute to ask through the courier why, also on a busy machine."""
    cluster.set(KillWait=60)


@pytest.fixture
def run(cluster: Cluster, runtime: Runtime, environment: dict[str, Any], tmp_path: Path) -> Run:
    """A run of two nodes in containers, with one checkpoint, going on."""
    one = submit(tmp_path, cluster.env, 2, environment=environment, params={"epochs": 16})
    one.wait_saved(1)
    one.wait_step(13)
    if runtime.is_real:
        contained.assert_inside(one)
    else:
        assert [str(one.paths.lib)] * 2 == (tmp_path / "inside").read_text().split()
        assert "" == (tmp_path / "found").read_text()
    return one


def test_a_preempted_run_comes_back_though_its_agents_have_no_scontrol(cluster: Cluster, run: Run) -> None:
    """The leader learns that it was preempted, saves and requeues through the batch script; no step is lost."""
    contained.preempted_and_back(cluster, run)


@pytest.mark.usefixtures("patient")
def test_a_cancelled_run_in_a_container_stays_cancelled(cluster: Cluster, run: Run) -> None:
    """scancel is told from a preemption inside a container too."""
    contained.stays_cancelled(cluster, run)


@pytest.mark.long
def test_a_killed_leader_in_a_container_is_mended_outside(run: Run) -> None:
    """kill -9 of the leader: the keeper, outside the container, starts another one inside."""
    contained.outlives_leader(run)


@pytest.mark.long
def test_a_hold_in_containers_runs_one_job_after_another(
    cluster: Cluster, runtime: Runtime, environment: dict[str, Any], tmp_path: Path
) -> None:
    """`hold` and `rerun` in containers; an agent killed between two reruns is started again in one."""
    if not runtime.is_real:
        pytest.skip("no Apptainer: `.ci/apptainer` fetches it")
    contained.hold_goes_on(Held(cluster, tmp_path, environment=environment))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_first_host_of_a_run_in_containers_dies_beside_a_spare(
    cluster: Cluster, environment: dict[str, Any], tmp_path: Path
) -> None:
    """The batch script's courier dies with it: the next host in line has one of its own, and leads."""
    one = submit(tmp_path, cluster.env, 2, environment=environment, resources={"spare_nodes": 1}, params={"epochs": 16})
    one.wait_saved(1)
    one.wait_step(13)
    contained.outlives_first_host(cluster, one)


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1], ids=["first host", "another host"])
def test_a_host_of_a_run_in_containers_dies(cluster: Cluster, run: Run, which: int) -> None:
    """Of the first one nobody inside can tell SLURM: it requeues itself a job that is submitted without --no-kill."""
    contained.outlives_host(cluster, run, which)
