"""Registered state of which each rank has a part (DTensors of FSDP2): whole in the checkpoint, exact on as many ranks, resumed on others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from crew import Crew, make_spec, run
from fsdp2 import needs_fsdp2

from launcher.run.spec import CheckpointSpec, RunSpec
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint

SELDOM = CheckpointSpec(interval_min=1000)
EVERY = CheckpointSpec(interval_steps=1, keep_last=1000)


def weights(crew: Crew) -> list[tuple[int, str]]:
    """Step and digest of the whole weights, at the begin and the end, as rank 0 printed them."""
    text = (crew.paths.root / "rank-0.log").read_text()
    return [(int(step), digest) for step, digest in re.findall(r"^weights (\d+) (\w+)", text, re.MULTILINE)]


def trained(folder: Path, ranks: int, *, steps: int = 12, resume: Path | None = None) -> Crew:
    """A run that saves at each step."""
    spec = make_spec(
        folder,
        "parted_jobs:trains",
        ranks,
        kind="function",
        checkpoint=EVERY,
        params={"steps": steps},
        deterministic=True,
    )
    return run(spec, ranks, resume=resume)


@needs_fsdp2
def test_parts_are_saved_whole_and_a_resume_is_exact(tmp_path: Path) -> None:
    """Two ranks: the file holds plain tensors of full size; a run resumed in the middle ends with the digests of the whole checkpoint."""
    full = trained(tmp_path / "full", 2)
    middle = full.paths.checkpoint(5)
    state = torch.load(middle / "state.pt", weights_only=True)["objects"]
    again = trained(tmp_path / "again", 2, resume=middle)

    assert {type(value) for value in state["model"].values()} == {torch.Tensor}
    assert state["model"]["0.weight"].shape == (30, 8)
    assert state["optimizer"]["state"][0]["exp_avg"].shape == (30, 8)
    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])
    assert weights(again)[1] == weights(full)[1]


@needs_fsdp2
@pytest.mark.parametrize("step", [3, 4, 6])
def test_what_a_resume_repeats_leaves_no_trace_in_parts(tmp_path: Path, step: int) -> None:
    """A scheduler's step before an epoch's first batch runs again: each rank sees that by its own parts, and loads them once more."""
    spec = make_spec(tmp_path / "full", "parted_jobs:schedules_first", 2, kind="function", checkpoint=EVERY)
    full = run(spec, 2)
    spec = make_spec(tmp_path / "again", "parted_jobs:schedules_first", 2, kind="function", checkpoint=EVERY)
    again = run(spec, 2, resume=full.paths.checkpoint(step))

    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])


@needs_fsdp2
@pytest.mark.parametrize("step", [2, 3, 6])
def test_what_follows_an_epoch_that_was_left_is_done_once(tmp_path: Path, step: int) -> None:
    """Behind `break` nothing is gathered, so the checkpoint has the scheduler's step already: a resume begins with the next epoch."""
    full = run(make_spec(tmp_path / "full", "parted_jobs:breaks_off", 2, kind="function", checkpoint=EVERY), 2)
    spec = make_spec(tmp_path / "again", "parted_jobs:breaks_off", 2, kind="function", checkpoint=EVERY)
    again = run(spec, 2, resume=full.paths.checkpoint(step))

    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])


@needs_fsdp2
@pytest.mark.parametrize(("ranks", "later"), [(2, 1), (1, 3), (3, 2)])
def test_another_number_of_ranks_goes_on_with_the_same_weights(tmp_path: Path, ranks: int, later: int) -> None:
    """30 and 5 rows do not divide evenly by 2 and 3: what is cut and joined again has not changed by a bit."""
    first = trained(tmp_path / "first", ranks, steps=4)
    second = trained(tmp_path / "second", later, steps=6, resume=first.paths.checkpoint(4))

    assert weights(second)[0] == weights(first)[1]
    assert weights(second)[1][0] == 6


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("fsdp1", "the state of FullyShardedDataParallel is saved with run.save_dir()"),
        ("per rank", "it holds DTensors, which are gathered from all ranks: register it without per_rank"),
    ],
)
def test_what_could_not_be_saved_whole_is_refused(tmp_path: Path, how: str, said: str) -> None:
    """At register, on every rank, in one sentence; before, the first hung in an all-gather and the second lost the other ranks' parts."""
    spec = make_spec(
        tmp_path / "run", "parted_jobs:registers_wrongly", 2, kind="function", checkpoint=EVERY, params={"how": how}
    )
    with Crew(spec, 2) as crew:
        crew.finish()
    failures = [crew.messages("failed", rank) for rank in range(2)]

    assert all(said in failed[0]["message"] for failed in failures)


