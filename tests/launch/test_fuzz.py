"""What the scheduler and the trainer say, damaged in every way: read, passed over or refused; nothing raises."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hysweep.launch import JobStatus, ending, queue
from hysweep.launch.allocation import Allocation
from hysweep.launch.protocol import Refused
from hysweep.launch.slurm import blamed
from hysweep.schema import BadInput, Cluster
from hysweep.schema.hostlist import hosts
from hysweep.track import AttemptDirectory, curve_of
from tests.fuzzing import damaged, examples, texts_of

SQUEUE = """7|RUNNING|node[1-2]|2026-11-30T00:45:12|2026-12-01T00:45:12|2026-11-30T00:44:00|None
8|PENDING||N/A|N/A|2026-11-30T00:44:00|Resources
9_3|COMPLETING|(null)|2026-11-30T00:45:12|N/A|N/A|(null)"""
SACCT = """7|FAILED|n2|2026-11-30T00:46:12|2026-11-30T00:47:12|2026-11-30T00:44:00|1:0
8|CANCELLED by 1000|None assigned|Unknown|Unknown|Unknown|0:125"""
TIMES = ["0001-01-01T00:00:00", "9999-12-31T23:59:59", "2026-11-30T00:45:12+99:99", "N/A", "1970-01-01", "2026-11-30"]


@examples(300)
@given(texts_of("n", "[", "]", ",", "-", "0", "1-3", "001-100", "[1-900]", " ", "é", "²"))
@example("n[1-100000][1-100000][1-100000]")
@example("n[0-" + "9" * 5000 + "]")
def test_any_list_of_nodes_is_read_or_refused(text: str) -> None:
    try:
        found = hosts(text)
    except BadInput as e:
        assert len(e.problems) == 1
        return
    assert found and all(not set(name) & set("[],") and name for name in found)


@examples(100)
@given(st.dictionaries(
    st.sampled_from(["SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_GPUS_ON_NODE",
                     "SLURM_CPUS_ON_NODE", "SLURM_RESTART_COUNT"]),
    texts_of("n[1-2]", "2", "-1", "", ",", "n1", most=3),
))  # fmt: skip
def test_any_environment_of_a_task_is_read_or_refused(said: dict[str, str]) -> None:
    try:
        found = Allocation.of({"SLURM_JOB_NODELIST": "n[1-2]"} | said)
    except BadInput:
        return
    assert found.name in found.nodes


@examples(200)
@given(
    damaged(SQUEUE)
    | damaged(SACCT)
    | st.lists(
        st.tuples(texts_of("7", "_1", "+0", "٣", most=3), st.sampled_from(sorted(queue.STATES)) | st.text(max_size=9))
        .flatmap(lambda t: st.tuples(st.just(t[0]), st.just(t[1]), st.text(max_size=4),
                                     *[st.sampled_from(TIMES) | st.text(max_size=9)] * 3, st.text(max_size=9)))
        .map("|".join)
    ).map("\n".join)
)  # fmt: skip
def test_whatever_the_scheduler_says_is_a_state_or_nothing(text: str) -> None:
    for record in queue.read_squeue(text) + queue.read_sacct(text):
        assert record.state in queue.STATES
        assert record.job.isascii()
        state = record.as_state()
        assert state.state in JobStatus
        for at in (state.started, state.ended, state.submitted, state.expected):
            assert at is None or math.isfinite(at)


@examples(200)
@given(st.text(max_size=200) | texts_of("sbatch: error: ", "invalid ", "account", "partition", "\n", "QOSMax"))
def test_any_refusal_has_a_setting_or_none(text: str) -> None:
    setting = blamed(Refused(text), Cluster(name="x")).setting
    assert setting is None or setting.startswith("cluster.")


LINE = json.dumps({"step": 3, "data": {"critic/score/mean": 0.5, "timing_s/step": 1.25}})
VALUE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.integers())
ROW = st.fixed_dictionaries({}, optional={"step": VALUE, "data": VALUE | st.dictionaries(st.text(max_size=9), VALUE)})


@examples(150)
@given(st.lists(ROW.map(json.dumps) | damaged(LINE) | st.text(max_size=20), max_size=6), st.binary(max_size=8))
def test_any_metrics_are_numbers_by_whole_steps(tmp_path_factory, lines: list[str], torn: bytes) -> None:  # type: ignore[no-untyped-def]
    attempt = AttemptDirectory(tmp_path_factory.mktemp("t") / "trials" / "0001-a" / "attempts" / "1")
    attempt.path.mkdir(parents=True)
    text = "\n".join([*lines, LINE]).encode("utf-8", "surrogatepass")
    attempt.metrics_file.write_bytes(text + b"\n" + torn)
    rows = attempt.metrics()
    assert (3, {"critic/score/mean": 0.5, "timing_s/step": 1.25}) in rows
    steps = attempt.trial.metrics()
    assert all(isinstance(step, int) for step in steps)
    assert all(isinstance(value, (int, float)) for _, data in rows for value in data.values())
    assert all(math.isfinite(v) or True for _, v in curve_of(steps, "critic/*"))


@examples(150)
@given(
    texts_of("Traceback (most recent call last):\n", "torch.OutOfMemoryError: ", "CUDA out of memory", "\n", "  File ",
             "NCCL", "ValueError: ", "\x1b[31m", "(TaskRunner pid=1)", "ray.exceptions.", "Killed", most=20),
    st.none() | st.integers(-70, 300),
)  # fmt: skip
def test_any_log_has_one_cause(text: str, code: int | None) -> None:
    end = ending.classify(text.splitlines(), code, has_trained=bool(code))
    assert end.cause and "\n" not in end.reason and len(end.reason) < 4000


@pytest.mark.parametrize("name", ["job.json", "end.json", "node.json", "state.json", "point.json", "trial.yaml"])
@examples(40)
@given(damaged=st.binary(max_size=30) | st.recursive(VALUE, lambda i: st.dictionaries(st.text(max_size=5), i)).map(
    lambda v: json.dumps(v).encode()))  # fmt: skip
def test_any_record_of_an_attempt_is_read_or_is_none(tmp_path_factory, name: str, damaged: bytes) -> None:  # type: ignore[no-untyped-def]
    attempt = AttemptDirectory(tmp_path_factory.mktemp("t") / "trials" / "0001-a" / "attempts" / "1")
    attempt.path.mkdir(parents=True)
    for place in (attempt.path, attempt.trial.path):
        Path(place, name).write_bytes(damaged)
    assert attempt.end() is None or attempt.end().cause  # type: ignore[union-attr]
    assert attempt.claimed() is None or isinstance(attempt.claimed().pid, int)  # type: ignore[union-attr]
    assert attempt.job() is None or isinstance(attempt.job(), dict)
    assert isinstance(attempt.trial.point(), dict)
    assert attempt.trial.state().status
