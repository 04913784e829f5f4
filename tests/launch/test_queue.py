"""What the scheduler says, in every spelling that it has (cases 17, 19 and 20)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hysweep.launch import Busy, JobState, JobStatus, Refused, command, queue
from hysweep.launch.allocation import Allocation, hosts
from hysweep.launch.protocol import job_name
from hysweep.launch.slurm import SlurmLauncher, blamed
from hysweep.schema import BadInput, Cluster, ControllerJob, Study
from hysweep.study.detach import detach_to_slurm
from hysweep.track import Cause, Claim, StudyDirectory, TrialDirectory, settle

# --- lists of nodes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node001", ["node001"]),
        ("n1,n2", ["n1", "n2"]),
        ("node[001-003]", ["node001", "node002", "node003"]),
        ("gpu-[1,3-4],cpu7", ["gpu-1", "gpu-3", "gpu-4", "cpu7"]),
        ("rack[1-2]node[01-02]", ["rack1node01", "rack1node02", "rack2node01", "rack2node02"]),
        ("n[1-3]-ib", ["n1-ib", "n2-ib", "n3-ib"]),
        ("tux[0-2,4].cluster", ["tux0.cluster", "tux1.cluster", "tux2.cluster", "tux4.cluster"]),
        ("nid[001000-001002,001010]", ["nid001000", "nid001001", "nid001002", "nid001010"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert hosts(text) == names


@pytest.mark.parametrize(
    "text", ["", "  ", "[node1", "node1]", "n[1-", "n[]", "n[3-1]", "n[a-b]", "a,,b", "n[1-2]]", "n[²]"]
)
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(BadInput, match="no list of nodes"):
        hosts(text)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=9), st.integers(1, 6))
def test_a_range_names_what_its_parts_name(numbers: list[int], width: int) -> None:
    padded = [f"{n:0{width}}" for n in numbers]
    assert hosts(f"n[{','.join(padded)}]x") == [f"n{p}x" for p in padded]


def test_an_allocation_must_have_the_nodes_that_slurm_counts() -> None:
    said = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
    found = Allocation.of(said | {"SLURM_RESTART_COUNT": "3", "SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "32"})
    assert (found.name, found.rank, found.restarts, found.job, found.cpus, found.gpus) == ("n2", 1, 3, "7", 32, None)
    with pytest.raises(BadInput, match="names 2 of 4 nodes"):
        Allocation.of(said | {"SLURM_JOB_NUM_NODES": "4"})
    with pytest.raises(BadInput, match="one task runs on each node"):
        Allocation.of(said | {"SLURM_NTASKS": "16"})


def test_cpus_are_those_of_the_allocation() -> None:
    """Case 23: never all of a node that is shared."""
    from hysweep.schema.job import Job

    argv = command.ray_command(Job("m", ()), Allocation(0, ("n1",), cpus=32), "/t", "10.0.0.1", None, 1, 2)
    assert "--num-cpus=32" in argv


# --- states


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("COMPLETED", "COMPLETED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("CANCELLED by 1234", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("RUNNING ", "RUNNING"),
        ("completing", "COMPLETING"),
        ("RE+", None),  # REQUEUED, RESIZING, REVOKED, …
        ("+", None),
        ("", None),
        ("slurm_load_jobs error", None),
    ],
)
def test_states_in_every_spelling(text: str, state: str | None) -> None:
    assert queue.read_state(text) == state


def test_squeue_and_sacct_say_what_they_say() -> None:
    said = """slurm_load_jobs warning: something
7|RUNNING|node[1-2]|2026-11-30T00:45:12|2026-12-01T00:45:12|2026-11-30T00:44:00|None
8|PENDING||N/A|N/A|2026-11-30T00:44:00|Resources|and|more
9_3|COMPLETING|(null)|2026-11-30T00:45:12|N/A|N/A|(null)
10+0|RUNNING|n1|2026-11-30T00:45:12|N/A|N/A|None
10+1|RUNNING|n2|2026-11-30T00:45:12|N/A|N/A|None
torn|RUN"""
    found = {r.job: r for r in queue.read_squeue(said)}
    assert list(found) == ["7", "8", "9_3", "10"]
    assert found["7"].nodes == "node[1-2]" and found["7"].started and found["8"].started is None
    assert found["8"].as_state().state is JobStatus.PENDING and "Resources" in found["8"].as_state().reason
    assert found["9_3"].as_state().state is JobStatus.RUNNING
    said = """7|PREEMPTED|n1|2026-11-30T00:45:12|Unknown|Unknown|0:0
