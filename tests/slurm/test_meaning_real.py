"""The table of `launcher.slurm.meaning`, measured: a step asks SLURM in its handler why it was signalled."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster import Cluster
from signalled import cancel_in_grace, preempt_all, program

STEP = """
import dataclasses, json, os
from launcher.slurm.environ import job_environ
from launcher.slurm.jobs import job_facts
from launcher.slurm.meaning import meaning_of

here = job_environ()

def heard(number, frame):
    name = signal.Signals(number).name[3:]
    facts = job_facts(here.own_id)
    why = meaning_of(facts, name, restart_count=here.restart_count, now=time.time(), lead_s=100)
    with open(sys.argv[1], "a") as f:
        f.write(json.dumps({"signal": name, **dataclasses.asdict(why)}) + "\\n")
    if facts.state not in ("RUNNING", "SIGNALING"):
        os._exit(0)
"""

Act = Callable[[Cluster, str], object]


@pytest.fixture(scope="module", autouse=True)
def patient(cluster: Cluster) -> Iterator[None]:
    """A handler has a minute to ask SLURM, also on a busy machine."""
    cluster.set(KillWait=60)
    yield
    cluster.restore({})


def first_heard(cluster: Cluster, tmp_path: Path, act: Act, *options: str, lines: int = 1) -> list[dict[str, Any]]:
    """What the first step of a job makes of the first signals it is sent after ``act``."""
    step, said = tmp_path / "step.py", tmp_path / "said"
    step.write_text(program(STEP))
    wrap = f"PYTHONPATH={Path(__file__).parents[2]} srun -N1 -n1 {sys.executable} {step} {said}"
    job = cluster.sbatch("-N4", "--exclusive", "--signal=USR2@10", *options, wrap=wrap)
    cluster.wait(Path(f"{said}.ready").exists, "the step")
    try:
        act(cluster, job)
        cluster.wait(lambda: said.exists() and said.read_text().count("\n") >= lines, "a signal")
        return [json.loads(line) for line in said.read_text().splitlines()[:lines]]
    finally:
        cluster.cancel_all()


def test_preemption_with_grace_tells_how_long_it_lasts(cluster: Cluster, tmp_path: Path) -> None:
    """At the beginning of the grace time a step learns that it is preempted and when the grace time ends."""
    heard = first_heard(cluster, tmp_path, preempt_all)[0]

    assert (heard["signal"], heard["kind"], heard["slurm_requeues"]) == ("TERM", "preempted", False)
    assert 5 < heard["left_s"] <= 21


def test_preemption_without_grace_is_requeued_by_slurm(cluster: Cluster, tmp_path: Path) -> None:
    """With GraceTime=0 SLURM has decided to requeue before the step is signalled."""
    cluster.set(GraceTime=0)
    heard = first_heard(cluster, tmp_path, preempt_all)[0]

    assert (heard["signal"], heard["kind"], heard["slurm_requeues"]) == ("TERM", "preempted_now", True)


def test_preemption_by_cancelling_is_not_taken_for_a_users_cancel(cluster: Cluster, tmp_path: Path) -> None:
    """With PreemptMode=CANCEL and GraceTime=0 the step learns that it is preempted, and that SLURM will not requeue."""
    cluster.set(GraceTime=0, PreemptMode="CANCEL")
    heard = first_heard(cluster, tmp_path, preempt_all)[0]

    assert (heard["signal"], heard["kind"], heard["slurm_requeues"]) == ("TERM", "preempted_now", False)


def test_the_user_signal_at_preemption_means_preemption(cluster: Cluster, tmp_path: Path) -> None:
    """With send_user_signal, USR2 comes instead of TERM, and is not taken for the time limit's."""
    cluster.set(send_user_signal="yes")
    heard = first_heard(cluster, tmp_path, preempt_all)[0]

    assert (heard["signal"], heard["kind"]) == ("USR2", "preempted")


def cancel(cluster: Cluster, job: str) -> None:
    """As a user would."""
    cluster.run(["scancel", job])


def test_scancel_is_a_cancel(cluster: Cluster, tmp_path: Path) -> None:
    """scancel is known for what it is, at once."""
    heard = first_heard(cluster, tmp_path, cancel)[0]

    assert (heard["signal"], heard["kind"], heard["slurm_requeues"]) == ("TERM", "cancelled", False)


def kill_script(cluster: Cluster, job: str) -> None:
    """kill -9 of the shell that runs the batch script."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            env = process.environ()
            mine = (env.get("SLURM_JOB_ID"), env.get("SLURM_CONF")) == (job, cluster.env["SLURM_CONF"])
            if mine and any(word.endswith("/slurm_script") for word in process.cmdline()):
                process.kill()


@pytest.mark.parametrize(
    ("act", "kind"),
    [(kill_script, "script_gone"), (lambda c, job: c.run(["scancel", "--signal=KILL", job]), "cancelled")],
    ids=["kill -9", "scancel"],
)
def test_a_killed_batch_script_is_told_from_a_cancel(cluster: Cluster, tmp_path: Path, act: Act, kind: str) -> None:
    """The end of the batch script by kill -9 is no cancel; scancel --signal=KILL is one."""
    heard = first_heard(cluster, tmp_path, act)[0]

    assert (heard["kind"], heard["slurm_requeues"]) == (kind, False)


@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL"])
def test_a_cancel_during_the_grace_time_is_a_cancel(cluster: Cluster, tmp_path: Path, mode: str) -> None:
    """A job that is cancelled while it is being preempted is cancelled, whatever the site does with preempted jobs."""
    cluster.set(PreemptMode=mode)
    heard = first_heard(cluster, tmp_path, partial(cancel_in_grace, said=tmp_path / "said"), lines=2)

    assert [h["kind"] for h in heard] == ["preempted", "cancelled"]


def test_somebody_elses_requeue_is_slurms(cluster: Cluster, tmp_path: Path) -> None:
    """After `scontrol requeue` from outside nothing needs to be asked of SLURM."""
    heard = first_heard(cluster, tmp_path, lambda c, job: c.run(["scontrol", "requeue", job]))[0]

    assert (heard["kind"], heard["slurm_requeues"]) == ("preempted_now", True)


@pytest.mark.long
def test_the_time_limit_is_announced(cluster: Cluster, tmp_path: Path) -> None:
    """--signal announces the time limit, with the seconds that are left until then."""
    heard = first_heard(cluster, tmp_path, lambda c, job: None, "--time=2", "--signal=USR2@100")[0]

    assert (heard["signal"], heard["kind"]) == ("USR2", "time_limit")
    assert 60 < heard["left_s"] <= 120
