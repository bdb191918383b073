"""What differs between versions of SLURM."""

from __future__ import annotations

import pytest

from launcher.slurm.versions import TESTED, differences


@pytest.mark.parametrize(
    ("version", "topics", "warned"),
    [
        ((22, 5, 8), ["srun", "run folder", "grace", "drains", "requeue"], []),
        ((23, 2, 7), ["srun", "run folder", "grace", "drains", "requeue"], []),
        ((23, 11, 0), ["srun", "run folder", "grace", "dead nodes", "drains", "requeue"], ["dead nodes"]),
        (
            (24, 11, 5),
            ["srun", "run folder", "grace", "dead nodes", "drains", "requeue", "accounting"],
            ["dead nodes", "accounting"],
        ),
        ((24, 11, 6), ["srun", "run folder", "grace", "drains", "requeue", "accounting"], ["accounting"]),
        ((25, 5, 0), ["srun", "run folder", "grace", "drains", "requeue", "accounting"], ["accounting"]),
        ((25, 5, 1), ["srun", "run folder", "grace", "requeue", "accounting"], ["accounting"]),
        ((25, 11, 0), ["srun", "run folder", "grace", "requeue", "accounting", "expedite"], ["accounting"]),
        ((26, 5, 5), ["srun", "run folder", "grace", "requeue", "expedite", "task order"], []),
        ((31, 2, 0), ["srun", "run folder", "grace", "requeue", "expedite", "task order"], []),
    ],
)
def test_each_version_is_told_what_is_true_of_it(
    version: tuple[int, ...], topics: list[str], warned: list[str]
) -> None:
    """One row a topic, a fault only for the versions that have it; an unknown future version is taken for the newest known."""
    found = differences(version)

    assert [d.topic for d in found] == topics
    assert [d.topic for d in found if d.warns] == warned


def test_no_two_rows_of_a_topic_contradict_each_other() -> None:
    """Of each topic at most one row holds for any version between the oldest and the newest."""
    versions = [
        (year, month, patch)
        for year in range(TESTED[0][0], TESTED[-1][0] + 2)
        for month in (2, 5, 8, 11)
        for patch in (0, 5, 9)
    ]
    for version in versions:
        topics = [d.topic for d in differences(version)]

        assert len(topics) == len(set(topics)), version
