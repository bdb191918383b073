"""The events of ``events.jsonl``: what happened to a run, in order, written by its leader. One class for each type.

Times are seconds since the epoch, durations seconds. `event` makes what is written; `parse_event` gives back what was: a key of a
wrong type is None (a list is empty), an unknown type an `UnknownEvent`, and `Event.raw` has every key as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from launcher.run import clock
from launcher.run.event_base import Event as Event
from launcher.run.event_base import UnknownEvent as UnknownEvent
from launcher.run.event_parts import Cause, ChecksJobId, HostCheck, Laggard, PlacedRank, RankAt, Victim
from launcher.run.node_events import AgentRevived as AgentRevived
from launcher.run.node_events import QueuedEarly as QueuedEarly
from launcher.run.node_events import ReplacementAsked as ReplacementAsked
from launcher.run.node_events import ReplacementRefused as ReplacementRefused
from launcher.run.node_events import RerunEnded as RerunEnded
from launcher.run.node_events import RerunStarted as RerunStarted
from launcher.run.node_events import RevivalFailed as RevivalFailed


class JobNamed(ChecksJobId, Event):
    """The run belongs to this job from now on."""

    job_id: str | None
    """None: SLURM has yet to give it."""


class RunSubmitted(JobNamed, type="submitted"):
    """The run was submitted."""

    backend: str | None
    """slurm or local."""
    nodes: int | None
    spare_nodes: int | None
    tasks_per_node: int | None
    gpus_per_node: int | None
    cpus_per_task: int | None
    least_nodes: int | None = None
    """Of a range of nodes."""
    by: str | None
    """submit, resubmit or continuation."""
    changes: list[str]
    """key=value of a resubmission."""


class AttemptStarted(JobNamed, type="attempt_started"):
    """A leader has begun, on ``host``."""

    host: str | None
    restart_count: int | None
    """The SLURM_RESTART_COUNT of the job."""
    submitted_t: float | None
    """When the wait for this attempt began."""


class Waiting(Event, type="waiting"):
    """Without SLURM, a chained run waits for others, by their ids."""

    runs: list[str]


class NodeJoined(Event, type="node_joined"):
    """An agent has joined."""

    node: int | None
    host: str | None
    facts: dict[str, Any]
    """What the node is and has."""


class NodeMissing(Event, type="node_missing"):
    """The leader waits for these nodes (host names); written again while one is missing."""

    nodes: list[str]
    ranks: list[int]
    waited_s: float | None


class PreflightDone(Event, type="preflight"):
    """The nodes have checked themselves."""

    ok: bool | None
    seconds: float | None
    checks: list[HostCheck]
    bandwidth_gb_s: float | None
    """Of the all-reduce; None: not measured."""


class RoundStarted(Event, type="round_started"):
    """The workers of a round are started; ``spares`` are hosts."""

    world_size: int | None
    master_addr: str | None
    master_port: int | None
    ranks: list[PlacedRank]
    spares: list[str]
    resume_step: int | None
    """None: from scratch."""
    resume_path: str | None


class FirstStep(Event, type="first_step"):
    """The first optimizer step of a round is done."""

    step: int | None
    seconds: float | None
    """From round_started."""


class EpochDone(Event, type="epoch"):
    """An epoch is done."""

    epoch: int | None
    loss: Any
    """The average over all ranks."""


class Evaluated(Event, type="evaluated"):
    """An evaluation is done."""

    step: int | None
    metrics: dict[str, Any]


class SaveStarted(Event, type="save_started"):
    """A checkpoint is begun."""

    step: int | None


class Saved(Event, type="saved"):
    """A checkpoint is complete."""

    step: int | None
    """None: a script's own checkpoint."""
    seconds: float | None = None
    write_s: float | None = None
    """Part of ``seconds``: until the last rank had written."""
    blocked_s: float | None = None
    """Part of ``seconds``: training was paused."""
    bytes: int | None = None
    path: str | None
    reason: str | None
    """interval, stop, end, user or watch (a script's own)."""


class SaveFailed(Event, type="save_failed"):
    """A checkpoint could not be written."""

    step: int | None
    error: str | None
    errno_name: str | None


class CheckpointDamaged(Event, type="checkpoint_damaged"):
    """A checkpoint could not be resumed from; the run resumes from an older one."""

    path: str | None
    why: str | None


class Fault(Event):
    """What ended a round."""


class WorkerFailed(Fault, type="worker_failed"):
    """The first failure of a round."""

    rank: int | None
    host: str | None
    step: int | None
    cause: Cause | None
    ranks: list[RankAt] = []  # noqa: RUF012  (copied for each record)
    """All ranks that failed in the same way, when there are several."""
    refused: bool | None = None
    """Every rank ended itself with the same exit code before any progress."""
    waited: bool | None = None
    """It only waited for another rank, of which nothing is known: its exception says nothing of the program."""


class Victims(Event, type="victims"):
    """Ranks failed because of the first failure."""

    ranks: list[Victim]


