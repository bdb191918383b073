"""Record what a SLURM prints: jobs/VERSION/SITUATION.txt and sites/debian-VERSION.txt, which other tests read.

    slurm/cluster up --release trixie; slurm/cluster enter .venv-trixie/bin/python tests/slurm/record_answers.py [SITUATION ...]

A step of a real job asks in its signal handler, as the launcher does. `make slurm RELEASE=trixie` makes that environment.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cluster import Cluster  # noqa: E402
from signalled import cancel_in_grace, preempt_all, program  # noqa: E402

STEP = """
import os, subprocess

def heard(number, frame):
    now = time.time()
    out = subprocess.run(["scontrol", "show", "job", os.environ["SLURM_JOB_ID"]], capture_output=True, text=True).stdout
    with open(sys.argv[1], "a") as f:
        f.write(f"{signal.Signals(number).name[3:]} {now:.1f}\\n{out.strip()}\\n\\n\\0")
"""
Act = Callable[[Cluster, str], object]


def by(*words: str) -> Act:
    """A command about the job."""
    return lambda cluster, job: cluster.run([*words, job])


def nothing(cluster: Cluster, job: str) -> None:
    """Wait for SLURM."""


SITUATIONS: dict[str, tuple[dict[str, object], Act, tuple[str, ...], int]] = {
    "grace": ({"GraceTime": 3}, preempt_all, (), 1),
    "cancel_grace": ({"GraceTime": 3, "PreemptMode": "CANCEL"}, preempt_all, (), 1),
    "usersignal": ({"send_user_signal": "yes"}, preempt_all, (), 1),
    "grace0": ({"GraceTime": 0}, preempt_all, (), 1),
    "requeue": ({}, by("scontrol", "requeue"), (), 1),
    "requeuehold": ({}, by("scontrol", "requeuehold"), (), 1),
    "grace0_norequeue": ({"GraceTime": 0}, preempt_all, ("--no-requeue",), 1),
    "cancel_grace0": ({"GraceTime": 0, "PreemptMode": "CANCEL"}, preempt_all, (), 1),
    "scancel": ({}, by("scancel"), (), 1),
    "scancel_in_grace_cancelmode": ({"PreemptMode": "CANCEL"}, cancel_in_grace, (), 2),
    "limit": ({}, nothing, ("--time=1", "--signal=USR2@10"), 1),
    "limit_term": ({}, nothing, ("--time=1",), 1),
    "term": ({}, by("scancel", "--signal=TERM"), (), 1),
}
"""By name: settings, what happens, options of sbatch, and which signal's answer is kept."""


def record(cluster: Cluster, folder: Path, name: str) -> None:
    """One situation: what its job's step was told."""
    settings, act, options, which = SITUATIONS[name]
    cluster.restore({"KillWait": "60", **{k: str(v) for k, v in settings.items()}})
    with tempfile.TemporaryDirectory(dir="/tmp") as room:
        step, said = Path(room) / "step.py", Path(room) / "said"
        step.write_text(program(STEP))
        wrap = f"srun -N1 -n1 {sys.executable} {step} {said}"
        job = cluster.sbatch("-N4", "--exclusive", *options, wrap=wrap, cwd="/")
        cluster.wait(Path(f"{said}.ready").exists, "the step")
        act(cluster, job)
        cluster.wait(lambda: said.exists() and said.read_text().count("\0") >= which, name, 240)
        text = said.read_text().split("\0")[which - 1]
    text = text.replace(f"{sys.executable} {step} {said}", "python3 step.py said")  # SubmitLine, since 25.11
    (folder / f"{name}.txt").write_text(re.sub(r"WorkDir=\S+", "WorkDir=/home/u", text))
    cluster.cancel_all()


def record_array(cluster: Cluster, folder: Path) -> None:
    """An array of which one element runs."""
    job = cluster.sbatch("--array=1-3%1", wrap="sleep 60", cwd="/")
    cluster.wait(lambda: "JobState=RUNNING" in cluster.run(["scontrol", "show", "job", job]).stdout, "an element")
    text = cluster.run(["scontrol", "show", "job", job], env={"SLURM_TIME_FORMAT": "%s"}).stdout
    (folder / "array.txt").write_text(re.sub(r"WorkDir=\S+", "WorkDir=/home/u", text))
    cluster.cancel_all()


def record_site(cluster: Cluster, path: Path) -> None:
    """What the site's configuration looks like."""
    from launcher.slurm.site import QOS_FIELDS, SINFO_FORMAT

    commands = {
        "config": ["scontrol", "show", "config"], "partitions": ["scontrol", "show", "partition"],
        "nodes": ["sinfo", "--noheader", f"--format={SINFO_FORMAT}"],
        "qos": ["sacctmgr", "-n", "-P", "show", "qos", f"format={QOS_FIELDS}"],
    }  # fmt: skip
    texts = [f"### {name}\n{cluster.run(words).stdout}" for name, words in commands.items()]
    path.write_text("".join(texts).replace(str(cluster.directory), "/var/lib/launcher-cluster"))


def main() -> None:
    """Record all, or the named situations."""
    cluster = Cluster(Path(os.environ.get("LAUNCHER_CLUSTER_DIR") or "/var/lib/launcher-cluster"))
    version = cluster.run(["sinfo", "--version"]).stdout.split()[-1]
    folder = HERE / "jobs" / version
    folder.mkdir(exist_ok=True)
    cluster.restore({})
    cluster.verb("set")
    if not sys.argv[1:]:
        sys.path.insert(0, str(HERE.parents[1]))
        record_site(cluster, HERE / "sites" / f"debian-{'.'.join(version.split('.')[:2])}.txt")
        record_array(cluster, folder)
    for name in sys.argv[1:] or SITUATIONS:
        print(version, name, flush=True)
        record(cluster, folder, name)
    cluster.verb("set")


if __name__ == "__main__":
    main()