7.batch|CANCELLED|n1|2026-11-30T00:45:12|Unknown|Unknown|0:15
7|FAILED|n2|2026-11-30T00:46:12|2026-11-30T00:47:12|2026-11-30T00:44:00|1:0
8|OUT_OF_ME+|n2|Unknown|Unknown|Unknown|0:125
garbage"""
    found = {r.job: r for r in queue.read_sacct(said)}
    assert found["7"].state == "FAILED" and "1:0" in found["7"].as_state().reason, "the newest run of a job"
    assert found["8"].as_state().cause is Cause.HOST_OOM
    seen = found["7"].as_state()
    assert seen.started and seen.ended and seen.submitted
    assert (seen.started - seen.submitted, seen.ended - seen.started) == (132.0, 60.0)


def test_a_running_job_has_not_ended_and_a_held_one_says_so() -> None:
    times = "2026-11-30T00:45:12|2026-12-01T00:45:12|2026-11-30T00:44:00"
    running, held, halted, stuck = queue.read_squeue(
        f"7|RUNNING|n1|{times}|None\n8|PENDING||N/A|N/A|N/A|JobHeldUser\n9|SUSPENDED|n1|{times}|None\n"
        "10|PENDING||N/A|N/A|N/A|launch failed requeued held"
    )
    assert halted.as_state().state is JobStatus.RUNNING and "SUSPENDED" in halted.as_state().reason, "it has begun"
    assert running.as_state().ended is None and running.as_state().submitted
    assert held.as_state().is_held and not running.as_state().is_held
    assert stuck.as_state().is_stuck and not stuck.as_state().is_held and not held.as_state().is_stuck
    assert "scontrol release 10" in stuck.as_state().reason


@pytest.mark.parametrize(
    "why",
    [
        "launch_failed_requeued_held",
        "(launch failed requeued held)",
        "LAUNCH FAILED requeued held",
        "JobHoldMaxRequeue",
    ],
)
def test_what_a_site_s_nodes_cannot_launch_is_kept_back_under_several_names(why: str) -> None:
    """Where the site sets nohold_on_prolog_fail it is put back to the queue, some times; then it is held too."""
    (found,) = queue.read_squeue(f"10|PENDING||N/A|N/A|N/A|{why}|s-0000-a1-x")
    state = found.as_state()
    assert state.is_stuck and not state.is_held and state.reason.endswith(" release 10")


@given(st.text())
def test_garbage_is_no_job(text: str) -> None:
    assert all(r.state in queue.STATES for r in queue.read_squeue(text) + queue.read_sacct(text))


@pytest.mark.parametrize(
    ("by_node", "by_scheduler", "cause"),
    [
        (None, None, Cause.KILLED),
        (None, Cause.NODE_FAIL, Cause.NODE_FAIL),
        (Cause.KILLED, Cause.PREEMPTED, Cause.PREEMPTED),  # case 26: the record decides, not the clock
        (Cause.PREEMPTED, Cause.TIMEOUT, Cause.TIMEOUT),
        (Cause.NCCL, Cause.NODE_FAIL, Cause.NODE_FAIL),
        (Cause.CUDA_OOM, Cause.CANCELLED, Cause.CUDA_OOM),
        (Cause.COMPLETED, Cause.CANCELLED, Cause.COMPLETED),
        (Cause.TIMEOUT, None, Cause.TIMEOUT),
    ],
)
def test_one_cause_of_two_words(by_node: Cause | None, by_scheduler: Cause | None, cause: Cause) -> None:
    assert settle(by_node, by_scheduler) is cause


# --- asking, with stand-ins for the commands; the real ones are in tests/slurm


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`tools(squeue="...")`: what these commands do, as bash. `tools.calls()`: how they were called, in order."""
    place = tmp_path / "bin"
    place.mkdir()
    calls = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")

    def make(**scripts: str) -> None:
        for name, script in scripts.items():
            (place / name).write_text(f'#!/bin/bash\necho "{name} $*" >> {calls}\n{script}\n')
            (place / name).chmod(0o755)

    make.calls = lambda: calls.read_text().splitlines() if calls.exists() else []  # type: ignore[attr-defined]
    return make


