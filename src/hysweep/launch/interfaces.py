"""The network interfaces that a trial names, against those that its node has."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

import psutil

from hysweep.schema import Problem
from hysweep.schema.job import Job

KEY = "cluster.network_interface"
NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"


def interfaces() -> list[str]:
    """Of this machine, also by the labels of their addresses, as eth0:1."""
    return sorted({name for _, name in socket.if_nameindex()} | set(psutil.net_if_addrs()))


def address_of(interface: str) -> str | None:
    """The first IPv4 address of an interface of this machine."""
    there = psutil.net_if_addrs().get(interface, [])
    return next((a.address for a in there if a.family == socket.AF_INET), None)


def unfit_interface(job: Job, environment: Mapping[str, str], is_alone: bool) -> Problem | None:
    """What the job names, itself or in the environment of its trainer, and this machine does not have: its trainer
    would fail for it once it has loaded a model."""
    named = job.site.network_interface
    if named is not None and (fault := fault_of(named, needs_address=not is_alone)):
        return fault
    for name in (NCCL, GLOO) if job.site.gpu is not None else (GLOO,):
        text = environment.get(name, "")
        if text and text != named and (why := _unmet(name, text, interfaces())):
            return _fault(f"cluster.env.{name}" if name in job.env else name, text, why)
    return None


def fault_of(interface: str, needs_address: bool) -> Problem | None:
    """Of the interface that nodes are to reach each other by."""
    if interface not in interfaces():
        return _fault(KEY, interface, "has no such interface")
    if needs_address and address_of(interface) is None:
        return _fault(KEY, interface, "has no IPv4 address at it")
    return None


def _fault(key: str, text: str, why: str) -> Problem:
    return Problem(key, text, f"{socket.gethostname()} {why}", f"it has {', '.join(interfaces())}")


def _unmet(name: str, text: str, there: list[str]) -> str:
    """What is amiss, as the library itself reads its variable: gloo wants each of a list, NCCL any; to NCCL they are
    beginnings of names, with = whole ones, with ^ those that are not to be used."""
    if name == GLOO:
        lacking = [word for word in text.split(",") if word not in there]
        return f"has no {', '.join(lacking)}" if lacking else ""
    found = re.fullmatch(r"(\^?)(=?)(.*)", text, re.DOTALL)
    assert found is not None
    words = [re.sub(r":\d+$", "", word) for word in found[3].split(",") if word]
    fits = [any(one == word if found[2] else one.startswith(word) for word in words) for one in there]
    if found[1]:
        return "has no other interface" if words and all(fits) else ""
    return "has no such interface" if words and not any(fits) else ""
