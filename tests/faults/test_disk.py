"""A disk that is full for a while ends no study: whoever drives it waits, and begins again from what is on disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from hysweep.cli import study as verbs
from hysweep.compose import Composer
from hysweep.launch import JobState
from hysweep.study import begin, controller, define
from hysweep.study.controller import Controller
from hysweep.track import Cause
from tests.study.fake import FakeLauncher


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def test_a_full_disk_is_waited_for(
    composer: Composer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    definition = define(composer.compose(["rollout.n=2,4", "study.poll_s=0.05", "study.name=s"]))
    definition.directory.create(definition.to_yaml(), composer.snapshot())
    fake = FakeLauncher(lambda point, attempt: [0.5, 0.6])
    left = [2, 1]  # of full disks: while it drives, and while it comes back

    class Poor(Controller):
        def __init__(self, directory, changes):  # type: ignore[no-untyped-def]
            super().__init__(directory, changes, launchers=lambda name: fake)

        def tick(self) -> bool:
            goes_on = super().tick()
            if self.in_flight and left[0]:
                left[0] -= 1
                raise OSError(code, os.strerror(code), "state.json")
            return goes_on

        def enter(self, wait_s: float = 0.0) -> Controller:
            if left[0] == 1 and left[1]:
                left[1] -= 1
                raise OSError(code, os.strerror(code), "lock")
            return super().enter(wait_s)

    monkeypatch.setattr(controller, "Controller", Poor)
    monkeypatch.setattr(verbs, "RETRY_S", 0.0)
    assert verbs.drive(definition.directory, {}) == 0
    assert capsys.readouterr().err.count(os.strerror(code)) == 3
    assert left == [0, 0]
    assert [t.state().cause for t in definition.directory.trials()] == [Cause.COMPLETED] * 2
    assert len(fake.submitted) == len(set(fake.submitted)) == 2


def test_nor_does_it_end_what_drives_several(composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the first node of an allocation, whose end would be that of the training there."""
    begun = [begin(composer.compose([f"study.name={n}", "study.poll_s=0.05"]), composer, []) for n in "ab"]
    fake = FakeLauncher(lambda point, attempt: [0.5, 0.6])
    states, left = fake.states, [errno.ESTALE, errno.ENOSPC]

    def away(ids: Iterable[str]) -> dict[str, JobState]:
        if left:
            raise OSError(left[0], os.strerror(left.pop(0)), "state.json")
        return states(ids)

    fake.states = away  # type: ignore[method-assign]
    run = import_module("hysweep.cli.run")
    monkeypatch.setattr(run, "RETRY_S", 0.0)
    run.drive_all(begun, lambda name: fake)
    assert [b.directory.trials()[0].state().cause for b in begun] == [Cause.COMPLETED] * 2
    assert len(fake.submitted) == 2 and not left


def test_a_file_that_cannot_be_read_for_once_is_not_taken_for_gone(
    composer: Composer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that completed would have no value and its end no cause, the ledger no hours, and settings that were
    changed would be as at first."""
    definition = define(composer.compose(["rollout.n=2", "study.name=s", "study.budget_gpu_hours=100"]))
    definition.directory.create(definition.to_yaml(), composer.snapshot())
    fake = FakeLauncher(lambda point, attempt: [0.5, 0.6], {(0, 1): Cause.PREEMPTED})
    struck = {"latest_checkpointed_iteration.txt"}  # the fake scheduler itself reads it
    opened = open

    def hiccups(file, mode="r", *args, **kwargs):  # type: ignore[no-untyped-def]
        name = os.path.basename(file) if isinstance(file, str | Path) else ""
        if watched["is_on"] and mode == "r" and name not in struck:
            struck.add(name)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(file))
        return opened(file, mode, *args, **kwargs)

    def read_text(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        with hiccups(path, encoding=encoding, errors=errors) as file:
            return str(file.read())

    watched = {"is_on": False}
    monkeypatch.setattr("builtins.open", hiccups)
    monkeypatch.setattr(Path, "read_text", read_text)
    is_over = False
    for _ in range(30):
        with suppress(OSError), Controller(definition.directory, launchers=lambda name: fake) as c:
            watched["is_on"] = True
            is_over = not c.tick()
        watched["is_on"] = False
        if is_over:
            break
    assert is_over and {"end.json", "metrics.jsonl", "changes.json"} <= struck
    (trial,) = definition.directory.trials()
    assert (trial.state().cause, trial.state().value) == (Cause.COMPLETED, 0.6)
    assert len(fake.submitted) == 2 and len(definition.directory.ledger()) == 2
