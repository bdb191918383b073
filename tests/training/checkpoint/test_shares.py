"""Large states: each rank writes a share of what all hold alike; rank 0 writes everything where they might differ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, make_spec, run, wait_for
from scripted import script

import launcher
from launcher.errors import CheckpointError
from launcher.run.spec import CheckpointSpec
from launcher.run.worker_texts import NOT_ALIKE, NOT_TOGETHER
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint
from launcher.training.checkpoint.plain import is_stand_in
from launcher.training.checkpoint.read import load_shared
from launcher.training.checkpoint.shares import dealt

EVERY = CheckpointSpec(interval_steps=2, keep_last=1000)


def trained(folder: Path, ranks: int, *, resume: Path | None = None, **params: Any) -> Crew:
    """A run that saves at every second step."""
    spec = make_spec(
        folder, "alike_jobs:trains", ranks, kind="function", checkpoint=EVERY, params=params, deterministic=True
    )
    return run(spec, ranks, resume=resume)


def elsewhere(checkpoint: Path) -> set[int]:
    """The ranks that wrote a share of it."""
    found: set[int] = set()

    def look(node: Any) -> None:
        if is_stand_in(node) and node["type"] == "Elsewhere":
            found.add(node["value"][0])
        for value in node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ():
            look(value)

    look(torch.load(checkpoint / "state.pt", weights_only=True))
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_run_resumes_exactly_from_shares(tmp_path: Path, ranks: int) -> None:
    """Every rank writes one; tied weights, buffers and an average of the user's own come back, also on another number of ranks."""
    full = trained(tmp_path / "full", ranks)
    middle = full.paths.checkpoint(2)
    again = trained(tmp_path / "again", ranks, resume=middle)
    other = trained(tmp_path / "other", 1, resume=middle)

    assert elsewhere(middle) == set(range(1, ranks))
    assert [step.name for step in again.committed] == [step.name for step in full.committed[1:]]
    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])
    assert len(other.committed) == 3 - 1


def test_shares_hold_what_one_rank_would_have_written(tmp_path: Path) -> None:
    """The same run with one writer ends with equal digests; a weight that has two names is one tensor."""
    shared = trained(tmp_path / "shared", 2)
    alone = trained(tmp_path / "alone", 2, how="rank 0 alone")
    one, two = (load_shared(crew.committed[-1])["objects"] for crew in (shared, alone))

    assert (elsewhere(shared.committed[-1]), elsewhere(alone.committed[-1])) == ({1}, set())
    assert digest_checkpoint(shared.committed[-1]) == digest_checkpoint(alone.committed[-1])
    assert one["model"]["first.weight"].data_ptr() == one["model"]["second.weight"].data_ptr()
    assert two["optimizer"].keys() == one["optimizer"].keys()


@pytest.mark.parametrize(
    ("how", "warned"), [("apart", [NOT_ALIKE]), ("hook", []), ("rank 0 alone", [NOT_TOGETHER]), ("no store", [])]
)
def test_rank_0_writes_everything_where_ranks_may_differ(tmp_path: Path, how: str, warned: list[str]) -> None:
    """Weights that a user has changed on one rank are found, and told once; a communication hook may leave them apart; a rank that
    registered nothing is waited for three times; without the round's store nothing can be agreed on."""
    crew = trained(tmp_path / "run", 2, how=how)

    assert [elsewhere(path) for path in crew.committed] == [set()] * 3
    assert [values["text"] for _, values in crew.seen if values.get("type") == "warning"] == warned


def test_waiting_for_another_ranks_share_counts_as_waiting_for_the_save(tmp_path: Path) -> None:
    """A rank that does not come is waited for two seconds here: training stands still, and the interval of saves follows from that."""
    crew = trained(tmp_path / "run", 2, how="rank 0 alone", steps=2)

    assert [m["blocked_s"] >= 2.0 for m in crew.messages("shard", 0)] == [True]


