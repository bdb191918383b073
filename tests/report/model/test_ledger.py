"""Where a run's time went, against histories whose truth is known."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from run_story import T0, Story

from launcher.report.model.ledger import advise, goodput_in_words, interruptions, ledger, shares
from launcher.report.model.timeline import timeline
from launcher.run.intervals import young_daly_s


class Simulated:
    """A run that keeps its own books while it writes its history. Every figure is drawn from ``seed``."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.story = Story(root, nodes=2, spare_nodes=1, gpus_per_node=4)
        self.truth: Counter[str] = Counter()
        self.steps: list[tuple[int, float]] = []
        self.step = self.saved = 0
        self.allocated = 0.0
        self.total = self.random.randint(200, 2000)
        self.step_s = self.random.uniform(0.05, 5)
        self.every = self.random.randint(10, 100)

    def spend(self, kind: str, seconds: float) -> None:
        """``seconds`` pass, accounted as ``kind``."""
        self.story.wait(seconds)
        self.truth[kind] += seconds
        if kind != "queued":
            self.allocated += seconds

    def between(self, low: float, high: float) -> float:
        """A duration."""
        return self.random.uniform(low, high)

    def back(self, to: int) -> None:
        """Steps beyond ``to`` were done for nothing."""
        for step, seconds in self.steps:
            if step > to:
                self.truth["useful"] -= seconds
                self.truth["lost"] += seconds
        self.steps = [(s, t) for s, t in self.steps if s <= to]
        self.step = to

    def begin_round(self, kind: str) -> None:
        """To the first step, which belongs to starting."""
        self.story.round_starts(resume_step=self.saved or None)
        self.step += 1
        self.spend(kind, self.between(1, 30))
        self.story.event("first_step", step=self.step, seconds=1.0)

    def train(self, steps: int) -> None:
        """Some steps, with their checkpoints."""
        for _ in range(steps):
            if self.step >= self.total:
                return
            self.step += 1
            seconds = self.step_s * self.between(0.95, 1.05)
            self.steps.append((self.step, seconds))
            self.spend("useful", seconds)
            if self.step % self.every == 0:
                self.save("interval", self.between(0.01, 0.5))

    def save(self, reason: str, blocked: float) -> None:
        """A checkpoint that holds training up for ``blocked`` seconds."""
        self.story.event("save_started", step=self.step)
        self.spend("saving", blocked)
        self.story.event("saved", step=self.step, seconds=blocked, blocked_s=blocked, reason=reason, bytes=1)
        self.saved = self.step

    def crash(self) -> None:
        """A worker dies; a new round follows in place."""
        kind = self.random.choice(["worker_failed", "node_lost", "hang"])
        if kind == "hang":
            limit = self.between(5, 60)
            self.spend("recovery", limit)
            self.story.event("hang", limit_s=limit, laggards=[])
        else:
            known = {"step": self.step} if self.random.random() < 0.5 else {}
            self.story.event(kind, rank=1, host="node1", why="silent", **known)
        self.back(self.saved)
        self.spend("recovery", self.between(0.2, 10))
        self.story.event("round_ended", why="failed")
        self.begin_round("recovery")

    def preempted(self) -> None:
        """An agreed stop, a requeue, and another attempt."""
        self.story.event("stop_requested", cause="preempted", deadline_s=20, save=True)
        self.train(2)
        self.save("stop", self.between(0.5, 10))
        self.story.event("stopped", step=self.step, lost_steps=0)
        self.spend("stopped", self.between(0.1, 5))
        self.story.event("requeued", how="requeue", job_id="1", seconds=1.0)
        self.story.event("attempt_ended", why="preempted", allocation_s=self.allocated)
        self.again()

    def killed(self) -> None:
        """The leader dies and leaves no message; SLURM requeues the run."""
        self.back(self.saved)
        died = self.story.t
        self.again(submitted_t=died)

    def again(self, **values: float) -> None:
        """Wait in the queue and start another attempt."""
        self.spend("queued", self.between(1, 300))
        self.allocated = 0.0
        self.story.begins(**values)
        self.begin_round("start-up")

    def run(self) -> Simulated:
        """The whole story."""
        self.story.submitted()
        self.again()
        for _ in range(self.random.randint(0, 12)):
            self.train(self.random.randint(0, 200))
            if self.step >= self.total - 2:
                break
            self.random.choice([self.crash, self.preempted, self.killed])()
        self.train(self.total)
        self.save("end", self.between(0.1, 2))
        self.story.event("round_ended", why="done").event("attempt_ended", why="done", allocation_s=self.allocated)
        self.story.outcome("completed", step=self.step)
        return self


