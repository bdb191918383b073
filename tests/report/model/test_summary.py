"""The state of a run, from its files and SLURM's answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_story import T0, Story, summarise, training

from launcher.report.diagnosis.why import explain
from launcher.report.model.summary import summarise_history
from launcher.report.model.troubles import troubles
from launcher.report.text.status import lines
from launcher.slurm.jobs import JobView


def test_a_submitted_run_is_pending(tmp_path: Path) -> None:
    """Before its first attempt a run is pending, with SLURM's reason where SLURM answers."""
    h = Story(tmp_path).submitted().history()

    assert summarise_history(h, None, T0 + 5).state == "pending"
    s = summarise_history(h, {"482913": JobView(job_id="482913", state="PENDING", reason="Priority")}, T0 + 5)
    assert (s.state, s.reason, s.job_id, s.attempt, s.submitted) == ("pending", "Priority", "482913", None, T0)


def test_a_training_run_tells_step_speed_and_ranks(tmp_path: Path) -> None:
    """A fresh picture is enough: no question to SLURM is needed."""
    story = training(tmp_path)
    s = summarise(story.paths, None, story.t + 1)

    assert (s.state, s.step, s.total_steps, s.rate, s.eta_s) == ("running", 120, 600, 2.0, 240.0)
    assert (s.attempt, s.round, s.world_size, s.nodes) == (0, 0, 4, ["node1", "node2"])
    assert s.slowest == (3, pytest.approx(0.2))
    assert s.left_here_s == pytest.approx(3600 - 71)
    assert not s.silent


def test_what_this_attempt_was_warned_of_stays_in_sight(tmp_path: Path) -> None:
    """Each sentence once, whichever ranks said it; those of an earlier attempt are past."""
    story = training(tmp_path).event("warning", text="of the first attempt").begins()
    for text, rank in (("no checkpoint", 0), ("no checkpoint", 1), ("a key\x1b[2J", None)):
        story.event("warning", text=text, rank=rank)
    s = summarise(story.paths, None, story.t + 1)

    assert s.warnings == ["no checkpoint", "a key\x1b[2J"]
    (row,) = [line for line in lines(s, story.t, wrong=[]) if "warned" in line]
    assert row.split(maxsplit=1) == ["warned", "no checkpoint; a key [2J"]


def test_lockstep_blames_nobody_but_the_slow(tmp_path: Path) -> None:
    """Equal step times with jitter name no rank; a rank's own time, without waiting for others, names the one that lags."""

    def slowest(*times: tuple[float, float | None]) -> object:
        story = training(tmp_path / str(len(list(tmp_path.iterdir()))))
        ranks = [{"rank": r, "host": "n", "pid": 1, "step_time_s": t, "own_s": own} for r, (t, own) in enumerate(times)]
        story.state(step=120, world_size=len(times), nodes=["n"], ranks=ranks)
        found = summarise(story.paths, None, story.t)
        assert ("slowest" in "".join(lines(found, story.t, wrong=[]))) == (found.slowest is not None)
        return found.slowest

    assert slowest((0.50, None), (0.51, None), (0.49, None), (0.515, None)) is None
    assert slowest((0.50, 0.30), (0.51, 0.31), (0.52, 0.29)) is None
    assert slowest((0.50, 0.30), (0.51, 0.30), (0.49, 0.48)) == (2, pytest.approx(0.6))
    assert slowest((0.0010, 0.0004), (0.0010, 0.0006)) == (1, pytest.approx(0.5))


def test_missing_hosts_are_named_while_waiting(tmp_path: Path) -> None:
    """Status says for whom the leader waits."""
    story = Story(tmp_path).submitted().begins().wait(95)
    story.state(phase="waiting", missing=[{"host": "node2", "ranks": [2, 3, 4, 5]}])
    h = story.history()
    s = summarise_history(h, None, story.t)

    assert "  trouble  The run waits for node2 (ranks 2-5), 95 s so far." in lines(
        s, story.t, wrong=troubles(h, s, story.t)
    )


def test_a_run_that_has_just_begun_misses_nobody(tmp_path: Path) -> None:
    """All nodes are missing in an attempt's first seconds: that is no trouble, and `sinfo -R` knows nothing of it."""
    story = Story(tmp_path).submitted().begins().wait(0.5)
    story.state(phase="waiting", missing=[{"host": "node1", "ranks": [0, 1]}, {"host": "node2", "ranks": [2, 3]}])
    h = story.history()
    s = summarise_history(h, None, story.t)
    said = lines(s, story.t, wrong=troubles(h, s, story.t))

    assert "  phase    waiting for its nodes" in said
    assert not any(line.startswith("  trouble") for line in said)


@pytest.mark.parametrize("how", ["lost", "led"])
def test_a_lost_node_is_waited_for_since_it_was_lost(tmp_path: Path, how: str) -> None:
    """Or since the new leader, to which no agent has come, has begun: not for all the minutes in which the node trained."""
    story = Story(tmp_path).submitted().begins().wait(360)
    if how == "lost":
        story.event("node_lost", host="node2", why="silent")
    else:
        story.event("node_lost", host="node2", why="silent").wait(30).event(
            "leader_revived", host="node1", leader=1, seconds=3.0
        )
    story.wait(18).state(phase="training", missing=[{"host": "node2", "ranks": [1]}])

    assert summarise_history(story.history(), None, story.t).waited_s == pytest.approx(18.0)


