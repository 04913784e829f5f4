"""The nodes that a job was given, and which of them this process is on: from SLURM's environment, or this machine."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil

from hysweep.schema import BadInput, Problem


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
        return cls(
            rank=_int(environment.get("SLURM_PROCID")) or 0,
            nodes=tuple(nodes),
            job=environment.get("SLURM_JOB_ID", ""),
            restarts=_int(environment.get("SLURM_RESTART_COUNT")) or 0,
            cpus=_int(environment.get("SLURM_CPUS_ON_NODE")),
            gpus=_int(environment.get("SLURM_GPUS_ON_NODE")),
        )


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


# --- SLURM's lists of nodes


def hosts(text: str) -> list[str]:
    """The names in SLURM's list, as ``scontrol show hostnames`` gives them.

    Names are separated by commas; ``[1-3,07]`` stands for each of these, zeros in front kept; several in one name
    give all combinations. Raises BadInput for a list that is empty or cannot be read.
    """
    if not text.strip():
        raise BadInput(_unreadable(text, "empty"))
    found: list[str] = []
    for word in _words(text.strip()):
        parts = re.split(r"\[([^\[\]]*)\]", word)  # text, range, text, range, …
        if any(c in part for part in parts[::2] for c in "[]") or not word:
            raise BadInput(_unreadable(text, f"{word!r} is no name"))
        choices = [[p] if i % 2 == 0 else list(_numbers(p, text)) for i, p in enumerate(parts)]
        found += ["".join(combination) for combination in itertools.product(*choices)]
    return found


def _words(text: str) -> Iterator[str]:
    """The parts between commas that are not in brackets."""
    depth, start = 0, 0
    for at, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def _numbers(text: str, whole: str) -> Iterator[str]:
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not (low.isascii() and low.isdigit()) or (dash and not (high.isascii() and high.isdigit())):
            raise BadInput(_unreadable(whole, f"[{text}] is no range"))
        if not dash:
            yield low
            continue
        if int(high) < int(low) or int(high) - int(low) > 100_000:
            raise BadInput(_unreadable(whole, f"[{text}] is no range"))
        for n in range(int(low), int(high) + 1):
            yield f"{n:0{len(low)}}"


def _unreadable(text: str, why: str) -> Problem:
    return Problem("nodelist", text, f"no list of nodes: {why}", "as in node[001-003],gpu7")


# --- addresses


def address_towards(peer: str, interface: str | None = None) -> str:
    """The address of this machine that `peer` (a name or address) is reached from, or that of `interface`.

    Raises OSError where there is none.
    """
    if interface is not None:
        found = [a.address for a in psutil.net_if_addrs().get(interface, []) if a.family == socket.AF_INET]
        if not found:
            raise OSError(
                f"cluster.network_interface = {interface}: {socket.gethostname()} has no such with an address"
            )
        return found[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((peer, 9))  # sends nothing: the kernel looks up the way
        chosen: str = s.getsockname()[0]
        return chosen
