"""Asks the nodes of a SLURM cluster what they are: a short job for each kind of node, sent as a trial's would be.

A job is `hysweep.launch.sbatch`'s in every line but one: `hysweep.launch.probe` stands for the node of a trial. What
it needs lies in a directory below `study.root`, where studies will, and is gone when the answers are here.
"""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hysweep.check import lacks_for
from hysweep.check.site import not_to_be_sent
from hysweep.compile import compile_trial
from hysweep.launch import queue
from hysweep.launch.probe import ASKED, ping, pong, report
from hysweep.launch.protocol import Busy, JobState, JobStatus, Refused
from hysweep.launch.sbatch import script
from hysweep.launch.slurm import SlurmLauncher, blamed
from hysweep.launch.snapshot import snapshot
from hysweep.launch.unsaid import read_unsaid
from hysweep.schema import BadInput, Problem, Trial
from hysweep.schema.finding import Finding
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause, TrialDirectory, read_json, write_json, write_text

MINUTES = 1
MINUTES_WITH_GPUS = 3  # torch comes up on every one of them
MOST_NODES = 2  # of a kind: enough to see whether they reach each other

_LOOK = 0.1  # seconds between looks at the files
_ASK = 1.0  # and at the queue
# After a job's end its last files may still be on their way through the caches of the file system.
_LATE = 3.0
_GONE_WITHIN = 20.0  # a job that is cancelled may still write

_AFTERWARDS = re.compile(r"Exited with exit code|CANCELLED AT|[Tt]erminat|Job step aborted|task \S+: (?:Killed|Termin)")

_TRIALS_NODE = "-m hysweep.launch.node --slurm "
_OURS = "-m hysweep.launch.probe "


@dataclass(slots=True)
class Answer:
    """Of one kind of node. `nodes`: by name, what each found; `problem`: why some, or all, say nothing.

    `refused`: nothing was asked of such nodes, for no job was taken.
    """

    kind: str
    job: Job
    attempt: AttemptDirectory
    word: str
    job_id: str = ""
    state: JobState = field(default_factory=lambda: JobState(JobStatus.PENDING))
    nodes: dict[str, list[Finding]] = field(default_factory=dict)
    problem: str = ""
    refused: Problem | None = None
    ended: float = 0.0  # when that was seen

    @property
    def is_whole(self) -> bool:
        return len(self.nodes) == self.job.nodes

    @property
    def is_good(self) -> bool:
        return self.is_whole and all(f.is_good or not f.is_needed for found in self.nodes.values() for f in found)

    def as_dict(self) -> dict[str, Any]:
        found = [{"node": name, "findings": [asdict(f) for f in fs]} for name, fs in self.nodes.items()]
        return {"kind": self.kind, "job": self.job_id, "problem": self.problem, "nodes": found}


def survey(
    trial: Trial, root: Path, kinds: Sequence[str], nodes: int | None, within: float, say: Callable[[str], None]
) -> list[Answer]:
    """One answer for each kind (a constraint of sbatch's; none: that of the trial). Raises BadInput when nothing can
    be asked. Whatever happens, no job and no file is left."""
    if trial.cluster.launcher != "slurm":
        cure = "name a cluster of SLURM's, as hysweep doctor --cluster slurm_h100"
        raise BadInput(Problem("cluster.launcher", trial.cluster.launcher, "its nodes cannot be asked by sbatch", cure))
    if lacking := [*lacks_for(trial), *not_to_be_sent(trial)]:
        raise BadInput(*lacking)
    root = root.absolute()
    made_root = not root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".doctor-", dir=root))
    except OSError as e:
        raise BadInput(Problem("study.root", root, e.strerror or str(e), "give study.root=DIR")) from e
    answers: list[Answer] = []
    try:
        asked = [_prepare(trial, place, number, kind, nodes) for number, kind in enumerate(kinds or [""], 1)]
        for answer in asked:
            answers.append(answer)
            answer.refused = _submit(answer)
            if answer.refused is not None:
                answer.problem = answer.refused.why
                continue
            say(f"job {answer.job_id}: {answer.job.nodes} nodes" + (f" with {answer.kind}" if answer.kind else ""))
        refused = [a.refused for a in answers if a.refused is not None]
        if len(refused) == len(answers):
            raise BadInput(*refused)
        for problem in refused:
            say(f"{problem.value}: {problem.why}")
        _gather([a for a in answers if not a.refused], time.monotonic() + within, say)
    finally:
        _end([a.job_id for a in answers if a.job_id])
        shutil.rmtree(place, ignore_errors=True)
        if made_root:
            with suppress(OSError):
                root.rmdir()
    return answers


def _prepare(trial: Trial, place: Path, number: int, kind: str, nodes: int | None) -> Answer:
    attempt = TrialDirectory(place / "trials" / "0000-doctor").attempt(number)
    site = trial.cluster
    # nothing of what is meant for a long run alone
    site = replace(site, use_requeue=False, dependency=None, mail_type=None, signal_delay_s=1, comment=None)
    job = compile_trial(replace(trial, cluster=replace(site, constraint=kind or site.constraint)), attempt.trial.path)
    job = replace(
        snapshot(job, place),
        nodes=nodes or min(job.nodes, MOST_NODES),
        timeout_min=MINUTES if site.gpu is None else MINUTES_WITH_GPUS,
    )
    return Answer(kind, job, attempt, secrets.token_hex(8))


