"""A leader that ended with a sentence is told by it, by whoever acts for it: "died and left no message" is for those that did."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from an_event import an_event

from launcher.errors import ProtocolError, RunDirError
from launcher.node.agent import leading
from launcher.node.agent.membership import Doors
from launcher.node.allocation import teardown
from launcher.node.allocation.allocation import HandedBack, SignalMeaning
from launcher.node.allocation.early_exits import leader_words
from launcher.node.checkpoints import claims
from launcher.node.wire.messages import Hub
from launcher.report.diagnosis.why import explain
from launcher.report.model.history import read_history
from launcher.report.model.summary import summarise_history
from launcher.run import event_lines
from launcher.run.batch import MARK
from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.spec import RestartSpec, RunSpec, Work
from launcher.run.state import read_outcome

SENTENCE = "The run directory /runs/r cannot be written: [Errno 30] Read-only file system: '/runs/r/attempts/0'."

DIED = "The leader died and left no message; the run is requeued."
SRUN_KILLED = "An srun of the job was killed, which ends its step; the run is requeued."


class Slurm:
    """A job that still runs; notes what it is asked."""

    job_id, restart_count, requeues = "5", 0, True

    def __init__(self) -> None:
        self.said: list[object] = []

    def meaning(self, signal: str) -> SignalMeaning:
        return SignalMeaning("unknown")

    def answers(self) -> bool:
        return True

    def taken(self) -> bool:
        return bool(self.said)

    def cancelled(self) -> bool:
        return False

    def hand_back(self, *, exclude: tuple[str, ...], delay_s: float) -> HandedBack:
        self.said.append("hand_back")
        return HandedBack("requeue", "5")

    def withdraw_nodes(self) -> None:
        """No node was asked for."""

    def withdraw_early(self) -> None:
        """No job was queued early."""

    def forbid_requeue(self) -> None:
        self.said.append("forbid_requeue")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunSpec, RunPaths]:
    """Job 5 of a run that was submitted, in its first life."""
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=1,
        tasks_per_node=1, timeout_min=5, backend="gloo", port_range=[20000, 20031],
    )  # fmt: skip
    paths = RunPaths(tmp_path)
    paths.submitit.mkdir()
    spec.write(paths.spec)
    event_lines.append(paths.events, an_event("submitted", attempt=None, job_id=None, by="submit"))
    return spec, paths


def ends_with(paths: RunPaths, error: Exception, capfd: pytest.CaptureFixture[str], *, life: int = 0) -> None:
    """The first node's log of a life whose leader ended with this error, as its agent writes it."""

    async def fails(serve: object) -> None:
        raise error

    async def obeys() -> int:
        return await asyncio.sleep(100, 0)

    doors = Doors(RunSpec.read(paths.spec), "0" * 32, "5.0", ["n0"], 0)
    code = asyncio.run(leading.lead_and_obey(SimpleNamespace(run=fails), obeys(), doors)).exit_code
    with (paths.submitit / "5_0_log.out").open("a") as log:
        log.write(
            f"{MARK}5.{life}\nsubmitit INFO (x) - starting\n{capfd.readouterr().err}srun: error: n0: task 0: Exited\n"
        )
    assert code == error.exit_code


def test_a_reruns_leader_says_nothing_of_its_hold(
    run: tuple[RunSpec, RunPaths], capfd: pytest.CaptureFixture[str]
) -> None:
    """It writes into the log of its hold's agent: its last words are not the hold's, which goes on."""
    spec, paths = run
    ends_with(paths, RunDirError("no room"), capfd)
    assert "no room" in leader_words(paths)

    (paths.submitit / "5_0_log.out").unlink()
    replace(spec, held_by="hold-x").write(paths.spec)
    ends_with(paths, RunDirError("no room"), capfd)
    assert leader_words(paths) == ""


def why(paths: RunPaths) -> str:
    """What `launcher why` says."""
    history = read_history(paths)
    now = history.events[-1].t + 1
    return explain(history, summarise_history(history, None, now), now).sentence


