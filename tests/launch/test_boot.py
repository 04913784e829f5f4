"""Booting Ray, without Ray: what is retried, what is said, what is left behind."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hysweep.launch import boot, command, processes
from hysweep.launch.allocation import Allocation
from hysweep.launch.boot import BootFailed, RayCluster
from hysweep.schema import Cluster
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause
from tests.launch.attempts import HERE, wait_for

New = Callable[..., AttemptDirectory]


@pytest.fixture
def boots(new_attempt: New, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RayCluster]]:
    """`boots("clash", "up")`: a head whose `ray start` does that in turn."""
    heads: list[RayCluster] = []

    def make(*modes: str, gpus: int = 2, offered: int = 2, timeout_s: int = 30) -> RayCluster:
        left = iter(modes)

        def fake(job: Job, allocation: Allocation, temporary: Path | str, *_: object) -> list[str]:
            resources = f"--static_resource_list=node:127.0.0.1,1.0,CPU,8,GPU,{offered},memory,9"
            argv = [sys.executable, str(HERE / "fake_ray.py"), str(temporary), next(left)]
            return [*argv, f"--temp_dir={temporary}", resources]

        monkeypatch.setattr(boot, "ray_command", fake)
        job = Job("fake_trainer", (), ray_gpus=gpus, ray_boot_timeout_s=timeout_s)
        heads.append(RayCluster(job, new_attempt(), Allocation.here()))
        return heads[-1]

    yield make
    for head in heads:
        head.stop()
        head.clear()
        assert not left_of(head), "nothing may stay in the temporary directory"


def left_of(head: RayCluster) -> list[Path]:
    return boot.temporaries(command.identity(head.ray.attempt))


def wait(done: Callable[[], bool], within: float) -> bool:
    until = time.monotonic() + within
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_up(boots: Callable[..., RayCluster]) -> None:
    head = boots("up")
    joins = head.boot(os.environ, wait)
    assert joins["RAY_ADDRESS"] == "127.0.0.1:4321"
    assert joins["RAY_AUTH_MODE"] == "token"
    assert len(joins["RAY_AUTH_TOKEN"]) >= 32
    assert head.loss() is None
    (child,) = head.children
    told = Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
    assert f"RAY_AUTH_TOKEN={joins['RAY_AUTH_TOKEN']}".encode() in told
    assert joins["RAY_AUTH_TOKEN"] not in Path(f"/proc/{child.pid}/cmdline").read_text()
    assert [p.stat().st_mode & 0o777 for p in left_of(head)] == [0o700]
    head.stop()
    assert head.loss()


def test_each_job_has_a_token_of_its_own(boots: Callable[..., RayCluster]) -> None:
    one, two = boots("up").boot(os.environ, wait), boots("up").boot(os.environ, wait)
    assert one["RAY_AUTH_TOKEN"] != two["RAY_AUTH_TOKEN"]


def test_a_port_that_is_taken_is_tried_again(boots: Callable[..., RayCluster]) -> None:
    assert boots("clash", "slow", "up").boot(os.environ, wait)["RAY_ADDRESS"]
    with pytest.raises(BootFailed, match="Address already in use") as failed:
        boots("clash", "clash", "clash").boot(os.environ, wait)
    assert failed.value.cause is Cause.PORT_CLASH


def test_a_clash_of_an_earlier_boot_is_not_the_cause_of_a_later_end(boots: Callable[..., RayCluster]) -> None:
    with pytest.raises(BootFailed, match="No such option") as failed:
        boots("clash", "broken").boot(os.environ, wait)
    assert failed.value.cause is Cause.RAY_BOOT


def test_what_does_not_start_says_why(boots: Callable[..., RayCluster]) -> None:
    head = boots("broken")
    with pytest.raises(BootFailed, match="exit code 2: Error: No such option: --port") as failed:
        head.boot(os.environ, wait)
    assert failed.value.cause is Cause.RAY_BOOT
    assert "the raylet's last words" in head.ray.log.read_text(), "its own logs go with its directory"


def test_what_does_not_come_up_in_time(boots: Callable[..., RayCluster]) -> None:
    with pytest.raises(BootFailed, match="not up within 1 s") as failed:
        boots("asleep", timeout_s=1).boot(os.environ, wait)
    assert failed.value.cause is Cause.RAY_BOOT


def test_fewer_gpus_than_the_job_needs(boots: Callable[..., RayCluster]) -> None:
    with pytest.raises(BootFailed, match=r"the job needs 8 GPUs of each node; .* offers 7") as failed:
        boots("up", gpus=8, offered=7).boot(os.environ, wait)
    assert failed.value.cause is Cause.RAY_BOOT


def test_a_port_is_free_at_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken, socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
        free.close()
        monkeypatch.setattr(boot.random, "sample", lambda *_, k: [taken.getsockname()[1], port])
        assert boot.free_port() == port


def test_gpus_that_cannot_be_read_are_not_none(tmp_path: Path) -> None:
    assert boot.gpus_offered(tmp_path) is None
    argv = [sys.executable, "-c", "import time; time.sleep(60)", f"--temp_dir={tmp_path}"]
    agent = processes.spawn(argv, os.environ, tmp_path / "log", tmp_path)
    children = [agent]
    try:
        assert wait_for(lambda: str(tmp_path) in Path(f"/proc/{agent.pid}/cmdline").read_text())
        assert boot.gpus_offered(tmp_path) is None, "no raylet"
        raylet = [*argv, "--static_resource_list=CPU,8"]
        children.append(processes.spawn(raylet, os.environ, tmp_path / "log", tmp_path))
        assert wait_for(lambda: boot.gpus_offered(tmp_path) is not None)
        assert boot.gpus_offered(tmp_path) == 0
    finally:
        for child in children:
            processes.stop(child, 5)


def test_sockets_fit(tmp_path: Path) -> None:
    longest = Path("/" + "t" * (boot.SOCKET_PATH - boot.RAY_ADDS - 1))
    assert boot.fits(longest)
    assert not boot.fits(Path(f"{longest}t"))
    assert not boot.fits(Path("/" + "ü" * 30)), "bytes count, not letters"


def test_a_temporary_directory_too_deep_for_sockets(new_attempt: New, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = new_attempt().path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    attempt = new_attempt()
    made, _ = boot.make_temporary(attempt)
    try:
        assert boot.fits(made)
        assert deep not in made.parents
        assert list(deep.iterdir()) == []
    finally:
        boot.remove_temporaries(command.identity(attempt))
    assert not made.exists()
    monkeypatch.setattr(boot, "temporary_roots", lambda: [str(deep), "/nowhere"])
    with pytest.raises(BootFailed, match=r"no place for a socket; /nowhere: No such file"):
        boot.make_temporary(attempt)


def test_the_directory_of_another_attempt_stays(new_attempt: New) -> None:
    one, two = new_attempt(), new_attempt()
    theirs, lock = boot.make_temporary(two)
    boot.make_temporary(one)
    boot.remove_temporaries(command.identity(one))
    boot.remove_abandoned()
    assert theirs.exists()
    os.close(lock)
    boot.remove_temporaries(command.identity(two))
    assert not theirs.exists()


def test_what_was_abandoned_goes_with_the_next(new_attempt: New) -> None:
    """All of an attempt may be shot at once, and on its node nobody is left to clean up."""
    attempt = new_attempt()
    path, lock = boot.make_temporary(attempt)
    (path / "session").mkdir()
    os.close(lock)  # as the end of its process does
    boot.remove_abandoned()
    assert not path.exists()


def test_what_is_not_inherited() -> None:
    names = """RAY_ADDRESS RAY_AUTH_TOKEN RAY_AUTH_MODE RAY_NAMESPACE RAY_TMPDIR RANK LOCAL_RANK WORLD_SIZE
        MASTER_ADDR MASTER_PORT SLURM_JOB_ID SLURM_CPUS_PER_TASK SLURM_ARRAY_JOB_ID SRUN_DEBUG PMI_RANK PMIX_RANK
        SUBMITIT_EXECUTOR TORCHELASTIC_RUN_ID OMPI_COMM_WORLD_RANK VERL_FILE_LOGGER_ROOT"""
    kept = "HOME PATH SLURM_CONF SBATCH_ACCOUNT CUDA_VISIBLE_DEVICES RAY_DEDUP_LOGS WANDB_API_KEY RANKING"
    environment = dict.fromkeys(f"{names} {kept}".split(), "x")
    assert command.foreign(environment) == sorted(names.split())
    assert sorted(command.inherited(environment)) == sorted(kept.split())


@pytest.mark.parametrize(("gpu", "kept"), [(None, []), ("H100", ["CUDA_VISIBLE_DEVICES"])])
def test_devices_that_a_shell_hides_are_no_slots(new_attempt: New, gpu: str | None, kept: list[str]) -> None:
    """With no GPU Ray's are slots of ours: `CUDA_VISIBLE_DEVICES=` on a laptop would leave none."""
    attempt = new_attempt(site=Cluster(name="x", gpu=gpu))
    environment = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0", "HOME": "/h"}
    found = command.on_node(Job.from_dict(attempt.job() or {}), attempt, environment, 0.0)
    assert [name for name in environment if name in found] == [*kept, "HOME"]


def test_ray_starts_no_workers_that_nobody_gets(new_attempt: New) -> None:
    """One for each CPU of a node; who wants them says so."""
    attempt, name = new_attempt(), "RAY_prestart_worker_first_driver"
    job = Job.from_dict(attempt.job() or {})
    assert command.on_node(job, attempt, {}, 0.0)[name] == "0"
    assert command.on_node(job, attempt, {name: "1"}, 0.0)[name] == "1"


def test_paths_of_the_submitter_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.inherited({"PYTHONPATH": "third_party/x::/abs"})["PYTHONPATH"] == f"{tmp_path}/third_party/x:/abs"


def test_the_command_of_ray() -> None:
    argv = command.ray_command(
        Job("m", (), ray_gpus=8, object_store_gib=0.5), Allocation.here(), "/tmp/x", "127.0.0.1", None, 0, 1234
    )
    assert {"--port=0", "--temp-dir=/tmp/x", "--num-gpus=8", "--object-store-memory=536870912"} <= set(argv)
    assert not [a for a in argv if a.startswith("--num-cpus")], "Ray's own count where the job has none"
