"""Every file name inside a run's directory, in one place.

Standard library only: the node side imports this.
"""

from __future__ import annotations

from pathlib import Path

from launcher.frozen import frozen

__all__ = ["SPEC_VERSION", "RunPaths"]

SPEC_VERSION = 1
"""The form of the files of a run, which ``spec.json`` names: goes up when a reader of the old form would misread the new."""


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

    @property
    def job(self) -> Path:
        """The job as written and merged, YAML, before interpolation of run-time values."""
        return self.root / "job.yaml"

    @property
    def spec(self) -> Path:
        """What the node side needs to know (`launcher.run.spec.RunSpec`), JSON."""
        return self.root / "spec.json"

    @property
    def environment(self) -> Path:
        """Commit, diff, package versions and host of the submission, secrets redacted, JSON."""
        return self.root / "environment.json"

    @property
    def code(self) -> Path:
        """The snapshot of the job's code; first on ``sys.path`` of every worker."""
        return self.root / "code"

    @property
    def copied(self) -> Path:
        """What was copied into ``code`` and the state of each original then, JSON; a run of an older version has none."""
        return self.root / "code.json"

    @property
    def lib(self) -> Path:
        """A copy of the launcher package itself, so that a queued run is immune to upgrades."""
        return self.root / "lib"

    @property
    def secret(self) -> Path:
        """32 random bytes in hex, 0600: the key of the control plane's handshake."""
        return self.root / "secret"

    @property
    def passed(self) -> Path:
        """Variables passed by name (``environment.pass``), JSON, 0600; read by agents, never by SLURM."""
        return self.root / "passed.json"

    @property
    def events(self) -> Path:
        """The history, one JSON object per line (`launcher.run.events`)."""
        return self.root / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """Metrics by step, one JSON object per line."""
        return self.root / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """Resource use and step times of every rank over time, one JSON object per line."""
        return self.root / "samples.jsonl"

    @property
    def state(self) -> Path:
        """The leader's latest picture of the run, replaced whole about once a second, JSON."""
        return self.root / "state.json"

    @property
    def outcome(self) -> Path:
        """Written last, once: how the run ended, JSON. A requeued run has none."""
        return self.root / "outcome.json"

    @property
    def room(self) -> Path:
        """Nothing worth keeping: its space is the outcome's on a full disk (`launcher.run.state.keep_room`)."""
        return self.root / "room"

    @property
    def request(self) -> Path:
        """What a user asks of the leader (``cancel --save``), JSON; announced by USR2."""
        return self.root / "request.json"

    @property
    def submission(self) -> Path:
        """Job ids and what was given to SLURM, JSON; written by the submitting command."""
        return self.root / "submission.json"

    @property
    def submitit(self) -> Path:
        """submitit's own folder: pickles and the logs of agents."""
        return self.root / "submitit"

    @property
    def sbatch(self) -> Path:
        """The sbatch script exactly as submitted."""
        return self.root / "submit.sbatch"

    @property
    def attempts(self) -> Path:
        """Claims of attempt numbers: ``attempts/N`` is made by exclusive ``mkdir`` by its leader."""
        return self.root / "attempts"

    @property
    def checkpoints(self) -> Path:
        """``step-00001200/`` committed, ``tmp.<attempt>.<round>.<step>/`` being written."""
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """The committed checkpoint of ``step``."""
        return self.checkpoints / f"step-{step:08d}"

    def checkpoint_tmp(self, attempt: int, round_: int, step: int) -> Path:
        """Where the workers of one round write a checkpoint before the leader commits it."""
        return self.checkpoints / f"tmp.{attempt}.{round_}.{step}"

    @property
    def logs(self) -> Path:
        """``attempt-A/round-R/rank-00003.log``."""
        return self.root / "logs"

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

    @property
    def latest_log(self) -> Path:
        """A link to rank 0's latest log."""
        return self.root / "log"

    @property
    def trackers(self) -> Path:
        """What trackers write, and for each ``NAME.json``: the tracker run that later attempts continue, and how far it is."""
        return self.root / "trackers"
