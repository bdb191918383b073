"""Steps that ask SLURM why they were signalled, as the launcher does, and what makes SLURM signal them. Without torch."""

from __future__ import annotations

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


def cancel_in_grace(cluster: Cluster, job: str) -> None:
    """Preempt it, and cancel it two seconds of SLURM's clock later."""
    preempt_all(cluster, job)
    cluster.wait(lambda: cluster.job(job).get("PreemptTime", "None") != "None", "the preemption")
    began = cluster.job(job)["PreemptTime"]
    cluster.wait(lambda: cluster.run(["date", "+%Y-%m-%dT%H:%M:%S", "-d", "-2 seconds"]).stdout.strip() > began, "2 s")
    cluster.run(["scancel", job])