def test_a_last_save_that_is_tried_again_has_the_same_shares(tmp_path: Path) -> None:
    """The disk is full on rank 1 alone: rank 0 has written its part, which names the share that rank 1 then writes."""
    full = trained(tmp_path / "full", 2)
    crew = trained(tmp_path / "run", 2, how="full disk")

    assert any(values.get("type") == "save_failed" for _, values in crew.seen)
    assert elsewhere(crew.committed[-1]) == {1}
    assert digest_checkpoint(crew.committed[-1]) == digest_checkpoint(full.committed[-1])


def test_a_save_that_is_tried_again_is_written_as_it_was(tmp_path: Path) -> None:
    """What user code changes after the loop is not mixed with what another rank has written before."""
    full = trained(tmp_path / "full", 2)
    crew = trained(tmp_path / "run", 2, how="full disk, then changed")

    assert digest_checkpoint(crew.committed[-1]) == digest_checkpoint(full.committed[-1])


def test_a_last_save_that_was_given_up_is_made_again_by_all(tmp_path: Path) -> None:
    """The leader gives the last step's save up while the loop's last lines run: rank 0, whose part was written, writes it anew."""
    full = trained(tmp_path / "full", 2)
    params = {"how": "full disk, then waits"}
    spec = make_spec(
        tmp_path / "run", "alike_jobs:trains", 2, kind="function", checkpoint=EVERY, params=params, deterministic=True
    )
    with Crew(spec, 2) as crew:
        written = crew.paths.checkpoint_tmp(0, 0, 6) / "state.pt"
        # Rank 1 takes the empty folder away: where it is quicker than rank 0, that one fails, too.
        crew.until(lambda *_: len(crew.messages("save_failed")) + len(crew._shards.get(6, {})) == 2)
        crew._shards.pop(6, None)
        crew.send_all("save_lost", step=6)
        wait_for(lambda: not written.exists())
        (crew.paths.root / "go").touch()
        words = crew.finish()

    assert all(word["saved"] for word in words.values())
    assert digest_checkpoint(crew.committed[-1]) == digest_checkpoint(full.committed[-1])


@pytest.mark.parametrize(("ranks", "value"), [([0], 7.0), ([1], None), ([0, 1], 7.0)])
def test_what_is_changed_at_the_very_end_is_rank_0s(tmp_path: Path, ranks: list[int], value: float | None) -> None:
    """Weights that a loop's last lines change come from rank 0 alone, whoever else changes them."""
    params = {"ranks": ranks}
    crew = run(make_spec(tmp_path, "alike_jobs:changes_at_its_end", 2, kind="function", params=params), 2)
    state = launcher.load_checkpoint(crew.committed[-1])["model"]

    assert elsewhere(crew.committed[-1]) == set()
    assert {bool((state[name] == 7.0).all()) for name in ("0.weight", "1.weight")} == {value is not None}


@pytest.mark.parametrize("in_shares", [False, True])
def test_a_last_save_that_was_changed_before_it_was_copied(tmp_path: Path, in_shares: bool) -> None:
    """It cannot be written as it was. Rank 0's is then written as it is; a share that rank 0 may have named is not made up."""
    params = {"least": 512 if in_shares else 2**28}
    every = CheckpointSpec(interval_steps=4)
    with Crew(make_spec(tmp_path, "alike_jobs:ChangedLate", 2, checkpoint=every, params=params), 2) as crew:
        words = crew.finish()

    assert crew.messages("save_failed")
    assert [words[rank]["saved"] for rank in range(2)] == [True, not in_shares]
    if not in_shares:
        state = launcher.load_checkpoint(crew.committed[-1])["optimizer"]["state"]
        assert all(bool((moments["exp_avg"] == 7.0).all()) for moments in state.values())
    assert bool(crew.committed) is not in_shares


def test_shares_are_found_in_states_of_every_type(tmp_path: Path) -> None:
    """The user's own object returns a defaultdict with the model's tensors: stand-ins hold stand-ins."""
    full = trained(tmp_path / "full", 2, how="held")
    again = trained(tmp_path / "again", 2, how="held", resume=full.paths.checkpoint(2))

    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])
    assert launcher.load_checkpoint(full.committed[-1])["held"]["inner"]["out.weight"].shape == (5, 8)


