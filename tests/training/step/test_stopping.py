"""The agreed stop: never a deadlock, always one step for all, wherever the workers are when it comes."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from crew import LIMIT_S, Crew, make_spec, run

from launcher.run.messages import AskUnit, FromWorker, SaveLost, StopAt, WorkerAt
from launcher.run.spec import CheckpointSpec
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint
from launcher.training.process.place import WorkerPlace
from launcher.training.step import stopping
from launcher.training.step.stopping import Gate, _handle

SELDOM = CheckpointSpec(interval_min=1000)


class Member(threading.Thread):
    """One simulated rank: a step is an all-reduce, that is, nobody leaves it before everybody is in it."""

    def __init__(self, gate: Gate, barrier: threading.Barrier, step_s: float, units: int, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.gate, self.barrier, self.step_s, self.units, self.rng = gate, barrier, step_s, units, rng
        self.done = 0

    def run(self) -> None:
        while self.done < self.units:
            self.gate.publish(self.done + 1)
            if not self.gate.passes(self.done + 1):
                return
            time.sleep(self.rng.random() * self.step_s)
            self.barrier.wait(LIMIT_S)
            self.done += 1


def one_stop(seed: int) -> tuple[set[int], int]:
    """A stop at a random moment of W ranks with random message delays; (steps at which ranks stopped, agreed step)."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 3, 4, 5, 8])
    step_s = rng.choice([0.001, 0.002, 0.008, 0.02])
    barrier = threading.Barrier(size)
    members = [Member(Gate(), barrier, step_s, 10_000, random.Random(seed * 100 + i)) for i in range(size)]
    answers: dict[int, int] = {}

    def pause(i: int) -> None:
        time.sleep(rng.random() * 0.02)
        entered = members[i].gate.pause()
        time.sleep(rng.random() * 0.02)
        answers[i] = entered

    def stop(i: int, step: int) -> None:
        time.sleep(rng.random() * 0.02)
        members[i].gate.agree(StopAt(step=step, save=True))

    for member in members:
        member.start()
    time.sleep(rng.random() * 0.05)
    together([threading.Thread(target=pause, args=(i,)) for i in range(size)])
    agreed = max(answers.values())
    together([threading.Thread(target=stop, args=(i, agreed)) for i in range(size)])
    for member in members:
        member.join(LIMIT_S)
        assert not member.is_alive(), f"seed {seed}: deadlock"
    return {member.done for member in members}, agreed


def together(threads: list[threading.Thread]) -> None:
    """Run all to their end."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)


def test_two_hundred_stops_agree() -> None:
    """200 stops at random moments, W up to 8, steps of 1 to 20 ms, messages delayed at random: one step for all, always."""
    for seed in range(200):
        stopped, agreed = one_stop(seed)
        assert stopped == {agreed}, seed


def test_a_withdrawn_pause_lets_work_go_on() -> None:
    """``release`` frees a held worker, and a later pause works as the first did."""
    gate = Gate()
    member = Member(gate, threading.Barrier(1), 0.001, 50, random.Random(0))
    gate.pause()
    member.start()
    gate.release()
    member.join(LIMIT_S)

    assert member.done == 50


def test_where_is_answered_exactly_and_holds_nobody() -> None:
    """The leader asks it when nobody progresses; a withdrawn alarm must leave no trace."""
    gate, said = Gate(entered=7), []

    class Agent:
        """Hears what the control thread answers."""

        def send(self, message: FromWorker) -> None:
            """One message."""
            said.append(message)

    _handle(WorkerPlace(channel=Agent()), gate, AskUnit())  # type: ignore[arg-type]

    assert [type(answer) for answer in said] == [WorkerAt]
    assert [(at.step, at.waits) for at in said if isinstance(at, WorkerAt)] == [(7, False)]
    assert not gate.hold


@pytest.mark.parametrize("saves", [True, False])
def test_a_rank_waits_for_the_word_that_all_save_or_none(saves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that has come to the boundary waits for the leader, which has not heard all others."""
    gate, waits, took = Gate(), threading.Event(), list[bool]()
    real = gate._changed.wait
    monkeypatch.setattr(gate._changed, "wait", lambda: (waits.set(), real()))
    assert gate.ask_save(5)

    def work() -> None:
        gate.publish(6)
        took.append(gate.due(5))

    thread = threading.Thread(target=work)
    thread.start()
    assert waits.wait(LIMIT_S)
    gate.agree_save(5) if saves else gate.lose_save(5)
    thread.join(LIMIT_S)

    assert took == [saves]
    assert not gate.due(5)


