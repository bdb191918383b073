"""Steps that ask SLURM why they were signalled, as the launcher does, and what makes SLURM signal them. Without torch."""

from __future__ import annotations

from pathlib import Path

from cluster import Cluster

_LISTEN = """
signal.signal(signal.SIGTERM, heard)
signal.signal(signal.SIGUSR2, heard)
open(sys.argv[1] + ".ready", "w").close()
while True:
    time.sleep(0.1)
"""


def program(handler: str) -> str:
    """A program that calls ``heard`` of this text at each TERM and USR2; a file beside its argument tells that it listens."""
    return f"import signal, sys, time\n{handler}{_LISTEN}"


def preempt_all(cluster: Cluster, job: str) -> None:
    """Preempt it, wherever it runs."""
    cluster.sbatch("-p", "high", "-N4", "--exclusive", wrap="true")


def cancel_in_grace(cluster: Cluster, job: str, said: Path | None = None) -> None:
    """Preempt it, and cancel it two seconds of SLURM's clock later, when the step has written what it heard to ``said``."""
    preempt_all(cluster, job)
    if said is not None:  # a handler that a second signal interrupts hears what SLURM says then
        cluster.wait(lambda: said.exists() and "\n" in said.read_text(), "the step's answer")
    cluster.wait(lambda: cluster.job(job).get("PreemptTime", "None") != "None", "the preemption")
    began = cluster.job(job)["PreemptTime"]
    cluster.wait(lambda: cluster.run(["date", "+%Y-%m-%dT%H:%M:%S", "-d", "-2 seconds"]).stdout.strip() > began, "2 s")
    cluster.run(["scancel", job])
