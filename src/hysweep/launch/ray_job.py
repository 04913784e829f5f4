"""Trials as jobs of a standing Ray cluster, by the REST interface of its dashboard: ray itself is not imported.

The job's working directory is a package of hysweep's code and that of ``cluster.code`` as it was at submit, uploaded
once for each content. It runs `hysweep.launch.ray_node` on the head, which writes the attempt's files as every
launcher's node does: so the study must lie on a file system that the nodes of the cluster share with this machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import shlex
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from hysweep.launch import command, ending
from hysweep.launch.node import PULSE, STOP, STOPS_WITHIN
from hysweep.launch.processes import MARK
from hysweep.launch.protocol import Busy, JobState, JobStatus, Refused
from hysweep.launch.ray_node import NOT_SEEN
from hysweep.launch.sbatch import python_of
from hysweep.launch.snapshot import snapshot
from hysweep.schema import BadInput, Cluster, Problem
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause, read_json, write_json
from hysweep.track.files import age, claim

# As Ray's own client has it: the first that is set.
VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_WITHIN = 30.0  # seconds for an answer
_READY_WITHIN = 5.0
_SUBMITS_WITHIN = 120.0  # the dashboard waits for the head's agent before it answers
# A head that is silent, and whose node has shown no sign of life for so long, is gone.
_PULSE_LOST = 40 * PULSE
_MOST = 100 * 2**20  # bytes of a request that Ray's dashboard takes

_ENDED = {"STOPPED", "SUCCEEDED", "FAILED"}
# What Ray says in `error_type` of a job that never came to run our command, or lost the process that watches it.
_CAUSES = {
    "RUNTIME_ENV_SETUP_FAILURE": Cause.CONFIG_ERROR,
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": Cause.CONFIG_ERROR,
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": Cause.RAY_BOOT,
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": Cause.RAY_BOOT,
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": Cause.RAY_BOOT,
    "JOB_SUPERVISOR_ACTOR_DIED": Cause.NODE_FAIL,
}


class JobId(NamedTuple):
    """All that is needed to find a job again: where its cluster answers, its name there, its attempt's directory."""

    address: str
    name: str
    directory: str

    def __str__(self) -> str:
        return " ".join(self)

    @classmethod
    def read(cls, text: str) -> JobId:
        return cls(*text.split(" ", 2))

    @property
    def attempt(self) -> AttemptDirectory:
        return AttemptDirectory(Path(self.directory))


