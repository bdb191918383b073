"""What SLURM prints of jobs, read: recorded output, and that of other versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster

from launcher.slurm.jobs import job_facts, job_views, parse_facts, parse_sacct, parse_squeue

RECORDED = Path(__file__).parent / "jobs"

SQUEUE = """\
24_2|24|PENDING|N/A|N/A|1795311918|||JobArrayTaskLimit||
24_3|24|PENDING|1795320000|N/A|1795311918|||Priority||
24_1|25|RUNNING|1795311919|1795315519|1795311918|node[1,3]|gpu|None|/runs/a b/submit.sh|lr=1e-3|wd=0
30|30|PENDING|N/A|N/A|1795311918|||ReqNodeNotAvail, UnavailableNodes:node[1,2]|(null)|big run 2
half a line
"""

SACCT = """\
13|13|COMPLETED|0:0|1795311019|1795311050|1795311050|node[1-4]|None|lab
14|14|OUT_OF_ME+|0:125|1795311053|1795311053|1795311054|node[1-4]|None|
16|16|CANCELLED|0:0|1795311100|1795311100|1795311100|None assigned|None|
18|18|TIMEOUT|0:0|2026-11-22T01:31:44|2026-11-22T01:31:45|Unknown|node1|None|
24_1|25|CANCELLED by 1000|0:15|1795311918|1795311919|1795311920|node1|None|
24_[2-3%1]|24|CANCELLED by 1000|0:0|1795311918|Unknown|1795311920|None assigned|None|
"""


def test_squeue_rows_answer_to_every_id() -> None:
    """An element is found by ``ARRAY_TASK`` and by its own id; estimates and reasons are read."""
    views = parse_squeue(SQUEUE)

    assert set(views) == {"24_1", "24_2", "24_3", "24", "25", "30"}
    assert (views["25"].state, views["24_1"].nodes) == ("RUNNING", "node[1,3]")
    assert views["24_3"].start_estimate_t == 1795320000
    assert views["24_1"].start_estimate_t is None
    assert views["24_1"].reason == ""
    assert (views["24_1"].name, views["24_1"].command, views["30"].command) == (
        "lr=1e-3|wd=0",
        "/runs/a b/submit.sh",
        "(null)",
    )
    assert views["30"].name == "big run 2"
    assert (views["24_1"].partition, views["30"].partition) == ("gpu", "")
    assert views["30"].reason == "ReqNodeNotAvail, UnavailableNodes:node[1,2]"


def test_sacct_rows_tell_how_jobs_ended() -> None:
    """Exit code and signal, who cancelled, elements that never ran, and both forms of time are read."""
    views = parse_sacct(SACCT)

    assert (views["13"].exit_code, views["13"].signal, views["13"].ended) == (0, 0, True)
    assert views["14"].state == "OUT_OF_ME"
    assert views["16"].nodes == ""
    assert views["18"].start_t is not None
    assert views["18"].end_t is None
    assert (views["25"].state, views["25"].reason, views["25"].signal) == ("CANCELLED", "by 1000", 15)
    assert {"24_2", "24_3"} <= set(views)


@pytest.mark.parametrize("path", sorted(RECORDED.rglob("*.txt")), ids=lambda p: f"{p.parent.name} {p.stem}")
def test_every_recorded_job_is_read(path: Path) -> None:
    """`scontrol show job` of each version in every situation that was recorded gives state, restarts and exit code."""
    text = path.read_text()
    job_id = text.partition("JobId=")[2].split()[0]
    facts = parse_facts(text, job_id)

    assert facts is not None
    assert (facts.job_id, facts.restarts is None) == (job_id, False)
    assert facts.exit_code == 0
    assert (facts.start_t is None) == (facts.state == "PENDING")


@pytest.mark.parametrize("path", sorted(RECORDED.rglob("array.txt")), ids=lambda p: p.parent.name)
def test_an_arrays_elements_are_told_apart(path: Path) -> None:
    """`scontrol show job` of an array's id shows all of its elements; the one that was meant is found."""
    text = path.read_text()
    array = text.partition("ArrayJobId=")[2].split()[0]
    first, rest = parse_facts(text, f"{array}_1"), parse_facts(text, array)

    assert first is not None
    assert rest is not None
    assert (first.job_id, first.state) == (str(int(array) + 1), "RUNNING")
    assert (rest.job_id, rest.state) == (array, "PENDING")


def test_a_jobs_name_cannot_imitate_slurms_words() -> None:
    """What users choose (name, comment, command) does not pass for a state, an exit code or a time."""
    text = (RECORDED / "22.05.8" / "grace.txt").read_text()
    evil = text.replace("JobName=wrap", "JobName=x JobState=COMPLETED PreemptTime=None Restarts=9")
    evil = evil.replace("Command=(null)", "Command=/bin/x JobState=FAILED Requeue=0 Restarts=7 ExitCode=1:0")
    facts = parse_facts(evil, "6")

    assert facts == parse_facts(text, "6")


