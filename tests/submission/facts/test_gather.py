"""Facts about what is gathered: where runs lie, which Python, whether SLURM is here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from modes import bound_by_modes

from launcher.config.check.named_code import check_code
from launcher.config.load.load import LoadedJob
from launcher.config.load.site_profile import SiteProfile
from launcher.errors import ConfigError, InterpreterError
from launcher.slurm.site import Presence
from launcher.submission.facts import gather, interpreter
from launcher.submission.facts.facts import SlurmFacts
from launcher.submission.plan.plan import plan

Make = Callable[..., LoadedJob]


def test_where_runs_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job > $LAUNCHER_RUNS_DIR > the site > ./runs; a job's own is relative to the job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRATCH_X", "/scratch/ann")
    site = SiteProfile(runs_dir="$SCRATCH_X/runs")
    base = tmp_path / "jobs"
    env = {"LAUNCHER_RUNS_DIR": "theirs"}

    assert gather.runs_dir_of("mine", base, site, env)[0] == base / "mine"
    assert gather.runs_dir_of(None, base, site, env)[0] == tmp_path / "theirs"
    assert gather.runs_dir_of(None, base, site, {})[0] == Path("/scratch/ann/runs")
    assert gather.runs_dir_of(None, base, SiteProfile(), {})[0] == tmp_path / "runs"
    with pytest.raises(ConfigError, match="is not set"):
        gather.runs_dir_of("$NOT_SET_ANYWHERE/x", base, site, {})
    with pytest.raises(ConfigError, match="must not contain a colon"):  # PYTHONPATH would end there
        gather.runs_dir_of("2026-11-29T18:30", base, site, {})


@pytest.mark.parametrize(
    ("named", "missing"), [("lab.sif", False), ("$IMAGES_X/lab.sqsh", True), ("nvcr.io#nvidia/pytorch", False)]
)
def test_an_image_that_is_a_file_lies_beside_the_job(
    job: Make, named: str, missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents start in another folder, so its path is made absolute; a name in a registry is left as it is; both are planned so."""
    monkeypatch.setenv("IMAGES_X", "/images")
    loaded = job(environment={"container": named})
    (loaded.base_dir / "lab.sif").touch()
    found = gather.gather_facts(loaded, backend="local")
    where = {"lab.sif": f"{loaded.base_dir}/lab.sif", "$IMAGES_X/lab.sqsh": "/images/lab.sqsh"}.get(named, named)

    assert (found.image, found.image_missing) == (where, missing)
    if missing:
        with pytest.raises(ConfigError, match=r"environment.container: /images/lab.sqsh was not found"):
            plan(loaded, found)
        assert (
            not replace(found, backend="auto").for_reading().image_missing
        )  # a laptop does not know the cluster's files
    else:
        assert plan(loaded, found).spec.container == where


def test_the_active_environment_comes_first(tmp_path: Path) -> None:
    """$VIRTUAL_ENV's Python is the job's; an unset one leaves the launcher's own; a named one must exist."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "VIRTUAL_ENV": str(tmp_path)}
    env.pop("CONDA_PREFIX", None)
    found = interpreter.find_interpreter(None, None, env)

    assert (found.path, found.origin) == (str(python), "$VIRTUAL_ENV")
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert "submitit" in found.packages
    env.pop("VIRTUAL_ENV")
    assert interpreter.find_interpreter(None, None, env).origin == "the launcher's own"
    with pytest.raises(InterpreterError, match=r"environment.python: /nowhere/python was not found"):
        interpreter.find_interpreter("/nowhere/python", None, env)


def test_a_relative_interpreter_is_the_jobs_wherever_the_command_runs(
    job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is resubmitted from the folder of another project, which has an environment of the same name: it keeps its own."""
    loaded = job(environment={"python": "env/bin/python"}, runs_dir=str(tmp_path / "runs"))
    for place in (loaded.base_dir, other := tmp_path / "other"):
        (place / "env/bin").mkdir(parents=True)
        (place / "env/bin/python").symlink_to(sys.executable)
    monkeypatch.chdir(other)

    assert gather.gather_facts(loaded, backend="local").interpreter.path == str(loaded.base_dir / "env/bin/python")
    assert interpreter.find_interpreter("python3", None, os.environ, base=other).origin == "environment.python"


