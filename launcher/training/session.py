"""The boundary between two units: position, registered state, saves and the agreed stop. `Worker` is its public face."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from launcher.errors import CheckpointError
from launcher.run.messages import Channel
from launcher.run.spec import CheckpointSpec
from launcher.training import checkpoint
from launcher.training.data import Unit
from launcher.training.determinism import rng_state, seed_rank, set_rng_state
from launcher.training.place import Place
from launcher.training.rehearsal import die_behind_a_checkpoint
from launcher.training.reporter import Reporter
from launcher.training.snapshot import Reference, cloned
from launcher.training.stopping import Gate, Stopped
from launcher.training.wrapping import unwrap

__all__ = ["Position", "Session"]


@dataclass
class Position:
    """How far the run is; the same on every rank."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done, or the one under way."""
    consumed: int = 0
    """Samples of that epoch consumed, over all ranks."""
    phase: int = 0
    """Loops over data that are done (`Worker.batches` without `Worker.epochs` may be used several times)."""
    samples: int = 0
    """Samples consumed since the beginning."""
    order: int = 0
    """A running checksum of which samples were met, in which order."""
    length: int = 0
    """Samples of the data set."""
    global_batch: int = 0
    per_rank: int = 0
    """What the user asked for per rank; another value on resume means another global batch."""


