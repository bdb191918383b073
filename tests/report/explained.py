"""Runs that end, and what `launcher why` says of them."""

from __future__ import annotations

from pathlib import Path

from run_story import Story

from launcher.report.diagnosis.why import Why, explain
from launcher.report.model.summary import summarise_history


def training(root: Path, **spec: object) -> Story:
    """Four ranks on two hosts, at step 120, with step 100 saved."""
    story = Story(root, code_dir="/runs/r/code", python="/env/bin/python", **spec).submitted().wait(10).begins().wait(5)
    story.round_starts(resume_step=None).wait(5).event("first_step", step=1, seconds=5.0)
    commit(story, 100)
    return story.wait(50).event("save_started", step=100).event("saved", step=100, seconds=1.0, blocked_s=0.1)


def commit(story: Story, step: int) -> None:
    """The checkpoint of ``step`` is on disk."""
    story.paths.checkpoint(step).mkdir(parents=True)
    (story.paths.checkpoint(step) / "manifest.json").write_text("{}")


def gives_up(story: Story, evidence: str, reason: str = "", state: str = "failed", **outcome: object) -> Story:
    """The leader decides to end the run."""
    text = f"It broke; {reason or 'restart.max_restarts is used up and training got no further'}."
    story.event("decision", evidence=evidence, action="cancel" if state == "cancelled" else "fail", reason=text)
    return story.event("attempt_ended", why=text).outcome(state, text, **outcome)


def why(story: Story, slurm: dict[str, object] | None = None, later: float = 60.0) -> Why:
    """The explanation a minute later."""
    history = story.history()
    return explain(history, summarise_history(history, slurm, story.t + later), story.t + later)
