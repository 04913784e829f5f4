"""Study directories as the controller and the node leave them, written through `hysweep.track`."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from hysweep.compose import SHIPPED
from hysweep.track import Booking, Cause, Claim, End, Phase, State, Status, StudyDirectory, TrialDirectory

START = 1_764_500_000.0
METRIC = "val-core/tiny_copy/acc/mean@1"


@dataclass
class Study:
    """A study directory in the making. Every trial that is added starts a minute after the one before."""

    directory: StudyDirectory
    total_steps: int = 40
    gpus: int = 1
    gpu: str | None = None
    clock: float = START
    count: int = field(default=0)

    @property
    def path(self) -> Path:
        return self.directory.path

    def trial(
        self,
        point: Mapping[str, Any],
        cause: Cause | None = Cause.COMPLETED,
        *,
        steps: int | None = None,
        value: float | None = None,
        reason: str = "",
        lines: Sequence[str] = (),
        phase: Phase = Phase.UNKNOWN,
        rows: Sequence[Mapping[str, Any]] | None = None,
        best: float = 0.8,
        status: Status = Status.ENDED,
        earlier: Sequence[Cause] = (),
    ) -> TrialDirectory:
        """One trial. `cause=None` with `status=SUBMITTED` leaves it running; `earlier` are ends of attempts before."""
        number, self.count = self.count, self.count + 1
        id = f"{random.Random(number).getrandbits(48):012x}"
        trial = self.directory.add_trial(number, id, self.config(point), dict(point))
        self.directory.log("asked", trial=number, point=dict(point))
        if status is Status.CREATED:
            return trial
        started = self.clock + 60 * number
        if rows is None:
            rows = curve_rows(number, steps if steps is not None else self.total_steps, best)
        for k, ended_by in enumerate([*earlier, cause], start=1):
            attempt = trial.attempt(k)
            attempt.prepare(
                {
                    "module": "verl.trainer.main_ppo",
                    "overrides": ["a=1"],
                    "env": {},
                    "nodes": 1,
                    "gpus_per_node": self.gpus,
                    "total_steps": self.total_steps,
                }
            )
            attempt.claim(Claim(host="node1", pid=100 + number, created=started))
            is_last = k == len(earlier) + 1
            written = rows if is_last else rows[: max(1, len(rows) // 2)]
            write_metrics(attempt.metrics_file, written)
            attempt.driver_log.write_text("step:1\n")
            seconds = 30 + 9.0 * len(written)
            if ended_by is not None:
                attempt.finish(End(ended_by, phase, 0, reason, tuple(lines), started=started, ended=started + seconds))
                self.directory.book(Booking(number, k, ended_by, self.gpus, seconds * self.gpus / 3600))
            started += seconds + 5
        is_good = cause in (Cause.COMPLETED, Cause.PRUNED)
        last = next((r["data"][METRIC] for r in reversed(rows) if METRIC in r["data"]), None)
        trial.save(
            State(
                status=status,
                attempt=len(earlier) + 1,
                job_id=str(4000 + number),
                cause=cause,
                reason=reason,
                value=value if value is not None else last if is_good and cause is Cause.COMPLETED else None,
            )
        )
        if cause is not None:
            self.directory.log(str(cause), trial=number, reason=reason)
        return trial

    def config(self, point: Mapping[str, Any]) -> str:
        config: dict[str, Any] = {
            "model": {"name": "hy3_tiny", "path": "embedded:model", "trust_remote_code": False},
            "algorithm": {"name": "grpo", "adv_estimator": "grpo", "loss_mode": "vanilla", "clip_ratio_high": 0.28},
            "rollout": {"name": "embedded", "n": 8, "temperature": 1.0},
            "trainer": {"name": "tiny", "learning_rate": 1e-3, "total_steps": self.total_steps, "seed": 1},
            "cluster": {"name": "local", "nodes": 1, "gpus_per_node": self.gpus, "gpu": self.gpu},
        }
        for key, value in point.items():
            group, _, name = key.partition(".")
            if name:
                config.setdefault(group, {})[name] = value
            elif group == "algorithm":
                loss = value if value in ("gspo", "cispo") else "vanilla"
                config["algorithm"] |= {"name": value, "loss_mode": loss}
        return yaml.safe_dump(config, sort_keys=False)


def write_metrics(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def curve_rows(seed: int, steps: int, best: float = 0.8) -> list[dict[str, Any]]:
    """What verl's file logger writes: a validation at step 0 and every tenth, the rest at each step."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = [{"step": 0, "data": {METRIC: 0.05}}]
    for step in range(1, steps + 1):
        score = best * (1 - math.exp(-2.5 * step / max(steps, 30))) + rng.gauss(0, 0.025)
        data = {
            "critic/score/mean": score,
            "actor/entropy": 1.9 * math.exp(-step / 60) + rng.gauss(0, 0.02),
            "actor/grad_norm": abs(rng.gauss(0.6, 0.15)) + (8 if step == 3 else 0),
            "response_length/mean": 9 + 4 * step / steps + rng.gauss(0, 0.3),
            "training/rollout_probs_diff_mean": abs(rng.gauss(2e-6, 5e-7)),
            "perf/throughput": 900 + rng.gauss(0, 40),
            "perf/mfu/actor": 0.31,
            "actor/perf/max_memory_allocated_gb": 61.0,
            "timing_s/step": 9.0,
            "training/global_step": step,
        }
        if step % 10 == 0 or step == steps:
            data[METRIC] = min(1.0, score + 0.05)
        rows.append({"step": step, "data": data})
    return rows


