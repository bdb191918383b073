"""Facts about `launcher run` with real agents and workers: how it ends is its exit code, and nothing is left running."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launcher.cli import main as main_module
from launcher.errors import RunDirError
from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome

WAIT_S = 240.0
WORDS = [sys.executable, "-m", "launcher", "run"]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without runs, profiles or an outer job; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "VIRTUAL_ENV", "CONDA"))}
    here = {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "LAUNCHER_RUNS_DIR": str(tmp_path / "runs"),
    }
    return {**kept, **here, "PYTHONPATH": str(Path(main_module.__file__).parents[2])}


def _the_run(folder: Path) -> RunPaths:
    (root,) = (folder / "runs").iterdir()
    return RunPaths(root)


def _processes(root: Path) -> list[str]:
    """Processes that belong to the run: each carries LAUNCHER_RUN_DIR."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LAUNCHER_RUN_DIR") == str(root):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def _until(true: object, what: str) -> None:
    assert callable(true)
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"waited {WAIT_S} s for {what}"
        time.sleep(0.05)


def test_a_failing_script_is_exit_code_8(tmp_path: Path, env: dict[str, str]) -> None:
    """The sentence names the rank and its code; no traceback of ours; nothing runs afterwards."""
    (tmp_path / "fail.py").write_text("raise SystemExit(3)\n")
    words = [*WORDS, "fail.py", "resources.nodes=2", "restart.max_restarts=0", "preflight=false"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert done.returncode == 8, done.stdout + done.stderr
    assert "exit code 3" in done.stdout + done.stderr or "exited with code 3" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    _until(lambda: not _processes(_the_run(tmp_path).root), "the run's processes to end")


USAGE = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args()
"""


def test_a_usage_error_ends_the_run_after_a_second_look(tmp_path: Path, env: dict[str, str]) -> None:
    """Both ranks leave by argparse: two rounds, 10 s apart; argparse's line is in what run, status and why say."""
    (tmp_path / "train.py").write_text(USAGE)
    words = [*WORDS, "train.py", "resources.nodes=2", "preflight=false", "--", "--lrr", "3"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)
    run = _the_run(tmp_path)
    told = [
        subprocess.run(
            [*WORDS[:-1], verb, run.id], env=env, capture_output=True, text=True, timeout=60, check=False
        ).stdout
        for verb in ("status", "why")
    ]
    happened = [e for e in read_lines(run.events) if e["type"] in ("round_started", "worker_failed")]

    assert done.returncode == 8, done.stdout + done.stderr
    for text in (done.stderr, *told):
        assert "train.py: error: unrecognized arguments: --lrr 3" in text, text
    assert "Traceback" not in done.stdout + done.stderr
    assert [e["type"] for e in happened] == ["round_started", "worker_failed"] * 2
    assert happened[2]["t"] - happened[1]["t"] >= 10.0


FILLER = """\
import os, sys
with open(os.environ["LAUNCHER_RUN_DIR"] + "/filler", "wb", buffering=0) as filler:
    for size in (1 << 20, 4096):
        try:
            while True:
                filler.write(bytes(size))
        except OSError as error:
            full = error
raise full
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own for the runs."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    runs = tmp_path / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(runs)], check=True)
    yield runs
    subprocess.run(["umount", "-l", str(runs)], check=True)


def test_a_run_that_ends_on_a_full_disk_has_an_outcome(tmp_path: Path, env: dict[str, str], small_disk: Path) -> None:
    """The disk is full and stays so: the end is written all the same, in the room kept for it, and `why` knows."""
    (tmp_path / "fill.py").write_text(FILLER)
    words = [*WORDS, "fill.py", "restart.max_restarts=0", "preflight=false"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)

    run = _the_run(tmp_path)
    assert done.returncode == 8, done.stdout + done.stderr
    assert (read_outcome(run.outcome) or {})["state"] == "failed"
    assert not run.room.exists()
    told = subprocess.run(
        [*WORDS[:-1], "why", run.id], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert "No space left on device" in told.stdout or "disk" in told.stdout.splitlines()[0], told.stdout
    assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize < 300_000


def test_ctrl_c_on_a_full_disk_stops_the_run(tmp_path: Path, env: dict[str, str], small_disk: Path) -> None:
    """The request to save does not fit: the run is stopped without it, and has an outcome in the room kept for it."""
    go_on = "except OSError:\n            pass\nimport time\ntime.sleep(3600)\n"
    (tmp_path / "fill.py").write_text(FILLER.partition("except")[0] + go_on)
    words = [*WORDS, "fill.py", "preflight=false"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            _until(lambda: os.statvfs(small_disk).f_bavail == 0 or process.poll() is not None, "the disk to be full")
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()

    assert process.returncode == 9, said
    assert "stopping without saving: the request to stop cannot be written into" in said
    assert (read_outcome(_the_run(tmp_path).outcome) or {})["state"] == "cancelled"
    _until(lambda: not _processes(_the_run(tmp_path).root), "the run's processes to end")


def test_ctrl_c_stops_the_run_and_is_exit_code_9(tmp_path: Path, env: dict[str, str]) -> None:
    """The first Ctrl-C asks for an agreed stop; a script is sent TERM; the run ends cancelled and leaves no process."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(3600)\n"
    )
    up = tmp_path / "up"
    words = [*WORDS, "slow.py", "preflight=false", "--", str(up)]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            _until(lambda: up.exists() or process.poll() is not None, "the script to begin")
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()

    assert process.returncode == 9, said
    assert "saving and stopping" in said
    assert (read_outcome(_the_run(tmp_path).outcome) or {})["state"] == "cancelled"
    _until(lambda: not _processes(_the_run(tmp_path).root), "the run's processes to end")


