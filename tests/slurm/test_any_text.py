"""Whatever text SLURM's commands answer, its readers raise nothing but what they say they raise."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.slurm import jobs, restart
from launcher.slurm.environ import job_environ
from launcher.slurm.hosts import expand_hosts

PIECES = [
    "JobId=", "ArrayJobId=", " ArrayTaskId=", "\n   JobState=", " Reason=", "\n   Requeue=1 Restarts=", " BatchFlag=1 ExitCode=",
    "0:0", "\n   RunTime=", "\n   StartTime=", " EndTime=", "\n   PreemptEligibleTime=", " PreemptTime=", "\n   NodeList=", "|", "\n",
    "²", "٣", "9" * 5000, "9" * 400, "1-00:00:00", "0001-01-01T00:00:00", "9999-12-31T23:59:59", "24_[2-3%1]", "24_[1-", "n[1-2]",
    "RUNNING", "CANCELLED by 0", "CANCELLED+", "sdiag output at x (", ")", "Main schedule statistics", "\n\tTotal cycles: ", ":",
    "\0", "\x1b[2J", " ", "42", "42_7", "42+1",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=30).map("".join)
ROWS = st.lists(
    st.lists(st.sampled_from(PIECES) | st.text("|\n:0123456789", max_size=5), min_size=9, max_size=12).map("|".join)
).map("\n".join)


@settings(deadline=None)
@given(text=TEXTS | ROWS)
@example(
    text="JobId=42\n   JobState=RUNNING Reason=None\n   Requeue=1 Restarts="
    + "9" * 5000
    + " BatchFlag=1 ExitCode=²:²\n"
)
@example(text="42|42|RUNNING|²|" + "9" * 400 + "|0001-01-01T00:00:00|n1|x|y|z|w")
@example(text="sdiag output at x (" + "9" * 5000 + ")\nMain schedule statistics\n\tTotal cycles: " + "9" * 5000)
def test_no_answer_breaks_its_reader(text: str) -> None:
    """squeue, sacct, scontrol show job, sdiag, durations."""
    jobs.parse_squeue(text)
    jobs.parse_sacct(text)
    for job_id in ("42", "42_7"):
        jobs.parse_facts(text, job_id)
    jobs.duration_s(text)
    jobs.parse_time(text)
    restart.parse_sdiag(text, 0.0)
    for part in text.split("|"):
        jobs._time(part)
        jobs._exit(part)
        jobs.duration_s(part)


@settings(deadline=None)
@given(text=TEXTS)
def test_no_host_list_breaks_its_reader(text: str) -> None:
    """A list of hosts, or a ValueError."""
    try:
        assert isinstance(expand_hosts(text), list)
    except ValueError:
        pass


@given(value=TEXTS)
def test_no_variable_of_slurms_breaks_its_reader(value: str) -> None:
    """A garbled number is unknown."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_NODELIST")
    found = job_environ(dict.fromkeys(names, value))

    assert isinstance(found.restart_count, int)


def test_only_job_ids_are_asked_for() -> None:
    """Of anything else nothing is asked, and nothing is answered."""
    assert jobs.job_views(["--me", "42;x", "", "٣"]) == {}