def test_a_lost_saves_files_are_gone_before_the_rank_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread writes the last save anew once it knows: deleted after that, a part that was reported would be missing."""
    gate, known = Gate(), []
    place = SimpleNamespace(channel=None, rank=0, tmp=lambda step: tmp_path)
    monkeypatch.setattr(stopping.write, "remove_files", lambda *_: known.append(5 in gate.lost))
    _handle(cast("WorkerPlace", place), gate, SaveLost(step=5))

    assert (known, gate.lost) == ([False], {5})


def test_all_ranks_save_or_none_does() -> None:
    """A request that reaches the ranks at different moments of their way, again and again: none ever saves alone."""
    outcomes = set()
    for seed in range(100):
        gates, rng, took = [Gate() for _ in range(3)], random.Random(seed), list[int]()
        # The first step of all has often passed, however slow this machine is; the last one seldom has.
        wanted = rng.choice([0, rng.randrange(5, 60), 59])

        def work(number: int, gates: list[Gate] = gates, took: list[int] = took) -> None:
            for step in range(60):
                gates[number].publish(step + 1)
                if gates[number].due(step):
                    took.append(number)
                time.sleep(0.0001)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        promised = []
        for gate in gates:
            promised.append(gate.ask_save(wanted))
            time.sleep(rng.random() * 0.004)
        for gate in gates:
            gate.agree_save(wanted) if all(promised) else gate.lose_save(wanted)
        for thread in threads:
            thread.join(LIMIT_S)

        assert sorted(took) == ([0, 1, 2] if all(promised) else [])
        outcomes.add(tuple(promised))
    assert (True, True, True) in outcomes
    assert len(outcomes) > 1


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_real_workers_stop_together(tmp_path: Path, world_size: int) -> None:
    """Paused at some moment of a run with 3 ms steps: all save the agreed step, exit 0, and the leader could commit it."""
    params = {"samples": 2000 * world_size, "step_s": 0.003, "dropout": 0.0, "batch_size": 2, "test": False}
    spec = make_spec(tmp_path / "run", "small_jobs:Net", world_size, checkpoint=SELDOM, params=params)
    with Crew(spec, world_size) as crew:
        crew.until(lambda rank, m: m["type"] == "progress" and m["step"] > 2)
        step = crew.stop_now()
        words = crew.finish()
        codes = crew.exit_codes()

    assert {(w["type"], w.get("step"), w.get("saved")) for w in words.values()} == {("stopped", step, True)}, (
        crew.logs()
    )
    assert set(codes.values()) == {0}
    assert [path.name for path in crew.committed] == [f"step-{step:08d}"]


def one_real_stop(folder: Path, seed: int) -> None:
    """Real workers at 1 to 50 ms a step; pauses that are withdrawn, then a stop; every message at a random moment."""
    rng = random.Random(seed)
    size, step_s = rng.choice([1, 2, 3, 4, 5, 8]), rng.uniform(0.001, 0.05)
    params = {"samples": 4000 * size, "step_s": step_s, "dropout": 0.0, "batch_size": 2, "test": False}
    spec = make_spec(folder, "small_jobs:Net", size, checkpoint=SELDOM, params=params)

    def tell(crew: Crew, type_: str, **values: object) -> None:
        for rank in rng.sample(range(size), size):
            time.sleep(rng.random() * 0.03)
            crew.send(rank, type_, **values)

    with Crew(spec, size) as crew:
        crew.until(lambda rank, m: m["type"] == "progress" and m["step"] > 0)
        for withdrawn in [True] * rng.randrange(4) + [False]:
            time.sleep(rng.random() * 0.2)
            tell(crew, "pause")
            step = max(int(m["step"]) for m in crew.from_all("entered").values())
            time.sleep(rng.random() * 0.1)
            if withdrawn:
                tell(crew, "release")
        tell(crew, "stop", step=step, save=True)
        words = crew.finish()
        assert {(w["type"], w.get("step"), w.get("saved")) for w in words.values()} == {("stopped", step, True)}, (
            seed,
            crew.logs(),
        )
        assert set(crew.exit_codes().values()) == {0}, seed
    assert [path.name for path in crew.committed] == [f"step-{step:08d}"], seed


@pytest.mark.parametrize("seed", range(6))
def test_real_workers_agree_at_random_moments(tmp_path: Path, seed: int) -> None:
    """Up to 8 real gloo workers, 1 to 50 ms a step, stops withdrawn and meant: one step for all, saved, never a deadlock."""
    one_real_stop(tmp_path / "run", seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_stops_of_real_workers_agree(tmp_path: Path) -> None:
    """The same 200 times."""
    for seed in range(1000, 1200):
        one_real_stop(tmp_path / str(seed), seed)


def test_a_stop_during_evaluation_abandons_it_and_loses_nothing(tmp_path: Path) -> None:
    """All ranks are in evaluation: it is left in its middle, the state before it saved, and the end is bitwise the same."""
    # 15 s of evaluation in small pieces: the stop comes within, however slow this machine is.
    params = {"epochs": 2, "test_s": 0.1, "batch_size": 2, "samples": 24, "dropout": 0.0, "test_samples": 900}
    full = run(
        make_spec(tmp_path / "full", "small_jobs:Net", 3, checkpoint=SELDOM, params={**params, "test_s": 0.0}), 3
    )
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 3, checkpoint=SELDOM, params=params)
    with Crew(spec, 3) as crew:
        for _ in range(3):
            crew.until(lambda rank, m: m["type"] == "phase" and m["name"] == "evaluate")
        step = crew.stop_now()
        words = crew.finish()

    assert {(w["type"], w["step"], w["saved"]) for w in words.values()} == {("stopped", 4, True)}, crew.logs()
    assert step == 4
    assert crew.messages("evaluated") == []
    again = make_spec(tmp_path / "run", "small_jobs:Net", 3, checkpoint=SELDOM, params={**params, "test_s": 0.0})
    end = run(again, 3, resume=crew.paths.checkpoint(4), attempt=1)
    assert digest_checkpoint(end.committed[-1]) == digest_checkpoint(full.committed[-1])
    assert [m["metrics"] for m in end.messages("evaluated")] == [m["metrics"] for m in full.messages("evaluated")]


def test_a_function_stopped_in_evaluation_resumes_bitwise(tmp_path: Path) -> None:
    """The scheduler was stepped after the epoch's last step and before the stop: the resume steps it once, not twice."""
    values = {"kind": "function", "checkpoint": SELDOM}
    long = {"test_samples": 2000}
    full = run(make_spec(tmp_path / "full", "small_jobs:own_loop", 2, params=long, **values), 2)
    spec = make_spec(tmp_path / "run", "small_jobs:own_loop", 2, params={**long, "test_s": 0.05}, **values)
    with Crew(spec, 2) as crew:
        for _ in range(2):
            crew.until(lambda rank, m: m["type"] == "phase" and m["name"] == "evaluate")
        step = crew.stop_now()
        words = crew.finish()
    assert {(w["type"], w["step"], w["saved"]) for w in words.values()} == {("stopped", step, True)}, crew.logs()
    end = run(
        make_spec(tmp_path / "run", "small_jobs:own_loop", 2, **values),
        2,
        resume=crew.paths.checkpoint(step),
        attempt=1,
    )

    assert digest_checkpoint(end.committed[-1]) == digest_checkpoint(full.committed[-1])


