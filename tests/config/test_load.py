"""Loading: files, overrides and site profiles become one checked job."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from launcher.config.load import LoadedJob, argument_texts, interpolate_run, load_job
from launcher.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script and a task, current for the test."""
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "tasks.py").write_text("class Net:\n    def __init__(self, lr=0.1, depth=2):\n        pass\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *overrides: str, sites: list[Path] | None = None) -> LoadedJob:
    """Write job.yaml here and load it."""
    Path("job.yaml").write_text(dedent(text))
    return load_job("job.yaml", overrides, sites=sites or [])


def test_values_reach_the_job(project: Path) -> None:
    """Values of a file arrive typed; clock times are minutes; what is not given has its default."""
    job = load(
        """
        script: train.py
        resources: {nodes: 2, gpus_per_node: 4, timeout_min: "1-12:00:00", mem_gb: 16}
        distributed: {backend: gloo}
        environment: {pass: [WANDB_API_KEY]}
        """
    ).job

    assert (job.resources.nodes, job.resources.timeout_min, job.resources.mem_gb) == (2, 2160, 16)
    assert (job.distributed.backend.value, job.environment.pass_, job.seed) == ("gloo", ["WANDB_API_KEY"], 0)


def test_overrides_win_and_are_named_as_origin(project: Path) -> None:
    """An override replaces a file's value and its origin reads "command line"."""
    loaded = load("script: train.py\nresources: {nodes: 2}\n", "resources.nodes=5", "params.lr=3e-4")

    assert (loaded.job.resources.nodes, loaded.job.params) == (5, {"lr": 0.0003})
    assert str(loaded.origin["resources.nodes"]) == "command line"
    assert str(loaded.origin["script"]) == "job.yaml:1:1"


def test_interpolation(project: Path) -> None:
    """${params.x} is resolved when loading; ${run.x} stays until the run has a directory."""
    loaded = load(
        r"""
        script: train.py
        params: {lr: 0.1, wide: true}
        args: ["--lr=${params.lr}", "${params.wide}", "${run.dir}/out", "\\${HOME}"]
        """
    )

    assert loaded.job.args == ["--lr=0.1", True, "${run.dir}/out", "${HOME}"]
    assert argument_texts(interpolate_run(loaded.job.args, "/r/x", "x", "n")) == [
        "--lr=0.1",
        "true",
        "/r/x/out",
        "${HOME}",
    ]


def test_a_script_is_a_job_with_defaults(project: Path) -> None:
    """A .py file in place of YAML runs with the arguments after --; below the working directory it keeps its path."""
    loaded = load_job(None, ["resources.nodes=2"], target="train.py", script_args=["--lr", "0.1"], sites=[])

    assert (loaded.job.script, loaded.job.args, loaded.base_dir) == ("train.py", ["--lr", "0.1"], project)
    assert (loaded.job.resources.nodes, loaded.name) == (2, "train")


def test_the_written_job_loads_to_the_same_job(project: Path) -> None:
    """LoadedJob.yaml holds everything, in a form that reads back equal."""
    first = load(
        """
        script: train.py
        args: ["${run.dir}", "12:30:00", "0123", "on", 1.0e-05, "${params.lr}"]
        params: {lr: 3e-4}
        notify: {on: [failed]}
        """,
        "resources.timeout_min=12:00:00",
    )
    again = load(first.yaml)

    assert again.job == first.job


def test_layers_and_locks(project: Path) -> None:
    """Later profiles and the job win over earlier profiles, but not over what an earlier one has locked."""
    admin, user = project / "admin.yaml", project / "user.yaml"
    admin.write_text("slurm: {account: all, partition: gpu}\nlocked: [slurm.account]\nruns_dir: /scratch/$USER\n")
    user.write_text("slurm: {partition: debug, qos: high}\ngpu_request: gres\n")
    loaded = load("script: train.py\nslurm: {qos: low}\n", sites=[admin, user])

    assert (loaded.job.slurm.account, loaded.job.slurm.partition, loaded.job.slurm.qos) == ("all", "debug", "low")
    assert (loaded.site.runs_dir, loaded.site.gpu_request, loaded.job.runs_dir) == ("/scratch/$USER", "gres", None)
    load("script: train.py\nslurm: {account: all}\n", sites=[admin])
    with pytest.raises(ConfigError) as caught:
        load("script: train.py\nslurm: {account: mine}\n", "slurm.account=theirs", sites=[admin])

    assert caught.value.problems == [
        f"command line: slurm.account: is locked by {admin} and cannot be changed",
        f"job.yaml:2:9: slurm.account: is locked by {admin} and cannot be changed",
    ]