class RayJobLauncher:
    """A job is named before it is submitted, by a note in the attempt's directory; Ray takes no name twice.

    - the submitter dies before the note: nothing was sent; submitted again;
    - it dies after it: `find` asks the cluster for the name, and what is not there is submitted under the same one.
    """

    def plan(self, job: Job, attempt: AttemptDirectory) -> str:
        where = address(job.site)
        copied = ["hysweep", *job.site.code]
        request = _request(job, attempt, "<study>-<trial>-a<attempt>-<random>", "gcs://<package>", {})
        return "\n".join(
            [
                f"# the package: {', '.join(copied)}, but for caches and what Git ignores, at most {_MOST >> 20} MiB",
                f"PUT {where}/api/packages/gcs/<package>",
                f"POST {where}/api/jobs/",
                json.dumps(request, indent=1),
                f"# {attempt.path.absolute()} must be seen on the nodes of the Ray cluster",
                "# then on the head, in Ray's environment and that above",
                *("#   " + shlex.join(["python3", *argv[1:]]) for argv in command.prepare_commands(job)),
                "#   " + shlex.join(["python3", *command.driver_command(job)[1:]]),
            ]
        )

    def submit(self, attempt: AttemptDirectory) -> str:
        written = attempt.job()
        if written is None:
            raise FileNotFoundError(f"{attempt.path}/job.json: not written yet")
        job = Job.from_dict(written)
        try:
            ray = Dashboard(address(job.site))
            job_id = JobId(ray.address, _name(attempt), command.identity(attempt))
            if ray.job(job_id.name) is None:
                self._submit(ray, job, attempt, job_id.name)
        except BadInput as e:
            raise Refused.of(e.problems[0]) from e
        except NoAnswer as e:
            raise Busy(str(e)) from e
        return str(job_id)

    def _submit(self, ray: Dashboard, job: Job, attempt: AttemptDirectory, name: str) -> None:
        study = attempt.trial.path.parent.parent.absolute()
        job = snapshot(job, study)
        write_json(attempt.path / "job.json", job.as_dict())
        places = _places(job, study / "code")
        package = _pack(places)
        if len(package) > _MOST:
            why = f"come to {len(package) >> 20} MiB as a package; Ray takes {_MOST >> 20}"
            cure = "name directories of code alone, or add data to .gitignore"
            raise Refused.of(Problem("cluster.code", ", ".join(job.site.code) or "hysweep", why, cure))
        uri = f"_ray_pkg_{hashlib.sha256(package).hexdigest()[:16]}.zip"
        ray.upload(uri, package)
        ray.submit(_request(job, attempt, name, f"gcs://{uri}", places))

    def find(self, attempt: AttemptDirectory) -> str | None:
        written, name = attempt.job(), _name_if_any(attempt)
        if written is None or name is None:
            return None
        try:
            ray = Dashboard(address(Job.from_dict(written).site))
            is_there = ray.job(name) is not None
        except BadInput:
            return None  # submit says what is wrong
        except NoAnswer as e:
            raise Busy(str(e)) from e
        return str(JobId(ray.address, name, command.identity(attempt))) if is_there else None

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        ids = {text: JobId.read(text) for text in job_ids}
        found = {where: _jobs(where) for where in {i.address for i in ids.values()}}
        return {text: _state(job_id, found[job_id.address]) for text, job_id in ids.items()}

    def cancel(self, job_ids: Iterable[str]) -> None:
        """The node is asked by a file in the attempt's directory. Where none took the attempt, or none does as it is
        asked, Ray ends the job."""
        for job_id in map(JobId.read, job_ids):
            attempt = job_id.attempt
            if attempt.end() is not None:
                continue
            with suppress(FileNotFoundError):
                os.close(os.open(attempt.path / STOP, os.O_CREAT | os.O_WRONLY, 0o644))
            if attempt.claimed() is None or (age(attempt.path / STOP) or 0.0) > STOPS_WITHIN:
                with suppress(NoAnswer, Refused):
                    Dashboard(job_id.address).stop(job_id.name)

    def hold(self, job_ids: Iterable[str], release: bool = False) -> bool:
        return False  # Ray starts what it has room for


# --- where


def address(site: Cluster) -> str:
    """The address of the cluster's dashboard, from its field or the environment. Raises BadInput."""
    said = {"cluster.ray_address": site.ray_address or ""} | {name: os.environ.get(name, "") for name in VARIABLES}
    key, given = next(((k, v) for k, v in said.items() if v), ("cluster.ray_address", ""))
    cure = f"give cluster.ray_address=http://HEAD:8265, or set {VARIABLES[0]} or {VARIABLES[1]} to that"
    if not given:
        raise BadInput(Problem(key, "null", "the Ray cluster to submit to is not named", cure))
    bare = given.rstrip("/")
    if re.fullmatch(r"[\w.-]+:\d+|\[[\da-fA-F:]+\]:\d+", bare):
        bare = f"http://{bare}"
    if not re.fullmatch(r"https?://[^/\s]+(?:/\S*)?", bare):
        raise BadInput(Problem(key, given, "is not the address of a dashboard", cure))
    return bare


def unready(site: Cluster) -> list[Problem]:
    """Why nothing could be submitted now."""
    try:
        where = address(site)
        Dashboard(where, within=_READY_WITHIN).version()
    except BadInput as e:
        return list(e.problems)
    except (NoAnswer, Refused) as e:
        by = "cluster.ray_address" if site.ray_address else next(n for n in VARIABLES if os.environ.get(n))
        cure = f"start it, or give another by cluster.ray_address, {VARIABLES[0]} or {VARIABLES[1]}"
        return [Problem(by, where, f"no Ray dashboard can be used there: {e}", cure)]
    return []


def token(environment: Mapping[str, str]) -> str:
    """What Ray would authenticate with; empty for nothing."""
    if environment.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return ""
    if given := environment.get("RAY_AUTH_TOKEN", ""):
        return given.strip()
    file = environment.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


# --- asking


class NoAnswer(Exception):
    """The cluster could not be asked; nothing is known of its jobs for now."""


