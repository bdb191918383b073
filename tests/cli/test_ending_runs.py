"""Facts about ending a run by ``cancel --save`` and by ``c`` in the live view: they do the same. SLURM's commands are pretended."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from an_event import an_event
from squeue import squeue_line

from launcher.cli.main import main
from launcher.cli.watch import _save_and_end
from launcher.run import event_lines, index
from launcher.run import state as state_files
from launcher.run.paths import RunPaths
from launcher.run.processes import mark_of
from launcher.run.state import read_outcome, write_outcome
from launcher.submission import cancel
from launcher.submission.folder.replace_files import lock_run


class Site:
    """A run, job 42, and commands of SLURM that know it in the state of the file ``queue``; what scancel got is in ``asked``."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder / "runs" / "net-1121-0842-k7f")
        for inner in (self.paths.logs, self.paths.submitit, folder / "tools"):
            inner.mkdir(parents=True)
        place = {"job_folder": str(self.paths.root), "job_name": self.paths.id}
        self.paths.submission.write_text(json.dumps({"backend": "slurm", "job_id": "42", "submitted_t": 0.0, **place}))
        self.queue, self.asked, self.tools = folder / "queue", folder / "asked", folder / "tools"
        self.asked.touch()
        self.command("squeue", f"cat {self.queue} 2>/dev/null || true")
        self.command("scancel", f'echo "$@" >> {self.asked}; rm -f {self.queue}')

    def command(self, name: str, script: str) -> None:
        """Pretend a command of SLURM."""
        (self.tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.tools / name).chmod(0o755)

    def request(self) -> bool | None:
        """Whether the request left for a leader wants a checkpoint; None without one."""
        return bool(json.loads(self.paths.request.read_text())["save"]) if self.paths.request.exists() else None


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A run that nobody leads at this moment."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)  # ./runs is looked into, too
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    made = Site(tmp_path)
    index.register(made.paths.root)
    return made


