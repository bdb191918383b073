"""Facts about the sbatch text: golden files, quoting, and what may never be in it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planning import PYTHON, facts

from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError
from launcher.run.after import Predecessor
from launcher.run.spec import SiteSpec
from launcher.submission.facts.facts import SlurmFacts
from launcher.submission.plan.plan import plan
from launcher.submission.plan.script import python_command
from launcher.submission.plan.submission_plan import SubmissionPlan

Make = Callable[..., LoadedJob]
GOLDEN = Path(__file__).parent / "golden"
RECORD = "LAUNCHER_RECORD_GOLDEN=1 .venv/bin/pytest tests/submission/plan/test_script.py"

JOBS: dict[str, dict[str, Any]] = {
    "minimal": {},
    "student": {
        "name": "resnet50",
        "args": ["--data", "data/imagenet", "--out", "${run.dir}/out"],
        "resources": {"nodes": 2, "gpus_per_node": 4, "cpus_per_task": 8, "timeout_min": "24:00:00"},
        "slurm": {"partition": "preempt", "account": "vision"},
        "environment": {"setup": ["module load cuda/12.1"]},
        "code": {"link": ["data"]},
        "restart": {"max_total_hours": 120.0},
    },
    "lab": {
        "name": "lm7b",
        "script": "-m lab.train",
        "args": ["optim.lr=${params.lr}", "hydra.run.dir=${run.dir}/hydra"],
        "params": {"lr": 3.0e-4},
        "resources": {"nodes": 32, "gpus_per_node": 8, "cpus_per_task": 12, "timeout_min": 4320, "spare_nodes": 1},
        "slurm": {"partition": "h100", "account": "lm", "qos": "high", "exclusive": True},
        "environment": {"container": "/img/lab.sqsh", "pass": ["WANDB_API_KEY"]},
        "distributed": {"interface": "ib0", "init_timeout_min": 10.0},
        "restart": {"max_total_hours": 336.0},
        "share": "group",
    },
    "apptainer": {
        "environment": {"container": "/img/lab.sif", "container_args": ["--bind", "/data"], "python": "/opt/py/bin/python"},
        "resources": {"gpus_per_node": 1},
        "slurm": {"gres": "gpu:a100:1", "extra": {"licenses": "matlab:1", "contiguous": True, "overcommit": False}},
    },
    "everything": {
        "resources": {"nodes": 3, "tasks_per_node": 2, "cpus_per_task": 2, "mem_gb": 1.5, "timeout_min": 30},
        "slurm": {
            "partition": "a,b", "account": "lm", "qos": "low", "constraint": "ib&rome", "reservation": "maint", "exclude": "n[1-3]",
            "nodelist": "n[4-6]", "dependency": "singleton", "comment": "a comment; $(touch /tmp/x) `id` \"q\" #",
            "mail_type": "END,FAIL", "mail_user": "ann@example.org", "srun_args": ["--slurmd-debug=1"],
        },
        "restart": {"requeue": False, "signal_lead_s": 300},
        "environment": {"setup": ["export A='b c'", "for i in 1 2; do echo $i; done"]},
    },
}  # fmt: skip


def _plan(job: Make, name: str) -> SubmissionPlan:
    values = JOBS[name]
    image = values.get("environment", {}).get("container")
    python = replace(PYTHON, path="/opt/py/bin/python", checked=False) if image else PYTHON
    waits = [
        Predecessor("ok", "/runs/a", "17"),
        Predecessor("any", "/runs/b", "18"),
        Predecessor("ok", "/runs/c", "19"),
    ]
    after = tuple(waits) if name == "everything" else ()
    return plan(job(**values), facts(interpreter=python, after=after))


@pytest.mark.parametrize("name", sorted(JOBS))
def test_scripts_are_as_recorded(job: Make, name: str) -> None:
    """Each example's sbatch text equals the golden file."""
    path = GOLDEN / f"{name}.sbatch"
    actual = _plan(job, name).sbatch + "\n"
    if os.environ.get("LAUNCHER_RECORD_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(actual)
    expected = path.read_text() if path.exists() else ""

    assert expected == actual, f"record it again with: {RECORD}"


@pytest.mark.parametrize("name", sorted(JOBS))
def test_bash_can_read_every_script(job: Make, name: str) -> None:
    """bash -n finds no fault in any of them."""
    done = subprocess.run(["bash", "-n"], input=_plan(job, name).sbatch, text=True, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_in_a_script_ends_the_other_nodes(job: Make) -> None:
    """--no-kill twice, no kill on a bad exit, no waiting limit, one task per node, logs appended, no wckey."""
    text = _plan(job, "student").sbatch
    srun = next(line for line in text.splitlines() if line.startswith("srun "))

    assert "#SBATCH --no-kill" in text
    assert "#SBATCH --ntasks-per-node=1" in text
    assert "--ntasks-per-node=1" in srun.split()
    assert "#SBATCH --open-mode=append" in text
    assert "#SBATCH --requeue" in text
    assert "#SBATCH --signal=USR2@120" in text
    assert "wckey" not in text
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none", "--cpus-per-task=32"} <= set(
        srun.split()
    )


@pytest.mark.parametrize(
    "given", [["--container-mounts=/a:/a", "--container-mounts", "/b:/b"], ["--container-mounts", "/a:/a,/b:/b"]]
)
def test_pyxis_gets_every_mount_in_one_option(job: Make, given: list[str]) -> None:
    """Srun keeps only the last --container-mounts: a user's must not take the run's directory out of the container."""
    image = {
        "container": "docker://lab",
        "python": "/opt/py/bin/python",
        "container_args": [*given, "--no-container-entrypoint"],
    }
    made = plan(job(environment=image), facts())

    (mounts,) = set(re.findall(r"--container-mounts[= ](\S+)", made.sbatch))  # srun's, and the keeper's
    run, *others = mounts.split(",")
    assert (run.split(":")[0], others) == (made.spec.run_dir, ["/a:/a", "/b:/b"])
    assert "--no-container-entrypoint" in made.sbatch
    assert "export ENROOT_FORCE_OVERRIDE=yes" in made.sbatch


@pytest.mark.parametrize(("image", "option"), [("docker://lab", "--container-mounts="), ("/lab.sif", "--bind ")])
def test_the_containers_of_a_hold_see_its_reruns(job: Make, image: str, option: str) -> None:
    """Their folders are made later, beside the hold's: the folder of all runs is mounted."""
    one = job(environment={"container": image, "python": "/opt/py/bin/python"})
    held, alone = (plan(one, replace(facts(), hold=hold)) for hold in (True, False))

    runs = str(held.paths.root.parent)
    assert f"{option}{runs}:{runs}".removesuffix(f":{runs}" if "sif" in image else "") in held.sbatch
    assert f"{option}{alone.spec.run_dir}" in alone.sbatch
    assert (held.spec.hold, alone.spec.hold) == (True, False)


@pytest.mark.parametrize("spares", [0, 1])
def test_slurm_itself_requeues_containers_whose_first_host_died(job: Make, spares: int) -> None:
    """Their agents cannot ask for it. Spares need --no-kill: then the hosts that may come to lead have couriers."""
    image = {"container": "docker://lab", "python": "/opt/py/bin/python"}
    made = plan(job(environment=image, resources={"nodes": 2, "spare_nodes": spares}), facts())

    assert ("#SBATCH --no-kill" in made.sbatch) == (spares > 0)
    (courier,) = (line for line in made.sbatch.splitlines() if "launcher.slurm.courier" in line)
    assert " srun --overlap --mem=0 --nodes=1 " in courier
    assert "--container" not in courier


def test_hostile_strings_stay_strings(job: Make) -> None:
    """Every text a user gives to sbatch is one shell word in the script; nothing of it would be run."""
    hostile = "x; touch pwned $(touch pwned) `touch pwned` 'q' \"q\" \\ ü *"
    keys = ("partition", "account", "qos", "constraint", "comment", "exclude", "mail_user", "reservation")
    loaded = job()
    slurm = replace(loaded.job.slurm, **dict.fromkeys(keys, hostile))  # past the config's own, stricter rules
    text = plan(replace(loaded, job=replace(loaded.job, slurm=slurm)), facts()).sbatch

    found = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH --") and "=" in line:
            words = shlex.split(line[len("#SBATCH ") :], comments=False)
            assert len(words) == 1
            name, _, value = words[0][2:].partition("=")
            found[name] = value

    escaped = hostile.replace("\\", "\\\\")  # sbatch's own reading takes one away (tests/slurm/test_submit_real.py)
    assert {key.replace("_", "-"): escaped for key in keys}.items() <= found.items()


@pytest.mark.parametrize("key", ["no-kill", "nodes", "array", "output", "signal", "requeue", "wrap", "export"])
def test_options_of_the_launcher_cannot_be_undone(job: Make, key: str) -> None:
    """slurm.extra may not say what the launcher relies on."""
    with pytest.raises(ConfigError, match=key):
        plan(job(slurm={"extra": {key: "1"}}), facts())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ntasks=1"], "set resources.tasks_per_node instead of --ntasks=1"),
        (["--label", "-n1"], "set resources.tasks_per_node instead of -n1"),
        (["--nodes", "1"], "set resources.nodes instead of --nodes"),
        (
            ["--container-mounts=/data:/data"],
            "set environment.container_args instead of --container-mounts=/data:/data",
        ),
        (["--overlap"], "the launcher alone decides about this option; remove --overlap"),
        (["--output=/dev/null"], "the launcher alone decides about this option; remove --output=/dev/null"),
        (["--dist=block"], "--dist=block would number the tasks otherwise than the nodes; remove it"),
        (["-mblock"], "-mblock would number the tasks otherwise than the nodes; remove it"),
        (["--mpi=pmix", "--slurmd-debug", "-1", "--label", "--container-name=x"], ""),
    ],
)
def test_arguments_of_srun_leave_the_step_one_agent_a_node(job: Make, words: list[str], said: str) -> None:
    """One task of two would wait half an hour for the other, and srun keeps only the last of several --container-mounts."""
    loaded = job(slurm={"srun_args": words}, resources={"nodes": 2})
    if not said:
        assert plan(loaded, facts()).parameters["srun_args"][-len(words) :] == words
        return
    with pytest.raises(ConfigError, match=rf"slurm\.srun_args: {re.escape(said)}"):
        plan(loaded, facts())


