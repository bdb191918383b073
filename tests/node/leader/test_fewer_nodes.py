"""A job that takes a range of nodes goes on with fewer of them in place, and takes those that come back."""

from __future__ import annotations

import asyncio
import os

import pytest
from acts import at, sizes

from launcher.run.spec import Work

SAVES = {"interval_steps": 5, "keep_last": 9}


def ranged(world, **changes):
    """Two to three nodes of two ranks."""
    return world(**{"nodes": 3, "least_nodes": 2, "checkpoint": SAVES, **changes})


def test_a_lost_node_shrinks_the_round_in_place(world, virtual):
    """One attempt; the next round has the nodes that are left and says once what that changes."""
    w = ranged(world)
    at(w, 12, lambda: w.nodes[1].die())
    at(w, 22, lambda: w.find(0).die())

    assert virtual(w.attempt_once()).state == "completed"
    assert sizes(w) == [6, 4, 4]
    assert [e["resume_step"] for e in w.events("round_started")] == [None, 10, 20]
    assert [r["host"] for r in w.events("round_started")[1]["ranks"]] == ["n0", "n0", "n2", "n2"]
    assert [e["text"].partition(":")[0] for e in w.events("warning")] == ["training goes on with 2 nodes of 3"]
    assert "hand_back" not in [said[0] for said in w.allocation.said]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("task", "the samples of each step stay the same"),
        ("function", "a function that does not loop over worker.batches takes fewer samples per step"),
        ("script", "a script that does not loop over run.batches takes fewer samples per step"),
        ("module", "a script that does not loop over run.batches takes fewer samples per step"),
    ],
)
def test_what_fewer_nodes_change_is_said(world, virtual, kind, said):
    """Only `batches` keeps the global batch, and only a task is known to loop over it."""
    w = ranged(world, work=Work(kind=kind, target="train:T"))
    w.names = ["n0", "n1"]

    virtual(w.attempt_once())

    (warning,) = (e["text"] for e in w.events("warning") if "training goes on with" in e["text"])
    assert warning.startswith(
        f"training goes on with 2 nodes of 3: {said}; what depends on the number of ranks changes ("
    )


def test_fewer_than_the_least_are_requeued(world, virtual):
    """Nothing trains on fewer nodes than the job accepts."""
    w = ranged(world)
    at(w, 12, lambda: w.nodes[1].die())
    at(w, 22, lambda: w.nodes[2].die())

    assert virtual(w.attempt_once()).state == "requeued"
    assert sizes(w) == [6, 4]


@pytest.mark.parametrize("least", [2, None])
def test_out_of_memory_on_fewer_nodes_asks_for_all(world, virtual, least):
    """Each rank has more samples then: a restart would fail in the same way, and all nodes may help. Not where all were there."""
    w = ranged(world, least_nodes=least)
    if least:
        at(w, 12, lambda: w.nodes[1].die())
    at(w, 17, lambda: w.find(1).fail("OutOfMemoryError", "CUDA out of memory"))

    state = virtual(w.attempt_once()).state
    if least:
        assert state == "requeued"
        assert "with fewer nodes a rank needs more memory" in w.events("decision")[-1]["reason"]
        assert w.allocation.nodes == (3, 3)
        assert w.events("requeued")[-1]["nodes"] == [3, 3]
    else:
        assert state == "completed"
        assert sizes(w) == [6, 6]


def test_a_node_that_comes_back_is_taken_at_the_next_checkpoint(world, virtual):
    """Its agent was started again, or it was cut off: the round ends behind a checkpoint, and no step is done twice by it."""
    w = ranged(world)
    w.step_s = 1.0
    at(w, 12, lambda: w.nodes[1].die())
    at(w, 16, lambda: asyncio.get_running_loop().call_later(0.5, w.nodes[1].join))

    assert virtual(w.attempt_once()).state == "completed"
    assert sizes(w) == [6, 4, 6]
    assert [d["evidence"] for d in w.events("decision")] == ["node_lost", "more_nodes", "done"]
    saved = [e["step"] for e in w.events("saved") if e["round"] == 1]
    assert w.events("round_started")[2]["resume_step"] == saved[-1] == 20


@pytest.mark.parametrize("writes_s", [0, 30])
def test_behind_a_scripts_own_checkpoint_a_node_is_taken_too(world, virtual, writes_s):
    """A new file of checkpoint.watch is one, once it no longer changes: the round does not end while the script writes it."""
    w = ranged(world, work=Work(kind="script", target="train.py"), checkpoint={"enabled": False, "watch": "ckpt/*"})
    folder = w.paths.root / "ckpt"
    folder.mkdir()

    class Saves(w.worker_class):
        async def main(self):
            self.say("phase", name="script")
            for save in range(1, 5):
                await asyncio.sleep(60)
                for second in range(writes_s + 1):
                    if self.rank == 0:
                        path = folder / f"{self.round}-{save}"
                        path.write_text("x" * (second + 1))
                        os.utime(path, (2e9 + len(os.listdir(folder)),) * 2)
                    await asyncio.sleep(1 if writes_s else 0)
            self.node.exited(self, 0, None)

    w.worker_class = Saves

    async def script():
        await w.until(lambda: w.events("round_started") and all(n.workers for n in w.nodes))
        w.nodes[1].die()
        await w.until(lambda: len(sizes(w)) == 2)
        await asyncio.sleep(20)
        w.nodes[1].join()

    assert virtual(w.attempt_once(script)).state == "completed"
    assert sizes(w) == [6, 4, 6]
    assert [d["evidence"] for d in w.events("decision")] == ["node_lost", "more_nodes", "done"]
    assert [(path.name, len(path.read_text())) for path in folder.glob("1-*")] == [("1-1", writes_s + 1)]


def test_it_starts_with_what_slurm_gave(world, virtual):
    """SLURM may give any number of the range: nobody waits for nodes that are not in the allocation."""
    w = ranged(world)
    w.names = ["n0", "n1"]

    assert virtual(w.attempt_once()).state == "completed"
    assert sizes(w) == [4]
    assert w.events("round_started")[0]["t"] - w.events("attempt_started")[0]["t"] < 2


def test_a_node_that_does_not_start_is_done_without(world, virtual):
    """It is waited for as ever; then the run starts with the others."""
    w = ranged(world)

    assert virtual(w.attempt_once(absent=(2,))).state == "completed"
    assert sizes(w) == [4]


def test_a_revival_is_awaited_before_the_round_shrinks(world, virtual):
    """An agent that is started again within seconds is worth more than a round without it."""
    w = ranged(world)
    w.keep()
    at(w, 12, lambda: w.nodes[1].die())

    assert virtual(w.attempt_once()).state == "completed"
    assert sizes(w) == [6, 6]


def test_a_range_does_without_a_host_whose_ranks_crash(world, virtual):
    """A host on which ranks are killed again and again is left out while enough are well: the run does not fail for it."""
    w = ranged(world)
    w.hooks[3] = [lambda worker: worker.node.name == "n1" and worker.die(signal=11)]

    assert virtual(w.attempt_once()).state == "completed"
    assert sizes(w)[-1] == 4
    (excluded,) = w.events("excluded")
    assert excluded["hosts"] == ["n1"]
