"""What is wrong or slow with a run that lives: the right rank or host, one sentence, and no false alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from run_story import Story, training

from launcher.cli.main import cli
from launcher.report.diagnosis.why import explain
from launcher.report.model.summary import summarise_history
from launcher.report.model.troubles import Trouble, troubles
from launcher.slurm.jobs import JobView


def now(story: Story) -> list[Trouble]:
    """The run's troubles."""
    h = story.history()
    return troubles(h, summarise_history(h, None, story.t), story.t)


def ranks(*own_s: float, data: dict[int, float] | None = None) -> list[dict[str, Any]]:
    """Ranks of a step of a second, two on each host, by their own time in it."""
    return [
        {
            "rank": r,
            "host": f"node{r // 2 + 1}",
            "pid": 1,
            "step_time_s": 1.0,
            "own_s": own,
            "data_part": (data or {}).get(r, 0.0),
        }
        for r, own in enumerate(own_s)
    ]


def story(folder: Path, *own_s: float, step: int = 120, **more: Any) -> Story:
    """A run that trains, its ranks with these times."""
    return training(folder).event("first_step", step=1, seconds=1.0).state(step=step, ranks=ranks(*own_s, **more))


def test_a_slow_rank_is_named_with_its_host(tmp_path: Path) -> None:
    """Rank 1 needs five times as long as the others; why and status say so while the run trains."""
    slow = story(tmp_path, 0.2, 1.0, 0.2, 0.2)
    (found,) = now(slow)

    assert found.kind == "slow_rank"
    assert found.sentence.startswith("Rank 1 (node1) takes 5.0 times as long for a step as the others")
    h = slow.history()
    assert explain(h, summarise_history(h, None, slow.t), slow.t).sentence == found.sentence


def test_a_slow_host_is_named_once(tmp_path: Path) -> None:
    """Both ranks of a host are slow: the host is, not two ranks."""
    (found,) = now(story(tmp_path, 0.2, 0.2, 0.2, 0.2, 0.6, 0.5))

    assert (found.kind, found.sentence) == (
        "slow_host", "Host node3 is slow: its ranks 4, 5 take up to 3.0 times as long for a step as the others.",
    )  # fmt: skip


@pytest.mark.parametrize("own_s", [(0.2, 0.25, 0.2, 0.22), (0.2, 0.29), (0.5,)])
def test_jitter_is_no_trouble(tmp_path: Path, own_s: tuple[float, ...]) -> None:
    """A quarter more, or nearly half, is jitter; one rank alone is slow beside nobody."""
    assert now(story(tmp_path, *own_s)) == []


def test_a_warm_up_is_no_trouble(tmp_path: Path) -> None:
    """The first steps compile and open files, on some ranks longer than on others."""
    assert now(story(tmp_path, 0.2, 1.0, 0.2, 0.2, step=15)) == []


def test_who_waits_for_data_is_told(tmp_path: Path) -> None:
    """A slow rank that waits for its loader says so; where all do, training waits for data."""
    (one,) = now(story(tmp_path / "one", 0.2, 1.0, 0.2, 0.2, data={1: 0.8}))
    (every,) = now(story(tmp_path / "all", 0.9, 0.9, 0.9, 0.9, data=dict.fromkeys(range(4), 0.7)))

    assert one.sentence.endswith("(80 % of it waiting for data); they wait for it.")
    assert (every.kind, every.sentence) == ("data", "Training waits for data: 70 % of a step's time.")


def test_saves_that_stop_training_are_told(tmp_path: Path) -> None:
    """Five seconds of each 15 are lost to saving."""
    slow = training(tmp_path)
    for step in range(10, 60, 10):
        slow.wait(15).event("saved", step=step, seconds=6.0, blocked_s=5.0, path=f"checkpoints/step-{step:08d}")
    (found,) = now(slow.state(step=60))

    assert (found.kind, found.sentence) == ("saves", "Saves stop training for 33 % of its time: 5.0 s for each.")


