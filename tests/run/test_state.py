"""Which of the logs in submitit's folder are a run's own, and which job is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from an_event import an_event
from squeue import squeue_line

from launcher.run import event_lines
from launcher.run.paths import RunPaths
from launcher.run.state import agent_logs, is_this_job, read_end
from launcher.slurm.jobs import parse_squeue


def touch(folder: Path, *names: str) -> None:
    """Empty files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_a_run_has_all_logs_of_its_folder(tmp_path: Path) -> None:
    """Whatever job wrote them: no id is asked for, no history read."""
    paths = RunPaths(tmp_path)
    touch(paths.submitit, "7_0_log.out", "8_0_log.out", "7_submission.sh", "srun_log.out")

    assert [p.name for p in agent_logs(paths)] == ["7_0_log.out", "8_0_log.out", "srun_log.out"]


def test_a_point_of_a_sweep_has_those_of_its_own_jobs(tmp_path: Path) -> None:
    """The array element's, of every submission and of the continuation that its history tells of; no other point's."""
    touch(tmp_path / "submitit", "12_1_0_log.out", "12_1_1_log.out", "12_11_0_log.out", "12_2_0_log.out", "9_0_log.out",
          "15_0_log.out", "13_1_0_log.out")  # fmt: skip
    paths = RunPaths(tmp_path / "point")
    paths.root.mkdir()
    paths.submitit.symlink_to(tmp_path / "submitit")
    paths.submission.write_text(json.dumps({"job_id": "13_1", "submissions": [{"job_id": "12_1"}, {"job_id": "13_1"}]}))
    event_lines.append(paths.events, an_event("attempt_started", attempt=1, job_id="15"))

    names = ["12_1_0_log.out", "12_1_1_log.out", "13_1_0_log.out", "15_0_log.out"]
    assert [p.name for p in agent_logs(paths)] == names


def test_nothing_there_is_no_error(tmp_path: Path) -> None:
    """Before the first submission there is no folder."""
    assert agent_logs(RunPaths(tmp_path)) == []


@pytest.mark.parametrize(
    ("said", "ours"),
    [({}, True), ({"name": "net-k7f"}, True), ({"name": "net-k7f", "command": "/tmp/copy.sh"}, True), ({"name": "other"}, False),
     ({"command": "/runs/net-k7f/submitit/s.sh", "name": "renamed"}, True), ({"command": "/runs/point/submit.sbatch"}, True),
     ({"command": "/home/ann/s.sh"}, False), ({"command": "(null)"}, False), ({"command": "/runs/net-k7f-2/submitit/s.sh"}, False)],
    ids=str,
)  # fmt: skip
def test_an_id_that_was_given_away_again_is_another_job(said: dict[str, str], ours: bool) -> None:
    """By the name or the batch script; without either, and of a submission that did not note them, the id counts."""
    submission = {"job_id": "7", "job_folder": "/runs/net-k7f", "job_name": "net-k7f"}

    assert is_this_job(submission, Path("/runs/point"), **said) is ours
    assert is_this_job({"job_id": "7"}, Path("/runs/point"), **said)


def test_a_job_is_known_by_its_name_though_its_path_holds_a_bar() -> None:
    """squeue parts its columns by bars: in a folder that has one in its name a run that trains is not taken for another job's."""
    submission = {"job_id": "7", "job_name": "net-1121-0842-k7f", "job_folder": "/runs/a|b/net-1121-0842-k7f"}
    row = squeue_line("7", "RUNNING", submission["job_name"], o=f"{submission['job_folder']}/submitit/submission.sh")
    job = parse_squeue(row)["7"]

    assert is_this_job(submission, Path(submission["job_folder"]), name=job.name, command=job.command)


def test_a_history_tells_the_end_before_the_outcome_is_seen(tmp_path: Path) -> None:
    """NFS shows a new file late: the last word counts until the run begins again, and an outcome counts more."""
    paths = RunPaths(tmp_path)
    assert read_end(paths) is None
    event_lines.append(paths.events, an_event("attempt_started", attempt=0))
    assert read_end(paths) is None
    event_lines.append(paths.events, an_event("ended", attempt=0, state="completed", step=7))
    event_lines.append(paths.events, an_event("warning", attempt=0, text="a tracker failed"))
    end = read_end(paths)
    assert end is not None
    assert (end["state"], end["step"]) == ("completed", 7)

    event_lines.append(paths.events, an_event("submitted", attempt=None, by="resubmit"))
    assert read_end(paths) is None
    paths.outcome.write_text(json.dumps({"state": "cancelled"}))
    assert read_end(paths) == {"state": "cancelled"}
