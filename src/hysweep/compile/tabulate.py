"""Makes the table of a verl's keys from the verl that is installed: ``python -m hysweep.compile.tabulate``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import Container, DictConfig, OmegaConf

from hysweep.compile.keys import TABLES

MODEL_ENGINES = ("dp", "megatron")


def tabulate(config_dir: Path) -> dict[str, Any]:
    """The table of the verl whose ``trainer/config`` directory is given: composed by Hydra alone."""
    with initialize_config_dir(str(config_dir), version_base=None):
        trees = {e: dict(_flat(compose("ppo_trainer", [f"model_engine={e}"]))) for e in MODEL_ENGINES}
    first, second = trees.values()
    shared = {k: v for k, v in first.items() if k in second and second[k] == v}
    return {"shared": shared} | {
        engine: {k: v for k, v in tree.items() if k not in shared} for engine, tree in trees.items()
    }


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in node:
        raw = node._get_node(name)
        if isinstance(raw, DictConfig) and not raw._is_none() and not raw._is_interpolation() and len(raw):
            yield from _flat(raw, f"{prefix}{name}.")
        elif isinstance(raw, Container) and not raw._is_none() and not raw._is_interpolation():
            yield f"{prefix}{name}", OmegaConf.to_container(raw)
        else:
            yield f"{prefix}{name}", raw._value()


def installed_verl() -> tuple[str, Path]:
    """Version and config directory of the verl of this environment, found without importing it.

    Raises ModuleNotFoundError when there is none.
    """
    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed: pip install 'hysweep[cpu]'")
    return version("verl"), Path(spec.submodule_search_locations[0]) / "trainer" / "config"


if __name__ == "__main__":
    name, where = installed_verl()
    target = TABLES / f"verl-{name}.json"
    target.write_text(json.dumps(tabulate(where), indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(target)
