"""Jobs of a standing Ray cluster: what is sent, what its answers mean; then a real one, with a token."""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hysweep.launch import Busy, JobStatus, Refused, launcher, ray_job, unready
from hysweep.launch.ray_job import Dashboard, JobId, RayJobLauncher
from hysweep.schema import BadInput, Cluster
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause, Claim, End
from tests.launch.attempts import HERE, end_of, over, wait_for

New = Callable[..., AttemptDirectory]


@pytest.fixture(autouse=True)
def _own_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in os.environ if n.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # a token of the user's own is not ours


def site(**more: Any) -> Cluster:
    return Cluster(name="ray", launcher="ray_job", **more)


# --- a dashboard that answers as it is told


class Told:
    """`jobs`: what it lists; `log`: what it was asked; `says`: (status, text) for a method and the path's beginning."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.log: list[tuple[str, str, bytes, str]] = []
        self.says: dict[tuple[str, str], tuple[int, str]] = {}
        self.address = ""

    def answer(self, method: str, path: str, body: bytes, auth: str) -> tuple[int, str]:
        self.log.append((method, path, body, auth))
        for (m, beginning), said in self.says.items():
            if m == method and path.startswith(beginning):
                return said
        if method == "POST" and path == "/api/jobs/":
            name = json.loads(body)["submission_id"]
            if name in [j["submission_id"] for j in self.jobs]:
                return 400, f"Traceback\nValueError: Job with submission_id {name} already exists."
            self.jobs.append({"submission_id": name, "status": "PENDING", "message": "queued"})
            return 200, json.dumps({"submission_id": name})
        if path == "/api/jobs/":
            return 200, json.dumps([*self.jobs, {"submission_id": None, "job_id": "01000000"}])
        if path.startswith("/api/jobs/"):
            job = next((j for j in self.jobs if j["submission_id"] == path.split("/")[3]), None)
            return (200, json.dumps(job)) if job else (404, "does not exist")
        return (404, "does not exist") if path.startswith("/api/packages") and method == "GET" else (200, "{}")


@pytest.fixture
def told() -> Iterator[Told]:
    dashboard = Told()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, text = dashboard.answer(self.command, self.path, body, self.headers.get("Authorization") or "")
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    dashboard.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield dashboard
    server.shutdown()
    server.server_close()


@pytest.fixture
def sent(told: Told, new_attempt: New) -> tuple[RayJobLauncher, AttemptDirectory, str]:
    attempt = new_attempt(env={"A": "1"}, launcher="ray_job", site=site(ray_address=told.address, code=[code()]))
    ray = RayJobLauncher()
    return ray, attempt, ray.submit(attempt)


def code() -> str:
    Path("mine").mkdir(exist_ok=True)
    Path("mine/beside.py").write_text("")
    Path("mine/__pycache__").mkdir(exist_ok=True)
    Path("mine/__pycache__/beside.pyc").write_text("")
    return str(Path("mine").absolute())


def test_what_is_sent(told: Told, sent: tuple[RayJobLauncher, AttemptDirectory, str]) -> None:
    _, attempt, _ = sent
    (put,) = [(path, body) for method, path, body, _ in told.log if method == "PUT"]
    (post,) = [json.loads(body) for method, _, body, _ in told.log if method == "POST"]
    assert post["runtime_env"]["working_dir"] == "gcs://" + put[0].rpartition("/")[2]
    variables = post["runtime_env"]["env_vars"]
    assert variables["A"] == "1"
    assert variables["VERL_FILE_LOGGER_PATH"] == str(attempt.metrics_file)
    assert "HYSWEEP_ATTEMPT" not in variables, "the process that watches the job would be ended by it"
    names = zipfile.ZipFile(io.BytesIO(put[1])).namelist()
    assert {"hysweep/launch/ray_node.py", "hysweep/__init__.py"} <= set(names)
    top, beside = variables["PYTHONPATH"].split(":")
    assert (top, f"{beside}/beside.py" in names) == (".", True)
    assert not [n for n in names if "__pycache__" in n]
    assert post["entrypoint"] == f"python3 -u -m hysweep.launch.ray_node {attempt.path}"
    written = attempt.job()
    assert written and str(attempt.trial.path.parent.parent / "code") in written["env"]["PYTHONPATH"]


def test_twice_is_once(told: Told, sent: tuple[RayJobLauncher, AttemptDirectory, str]) -> None:
    _, attempt, job_id = sent
    assert RayJobLauncher().submit(attempt) == RayJobLauncher().find(attempt) == job_id
    assert len(told.jobs) == 1
    # two that submit at once: the other one is told that it is there
    Dashboard(told.address).submit({"submission_id": JobId.read(job_id).name})
    assert len(told.jobs) == 1


def test_a_submitter_that_died_before_anything_was_sent(told: Told, new_attempt: New) -> None:
    attempt = new_attempt(launcher="ray_job", site=site(ray_address=told.address))
    assert RayJobLauncher().find(attempt) is None
    told.says["POST", "/api/jobs/"] = (500, "No available agent to submit job, please try again later.")
    with pytest.raises(Busy, match="No available agent"):
        RayJobLauncher().submit(attempt)
    assert RayJobLauncher().find(attempt) is None
    del told.says["POST", "/api/jobs/"]
    assert RayJobLauncher().submit(attempt) == RayJobLauncher().find(attempt)


def test_a_directory_made_anew_is_another_job(
    told: Told, sent: tuple[RayJobLauncher, AttemptDirectory, str], new_attempt: New
) -> None:
    ray, attempt, job_id = sent
    written = attempt.job()
    assert written
    shutil.rmtree(attempt.path)
    attempt.prepare(written)
    assert ray.find(attempt) is None
    assert ray.submit(attempt) != job_id


@pytest.mark.parametrize(
    ("job", "state", "cause", "reason"),
    [
        ({"status": "PENDING", "message": "waits"}, JobStatus.PENDING, None, "waits"),
        ({"status": "RUNNING", "start_time": 5000}, JobStatus.RUNNING, None, ""),
        ({"status": "SUCCEEDED"}, JobStatus.ENDED, None, ""),
        ({"status": "STOPPED"}, JobStatus.ENDED, Cause.KILLED, "stopped by Ray"),
        ({"status": "FAILED", "driver_exit_code": 1, "message": "exit code 1"}, JobStatus.ENDED, None, "exit code 1"),
        (
            {"status": "FAILED", "driver_exit_code": 3, "message": "logs:\n/s/1 is not seen on n1, where Ray runs\n"},
            JobStatus.ENDED,
            Cause.CONFIG_ERROR,
            "/s/1 is not seen on n1, where Ray runs",
        ),
        (
            {
                "status": "FAILED",
                "driver_exit_code": 1,
                "message": "logs:\nTraceback (most recent call last):\n"
                '  File "/a/ray_node.py", line 8, in <module>\n'
                "    import psutil\nModuleNotFoundError: No module named 'psutil'\n",
            },
            JobStatus.ENDED,
            Cause.CONFIG_ERROR,
            "ModuleNotFoundError: No module named 'psutil'",
        ),
        (
            {"status": "FAILED", "error_type": "RUNTIME_ENV_SETUP_FAILURE", "message": "no package"},
            JobStatus.ENDED,
            Cause.CONFIG_ERROR,
            "no package",
        ),
        (
            {"status": "FAILED", "error_type": "JOB_SUPERVISOR_ACTOR_DIED", "message": "died"},
            JobStatus.ENDED,
            Cause.NODE_FAIL,
            "died",
        ),
    ],
)
def test_what_an_answer_means(
    told: Told,
    sent: tuple[RayJobLauncher, AttemptDirectory, str],
    job: dict[str, Any],
    state: JobStatus,
    cause: Cause | None,
    reason: str,
) -> None:
    _, _, job_id = sent
    told.jobs[0].pop("message")
    told.jobs[0].update(job)
    seen = launcher("ray_job").states([job_id])[job_id]
    assert (seen.state, seen.cause, seen.reason) == (state, cause, reason)
    assert seen.started == (5.0 if "start_time" in job else None)


def test_all_jobs_are_looked_at_at_once(told: Told, new_attempt: New) -> None:
    ray = RayJobLauncher()
    attempts = [new_attempt(launcher="ray_job", site=site(ray_address=told.address)) for _ in range(3)]
    job_ids = [ray.submit(a) for a in attempts]
    asked = len(told.log)
    assert len(ray.states(job_ids)) == 3
    assert len(told.log) == asked + 1
    told.jobs.clear()
    lost = ray.states(job_ids)[job_ids[0]]
    assert (lost.is_over, lost.cause) == (True, Cause.NODE_FAIL)
    assert "Ray was started anew" in lost.reason


def test_a_cluster_that_does_not_answer(
    sent: tuple[RayJobLauncher, AttemptDirectory, str], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, attempt, job_id = sent
    told.says["GET", "/api/jobs/"] = (503, "starting")
    assert ray.states([job_id])[job_id].state is JobStatus.UNKNOWN
    attempt.claim(Claim("head7", 1, time.time()))
    assert ray.states([job_id])[job_id].state is JobStatus.UNKNOWN
    monkeypatch.setattr(ray_job, "_PULSE_LOST", 0.0)
    gone = ray.states([job_id])[job_id]
    assert (gone.is_over, gone.cause, gone.reason[:16]) == (True, Cause.NODE_FAIL, "head7 fell silent"[:16])
    attempt.finish(End(Cause.COMPLETED, started=3.0))
    assert ray.states([job_id])[job_id].cause is Cause.COMPLETED, "what the node wrote is what counts"


def test_cancelling_asks_the_node_and_then_ray(
    told: Told, sent: tuple[RayJobLauncher, AttemptDirectory, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, attempt, job_id = sent

    def stops() -> int:
        return sum(1 for method, path, *_ in told.log if method == "POST" and path.endswith("/stop"))

    ray.cancel([job_id])
    assert stops() == 1, "nothing of it runs: Ray ends it"
    attempt.claim(Claim("head7", 1, time.time()))
    ray.cancel([job_id])
    assert stops() == 1, "the node ends it"
    assert (attempt.path / "stop").exists()
    monkeypatch.setattr(ray_job, "STOPS_WITHIN", -1.0)
    ray.cancel([job_id])
    assert stops() == 2, "it does not"
    attempt.finish(End(Cause.KILLED))
    ray.cancel([job_id])
    assert stops() == 2


@pytest.mark.parametrize(
    ("field", "env", "found"),
    [
        ("http://a:8265/", {}, "http://a:8265"),
        ("a:8265", {"RAY_ADDRESS": "http://b:1"}, "http://a:8265"),
        (None, {"RAY_ADDRESS": "http://b:1", "RAY_API_SERVER_ADDRESS": "https://c/ray"}, "https://c/ray"),
        (None, {"RAY_ADDRESS": "b:8265"}, "http://b:8265"),
        (None, {"RAY_ADDRESS": "auto"}, None),
        (None, {"RAY_ADDRESS": "ray://b:10001"}, None),
        (None, {}, None),
    ],
)
def test_where_the_cluster_is(
    monkeypatch: pytest.MonkeyPatch, new_attempt: New, field: str | None, env: dict[str, str], found: str | None
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    if found:
        assert ray_job.address(site(ray_address=field)) == found
        return
    (problem,) = unready(site(ray_address=field))
    assert all(name in problem.cure for name in ("cluster.ray_address", "RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"))
    attempt = new_attempt(launcher="ray_job", site=site(ray_address=field))
    with pytest.raises(BadInput):
        RayJobLauncher().plan(Job("x", (), site=site(ray_address=field)), attempt)
    with pytest.raises(Refused, match="RAY_API_SERVER_ADDRESS"):
        RayJobLauncher().submit(attempt)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "not as a Ray dashboard does: '<html>'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not as a Ray dashboard does: '{}'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "no HTTP answer that can be read"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 9\r\n\r\n{}", "no HTTP answer that can be read"),
        (b"\0\0\x12\x04\0\0\0\0\0\0\x03\x7f\xff", "no HTTP answer that can be read"),  # gRPC: the port of RAY_ADDRESS
    ],
    ids=["a page", "another service", "cut off", "an error cut off", "Ray's control service"],
)
def test_something_else_is_there(said: bytes, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                with caller:
                    caller.recv(4096)
                    caller.sendall(said)

        threading.Thread(target=serve, daemon=True).start()
        where = f"http://127.0.0.1:{server.getsockname()[1]}"
        (problem,) = unready(site(ray_address=where))
        assert says in problem.why
        looked = RayJobLauncher().states([str(JobId(where, "a", "/nowhere/trials/0-a/attempts/1"))])
        assert [(s.state, says in s.reason) for s in looked.values()] == [(JobStatus.UNKNOWN, True)]
        server.shutdown(socket.SHUT_RDWR)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (problem,) = unready(site(ray_address=f"127.0.0.1:{port}"))
    assert "does not answer: [Errno 111] Connection refused" in str(problem)
    assert "RAY_API_SERVER_ADDRESS or RAY_ADDRESS" in problem.cure


def test_the_token(told: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told.says["GET", "/api/version"] = (401, "Unauthorized: Missing authentication token")
    assert "asks for a token: set RAY_AUTH_TOKEN" in str(unready(site(ray_address=told.address))[0])
    (tmp_path / "token").write_text("s3cret\n")
    for name, value in (("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token")), ("RAY_AUTH_TOKEN", "other")):
        monkeypatch.setenv(name, value)
        assert "does not take our token" in str(unready(site(ray_address=told.address))[0])
    assert [auth for *_, auth in told.log] == ["", "Bearer s3cret", "Bearer other"]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    unready(site(ray_address=told.address))
    assert told.log[-1][3] == ""


def test_a_package_too_large(told: Told, new_attempt: New, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_job, "_MOST", 1 << 10)
    with pytest.raises(Refused, match=r"as a package"):
        RayJobLauncher().submit(new_attempt(launcher="ray_job", site=site(ray_address=told.address, code=[code()])))
    assert told.jobs == []


# --- room for a trial

RAY = """
import os
from pathlib import Path
init = lambda **_: None
nodes = lambda: [{"Alive": True, "Resources": {"GPU": 8.0}}, {"Alive": True, "Resources": {"CPU": 8.0}}]
def available_resources():
    tries = Path(os.environ["TRIES"])
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    return {"GPU": 2.0 * len(tries.read_text())}
"""


@pytest.mark.parametrize(
    ("asked", "tries", "says"),
    [
        (("1", "4", "30"), 2, ""),
        (("1", "8", "0"), 1, "2 GPUs of the Ray cluster were free after 0 s; the trial needs 8"),
        (("2", "8", "30"), 0, "the Ray cluster has 1 nodes with 8 GPUs; the trial needs 2"),
    ],
)
def test_room_is_waited_for(tmp_path: Path, asked: tuple[str, ...], tries: int, says: str) -> None:
    (tmp_path / "ray.py").write_text(RAY)
    env = os.environ | {"PYTHONPATH": str(tmp_path), "TRIES": str(tmp_path / "tries")}
    argv = [sys.executable, "-m", "hysweep.launch.ray_room", *asked]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (1 if says else 0, says), done.stderr
    assert len((tmp_path / "tries").read_text() if tries else "") == tries


# --- a real one


@pytest.fixture(scope="module")
def standing() -> Iterator[str]:
    """The address of a Ray cluster with a dashboard, whose token is RAY_AUTH_TOKEN."""
    temporary = tempfile.mkdtemp(prefix="hs-ray-", dir="/tmp")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        dashboard, client = one.getsockname()[1], two.getsockname()[1]
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0", "--num-cpus=4",
            "--num-gpus=4",
            f"--dashboard-port={dashboard}", f"--temp-dir={temporary}", "--object-store-memory=100000000",
            "--node-ip-address=127.0.0.1", f"--ray-client-server-port={client}", "--dashboard-agent-listen-port=0",
            "--disable-usage-stats"]  # fmt: skip
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env = plain | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    with open(f"{temporary}.log", "wb") as log:
        head = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        head.terminate()
        try:
            head.wait(20)
        except subprocess.TimeoutExpired:
            head.kill()
        shutil.rmtree(temporary, ignore_errors=True)
        os.unlink(f"{temporary}.log")


TOKEN = secrets.token_hex(32)


@pytest.mark.verl
@pytest.mark.slow
def test_a_real_cluster(standing: str, new_attempt: New, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for(lambda: "asks for a token" in str(unready(site(ray_address=standing))), 60)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_ADDRESS", standing)
    python = site(python=sys.executable, code=[code()])

    def new(*arguments: str, **more: Any) -> AttemptDirectory:
        made = new_attempt(
            env={"FROM_THE_JOB": "yes", "PYTHONPATH": str(HERE)}, launcher="ray_job", site=python, **more
        )
        written = made.job()
        assert written
        made.prepare(replace(Job.from_dict(written), module="job_trainer", overrides=arguments).as_dict())
        return made

    runs, fails, hangs, huge = new(), new("raise"), new(), new(gpus_per_node=8)
    first = launcher("ray_job")
    job_ids = {
        name: first.submit(a) for name, a in {"runs": runs, "fails": fails, "hangs": hangs, "huge": huge}.items()
    }
    again = launcher("ray_job")
    assert again.submit(runs) == again.find(runs) == job_ids["runs"]
    wait_for(lambda: runs.end() or "worker: " in log(runs), 120)
    said = log(runs)
    assert "worker: yes yes " in said, said + runs.node_log.read_text()
    assert "/_ray_pkg_" in said.partition("worker: ")[2], "workers run the code of the package"
    assert [step for step, _ in runs.metrics()] == [1]
    assert again.states([job_ids["runs"]])[job_ids["runs"]].state is JobStatus.RUNNING
    (runs.path / "go").touch()
    over(again, job_ids["runs"], 60)
    assert (end_of(runs).cause, end_of(runs).exit_code) == (Cause.COMPLETED, 0)

    over(again, job_ids["fails"], 60)
    assert end_of(fails).reason == "FileNotFoundError: no such data"
    assert end_of(fails).exit_code == 1

    over(again, job_ids["huge"], 60)
    assert end_of(huge).cause is Cause.RAY_BOOT
    assert end_of(huge).reason == "the Ray cluster has 0 nodes with 8 GPUs; the trial needs 1"

    wait_for(lambda: "worker: " in log(hangs), 60)
    again.cancel([job_ids["hangs"]])
    over(again, job_ids["hangs"], 60)
    assert (end_of(hangs).cause, end_of(hangs).reason) == (Cause.KILLED, "asked to stop")
    found = Dashboard(standing).jobs()
    statuses = [found[JobId.read(job_ids[name]).name]["status"] for name in ("runs", "fails", "hangs")]
    assert statuses == ["SUCCEEDED", "FAILED", "FAILED"], "Ray's own list says the same as ours"

    stopped = new()
    job_id = first.submit(stopped)
    wait_for(lambda: "worker: " in log(stopped), 60)
    Dashboard(standing).stop(JobId.read(job_id).name)
    state = over(first, job_id, 60)
    assert (state.cause, end_of(stopped).cause) == (Cause.KILLED, Cause.KILLED), "stopped from Ray's side: a clean end"

    away = new()
    job_id = first.submit(away)
    shutil.rmtree(away.path)  # as if it were on no file system of the head's
    state = over(first, job_id, 60)
    assert state.cause is Cause.CONFIG_ERROR
    assert "is not seen on" in state.reason


def log(attempt: AttemptDirectory) -> str:
    return attempt.driver_log.read_text(errors="replace") if attempt.driver_log.exists() else ""
