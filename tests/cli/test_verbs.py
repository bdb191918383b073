"""Facts about cancel, logs, clean, completion and resubmit's command lines, on made-up runs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from an_event import an_event
from squeue import squeue_line

from launcher.cli import clean, shell
from launcher.cli.main import main
from launcher.errors import RunDirError, StateError
from launcher.run import event_lines, index
from launcher.run.paths import RunPaths
from launcher.run.processes import mark_of
from launcher.run.spec import RunSpec, Work
from launcher.run.state import read_outcome, write_outcome
from launcher.submission import liveness
from launcher.submission.folder.replace_files import lock
from launcher.submission.resubmit import Again


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of runs, and pretended commands of SLURM that know the jobs in $FAKE/queue."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "squeue").write_text(
        '#!/bin/sh\n[ ! -x "$FAKE/silent" ] || exec "$FAKE/silent"\ncat "$FAKE/queue" 2>/dev/null || true\n'
    )
    (fake / "scancel").write_text('#!/bin/sh\necho "$@" >> "$FAKE/cancelled"\nrm -f "$FAKE/queue"\n')
    for command in fake.iterdir():
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(fake))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def _run(runs: Path, run_id: str, **submission: object) -> RunPaths:
    paths = RunPaths(runs / run_id)
    for folder in (paths.logs, paths.submitit, paths.checkpoints):
        folder.mkdir(parents=True)
    paths.spec.write_text(json.dumps({"id": run_id, "name": index.job_name(run_id)}))
    paths.submission.write_text(json.dumps({"backend": "slurm", "job_id": "42", "submitted_t": 0.0, **submission}))
    index.register(paths.root)
    return paths


@pytest.fixture
def sleeper(runs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a local controller, whose last word is submitit's folder; TERM ends it."""
    folder = runs / "net-1121-0842-k7f" / "submitit"
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(folder)])
    yield process
    process.kill()
    process.wait()


