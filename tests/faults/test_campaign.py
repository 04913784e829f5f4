"""Whatever goes wrong: no trial is lost, none runs twice, causes are named right, the study ends as it should."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hysweep.compose import Composer
from hysweep.study import definition as definitions
from hysweep.track import Cause

from .campaign import Weather, run

NIGHT_S = 3600 if os.environ.get("HYSWEEP_NIGHTLY") else 0
TRIALS = 8
# What a study does besides: nothing, so that its result is that of calm weather; it prunes; it promotes.
KINDS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "prunes": ("study.pruner={name: percentile, percentile: 50, min_steps: 3, startup_trials: 2}",),
    "promotes": ("study.promote={min_steps: 2, reduction_factor: 2}",),
}


@pytest.mark.slow
@pytest.mark.timeout(NIGHT_S + 300)
def test_a_campaign(composer: Composer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Study after study, each by its own seed: an hour of them in `make nightly`, two seeds otherwise."""
    monkeypatch.setattr(definitions, "Composer", lambda *a, **k: composer)  # composes each point once
    until, seed = time.monotonic() + NIGHT_S, int(os.environ.get("HYSWEEP_SEED", "1"))
    first, hits = seed, Counter[str]()
    while seed < first + 2 or time.monotonic() < until:
        for kind, words in KINDS.items():
            weather = Weather(seed, strength=1.0 + seed % 4)
            found = run(composer, tmp_path, f"{kind}-{seed}", seed, weather, f"study.n_trials={TRIALS}", *words)
            judge(found, f"HYSWEEP_SEED={seed}, {kind}")
            if kind == "plain":
                calm = run(composer, tmp_path, f"calm-{seed}", seed, Weather(seed, 0.0), f"study.n_trials={TRIALS}")
                for what in ("points", "causes", "values", "steps", "told"):
                    assert found[what] == calm[what], f"HYSWEEP_SEED={seed}: {what}"
            hits.update(found["hits"])
        seed += 1
    print(f"{(seed - first) * len(KINDS)} studies; {dict(hits)}")
    assert len(hits) >= 9, "every kind of weather was had"


def judge(found: dict[str, Any], said: str) -> None:
    """What holds in any weather."""
    assert not found["open"], said
    assert len(found["causes"]) == TRIALS, said
    assert set(found["causes"].values()) <= {Cause.COMPLETED, Cause.PRUNED, Cause.RUNG}, (said, found["causes"])
    assert len(set(found["jobs"])) == len(found["jobs"]), f"{said}: one attempt, one job"
    assert found["booked"] == found["jobs"], f"{said}: each job is booked once"
    for attempt, end in found["ends"].items():
        # the launcher's word, but for what the study itself had decided to end: jobs that it cancels are killed
        booked = found["by_attempt"][attempt]
        assert booked in (end, Cause.PRUNED) and booked is not Cause.KILLED, (said, attempt, booked, end)
    for number, (state, values) in found["told"].items():
        cause, value = found["causes"][number], found["values"][number]
        assert state == ("PRUNED" if cause is Cause.PRUNED else "COMPLETE"), (said, number)
        # under promotion the sampler knows all trials by their value at the first rung
        assert cause is not Cause.COMPLETED or values == [value] or "promotes" in said, (said, number)
    assert math.isclose(found["hours"], found["used"], rel_tol=0.02, abs_tol=0.02), said