class Dashboard:
    """Ray's REST interface to jobs (dashboard/modules/job/job_head.py). Every method raises NoAnswer, and Refused
    where the same question would get the same no."""

    def __init__(self, address: str, within: float = _WITHIN) -> None:
        self.address = address
        self._within = within

    def version(self) -> str:
        return str(self._read("/api/version", lambda v: isinstance(v, dict) and "ray_version" in v)["ray_version"])

    def jobs(self) -> dict[str, dict[str, Any]]:
        """All that were submitted, by name."""
        found = self._read("/api/jobs/", lambda v: isinstance(v, list) and all(isinstance(j, dict) for j in v))
        return {j["submission_id"]: j for j in found if j.get("submission_id")}

    def job(self, name: str) -> dict[str, Any] | None:
        try:
            return dict(self._read(f"/api/jobs/{name}", lambda v: isinstance(v, dict)))
        except _NotThere:
            return None

    def upload(self, name: str, package: bytes) -> None:
        try:
            # also keeps it from being forgotten before the job starts
            self._ask("GET", f"/api/packages/gcs/{name}")
        except _NotThere:
            self._ask("PUT", f"/api/packages/gcs/{name}", package)

    def submit(self, request: Mapping[str, Any]) -> None:
        try:
            self._ask("POST", "/api/jobs/", json.dumps(request).encode(), _SUBMITS_WITHIN)
        except Refused as e:
            if "already exists" not in str(e):
                raise

    def stop(self, name: str) -> None:
        with suppress(_NotThere):
            self._ask("POST", f"/api/jobs/{name}/stop", b"")

    def _read(self, path: str, is_right: Callable[[Any], bool]) -> Any:
        said = self._ask("GET", path)
        with suppress(ValueError, RecursionError):
            if is_right(found := json.loads(said)):
                return found
        raise NoAnswer(f"{self.address} answers, but not as a Ray dashboard does: {said[:60]!r}")

    def _ask(self, method: str, path: str, body: bytes | None = None, within: float | None = None) -> str:
        request = urllib.request.Request(self.address + path, body, method=method)
        if body is not None:
            kind = "application/json" if path.startswith("/api/jobs") else "application/octet-stream"
            request.add_header("Content-Type", kind)
        if ours := token(os.environ):
            request.add_header("Authorization", f"Bearer {ours}")
        try:
            try:
                with urllib.request.urlopen(request, timeout=within or self._within) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError as e:
                raise self._no(e.code, e.read().decode(errors="replace").strip()) from e
        except HTTPException as e:  # as at the port of Ray's control service, or where an answer was cut off
            raise NoAnswer(f"{self.address} gives no HTTP answer that can be read ({type(e).__name__})") from e
        except (OSError, ValueError) as e:
            why = getattr(e, "reason", None) or e
            raise NoAnswer(f"{self.address} does not answer: {why}") from e

    def _no(self, code: int, said: str) -> Exception:
        line = (said.splitlines() or [""])[-1]
        if code == 404:
            return _NotThere(line)
        if code in (401, 403):
            what = "asks for a token: set RAY_AUTH_TOKEN" if not token(os.environ) else "does not take our token"
            return Refused(f"{self.address} {what} (RAY_AUTH_TOKEN_PATH and ~/.ray/auth_token are read too)")
        if code < 500 or "already exists" in said:
            return Refused(f"{self.address} refused it: {line}")
        return NoAnswer(f"{self.address} says {code}: {line}")


class _NotThere(Refused):
    pass


# --- what is sent


def _request(job: Job, attempt: AttemptDirectory, name: str, package: str, places: Mapping[str, str]) -> dict[str, Any]:
    """The body of a submission. `places`: where in the package each copied directory of PYTHONPATH is."""
    variables = command.settings(job, attempt)
    # by the mark all processes of the trainer are ended, and Ray's own that watches the job has these variables too
    del variables[MARK]
    if "PYTHONPATH" in variables:
        path = [places.get(entry, entry) for entry in variables["PYTHONPATH"].split(os.pathsep)]
        variables["PYTHONPATH"] = os.pathsep.join(path)  # Ray starts its workers in the working directory
    variables["RAY_JOB_STOP_WAIT_TIME_S"] = str(int(STOPS_WITHIN))
    python = shlex.join(python_of(job)) if job.site.python else "python3"
    return {
        "submission_id": name,
        "entrypoint": f"{python} -u -m hysweep.launch.ray_node {shlex.quote(command.identity(attempt))}",
        "runtime_env": {"working_dir": package, "env_vars": variables},
        "metadata": {"hysweep": command.identity(attempt)},
    }


