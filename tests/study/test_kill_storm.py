"""SIGKILL at random instants loses no trial, runs none twice, and changes nothing of the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# all of it in `make nightly`
KILLS, TRIALS = (100, 200) if os.environ.get("HYSWEEP_NIGHTLY") else (12, 40)


@pytest.mark.slow
def test_a_storm_of_kills_changes_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.study.kill_storm", str(tmp_path), str(KILLS), str(TRIALS), "1"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    came = json.loads(done.stdout.splitlines()[-1])
    assert came["hit"] > KILLS * 0.6, "most kills came before the end"
    assert len(came["whole"]["trials"]) == TRIALS
    assert came["stormy"]["trials"] == came["whole"]["trials"]
    assert came["stormy"]["ledger"] == came["whole"]["ledger"]
    assert came["stormy"]["told"] == came["whole"]["told"]
    assert not came["stormy"]["twice"]
    print(f"{came['hit']} of {KILLS} kills before the end; undisturbed {came['seconds']:.1f} s")
