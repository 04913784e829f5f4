"""A recipe that is built in a second: the model as it is, hardly warmed."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec

import pytest

from hysweep.embedded.assets import RECIPE, Recipe

IMPORT_TORCH = ("test_build.py", "test_plugin.py", "test_rollout.py", "test_sampling.py")


def pytest_ignore_collect(collection_path, config):
    """To collect these takes ten seconds of imports, which are wasted, or fail, where they are not to run."""
    is_wanted = "not verl" not in config.option.markexpr and find_spec("torch") and find_spec("verl")
    return True if collection_path.name in IMPORT_TORCH and not is_wanted else None


@pytest.fixture(scope="session")
def quick() -> Recipe:
    return dataclasses.replace(RECIPE, warm_start_steps=2, train_rows=100)
