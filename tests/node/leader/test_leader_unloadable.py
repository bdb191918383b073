"""A checkpoint that holds what cannot be loaded: no restart mends that, unless it is damage and an older one is good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from launcher.node.checkpoints import committed
from launcher.node.leader.verify import Proof

REFUSED = (
    "the checkpoint holds a collections.deque and cannot be loaded safely; resubmit --unsafe-load loads it all the same"
)


def refuses(w, step):
    """Workers that are resumed from ``step`` cannot load it, and say so before they are ready."""
    base = w.worker_class

    class Worker(base):
        async def main(self):
            if self.first != step:
                return await base.main(self)
            await asyncio.sleep(0.1)
            self.say(
                "failed",
                exception="launcher.errors.CheckpointError",
                message=REFUSED,
                frames=[],
                step=None,
                kind="unloadable",
            )
            self.node.exited(self, 1, None)

    return Worker


def dies_at(w, step, hurt=lambda: None):
    """Rank 1 dies once."""
    left = [hurt]

    def hook(worker):
        if left and worker.rank == 1:
            left.pop()()
            worker.die(9)

    w.hooks[step] = [hook]


def test_a_type_that_is_refused_ends_the_run_at_once(world, virtual):
    """One round finds it; failed, with the type and the option, the restarts that are left notwithstanding."""
    w = world(checkpoint={"interval_steps": 10}, restart={"max_restarts": 9})
    w.worker_class = refuses(w, 20)
    dies_at(w, 25)

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert len(w.events("round_started")) == 2
    assert (
        f"All 4 ranks raised CheckpointError at step 20: {REFUSED}; a restart would fail in the same way."
        in ending.reason
    )
    assert "the newest checkpoint is of step 20" in ending.reason.lower()


@pytest.mark.parametrize("takes_s", [0, 30])
@pytest.mark.parametrize("flipped", [True, False])
def test_damage_that_looks_like_a_refused_type_is_damage(world, virtual, monkeypatch, takes_s, flipped):
    """A large one whose content is still being verified: the verdict is waited for, and a damaged one gives way to an older."""
    read = Proof._read

    async def slowly(proof):
        await asyncio.sleep(takes_s)
        await read(proof)

    monkeypatch.setattr(committed, "_SMALL_BYTES", 0)
    monkeypatch.setattr(Proof, "_read", slowly)
    w = world(checkpoint={"interval_steps": 10})
    w.worker_class = refuses(w, 20)

    def hurt():
        if flipped:
            part = w.paths.checkpoint(20) / "rank-00001"
            part.write_bytes(bytes([part.read_bytes()[0] ^ 1]) + part.read_bytes()[1:])

    dies_at(w, 29, hurt)
    ending = virtual(w.attempt_once())

    assert ending.state == ("completed" if flipped else "failed")
    assert [e["resume_step"] for e in w.events("round_started")] == ([None, 20, 10] if flipped else [None, 20])
    assert [Path(e["path"]).name for e in w.events("checkpoint_damaged")] == ["step-00000020"] * flipped
