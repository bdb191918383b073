"""The doctor's words for nine sites, and what makes jobs not work."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.report.site.doctor import diagnosis_lines, examine
from launcher.report.site.findings import RunsFolder, Saves, SiteFacts
from launcher.report.site.profile import site_profile
from launcher.slurm.probe import HostSoftware, ProbeResult, _script, parse_software, probe_node, software_here
from launcher.slurm.site import JobLimit, Presence, Site, SiteTexts, parse_site

HERE = Path(__file__).parent
SITES = HERE.parents[1] / "slurm" / "sites"
GOLDEN = HERE / "doctor"
READY = Presence("ready", "sbatch is /usr/bin/sbatch.")
GPU = HostSoftware(host="login", python="3.11.7", torch="2.13.0+cu126", cuda="12.6", nccl="2.27.3", nccl_cuda="12")
CPU = HostSoftware(host="login", python="3.11.7", torch="2.13.0+cpu")
SHARED = RunsFolder(shown="~/runs", free_bytes=310 * 10**9, filesystem="nfs4")


def site(name: str) -> Site:
    """A recorded site."""
    parts = re.split(r"^### \w+\n", (SITES / f"{name}.txt").read_text(), flags=re.MULTILINE)[1:]
    return parse_site(SiteTexts(*parts))


def facts(name: str, **changes: object) -> SiteFacts:
    """A user's situation at a recorded site."""
    usual = SiteFacts(
        presence=READY, site=site(name), python="~/envs/ml/bin/python", look=GPU, runs=SHARED,
        saves=Saves(count=12, typical_s=6.0, worst_s=9.0),
    )  # fmt: skip
    return dataclasses.replace(usual, **changes)