def on_disk(story: Story, *steps: int) -> Story:
    """The checkpoints of these steps are there."""
    for step in steps:
        folder = story.paths.checkpoint(step)
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    return story


def typed(command: str) -> click.Context:
    """The command line as click reads it. Raises click.UsageError."""
    launcher, verb, *words = command.split()
    assert launcher == "launcher"
    found = cli.get_command(click.Context(cli), verb)
    assert found is not None
    return found.make_context(verb, words)


def nan(story: Story, *which: int, until: int | None = None) -> Story:
    """The loss of these ranks is NaN from step 20 on."""
    return story.event(
        "not_finite",
        step=20,
        metric="loss",
        value="nan",
        until=until,
        ranks=[{"rank": r, "host": f"node{r // 2 + 1}"} for r in which],
    )


def test_a_loss_that_is_nan_is_told_with_its_rank_and_step(tmp_path: Path) -> None:
    """The newest checkpoint before it is what to continue from."""
    broken = nan(on_disk(training(tmp_path), 5, 10, 30), 1).state(step=120)
    (found,) = now(broken)

    assert found.sentence == "The metric loss of rank 1 (node1) has been nan since step 20; training goes on."
    assert found.next.endswith("--code --from 10")


@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_a_run_that_ended_with_a_nan_is_not_continued_with_it(tmp_path: Path, state: str) -> None:
    """Its newest checkpoints hold it: `why` sends the user to the one before, unless the metric was finite again."""
    broken = nan(on_disk(training(tmp_path / "run"), 5, 10, 30), 1).outcome(state, "The run was cancelled.")
    (found,) = now(broken)
    h = broken.history()
    said = "\n".join(explain(h, summarise_history(h, None, broken.t), broken.t).lines())

    assert found.sentence == "The metric loss of rank 1 (node1) was nan from step 20 on."
    assert found.next == "launcher resubmit resnet50-1121-0842-k7f --code --from 10"
    assert found.sentence in said
    assert said.count("launcher resubmit") == 1

    (found,) = now(nan(training(tmp_path / "without"), 1).outcome(state))
    assert found.next == "submit the job anew: there is no checkpoint from before step 20"
    assert now(nan(nan(training(tmp_path / "well"), 1), 1, until=21).outcome(state)) == []
    assert now(nan(training(tmp_path / "done"), 1).outcome("completed")) == []


def test_a_nan_that_a_round_went_on_from_is_older_than_it(tmp_path: Path) -> None:
    """A rank died after it, and the next round, from step 30, tells of its own first step: the checkpoint of 30 holds the NaN."""
    broken = nan(on_disk(training(tmp_path), 5, 10, 30), 1).wait(5)
    broken.round_starts(round=1, resume_step=30)
    broken.event("not_finite", round=1, step=31, metric="loss", value="nan", ranks=[{"rank": 1, "host": "node1"}])
    (found,) = now(broken.state(step=120, round=1))

    assert "since step 31" in found.sentence
    assert found.next.endswith("--code --from 10")


def test_a_checkpoint_that_was_deleted_is_not_recommended(tmp_path: Path) -> None:
    """Only the last few are kept: when all from before the NaN are gone, the advice says so."""
    broken = on_disk(training(tmp_path).event("saved", step=10, path="x").event("saved", step=30, path="x"), 30)
    (broken.paths.checkpoints / "step-00000015").mkdir()  # one without a manifest is none
    (found,) = now(nan(broken, 1).state(step=120))

    assert found.next == "launcher cancel resnet50-1121-0842-k7f ends it; there is no checkpoint from before step 20"


