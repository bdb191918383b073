"""What agents and the leader say to each other: one JSON object per line over TCP, after a mutual HMAC challenge.

Agent → leader:

hello        node (index in the allocation), host, pid, attempt (null), facts {gpus, gpu_names, gpu_mem_bytes, cpus,
             mem_bytes, python, torch, cuda, driver, cuda_driver, nccl, address, master_addr, sees_run_dir, free_bytes,
             free_inodes, gpu_problem, warnings}
alive        t, cpu_percent, mem_bytes, ranks [{rank, cpu_percent, rss_bytes, gpu_percent, gpu_mem_bytes, state}]   every second;
             state is the process's state letter (T: stopped). The transport answers ``heard``, so that an agent can
             tell a leader that has stopped from one that has nothing to say
store_ready  round, port
store_failed round, error
store_lost   round
worker_up    round, rank, pid
worker       round, rank, message             a worker's own message (`launcher.run.messages`), forwarded
worker_exit  round, rank, exit_code, signal, t, last_lines, oom, shutdown      exit_code or signal is null; shutdown: how a script's
             process ended that had said ``over`` (its code is exit_code), as the end of a sentence; null where it just ended
cleared      round                             no process of that round is left on this node
signal       name ("TERM"|"USR2"|"CONT"), t    the agent was sent it
stacks       round, ranks                      stacks were written to those ranks' logs
preflight    ok, seconds, checks [{name, ok, detail}], bandwidth_gb_s (null: not measured)
leaving                                         this agent ends now, having been told to

Leader → agent:

welcome      attempt, t, heartbeat_s, silence_s
heard                                          answer to ``alive``, by the transport
preflight    port, peers [{node, host, address}]   run the checks of this node; port: of the store of round -1 on the first
             peer, for a small all-reduce (null: none)
store        round                             start the round's store here
round        round, world_size, master_addr, master_port, resume {path, step} or null, group_rank,
             workers [{rank, local_rank}], environment {}
end          round                             end every worker of the round, by KILL
term         round, cause, left_s (or null)    forward TERM once to scripts that are not attached, with a note of the deadline
to_workers   round, ranks (null: all), message a message for workers
dump         round                             write every worker's stack to its log (SIGURG)
shutdown                                        end everything and leave
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["HEARTBEAT_S", "SHUTDOWN_S", "SILENCE_S", "Hub", "Link"]

HEARTBEAT_S = 1.0
"""Agents say ``alive`` this often."""

SILENCE_S = 8.0
"""An agent silent for this long is taken for dead; so is a leader. Far below SlurmdTimeout (300 s)."""

SHUTDOWN_S = 20.0
"""A script that has ended has so long for Python's own shutdown. Torch can hang there: DDP's destructor holds the GIL while it
waits for a thread of gloo's that wants it (torch 2.13)."""


class Link(Protocol):
    """One agent's authenticated connection, as the leader sees it."""

    def send(self, message: dict[str, Any]) -> None:
        """Queue one message; never blocks, never raises: a dead peer shows as `Hub.closed`."""

    def close(self) -> None:
        """Send what is queued, then hang up."""


class Hub(Protocol):
    """What the transport calls on the leader, all from the leader's own event loop, never reentrantly."""

    def opened(self, link: Link) -> None:
        """A peer has proved that it knows the run's secret; its ``hello`` comes next."""

    def received(self, link: Link, message: dict[str, Any]) -> None:
        """One whole message."""

    def closed(self, link: Link, why: str) -> None:
        """The connection is gone; called once for every `opened`."""
