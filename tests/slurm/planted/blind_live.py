"""Blind live cases: nothing fails, something is wrong or slow (or only seems so) while the run lives.

Written from README.md, docs/{scripts,recovery,json,tutorial,reference,containers}.md and slurm/ alone. Expectations are facts; a tuple
offers other words for the same fact. Step numbers allow for counting from 0 or from 1.

What the bench has to give: pauses of up to 10 s must be below the hang limit (restart.hang_floor_s: the default of 60 is), or the
case of the one long pause is no healthy case; the slow save needs a checkpoint within its soon_s.
"""

from __future__ import annotations

import random
import sys
import time

import torch
from cases import live_case
from torch.utils.data import DataLoader, Dataset

BOTH = ("function", "attached")

NAN = ("nan", "not a number")
INF = ("inf", "not finite", "non-finite", "overflow")  # "infinite" holds "inf"
SLOW = ("slow", "longer", "behind", "times", "wait", "holds up", "hold up", "straggl")
DATA = ("data", "loader", "batch", "input")
FINE_NEVER = [  # what nobody may say of a loss that is a number, nor of a run that is well
    "nan",
    "infinit",
    "not finite",
    "non-finite",
    "diverg",
]
EVEN_NEVER = ["slower", "straggl", "holds up", "hold up", "holds back", "falls behind", "lags behind"]
STANDS_NEVER = [" hang", "hung", "stands still", "frozen", "stuck", "no rank made progress"]


def live(name, *, where=BOTH, **expected):
    """The same case in several surroundings, each under a name of its own."""

    def register(case):
        for place in where:
            live_case(f"{name} ({place})", where=place, **expected)(case)
        return case

    return register


# --- losses that are wrong -----------------------------------------------------------------------------------------------------


@live(
    "nan loss on one of two ranks", rank=1, says=[NAN], must=["rank 1", ("step 20", "step 21", "20", "21")], soon_s=40
)
def _(rank, world_size, step):
    return float("nan") if rank == 1 and step >= 20 else None


@live("nan loss on rank 0 of four", rank=0, says=[NAN], must=["rank 0", ("30", "31")], never=["ranks 0-3", "nan on all", "on all ranks"],
      soon_s=40, world=4, where=("function",))  # fmt: skip
def _(rank, world_size, step):
    return float("nan") if rank == 0 and step >= 30 else None


@live("infinite loss everywhere", rank="all", says=[INF], must=[("15", "16")], never=["nan"], soon_s=40)
def _(rank, world_size, step):
    return float("inf") if step >= 15 else None


@live(
    "minus infinity everywhere",
    rank="all",
    says=[INF],
    must=[("25", "26")],
    never=["nan"],
    soon_s=40,
    where=("function",),
)
def _(rank, world_size, step):
    return float("-inf") if step >= 25 else None


@live("a loss that grows until it overflows", rank="all", says=[INF], must=[("40", "41")], never=["nan"], soon_s=40)
def _(rank, world_size, step):
    return 10.0 ** (step * 0.9) if step < 40 else float("inf")


# It was there in steps 20 to 59 and is gone: who reads about it must learn both, and must not be told that it lasts.
@live("a loss that was no number for a while", rank=1, says=[NAN],
      must=[
          ("20", "21"),
          ("59", "60", "61", "again", "until", "recover", "went", "40 steps", "40 times", "finite since", "was nan", "were nan", "has been"),
      ],
      never=["is still nan", "nan since step 20", "nan since step 21"], soon_s=40)  # fmt: skip
def _(rank, world_size, step):
    return float("nan") if rank == 1 and 20 <= step < 60 else None


# A plain script that only prints its loss: the launcher is told nothing. It may find the word in the log, or else must not pretend to
# know the loss: it says that the run runs, and where to look (its log) or what would tell (attach).
@live("a plain script prints a bad loss", where=("script",), rank=None, says=[],
      must=[("running", "runs", "training", "trains", "nan"), ("log", "attach", "report", "nan")],
      never=["loss is fine", "loss is finite", "has failed", "diverged", "timed out"], soon_s=40)  # fmt: skip
