"""``state.json``: the leader's latest picture, replaced whole about once a second; ``outcome.json``: the end.

state.json keys (readers tolerate missing ones):

t                 when this was written, by the leader's clock (`launcher.run.clock`); boot, up_s: the same for its own host
attempt, round    numbers
phase             "waiting" (for nodes) | "preflight" | "starting" | "training" | "evaluating" | "stopping" | "ended"
missing           host names and ranks still waited for: [{host, ranks}]
step, total_steps optimizer steps done; total_steps null when unknown
epoch, epochs
saved_step, saved_t
world_size, master_addr, master_port
nodes             host names in use
spares            host names standing by
ranks             [{rank, host, node, local_rank, pid, step, phase, step_time_s, own_s, heartbeat_t, ended_t, cpu_percent, rss_bytes,
                    gpu_percent, gpu_mem_bytes, gpu_power_w, gpu_memory_errors}]; own_s: seconds of a step in which it waited for no
                    other rank, the median of its last hundred reports (steps take equally long on all ranks: they wait for each other)
metrics           the latest value of each metric
rate              steps per second, over the last minute
allocation_t      when this attempt's allocation began
spent_s           allocation time of all attempts so far

outcome.json keys: state ("completed"|"failed"|"cancelled"), reason, exit_code, step, t, attempt, metrics, cause (CAUSE or null)

metrics.jsonl lines: {t, attempt, round, step, epoch, metrics: {name: number}}; NaN and infinities are written as
the strings "nan", "inf", "-inf".
samples.jsonl lines, about every 10 s (in a long run of many ranks less often): {t, attempt, round, ranks: [{rank, host,
step, step_time_s, own_s, cpu_percent, rss_bytes, gpu_percent, gpu_mem_bytes, gpu_power_w, gpu_memory_errors}]}
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.run import event_lines
from launcher.run.asking import exists, load_object
from launcher.run.events import AttemptStarted, Ended, RunSubmitted
from launcher.run.files import Damage, read_object, write_atomic
from launcher.run.paths import RunPaths
from launcher.run.units import is_job_id

_ROOM_BYTES = 256 << 10
_MOST_PIDS = 2**31


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Replace the picture; not durable, it only informs."""
    write_atomic(path, json.dumps(state), durable=False)


def read_state(path: Path) -> dict[str, Any]:
    """Return the leader's latest picture; empty when there is none."""
    return read_object(path) or {}


def read_submission(path: Path, damage: list[Damage] | None = None) -> dict[str, Any]:
    """Return how the run was submitted, submission.json; empty when it was not, or cannot be read. ``damage`` gets the reason."""
    return sound_submission(read_object(path, damage) or {})


def sound_submission(entry: dict[str, Any]) -> dict[str, Any]:
    """Return submission.json without job and process ids that are none: SLURM's commands and kill would get them as they are."""
    sound, before = _sound_entry(entry), entry.get("submissions")
    if before is not None:
        sound["submissions"] = (
            [_sound_entry(one) for one in before if isinstance(one, dict)] if isinstance(before, list) else []
        )
    return sound


def _sound_entry(entry: dict[str, Any]) -> dict[str, Any]:
    pid, job_id = entry.get("pid"), entry.get("job_id")
    good = {"pid": type(pid) is int and 0 < pid < _MOST_PIDS, "job_id": is_job_id(job_id)}
    return {key: value for key, value in entry.items() if value is None or good.get(key, True)}


read_outcome = read_object
"""Return how the run ended; None while it has not."""


def read_end(paths: RunPaths) -> dict[str, Any] | None:
    """Return how a run ended on which nothing works any more: its outcome, else its history's last word. None where neither tells.

    NFS may show a new file a minute late, but a file that is opened as it is. The last word has no metrics.
    """
    if (outcome := read_outcome(paths.outcome)) is not None:
        return outcome
    *_, last = None, *event_lines.read(paths.events, RunSubmitted, AttemptStarted, Ended)
    return last.raw if isinstance(last, Ended) else None


