"""What srun says of tasks that ended before their agents had joined."""

from __future__ import annotations

import pytest

from launcher.node.allocation.early_exits import ended_tasks

NAMES = ["node1", "node2", "node3", "node4"]
OLD = "launcher: start 7.0\nsrun: error: node4: task 3: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("", {}),
        ("srun: error: node2: task 1: Exited with exit code 7", {"node2": "Exited with exit code 7"}),
        ("srun: error: node2: task 1: Exited with exit code 72", {"node2": "it does not see the run's directory"}),
        ("srun: error: node[2-3]: tasks 1-2: Killed", {"node2": "Killed", "node3": "Killed"}),
        ("srun: error: task 1 launch failed: Slurmd could not connect IO", {"node2": "Slurmd could not connect IO"}),
        ("srun: error: tasks 0,2-3 launch failed: Error", {"node1": "Error", "node3": "Error", "node4": "Error"}),
        (
            "srun: error: Task launch for StepId=7.0 failed on node node3: Communication connection failure",
            {"node3": "Communication connection failure"},
        ),
        ("srun: error: node[2-: task 1: Killed", {}),
        ("srun: error: task 9 launch failed: x", {}),
        ("my program says: srun: error: node2: task 1: Killed", {}),
    ],
)
def test_tasks_that_ended_are_told_by_host(lines: str, found: dict[str, str]) -> None:
    """As SLURM 22.05 writes it (measured); earlier lives of the job in the same log do not count."""
    assert ended_tasks(f"{OLD}launcher: start 7.1\n{lines}\n", "7.1", NAMES) == found


def test_without_the_mark_of_this_life_nothing_is_known() -> None:
    """The batch script has not written it yet: what is there is of an earlier life."""
    assert ended_tasks(OLD, "7.1", NAMES) == {}
