"""Facts about containers on a real SLURM with pyxis and enroot, where `make pyxis` has built them.

A cluster gets them as a site would install them: the plugin in plugstack.conf, enroot on the PATH of the hosts' daemons. The
four hosts share one disk, and pyxis names containers JOB.STEP: so each host has folders of its own for them.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contained
import inflict
import pytest
from cluster import Cluster
from harness import Run, submit, verb
from held import Held

from launcher.frozen import frozen

BUILT = contained.ROOT / f".pyxis-{platform.freedesktop_os_release().get('VERSION_CODENAME', '')}"

pytestmark = pytest.mark.skipif(not (BUILT / ".stamp").exists(), reason="no pyxis and enroot: `make pyxis` builds them")

ENROOT = """#!/bin/sh
here={room}/$(hostname)
export ENROOT_SYSCONF_PATH={room}/enroot ENROOT_DATA_PATH=$here/data ENROOT_RUNTIME_PATH=$here/run ENROOT_CACHE_PATH=$here/cache
exec {built}/bin/enroot "$@"
"""

SLOW = """#!/bin/sh
[ -e {slow} ] || exit 0
echo $$ >>{slow}
exec sleep 30
"""

HELD: dict[str, Any] = {"slurm": {"extra": {"hold": True}}, "restart": {"max_restarts": 0}}
"""For a job that waits until it is released, and that no failure is forgiven."""


@frozen
class Site:
    """Where the hosts' enroot keeps its things: an image, its settings, and a folder for each host."""

    room: Path
    image: Path


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster with pyxis; afterwards it is as it was."""
    room = tmp_path_factory.mktemp("site")
    contained.fill_image(room / "box")
    words = ["mksquashfs", room / "box", room / "lab.sqsh", "-all-root", "-noappend", "-quiet", "-no-progress"]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    shutil.copytree(BUILT / "etc/enroot", room / "enroot")
    programs, plugins = cluster.directory / "programs", cluster.directory / "etc/plugstack.conf"
    programs.mkdir()
    for program in (BUILT / "bin").glob("enroot-*"):
        (programs / program.name).symlink_to(program)
    (programs / "enroot").write_text(ENROOT.format(room=room, built=BUILT))
    (programs / "enroot").chmod(0o755)
    plugins.write_text(f"required {BUILT}/spank_pyxis.so runtime_path={room}/pyxis\n")
    cluster.restart(*cluster.hosts)
    yield Site(room, room / "lab.sqsh")
    cluster.cancel_all()
    plugins.unlink()
    shutil.rmtree(programs)
    cluster.restart(*cluster.hosts)


def start(cluster: Cluster, site: Site, folder: Path, **job: Any) -> Run:
    """Submit a run of two nodes in containers."""
    cluster.cancel_all()
    environment = {**inside(site), **job.pop("environment", {})}
    return submit(folder, cluster.env, 2, environment=environment, **job)


def inside(site: Site) -> dict[str, Any]:
    """`environment` of a job whose agents and workers are in the image."""
    mounts = ",".join(f"{path}:{path}" for path in contained.seen())
    return {"container": str(site.image), "container_args": [f"--container-mounts={mounts}"], "python": sys.executable}


@pytest.fixture
def run(cluster: Cluster, site: Site, tmp_path: Path) -> Run:
    """A run of two nodes in containers, with one checkpoint, going on."""
    one = start(cluster, site, tmp_path, params={"epochs": 16})
    one.wait_saved(1)
    one.wait_step(13)
    contained.assert_inside(one)
    return one


def test_a_preempted_run_in_pyxis_loses_no_step(cluster: Cluster, run: Run) -> None:
    """Preempted, a run in pyxis's containers saves, is requeued through the batch script and goes on where it stopped."""
    contained.preempted_and_back(cluster, run)


@pytest.mark.long
def test_a_cancelled_run_in_pyxis_stays_cancelled(cluster: Cluster, run: Run) -> None:
    """scancel is told from a preemption inside pyxis's containers too."""
    contained.stays_cancelled(cluster, run)


