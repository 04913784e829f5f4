"""How the nodes of a job find each other and know of each other's ends: one TCP connection from each to the first.

The first node writes where it listens into the attempt's directory; the others connect and say who they are. Whoever
hangs up without a word is lost, and so is a node whose kernel falls silent. The kernels watch each other (TCP's
keepalive): a supervisor may be busy, or wait for a file system, without being taken for dead. The shared file system
is needed once, to meet: what happens later does not wait for its caches.

Messages are JSON objects, one a line; an empty line is a sign of life. Nothing here blocks: `poll` is called by the
loops that supervise.
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hysweep.launch.allocation import Allocation, address_towards
from hysweep.track import AttemptDirectory, Cause, read_json, write_json

BEAT = 1.0  # seconds between two signs of life
# A process that says nothing for so long, on a node that answers, hangs. Shorter would end jobs for a slow file system.
PATIENCE = 300.0
_MOST = 1 << 20  # bytes of one message; who sends more is no node of ours
_STRANGERS = 64  # that may be connected beside the nodes and not have said who they are: each holds a descriptor


def meeting_point(attempt: AttemptDirectory) -> Path:
    return attempt.path / "rendezvous.json"


class Line:
    """One end of a connection: messages out, messages in, and whether the other side is still there."""

    def __init__(self, connection: socket.socket, silence: float) -> None:
        connection.setblocking(False)
        watch_by_kernel(connection, silence)
        self._socket = connection
        self._out = b""
        self._in = b""
        self._beaten = time.monotonic() - BEAT
        self._silence = silence
        self.met = self.heard = time.monotonic()
        self.is_open = True
        self.fell_silent = False

    def say(self, **message: Any) -> None:
        self._out += json.dumps(message).encode() + b"\n"
        self._send()

    def poll(self) -> list[dict[str, Any]]:
        """What came in since. Also sends what is due."""
        now = time.monotonic()
        if now - self._beaten > PATIENCE / 2:
            self.heard = now  # this process was stopped itself, as with a job that is suspended
        if self.is_open and now - self._beaten >= BEAT:
            self._beaten = now
            self._out += b"\n"
        self._send()
        messages = list(self._receive())
        if self.is_open and time.monotonic() - self.heard > PATIENCE:
            self.fell_silent = True
            self.close()
        return messages

    def close(self) -> None:
        self.is_open = False
        self._socket.close()

    def _send(self) -> None:
        while self._out and self.is_open:
            try:
                self._out = self._out[self._socket.send(self._out) :]
            except BlockingIOError:
                return
            except OSError as e:
                # what it said before it hung up is still to be read
                self._note(e)
                self._out = b""
                return

    def _receive(self) -> Iterator[dict[str, Any]]:
        while self.is_open:
            try:
                more = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError as e:
                self._note(e)
                more = b""
            if not more or len(self._in) > _MOST:
                self.close()
                break
            self.heard = time.monotonic()
            self._in += more
        *lines, self._in = self._in.split(b"\n")
        for line in lines:
            with suppress(ValueError, RecursionError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message

    def _note(self, e: OSError) -> None:
        """The kernel says once only why a connection ended: the other side hung up, or is not there."""
        if e.errno not in (errno.EPIPE, errno.ECONNRESET):
            self.fell_silent = True


def watch_by_kernel(connection: socket.socket, silence: float) -> None:
    """Have the connection fail when the other machine has not answered for `silence` seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, int(silence)))
    # what was sent and is not acknowledged counts as well
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence * 1000))


@dataclass(slots=True)
class Member:
    """One of the other nodes, as the first knows it. `joined`: the GPUs that its Ray offers, once it is up."""

    name: str
    line: Line | None = None
    joined: float | None = None
    failed: str = ""
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """A node that is no longer there: which, why, and the cause of the attempt's end if nothing tells a better one."""

    node: str
    reason: str
    cause: Cause


