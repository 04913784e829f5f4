"""The whole road with nothing faked: real verl, real Ray, a tiny Hy3, as a person would run it."""

from __future__ import annotations

import contextlib
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


def start(*words: str) -> subprocess.Popen[str]:
    """A controller in a session of its own, which hears Ctrl-C, as in a terminal."""
    return subprocess.Popen(
        [*HYSWEEP, "run", "study.name=smoke", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HYSWEEP, *words], capture_output=True, text=True, timeout=LIMIT_S)


def the_trial() -> dict:
    [trial] = json.loads(ask("status", "outputs/smoke", "--json").stdout)["trials"]
    return trial


@pytest.fixture
def study(tmp_path: Path):
    """A place to run in; whatever a failing test left running is stopped."""
    yield tmp_path / "outputs" / "smoke"
    ask("cancel", "outputs/smoke")


def left_over(study: Path) -> list[str]:
    """Processes that belong to a study's attempts: the node marks all that it starts."""
    found = []
    for process in psutil.process_iter(["pid", "name"]):
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("HYSWEEP_ATTEMPT", "").startswith(str(study)):
                found.append(f"{process.pid} {process.info['name']}")
    return found


def wait_for(what, seconds: float = LIMIT_S) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.5)


def test_a_real_trial_outlives_its_controller_and_learns(study: Path) -> None:
    """Four steps of real verl. The controller is killed in the middle; `resume` finds the job and its result."""
    controller = start("algorithm=cispo", "trainer.total_steps=4", "trainer.validate_every=4")
    wait_for(lambda: list(study.glob("trials/*/attempts/1/metrics.jsonl")))
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    [attempt] = study.glob("trials/*/attempts/1")
    assert "actor_rollout_ref.actor.policy_loss.loss_mode=cispo" in (attempt / "overrides.txt").read_text()
    running = [
        p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if str(study) in " ".join(p.info["cmdline"] or [])
    ]
    assert any("verl.trainer.main_ppo" in line for line in running), "verl's own entry point goes on alone"

    resumed = ask("resume", "outputs/smoke")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    trial = the_trial()
    assert (trial["cause"], trial["attempts"], trial["step"]) == ("completed", 1, 4)

    rows = [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]
    metrics = {row["step"]: row["data"] for row in rows}
    for step in (1, 2, 3, 4):
        assert 0 <= metrics[step]["critic/score/mean"] <= 1
        assert metrics[step]["actor/grad_norm"] > 0, "the model is updated"
        assert metrics[step]["training/rollout_probs_diff_max"] < 1e-3, "the rollout has the actor's weights"
    assert any(name.startswith("val-core/tiny_copy/") for name in metrics[4])
    assert (attempt.parents[1] / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "4"
    page = (study / "report.html").read_text()
    assert trial["id"][:6] in page and "cispo" in page
    assert left_over(study) == []


def test_the_better_of_two_trials_is_promoted(study: Path) -> None:
    """Both stop after step 2; one goes on from its checkpoint, along the learning rate's schedule of all four steps."""
    space = "trainer.learning_rate=choice(1e-3,1e-4)"
    promote = ("study.promote.min_steps=2", "study.promote.reduction_factor=2", "study.max_parallel=2")
    steps = ("trainer.total_steps=4", "trainer.save_every=2", "trainer.validate_every=-1")
    controller = start("-m", space, *promote, *steps, "verl.actor_rollout_ref.actor.optim.lr_scheduler_type=cosine")
    out, _ = controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 0, out
    trials = json.loads(ask("status", "outputs/smoke", "--json").stdout)["trials"]
    assert sorted((t["cause"], t["attempts"]) for t in trials) == [("completed", 2), ("rung", 1)]
    [best] = [t for t in trials if t["cause"] == "completed"]
    [path] = study.glob(f"trials/{best['number']:04d}-*")
    rows = [[json.loads(line) for line in (path / "attempts" / n / "metrics.jsonl").open()] for n in ("1", "2")]
    first, second = ([row["step"] for row in attempt] for attempt in rows)
    assert first[:2] == [1, 2] and second == [3, 4], "what is stopped may have made a step more by then"
    rates = list({row["step"]: row["data"]["actor/lr"] for attempt in rows for row in attempt}.values())
    assert sorted(rates, reverse=True) == rates and len(set(rates)) == 4, "one schedule, over both attempts"
    assert left_over(study) == []


def test_a_cancelled_trial_leaves_nothing_running(study: Path) -> None:
    controller = start("trainer.total_steps=50")
    wait_for(lambda: len(left_over(study)) > 3)
    os.killpg(controller.pid, signal.SIGINT)  # Ctrl-C
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 130
    assert "hysweep resume outputs/smoke" in out and "hysweep cancel outputs/smoke" in out
    assert left_over(study), "leaving stops nothing"
    cancelled = ask("cancel", "outputs/smoke")
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    assert "stopped 1 of 1" in cancelled.stdout
    wait_for(lambda: left_over(study) == [], 20)
    assert the_trial()["cause"] == "cancelled"