@pytest.mark.parametrize("key", ["a b", "--x", "x\ny", "X$(id)", ""])
def test_keys_of_extra_are_options(job: Make, key: str) -> None:
    """slurm.extra's keys are long options, never shell."""
    with pytest.raises(ConfigError):
        plan(job(slurm={"extra": {key: "1"}}), facts())


@pytest.mark.parametrize("where", ["comment", "srun_args", "extra"])
def test_line_breaks_never_reach_a_script(job: Make, where: str) -> None:
    """A line break would end the #SBATCH line and begin shell: refused."""
    bad = "a\ntouch pwned"
    values: dict[str, Any] = {
        "comment": {"comment": bad},
        "srun_args": {"srun_args": [bad]},
        "extra": {"extra": {"x": bad}},
    }
    with pytest.raises(ConfigError):
        plan(job(slurm=values[where]), facts())


def test_gpus_as_the_site_wants_them(job: Make) -> None:
    """gpus-per-node by default, gres where the site's profile says so."""
    loaded = job(resources={"gpus_per_node": 2})
    gres = replace(loaded, site=replace(loaded.site, gpu_request="gres"))

    assert "#SBATCH --gpus-per-node=2" in plan(loaded, facts()).sbatch
    assert "#SBATCH --gres=gpu:2" in plan(gres, facts()).sbatch


