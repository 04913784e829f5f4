"""The local launcher: what runs, runs once, outlives its submitter, and ends with all that it started."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hysweep.launch import JobStatus, launcher, node, processes, roll
from hysweep.launch.allocation import Allocation
from hysweep.launch.local import LocalLauncher
from hysweep.launch.node import SILENT, STOP
from hysweep.schema import BadInput, Cluster
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause, Claim, End, Phase
from tests.launch.attempts import BARE, end_of, everything, over, runs, wait_for

New = Callable[..., AttemptDirectory]


def running(attempt: AttemptDirectory) -> AttemptDirectory:
    wait_for(lambda: runs(attempt) and everything(attempt))
    return attempt


def kill(attempt: AttemptDirectory, number: int) -> None:
    claim = attempt.claimed()
    assert claim
    os.kill(claim.pid, number)


# --- one attempt, from submit to end


def test_fewer_cpus_than_the_trainers_processes_take_end_it_before_it_begins(
    local: LocalLauncher, new_attempt: New
) -> None:
    """Case 23: Ray would never place the last of them, and nothing but the clock would end the wait."""
    short, enough = new_attempt("exit=0", ray_cpus=5, least_cpus=6), new_attempt("exit=0", ray_cpus=6, least_cpus=6)
    assert over(local, local.submit(short)).cause is Cause.CONFIG_ERROR and runs(short) == 0
    assert "cluster.cpus_per_node=6" in end_of(short).reason
    assert over(local, local.submit(enough)).cause is Cause.COMPLETED
    given = new_attempt("exit=0", least_cpus=34)
    who = Claim("n1", os.getpid(), 0.0)
    assert given.claim(who)
    end = node.Node(given, who, allocation=Allocation(0, ("n1",), cpus=1)).run()
    assert (end.cause, "n1 offers 1 CPUs" in end.reason) == (Cause.CONFIG_ERROR, True), "those of the allocation"


def test_a_job_that_completes(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("say=hello", "exit=0")
    before = time.time()
    job_id = local.submit(attempt)
    assert attempt.claimed() is not None, "submit returns once the attempt is taken"
    state = over(local, job_id)
    assert (state.state, state.cause) == (JobStatus.ENDED, Cause.COMPLETED)
    end = end_of(attempt)
    assert (end.cause, end.exit_code) == (Cause.COMPLETED, 0)
    assert before <= end.started <= end.ended <= time.time()
    assert "hello" in attempt.driver_log.read_text()
    wait_for(lambda: not everything(attempt))


def test_a_node_in_the_foreground(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("exit=0")
    subprocess.run([sys.executable, *BARE, str(attempt.path)], check=True, timeout=60)
    assert end_of(attempt).cause is Cause.COMPLETED, "it returns when all is over"
    usage = subprocess.run([sys.executable, *BARE, "/nowhere"], capture_output=True, text=True)
    assert (usage.returncode, "usage" in usage.stderr) == (2, True)


def test_a_job_that_fails(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("raise=the sky fell")
    state = over(local, local.submit(attempt))
    end = end_of(attempt)
    assert state.reason == end.reason == "RuntimeError: the sky fell"
    assert (end.cause, end.phase, end.exit_code) == (Cause.UNKNOWN, Phase.START, 1)


def test_the_exit_code_of_a_signal_is_what_a_shell_says(local: LocalLauncher, new_attempt: New) -> None:
    attempt = running(new_attempt_running(local, new_attempt, "sleep=60"))
    os.kill(int((attempt.path / "ran").read_text()), signal.SIGKILL)
    over(local, local.submit(attempt))
    assert (end_of(attempt).cause, end_of(attempt).exit_code) == (Cause.KILLED, 137)


def new_attempt_running(local: LocalLauncher, new_attempt: New, *arguments: str, **changes: object) -> AttemptDirectory:
    attempt = new_attempt(*arguments, **changes)
    local.submit(attempt)
    return running(attempt)


@pytest.mark.parametrize(
    ("metrics", "exit_code", "cause"),
    [
        ('{"step": 3, "data": {"critic/score/mean": null}}', 0, Cause.DIVERGED),
        ('{"step": 3, "data": {"actor/pg_loss": NaN}}', 1, Cause.DIVERGED),
        ('{"step": 3, "data": {"actor/pg_loss": null}}', 0, Cause.COMPLETED),
        ('{"step": 3, "data": {"critic/score/mean": 0.5}}', 1, Cause.UNKNOWN),
    ],
)
def test_a_loss_that_is_no_number(
    local: LocalLauncher, new_attempt: New, metrics: str, exit_code: int, cause: Cause
) -> None:
    attempt = new_attempt(f"metrics={metrics}", f"exit={exit_code}")
    over(local, local.submit(attempt))
    assert end_of(attempt).cause is cause


def test_the_time_limit(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("offspring", "sleep=600", timeout_min=0.03)
    over(local, local.submit(attempt))
    assert end_of(attempt).cause is Cause.TIMEOUT
    wait_for(lambda: not everything(attempt))


def test_a_version_that_cannot_work_is_said_before_anything_starts(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt(requires={"filelock": "<1", "psutil": ">=6", "no-such-package": "==1"})
    over(local, local.submit(attempt))
    end = end_of(attempt)
    assert (end.cause, end.phase) == (Cause.CONFIG_ERROR, Phase.START)
    assert end.reason.startswith("filelock = ") and "pip install 'filelock<1'" in end.reason
    assert runs(attempt) == 0


@pytest.mark.parametrize(
    ("named", "env", "key"),
    [("eth99", {}, "cluster.network_interface = eth99: "),
     (None, {"GLOO_SOCKET_IFNAME": "lo,eth99"}, "cluster.env.GLOO_SOCKET_IFNAME = lo,eth99: ")],
)  # fmt: skip
def test_an_interface_that_is_not_there_is_said_before_anything_starts(
    local: LocalLauncher, new_attempt: New, named: str | None, env: dict[str, str], key: str
) -> None:
    attempt = new_attempt(env=env, site=Cluster(name="x", network_interface=named))
    over(local, local.submit(attempt))
    end = end_of(attempt)
    assert (end.cause, end.phase) == (Cause.CONFIG_ERROR, Phase.START)
    assert end.reason.startswith(key) and "eth99" in end.reason and ", lo" in end.reason
    assert runs(attempt) == 0


def test_what_must_be_there_first(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("exit=0", prepare=(("-c", "open('made', 'w')"), ("-c", "open('made')")))
    over(local, local.submit(attempt))
    assert end_of(attempt).cause is Cause.COMPLETED


def test_what_must_be_there_first_and_is_not(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("exit=0", prepare=(("-c", "open('/nowhere/x.parquet')"),))
    over(local, local.submit(attempt))
    end = end_of(attempt)
    assert (end.cause, end.phase, end.exit_code) == (Cause.CONFIG_ERROR, Phase.START, 1)
    assert "/nowhere/x.parquet" in end.reason
    assert runs(attempt) == 0


def test_a_job_that_cannot_be_read(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("exit=0")
    with pytest.raises(FileNotFoundError):
        local.submit(AttemptDirectory(attempt.path.parent / "7"))
    (attempt.path / "job.json").write_text('{"module": "fake_trainer", "overrides": [], "prepare": [], "novel": 1}')
    with pytest.raises(TypeError, match="novel"):
        local.submit(attempt)


def test_the_environment(local: LocalLauncher, new_attempt: New, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RANK", "WORLD_SIZE", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("A_SECRET", "s3cret")
    monkeypatch.setenv("OF_BOTH", "the shell's")
    names = "RAY_ADDRESS,RANK,WORLD_SIZE,SLURM_JOB_ID,A_SECRET,OF_BOTH,HYSWEEP_ATTEMPT,VERL_FILE_LOGGER_PATH"
    attempt = new_attempt(f"environment={names}", env={"OF_BOTH": "the job's"})
    over(local, local.submit(attempt))
    said = dict(line.split("=", 1) for line in attempt.driver_log.read_text().splitlines())
    assert [said[n] for n in ("RAY_ADDRESS", "RANK", "WORLD_SIZE", "SLURM_JOB_ID")] == ["None"] * 4
    assert (said["A_SECRET"], said["OF_BOTH"]) == ("s3cret", "the job's")
    assert said["HYSWEEP_ATTEMPT"] == os.path.realpath(attempt.path)
    assert said["VERL_FILE_LOGGER_PATH"] == str(attempt.metrics_file)
    assert "s3cret" not in "".join(p.read_text() for p in attempt.path.iterdir() if p != attempt.driver_log)


def test_a_cluster_that_is_gone_ends_its_trainer(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt_running(local, new_attempt, "stubborn", "sleep=600")
    (attempt.path / "cluster-gone").touch()
    over(local, local.submit(attempt))
    assert end_of(attempt).cause is Cause.KILLED
    assert end_of(attempt).reason == "the cluster is gone while the trainer ran"


# --- never twice


def test_submitting_again_runs_nothing(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt_running(local, new_attempt, "sleep=1")
    assert LocalLauncher(BARE).submit(attempt) == local.find(attempt)
    over(local, local.submit(attempt))
    assert local.submit(attempt) == local.find(attempt), "nor when it is over"
    time.sleep(0.3)
    assert runs(attempt) == 1


def test_of_eight_nodes_one_runs(new_attempt: New) -> None:
    attempt = new_attempt("sleep=1")
    starters = [
        subprocess.Popen([sys.executable, *BARE, "--detach", str(attempt.path)], stderr=subprocess.DEVNULL)
        for _ in range(8)
    ]
    assert [s.wait(60) for s in starters] == [0] * 8
    wait_for(attempt.end)
    wait_for(lambda: not everything(attempt))
    assert runs(attempt) == 1
    assert end_of(attempt).cause is Cause.COMPLETED


# --- the submitter dies

CONTROLLER = """
import sys, time
from pathlib import Path
from hysweep.launch.local import LocalLauncher
from hysweep.track import AttemptDirectory
LocalLauncher(("-m", "bare_node")).submit(AttemptDirectory(Path(sys.argv[1]) / sys.argv[2]))
print("submitted", flush=True)
time.sleep(600)
"""


def controller(attempt: AttemptDirectory, late: float = 0) -> subprocess.Popen[bytes]:
    # Its arguments are not the attempt's directory, so that `everything` does not take it for a node.
    return subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(attempt.path.parent), attempt.path.name],
        env=os.environ | {"LATE_S": str(late)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def test_killed_before_it_starts_a_node(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("exit=0")
    assert local.find(attempt) is None
    over(local, local.submit(attempt))
    assert runs(attempt) == 1


def test_killed_between_start_and_claim(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("sleep=1")
    with controller(attempt, late=2) as first:
        wait_for(lambda: everything(attempt))
        first.kill()
    assert local.find(attempt) is None
    job_id = local.submit(attempt)  # its node overtakes the late one
    over(local, job_id)
    wait_for(lambda: not everything(attempt))  # the late one came and went
    assert "leaves" in attempt.node_log.read_text()
    assert runs(attempt) == 1
    assert end_of(attempt).cause is Cause.COMPLETED


def test_killed_after_the_claim(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("sleep=1")
    with controller(attempt) as first:
        wait_for(attempt.claimed)
        os.killpg(first.pid, signal.SIGKILL)
    job_id = local.find(attempt)
    assert job_id
    assert local.states([job_id])[job_id].state is JobStatus.RUNNING
    over(local, job_id)
    assert (runs(attempt), end_of(attempt).cause) == (1, Cause.COMPLETED)


def test_interrupt_and_hang_up_do_not_reach_a_job(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("sleep=600")
    with controller(attempt) as first:
        assert first.stdout
        assert first.stdout.readline() == b"submitted\n"
        running(attempt)
        os.killpg(first.pid, signal.SIGINT)  # what ^C sends
        os.killpg(first.pid, signal.SIGHUP)  # what a terminal sends as it goes
        first.kill()
    for p in everything(attempt):
        assert os.getsid(p.pid) != first.pid
    kill(attempt, signal.SIGHUP)
    time.sleep(0.5)
    job_id = local.find(attempt)
    assert job_id
    assert local.states([job_id])[job_id].state is JobStatus.RUNNING
    local.cancel([job_id])
    over(local, job_id)


def test_a_node_that_cannot_start_is_an_error_at_once(new_attempt: New) -> None:
    attempt = new_attempt("exit=0")
    with pytest.raises(OSError, match="no such thing"):
        LocalLauncher(("-c", "raise SystemExit('no such thing')")).submit(attempt)
    assert attempt.claimed() is None
    assert (attempt.path / STOP).exists(), "one that comes up after all stops at once"


# --- stopping


def test_cancel_ends_everything(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt_running(local, new_attempt, "stubborn", "offspring", "sleep=600")
    wait_for(lambda: (attempt.path / "offspring").exists())
    assert len(everything(attempt)) == 6, "node, guard, trainer and three that it started"
    job_id = local.submit(attempt)
    local.cancel([job_id])
    assert everything(attempt), "who cancels does not wait for the end"
    local.cancel([job_id])
    state = over(local, job_id)
    assert (state.cause, state.reason) == (Cause.KILLED, "SIGTERM")
    wait_for(lambda: not everything(attempt))
    local.cancel([job_id])


def test_cancel_before_the_node_is_up(new_attempt: New, monkeypatch: pytest.MonkeyPatch) -> None:
    local = LocalLauncher(BARE)
    attempt = new_attempt("sleep=600")
    with controller(attempt, late=1.5) as first:
        wait_for(lambda: everything(attempt))
        local.cancel(["local:" + os.path.realpath(attempt.path)])
        wait_for(attempt.end)
        first.kill()
    assert end_of(attempt).reason == "asked to stop"
    assert runs(attempt) == 0


def test_a_node_that_does_not_stop_is_killed_in_time(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt_running(local, new_attempt, "offspring", "sleep=600")
    job_id = local.submit(attempt)
    kill(attempt, signal.SIGSTOP)
    local.cancel([job_id])
    assert local.states([job_id])[job_id].state is JobStatus.RUNNING
    os.utime(attempt.path / STOP, (time.time() - 3600,) * 2)
    assert over(local, job_id).cause is Cause.KILLED
    wait_for(lambda: not everything(attempt))


def test_a_directory_that_is_removed_ends_its_job(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt_running(local, new_attempt, "offspring", "sleep=600")
    pids = everything(attempt)
    (attempt.path / "node.json").unlink()
    wait_for(lambda: not any(map(processes.is_alive, pids)))


def test_a_directory_made_anew_is_not_the_old_jobs(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt_running(local, new_attempt, "sleep=600")
    old = attempt.claimed()
    assert old
    for name in ("node.json", "ran"):
        (attempt.path / name).unlink()
    job_id = local.submit(attempt)
    wait_for(lambda: runs(attempt))
    wait_for(lambda: not processes.is_alive(processes.Process(old.pid, old.ticks)))
    time.sleep(0.3)
    assert attempt.end() is None
    assert local.states([job_id])[job_id].state is JobStatus.RUNNING


# --- shot


def test_a_node_that_is_shot_takes_everything_along(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt_running(local, new_attempt, "offspring", "sleep=600")
    wait_for(lambda: (attempt.path / "offspring").exists())
    kill(attempt, signal.SIGKILL)
    wait_for(lambda: not everything(attempt))  # nobody looked
    state = over(local, local.submit(attempt))
    assert (state.state, state.cause) == (JobStatus.ENDED, Cause.KILLED)
    assert attempt.end() is None


def test_a_guard_that_is_shot_takes_everything_along(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt_running(local, new_attempt, "offspring", "sleep=600")
    claim = attempt.claimed()
    assert claim
    guard = next(p for p in everything(attempt) if f"\nPPid:\t{p.pid}\n" in status(claim.pid))
    os.kill(guard.pid, signal.SIGKILL)
    wait_for(lambda: not everything(attempt))
    assert end_of(attempt).cause is Cause.KILLED


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def test_when_both_are_shot_whoever_looks_next_cleans_up(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt_running(local, new_attempt, "offspring", "sleep=600")
    wait_for(lambda: (attempt.path / "offspring").exists())
    job_id = local.submit(attempt)
    directory = os.path.realpath(attempt.path)
    nodes = [p for p in everything(attempt) if p not in processes.marked([directory])[directory]][-2:]
    for p in nodes:
        os.kill(p.pid, signal.SIGSTOP)
    for p in nodes:
        os.kill(p.pid, signal.SIGKILL)
    assert over(LocalLauncher(BARE), job_id).cause is Cause.KILLED
    assert not processes.marked([directory])[directory]


# --- what a claim is worth


def forge(attempt: AttemptDirectory, **changes: object) -> str:
    """The attempt, claimed by this very process, but for what is changed."""
    assert attempt.claim(replace(processes.own_claim(), **changes))  # type: ignore[arg-type]
    return "local:" + os.path.realpath(attempt.path)


def test_a_pid_that_is_somebody_elses_by_now(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt()
    job_id = forge(attempt, ticks=1)
    assert local.states([job_id])[job_id].cause is Cause.KILLED
    local.cancel([job_id])  # and this process lives on
    (attempt.path / STOP).touch()
    os.utime(attempt.path / STOP, (0, 0))
    local.cancel([job_id])
    assert local.states([job_id])[job_id].state is JobStatus.ENDED


def test_a_machine_that_was_restarted(local: LocalLauncher, new_attempt: New) -> None:
    job_id = forge(new_attempt(), boot="another")
    state = local.states([job_id])[job_id]
    assert (state.state, state.cause) == (JobStatus.ENDED, Cause.NODE_FAIL)


@pytest.mark.parametrize(
    ("silence", "expected"), [(5, JobStatus.RUNNING), (200, JobStatus.UNKNOWN), (4000, JobStatus.ENDED)]
)
def test_a_job_on_another_machine(local: LocalLauncher, new_attempt: New, silence: float, expected: JobStatus) -> None:
    attempt = new_attempt()
    job_id = forge(attempt, host="elsewhere")
    os.utime(attempt.path / "node.json", (time.time() - silence,) * 2)
    assert local.states([job_id])[job_id].state is expected
    local.cancel([job_id])
    assert (attempt.path / STOP).exists()


def test_many_jobs_in_one_look(local: LocalLauncher, new_attempt: New) -> None:
    ids = [local.submit(new_attempt("exit=0")), local.submit(new_attempt("sleep=600"))]
    ids.append(forge(new_attempt(), boot="another"))
    wait_for(lambda: local.states(ids[:1])[ids[0]].is_over)
    assert [s.state for s in local.states(ids).values()] == [JobStatus.ENDED, JobStatus.RUNNING, JobStatus.ENDED]
    assert local.states([]) == {}
    local.cancel(ids)
    over(local, ids[1])


# --- the rest of the door


def test_launchers_by_name() -> None:
    assert isinstance(launcher("local"), LocalLauncher)
    with pytest.raises(BadInput, match="slurm"):
        launcher("slrum")


def test_what_says_nothing_is_ended_and_leaves_its_stacks(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("sleep=600", hung_after_min=0.03)
    over(local, local.submit(attempt))
    end = end_of(attempt)
    assert end.cause is Cause.HUNG
    assert "stacks-0.txt" in end.reason
    assert "fake_trainer" in (attempt.path / "stacks-0.txt").read_text()
    wait_for(lambda: not everything(attempt))


def test_a_file_system_that_is_away_for_a_while_ends_no_training(new_attempt: New, monkeypatch) -> None:
    one = node.Node(new_attempt("sleep=600"), Claim("here", os.getpid(), time.time()))
    one.job = Job.from_dict(one.attempt.job() or {})
    one.attempt.claim(one.who)
    stat, asked = Path.stat, []

    def stale(path: Path, **more: bool) -> os.stat_result:
        if path in (one.attempt.driver_log, one.attempt.metrics_file):
            asked.append(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", stale)
    one._look()
    assert asked


def test_checkpoints_that_cannot_be_seen_for_once_stay(new_attempt: New, monkeypatch) -> None:
    one = node.Node(new_attempt(), Claim("here", os.getpid(), time.time()))
    checkpoints = one.attempt.trial.checkpoints
    for step in (2, 4):
        (checkpoints / f"global_step_{step}").mkdir(parents=True)
    note = checkpoints / "latest_checkpointed_iteration.txt"
    note.write_text("4")
    listed, left = os.listdir, [1]

    def stale(path: object) -> list[str]:
        if path == checkpoints and left.pop():
            left.append(0)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return listed(path)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "listdir", stale)
    with pytest.raises(OSError, match="Stale"):
        one._make_room(Job.from_dict(one.attempt.job() or {}), {})
    assert note.read_text() == "4" and len(list(checkpoints.glob("global_step_*"))) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ESTALE], ids=errno.errorcode.get)
def test_an_end_is_written_down_when_the_disk_is_there_again(new_attempt: New, monkeypatch, code: int) -> None:
    monkeypatch.setattr(node, "LOOK", 0.01)
    one = node.Node(new_attempt(), Claim("here", os.getpid(), time.time()))
    finish, left = AttemptDirectory.finish, [3]

    def away(attempt: AttemptDirectory, end: End) -> None:
        left[0] -= 1
        if left[0]:
            raise OSError(code, os.strerror(code), "end.json")
        finish(attempt, end)

    monkeypatch.setattr(AttemptDirectory, "finish", away)
    one._write_down(End(Cause.COMPLETED))
    assert end_of(one.attempt).cause is Cause.COMPLETED


def test_a_full_disk_is_the_cause_of_an_end_and_no_node_is(new_attempt: New, monkeypatch) -> None:
    attempt, full = new_attempt(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fills(*_: object, **__: object) -> None:
        raise full

    one = node.Node(attempt, processes.own_claim(), allocation=Allocation(0, ("127.0.0.1", "localhost")))
    attempt.claim(one.who)
    monkeypatch.setattr(roll, "write_json", fills)
    monkeypatch.setattr(node, "end_all", lambda *_: None)
    end = one.run()
    assert (end.cause, end.nodes) == (Cause.DISK_FULL, ())


def test_a_log_on_a_full_disk_keeps_nobody_from_his_work() -> None:
    with open("/dev/full", "w") as full:
        words = "from hysweep.launch.remains import say; say('so'); say('and so'); print('done')"
        done = subprocess.run([sys.executable, "-u", "-c", words], stdout=subprocess.PIPE, stderr=full, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_what_was_stopped_itself_neither_hangs_nor_ran_out_of_time(new_attempt: New, monkeypatch) -> None:
    """As a job that is suspended for hours; its time goes on afterwards."""
    times = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: times[-1])
    one = node.Node(new_attempt("sleep=600"), Claim("here", os.getpid(), time.time()))
    one.job = Job.from_dict(one.attempt.job() or {})
    one.attempt.claim(one.who)
    one.deadline = 1030.0
    for second in (1001, 1002, 9002, *range(9003, 9029)):
        times.append(float(second))
        one._look()
    times.append(9031.0)
    with pytest.raises(node.Stopped, match="the time limit"):
        one._look()


def test_an_attempt_goes_on_from_the_newest_checkpoint_that_is_whole(local: LocalLauncher, new_attempt: New) -> None:
    attempt = new_attempt("exit=0", checkpoints_kept=1)
    checkpoints = attempt.trial.checkpoints
    for step in (2, 4, 6):
        weights = checkpoints / f"global_step_{step}" / "actor" / "model_world_size_1_rank_0.pt"
        weights.parent.mkdir(parents=True)
        zipfile.ZipFile(weights, "w").close()
    weights.write_bytes(weights.read_bytes()[:9])  # the newest
    note = checkpoints / "latest_checkpointed_iteration.txt"
    note.write_text("6")
    over(local, local.submit(attempt))
    assert note.read_text() == "4"
    said = attempt.node_log.read_text()
    assert "not gone on from global_step_6: actor/model_world_size_1_rank_0.pt is cut off" in said
    wait_for(lambda: sorted(os.listdir(checkpoints)) == ["global_step_4", note.name])


def test_one_machine_is_one_node(local: LocalLauncher, new_attempt: New) -> None:
    with pytest.raises(BadInput, match="nodes = 2"):
        local.submit(new_attempt(nodes=2))
    with pytest.raises(BadInput):
        local.plan(Job("m", (), nodes=2), new_attempt())


def test_the_plan_is_what_runs(local: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "somewhere")
    job = Job("verl.trainer.main_ppo", ("a.b='x y'",), {"OMP_NUM_THREADS": "1"}, (("-m", "make"),), ray_gpus=8)
    attempt = AttemptDirectory(tmp_path / "nowhere" / "attempts" / "1")
    plan = local.plan(job, attempt)
    for text in (
        f"{sys.executable} -m make",
        "export OMP_NUM_THREADS=1",
        "# not inherited: MASTER_ADDR",
        "RAY_AUTH_TOKEN=<fresh>",
        "start --head --port=0",
        "--num-gpus=8",
        f"""{sys.executable} -m verl.trainer.main_ppo 'a.b='"'"'x y'"'"''""",
    ):
        assert text in plan
    assert not attempt.path.exists()


def test_importing_the_room_is_light() -> None:
    code = "import sys, hysweep.launch; print([m for m in ('ray', 'torch', 'submitit', 'verl') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


@pytest.mark.parametrize(
    ("job", "silent_s", "end"),
    [("7", 2 * SILENT, Cause.NODE_FAIL), ("7", 0, None), ("6", 2 * SILENT, None), ("", 2 * SILENT, None)],
)
def test_a_run_that_the_scheduler_has_forgotten_is_told_by_the_next_one(
    new_attempt: New, monkeypatch: pytest.MonkeyPatch, job: str, silent_s: float, end: Cause | None
) -> None:
    """It counts as no restart, so both are the same attempt. One that lives, or is another job's, is left alone."""
    attempt = new_attempt()
    assert attempt.claim(Claim("elsewhere", 1, 50.0, job=job))
    os.utime(attempt.path / "node.json", (0, time.time() - silent_s))
    monkeypatch.setattr(node, "LOOK", SILENT)
    ticks: list[float] = []
    monkeypatch.setattr(node.time, "sleep", ticks.append)
    monkeypatch.setattr(node.time, "monotonic", lambda: sum(ticks))
    assert node.leave(attempt, Claim("here", 2, 60.0, job="7")) == (1 if end else 0)
    found = attempt.end()
    assert (found.cause if found else None) is end
