"""What this machine lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hysweep.check import examine, lacks_for
from hysweep.check.machine import as_installed
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


def test_a_machine_whose_cpus_are_fewer_than_verl_places_processes_by(
    trial_of: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 23: Ray counts them, and verl waits for ever for what it cannot place."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert lacks_for(trial_of("cluster.cpus_per_node=5")) == []
    (problem,) = lacks_for(trial_of("cluster.cpus_per_node=null"))
    assert (problem.key, problem.value) == ("cluster.cpus_per_node", 2) and "cpus_per_node=5" in problem.cure
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    assert lacks_for(trial_of("cluster.cpus_per_node=null")) == []


def test_what_was_not_released_says_where_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, origin in (("fromgit", {"vcs_info": {"commit_id": "220e903" + "0" * 33}}), ("mine", {"dir_info": {}}),
                         ("torn", [1])):  # fmt: skip
        about = tmp_path / f"{name}-1.2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (about / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    found = [as_installed(n) for n in ("fromgit", "mine", "torn", "no-such")]
    assert found == ["1.2 (commit 220e90300000)", "1.2 (from a working copy)", "1.2", None]


def test_the_client_of_slurm_says_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho slurm 23.11.4\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    (slurm,) = [f for f in examine(tmp_path) if f.name == "SLURM"]
    assert slurm.found.startswith(f"slurm 23.11.4 at {tmp_path}/sbatch")