def test_a_waiting_run_is_cancelled_and_has_an_outcome(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No leader ever saw it, so the verb writes how it ended."""
    paths = _run(runs, "net-1121-0842-k7f")
    (runs.parent / "fake" / "queue").write_text(squeue_line("42", "PENDING"))

    assert main(["cancel", "k7f"]) == 0
    assert (runs.parent / "fake" / "cancelled").read_text() == "42\n"
    outcome = read_outcome(paths.outcome) or {}
    assert (outcome["state"], outcome["reason"]) == ("cancelled", "`launcher cancel` ended it before it started.")
    assert "is cancelled" in capsys.readouterr().out


def test_saving_first_asks_the_leader(runs: Path) -> None:
    """cancel --save leaves a request and sends USR2 to the job's steps; it does not end the job itself."""
    paths = _run(runs, "net-1121-0842-k7f")
    (runs.parent / "fake" / "queue").write_text(squeue_line("42", "RUNNING"))

    assert main(["cancel", "k7f", "--save"]) == 0
    assert (runs.parent / "fake" / "cancelled").read_text() == "--signal=USR2 42\n"
    request = json.loads(paths.request.read_text())
    assert (request["action"], request["save"]) == ("stop", True)
    assert read_outcome(paths.outcome) is None


def test_what_has_ended_is_left_alone(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cancelling an ended run changes nothing; nor does cancelling one whose processes are gone."""
    paths = _run(runs, "net-1121-0842-k7f")
    assert main(["cancel", "k7f"]) == 0
    assert "is not running any more" in capsys.readouterr().out
    assert read_outcome(paths.outcome) is None
    write_outcome(paths.outcome, {"state": "completed"})
    assert main(["cancel", "k7f"]) == 0
    assert "has ended already: completed" in capsys.readouterr().out
    assert not (runs.parent / "fake" / "cancelled").exists()


def test_a_local_run_on_another_machine_cannot_be_cancelled_here(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence says where."""
    _run(runs, "net-1121-0842-k7f", backend="local", pid=1, pid_started=None, host="elsewhere")

    assert main(["cancel", "k7f"]) == 16
    assert capsys.readouterr().err == "launcher: net-1121-0842-k7f runs on elsewhere: run this command there\n"


def test_a_local_controller_is_sent_term(runs: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """Cancel reaches the recorded process, and the run has an outcome when nobody else wrote one."""
    paths = _run(
        runs,
        "net-1121-0842-k7f",
        backend="local",
        job_id=str(sleeper.pid),
        pid=sleeper.pid,
        pid_started=mark_of(sleeper.pid),
        host=None,
    )

    assert main(["cancel", "k7f"]) == 0
    assert sleeper.wait(60) == -15
    assert (read_outcome(paths.outcome) or {})["state"] == "cancelled"


def _log(paths: RunPaths, attempt: int, round_: int, rank: int, text: str) -> Path:
    path = paths.rank_log(attempt, round_, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_logs_are_the_newest_rounds(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The latest attempt and round by number, not by name; any other on request."""
    paths = _run(runs, "net-1121-0842-k7f")
    _log(paths, 2, 9, 0, "two nine\n")
    _log(paths, 10, 0, 0, "ten zero\n")
    _log(paths, 2, 10, 1, "rank one\n")

    assert main(["logs", "k7f"]) == 0
    assert main(["logs", "k7f", "--rank", "1"]) == 0
    assert main(["logs", "k7f", "--attempt", "2", "--round", "9"]) == 0
    assert capsys.readouterr().out == "ten zero\nrank one\ntwo nine\n"


def test_the_last_lines_alone(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-n N."""
    _log(_run(runs, "net-1121-0842-k7f"), 0, 0, 0, "a\nb\nc\n")

    assert main(["logs", "k7f", "-n", "2"]) == 0
    assert capsys.readouterr().out == "b\nc\n"


def test_without_a_ranks_log_the_agents_speak(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that failed before its workers started has its reason in the agents' logs."""
    paths = _run(runs, "net-1121-0842-k7f")
    assert main(["logs", "k7f"]) == 16
    assert "has no log yet" in capsys.readouterr().err
    (paths.submitit / "42_0_log.out").write_text("bash: no such python\n")
    assert main(["logs", "k7f"]) == 0
    seen = capsys.readouterr()
    assert "bash: no such python" in seen.out
    assert "these are the logs of the agents" in seen.err


def test_following_goes_on_over_restarts_until_the_end(runs: Path) -> None:
    """-f prints what is added, goes to a new round's log, and ends with the run."""
    paths = _run(runs, "net-1121-0842-k7f")
    (runs.parent / "fake" / "queue").write_text(squeue_line("42", "RUNNING"))
    first = _log(paths, 0, 0, 0, "one\n")
    words = [sys.executable, "-m", "launcher", "logs", "k7f", "-f"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "one\n"
            with first.open("a") as f:
                f.write("two\n")
            assert process.stdout.readline() == "two\n"
            _log(paths, 0, 1, 0, "three\n")
            assert process.stdout.readline() == "three\n"
            write_outcome(paths.outcome, {"state": "completed"})
            assert process.wait(120) == 0
        finally:
            process.kill()


def test_clean_never_takes_what_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ended runs that fit are removed with --yes, the newest kept where asked; running ones stay."""
    old = _run(runs, "net-1120-0842-aaa")
    new = _run(runs, "net-1121-0842-bbb")
    other = _run(runs, "lm-1121-0842-ccc")
    alive = _run(runs, "net-1121-0900-ddd", backend="local", pid=os.getpid(), pid_started=None, host=None)
    for age, paths in enumerate((other, new, old)):
        write_outcome(paths.outcome, {"state": "completed"})
        t = time.time() - 100_000 * (age + 1)
        os.utime(paths.outcome, (t, t))
        os.utime(index.links_dir() / paths.id, (t, t), follow_symlinks=False)

    assert main(["clean"]) == 0
    assert "choose runs to remove with --older-than" in capsys.readouterr().out
    assert main(["clean", "--name", "net", "--older-than", "1"]) == 0  # nobody to ask
    assert old.root.exists()
    assert "--yes removes without asking" in capsys.readouterr().out
    assert main(["clean", "--name", "net", "--older-than", "1", "--keep", "2", "--yes"]) == 0
    assert [p.root.exists() for p in (old, new, other, alive)] == [False, True, True, True]
    assert "net-1120-0842-aaa" not in [r.id for r in index.list_runs()]


def _forgotten(runs: Path, run_id: str, job_id: str) -> RunPaths:
    """A run that began a day ago on SLURM and has no outcome."""
    paths = _run(runs, run_id, job_id=job_id)
    event_lines.append(paths.events, an_event("attempt_started", attempt=0, job_id=job_id))
    os.utime(paths.events, (time.time() - 100_000,) * 2)
    return paths


def test_clean_leaves_what_slurm_knows(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of runs without an outcome those stay whose job runs, waits or is requeued; one whose job is gone is old."""
    states = {"1": "RUNNING", "2": "PENDING", "3": "REQUEUED", "4": "COMPLETING", "5": "COMPLETED"}
    all_ = {job: _forgotten(runs, f"net-1121-0842-aa{job}", job) for job in [*states, "6"]}
    (runs.parent / "fake" / "queue").write_text("\n".join(map(squeue_line, states, states.values())))

    assert main(["clean", "--older-than", "1", "--yes"]) == 0
    assert [job for job, paths in all_.items() if not paths.root.exists()] == ["5", "6"]
    assert "removed 2 runs" in capsys.readouterr().out


SILENT = {
    "refuses": "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n",
    "hangs": "#!/bin/sh\nexec sleep 600\n",
    "is not there": "",
}


@pytest.mark.parametrize("squeue", SILENT)
def test_clean_leaves_what_slurm_is_silent_about(runs: Path, squeue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While SLURM does not answer, a run without an outcome stays, however old; one that has ended is still removed."""
    open_ = _forgotten(runs, "net-1121-0842-aaa", "1")
    ended = _forgotten(runs, "net-1121-0842-bbb", "2")
    write_outcome(ended.outcome, {"state": "completed"})
    os.utime(ended.outcome, (time.time() - 100_000,) * 2)
    fake = runs.parent / "fake"
    if SILENT[squeue]:
        monkeypatch.setattr(liveness, "_ANSWER_S", 0.2)
        (fake / "silent").write_text(SILENT[squeue])
        (fake / "silent").chmod(0o755)
    else:
        monkeypatch.setenv("PATH", str(runs.parent / "empty"))

    assert main(["clean", "--older-than", "1", "--yes"]) == 0
    assert [p.root.exists() for p in (open_, ended)] == [True, False]


def test_clean_leaves_a_run_that_was_started_again_while_it_asked(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is removed is judged again: a run that has gone on stays, and so does one that is being resubmitted."""
    again, busy, old = (_run(runs, f"net-1121-0842-{tag}") for tag in ("aaa", "bbb", "ccc"))
    for paths in (again, busy, old):
        write_outcome(paths.outcome, {"state": "completed"})
    listed = clean._candidates
    held = contextlib.ExitStack()

    def meanwhile(*words: object) -> list[clean.Old]:
        found = listed(*words)  # type: ignore[arg-type]
        again.outcome.unlink()
        (runs.parent / "fake" / "queue").write_text(squeue_line("42", "RUNNING"))
        held.enter_context(lock(busy.root))
        return found

    monkeypatch.setattr(clean, "_candidates", meanwhile)
    with held:
        assert main(["clean", "--name", "net", "--yes"]) == 11

    assert [p.root.exists() for p in (again, busy, old)] == [True, True, False]
    said = capsys.readouterr().err
    assert f"{again.id} is not removed: it has gone on since it was listed" in said
    assert f"{busy.id} is not removed: {busy.id} is being resubmitted or removed by another command" in said
    assert list(runs.glob(".*")) == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_a_removal_that_is_interrupted_can_be_repeated(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stop: type[BaseException]
) -> None:
    """The rest is no run any more, and goes with the next removal, though nothing else of its job is there; of another job's, it stays."""
    paths = _run(runs, "net-1121-0842-aaa")
    write_outcome(paths.outcome, {"state": "completed"})
    remove = clean.shutil.rmtree
    with monkeypatch.context() as patch:

        def interrupted(path: Path) -> None:
            (path / "outcome.json").unlink()
            raise stop

        patch.setattr(clean.shutil, "rmtree", interrupted)
        assert main(["clean", "--name", "net", "--yes"]) in (11, 130)
    assert clean.shutil.rmtree is remove
    capsys.readouterr()
    assert main(["ls"]) == 0
    assert "no runs found" in capsys.readouterr().out
    assert main(["clean", "--name", "other", "--yes"]) == 0
    assert [folder.name for folder in runs.iterdir()] == [f".removing-{paths.id}"]

    assert main(["clean", "--name", "net", "--older-than", "9", "--larger-than", "9", "--yes"]) == 0
    assert list(runs.iterdir()) == []
    assert not os.path.lexists(index.links_dir() / paths.id)


def test_two_removals_of_one_run_do_not_disturb_each_other(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another command has removed meanwhile is no error: the run does not come back in part."""
    paths = _run(runs, "net-1121-0842-aaa")
    write_outcome(paths.outcome, {"state": "completed"})
    remove = clean.shutil.rmtree

    def meanwhile(path: Path) -> None:
        monkeypatch.setattr(clean.shutil, "rmtree", remove)
        (path / "outcome.json").unlink()
        raise FileNotFoundError(2, "No such file or directory", "outcome.json")

    monkeypatch.setattr(clean.shutil, "rmtree", meanwhile)
    assert main(["clean", "--name", "net", "--yes"]) == 0
    assert list(runs.iterdir()) == []


def test_clean_leaves_the_checkpoint_from_which_a_waiting_run_will_begin(runs: Path) -> None:
    """A fork in the queue has no other: the run that it was forked from stays until the fork has ended, or has saved itself."""
    origin, fork = _run(runs, "net-1121-0842-aaa", job_id="41"), _run(runs, "new-1121-0842-bbb", job_id="42")
    write_outcome(origin.outcome, {"state": "completed"})
    fork.spec.write_text(json.dumps({"id": fork.id, "resume": str(origin.checkpoint(10))}))
    (runs.parent / "fake" / "queue").write_text(squeue_line("42", "PENDING"))

    assert main(["clean", "--name", "net", "--yes"]) == 0
    assert origin.root.exists()

    fork.checkpoint(20).mkdir()
    (fork.checkpoint(20) / "manifest.json").write_text("{}")
    assert main(["clean", "--name", "net", "--yes"]) == 0
    assert [p.root.exists() for p in (origin, fork)] == [False, True]


def test_clean_takes_what_a_killed_submission_left(runs: Path) -> None:
    """A day later, for it may still be copying; nothing that was handed over, and no folder of the user's own."""
    killed, copying, own, sweep, queued = (runs / f"net-1121-0842-{tag}" for tag in ("aaa", "bbb", "ccc", "ddd", "eee"))
    for folder in (killed, copying, sweep / "net-1121-0842-ddd000", queued / "net-1121-0842-eee000"):
        (folder / "submitit").mkdir(parents=True)
        if folder != copying:
            os.utime(folder / "submitit", (time.time() - 100_000,) * 2)
    for folder in (sweep, queued):
        (folder / "sweep.json").write_text(json.dumps({"points": [{"run": f"{folder.name}{i:03}"} for i in range(2)]}))
        (folder / f"{folder.name}001").symlink_to(f"{folder.name}000")
    (queued / f"{queued.name}001").unlink()
    _run(queued, f"{queued.name}001", job_id="43")
    own.mkdir()
    (runs.parent / "fake" / "queue").write_text(squeue_line("43", "PENDING"))

    assert main(["clean", "--older-than", "1", "--yes"]) == 0
    assert [f.exists() for f in (killed, copying, own, sweep, queued)] == [False, True, True, False, True]


def test_clean_by_size(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--larger-than takes the large ones alone, a running one not even then."""
    large, small, running = (_run(runs, f"net-1121-0842-{tag}", job_id=tag) for tag in ("aaa", "bbb", "ccc"))
    (runs.parent / "fake" / "queue").write_text(squeue_line("ccc", "RUNNING"))
    for paths in (large, running):
        (paths.checkpoints / "state.pt").write_bytes(b"x" * 3_000_000)
    for paths in (large, small):
        write_outcome(paths.outcome, {"state": "completed"})

    assert main(["clean", "--larger-than", "0.004", "--yes"]) == 0
    assert "no ended run matches" in capsys.readouterr().out
    assert main(["clean", "--larger-than", "0.002", "--yes"]) == 0
    assert [p.root.exists() for p in (large, small, running)] == [False, True, True]


def test_clean_goes_on_behind_a_run_that_it_cannot_remove(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That one is named, the exit code tells, the others are removed: what a link leads to, with the link. Its rest is listed again."""
    far, stuck, last = (_run(runs, f"net-1121-0842-{tag}") for tag in ("aaa", "bbb", "ccc"))
    for paths in (far, stuck, last):
        write_outcome(paths.outcome, {"state": "completed"})
    moved = runs.parent / "scratch"
    far.root.rename(moved)
    far.root.symlink_to(moved)
    (stuck.logs / "busy").mkdir()
    left = runs / f".removing-{stuck.id}"
    subprocess.run(["mount", "-t", "tmpfs", "none", stuck.logs / "busy"], check=True)
    try:
        assert main(["clean", "--name", "net", "--yes"]) == 11
    finally:
        subprocess.run(["umount", left / "logs" / "busy"], check=True)

    said = capsys.readouterr()
    assert "removed 2 runs" in said.out
    assert f"{stuck.id} is not removed: " in said.err
    assert "Device or resource busy" in said.err
    assert [os.path.lexists(p) for p in (far.root, moved, left, last.root)] == [False, False, True, False]
    assert main(["clean"]) == 0
    assert str(left) in capsys.readouterr().out


def test_clean_makes_room_where_not_one_more_file_fits(runs: Path) -> None:
    """A quota of files that is used up does not keep runs from being removed: that needs no file of its own."""
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=12", "none", runs], check=True)
    try:
        paths = _run(runs, "net-1121-0842-aaa")
        write_outcome(paths.outcome, {"state": "completed"})
        with contextlib.suppress(OSError):
            for number in range(12):
                (paths.logs / str(number)).touch()
        assert main(["clean", "--name", "net", "--yes"]) == 0
        assert list(runs.iterdir()) == []
    finally:
        subprocess.run(["umount", runs], check=True)


@pytest.mark.parametrize("words", [["--older-than", "nan"], ["--older-than", "-1"], ["--larger-than", "nan"]])
def test_clean_takes_no_amount_that_every_run_has(runs: Path, words: list[str]) -> None:
    """No run is older than nan days, and every run is older than -1."""
    ended = _run(runs, "net-1121-0842-aaa")
    write_outcome(ended.outcome, {"state": "completed"})

    assert main(["clean", *words, "--yes"]) == 2
    assert ended.root.exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell's script asks this command."""
    assert main(["completion", shell]) == 0
    assert "_LAUNCHER_COMPLETE" in capsys.readouterr().out


def test_run_names_are_completed(runs: Path) -> None:
    """`launcher logs ne<TAB>` offers ids and job names."""
    _run(runs, "net-1121-0842-k7f")
    env = {**os.environ, "_LAUNCHER_COMPLETE": "bash_complete", "COMP_WORDS": "launcher logs ne", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-m", "launcher"], env=env, capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["plain,net-1121-0842-k7f", "plain,net"]


@pytest.mark.parametrize("words", [["resubmit", "k7f", "--from", "soon"], ["logs", "k7f", "--rank", "-1"], ["shell"]])
def test_wrong_options_are_usage_errors(runs: Path, words: list[str]) -> None:
    """click's exit code 2."""
    _run(runs, "net-1121-0842-k7f")

    assert main(words) == 2


def test_a_shell_needs_a_running_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence, not srun's words."""
    _run(runs, "net-1121-0842-k7f")

    assert main(["shell", "k7f", "nvidia-smi"]) == 16
    assert "is not running" in capsys.readouterr().err


def test_a_shell_of_a_rank_that_is_not_there_is_refused_without_slurm_too(
    runs: Path, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """It opened one without a word: on this machine all ranks are on one host."""
    here = {"host": os.uname().nodename, "pid": sleeper.pid, "pid_started": mark_of(sleeper.pid)}
    paths = _run(runs, "net-1121-0842-k7f", backend="local", job_id=None, **here)
    paths.state.write_text(json.dumps({"ranks": [{"rank": 0, "host": "here"}]}))

    assert main(["shell", "--rank", "9", "k7f", "true"]) == 16
    assert "net-1121-0842-k7f has no rank 9 now" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [[{"rank": 0}], [{"rank": 0, "host": None}], 3, ["x"]], ids=str)
def test_a_shell_takes_the_first_host_where_the_picture_names_none(ranks: object) -> None:
    """A damaged picture is no error of the launcher, and srun is asked for no host called None."""
    assert shell._host({"ranks": ranks}, None, "net-k7f") is None
    with pytest.raises(StateError, match="has no rank 0 now"):
        shell._host({"ranks": ranks}, 0, "net-k7f")


def test_slurm_sees_no_passed_value_of_a_shell(runs: Path) -> None:
    """Neither that of passed.json nor the caller's own is in srun's environment; the command has the one of the run."""
    paths = _run(runs, "net-1121-0842-k7f")
    fake = runs.parent / "fake"
    (fake / "queue").write_text(squeue_line("42", "RUNNING"))
    (fake / "srun").write_text('#!/bin/bash\nenv > "$FAKE/seen"\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    (fake / "srun").chmod(0o755)
    spec = RunSpec(
        id=paths.id, name="net", run_dir=str(paths.root), work=Work(kind="script", target="x.py"), batch="slurm", nodes=1, tasks_per_node=1,
        timeout_min=5, backend="gloo", python=sys.executable, pass_names=["TOKEN"], variables={"COLOUR": "teal"},
    )  # fmt: skip
    spec.write(paths.spec)
    paths.passed.write_text('{"TOKEN": "hunter22"}')
    paths.lib.mkdir()
    (paths.lib / "launcher").symlink_to(Path(clean.__file__).parents[1])
    line = [sys.executable, "-m", "launcher", "shell", "k7f", "sh", "-c", "echo $TOKEN $COLOUR"]
    done = subprocess.run(line, env={**os.environ, "TOKEN": "mine4567"}, capture_output=True, text=True, check=False)

    assert done.stdout == "hunter22 teal\n", done.stderr
    seen = (fake / "seen").read_text()
    assert "COLOUR=teal" in seen
    assert "hunter22" not in seen
    assert "mine4567" not in seen


@pytest.mark.parametrize("words", [["shell", "k7f", "true"], ["rerun", "k7f"]], ids=" ".join)
def test_a_torn_spec_is_a_sentence(runs: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """A full disk may leave half of it: both verbs need what it says."""
    paths = _run(runs, "net-1121-0842-k7f")
    (runs.parent / "fake" / "queue").write_text(squeue_line("42", "RUNNING"))
    paths.spec.write_text('{"id": "net')

    assert main(words) == RunDirError.exit_code
    assert f"{paths.spec} cannot be read: it is half-written or no spec" in capsys.readouterr().err


def test_a_sweep_is_cancelled_by_one_scancel(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All waiting points at once; those nobody led have an outcome, an ended one keeps its own."""
    sweep = runs / "net-1121-0842-k7f"
    points = [_run(sweep, f"net-s{i}-1121-0842-k7f00{i}", job_id=f"42_{i}") for i in range(3)]
    (sweep / "sweep.json").write_text(json.dumps({"points": [{"run": p.id} for p in points]}))
    write_outcome(points[1].outcome, {"state": "completed"})
    (runs.parent / "fake" / "queue").write_text(f"{squeue_line('42_0', 'PENDING')}\n{squeue_line('42_2', 'RUNNING')}\n")

    assert main(["cancel", str(sweep)]) == 0
    assert (runs.parent / "fake" / "cancelled").read_text() == "42_0 42_2\n"
    states = [(read_outcome(p.outcome) or {})["state"] for p in points]
    assert states == ["cancelled", "completed", "cancelled"]
    assert "3 of 3 points have ended" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--fork", ""], ["--failed", "--fork", ""]])
def test_a_fork_without_a_name_is_no_resubmission(
    runs: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as --fork "$NAME" where that is not set: the run itself is left alone."""
    paths = _run(runs, "net-1121-0842-k7f")
    monkeypatch.setattr("launcher.submission.resubmit.resubmit", lambda *_: pytest.fail("resubmitted"))

    assert main(["resubmit", paths.id, *words]) in (2, 14)


def test_words_behind_dashes_are_a_resubmissions_arguments(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in submit; each is text, whatever YAML would take it for."""
    paths, heard = _run(runs, "net-1121-0842-k7f"), list[Again]()

    def take(_: RunPaths, how: Again) -> None:
        heard.append(how)
        raise StateError("enough")

    monkeypatch.setattr("launcher.submission.resubmit.resubmit", take)
    main(["resubmit", paths.id, "resources.nodes=2", "--", "--lr", "1e-3", "on", "--fork"])
    main(["resubmit", paths.id])

    assert [how.overrides for how in heard] == [("resources.nodes=2", 'args=["--lr", "1e-3", "on", "--fork"]'), ()]
