"""A file of a study of which somebody has changed a field: the study goes on to its end, and runs nothing twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hysweep.compose import Composer
from hysweep.study.controller import Controller
from hysweep.track import Cause
from tests.study.fake import FakeLauncher
from tests.study.test_controller import begin, causes, finish, rising

TRIAL = "trials/0000-*"


@pytest.mark.parametrize("odd", [[], "x", True, 10**400, {"a": 1}])
@pytest.mark.parametrize(
    ("file", "field"),
    [
        (f"{TRIAL}/attempts/1/job.json", "nodes"), (f"{TRIAL}/attempts/1/job.json", "timeout_min"),
        (f"{TRIAL}/attempts/1/node.json", "pid"), (f"{TRIAL}/attempts/1/end.json", "ended"),
        (f"{TRIAL}/state.json", "attempt"), (f"{TRIAL}/state.json", "rungs"), (f"{TRIAL}/state.json", "values"),
        ("ledger.jsonl", "gpu_hours"),
    ],
)  # fmt: skip
def test_a_study_goes_on_beside_a_field_that_holds_something_else(
    composer: Composer, file: str, field: str, odd: Any
) -> None:
    directory, fake = begin(composer, "rollout.n=2,4", "study.max_parallel=2"), FakeLauncher(rising)
    with Controller(directory, launchers=lambda _: fake) as controller:
        while not (found := list(directory.path.glob(file))):
            controller.tick()
    (path,) = found
    told = json.loads(path.read_text().splitlines()[0] if path.suffix == ".jsonl" else path.read_text())
    path.write_text(json.dumps(told | {field: odd}) + "\n")
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 2
    assert len(fake.submitted) == len(set(fake.submitted)) == 2
