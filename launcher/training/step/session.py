"""The boundary between two optimizer steps: position, registered state, saves and the agreed stop, for `Worker`."""

from __future__ import annotations

import contextlib
import math
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch

from launcher.run.messages import (
    WorkerFinished,
    WorkerPhase,
    WorkerSaveFailed,
    WorkerStopped,
    WorkerWarning,
)
from launcher.run.worker_texts import UNRESTORED
from launcher.training.checkpoint import write
from launcher.training.checkpoint.copies import Reference
from launcher.training.checkpoint.plain import from_plain
from launcher.training.checkpoint.registered import Registered, saved_state
from launcher.training.checkpoint.shares import Dealt, Shares
from launcher.training.ddp.data import Unit
from launcher.training.ddp.loading import LOADING
from launcher.training.ddp.randomness import rng_state, seed_rank
from launcher.training.process.place import WorkerPlace
from launcher.training.process.rehearsal import Rehearsed, die_behind_a_checkpoint
from launcher.training.process.reporter import Reporter
from launcher.training.process.waits import Waits
from launcher.training.step.position import Position
from launcher.training.step.stopping import Gate, StopTraining

_LAST_TRIES_S = (0.0, 2.0, 10.0, 30.0, 60.0, 120.0)
"""Waits before each try of the last save: a full disk may be cleared, and without this save the last steps are lost."""


