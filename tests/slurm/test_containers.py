"""Facts about containers on a real SLURM, by Apptainer itself where it could be had (``.ci/apptainer``).

Elsewhere a stand-in takes its command line and starts the agent in a mount namespace without any of SLURM's commands. It
proves the words of the command line, and that a leader that cannot ask SLURM itself is answered through the batch script.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import Run, submit

from launcher.frozen import frozen

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ["bash", "cat", "env", "sh"]
if sys.base_prefix == "/usr":  # the machine's own Python, and what its virtual environments link to
    TOOLS = sorted({*TOOLS, "python3", Path("/usr/bin/python3").resolve().name})
RELEASE = 'PRETTY_NAME="A laboratory\'s image"\n'

STAND_IN = r"""#!/bin/bash
[ "$1" = exec ] || exit 97
shift
while [[ "$1" == --* ]]; do
  case "$1" in
    --bind) [ -e "$2" ] || exit 96; shift 2;;
    --pwd) dir=$2; shift 2;;
    --env) export "$2"; shift 2;;
    *) echo "apptainer: $1?" >&2; exit 98;;
  esac
done
[[ "$1" == *.sif ]] || exit 95
shift
trap - TERM USR2
exec unshare --mount /bin/bash -c '
  room=$(mktemp -d)
  mount -t tmpfs none "$room" && mkdir "$room/bin" "$room/real" && mount --bind /usr/bin "$room/real"
  cp -s "$room"/real/* "$room/bin/"
  rm "$room"/bin/{sacct,sbatch,scancel,scontrol,sinfo,squeue,srun}
  mount --bind "$room/bin" /usr/bin
  hash -r
  cd "$1" && shift
  command -v scontrol sbatch squeue >>"$HERE/found"
  echo "$PWD" >>"$HERE/inside"
  exec "$@"' container "$dir" "$@"
"""


@frozen
class Runtime:
    """A folder with the command ``apptainer``, an image, and the arguments it needs here."""

    folder: Path
    image: Path
    args: list[str]

    @property
    def is_real(self) -> bool:
        """Whether it is Apptainer itself: the stand-in's image is empty."""
        return self.image.stat().st_size > 0


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    """Apptainer and an image without SLURM; Python and the libraries come from this machine."""
    room = tmp_path_factory.mktemp("image")
    command = shutil.which("apptainer", path=f"{os.environ['PATH']}:{ROOT / '.apptainer/usr/bin'}")
    if command is None:
        (room / "apptainer").write_text(STAND_IN)
        (room / "apptainer").chmod(0o755)
        (room / "lab.sif").touch()
        return Runtime(room, room / "lab.sif", [])
    box = room / "box"
    for folder in ("dev", "etc", "opt", "proc", "root", "sys", "tmp", "usr/bin", "usr/lib", "usr/lib64", "var/tmp"):
        (box / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (box / name).symlink_to(f"usr/{name}")
    for name in TOOLS:
        shutil.copy(f"/usr/bin/{name}", box / "usr/bin" / name)
    for name in ("group", "hosts", "localtime", "passwd"):
        shutil.copy(f"/etc/{name}", box / "etc" / name)
    (box / "etc/os-release").write_text(RELEASE)
    subprocess.run([command, "--quiet", "build", room / "lab.sif", box], check=True, capture_output=True, timeout=120)
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    own = [] if sys.base_prefix == "/usr" else [sys.base_prefix]  # all of /usr would hide the image's commands
    seen = dict.fromkeys(["/usr/lib", "/usr/lib64", *own, sys.prefix, str(Path(torch.origin).parents[1]), str(ROOT)])
    return Runtime(Path(command).parent, room / "lab.sif", [word for path in seen for word in ("--bind", path)])


@pytest.fixture
def run(cluster: Cluster, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of two nodes in containers, with one checkpoint, going on."""
    cluster.cancel_all()
    monkeypatch.setitem(cluster.env, "PATH", f"{runtime.folder}:{cluster.env['PATH']}")
    monkeypatch.setitem(cluster.env, "HERE", str(tmp_path))
    environment = {"container": str(runtime.image), "container_args": runtime.args, "python": sys.executable}
    one = submit(tmp_path, cluster.env, 2, environment=environment)
    one.wait_saved(1)
    one.wait_step(13)
    if runtime.is_real:
        inside = [Path(f"/proc/{agent.pid}/root") for agent in inflict.agents(one).values()]
        assert [RELEASE] * 2 == [(root / "etc/os-release").read_text() for root in inside]
        assert TOOLS == sorted(p.name for p in (inside[0] / "usr/bin").iterdir())
    else:
        assert [str(one.paths.lib)] * 2 == (tmp_path / "inside").read_text().split()
        assert "" == (tmp_path / "found").read_text()
    return one


def test_a_preempted_run_comes_back_though_its_agents_have_no_scontrol(cluster: Cluster, run: Run) -> None:
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


def test_a_cancelled_run_in_a_container_stays_cancelled(cluster: Cluster, run: Run) -> None:
    """scancel is told from a preemption inside a container too."""
    job = run.job_id
    cluster.run(["scancel", job])
    outcome = run.wait_end()
    run.wait_no_process()
    cluster.wait(lambda: cluster.job(job).get("JobState", "") in ("CANCELLED", ""), "the job's end")
    time.sleep(3)

    assert "cancelled" == outcome["state"], outcome
    assert cluster.job(job).get("JobState", "") in ("CANCELLED", "")
    assert 1 == len(run.told("attempt_started"))


@pytest.mark.long
def test_a_killed_leader_in_a_container_is_mended_outside(cluster: Cluster, run: Run) -> None:
    """kill -9 of the leader: the batch script's teardown, outside the container, requeues the run."""
    inflict.kill_agent(run, 0)
    outcome = run.wait_end()
    run.wait_no_process()

    assert "completed" == outcome["state"], outcome
    assert 2 == len(run.told("attempt_started"))


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1], ids=["first host", "another host"])
def test_a_host_of_a_run_in_containers_dies(cluster: Cluster, run: Run, which: int) -> None:
    """Of the first one nobody inside can tell SLURM: it requeues itself a job that is submitted without --no-kill."""
    cluster.set(SlurmdTimeout=10)
    dead = run.state()["nodes"][which]
    cluster.kill(dead)
    outcome = run.wait_end()
    run.wait_no_process()

    assert "completed" == outcome["state"], outcome
    assert 2 == len(run.told("attempt_started"))
    assert dead not in {r["host"] for r in run.told("round_started", attempt=1)[0]["ranks"]}