NEWER = """\
JobId=77 ArrayJobId=70 ArrayTaskId=7 JobName=lm7b
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=lm QOS=high WCKey=*
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=2 Reboot=0 ExitCode=0:0
   RunTime=1-02:03:04 TimeLimit=UNLIMITED TimeMin=N/A
   SubmitTime=2026-01-01T00:00:00 EligibleTime=2026-01-01T00:02:01
   AccrueTime=2026-01-01T00:02:01
   StartTime=2026-01-01T00:02:05 EndTime=Unknown Deadline=N/A
   PreemptEligibleTime=2026-01-01T00:02:05 PreemptTime=None
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-01-01T00:02:05 Scheduler=Backfill
   Partition=h100 AllocNode:Sid=login1:4242
   ReqNodeList=(null) ExcNodeList=gpu[003-004]
   NodeList=gpu[001-002,007]
   BatchHost=gpu001
   StepMgrEnabled=Yes
   NumNodes=3 NumCPUs=96 NumTasks=3 CPUs/Task=32 ReqB:S:C:T=0:0:*:*
   ReqTRES=cpu=96,mem=300G,node=3,billing=96,gres/gpu=24
   AllocTRES=cpu=96,mem=300G,node=3,billing=96,gres/gpu=24
"""


def test_other_versions_are_read() -> None:
    """A job as 23.11 and 24.05 show it: no time limit, unknown end, more lines."""
    facts = parse_facts(NEWER, "70_7")

    assert facts is not None
    assert (facts.job_id, facts.restarts, facts.end_t, facts.preempt_t) == ("77", 2, None, None)
    assert (facts.nodes, facts.run_time_s) == ("gpu[001-002,007]", 93784)


def test_a_job_that_has_lost_a_node_is_known_until_it_is_queued_again() -> None:
    """SLURM keeps ResizeTime for all lives of a job; the SubmitTime of the next life is later."""
    resized = NEWER.replace("   StartTime=", "   ResizeTime=2026-01-01T08:00:00\n   StartTime=")
    again = resized.replace("SubmitTime=2026-01-01T00:00:00", "SubmitTime=2026-01-01T09:00:00")

    assert [bool(f and f.resized) for f in (parse_facts(text, "70_7") for text in (NEWER, resized, again))] == [
        False,
        True,
        False,
    ]


def test_what_cannot_be_read_is_unknown() -> None:
    """An empty or foreign answer is no job."""
    assert parse_facts("", "1") is None
    assert parse_facts("slurm_load_jobs error: Invalid job id specified", "1") is None


def test_ids_that_are_no_ids_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but digits reaches a command line."""
    monkeypatch.setattr("launcher.slurm.jobs.ask", lambda *words, **_: pytest.fail(f"asked {words}"))

    assert job_views(["", "local", "--all", "1;2"]) == {}


def test_one_question_for_many_jobs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting, running, ended and forgotten jobs and array elements are told from one squeue and one sacct."""
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    running = cluster.sbatch("-N1", wrap="sleep 600")
    waiting = cluster.sbatch("--begin=now+1hour", wrap="true")
    failed = cluster.sbatch(wrap="exit 3")
    array = cluster.sbatch("--array=0-1", "--hold", wrap="true")
    cluster.wait(lambda: not cluster.job(failed), "slurmctld to forget the failed job")
    cluster.wait_job(running, "RUNNING")
    cluster.wait(lambda: "FAILED" in cluster.run(["sacct", "-nPX", "-j", failed, "-o", "state"]).stdout, "sacct")
    asked = []
    real = __import__("launcher.slurm.commands", fromlist=["ask"]).ask

    def spy(*words: str, **kwargs: object) -> object:
        asked.append(words[0])
        return real(*words, **kwargs)

    monkeypatch.setattr("launcher.slurm.jobs.ask", spy)
    views = job_views([running, waiting, failed, f"{array}_1", "4000000"])
    facts = job_facts(running)
    cluster.cancel_all()

    assert asked == ["squeue", "sacct", "scontrol"]  # the last one by job_facts
    assert {j: v.state for j, v in views.items()} == {
        running: "RUNNING", waiting: "PENDING", failed: "FAILED", f"{array}_1": "PENDING",
    }  # fmt: skip
    assert (views[failed].exit_code, views[waiting].reason) == (3, "BeginTime")
    assert facts is not None
    assert (facts.state, facts.nodes, facts.restarts) == ("RUNNING", views[running].nodes, 0)


def test_a_runaway_record_is_no_running_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """slurmctld has lost the job and accounting was never told of its end: squeue, which knows every job that works, is right."""
    rows = "12|12|RUNNING|0:0|1|1|Unknown|n1|None|run\n13|13|FAILED|3:0|1|1|2|n1|None|run"
    for name, script in (("squeue", "echo 'Invalid job id specified' >&2; exit 1"), ("sacct", f"echo '{rows}'")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert {job: view.state for job, view in (job_views(["12", "13"]) or {}).items()} == {"13": "FAILED"}


def test_a_job_that_is_named_is_found_however_old_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """sacct tells of jobs within a time: since ever for those that are named, unless another beginning is asked for."""
    row = "12|12|CANCELLED by 1000|0:0|1|1|2|n1|None|run"
    for name, script in (
        ("squeue", "echo 'Invalid job id specified' >&2; exit 1"),
        ("sacct", f'case "$*" in *--starttime*) ;; *) echo "{row}";; esac'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert {job: view.state for job, view in (job_views(["12"]) or {}).items()} == {"12": "CANCELLED"}


def test_silence_is_not_ignorance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where SLURM does not answer nothing is known of any job; a job it has forgotten is merely missing."""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    forgotten = job_views(["12"])
    squeue.write_text("#!/bin/sh\necho 'squeue: error: Unable to contact slurm controller' >&2\nexit 1\n")

    assert forgotten == {}
    assert job_views(["12"]) is None