class Session:
    """The state of one worker from start to end; everything here runs on the main thread."""

    def __init__(self, place: WorkerPlace, gate: Gate, device: torch.device) -> None:
        self.place = place
        self.gate = gate
        self.reporter = Reporter(place.channel, metrics=place.rank == 0)
        self.device = device
        self.seed = place.spec.seed
        self.rules = place.spec.checkpoint
        self.position = Position()
        limit = place.spec.stop_after_steps
        self._limit = math.inf if limit is None else limit
        rank, self._dies_at = place.spec.kill_at or (-1, -1)
        """In a rehearsal one rank dies after this step, to test recovery."""
        if rank != place.rank or place.resume_path is not None:
            self._dies_at = -1
        self.waits = Waits()
        if place.paths is not None:
            LOADING.watch_loaders()
        self.epochs: int | None = None
        self.total_steps: int | None = None  # 0: what was said so far is not all, and nobody knows
        self.last_step: int | None = None
        """The last step of the loop under way, where the user has said how many there are."""
        self.start_step = 0
        self.partial: dict[str, Any] = {}
        """This rank's sums over the epoch under way; saved per rank, added up when the world size changes."""
        self.notes: dict[str, float] = {}
        """Small numbers that all ranks share and a resume restores."""
        self.in_unit = False
        self.stepped = False
        """A registered optimizer has made its step in this unit."""
        self.begun = False
        self.is_script = place.spec.work.kind in ("script", "module")
        self.stopping = False
        """A script: the agreed step is reached."""
        self.rehearsed = False
        """A loop of the user's own has done the steps of a rehearsal: its next step ends it."""
        self.told = False
        """``stopped`` was sent."""
        self._phase = ""
        self.wanted: Path | None = None
        """A script without registered state: where it is to save at this step."""
        self.folder_step = -1
        """The step that `Worker.save_dir` saved last."""
        self._gap: Reference | None = None
        self._saved_at = 0
        self._ending = False
        """All work is done."""
        self._writes_share = False
        """Rank 0's part of the newest save names tensors that this rank writes."""
        self.folder_mode = 0o750 if place.spec.share == "group" else 0o700
        self.saver = write.CheckpointWriter(place.channel, device, folder_mode=self.folder_mode)
        self.shares = Shares(place, lambda text: self.reporter.send(WorkerWarning(text=text)))
        self.registered = Registered(place, device, settle=self._settle, watch=self.waits.watch)
        self._load()

    def _load(self) -> None:
        if self.place.resume_path is None:
            return
        self.phase("load")
        if (state := self.registered.loaded) is None:  # a script's own folder
            self.position.step = self.place.resume_step
        else:
            # An older version kept numbers of numpy as they were given, and the seed beside the position alone.
            saved = {"seed": state.get("seed", self.seed), **from_plain(state["position"])}
            self.position = Position(**{n: int(saved[n]) for n in Position.__dataclass_fields__ if n in saved})
            self.notes = dict(state.get("notes", {}))
        self.start_step = self._saved_at = self.position.step
        self.gate.publish(self.position.step)

    def phase(self, name: str) -> None:
        """Report what this worker does from now on: how long it may send nothing depends on it."""
        if name != self._phase:
            self._phase = name
            self.reporter.send(WorkerPhase(name=name))

    def begin(self) -> None:
        """Restore or seed this rank's generators and sums, before the first unit."""
        if self.begun:
            return
        if self.registered.loaded is None:
            seed_rank(self.seed, 0, self.place.rank)
        else:
            self.registered.undo_repeats()
            self.partial = self.registered.partial_sums(self.device)
            self.registered.restore_generators(self.position.step, alike=False)
        self._begin()

    def begin_own_loop(self) -> None:
        """Begin a loop of the user's own, who has seeded it: generators are restored, or not changed."""
        if not self.begun:
            self.registered.restore_generators(self.position.step, alike=True)
            self._begin()
            # From here on the next unit will be run, unless all stop before it.
            self.gate.publish(self.position.step + 1)
            self._pass_own_boundary()

    def _begin(self) -> None:
        self.begun = True
        self.registered.complete()
        self.phase("train")
        self._progress(last=True)

    def tree(self, dealt: Dealt | None = None) -> list[tuple[str, Any]]:
        """Return everything that is saved, by file, as it is now and by reference; of what is ``dealt`` this rank's share."""
        own: dict[str, Any] = {
            "rng": rng_state(self.device),
            "partial": dict(self.partial),
            "objects": {name: saved_state(name, thing) for name, thing in self.registered.per_rank.items()},
        }
        if dealt is not None and (share := dealt.own):
            own["share"] = share
        files: list[tuple[str, Any]] = [(write.rank_file(self.place.rank), own)]
        objects = self.registered.shared_states(self.position.step)
        if self.place.rank == 0:
            shared = {
                "format": write.FORMAT if dealt is None else write.FORMAT_IN_SHARES,
                "position": dict(self.position.__dict__),
                "world_size": self.place.world_size,
                "seed": self.seed,
                "notes": dict(self.notes),
                "objects": objects if dealt is None else dealt.taken_out(objects),
            }
            files.insert(0, (write.SHARED, shared))
        return files

    def _settle(self) -> None:
        """Make the copies that a save still needs: an optimizer is about to change what is copied."""
        self.stepped = True
        self.saver.settle()

    def enter(self) -> None:
        """Pass the boundary before the next unit: save what is due, wait if held. Raises StopTraining at the agreed step."""
        self.pass_boundary()
        self._gap = None
        self.in_unit, self.stepped = True, False
        self.phase("train")

    def pass_boundary(self) -> None:
        """Do as `enter`, before a collective after an epoch's last unit: from here on, the next unit will be run."""
        done = self.position.step
        self.gate.publish(done + 1)
        self.save_if_due()
        if not self.gate.passes(done + 1):
            self.stop()

    def finish_unit(self, unit: Unit | None, last: bool) -> None:
        """Count a unit whose body has ended: the next call of `enter` or `open_gap` is its boundary."""
        self.in_unit = False
        at = self.position
        at.step += 1
        if unit is not None:
            if not self.stepped:
                self.registered.tell_unstepped()
            epoch, start, size = unit[:3]
            at.samples += size
            at.epoch, at.consumed = epoch, start + size
            at.order = zlib.crc32(b"%d %d %d;" % (epoch, start, size), at.order)
        self.reporter.progress(at.step, last or at.step == self.start_step + 1, self._progress_values)
        if self.limit_reached and self.place.rank == 0:
            self.registered.tell_missing(self.is_script)  # while the user's function still holds what it made
        if at.step == self._dies_at:
            die_behind_a_checkpoint(self.place)

    def open_gap(self, *, save: bool = True) -> None:
        """Hold the state as it is after a loop's last unit: user code follows that a resume will run again."""
        self._progress(last=True)  # the next report may come after a long evaluation
        if save:
            self.save_if_due()
        if self._gap is None and self.place.paths is not None:
            with contextlib.suppress(Exception):  # a lock in it: each save names it, and fails alone
                self._gap = Reference(self.tree())
        self.phase("between")

    @property
    def limit_reached(self) -> bool:
        """Whether a rehearsal has done its optimizer steps; never in real runs."""
        return self.position.step >= self._limit

    @property
    def in_gap(self) -> bool:
        """Whether the last unit of a loop is done and the next one not entered."""
        return self._gap is not None

    @property
    def must_leave(self) -> bool:
        """Whether all ranks stop right after the last unit done, so that an evaluation may be abandoned."""
        return self.in_gap and self.gate.ends_at(self.position.step)

    def _progress(self, *, last: bool) -> None:
        self.reporter.progress(self.position.step, last, self._progress_values)

    def _progress_values(self) -> dict[str, Any]:
        at = self.position
        return {
            "epoch": at.epoch,
            "epochs": self.epochs,
            "total_steps": self.total_steps,
            "wait_s": self.waits.seconds(),
        }

    def step_done(self) -> None:
        """Count one optimizer step of a loop of the user's own, and pass its boundary. Raises StopTraining in functions."""
        if not self.begun:
            if self.registered.loaded is not None:
                self.reporter.send(WorkerWarning(text=UNRESTORED))
            self._begin()
        if self.rehearsed:
            raise Rehearsed  # the user's loop goes on although `should_stop`
        if self.stopping:
            return  # likewise: what is done beyond the agreed step is done again
        self.wanted = None
        self.finish_unit(None, last=False)
        self.rehearsed = self.limit_reached
        done = self.position.step
        self.gate.publish(done + 1)
        if self.registered and self.rehearsed:
            self.save_and_wait(self.tmp())  # as of now: a loop that does not ask goes on for a while
        elif self.registered:
            self.save_if_due()
            if done == self.last_step:
                self.saver.drain()  # scripts may end by os._exit, and what writes would end with them
        else:
            self.wanted = self.due_folder() or (self.tmp() if self.rehearsed else None)
        self._pass_own_boundary()

    def _pass_own_boundary(self) -> None:
        if self.gate.passes(self.position.step + 1):
            return
        if not self.is_script:
            self.stop()
        self.stopping = True
        folder = self._stop_folder()
        if folder is not None and not self.registered:
            self.wanted = folder
        else:
            self.stopped(saved=folder is not None and self.save_and_wait(folder))

    def stopped(self, *, saved: bool) -> None:
        """Report, once, that this worker stopped at the agreed step."""
        if not self.told:
            self.told = True
            if not self.registered:
                self.saver.drain(partial(self.phase, "save"))  # an earlier folder of a script's: minutes are no hang
            self.reporter.flush(force=True)
            self.reporter.send(WorkerStopped(step=self.position.step, saved=saved))

    def save_if_due(self) -> None:
        """Save at this boundary when the leader asked for it, `checkpoint.interval_steps` have passed, or all planned steps are done."""
        if (folder := self.due_folder()) is not None:
            before = self._phase
            self.phase("save")  # copying takes a while, and an earlier save may still be on its way to a slow disk
            self.save(folder, copy=True)
            self.phase(before)

    def due_folder(self) -> Path | None:
        """Return the folder of the save that is due at this boundary, if one is."""
        step = self.position.step
        if self.gate.due(step):
            return self.tmp()
        if not self.rules.enabled or step <= max(self._saved_at, self.start_step):
            return None
        interval = self.rules.interval_steps
        # The last planned step: its checkpoint is of the state right after it, whatever the code after the loop changes.
        is_last = step == self.last_step and bool(self.registered)
        return self.tmp() if is_last or (interval and step % interval == 0) else None

    def tmp(self) -> Path:
        """Return the folder in which this round writes the checkpoint of the current step."""
        return self.place.tmp(self.position.step)

    def save(self, tmp: Path, *, copy: bool) -> None:
        """Save the boundary's state once; later calls for the same step only wait for it."""
        if self._saved_at == self.position.step:
            return
        gap = self._gap
        if gap is not None and not gap.intact:
            text = (
                "user code changed the state between the last step of an epoch and the next step; nothing was saved, because a "
                "resume would run that code again"
            )
            self.reporter.send(WorkerSaveFailed(step=self.position.step, error=text, errno=None))
            return
        began = time.perf_counter()
        self._saved_at = self.position.step
        self.saver.retried = self._ending or self._saved_at == self.last_step
        # Beyond the last step rank 0 writes everything: what user code then changes on one rank must not come from two.
        dealt = self.shares.deal(self._saved_at, self.registered.shared) if gap is None and not self._ending else None
        self._writes_share = dealt is not None and self.place.rank != 0
        parts = partial(self.tree, dealt) if gap is None else lambda: gap.tree
        late = self.registered.moments() if copy and gap is None and not self.saver.torn else set()
        at = self.position
        meta = {**self._progress_values(), "step": at.step, "consumed": at.consumed, "t": time.time()}
        self.saver.save(at.step, tmp, parts, meta, copy=copy, late=late, began=began)

    def stop(self) -> None:
        """Save, report and end the work at the agreed stop. Always raises StopTraining."""
        folder = self._stop_folder()
        if folder is not None:
            self.phase("save")
        self.stopped(saved=folder is not None and self.save_and_wait(folder))
        self.stopping = self.is_script
        raise StopTraining

    def _stop_folder(self) -> Path | None:
        """Return the folder to save into at the agreed stop; None when there is nothing to save."""
        stop = self.gate.stop
        if stop is None or not stop.save or self.position.step <= self.start_step:
            return None
        return self.tmp()

    def save_and_wait(self, tmp: Path) -> bool:
        """Save the boundary's state and wait; returns whether it is durable."""
        self.save(tmp, copy=False)
        return self.saver.drain() == self.position.step

    def group_ends(self) -> None:
        """Gather what the ranks have parts of, for the last save: the process group that this takes is about to be destroyed."""
        is_saved = self._ending or self.stopping or self.position.step in (self.start_step, self.last_step)
        if self.registered.has_parts and self.rules.enabled and not is_saved:
            before = self._phase
            self.phase("save")
            self._gap, self.registered.gathered_step = None, -1
            self.registered.gathered(self.position.step)
            self.phase(before)

    def finish(self) -> None:
        """Save the last checkpoint, then report that all work is done."""
        self._progress(last=True)
        self._ending = True
        saved = True
        if self._gap is not None and (self.registered.has_parts or not self._gap.intact):
            # Nobody knew that this was the last step, and what the checkpoint should hold is not there any more: it is
            # saved as it is now. Copies of parts do not show a change.
            self._gap, self.registered.gathered_step = None, -1
        if self.rules.enabled and self.position.step > self.start_step and self.registered:
            self.phase("save")
            saved = self._save_last(self.tmp())
        self.saver.drain(partial(self.phase, "save"))  # of a script's own folder
        self.reporter.flush(force=True)
        self.reporter.send(WorkerFinished(step=self.position.step, saved=saved))

    def _save_last(self, tmp: Path) -> bool:
        self.saver.last = self.saver.retried = True
        step = self.position.step
        for number, wait_s in enumerate(_LAST_TRIES_S):
            time.sleep(wait_s)
            if step in self.gate.lost:  # no rank's part is there any more
                self.gate.lost.discard(step)
                self._saved_at = self.saver.saved_step = -1
            # Tried again it is written as it was: the parts of other ranks are of that moment, and kept.
            if self.save_and_wait(tmp) or (number and self.saver.again() == step):
                return True
            if self.saver.hopeless or (self._writes_share and not self.saver.holds):
                break
            if not self.saver.holds:
                self._saved_at = -1  # as it is now, then: no other rank has a part of it
        return False
