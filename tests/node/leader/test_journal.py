"""The run's history where one of its files cannot be written."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("name", ["samples", "metrics"])
def test_a_file_that_cannot_be_written_holds_back_no_other(world, virtual, name):
    """A lost storage target, or a link that somebody has put there: the events are whole, and one of them tells it, once."""
    w = world(checkpoint={"interval_steps": 10})
    w.step_s = 1.0
    getattr(w.paths, name).mkdir()

    class Measured(w.worker_class):
        def say(self, type_, **values):
            super().say(type_, **values)
            if type_ == "progress":
                super().say("metrics", step=values["step"], epoch=0, metrics={"loss": 1.0})

    w.worker_class = Measured

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["step"] for e in w.events("saved")] == [10, 20, 30, 40]
    assert [e["state"] for e in w.events("ended")] == ["completed"]
    warning = f"the history cannot be written: {name}.jsonl: Is a directory; retrying"
    assert [e["text"] for e in w.events("warning")] == [warning]
    assert (w.paths.metrics.is_file(), w.paths.samples.is_file()) == (name == "samples", name == "metrics")
