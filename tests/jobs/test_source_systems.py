"""The five source systems show their figures, on real gloo ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from crew import Crew, make_spec
from crew import run as run_crew

from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint

JOBS = Path(__file__).parents[2] / "jobs"
PACKAGED = Path("/usr/share/datasets/fashion-mnist")


def spec_of(job: str, folder: Path, ranks: int, **values: Any) -> Any:
    """The spec of a job of ``jobs/`` as its YAML says, on ``ranks`` CPU workers."""
    said = yaml.safe_load((JOBS / f"{job}.yaml").read_text())
    kind = "task" if "task" in said else "function"
    params = {**said.get("params", {}), **values.pop("params", {})}
    settings = {"seed": said.get("seed", 0), "code_dir": str(JOBS), "params": params, **values}
    return make_spec(folder / f"{job}-{ranks}", said[kind], ranks, kind=kind, **settings)


def run(spec: Any, ranks: int, **values: Any) -> Crew:
    """As the harness does; no rank prints or sends a warning."""
    crew = run_crew(spec, ranks, **values)
    assert crew.warned() == []
    return crew


def output(crew: Crew) -> str:
    """What all ranks printed."""
    return crew.logs()


@pytest.mark.parametrize(("ranks", "steps"), [(1, 2), (2, 1)])
def test_toy_classifier_learns_its_five_points(tmp_path: Path, ranks: int, steps: int) -> None:
    """Three epochs of whole batches of 2 per rank, each told; test accuracy 1.0 on one and on two ranks."""
    crew = run(spec_of("toy_classifier", tmp_path, ranks), ranks)

    told = re.findall(r"\[rank (\d)\] epoch (\d) batch (\d) loss (\d+\.\d+)", output(crew))
    assert sorted((int(r), int(e)) for r, e, _, _ in told) == sorted(
        (r, e) for r in range(ranks) for e in range(3) for _ in range(steps)
    )
    assert {batch for _, _, batch, _ in told} == {"2"}
    assert "test 1.00" in output(crew)
    assert crew.messages("evaluated")[-1]["metrics"]["test_accuracy"] == 1.0


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_linear_checkpoint_gives_every_rank_the_same_parameters(tmp_path: Path, ranks: int) -> None:
    """After rank 0's save and everybody's load all ranks hold identical parameters; nothing half-written is left."""
    spec = spec_of("linear_checkpoint", tmp_path, ranks)

    crew = run(spec, ranks)

    assert f"effective batch {32 * ranks}, backend gloo" in output(crew)
    assert f"after the load {ranks} ranks hold identical parameters" in output(crew)
    saved = torch.load(Path(spec.run_dir) / "linear.pt", weights_only=True)
    assert {name: tuple(value.shape) for name, value in saved.items()} == {"weight": (10, 10), "bias": (10,)}
    assert [p.name for p in Path(spec.run_dir).glob("*.part")] == []


def test_linear_checkpoint_loses_loss_alike_on_any_number_of_ranks(tmp_path: Path) -> None:
    """The 20 rows are one batch however many ranks share them: the loss falls in the same steps on 1, 2 and 4."""
    curves = []
    for ranks in (1, 2, 4):
        crew = run(spec_of("linear_checkpoint", tmp_path, ranks, params={"steps": 4}), ranks)
        curves.append(torch.load(Path(crew.paths.root) / "linear.pt", weights_only=True)["weight"])

    torch.testing.assert_close(curves[1], curves[0])
    torch.testing.assert_close(curves[2], curves[0])


def test_ddp_equivalence_on_two_replicas(tmp_path: Path) -> None:
    """Summed loss 2.1911 on one device; two replicas exactly equal, exactly the average by hand, nearly the joined batch."""
    crew = run(spec_of("ddp_equivalence", tmp_path, 2), 2)

    said = output(crew)
    assert "single device: summed loss 2.1911" in said
    assert "largest difference between replicas: 0.0e+00" in said
    assert "largest difference from averaging by hand: 0.0e+00" in said
    joined = re.search(r"largest difference from the joined batch: (\S+)", said)
    assert joined
    assert float(joined[1]) <= 1e-6


@pytest.mark.parametrize("ranks", [1, 4])
def test_ddp_equivalence_holds_on_other_numbers_of_ranks(tmp_path: Path, ranks: int) -> None:
    """The job itself fails when replicas differ; on one and on four ranks it does not."""
    crew = run(spec_of("ddp_equivalence", tmp_path, ranks), ranks)

    assert "largest difference between replicas: 0.0e+00" in output(crew)


def test_ddp_equivalence_fails_when_replicas_differ(tmp_path: Path) -> None:
    """The comparison is no print: a replica that was changed behind DDP's back ends the job with the difference."""
    (tmp_path / "spoiled.py").write_text(
        f"import sys; sys.path.insert(0, {str(JOBS)!r})\nimport ddp_equivalence as job\n"
        "def compare(worker):\n"
        "    right = job.step\n"
        "    def wrong(model, x, y):\n"
        "        return right(model, x, y + worker.rank * hasattr(model, 'module') * 0.5)\n"
        "    job.step = wrong\n"
        "    job.compare(worker)\n"
    )
    spec = make_spec(tmp_path / "run", "spoiled:compare", 2, kind="function", code_dir=str(tmp_path))

    with Crew(spec, 2) as crew:
        words = crew.finish()

    assert {w["type"] for w in words.values()} == {"failed"}
    assert "largest difference from averaging by hand" in words[0]["message"]


@pytest.fixture
def clothes() -> str:
    """The folder of the real data set."""
    if not PACKAGED.is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    return str(PACKAGED)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_fashion_mnist_learns_on_any_number_of_ranks(tmp_path: Path, ranks: int, clothes: str) -> None:
    """A tenth of the images, three epochs: the loss over all ranks falls every epoch; the accuracy is of all test images."""
    small = {"data": clothes, "limit": 6000, "epochs": 3, "batch_size": 100 // ranks}

    crew = run(spec_of("fashion_mnist", tmp_path, ranks, params=small), ranks)

    losses = [m["loss"] for m in crew.messages("epoch", 0)]
    assert len(losses) == 3
    assert losses[2] < losses[1] < losses[0]
    accuracy = crew.messages("evaluated", 0)[-1]["metrics"]["test_accuracy"]
    # Each of the 6,000 test images counts once: the average is a whole number of them, whatever the shares were.
    assert accuracy * 6000 == pytest.approx(round(accuracy * 6000), abs=1e-3)
    assert accuracy > 0.6


def test_fashion_mnist_resumed_in_mid_epoch_ends_bitwise_equal(tmp_path: Path, clothes: str) -> None:
    """Stopped in the middle of an epoch on two ranks and resumed, it ends with the very weights of the undisturbed run."""
    small = {"data": clothes, "limit": 8000, "epochs": 2, "batch_size": 50}
    whole = run(spec_of("fashion_mnist", tmp_path / "whole", 2, params=small), 2)
    spec = spec_of("fashion_mnist", tmp_path / "cut", 2, params=small)

    with Crew(spec, 2, first=[{"type": "stop", "step": 30, "save": True}]) as first:
        first.finish()
    second = run(spec, 2, resume=first.committed[-1], attempt=1)

    assert first.committed[-1].name == "step-00000030"  # of 80
    assert digest_checkpoint(second.committed[-1]) == digest_checkpoint(whole.committed[-1])
