"""`Worker`: the launcher as user code sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from operator import index
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher.errors import CodeError
from launcher.run.messages import WorkerEvaluated, WorkerWarning
from launcher.training.checkpoint.one_way import OneWay
from launcher.training.ddp import wrapping
from launcher.training.ddp.data import Collate, Micro, Plan, Unit, check_dataset, load_units
from launcher.training.evaluation import Measure, evaluate, sum_over_ranks
from launcher.training.folder import save_folder
from launcher.training.step.planning import plan_loop
from launcher.training.step.session import Session


class Worker:
    """One rank of a run. Registering objects and iterating `batches` gives resumes, agreed stops and checkpoints.

    ``function: module:name`` calls ``name(worker, **params)``; `launcher.attach` returns one inside a script, which does
    nothing outside a run.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loops = 0
        self._epoch: int | None = None
        self._epoch_used = False
        self._unit: Unit | None = None
        self._micro = Micro([], 0, 1.0)
        self._wrapped: dict[int, torch.nn.Module] = {}
        """By id the modules of which DDP may give all ranks rank 0's buffers."""
        self._left = False
        """The latest loop over `batches` was left by `break`."""
        self._loop: Any = None
        """The iterator of the latest loop over `batches`."""
        self._way = OneWay(session.registered, session.rules, self._tell)
        self._counts: set[int | None] = set()
        """The steps of each loop over `steps`."""
        place = session.place
        self.rank = place.rank
        """This worker's number among all."""
        self.local_rank = place.local_rank
        """This worker's number on its node."""
        self.world_size = place.world_size
        """Number of workers."""
        self.is_leader = place.rank == 0
        """Whether this is rank 0, the one that prints and writes."""
        self.device = session.device
        """Where this worker's tensors belong."""
        self.run_dir = place.paths.root if place.paths else None
        """The run's directory; None outside a run."""
        self.is_last_micro = True
        """Whether the current item completes its optimizer step."""

    @property
    def resume_path(self) -> Path | None:
        """The checkpoint this worker was started from; None from scratch."""
        self._way.looked = True
        return self._session.place.resume_path

    @property
    def steps_done(self) -> int:
        """Optimizer steps done since the run began, over all attempts."""
        return self._session.position.step

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        if self._unit is not None:
            return self._unit.epoch
        return self._session.position.epoch if self._epoch is None else self._epoch

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move ``model`` to this worker's device and wrap it in DistributedDataParallel, set up so that resumes are exact."""
        if not self._meets("wrap"):
            return model.to(self.device)
        wrapped = wrapping.wrap(model, self.device, self._session.place.spec.ddp)
        self._wrapped[id(wrapped)] = wrapped
        self._session.waits.watch(wrapped)
        return wrapped

    def register(self, *, per_rank: bool = False, **objects: Any) -> None:
        """Save and resume what has ``state_dict`` and ``load_state_dict``; a checkpoint's state is loaded at once.

        ``per_rank=True``: every rank has a state of its own (dropped when the world size changes). Every rank registers
        its DistributedDataParallel, before the first forward pass: with three ranks and more its gradient buckets are
        brought into their final order, which resuming bit for bit takes.
        Raises CheckpointError when the checkpoint's state does not fit, TypeError when a state cannot be saved, CodeError
        after the first step, and beside `save_dir`.
        """
        self._way.registers(objects)
        if self._session.begun:
            raise CodeError(
                f"register({', '.join(objects)}) came after the first step: a resume loads all state before it; call it earlier"
            )
        self._session.registered.add(objects, per_rank=per_rank)
        self._wrapped |= {id(ddp): ddp for thing in objects.values() for ddp in wrapping.replicas(thing)}

    def _meets(self, verb: str) -> bool:
        """Whether there is a process group. Raises CodeError where several ranks would each go their own way without one."""
        if not dist.is_initialized() and self.world_size > 1:
            raise CodeError(f"{verb}() came before init_process_group(): the {self.world_size} ranks have no group yet")
        return dist.is_initialized()

    def epochs(self, count: int) -> Iterator[int]:
        """Iterate over epochs, from the one a resume is in; `batches` inside the body iterates over that one epoch.

        What follows `batches` in the body (evaluation, a scheduler's step per epoch) runs again on a resume from an
        epoch's end, on the state as it was right after the epoch's last step.
        """
        session = self._session
        if not self._open_loop():
            return
        session.epochs = index(count)
        session.registered.expect_repeats()
        try:
            for epoch in range(session.position.epoch, session.epochs):
                self._epoch, self._epoch_used = epoch, False
                yield epoch
                if session.in_unit:  # left by `break` and held by a name of the user's: the state has what followed
                    self._epoch = None
                    self._loop.close()
                    session.position.epoch, session.position.consumed = epoch + 1, 0
                if session.limit_reached:
                    break
        finally:
            self._epoch = None

    def batches(
        self,
        dataset: Any,
        batch_size: int,
        *,
        epochs: int | None = None,
        accumulate: int | None = None,
        collate: Collate = None,
        num_workers: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> Iterator[Any]:
        """Iterate over this rank's batches, on its device: one optimizer step per item; saves and stops come between items.

        ``batch_size`` is per rank. With ``accumulate`` an item is a micro-batch: step when `is_last_micro`, under `sync`.
        `scale` the loss: shares are uneven in an epoch's last batch and after the number of ranks changed. A resume continues
        with the first sample that no step has used; the global batch stays, unless ``batch_size`` was changed.
        Raises CodeError when the data set has no length and index access or a size is below 1, CheckpointError when it is not the one saved.
        """
        session, at = self._session, self._session.position
        if session.in_unit:
            raise CodeError(
                "batches() was called inside another loop over batches(): a step has the data of one; make one data set of both"
            )
        if self._epoch is None:
            if not self._open_loop():
                return
            session.epochs = 1 if epochs is None else index(epochs)
            first, end = at.epoch, session.epochs
        else:
            if self._epoch_used:
                raise RuntimeError("batches() was called twice in one epoch of epochs(): one loop per epoch")
            self._epoch_used = True
            first, end = self._epoch, self._epoch + 1
            if not session.in_gap and at.epoch < first:
                # What followed the epoch before is in the state that is saved from here on.
                at.epoch, at.consumed = first, 0
        check_dataset(dataset)
        self._way.reads(dataset, as_one_loop=self._epoch is None and epochs is None)
        micros = None if accumulate is None else index(accumulate)
        start = at.consumed if at.epoch == first else 0
        plan = plan_loop(
            session, len(dataset), index(batch_size), micros, shuffle=shuffle, drop_last=drop_last, begun=start > 0
        )
        left = -(-(plan.end_of_epoch(start) - start) // plan.global_batch)
        session.total_steps = at.step + left + max((session.epochs or 1) - first - 1, 0) * plan.units_per_epoch
        session.last_step = session.total_steps if self._epoch is not None or epochs is not None else None
        units = partial(plan.units, first, start, end)
        self._loop = self._units(load_units(units, dataset, self.device, collate, plan.seed, num_workers), plan, end)
        yield from self._loop

    def _units(self, units: Iterator[tuple[Unit, Iterator[tuple[Micro, Any]]]], plan: Plan, end: int) -> Iterator[Any]:
        session, at = self._session, self._session.position
        session.begin()
        for unit, pairs in units:
            if session.limit_reached:
                break
            session.enter()
            self._unit, self._left = unit, False
            for number, (micro, data) in enumerate(pairs, 1):
                self._micro, self.is_last_micro = micro, number == len(unit.micros)
                try:
                    yield data
                except GeneratorExit:
                    self._leave(unit, plan)
                    raise
            if unit.last and unit.epoch == end - 1:
                # DDP sends rank 0's buffers (batch norm) to all ranks at the next forward pass; evaluation comes before that.
                wrapping.share_buffers(self._wrapped.values())
            session.finish_unit(unit, last=at.step + 1 == session.total_steps)
        self._unit = None
        session.open_gap()

    def _leave(self, unit: Unit, plan: Plan) -> None:
        """End a loop that the user's code leaves by `break`: the step under way counts where the optimizer has made it.

        Inside `epochs` the epoch is over. Nothing here meets other ranks: an exception on one leaves its loop, too.
        """
        session = self._session
        self._unit, session.in_unit, self._left = None, False, True
        if self.is_last_micro and session.stepped:
            session.finish_unit(unit, last=True)
        if self._epoch is not None:
            session.position.epoch, session.position.consumed = self._epoch, plan.length
            if not session.registered.has_parts:
                session.open_gap(save=False)  # it may be an exception that leaves: the next boundary saves

    def _open_loop(self) -> bool:
        """Whether this loop over data is the one under way, or comes after it. Raises CodeError beside `save_dir`."""
        self._way.loops_over_data()
        at, number = self._session.position, self._loops
        self._loops += 1
        if at.phase > number:
            self._session.registered.expect_repeats()
            return False
        if at.phase < number:
            at.phase, at.epoch, at.consumed = number, 0, 0
        return True

    @property
    def weight(self) -> float:
        """The factor for the mean loss of the current item; 1.0 where all shares are equal."""
        return self._micro.weight

    @property
    def samples(self) -> int:
        """Samples of the current item that count: 0 where this rank's share is empty and it holds a substitute sample."""
        return self._micro.size

    @property
    def is_last_of_epoch(self) -> bool:
        """Whether the current step is its epoch's last."""
        return self._unit is not None and self._unit.last

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return ``loss`` times `weight`: makes the average of gradients over ranks the mean over the step's samples."""
        return loss if self._micro.weight == 1.0 else loss * self._micro.weight

    def sync(self, model: Any) -> contextlib.AbstractContextManager[Any]:
        """Use around a micro-batch's forward and backward pass: gradients are exchanged only in a step's last one.

        With ``static_graph`` they are exchanged in each: DDP learns the graph from its first backward pass, which must exchange them.
        """
        return wrapping.SYNCED if self.is_last_micro else wrapping.unsynced(model)

    def log(self, **metrics: Any) -> None:
        """Log numbers of the current step; rank 0's are recorded, the others' ignored.

        A tensor of one element is a number, too: pass ``loss`` itself. ``loss.item()`` waits for the device in every step.
        """
        session = self._session
        session.reporter.log(session.position.step + session.in_unit, self.epoch, metrics)

    def gather_sum(self, **values: Any) -> dict[str, float]:
        """Return the sums over all ranks, in double precision; all ranks must call it, with the same names."""
        self._meets("gather_sum")
        if self._session.in_gap:
            self._session.pass_boundary()
        return sum_over_ranks(values, self.device)

    def all_reduce_mean(self, value: Any) -> float:
        """Return the mean of one number over all ranks; all ranks must call it."""
        return self.gather_sum(value=value)["value"] / self.world_size

    def evaluate(
        self,
        model: Any,
        dataset: Any,
        batch_size: int,
        measure: Measure,
        *,
        collate: Collate = None,
        num_workers: int = 0,
        prefix: str = "",
    ) -> dict[str, float]:
        """Average what ``measure(model, batch)`` returns over the whole data set, every sample once.

        ``measure`` returns name to mean over the batch, or to one value per sample. Called after `batches`, it ends at once
        when all ranks are to stop, and is done again after the resume. Loader processes, ``num_workers`` per rank, end with it.
        """
        session = self._session
        self._meets("evaluate")
        if self._left and session.in_gap:
            session.pass_boundary()  # all ranks meet below, so none of them stops here
        if self._left or not session.in_gap:
            # A loop's last step has shared them; else each rank would measure with its own statistics.
            wrapping.share_buffers(self._wrapped.values())
        results = evaluate(session, model, dataset, batch_size, measure, collate, num_workers)
        results = {prefix + name: value for name, value in results.items()}
        session.reporter.result(WorkerEvaluated(step=session.position.step + session.in_unit, metrics=results))
        return results

    def steps(self, count: int | None = None) -> Iterator[int]:
        """Iterate over the numbers of the steps to do, from `steps_done` up to ``count`` (None: no end); ends when `should_stop`.

        The first one restores this rank's random numbers to what they were at the checkpoint, and seeds none (`restore_rng`). Code
        that draws from them and is not resumed itself (building a model, a loader's ``iter``) belongs before the loop. A body that has
        not called `step` has done one step all the same. ``count`` is of the whole run: the epoch follows from the number. Where loops
        have different counts (one loop per epoch), the last checkpoint is written when the code ends. Raises CodeError after `batches`.
        """
        session = self._session
        count = None if count is None else index(count)
        self._counts.add(count)
        session.total_steps, session.last_step = (count, count) if len(self._counts) == 1 else (0, None)
        self.restore_rng()
        session.phase("train")
        while (count is None or self.steps_done < count) and not self.should_stop():
            number, session.stepped = self.steps_done, False
            session.registered.begin_step()
            try:
                yield number
            except GeneratorExit:  # `break`: the step counts where the optimizer has made it
                if self.steps_done == number and session.stepped:
                    session.finish_unit(None, last=True)
                raise
            if not session.stepped:
                session.registered.end_unstepped()
            if self.steps_done == number:
                self.step()
        if not self.should_stop():
            session.phase("script")  # an evaluation or an upload may take long, on one rank alone

    def restore_rng(self) -> None:
        """Restore the saved random numbers of python, numpy, torch and CUDA: for loops that use neither `batches` nor `steps`.

        Call it right before the first step draws. From scratch it changes nothing: the ranks of a function, seeded alike, draw the
        same (dropout, too) unless it seeds each one apart (``torch.manual_seed(1 + worker.rank)``, once the model is built). Where
        the number of ranks has changed, a state that all ranks had in common is restored on every rank; else each is seeded anew.
        """
        self._way.counts_steps("steps() or restore_rng()")
        self._session.begin_own_loop()

    def step(self, **metrics: Any) -> int:
        """Report one optimizer step as done (for loops that do not use `batches`); returns how many.

        Saves what is registered when a save is due. At an agreed stop a function's worker ends here; a script continues and
        asks `should_stop`. Raises CodeError inside `batches`, which counts the steps itself, and after it.
        """
        if self._session.in_unit:
            raise CodeError("step() was called inside batches(), which counts the steps itself; log numbers with log()")
        if self._epoch is not None and not self._epoch_used:
            raise CodeError("step() was called inside epochs(), which knows epochs by batches(): loop over steps()")
        self._way.step()
        if metrics:
            self._session.reporter.log(self.steps_done + 1, self.epoch, metrics)
        self._session.step_done()
        return self.steps_done

    def _tell(self, text: str) -> None:
        if self.is_leader:
            self._session.reporter.send(WorkerWarning(text=text))

    def should_stop(self) -> bool:
        """Whether the script must save (`save_dir`, unless its state is registered) and exit now; the same on every rank."""
        return self._session.stopping or self._session.rehearsed

    def should_save(self) -> bool:
        """Whether a checkpoint is due at this step: fill `save_dir`; the same on every rank. Raises CodeError as that does."""
        self._way.fills("should_save")
        return self._session.wanted is not None

    def save_dir(self) -> contextlib.AbstractContextManager[Path | None]:
        """Give a folder that all ranks fill (DCP, FSDP, anything) and the leader commits: ``with run.save_dir() as path``.

        Its files must be written when the block ends, and stay as they are: a thread then makes them durable. All ranks must enter it.
        None outside a run. For loops over `steps`, or that call `step`. Raises CodeError where something is registered, and in a loop
        over `batches` or after it.
        """
        self._way.fills("save_dir")
        return save_folder(self._session)

    def close(self) -> None:
        """End the work: without an agreed stop it has finished."""
        session = self._session
        if session.in_unit:  # as in `epochs`
            self._loop.close()
        if session.stopping:
            session.stopped(saved=False)
        elif session.place.paths is not None:
            session.finish()
