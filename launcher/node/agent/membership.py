"""Finds out which node of the allocation this is, the names of all, and where their leader is reached."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from launcher.errors import ProtocolError
from launcher.frozen import frozen
from launcher.hosts import expand_hosts
from launcher.node.wire.proofs import LifeKey
from launcher.run.spec import RunSpec
from launcher.run.units import whole_number
from launcher.slurm.environ import job_environ


def node_index(spec: RunSpec, environ: Mapping[str, str] = os.environ) -> int:
    """Return this node's index in the allocation, as SLURM or submitit's local executor numbers it.

    Raises ProtocolError when neither says.
    """
    names = ("SLURM_NODEID",) if spec.batch == "slurm" else ("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_LOCALID")
    for name in names:
        if (index := whole_number(environ.get(name, ""))) is not None:
            return index
    raise ProtocolError(f"This process is not a task of a {spec.batch} job: {' or '.join(names)} must hold a number.")


def node_names(spec: RunSpec, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the allocation's nodes by index.

    On one machine every simulated node has a name of its own, ``HOST/0``, ``HOST/1``, ..., so that they stay distinct.
    Raises ProtocolError when SLURM's list cannot be read.
    """
    count = spec.nodes + spec.spare_nodes
    if spec.batch == "local":
        host = socket.gethostname()
        return [f"{host}/{index}" for index in range(count)]
    try:
        names = expand_hosts(job_environ(environ).node_list)
    except ValueError as error:
        raise ProtocolError(f"SLURM's node list cannot be read: {error}.") from None
    if not names:
        raise ProtocolError("SLURM_JOB_NODELIST is not set: this process is not a task of a SLURM job.")
    return names


def names_with(names: Sequence[str], index: int, host: str) -> list[str]:
    """Return the ``names`` of the nodes of the run's job, then ``host`` at ``index``. Nodes in between are "": their names are not known."""
    return [*names, *[""] * (index - len(names)), host]


@frozen
class Doors:
    """Where agents look for the leader of one life of the allocation."""

    spec: RunSpec
    secret: str
    life: str
    names: list[str]
    """Of all nodes, by index."""
    node: int
    """This one."""

    @property
    def others(self) -> list[str]:
        """The names of the other nodes."""
        return [name for index, name in enumerate(self.names) if name and index != self.node]

    def of(self, leader: int) -> Door:
        """Return where this node reaches the leader, if it is on the node of that index: by its name, or on this machine."""
        host = self.names[leader]
        key = LifeKey(self.secret, self.life, host)
        here = self.spec.batch == "local" or leader == self.node
        return Door(host, "127.0.0.1" if here else host, key, key.candidate_ports(self.spec.port_range))


@frozen
class Door:
    """Where the leader listens, if it is on that node."""

    host: str
    """The node's name in the allocation."""
    address: str
    key: LifeKey
    ports: list[int]
    """Those that a leader tries in turn."""
