"""The process that forks the driver and the workers, with stand-ins for verl and Ray: whose life hangs on whose."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hysweep.embedded import main_ppo

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forking is for Linux")

# A driver that starts a worker as Ray does, tells about both, and does as its first argument says.
DRIVER = """
import json, os, shlex, signal, subprocess, sys, time
import stand_in_import
[does, folder, setting] = sys.argv[1:]
key, _, python = setting.partition("=")
assert key == "ray_kwargs.ray_init.runtime_env.py_executable", key
environment = dict(os.environ, RAY_JOB_ID="01000000", RAY_RAYLET_PID=os.environ["STAND_IN_RAYLET"], MINE="yes")
environment.update(json.loads(os.environ.get("STAND_IN_WORKER_ENV", "{}")))
command = [*shlex.split(python.strip("'")), folder + "/default_worker.py", does, "an argument"]
with open(folder + "/worker.out", "w") as out:
    shim = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out)
with open(folder + "/driver.json", "w") as f:
    json.dump({"pid": os.getpid(), "ppid": os.getppid(), "shim": shim.pid, "job": os.environ.get("RAY_JOB_ID")}, f)
if does == "wait for the worker":
    sys.exit(shim.wait())
if does == "die":
    os.kill(os.getpid(), signal.SIGABRT)
if does == "fail":
    raise RuntimeError("the driver failed")
if does == "leave":
    while not os.path.exists(folder + "/worker.json"):
        time.sleep(0.02)
    sys.exit(0)
if does == "on SIGTERM":
    def leave(*_):
        with open(folder + "/terms", "a") as f:
            f.write("x")
        time.sleep(0.3)
        sys.exit(3)
    signal.signal(signal.SIGTERM, leave)
open(folder + "/ready", "w").close()
time.sleep(30)
"""

WORKER = """
import json, os, sys, time
imported = "stand_in_import" in sys.modules
print("worker says", sys.argv[1:])
said = {"pid": os.getpid(), "ppid": os.getppid(), "group": os.getpgid(0), "imported": imported}
said.update({"mine": os.environ.get("MINE"), "cwd": os.getcwd(), "main": __name__})
with open("worker.json.new", "w") as f:
    json.dump(said, f)
os.rename("worker.json.new", "worker.json")
if sys.argv[1] == "wait for the worker":
    sys.exit(7)
time.sleep(30)
"""

RUN = """
import os, sys
from hysweep.embedded import main_ppo
main_ppo.MODULE, main_ppo.IMPORTS = "stand_in_driver", ("stand_in_import",)
raylet = int(os.environ["STAND_IN_RAYLET"])
main_ppo.find_raylet = lambda _: main_ppo.Raylet(raylet, os.environ["STAND_IN_TMP"])
main_ppo.main()
"""


class Job:
    def __init__(self, folder: Path, does: str, worker_env: dict[str, str]) -> None:
        self.folder = folder
        (folder / "stand_in_driver.py").write_text(DRIVER)
        (folder / "stand_in_import.py").write_text("")
        (folder / "default_worker.py").write_text(WORKER)
        (folder / "tmp").mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            "STAND_IN_RAYLET": str(os.getpid()),
            "STAND_IN_TMP": str(folder / "tmp"),
            "STAND_IN_WORKER_ENV": json.dumps(worker_env),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, does, str(folder)],
            env=environment,
            start_new_session=True,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read(self, name: str) -> dict:
        wait_for((self.folder / name).is_file)
        wait_for(lambda: (self.folder / name).read_text())
        return json.loads((self.folder / name).read_text())


@pytest.fixture
def job(tmp_path):
    jobs = []

    def start(does: str, **worker_env: str) -> Job:
        jobs.append(Job(tmp_path, does, worker_env))
        return jobs[-1]

    yield start
    for each in jobs:
        with suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate()


def wait_for(condition, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_a_worker_is_forked_with_its_own_command_line_environment_directory_and_output(job, tmp_path):
    run = job("wait for the worker")
    assert run.process.wait(30) == 7  # the worker's code, by way of the process that stands in for it and the driver
    driver, worker = run.read("driver.json"), run.read("worker.json")
    assert worker["imported"]
    assert worker["ppid"] == driver["ppid"] == run.process.pid
    assert worker["group"] == worker["pid"]
    assert (worker["mine"], worker["cwd"], worker["main"]) == ("yes", str(tmp_path), "__main__")
    assert (tmp_path / "worker.out").read_text() == "worker says ['wait for the worker', 'an argument']\n"
    assert driver["job"] is None
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_worker_of_another_job_is_started_plainly(job):
    run = job("wait for the worker", RAY_JOB_ID="02000000")
    assert run.process.wait(30) == 7
    worker = run.read("worker.json")
    assert not worker["imported"]
    assert worker["pid"] == run.read("driver.json")["shim"]


def test_the_workers_end_with_the_driver(job):
    run = job("leave")
    assert run.process.wait(30) == 0
    wait_for(lambda: not is_running(run.read("worker.json")["pid"]))


def test_it_ends_as_the_driver_ends(job):
    assert job("die").process.wait(30) == -signal.SIGABRT


def test_a_failure_of_the_driver_is_told_and_is_one_here(job):
    run = job("fail")
    _, errors = run.process.communicate(timeout=30)
    assert run.process.returncode == 1
    assert "RuntimeError: the driver failed" in errors


def test_a_worker_ends_with_the_process_that_stands_in_for_it(job):
    run = job("wait")
    worker = run.read("worker.json")["pid"]
    os.kill(run.read("driver.json")["shim"], signal.SIGKILL)
    wait_for(lambda: not is_running(worker))
    assert run.process.poll() is None


def test_a_signal_to_the_group_reaches_the_driver_once_and_its_answer_is_the_answer(job, tmp_path):
    run = job("on SIGTERM")
    wait_for((tmp_path / "ready").exists)
    os.killpg(run.process.pid, signal.SIGTERM)
    assert run.process.wait(30) == 3
    assert (tmp_path / "terms").read_text() == "x"


def test_all_end_when_it_is_killed(job):
    run = job("wait")
    pids = [run.read("worker.json")["pid"], run.read("driver.json")["pid"]]
    os.kill(run.process.pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("address", ["", "127.0.0.1:1"])
def test_without_a_ray_to_join_it_is_plain_main_ppo(monkeypatch, tmp_path, address):
    (tmp_path / "stand_in_plain.py").write_text("import sys; print('plain', __name__, sys.argv[1:])")
    monkeypatch.syspath_prepend(tmp_path)
    run = RUN.split("main_ppo.MODULE")[0] + "main_ppo.MODULE = 'stand_in_plain'\nmain_ppo.main()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "RAY_ADDRESS": address}
    said = subprocess.run(
        [sys.executable, "-c", run, "a=1"], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout == "plain __main__ ['a=1']\n"


def test_a_raylet_is_found_by_its_address():
    # its command line is all that is looked at, so a sleep that is called like one will do
    arguments = ["/somewhere/raylet", "60", "--gcs-address=10.1.2.3:4567", "--temp_dir=/tmp/x"]
    sleeping = (
        "import os, sys; os.execv(sys.executable, [sys.argv[1], '-c', 'import time; time.sleep(60)', *sys.argv[2:]])"
    )
    with subprocess.Popen([sys.executable, "-c", sleeping, *arguments]) as process:
        try:
            wait_for(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"/somewhere/raylet"))
            assert main_ppo.find_raylet("10.1.2.3:4567") == main_ppo.Raylet(process.pid, "/tmp/x")
            assert main_ppo.find_raylet("10.1.2.3:456") is None
        finally:
            process.kill()