def test_a_forged_share_is_refused(tmp_path: Path) -> None:
    """What names no share of the checkpoint is told as damage, whatever it is."""
    path = trained(tmp_path / "run", 2).committed[-1]
    for value in (["../x", 1], [1.5, 1], [-1, 1], [1], [1, "share"]):
        state = torch.load(path / "state.pt", weights_only=True)
        stand_in = next(held for held in state["objects"]["model"].values() if is_stand_in(held))
        stand_in["value"] = value
        torch.save(state, path / "state.pt")

        with pytest.raises(CheckpointError):
            launcher.load_checkpoint(path)


def test_the_heaps_weigh_nearly_the_same() -> None:
    """No heap is heavier than another by more than the lightest of its pieces; the same on every rank."""
    sizes = [7, 1, 1, 9, 3, 3, 2, 8, 5, 5, 4]
    owners = dealt(sizes, 4)
    heaps = [[size for size, owner in zip(sizes, owners, strict=True) if owner == number] for number in range(4)]

    assert sum(map(sum, heaps)) == sum(sizes)
    assert max(map(sum, heaps)) - min(map(sum, heaps)) <= min(max(heaps, key=sum))
    assert dealt(sizes, 4) == owners


def test_a_share_that_is_missing_is_told(tmp_path: Path) -> None:
    """A rank's file that is gone, or holds another share: one sentence, no tensor made up."""
    path = trained(tmp_path / "run", 2).committed[-1]
    rank = path / "rank-00001.pt"
    held = torch.load(rank, weights_only=True)
    del held["share"]
    os.unlink(rank)
    with pytest.raises(CheckpointError, match=r"rank-00001\.pt is missing"):
        load_shared(path)
    torch.save(held, rank)
    with pytest.raises(CheckpointError, match="lacks a tensor that the file of another rank should hold"):
        load_shared(path)


def test_a_checkpoint_is_loaded_elsewhere(tmp_path: Path) -> None:
    """`launcher.load_checkpoint` gives what `register` was given, by name, wherever its parts lie."""
    crew = trained(tmp_path / "run", 2)
    state = launcher.load_checkpoint(crew.committed[-1])

    assert set(state) == {"model", "optimizer", "average"}
    assert state["model"]["out.weight"].shape == (5, 8)
    assert float(state["model"]["seen"]) == 6.0  # of rank 0


STRUCK = """
import signal, torch
from alike_jobs import Tied
from launcher.training.checkpoint import shares


def killed(number, frame):
    raise RuntimeError("a loader's worker was killed")


def main(worker):
    shares.SHARE_BYTES = 512
    if worker.rank == 1:
        signal.signal(signal.SIGUSR1, killed)
        real, tells = shares.Shares._tell, []

        def tell(self, told):
            done = real(self, told)
            tells.append(told)
            if len(tells) == 2:
                signal.raise_signal(signal.SIGUSR1)
            return done

        shares.Shares._tell = tell
    torch.manual_seed(3)
    model = Tied()
    ddp = worker.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    worker.register(model=ddp, optimizer=optimizer)
    for step in worker.steps(5):
        ddp(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.step()
"""


def test_a_share_that_is_promised_and_not_written_makes_no_checkpoint(tmp_path: Path) -> None:
    """A signal's handler raises when rank 1 has told rank 0 of its share of step 4: that rank fails, and what is committed can be loaded."""
    script(tmp_path, STRUCK)
    code = str(tmp_path / "code")
    spec = make_spec(tmp_path / "run", "train:main", 2, kind="function", code_dir=code, checkpoint=EVERY)
    with Crew(spec, 2) as crew:
        words = crew.finish()

    assert (words[1]["type"], words[1]["message"]) == ("failed", "a loader's worker was killed")
    assert [path.name for path in crew.committed] == ["step-00000002"]
    assert launcher.load_checkpoint(crew.committed[0])