def test_an_interpreter_that_fails_says_why(tmp_path: Path) -> None:
    """Its last words are the error, not a traceback."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2; echo cannot open shared object file >&2; exit 127\n")
    python.chmod(0o755)

    assert interpreter.ask_interpreter(str(python), "test", os.environ).error == "cannot open shared object file"


@pytest.mark.torch
def test_looking_for_torch_does_not_import_it() -> None:
    """The probe of this process leaves torch unimported."""
    text = (
        "import sys, os; from launcher.submission.facts import interpreter as i; "
        "f = i.ask_interpreter(sys.executable, 'x', os.environ); print('torch' in f.packages, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "False"]


def test_editable_packages_are_seen(tmp_path: Path) -> None:
    """An editable install tells its source; src/ where there is one."""
    site = tmp_path / "site"
    info = site / "my_lab-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "project" / "src").mkdir(parents=True)
    (info / "METADATA").write_text("Name: my-lab\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(f'{{"url": "file://{tmp_path}/project", "dir_info": {{"editable": true}}}}')
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)

    found = interpreter.ask_interpreter(str(python), "test", os.environ)

    assert ("my-lab", str(tmp_path / "project" / "src")) in found.editable


def test_a_container_is_not_looked_into() -> None:
    """Inside an image the interpreter cannot be checked from here."""
    found = interpreter.find_interpreter(None, "/img/lab.sif", os.environ)

    assert (found.path, found.checked) == ("python3", False)


def test_the_local_backend_does_not_ask_slurm(job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--backend local works beside a half-installed SLURM."""
    monkeypatch.setattr(gather, "find_slurm", lambda env: pytest.fail("asked"))
    loaded = job(runs_dir=str(tmp_path / "runs"))
    facts = gather.gather_facts(loaded, backend="local")

    assert not facts.slurm.found
    assert [name for name, _ in facts.code.files] == ["lab/__init__.py", "lab/tasks.py", "lab/train.py", "train.py"]
    assert facts.free_bytes


@pytest.mark.parametrize(("state", "unusable"), [("traces", "SLURM is here but srun is not"), ("none", "")])
def test_why_slurm_is_not_usable_is_a_fact(monkeypatch: pytest.MonkeyPatch, state: str, unusable: str) -> None:
    """The sentence is the one that doctor prints; without any trace of SLURM there is nothing to say."""
    monkeypatch.setattr(gather, "find_slurm", lambda env: Presence(state, f"{unusable}."))

    assert gather.slurm_facts({}, None, None) == SlurmFacts(unusable=unusable)


def test_closed_folders_are_sentences(job: Make, tmp_path: Path) -> None:
    """An image, a code directory and a module of the script may lie where this user may not look."""
    closed = tmp_path / "closed"
    (closed / "code").mkdir(parents=True)
    (closed / "code" / "train.py").touch()
    (closed / "code" / "data").touch()
    with_image = job(environment={"container": str(closed / "lab.sif")})
    elsewhere = job(code={"dir": str(closed / "code")})
    linked = job(code={"link": ["closed/code/data"]})
    script = job(script="closed/code/train.py")
    (tmp_path / "net.py").write_text("import closed.net\n")
    imports = job(script="net.py")
    closed.chmod(0)
    with bound_by_modes():
        assert gather.gather_facts(with_image, backend="local").image_missing
        (problem,) = check_code(elsewhere.job, elsewhere.code_dir)
        assert problem.message == f"{closed / 'code'}: permission denied"
        (problem,) = check_code(linked.job, linked.code_dir)
        assert problem.message == f"{closed / 'code' / 'data'}: permission denied"
        (problem,) = check_code(script.job, script.code_dir)
        assert problem.message == f"{closed / 'code' / 'train.py'}: permission denied"
        with pytest.raises(ConfigError, match=rf"code\.dir: {closed}\S*: permission denied"):
            gather.gather_facts(imports, backend="local")
    closed.chmod(0o700)


def test_a_missing_code_directory_is_a_sentence(job: Make, tmp_path: Path) -> None:
    """code.dir that is not there."""
    loaded = job()
    loaded = replace(loaded, base_dir=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"code\.dir: .*nowhere is not a directory"):
        gather.gather_facts(loaded, backend="local")


def test_gpus_within_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES names what may be used; on a machine without GPUs it means nothing."""
    monkeypatch.setattr(gather, "_count_gpus", lambda: 4)

    assert gather.gpus_here({}) == ("0", "1", "2", "3")
    assert gather.gpus_here({"CUDA_VISIBLE_DEVICES": "2,GPU-abc"}) == ("2", "GPU-abc")
    assert gather.gpus_here({"CUDA_VISIBLE_DEVICES": ""}) == ()
    monkeypatch.setattr(gather, "_count_gpus", lambda: 0)
    assert gather.gpus_here({"CUDA_VISIBLE_DEVICES": "0"}) == ()
