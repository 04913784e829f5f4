"""`hysweep run`: a hydra.main application whose sweeper is a study."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hysweep.check.site import heard_of
from hysweep.cli.desk import print_problems, refuse_empty
from hysweep.cli.say import say
from hysweep.cli.study import RETRY_S, drive, shown
from hysweep.compose import SHIPPED, Composer, Composition
from hysweep.compose.launcher_settings import LAUNCHED_BY, LAUNCHER, SWEEPER, as_overrides
from hysweep.embedded.assets import cache_root
from hysweep.launch import Launcher, launcher
from hysweep.launch.allocation import Allocation
from hysweep.launch.inside import InsideLauncher, allocation, join
from hysweep.report import read_study
from hysweep.schema import BadInput, Problem, Unsaid, suggest
from hysweep.study import Begun, NothingFeasible, begin, define
from hysweep.study.controller import Controller
from hysweep.study.storage import Unreachable
from hysweep.track import PASSING

SHOWS = ("--cfg", "-c", "--info", "-i", "--hydra-help")  # what Hydra shows in place of a run
HYDRA_FLAGS = (*SHOWS, "--resolve", "--package", "-p")


def run_as_hydra_app(arguments: list[str], is_sweep: bool, detach: bool, config_dirs: Sequence[Path]) -> int:
    """Hand a command line to Hydra, which hands it back to `run_study` through the sweeper or the task.

    Faults are found before: Hydra would tell them one at a time, and with a traceback.
    """
    flags, overrides = _split(arguments)
    composer = Composer(config_dirs)
    composition = composer.compose(overrides)
    result: list[int] = []
    faults: list[BadInput] = []
    # a stock sweeper of Hydra's has its own mind about what there is to sweep
    is_ours = all(o == "hydra/sweeper=hysweep" for o in overrides if o.startswith("hydra/sweeper="))
    if not flags and is_ours:
        _fits_mode(composition, is_sweep)
    elif flags and is_sweep:
        raise BadInput(Problem("--multirun", flags[0], "Hydra shows one configuration", "leave out -m"))
    if detach and (flags or not is_ours):
        beside = flags[0] if flags else "hydra/sweeper"
        raise BadInput(Problem("--detach", beside, "is Hydra's own to carry out, here and now", "leave out --detach"))
    places = [word for d in config_dirs for word in ("--config-dir", str(d))]
    typed[:] = ["hysweep", "run", *(["-m"] if is_sweep else []), *(["--detach"] if detach else []), *places, *arguments]
    if detach:
        return run_study(overrides, is_sweep, config_dirs, detach=True)

    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    def task(cfg: Any) -> float | None:
        """One trial, wherever Hydra's launcher runs this; returns its objective."""
        chosen = HydraConfig.get()
        dirs = [Path(s.path) for s in chosen.runtime.config_sources if s.provider == "command-line"]
        words = [*chosen.overrides.task, *from_launcher(chosen)]
        if here := allocation(os.environ):
            return run_inside(words, dirs, here)
        try:
            result.append(run_study(words, False, dirs))
        except BadInput as e:  # Hydra would put words of its own before ours
            faults.append(e)
            return None
        return objective(words, dirs)

    swept = [o for o in overrides if o.partition("=")[0] in composition.space]
    own = [o for o in overrides if re.match(r"[+~]*hydra[./=]", o)]
    argv = ["hysweep", *flags, *(["--multirun"] if is_sweep else []), *composition.fixed, *swept, *own]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us as they are
    saved = sys.argv
    sweep_results.clear()
    try:
        with _directories(composer, config_dirs) as (everything, own_files):
            sys.argv = [*argv, *(["--config-dir", str(own_files)] if own_files else [])]
            GlobalHydra.instance().clear()
            hydra.main(version_base="1.3", config_path=str(everything), config_name="config")(task)()
    except Exception as e:
        # Hydra also asserts what it expects of its settings
        if isinstance(e, (HydraException, OmegaConfBaseException)) or _raised_in(e) == "hydra":
            why = " ".join(str(e).split()) or type(e).__name__
            cure = "see Hydra's documentation"
            raise BadInput(Problem("hydra", " ".join([*flags, *own]) or "(run)", why, cure)) from e
        if type(e).__module__.partition(".")[0] != "submitit":
            raise
        said = [line for line in str(e).splitlines() if line.strip()] or [type(e).__name__]
        chosen = " ".join(o for o in own if o.startswith("hydra/launcher=")) or "hydra/launcher"
        raise BadInput(Problem(chosen, Unsaid.VALUE, said[-1], "its logs are in outputs/multirun/*/.submitit")) from e
    finally:
        sys.argv = saved
    if faults:
        raise faults[0]
    return (result or sweep_results or [0])[-1]


