"""`hysweep run`: a hydra.main application whose sweeper is a study."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hysweep.cli.desk import print_problems
from hysweep.cli.study import drive, shown
from hysweep.compose import SHIPPED, Composer, Composition
from hysweep.schema import BadInput, Problem, suggest
from hysweep.study import NothingFeasible, begin

HYDRA_FLAGS = (
    "--cfg",
    "-c",
    "--info",
    "-i",
    "--resolve",
    "--package",
    "-p",
    "--hydra-help",
    "--shell-completion",
    "-sc",
)


def run_as_hydra_app(arguments: list[str], is_sweep: bool, detach: bool, config_dirs: Sequence[Path]) -> int:
    """Hand a command line to Hydra, which hands it back to `run_study` through the sweeper or the task.

    Faults are found before: Hydra would tell them one at a time, and with a traceback.
    """
    flags, overrides = _split(arguments)
    composer = Composer(config_dirs)
    composition = composer.compose(overrides)
    result: list[int] = []
    faults: list[BadInput] = []
    if not flags:
        _fits_mode(composition, is_sweep)
    elif is_sweep:
        raise BadInput(Problem("--multirun", flags[0], "Hydra shows one configuration", "leave out -m"))
    if detach:
        return run_study(overrides, is_sweep, config_dirs, detach=True)

    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    def task(cfg: Any) -> int:
        chosen = HydraConfig.get()
        dirs = [Path(s.path) for s in chosen.runtime.config_sources if s.provider == "command-line"]
        try:
            result.append(run_study(list(chosen.overrides.task), False, dirs))
        except BadInput as e:  # Hydra would put words of its own before ours
            faults.append(e)
            return 2
        return result[-1]

    swept = [o for o in overrides if o.partition("=")[0] in composition.space]
    own = [o for o in overrides if o.startswith(("hydra.", "hydra/"))]
    argv = ["hysweep", *flags, *(["--multirun"] if is_sweep else []), *composition.fixed, *swept, *own]
    for d in config_dirs:
        argv += ["--config-dir", str(d)]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us as they are
    saved, sys.argv = sys.argv, argv
    sweep_results.clear()
    try:
        GlobalHydra.instance().clear()
        hydra.main(version_base="1.3", config_path=str(SHIPPED), config_name="config")(task)()
    except (HydraException, OmegaConfBaseException) as e:
        why = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise BadInput(Problem("hydra", " ".join([*flags, *own]) or "(run)", why, "see Hydra's documentation")) from e
    finally:
        sys.argv = saved
    if faults:
        raise faults[0]
    return (result or sweep_results or [0])[-1]


# What the sweeper's studies came to: Hydra drops what a sweeper returns.
sweep_results: list[int] = []


def run_sweep(arguments: Sequence[str], config_dirs: Sequence[Path]) -> int:
    """What the sweeper plugin calls."""
    sweep_results.append(run_study(list(arguments), True, config_dirs))
    return sweep_results[-1]


def run_study(arguments: list[str], is_sweep: bool, config_dirs: Sequence[Path], detach: bool = False) -> int:
    """Begin the study that a command line asks for, or go on with it. Returns the exit code."""
    composer = Composer(config_dirs)
    composition = composer.compose(arguments)
    _fits_mode(composition, is_sweep)
    try:
        begun = begin(composition, composer, ["hysweep", "run", *(["-m"] if is_sweep else []), *arguments])
    except NothingFeasible as e:
        click.echo("no trial of this can run, so nothing was started:", err=True)
        print_problems(e.looked, err=True)
        return 1
    trials = begun.definition.n_trials
    click.echo(
        f"study {begun.definition.study.name}: {trials} trial{'s'[: trials != 1]}, in {shown(begun.directory.path)}"
    )
    return drive(begun.directory, begun.changes, detach)


def _fits_mode(composition: Composition, is_sweep: bool) -> None:
    if composition.space and not is_sweep:
        key = next(iter(composition.space))
        raise BadInput(Problem(key, "a range", "one trial has one value", "add -m to search the space"))
    if is_sweep and not composition.space:
        cure = "give a range, as in algorithm=grpo,cispo, or sweep=quickstart; leave out -m for one trial"
        raise BadInput(Problem("space", "empty", "there is nothing to search", cure))


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Hydra's own flags with their values, and the overrides. Raises BadInput for any other flag."""
    flags: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word.partition("=")[0] in HYDRA_FLAGS:
            flags.append(word)
            if word in ("--cfg", "-c", "--info", "-i", "--package", "-p"):
                flags += [v for v in [next(rest, None)] if v is not None]
        elif word.startswith("-"):
            raise BadInput(
                Problem(
                    word,
                    "",
                    "there is no such option",
                    suggest(word, ["-m", "--multirun", "--detach", "--config-dir", *HYDRA_FLAGS]),
                )
            )
        else:
            overrides.append(word)
    return flags, overrides