def test_commands_that_are_recommended_can_be_typed(tmp_path: Path) -> None:
    """The verb's own parser takes each as it stands: `shell` takes what follows RUN for a command."""
    alone = training(tmp_path / "ended")
    alone.state(
        step=120, ranks=[{"rank": 0, "host": "a", "phase": "ended"}, {"rank": 1, "host": "a", "phase": "script"}]
    )
    broken = nan(on_disk(training(tmp_path / "nan"), 10), 1).state(step=120)
    advice = [found.next for one in (story(tmp_path / "slow", 0.2, 1.0, 0.2), alone, broken) for found in now(one)]
    parsed = [context.params for line in advice for context in map(typed, line.split(", then: "))]

    shell, logs, cancel, resubmit = parsed
    assert (shell["run"], shell["rank"], shell["words"]) == ("resnet50-1121-0842-k7f", 1, ("top",))
    assert (logs["run"], logs["rank"]) == ("resnet50-1121-0842-k7f", 1)
    assert cancel["run"] == resubmit["run"] == "resnet50-1121-0842-k7f"
    assert (resubmit["from_"], resubmit["fresh_code"]) == ("10", True)


def test_a_nan_of_every_rank_blames_none(tmp_path: Path) -> None:
    """All of them had it at the same step."""
    (found,) = now(nan(training(tmp_path), 0, 1, 2, 3).state(step=120))

    assert found.sentence.startswith("The metric loss of all 4 ranks has been nan since step 20")


def test_a_nan_that_has_passed_is_told_as_past(tmp_path: Path) -> None:
    """And that of an earlier round no more."""
    passed = nan(nan(training(tmp_path), 1), 1, until=21).state(step=120)
    (found,) = now(passed)

    assert found.sentence == "The metric loss of rank 1 (node1) was nan at step 20, and finite again at step 21."
    passed.event("round_ended", why="x").round_starts().state(step=120)
    assert now(passed) == []


def test_a_signal_that_meant_nothing_is_told_for_a_while(tmp_path: Path) -> None:
    """Whoever sent USR1 for a save learns that nothing was done, and how to have one."""
    sent = training(tmp_path).event("signal", host="node1", name="USR1", meaning="nothing").wait(60).state(step=120)
    (found,) = now(sent)

    assert found.sentence == "SIGUSR1 came 60 s ago, and SLURM did not send it: training goes on."
    assert now(sent.wait(600).state(step=120)) == []


def test_a_suspended_job_is_told_and_nothing_else(tmp_path: Path) -> None:
    """Its leader is stopped, too: it is silent, and no one is to blame for slow steps."""
    stopped = story(tmp_path, 0.2, 1.0, 0.2, 0.2)
    view = JobView(job_id="482913", state="SUSPENDED", name=stopped.paths.id)
    h = stopped.history()
    s = summarise_history(h, {"482913": view}, stopped.t + 300)
    (found,) = troubles(h, s, stopped.t + 300)

    assert (s.state, s.phase, s.rate, found.next) == ("running", "suspended", None, "scontrol resume 482913")
    assert explain(h, s, stopped.t + 300).sentence == "SLURM has suspended job 482913: its processes are stopped."


def test_a_rank_that_pauses_alone_is_told_after_the_third_time(tmp_path: Path) -> None:
    """Its steps are as long as everybody's: only the moments tell that it alone was at work."""
    h = story(tmp_path, 0.5, 0.5)
    each = ranks(0.5, 0.5)
    h.state(step=120, ranks=[{**each[0], "kept_waiting": 2}, each[1]])
    assert now(h) == []
    h.state(step=120, ranks=[{**each[0], "kept_waiting": 3}, each[1]])
    (found,) = now(h)

    assert found.sentence == "Rank 0 (node1) kept the others waiting 3 times in the last 5 min."


def test_a_local_run_is_not_sent_to_slurm(tmp_path: Path) -> None:
    """`sinfo` knows nothing of the nodes that this machine plays."""
    told = {}
    for backend in ("slurm", "local"):
        waits = Story(tmp_path / backend, batch=backend).submitted(backend=backend).begins().wait(95)
        waits.state(phase="waiting", missing=[{"host": "node2", "ranks": [2, 3]}])
        (found,) = now(waits)
        told[backend] = found.next

    assert told == {
        "slurm": "sinfo -R says why SLURM does not use a node",
        "local": "launcher logs resnet50-1121-0842-k7f",
    }
