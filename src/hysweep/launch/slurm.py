"""Jobs of a SLURM cluster. One job is one attempt, one task runs on each of its nodes; what is known is on disk.

The scheduler may run a job again by itself, after it lost a node or took the nodes for somebody else. Each run is an
attempt of its own: the n-th restart of the job that was submitted for attempt k is attempt k + n, and the node makes
its directory. So whoever drives the study finds it there.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from hysweep.check.keys import is_said
from hysweep.check.site import FIELD_OF, LAUNCHERS, option_of
from hysweep.launch import command, queue
from hysweep.launch.protocol import Busy, JobState, JobStatus, Refused, job_name, mark
from hysweep.launch.sbatch import python_of, script
from hysweep.launch.snapshot import snapshot
from hysweep.schema import BadInput, Cluster
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, write_json, write_text

# Looks at the queue are this far apart at least, and up to the second while nothing changes: a study of days need not
# ask every second, one of minutes should.
_LOOKS = (2.0, 30.0)
_SUBMITS_WITHIN = 90.0

# What sbatch says when the same may be accepted later. Anything else is final.
_TRANSIENT = re.compile(
    r"(?i)timed out|unable to contact|connection (?:refused|reset)|temporarily un|standby|zero bytes|transport endpoint"
    r"|communication|i/o error|slurm_persist_conn|unexpected message|try again|maximum number of jobs"
    r"|resolve_ctls_from_dns_srv|establish a configuration source|inactive or drain"
)
# One text for too many jobs, which passes, and for a job too large, which does not.
_LIMIT = re.compile(r"(?i)submit limit|MaxSubmit|MaxJobs|QOSMax|AssocMax|AssocGrp|QOSGrp")


# The fields of the cluster that a refusal may be about, by a word of sbatch's: the first that somebody gave, else the
# last; of several words the first. An account that is wrong for a partition goes by the account, and names both.
_FIELDS = (
    (r"\baccount\b", "account"),
    (r"\bqos\b", "qos"),
    (r"reservation", "reservation"),
    (r"partition time limit|time limit", "timeout_min"),
    (r"partition", "partition"),
    (r"feature", "constraint"),
    (r"generic resource|\bgres\b|tres", "gres", "gpus_per_node"),
    (r"memory", "memory_gib"),
    (r"dependency", "dependency"),
    (r"node name", "nodelist", "exclude"),
    (r"more processors|cpu count", "cpus_per_node", "nodes"),
    (r"node configuration", "cpus_per_node", "gres", "gpus_per_node", "constraint", "nodelist", "nodes"),
    (r"node count|too many nodes", "nodes"),
    (r"license|invalid option|invalid directive", "additional_parameters"),
)


class SlurmLauncher:
    def __init__(self) -> None:
        self._seen: dict[str, JobState] = {}
        self._missed: dict[str, float] = {}
        self._looked = self._changed = float("-inf")

    def plan(self, job: Job, attempt: AttemptDirectory) -> str:
        job = snapshot(job, attempt.trial.path.parent.parent, writes=False)
        text = script(job, attempt, job_name(attempt))
        dropped = command.foreign(os.environ)
        users = sorted(name for name in os.environ if name.startswith("SBATCH_"))
        settings = command.settings(job, attempt)
        return "\n".join(
            [
                f"# sbatch {attempt.path.absolute() / 'job.sbatch'}",
                *(["# not inherited: " + " ".join(dropped)] if dropped else []),
                *(["# sbatch also takes from your environment: " + " ".join(users)] if users else []),
                text.rstrip("\n"),
                "",
                "# then on each node, for Ray and the trainer alike",
                *(f"#   {setting}" for setting in command.shown(settings)),
                f"# Ray must be up on all within {job.ray_boot_timeout_s} s; then on the first",
                *(f"#   {shlex.join([*python_of(job), *argv])}" for argv in job.prepare),
                " \\\n#     ".join(
                    [f"#   {shlex.join([*python_of(job), '-m', job.module])}", *map(shlex.quote, job.overrides)]
                ),
            ]
        )

    def submit(self, attempt: AttemptDirectory) -> str:
        """Raises Busy when the scheduler takes no job for now, Refused when it never will take this one."""
        written = attempt.job()
        if written is None:
            raise FileNotFoundError(f"{attempt.path}/job.json: not written yet")
        job = Job.from_dict(written)
        if job.site.max_submitted is not None:
            self._wait_for_room(job.site.max_submitted)
        try:
            job = snapshot(job, attempt.trial.path.parent.parent.absolute())
        except BadInput as e:
            raise Refused.of(e.problems[0]) from e
        write_json(attempt.path / "job.json", job.as_dict())
        file = attempt.path / "job.sbatch"
        write_text(file, script(job, attempt, job_name(attempt)))
        try:
            job_id = self.send(file)
        except Refused as e:
            raise blamed(e, job.site) from e
        # a scheduler that was killed gives a number twice
        self._seen.pop(job_id, None)
        self._missed.pop(job_id, None)
        return job_id

    def find(self, attempt: AttemptDirectory) -> str | None:
        claim = attempt.claimed()
        if claim is not None and claim.job:
            return claim.job
        try:
            return queue.named(mark(attempt))
        except queue.NoAnswer as e:
            raise Busy(str(e)) from e

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        wanted = set(job_ids)
        live = {j for j in wanted if not (j in self._seen and self._seen[j].is_over)}
        now = time.monotonic()
        pause = min(max(_LOOKS[0], 0.1 * (now - self._changed)), _LOOKS[1])
        if live and (now - self._looked >= pause or not live <= set(self._seen)):
            self._looked = now
            try:
                seen = queue.states(live, self._missed)
            except queue.NoAnswer as e:
                seen = {j: JobState(JobStatus.UNKNOWN, f"the scheduler does not answer: {e}") for j in live}
            if any(self._seen.get(j) != s for j, s in seen.items()):
                self._changed = now
            self._seen = {j: s for j, s in self._seen.items() if j in wanted} | seen
        return {j: self._seen[j] for j in wanted}

    def cancel(self, job_ids: Iterable[str]) -> None:
        jobs = [j for j in job_ids if not (j in self._seen and self._seen[j].is_over)]
        queue.cancel(jobs)
        self._looked = float("-inf")

    def hold(self, job_ids: Iterable[str], release: bool = False) -> bool:
        queue.hold(list(job_ids), release)
        self._looked = float("-inf")
        return True

    def _wait_for_room(self, most: int) -> None:
        try:
            there = queue.submitted_by_me()
        except queue.NoAnswer as e:
            raise Busy(str(e)) from e
        if there >= most:
            raise Busy(f"{there} jobs are in the queue, and cluster.max_submitted is {most}")

    def send(self, file: Path) -> str:
        argv = ["sbatch", "--parsable", str(file.absolute())]
        try:
            with queue.overheard(argv[0], _SUBMITS_WITHIN):
                done = subprocess.run(
                    argv,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_SUBMITS_WITHIN,
                    env={k: v for k, v in command.inherited(os.environ).items() if option_of(k) not in LAUNCHERS},
                    cwd=file.parent,
                )
        except FileNotFoundError as e:
            raise Refused("there is no sbatch here: log in to a node that can submit") from e
        except subprocess.TimeoutExpired as e:
            raise Busy(f"sbatch did not answer within {_SUBMITS_WITHIN:.0f} s") from e
        job_id = re.search(r"(?m)^(\d+)(?:;.*)?$", done.stdout)  # a site's own sbatch may say more
        if done.returncode == 0 and job_id:
            return job_id[1]
        said = " ".join(
            line.removeprefix("sbatch: error: ").strip() for line in done.stderr.splitlines() if line.strip()
        )
        said = said or f"sbatch ended with exit code {done.returncode}"
        if _TRANSIENT.search(said) or (_LIMIT.search(said) and self._has_jobs()):
            raise Busy(said)
        raise Refused(said)

    def _has_jobs(self) -> bool:
        try:
            return queue.submitted_by_me() > 0
        except queue.NoAnswer:
            return True


def fields_of(refusal: str) -> tuple[str, ...]:
    """The fields of the cluster that what sbatch said may be about, likely ones first; none where nothing tells."""
    if named := re.search(r"--([a-z][a-z\-]+)", refusal):
        return (FIELD_OF.get(named[1], "additional_parameters"),)
    return next((tuple(found) for words, *found in _FIELDS if re.search(words, refusal, re.IGNORECASE)), ())


def blamed(refused: Refused, site: Cluster) -> Refused:
    """The refusal with the setting that it is about, as whoever gave that wrote it: a field, an option beside them, a
    variable of sbatch's, which wins over both."""
    said = str(refused)
    fields = fields_of(said)
    for name in sorted(os.environ):
        option = option_of(name)
        if option is not None and option not in LAUNCHERS and FIELD_OF.get(option) in fields:
            return Refused(said, name, os.environ[name])
    if not fields:
        return refused
    field = next((f for f in fields if is_said(site, f)), fields[-1])
    if field == "additional_parameters" or not is_said(site, field):
        for option, value in site.additional_parameters.items():
            words = (word.rstrip("s") for word in re.split("[-_]", str(option)) if len(word) > 2)
            if any(word in said.lower() for word in words):
                return Refused(said, f"cluster.additional_parameters.{option}", value)
    if field == "account" and site.partition is not None and "partition" in said:
        said += f" (cluster.partition = {site.partition})"
    return Refused(said, f"cluster.{field}", getattr(site, field))
