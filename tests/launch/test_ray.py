"""The node with a real Ray: it boots, a trainer joins it under the token, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hysweep.launch import launcher, processes
from hysweep.launch.boot import temporaries
from hysweep.track import AttemptDirectory, Cause
from tests.launch.attempts import HERE, end_of, everything, over, wait_for

pytestmark = [pytest.mark.verl, pytest.mark.slow]


def test_a_trainer_joins_the_ray_of_its_node(
    new_attempt: Callable[..., AttemptDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")  # left over from somewhere: not joined
    attempt = new_attempt(
        module="ray_trainer",
        env={"PYTHONPATH": str(HERE), "FROM_THE_JOB": "yes"},
        gpus_per_node=2,
        ray_gpus=2,
        ray_cpus=4,
        object_store_gib=0.1,
    )
    local = launcher("local")
    job_id = local.submit(attempt)
    wait_for(lambda: attempt.end() or "worker 0" in log(attempt), 240)
    said = log(attempt)
    assert "resources 2.0 127.0.0.1:" in said, said + attempt.ray_log(0).read_text()
    assert "worker 0,1:yes" in said, "workers have the job's environment and its GPUs"

    directory = os.path.realpath(attempt.path)
    running = processes.marked([directory])[directory]
    names = {Path(f"/proc/{p.pid}/cmdline").read_bytes()[:40].rstrip(b"\0 ") for p in running}
    assert any(b"ray::Worker" in name for name in names), "workers keep the mark though they rename themselves"
    (token,) = {t for p in running if (t := environment(p).get("RAY_AUTH_TOKEN"))}
    own = temporaries(directory)
    assert len(own) == 1
    on_disk = subprocess.run(["grep", "-rlF", token, str(attempt.path), *map(str, own)], capture_output=True, text=True)
    assert on_disk.stdout == ""
    assert not [p for p in running if token.encode() in Path(f"/proc/{p.pid}/cmdline").read_bytes()]

    (attempt.path / "go").touch()
    assert over(local, job_id, 120).cause is Cause.COMPLETED
    assert end_of(attempt).exit_code == 0
    wait_for(lambda: not everything(attempt))
    assert not temporaries(directory)


def log(attempt: AttemptDirectory) -> str:
    return attempt.driver_log.read_text(errors="replace") if attempt.driver_log.exists() else ""


def environment(p: processes.Process) -> dict[str, str]:
    try:
        entries = Path(f"/proc/{p.pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(e.split("=", 1) for e in entries if "=" in e)
