"""A recipe that is built in a second: the model as it is, hardly warmed."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec

import pytest

from hysweep.embedded.assets import RECIPE, Recipe

# Without the extra `cpu` there is nothing to import, so these cannot even be collected.
if not (find_spec("torch") and find_spec("verl")):
    collect_ignore = ["test_build.py", "test_plugin.py", "test_rollout.py", "test_sampling.py"]


@pytest.fixture(scope="session")
def quick() -> Recipe:
    return dataclasses.replace(RECIPE, warm_start_steps=2, train_rows=100)