@examples(120)
@given(seed=st.integers(0, 2**32))
def test_every_second_is_accounted_for_to_one_per_cent(seed: int) -> None:
    """Useful, saving, start-up, recovery, lost, queued and stopped time of random histories, each to 1 % of the whole."""
    with tempfile.TemporaryDirectory() as folder:
        run = Simulated(Path(folder), seed).run()
        book = ledger(run.story.history(), run.story.t)

    whole = sum(run.truth.values())
    assert book.total_s == pytest.approx(whole, rel=1e-6)
    for kind in ("useful", "saving", "start-up", "recovery", "lost", "queued", "stopped"):
        assert book.seconds[kind] == pytest.approx(run.truth[kind], abs=0.01 * whole), kind
    assert book.gpu_hours == pytest.approx((whole - run.truth["queued"]) / 3600 * 12, rel=0.01)
    assert book.spare_gpu_hours == pytest.approx(book.gpu_hours / 3)


@examples(40)
@given(seed=st.integers(0, 2**32))
def test_the_timeline_has_neither_gaps_nor_overlaps(seed: int) -> None:
    """Each piece begins where the one before it ended, from the submission to the end."""
    with tempfile.TemporaryDirectory() as folder:
        run = Simulated(Path(folder), seed).run()
        pieces = timeline(run.story.history(), run.story.t)

    assert pieces[0].start == T0
    assert pieces[-1].end == pytest.approx(run.story.t)
    for before, after in pairwise(pieces):
        assert after.start == pytest.approx(before.end, abs=1e-3)


def test_steps_behind_a_damaged_checkpoint_are_lost(tmp_path: Path) -> None:
    """Falling back past a damaged checkpoint loses the work between, though it had been saved."""
    story = Story(tmp_path).submitted().begins().round_starts(resume_step=None)
    story.event("first_step", step=1)
    for step in (100, 200):
        story.wait(100).event("save_started", step=step).event("saved", step=step, seconds=1, blocked_s=0)
    story.wait(10).event("worker_failed", rank=0).event("checkpoint_damaged", path="step-200", why="hash")
    story.wait(5).round_starts(resume_step=100).wait(5).event("first_step", step=101).wait(50)
    book = ledger(story.history(), story.t)

    assert book.seconds["useful"] == pytest.approx(100 + 50)
    assert book.seconds["lost"] == pytest.approx(110)
    assert book.seconds["recovery"] == pytest.approx(10)


def test_time_between_an_end_and_a_resubmission_is_not_counted(tmp_path: Path) -> None:
    """A run that lay still because nobody wanted it has not lost its goodput."""
    story = Story(tmp_path).submitted().begins().round_starts(resume_step=None).event("first_step", step=1)
    story.wait(100).event("save_started", step=100).event("saved", step=100, seconds=0, blocked_s=0, reason="end")
    story.event("attempt_ended").outcome("completed", step=100).wait(86400)
    story.submitted(by="resubmit").wait(10).begins().round_starts(resume_step=100).event("first_step", step=101).wait(
        40
    )
    book = ledger(story.history(), story.t)

    assert book.seconds["away"] == pytest.approx(86400)
    assert book.seconds["useful"] == pytest.approx(140)
    assert book.total_s == pytest.approx(150)


def test_waiting_for_another_run_is_queued_time(tmp_path: Path) -> None:
    """Without SLURM a chained run's leader waits itself: nothing is allocated meanwhile."""
    story = Story(tmp_path, batch="local").submitted(backend="local").begins().wait(5).event("waiting", runs=["a"])
    story.wait(3600).round_starts(resume_step=None).wait(3).event("first_step", step=1).wait(100)
    book = ledger(story.history(), story.t)

    assert (book.seconds["queued"], book.seconds["start-up"]) == (pytest.approx(3600), pytest.approx(8))
    assert book.seconds["useful"] == pytest.approx(100)


def test_an_unmodified_script_counts_from_its_start(tmp_path: Path) -> None:
    """A script that reports no steps trains from the moment its workers start; nothing is called lost."""
    story = Story(tmp_path, work={"kind": "script", "target": "train.py"}).submitted().begins().wait(10).round_starts()
    story.wait(100).event("worker_failed", rank=0).wait(2).round_starts().wait(50)
    book = ledger(story.history(), story.t)

    assert book.seconds["start-up"] == pytest.approx(10)
    assert book.seconds["useful"] == pytest.approx(150)
    assert book.seconds["recovery"] == pytest.approx(2)


def test_shares_add_up_to_a_hundred(tmp_path: Path) -> None:
    """Rounded per cents are a whole; the words name useful first and leave out what is nothing."""
    story = Story(tmp_path).submitted().wait(40).begins().wait(30).round_starts(resume_step=None)
    story.event("first_step", step=1).wait(930)
    book = ledger(story.history(), story.t)

    assert sum(shares(book).values()) == 100
    assert goodput_in_words(book) == "93 % useful, 4 queued, 3 start-up"