def _(rank, world_size, step):
    loss = float("nan") if step >= 20 else 1.0 / (step + 1)
    print(f"step {step} loss {loss}", flush=True)
    return loss


# --- ranks and hosts that are slow ---------------------------------------------------------------------------------------------


@live(
    "a rank five times slower", rank=1, says=[SLOW], must=["rank 1"], never=["rank 0 is slow", *STANDS_NEVER], soon_s=60
)
def _(rank, world_size, step):
    if rank == 1:
        time.sleep(0.08)  # a step of the others takes 0.02 s


@live("rank 0 five times slower from step 100 on", rank=0, says=[SLOW], must=["rank 0"], never=["rank 1 is slow", *STANDS_NEVER],
      soon_s=90)  # fmt: skip
def _(rank, world_size, step):
    if rank == 0 and step >= 100:
        time.sleep(0.08)


# One rank of a host is slow and its neighbour is not: the host as a whole is not to blame.
@live("one slow rank of four", rank=2, says=[SLOW], must=["rank 2"], never=["ranks 2 and 3", "ranks 2, 3", "ranks 2-3"], soon_s=60,
      world=4)  # fmt: skip
def _(rank, world_size, step):
    if rank == 2:
        time.sleep(0.15)


# Two hosts with two ranks each (0, 1 and 2, 3): both ranks of the second are slow. The host is the story, not one of its ranks.
@live("both ranks of one host are slow", rank=None, says=[SLOW],
      must=[("host", "node"), ("ranks 2 and 3", "ranks 2, 3", "ranks 2-3", "ranks 2–3", "2 and 3", "2, 3", "both ranks", "its ranks", "all ranks of")],
      never=["ranks 0 and 1", "all ranks are slow", *STANDS_NEVER], soon_s=60, world=4)  # fmt: skip
def _(rank, world_size, step):
    if rank >= 2:
        time.sleep(0.12)


# --- loaders -------------------------------------------------------------------------------------------------------------------


class SlowPictures(Dataset):
    """Every item takes 0.25 s, as from a file system that is loaded."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.25)
        return torch.full((4,), float(index % 7))


class QuickPictures(Dataset):
    """Every item is there at once."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.full((4,), float(index % 7))


_ITERATORS: dict[str, object] = {}


def next_batch(name, dataset, workers):
    """The next batch of a real DataLoader, which is opened at its first use."""
    if name not in _ITERATORS:
        _ITERATORS[name] = iter(DataLoader(dataset, batch_size=1, num_workers=workers))
    return next(_ITERATORS[name])


@live("a slow loader on one rank", rank=1, says=[DATA], must=["rank 1", SLOW], never=STANDS_NEVER, soon_s=60)
def _(rank, world_size, step):
    next_batch("one", SlowPictures() if rank == 1 else QuickPictures(), 0)


@live("a slow loader on all ranks", rank=None, says=[DATA], must=[SLOW], never=STANDS_NEVER, soon_s=60)
def _(rank, world_size, step):
    next_batch("all", SlowPictures(), 0)


@live("a slow loader with a worker process on all ranks", rank=None, says=[DATA], must=[SLOW], never=STANDS_NEVER, soon_s=60,
      where=("attached",))  # fmt: skip
def _(rank, world_size, step):
    next_batch("worker", SlowPictures(), 1)


# --- saves and pauses ----------------------------------------------------------------------------------------------------------


class SlowState:
    """An object whose state takes five seconds to collect."""

    armed = False
    last = 0.0

    def state_dict(self):
        doze()
        return {"value": 1}

    def load_state_dict(self, state):
        pass


def doze():
    """Five seconds once a save, however many objects are slow."""
    if SlowState.armed and time.monotonic() - SlowState.last > 2:
        time.sleep(5)
        SlowState.last = time.monotonic()


def register_slow_state():
    """Register a SlowState with the worker or run of the loop that calls us; make its optimizer's and model's states slow, too."""
    frame, owner = sys._getframe(1), None
    while frame is not None and owner is None:
        owner = next(
            (
                o
                for o in list(frame.f_locals.values())
                if callable(getattr(o, "register", None)) and hasattr(o, "should_save")
            ),
            None,
        )
        frame = frame.f_back
    if owner is not None:
        try:
            owner.register(slow=SlowState())
        except Exception as error:  # not at this point of a loop, then: the states below are slow all the same
            print(f"not registered: {error}", flush=True)
    for kind in (torch.optim.Optimizer, torch.nn.Module):
        kind.state_dict = slowly(kind.state_dict)
    SlowState.armed = True


