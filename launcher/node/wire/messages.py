"""What agents and the leader say to each other: one JSON object per line over TCP, one class for each kind.

The connection begins with a challenge (`launcher.node.wire.connection`); then the agent says ``hello`` and the leader
``welcome``. ``round`` is the number of a round, durations are seconds, ``t`` are seconds since the epoch.
"""

from __future__ import annotations

from typing import Any, Protocol

from launcher.run.records import Record

HEARTBEAT_S = 1.0
"""Agents say ``alive`` this often."""

SILENCE_S = 8.0
"""An agent that sends nothing for this long counts as dead; so does a leader. Far below SlurmdTimeout (300 s)."""

IN_LINE = 3
"""So many nodes are named that may lead next: one leads, the others replace it if it fails."""

SHUTDOWN_S = 20.0
"""A script that has ended has so long for Python's own shutdown. Torch can hang there: DDP's destructor holds the GIL while it
waits for a thread of gloo's that wants it (torch 2.13)."""


class FromAgent(Record, family=True):
    """An agent's message to the leader, or the keeper's."""


class NodeFacts(Record):
    """What a node is and has. Fields without a default are always there."""

    gpus: int | None
    gpu_names: list[str] = []  # noqa: RUF012  (copied for each record)
    gpu_mem_bytes: list[int] = []  # noqa: RUF012
    gpu_numa_nodes: list[int] = []  # noqa: RUF012
    """-1: not known."""
    driver: str | None = None
    cuda_driver: str | None = None
    cpus: int | None
    mem_bytes: int | None
    python: str | None
    kernel: str | None
    torch: str | None
    cuda: str | None  # the version torch was built for
    nccl: str | None
    address: str | None
    """Where the other nodes reach it."""
    master_addr: str | None  # what MASTER_ADDR says when it is the first node of a round
    sees_run_dir: bool | None
    free_bytes: int | None
    """Free where the run directory lies; so are inodes."""
    free_inodes: int | None
    gpu_problem: str | None = None
    """Why the GPUs that the job asked for cannot be asked."""
    warnings: list[str] = []  # noqa: RUF012


class AgentHello(FromAgent, type="hello"):
    """An agent joins."""

    node: int
    """Its index in the allocation."""
    host: str
    pid: int | None
    attempt: int | None
    """The attempt it takes part in; None for an agent that joins for the first time."""
    facts: NodeFacts | None
    mark: str | None = None
    """What tells its process from others of that id (`launcher.run.processes.mark_of`)."""


class RankUse(Record):
    """What one worker uses, and how far it has come since the last heartbeat."""

    rank: int
    cpu_percent: float | None = None
    """With its data loaders; above 100 where it uses more than one CPU."""
    rss_bytes: int | None = None
    gpu_percent: float | None = None
    gpu_mem_bytes: int | None = None
    gpu_power_w: float | None = None
    gpu_memory_errors: int | None = None
    """That could not be corrected, since the driver was loaded."""
    state: str | None = None
    """The letter of its process state; T: stopped."""
    step: int | None = None
    """Optimizer steps done; None: no news."""
    step_time_s: float | None = None
    """The mean of its steps since the last heartbeat; so are the next two."""
    wait_s: float | None = None
    """Of a step: how long it waited for other ranks."""
    data_s: float | None = None
    """Of a step: how long it waited for data."""
    usual_s: float | None = None
    """The median of these steps, as far as the worker told them apart."""
    longest_s: float | None = None
    """The longest of them, likewise."""


class Alive(FromAgent, type="alive"):
    """The agent's heartbeat, every second. The transport answers ``heard``."""

    ranks: list[RankUse]
    """Every one of the node where there is news of each (`StartRound.detail_every_s`), or none."""
    round: int | None = None
    """The one in which these steps were done."""
    slowest: int | None = None
    """Where ``ranks`` is empty: the steps that all ranks of the node have done at least."""
    fastest: int | None = None
    """The steps that its furthest rank has done."""
    usual_s: float | None = None
    """The median of its ranks' steps since the last heartbeat."""
    longest_s: float | None = None
    """The longest of them."""
    quiet_s: float | None = None
    """How long ago one of its ranks has last reported a step."""
    total_steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None


class GpuError(FromAgent, type="gpu_error"):
    """The driver has reported an error of a GPU."""

    gpu: int
    """The number of the device on this node, as workers see it."""
    xid: int  # what happened (`launcher.run.xids`)


class StoreReady(FromAgent, type="store_ready"):
    """The round's store listens."""

    round: int
    port: int


class StoreFailed(FromAgent, type="store_failed"):
    """The round's store could not start."""

    round: int
    error: str


class StoreEnded(FromAgent, type="store_lost"):
    """The process of the round's store has ended."""

    round: int


class WorkerUp(FromAgent, type="worker_up"):
    """The process of a worker has been forked."""

    round: int
    rank: int
    pid: int


class WorkerSaid(FromAgent, type="worker"):
    """A worker's own message (`launcher.run.messages`), forwarded."""

    round: int
    rank: int
    message: dict[str, Any]


class RanksSaid(FromAgent, type="ranks"):
    """What ranks of the node have answered to one question, summed up: the highest unit, or yes where all say yes."""

    round: int
    ranks: list[int]
    message: dict[str, Any]


