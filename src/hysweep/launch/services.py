"""Servers that a trial's reward asks: started beside it on the head, known to be up before it trains, gone with it.

They bear the attempt's mark, as all that it starts, so whoever ends the attempt ends them.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from hysweep.launch import processes
from hysweep.launch.allocation import Allocation, address_towards
from hysweep.launch.boot import end_of, free_port
from hysweep.rewards.router import variable
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory

READY_S = 60.0
LOOK_S = 2.0  # a health check that takes longer is none

Wait = Callable[[Callable[[], bool], float], bool]


class ServiceFailed(Exception):
    """A server ended, or was not up in time: with its last words."""


@dataclass(slots=True)
class Service:
    name: str
    process: subprocess.Popen[bytes]
    url: str
    health: str
    log: Path


class Services:
    """The servers of one attempt."""

    def __init__(self, attempt: AttemptDirectory) -> None:
        self.attempt = attempt
        self.running: list[Service] = []

    @property
    def children(self) -> list[subprocess.Popen[bytes]]:
        return [service.process for service in self.running]

    def start(self, job: Job, allocation: Allocation, environment: Mapping[str, str], wait: Wait) -> dict[str, str]:
        """Start those that the job names; returns where each is, as the trainer's environment says it.

        Raises ServiceFailed.
        """
        host = "127.0.0.1" if allocation.is_alone else address_towards(allocation.nodes[-1], job.site.network_interface)
        for name, said in job.services.items():
            self.running.append(self._started(name, said, host, dict(environment)))
        for service in self.running:
            ready = float(job.services[service.name].get("ready_s", READY_S))
            began = time.monotonic()
            up = wait(lambda s=service: s.process.poll() is not None or _is_up(s), ready)  # type: ignore[misc]
            if service.process.poll() is not None:
                raise ServiceFailed(f"{service.name} ended with {service.process.poll()}: {_last_words(service.log)}")
            if not up:
                took = time.monotonic() - began
                raise ServiceFailed(f"{service.name} was not up after {took:.0f} s: {_last_words(service.log)}")
        return {variable(service.name): service.url for service in self.running}

    def loss(self) -> str:
        """Which of them has ended, with its last words; empty: all are up."""
        for service in self.running:
            if (code := service.process.poll()) is not None:
                return f"the server {service.name} ended with {code}: {_last_words(service.log)}"
        return ""

    def _started(self, name: str, said: Mapping[str, Any], host: str, environment: dict[str, str]) -> Service:
        port = free_port()
        command = said["command"]
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        argv = [word.replace("{port}", str(port)).replace("{host}", host) for word in words]
        if argv[0] == "python":
            argv[0] = sys.executable
        log = self.attempt.path / f"server-{name}.log"
        try:
            process = processes.spawn(argv, environment, log, self.attempt.path)
        except OSError as e:
            raise ServiceFailed(f"{name} cannot be started: {argv[0]}: {e.strerror or e}") from e
        url = f"http://{host}:{port}"
        return Service(name, process, url, url + str(said.get("health", "")), log)


def _is_up(service: Service) -> bool:
    """Any answer but an error of the server's own."""
    with suppress(OSError, ValueError, HTTPException):
        try:
            with urllib.request.urlopen(service.health, timeout=LOOK_S):
                return True
        except urllib.error.HTTPError as e:
            return service.health == service.url and e.code < 500
    return False


def _last_words(log: Path) -> str:
    lines = [line for line in end_of(log).splitlines() if line.strip()]
    return " | ".join(lines[-3:])[:400] or "it said nothing"
