"""Codes of lines, proofs and ports: pure."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import ProtocolError
from launcher.node.wire.proofs import LifeKey, LineCodes

SECRET = "ab" * 32
LINES = [b'{"type":"a"}\n', b'{"type":"b"}\n', b'{"type":"c"}\n']


def ends(key: bytes = b"k" * 32) -> tuple[LineCodes, LineCodes]:
    """The sending and the receiving end of one direction."""
    return LineCodes(key), LineCodes(key)


def test_lines_in_order_are_accepted() -> None:
    """What one end signs the other accepts, line after line, without the newline."""
    mine, theirs = ends()

    assert [theirs.check(mine.sign(line)[:-1]) for line in LINES] == [line[:-1] for line in LINES]


@pytest.mark.parametrize("seen", [[0, 0], [1], [0, 2]], ids=["repeated", "first left out", "one left out"])
def test_a_line_out_of_its_place_is_refused(seen: list[int]) -> None:
    """A line that whoever relays the connection repeats, or that follows one left out, has the code of another number."""
    mine, theirs = ends()
    signed = [mine.sign(line)[:-1] for line in LINES]
    *good, bad = seen
    for at in good:
        theirs.check(signed[at])

    with pytest.raises(ProtocolError, match="does not come from the peer"):
        theirs.check(signed[bad])


@examples(100)
@given(st.binary(max_size=80), st.integers(min_value=0, max_value=10_000))
def test_a_changed_line_is_refused(noise: bytes, at: int) -> None:
    """Whatever is changed in a line or its code, and whatever is sent instead, is refused."""
    mine, theirs = ends()
    signed = mine.sign(LINES[0])[:-1]
    at %= len(signed)
    changed = signed[:at] + noise + signed[at + 1 :]
    if changed == signed:
        return
    with pytest.raises(ProtocolError):
        theirs.check(changed)


def test_codes_are_of_one_connection_and_one_direction() -> None:
    """The keys of other nonces, another port, another life, another leader and the other direction all differ."""
    key = LifeKey(SECRET, "7.0", "n0")
    others = [LifeKey(SECRET, "7.1", "n0"), LifeKey(SECRET, "7.0", "n1"), LifeKey("cd" * 32, "7.0", "n0")]
    derived = [key.derived("a", 1, "x", "y"), key.derived("b", 1, "x", "y"), key.derived("a", 2, "x", "y")]
    derived += [
        key.derived("a", 1, "xx", "y"),
        key.derived("a", 1, "x", "z"),
        *(k.derived("a", 1, "x", "y") for k in others),
    ]

    assert len(set(derived)) == len(derived)
    assert key.derived("a", 1, "x|y", "") != key.derived("a", 1, "x", "y|")


def test_ports_follow_from_the_secret() -> None:
    """Candidate ports lie in the range and differ; whoever knows the run's id alone cannot tell them."""
    key = LifeKey(SECRET, "7.0", "n0")
    ports = key.candidate_ports([25000, 25999])

    assert len(set(ports)) == 64
    assert all(25000 <= port <= 25999 for port in ports)
    assert LifeKey(SECRET, "7.0", "n0").candidate_ports([25000, 25999]) == ports
    assert LifeKey("cd" * 32, "7.0", "n0").candidate_ports([25000, 25999]) != ports
    assert sorted(key.candidate_ports([25000, 25031])) == list(range(25000, 25032))
    assert key.candidate_ports([25000, 25000]) == [25000]
