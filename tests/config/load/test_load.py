"""Loading: files, overrides and site profiles become one checked job."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from planning import load_values

from launcher.config.document.schema import Job
from launcher.config.load.interpolate import interpolate_run
from launcher.config.load.load import LoadedJob, argument_texts, load_job, site_job
from launcher.config.load.site_profile import ADMIN_PROFILE, load_site, site_paths
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
    assert (job.distributed.backend, job.environment.pass_, job.seed) == ("gloo", ["WANDB_API_KEY"], 0)


def test_overrides_win_and_are_named_as_origin(project: Path) -> None:
    """An override replaces a file's value and its origin reads "command line"."""
    loaded = load("script: train.py\nresources: {nodes: 2}\n", "resources.nodes=5", "params.lr=3e-4")

    assert (loaded.job.resources.nodes, loaded.job.params) == (5, {"lr": 0.0003})
    assert str(loaded.origin["resources.nodes"]) == "command line"
    assert str(loaded.origin["script"]) == "job.yaml:1:1"


def test_a_number_on_the_command_line_is_text_where_only_text_is_taken(project: Path) -> None:
    """The shell has eaten the quotes of slurm.account="1234": accounts are often numbers. What may be both stays a number."""
    job = load("script: train.py\n", "slurm.account=1234", "name=7e3", "params.a=7", "slurm.qos=null").job

    assert (job.slurm.account, job.name, job.params, job.slurm.qos) == ("1234", "7e3", {"a": 7}, None)


def test_an_empty_override_sets_a_variable_to_empty_text(project: Path) -> None:
    """As ``FOO=`` does in a shell, which eats the quotes of ``FOO=""`` as well; of any other key it is null."""
    job = load("script: train.py\n", "environment.variables.FOO=", "slurm.qos=").job

    assert (job.environment.variables, job.slurm.qos) == ({"FOO": ""}, None)


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


@pytest.mark.parametrize("written", ["3e-4", "3.0e-4", "3E-4", "0.0003"])
def test_numbers_with_an_exponent_are_numbers(project: Path, written: str) -> None:
    """A file's 3e-4, which YAML 1.1 takes for text, is the float 0.0003, alone, in a list and in a script's arguments."""
    job = load(f"script: train.py\nparams: {{lr: {written}, all: [{written}]}}\nargs: [--lr, {written}]\n").job

    assert job.params == {"lr": 0.0003, "all": [0.0003]}
    assert (type(job.params["lr"]), type(job.params["all"][0])) == (float, float)
    assert argument_texts(job.args) == ["--lr", "0.0003"]


def test_variables_are_text_as_it_is_written(project: Path) -> None:
    """Numbers, true and false are the very characters of the file or the command line; a resubmission reads the same."""
    text = """
        script: train.py
        params: {lr: 0.5, deep: true, layers: &n 0x10}
        environment:
          variables: {A: 3, B: 1e-3, C: 1.10, D: false, E: True, F: 99999999999999999999, G: "007",
                      H: "${params.lr}", I: "${params.deep}", J: *n, K: .5}
        """
    loaded = load(text, "environment.variables.L=2.50", "environment.variables.A=4_0", "environment.variables.M=true")
    found = {**loaded.job.environment.variables}

    assert found == {
        "A": "4_0", "B": "1e-3", "C": "1.10", "D": "false", "E": "True", "F": "99999999999999999999", "G": "007",
        "H": "0.5", "I": "true", "J": "0x10", "K": ".5", "L": "2.50", "M": "true",
    }  # fmt: skip
    assert load(loaded.yaml).job.environment.variables == found


def test_variables_given_as_python_values_are_text(project: Path) -> None:
    """Values that never were text are written as YAML writes them."""
    given = {"script": "train.py", "environment": {"variables": {"A": 3, "B": 0.5, "C": False}}}
    job = load_values(given, project).job

    assert job.environment.variables == {"A": "3", "B": "0.5", "C": "false"}


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
        f"command line: slurm.account: is locked by {admin}; remove it here",
        f"job.yaml:2:9: slurm.account: is locked by {admin}; remove it here",
    ]


