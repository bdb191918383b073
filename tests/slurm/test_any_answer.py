"""Whatever SLURM prints, names of other users' jobs and of broken nodes included, is read or is unknown: nothing raises."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.hosts import expand_hosts
from launcher.slurm import jobs, probe, restart
from launcher.slurm.environ import job_environ
from launcher.slurm.site import SiteTexts, parse_site, policy
from launcher.submission.plan.estimate import parse_start

HERE = Path(__file__).parent
FAST = examples(150)
LONG = "9" * 5000
"""More digits than Python reads as one number."""
ODD = ["²", "٣", LONG, "9" * 20, "-1", "0", "UNLIMITED", "(null)", "None", "|", "=", "\n", "\n\n", "\x00", "\x85", "\ud800", "[", "]", "a[1-",
       "0001-01-01T00:00:00", "9999-12-31T23:59:59", "99-99:99:99", "gpu:", "1:0", "²:²", "%"]  # fmt: skip
TEXTS = (
    st.text() | st.sampled_from(ODD) | st.lists(st.sampled_from(ODD) | st.text(max_size=5), max_size=12).map("".join)
)
ROWS = st.lists(st.lists(TEXTS, min_size=9, max_size=12).map("|".join), max_size=4).map("\n".join)
RECORDED = {
    path: path.read_text(encoding="utf-8")
    for path in sorted([*(HERE / "sites").glob("*.txt"), *(HERE / "jobs").rglob("*.txt")])
}


def _cut(text: str, at: int, length: int, put: str) -> str:
    at %= len(text) + 1
    return text[:at] + put + text[at + length :]


CHANGED = st.builds(_cut, st.sampled_from(list(RECORDED.values())), st.integers(0, 10_000), st.integers(0, 30), TEXTS)
READERS: list[Callable[[str], Any]] = [
    jobs.parse_squeue, jobs.parse_sacct, jobs.parse_time, jobs.duration_s, lambda text: jobs.parse_facts(text, "24"),
    lambda text: restart.parse_sdiag(text, 0.0), probe.parse_software, parse_start,
]  # fmt: skip


@FAST
@given(text=TEXTS | ROWS | CHANGED)
@example(text="1|1|PENDING|²|²|²|||||x")
@example(text="1|1|RUNNING|0001-01-01|9999-12-31T23:59:59|1|||||x")
@example(text=f"1|1|FAILED|{LONG}:0|{LONG}|1|2|n[1-2]|x|None")
@example(text="1|1|FAILED|²:²|1|1|2|n[1-2]|x|None")
@example(text="24_[0-65535,0-65535]|24|PENDING|0:0|1|1|2||x|None")
@example(text=LONG)
@example(text=f"{LONG}-00:00:00")
@example(text=f"sdiag output at x ({LONG})\nMain schedule statistics\n Total cycles: {LONG}\n")
@example(
    text=f"JobId=24\n   JobState=RUNNING Reason=None\n   Requeue=1 Restarts={LONG} x ExitCode={LONG}:0\n   RunTime={LONG}\n"
)
@example(text=f'{{"host": {LONG}}}')
@example(text="[" * 100_000)
@example(text="Job 24 to start at 2026-13-45T99:99:99 using 1")
@example(text=f"Job 24 to start at {LONG} using 1")
def test_any_answer_about_jobs_is_read(text: str) -> None:
    """squeue, sacct, scontrol, sdiag, sbatch --test-only and a node's own answer: read, or left out."""
    for read in READERS:
        read(text)


@FAST
@given(texts=st.tuples(*[TEXTS | ROWS | CHANGED] * 7))
@example(
    texts=(
        "KillWait=²\nMaxArraySize=" + LONG,
        "PartitionName=a\nMaxNodes=" + LONG,
        f"a|up|²|idle|{LONG}|{LONG}|gpu:{LONG}",
        "q|1|x|y",
        f"DBD Agent queue size: {LONG}",
        f"lab|{LONG}|{LONG}",
        "",
    )
)
@example(
    texts=(
        f"SLURM_VERSION={LONG}\nAuthInfo=cred_expire={LONG}",
        "PartitionName=a",
        f"a|up|{LONG}|idle|1|1|gpu:a:²",
        f"q|{LONG}|x|y",
        "DBD Agent queue size: ²",
        f"lab|{LONG}|²",
        "normal|-1|x|y",
    )
)
@example(texts=("", "PartitionName=a\nTotalNodes=5", "a|up|٣|idle|1+|1|gpu", "", "", "lab||1", ""))
def test_any_configuration_is_a_site(texts: tuple[str, str, str, str, str, str, str]) -> None:
    """scontrol, sinfo, sacctmgr and sdiag: what is no number is a default, and the site has a policy."""
    site = parse_site(SiteTexts(*texts))

    assert site.numbers is not None
    for partition in (None, *(one.name for one in site.partitions)):
        assert policy(site, partition).kill_wait_s >= 0


@FAST
@given(text=TEXTS | st.text(alphabet="an[]-,0129 ", max_size=60))
@example(text=f"n[1-{LONG}]")
@example(text=f"n[{LONG}]")
@example(text="n[²]")
def test_any_host_list_is_names_or_a_value_error(text: str) -> None:
    """A host list has an end: names without brackets, or the one error that is documented."""
    try:
        names = expand_hosts(text)
    except ValueError:
        return
    assert len(names) <= 65536
    assert not [name for name in names if set("[], ") & set(name)]


@pytest.mark.parametrize(
    "text",
    [
        '"a[1-999999999]"',
        '"a[" + ",".join(["0-65535"] * 20_000) + "]"',
        '"a" + "[0-65535]" * 20_000',
        '"a[" + "0" * 4000 + "-65000]"',
        '"a" * 100_000 + "[0-65000]"',
        '",".join(["a[0-65535]"] * 20_000)',
    ],
)
def test_a_host_list_cannot_eat_the_memory(text: str) -> None:
    """However few characters stand for many or long names, a ValueError comes before they are made."""
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({512 * 2**20},) * 2)\n"
        "from launcher.hosts import expand_hosts\n"
        f"try:\n    expand_hosts({text})\nexcept ValueError: print('refused')\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr[-300:]) == ("refused\n", "")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10


@FAST
@given(value=TEXTS.filter(lambda text: "\0" not in text))
@example(value=LONG)
@example(value="²")
def test_any_variable_of_slurms_is_read(value: str) -> None:
    """SLURM_RESTART_COUNT and its kin are inherited by whatever is started below a job: garbled ones are unknown."""
    names = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_NODELIST")
    job_environ(dict.fromkeys(names, value))
