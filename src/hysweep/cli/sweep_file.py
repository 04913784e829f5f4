"""The sweep that `hysweep layouts --sweep` writes: the best layouts, a few steps each, for the throughput measured."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf._utils import get_omega_conf_dumper

from hysweep.compose import Composer, one_of, sweep_name
from hysweep.schema import BadInput, Problem
from hysweep.schema.override import emit
from hysweep.track import write_text

STEPS = 4  # the first warms up; `reduce` takes the last two


def write_sweep(
    path: Path,
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    best: Sequence[Mapping[str, int | None]],
    asked: Sequence[str] = (),
    timeout_min: int | None = None,
) -> None:
    """Writes it, once it has been read back. Raises BadInput where it has no place, or cannot be read.

    asked: how the layouts were asked for, beside the overrides; timeout_min: of a job, unless the overrides say it.
    """
    _refuse_place(path)
    text = _text(overrides, best, asked, timeout_min)
    with tempfile.TemporaryDirectory() as directory:
        draft = Path(directory) / path.name
        draft.write_text(text, encoding="utf-8")
        try:
            Composer(config_dirs).compose([f"sweep={draft}"])
        except BadInput as e:
            why = f"could not be read back: {e}"
            raise BadInput(Problem("--sweep", path, why, "leave out the setting that it names")) from e
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as e:
        raise BadInput(Problem("--sweep", path, (e.strerror or str(e)).lower(), "give another place")) from e


def _refuse_place(path: Path) -> None:
    if path.suffix != ".yaml":
        raise BadInput(Problem("--sweep", path, "is no place for a sweep", "give a path that ends with .yaml"))
    sweep_name(path, "--sweep")
    if path.exists():
        raise BadInput(Problem("--sweep", path, "is there already", "give another name, or remove it"))


def time_limit_min(step_seconds: float) -> int:
    """Of a job of the sweep: its steps, thrice as slow as predicted, and an hour to start."""
    return 60 + 30 * math.ceil(3 * STEPS * step_seconds / 60 / 30)


def _text(
    overrides: Sequence[str],
    best: Sequence[Mapping[str, int | None]],
    asked: Sequence[str],
    timeout_min: int | None,
) -> str:
    """Layouts that differ vary together, as the points that run first; what they share is set."""
    values = {name: list(dict.fromkeys(layout[name] for layout in best)) for name in best[0]}
    varied = [name for name, found in values.items() if len(found) > 1]
    options, given = _said(overrides)
    tree: dict[str, Any] = {
        "study": {
            "metric": "perf/throughput",
            "direction": "maximize",
            "reduce": "mean_last",
            "last": 2,
            "n_trials": len(best),
        }
    }
    if varied:
        tree["study"]["enqueue"] = [{name: layout[name] for name in varied} for layout in best]
        tree["space"] = {name: one_of([emit(value) for value in values[name]]) for name in varied}
    settings = {name: found[0] for name, found in values.items() if len(found) == 1} | {
        "trainer.total_steps": STEPS,
        "trainer.validate_before": False,
        "trainer.validate_every": -1,
        "trainer.save_every": -1,
        **({"cluster.timeout_min": timeout_min} if timeout_min else {}),
    }
    for name, value in (settings | given).items():
        _put(tree, name.split("."), value)
    head = [
        "# @package _global_",
        f"# Which of these {len(best)} layouts is the fastest, by a few steps of each? From",
        *(f"# {line}" for line in f"hysweep layouts {' '.join([*overrides, *asked])}".splitlines()),
    ]
    tree = ({"defaults": options} if options else {}) | tree
    # by OmegaConf's dumper, which puts quotes where OmegaConf would read something else
    body = yaml.dump(tree, Dumper=get_omega_conf_dumper(), sort_keys=False, allow_unicode=True, width=1000)
    return "\n".join(head) + "\n" + body


def _said(overrides: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What a command line says, as a file does: the options of groups, and values by path."""
    options, given = [], {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        name, value = override.key_or_group, override.value()
        if "." in name or isinstance(value, dict):
            given[name] = value
        else:
            options.append({f"override /{name}": value})
    return options, given


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        inner = tree.get(part)
        if not isinstance(inner, dict):
            inner = tree[part] = {}
        tree = inner
    tree[path[-1]] = value
