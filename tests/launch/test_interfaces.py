"""Which interfaces of a node a trial's names stand for."""

from __future__ import annotations

import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hysweep.launch import follower
from hysweep.launch.allocation import Allocation, address_towards
from hysweep.launch.interfaces import unfit_interface
from hysweep.schema import Cluster
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause

ON_GPUS = Cluster(name="x", gpu="H100", launcher="slurm")


@pytest.fixture(autouse=True)
def _node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with lo, eth0, an InfiniBand without an address, and docker0."""
    names = ["lo", "eth0", "ib0", "docker0"]
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names, 1)))
    with_address = {n: [SimpleNamespace(family=socket.AF_INET, address="10.0.0.1")] for n in names if n != "ib0"}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: with_address)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu7")


def job(interface: str | None = None, **env: str) -> Job:
    return Job("x", (), env=env, site=replace(ON_GPUS, network_interface=interface))


@pytest.mark.parametrize("text", ["eth0", "eth", "=eth0", "^docker,lo", "^=docker0", "eth9,ib0", "eth0:1234", "", "^"])
def test_what_nccl_takes(text: str) -> None:
    assert unfit_interface(job(), {"NCCL_SOCKET_IFNAME": text}, True) is None


@pytest.mark.parametrize("text", ["eth9", "=eth", "^docker,eth,lo,ib", "0", "enp,eno"])
def test_what_nccl_does_not_find(text: str) -> None:
    fault = unfit_interface(job(), {"NCCL_SOCKET_IFNAME": text}, True)
    assert fault and (fault.key, fault.value) == ("NCCL_SOCKET_IFNAME", text)
    assert "gpu7 has no" in fault.why and fault.cure == "it has docker0, eth0, ib0, lo"
    assert unfit_interface(replace(job(), site=replace(ON_GPUS, gpu=None)), {"NCCL_SOCKET_IFNAME": text}, True) is None


def test_gloo_wants_each_of_its_list() -> None:
    env = {"GLOO_SOCKET_IFNAME": "eth0,eth9"}
    fault = unfit_interface(job(**env), env, True)
    assert fault and fault.key == "cluster.env.GLOO_SOCKET_IFNAME" and fault.why == "gpu7 has no eth9"
    assert unfit_interface(job(), {"GLOO_SOCKET_IFNAME": "eth0,ib0"}, True) is None


def test_nodes_reach_each_other_by_an_address() -> None:
    assert unfit_interface(job("eth0"), {}, False) is None and unfit_interface(job("ib0"), {}, True) is None
    fault = unfit_interface(job("ib0"), {}, False)
    assert (
        str(fault) == "cluster.network_interface = ib0: gpu7 has no IPv4 address at it; it has docker0, eth0, ib0, lo"
    )
    assert address_towards("node1", "eth0") == "10.0.0.1"
    with pytest.raises(OSError, match="has no such interface; it has docker0"):
        address_towards("node1", "eth9")


def test_a_node_that_lacks_it_tells_the_first_and_starts_no_ray(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = AttemptDirectory(tmp_path / "trials" / "0001-abc" / "attempts" / "1")
    attempt.prepare(job("eth9").as_dict())
    node = follower.Follower(attempt, Allocation(1, ("gpu6", "gpu7"), "12"), job("eth9"))
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(follower.Presence, "say", lambda _, **message: said.append(message))
    node._boot("10.0.0.9:1234")
    [message] = said
    assert message["cause"] is Cause.CONFIG_ERROR and message["failed"].startswith("cluster.network_interface = eth9: ")
    assert node.ray is None
