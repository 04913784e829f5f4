"""Shared fixtures. A composer is slow to make and has no state that a test could leave behind: one serves all."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from hypothesis import settings

from hysweep.compose import Composer
from hysweep.schema import Trial

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: what tests start would be deaf to it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)  # a busy machine is no fault
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def composer() -> Composer:
    return Composer()


@pytest.fixture(scope="session")
def trial_of(composer: Composer) -> Callable[..., Trial]:
    """`trial_of("algorithm=cispo")`: the trial of a command line."""
    return lambda *overrides: composer.compose(overrides).trial


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    """Each test works in a directory of its own, and never in the user's cache, nor by the user's calibration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYSWEEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
