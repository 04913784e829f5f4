"""What a node runs: the trainer's command, its environment, what must be there first, and what it needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from hysweep.schema.groups import Cluster
from hysweep.schema.sound import sound


@dataclass(frozen=True, slots=True)
class Job:
    """A trial compiled for one directory. Pure data; `as_dict` is job.json.

    module     run as ``python -m module overrides...``
    overrides  in Hydra's grammar, each ready to be one argv entry (no shell quoting)
    env        for `ray start` and the driver alike (workers inherit the environment of `ray start`)
    prepare    commands (argv without the Python) to run first on the head, each idempotent
    requires   versions that packages of the node must have where they are installed: {name: specifier}
    ray_cpus, ray_gpus      what each node offers to Ray; None: Ray's own count
    least_cpus              of a node that the trainer's actors take; with fewer it would wait for ever
    object_store_gib        Ray's shared memory a node; None: Ray's own choice
    total_steps             of the whole training, where known: for progress
    hung_after_min          without a sign of life for so long, it is ended
    checkpoints_kept        complete checkpoints that stay; None: all
    stop_step               once a checkpoint of so many steps is whole, the attempt ends; None: with the training
    saves_before_end        the trainer saves by itself when it knows when the allocation ends
    services                servers that its reward asks, started before it on the head: {name: how}
    site                    the cluster group as it was given: what the scheduler is asked for, how nodes meet
    """

    module: str
    overrides: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    prepare: tuple[tuple[str, ...], ...] = ()
    requires: dict[str, str] = field(default_factory=dict)
    launcher: str = "local"
    nodes: int = 1
    gpus_per_node: int = 1
    ray_cpus: int | None = None
    ray_gpus: int | None = None
    least_cpus: int = 0
    object_store_gib: float | None = None
    timeout_min: float = 240
    ray_boot_timeout_s: int = 300
    total_steps: int | None = None
    hung_after_min: float = 60
    checkpoints_kept: int | None = None
    stop_step: int | None = None
    saves_before_end: bool = False
    services: dict[str, Any] = field(default_factory=dict)
    site: Cluster = field(default_factory=lambda: Cluster(name="local"))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Job:
        """Raises KeyError, TypeError for what is no job."""
        site = {"site": Cluster(**d["site"])} if "site" in d else {}
        told = d | {"overrides": tuple(d["overrides"]), "prepare": tuple(map(tuple, d["prepare"]))} | site
        return sound(cls(**told))