class RollCall:
    """The first node's side. Made before anything slow, so that the others find it at once."""

    def __init__(
        self, attempt: AttemptDirectory, allocation: Allocation, interface: str | None, silence: float
    ) -> None:
        self.token = secrets.token_hex(32)
        self.address = address_towards(allocation.nodes[-1], interface)
        self.members = {rank: Member(name) for rank, name in enumerate(allocation.nodes) if rank}
        self._silence = silence
        self._strangers: list[Line] = []
        self._last_order: dict[str, Any] | None = None
        self._server = socket.create_server((self.address, 0), backlog=4096)
        self._server.setblocking(False)
        self._place = meeting_point(attempt)
        port = self._server.getsockname()[1]
        write_json(self._place, {"address": self.address, "port": port, "token": self.token}, mode=0o600)

    def tell(self, **order: Any) -> None:
        """Say it to all, and to those that come later."""
        self._last_order = order
        for member in self.members.values():
            if member.line:
                member.line.say(**order)

    def poll(self) -> None:
        with suppress(OSError):  # nobody waits, or hung up while waiting, or no descriptor is left
            while len(self._strangers) < len(self.members) + _STRANGERS:
                self._strangers.append(Line(self._server.accept()[0], self._silence))
        for line in list(self._strangers):
            for message in line.poll():
                self._admit(line, message)
            if not line.is_open or time.monotonic() - line.met > self._silence:
                line.close()
                if line in self._strangers:
                    self._strangers.remove(line)
        while len(self._strangers) > _STRANGERS:  # a node says who it is as soon as it is there
            self._strangers.pop(0).close()
        for member in self.members.values():
            if member.line:
                for message in member.line.poll():
                    self._note(member, message)

    def missing(self) -> list[str]:
        """The nodes whose Ray is not up."""
        return [m.name for m in self.members.values() if m.joined is None]

    def forget_joins(self) -> None:
        for member in self.members.values():
            member.joined, member.failed = None, ""

    def loss(self) -> Loss | None:
        """The first node that failed, hung up or fell silent."""
        for m in self.members.values():
            if m.failed:
                return Loss(m.name, m.failed, m.cause or Cause.RAY_BOOT)
            if m.line and not m.line.is_open:
                if m.line.fell_silent:
                    silent = f"nothing was heard of it for {time.monotonic() - m.line.heard:.0f} s"
                    return Loss(m.name, silent, Cause.NODE_FAIL)
                return Loss(m.name, "its supervising process is gone", Cause.KILLED)
        return None

    def unmet(self) -> list[str]:
        """The nodes of which nothing was ever heard."""
        return [m.name for m in self.members.values() if m.line is None]

    def everyone_met(self) -> None:
        """The secret of the meeting point is not needed any more."""
        self._place.unlink(missing_ok=True)

    def wait_for_goodbyes(self, within: float) -> None:
        """Until all have hung up: each does once nothing of the attempt runs on its node."""
        until = time.monotonic() + within
        while time.monotonic() < until and any(m.line and m.line.is_open for m in self.members.values()):
            self.poll()
            time.sleep(0.02)

    def close(self) -> None:
        self.everyone_met()
        for line in [*self._strangers, *(m.line for m in self.members.values() if m.line)]:
            line.close()
        self._server.close()

    def _admit(self, line: Line, message: dict[str, Any]) -> None:
        """Somebody's first words: the token and its rank."""
        rank = message.get("rank")
        is_known = hmac.compare_digest(ascii(message.get("token")), ascii(self.token))
        if line not in self._strangers or not is_known or not isinstance(rank, int) or rank not in self.members:
            line.close()
            return
        self._strangers.remove(line)
        self.members[rank].line = line
        if self._last_order is not None:
            line.say(**self._last_order)

    def _note(self, member: Member, message: dict[str, Any]) -> None:
        if "joined" in message:
            member.joined = float(message["joined"])
        if "failed" in message:
            member.failed = str(message["failed"])
            member.cause = Cause(message["cause"]) if message.get("cause") in set(Cause) else None


@dataclass(slots=True)
class Presence:
    """Another node's side. `orders` are what the first has said and nobody has taken up yet."""

    attempt: AttemptDirectory
    rank: int
    silence: float
    token: str = ""
    first: str = ""  # the address of the first node
    orders: list[dict[str, Any]] = field(default_factory=list)
    _line: Line | None = None

    def meet(self) -> bool:
        """Try once to find the first node."""
        # To open the directory has a network file system look again: it remembers what was not there.
        with suppress(OSError):
            os.close(os.open(self.attempt.path, os.O_RDONLY | os.O_DIRECTORY))
        place = read_json(meeting_point(self.attempt))
        if not isinstance(place, dict):
            return False
        try:
            connection = socket.create_connection((place["address"], place["port"]), timeout=2)
        except OSError:
            return False
        self._line = Line(connection, self.silence)
        self.token, self.first = place["token"], place["address"]
        self._line.say(rank=self.rank, token=self.token)
        return True

    def say(self, **message: Any) -> None:
        if self._line:
            self._line.say(**message)

    def poll(self) -> None:
        if self._line:
            self.orders += self._line.poll()

    @property
    def is_lost(self) -> bool:
        """Whether the first node is gone."""
        return self._line is not None and not self._line.is_open

    def leave(self, wait: Callable[[float], None] = time.sleep) -> None:
        if self._line:
            for _ in range(10):  # what was said last is to arrive
                self._line.poll()
                wait(0.01)
            self._line.close()