def test_faults_of_profiles_are_said_with_their_place(project: Path) -> None:
    """A site profile's own keys are checked, its job keys like those of a job, and a named profile must be there."""
    site = project / "site.yaml"
    site.write_text(
        "gpu_request: gress\nlocked: [slurm.acount]\nruns_dir: 3\nslurm: {partion: x}\nresources: {nodes: 0}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load("script: train.py\n", sites=[site])

    assert caught.value.problems == [
        f'{site}:1:14: gpu_request: must be gpus-per-node or gres, not "gress"',
        f'{site}:2:9: locked: unknown job key "slurm.acount"; did you mean "slurm.account"?',
        f"{site}:3:11: runs_dir: must be text, not 3",
        f'{site}:4:9: slurm.partion: unknown key "partion"; did you mean "partition"?',
        f"{site}:5:20: resources.nodes: must be at least 1, not 0",
    ]
    with pytest.raises(ConfigError, match=r"nowhere.yaml: file not found"):
        load("script: train.py\n", sites=[project / "nowhere.yaml"])


def test_a_job_file_that_is_not_there_names_one_that_is(project: Path) -> None:
    """``job.yml`` beside ``job.yaml``, and a slip of the fingers."""
    (project / "job.yaml").write_text("script: train.py\n")
    for name, said in (
        ("job.yml", '; did you mean "job.yaml"?'),
        ("jbo.yaml", '; did you mean "job.yaml"?'),
        ("resnet50.yaml", ""),
    ):
        with pytest.raises(ConfigError) as caught:
            load_job(project / name)
        assert caught.value.problems == [f"{project / name}: file not found{said}"]


def test_where_profiles_are_looked_for(project: Path) -> None:
    """The user's own profile comes last, the one $LAUNCHER_SITE names before it."""
    home = project / "xdg" / "launcher"
    home.mkdir(parents=True)
    (home / "site.yaml").write_text("{}\n")
    found = site_paths({"XDG_CONFIG_HOME": str(project / "xdg"), "LAUNCHER_SITE": str(project / "named.yaml")})

    assert [p for p in found if p != ADMIN_PROFILE] == [project / "named.yaml", home / "site.yaml"]
    (home / "site.yaml").write_text("runs_dir: /a\n")
    assert load_site([home / "site.yaml"]).runs_dir == "/a"


def test_nothing_is_locked_by_saying_it_again(project: Path) -> None:
    """A whole locked section refuses every change below it, from the command line too, but takes equal values."""
    site = project / "site.yaml"
    site.write_text("restart: {max_total_hours: 24}\nlocked: [restart, slurm.qos]\n")

    assert load("script: train.py\n", "restart.max_total_hours=24", sites=[site]).job.restart.max_total_hours == 24
    with pytest.raises(ConfigError) as caught:
        load(
            "script: train.py\nrestart: {max_restarts: 9}\n",
            "restart={}",
            "slurm={qos: high}",
            "slurm=null",
            sites=[site],
        )
    assert [line.split(": ")[1] for line in caught.value.problems] == ["slurm.qos", "slurm", "restart.max_restarts"]
    with pytest.raises(ConfigError, match=r"job.yaml:2:1: restart: is locked by"):
        load("script: train.py\nrestart: null\n", sites=[site])


@pytest.mark.parametrize("name", ["seed", "distributed.interface", "distributed"])
def test_a_sweep_does_not_go_round_a_lock(project: Path, name: str) -> None:
    """A locked key, one above it and one below it are no axes, in the file and on the command line."""
    site = project / "site.yaml"
    site.write_text(f"seed: 3\ndistributed: {{interface: ib0}}\nlocked: [{name}]\n")
    axis = "seed" if name == "seed" else "distributed.interface"

    for text, flags in (
        (f"script: train.py\nsweep: {{{axis}: [1, 2]}}\n", ()),
        ("script: train.py\n", (f"{axis}=1,2",)),
    ):
        (project / "job.yaml").write_text(text)
        with pytest.raises(ConfigError, match=rf"sweep\.{axis}: {axis} is locked by {site}; remove it here"):
            load_job("job.yaml", sweep=flags, sites=[site])


SWEPT = """
name: lm7b
script: -m lab.train
args: ["optim.lr=${params.lr}", "hydra.run.dir=${run.dir}/hydra"]
params: {lr: 3.0e-4}
resources: {nodes: 32, gpus_per_node: 8, cpus_per_task: 12, timeout_min: 4320, spare_nodes: 1}
slurm: {partition: h100, account: lm, qos: high, exclusive: true}
environment: {container: /img/lab.sqsh, pass: [WANDB_API_KEY]}
distributed: {interface: ib0, init_timeout_min: 10}
checkpoint: {keep_last: 3, keep_every_steps: 10000}
restart: {max_total_hours: 336}
sweep: {params.lr: [3.0e-4, 1.0e-4], array_parallelism: 2}
share: group
"""
SMALL = """
name: resnet50
script: train.py
args: [--data, data/imagenet, --out, "${run.dir}/out"]
resources:
  nodes: 2
  gpus_per_node: 4          # tasks_per_node follows
  cpus_per_task: 8
  timeout_min: "24:00:00"   # quoted clock time, or minutes
slurm: {partition: preempt, account: vision}
environment: {setup: [module load cuda/12.1]}   # python: the active environment
code: {link: [data]}
restart: {max_total_hours: 120}
"""


@pytest.mark.parametrize("text", [SMALL, SWEPT], ids=["small", "swept"])
def test_jobs_as_users_write_them(text: str, project: Path) -> None:
    """A student's job and a lab's are taken as they are; the module may live in the container alone."""
    (project / "data").mkdir()
    loaded = load(text)

    assert loaded.name in ("resnet50", "lm7b")
    assert load(loaded.yaml).job == loaded.job


def test_what_profiles_say_of_a_job_that_says_nothing(tmp_path: Path) -> None:
    """The last profile's value counts, the default where there is none; what no job could have is left out."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("slurm: {partition: a100, account: lab}\nrestart: {signal_lead_s: 240}\n")
    second.write_text("slurm: {partition: h100}\nrestart: {max_at_risk_min: soon}\n")
    job = site_job([first, second])

    assert (job.slurm.partition, job.slurm.account, job.restart.signal_lead_s) == ("h100", "lab", 240)
    assert (job.restart.max_at_risk_min, site_job([]).slurm.partition) == (Job().restart.max_at_risk_min, None)
