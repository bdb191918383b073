"""Make the sbatch script, by submitit's private ``_make_sbatch_string`` (submitit >=1.5.4,<1.6).

submitit's public SlurmExecutor raises where there is no ``srun`` on the PATH, and a plan must print on a laptop.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from launcher.config.document.schema import Job
from launcher.errors import ConfigError
from launcher.run.batch import UNSEEN
from launcher.run.spec import RunSpec
from launcher.submission.facts.facts import Facts
from launcher.submission.plan import around_srun, staging
from launcher.submission.plan.job_place import JobPlace
from launcher.submission.plan.node_spec import code_mounts

if TYPE_CHECKING:
    from launcher.run.after import Predecessor

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _image_for(runtime: str, job: Job) -> str:
    """Return the job's container image if it is for ``runtime``: a .sif is for Apptainer, any other for pyxis."""
    image = job.environment.container or ""
    return image if image.endswith(".sif") == (runtime == "apptainer") else ""


def parameters(
    job: Job, spec: RunSpec, facts: Facts, gpu_request: str, command: str, python_path: Sequence[str], place: JobPlace
) -> dict[str, Any]:
    """Return submitit's parameters: one SLURM task a node, and no task's end kills the others. Raises ConfigError.

    ``command`` is what `python_command` returns.
    """
    cpus = spec.tasks_per_node * spec.cpus_per_task
    outside = _srun(job, cpus)
    srun = [*outside, *_pyxis(job, facts, place)]
    slurm = job.slurm
    plain = ("partition", "account", "qos", "constraint", "exclude", "nodelist", "comment", "mail_type", "mail_user")
    values: dict[str, Any] = {
        "job_name": place.job_name,
        "time": spec.timeout_min,
        "nodes": spec.all_nodes,
        # With it SLURM reckons the tasks of a range from its lower end, and gives as many nodes as those need.
        "ntasks_per_node": 1 if spec.needed_nodes == spec.nodes else None,
        "cpus_per_task": cpus,
        "mem": _mem(spec.mem_gb),
        **{name: getattr(slurm, name) for name in plain},
        "dependency": _dependency(slurm.dependency, facts.after),
        "exclusive": True if slurm.exclusive else None,
        **_gpus(slurm.gres, spec.gpus_per_node, gpu_request),
        "signal_delay_s": spec.restart.signal_lead_s,
        "stderr_to_stdout": True,
        "setup": [
            around_srun.KEEP_SHELL,
            *_umask(spec),
            _export_path(python_path),
            *staging.carries(job, facts, python_path[0]),
            *([around_srun.joins(srun, command)] if job.resources.replace else []),
            around_srun.MARK_START,
            *around_srun.first_node_sees(place),
            *_replace_container(job),
            *around_srun.courier(job, facts, python_path[0], place, outside),
            *around_srun.keeper(job, facts, python_path[0], place, srun, command),
        ],
        "srun_args": srun,
        "teardown": around_srun.teardown(
            place.run_dir,
            python_path[0],
            '"$outside"' if job.environment.container else shlex.quote(facts.interpreter.path),
            courier=bool(job.environment.container),
            keeper=True,
        ),
        "additional_parameters": _checked_texts(_additional(job, spec, facts)),
    }
    for number, text in enumerate(values["srun_args"]):
        _refuse_control(f"srun_args[{number}]", text)
    values = _checked_texts({k: v for k, v in values.items() if v is not None})
    return {**values, "wckey": None}  # submitit's default one is unknown to sites that check wckeys


def _mem(mem_gb: float | None) -> str | None:
    if mem_gb is None:
        return None
    if mem_gb == int(mem_gb):
        return f"{int(mem_gb)}GB"
    return f"{max(1, int(mem_gb * 1024))}MB"  # --mem=0 is all of a node's


def _gpus(gres: str | None, gpus_per_node: int, gpu_request: str) -> dict[str, Any]:
    if gres:
        return {"gres": gres}
    if not gpus_per_node:
        return {}
    return {"gres": f"gpu:{gpus_per_node}"} if gpu_request == "gres" else {"gpus_per_node": gpus_per_node}


_DEPENDENCIES = {"ok": "afterok", "any": "afterany", "fails": "afternotok"}


def _dependency(given: str | None, after: Sequence[Predecessor]) -> str | None:
    kinds = dict.fromkeys(one.kind for one in after if one.job_id)
    parts = [given] if given else []
    parts += [":".join([_DEPENDENCIES[kind], *(one.job_id for one in after if one.kind == kind)]) for kind in kinds]
    return ",".join(parts) or None