def test_what_the_last_lines_change_is_in_the_last_checkpoint(tmp_path: Path) -> None:
    """As for DDP: the copies that were gathered after the last step are not the result of the work."""
    crew = run(make_spec(tmp_path / "run", "parted_jobs:changes_at_its_end", 2, kind="function", checkpoint=SELDOM), 2)
    state = torch.load(crew.committed[-1] / "state.pt", weights_only=True)["objects"]["model"]

    assert all(bool((value == 7.0).all()) for value in state.values())


def test_a_part_that_comes_later_fails_its_save(tmp_path: Path) -> None:
    """An object without a state at first, and with DTensors at the first save: that save fails with the key; training goes on."""
    spec = make_spec(
        tmp_path / "run", "parted_jobs:registers_wrongly", 2, kind="function", checkpoint=EVERY, params={"how": "late"}
    )
    with Crew(spec, 2) as crew:
        crew.finish()
    failed = crew.messages("save_failed", 0)

    assert "the state of 'late': weight is a DTensor that was none when it was registered" in failed[0]["error"]
    assert crew.committed == []


@needs_fsdp2
def test_parts_of_rank_0_alone_are_not_resumed(tmp_path: Path) -> None:
    """Before, rank 0 saved its DTensor as it was, and every rank got rank 0's part: such a checkpoint is refused, once and for all."""
    full = trained(tmp_path / "full", 2, steps=2)
    path = full.paths.checkpoint(2)
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    state = torch.load(path / "state.pt", weights_only=True)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = state["objects"]["model"]
        model["0.weight"] = distribute_tensor(model["0.weight"], mesh, [Shard(0)])
        torch.save(state, path / "state.pt")
    finally:
        dist.destroy_process_group()
    spec = make_spec(tmp_path / "again", "parted_jobs:trains", 2, kind="function", checkpoint=EVERY)
    with Crew(spec, 2, resume=path) as again:
        again.finish()
    (failed,) = again.messages("failed", 0)

    assert "an older version saved it" in failed["message"]
    assert failed["kind"] == "unloadable"


SCRIPT = """
import torch
import torch.distributed as dist
from torch.distributed import destroy_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import launcher

dist.init_process_group("gloo")
run = launcher.attach()
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
fully_shard(model, mesh=init_device_mesh("cpu", (run.world_size,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.register(model=model, optimizer=optimizer)


def train():
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


"""
WHILE = """
run.restore_rng()
while run.steps_done < 3 and not run.should_stop():
    train()
    run.step()
"""
BREAK = """
for step in run.steps(10):
    train()
    if step == 2:
        break
"""
BATCHES = """
for _ in run.batches(torch.utils.data.TensorDataset(torch.ones(24, 1)), 4):
    train()
"""
CHANGE = """
with torch.no_grad():
    for value in model.parameters():
        value.fill_(7.0)
"""


def scripted(folder: Path, end: str) -> RunSpec:
    """The script with this end; it saves when it ends alone."""
    (folder / "train.py").write_text(SCRIPT + end)
    return make_spec(folder / "run", "train.py", 2, kind="script", code_dir=str(folder), checkpoint=SELDOM)


@needs_fsdp2
@pytest.mark.parametrize("loop", [WHILE, BREAK, BATCHES], ids=["while", "break", "batches"])
def test_a_script_may_destroy_its_group_before_it_ends(tmp_path: Path, loop: str) -> None:
    """What a loop without a planned end leaves is gathered before; the last checkpoint has what was changed behind the loop, as for DDP."""
    crew = run(scripted(tmp_path, f"{loop}{CHANGE}dist.destroy_process_group()\n"), 2)
    state = torch.load(crew.committed[-1] / "state.pt", weights_only=True)["objects"]["model"]

    assert crew.committed[-1].name == "step-00000003"
    assert all(message["saved"] for message in crew.messages("finished"))
    assert all(bool((value == 7.0).all()) for value in state.values())


@needs_fsdp2
def test_a_last_state_that_cannot_be_gathered_is_told(tmp_path: Path) -> None:
    """A script that has imported the function by name before attach(): the work is done, its last save failed, and why."""
    with Crew(scripted(tmp_path, f"{BREAK}destroy_process_group()\n"), 2) as crew:
        words = crew.finish()

    assert [(words[rank]["type"], words[rank]["saved"]) for rank in range(2)] == [("finished", False)] * 2
    assert all("loop over run.steps(n)" in m["error"] and m["permanent"] for m in crew.messages("save_failed"))


@needs_fsdp2
def test_a_rank_that_fails_waits_for_no_other_at_its_groups_end(tmp_path: Path) -> None:
    """Its group ends in a `finally`: nothing is gathered while an exception is on its way, and that is what is told."""
    text = """
try:
    for step in run.steps(4):
        train()
        run.step()
        if step == 1 and run.rank == 1:
            raise ValueError("one rank alone")
finally:
    dist.destroy_process_group()
"""
    with Crew(scripted(tmp_path, text), 2) as crew:
        words = crew.finish()

    assert words[1]["message"] == "one rank alone"