def test_a_leader_that_waits_for_another_run_says_for_which(tmp_path: Path) -> None:
    """Without SLURM; its nodes are all there. Once its round has begun, and once it has ended, it waits for nobody."""
    story = (
        Story(tmp_path, batch="local")
        .submitted(backend="local")
        .begins()
        .event("waiting", runs=["first-1121-0800-abc"])
    )
    story.state(phase="waiting")
    s = summarise_history(story.history(), None, story.t)

    assert "  phase    waiting for first-1121-0800-abc" in lines(s, story.t, wrong=[])
    assert explain(story.history(), s, story.t).sentence == (
        "Nothing has gone wrong so far: the run is waiting for first-1121-0800-abc."
    )
    story.round_starts()
    assert summarise_history(story.history(), None, story.t).waits_for == []


@pytest.mark.parametrize("junk", ["", "{", "null", "[1]", '{"state": 5, "t": "x"}', '{"t": 1e999}', "\x00\x01"])
def test_torn_and_foreign_files_are_survived(tmp_path: Path, junk: str) -> None:
    """Whatever a file holds, a summary comes out and can be printed."""
    for name in ("outcome.json", "state.json", "spec.json", "submission.json", "events.jsonl"):
        story = training(tmp_path / name)
        (story.paths.root / name).write_text(junk)
        h = story.history()
        s = summarise_history(h, {}, story.t)
        assert lines(s, story.t, wrong=troubles(h, s, story.t))


def test_an_empty_directory_is_a_pending_run(tmp_path: Path) -> None:
    """A run whose files are not there yet is pending, not an error."""
    (tmp_path / "a-1121-0842-k7f").mkdir()
    from launcher.run.paths import RunPaths

    s = summarise(RunPaths(tmp_path / "a-1121-0842-k7f"), None, T0)
    assert (s.state, s.name) == ("pending", "a")


def test_the_summary_of_a_training_run_reads_as_designed(tmp_path: Path) -> None:
    """The lines of ``status``, word by word."""
    story = training(tmp_path)
    s = summarise(story.paths, None, story.t)

    assert lines(s, story.t, wrong=[]) == [
        "resnet50-1121-0842-k7f  running  job 482913  attempt 0, round 0",
        "  step     120 of 600 (20 %), 2/s, done in 4 min",
        "  metrics  loss 0.25",
        "  ranks    4 of 4 on node1, node2; slowest rank 3 (+20 %)",
        "  limit    59 min left in this attempt; 7 d left in all",
    ]


def test_saves_that_fail_are_shown_while_the_run_trains(tmp_path: Path) -> None:
    """`status` and `why` say how often and for what, and no longer once a checkpoint is there; earlier attempts do not count."""
    story = training(tmp_path).event("save_failed", step=1, error="old", errno_name=None)
    story.begins().round_starts().event("saved", step=100, path="x")
    for step in (110, 120):
        story.event("save_failed", step=step, error="Permission denied", errno_name="EACCES")
    story.state(step=120, total_steps=600)
    h = story.history()
    s = summarise_history(h, None, story.t)

    told = "The run is training, but saving has failed 2 times in a row: EACCES Permission denied."
    assert f"  trouble  {told}" in lines(s, story.t, wrong=troubles(h, s, story.t))
    assert explain(h, s, story.t).sentence == told

    h = story.event("saved", step=130, path="x").history()
    assert troubles(h, summarise_history(h, None, story.t), story.t) == []


def test_ranks_that_have_ended_before_the_others_are_told(tmp_path: Path) -> None:
    """Rank 0 still evaluates, or hangs: `status` and `why` say since when it is alone, and not that the run is training."""
    story = training(tmp_path)
    ranks = [{"rank": r, "phase": "ended", "ended_t": story.t - 300 - r} for r in (1, 2, 3)]
    story.state(step=600, total_steps=600, ranks=[{"rank": 0, "phase": "script", "ended_t": None}, *ranks])
    h = story.history()
    s = summarise_history(h, None, story.t)

    told = "Ranks 1-3 have ended; rank 0 is still in the script, 5 min so far."
    assert f"  trouble  {told}" in lines(s, story.t, wrong=troubles(h, s, story.t))
    assert explain(h, s, story.t).sentence == told


def test_a_plain_script_is_said_to_report_nothing(tmp_path: Path) -> None:
    """`status` and `why` say where its progress is to be seen; a script that reports steps has them shown."""
    plain = training(tmp_path).state(step=0, ranks=[{"rank": 0, "phase": "script"}, {"rank": 1, "phase": "script"}])
    h = plain.history()
    s = summarise_history(h, None, plain.t)
    told = f"not reported by the script (launcher.attach() would): launcher logs {s.run} -f shows what it prints"

    assert f"  progress {told}" in lines(s, plain.t, wrong=[])
    assert ("progress", told) in explain(h, s, plain.t).rows
    attached = summarise(plain.state(step=7, ranks=[{"rank": 0, "phase": "script"}]).paths, None, plain.t)
    assert "progress" not in "".join(lines(attached, plain.t, wrong=[]))


def test_a_script_that_reports_no_steps_is_at_none(tmp_path: Path) -> None:
    """`status` shows no "step 0" of a script that saves its own files, whatever it has done; one that counts to 600 begins at 0."""
    story = Story(tmp_path).submitted().begins().round_starts().event("saved", step=None, path="out/40.pt")

    told = lines(summarise(story.state(step=0).paths, None, story.t), story.t, wrong=[])
    assert "  saved    out/40.pt (the script's own), now" in told
    assert not [line for line in told if line.startswith("  step")]
    assert "  step     0 of 600 (0 %)" in lines(
        summarise(story.state(step=0, total_steps=600).paths, None, story.t), story.t, wrong=[]
    )