@pytest.mark.parametrize(("backend", "ignored"), [("slurm", True), ("local", False)])
def test_the_agents_python_ignores_signals_until_it_is_ready(
    job: Make, tmp_path: Path, backend: str, ignored: bool
) -> None:
    """Run for real: Python starts after the setup lines, arguments intact; under SLURM with TERM and USR2 ignored.

    On one's own machine nobody repeats a cancel that came too early: there it ends what is starting.
    """
    here = facts(backend=backend, interpreter=replace(PYTHON, path="/usr/bin/env"), runs_dir=str(tmp_path))
    made = plan(job(environment={"setup": ["export FROM_SETUP='x y'"]}), here)
    (Path(made.run_dir) / "lib").mkdir(parents=True)
    show = 'grep SigIgn /proc/self/status; echo "$FROM_SETUP|$PYTHONPATH|$1|$PWD"'
    done = subprocess.run(
        ["bash", "-c", f'{made.command} bash -c "$1" show "a  b"', "outer", show],
        capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"], "PYTHONPATH": "/theirs"},
    )  # fmt: skip
    signals, said = done.stdout.splitlines()
    mask = int(signals.split()[1], 16)
    path = "/theirs" if backend == "slurm" else f"{made.run_dir}/lib:/theirs"  # sbatch's script exports it outside

    assert [bool(mask & (1 << 14)), bool(mask & (1 << 11))] == [ignored, ignored]  # signals 15 and 12
    assert said == f"x y|{path}|a  b|{made.run_dir}/lib"


