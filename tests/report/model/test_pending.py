"""SLURM's Reason of a pending job: what ends the wait, where it is not only its turn."""

from __future__ import annotations

import pytest

from launcher.report.model.pending import pending_reason


@pytest.mark.parametrize(
    "reason", ["", "None", "Priority", "Resources", "Dependency", "BeginTime", "JobArrayTaskLimit", "Cleaning"]
)
def test_a_job_that_waits_for_its_turn_is_well(reason: str) -> None:
    """Nobody is told to cancel a job that will start by itself."""
    assert pending_reason(reason, "net", "7") is None


@pytest.mark.parametrize(
    ("reason", "means"),
    [
        ("JobHeldUser", "its owner holds it"),
        ("launch failed requeued held", "SLURM could not launch it"),
        ("JobHoldMaxRequeue", "too often"),
        ("launch failure limit exceeded requeued held", "too often"),
        ("user env retrieval failed requeued held", "environment of its user"),
        ("job requeued in special exit state", "RequeueExitHold"),
        ("job_requeued_in_held_state", "requeued on hold"),
        ("DependencyNeverSatisfied", "a job that it depends on"),
        ("BadConstraints", "no node has what it asks for"),
        ("ReqNodeNotAvail, UnavailableNodes:node3", "down, drained or reserved"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "down, drained or reserved"),
        ("PartitionTimeLimit", "more time than its partition allows"),
        ("AssocMaxJobsLimit", "its account has reached a limit (AssocMaxJobsLimit)"),
        ("AssocMaxNodePerJobLimit", "it exceeds a limit of its account for each job"),
        ("QOSMaxWallDurationPerJobLimit", "it exceeds a limit of its QOS for each job"),
        ("QOSMaxJobsPerUserLimit", "its QOS has reached a limit"),
    ],
)  # fmt: skip
def test_what_never_passes_by_itself_is_said_in_words(reason: str, means: str) -> None:
    """The clause says what is wrong, and each has something that ends it."""
    said = pending_reason(reason, "net", "7")

    assert said is not None
    assert means in said.means
    assert said.ends
    assert "{" not in said.ends


def test_nodes_that_the_job_asks_for_are_named() -> None:
    """SLURM since 24.11 may name none of them: "May be reserved for other job"."""
    said = pending_reason("ReqNodeNotAvail, May be reserved for other job", "net", "7", nodes="node3,node4")

    assert said is not None
    assert said.means == "nodes that it needs (node3,node4) are down, drained or reserved"