def _places(job: Job, copies: Path) -> dict[str, str]:
    """Of PYTHONPATH, the directories that `snapshot` copied: where each is in the package. hysweep is at its top."""
    entries = [Path(e) for e in job.env.get("PYTHONPATH", "").split(os.pathsep) if e]
    copied = [e for e in entries if e.is_relative_to(copies)]
    return {str(e): "." if e.parent == copies else f"{e.name}-{e.parent.name}" for e in copied}


def _pack(places: Mapping[str, str]) -> bytes:
    """A zip archive, the same bytes for the same content."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for directory, place in sorted(places.items()):
            for file in sorted(p for p in Path(directory).rglob("*") if p.is_file()):
                name = os.path.normpath(os.path.join(place, file.relative_to(directory)))
                about = zipfile.ZipInfo(name)
                about.compress_type = zipfile.ZIP_DEFLATED
                about.external_attr = (file.stat().st_mode & 0o777) << 16
                archive.writestr(about, file.read_bytes())
    return packed.getvalue()


def _name(attempt: AttemptDirectory) -> str:
    """What the attempt's job is called: readable, and of this directory alone, should one of its name be made anew."""
    trial = attempt.trial
    readable = f"{trial.path.parent.parent.name}-{trial.path.name.partition('-')[0]}-a{attempt.number}"
    plain = re.sub(r"[^\w.-]", "_", readable, flags=re.ASCII)
    claim(_note(attempt), json.dumps(f"{plain}-{secrets.token_hex(4)}"))
    name = _name_if_any(attempt)
    assert name is not None
    return name


def _name_if_any(attempt: AttemptDirectory) -> str | None:
    name = read_json(_note(attempt))
    return name if isinstance(name, str) else None


def _note(attempt: AttemptDirectory) -> Path:
    return attempt.path / "ray_job.json"


# --- what is answered


def _jobs(where: str) -> dict[str, dict[str, Any]] | NoAnswer:
    try:
        return Dashboard(where).jobs()
    except (NoAnswer, Refused) as e:
        return NoAnswer(str(e))


def _state(job_id: JobId, jobs: dict[str, dict[str, Any]] | NoAnswer) -> JobState:
    if isinstance(jobs, NoAnswer):
        return _unheard(job_id, str(jobs))
    job = jobs.get(job_id.name)
    if job is None:
        end = job_id.attempt.end()
        cause = end.cause if end else Cause.NODE_FAIL
        return JobState(JobStatus.ENDED, f"{job_id.address} knows the job no more: Ray was started anew", cause)
    said = str(job.get("message") or "")
    started = job["start_time"] / 1000 if job.get("start_time") else None
    if job["status"] not in _ENDED:
        is_up = job["status"] == "RUNNING"
        return JobState(JobStatus.RUNNING if is_up else JobStatus.PENDING, "" if is_up else said, None, started)
    return JobState(JobStatus.ENDED, _reason(job, said), _cause(job, said), started)


def _unheard(job_id: JobId, why: str) -> JobState:
    """Of a job whose cluster does not answer. The node's files say whether it ended, and when it last lived."""
    attempt = job_id.attempt
    end, claimed = attempt.end(), attempt.claimed()
    if end is not None:
        return JobState(JobStatus.ENDED, end.reason, end.cause, end.started)
    if claimed is not None and (age(attempt.path / "node.json") or 0.0) > _PULSE_LOST:
        return JobState(JobStatus.ENDED, f"{claimed.host} fell silent, and {why}", Cause.NODE_FAIL, claimed.created)
    return JobState(JobStatus.UNKNOWN, why)


def _cause(job: Mapping[str, Any], said: str) -> Cause | None:
    """None where the node's own word is the better one."""
    if job["status"] == "STOPPED":
        return Cause.KILLED
    if job["status"] == "SUCCEEDED":
        return None
    if known := _CAUSES.get(str(job.get("error_type"))):
        return known
    code = job.get("driver_exit_code")
    if code in (NOT_SEEN, 126, 127):
        return Cause.CONFIG_ERROR
    # a command that failed before it was a node: what it said is at the end of Ray's message
    return ending.classify(said.splitlines(), code).cause if "Traceback" in said or "No module named" in said else None


def _reason(job: Mapping[str, Any], said: str) -> str:
    if job["status"] == "STOPPED":
        return "stopped by Ray"
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip()[:500] if lines and job["status"] == "FAILED" else ""