_STEP = {
    **dict.fromkeys(
        ("error", "input", "kill-on-bad-exit", "multi-prog", "no-kill", "output", "overlap", "wait", "-K", "-W", "-e", "-i", "-k", "-o"), ""
    ),
    "container-image": "environment.container",
    "container-mounts": "environment.container_args",
    **dict.fromkeys(("cpus-per-task", "-c"), "resources.cpus_per_task"),
    **dict.fromkeys(("exclude", "-x"), "slurm.exclude"),
    "export": "environment.pass or environment.variables",
    **dict.fromkeys(("nodelist", "-w"), "slurm.nodelist"),
    **dict.fromkeys(("nodes", "-N"), "resources.nodes"),
    **dict.fromkeys(("ntasks", "ntasks-per-node", "tasks-per-node", "-n"), "resources.tasks_per_node"),
}  # fmt: skip
"""Options of srun that make the step what the launcher needs, one agent a node, and the key to set instead ("" for none)."""


def _refuse_owned(words: Sequence[str]) -> None:
    """Refuse options that srun would take from the user and not from the launcher. Raises ConfigError."""
    for word in words:
        option = word[2:].partition("=")[0] if word.startswith("--") else word[:2]
        if option.startswith(("dist", "-m")):
            raise ConfigError(f"slurm.srun_args: {word} would number the tasks otherwise than the nodes; remove it")
        if (instead := _STEP.get(option)) is not None:
            said = f"set {instead} instead of" if instead else "the launcher alone decides about this option; remove"
            raise ConfigError(f"slurm.srun_args: {said} {word}")


def _srun(job: Job, cpus: int) -> list[str]:
    _refuse_owned(job.slurm.srun_args)
    return [
        "--kill-on-bad-exit=0",  # a site may default to 1: one failed agent would take the others along
        "--wait=0",  # srun ends other tasks some time after the first one ended, unless told not to
        "--ntasks-per-node=1",
        "--no-kill",  # with sbatch's own --no-kill: the other nodes go on when one dies
        f"--cpus-per-task={cpus}",  # 22.05 to 23.02: srun does not inherit it from sbatch
        "--distribution=cyclic",  # task numbers are node numbers: since 26.05 block, which a site may default to, follows the topology
        "--cpu-bind=none",  # agents place their workers themselves
        "--mpi=none",
        "--export=ALL",
        *job.slurm.srun_args,
    ]


def _pyxis(job: Job, facts: Facts, place: JobPlace) -> list[str]:
    """Return srun's options for a container."""
    if not (image := _image_for("pyxis", job)):
        return []
    mounts = [f"{path}:{path}" for path in _mounts(job, facts, place)]
    option, given = "--container-mounts=", _joined(job.environment.container_args)
    mounts += [arg.removeprefix(option) for arg in given if arg.startswith(option)]
    rest = [arg for arg in given if not arg.startswith(option)]
    return [f"--container-image={image}", f"{option}{','.join(mounts)}", *rest]


def _replace_container(job: Job) -> list[str]:
    """Have enroot replace the container that an earlier life of the job has left: pyxis names containers after job and step.

    One is left where the host died, or where the step's TERM also reached pyxis's removal of the container.
    """
    return ["export ENROOT_FORCE_OVERRIDE=yes"] if _image_for("pyxis", job) else []


def _joined(words: Sequence[str]) -> list[str]:
    """Return pyxis's arguments with `--container-mounts PATHS` as one word: srun keeps only the last of several such options."""
    out: list[str] = []
    for word in words:
        if out and out[-1] == "--container-mounts":
            out[-1] += f"={word}"
        else:
            out.append(word)
    return out


def _mounts(job: Job, facts: Facts, place: JobPlace) -> list[str]:
    """Return what a container must see: the run, and what the run's code links to. Reruns of a hold will lie beside it."""
    own = str(PurePath(place.root).parent) if facts.hold else place.root
    return [own, *code_mounts(job, facts.code.root)]


def _additional(job: Job, spec: RunSpec, facts: Facts) -> dict[str, Any]:
    values: dict[str, Any] = {"signal": f"USR2@{spec.restart.signal_lead_s}"}
    if spec.spare_nodes or spec.needed_nodes < spec.nodes or not job.environment.container:
        # With it nobody but the other agents brings back a job whose batch host died. Inside containers those alone can that may come to
        # lead: they have couriers.
        values["no-kill"] = True
    if spec.needed_nodes < spec.nodes:
        values["nodes"] = f"{spec.needed_nodes}-{spec.all_nodes}"  # submitit itself reckons with a number
    values["requeue" if spec.restart.requeue else "no-requeue"] = True
    if facts.after:
        values["kill-on-invalid-dep"] = "yes"  # a job that can never start would stay in the queue for ever
    if job.slurm.reservation:
        values["reservation"] = job.slurm.reservation
    for key, value in job.slurm.extra.items():
        if value is not False:  # submitit would write the word False
            values[key] = value
    return values


