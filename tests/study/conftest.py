"""The studies here compose from the shipped groups, as a session's composer does: it serves every controller."""

from __future__ import annotations

import pytest

from hysweep.compose import Composer
from hysweep.study import definition as definitions


@pytest.fixture(scope="session")
def shipped_files(composer: Composer) -> dict[str, str]:
    return composer.snapshot()


@pytest.fixture(autouse=True)
def _composer_serves_controllers(composer, shipped_files, monkeypatch):
    """What is composed is kept from one controller to the next, but where a study has groups of its own."""

    def compose_from(dirs=(), shipped=True):
        own = Composer(dirs, shipped)
        return composer if own.snapshot() == shipped_files else own

    monkeypatch.setattr(definitions, "Composer", compose_from)
