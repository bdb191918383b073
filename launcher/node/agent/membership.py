"""Finds out which node of the allocation this is, and the names of all."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from launcher.errors import ProtocolError
from launcher.run.spec import RunSpec
from launcher.run.units import whole_number
from launcher.slurm.environ import job_environ
from launcher.slurm.hosts import expand_hosts


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


def leader_address(spec: RunSpec, names: list[str], node: int) -> str:
    """Return where ``node`` reaches the leader: the first node's name, or this machine."""
    return "127.0.0.1" if spec.batch == "local" or node == 0 else names[0]