class Session:
    """One worker's life between start and end; everything here runs on the main thread."""

    def __init__(self, place: Place, gate: Gate, reporter: Reporter, device: torch.device) -> None:
        self.place = place
        self.gate = gate
        self.reporter = reporter
        self.device = device
        self.seed = place.spec.seed if place.spec else 0
        self.rules = place.spec.checkpoint if place.spec else CheckpointSpec(enabled=False)
        self.position = Position()
        self.epochs: int | None = None
        self.total_steps: int | None = None
        self.start_step = 0
        self.partial: dict[str, torch.Tensor] = {}
        """Sums over the epoch under way, this rank's part; saved per rank, added up when the world size changes."""
        self.notes: dict[str, float] = {}
        """Small numbers that all ranks share and a resume gets back."""
        self.in_unit = False
        self.begun = False
        self.optimizer: torch.optim.Optimizer | None = None
        """Set by a loop that calls `settle` before this optimizer's every step, and changes its tensors nowhere else."""
        self.is_script = place.spec is None or place.spec.work.kind in ("script", "module")
        self.stopping = False
        """A script: the agreed step is reached."""
        self.told = False
        """``stopped`` was sent."""
        self._phase = ""
        self.wanted: Path | None = None
        """A script without registered state: where it is to save at this step."""
        self._objects: dict[str, Any] = {}
        self._own: dict[str, Any] = {}
        self._loaded: dict[str, Any] | None = None
        self._gap: Reference | None = None
        self._saved_at = 0
        self.saver = checkpoint.Saver(place.channel, device, folder_mode=_mode(place)) if place.channel else None
        self._load()

    @property
    def channel(self) -> Channel | None:
        """The way to the agent; None outside a run."""
        return self.place.channel

    # -- state ---------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        path = self.place.resume_path
        if path is None:
            return
        self.phase("load")
        if not (path / checkpoint.SHARED).exists():  # a script's own folder
            self.position.step = self.place.resume_step
            self._start_from(self.position.step)
            return
        state = self._loaded = checkpoint.load_shared(path)
        known = {name: state["position"][name] for name in Position.__dataclass_fields__ if name in state["position"]}
        self.position = Position(**known)
        self.notes = dict(state.get("notes", {}))
        self._start_from(self.position.step)

    def _start_from(self, step: int) -> None:
        self.start_step = self._saved_at = step
        self.gate.publish(step)

    def register(self, objects: dict[str, Any], *, per_rank: bool = False) -> None:
        """Remember what has a state; load it at once when there is a checkpoint. Raises CheckpointError, TypeError."""
        for name, thing in objects.items():
            inner = unwrap(thing)
            if not (hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict")):
                raise TypeError(
                    f"worker.register({name}=...): {type(thing).__name__} has no state_dict and load_state_dict"
                )
            (self._own if per_rank else self._objects)[name] = inner
            if self._loaded is not None and not per_rank:
                self._restore(name, inner, self._loaded["objects"])

    def _restore(self, name: str, thing: Any, states: dict[str, Any]) -> None:
        if name not in states:
            self.reporter.send("warning", text=f"the checkpoint holds no state of {name!r}: it starts afresh")
            return
        # The file is mapped; what keeps the tensors it is given must not keep the mapping.
        state = states[name] if isinstance(thing, torch.nn.Module) else cloned(states[name])
        try:
            thing.load_state_dict(state)
        except Exception as error:
            raise CheckpointError(f"the checkpoint's state of {name!r} does not fit: {error}") from error

    def phase(self, name: str) -> None:
        """Say what this worker does from now on: how long a silence is believed to be work depends on it."""
        if name != self._phase:
            self._phase = name
            self.reporter.send("phase", name=name)

    def begin(self) -> None:
        """Before the first unit: this rank's generators and sums, restored or seeded."""
        if self.begun:
            return
        self.begun = True
        missing = sorted(set(self._loaded["objects"]) - set(self._objects)) if self._loaded else []
        if missing:
            raise CheckpointError(f"the checkpoint holds state that nothing is registered for: {', '.join(missing)}")
        if self._loaded is None:
            seed_rank(self.seed, 0, self.place.rank)
        else:
            self._restore_rank(int(self._loaded["world_size"]))
        self._loaded = None
        self.phase("train")
        self._progress(last=True)

    def _restore_rank(self, world_size: int) -> None:
        path, rank = self.place.resume_path, self.place.rank
        if path is None:
            return
        if world_size == self.place.world_size:
            mine = checkpoint.load_rank(path, rank)
            for name, thing in self._own.items():
                self._restore(name, thing, mine["objects"])
            self.partial = {name: value.clone().to(self.device) for name, value in mine["partial"].items()}
            set_rng_state(mine["rng"])
            return
        # Other ranks than before: their streams of random numbers begin anew, their sums are added up on rank 0.
        seed_rank(self.seed, self.position.step, rank)
        for old in range(world_size if rank == 0 else 0):
            for name, value in checkpoint.load_rank(path, old)["partial"].items():
                mine_so_far = self.partial.get(name)
                self.partial[name] = (
                    value.clone().to(self.device) if mine_so_far is None else mine_so_far + value.to(self.device)
                )

    def tree(self) -> list[tuple[str, Any]]:
        """Everything that is saved, by file, as it is now and by reference."""
        own = {
            "rng": rng_state(),
            "partial": dict(self.partial),
            "objects": {name: thing.state_dict() for name, thing in self._own.items()},
        }
        files: list[tuple[str, Any]] = [(checkpoint.rank_file(self.place.rank), own)]
        if self.place.rank == 0:
            shared = {
                "format": checkpoint.FORMAT,
                "position": dict(self.position.__dict__),
                "world_size": self.place.world_size,
                "seed": self.seed,
                "notes": dict(self.notes),
                "objects": {name: thing.state_dict() for name, thing in self._objects.items()},
            }
            files.insert(0, (checkpoint.SHARED, shared))
        return files

    # -- units ---------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """The boundary before the next unit: save what is due, wait if held. Raises Stopped at the agreed step."""
        self.pass_boundary()
        self._gap = None
        self.in_unit = True
        self.phase("train")

    def pass_boundary(self) -> None:
        """As `enter`, but for a collective after an epoch's last unit: from here on, the next unit will be run."""
        done = self.position.step
        self.gate.publish(done + 1)
        self.save_if_due()
        if not self.gate.passes(done + 1):
            self.stop()

    def finish_unit(self, unit: Unit | None, last: bool) -> None:
        """A unit's body has ended: the next call of `enter` or `open_gap` is its boundary."""
        self.in_unit = False
        at = self.position
        at.step += 1
        if unit is not None:
            at.samples += unit.size
            at.epoch, at.consumed = unit.epoch, unit.start + unit.size
            at.order = zlib.crc32(unit.checksum_bytes, at.order)
        self._progress(last=last or at.step == self.start_step + 1)
        if self.place.dies_after == at.step:
            die_behind_a_checkpoint(self.place)

    def open_gap(self) -> None:
        """After the last unit of a loop: user code follows that a resume will run again, so hold the state as of now."""
        self.save_if_due()
        if self._gap is None and self.channel is not None:
            self._gap = Reference(self.tree())
        self.phase("between")

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
        return {"epoch": at.epoch, "epochs": self.epochs, "samples": at.samples, "total_steps": self.total_steps}

    def step_done(self) -> None:
        """A loop of the user's own has done one optimizer step: unit and boundary in one. Raises Stopped in functions."""
        if not self.begun:
            self.begun = True
            self._loaded = None
            self.phase("train")
        self.wanted = None
        self.finish_unit(None, last=False)
        done = self.position.step
        self.gate.publish(done + 1)
        if self._objects or self._own:
            self.save_if_due()
        else:
            self.wanted = self.due_folder()
        if self.gate.passes(done + 1):
            return
        if not self.is_script:
            self.stop()
        self._stop_script()

    def _stop_script(self) -> None:
        stop = self.gate.stop
        self.stopping = True
        if stop is None or not stop.save or self.position.step <= self.start_step:
            self.stopped(saved=False)
        elif self._objects or self._own:
            self.stopped(saved=self.save_and_wait(Path(stop.tmp) if stop.tmp else self.tmp()))
        else:
            self.wanted = Path(stop.tmp) if stop.tmp else self.tmp()

    def stopped(self, *, saved: bool) -> None:
        """Say, once, that this worker stopped at the agreed step."""
        if not self.told:
            self.told = True
            self.reporter.flush(force=True)
            self.reporter.send("stopped", step=self.position.step, saved=saved)

    # -- saves and stops -----------------------------------------------------------------------------------------

    def save_if_due(self) -> None:
        """Save at this boundary when the leader asked for it or the interval in steps says so."""
        if (folder := self.due_folder()) is not None:
            before = self._phase
            self.phase("save")  # copying takes a while, and an earlier save may still be on its way to a slow disk
            self.save(folder, copy=True)
            self.phase(before)

    def due_folder(self) -> Path | None:
        """The folder of the save that is due at this boundary, if one is."""
        step = self.position.step
        if (tmp := self.gate.due(step)) is not None:
            return Path(tmp)
        interval = self.rules.interval_steps
        wanted = self.rules.enabled and interval and step % interval == 0 and self.channel is not None
        return self.tmp() if wanted and step > max(self._saved_at, self.start_step) else None

    def tmp(self) -> Path:
        """Where this round's checkpoint of the current step is written."""
        if self.place.paths is None:
            raise RuntimeError("there is no run to save into")
        return self.place.paths.checkpoint_tmp(self.place.attempt, self.place.round_, self.position.step)

    def save(self, tmp: Path, *, copy: bool) -> None:
        """Save the boundary's state once; later calls for the same step only wait for it."""
        if self.saver is None or self._saved_at == self.position.step:
            return
        gap = self._gap
        if gap is not None and not gap.intact:
            text = "the state was changed between the last step of an epoch and the next: nothing to save that a resume could use"
            self.reporter.send("save_failed", step=self.position.step, tmp=str(tmp), error=text, errno=None)
            return
        self._saved_at = self.position.step
        parts = self.tree if gap is None else lambda: gap.tree
        late = self._late() if self.optimizer is not None and copy and gap is None else ()
        self.saver.save(self.position.step, tmp, parts, self._meta(), copy=copy, late=late)

    def _late(self) -> set[int]:
        """What only the optimizer's step changes: it is copied behind the next forward and backward pass."""
        optimizer: Any = self.optimizer
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        tensors += [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
        return {tensor.data_ptr() for tensor in tensors}

    def settle(self) -> None:
        """To be called before the optimizer's step where ``optimizer`` is set."""
        if self.saver is not None:
            self.saver.settle()

    def _meta(self) -> dict[str, Any]:
        return {
            **self._progress_values(),
            "step": self.position.step,
            "consumed": self.position.consumed,
            "t": time.time(),
        }

    def stop(self) -> None:
        """The agreed stop: save, report, unwind. Raises Stopped, always."""
        stop = self.gate.stop
        saved = False
        if stop is not None and stop.save and self.position.step > self.start_step:
            self.phase("save")
            saved = self.save_and_wait(Path(stop.tmp) if stop.tmp else self.tmp())
        self.stopped(saved=saved)
        raise Stopped

    def save_and_wait(self, tmp: Path) -> bool:
        """Save the boundary's state durably; whether it is."""
        if self.saver is None:
            return False
        self.save(tmp, copy=False)
        self.saver.drain()
        return self.saver.saved_step == self.position.step

    def finish(self) -> None:
        """All work is done: the last checkpoint, then the word."""
        self._progress(last=True)
        saved = True
        if self._gap is not None and not self._gap.intact:
            self._gap = None  # the end of all work: what its last lines changed belongs to the result
        if self.rules.enabled and self.position.step > self.start_step and (self._objects or self._own):
            self.phase("save")
            due = self.gate.due(self.position.step)
            saved = self._save_last(Path(due) if due else self.tmp())
        self.reporter.flush(force=True)
        self.reporter.send("finished", step=self.position.step, saved=saved)

    def _save_last(self, tmp: Path) -> bool:
        # A full disk may be cleared by somebody: a few tries before the run's last steps are given up.
        for wait_s in (0.0, 2.0, 10.0):
            time.sleep(wait_s)
            if self.save_and_wait(tmp):
                return True
            self._saved_at = -1
        return False

    def hear(self, message: dict[str, Any]) -> None:
        """The agent's other messages (control thread)."""
        if message["type"] == "save_lost" and "tmp" in message:
            names = [checkpoint.rank_file(self.place.rank), checkpoint.SHARED if self.place.rank == 0 else ""]
            checkpoint.remove(Path(str(message["tmp"])), [name for name in names if name])


def _mode(place: Place) -> int:
    return 0o750 if place.spec is not None and place.spec.share == "group" else 0o700