@pytest.mark.parametrize("began", [False, True])
def test_an_attempt_that_ended_with_a_sentence_is_told_by_it(
    run, capfd: pytest.CaptureFixture[str], began: bool
) -> None:
    """Before it claimed anything, or later: in the decision, in the history and by `why`; requeued as ever."""
    spec, paths = run
    if began:
        claims.claim_attempt(paths, job_id="5")
        event_lines.append(paths.events, an_event("attempt_started", attempt=0, job_id="5", host="n0", restart_count=0))
    ends_with(paths, RunDirError(SENTENCE), capfd)
    slurm = Slurm()

    assert teardown.act(spec, paths, slurm) is True

    told = f"The leader {'failed' if began else 'could not begin'}: {SENTENCE.rstrip('.')}"
    (decision,) = [e for e in read_lines(paths.events) if e["type"] == "decision"]
    assert (decision["reason"], decision["said"]) == (f"{told}; the run is requeued.", told)
    assert slurm.said == ["hand_back"]
    assert why(paths).startswith(f"{told}.")


def test_the_run_that_ends_because_of_it_says_so(run, capfd: pytest.CaptureFixture[str]) -> None:
    """Not to be requeued: the outcome holds the sentence."""
    spec, paths = run
    spec = replace(spec, restart=RestartSpec(requeue=False))
    ends_with(paths, RunDirError(SENTENCE), capfd)

    assert teardown.act(spec, paths, Slurm()) is False

    assert read_outcome(paths.outcome)["reason"] == (
        f"The leader could not begin: {SENTENCE.rstrip('.')}; the run may not be requeued."
    )
    assert why(paths) == f"The leader could not begin: {SENTENCE}"


def test_a_task_that_could_not_begin_is_told_by_its_error(run) -> None:
    """The image of the first node cannot be had, so no leader could write a sentence: the runtime's own is told, by `why` too."""
    spec, paths = run
    (paths.submitit / "5_0_log.out").write_text(
        f"{MARK}5.0\nslurmstepd-n0: error: pyxis:     [ERROR] No such file or directory: /img/x.sqsh\n"
    )

    teardown.act(replace(spec, restart=RestartSpec(requeue=False)), paths, Slurm())

    assert why(paths) == "The leader could not begin: No such file or directory: /img/x.sqsh."


def test_an_error_that_a_setup_line_prints_is_nobodys_last_word(run) -> None:
    """It went on: a killed leader or agent of that node is started again, and the run's end is not told by it."""
    _, paths = run
    (paths.submitit / "5_0_log.out").write_text(
        f"{MARK}5.0\nerror: XDG_RUNTIME_DIR not set in the environment.\n12:00:01 agent: joined\n"
    )

    assert leader_words(paths) == ""


