"""Lets Hydra find hysweep's sweeper and launcher. Every Hydra app of the environment imports this: stay thin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra_plugins.hydra_submitit_launcher.config import SlurmQueueConf


def _config_dirs(hydra_context: Any) -> list[str]:
    sources = hydra_context.config_loader.get_search_path().get_path()
    return [s.path.removeprefix("file://") for s in sources if s.provider == "command-line"]


class HysweepSweeper(Sweeper):
    """`--multirun` with hydra/sweeper=hysweep: the ranges of the command line become a study."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.config_dirs = _config_dirs(hydra_context)
        self.config = config

    def sweep(self, arguments: list[str]) -> Any:
        from pathlib import Path

        from hysweep.cli.run import from_launcher, run_sweep

        words = [*arguments, *from_launcher(self.config.hydra)]
        return run_sweep(words, [Path(d) for d in self.config_dirs])


class HysweepLauncher(Launcher):
    """Named in hysweep's own config; it launches nothing by itself: the study's controller does."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        pass

    def launch(self, job_overrides: Any, initial_job_idx: int) -> Any:
        raise RuntimeError("hydra/launcher=hysweep works with hydra/sweeper=hysweep: use `hysweep run -m`")


class HysweepSlurmLauncher(Launcher):
    """`hydra/launcher=hysweep_slurm`: jobs of a SLURM cluster, with the settings of hydra-submitit-launcher.

    With hydra/sweeper=hysweep the study's controller launches. A stock sweeper hands its batches over here: each of
    their jobs is a study of one trial, so nothing is pruned, and the next batch waits for the slowest of this one.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.config_dirs = _config_dirs(hydra_context)
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        from pathlib import Path

        from hysweep.cli.run import from_launcher, launch_each

        settings = from_launcher(self.config.hydra)
        trials = [[*words, *settings] for words in job_overrides]
        values = launch_each(trials, [Path(d) for d in self.config_dirs])
        return [_returned(words, value) for words, value in zip(trials, values, strict=True)]


def _returned(words: Sequence[str], value: float | None) -> JobReturn:
    done = JobReturn(overrides=list(words))
    done.status = JobStatus.FAILED if value is None else JobStatus.COMPLETED
    done.return_value = RuntimeError(f"no result of {' '.join(words)}") if value is None else value
    return done


@dataclass
class HysweepSlurmConf(SlurmQueueConf):
    _target_: str = f"{__name__}.HysweepSlurmLauncher"


def _register() -> None:
    name = f"{__name__}.{{}}"
    store = ConfigStore.instance()
    store.store(
        group="hydra/sweeper",
        name="hysweep",
        node={"_target_": name.format("HysweepSweeper")},
        provider="hysweep",
    )
    store.store(
        group="hydra/launcher",
        name="hysweep",
        node={"_target_": name.format("HysweepLauncher")},
        provider="hysweep",
    )
    store.store(group="hydra/launcher", name="hysweep_slurm", node=HysweepSlurmConf(), provider="hysweep")


_register()
