"""Facts about planning: pure, complete, and refusing what could not work before it is queued."""

from __future__ import annotations

import builtins
import os
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planning import PYTHON, facts

from launcher.config.load.load import LoadedJob, load_job
from launcher.errors import ConfigError, InterpreterError, RunDirError, SiteError
from launcher.submission.facts.facts import CodeFacts, SlurmFacts
from launcher.submission.plan.plan import plan

Make = Callable[..., LoadedJob]


def _forbidden(*args: object, **kwargs: object) -> Any:
    raise AssertionError(f"planning must not do this: {args} {kwargs}")


class _NoEnvironment(dict):  # type: ignore[type-arg]
    """An environment that must not be read."""

    __getitem__ = get = __contains__ = __iter__ = keys = items = _forbidden


def test_planning_opens_runs_and_asks_nothing(job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With open, subprocess, sockets, stat and the environment poisoned, a plan and its script are still made."""
    loaded = job(resources={"nodes": 2, "gpus_per_node": 4})
    here = facts()
    assert plan(loaded, here).sbatch  # everything is imported now
    with monkeypatch.context() as poison:
        for owner, name in [
            (builtins, "open"),
            (os, "open"),
            (os, "stat"),
            (os, "listdir"),
            (os, "getcwd"),
            (os, "getenv"),
        ]:
            poison.setattr(owner, name, _forbidden)
        poison.setattr(subprocess, "Popen", _forbidden)
        poison.setattr(socket, "socket", _forbidden)
        poison.setattr(os, "environ", _NoEnvironment())
        made = plan(loaded, here)
        text = made.sbatch

    assert made.spec.world_size == 8
    assert "#SBATCH --nodes=2" in text


def test_the_summary_reads_as_promised(job: Make) -> None:
    """The lines for a student's preemptible job say what it costs, what runs it and what a stop means."""
    loaded = job(
        name="resnet50",
        resources={"nodes": 2, "gpus_per_node": 4, "cpus_per_task": 8, "timeout_min": "24:00:00"},
        slurm={"partition": "preempt", "account": "vision"},
        code={"link": ["data"]},
        restart={"max_total_hours": 120.0},
    )

    assert (
        "\n".join(plan(loaded, facts()).summary)
        == """\
resnet50: 2 nodes x 4 GPUs = 8 ranks, script train.py
  slurm    preempt, account vision, 24:00:00 per attempt, 120 h in all
  cost     192 GPU-h per attempt, at most 960
  node     1 SLURM task, 32 CPUs (4 ranks x 8), 4 GPUs, memory: site default
  python   ~/envs/ml/bin/python (3.11, torch 2.13.0)
  code     4 files, 3.0 MB from 4f2c1e9 + diff; data/ linked, not copied
  run      runs/resnet50-1121-0842-k7f (310 GB free)
  stop     TERM to every rank, up to 20 s grace, then requeue
  warning  train.py must save and resume itself: launcher.attach() is not used"""
    )


@pytest.mark.parametrize(
    ("values", "kind", "target"),
    [
        ({"script": "train.py"}, "script", "train.py"),
        ({"script": "-m lab.train"}, "module", "lab.train"),
        ({"script": None, "function": "lab.tasks:work"}, "function", "lab.tasks:work"),
    ],
)
def test_the_work_is_told_apart(job: Make, values: dict[str, Any], kind: str, target: str) -> None:
    """Script, module and function become the work of the spec."""
    work = plan(job(**values), facts()).spec.work

    assert (work.kind, work.target) == (kind, target)


def test_run_values_are_filled_into_arguments(job: Make) -> None:
    """``${run.dir}`` and ``${params.lr}`` in arguments are real values in the spec."""
    loaded = job(args=["--out", "${run.dir}/out", "--lr", "${params.lr}"], params={"lr": 0.1})

    made = plan(loaded, facts())

    assert made.spec.work.args == ["--out", "/scratch/ann/runs/resnet50-1121-0842-k7f/out", "--lr", "0.1"]


def test_arguments_are_texts_as_yaml_writes_them(job: Make) -> None:
    """``true`` in the job file is ``true`` for the script, not Python's ``True``; numbers keep their shortest form."""
    loaded = job(args=["--amp", True, "--lr", 3e-4, 1e6, 7, "true", "${params.flag}"], params={"flag": False})

    made = plan(loaded, facts())

    assert made.spec.work.args == ["--amp", "true", "--lr", "0.0003", "1000000.0", "7", "true", "false"]


def test_gloo_on_cpus_nccl_on_gpus(job: Make) -> None:
    """backend auto follows the GPUs asked for, and ranks follow GPUs, then tasks_per_node."""
    cpus = plan(job(resources={"tasks_per_node": 3}), facts()).spec
    gpus = plan(job(resources={"gpus_per_node": 4}), facts()).spec

    assert (cpus.backend, cpus.world_size, gpus.backend, gpus.world_size) == ("gloo", 3, "nccl", 4)


NONE = SlurmFacts()
TRACES = SlurmFacts(unusable="SLURM is here (sbatch is on the PATH) but scontrol is not on the PATH: load its module")


def test_no_slurm_at_all_means_here(job: Make) -> None:
    """Without any trace of SLURM auto is this machine, and the summary says so."""
    made = plan(job(), facts(slurm=NONE))

    assert made.backend == "local"
    assert made.sbatch == ""
    assert "  where    this machine (8 CPUs, no GPU); no SLURM" in made.summary


def test_a_slurm_that_is_not_usable_stops_it(job: Make) -> None:
    """Nobody trains on a login node by accident: a SLURM without one of its commands is an error that names --backend local."""
    with pytest.raises(SiteError, match=r"but scontrol is not on the PATH: load its module, or add --backend local"):
        plan(job(), facts(slurm=TRACES))
    assert plan(job(), facts(slurm=TRACES, backend="local")).backend == "local"
    with pytest.raises(
        SiteError, match=r"--backend slurm: SLURM is here \(.*\) but scontrol is not on the PATH: load its module$"
    ):
        plan(job(), facts(slurm=TRACES, backend="slurm"))
    with pytest.raises(SiteError, match="--backend slurm: there is no trace of SLURM on this machine"):
        plan(job(), facts(slurm=NONE, backend="slurm"))


@pytest.mark.parametrize(
    ("slurm", "backend", "said"),
    [
        (NONE, "auto", "no SLURM here: this plan is for a cluster"),
        (NONE, "slurm", "there is no sbatch here: run launcher submit on a machine"),
        (TRACES, "auto", "scontrol is not on the PATH: load its module"),
    ],
    ids=["laptop", "asked for", "module not loaded"],
)
def test_a_plan_is_read_where_there_is_no_slurm(job: Make, slurm: SlurmFacts, backend: Any, said: str) -> None:
    """For reading, GPUs that are not here and a missing sbatch hold nothing up: the script is made, a warning says so."""
    loaded = job(resources={"nodes": 2, "gpus_per_node": 4})

    made = plan(loaded, facts(slurm=slurm, backend=backend).for_reading())

    assert "#SBATCH --nodes=2" in made.sbatch
    assert [w for w in made.warnings if said in w and w.endswith("its limits are not checked")]


def test_for_reading_the_local_backend_stays_local(job: Make) -> None:
    """Who says --backend local reads what this machine would do; where SLURM is, nothing changes."""
    assert plan(job(), facts(slurm=NONE, backend="local").for_reading()).backend == "local"
    assert facts().for_reading() == facts()


def test_more_workers_than_cpus_here_are_told(job: Make) -> None:
    """On this machine workers may share CPUs, as nodes are simulated; it is said."""
    made = plan(job(resources={"tasks_per_node": 3, "cpus_per_task": 4}), facts(backend="local"))

    assert "3 workers x 4 CPUs share this machine's 8" in made.warnings


def test_what_planning_refuses_names_its_place(tmp_path: Path) -> None:
    """A fault found after loading has file, line and column like the others; a value from elsewhere has no place."""
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("script: train.py\nresources: {gpus_per_node: 4}\n")
    loaded = load_job(tmp_path / "job.yaml", sites=[])
    with pytest.raises(ConfigError, match=r"job\.yaml:2:28: resources\.gpus_per_node: the job asks for 4 GPUs"):
        plan(loaded, facts(backend="local"))
    with pytest.raises(ConfigError, match=r"^runs_dir: "), loaded.placing():
        raise ConfigError("runs_dir: $NOWHERE: an environment variable in it is not set")


def test_missing_gpus_here_name_the_way_out(job: Make) -> None:
    """More GPUs than this machine has, all simulated nodes counted, is refused with the override that helps."""
    with pytest.raises(
        ConfigError, match=r"asks for 4 GPUs a node, this machine has no GPU; add resources.gpus_per_node=0"
    ):
        plan(job(resources={"gpus_per_node": 4}), facts(backend="local"))
    with pytest.raises(ConfigError, match="this machine has 2 GPUs"):
        plan(job(resources={"gpus_per_node": 2, "nodes": 2}), facts(backend="local", gpus=("0", "1")))


def test_each_simulated_node_gets_its_own_gpus(job: Make) -> None:
    """On this machine the GPUs that are visible are dealt to the nodes in order."""
    made = plan(job(resources={"gpus_per_node": 2, "nodes": 2}), facts(backend="local", gpus=("4", "5", "6", "7")))

    assert "0) export CUDA_VISIBLE_DEVICES=4,5;; 1) export CUDA_VISIBLE_DEVICES=6,7;;" in made.command


def test_an_interpreter_without_torch_is_refused(job: Make) -> None:
    """Missing packages are named before anything is queued."""
    bare = replace(PYTHON, packages={"numpy": "2.0"})
    with pytest.raises(InterpreterError, match="has no torch and no submitit and no psutil"):
        plan(job(), facts(interpreter=bare))
    with pytest.raises(InterpreterError, match="cannot be used: boom"):
        plan(job(), facts(interpreter=replace(PYTHON, error="boom")))


def test_a_full_disk_is_refused(job: Make) -> None:
    """Too little space or too few inodes for a run's beginning."""
    with pytest.raises(RunDirError, match=r"1\.0 MB free"):
        plan(job(), facts(free_bytes=1_000_000))
    with pytest.raises(RunDirError, match="only 12 inodes free"):
        plan(job(), facts(free_inodes=12))


def test_what_the_preflight_wants_free_is_asked_for_before_the_queue(job: Make) -> None:
    """Space that the nodes' check would refuse is refused by plan; a run without that check may have less."""
    with pytest.raises(RunDirError, match=r"900 MB free, a run needs at least 1\.1 GB"):
        plan(job(), facts(free_bytes=900_000_000))
    assert plan(job(preflight=False), facts(free_bytes=900_000_000)).spec.preflight is False


def test_a_folder_that_sbatch_would_misread_is_refused(job: Make) -> None:
    """sbatch replaces %j and its kin in log names: no % in runs_dir."""
    with pytest.raises(RunDirError, match="must not contain a %"):
        plan(job(), facts(runs_dir="/scratch/100%j"))


def test_a_script_that_git_ignores_is_refused(job: Make) -> None:
    """A script that would not be in the copy is an error now, not after the queue."""
    elsewhere = CodeFacts(root="/home/ann/resnet", files=(("other.py", 1),), git=True)

    with pytest.raises(ConfigError, match=r"train\.py would not be in the copy of the code: git ignores it"):
        plan(job(), facts(code=elsewhere))


@pytest.mark.parametrize("script", ["scripts/a/t.py", "other/../src/a/t.py"])
def test_a_script_behind_a_link_of_the_code_is_in_the_copy(job: Make, script: str) -> None:
    """git lists the link and where it leads, each by itself; the copy has both."""
    files, links = (("scripts", 0), ("src/a/t.py", 1)), (("scripts", "/home/ann/resnet/src"),)
    loaded = job()
    loaded = replace(loaded, job=replace(loaded.job, script=script))
    made = plan(loaded, facts(code=CodeFacts(root="/home/ann/resnet", files=files, inside=links, git=True)))

    assert made.spec.work.target == script


def test_editable_packages_inside_the_code_come_from_the_copy(job: Make) -> None:
    """src/ of the code directory goes to PYTHONPATH from the copy; a package from elsewhere is warned of."""
    python = replace(PYTHON, editable=(("lab", "/home/ann/resnet/src"), ("util", "/home/ann/util")))

    made = plan(job(), facts(interpreter=python))

    run = "/scratch/ann/runs/resnet50-1121-0842-k7f"
    assert made.python_path == (f"{run}/lib", f"{run}/code/src")
    assert made.warnings[1:] == ("util is installed editable from ~/util: later edits reach the queued job",)


def test_addresses_of_notifications_are_passed_by_name(job: Make) -> None:
    """notify.urls names variables: their values travel as environment.pass's do, and an unset one is told."""
    loaded = job(notify={"urls": ["MY_URL"]}, environment={"pass": ["A_TOKEN"]})
    made = plan(loaded, facts(unset_pass=("MY_URL",)))

    assert made.spec.pass_names == ["A_TOKEN", "MY_URL"]
    assert any(w.startswith("MY_URL is not set, but") for w in made.warnings)


def test_plain_values_for_json(job: Make) -> None:
    """as_dict is JSON, script included."""
    import json

    value = json.loads(json.dumps(plan(job(), facts()).as_dict()))

    assert value["run"] == "resnet50-1121-0842-k7f"
    assert value["sbatch"].startswith("#!/bin/bash")
    assert value["code"]["files"] == 4


SECRET_ARGS = ["--password", "hunter1", "--api-key=hunter2", "--lr", "0.1"]


def test_what_a_plan_shows_has_no_secret_and_what_is_submitted_has_all(job: Make) -> None:
    """plan --json: arguments and parameters are told by their names; the workers get their true values."""
    setup = ["login --password hunter4x9", "curl https://ann:hunter5@host/x"]
    made = plan(
        job(args=SECRET_ARGS, params={"db_password": "hunter3", "lr": 1}, environment={"setup": setup[:1]}), facts()
    )
    shown = made.as_dict()

    assert "hunter" not in repr(shown)
    assert shown["spec"]["work"]["args"] == ["--password", "<redacted>", "--api-key=<redacted>", "--lr", "0.1"]
    assert shown["spec"]["work"]["params"] == {"db_password": "<redacted>", "lr": 1}
    assert made.spec.work.args == SECRET_ARGS
    assert "hunter4x9" in made.sbatch
    assert "hunter3" in made.job_yaml


def test_a_script_is_told_of_a_timeout_that_is_not_its_own(job: Make) -> None:
    """The process group of a script is its own: it passes its own timeout to init_process_group."""
    told = "distributed.collective_timeout_min does nothing for a script"

    for minutes, warned in ((5, True), (30, False)):
        made = plan(job(distributed={"collective_timeout_min": minutes}), facts())
        assert any(w.startswith(told) for w in made.warnings) == warned


def test_a_tracker_that_is_not_installed_is_told(job: Make) -> None:
    """So is apprise: both would say so in the log of a node, when the run has waited in the queue. Images are not looked into."""
    values: dict[str, Any] = {
        "trackers": {"wandb": {}, "mlflow": {}, "tensorboard": True},
        "notify": {"urls": ["MY_URL"]},
    }
    some = replace(PYTHON, packages={**PYTHON.packages, "mlflow": "3.1", "tensorboard": "2.20"})

    def told(**how: Any) -> list[str]:
        return [said for said in plan(job(**values, **how), facts(interpreter=some)).warnings if "does nothing" in said]

    assert told() == [
        "trackers.wandb does nothing: wandb is not installed beside torch; there: pip install 'ddp-launcher[wandb]'",
        "notify does nothing: apprise is not installed beside torch; there: pip install 'ddp-launcher[notify]'",
    ]
    some = replace(PYTHON, path="/opt/python", origin="container", checked=False, packages={})
    assert told(environment={"container": "docker://lab", "python": "/opt/python"}) == []