def test_what_an_earlier_life_said_is_not_this_ones(run, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log outlives requeues."""
    spec, paths = run
    ends_with(paths, RunDirError(SENTENCE), capfd)
    with (paths.submitit / "5_0_log.out").open("a") as log:
        log.write(f"{MARK}5.1\nsubmitit INFO (x) - starting\n")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")

    assert leader_words(paths) == ""
    slurm = Slurm()
    slurm.restart_count = 1
    teardown.act(spec, paths, slurm)
    (decision,) = [e for e in read_lines(paths.events) if e["type"] == "decision"]
    assert decision["reason"] == "The leader died and left no message; the run is requeued."
    assert "said" not in decision


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "/var/spool/job00005/slurm_script: line 31: 4242 Killed                  srun --unbuffered /bin/bash -c x",
            SRUN_KILLED,
        ),
        (
            "srun: forcing job termination\nsrun: error: node1: task 0: Killed",
            SRUN_KILLED.replace("was killed", "received a signal (HUP or TERM)"),
        ),
        ("slurmstepd-n0: error: *** JOB 5 ON n0 CANCELLED ***\nsrun: forcing job termination", DIED),
        ("srun: error: node1: task 0: Killed", DIED),
    ],
)
def test_an_srun_that_was_killed_is_told_from_a_leader_that_was(run, line: str, reason: str) -> None:
    """The shell of the batch script reports its own child alone; of a task that was killed srun itself tells."""
    spec, paths = run
    claims.claim_attempt(paths, job_id="5")
    event_lines.append(paths.events, an_event("attempt_started", attempt=0, job_id="5", host="n0", restart_count=0))
    paths.submitit.mkdir(parents=True, exist_ok=True)
    (paths.submitit / "5_0_log.out").write_text(f"{MARK}5.0\nsubmitit INFO (x) - starting\n{line}\n")

    assert teardown.act(spec, paths, Slurm()) is True
    (decision,) = [e for e in read_lines(paths.events) if e["type"] == "decision"]
    assert decision["reason"] == reason


def test_a_leader_that_stood_still_did_not_die(run) -> None:
    """The agent that acts for it knows better, and `why` has it from there."""
    spec, paths = run
    claims.claim_attempt(paths, job_id="5")
    event_lines.append(paths.events, an_event("attempt_started", attempt=0, job_id="5", host="n0", restart_count=0))

    assert teardown.act(spec, paths, Slurm(), said="The leader on n0 did not respond for 28 s") is True

    (decision,) = [e for e in read_lines(paths.events) if e["type"] == "decision"]
    assert decision["reason"] == "The leader on n0 did not respond for 28 s; the run is requeued."
    assert why(paths).startswith("The leader on n0 did not respond for 28 s.")


def test_a_leaders_sentence_is_found_in_its_log_where_nobody_acted(run, capfd: pytest.CaptureFixture[str]) -> None:
    """The batch script could not judge either: SLURM's word and the log are all there is."""
    paths = run[1]
    ends_with(paths, RunDirError(SENTENCE), capfd)
    history = read_history(paths)
    now = history.events[-1].t + 1000
    reason = "The leader died and left no message (SLURM says FAILED)."
    summary = replace(summarise_history(history, None, now), state="failed", reason=reason)

    assert explain(history, summary, now).sentence == f"The leader could not begin: {SENTENCE}"


def test_an_agent_that_fails_ends_the_leader_beside_it(
    run: tuple[RunSpec, RunPaths], capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing was said of it, and the leader waited for its own node until init_timeout_min was over."""
    spec, _ = run

    async def waits(serve: object) -> object:
        return await asyncio.sleep(100, 0)

    async def fails() -> int:
        raise RuntimeError("no such device")

    doors = Doors(spec, "0" * 32, "5.0", ["n0", "n1"], 0)
    ending = asyncio.run(leading.lead_and_obey(SimpleNamespace(run=waits), fails(), doors))

    assert (ending.state, ending.reason, ending.exit_code) == ("failed", "no such device", 1)
    assert "the agent failed: no such device" in (said := capfd.readouterr().err)
    assert "Traceback" in said


def test_a_host_that_allows_too_few_open_files_says_so(
    run: tuple[RunSpec, RunPaths], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each agent's connection is one: agents that no file is left for would be hung up on, and their nodes called missing."""
    spec, _ = run
    monkeypatch.setattr(leading.open_files, "raise_limit", lambda: None)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))

    async def serves(serve: Callable[[Hub], Awaitable[object]]) -> object:
        return await serve(SimpleNamespace())  # type: ignore[arg-type]

    async def obeys() -> int:
        return await asyncio.sleep(100, 0)

    doors = Doors(spec, "0" * 32, "5.0", [f"n{i}" for i in range(1000)], 0)
    ending = asyncio.run(leading.lead_and_obey(SimpleNamespace(run=serves), obeys(), doors))

    assert ending.exit_code == ProtocolError.exit_code
    assert ending.reason == "A process on n0 may open 1,024 files (ulimit -Hn), too few to lead 1,000 nodes."
    assert ending.reason in capfd.readouterr().err