@pytest.mark.parametrize("backend", ["slurm", "local"])
def test_setup_lines_begin_where_the_job_was_submitted(job: Make, tmp_path: Path, backend: str) -> None:
    """Also those of an agent that the keeper or a continuation job starts from the run's own folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "env.sh").write_text("export FROM=here\n")
    env = replace(PYTHON, path="/usr/bin/env")
    here = facts(backend=backend, interpreter=env, runs_dir=str(tmp_path), submit_dir=str(tmp_path / "here"))
    made = plan(job(environment={"setup": ["source env.sh"]}), here)
    (lib := Path(made.run_dir) / "lib").mkdir(parents=True)

    done = subprocess.run([*shlex.split(made.command), "printenv", "FROM"], cwd=lib, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("here\n", "")


def test_the_command_is_the_same_words_for_both_readers(job: Make) -> None:
    """bash reads it in the sbatch script, submitit's local executor splits it: both see one program and its arguments."""
    made = _plan(job, "everything")
    words = shlex.split(made.command)

    assert words[:2] == ["/bin/bash", "-c"]
    assert words[-1] == PYTHON.path
    assert "done\ncd " in words[2]


def test_a_site_that_cannot_requeue_is_described(job: Make) -> None:
    """PreemptMode=CANCEL: the stop line says that a continuation job follows."""
    made = plan(job(), facts(slurm=SlurmFacts(found=True, known=True, site=SiteSpec(preempt_mode="CANCEL"))))

    assert any("then a continuation job" in line for line in made.summary)


def test_a_node_that_does_not_see_the_run_says_so_by_its_exit_code(job: Make) -> None:
    """SLURM since 23.02 starts the task all the same: 72, once it has looked a second time."""
    made = plan(job(), facts(runs_dir="/nowhere"))
    begin = time.monotonic()
    done = subprocess.run(shlex.split(made.command), capture_output=True, text=True)

    assert done.returncode == 72
    assert time.monotonic() - begin > 4
    assert len(done.stderr.splitlines()) == 1


def test_python_command_is_pure_text(job: Make) -> None:
    """Without setup lines and containers the command is one short line."""
    loaded = job()
    made = plan(loaded, facts())

    assert "\n" not in python_command(loaded.job, made.spec, facts(), made.python_path, made.place)


@pytest.mark.parametrize("spares", [0, 1])
def test_a_range_of_nodes_is_asked_of_slurm(job: Make, spares: int) -> None:
    """SLURM gives any number of it; a lost node must not end the job; submitit itself reckons with a number."""
    made = plan(job(resources={"nodes": "2-4", "tasks_per_node": 2, "spare_nodes": spares}), facts())

    assert f"#SBATCH --nodes=2-{4 + spares}\n" in made.sbatch
    assert "#SBATCH --no-kill\n" in made.sbatch
    assert "#SBATCH --ntasks" not in made.sbatch, "SLURM would give as few nodes as the tasks of the lower end need"
    assert made.parameters["nodes"] == 4 + spares
    assert (made.spec.nodes, made.spec.needed_nodes, made.spec.world_size) == (4, 2, 8)
    assert "2 to 4 nodes" in made.summary[0]
    assert "up to 8 ranks" in made.summary[0]


def test_a_range_of_one_number_is_that_number(job: Make) -> None:
    """``nodes: 2-2`` is ``nodes: 2``."""
    made = plan(job(resources={"nodes": "2-2"}), facts())

    assert "#SBATCH --nodes=2\n" in made.sbatch
    assert (made.spec.nodes, made.spec.least_nodes) == (2, None)


def test_the_script_runs_an_agent_of_a_running_job_where_it_is_given_its_words(job: Make, tmp_path: Path) -> None:
    """`resources.replace`: the same script, with words, runs one agent with them and nothing else; without words, all that it always does."""
    made = plan(job(resources={"nodes": "2-3", "replace": True}), facts()).sbatch
    plain = plan(job(resources={"nodes": "2-3"}), facts()).sbatch
    line = next(line for line in made.splitlines() if line not in plain.splitlines())
    assert made.replace(f"{line}\n", "") == plain
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    srun.chmod(0o755)
    run = [*("bash", "-c", f"{line}\necho went on", "script"), "/runs/a b", "--node", "3"]
    said = subprocess.run(
        run, env={"PATH": f"{tmp_path}:/bin:/usr/bin"}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[-6:] == ["-u", "-m", "launcher.node.agent", "/runs/a b", "--node", "3"]
    assert "--ntasks-per-node=1" in said
    assert subprocess.run(run[:4], capture_output=True, text=True, check=True).stdout == "went on\n"