STRUCK = """
import os, sys
from launcher.cli import _submitting
from launcher.submission import submit

moment, number = sys.argv[1], int(sys.argv[2])

def record(*given, real=submit.record, **how):
    os.kill(os.getpid(), number)
    real(*given, **how)

def submit_job(*given, real=_submitting.submit_job, **how):
    one = real(*given, **how)
    os.kill(os.getpid(), number)
    return one

if moment == "while it is recorded":
    submit.record = record
else:
    _submitting.submit_job = submit_job
from launcher.cli.main import main
sys.exit(main(["run", "train.py"]))
"""
BETWEEN = ("while it is recorded", "before its agents start")


@pytest.mark.parametrize("moment", BETWEEN)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_ends_before_its_agents_start_leaves_no_run(
    tmp_path: Path, env: dict[str, str], moment: str, number: signal.Signals
) -> None:
    """Nobody would run it: it was listed as pending, and minutes later as one whose leader had died."""
    (tmp_path / "train.py").write_text("print(1)\n")
    words = [sys.executable, "-c", STRUCK, moment, str(int(number))]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=WAIT_S)

    assert done.returncode == (130 if number == signal.SIGINT else -number), done.stderr
    assert list((tmp_path / "runs").iterdir()) == []
    assert subprocess.run([*WORDS[:-1], "ls"], env=env, capture_output=True, text=True, check=True).stdout.startswith(
        "no runs"
    )


STRUCK_AT_THE_END = """
import os, signal, sys
from launcher.submission.backends.local import Foreground

def wait(self, *given, real=Foreground.wait):
    for _ in range(int(sys.argv[1])):
        os.kill(os.getpid(), signal.SIGINT)
    looks = []
    self.alive = lambda: looks.append(1) or len(looks) < 5
    real(self, *given)
    del self.alive
    open(f"looked-{len(looks)}", "w")

Foreground.wait = wait
from launcher.cli.main import main
sys.exit(main(["run", "train.py", "preflight=false"]))
"""


@pytest.mark.parametrize(("presses", "then"), [(1, "looked-5"), (3, "looked-1")])
def test_ctrl_c_after_the_end_does_not_change_it(tmp_path: Path, env: dict[str, str], presses: int, then: str) -> None:
    """Agents still deliver news of it: the exit code is that of the run, and only the third Ctrl-C waits no longer."""
    (tmp_path / "train.py").write_text("print(1)\n")
    words = [sys.executable, "-c", STRUCK_AT_THE_END, str(presses)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=WAIT_S)

    assert done.returncode == 0, done.stderr
    assert (read_outcome(_the_run(tmp_path).outcome) or {})["state"] == "completed"
    assert (tmp_path / then).exists()


