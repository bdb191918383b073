"""Every message between worker, agent and leader: what is written can be read, and what cannot be read harms nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_values import JSON, records, relaxed

import launcher.node.wire.hold_messages  # noqa: F401  (they are of the same families)
from launcher.node.wire.handshake import Handshake
from launcher.node.wire.messages import FromAgent, ToAgent
from launcher.run.message_lines import MessageReader, decode_lines, encode
from launcher.run.messages import FromWorker, ToWorker

FAMILIES = (FromWorker, ToWorker, Handshake, FromAgent, ToAgent)
KINDS = [kind for family in FAMILIES for kind in family.kinds.values()]


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_comes_back_as_it_was_sent(kind: Any) -> None:
    """Encoded as a line, decoded and read, each message is equal to the one that was written, and nothing is told."""

    @relaxed
    @given(records(kind))
    def check(message: Any) -> None:
        """One message."""
        family = next(family for family in FAMILIES if issubclass(kind, family))
        told: list[str] = []
        lines = list(decode_lines(bytearray(encode(message.to_wire()))))
        assert [MessageReader(family, told.append).read(values) for values in lines] == [message]
        assert told == []

    check()


@pytest.mark.hypothesis
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_garbage_is_read_as_nothing_or_as_a_complete_message(family: Any) -> None:
    """Whatever JSON object comes, reading raises nothing; a message that comes out has every field that it needs."""
    keys = {name for kind in family.kinds.values() for name in kind._frozen_fields}
    names = st.sampled_from(sorted(keys)) | st.text(max_size=3)
    reader = MessageReader(family, lambda text: None)

    @relaxed
    @given(st.dictionaries(names, JSON, max_size=8), st.sampled_from([*family.kinds, "unheard", 7, None, ["a"]]))
    def check(values: dict[str, Any], kind: Any) -> None:
        """One object."""
        message = reader.read({**values, "type": kind})
        if message is not None:
            assert message.lacking() == []
            json.dumps(message.to_wire())

    check()


@relaxed
@given(st.binary(max_size=200))
def test_garbage_on_the_line_is_dropped(data: bytes) -> None:
    """Bytes that are no line of JSON give no message and raise nothing."""
    for values in decode_lines(bytearray(data + b"\n")):
        assert isinstance(values["type"], str)


def test_what_cannot_be_read_is_told_once_for_each_kind() -> None:
    """A field of a wrong type is None and counted; without a field that it needs, the message is dropped."""
    told: list[str] = []
    reader = MessageReader(FromWorker, told.append)
    assert reader.read({"type": "progress", "step": 3, "epoch": "one"}).step == 3  # type: ignore[union-attr]
    assert reader.read({"type": "progress", "step": "3"}) is None
    assert reader.read({"type": "progress"}) is None
    assert told == ["1 field(s) of a message cannot be read (progress.epoch): the rest of it is used"]
    assert reader.unreadable == {"progress": 3}
    assert reader.read({"type": "unheard"}) is None
    assert len(told) == 1
