"""What the later jobs of a run take over of the script that its first one was submitted with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from launcher.node.allocation import slurm_allocation as slurm
from launcher.node.allocation.slurm_allocation import SlurmAllocation
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, SiteSpec, Work
from launcher.slurm import handback, later_jobs
from launcher.slurm.commands import Answer
from launcher.slurm.jobs import JobFacts


@pytest.mark.parametrize("kind", ["continuation", "early", "delayed", "replacement"])
@pytest.mark.parametrize("begins", [True, False])
def test_a_begin_is_of_the_first_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, begins: bool
) -> None:
    """now+6hours would be six hours from the preemption, with the nodes of the run idle; a delay of the launcher's own counts."""
    asked: list[tuple[str, ...]] = []

    def ask(*words: str, **_: Any) -> Answer:
        asked.append(words)
        return Answer(words, 0, "6\n" if words[0] == "sbatch" else "")

    for module in (handback, later_jobs):
        monkeypatch.setattr(module, "ask", ask)
    script = tmp_path / "submit.sbatch"
    script.write_text(f"#!/bin/bash\n{'#SBATCH --begin=now+6hours' if begins else ''}\n#SBATCH --nodes=2\n")
    if kind == "replacement":
        later_jobs.submit_replacement(str(script), [], name="r+node", minutes=5, exclude=[], extra=[], environ={})
    else:
        extra = {"continuation": [], "early": ["--hold"], "delayed": ["--begin=now+60"]}[kind]
        later_jobs.submit_continuation(str(script), "5", name="r", environ={}, extra=extra)
    begin = [word for word in asked[-1] if word.startswith("--begin")]

    assert begin == (["--begin=now"] if begins else []) + (["--begin=now+60"] if kind == "delayed" else [])


@pytest.mark.parametrize("kind", ["continuation", "replacement"])
@pytest.mark.parametrize("holds", [True, False])
def test_a_hold_is_of_the_first_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, holds: bool
) -> None:
    """Whoever holds a job releases that one; a later one of the run would wait for ever. sbatch has no option against a hold."""
    asked: list[tuple[str, ...]] = []

    def ask(*words: str, **_: Any) -> Answer:
        asked.append(words)
        shown = (
            "   Priority=1 Nice=0 Account=a QOS=q\n   Partition=p AllocNode:Sid=x:1\n" if words[0] == "scontrol" else ""
        )
        return Answer(words, 0, "6\n" if words[0] == "sbatch" else shown)

    now, paths = time.time(), RunPaths(tmp_path)
    facts = JobFacts(job_id="5", state="RUNNING", restarts=0, start_t=now - 60, end_t=now + 6000)
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=1,
        tasks_per_node=1, timeout_min=5, backend="gloo", site=SiteSpec(requeue_allowed=False),
    )  # fmt: skip
    for module in (handback, later_jobs):
        monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(slurm, "job_facts", lambda *_, **__: facts)
    monkeypatch.setattr(slurm, "controller_time", lambda **_: None)
    monkeypatch.setattr(slurm, "_copy_pickle", lambda *_: None)
    paths.sbatch.parent.mkdir(exist_ok=True)
    paths.sbatch.write_text(f"#!/bin/bash\n{'#SBATCH --hold' if holds else ''}\n")
    allocation = SlurmAllocation(spec, paths, {"SLURM_JOB_ID": "5", "SLURM_JOB_NAME": "mine"})
    if kind == "continuation":
        assert allocation.hand_back(exclude=(), delay_s=0.0).job_id == "6"
    else:
        assert allocation.ask_for_node(("x",), exclude=()) == "6"
        (submitted,) = (words for words in asked if words[0] == "sbatch")
        assert {"--partition=p", "--account=a", "--qos=q"} <= set(submitted)

    assert (("scontrol", "release", "6") in asked) is holds


@pytest.mark.parametrize(
    ("waits", "left"),
    [
        ("afterok:5(unfulfilled)", ""),
        ("afterok:5(unfulfilled),afterany:7(unfulfilled)", "afterany:7"),
        ("afterok:5(unfulfilled)?afterok:7(unfulfilled)", ""),
        ("afterok:15(unfulfilled)", None),
        ("afterok:5_2(unfulfilled)", None),
        ("afterany:5(unfulfilled)", None),
        ("afternotok:5(failed)", None),
        ("(null)", None),
    ],
)
def test_jobs_wait_no_longer_for_the_success_of_a_run_that_has_it(
    monkeypatch: pytest.MonkeyPatch, waits: str, left: str | None
) -> None:
    """What else they wait for stays, and one of several (?) is enough. Who waits for another job, or for any end, waits on."""
    asked: list[tuple[str, ...]] = []

    def ask(*words: str, **_: Any) -> Answer:
        asked.append(words)
        return Answer(words, 0, f"9|{waits}\n" if words[0] == "squeue" else "")

    for module in (handback, later_jobs):
        monkeypatch.setattr(module, "ask", ask)

    assert later_jobs.free_dependents("5") == ([] if left is None else ["9"])
    assert asked[1:] == ([] if left is None else [("scontrol", "update", "JobId=9", f"Dependency={left}")])