@contextlib.contextmanager
def running_here(paths: RunPaths, script: str) -> Iterator[subprocess.Popen[str]]:
    """A shell that is the process of a local run; it has begun when it has said ``ready``."""
    env = {**os.environ, "LAUNCHER_RUN_DIR": str(paths.root)}
    with subprocess.Popen(["/bin/bash", "-c", script], env=env, stdout=subprocess.PIPE, text=True) as process:
        said = {
            "backend": "local",
            "host": socket.gethostname(),
            "pid": process.pid,
            "pid_started": mark_of(process.pid),
        }
        paths.submission.write_text(json.dumps({**said, "submitted_t": 0.0}))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def _verb(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> str:
    main(["cancel", "k7f", "--save"])
    said = capsys.readouterr()
    return (said.out + said.err).removeprefix("launcher: ").partition("; launcher status")[0].strip()


def _key(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> str:
    return _save_and_end(paths)


End = Callable[[RunPaths, pytest.CaptureFixture[str]], str]
both = pytest.mark.parametrize("end", [_verb, _key], ids=["verb", "key"])


@both
@pytest.mark.parametrize("state", ["PENDING", "REQUEUED"])
def test_a_waiting_run_is_cancelled_for_good(
    site: Site, end: End, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has an outcome that needs no accounting, whether it has begun before, and a request that a next leader would obey."""
    site.queue.write_text(squeue_line("42", state))
    if state == "REQUEUED":
        event_lines.append(site.paths.events, an_event("attempt_started", attempt=0, job_id="42", host="n1"))
    site.paths.passed.write_text('{"TOKEN": "hunter2"}')

    assert end(site.paths, capsys) == f"{site.paths.id} is cancelled"
    assert not site.paths.passed.exists()
    assert site.asked.read_text() == "42\n"
    assert site.request() is False
    outcome = read_outcome(site.paths.outcome) or {}
    when = "while it waited to go on" if state == "REQUEUED" else "before it started"
    assert (outcome["state"], outcome["reason"]) == ("cancelled", f"`launcher cancel` ended it {when}.")


@both
def test_a_continuation_in_flight_is_cancelled_too(site: Site, end: End, capsys: pytest.CaptureFixture[str]) -> None:
    """The waiting run has moved to another job between the question and scancel: that job is cancelled as well."""
    site.queue.write_text(squeue_line("42", "PENDING"))
    heir = json.dumps(an_event("requeued", attempt=0, how="continuation", job_id="43").raw)
    site.command("scancel", f'echo "$@" >> {site.asked}; echo \'{heir}\' >> {site.paths.events}\n'
                            f'[ "$1" = 42 ] || rm -f {site.queue}')  # fmt: skip

    assert end(site.paths, capsys) == f"{site.paths.id} is cancelled"
    assert site.asked.read_text() == "42\n43\n"
    assert (read_outcome(site.paths.outcome) or {})["state"] == "cancelled"


@both
def test_a_running_run_is_asked_to_save(site: Site, end: End, capsys: pytest.CaptureFixture[str]) -> None:
    """A request and USR2; its leader will say how it ends."""
    site.queue.write_text(squeue_line("42", "RUNNING"))

    assert end(site.paths, capsys) == f"{site.paths.id} is saving and will then stop"
    assert site.asked.read_text() == "--signal=USR2 42\n"
    assert site.request() is True
    assert read_outcome(site.paths.outcome) is None


@pytest.mark.parametrize(
    ("picture", "saves"),
    [
        ({"step": 0, "ranks": [{"rank": 0, "phase": "script"}, {"rank": 1, "phase": "script"}]}, False),
        ({"step": 8, "ranks": [{"rank": 0, "phase": "script"}]}, True),
        ({"step": 0, "ranks": [{"rank": 0, "phase": "script"}, {"rank": 1, "phase": "train"}]}, True),
        ({"step": 0, "ranks": 7}, True),
        ({}, True),
    ],
)
def test_who_saves_is_said(site: Site, picture: dict[str, object], saves: bool) -> None:
    """A script that counts no steps with the launcher gets SIGTERM: "is saving" would be a promise that nobody keeps."""
    site.queue.write_text(squeue_line("42", "RUNNING"))
    site.paths.state.write_text(json.dumps(picture))

    said = cancel.cancel_run(site.paths, save=True).sentence

    assert said == f"{site.paths.id} " + (
        "is saving and will then stop"
        if saves
        else "gets SIGTERM and will then stop; what its script does not save itself is lost"
    )


def test_a_local_run_is_sent_term_until_it_is_heard(site: Site) -> None:
    """submitit's controller hands on to nobody what comes before its tasks are started: the run trained on, said to be cancelled.

    What was heard before the run was submitted again does not count.
    """
    event_lines.append(site.paths.events, an_event("signal", host="here", name="TERM", meaning="cancelled"))
    event_lines.append(site.paths.events, an_event("submitted", job_id="1", by="resubmit"))
    with running_here(site.paths, "trap 'trap - TERM' TERM; echo ready; while :; do sleep 0.05; done") as process:
        done = cancel.cancel_run(site.paths, save=False)

        assert done == cancel.Cancelled(f"{site.paths.id} is cancelled", over=True)
        assert process.wait() == -signal.SIGTERM
    assert (read_outcome(site.paths.outcome) or {})["state"] == "cancelled"


def test_a_local_run_whose_leader_hears_signals_is_sent_term_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one is an event of the run."""
    event_lines.append(site.paths.events, an_event("signal", host="here", name="HUP", meaning="nothing"))
    monkeypatch.setattr(cancel, "_WAIT_S", 2.0)
    with running_here(site.paths, "trap 'echo TERM' TERM; echo ready; while :; do sleep 0.05; done") as process:
        done = cancel.cancel_run(site.paths, save=False)
        assert process.stdout is not None
        heard = process.stdout.readline()  # it may have stood still meanwhile
        process.kill()

        assert heard + process.stdout.read() == "TERM\n"
    assert done == cancel.Cancelled(f"{site.paths.id} is being cancelled", over=False)


@both
@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_when_slurm_refuses_no_request_stays(
    site: Site, end: End, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence is SLURM's, and no later attempt believes that it was cancelled."""
    site.queue.write_text(squeue_line("42", state))
    site.command("scancel", "echo 'Access denied' >&2; exit 1")

    assert end(site.paths, capsys) == "scancel failed: Access denied"
    assert site.request() is None
    assert read_outcome(site.paths.outcome) is None


def test_without_slurms_commands_its_module_is_asked_for(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell in which SLURM's module is not loaded: the sentence says so, and the run is left alone."""
    monkeypatch.setenv("PATH", str(site.paths.root))

    assert _verb(site.paths, capsys) == "squeue is not on the PATH: load SLURM's module"
    assert site.request() is None


@both
def test_what_is_over_is_left_alone(site: Site, end: End, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither SLURM's jobs nor files are touched of a run that has ended, or that SLURM does not know any more."""
    assert end(site.paths, capsys) == f"{site.paths.id} is not running any more"
    write_outcome(site.paths.outcome, {"state": "completed"})
    site.queue.write_text(squeue_line("42", "COMPLETING"))
    assert end(site.paths, capsys) == f"{site.paths.id} has ended already: completed"
    assert (site.asked.read_text(), site.request()) == ("", None)


@both
def test_a_run_that_nobody_could_end_loses_its_passed_values(
    site: Site, end: End, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an outcome, as after a plain scancel of a waiting job: but not while it is being resubmitted, or SLURM is silent."""
    site.paths.passed.write_text('{"TOKEN": "hunter2"}')
    site.command("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    end(site.paths, capsys)
    site.command("squeue", "true")
    with lock_run(site.paths):
        end(site.paths, capsys)
    kept = site.paths.passed.exists()

    assert end(site.paths, capsys) == f"{site.paths.id} is not running any more"
    assert (kept, site.paths.passed.exists()) == (True, False)
    assert read_outcome(site.paths.outcome) is None


@both
def test_another_job_with_its_id_is_left_alone(site: Site, end: End, capsys: pytest.CaptureFixture[str]) -> None:
    """SLURM lost the job and gave its id to one of the user's other jobs."""
    site.queue.write_text(squeue_line("42", "RUNNING", "precious", o="/home/ann/precious.sh"))

    assert end(site.paths, capsys) == f"{site.paths.id} is not running any more"
    assert (site.asked.read_text(), site.request()) == ("", None)


@pytest.fixture
def full_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the runs is full: no file can be written."""

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state_files, "write_atomic", full)
    monkeypatch.setattr(event_lines, "append_line", full)


@pytest.mark.parametrize("was", ["PENDING", "RUNNING"])
def test_a_full_disk_keeps_no_run_from_being_cancelled(
    site: Site, full_disk: None, was: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """scancel needs no file of the run: the job is cancelled without a request, and without an outcome where none fits."""
    site.queue.write_text(squeue_line("42", was))

    assert main(["cancel", "k7f"]) == 0
    assert capsys.readouterr().out == f"{site.paths.id} is cancelled\n"
    assert site.asked.read_text() == "42\n"


def test_on_a_full_disk_a_run_is_not_asked_to_save(
    site: Site, full_disk: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the request its signal would mean something else: the sentence says what is wrong, and the run goes on."""
    site.queue.write_text(squeue_line("42", "RUNNING"))

    assert main(["cancel", "k7f", "--save"]) == 11
    why = f"the request to stop cannot be written into {site.paths.root}: no space left on device"
    assert capsys.readouterr().err == f"launcher: {why}\n"
    assert site.asked.read_text() == ""


def test_a_full_disk_keeps_no_sweep_from_being_cancelled(
    site: Site, full_disk: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One scancel for all its points."""
    _sweep(site, tmp_path, job50="PENDING", job51="RUNNING")

    assert main(["cancel", "swp"]) == 0
    assert capsys.readouterr().out == "2 of 2 points have ended\n"
    assert site.asked.read_text() == "50 51\n"


def _sweep(site: Site, folder: Path, **states: str) -> dict[str, RunPaths]:
    """Points by job id, in these states; a job is in the queue while its file is there, and scancel takes it away."""
    queue, made = folder / "jobs", {}
    queue.mkdir()
    for job, state in states.items():
        number = job.removeprefix("job")
        point = made[number] = RunPaths(folder / "runs" / "lr-1121-0900-swp" / f"lr-{number}-1121-0900-swp")
        point.root.mkdir(parents=True)
        place = {"job_folder": str(folder / "runs" / "lr-1121-0900-swp"), "job_name": "lr-1121-0900-swp"}
        point.submission.write_text(json.dumps({"backend": "slurm", "job_id": number, "submitted_t": 0.0, **place}))
        if state != "ended":
            (queue / number).write_text(squeue_line(number, *state.split()) + "\n")
    sweep = folder / "runs" / "lr-1121-0900-swp"
    (sweep / "sweep.json").write_text(json.dumps({"points": [{"run": p.root.name} for p in made.values()]}))
    index.register(sweep)
    site.command("squeue", f"cat {queue}/* 2>/dev/null || true")
    site.command("scancel", f'echo "$@" >> {site.asked}; cd {queue} && [ "$1" = --signal=USR2 ] || rm -f "$@"')
    return made


def test_a_sweeps_points_are_cancelled_at_once(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One scancel for all that SLURM has; an outcome stays; requests tell those on the way to another job; ids of others do not count."""
    points = _sweep(site, tmp_path, job50="PENDING", job51="RUNNING", job52="ended", job53="RUNNING precious")
    write_outcome(points["52"].outcome, {"state": "completed"})

    assert main(["cancel", "swp"]) == 0
    assert capsys.readouterr().out == "4 of 4 points have ended\n"
    assert site.asked.read_text() == "50 51\n"
    states = [(read_outcome(p.outcome) or {})["state"] for p in points.values()]
    assert states == ["cancelled", "cancelled", "completed", "cancelled"]
    assert [p.request.exists() for p in points.values()] == [True, True, False, False]


def test_a_point_that_moved_to_another_job_is_cancelled_there(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the question and scancel one point's leader has submitted a continuation: that job is cancelled as well."""
    points = _sweep(site, tmp_path, job50="RUNNING", job51="RUNNING")
    waits = squeue_line("60", "PENDING")
    heir, queue = json.dumps(an_event("requeued", attempt=0, how="continuation", job_id="60").raw), tmp_path / "jobs"
    site.command("scancel", f'echo "$@" >> {site.asked}; cd {queue}; rm -f "$@"\n'
                            f"[ $# = 1 ] || {{ echo '{heir}' >> {points['50'].events}; echo '{waits}' > 60; }}")  # fmt: skip

    assert main(["cancel", "swp"]) == 0
    assert capsys.readouterr().out == "2 of 2 points have ended\n"
    assert site.asked.read_text() == "50 51\n60\n"
    assert [(read_outcome(p.outcome) or {})["state"] for p in points.values()] == ["cancelled", "cancelled"]


def test_when_slurm_refuses_no_points_request_stays(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, and no point believes later that it was cancelled."""
    points = _sweep(site, tmp_path, job50="PENDING", job51="RUNNING")
    site.command("scancel", "echo 'Access denied' >&2; exit 1")

    assert main(["cancel", "swp"]) != 0
    assert capsys.readouterr().err == "launcher: scancel failed: Access denied\n"
    assert [(p.request.exists(), p.outcome.exists()) for p in points.values()] == [(False, False), (False, False)]


def test_the_process_of_a_point_is_not_taken_for_a_job(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A point was resubmitted with --backend local: the job of SLURM that has its process's number is another one."""
    points = _sweep(site, tmp_path, job50="RUNNING", job51="RUNNING precious")
    there = {"backend": "local", "host": "elsewhere", "job_id": "51", "pid": 51, "pid_started": 1.0, "job_name": None}
    points["51"].submission.write_text(json.dumps({**there, "job_folder": str(points["51"].root)}))

    assert main(["cancel", "swp"]) == 16
    said = capsys.readouterr()
    assert site.asked.read_text() == "50\n"
    assert said.out == "1 of 2 points have ended\n"
    assert said.err.endswith(f"{points['51'].id} runs on elsewhere: run this command there\n")
    assert read_outcome(points["51"].outcome) is None


def test_a_point_that_slurm_refuses_keeps_no_other_from_saving(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of three running points is ending: the first and the third are asked to save, and the exit code is SLURM's."""
    points = _sweep(site, tmp_path, job50="RUNNING", job51="COMPLETING", job52="RUNNING")
    refusal = "echo 'Job/step already completing' >&2; exit 1"
    site.command("scancel", f'echo "$@" >> {site.asked}; [ "$2" != 51 ] || {{ {refusal}; }}')

    assert main(["cancel", "swp", "--save"]) == 5
    said = capsys.readouterr()
    assert site.asked.read_text() == "--signal=USR2 50\n--signal=USR2 51\n--signal=USR2 52\n"
    assert [p.request.exists() for p in points.values()] == [True, False, True]
    assert said.out.count("is saving and will then stop") == 2
    assert said.err == f"{points['51'].id} is not cancelled: scancel failed: Job/step already completing\n"


def test_points_that_wait_are_cancelled_at_once_by_save_too(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One scancel for those with nothing to save, before one of them starts; the running ones are asked to save."""
    points = _sweep(site, tmp_path, job50="RUNNING", job51="PENDING", job52="PENDING", job53="ended")
    write_outcome(points["53"].outcome, {"state": "completed"})

    assert main(["cancel", "swp", "--save"]) == 0
    assert site.asked.read_text() == "51 52\n--signal=USR2 50\n"
    assert capsys.readouterr().out.splitlines() == [
        "2 of 2 waiting points have ended",
        f"{points['50'].id} is saving and will then stop; launcher status {points['50'].id} shows when it has ended",
        f"{points['53'].id} has ended already: completed",
    ]
    assert (read_outcome(points["51"].outcome) or {})["state"] == "cancelled"
    assert read_outcome(points["50"].outcome) is None


def test_running_points_save_although_slurm_keeps_the_waiting_ones(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """scancel of what waits is refused: each of those is named, and the running point is asked to save."""
    points = _sweep(site, tmp_path, job50="PENDING", job51="RUNNING", job52="PENDING")
    site.command("scancel", f'echo "$@" >> {site.asked}; [ "$2" = 51 ] || {{ echo "Access denied" >&2; exit 1; }}')

    assert main(["cancel", "swp", "--save"]) == 5
    assert site.asked.read_text() == "50 52\n--signal=USR2 51\n"
    assert [p.request.exists() for p in points.values()] == [False, True, False]
    assert capsys.readouterr().err.splitlines() == [
        f"{points[job].id} is not cancelled: scancel failed: Access denied" for job in ("50", "52")
    ]


@pytest.mark.parametrize("words", [["cancel", "swp"], ["cancel", "swp", "--save"]])
@pytest.mark.parametrize("torn", ["", '{"points": [{"ru', "[]", '{"points": 3}'])
def test_a_sweep_whose_list_cannot_be_read_is_cancelled(
    site: Site, tmp_path: Path, torn: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its points are the folders in it that hold a run; what else is there, its code included, is no point."""
    points = _sweep(site, tmp_path, job50="PENDING", job51="PENDING")
    sweep = points["50"].root.parent
    for folder in (*(p.root for p in points.values()), sweep / "code"):
        folder.mkdir(exist_ok=True)
        (folder / "spec.json").write_text("{}")
    (sweep / "sweep.json").write_text(torn)

    assert main(words) == 0
    assert [(read_outcome(p.outcome) or {})["state"] for p in points.values()] == ["cancelled", "cancelled"]
    assert "50" in site.asked.read_text().split()
    assert "51" in site.asked.read_text().split()


@pytest.mark.parametrize("words", [["cancel", "swp"], ["cancel", "swp", "--save"], ["resubmit", "--failed", "swp"]])
def test_a_sweep_of_which_no_point_is_found_is_not_called_done(
    site: Site, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither sweep.json nor the folder tells of one: a sentence and an exit code, since jobs may be there all the same."""
    sweep = _sweep(site, tmp_path, job50="PENDING")["50"].root.parent
    (sweep / "sweep.json").write_text("")  # and the points of `_sweep` have no spec.json

    assert main(words) == 16
    assert capsys.readouterr().err == f"launcher: {sweep.name} is a sweep, and no point of it is found in {sweep}\n"


def test_a_point_whose_job_is_not_known_keeps_no_other_from_being_cancelled(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One point's submission.json is torn: the others are cancelled, and it is named with the reason."""
    points = _sweep(site, tmp_path, job50="PENDING", job51="RUNNING", job52="PENDING")
    points["51"].submission.write_text('{"backend": "slu')

    assert main(["cancel", "swp"]) == 16
    said = capsys.readouterr()
    assert site.asked.read_text() == "50 52\n"
    assert said.out == "2 of 3 points have ended\n"
    assert said.err == (
        f"{points['51'].id} is not cancelled: {points['51'].submission} cannot be read (it is half-written or not JSON), "
        "so the job of the run is not known\n"
    )
    assert [p.outcome.exists() for p in points.values()] == [True, False, True]
