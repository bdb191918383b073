"""`launcher doctor` on the cluster: what it says of this SLURM, and its tiny job."""

from __future__ import annotations

import re
from pathlib import Path

from cluster import Cluster

from launcher.slurm.versions import differences


def test_the_verb_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """It names the version and all that is true of it, ends 0, its probe runs, and the profile is written once."""
    env = {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "HOME": str(tmp_path),
    }
    verb = ["launcher", "doctor", "--probe", "--write-site"]
    first = cluster.run(verb, env=env, cwd=tmp_path, timeout=400)
    second = cluster.run([*verb[:2], "--write-site"], env=env, cwd=tmp_path, check=False)
    wrong = cluster.run(["launcher", "doctor", "--partition", "nope", "--json"], env=env, cwd=tmp_path, check=False)
    said = " ".join(first.stdout.split())

    version = re.match(r"SLURM ([\d.]+) on launcher: jobs will work", first.stdout)
    assert version, first.stdout
    assert tuple(map(int, version[1].split("."))) == cluster.version
    for difference in differences(cluster.version):
        assert difference.text in said
    assert re.search(r"probe +node\d ran a job within", first.stdout)
    assert (tmp_path / "config/launcher/site.yaml").exists()
    assert second.returncode == 16
    assert wrong.returncode == 5
    assert '"works": false' in wrong.stdout
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == []


def test_a_run_directory_that_nodes_do_not_see_is_found_out(cluster: Cluster, tmp_path: Path) -> None:
    """The probe tells a directory that exists on the login host alone."""
    hidden = tmp_path / "private"
    hidden.mkdir()
    script = f"mount -t tmpfs none {hidden} && exec launcher doctor --probe"
    done = cluster.run(
        ["unshare", "--mount", "sh", "-c", script],
        env={"LAUNCHER_RUNS_DIR": str(hidden / "runs"), "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)},
        check=False, timeout=400,
    )  # fmt: skip

    assert done.returncode == 5
    assert "a compute node does not see" in " ".join(done.stdout.split())
