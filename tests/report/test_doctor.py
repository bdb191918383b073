"""The doctor's words for nine sites, and what makes jobs not work."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from cluster import Cluster

from launcher.report.doctor import Facts, Place, Saves, examine, render
from launcher.report.profile import site_profile
from launcher.slurm.probe import Look, ProbeResult, parse_look
from launcher.slurm.site import Presence, Site, SiteTexts, parse_site

HERE = Path(__file__).parent
SITES = HERE.parent / "slurm" / "sites"
GOLDEN = HERE / "doctor"
READY = Presence("ready", "sbatch is /usr/bin/sbatch.")
GPU = Look(host="login", python="3.11.7", torch="2.13.0+cu126", cuda="12.6", nccl="2.27.3")
CPU = Look(host="login", python="3.11.7", torch="2.13.0+cpu")
SHARED = Place(shown="~/runs", free_bytes=310 * 10**9, filesystem="nfs4")


def site(name: str) -> Site:
    """A recorded site."""
    parts = re.split(r"^### \w+\n", (SITES / f"{name}.txt").read_text(), flags=re.MULTILINE)[1:]
    return parse_site(SiteTexts(*parts))


def facts(name: str, **changes: object) -> Facts:
    """A user's situation at a recorded site."""
    usual = Facts(
        presence=READY, site=site(name), python="~/envs/ml/bin/python", look=GPU, place=SHARED,
        saves=Saves(count=12, typical_s=6.0, worst_s=9.0),
    )  # fmt: skip
    return dataclasses.replace(usual, **changes)


NODE = dataclasses.replace(GPU, host="h001", driver="560.35.03", driver_cuda="12.6")
OLD = dataclasses.replace(GPU, host="g07", driver="470.57", driver_cuda="11.4")
CASES = {
    "debian": facts("debian-22.05", look=CPU, saves=None),
    "debian-slow-saves": facts("debian-22.05", saves=Saves(count=3, typical_s=31.0, worst_s=40.0)),
    "cancel": facts("cancel-22.05"),
    "bare": facts("bare-22.05", look=CPU, place=Place(shown="/scratch/ann", free_bytes=9 * 10**12, filesystem="xfs")),
    "signal": facts("signal-22.05", saves=Saves(count=40, typical_s=70.0, worst_s=95.0)),
    "suspend": facts("suspend-22.05"),
    "lab": facts("lab-20.11"),
    "campus": facts("campus-23.11"),
    "campus-free": facts("campus-23.11", partition="gpu", qos="free", probe=ProbeResult(ok=True, seconds=14, look=OLD)),
    "campus-debug": facts("campus-23.11", partition="gpu-debug"),
    "center": facts("center-24.05"),
    "center-free": facts("center-24.05", partition="h100-free", probe=ProbeResult(ok=True, seconds=31, look=NODE)),
}
WORKS = set(CASES) - {"campus-free", "campus-debug"}


@pytest.mark.parametrize("name", CASES)
def test_the_words_for_a_site(name: str) -> None:
    """What is printed for each recorded site is what was looked at and found right."""
    diagnosis = examine(CASES[name])
    text = "\n".join(render(diagnosis)) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("RECORD"):
        path.write_text(text)

    assert text == path.read_text(), "looked at and right? RECORD=1 pytest tests/report/test_doctor.py"
    assert diagnosis.works == (name in WORKS)


@pytest.mark.parametrize("name", CASES)
def test_lines_fit_a_terminal(name: str) -> None:
    """No line is wider than 80 columns."""
    assert [line for line in render(examine(CASES[name])) if len(line) > 80] == []


PROBLEMS = {
    "traces": (Facts(presence=Presence("traces", "Load it."), look=GPU), "Load it."),
    "silent": (Facts(presence=READY, silence="SLURM does not answer: timed out.", look=GPU), "timed out"),
    "no torch": (facts("debian-22.05", look=dataclasses.replace(CPU, torch=None)), "has no torch"),
    "bad python": (facts("debian-22.05", look=Look(error="Permission denied")), "Permission denied"),
    "no partition": (facts("debian-22.05", partition="gpu"), "There is no partition gpu; there are batch, high."),
    "partition down": (facts("campus-23.11", partition="gpu-debug"), "gpu-debug does not start jobs"),
    "not writable": (facts("debian-22.05", place=Place(shown="/", writable=False)), "cannot be written"),
    "not shared": (facts("debian-22.05", probe=ProbeResult(ok=False, why="a compute node does not see ~/runs")), "A compute"),
    "driver": (facts("debian-22.05", look=OLD), "serves CUDA 11.4 at most"),
    "torch lost": (
        facts("debian-22.05", probe=ProbeResult(ok=True, look=Look(host="n1", python="3.9.2"))), "On n1 ~/envs/ml/bin/python"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_keeps_jobs_from_working(name: str) -> None:
    """Each fault alone makes the verdict no, and is named."""
    case, words = PROBLEMS[name]
    diagnosis = examine(case)

    assert not diagnosis.works
    assert any(f.level == "problem" and words in f.text for f in diagnosis.findings)


def test_a_save_that_does_not_fit_the_grace_is_said() -> None:
    """A 40 s save and a 20 s grace with 10 s until KILL: warned of; a 9 s one is fine."""
    slow = examine(CASES["debian-slow-saves"]).findings
    fine = examine(facts("debian-22.05")).findings

    assert any(f.level == "warning" and f.text.startswith("Your 40 s save does not fit a 20 s grace") for f in slow)
    assert not any(f.level == "warning" and f.topic == "saving" for f in fine)


def test_a_look_that_says_nonsense_is_an_error() -> None:
    """A crash or garbage instead of an answer is no look."""
    assert parse_look("Traceback\nImportError: x").error.endswith("ImportError: x")
    assert parse_look("").error == "it said nothing"
    assert parse_look('{"host": "n1", "torch": null, "unknown": 1, "python": "3.11.7"}') == Look(
        host="n1", python="3.11.7"
    )


def test_the_profile_is_one_that_is_read(tmp_path: Path) -> None:
    """What --write-site writes is accepted as a profile, with the site's GPU request and debug partition."""
    from launcher.config.site import load_site

    path = tmp_path / "site.yaml"
    path.write_text(site_profile(site("lab-20.11"), None, None))
    lab = load_site([path])
    path.write_text(site_profile(site("center-24.05"), None, Saves(count=1, typical_s=70, worst_s=70)))
    center = load_site([path])

    assert (lab.gpu_request, lab.debug_partition, center.gpu_request) == ("gres", None, "gpus-per-node")
    assert 'partition: "h100"' in path.read_text()
    assert "signal_lead_s: 150" in path.read_text()
    assert 'partition: "h100"' in site_profile(site("center-24.05"), "gone", None)


def test_the_verb_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """On the real cluster doctor ends 0, its probe runs, and the profile is written once."""
    env = {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "HOME": str(tmp_path),
    }
    verb = ["launcher", "doctor", "--probe", "--write-site"]
    first = cluster.run(verb, env=env, cwd=tmp_path, timeout=400)
    second = cluster.run([*verb[:2], "--write-site"], env=env, cwd=tmp_path, check=False)
    wrong = cluster.run(["launcher", "doctor", "--partition", "nope", "--json"], env=env, cwd=tmp_path, check=False)

    assert first.stdout.startswith("SLURM 22.05.8 on launcher: jobs will work") or "jobs will work" in first.stdout
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
