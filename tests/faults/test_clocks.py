"""Clocks that disagree: of the nodes, of the file server, of the scheduler, of whoever drives the study."""

from __future__ import annotations

import itertools
import math
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hysweep.compose import Composer
from hysweep.launch import JobState, JobStatus
from hysweep.launch.local import _state
from hysweep.launch.node import Node, Stopped
from hysweep.launch.processes import own_claim
from hysweep.report import read_study
from hysweep.schema.job import Job
from hysweep.study import define
from hysweep.study.controller import Controller
from hysweep.study.ledger import booking, worst_case
from hysweep.track import AttemptDirectory, Cause, Claim, End, files
from tests.study.fake import FakeLauncher

DAY = 86400.0
TIME = st.none() | st.floats(0, 4e9) | st.sampled_from([1.0, time.time(), time.time() - DAY, time.time() + DAY])


@settings(max_examples=200)
@given(created=TIME, started=TIME, ended=TIME, by_scheduler=st.tuples(TIME, TIME, TIME), step_s=st.floats(-1e9, 1e9))
def test_no_clock_books_more_than_the_job_s_time_or_less_than_none(
    tmp_path_factory: pytest.TempPathFactory, created, started, ended, by_scheduler, step_s: float
) -> None:
    attempt = AttemptDirectory(tmp_path_factory.mktemp("t") / "trials" / "0001-abc" / "attempts" / "1")
    job = Job("m", (), nodes=2, gpus_per_node=4, timeout_min=60)
    attempt.prepare(job.as_dict())
    if created is not None:
        attempt.claim(Claim("node1", 1, created))
    if started is not None or ended is not None:
        attempt.finish(End(Cause.NODE_FAIL, started=started or 0.0, ended=ended or 0.0))
    attempt.metrics_file.write_text(f'{{"step": 1, "data": {{"timing_s/step": {step_s}}}}}\n')
    submitted, began, over = by_scheduler
    state = JobState(JobStatus.ENDED, submitted=submitted, started=began, ended=over)
    found = booking(attempt, job, Cause.NODE_FAIL, state, math.inf)
    parts = (found.boot, found.productive, found.wasted)
    assert all(math.isfinite(x) and x >= 0 for x in (found.gpu_hours, found.queued_h, *parts))
    assert math.isclose(sum(parts), found.gpu_hours, rel_tol=1e-6, abs_tol=1e-6)
    if not (began and over):  # the scheduler's own record is believed
        assert found.gpu_hours <= worst_case(job) * (1 + 1e-9)


class Skewed(FakeLauncher):
    """Each node has a clock of its own, up to a day off, and sets it while a job runs."""

    def __init__(self) -> None:
        super().__init__(lambda point, attempt: [0.1, 0.2, 0.3], {(1, 1): Cause.NODE_FAIL})
        self.off = itertools.cycle([DAY, -DAY, 0.0, -3600.0, 7200.0])

    def submit(self, attempt: AttemptDirectory) -> str:
        if attempt.claim(Claim("fake", 1, time.time() + next(self.off))):
            self.submitted.append(str(attempt.path))
            self.jobs[str(attempt.path)] = 0
        return str(attempt.path)

    def _finish(self, id: str, cause: Cause) -> None:
        now = time.time()
        self._run(id).finish(End(cause, started=now + next(self.off), ended=now + next(self.off)))


def test_a_study_on_nodes_whose_clocks_are_off(composer: Composer) -> None:
    """No budget is used up by a clock, no trial is lost to it, and what is shown is no nonsense."""
    words = ["rollout.n=2,4,8", "study.name=s", "study.budget_gpu_hours=20", "cluster.timeout_min=60"]
    definition = define(composer.compose([*words, "study.max_parallel=2"]))
    directory = definition.directory
    directory.create(definition.to_yaml(), composer.snapshot())
    fake = Skewed()
    with Controller(directory, launchers=lambda name: fake) as controller:
        while controller.tick():
            assert 0 <= controller.gpu_hours() <= 20
            assert all(0 <= t.seconds <= 3 * DAY for t in read_study(directory).trials)
    assert [t.state().cause for t in directory.trials()] == [Cause.COMPLETED] * 3
    assert len(fake.submitted) == len(set(fake.submitted)) == 4
    most = worst_case(Job.from_dict(directory.trials()[0].attempt(1).job() or {}))
    assert all(0 <= e.gpu_hours <= most for e in directory.ledger())


def test_a_file_server_that_is_hours_behind_ends_no_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = AttemptDirectory(tmp_path / "trials" / "0001-abc" / "attempts" / "1")
    attempt.prepare(Job("m", ()).as_dict())
    for behind in (DAY, 0.0, -DAY):
        clock = itertools.count(time.time() - behind)
        monkeypatch.setattr(AttemptDirectory, "last_progress", lambda self, clock=clock: next(clock))
        node = Node(attempt, own_claim())
        node.job = Job("m", (), hung_after_min=0.002)  # type: ignore[arg-type]
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            node._watch()
        monkeypatch.setattr(AttemptDirectory, "last_progress", lambda self, behind=behind: time.time() // DAY - behind)
        with pytest.raises(Stopped) as stopped:
            while time.monotonic() < until + 10:
                node._watch()
        assert stopped.value.cause is Cause.HUNG


@pytest.mark.parametrize("ahead", [DAY, -DAY])
def test_a_node_elsewhere_is_not_given_up_by_one_s_own_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """It would be run a second time beside itself."""
    attempt = AttemptDirectory(tmp_path / "trials" / "0001-abc" / "attempts" / "1")
    attempt.prepare(Job("m", ()).as_dict())
    attempt.claim(Claim(f"not-{socket.gethostname()}", 1, time.time()))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    assert _state(attempt).state is JobStatus.RUNNING
    files.os.utime(attempt.path / "node.json", (real() - DAY,) * 2)
    assert _state(attempt).cause is Cause.NODE_FAIL
    assert not list(attempt.path.glob(".now*"))