def test_an_empty_history_costs_nothing(tmp_path: Path) -> None:
    """No events, no time, no advice."""
    history = Story(tmp_path).history()
    book = ledger(history, T0)

    assert (book.total_s, book.goodput, goodput_in_words(book), book.gpu_hours) == (0, None, "", 0)
    assert advise(history, book).interval_s is None


def test_interruptions_tell_cause_and_lost_steps(tmp_path: Path) -> None:
    """One line each: a crash with the steps it cost, a preemption that cost none."""
    story = Story(tmp_path).submitted().begins().round_starts(resume_step=None).event("first_step", step=1)
    story.wait(9).event("save_started", step=10).event("saved", step=10)
    story.wait(14).event("worker_failed", rank=1, step=24).round_starts(resume_step=10).event("first_step", step=11)
    story.event("stop_requested", cause="preempted").event("stopped", step=30, lost_steps=0).event("attempt_ended")
    found = interruptions(story.history())

    assert [(i.cause, i.lost_steps) for i in found] == [("crash", 14), ("preempted", 0)]


@pytest.mark.parametrize(("resumed", "lost"), [(500, 401), (None, 901)], ids=["from a checkpoint", "from scratch"])
def test_short_steps_are_lost_from_where_the_round_began(tmp_path: Path, resumed: int | None, lost: int) -> None:
    """A round counts from its checkpoint's step, or from 0; its first report comes hundreds of steps later where they take a millisecond."""
    story = Story(tmp_path).submitted().begins().round_starts(resume_step=None).wait(1).event("first_step", step=443)
    story.wait(57).event("save_started", step=500).event("saved", step=500).wait(401)
    story.event("worker_failed", rank=0, step=901).wait(1).round_starts(resume_step=resumed).wait(1)
    story.event("first_step", step=989).wait(100)
    history = story.history()

    assert [i.lost_steps for i in interruptions(history)] == [lost]
    assert ledger(history, story.t).seconds["lost"] == pytest.approx(401 if resumed else 458)


@pytest.mark.parametrize("told", [True, False], ids=["by the teardown", "by nobody"])
def test_a_leaders_death_is_an_interruption(tmp_path: Path, told: bool) -> None:
    """An attempt whose leader died counts, whether the batch script came to say so or not; what it lost nobody knows."""
    story = Story(tmp_path).submitted().begins().round_starts(resume_step=None).event("first_step", step=1)
    story.wait(9).event("saved", step=10).wait(5)
    if told:
        story.event("decision", evidence="leader_gone", action="requeue").event("attempt_ended").event("requeued")
    story.begins().round_starts(resume_step=10).event("first_step", step=11)
    history = story.history()
    found = interruptions(history)

    assert [(i.cause, i.attempt, i.lost_steps) for i in found] == [("leader", 0, None)]
    assert advise(history, ledger(history, story.t)).failures == 1


def test_each_interruption_before_a_first_step_counts(tmp_path: Path) -> None:
    """Three crashes of which two came before any step are three; only the one that had done steps lost some."""
    story = Story(tmp_path).submitted().begins().round_starts(resume_step=None).event("first_step", step=1)
    story.wait(9).event("saved", step=10).wait(14).event("worker_failed", rank=1, step=24)
    for _ in range(2):
        story.wait(5).round_starts(resume_step=10).wait(5).event("worker_failed", rank=1)
    story.wait(5).round_starts(resume_step=10).wait(5).event("first_step", step=11).wait(77)
    history = story.history()
    found = interruptions(history)
    advice = advise(history, ledger(history, story.t))

    assert [(i.t - T0, i.cause, i.lost_steps) for i in found] == [(23, "crash", 14), (33, "crash", 0), (43, "crash", 0)]
    assert (advice.failures, advice.mttf_s) == (3, pytest.approx(100 / 3))


def ranged(folder: Path, *joins: float, **spec: object) -> Story:
    """A job of nodes 2-4 that has two hours of allocation; its nodes join so many seconds after its beginning."""
    story = Story(folder, nodes=4, least_nodes=2, gpus_per_node=8, **spec).submitted(nodes=4).begins()
    for number, join in enumerate(joins):
        if join >= 30 and story.round is None:
            story.wait(T0 + 30 - story.t).round_starts().event("first_step", step=1)
        story.wait(T0 + join - story.t).event("node_joined", node=number, host=f"node{number}", facts={})
    if story.round is None:
        story.wait(T0 + 30 - story.t).round_starts().event("first_step", step=1)
    return story.wait(T0 + 7200 - story.t)