NODE = dataclasses.replace(GPU, host="h001", driver="560.35.03", driver_cuda="12.6")
OLD = dataclasses.replace(GPU, host="g07", driver="470.57", driver_cuda="11.4")
CASES = {
    "debian": facts("debian-22.05", look=CPU, saves=None),
    "debian-24.11": facts("debian-24.11", look=CPU, saves=None),
    "debian-26.05": facts("debian-26.05", look=CPU, saves=None),
    "newer": facts(
        "debian-26.05", site=dataclasses.replace(site("debian-26.05"), version="27.11.1"), look=CPU, saves=None
    ),
    "debian-slow-saves": facts("debian-22.05", saves=Saves(count=3, typical_s=31.0, worst_s=40.0)),
    "cancel": facts("cancel-22.05"),
    "bare": facts(
        "bare-22.05", look=CPU, runs=RunsFolder(shown="/scratch/ann", free_bytes=9 * 10**12, filesystem="xfs")
    ),
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
    text = "\n".join(diagnosis_lines(diagnosis)) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("RECORD"):
        path.write_text(text)

    assert text == path.read_text(), "looked at and right? RECORD=1 pytest tests/report/site/test_doctor.py"
    assert diagnosis.works == (name in WORKS)


@pytest.mark.parametrize("name", CASES)
def test_lines_fit_a_terminal(name: str) -> None:
    """No line is wider than 80 columns."""
    assert [line for line in diagnosis_lines(examine(CASES[name])) if len(line) > 80] == []


PROBLEMS = {
    "traces": (SiteFacts(presence=Presence("traces", "Load it."), look=GPU), "Load it."),
    "silent": (SiteFacts(presence=READY, silence="SLURM does not answer: timed out.", look=GPU), "timed out"),
    "no torch": (facts("debian-22.05", look=dataclasses.replace(CPU, torch=None)), "has no torch"),
    "bad python": (facts("debian-22.05", look=HostSoftware(error="Permission denied")), "Permission denied"),
    "no partition": (facts("debian-22.05", partition="gpu"), "There is no partition gpu. Available: batch, high."),
    "partition down": (facts("campus-23.11", partition="gpu-debug"), "gpu-debug does not start jobs"),
    "not writable": (facts("debian-22.05", runs=RunsFolder(shown="/", writable=False)), "cannot be written"),
    "not shared": (facts("debian-22.05", probe=ProbeResult(ok=False, why="a compute node does not see ~/runs")), "A compute"),
    "driver": (facts("debian-22.05", look=OLD), "supports CUDA 11.4 at most"),
    "torch lost": (
        facts("debian-22.05", probe=ProbeResult(ok=True, look=HostSoftware(host="n1", python="3.9.2"))), "On n1 ~/envs/ml/bin/python"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_keeps_jobs_from_working(name: str) -> None:
    """Each fault alone makes the verdict no, and is named."""
    case, words = PROBLEMS[name]
    diagnosis = examine(case)

    assert not diagnosis.works
    assert any(f.level == "problem" and words in f.text for f in diagnosis.findings)


ONE_JOB = "allows you one job in the queue:"


@pytest.mark.parametrize(
    ("limit", "qos", "may_requeue", "level", "words"),
    [
        (
            JobLimit(kind="Account", name="lab", queued=1),
            None,
            True,
            "note",
            f"Account lab {ONE_JOB} resources.replace and",
        ),
        (
            JobLimit(kind="Account", name="lab", queued=1),
            None,
            False,
            "warning",
            f"Account lab {ONE_JOB} no run can continue",
        ),
        (JobLimit(kind="Account", name="lab", running=1), None, True, "note", "Account lab allows you one running job"),
        (JobLimit(kind="Account", name="lab", running=0), None, True, "warning", "Account lab allows you no job."),
        (JobLimit(kind="Account", name="lab", running=2, queued=2), None, True, None, ""),
        (JobLimit(kind="QOS", name="normal", queued=1), None, True, "note", f"QOS normal {ONE_JOB}"),
        (JobLimit(kind="QOS", name="normal", queued=1), "long", True, None, ""),
        (JobLimit(kind="QOS", name="gpus", queued=1), "long", True, "note", f"QOS gpus {ONE_JOB}"),
    ],
)
def test_where_a_run_cannot_have_a_second_job_is_said(
    limit: JobLimit, qos: str | None, may_requeue: bool, level: str | None, words: str
) -> None:
    """Nodes that are replaced, and continuations, are jobs of their own. Of QOS the job's own and the partition's count."""
    case = facts("debian-22.05", qos=qos)
    parts = tuple(dataclasses.replace(part, qos="gpus") for part in case.site.partitions)
    limited = dataclasses.replace(case.site, partitions=parts, job_limits=(limit,), job_requeue=may_requeue)

    said = [f for f in examine(dataclasses.replace(case, site=limited)).findings if f.topic == "limits"]

    assert [f.level for f in said] == ([level] if level else [])
    assert all(words in f.text for f in said)


def test_a_partition_that_takes_no_jobs_from_its_nodes_is_said() -> None:
    """resources.replace submits from there."""
    case = facts("debian-22.05")
    parts = [dataclasses.replace(part, alloc_nodes="login1") for part in case.site.partitions]
    closed = dataclasses.replace(case, site=dataclasses.replace(case.site, partitions=tuple(parts)))

    said = [f for f in examine(closed).findings if "accepted from login1 only (AllocNodes)" in f.text]
    assert [f.level for f in said] == ["note"]
    assert not any("AllocNodes" in f.text for f in examine(case).findings)


def test_a_site_that_ages_held_jobs_is_said() -> None:
    """restart.queue_early is of use there alone."""
    case = facts("debian-22.05")
    ages = dataclasses.replace(case, site=dataclasses.replace(case.site, ages_held_jobs=True))

    assert any("restart.queue_early can be used" in f.text for f in examine(ages).findings)
    assert not any("queue_early" in f.text for f in examine(case).findings)


@pytest.mark.parametrize(
    ("version", "words"),
    [("23.11.4", "lies between versions that were tested"), ("21.08.1", "is older than 22.05"), ("27.05.0", "is newer than 26.05"),
     ("24.11.9", "")],
)  # fmt: skip
def test_a_version_that_was_not_tested_is_said(version: str, words: str) -> None:
    """Patch releases of a tested version are that version."""
    other = dataclasses.replace(site("debian-22.05"), version=version)
    found = [f.text for f in examine(facts("debian-22.05", site=other)).findings if f.topic == "version"]

    assert [words in text for text in found] == ([True] if words else [])


@pytest.mark.parametrize(("delay_s", "shortened"), [(121, True), (3, True), (2, False), (1, False)])
def test_a_delay_that_is_short_already_is_not_shortened(delay_s: int, shortened: bool) -> None:
    """From 25.11 on a site may have requeue_delay=0."""
    quick = dataclasses.replace(site("debian-26.05"), requeue_delay_s=delay_s)
    (found,) = [f.text for f in examine(facts("debian-26.05", site=quick)).findings if f.text.startswith("A requeued")]

    assert found.startswith(f"A requeued job waits {delay_s} s.")
    assert ("shortens" in found) is shortened


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"qos": ()}, "warning", "slurmdbd does not answer: sacct knows no job."),
        ({"accounting_backlog": 1000}, "warning", "1,000 messages to slurmdbd are waiting: sacct does not know the latest jobs."),
        ({"accounting_backlog": 999}, "ok", "sacct answers (slurmdbd)."),
        ({"qos": (), "accounting": "none"}, "note", "SLURM keeps none:"),
    ],
)  # fmt: skip
def test_an_accounting_that_is_silent_or_behind_is_said(changes: dict[str, object], level: str, words: str) -> None:
    """Messages that slurmctld sends to slurmdbd at once (1,000) are no backlog: those behind one that is refused still arrive."""
    behind = dataclasses.replace(site("debian-22.05"), **changes)

    (found,) = [f for f in examine(facts("debian-22.05", site=behind)).findings if f.topic == "accounting"]
    assert (found.level, found.text[: len(words)]) == (level, words)


