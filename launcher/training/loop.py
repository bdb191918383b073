"""Runs a task or a function from start to end: process group, user code, and the end in every case."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import os
from functools import partial
from numbers import Integral
from typing import Any

import torch
import torch.distributed as dist

from launcher.errors import CodeError
from launcher.run.messages import WorkerEpoch, WorkerPhase, WorkerReady
from launcher.training.ddp.randomness import make_deterministic, seed_all
from launcher.training.process import failure
from launcher.training.process.group import before_group_ends, choose_device, open_group
from launcher.training.process.not_finite import on_device
from launcher.training.process.place import WorkerPlace
from launcher.training.process.rehearsal import Rehearsed
from launcher.training.step.session import Session
from launcher.training.step.stopping import Gate, StopTraining, listen
from launcher.training.task import Training
from launcher.training.worker import Worker

_KEPT: list[object] = []
"""What lives until the process ends, without being taken apart. A gloo group that is freed while the interpreter is held waits for a thread
that waits for the interpreter (torch 2.6; a worker in twenty), and so does a DistributedDataParallel freed after its group (2.13)."""


def run_work(place: WorkerPlace) -> int:
    """Run the task or function of ``place``; returns 0 when it finished or stopped as agreed, the exit code after reporting a failure."""
    spec, channel = place.spec, place.channel
    rank_pid = os.getpid()
    gate, session = Gate(entered=place.resume_step), None
    listen(place, gate)
    try:
        channel.send(WorkerPhase(name="init"))
        if spec.deterministic:
            make_deterministic()
        device = choose_device(place)
        open_group(place, device)
        channel.send(WorkerReady())
        channel.send(WorkerPhase(name="setup"))
        seed_all(spec.seed)
        # Before the checkpoint is read: the user's module may allow types that it holds (add_safe_globals).
        target = _find(spec.work.target)
        session = Session(place, gate, device)
        _KEPT.append(session)
        before_group_ends(session.group_ends)
        worker = Worker(session)
        if spec.work.kind == "task":
            run_task(worker, session, target(**spec.work.params))
        else:
            with contextlib.suppress(Rehearsed):
                target(worker, **spec.work.params)
        if os.getpid() != rank_pid:
            return 0  # a child that the function forked has come to its end here
        if not session.told:  # else the function has caught StopTraining: it has stopped
            worker.close()
    except StopTraining:
        pass
    except BaseException as error:
        failure.report(channel, error, session.position.step if session else place.resume_step)
        return failure.exit_code(error)
    if dist.is_initialized():  # never after an error: it could wait for a dead peer
        _KEPT.append(dist.group.WORLD)
        dist.destroy_process_group()
    return 0


def _find(target: str) -> Any:
    """Import what ``module:name`` names. Raises CodeError; an exception inside the module passes through."""
    module_name, _, name = target.partition(":")
    module = importlib.import_module(module_name)
    try:
        return getattr(module, name)
    except AttributeError:
        raise CodeError(f"module {module_name} has no {name}") from None


def run_task(worker: Worker, session: Session, task: Training) -> None:
    """Train ``task`` in the shared loop."""
    if not isinstance(task, Training):
        raise CodeError(f"{type(task).__name__} is not a subclass of launcher.Training")
    task.worker = worker
    _TaskLoop(worker, session, task).run()


_CHOICES = {"precision": ("fp32", "bf16", "fp16"), "scheduler_every": ("epoch", "step")}


def _check(task: Training) -> None:
    """Raise CodeError for an option that would mean nothing."""
    for name, choices in _CHOICES.items():
        if (value := getattr(task, name)) not in choices:
            raise CodeError(f"{type(task).__name__}.{name} must be {' or '.join(choices)}, not {value!r}")
    tested = ("test_batch_size",) if task.test_batch_size else ()
    for name in ("epochs", "batch_size", "accumulate", "evaluate_every", *tested):
        if not isinstance(value := getattr(task, name), Integral) or value < (0 if name == "epochs" else 1):
            raise CodeError(f"{type(task).__name__}.{name} must be a whole number of at least 1, not {value!r}")


def _collate_of(task: Training) -> Any:
    """The task's ``collate``; a function of one argument that is a class attribute is no method."""
    static = inspect.getattr_static(task, "collate")
    if inspect.isfunction(static) and "collate" not in vars(task) and len(inspect.signature(static).parameters) == 1:
        return static
    return task.collate


