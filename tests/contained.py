"""What the tests of both container runtimes share: an image that holds almost nothing, and what runs in it come through."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import inflict
from cluster import Cluster
from harness import Run, digest
from held import Held

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ["bash", "cat", "env", "sh"]
if sys.base_prefix == "/usr":  # the machine's own Python, and what its virtual environments link to
    TOOLS = sorted({*TOOLS, "python3", Path("/usr/bin/python3").resolve().name})
RELEASE = 'PRETTY_NAME="A laboratory\'s image"\n'


def fill_image(box: Path) -> None:
    """The files of an image without SLURM and without libraries: those are this machine's (`seen`)."""
    for folder in ("dev", "etc", "opt", "proc", "root", "sys", "tmp", "usr/bin", "usr/lib", "usr/lib64", "var/tmp"):
        (box / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (box / name).symlink_to(f"usr/{name}")
    for name in TOOLS:
        shutil.copy(f"/usr/bin/{name}", box / "usr/bin" / name)
    for name in ("group", "hosts", "localtime", "passwd"):
        shutil.copy(f"/etc/{name}", box / "etc" / name)
    (box / "etc/os-release").write_text(RELEASE)


def seen() -> list[str]:
    """Folders of this machine that a container sees: libraries, Python and what it imports."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    own = [] if sys.base_prefix == "/usr" else [sys.base_prefix]  # all of /usr would hide the image's commands
    folders = ["/usr/lib", "/usr/lib64", *own, sys.prefix, str(Path(torch.origin).parents[1]), str(ROOT)]
    return list(dict.fromkeys(folders))


def apptainer() -> str | None:
    """The command, the machine's or that of ``.ci/apptainer``; None where there is neither."""
    return shutil.which("apptainer", path=f"{os.environ['PATH']}:{ROOT / '.apptainer/usr/bin'}")


def build_image(command: str, room: Path) -> tuple[Path, list[str]]:
    """An image in ``room``, and the arguments by which Apptainer shows it this machine's libraries."""
    fill_image(room / "box")
    image = room / "lab.sif"
    subprocess.run([command, "--quiet", "build", image, room / "box"], check=True, capture_output=True, timeout=120)
    return image, [word for path in seen() for word in ("--bind", path)]


def assert_inside(run: Run) -> None:
    """Both agents are in the image, and nothing but its own commands is there."""
    inside = [Path(f"/proc/{agent.pid}/root") for agent in inflict.agents(run).values()]
    assert [RELEASE] * 2 == [(root / "etc/os-release").read_text() for root in inside]
    assert TOOLS == sorted(p.name for p in (inside[0] / "usr/bin").iterdir())


def preempted_and_back(cluster: Cluster, run: Run) -> None:
    """The leader learns that it was preempted, saves and requeues through the batch script; no step is lost."""
    cluster.set(GraceTime=20)
    inflict.preempt(cluster, run.state()["nodes"])
    outcome = run.wait_end()
    run.wait_no_process()

    assert "completed" == outcome["state"], outcome
    assert "preempted" in {e["meaning"] for e in run.told("signal")}
    assert ["requeue"] == [e["how"] for e in run.told("requeued")]
    assert [0] == [e["lost_steps"] for e in run.told("stopped")]
    assert [] == list(run.paths.root.glob("courier.*"))


def stays_cancelled(cluster: Cluster, run: Run) -> None:
    """`scancel` is told from a preemption."""
    job = run.job_id
    cluster.run(["scancel", job])
    outcome = run.wait_end()
    run.wait_no_process()
    cluster.wait(lambda: cluster.job(job).get("JobState", "") in ("CANCELLED", ""), "the job's end")
    time.sleep(3)

    assert "cancelled" == outcome["state"], outcome
    assert cluster.job(job).get("JobState", "") in ("CANCELLED", "")
    assert 1 == len(run.told("attempt_started"))


def outlives_leader(run: Run) -> None:
    """kill -9 of the leader: another one takes its place, in a container of its own."""
    inflict.kill_agent(run, 0)
    outcome = run.wait_end()
    run.wait_no_process()

    assert "completed" == outcome["state"], outcome
    assert len(run.told("attempt_started")) == len(run.told("leader_revived")) == 1


def outlives_host(cluster: Cluster, run: Run, which: int) -> None:
    """A dead host costs one attempt, and the next one is elsewhere."""
    cluster.set(SlurmdTimeout=10)
    dead = run.state()["nodes"][which]
    cluster.kill(dead)
    outcome = run.wait_end()
    run.wait_no_process()

    assert "completed" == outcome["state"], outcome
    assert 2 == len(run.told("attempt_started"))
    assert dead not in {r["host"] for r in run.told("round_started", attempt=1)[0]["ranks"]}


def outlives_first_host(cluster: Cluster, run: Run) -> None:
    """The first host dies, and a spare is there: another host leads in the same attempt, and ends the job."""
    cluster.set(SlurmdTimeout=10)
    dead, job = run.state()["nodes"][0], run.job_id
    cluster.kill(dead)
    outcome = run.wait_end()
    run.wait_no_process()

    assert "completed" == outcome["state"], outcome
    assert 1 == len(run.told("attempt_started"))
    assert [dead] == [e["host"] for e in run.told("leader_revived") if e["moved_to"]]
    cluster.wait_job(job, "CANCELLED")


def hold_goes_on(held: Held) -> None:
    """A hold in containers runs a job twice, an agent's death between, and leaves nothing."""
    first, said = held.rerun()
    assert said.returncode == 0, said.stdout + said.stderr
    assert_inside(held.hold)
    inflict.kill_agent(held.hold, 1)
    held.hold.wait("the agent again", lambda: held.hold.told("agent_revived"))

    second, said = held.rerun()
    assert said.returncode == 0, said.stdout + said.stderr
    assert digest(first) == digest(second)
    assert_inside(held.hold)
    assert held.launcher("cancel", held.hold.paths.id).returncode == 0
    assert "cancelled" == held.hold.wait_end()["state"]
    held.hold.wait_no_process()
