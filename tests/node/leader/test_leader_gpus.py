"""GPUs that fail: their errors are in the history, and a host whose GPU failed is used no longer than it has to be."""

from __future__ import annotations

import pytest

ECC = "CUDA error: uncorrectable ECC error encountered"


def hosts_of(w):
    """The hosts of each round."""
    return [sorted({r["host"] for r in e["ranks"]}) for e in w.events("round_started")]


def breaks(w, *, rounds=1, xid=None, error=None):
    """Rank 2 fails at step 5 of the first ``rounds``, with an Xid of its host's GPU before, or by CUDA's error."""

    def hook(worker):
        if worker.rank != 2 or worker.round >= rounds:
            return
        if xid is not None:
            worker.node.up("gpu_error", gpu=0, xid=xid)
        if error is None:
            worker.die(9)
        else:
            worker.fail("torch.AcceleratorError", error)

    w.hooks[5] = [hook]


@pytest.mark.parametrize("how", [{"xid": 79}, {"error": ECC}])
def test_a_spare_replaces_a_host_whose_gpu_failed_at_once(world, virtual, how):
    """The driver's word (Xid 79) or CUDA's: no second failure is waited for."""
    w = world(spare_nodes=1, checkpoint={"interval_steps": 1000})
    breaks(w, **how)

    assert virtual(w.attempt_once()).state == "completed"

    assert hosts_of(w) == [["n0", "n1"], ["n0", "n2"]]
    assert [(e["hosts"], e["why"]) for e in w.events("excluded")] == [(["n1"], "one of its GPUs failed")]


@pytest.mark.parametrize("how", [{"xid": 31}, {"error": "CUDA error: an illegal memory access was encountered"}, {}])
def test_what_a_program_did_is_not_held_against_its_host(world, virtual, how):
    """A page fault of the program, an illegal address: the next round runs on the same hosts."""
    w = world(spare_nodes=1, checkpoint={"interval_steps": 1000})
    breaks(w, **how)

    assert virtual(w.attempt_once()).state == "completed"

    assert hosts_of(w) == [["n0", "n1"]] * 2
    assert not w.events("excluded")


def test_without_a_spare_a_broken_gpu_is_tried_once_more(world, virtual):
    """A contained memory error ends with its program; one that comes again costs the host, and the run is requeued without it."""
    w = world(checkpoint={"interval_steps": 1000})
    breaks(w, rounds=9, error=ECC)

    assert virtual(w.attempt_once()).state == "requeued"

    assert hosts_of(w) == [["n0", "n1"]] * 2
    assert w.allocation.said[0][:2] == ("hand_back", ("n1",))


def test_errors_of_gpus_are_in_the_history(world, virtual):
    """Host, device and number, as the agent told them."""
    w = world()
    breaks(w, xid=31)
    virtual(w.attempt_once())

    (seen,) = w.events("gpu_error")
    assert (seen["host"], seen["gpu"], seen["xid"], seen["round"]) == ("n1", 0, 31, 0)
