"""Plays agent and leader for real gloo workers: a store, socket pairs, commits. Workers are forked with torch imported."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.run.message_lines import decode_lines, encode
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, RunSpec, Work

LIMIT_S = 120.0
"""Far above what anything here takes, also on a machine three times slower: it fails only when something hangs."""
HERE = Path(__file__).parent

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["launcher.training.start.preload", "crew"])


def make_spec(run_dir: Path, target: str, world_size: int, *, kind: str = "task", **values: Any) -> RunSpec:
    """A spec for ``world_size`` CPU workers, written into ``run_dir``."""
    run_dir.mkdir(parents=True, exist_ok=True)
    params = values.pop("params", {})
    args = values.pop("args", [])
    checkpoint = values.pop("checkpoint", CheckpointSpec(interval_steps=None, interval_min=1000))
    settings: dict[str, Any] = {
        "id": run_dir.name,
        "name": "test",
        "run_dir": str(run_dir),
        "work": Work(kind=kind, target=target, params=params, args=args),
        "batch": "local",
        "nodes": 1,
        "tasks_per_node": world_size,
        "timeout_min": 10,
        "backend": "gloo",
        "init_timeout_min": 2.0,
        "collective_timeout_min": 2.0,
        "code_dir": str(HERE),
        "checkpoint": checkpoint,
        **values,
    }
    spec = RunSpec(**settings)
    spec.write(RunPaths(run_dir).spec)
    return spec


def _child(sock: socket.socket, environment: dict[str, str], log: str) -> None:
    """What an agent does in a forked worker."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(environment)
    os.environ["LAUNCHER_WORKER_FD"] = str(sock.detach())
    from launcher.training.start.main import main

    main()


class Crew:
    """One round: ``with Crew(spec, W) as crew`` starts the workers and ends them all, whatever happens.

    ``first``: messages that every worker finds when it starts. Sent later, they may come after the step that they are about.
    """

    def __init__(
        self,
        spec: RunSpec,
        world_size: int,
        *,
        resume: Path | None = None,
        attempt: int = 0,
        round_: int = 0,
        absent: tuple[int, ...] = (),
        environment: dict[str, str] | None = None,
        first: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.spec = spec
        self.paths = RunPaths(Path(spec.run_dir))
        self.world_size = world_size
        self.resume = resume
        self.attempt = attempt
        self.round_ = round_
        self.absent = absent
        self.environment = environment or {}
        self.first = b"".join(map(encode, first))
        self.inbox: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self.seen: list[tuple[int, dict[str, Any]]] = []
        self.committed: list[Path] = []
        self._shards: dict[tuple[int, str], dict[int, dict[str, Any]]] = {}
        self._sockets: dict[int, socket.socket] = {}
        self.processes: dict[int, Any] = {}

    def __enter__(self) -> Crew:
        self._store, child = socket.socketpair()
        self._store_process = _context.Process(target=_serve_store, args=(child,))
        self._store_process.start()
        child.close()
        port = json.loads(self._store.makefile().readline())["port"]
        for rank in range(self.world_size):
            if rank not in self.absent:
                self._start(rank, port)
        return self

    def _start(self, rank: int, port: int) -> None:
        mine, theirs = socket.socketpair()
        mine.sendall(self.first)
        environment = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": self.world_size,
            "GROUP_RANK": 0,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "LAUNCHER_RUN_DIR": self.paths.root,
            "LAUNCHER_ATTEMPT": self.attempt,
            "LAUNCHER_ROUND": self.round_,
            "OMP_NUM_THREADS": 1,
            **self.environment,
        }
        if self.resume is not None:
            step = int(self.resume.name.removeprefix("step-"))
            environment |= {"LAUNCHER_RESUME_PATH": self.resume, "LAUNCHER_RESUME_STEP": step}
        log = str(self.paths.root / f"rank-{rank}.log")
        process = _context.Process(target=_child, args=(theirs, {k: str(v) for k, v in environment.items()}, log))
        process.start()
        theirs.close()
        self._sockets[rank] = mine
        self.processes[rank] = process
        threading.Thread(target=self._read, args=(rank, mine), daemon=True).start()

    def _read(self, rank: int, sock: socket.socket) -> None:
        buffer = bytearray()
        while True:
            try:
                data = sock.recv(65536)
            except OSError:
                data = b""
            if not data:
                self.inbox.put((rank, {"type": "gone"}))
                return
            buffer += data
            for message in decode_lines(buffer):
                self.inbox.put((rank, message))

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for sock in [*self._sockets.values(), self._store]:
            sock.close()
        for process in [*self.processes.values(), self._store_process]:
            process.join(LIMIT_S)

    def hang_up(self) -> None:
        """The agent dies."""
        for sock in self._sockets.values():
            sock.shutdown(socket.SHUT_RDWR)

    def send(self, rank: int, type_: str, **values: Any) -> None:
        """A message to one worker."""
        self._sockets[rank].sendall(encode({"type": type_, **values}))

    def send_all(self, type_: str, **values: Any) -> None:
        """A message to every worker."""
        for rank in self._sockets:
            self.send(rank, type_, **values)

    def next(self) -> tuple[int, dict[str, Any]]:
        """The next message of anybody; commits checkpoints on the way as the leader does."""
        try:
            rank, message = self.inbox.get(timeout=LIMIT_S)
        except queue.Empty:
            raise AssertionError(f"nothing heard for {LIMIT_S:.0f} s\n{self.logs()}") from None
        self.seen.append((rank, message))
        if message["type"] == "shard":
            self._shard(rank, message)
        return rank, message

    def until(self, wanted: Callable[[int, dict[str, Any]], bool]) -> tuple[int, dict[str, Any]]:
        """Read on until a message is as wanted."""
        while True:
            rank, message = self.next()
            if wanted(rank, message):
                return rank, message

    def from_all(self, *types: str) -> dict[int, dict[str, Any]]:
        """Read on until every worker has sent a message of one of ``types``, or is gone."""
        found: dict[int, dict[str, Any]] = {}
        while len(found) < len(self._sockets):
            rank, message = self.next()
            if message["type"] in (*types, "gone") and rank not in found:
                found[rank] = message
        return found

    def finish(self) -> dict[int, dict[str, Any]]:
        """Read to the end of all workers; each one's last word (``finished``, ``stopped`` or ``failed``)."""
        words: dict[int, dict[str, Any]] = {}
        gone: set[int] = set()
        while len(gone) < len(self._sockets):
            rank, message = self.next()
            if message["type"] in ("finished", "stopped", "failed"):
                words[rank] = message
            if message["type"] == "gone":
                gone.add(rank)
        return words

    def stop_now(self, *, save: bool = True) -> int:
        """Pause, agree, stop: as the leader does. Returns the agreed step."""
        self.send_all("pause")
        answers = self.from_all("entered", "finished")
        step = max(int(a.get("step", 0)) for a in answers.values())
        self.send_all("stop", step=step, save=save)
        return step

    def ask_save(self, step: int, number: int = 1) -> bool:
        """Ask for a save and tell all whether every rank will, as the leader does."""
        self.send_all("save_at", id=number, step=step)
        return self.agree_save(step)

    def agree_save(self, step: int) -> bool:
        """Hear whether every rank will save at ``step``, and tell all."""
        all_will = all(answer.get("ok") for answer in self.from_all("save_ack").values())
        self.send_all("save_agreed" if all_will else "save_lost", step=step)
        return all_will

    def messages(self, type_: str, rank: int | None = None) -> list[dict[str, Any]]:
        """What was heard so far."""
        return [m for r, m in self.seen if m["type"] == type_ and rank in (None, r)]

    def exit_codes(self) -> dict[int, int | None]:
        """Exit codes of all workers, once they have ended."""
        for process in self.processes.values():
            process.join(LIMIT_S)
        return {rank: process.exitcode for rank, process in self.processes.items()}

    def logs(self) -> str:
        """What the workers printed."""
        return "\n".join(f"{p.name}: {p.read_text()[-700:]}" for p in sorted(self.paths.root.glob("rank-*.log")))

    def warned(self) -> list[str]:
        """Lines of the workers' logs that hold a warning, and the warnings that they sent."""
        lines = [line for p in self.paths.root.glob("rank-*.log") for line in p.read_text().splitlines()]
        return [line for line in lines if "Warning" in line] + [str(m["text"]) for m in self.messages("warning")]

    def _shard(self, rank: int, message: dict[str, Any]) -> None:
        shards = self._shards.setdefault(message["step"], {})
        shards[rank] = message
        if len(shards) < self.world_size:
            return
        step = self._shards.pop(message["step"]) and message["step"]
        tmp, final = self.paths.checkpoint_tmp(self.attempt, self.round_, step), self.paths.checkpoint(step)
        files = [{**file, "rank": r} for r, m in sorted(shards.items()) for file in m["files"]]
        manifest = {"version": 1, "step": message["step"], "hash_name": message["hash_name"], "files": files}
        (tmp / "manifest.json").write_text(json.dumps(manifest))
        if final.exists():
            shutil.rmtree(final)
        tmp.rename(final)
        self.committed.append(final)