class _TaskLoop:
    """The shared loop: epochs, optimizer steps, evaluation."""

    def __init__(self, worker: Worker, session: Session, task: Training) -> None:
        self.worker, self.session, self.task = worker, session, task
        _check(task)
        bare = task.model()
        self.model = worker.wrap(bare)
        self.optimizer = task.optimizer(bare)
        self.scheduler = task.scheduler(self.optimizer)
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise CodeError(
                "ReduceLROnPlateau needs a metric at each step, which the shared loop does not give it: use function: instead"
            )
        self.scaler = torch.amp.GradScaler(worker.device.type) if task.precision == "fp16" else None
        stateful = {"model": bare, "optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}
        worker.register(**{name: thing for name, thing in stateful.items() if thing is not None}, **task.state())
        self.train_data = task.train_data()
        self.test_data = task.test_data()
        self.collate = _collate_of(task)
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(task.precision)
        self.autocast = partial(torch.autocast, worker.device.type, dtype=dtype) if dtype else None

    def run(self) -> None:
        task, session = self.task, self.session
        for epoch in self.worker.epochs(task.epochs):
            self._epoch()
            loss = session.notes.get("epoch_loss", math.nan)
            session.reporter.result(WorkerEpoch(step=session.position.step, epoch=epoch, loss=loss))
            task.after_epoch(epoch, loss)
            if self.test_data is not None and ((epoch + 1) % task.evaluate_every == 0 or epoch + 1 == task.epochs):
                size = task.test_batch_size or task.batch_size
                results = self.worker.evaluate(
                    self.model,
                    self.test_data,
                    size,
                    self._measure,
                    collate=self.collate,
                    num_workers=task.num_workers,
                    prefix="test_",
                )
                task.after_evaluation(epoch, results)

    def _epoch(self) -> None:
        worker, task = self.worker, self.task
        batches = worker.batches(
            self.train_data,
            task.batch_size,
            accumulate=task.accumulate,
            collate=self.collate,
            num_workers=task.num_workers,
            shuffle=task.shuffle,
            drop_last=task.drop_last,
        )
        self.optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            if worker.is_last_micro:
                loss = self._backward(batch)
            else:
                with worker.sync(self.model):
                    loss = self._backward(batch)
            self._count(loss)
            if not worker.is_last_micro:
                self.session.reporter.see_micro(worker.steps_done + 1, loss)
            else:
                self._step()
                worker.log(loss=loss)
                if worker.is_last_of_epoch:
                    self._end_epoch()

    def _backward(self, batch: Any) -> Any:
        """Return the loss: a number on CPUs; elsewhere a tensor, for which nobody waits."""
        if self.autocast is None:
            loss = self.task.loss(self.model, batch)
        else:
            with self.autocast():
                loss = self.task.loss(self.model, batch)
        scaled = self.worker.scale(loss)
        (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()  # type: ignore[no-untyped-call]
        return loss.item() if loss.is_cpu else loss.detach()

    def _step(self) -> None:
        task, scaler = self.task, self.scaler
        if task.clip_norm is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), task.clip_norm)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None and task.scheduler_every == "step":
            self.scheduler.step()

    def _count(self, loss: Any) -> None:
        partial, n = self.session.partial, self.worker.samples
        if not partial:
            partial.update(loss=0.0, count=0)
        if on_device(loss):  # a number so far at the epoch's begin, and after a resume from CPUs
            partial["loss"] = torch.as_tensor(partial["loss"], dtype=torch.float64, device=loss.device).add_(
                loss, alpha=n
            )
        else:
            partial["loss"] += loss * n
        partial["count"] += n

    def _end_epoch(self) -> None:
        """End an epoch, still inside its last step: every rank is here, and the next save contains it."""
        if self.scheduler is not None and self.task.scheduler_every == "epoch":
            self.scheduler.step()
        sums = self.session.partial
        loss = torch.as_tensor(sums["loss"], dtype=torch.float64, device=self.worker.device)
        row = torch.stack([loss, torch.full_like(loss, sums["count"])])
        if self.worker.world_size > 1:
            dist.all_reduce(row)
        self.session.notes["epoch_loss"] = float(row[0] / row[1])
        sums.clear()

    def _measure(self, model: Any, batch: Any) -> dict[str, Any]:
        with self.autocast() if self.autocast else contextlib.nullcontext():
            return self.task.metrics(model, batch)