@pytest.mark.parametrize(
    ("joins", "spares", "gpu_hours", "spare_hours"),
    [((5, 20), 0, 32, 0), ((5, 20, 3600), 0, 40, 0), ((5, 20), 2, 32, 0), ((5, 20, 21, 22, 23), 2, 80, 16),
     ((), 2, 96, 32)],
    ids=["two came", "a third came after an hour", "fewer came than the rounds take", "one stood by", "nobody knows"],
)  # fmt: skip
def test_a_node_of_a_range_costs_from_when_it_came(
    tmp_path: Path, joins: tuple[float, ...], spares: int, gpu_hours: float, spare_hours: float
) -> None:
    """Those of the beginning from that of the allocation, later ones from their joining; what stands by is beyond four."""
    story = ranged(tmp_path, *joins, spare_nodes=spares)
    book = ledger(story.history(), story.t)

    assert book.gpu_hours == pytest.approx(gpu_hours)
    assert book.spare_gpu_hours == pytest.approx(spare_hours)


@pytest.mark.parametrize(
    ("event", "values"),
    [
        ("node_lost", {"host": "node2", "why": "slurm"}),
        ("leader_revived", {"host": "node2", "moved_to": "node0"}),
        ("signal", {"host": "node2", "name": "TERM", "meaning": "node_leaves"}),
    ],
    ids=["SLURM dropped it", "SLURM dropped the leader's", "its own job ended"],
)
def test_a_node_of_a_range_costs_until_it_is_no_more_the_runs(
    tmp_path: Path, event: str, values: dict[str, object]
) -> None:
    """It counts to the moment at which it left, and again from when it joined again; one that is silent is held, and counts."""
    story = ranged(tmp_path, 5, 20, 25)
    story.wait(T0 + 3600 - story.t).event("node_lost", host="node1", why="silent").event(event, **values)
    story.wait(1800).event("node_joined", node=2, host="node2", facts={}).wait(900)
    story.event("node_joined", node=2, host="node2", facts={}).wait(900)
    book = ledger(story.history(), story.t)

    assert book.node_hours == pytest.approx(2 * 2 + 1 + 0.5)


def test_each_attempt_costs_what_it_was_submitted_with(tmp_path: Path) -> None:
    """Another number of nodes, GPUs or CPUs of a resubmission changes no hour of the attempts before it."""
    now = {"nodes": 3, "gpus_per_node": 4, "cpus_per_task": 4, "tasks_per_node": 1}
    story = Story(tmp_path, **now).submitted(nodes=1, tasks_per_node=2, gpus_per_node=2, cpus_per_task=1).begins()
    story.wait(3600).event("attempt_ended").outcome("failed")
    story.submitted(by="resubmit", **now).begins().wait(1800).event("attempt_ended").outcome("completed")
    book = ledger(story.history(), story.t)

    assert book.node_hours == pytest.approx(1 + 1.5)
    assert book.gpu_hours == pytest.approx(2 + 6)
    assert book.cpu_hours == pytest.approx(2 + 6)


def test_what_an_older_submission_does_not_tell_is_as_in_the_spec(tmp_path: Path) -> None:
    """Its event has the nodes alone: GPUs, CPUs and whether it took a range are those of today's spec."""
    story = Story(tmp_path, nodes=4, gpus_per_node=8, cpus_per_task=2).submitted(nodes=1).begins().wait(3600)
    book = ledger(story.history(), story.t)

    assert (book.node_hours, book.gpu_hours, book.cpu_hours) == (1, 8, 4)


def test_advice_comes_from_what_was_measured(tmp_path: Path) -> None:
    """Interval from the median cost and the failures seen, within the job's bounds; lead from the longest stop."""
    story = Story(tmp_path, checkpoint={"min_interval_min": 0.01, "max_interval_min": 30}).submitted().begins()
    story.round_starts(resume_step=None).event("first_step", step=1)
    for k in range(1, 11):
        story.wait(100).event("save_started", step=100 * k)
        story.event("saved", step=100 * k, seconds=3.0, blocked_s=0.5, reason="interval")
    story.event("worker_failed", rank=0, step=1000).round_starts(resume_step=1000).event("first_step", step=1001)
    story.event("stop_requested", cause="time_limit").wait(12).event("stopped", step=1003, lost_steps=0)
    history = story.history()
    advice = advise(history, ledger(history, story.t))

    assert advice.save_cost_s == pytest.approx(0.5)
    assert advice.mttf_s == pytest.approx(1012, abs=2)
    assert advice.interval_s == pytest.approx(young_daly_s(0.5, 1012), rel=0.01)
    assert advice.lead_s == 24


def test_who_saves_nothing_needs_no_warning(tmp_path: Path) -> None:
    """How long a stop took is no advice where nothing was saved in it."""
    story = Story(tmp_path).submitted().begins().round_starts().event("first_step", step=0)
    story.event("stop_requested", cause="user").wait(5).event("stopped", step=0, lost_steps=None)
    history = story.history()

    assert advise(history, ledger(history, story.t)).lead_s is None
