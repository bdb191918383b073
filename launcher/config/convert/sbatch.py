"""Convert an sbatch script that starts torchrun, srun, accelerate or python to a job file."""

from __future__ import annotations

from launcher.config.convert.amounts import put_resources, read_amounts
from launcher.config.convert.directives import directives, node_range, smallest_count
from launcher.config.convert.launch import Launch
from launcher.config.convert.program import put_program
from launcher.config.convert.script_draft import ScriptDraft
from launcher.config.convert.script_environment import put_variable
from launcher.config.convert.script_lines import read_commands
from launcher.config.convert.shell_script import Command, commands
from launcher.config.convert.shell_variables import Ref, source
from launcher.config.convert.slurm_keys import put_array, put_slurm
from launcher.config.convert.step_options import put_export, with_step
from launcher.errors import ConfigError

_LONGEST_LINE = 4096
_ALWAYS_SET = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_SUBMIT_DIR", "HOME", "PWD"}
_OF_ARRAYS = {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID"}


def convert_sbatch(text: str, filename: str) -> str:
    """Return the job file for an sbatch script.

    Raises ConfigError when it has neither ``#SBATCH`` nor a training command, or no end of brackets in brackets.
    """
    try:
        return _converted(text.replace("\r\n", "\n"), filename)
    except RecursionError:
        raise ConfigError(f"{filename}: quotes and brackets are nested too deeply") from None


def _converted(text: str, filename: str) -> str:
    if any(len(line) > _LONGEST_LINE for line in text.splitlines() if line.startswith("#SBATCH")):
        raise ConfigError(f"{filename}: an #SBATCH line has more than {_LONGEST_LINE:,} characters")
    given, without_effect = directives(text)
    launches = _read(text, filename, given, None).launches
    chosen = max(range(len(launches)), key=lambda index: launches[index].weight, default=None)
    if chosen is None and not given:
        raise ConfigError(f"{filename} is not an sbatch script: it has no #SBATCH line and starts no Python program")
    script = _read(text, filename, given, chosen)  # again: what comes after the training prepares nothing
    launch = script.launches[chosen] if chosen is not None else None
    folder = script.folder
    requested = with_step(script, given, launch)
    script.has = read_amounts(requested)
    if launch is not None and script.has.nodes == 1:  # without --nodes the count of torchrun or accelerate holds
        counts = (smallest_count(launch.settings.get(name)) for name in ("nnodes", "num-machines", "num-nodes"))
        script.has.nodes = next(filter(None, counts), 1)
        script.has.node_range = node_range(launch.settings.get("nnodes", ""))
    put_program(script, launch, folder)
    put_resources(script, requested, launch, script.has)
    put_slurm(script, given)
    _leave_rest(script, launch, without_effect)
    return script.text()


def _read(text: str, filename: str, given: dict[str, str], chosen: int | None) -> ScriptDraft:
    """Read the directives and commands of a script."""
    script = ScriptDraft(filename, has=read_amounts(given), chosen=chosen)
    _know(script)
    if "array" in given:
        script.renumbered = not put_array(script, given["array"])
    script.scope.present = _ALWAYS_SET | (_OF_ARRAYS if "array" in given else set())
    script.scope.absent = set() if "array" in given else _OF_ARRAYS
    if given.get("chdir"):
        script.change_folder([given["chdir"]])
    put_export(script, "--export", given.get("export", ""), lambda name, value: _put_given(script, name, value))
    read_commands(script, commands(text), Launch())
    return script


def _put_given(script: ScriptDraft, name: str, value: str | None) -> None:
    """Convert a variable of sbatch's ``--export``, which no shell reads."""
    put_variable(script, name, [Ref(f"${name}", name)] if value is None else [value] if value else [], Command(0))


def _know(script: ScriptDraft) -> None:
    """Set SLURM's variables that follow from the directives."""
    has = script.has
    tasks, nodes = has.slurm_tasks, 0 if has.node_range else has.nodes
    known = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), nodes * tasks),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), has.gpus),
        "SLURM_NTASKS_PER_NODE": tasks, "SLURM_GPUS": has.gpus * nodes, "SLURM_CPUS_PER_TASK": has.cpus_per_slurm_task,
    }  # fmt: skip
    script.scope.known.update({name: [str(value)] for name, value in known.items() if value})


def _leave_rest(script: ScriptDraft, launch: Launch | None, without_effect: list[str]) -> None:
    if script.rendezvous:
        names = ", ".join(dict.fromkeys(script.rendezvous))
        script.leave(f"{names}: the launcher sets the rank, GPU and rendezvous of every worker.")
    for other in script.launches:
        if other is launch:
            continue
        program = script.short(source(other.program))
        if other.nested or (launch is not None and launch.nested):
            place = Command(other.line, nested=other.nested).place
            script.leave(f"{place}: another start of a program, {program}; only one start is here.")
        else:
            script.leave(
                f"line {other.line}: a second program, {program}; write a job file for it "
                "and submit both: launcher submit job.yaml then other.yaml"
            )
    for name, body in script.functions.items():
        if body and name not in script.called:
            script.leave(f"line {body[0].line}: the function {script.short(name)} is not called by its name.")
    for sentence in without_effect:
        script.leave(sentence)
