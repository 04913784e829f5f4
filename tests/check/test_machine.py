"""What this machine lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hysweep.check import lacks_for
from hysweep.schema import Trial


def test_a_machine_without_sbatch_cannot_submit(
    trial_of: Callable[..., Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of("cluster.launcher=slurm")
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = lacks_for(trial)
    assert (problem.key, problem.value) == ("cluster.launcher", "slurm")
    (tmp_path / "sbatch").touch(0o755)
    assert lacks_for(trial) == []