class RankShard(Record):
    """What one rank wrote of a checkpoint."""

    rank: int
    files: list[dict[str, Any]]
    """{name, size, hash} each."""
    meta: dict[str, Any] = {}  # noqa: RUF012  (copied for each record)


class ShardsWritten(FromAgent, type="shards"):
    """Parts of ranks of the node are durable: what `launcher.run.messages.WorkerShard` says, of several."""

    round: int
    step: int
    shards: list[RankShard]
    seconds: float
    """Of the slowest, as ``blocked_s``."""
    blocked_s: float
    hash_name: str
    last: bool


class WorkerExit(FromAgent, type="worker_exit"):
    """The process of a worker has ended, by ``exit_code`` or by ``signal``."""

    round: int
    rank: int
    exit_code: int | None
    signal: int | None
    last_lines: list[str]
    """Of its log."""
    oom: bool
    """The kernel killed it for memory."""
    shutdown: str | None = None
    """How the process of a script ended that had said ``over`` (its code is ``exit_code``), as the end of a sentence."""
    by_us: bool | None = None
    """The agent was ending the round by then: the signal may be its own. None: an older agent, which does not tell."""


class Cleared(FromAgent, type="cleared"):
    """No process of that round is left on this node."""

    round: int


class SignalHeard(FromAgent, type="signal"):
    """The agent received a signal."""

    name: str  # "TERM", "INT", "USR2", "USR1", "HUP" or "CONT"


class StacksWritten(FromAgent, type="stacks"):
    """Stacks were written to the logs of the node's ranks."""

    round: int


class CheckResult(Record):
    """One check of a node."""

    name: str
    ok: bool
    detail: str


class ChecksDone(FromAgent, type="preflight"):
    """The node has checked itself."""

    ok: bool
    seconds: float
    checks: list[CheckResult]
    bandwidth_gb_s: float | None = None
    """None: not measured."""


class Leaving(FromAgent, type="leaving"):
    """The agent ends now, as it was told to."""


class ToAgent(Record, family=True):
    """The leader's message to an agent, to the keeper, or to a command."""


class Welcome(ToAgent, type="welcome"):
    """The agent has joined this attempt."""

    attempt: int
    t: float
    """The leader's clock, which the agents' files and messages follow."""
    kept: bool = False
    """A keeper is there: where this leader dies, another one takes its place, and the agent waits for it."""
    patience_s: float = 0.0
    """So long."""
    line: list[int] = []  # noqa: RUF012
    """The nodes next in line, by index: one leads where the leader's host is lost."""


class Heard(ToAgent, type="heard"):
    """The transport's answer to ``alive``: without it an agent could not tell a stopped leader from a quiet one."""


class RunChecks(ToAgent, type="preflight"):
    """Run the checks of this node."""

    port: int | None
    """Of the store of round -1 on the first node, for a small all-reduce; None: none."""
    rank: int
    """Of this node in that all-reduce."""
    world_size: int
    names: list[str]
    """Addresses to look up: the first node's, then those of some others, so that each node's is looked up by many."""


class StartStore(ToAgent, type="store"):
    """Start the round's store on this node."""

    round: int


class ResumeFrom(Record):
    """The checkpoint that a round resumes from: the run's own of ``step``, or the one that its spec names (``resume``)."""

    step: int
    own: bool


class RankPlace(Record):
    """One worker of a node."""

    rank: int
    local_rank: int


class StartRound(ToAgent, type="round"):
    """Start this node's workers of a round."""

    round: int
    world_size: int
    master_addr: str
    master_port: int
    resume: ResumeFrom | None
    group_rank: int
    workers: list[RankPlace]
    detail_every_s: float = HEARTBEAT_S
    """So often an agent tells of each rank by itself; in between, of all together, unless one stands out."""
    mlflow_run_id: str | None = None
    """The tracker run that a script's workers continue."""


class EndRound(ToAgent, type="end"):
    """End every worker of the round with SIGKILL."""

    round: int


class ForwardTerm(ToAgent, type="term"):
    """Forward SIGTERM once to scripts that are not attached, with a note of the deadline."""

    round: int
    cause: str
    left_s: float | None


class ToWorkers(ToAgent, type="to_workers"):
    """Hand a message (`launcher.run.messages.ToWorker`) to workers."""

    round: int
    ranks: list[int] | None
    """None: all."""
    message: dict[str, Any]


class DumpStacks(ToAgent, type="dump"):
    """Have every worker write its stacks to its log (SIGURG)."""

    round: int


class Shutdown(ToAgent, type="shutdown"):
    """End everything and leave."""


class Link(Protocol):
    """One agent's authenticated connection, as the leader sees it."""

    def send(self, message: ToAgent) -> None:
        """Queue one message; never blocks, never raises: a dead peer shows as `Hub.closed`."""

    def close(self) -> None:
        """Send what is queued, then hang up."""


class Hub(Protocol):
    """What the transport calls on the leader, all from the leader's own event loop, never reentrantly."""

    def opened(self, link: Link) -> None:
        """Take a peer that has proved that it knows the run's secret; its ``hello`` comes next."""
        return

    def received(self, link: Link, message: dict[str, Any]) -> None:
        """Take one whole message."""

    def closed(self, link: Link, why: str) -> None:
        """Handle the end of a connection; called once for every `opened`."""
