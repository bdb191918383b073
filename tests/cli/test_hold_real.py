"""Facts about `launcher hold` and `launcher rerun` with real agents and workers on this machine."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launcher.cli import main as main_module
from launcher.run import event_lines
from launcher.run.events import Event, RerunEnded, RoundStarted
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome

pytestmark = pytest.mark.torch
WAIT_S = 240.0
TRAIN = """\
import os, sys, time, torch, torch.distributed as dist, helper
dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
print("rank", dist.get_rank(), helper.SAYS, os.environ.get("COLOUR"), os.environ["PYTHONHASHSEED"], os.getcwd(), *sys.argv[1:], flush=True)
for _ in range(int(os.environ.get("BEATS", "0"))):
    dist.all_reduce(t)
    time.sleep(0.05)
dist.destroy_process_group()
"""
JOB = """\
name: toy
script: train.py
resources: {nodes: 2, tasks_per_node: 1, cpus_per_task: 2}
environment: {variables: {OUT: "${run.dir}/out"}}
preflight: false
"""


class Bench:
    """A folder with a job and its code, a hold of it, and the commands of the launcher there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "VIRTUAL_ENV", "CONDA"))}
        here = {"XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config", "LAUNCHER_RUNS_DIR": "runs"}
        self.env = {**kept, **{name: str(folder / value) for name, value in here.items()}}
        self.env["PYTHONPATH"] = str(Path(main_module.__file__).parents[2])
        (folder / "train.py").write_text(TRAIN)
        (folder / "helper.py").write_text('SAYS = "one"\n')
        (folder / "job.yaml").write_text(JOB)

    def launcher(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "launcher", *words], cwd=self.folder, env=self.env, capture_output=True, text=True,
            timeout=WAIT_S, check=False,
        )  # fmt: skip

    def rerun(self, *words: str, code: int = 0) -> RunPaths:
        """Run the job in the hold; return the new run."""
        before = set(self.runs())
        done = self.launcher("rerun", self.hold.id, *words)
        assert done.returncode == code, done.stdout + done.stderr
        self.said = done.stdout + done.stderr
        (new,) = set(self.runs()) - before
        return new

    def status(self, run: str, words: str) -> str:
        """What `status` says once it says these words: a rerun's outcome is there before its agents have left, its name before its leader."""
        told: list[str] = []
        until(lambda: told.append(self.launcher("status", run).stdout) or words in told[-1], f"{words!r}")
        return told[-1]

    def runs(self) -> list[RunPaths]:
        """All runs, the hold included."""
        return [RunPaths(root) for root in sorted((self.folder / "runs").iterdir())]

    @property
    def hold(self) -> RunPaths:
        """The hold."""
        return next(paths for paths in self.runs() if paths.id.startswith("hold-toy"))

    def events(self, *kinds: type[Event]) -> list[Event]:
        """What the hold's history says."""
        return event_lines.read(self.hold.events, *kinds)

    def servers(self) -> set[int]:
        """Process ids of the hold's fork servers: each has its agent for a parent."""
        found = set()
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                if "launcher.node.forkserver.server" in " ".join(words) and str(self.hold.root) in " ".join(words):
                    found.add(process.pid)
            except psutil.Error:
                continue
        return found


