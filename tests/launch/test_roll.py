"""Nodes find each other and hear of each other's ends: real sockets, two sides in one process."""

from __future__ import annotations

import os
import resource
import socket
import stat
import time
from collections.abc import Callable, Iterator

import pytest

from hysweep.launch import roll
from hysweep.launch.allocation import Allocation
from hysweep.launch.roll import Presence, RollCall, meeting_point
from hysweep.track import AttemptDirectory, Cause, read_json
from tests.launch.attempts import wait_for

NAMES = ("127.0.0.1", "localhost")  # rank 0 is reached from rank 1 by this machine's own address


@pytest.fixture
def meeting(new_attempt: Callable[..., AttemptDirectory], monkeypatch) -> Iterator[tuple[RollCall, Presence]]:
    monkeypatch.setattr(roll, "BEAT", 0.05)
    attempt = new_attempt()
    call = RollCall(attempt, Allocation(0, NAMES), None, silence=0.6)
    presence = Presence(attempt, 1, silence=0.6)
    assert presence.meet()
    yield call, presence
    presence.leave()
    call.close()


def both(call: RollCall, presence: Presence, done: Callable[[], object]) -> None:
    def look() -> object:
        call.poll()
        presence.poll()
        return done()

    wait_for(look, 10)


def test_they_meet_and_talk(meeting: tuple[RollCall, Presence]) -> None:
    call, presence = meeting
    call.tell(boot="10.0.0.1:7")
    both(call, presence, lambda: presence.orders)
    assert presence.orders == [{"boot": "10.0.0.1:7"}] and presence.token == call.token
    assert call.missing() == ["localhost"]
    presence.say(joined=8)
    both(call, presence, lambda: not call.missing())
    assert call.members[1].joined == 8 and call.loss() is None and not presence.is_lost


def test_the_secret_is_the_user_s_alone_and_goes(meeting: tuple[RollCall, Presence]) -> None:
    call, presence = meeting
    place = meeting_point(presence.attempt)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    call.everyone_met()
    assert not place.exists()
    assert not presence.meet(), "and nobody is let in by it any more"


def test_what_a_node_says_before_it_goes_is_heard(meeting: tuple[RollCall, Presence]) -> None:
    call, presence = meeting
    both(call, presence, lambda: call.members[1].line)
    presence.say(failed="ray start ended with exit code 1", cause=Cause.HOST_OOM)
    presence.leave()
    wait_for(lambda: call.poll() or call.loss(), 10)
    loss = call.loss()
    assert loss and (loss.node, loss.cause) == ("localhost", Cause.HOST_OOM) and "exit code 1" in loss.reason


def test_a_node_that_hangs_up_is_lost(meeting: tuple[RollCall, Presence]) -> None:
    call, presence = meeting
    both(call, presence, lambda: call.members[1].line)
    presence.leave()
    wait_for(lambda: call.poll() or call.loss(), 10)
    loss = call.loss()
    assert loss and loss.cause is Cause.KILLED


def test_a_process_that_is_busy_is_not_lost(meeting: tuple[RollCall, Presence]) -> None:
    """Its kernel answers for it. (A machine without power does not: tests/slurm.)"""
    call, presence = meeting
    both(call, presence, lambda: call.members[1].line)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        call.poll()
        time.sleep(0.02)
    assert call.loss() is None
    presence.poll()
    assert not presence.is_lost


def test_a_process_that_hangs_is_lost_in_the_end(
    meeting: tuple[RollCall, Presence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll, "PATIENCE", 0.6)
    call, presence = meeting
    both(call, presence, lambda: call.members[1].line)
    wait_for(lambda: call.poll() or call.loss(), 10)  # and nobody speaks for the other
    loss = call.loss()
    assert loss and loss.cause is Cause.NODE_FAIL and "nothing was heard" in loss.reason
    time.sleep(0.7)
    presence.poll()
    assert presence.is_lost


def test_who_was_stopped_itself_takes_no_other_for_lost(
    meeting: tuple[RollCall, Presence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all nodes of a job that is suspended are."""
    monkeypatch.setattr(roll, "PATIENCE", 1.0)
    call, presence = meeting
    both(call, presence, lambda: call.members[1].line)
    time.sleep(1.2)
    call.poll()
    assert call.loss() is None


def test_strangers_and_noise_change_nothing(meeting: tuple[RollCall, Presence]) -> None:
    call, presence = meeting
    place = read_json(meeting_point(presence.attempt))
    for noise in (
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"rank": 1, "token": "wrong"}\n',
        b'{"rank": 9}\n',
        b"[1]\n{torn",
        '{"rank": 1, "token": "é"}\n'.encode(),
        b'{"rank": 1, "token": "\\ud800"}\n',
        b"[" * 100_000 + b"\n",
        os.urandom(99),
    ):
        with socket.create_connection((place["address"], place["port"])) as s:
            s.sendall(noise)
            call.poll()
    with socket.create_connection((place["address"], place["port"])):  # says nothing at all
        presence.say(joined=2)
        both(call, presence, lambda: not call.missing())
    assert call.loss() is None


def test_who_is_gone_before_he_was_let_in_is_no_trouble(meeting: tuple[RollCall, Presence]) -> None:
    call, presence = meeting

    class Aborted:
        def accept(self) -> None:
            raise ConnectionAbortedError(103, "Software caused connection abort")

    server, call._server = call._server, Aborted()  # type: ignore[assignment]
    call.poll()
    call._server = server
    both(call, presence, lambda: call.members[1].line)


def test_a_crowd_of_strangers_takes_no_descriptors(meeting: tuple[RollCall, Presence]) -> None:
    call, presence = meeting
    place, before = read_json(meeting_point(presence.attempt)), len(os.listdir("/proc/self/fd"))
    crowd = [socket.create_connection((place["address"], place["port"])) for _ in range(150)]
    both(call, presence, lambda: len(os.listdir("/proc/self/fd")) < before + 150 + 80)
    presence.say(joined=2)
    both(call, presence, lambda: not call.missing())
    assert call.loss() is None
    for stranger in crowd:
        stranger.close()


def test_no_descriptor_left_keeps_strangers_out_and_ends_nothing(meeting: tuple[RollCall, Presence]) -> None:
    call, presence = meeting
    both(call, presence, lambda: call.members[1].line)
    place = read_json(meeting_point(presence.attempt))
    with socket.create_connection((place["address"], place["port"])):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            call.poll()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        presence.say(joined=2)
        both(call, presence, lambda: not call.missing())
    assert call.loss() is None


def test_who_comes_late_hears_the_last_order(new_attempt: Callable[..., AttemptDirectory]) -> None:
    attempt = new_attempt()
    call = RollCall(attempt, Allocation(0, NAMES), None, silence=5)
    call.tell(boot="a:1")
    call.tell(boot="a:2")
    late = Presence(attempt, 1, silence=5)
    assert late.meet()
    both(call, late, lambda: late.orders)
    assert late.orders == [{"boot": "a:2"}]
    late.leave()
    call.close()