def slowly(original):
    def state_dict(self, *args, **kwargs):
        doze()
        return original(self, *args, **kwargs)

    return state_dict


# Training stands still for five seconds at every save. What a person must read: that it is the saving, and how long it takes.
@live("a save that takes five seconds", rank=None, says=[("sav", "checkpoint", "state_dict")],
      must=[("sav", "checkpoint"), ("5 s", "5.0", "5.1", "5.2", "5.3", "5.4", "5s", "5 seconds", "00:05", "6 s")],
      never=["save failed", "saves fail", *STANDS_NEVER], soon_s=150)  # fmt: skip
def _(rank, world_size, step):
    if step == 5 and not SlowState.armed:
        register_slow_state()


# Rank 0 evaluates alone, two seconds after every 20 steps of 0.02 s, and the other waits: most of the time goes there.
@live("rank 0 alone pauses again and again", rank=0, says=[(*SLOW, "pause", "evaluat", "stall", "alone")], must=["rank 0"],
      never=["rank 1 is slow"], soon_s=90)  # fmt: skip
def _(rank, world_size, step):
    if rank == 0 and step and step % 20 == 0:
        time.sleep(2)


# --- healthy: nobody may call these wrong -------------------------------------------------------------------------------------


@live("healthy: steps of one to two times the time", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=[*EVEN_NEVER, *STANDS_NEVER, *FINE_NEVER], soon_s=40)  # fmt: skip
def _(rank, world_size, step):
    time.sleep(random.Random(rank * 1_000_003 + step).random() * 0.02)


@live("healthy: one pause of ten seconds", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=[*EVEN_NEVER, "hung", "frozen", "stuck", "restarted", "no rank made progress"], soon_s=40)  # fmt: skip
def _(rank, world_size, step):
    if step == 100:
        time.sleep(10)


@live("healthy: one rank pauses once", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=["slower", "straggl", "falls behind", "hung", "frozen", "stuck", "restarted"], soon_s=40, where=("function",))  # fmt: skip
def _(rank, world_size, step):
    if step == 60 and rank == 1:
        time.sleep(2)


@live("healthy: a loss of zero", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=[*FINE_NEVER, "has failed"], soon_s=30)  # fmt: skip
def _(rank, world_size, step):
    return 0.0


@live("healthy: a loss below zero", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=[*FINE_NEVER, "has failed"], soon_s=30)  # fmt: skip
def _(rank, world_size, step):
    return -3.5 - step


@live("healthy: a huge loss that is a number", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=[*FINE_NEVER, "overflow", "has failed"], soon_s=30)  # fmt: skip
def _(rank, world_size, step):
    return 1e30


@live("healthy: the first steps take a second", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=[*EVEN_NEVER, *STANDS_NEVER], soon_s=45)  # fmt: skip
def _(rank, world_size, step):
    if step < 10:
        time.sleep(1.0)


@live("healthy: the first steps of one rank take longer", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=[*EVEN_NEVER, *STANDS_NEVER], soon_s=45, where=("function",))  # fmt: skip
def _(rank, world_size, step):
    """One cold cache at the start. Asked long after: the run is even by then."""
    if rank == 1 and step < 3:
        time.sleep(0.5)


@live("healthy: large steps that are even", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=[*EVEN_NEVER, *STANDS_NEVER, *FINE_NEVER], soon_s=40)  # fmt: skip
def _(rank, world_size, step):
    time.sleep(0.4)


@live("healthy: a quick loader", rank=None, says=[], must=[("running", "runs", "training", "trains", "step")],
      never=[*EVEN_NEVER, "waits for data", "wait for data", "slow loader", "loader is slow"], soon_s=40)  # fmt: skip
def _(rank, world_size, step):
    next_batch("quick", QuickPictures(), 0)
