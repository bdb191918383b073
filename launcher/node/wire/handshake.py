"""The challenge that opens a connection, one message after the other (`launcher.node.wire.connection`)."""

from __future__ import annotations

from launcher.run.records import Record


class Handshake(Record, family=True):
    """A message of the challenge that opens a connection."""


class Greeting(Handshake, type="knock"):
    """The agent that connects speaks first."""

    nonce: str


class Challenge(Handshake, type="challenge"):
    """The leader proves that it knows the run's secret and asks for the agent's proof."""

    nonce: str
    proof: str


class SecretProof(Handshake, type="proof"):
    """The agent proves that it knows the run's secret."""

    proof: str
