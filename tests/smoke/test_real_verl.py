"""The whole road with nothing faked: real verl, real Ray, a tiny Hy3, as a person would run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.verl,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed: pip install 'hysweep[cpu]'"),
]

HYSWEEP = [sys.executable, "-m", "hysweep"]
LIMIT_S = 840


@pytest.fixture
def study(tmp_path: Path):
    """A place to run in; whatever a failing test left running is stopped."""
    yield tmp_path / "outputs" / "smoke"
    subprocess.run([*HYSWEEP, "cancel", "outputs/smoke"], cwd=tmp_path, timeout=150, capture_output=True)


def left_over(study: Path) -> list[str]:
    """Processes that belong to a study's attempts."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        try:
            if str(study) in " ".join(process.environ().get(n, "") for n in ("HYSWEEP_ATTEMPT",)):
                found.append(f"{process.pid} {' '.join(process.info['cmdline'] or [])[:80]}")
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(what, seconds: float = LIMIT_S) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.5)


def test_a_real_trial_outlives_its_controller_and_learns(study: Path, tmp_path: Path) -> None:
    """Four steps of real verl. The controller is killed in the middle; `resume` finds the job and its result."""
    command = [
        *HYSWEEP,
        "run",
        "algorithm=cispo",
        "study.name=smoke",
        "trainer.total_steps=4",
        "trainer.validate_every=4",
    ]
    controller = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    attempt = lambda: next(study.glob("trials/*/attempts/1"), None)  # noqa: E731
    wait_for(lambda: attempt() and (attempt() / "metrics.jsonl").exists())
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    command_line = " ".join((attempt() / "overrides.txt").read_text().split())
    assert "actor_rollout_ref.actor.policy_loss.loss_mode=cispo" in command_line
    verl = [p for p in psutil.process_iter(["cmdline"]) if "verl.trainer.main_ppo" in (p.info["cmdline"] or [])]
    assert verl, "it is verl's own entry point, and it goes on without the controller"

    resumed = subprocess.run([*HYSWEEP, "resume", "outputs/smoke"], capture_output=True, text=True, timeout=LIMIT_S)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    [trial] = json.loads(
        subprocess.run(
            [*HYSWEEP, "status", "outputs/smoke", "--json"], capture_output=True, text=True, check=True
        ).stdout
    )["trials"]
    assert (trial["cause"], trial["attempts"], trial["step"]) == ("completed", 1, 4)

    rows = [json.loads(line) for line in (attempt() / "metrics.jsonl").read_text().splitlines()]
    metrics = {row["step"]: row["data"] for row in rows}
    for step in (1, 2, 3, 4):
        assert 0 <= metrics[step]["critic/score/mean"] <= 1
        assert metrics[step]["actor/grad_norm"] > 0, "the model is updated"
        assert metrics[step]["training/rollout_probs_diff_max"] < 1e-3, "the rollout has the actor's weights"
    assert any(name.startswith("val-core/tiny_copy/") for name in metrics[4])
    assert (study / "trials").joinpath(trial["directory"], "checkpoints", "latest_checkpointed_iteration.txt").exists()
    page = (study / "report.html").read_text()
    assert trial["id"] in page and "cispo" in page
    assert left_over(study) == []


def test_a_cancelled_trial_leaves_nothing_running(study: Path, tmp_path: Path) -> None:
    command = [*HYSWEEP, "run", "study.name=smoke", "trainer.total_steps=50"]
    controller = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    wait_for(lambda: len(left_over(study)) > 3)
    os.killpg(controller.pid, signal.SIGINT)  # Ctrl-C
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 130
    assert "hysweep resume outputs/smoke" in out and "hysweep cancel outputs/smoke" in out
    assert left_over(study), "leaving stops nothing"
    cancelled = subprocess.run([*HYSWEEP, "cancel", "outputs/smoke"], capture_output=True, text=True, timeout=150)
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    assert "stopped 1 of 1" in cancelled.stdout
    wait_for(lambda: left_over(study) == [], 20)
    status = subprocess.run([*HYSWEEP, "status", "outputs/smoke", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(status.stdout)["trials"][0]["cause"] == "cancelled"