def _checked_texts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Double the backslashes of texts, and refuse control characters. Raises ConfigError.

    sbatch (22.05) takes a backslash for an escape even between single quotes, where no shell does. A line break inside
    ``#SBATCH --comment='...'`` would begin a line of shell.
    """
    checked = {}
    for key, value in values.items():
        if isinstance(value, str):
            _refuse_control(key, value)
            value = value.replace("\\", "\\\\")
        checked[key] = value
    return checked


def _refuse_control(key: str, value: str) -> None:
    if _CONTROL.search(value):
        raise ConfigError(f"slurm.{key}: {value!r} has a line break or control character, which sbatch refuses")


def _export_path(python_path: Sequence[str]) -> str:
    return f"export PYTHONPATH={shlex.quote(':'.join(python_path))}${{PYTHONPATH:+:$PYTHONPATH}}"


def python_command(job: Job, spec: RunSpec, facts: Facts, python_path: Sequence[str], place: JobPlace) -> str:
    """Return the interpreter as a piece of shell: under SLURM signals ignored, setup lines, container, Python.

    ``python -m`` looks into the working directory first, before PYTHONPATH: a folder of the user's called launcher must
    not be taken for this package, so it starts in the run's lib (after the setup lines, which may name relative paths).
    Used by both backends: bash reads it in the sbatch script, submitit's local executor splits it.
    """
    lines = setup_lines(job, facts.submit_dir)
    if spec.batch == "local":  # TERM is a user's cancel here: nothing would repeat one that came while Python starts
        lines = [
            *lines,
            _export_path(python_path),
            *_local_gpus(spec, facts),
        ]
    else:
        lines.insert(0, around_srun.IGNORE)
        if _image_for("pyxis", job):
            lines.append(_export_path(python_path))  # this shell is inside the container, whose image may set its own
    lines += _umask(spec)  # after the user's lines, before Python compiles anything in the run's folder
    enter = f"cd {shlex.quote(python_path[0])}"  # again after some seconds: NFS may show a new folder late
    lines += [f"{enter} 2>/dev/null || sleep 5", f"{enter} || exit {UNSEEN}", 'exec "$@"']
    text = ("\n" if len(lines) > 4 else "; ").join(lines)
    inside = [*_apptainer(job, spec, facts, python_path, place), *staging.enters(job, facts, python_path[0])]
    return shlex.join(["/bin/bash", "-c", text, "agent", *inside, facts.interpreter.path])


def setup_lines(job: Job, submit_dir: str) -> list[str]:
    """Return the job's setup lines, which begin where it was submitted first ("" is unknown).

    An agent that is started again, or by a later job, begins elsewhere. A container may lack the folder.
    """
    lines = job.environment.setup
    return [f"cd {shlex.quote(submit_dir)} 2>/dev/null", *lines] if lines and submit_dir else list(lines)


def _umask(spec: RunSpec) -> list[str]:
    """Have the group read all that a shared run makes, and nobody else write it, whatever the user's umask."""
    return ["umask g+rx,g-w,o-w"] if spec.share == "group" else []


def _local_gpus(spec: RunSpec, facts: Facts) -> list[str]:
    """Give each simulated node GPUs of its own; submitit's local executor would give all of them the same ones."""
    each = spec.gpus_per_node
    if not each:
        return []
    shares = [",".join(facts.gpus[i * each : (i + 1) * each]) for i in range(spec.all_nodes)]
    cases = " ".join(f"{i}) export CUDA_VISIBLE_DEVICES={shlex.quote(s)};;" for i, s in enumerate(shares))
    return [f'case "$SUBMITIT_LOCAL_GLOBALID" in {cases} esac']


def _apptainer(job: Job, spec: RunSpec, facts: Facts, python_path: Sequence[str], place: JobPlace) -> list[str]:
    if not (image := _image_for("apptainer", job)):
        return []
    hides = {"--cleanenv", "-e", "--containall", "-C"} & set(job.environment.container_args)
    if hides:
        raise ConfigError(
            f"environment.container_args: {min(hides)} hides SLURM's and the launcher's variables from the agent; remove it"
        )
    gpus = ["--nv"] if spec.gpus_per_node else []
    binds = [word for path in _mounts(job, facts, place) for word in ("--bind", path)]
    ours = ["--pwd", python_path[0], "--env", f"PYTHONPATH={':'.join(python_path)}"]  # an image may set its own
    again = [
        "/bin/sh",
        "-c",
        f'{around_srun.IGNORE}; exec "$@"',
        "agent",
    ]  # Apptainer starts its program with signals reset
    return ["apptainer", "exec", *gpus, *ours, *binds, *job.environment.container_args, image, *again]


def render_script(command: str, folder: str, parameters: dict[str, Any], points: int) -> str:
    """Return the sbatch script that submitit writes for ``command`` (see `python_command`) with its files in ``folder``.

    Several ``points`` make it an array. Same function, same parameters as the submission itself: what is printed is submitted.
    """
    from submitit.slurm.slurm import _make_sbatch_string

    full = f"{command} -u -m submitit.core._submit {shlex.quote(folder)}"
    text: str = _make_sbatch_string(command=full, folder=folder, map_count=points if points > 1 else None, **parameters)
    return text