def _raised_in(error: Exception) -> str:
    """The package whose own line raised it."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else str(at.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


@contextmanager
def _directories(composer: Composer, config_dirs: Sequence[Path]) -> Iterator[tuple[Path, Path | None]]:
    """What Hydra composes from, and what it is told of a user's own files: it takes one directory of each.

    It would let the shipped file win over a user's own of the same name, so the two are brought together before. In
    the cache, which jobs of a stock launcher are likely to see too.
    """
    if not config_dirs and not composer.sweep_files:
        yield SHIPPED, None
        return
    cache_root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_root(), prefix="config-") as name:
        everything, own = Path(name, "all"), Path(name, "own")
        _write(everything, composer.snapshot())
        if len(config_dirs) == 1 and not composer.sweep_files:
            own = config_dirs[0]
        else:
            _write(own, composer.own_files())
        yield everything, own


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for relative, text in files.items():
        file = directory / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def from_launcher(hydra_config: Any) -> list[str]:
    """What the settings of Hydra's launcher say of the cluster, those of config files among them."""
    choices = hydra_config.runtime.choices
    launcher = choices.get("hydra/launcher")
    if launcher not in LAUNCHED_BY or (launcher != LAUNCHER and choices.get("hydra/sweeper") != SWEEPER):
        return []
    from hydra_plugins.hydra_submitit_launcher.config import SlurmQueueConf

    settings = OmegaConf.to_container(hydra_config.launcher, resolve=False)
    usual = OmegaConf.to_container(OmegaConf.structured(SlurmQueueConf))
    assert isinstance(settings, dict) and isinstance(usual, dict)
    given = {str(k): v for k, v in settings.items() if not str(k).startswith("_") and v != usual.get(k)}
    # what the command line says of the cluster goes before what a file says of the launcher
    said = {o.partition("=")[0].lstrip("+") for o in hydra_config.overrides.task}
    return [o for o in as_overrides(given, launcher) if o.partition("=")[0].lstrip("+") not in said]


def objective(arguments: Sequence[str], config_dirs: Sequence[Path]) -> float | None:
    """The best value of the study that a command line asks for; None: it has none."""
    definition = define(Composer(config_dirs).compose(arguments))
    return read_study(definition.directory).best_value


def run_inside(arguments: list[str], config_dirs: Sequence[Path], here: Allocation) -> float | None:
    """One trial on the nodes of an allocation that this is a task of; its objective on the first, None on others.

    Raises RuntimeError when it did not complete, so that whoever asked for the allocation hears of it.
    """
    composer = Composer(config_dirs)
    words = [*arguments, "cluster.launcher=slurm"]
    definition = define(composer.compose(words))
    if here.rank:
        join(here, definition.directory.path)
        return None
    begun = begin(composer.compose(words), composer, ["hysweep", "run", *arguments])
    inside = InsideLauncher(here, begun.directory.path)
    try:
        drive_all([begun], lambda name: inside)
    finally:
        inside.over()
    record = read_study(begun.directory)
    if record.best is None:
        raise RuntimeError("; ".join(t.state.reason for t in record.trials) or "no trial completed")
    return record.best_value


def launch_each(trials: Sequence[Sequence[str]], config_dirs: Sequence[Path]) -> list[float | None]:
    """What a stock sweeper of Hydra's asks for: each command line a study of one trial, all at once.

    Returns their objectives, None for those that came to none.
    """
    begun = []
    for words in trials:
        composer = Composer(config_dirs)
        begun.append(begin(composer.compose(words), composer, ["hysweep", "run", *words]))
    drive_all(begun)
    return [read_study(b.directory).best_value for b in begun]


def drive_all(begun: Sequence[Begun], launchers: Callable[[str], Launcher] = launcher) -> None:
    """Studies to their ends, side by side. A disk that is full or away, and a database, are waited for."""
    poll_s = min((b.definition.study.poll_s for b in begun), default=0.0)
    while True:
        try:
            with ExitStack() as stack:
                controllers = [stack.enter_context(Controller(b.directory, b.changes, launchers)) for b in begun]
                while [c for c in controllers if _goes_on(c)]:
                    time.sleep(poll_s)
            return
        except OSError as e:
            if e.errno not in PASSING:
                raise
            say(f"hysweep: {e}; trying again, jobs go on meanwhile", err=True)
            time.sleep(RETRY_S)


def _goes_on(controller: Controller) -> bool:
    try:
        return controller.tick()
    except Unreachable:
        return True


# The command line before Hydra had it; empty where Hydra's own command is at work.
typed: list[str] = []
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
        command = typed or ["hysweep", "run", *(["-m"] if is_sweep else []), *arguments]
        begun = begin(composition, composer, command)
    except NothingFeasible as e:
        say("no trial of this can run, so nothing was started:", err=True)
        print_problems(e.looked, err=True)
        return 1
    for problem in (*begun.warnings, *(heard_of(os.environ) if composition.trial.cluster.launcher == "slurm" else ())):
        say(f"warning: {problem}", err=True)
    trials = begun.definition.n_trials
    more = begun.definition.most_trials - trials
    counts = f"{trials} trial{'s'[: trials != 1]}" + (f" and {more} that confirm the best" if more else "")
    say(f"study {begun.definition.study.name}: {counts}, in {shown(begun.directory.path)}")
    return drive(begun.directory, begun.changes, detach)


def _fits_mode(composition: Composition, is_sweep: bool) -> None:
    if composition.space and not is_sweep:
        key = next(iter(composition.space))
        raise BadInput(Problem(key, "a range", "one trial has one value", "add -m to search the space"))
    refuse_empty(composition, is_sweep)


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
            bare = word.lstrip("-")
            known = suggest(word, ["-m", "--multirun", "--detach", "--config-dir", *HYDRA_FLAGS])
            cure = f"an override has no dashes: {bare}" if "=" in bare and not known.startswith("did") else known
            raise BadInput(Problem(word, Unsaid.VALUE, "there is no such option", cure))
        else:
            overrides.append(word)
    if flags and not any(word.partition("=")[0] in SHOWS for word in flags):
        raise BadInput(Problem(flags[0], Unsaid.VALUE, "is of a configuration that is shown", "add --cfg job"))
    return flags, overrides
