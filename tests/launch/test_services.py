"""Servers of a reward: up before anything trains, found by their address, and never left behind."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from hysweep.launch import processes
from hysweep.launch.allocation import Allocation
from hysweep.launch.services import ServiceFailed, Services
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory

NO_HTTP = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    server.accept()[0].sendall(b"what do you want?")
"""
JUDGE = Path(__file__).parents[2] / "docs" / "examples" / "own_algorithm" / "judge.py"


def wait(done: Callable[[], bool], within: float) -> bool:
    end = time.monotonic() + within
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def services(tmp_path: Path):
    attempt = AttemptDirectory(tmp_path / "trials" / "0000-x" / "attempts" / "1")
    attempt.path.mkdir(parents=True)
    services = Services(attempt)
    yield services
    for child in services.children:
        processes.stop(child, 0)


def start(services: Services, **said: object) -> dict[str, str]:
    job = Job("m", (), services={"my-judge": said})
    return services.start(job, Allocation.here(), {"PATH": "/usr/bin:/bin"}, wait)


def test_a_server_is_up_and_its_loss_is_noticed(services: Services) -> None:
    told = start(services, command=["python", str(JUDGE), "--port", "{port}", "--host", "{host}"], health="/health")
    with urllib.request.urlopen(told["HYSWEEP_SERVER_MY_JUDGE"] + "/any", timeout=5) as answer:
        assert answer.status == 200
    assert services.loss() == ""
    services.children[0].kill()
    services.children[0].wait()
    assert "the server my-judge ended with -9" in services.loss()


@pytest.mark.parametrize(
    ("command", "ready_s", "said"),
    [
        (["python", "-c", "import sys; sys.exit('no model here')"], 20, "my-judge ended with 1: no model here"),
        (["sleep", "60"], 0.3, "was not up after 0 s: it said nothing"),
        (["python", "-c", NO_HTTP, "{port}"], 1.0, "was not up after 1 s"),
    ],
)
def test_one_that_does_not_come_up_is_said_with_its_words(
    services: Services, command: list[str], ready_s: float, said: str
) -> None:
    with pytest.raises(ServiceFailed, match=said):
        start(services, command=command, health="/health", ready_s=ready_s)


def test_a_command_that_is_not_there(services: Services) -> None:
    with pytest.raises(ServiceFailed, match="cannot be started"):
        start(services, command="no-such-program --port {port}")