def _submit(answer: Answer) -> Problem | None:
    """None, or why no job was taken: the other kinds are asked all the same."""
    attempt, job = answer.attempt, answer.job
    attempt.prepare(job.as_dict())
    asked = {"word": answer.word, "host": socket.gethostname(), "job": job.as_dict()}
    write_json(attempt.path / ASKED, asked)
    text = script(job, attempt, f"hysweep-doctor-{attempt.number}")
    assert _TRIALS_NODE in text, "the batch script starts a node otherwise by now"
    write_text(attempt.path / "job.sbatch", text.replace(_TRIALS_NODE, _OURS))
    try:
        answer.job_id = SlurmLauncher().send(attempt.path / "job.sbatch")
    except (Busy, Refused) as e:
        what = f"constraint {answer.kind}" if answer.kind else answer.job.site.name
        key = (blamed(e, job.site).setting if isinstance(e, Refused) else None) or "cluster.*"
        key = "--constraint" if answer.kind and key == "cluster.constraint" else key
        return Problem("--cluster", what, f"no job was taken: {e}", f"mend {key} as it says")
    return None


def _gather(answers: Sequence[Answer], deadline: float, say: Callable[[str], None]) -> None:
    """Answer the nodes and collect what they write, until all have, or never will."""
    open_ones = list(answers)
    asked = 0.0
    while open_ones:
        now = time.monotonic()
        if now - asked >= _ASK:
            asked = now
            _look(open_ones, say)
        for answer in open_ones:
            _exchange(answer)
            if answer.is_whole:
                continue
            if answer.state.is_over and now - answer.ended > _LATE:
                answer.problem = _why_silent(answer)
            elif now > deadline:
                answer.problem = _why_late(answer)
        open_ones = [a for a in open_ones if not a.is_whole and not a.problem]
        time.sleep(_LOOK)


def _look(answers: Sequence[Answer], say: Callable[[str], None]) -> None:
    try:
        states = queue.states([a.job_id for a in answers])
    except queue.NoAnswer as e:
        states = {a.job_id: JobState(JobStatus.UNKNOWN, f"the scheduler does not answer: {e}") for a in answers}
    for answer in answers:
        state = states[answer.job_id]
        if state.is_over and not answer.ended:
            answer.ended = time.monotonic()
        if (state.state, state.reason) != (answer.state.state, answer.state.reason) and not state.is_over:
            say(f"job {answer.job_id}: {state.state}" + (f" ({state.reason})" if state.reason else ""))
        answer.state = state


def _exchange(answer: Answer) -> None:
    where = answer.attempt.path
    found = {}
    for rank in range(answer.job.nodes):
        if ping(where, rank).exists() and not pong(where, rank).exists():
            write_json(pong(where, rank), {"at": time.time()})
        written = read_json(report(where, rank))
        if isinstance(written, dict) and written.get("word") == answer.word:
            found[written["node"]] = [Finding(**f) for f in written["findings"]]
    answer.nodes = found


def _why_silent(answer: Answer) -> str:
    """Of a job that ended without an answer of all its nodes: its state, and the last words of its output."""
    said = []
    for log in sorted(answer.attempt.path.glob("slurm-*.log")):
        with suppress(OSError):
            said += [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    end = read_unsaid(said, answer.job.nodes)
    if end is not None and end.cause is Cause.CONFIG_ERROR:
        return f"{answer.state.reason or 'the job ended'}: {end.reason}"
    # what the task itself said; else why SLURM could not start it, but not how it ended the others then
    own = [line for line in said if not line.startswith(("srun:", "slurmstepd"))]
    own = own or [line for line in said if not _AFTERWARDS.search(line)][:1] or said[-1:]
    reason = answer.state.reason or "the job ended"
    if not said:
        where = answer.attempt.path.parents[3]
        return f"{reason}, and wrote nothing: is {where.parent} seen on the nodes?"
    return f"{reason}: {own[-1][:300]}"


def _why_late(answer: Answer) -> str:
    if answer.state.state is JobStatus.PENDING:
        return f"still waits in the queue: {answer.state.reason or 'no reason is given'}; it was withdrawn"
    missing = answer.job.nodes - len(answer.nodes)
    return (
        f"{missing} of {answer.job.nodes} nodes have not answered; the job was {answer.state.state}, and is cancelled"
    )


def _end(job_ids: Sequence[str]) -> None:
    """Cancel what is left, and wait for it: what still runs would write into a directory that is gone."""
    queue.cancel(job_ids)
    until = time.monotonic() + _GONE_WITHIN
    while job_ids and time.monotonic() < until:
        with suppress(queue.NoAnswer):
            if all(s.is_over for s in queue.states(job_ids).values()):
                return
        time.sleep(0.5)