def _serve_store(sock: socket.socket) -> None:
    from launcher.training.process.serve_store import main

    main(sock.fileno())


def interrupted(folder: Path, text: str, ranks: int = 3) -> tuple[Crew, Crew]:
    """A script's undisturbed run, and one that goes on from its checkpoint of step 3; neither prints a warning."""
    crews: list[Crew] = []
    for name in ("full", "again"):
        spec = script_spec(folder / name, text, ranks)
        crews.append(run(spec, ranks, resume=crews[0].paths.checkpoint(3) if crews else None, attempt=len(crews)))
        assert crews[-1].warned() == []
    return crews[0], crews[1]


def script_spec(folder: Path, text: str, ranks: int, **values: Any) -> RunSpec:
    """The spec of a script that saves at every step."""
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text(text)
    every = CheckpointSpec(interval_steps=1, keep_last=1000)
    return make_spec(folder, "train.py", ranks, kind="script", code_dir=str(code), checkpoint=every, **values)


def save_until_write(sock: socket.socket, tmp: str, number: int) -> None:
    """Save something; die at the write number ``number``; exit code 0 when there was none such."""
    import torch

    from launcher.run.message_lines import Channel
    from launcher.training.checkpoint.write import CheckpointWriter

    done, original = 0, os.write

    def dying(fd: int, data: Any) -> int:
        nonlocal done
        if done == number:
            os._exit(9)
        done += 1
        return original(fd, data)

    os.write = dying
    saver = CheckpointWriter(Channel(sock), torch.device("cpu"))
    parts = [("state.pt", {"w": torch.zeros(1000)}), ("rank-00000.pt", {"v": 1})]
    saver.save(1, Path(tmp), lambda: parts, {}, copy=True)
    saver.drain()
    os._exit(0)


def run(spec: RunSpec, world_size: int, **values: Any) -> Crew:
    """Run one round to its end; every worker must end well."""
    with Crew(spec, world_size, **values) as crew:
        words = crew.finish()
        codes = crew.exit_codes()
        assert set(codes.values()) == {0}, (codes, words, crew.logs())
    return crew


def wait_for(condition: Callable[[], bool]) -> None:
    """Until something is so."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it never became so"
        time.sleep(0.01)


sys.modules.setdefault("crew", sys.modules[__name__])
