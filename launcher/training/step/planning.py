"""Plans one loop over data: how many samples a step has, over all ranks, and in which order they come."""

from __future__ import annotations

from launcher.errors import CheckpointError, CodeError
from launcher.run.messages import WorkerWarning
from launcher.run.worker_texts import ORDER_KEPT
from launcher.training.ddp.data import Plan, check_positive, derive_seed
from launcher.training.process.place import WorkerPlace
from launcher.training.step.session import Session


def plan_loop(
    session: Session,
    length: int,
    batch_size: int,
    accumulate: int | None,
    *,
    shuffle: bool,
    drop_last: bool,
    begun: bool,
) -> Plan:
    """Return the plan of the loop that the session's position is in, and note there what a resume compares.

    ``begun``: some samples of its epoch are used already. Raises CheckpointError when their data set had another length, CodeError
    when there is no batch in it, or a size is no size.
    """
    check_positive("batch_size", batch_size)
    check_positive("accumulate", 1 if accumulate is None else accumulate)
    at, place = session.position, session.place
    per_rank = batch_size * (accumulate or 1)
    if begun and at.length != length:
        raise CheckpointError(f"the data set had {at.length} samples when this epoch was saved and has {length} now")
    if not at.global_batch or at.per_rank != per_rank:
        at.global_batch, at.per_rank = per_rank * _full_size(place), per_rank
    at.length = length
    _keep_order(session, shuffle, begun)
    if length == 0 or (drop_last and length < at.global_batch):
        raise CodeError(f"the data set has {length} samples, fewer than one batch over all ranks ({at.global_batch})")
    return Plan(
        length=length,
        global_batch=at.global_batch,
        batch_size=batch_size,
        accumulate=accumulate or 1,
        elastic_micros=accumulate is not None,
        rank=place.rank,
        world_size=place.world_size,
        seed=derive_seed(at.seed, at.phase) if at.phase else at.seed,  # a loop after another has an order of its own
        shuffle=bool(at.shuffle),
        drop_last=drop_last,
    )


def _keep_order(session: Session, shuffle: bool, begun: bool) -> None:
    """Note the order of the samples. One that has begun is kept: in another, some samples would come twice and others never."""
    at, place = session.position, session.place
    if not begun:
        at.seed = session.seed
    if not begun or at.shuffle < 0:
        at.shuffle = int(shuffle)
    if (at.seed, at.shuffle) != (session.seed, shuffle) and place.rank == 0:
        session.reporter.send(WorkerWarning(text=ORDER_KEPT))


def _full_size(place: WorkerPlace) -> int:
    """Return the number of ranks that a step's samples are for: also of a job that has begun on fewer nodes of its range."""
    return max(place.spec.world_size, place.world_size) if place.spec.least_nodes else place.world_size
