"""Hosts that a run keeps its next attempt off: bounded in time, in number, and to one submission."""

from __future__ import annotations

import time

import pytest
from an_event import an_event

from launcher.errors import SiteError
from launcher.node.allocation import exclusions, slurm_allocation
from launcher.node.allocation.exclusions import affordable, excluded_before
from launcher.node.allocation.slurm_allocation import SlurmAllocation
from launcher.run import event_lines
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work
from launcher.slurm import handback
from launcher.slurm.commands import Answer
from launcher.slurm.jobs import JobFacts

DAY = 86400.0
REFUSED = "allocation failure: Requested node configuration is not available"
LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nallocation failure: Job violates accounting/QOS policy"


def excluded(t, *hosts, type_="excluded"):
    return an_event(type_, t=t, hosts=list(hosts), why="x")


def test_exclusions_age_and_end_with_the_submission():
    """Those of the last day count, older ones are known so that they are taken back, and a resubmission forgets all."""
    history = [excluded(0, "n1"), an_event("submitted", t=1), excluded(2, "n2"), excluded(DAY, "n3")]

    assert excluded_before(history, DAY + 10) == {"n2": False, "n3": True}
    assert excluded_before([*history, an_event("submitted", t=DAY + 1)], DAY + 10) == {}


def test_the_newest_word_on_a_host_counts():
    """A host that fails again is the newest; one that was given up counts no more, until it fails again."""
    history = [excluded(0, "n1"), excluded(1, "n2"), excluded(2, "n1"), excluded(3, "n2", type_="readmitted")]

    assert list(excluded_before(history, 10).items()) == [("n1", True), ("n2", False)]
    assert list(excluded_before([*history, excluded(4, "n2")], 10).items()) == [("n1", True), ("n2", True)]


def test_as_few_as_possible_are_given_up_and_the_oldest_first():
    """Of four hosts the newest two can be done without; where even one is too many, none is excluded."""
    assert affordable(("a", "b", "c", "d"), lambda these: len(these) <= 2) == ("c", "d")
    assert affordable(("a", "b"), lambda these: False) == ()
    assert affordable(("a", "b"), lambda these: True) == ("a", "b")


class Site:
    """Five hosts, one of them down; a job of two nodes that the user keeps off ``users`` and that wants the constraint."""

    def __init__(self, tmp_path, users=(), constraint=(), test_only=True, silent=0):
        self.silent = silent
        self.up, self.users, self.constraint, self.test_only = {"n0", "n1", "n2", "n3"}, users, constraint, test_only
        self.kept_off = None
        spec = RunSpec(
            id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=2,
            tasks_per_node=1, timeout_min=5, backend="gloo", port_range=[20000, 20031],
        )  # fmt: skip
        self.paths = RunPaths(tmp_path)
        self.allocation = SlurmAllocation(spec, self.paths, {"SLURM_JOB_ID": "5", "SLURM_JOB_PARTITION": "p"})

    def ask(self, *words, **_):
        if words[0] == "sinfo":
            return Answer(words, 0, "\n".join(f"n{i} {'idle' if f'n{i}' in self.up else 'down*'}" for i in range(5)))
        if words[:3] == ("scontrol", "show", "job"):
            self.silent -= 1
            if self.silent >= 0:
                return Answer(words, None, err="scontrol did not answer within 10 s")
            lines = f"   Partition=p AllocNode:Sid=x:1\n   ReqNodeList=(null) ExcNodeList={','.join(self.users) or '(null)'}\n"
            return Answer(words, 0, lines + f"   Features={'a' if self.constraint else '(null)'} DelayBoot=00:00:00\n")
        if words[0] == "sbatch":
            return self._test_only(words)
        if words[1] == "show":
            return Answer(words, 0, "SLURM_VERSION = 22.05.8\n")
        assert words[:3] == ("scontrol", "update", "JobId=5")
        if words[3].startswith("NumNodes="):
            return Answer(words, 0)
        self.kept_off = words[3].removeprefix("ExcNodeList=").split(",")
        return Answer(words, 0)

    def _test_only(self, words):
        assert words[1] == "--test-only"
        assert words[-1] == str(self.paths.sbatch)
        if not self.test_only:
            return Answer(words, 1, err=LIMIT)
        given = dict(w[2:].split("=", 1) for w in words[2:-1])
        can = self.up & set(self.constraint) if given.get("constraint") == "a" else self.up
        left = can - set(given["exclude"].split(","))
        least = int(given.get("nodes", "2").split("-")[0])
        return Answer(words, 0) if len(left) >= least else Answer(words, 1, err=REFUSED)

    def excludes(self, *hosts, before=(), nodes=None):
        """What is excluded in the end, and given up, when ``hosts`` failed now and ``before`` earlier."""
        for host in before:
            event_lines.append(self.paths.events, an_event("excluded", attempt=0, hosts=[host], why="x"))
        given_up = self.allocation.hand_back(exclude=hosts, delay_s=0, nodes=nodes).given_up
        return self.kept_off, list(given_up)