def test_a_stop_before_the_first_step_saves_nothing(tmp_path: Path) -> None:
    """Stopped at the step it started from: ``stopped`` at once, without a checkpoint."""
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 2, checkpoint=SELDOM)
    with Crew(spec, 2, first=[{"type": "stop", "step": 0, "save": True}]) as crew:
        words = crew.finish()

        assert {(w["type"], w["step"], w["saved"]) for w in words.values()} == {("stopped", 0, False)}
        assert set(crew.exit_codes().values()) == {0}
        assert crew.committed == []


def test_saves_asked_for_by_the_leader_happen_at_their_step(tmp_path: Path) -> None:
    """``save_at`` a step ahead is acknowledged by all and committed; a step that has passed is refused by all."""
    params = {"samples": 100_000, "step_s": 0.01, "dropout": 0.0, "test": False}
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 2, checkpoint=SELDOM, params=params)
    with Crew(spec, 2, first=[{"type": "save_at", "id": 1, "step": 20}]) as crew:
        assert crew.agree_save(20)
        crew.until(lambda rank, m: m["type"] == "progress" and m["step"] > 20)
        assert not crew.ask_save(3, 2)
        step = crew.stop_now()
        crew.finish()

    assert [path.name for path in crew.committed] == ["step-00000020", f"step-{step:08d}"]


def test_a_worker_whose_agent_is_gone_ends(tmp_path: Path) -> None:
    """The socket's end of file ends the process within moments, in the middle of training."""
    params = {"samples": 100_000, "step_s": 0.01, "dropout": 0.0}
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 2, checkpoint=SELDOM, params=params)
    with Crew(spec, 2) as crew:
        crew.until(lambda rank, m: m["type"] == "progress")
        crew.hang_up()

        assert set(crew.exit_codes().values()) == {1}
