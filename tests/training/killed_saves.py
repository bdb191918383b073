"""Saves whose writers die: real workers' and leader's code in three processes, one killed at each of its disk calls in turn.

``python tests/training/killed_saves.py --trials 300 --dir D`` prints JSON. A trial is what an attempt is: the leader claims
it, takes away what older ones were writing and names the newest checkpoint that verifies; two workers load it (every
byte compared with what that step's state is), do two intervals and save after each; the leader commits and prunes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from killing import Killing

from launcher.node.agent.answers import shards_written
from launcher.node.checkpoints import claims, committed, trash
from launcher.node.leader.journal import HistoryWriter
from launcher.node.leader.nodes import Node
from launcher.node.leader.rounds import Round
from launcher.node.leader.saving import Saver as LeadersSaver
from launcher.node.policy.hangs import HangWatch
from launcher.node.wire.messages import ToWorkers
from launcher.run.files import read_lines
from launcher.run.message_lines import Channel, decode_lines, encode
from launcher.run.messages import ToWorker, WorkerShard
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec
from launcher.training.checkpoint.read import load_rank, load_shared
from launcher.training.checkpoint.write import CheckpointWriter, rank_file

WORLD = 2
INTERVAL = 10
NAMES = ("rank 0", "rank 1", "leader")


def state_of(step: int) -> dict[str, Any]:
    """What all ranks share after ``step``: of several tensors, so that the file takes several writes."""
    return {"format": 1, "world_size": WORLD, "step": step, "w": [torch.full((3000,), step / 7 + i) for i in range(3)]}


def own_of(rank: int, step: int) -> dict[str, Any]:
    """A rank's own part after ``step``."""
    return {"rng": torch.full((64,), step * 31 + rank), "step": step}


def check(path: Path, step: int) -> None:
    """Every byte of the checkpoint is what that step's state is. Raises AssertionError."""
    for found, wanted in (
        (load_shared(path), state_of(step)),
        *((load_rank(path, rank), own_of(rank, step)) for rank in range(WORLD)),
    ):
        same = [torch.equal(a, b) for a, b in zip(_tensors(found), _tensors(wanted), strict=True)]
        if found["step"] != step or not all(same):
            raise AssertionError(f"{path} does not hold the state of step {step}")


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    return [*state["w"]] if "w" in state else [state["rng"]]


def work(rank: int, line: socket.socket, paths: RunPaths) -> None:
    """A worker's half: load, two intervals, a save after each, until the last one is committed."""
    channel = Channel(line)
    heard = channel.receive()
    go = next(heard, None)
    if go is None:
        return
    first = int(go["step"])
    if first:
        check(paths.checkpoint(first), first)
    saver = CheckpointWriter(channel, torch.device("cpu"))
    for step in (first + INTERVAL, first + 2 * INTERVAL):
        parts = [(rank_file(rank), own_of(rank, step))]
        if rank == 0:
            parts.insert(0, ("state.pt", state_of(step)))
        saver.save(step, paths.checkpoint_tmp(go["attempt"], 0, step), lambda parts=parts: parts, {}, copy=True)
        # An interval is longer than a save here, as ever but under strain: the next one begins when this one counts.
        if not any(message["type"] == "committed" and message["step"] == step for message in heard):
            return
        saver.drain()


class Go(ToWorker, type="go"):
    """The first step, and the attempt, told to each worker."""

    step: int
    attempt: int


class Committed(ToWorker, type="committed"):
    """The leader has committed this checkpoint: the workers go on."""

    step: int


class _Lines:
    """The leader's link to the node: straight to its workers."""

    def __init__(self, lines: list[socket.socket]) -> None:
        self.lines = lines

    def send(self, message: ToWorkers) -> None:
        for rank in range(len(self.lines)) if message.ranks is None else message.ranks:
            try:
                self.lines[rank].sendall(encode(message.message))
            except OSError:  # that worker is dead
                pass

    def close(self) -> None:
        pass


async def lead(lines: list[socket.socket], paths: RunPaths) -> None:
    """The leader's half: claim, clear up, choose, then commit what is reported, until all is done or a worker is gone."""
    claim = claims.claim_attempt(paths)
    trash.move_stale(paths, claim)
    found = committed.newest_good(paths)
    first = found.step if found else 0
    node = Node(0, "n", link=_Lines(lines))
    round_ = Round(0, [node], tasks_per_node=WORLD, resume=found, hangs=HangWatch(5.0, 60.0), script=False)
    history = HistoryWriter(paths, claim, heard=lambda _: None)

    def wake() -> None:
        if saver.last_step is not None:
            round_.send(Committed(step=saver.last_step))

    saver = LeadersSaver(CheckpointSpec(keep_last=2), paths, history, blocking=asyncio.to_thread, wake=wake)
    saver.begin_round(round_, 0.0)
    round_.send(Go(step=first, attempt=claim.attempt))
    hearing = [asyncio.create_task(_hear(saver, rank, line)) for rank, line in enumerate(lines)]
    await asyncio.wait(hearing, return_when=asyncio.FIRST_COMPLETED)  # done, or dead: the round is over
    await saver.quiesce(lambda: False)
    trash.move_unfinished(paths, claim)
    history.close()