def test_a_killed_command_takes_the_run_along(tmp_path: Path, env: dict[str, str]) -> None:
    """kill -9 of `launcher run`: agents, fork servers and workers end."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(3600)\n"
    )
    up = tmp_path / "up"
    words = [*WORDS, "slow.py", "preflight=false", "--", str(up)]
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _until(lambda: up.exists() or process.poll() is not None, "the script to begin")
            assert _processes(_the_run(tmp_path).root)
        finally:
            process.kill()
    _until(lambda: not _processes(_the_run(tmp_path).root), "the run's processes to end")

    assert up.exists()


SLOW = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(3600)\n"


def _setup_that_waits(folder: Path) -> str:
    """An override: a line of setup that says it has begun and then takes long."""
    return f"environment.setup=['touch {folder}/setting-up; sleep 30']"


def test_stopped_while_it_sets_up(tmp_path: Path, env: dict[str, str]) -> None:
    """Ctrl-C during setup lines, before any agent could hear of it: cancelled, with an outcome, nothing runs on."""
    (tmp_path / "slow.py").write_text(SLOW)
    words = [*WORDS, "slow.py", "resources.nodes=2", _setup_that_waits(tmp_path), "--", str(tmp_path / "up")]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            _until(lambda: (tmp_path / "setting-up").exists() or process.poll() is not None, "setup to begin")
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()

    assert process.returncode == 9, said
    assert (read_outcome(_the_run(tmp_path).outcome) or {})["state"] == "cancelled"
    assert not (tmp_path / "up").exists()
    _until(lambda: not _agents(_the_run(tmp_path).root), "the agents to end")


def _agents(root: Path) -> list[int]:
    """Agents of the run, in whatever stage of their start: the run's folder is on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(root) in " ".join(process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_killed_while_it_sets_up(tmp_path: Path, env: dict[str, str]) -> None:
    """kill -9 of `launcher run` during setup lines: its agents end with it, though nobody asked them to."""
    (tmp_path / "slow.py").write_text(SLOW)
    words = [*WORDS, "slow.py", _setup_that_waits(tmp_path), "--", str(tmp_path / "up")]
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _until(lambda: (tmp_path / "setting-up").exists() or process.poll() is not None, "setup to begin")
            assert _agents(_the_run(tmp_path).root)
        finally:
            process.kill()
    _until(lambda: not _agents(_the_run(tmp_path).root), "the agents to end")

    assert not (tmp_path / "up").exists()


def test_a_terminal_that_closes_saves_and_stops(tmp_path: Path, env: dict[str, str]) -> None:
    """The terminal goes away under `launcher run`: HUP, a script gets TERM, the run ends cancelled, nothing runs on."""
    (tmp_path / "slow.py").write_text(SLOW)
    up = tmp_path / "up"
    master, slave = os.openpty()
    words = [*WORDS, "slow.py", "preflight=false", "--", str(up)]
    with subprocess.Popen(
        words, env=env, stdin=slave, stdout=slave, stderr=slave, preexec_fn=_take_terminal
    ) as process:
        os.close(slave)
        try:
            _until(lambda: up.exists() or process.poll() is not None, "the script to begin")
            os.close(master)  # the kernel sends HUP to the terminal's session
            process.wait(WAIT_S)
        finally:
            process.kill()
    paths = _the_run(tmp_path)

    assert process.returncode == 9
    assert (read_outcome(paths.outcome) or {})["state"] == "cancelled"
    _until(lambda: not _processes(paths.root), "the run's processes to end")


FAILS_ONCE = """\
import os, pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
while os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.05)
if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
    sys.exit(3)
time.sleep(3600)
"""


@pytest.mark.parametrize("both", [False, True], ids=["| head", "2>&1 | head"])
def test_a_reader_that_ends_saves_and_stops(tmp_path: Path, env: dict[str, str], *, both: bool) -> None:
    """The pipe breaks at the next line that is printed: the run is asked to save, ends cancelled, and nothing runs on."""
    (tmp_path / "train.py").write_text(FAILS_ONCE)
    up, go = tmp_path / "up", tmp_path / "go"
    words = [*WORDS, "train.py", "preflight=false", "--", str(up), str(go)]
    errors = (tmp_path / "errors").open("w+")
    with (
        errors,
        subprocess.Popen(
            words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if both else errors, text=True
        ) as process,
    ):
        try:
            _until(lambda: up.exists() or process.poll() is not None, "the script to begin")
            assert process.stdout is not None
            process.stdout.close()
            go.touch()
            process.wait(WAIT_S)
        finally:
            process.kill()
    paths = _the_run(tmp_path)
    said = (tmp_path / "errors").read_text()

    assert process.returncode == 9, said
    assert both or "saving and stopping" in said
    assert (read_outcome(paths.outcome) or {})["state"] == "cancelled"
    assert json.loads(paths.request.read_text())["save"] is True
    _until(lambda: not _processes(paths.root), "the run's processes to end")