@pytest.fixture
def site(tmp_path, monkeypatch):
    def make(**how):
        made = Site(tmp_path, **how)
        for module in (handback, exclusions):
            monkeypatch.setattr(module, "ask", made.ask)
        monkeypatch.setattr(handback, "requeue", lambda job_id, restart_count: handback.Done(True))
        monkeypatch.setattr(handback.time, "sleep", lambda _: None)
        return made

    return make


@pytest.mark.parametrize(
    ("how", "hosts", "before", "kept_off", "given_up"),
    [
        ({}, (), (), None, []),
        ({}, ("n2",), ("n1",), ["n1", "n2"], []),
        ({}, ("n2", "n3"), ("n1",), ["n2", "n3"], ["n1"]),
        ({}, ("n0", "n2", "n3"), (), ["n2", "n3"], ["n0"]),
        ({}, ("n1",), ("n1",), ["n1"], []),
        ({"users": ("n0", "n1")}, ("n2",), (), ["n0", "n1"], ["n2"]),
        ({"users": ("n0",)}, ("n2",), ("n1",), ["n0", "n2"], ["n1"]),
        ({"constraint": ("n0", "n1")}, ("n0",), (), [""], ["n0"]),
        ({"constraint": ("n0", "n1", "n2")}, ("n0",), ("n3", "n1"), ["n0"], ["n3", "n1"]),
        ({"test_only": False}, ("n2", "n3"), ("n1",), ["n2", "n3"], ["n1"]),
        ({"test_only": False, "users": ("n0", "n1")}, ("n2",), (), ["n0", "n1"], ["n2"]),
        ({"test_only": False, "constraint": ("n0", "n1")}, ("n3",), (), [""], ["n3"]),
    ],
    ids=["nothing", "both", "the oldest given up", "three new ones", "again", "the user's exclude", "the user's stays",
         "constraint", "constraint and the oldest", "a limit on jobs", "a limit, the user's exclude", "a limit, constraint"],
)  # fmt: skip
def test_enough_hosts_are_left_for_what_the_user_asked(site, how, hosts, before, kept_off, given_up):
    """Four of five hosts are up and two are needed, of those that the user's own options leave.

    Where the site's limits forbid even to ask, hosts are counted, and with a constraint nothing is excluded.
    """
    assert site(**how).excludes(*hosts, before=before) == (kept_off, given_up)


def test_a_job_that_is_on_no_host_list_is_not_asked_for_by_its_comment(monkeypatch):
    """Names and comments that look like options are no options; what SLURM does not know is left to the script."""
    shown = (
        "JobId=5 JobName=x Partition=evil\n   Priority=1 Nice=0 Account=a QOS=N/A\n   Comment=Features=b Partition=c\n"
    )
    monkeypatch.setattr(
        handback, "ask", lambda *words, **_: Answer(words, 0, shown + "   Partition=p AllocNode:Sid=x:1\n")
    )

    assert handback.wishes("5") == {"account": "a", "partition": "p"}


def test_a_host_is_excluded_only_where_all_nodes_can_still_be_had(site):
    """Memory ran out on fewer nodes: the job asks for four of four now, and its script for two. Later attempts know it."""
    one = site()
    assert one.excludes("n2", nodes=(4, 4)) == ([""], ["n2"])

    event_lines.append(one.paths.events, an_event("requeued", attempt=0, how="requeue", nodes=[4, 4]))
    assert one.excludes("n2") == ([""], ["n2"])


@pytest.mark.parametrize(("silent", "kept_off"), [(1, ["n0", "n2"]), (99, None)], ids=["once", "for long"])
def test_what_the_user_excludes_outlives_a_question_without_an_answer(site, silent, kept_off):
    """The list would be replaced by the launcher's hosts alone, and later lives would take that for the user's: it is left as it is."""
    assert site(users=("n0",), silent=silent).excludes("n2") == (kept_off, [])


def test_no_node_is_asked_for_while_it_is_not_known_where_the_job_may_run(site, monkeypatch):
    """Without partition and constraint it could be one on which the run cannot train, or that the user excludes."""
    one = site(silent=99)
    monkeypatch.setattr(
        SlurmAllocation, "facts", lambda self: JobFacts(job_id="5", state="RUNNING", end_t=time.time() + 9000)
    )
    monkeypatch.setattr(slurm_allocation, "controller_time", lambda **_: None)

    with pytest.raises(SiteError, match="where the job may run"):
        one.allocation.ask_for_node(("x",), exclude=())