@pytest.mark.long
def test_a_killed_leader_in_pyxis_is_started_again(run: Run) -> None:
    """kill -9 of the leader in its container: the keeper, outside, starts another one in a container of its own."""
    contained.outlives_leader(run)


@pytest.mark.long
def test_a_hold_in_pyxis_runs_one_job_after_another(cluster: Cluster, site: Site, tmp_path: Path) -> None:
    """`hold` and `rerun` in pyxis's containers; an agent killed between two reruns is started again in one."""
    contained.hold_goes_on(Held(cluster, tmp_path, environment=inside(site)))


@pytest.mark.long
def test_the_first_host_of_a_run_in_pyxis_dies(cluster: Cluster, run: Run) -> None:
    """The first host's death, which nobody inside can tell SLURM, ends in a requeue by SLURM itself."""
    contained.outlives_host(cluster, run, 0)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_first_host_of_a_run_in_pyxis_dies_beside_a_spare(cluster: Cluster, site: Site, tmp_path: Path) -> None:
    """The next host in line has a courier outside the container, and leads."""
    one = start(cluster, site, tmp_path, params={"epochs": 16}, resources={"spare_nodes": 1})
    one.wait_saved(1)
    one.wait_step(13)
    contained.outlives_first_host(cluster, one)


def test_an_image_that_does_not_exist_is_named(cluster: Cluster, site: Site, tmp_path: Path) -> None:
    """The history and `launcher why` say in enroot's words which image file is gone since the job was submitted."""
    image = tmp_path / "gone.sqsh"
    shutil.copy(site.image, image)
    run = start(cluster, site, tmp_path, environment={"container": str(image)}, **HELD)
    image.unlink()
    cluster.run(["scontrol", "release", run.job_id])
    outcome = run.wait_end()

    said = f"No such file or directory: {image}"
    assert "failed" == outcome["state"], outcome
    assert said in run.told("ended")[0]["reason"], run.history()
    assert said in " ".join(verb(cluster, run, "why").split())


def test_a_container_left_behind_is_replaced(cluster: Cluster, site: Site, tmp_path: Path) -> None:
    """A container of the step's own name, left on each host, fails no attempt."""
    run = start(cluster, site, tmp_path, **HELD)
    left = [site.room / host / "data" / f"pyxis_{run.job_id}.0" / "left" for host in cluster.hosts]
    for mark in left:
        mark.mkdir(parents=True)
    cluster.run(["scontrol", "release", run.job_id])
    outcome = run.wait_end()
    run.wait_no_process()

    assert "completed" == outcome["state"], (outcome, run.agent_logs())
    assert [0] == [e["restart_count"] for e in run.told("attempt_started")]
    assert [] == run.told("requeued")
    assert 2 == len([mark for mark in left if not mark.exists()])


@pytest.mark.long
def test_a_preemption_while_the_container_is_made_charges_nothing(cluster: Cluster, site: Site, tmp_path: Path) -> None:
    """Preempted before its agents could begin, a run that may not restart at all is requeued and completes."""
    slow, hook = tmp_path / "slow", site.room / "enroot/hooks.d/20-slow.sh"
    slow.touch()
    hook.write_text(SLOW.format(slow=slow))
    hook.chmod(0o755)
    cluster.set(GraceTime=20)
    try:
        nodes = ["node1", "node2"]
        run = start(cluster, site, tmp_path, restart={"max_restarts": 0}, slurm={"nodelist": ",".join(nodes)})
        run.wait("both containers in the making", lambda: 2 == len(slow.read_text().split()))
        slow.unlink()
        inflict.preempt(cluster, nodes)
        outcome = run.wait_end()
        run.wait_no_process()
    finally:
        hook.unlink()

    assert "completed" == outcome["state"], (outcome, run.agent_logs())
    assert ["preempted"] == [e["evidence"] for e in run.told("decision", action="requeue")]
    assert ["requeue"] == [e["how"] for e in run.told("requeued")]
    assert 1 == len(run.told("attempt_started"))