async def _hear(saver: LeadersSaver, rank: int, line: socket.socket) -> None:
    loop, buffer = asyncio.get_running_loop(), bytearray()
    line.setblocking(False)
    while data := await loop.sock_recv(line, 65536):
        buffer += data
        for message in decode_lines(buffer):
            if message["type"] == "save_begun":
                saver.save_begun(message["step"], time.monotonic())
            elif message["type"] == "shard":
                said = shards_written(0, {rank: WorkerShard.from_wire(message, [])})
                saver.shard(said.shards[0], said, time.monotonic())


def attempt(paths: RunPaths, killing: Killing) -> None:
    """One attempt, in which somebody may be killed."""
    pairs = [socket.socketpair() for _ in range(WORLD)]
    mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]

    def close_but(kept: list[socket.socket]) -> None:
        for end in [*mine, *theirs]:
            if end not in kept:
                end.close()  # an end that somebody else holds would never be seen to close

    def only(kept: list[socket.socket], function: Callable[[], None]) -> None:
        close_but(kept)
        function()

    crew = {f"rank {r}": partial(only, [theirs[r]], partial(work, r, theirs[r], paths)) for r in range(WORLD)}
    crew["leader"] = partial(only, mine, lambda: asyncio.run(lead(mine, paths)))
    killing.run(crew, started=lambda: close_but([]))


def whole(paths: RunPaths, before: int) -> int:
    """The step a resume would begin from now. Raises AssertionError when it is not as promised."""
    damaged: list[str] = []
    found = committed.newest_good(paths, damaged=lambda path, why: damaged.append(f"{path}: {why}"))
    begun = max((e["step"] for e in read_lines(paths.events) if e["type"] == "save_started"), default=0)
    step = found.step if found else 0
    if damaged:
        raise AssertionError(f"committed and damaged: {damaged}")
    if step < max(before, begun - INTERVAL):
        raise AssertionError(f"resumes from {step}; {before} was committed, the save of {begun} had begun")
    if found:
        check(found.path, step)
    return step


def points(made: dict[str, list[str]], trials: int) -> list[tuple[str, int, bool]]:
    """Where to kill: each process at each of its calls, the others living on, and all with it; ``trials`` of these."""
    every = [(name, at, alone) for alone in (True, False) for name in NAMES for at in range(len(made[name]))]
    return [every[i * len(every) // trials] for i in range(trials)]


def campaign(folder: Path, trials: int) -> dict[str, Any]:
    """Run it; what was tried and found."""
    paths = RunPaths(folder)
    paths.checkpoints.mkdir(parents=True)
    step, calls, advanced, killed = 0, Counter[str](), Counter[int](), 0
    for _ in range(2):  # undisturbed: the second one prunes, too
        undisturbed = Killing(folder)
        attempt(paths, undisturbed)
        step = whole(paths, step)
    if step != 4 * INTERVAL or any(undisturbed.codes.values()):
        raise AssertionError(f"undisturbed, it ended at step {step}: {undisturbed.codes}")
    for victim, at, alone in points(undisturbed.made, trials):
        killing = Killing(folder, victim, at, alone)
        attempt(paths, killing)
        now = whole(paths, step)
        if killing.codes[victim] == -9:
            killed += 1
            calls[killing.made[victim][-1].split()[0]] += 1
        advanced[now - step] += 1
        step = now
    attempt(paths, Killing(folder))  # clears away what the last one left
    return {
        "trials": trials,
        "killed": killed,
        "calls_of_a_save": {name: len(made) for name, made in undisturbed.made.items()},
        "killed_at": dict(sorted(calls.items())),
        "steps_gained": {str(k): v for k, v in sorted(advanced.items())},
        "kept": len(committed.committed_steps(paths)),
    }


def stale(folder: Path, trials: int) -> dict[str, Any]:
    """Instead of dying, one process of an attempt stands still until the next attempt is over, and then goes on."""
    paths = RunPaths(folder)
    paths.checkpoints.mkdir(parents=True)
    for _ in range(2):
        undisturbed = Killing(folder)
        attempt(paths, undisturbed)
    step, stood = whole(paths, 0), Counter[str]()
    of_each = trials // len(NAMES)
    every = [(name, i * len(undisturbed.made[name]) // of_each) for name in NAMES for i in range(of_each)]
    for victim, at in every:
        kept: list[list[int]] = []

        def next_attempt(kept: list[list[int]] = kept) -> None:
            attempt(paths, Killing(folder))
            kept.append(committed.committed_steps(paths))

        killing = Killing(folder, victim, at, meanwhile=next_attempt)
        attempt(paths, killing)
        if kept:
            stood[victim] += 1
            if committed.committed_steps(paths) != kept[0]:
                call = killing.made[victim][at]
                raise AssertionError(f"{victim}, stopped before {call}, changed {kept[0]} afterwards")
        step = whole(paths, step)
    return {"trials": len(every), "stood_still": dict(stood), "kept": len(committed.committed_steps(paths))}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--stale", action="store_true", help="one stands still through the next attempt, then goes on")
    arguments = parser.parse_args()
    what = stale if arguments.stale else campaign
    print(json.dumps(what(arguments.dir, arguments.trials), indent=1))


if __name__ == "__main__":
    main()