def is_this_job(submission: Mapping[str, Any], root: Path, *, name: str = "", command: str = "") -> bool:
    """Return whether the job that SLURM knows by the submission's id is that submission's; what is "" is not compared.

    A slurmctld that dies forgets what it accepted in its last seconds, and gives the ids away again. A job of the same name is
    ours, since names are ids of runs; so is one with another name (somebody has renamed it) whose batch script lies in the run's
    folder. Some sites' sbatch submits a copy from elsewhere; accounting tells the ``name`` alone.
    """
    folder, called = submission.get("job_folder"), submission.get("job_name")
    # squeue parts columns by bars, and the path before the name may hold one.
    if not called or f"|{name}".endswith(f"|{called}"):
        return True
    if command and folder:
        return command.startswith((f"{folder}/", f"{root}/"))
    return not name


def agent_logs(paths: RunPaths) -> list[Path]:
    """Return the logs of the run's agents and batch scripts: submitit's ``JOB_TASK_log.out``, by name.

    The points of a sweep share submitit's folder, where only the logs of a point's own jobs are its own.
    """
    found = sorted(paths.submitit / name for name in glob.glob("*_log.out", root_dir=paths.submitit))
    if not found or not paths.submitit.is_symlink():
        return found
    said = read_submission(paths.submission)
    entries = [said, *said.get("submissions", [])]
    own = {str(e["job_id"]) for e in entries if e.get("job_id")}
    own |= {
        e.job_id for e in event_lines.read(paths.events, AttemptStarted) if isinstance(e, AttemptStarted) and e.job_id
    }
    return [path for path in found if path.name.rsplit("_", 2)[0] in own]


def keep_room(paths: RunPaths) -> None:
    """Take the space that the outcome will need: a run that ends because the disk is full has to say so on that disk."""
    try:
        with open(paths.room, "xb") as f:  # a link that somebody has put there is not followed
            f.write(os.urandom(_ROOM_BYTES))  # zeros would be no space at all where files are compressed
    except OSError:
        pass  # the saves report a full disk


def write_outcome(path: Path, outcome: dict[str, Any]) -> None:
    """Write how the run ended, durably, into the room kept for it."""
    try:
        RunPaths(path.parent).room.unlink(missing_ok=True)
    except OSError:
        pass
    write_atomic(path, json.dumps(outcome, indent=1) + "\n")


def forget_passed(paths: RunPaths) -> None:
    """Remove the variables passed by name of a run that has an outcome: `launcher resubmit` takes them anew from its own shell.

    Without an outcome, which a full disk may refuse, another attempt comes and needs them.
    """
    try:
        if read_outcome(paths.outcome) is not None:
            paths.passed.unlink(missing_ok=True)
    except OSError:
        pass


def is_requested(paths: RunPaths) -> bool:
    """Return whether a user wants the run to stop; False while the folder does not answer. The next leader looks again at its start."""
    try:
        return exists(paths.request, paths.root)
    except OSError:
        return False


def read_request(paths: RunPaths) -> dict[str, Any] | None:
    """Return what is written of the wish that the run stops; None without one. Raises OSError."""
    return (load_object(paths.request, paths.root) or {}) if exists(paths.request, paths.root) else None


def write_request(paths: RunPaths, **values: Any) -> None:
    """Write that the run is to stop: the user's wish, or with ``signal`` that of whoever sent it by hand. Raises OSError."""
    write_atomic(paths.request, json.dumps({"action": "stop", "t": time.time(), **values}) + "\n", mode=0o600)


def forget_request(paths: RunPaths) -> None:
    """Remove the user's request: the run goes on.

    Where it stops, the request stays: whoever takes a dead leader's place must find it, and `launcher why` reads it.
    """
    with contextlib.suppress(OSError):
        paths.request.unlink()