def study_yaml(name: str, **changes: Any) -> str:
    asked: dict[str, Any] = {
        "study": {
            "name": name,
            "metric": METRIC,
            "direction": "maximize",
            "n_trials": 6,
            "max_parallel": 2,
            "pruner": {"name": "median", "metric": "critic/score/mean", "min_steps": 5},
        },
        "space": {
            "algorithm": "choice(grpo, rloo, gspo, cispo)",
            "trainer.learning_rate": "tag(log, interval(1e-4, 1e-2))",
        },
        "overrides": ["trainer.total_steps=40", "sweep=quickstart"],
        "command": "hysweep run sweep=quickstart trainer.total_steps=40",
        "versions": {"hysweep": "0.1.0", "verl": "0.9.1", "python": "3.11.7"},
        "created": START,
    }
    asked["study"] |= changes.pop("study", {})
    return yaml.safe_dump(asked | changes, sort_keys=False)


ROOT = (SHIPPED / "config.yaml").read_text()
MakeStudy = Callable[..., Study]


@pytest.fixture
def make_study(tmp_path: Path) -> MakeStudy:
    def make(name: str = "demo", text: str | None = None, **settings: Any) -> Study:
        asked = {k: settings.pop(k) for k in list(settings) if k not in Study.__dataclass_fields__}
        directory = StudyDirectory(tmp_path / name)
        directory.create(text if text is not None else study_yaml(name, **asked), {"config.yaml": ROOT})
        return Study(directory, **settings)

    return make


def fill_quickstart(study: Study) -> Study:
    """Four algorithms: two completed, one pruned, one out of memory, one running, one waiting."""
    study.trial({"algorithm": "grpo", "trainer.learning_rate": 1e-3}, best=0.72)
    study.trial({"algorithm": "cispo", "trainer.learning_rate": 1.2e-3}, best=0.86)
    study.trial(
        {"algorithm": "rloo", "trainer.learning_rate": 3.1e-4},
        Cause.PRUNED,
        steps=12,
        best=0.3,
        reason="critic/score/mean 0.1873 at step 12 is worse than the median 0.4211 of 2 others",
    )
    study.directory.log("prune", trial=2, step=12, value=0.1873, median=0.4211, compared_with=[0, 1])
    study.trial(
        {"algorithm": "gspo", "trainer.learning_rate": 4e-3},
        Cause.CUDA_OOM,
        steps=3,
        phase=Phase.UPDATE,
        reason="CUDA out of memory in the update",
        lines=["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.", "  at ppo_loss"],
    )
    study.trial({"algorithm": "gspo", "trainer.learning_rate": 7e-4}, None, steps=21, best=0.6, status=Status.SUBMITTED)
    study.trial({"algorithm": "cispo", "trainer.learning_rate": 2.5e-3}, None, status=Status.CREATED)
    return study


@pytest.fixture
def quickstart(make_study: MakeStudy) -> Study:
    return fill_quickstart(make_study("quickstart"))


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b[31m\u202e{{7*7}}${jndi:x}"


@pytest.fixture
def hostile(make_study: MakeStudy) -> Study:
    """Every text that a user, a model or a log supplies tries to break out."""
    study = make_study(
        "hostile",
        text=study_yaml(
            HOSTILE,
            study={"metric": METRIC},
            space={f"algorithm{HOSTILE}": HOSTILE, "algorithm": HOSTILE},
            overrides=[HOSTILE, f"data.name={HOSTILE}"],
            command=HOSTILE,
            versions={HOSTILE: HOSTILE},
        ),
    )
    study.trial({"algorithm": HOSTILE, "trainer.learning_rate": 1e-3, HOSTILE: HOSTILE})
    study.trial({"algorithm": HOSTILE + "2", "trainer.learning_rate": 2e-3}, Cause.PRUNED, steps=5, reason=HOSTILE)
    study.trial(
        {"algorithm": HOSTILE, "trainer.learning_rate": 3e-3}, Cause.UNKNOWN, reason=HOSTILE, lines=[HOSTILE] * 3
    )
    study.directory.log("prune" + HOSTILE, trial=1, why=HOSTILE)
    return study
