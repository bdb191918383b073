"""Codes of blocks, proofs and ports: pure."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import ProtocolError
from launcher.node.wire.proofs import BlockCodes, LifeKey

SECRET = "ab" * 32
LINES = [b'{"type":"a"}\n', b'{"type":"b"}\n', b'{"type":"c"}\n']


def ends(key: bytes = b"k" * 32) -> tuple[BlockCodes, BlockCodes]:
    """The sending and the receiving end of one direction."""
    return BlockCodes(key), BlockCodes(key)


def taken(codes: BlockCodes, *blocks: bytes) -> list[bytes]:
    """What comes of these blocks, in one buffer."""
    return list(codes.take(bytearray(b"".join(blocks))))


def test_blocks_in_order_are_accepted() -> None:
    """What one end signs the other takes, block after block, also where a block arrives in pieces."""
    mine, theirs = ends()
    sent = b"".join(mine.sign(line) for line in LINES)
    buffer, found = bytearray(), list[bytes]()
    for at in range(0, len(sent), 7):
        buffer += sent[at : at + 7]
        found += theirs.take(buffer)

    assert found == LINES
    assert buffer == b""


@pytest.mark.parametrize("seen", [[0, 0], [1], [0, 2]], ids=["repeated", "first left out", "one left out"])
def test_a_block_out_of_its_place_is_refused(seen: list[int]) -> None:
    """A block that whoever relays the connection repeats, or that follows one left out, has the code of another number."""
    mine, theirs = ends()
    signed = [mine.sign(line) for line in LINES]
    *good, bad = seen
    assert taken(theirs, *(signed[at] for at in good)) == [LINES[at] for at in good]

    with pytest.raises(ProtocolError, match="not from the peer"):
        taken(theirs, signed[bad])


@examples(200)
@given(st.binary(max_size=80), st.integers(min_value=0, max_value=10_000))
def test_a_changed_block_is_refused_or_waited_for(noise: bytes, at: int) -> None:
    """Whatever is changed in a block or its header, and whatever is sent instead, gives no line."""
    mine, theirs = ends()
    signed = mine.sign(LINES[0])
    at %= len(signed)
    changed = signed[:at] + noise + signed[at + 1 :]
    if changed.startswith(signed):
        return
    try:
        assert taken(theirs, changed) == []  # a larger size: the rest is waited for
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "header", [b"x" * 48, b"0" * 32 + b" " + b"9" * 12 + b"\n", b"0" * 32 + b" -1\n", b"\n", b"0 \xb2\n"]
)
def test_no_header_has_memory_taken(header: bytes) -> None:
    """A header without an end, of a size that nobody sends, or without any: refused, and nothing is waited for."""
    with pytest.raises(ProtocolError):
        taken(ends()[1], header)


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


def test_a_key_does_not_show_its_secret() -> None:
    """In a traceback or a log, say."""
    assert SECRET not in repr(LifeKey(SECRET, "7.0", "n0"))
