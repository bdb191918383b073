"""Host lists are expanded as SLURM does it."""

from __future__ import annotations

import pytest
from cluster import Cluster

from launcher.hosts import expand_hosts

CASES = [
    ("", []),
    ("(null)", []),
    ("None assigned", []),
    ("a", ["a"]),
    ("a,b", ["a", "b"]),
    ("node[1-3,5]", ["node1", "node2", "node3", "node5"]),
    ("node[08-11]", ["node08", "node09", "node10", "node11"]),
    ("node[8-11]", ["node8", "node9", "node10", "node11"]),
    ("node[1,3-4],login", ["node1", "node3", "node4", "login"]),
    ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
    ("gpu[1-2]-ib", ["gpu1-ib", "gpu2-ib"]),
    ("gpu[1-2]-ib,gpu[7]-ib", ["gpu1-ib", "gpu2-ib", "gpu7-ib"]),
    ("c[001-002]b[1,3]x", ["c001b1x", "c001b3x", "c002b1x", "c002b3x"]),
    ("tux[7]", ["tux7"]),
    ("a-b.c[1-2].example.org", ["a-b.c1.example.org", "a-b.c2.example.org"]),
    ("n[099-101]", ["n099", "n100", "n101"]),
]


@pytest.mark.parametrize(("text", "names"), CASES)
def test_lists_are_expanded(text: str, names: list[str]) -> None:
    """Brackets, padding, suffixes and several brackets give SLURM's names in SLURM's order."""
    assert expand_hosts(text) == names


def test_slurm_agrees(cluster: Cluster) -> None:
    """`scontrol show hostnames` gives the same names, for every case that it knows (22.05 knows no suffixes)."""
    known = 0
    for text, names in CASES:
        done = cluster.run(["scontrol", "show", "hostnames", text], check=False)
        if names and "Invalid hostlist" not in done.stderr + done.stdout:
            assert done.stdout.split() == names
            known += 1

    assert known >= 9


@pytest.mark.parametrize(
    "text", ["a[", "a]", "a[1-", "a[x]", "a[3-1]", "a[[1]]", "a b", "a,,b", "a[]", "a[1-99999999]", ",a"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    """Broken brackets, letters in ranges, blanks and absurd sizes raise ValueError."""
    with pytest.raises(ValueError, match=r"."):
        expand_hosts(text)
