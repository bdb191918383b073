"""Gathers the `Facts` a plan depends on: the only part of planning that looks at this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config.check.user_code import attaches, calls, script_file, unguarded_loader
from launcher.config.document.schema import Job
from launcher.config.document.texts import leaves
from launcher.config.load.load import LoadedJob
from launcher.config.load.site_profile import SiteProfile
from launcher.config.load.trust import refuse
from launcher.errors import ConfigError
from launcher.redact import secret_name
from launcher.run import index
from launcher.slurm.environ import without_slurm
from launcher.slurm.site import ask_site, find_slurm, policy
from launcher.submission.facts import code_files, interpreter
from launcher.submission.facts.facts import BackendName, CodeFacts, Facts, Interpreter, SlurmFacts, StagedFiles
from launcher.submission.facts.staged_files import folder_beside, staged_files

if TYPE_CHECKING:
    from launcher.run.after import Predecessor

_SPAWNS = {
    f"torch.multiprocessing.{name}" for name in ("spawn", "start_processes", "spawn.spawn", "spawn.start_processes")
}

_IMAGE_FILES = (".sif", ".sqsh")
"""Images that are files, Apptainer's and enroot's; others are names in a registry."""


def gather_facts(
    loaded: LoadedJob,
    *,
    backend: BackendName = "auto",
    code: CodeFacts | None = None,
    run_id: str | None = None,
    after: Sequence[Predecessor] = (),
    for_reading: bool = False,
    slurm: SlurmFacts | None = None,
    skip: Sequence[Path] = (),
    lies_in: Path | None = None,
    submit_dir: str = "",
) -> Facts:
    """Gather what planning ``loaded`` needs. ``code`` replaces reading the code directory (a resubmission's copy).

    ``slurm``: what is known of it. ``skip``: folders that are no code. ``lies_in``: the folder of the run that is there already, whatever
    ``runs_dir`` is today. ``for_reading``: the plan is only printed, also of a job in doubt, of which nothing is run.
    ``submit_dir``: where the run was submitted first; "" is here.

    Raises TrustError for such a job otherwise, and ConfigError when the code directory or ``runs_dir`` cannot be used.
    """
    if not for_reading:
        refuse(loaded.doubt)
    env, job = os.environ, loaded.job
    with loaded.placing():
        runs_dir, shown = (lies_in, "") if lies_in else runs_dir_of(job.runs_dir, loaded.base_dir, loaded.site, env)
    free_bytes, free_inodes = _free(runs_dir)
    image, image_missing = _image(loaded)
    with ThreadPoolExecutor(max_workers=2) as pool:  # waiting for SLURM's and git's answers side by side
        asked = pool.submit(lambda: slurm or _slurm_facts(env, job, backend))
        reading = pool.submit(lambda: code or code_facts(loaded, runs_dir, skip))
        asks = job.environment
        python = interpreter.find_interpreter(
            asks.python, asks.container, env, base=loaded.base_dir, run_named=not loaded.doubt
        )
        with loaded.placing():
            code = reading.result()
        doubt = loaded.doubt or ("" if loaded.trusted else code.doubt)
        if not for_reading:
            refuse(doubt)
        slurm = asked.result()
    return Facts(
        backend=backend,
        run_id=run_id or index.new_id(loaded.name),
        runs_dir=str(runs_dir),
        runs_dir_shown=shown,
        free_bytes=free_bytes,
        free_inodes=free_inodes,
        interpreter=python,
        launcher_python=sys.executable,
        image=image,
        image_missing=image_missing,
        staged=_staged(job, python, code, backend, runs_dir),
        code=code,
        slurm=slurm,
        **_here(env, submit_dir),
        after=tuple(after),
        doubt=doubt,
        unset_pass=tuple(n for n in dict.fromkeys([*job.environment.pass_, *job.notify.urls]) if n not in env),
    )


def _here(env: Mapping[str, str], submit_dir: str) -> dict[str, Any]:
    """Return what this machine and its environment tell."""
    return {
        "gpus": gpus_here(env),
        "cpus_here": len(os.sched_getaffinity(0)),
        "home": env.get("HOME", ""),
        "submit_dir": submit_dir or os.getcwd(),
        "sbatch_variables": tuple(sorted(k for k in without_slurm(env) if k.startswith("SBATCH_"))),
        "debug_detail": env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL",
    }


def _image(loaded: LoadedJob) -> tuple[str | None, bool]:
    """Return the job's container image, by its absolute path if it is a file: agents start in another folder; and whether that is missing."""
    image = loaded.job.environment.container
    if image is None or not image.endswith(_IMAGE_FILES):
        return image, False
    with loaded.placing():
        path = (loaded.base_dir / _expanded("environment.container", image)).absolute()
    return str(path), not os.path.exists(path)


def _staged(job: Job, python: Interpreter, code: CodeFacts, backend: BackendName, runs_dir: Path) -> StagedFiles | None:
    """Look at the environment that the job stages. Raises ConfigError."""
    if not job.environment.stage or backend == "local" or not python.checked or python.error:
        return None
    try:
        return staged_files(python, folder_beside(runs_dir / "run"), [code.root])
    except OSError as error:
        raise ConfigError(f"environment.stage: {error.filename} cannot be read: {error.strerror}") from None


def runs_dir_of(job_says: str | None, base: Path, site: SiteProfile, environ: Mapping[str, str]) -> tuple[Path, str]:
    """Return where runs are, absolute and as the user writes it: the job > $LAUNCHER_RUNS_DIR > the site > ./runs."""
    value = job_says or environ.get("LAUNCHER_RUNS_DIR") or site.runs_dir or "runs"
    text = _expanded("runs_dir", value)
    if "$" in text:
        raise ConfigError(f"runs_dir: {value}: {text[text.index('$') :].split('/')[0]} is not set in your environment")
    runs_dir = ((base if job_says else Path.cwd()) / text).absolute()
    if ":" in str(runs_dir):  # PYTHONPATH ends there: the run would import another launcher than its own copy
        raise ConfigError(
            f"runs_dir: {runs_dir} must not contain a colon; set runs_dir or $LAUNCHER_RUNS_DIR to another place"
        )
    return runs_dir, text


def _expanded(key: str, path: str) -> str:
    """Return a path with ``~`` and variables filled in. Raises ConfigError where it names a secret: paths are shown to everybody."""
    for name in re.findall(r"\$\{?(\w+)", path):
        if secret_name(name):
            raise ConfigError(
                f"{key}: the value of {name} is a secret and would be written into files; write another path"
            )
    return os.path.expanduser(os.path.expandvars(path))


def _free(path: Path) -> tuple[int | None, int | None]:
    """Return free bytes and inodes where ``path`` is or will be; None where the file system does not say."""
    try:
        stat = os.statvfs(next(p for p in (path, *path.parents) if p.exists()))
    except OSError:
        return None, None
    return stat.f_bavail * stat.f_frsize, (stat.f_favail if stat.f_files else None)


def code_facts(loaded: LoadedJob, runs_dir: Path, skip: Sequence[Path] = ()) -> CodeFacts:
    """Find out what a copy of the job's code would hold, without ``skip``. Raises ConfigError when there is no such directory."""
    root = loaded.code_dir
    if not os.path.isdir(root):
        raise ConfigError(f"code.dir: {root} is not a directory")
    try:
        about = script_facts(loaded.job.script or "", root)
    except OSError as error:  # a module that the script imports is in a folder that is closed to this user
        raise ConfigError(f"code.dir: {error.filename or root}: {(error.strerror or str(error)).lower()}") from None
    if not loaded.job.code.snapshot:
        return CodeFacts(root=str(root), **about)
    found = code_files.listing(root, [*(root / name for name in loaded.job.code.link), runs_dir, *skip])
    return replace(
        found,
        left_out=_left_out(loaded.job, root, found, runs_dir),
        commit=code_files.git(root, "rev-parse", "HEAD").strip() if found.git else "",
        dirty=found.git and code_files.git_dirty(root),
        **about,
    )


def _left_out(job: Job, root: Path, found: CodeFacts, runs_dir: Path) -> tuple[tuple[str, str], ...]:
    """Return key and path of what ``args``, ``params`` and links name in the code directory that is not copied, but for runs."""
    named: dict[str, str] = {}
    for key, value in [*leaves(job.args, "args"), *leaves(job.params, "params")]:
        for text in (value, value.partition("=")[2]) if isinstance(value, str) else ():
            named.setdefault(os.path.normpath(text), key.partition("[")[0])
    for name, target in found.inside:  # it would lead to nothing
        named.setdefault(os.path.relpath(target, root), f"the link {name}")
    paths = [path for path in named if root / path not in (runs_dir, *runs_dir.parents)]
    return tuple((named[path], path) for path in code_files.left_out(root, found, job.code.link, paths))


def script_facts(script: str, root: Path) -> dict[str, Any]:
    """Read the text of a job's script: facts by the names of `CodeFacts`."""
    path = script_file(script, root)
    if path is None:
        return {}
    return {
        "attaches": attaches(path, root),
        "spawns": tuple(call for call in calls(path) if call.name in _SPAWNS and not call.guarded),
        "unguarded_loader": unguarded_loader(path),
    }


def gpus_here(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Name the GPUs of this machine as CUDA_VISIBLE_DEVICES does, within what it allows; without torch.

    As CUDA reads it: what follows an entry that is no device counts for nothing.
    """
    present = tuple(str(i) for i in range(_count_gpus()))
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None or not present:
        return present
    entries = (entry.strip() for entry in mask.split(","))
    return tuple(takewhile(lambda d: d in present or d.startswith(("GPU-", "MIG-")), entries))


_DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl")
"""Where NVIDIA's driver shows; a container may have one of them alone."""


def _count_gpus() -> int:
    if not any(Path(place).exists() for place in _DRIVER):
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)  # noqa: S607 (sites choose it by PATH)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def _slurm_facts(environ: Mapping[str, str], job: Job, backend: BackendName) -> SlurmFacts:
    return SlurmFacts() if backend == "local" else slurm_facts(environ, job.slurm.partition, job.slurm.qos)


def slurm_facts(environ: Mapping[str, str], partition: str | None, qos: str | None) -> SlurmFacts:
    """Find out whether SLURM can be used from here, and its policy for ``partition`` and ``qos``."""
    presence = find_slurm(environ)
    if presence.state != "ready":
        return SlurmFacts(unusable=presence.reason.rstrip(".") if presence.state == "traces" else "")
    site = ask_site(tries=1, all_qos=False)  # a busy controller costs one look; the plan says so
    if isinstance(site, str):
        return SlurmFacts(found=True, silent=site)
    return SlurmFacts(
        found=True,
        known=True,
        site=policy(site, partition, qos),
        max_array_size=site.max_array_size,
        gpu_request=site.gpu_request,
        partition=site.partition(partition),
        partitions=tuple(p.name for p in site.partitions),
    )
