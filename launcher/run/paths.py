"""Every file name inside a run's directory, in one place.

Standard library only: the node side imports this.
"""

from __future__ import annotations

from pathlib import Path

from launcher.frozen import frozen

SPEC_VERSION = 1
"""The form of the files of a run, which ``spec.json`` names: goes up when a reader of the old form would misread the new."""


SUBMISSION_FILE = "submission.json"
SWEEP_FILE = "sweep.json"
"""In the folder of a sweep, which holds its points' folders: the points and what each sets."""


class _Inside:
    """A file or folder of that name inside a run's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, paths: RunPaths, owner: object = None) -> Path:
        return paths.root / self.name


@frozen
class RunPaths:
    """The layout of one run's directory; derives names, touches nothing.

    One writer: the leader (before it starts and after it ends, the submitting command). The one
    exception is ``request``, announced to the leader by USR2.
    """

    root: Path
    """The run's directory; its name is the run's id."""

    @property
    def id(self) -> str:
        """The run's id, ``NAME-MMDD-HHMM-xxx``."""
        return self.root.name

    def beside(self, run: str) -> RunPaths:
        """The run of that id in the same folder of runs. Raises ValueError for what is no name of a folder in it."""
        if run in ("", ".", "..") or "/" in run or "\0" in run:
            raise ValueError(f"{run!r} is no run's id")
        return RunPaths(self.root.parent / run)

    job = _Inside("job.yaml")
    """The job as written and merged, YAML, before interpolation of run-time values."""
    spec = _Inside("spec.json")
    """What the node side needs to know (`launcher.run.spec.RunSpec`), JSON."""
    environment = _Inside("environment.json")
    """Commit, diff, package versions and host of the submission, secrets redacted, JSON."""
    code = _Inside("code")
    """The snapshot of the job's code; first on ``sys.path`` of every worker."""
    copied = _Inside("code.json")
    """What was copied into ``code`` and the state of each original then, JSON; a run of an older version has none."""
    lib = _Inside("lib")
    """A copy of the launcher package itself, so that a queued run is immune to upgrades."""
    secret = _Inside("secret")
    """32 random bytes in hex, 0600: the key of the control plane's handshake."""
    passed = _Inside("passed.json")
    """Variables passed by name (``environment.pass``), JSON, 0600; read by agents, never by SLURM. Removed when the run has ended."""
    events = _Inside("events.jsonl")
    """The history, one JSON object per line (`launcher.run.events`)."""
    metrics = _Inside("metrics.jsonl")
    """Metrics by step, one JSON object per line."""
    samples = _Inside("samples.jsonl")
    """Resource use and step times of every rank over time, one JSON object per line."""
    state = _Inside("state.json")
    """The leader's latest picture of the run, replaced whole about once a second, JSON."""
    outcome = _Inside("outcome.json")
    """Written last, once: how the run ended, JSON. A requeued run has none."""
    room = _Inside("room")
    """Keeps space for the outcome, which is written on a full disk, too (`launcher.run.state.keep_room`)."""
    request = _Inside("request.json")
    """What a user asks of the leader (``cancel --save``), JSON; announced by USR2."""
    submission = _Inside(SUBMISSION_FILE)
    """Job ids and what was given to SLURM, JSON; written by the submitting command."""
    submitit = _Inside("submitit")
    """submitit's own folder: pickles and the logs of agents."""
    sbatch = _Inside("submit.sbatch")
    """The sbatch script exactly as submitted."""
    attempts = _Inside("attempts")
    """Claims of attempt numbers: ``attempts/N`` is made by exclusive ``mkdir`` by its leader."""
    checkpoints = _Inside("checkpoints")
    """``step-00001200/`` committed, ``tmp.<attempt>.<round>.<step>/`` being written."""

    def checkpoint(self, step: int) -> Path:
        """The committed checkpoint of ``step``."""
        return self.checkpoints / f"step-{step:08d}"

    def checkpoint_tmp(self, attempt: int, round_: int, step: int) -> Path:
        """Where the workers of one round write a checkpoint before the leader commits it."""
        return self.checkpoints / f"tmp.{attempt}.{round_}.{step}"

    logs = _Inside("logs")
    """``attempt-A/round-R/rank-00003.log``."""

    def attempt_logs(self, attempt: int) -> Path:
        """The logs of one attempt."""
        return self.logs / f"attempt-{attempt}"

    def round_logs(self, attempt: int, round_: int) -> Path:
        """The logs of one round."""
        return self.attempt_logs(attempt) / f"round-{round_}"

    def rank_log(self, attempt: int, round_: int, rank: int) -> Path:
        """Standard output and error of one worker."""
        return self.round_logs(attempt, round_) / f"rank-{rank:05d}.log"

    def stop_note(self, attempt: int, round_: int, group_rank: int) -> Path:
        """What the scripts of one node are told with TERM: why, and how long they have."""
        return self.round_logs(attempt, round_) / f"stop-{group_rank:05d}.json"

    latest_log = _Inside("log")
    """A link to rank 0's latest log."""
    trackers = _Inside("trackers")
    """What trackers write, and for each ``NAME.json``: the tracker run that later attempts continue, and how far it is."""


OWN_NAMES = frozenset(place.name for place in vars(RunPaths).values() if isinstance(place, _Inside))
"""What lies at the top of a run's folder and is the launcher's; in some of the folders a script may write, too."""