def test_a_save_that_does_not_fit_the_grace_is_said() -> None:
    """A 40 s save and a 20 s grace with 10 s until KILL: warned of; a 9 s one is fine."""
    slow = examine(CASES["debian-slow-saves"]).findings
    fine = examine(facts("debian-22.05")).findings

    assert any(f.level == "warning" and f.text.startswith("Your 40 s save does not fit a 20 s grace") for f in slow)
    assert not any(f.level == "warning" and f.topic == "saving" for f in fine)


MISFITS = {
    "another NCCL there": (
        facts("center-24.05", probe=ProbeResult(ok=True, look=dataclasses.replace(NODE, nccl="2.10.0"))),
        ["probe: h001 has NCCL 2.10.0 (here 2.27.3) under the same path."],
    ),
    "another Python and torch, no NCCL there": (
        facts("center-24.05", probe=ProbeResult(ok=True, look=HostSoftware(host="h001", python="3.9.2", torch="1.13.0", cuda="11.7"))),
        ["probe: h001 has Python 3.9.2 (here 3.11.7), torch 1.13.0 (here 2.13.0+cu126), CUDA 11.7 (here 12.6), "
         "NCCL none (here 2.27.3) under the same path."],
    ),
    "NCCL for another CUDA": (
        facts("center-24.05", look=dataclasses.replace(GPU, nccl="2.28.9", nccl_cuda="13")),
        ["nccl: torch is built for CUDA 12.6, and the NCCL on login (2.28.9) for CUDA 13: install nvidia-nccl-cu12 instead of "
         "nvidia-nccl-cu13."],
    ),
    "NCCL for another CUDA there alone": (
        facts("center-24.05", probe=ProbeResult(ok=True, look=dataclasses.replace(NODE, nccl_cuda="11"))),
        ["nccl: torch is built for CUDA 12.6, and the NCCL on h001 (2.27.3) for CUDA 11: install nvidia-nccl-cu12 instead of "
         "nvidia-nccl-cu11."],
    ),
    "the same there": (facts("center-24.05", probe=ProbeResult(ok=True, look=NODE)), []),
    "torch brings its own": (facts("center-24.05", look=dataclasses.replace(GPU, nccl=None, nccl_cuda=None)), []),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_torch_nccl_and_cuda_match(name: str) -> None:
    """What differs between here and a node, and an NCCL for another CUDA than torch's, is said, and nothing else is."""
    case, said = MISFITS[name]
    found = examine(case).findings

    assert [f"{f.topic}: {f.text}" for f in found if f.level == "warning" and f.topic in ("probe", "nccl")] == said


@pytest.mark.parametrize(
    ("cuda", "nccl"), [("12.6", ("2.27.3", "12")), ("13.0", ("2.28.9", "13")), ("11.8", ("2.28.9", "13"))]
)
def test_the_nccl_of_torchs_cuda_is_looked_at(
    cuda: str, nccl: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two NCCL packages that are installed the one for torch's CUDA is reported, by the doctor and by agents."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '9.9.9'\ncuda: Optional[str] = '{cuda}'\n")
    for name, version in (("nvidia_nccl_cu12", "2.27.3"), ("nvidia_nccl_cu13", "2.28.9"), ("torch", "9.9.9")):
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    look = software_here(sys.executable)
    agents = "import json, launcher.slurm.probe as f; print(json.dumps(f.torch_versions()))"
    told = subprocess.run([sys.executable, "-c", agents], capture_output=True, check=True).stdout

    assert (look.torch, look.cuda, look.nccl, look.nccl_cuda) == ("9.9.9", cuda, *nccl)
    assert json.loads(told) == {"torch": "9.9.9", "cuda": cuda, "nccl": nccl[0]}


def test_a_look_runs_no_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks there first, and in /tmp anybody can leave a json.py; the tiny job of --probe leaves the folder, too."""
    (tmp_path / "json.py").write_text(f"open({str(tmp_path)!r} + '/ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    look = software_here(sys.executable)
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "token").write_text("t")
    (tmp_path / "probe.sh").write_text(_script(tmp_path / "place", sys.executable))
    subprocess.run(["sh", str(tmp_path / "probe.sh")], check=True)

    assert look.python
    assert json.loads((tmp_path / "place" / "answer").read_text())["token"] == "t"
    assert not (tmp_path / "ran").exists()


def test_no_probe_runs_where_everybody_could_replace_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its script would be another's by the time that sbatch reads it: as no run is made there, no probe is submitted."""
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    found = probe_node(runs, sys.executable)

    assert not found.ok
    assert found.why.startswith(
        f"{runs} can be written by everybody, who could put another run in the place of yours: chmod +t"
    )
    assert not list(runs.iterdir())
    assert not (tmp_path / "asked").exists()

    runs.chmod(0o1777)
    assert probe_node(runs, sys.executable).why.startswith("sbatch refused the probe")
    assert (tmp_path / "asked").exists()


def test_a_look_that_says_nonsense_is_an_error() -> None:
    """A crash or garbage instead of an answer is no look."""
    assert parse_software("Traceback\nImportError: x").error.endswith("ImportError: x")
    assert parse_software("").error == "it printed nothing"
    assert parse_software('{"host": "n1", "torch": null, "unknown": 1, "python": "3.11.7"}') == HostSoftware(
        host="n1", python="3.11.7"
    )


def test_the_profile_is_one_that_is_read(tmp_path: Path) -> None:
    """What --write-site writes is accepted as a profile, with the site's GPU request and debug partition."""
    from launcher.config.load.site_profile import load_site

    path = tmp_path / "site.yaml"
    path.write_text(site_profile(site("lab-20.11"), None, None))
    lab = load_site([path])
    path.write_text(site_profile(site("center-24.05"), None, Saves(count=1, typical_s=70, worst_s=70)))
    center = load_site([path])

    assert (lab.gpu_request, lab.debug_partition, center.gpu_request) == ("gres", None, "gpus-per-node")
    assert 'partition: "h100"' in path.read_text()
    assert "signal_lead_s: 150" in path.read_text()
    assert 'partition: "h100"' in site_profile(site("center-24.05"), "gone", None)
