"""The nodes that a job was given, and which of them this process is on: from SLURM's environment, or this machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from hysweep.launch.interfaces import address_of, fault_of
from hysweep.schema import BadInput, Problem
from hysweep.schema.hostlist import hosts


@dataclass(frozen=True, slots=True)
class Allocation:
    """
    rank      of this node; the driver runs on rank 0
    nodes     their names, by rank
    job       the scheduler's id of the job; empty: no scheduler gave it
    restarts  how often the scheduler has run the job before
    cpus      of this node that are ours; None: not said
    gpus      of this node that are ours; None: not said
    """

    rank: int
    nodes: tuple[str, ...]
    job: str = ""
    restarts: int = 0
    cpus: int | None = None
    gpus: int | None = None

    @property
    def name(self) -> str:
        return self.nodes[self.rank]

    @property
    def is_alone(self) -> bool:
        return len(self.nodes) == 1

    @classmethod
    def here(cls) -> Allocation:
        """This machine, whatever the environment says."""
        return cls(0, (socket.gethostname(),))

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Allocation:
        """What SLURM says of a task, one of which runs on each node.

        Raises BadInput where the list of nodes cannot be read or does not have as many as SLURM counts.
        """
        nodes = hosts(environment.get("SLURM_JOB_NODELIST", environment.get("SLURM_NODELIST", "")))
        counted = _int(environment.get("SLURM_JOB_NUM_NODES"))
        tasks = _int(environment.get("SLURM_NTASKS"))
        if counted not in (None, len(nodes)):
            raise BadInput(Problem("SLURM_JOB_NODELIST", ",".join(nodes), f"names {len(nodes)} of {counted} nodes", ""))
        if tasks not in (None, len(nodes)):
            raise BadInput(Problem("SLURM_NTASKS", tasks, "one task runs on each node", f"ask for {len(nodes)}"))
        rank = _int(environment.get("SLURM_PROCID")) or 0
        if rank >= len(nodes):
            raise BadInput(Problem("SLURM_PROCID", rank, f"there are {len(nodes)} nodes", "run one task on each"))
        return cls(
            rank=rank,
            nodes=tuple(nodes),
            job=environment.get("SLURM_JOB_ID", ""),
            restarts=_int(environment.get("SLURM_RESTART_COUNT")) or 0,
            cpus=_int(environment.get("SLURM_CPUS_ON_NODE")),
            gpus=_int(environment.get("SLURM_GPUS_ON_NODE")),
        )


def _int(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) < 18
    return int(text) if is_number and text is not None else None


# --- addresses


def address_towards(peer: str, interface: str | None = None) -> str:
    """The address of this machine that `peer` (a name or address) is reached from, or that of `interface`.

    Raises OSError where there is none.
    """
    if interface is not None:
        if fault := fault_of(interface, needs_address=True):
            raise OSError(str(fault))
        return address_of(interface) or ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((peer, 9))  # sends nothing: the kernel looks up the way
        chosen: str = s.getsockname()[0]
        return chosen