class NodeLost(Fault, type="node_lost"):
    """A node is gone."""

    host: str | None
    why: str | None
    """silent, cut_off (with all others: it is not to blame), closed or slurm."""


class LeaderRevived(Fault, type="leader_revived"):
    """A leader has died, and another one has taken its place in the same allocation."""

    host: str | None
    """Where it died."""
    moved_to: str | None = None
    """The host of the one that took its place, where its own host was lost."""
    leader: int | None
    """How many leaders of this attempt have died."""
    seconds: float | None
    """Since the dead one last wrote its picture of the run, which it did every second; None: not known."""


class Hang(Fault, type="hang"):
    """No rank has progressed for too long."""

    limit_s: float | None
    laggards: list[Laggard]


class NotFinite(Event, type="not_finite"):
    """A metric became NaN or infinite, on these ranks first; written again when it is finite on all. Training goes on."""

    step: int | None
    """The first such step."""
    metric: str | None
    value: str | None
    """nan, inf or -inf."""
    ranks: list[RankAt]
    until: int | None = None
    """The first step at which no rank had it any more."""


class XidReported(Event, type="gpu_error"):
    """The driver has reported an error of a GPU."""

    host: str | None
    gpu: int | None
    """Its number on that node, as its workers see it."""
    xid: int | None
    """What happened, by NVIDIA's number."""


class StoreLost(Fault, type="store_lost"):
    """The round's store is gone."""

    host: str | None


class SignalReceived(Event, type="signal"):
    """A signal came."""

    host: str | None
    name: str | None
    """TERM, INT, USR2, USR1 or HUP."""
    meaning: str | None
    """preempted, preempted_now, cancelled, time_limit, user, terminated, script_gone, node_leaves, host_leaves, nothing or unknown."""
    left_s: float | None = None
    """Until SIGKILL; None: not known."""


class StopRequested(Event, type="stop_requested"):
    """The round is to stop."""

    cause: str | None
    """The meaning of a signal, or idle, or total_hours."""
    deadline_s: float | None
    save: bool | None


class Agreed(Event, type="agreed"):
    """The ranks have agreed on the step to stop after."""

    step: int | None


class Stopped(Event, type="stopped"):
    """The round has stopped as asked."""

    step: int | None
    lost_steps: int | None


class Decided(Event, type="decision"):
    """What is done about the end of a round (docs/recovery.md)."""

    evidence: str | None
    action: str | None
    reason: str | None
    row: int | None = None
    """Of the table of decisions."""
    said: str | None = None
    """How the leader ended, for leader_gone, when that is known."""


class Excluded(Event, type="excluded"):
    """Hosts are not used any more."""

    hosts: list[str]
    why: str | None


class Readmitted(Event, type="readmitted"):
    """Excluded hosts may be used again: SLURM needs them to start the job."""

    hosts: list[str]
    why: str | None


class Requeued(JobNamed, type="requeued"):
    """The run was handed to its next attempt."""

    how: str | None
    """requeue, continuation or slurm."""
    seconds: float | None
    """How long that took."""
    delay_s: float | None
    """The next attempt begins no sooner."""
    let_go: list[str] | None = None
    """Hosts given back before the end."""
    nodes: list[int] | None = None
    """It asks for so many nodes, at least and at most, whatever the job's script says."""


class ProgressAssumed(Event, type="progress_assumed"):
    """A script that reports nothing has run so long that the leader assumes progress."""

    seconds: float | None


class RoundEnded(Event, type="round_ended"):
    """A round is over."""

    why: str | None


class AttemptEnded(Event, type="attempt_ended"):
    """An attempt is over."""

    why: str | None
    allocation_s: float | None = None
    """How long it held the allocation."""


class Ended(Event, type="ended"):
    """The run is over."""

    state: str | None
    """completed, failed or cancelled."""
    reason: str | None
    """One sentence."""
    exit_code: int | None
    step: int | None


class Notified(Event, type="notified"):
    """A notification was delivered everywhere."""

    kind: str | None
    """started or preempted."""


class Warned(Event, type="warning"):
    """A warning for the user."""

    text: str | None
    rank: int | None = None


EventKind = TypeVar("EventKind", bound=Event)


def event(type_: str, *, attempt: int | None, round_: int | None = None, **values: Any) -> Event:
    """Return one event, stamped with the time of now. Raises TypeError for an unknown type or key, and for a missing key."""
    if type_ not in Event.kinds:
        raise TypeError(f"no event is called {type_}")
    made: Event = Event.kinds[type_](t=round(clock.now(), 4), attempt=attempt, round=round_, **values)
    return parse_event(made.to_wire(), [])  # what it holds is then as what a later leader reads


def parse_event(values: dict[str, Any], problems: list[str]) -> Event:
    """Return the event that ``values``, which have a type, are; ``problems`` gets the names of keys of a wrong type."""
    event: Event = Event.kinds.get(values["type"], UnknownEvent).from_wire(values, problems)
    return event


def last_of(history: Sequence[Event], *types: type[EventKind]) -> EventKind | None:
    """Return the newest event of the given types."""
    return next((e for e in reversed(history) if isinstance(e, types)), None)