def until(true: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"waited {WAIT_S} s for {what}"
        time.sleep(0.05)


def log_of(paths: RunPaths, rank: int = 0) -> str:
    """What a rank printed last."""
    return paths.rank_log(0, 0, rank).read_text()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One hold for all tests here: they show that nothing of a rerun is left for the next one."""
    made = Bench(tmp_path_factory.mktemp("hold"))
    done = made.launcher("hold", "job.yaml", "--backend", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: len(made.servers()) == 2, "its fork servers")
    yield made
    made.launcher("cancel", made.hold.id)
    until(lambda: read_outcome(made.hold.outcome), "the hold's end")


def test_todays_code_runs_each_time_with_torch_imported_once(bench: Bench) -> None:
    """An edit of the same size in the same second is seen: each run has a folder of its own, and bytecode there."""
    first = bench.rerun()
    servers = bench.servers()
    time_of = (bench.folder / "helper.py").stat().st_mtime_ns
    (bench.folder / "helper.py").write_text('SAYS = "two"\n')
    os.utime(bench.folder / "helper.py", ns=(time_of, time_of))
    second = bench.rerun("--", "--lr", "0.1")

    assert "rank 0 one None" in log_of(first)
    assert "rank 0 two None" in log_of(second)
    assert log_of(second).rstrip().endswith(f"{second.code} --lr 0.1")
    assert f"rank 1 two None 0 {second.code}" in log_of(second, 1)
    assert len(servers) == 2
    assert bench.servers() == servers
    assert "torch is imported again" not in bench.said
    spec = json.loads(second.spec.read_text())
    assert (spec["held_by"], spec["variables"]["OUT"]) == (bench.hold.id, f"{second.root}/out")


def test_what_is_unchanged_is_linked_and_cannot_be_written(bench: Bench) -> None:
    """By its content: a file that was only touched is not copied. The user's own file stays writable. root, who can write all, has copies."""
    bench.rerun()  # the hold's helper.py is another one by now
    os.utime(bench.folder / "train.py")
    (bench.folder / "helper.py").write_text('SAYS = "new"\n')
    new = bench.rerun()

    train, kept = (new.code / "train.py").stat(), (bench.hold.code / "train.py").stat()
    linked = os.geteuid() != 0
    assert ((train.st_ino, train.st_dev) == (kept.st_ino, kept.st_dev)) is linked
    assert not linked or not train.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    assert (new.code / "helper.py").stat().st_nlink == 1
    assert (bench.folder / "train.py").stat().st_mode & stat.S_IWUSR
    assert (new.lib / "launcher/errors.py").stat().st_ino == (bench.hold.lib / "launcher/errors.py").stat().st_ino


@pytest.mark.parametrize(
    ("change", "key", "shows"),
    [
        ("environment.variables.COLOUR=red", "environment.variables.COLOUR", "red 0"),
        ("seed=7", "seed", "None 7"),
        ("resources.cpus_per_task=1", "resources.cpus_per_task", "None 0"),
        ('environment.setup=["export COLOUR=blue"]', "environment.setup", "blue 0"),
    ],
)
def test_what_torch_reads_at_its_import_imports_it_again(
    bench: Bench, change: str, key: str | None, shows: str
) -> None:
    """The command says which key of the job did it; the next run with the job as it was does it once more."""
    bench.rerun()
    servers = bench.servers()
    changed = bench.rerun(change)

    assert ("torch is imported again" in bench.said) == (key is not None)
    if key is not None:
        assert f"since {key} has changed" in bench.said
        assert not bench.servers() & servers
    assert f"rank 0 {helper(bench)} {shows}" in log_of(changed)
    bench.rerun()
    assert ("torch is imported again" in bench.said) == (key is not None)


def helper(bench: Bench) -> str:
    """What helper.py says now."""
    return bench.folder.joinpath("helper.py").read_text().split('"')[1]


def test_an_edit_that_fails_is_told_in_place(bench: Bench) -> None:
    """Once, without restarts, with the sentence and the line of `launcher why`; the hold stays."""
    before = (bench.folder / "train.py").read_text()
    (bench.folder / "train.py").write_text(before.replace("t = torch.ones(1)", "t = torch.oness(1)"))
    failed = bench.rerun(code=8)
    (bench.folder / "train.py").write_text(before)

    assert "module 'torch' has no attribute 'oness'" in bench.said
    assert "train.py:3  t = torch.oness(1)" in bench.said
    assert f"correct the code, then: launcher rerun {failed.id}" in bench.said
    assert f"{failed.id} failed" in bench.said
    assert len(event_lines.read(failed.events, RoundStarted)) == 1
    bench.rerun()


@pytest.mark.parametrize("moment", ["while torch is imported", "in its first round"])
def test_ctrl_c_stops_the_rerun_alone(bench: Bench, moment: str) -> None:
    """It ends as cancelled with exit code 9, and nothing that it was about to start is in the next one's way."""
    words = [
        sys.executable,
        "-m",
        "launcher",
        "rerun",
        bench.hold.id,
        f"environment.variables.BEATS={10000 + len(moment)}",
    ]
    before, servers = set(bench.runs()), bench.servers()
    command = subprocess.Popen(words, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: set(bench.runs()) - before, "its folder")
    (new,) = set(bench.runs()) - before
    if moment == "in its first round":
        until(lambda: event_lines.read(new.events, RoundStarted), "its first round")
    else:
        until(lambda: bench.servers() - servers, "another fork server")
    command.send_signal(signal.SIGINT)
    said = command.communicate(timeout=WAIT_S)[0].decode()

    assert command.returncode == 9, said
    assert "saving and stopping; Ctrl-C again gives it some seconds only" in said
    assert (read_outcome(new.outcome) or {})["state"] == "cancelled"
    again = bench.rerun()
    assert len(event_lines.read(again.events, RoundStarted)) == 1


def test_a_detached_rerun_is_cancelled_by_its_name(bench: Bench) -> None:
    """The hold is not: its job is that of all its reruns. A second one is refused meanwhile, and nothing of it is left."""
    new = bench.rerun("--detach", "environment.variables.BEATS=10000")
    before = set(bench.runs())
    refused = bench.launcher("rerun", bench.hold.id)
    told = bench.launcher("cancel", new.id)

    assert refused.returncode == 16
    assert f"{new.id} still runs: launcher cancel {new.id} ends it" in refused.stderr
    assert set(bench.runs()) == before
    assert told.stdout.strip() == f"{new.id} cancelled; {bench.hold.id} stays"
    assert (read_outcome(new.outcome) or {})["state"] == "cancelled"
    assert read_outcome(bench.hold.outcome) is None
    assert bench.launcher("cancel", new.id).stdout.strip() == f"{new.id} has ended already: cancelled"


def test_a_rerun_may_be_named_instead_of_the_hold(bench: Bench) -> None:
    """Its own job is meant then: what it changed stays changed."""
    first = bench.rerun("environment.variables.COLOUR=green")
    before = set(bench.runs())
    done = bench.launcher("rerun", first.id)
    (second,) = set(bench.runs()) - before

    assert done.returncode == 0, done.stderr
    assert "green" in log_of(second)
    assert "torch is imported again" not in done.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("resources.nodes=3", "resources.nodes: the job asks for 3 nodes, "),
        ("resources.tasks_per_node=3", "resources.cpus_per_task: the job asks for 3 x 2 = 6 CPUs a node, "),
        ("environment.container=/tmp/x.sif", "environment.container: "),
    ],
)
def test_a_job_that_does_not_fit_is_refused(bench: Bench, change: str, said: str) -> None:
    """Before anything is written; a smaller one fits."""
    before = set(bench.runs())
    done = bench.launcher("rerun", bench.hold.id, change)

    assert done.returncode != 0
    assert said in done.stderr
    assert set(bench.runs()) == before
    small = bench.rerun("resources.nodes=1")
    assert not small.rank_log(0, 0, 1).exists()


def test_the_hold_says_what_it_does(bench: Bench) -> None:
    """`status` names the rerun, or how to start one; a rerun names its hold."""
    idle = bench.status(bench.hold.id, f"held; launcher rerun {bench.hold.id} runs code in it")
    new = bench.rerun("-d", "environment.variables.BEATS=10000")
    busy = bench.launcher("status", bench.hold.id).stdout
    own = bench.status(new.id, f"{new.id}  running")
    bench.launcher("cancel", new.id)

    assert "goodput" not in idle
    assert f"held; {new.id} runs in it" in busy
    assert own.splitlines()[0].startswith(f"{new.id}  running  in {bench.hold.id}")


def test_a_hold_is_no_run_to_continue(bench: Bench) -> None:
    """It has trained nothing. A rerun is: in an allocation of its own."""
    done = bench.launcher("resubmit", bench.hold.id)

    assert done.returncode == 16
    assert "is a hold: launcher hold JOB takes a new allocation" in done.stderr
    assert {e.state for e in bench.events(RerunEnded) if isinstance(e, RerunEnded)} >= {
        "completed",
        "failed",
        "cancelled",
    }
