"""Lets Hydra find hysweep's sweeper and launcher. Every Hydra app of the environment imports this: stay thin."""

from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper


class HysweepSweeper(Sweeper):
    """`--multirun` with hydra/sweeper=hysweep: the ranges of the command line become a study."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        sources = hydra_context.config_loader.get_search_path().get_path()
        self.config_dirs = [s.path.removeprefix("file://") for s in sources if s.provider == "command-line"]

    def sweep(self, arguments: list[str]) -> Any:
        from pathlib import Path

        from hysweep.cli.run import run_sweep

        return run_sweep(arguments, [Path(d) for d in self.config_dirs])


class HysweepLauncher(Launcher):
    """Named in hysweep's own config; it launches nothing by itself: the study's controller does."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        pass

    def launch(self, job_overrides: Any, initial_job_idx: int) -> Any:
        raise RuntimeError("hydra/launcher=hysweep works with hydra/sweeper=hysweep: use `hysweep run -m`")


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


_register()