def test_output_on_a_full_disk_stops_the_run(tmp_path: Path, env: dict[str, str]) -> None:
    """Not even the first line can be written: a run that was made is stopped, with an outcome, and no agent stays."""
    (tmp_path / "slow.py").write_text(SLOW)
    words = [*WORDS, "slow.py", "preflight=false", "--", str(tmp_path / "up")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            words, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=WAIT_S, check=False
        )
    paths = _the_run(tmp_path)

    assert done.returncode == 9, done.stderr
    assert "saving and stopping" in done.stderr
    assert (read_outcome(paths.outcome) or {})["state"] == "cancelled"
    _until(lambda: not _processes(paths.root), "the run's processes to end")


def _take_terminal() -> None:
    """In the child: a session of its own whose controlling terminal is standard input."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_stopped_command_goes_on(tmp_path: Path, env: dict[str, str]) -> None:
    """Ctrl-Z and fg: the run goes on meanwhile, and the command tells its end when it is woken."""
    go, up = tmp_path / "go", tmp_path / "up"
    (tmp_path / "wait.py").write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\n"
        "while not pathlib.Path(sys.argv[2]).exists():\n    time.sleep(0.05)\n"
    )
    words = [*WORDS, "wait.py", "preflight=false", "--", str(up), str(go)]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            _until(lambda: up.exists() or process.poll() is not None, "the script to begin")
            process.send_signal(signal.SIGSTOP)  # TSTP itself is void in a process group without a terminal
            _until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "the command to stop")
            go.touch()
            _until(lambda: read_outcome(_the_run(tmp_path).outcome), "the run to end by itself")
            process.send_signal(signal.SIGCONT)
            said, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()

    assert (process.returncode, "completed" in said) == (0, True), said


@pytest.mark.parametrize("share", ["group", "none"])
def test_what_a_group_may_read(tmp_path: Path, env: dict[str, str], share: str) -> None:
    """share: group, under umask 077: all of a finished run but its secrets is readable; otherwise nobody enters it.

    What Python keeps beside the modules that it has compiled (__pycache__) is nobody's to read.
    """
    (tmp_path / "train.py").write_text("import os\nopen(os.environ['LAUNCHER_RUN_DIR'] + '/made', 'w').close()\n")
    words = [*WORDS, "train.py", "resources.nodes=2", "preflight=false", f"share={share}"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False, umask=0o077)
    assert done.returncode == 0, done.stdout + done.stderr
    root = _the_run(tmp_path).root

    assert root.stat().st_mode & 0o777 == (0o750 if share == "group" else 0o700)
    if share == "group":
        needed = {True: 0o050, False: 0o040}
        closed = {
            str(p.relative_to(root))
            for p in root.rglob("*")
            if not p.is_symlink()
            and "__pycache__" not in p.parts
            and p.stat().st_mode & needed[p.is_dir()] != needed[p.is_dir()]
        }
        assert {c for c in closed if not c.startswith(("code/", "submitit/"))} == {"secret"}


def test_a_group_may_read_and_never_write(tmp_path: Path, env: dict[str, str]) -> None:
    """share: group, under umask 002, from code that the group may write: nobody else may write anything of the run.

    What is compiled while it runs (__pycache__) is executed, too; so is what a script has made in the run's folder.
    """
    code = tmp_path / "code"
    code.mkdir()
    code.chmod(0o775)
    script = "import os, helper\nos.makedirs(os.environ['LAUNCHER_RUN_DIR'] + '/made/here', exist_ok=True)\n"
    for name, text in (("train.py", script), ("helper.py", "x = 1\n")):
        (code / name).write_text(text)
        (code / name).chmod(0o664)
    words = [*WORDS, str(code / "train.py"), "resources.nodes=2", "preflight=false", "share=group"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False, umask=0o002)
    assert done.returncode == 0, done.stdout + done.stderr
    root = _the_run(tmp_path).root

    found = {str(p.relative_to(root)): p.lstat().st_mode for p in root.rglob("*") if not p.is_symlink()}
    assert any("__pycache__" in name and name.startswith("code/") for name in found)
    assert "made/here" in found
    assert {name for name, mode in found.items() if mode & 0o022} == set()


def test_a_shell_beside_a_local_run(tmp_path: Path, env: dict[str, str]) -> None:
    """A command runs in its code directory, with its variables, passed names, setup and Python; its exit code is the verb's.

    The setup lines run where the job was submitted, as in the run.
    """
    (tmp_path / "slow.py").write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(3600)\n"
    )
    up = tmp_path / "up"
    own = [
        "environment.variables.COLOUR=teal",
        "environment.setup=['export SET_UP=$PWD']",
        "environment.pass=[TOKEN]",
    ]
    look = "import os, sys; print(os.getcwd(), *map(os.environ.get, sys.argv[1:]), sys.executable, sep='\\n')"
    names = ["COLOUR", "SET_UP", "TOKEN", "LAUNCHER_RUN_DIR"]
    with subprocess.Popen(
        [*WORDS, "slow.py", "preflight=false", *own, "--", str(up)], env={**env, "TOKEN": "s3cret"}, stdout=subprocess.DEVNULL
    ) as process:  # fmt: skip
        try:
            _until(lambda: up.exists() or process.poll() is not None, "the script to begin")
            paths = _the_run(tmp_path)
            shell = [*WORDS[:-1], "shell", paths.id]
            done = subprocess.run(
                [*shell, "python", "-c", look, *names], env=env, capture_output=True, text=True, check=False
            )
            coded = subprocess.run([*shell, "sh", "-c", "exit 7"], env=env, check=False)
        finally:
            process.kill()
    _until(lambda: not _processes(paths.root), "the run's processes to end")
    refused = subprocess.run([*shell, "true"], env=env, capture_output=True, text=True, check=False)

    told = [str(paths.code), "teal", str(tmp_path), "s3cret", str(paths.root)]
    assert done.stdout.split("\n")[:5] == told, done.stderr
    assert Path(done.stdout.split("\n")[5]).parent == Path(sys.executable).parent
    assert coded.returncode == 7
    assert (refused.returncode, "is not running" in refused.stderr) == (16, True)


@pytest.mark.parametrize("writable", ["lib/launcher/errors.py", "code", "submitit", "spec.json"])
def test_what_others_could_have_written_is_not_started(tmp_path: Path, env: dict[str, str], writable: str) -> None:
    """Before it starts a shared run, the first node looks at what it executes: one sentence names what everybody can write."""
    (tmp_path / "train.py").write_text(
        "import pathlib\npathlib.Path(__file__).parents[1].joinpath('started').touch()\n"
    )
    words = [*WORDS, "train.py", "preflight=false", "share=group"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    root = _the_run(tmp_path).root
    (root / "started").unlink()
    for name in ("outcome.json", "attempts"):
        (root / name).rename(tmp_path / name)
    target = root / writable
    target.chmod(target.stat().st_mode | 0o002)

    agent = [sys.executable, "-m", "launcher.node.agent", str(root), "--node", "0"]
    refused = subprocess.run(agent, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert refused.returncode == RunDirError.exit_code
    assert refused.stderr.startswith(
        f"launcher: error: {target} can be written by everybody, and this run would execute it: "
    )
    assert not (root / "started").exists()


LOADS = """
import multiprocessing, sys, time, torch, launcher
from torch.utils.data import DataLoader


class Data:
    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        time.sleep(0.5)
        return torch.zeros(1)


def upload(path):
    time.sleep(2)
    open(path, "w").write("uploaded")


run = launcher.attach()
model = torch.nn.Linear(1, 1)
run.register(model=model)
batches = iter(DataLoader(Data(), batch_size=1, num_workers=2, multiprocessing_context="fork"))
for step in run.steps(2):
    next(batches)
multiprocessing.get_context("fork").Process(target=upload, args=(sys.argv[1],)).start()
"""


def test_busy_loader_workers_at_a_scripts_end_disturb_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    """They are killed there, and torch's handler of SIGCHLD would raise at that: other children are waited for, without a traceback."""
    (tmp_path / "loads.py").write_text(LOADS)
    words = [*WORDS, "loads.py", "preflight=false", "distributed.start_method=spawn", "--", str(tmp_path / "out")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out").read_text() == "uploaded"
    assert "Traceback" not in _the_run(tmp_path).rank_log(0, 0, 0).read_text()