def test_one_call_for_all_jobs(tools) -> None:
    tools(
        squeue="echo '7|RUNNING|n1|N/A|N/A|N/A|None'; echo '8|PENDING||N/A|N/A|N/A|Priority'",
        sacct="echo '9|TIMEOUT|n1|N/A|N/A|N/A|0:0'",
    )
    found = queue.states(["7", "8", "9"])
    assert [found[j].state for j in "789"] == [JobStatus.RUNNING, JobStatus.PENDING, JobStatus.ENDED]
    assert found["9"].cause is Cause.TIMEOUT
    assert [c.split()[0] for c in tools.calls()] == ["squeue", "sacct"]
    assert "--jobs=9 " in tools.calls()[1], "records are asked for what the queue knows no more"


def test_a_site_without_records_and_a_job_that_is_gone(tools) -> None:
    tools(
        squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1",
    )
    assert queue.states(["9"])["9"].is_over
    tools(sacct="echo '9|RUNNING|n1|N/A|N/A|N/A|0:0'")
    assert queue.states(["9"])["9"].state is JobStatus.UNKNOWN, "the records lag behind"


def test_a_job_that_slurmctld_has_forgotten_is_given_up_in_time(tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slurmctld that was killed forgets what it took in its last seconds, and the records never hear of it."""
    says_no = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    pending = "echo '9|PENDING|None assigned|Unknown|Unknown|2026-11-30T15:00:00|0:0|s-0003-a1-12345678'"
    tools(squeue="exit 0", sacct=pending, scontrol=says_no)
    missed: dict[str, float] = {}
    assert queue.states(["9"], missed)["9"].state is JobStatus.UNKNOWN, "the records may lag behind"
    assert len(tools.calls()) == 2, "and nobody else is asked for now"
    monkeypatch.setattr(queue, "_LAGS_S", -1.0)
    lost = queue.states(["9"], missed)["9"]
    assert lost.is_over and lost.cause is Cause.NODE_FAIL and "lost" in lost.reason
    tools(scontrol="echo 'JobId=9 JobState=PENDING'")
    assert queue.states(["9"], missed)["9"].state is JobStatus.UNKNOWN, "slurmctld knows it after all"
    tools(squeue="echo '9|PENDING||N/A|N/A|N/A|Priority|s-0003-a1-12345678'")
    assert queue.states(["9"], missed)["9"].state is JobStatus.PENDING and not missed


def test_of_a_job_that_nobody_asks_about_any_more_nothing_is_kept(tools) -> None:
    record = "9|{}|None assigned|Unknown|Unknown|2026-11-30T15:00:00|0:0|s-0003-a1-12345678"
    tools(squeue="echo '7|RUNNING|n1|N/A|N/A|N/A|None'", sacct=f"echo '{record.format('PENDING')}'")
    missed: dict[str, float] = {}
    queue.states(["7", "9"], missed)
    assert list(missed) == ["9"]
    queue.states(["7"], missed)
    assert not missed
    queue.states(["9"], missed)
    tools(sacct=f"echo '{record.format('CANCELLED by 1')}'")
    assert queue.states(["9"], missed)["9"].is_over and not missed


@pytest.mark.parametrize("study", ["study", "a | b", "größe 'x' \\", "x" * 100])
def test_a_number_that_is_given_twice_is_told_by_the_name(tools, tmp_path: Path, study: str) -> None:
    """By what is ours of it: who knows what a scheduler makes of the name of a study."""
    trial, other = (TrialDirectory(tmp_path / study / "trials" / name) for name in ("0003-abc", "0030-abc"))
    trial.attempt(3).path.mkdir(parents=True)
    (tmp_path / "names").write_text(f"7|RUNNING|n1|N/A|N/A|N/A|None|{job_name(trial.attempt(2))}\n")
    tools(squeue=f"cat {tmp_path}/names", sacct="echo '8|COMPLETED|n1|N/A|N/A|N/A|0:0|a | name of somebody'")
    found = queue.states(["7", "8"])
    assert found["7"].is_of(trial.attempt(2)) and found["7"].is_of(trial.attempt(3)), "it may run again"
    assert not found["7"].is_of(trial.attempt(1)) and not found["7"].is_of(other.attempt(2))
    (tmp_path / "latest").symlink_to(study)
    assert found["7"].is_of(TrialDirectory(tmp_path / "latest" / "trials" / "0003-abc").attempt(2)), "by another name"
    assert found["8"].name == "a | name of somebody" and not found["8"].is_of(trial.attempt(2))
    assert JobState(JobStatus.RUNNING).is_of(trial.attempt(2)), "a launcher that has no names"


def test_the_number_of_a_lost_job_stands_for_the_next_that_has_it(tools, new_attempt) -> None:
    says_no = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    tools(squeue=says_no, sacct="exit 0", sbatch="echo 9", git="exit 1")
    slurm = SlurmLauncher()
    lost = slurm.states(["9"])["9"]
    assert lost.is_over and lost.is_lost
    assert slurm.submit(new_attempt(launcher="slurm")) == "9"
    tools(squeue="echo '9|PENDING||N/A|N/A|N/A|Priority|s-0003-a1-12345678'")
    assert slurm.states(["9"])["9"].state is JobStatus.PENDING


def test_what_cannot_be_read_ends_no_job(tools) -> None:
    """It would be submitted a second time, beside itself."""
    known = "echo 'JobId=9 JobState=RUNNING'"
    for said in ("echo 'slurm: backup controller takes over'", "echo '9|RUNN'", "head -c 200 /dev/urandom"):
        tools(squeue=said, sacct="exit 0", scontrol=known)
        assert queue.states(["9"])["9"].state is JobStatus.UNKNOWN, said
        tools(squeue="exit 0", sacct=said, scontrol=known)
        assert queue.states(["9"])["9"].state is JobStatus.UNKNOWN, said
    tools(squeue="echo 'welcome to this site'; echo '8|RUNNING|n1|N/A|N/A|N/A|None'", sacct="exit 0",
          scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")  # fmt: skip
    found = queue.states(["8", "9"])
    assert found["9"].is_over and found["8"].state is JobStatus.RUNNING, "greetings keep nobody from an end"


def test_a_controller_that_does_not_answer_says_nothing_of_jobs(tools) -> None:
    tools(squeue="echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", sacct="echo")
    with pytest.raises(queue.NoAnswer, match="Unable to contact"):
        queue.states(["9"])
    slurm = SlurmLauncher()
    state = slurm.states(["9"])["9"]
    assert state.state is JobStatus.UNKNOWN and "does not answer" in state.reason
    tools(squeue="echo '9|COMPLETED|n1|N/A|N/A|N/A|None'")
    slurm.cancel([])  # which looks anew
    assert slurm.states(["9"])["9"].is_over


def test_a_command_that_takes_long_is_told_once_and_waited_for(tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_SILENT_AFTER", 0.2)
    told: list[tuple[str, float]] = []
    tools(squeue="sleep 0.6; echo '9|RUNNING|n1|N/A|N/A|N/A|None'")
    with queue.telling(lambda what, within: told.append((what, within))):
        for _ in range(2):
            assert queue.states(["9"])["9"].state is JobStatus.RUNNING
    queue.states(["9"])
    assert told == [("squeue has said nothing for 0 s", 59.8)]


def test_a_site_that_keeps_no_records_is_no_silent_scheduler(tools) -> None:
    tools(squeue="true", scontrol="true", sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")
    told: list[str] = []
    with queue.telling(lambda what, within: told.append(what)):
        queue.states(["9"])
        assert not told
        tools(squeue="echo 'Unable to contact slurm controller' >&2; exit 1")
        for _ in range(2):
            with pytest.raises(queue.NoAnswer):
                queue.states(["9"])
    assert told == ["Unable to contact slurm controller"]


def test_looks_are_shared_until_something_may_have_changed(tools) -> None:
    tools(squeue="echo '7|RUNNING|n1|N/A|N/A|N/A|None'; echo '8|RUNNING|n1|N/A|N/A|N/A|None'")
    slurm = SlurmLauncher()
    for _ in range(5):
        slurm.states(["7"])
    assert len(tools.calls()) == 1
    slurm.states(["7", "8"])
    assert len(tools.calls()) == 2, "a job that was never looked at"


def test_one_call_cancels_all(tools) -> None:
    tools(scancel="exit 0")
    SlurmLauncher().cancel(["7", "8"])
    assert tools.calls() == ["scancel --quiet 7 8"]


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Busy),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", Busy),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", Busy),
        ("sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)", Busy),
        ("sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host", Busy),
        ("sbatch: fatal: Could not establish a configuration source", Busy),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            Refused,
        ),
        ("sbatch: error: invalid partition specified: nope", Refused),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", Refused),
        ("sbatch: unrecognized option '--frob'", Refused),
    ],
)
def test_refusals_that_pass_and_that_do_not(tools, new_attempt, said: str, fault: type[Exception]) -> None:
    tools(sbatch=f"""echo "{said}" >&2; exit 1""", git="exit 1")
    with pytest.raises(fault, match=said.split(": ")[-1][:30].replace("(", ".").replace(")", ".")):
        SlurmLauncher().submit(new_attempt(launcher="slurm"))


@pytest.mark.parametrize(
    ("said", "setting"),
    [
        ("invalid partition specified: mian", "cluster.partition"),
        ("User's group not permitted to use this partition", "cluster.partition"),
        ("Invalid account or account/partition combination specified", "cluster.account"),
        ("Invalid qos specification", "cluster.qos"),
        ("Job violates accounting/QOS policy (job submit limit)", "cluster.qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "cluster.timeout_min"),
        ("Invalid feature specification", "cluster.constraint"),
        ("Invalid generic resource (gres) specification", "cluster.gpus_per_node"),
        ("Memory specification can not be satisfied", "cluster.memory_gib"),
        ("Requested node configuration is not available", "cluster.nodes"),
        ("Node count specification invalid", "cluster.nodes"),
        ("unrecognized option '--frob'", "cluster.additional_parameters"),
        ("invalid option -- 'Z' Try \"sbatch --help\" for more information", "cluster.additional_parameters"),
        ("Invalid license specification", "cluster.additional_parameters"),
        ("Invalid --mail-type specification", "cluster.mail_type"),
        ("Invalid --nice value, out of range (+/- 2147483645)", "cluster.nice"),
        ("Invalid --mem specification", "cluster.memory_gib"),
        ("Invalid --signal specification", "cluster.signal_delay_s"),
        ("something else", None),
    ],
)
def test_a_refusal_names_the_setting_that_it_is_about(said: str, setting: str | None) -> None:
    assert blamed(Refused(said), Cluster(name="x")).setting == setting


@pytest.mark.parametrize(
    ("said", "given", "env", "setting", "value"),
    [
        ("Invalid generic resource (gres) specification", {"gpus_per_node": 64}, {}, "cluster.gpus_per_node", 64),
        ("Invalid generic resource (gres) specification", {"gres": "gpu:x:1"}, {}, "cluster.gres", "gpu:x:1"),
        ("More processors requested than permitted", {"cpus_per_node": 999}, {}, "cluster.cpus_per_node", 999),
        ("Requested node configuration is not available", {"constraint": "h9"}, {}, "cluster.constraint", "h9"),
        ("Invalid license specification", {"additional_parameters": {"tmp": 1, "licenses": "a:1"}}, {},
         "cluster.additional_parameters.licenses", "a:1"),
        ("Memory specification can not be satisfied", {"additional_parameters": {"mem-per-cpu": "9T"}}, {},
         "cluster.additional_parameters.mem-per-cpu", "9T"),
        ("invalid partition specified: mian", {"partition": "main"}, {"SBATCH_PARTITION": "mian"}, "SBATCH_PARTITION",
         "mian"),
        ("invalid partition specified: mian", {"partition": "mian"}, {"SBATCH_ACCOUNT": "a"}, "cluster.partition",
         "mian"),
        ("Requested time limit is invalid", {"timeout_min": 9}, {"SBATCH_TIMELIMIT": "9-0"}, "SBATCH_TIMELIMIT", "9-0"),
    ],
)  # fmt: skip
def test_a_refusal_names_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    given: dict[str, object],
    env: dict[str, str],
    setting: str,
    value: object,
) -> None:
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    found = blamed(Refused(said), Cluster(name="x", **given))
    assert (found.setting, found.value, str(found)) == (setting, value, said)


def test_an_account_that_is_wrong_for_a_partition_is_told_with_it() -> None:
    said = "Invalid account or account/partition combination specified"
    found = blamed(Refused(said), Cluster(name="x", partition="locked"))
    assert (found.setting, str(found)) == ("cluster.account", f"{said} (cluster.partition = locked)")
    assert str(blamed(Refused("Invalid account"), Cluster(name="x", partition="main"))) == "Invalid account"


def test_a_controller_s_job_that_is_refused_names_its_own_setting(
    tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools(sbatch="echo 'sbatch: error: invalid partition specified: mian' >&2; exit 1", squeue="true")
    directory = StudyDirectory(tmp_path / "s")
    directory.path.mkdir()
    site = Cluster(name="x", launcher="slurm", partition="mian")
    with pytest.raises(BadInput, match=r"^cluster.partition = mian: the scheduler refused the controller's job"):
        detach_to_slurm(directory, Study(name="s"), site)
    with pytest.raises(BadInput, match=r"study.controller.partition = main: the scheduler refused"):
        detach_to_slurm(directory, Study(name="s", controller=ControllerJob(partition="main")), site)


def test_a_site_s_own_sbatch_may_say_more(tools, new_attempt) -> None:
    tools(sbatch="echo 'charged to 42 hours'; echo '4711;cluster'", git="exit 1")
    assert SlurmLauncher().submit(new_attempt(launcher="slurm")) == "4711"


def test_too_many_jobs_is_a_matter_of_time_only_for_who_has_some(tools, new_attempt) -> None:
    said = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    tools(sbatch=f'echo "{said}" >&2; exit 1', squeue="echo '7|RUNNING|n1|N/A|N/A|N/A|None'", git="exit 1")
    with pytest.raises(Busy):
        SlurmLauncher().submit(new_attempt(launcher="slurm"))
    tools(squeue="true")
    with pytest.raises(Refused, match="QOS policy"):
        SlurmLauncher().submit(new_attempt(launcher="slurm"))


def test_what_the_submitting_shell_is_does_not_reach_the_job(
    tools, new_attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 20: what an allocation left behind is dropped, where the scheduler is and what the user wants are kept."""
    tools(sbatch="env > seen; echo 4711", git="exit 1")
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_ARRAY_JOB_ID", "PMIX_RANK", "RANK", "MASTER_ADDR", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "stale")
    monkeypatch.setenv("SLURM_CONF", "/etc/x/slurm.conf")
    monkeypatch.setenv("SBATCH_ACCOUNT", "abc")
    for name in ("ARRAY_INX", "JOB_NAME", "OUTPUT", "EXPORT", "WAIT", "CLUSTERS"):  # the launcher's own: lost else
        monkeypatch.setenv(f"SBATCH_{name}", "stale")
    monkeypatch.setenv("WANDB_API_KEY", "the-secret")
    attempt = new_attempt(launcher="slurm")
    assert SlurmLauncher().submit(attempt) == "4711"
    seen = dict(line.split("=", 1) for line in (attempt.path / "seen").read_text().splitlines() if "=" in line)
    assert "stale" not in seen.values()
    assert seen["SLURM_CONF"] == "/etc/x/slurm.conf" and seen["SBATCH_ACCOUNT"] == "abc"
    assert seen["WANDB_API_KEY"] == "the-secret"
    written = subprocess.run(["grep", "-rl", "the-secret", str(attempt.path)], capture_output=True, text=True).stdout
    assert written.split() == [str(attempt.path / "seen")], "secrets travel in the environment alone"


@pytest.mark.parametrize("study", ["study", "a, b", "a | b"])
def test_a_submitter_that_died_is_followed(tools, tmp_path: Path, study: str) -> None:
    """By what is ours of a job's name: squeue itself would part a list of names at commas."""
    attempt, other = (TrialDirectory(tmp_path / study / "trials" / f"000{n}-abc").attempt(1) for n in (3, 4))
    attempt.path.mkdir(parents=True)
    jobs = {"12": attempt, "9": attempt, "13": other}
    lines = [f"{id}|RUNNING|n1|N/A|N/A|N/A|None|{job_name(of)}\n" for id, of in jobs.items()]
    (tmp_path / "jobs").write_text("".join(lines))
    tools(squeue=f"[[ $* == *--name* ]] || cat {tmp_path}/jobs")
    assert SlurmLauncher().find(attempt) == "12", "the newest of that name"
    tools(squeue="true")
    assert SlurmLauncher().find(attempt) is None
    attempt.claim(Claim("n1", 1, 0.0, job="31"))
    assert SlurmLauncher().find(attempt) == "31"


def test_the_job_of_a_controller_is_sent_as_those_of_trials_are(
    tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_ARRAY_INX", "1-3")
    tools(sbatch="env > seen; echo 5", squeue="true")
    study, site = Study(name="s"), Cluster(name="x", launcher="slurm")
    assert detach_to_slurm(StudyDirectory(tmp_path), study, site) == "SLURM job 5"
    assert "SBATCH_ARRAY_INX" not in (tmp_path / "seen").read_text()
    (tmp_path / "controller.json").unlink()
    tools(sbatch="echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(BadInput, match=r"invalid partition specified: x; give study\.controller\.partition"):
        detach_to_slurm(StudyDirectory(tmp_path), study, site)
