"""One idempotent step, over and over: read, ingest, ask, submit, record.

Every step can be cut short by SIGKILL and begun again. The order of writes sees to it:

    asked      Optuna's journal has the trial        -> asked again, it gives the same point
    frozen     trials/NNNN-id/ appears at once       -> CREATED: compiled and submitted
    submitting the token is written before submit    -> the launcher is asked whether the job is there;
               if not it is submitted again, and the node's claim lets only one of two run
    refused    the scheduler takes no such job       -> as it was before; nothing more is submitted, and once nothing
               is in flight the study stops. Whoever goes on with it, perhaps elsewhere, asks again
    submitted  state.json has the job id             -> re-adopted by it
    ended      state.json has the cause and value    -> told to Optuna again if it was not

What it wrote it knows (`Trials`, `Ledger`): a step costs as much as there is in flight, however many trials have ended.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from hysweep.check import errors
from hysweep.compile import Job, compile_trial, nodes_of
from hysweep.compose import SEED
from hysweep.compose.composer import MISCOMPOSED, load_trial, trial_yaml
from hysweep.launch import Busy, JobState, JobStatus, Launcher, Refused, launcher, processes
from hysweep.launch.unsaid import unsaid
from hysweep.layouts import host_rung, next_rung
from hysweep.schema import BadInput, Cluster, Objective, Problem, Trial, hour_unit, nearest, trial_id
from hysweep.study.changes import CLUSTER, as_plain, changed, is_another_job, is_of_cluster, later, moved
from hysweep.study.definition import composer_of, load_definition
from hysweep.study.home import settle_home
from hysweep.study.lease import StudyLock
from hysweep.study.ledger import Ledger, booking, worst_case
from hysweep.study.notify import Notifier
from hysweep.study.objective import GPU_HOURS, value_of
from hysweep.study.preview import least_hours, problems_of
from hysweep.study.promotion import Climber, next_promoted, rung_step, stop_step
from hysweep.study.pruners import Other, reason_to_prune
from hysweep.study.replicates import (
    Outcome,
    best_points,
    is_confirmation,
    missing,
    outcome,
    outcomes,
    same_point,
    unconfirmed,
    values_of,
)
from hysweep.study.reuse import copy_metrics, find_result
from hysweep.study.search import Reached, Search
from hysweep.study.stopping import Progress, last_mark
from hysweep.study.storage import Damaged, Unreachable, open_storage, reaching
from hysweep.study.storage_url import KEY, hidden
from hysweep.study.tracking import run_name, trial_run
from hysweep.study.trials import Trials
from hysweep.track import (
    ACTIONS,
    PASSING,
    AttemptDirectory,
    Cause,
    End,
    Phase,
    State,
    Status,
    StudyDirectory,
    TrialDirectory,
    Verdict,
    began_from,
    checkpoint_step,
    curve_of,
    exactly,
    logged,
    matching,
    now,
    settle,
)
from hysweep.track.files import age

FIRST_FAILURES = 3  # a study whose first trials all end by a fault of the configuration is stopped
REPEATS = 20  # askings in a row that may bring nothing new
MOST_REJECTED = 500  # the same in a space that cannot be counted, of which filters may leave little
MOST_EXCLUDED = 8  # nodes that failed a trial and are kept from it; more would keep it from running
FORECAST_S = 60.0  # by less a forecast has not changed
LAUNCHES = 3  # of a job that no node has launched so far: each that fails may cost the site a node
OLD_NEWS_S = 60.0  # a look at the scheduler is never as old, and no job takes as long to go once its trial has ended
LOST = JobState(
    JobStatus.ENDED, "the scheduler has lost the job: its number is another one's", Cause.NODE_FAIL, is_lost=True
)
WITHDRAWN = "taken back from the queue: the study is paused"
MOVED = "taken back from the queue: cluster.* of the study has changed"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The trials whose jobs have other settings of the cluster than the study by now, by number.

    waiting  in a queue, and to be submitted anew
    unpaid   in a queue, where they stay: the budget has no room for them with the new settings
    running  they go on as they are
    """

    waiting: list[int] = field(default_factory=list)
    unpaid: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)


class Controller:
    """The one writer of a study. A context manager: it holds the study's lock from `with` to the end.

    Raises BadInput when another controller has it, or when the directory holds no study.
    """

    def __init__(
        self,
        directory: StudyDirectory,
        changes: dict[str, object] | None = None,
        launchers: Callable[[str], Launcher] = launcher,
    ) -> None:
        """`changes`: settings of the study (see definition.CHANGEABLE) and of its cluster that hold from now on."""
        self.directory = directory
        self._composer = composer_of(directory)
        self._asked = load_definition(directory, self._composer)
        self._composer.freeze(self._asked.env)
        self._changes = later(directory.changes(), as_plain(changes or {}))
        self.definition = replace(self._asked, study=changed(self._asked.study, self._changes))
        self._lock = StudyLock(directory)
        self._placed: dict[tuple[Path, int], Trial] = {}
        self._blamed_by: dict[tuple[Path, int], tuple[str, ...]] = {}
        self._is_busy = False  # the scheduler takes no job in this step
        self._is_paused = False
        self._refusal: Problem | None = None  # the scheduler takes no such job; none is submitted any more
        self._launcher_named = cache(launchers)
        self._started: dict[str, float] = {}  # when the job of an id began to run
        self._curves: dict[int, tuple[int, int]] = {}  # of each running trial: time and size of what was read of it
        self._least: float | None = None  # what the cheapest trial may come to by now; None: to be found out
        self._unpaid: dict[int, float] = {}  # trials that may come to more than is left of the budget
        self._exhausted = False
        self._ended_curves: dict[tuple[int, str], Other] = {}
        self._repeated: list[dict[str, object]] = []  # points that are a trial which the study has
        self._at_rungs: dict[int, tuple[float, ...]] = {}  # what was compared at the rungs that a trial has passed

    def __enter__(self) -> Controller:
        return self.enter()

    @exactly()
    def enter(self, wait_s: float = 0.0) -> Controller:
        """Take the study. Raises BadInput when another controller has it, still after `wait_s` seconds, and when its
        jobs are those of another directory."""
        settle_home(self.directory)
        self._lock.acquire(wait_s)
        try:
            self._open()
        except Unreachable as e:  # it went away after it was opened
            self._lock.release()
            shown = hidden(self.definition.study.storage or str(self.directory.journal))
            raise BadInput(Problem(KEY, shown, str(e), "go on when it answers; the study's jobs do meanwhile")) from e
        except BaseException:
            self._lock.release()
            raise
        return self

    def _open(self) -> None:
        if self._changes != self.directory.changes():
            self.directory.save_changes(self._changes)
        # paths of the trial are relative to where the study was started, wherever it goes on
        if Path(self.definition.cwd).is_dir():
            os.chdir(self.definition.cwd)
        self._trials = Trials(self.directory)
        self._ledger = Ledger(self.directory)
        self._notifier = Notifier(self.directory, self.definition.study.notify)
        self._confirmations = {t.number for t in self._trials if self._confirms(t.point())}
        searched = ((t, self._trials.state(t)) for t in self._searched)
        self._progress = Progress(self.definition.study, outcomes(searched, self.definition.space.seeds))
        self._is_confirmed = False
        storage = open_storage(self.definition.study, self.directory)
        with reaching():
            self._search = Search(self.definition, storage, self._trials.points)
            self._is_settled = False
            self._settle()
        for trial in self._trials.live:
            state = self._trials.state(trial)
            if state.status is not Status.CREATED:
                self._promise(trial, self._job_of(trial, state.attempt))

    def __exit__(self, *_: object) -> None:
        self._notifier.close()
        self._lock.release()

    # --- the step

    @exactly()
    def tick(self, asks: bool = True) -> bool:
        """One step. True while there is something left to wait for. `asks=False` begins no new trial.

        Raises Unreachable when the storage does not answer: the same again later. Raises Lost when the study has
        another controller by now. A journal that somebody damages meanwhile is made again.
        """
        self._lock.renew()
        self._take_changes()
        self._is_busy = False
        self._is_paused = self.directory.is_paused
        try:
            with reaching():
                self._settle()
                self._honour_cancels()
                self._ingest()
                if asks and not self._is_paused:
                    self._ask()
        except Damaged as e:
            self.directory.log("journal_damaged", reason=str(e))
            self._notifier.close()
            self._open()  # what is in memory may be ahead of what is on disk
            return True
        except Unreachable:
            self._is_settled = False
            raise
        self._tell_people()
        return not self.is_over and self.refusal is None

    def _take_changes(self) -> None:
        """What somebody else changes in a study that this controller drives is in changes.json."""
        found = self.directory.changes()
        if found == self._changes:
            return
        before, self._changes = self.definition.study.notify, found
        self.definition = replace(self._asked, study=changed(self._asked.study, found))
        self._refusal, self._is_confirmed, self._least = None, False, None
        self._unpaid.clear()
        if self.definition.study.notify != before:
            self._notifier.close()
            self._notifier = Notifier(self.directory, self.definition.study.notify)

    @property
    def is_over(self) -> bool:
        return self._trials.in_flight == len(self._unpaid) and self.why_no_more() is not None

    @property
    def refusal(self) -> Problem | None:
        """What the scheduler refused, once nothing is in flight that goes on without it: the study stops here."""
        waits = self._is_busy or any(self._trials.state(t).status is Status.SUBMITTED for t in self._trials.live)
        return None if waits else self._refusal

    @property
    def in_flight(self) -> int:
        """Trials that have not ended."""
        return self._trials.in_flight

    @property
    def ended(self) -> int:
        return len(self._trials) - self._trials.in_flight

    def why_no_more(self) -> str | None:
        """Why no further trial is asked for; None while one may be."""
        study = self.definition.study
        if self.directory.is_cancel_requested:
            return "cancelled"
        if self._cut_short:
            return None
        if study.budget_gpu_hours is not None:
            spent, least = self._ledger.spent, next(iter(self._unpaid.values()), self._least_hours())
            if spent >= study.budget_gpu_hours or self._is_beyond(spent + least):
                so_far = f"{_hours(spent)} are spent, and a trial may take {_hours(least)}"
                return f"the budget of {_hours(study.budget_gpu_hours)} {self._hour_unit} is used: {so_far}"
        first = [state.cause for _, state in itertools.islice(self._trials.ended(), FIRST_FAILURES)]
        if len(first) == FIRST_FAILURES and all(c is not None and ACTIONS[c].stops_study for c in first):
            return f"the first {FIRST_FAILURES} trials ended by {first[0]}: mend the configuration"
        why = self._why_searched()
        return None if why is not None and (self._has_to_promote() or self._has_to_confirm()) else why

    def _why_searched(self) -> str | None:
        """Why the search is over, but for what cuts a study short."""
        made = len(self._trials) - len(self._confirmations)
        if made >= self.definition.n_trials:
            return f"all {made} trials were made" if made != 1 else "its one trial was made"
        if self._exhausted:
            rejected = " or is rejected by a filter" if self.definition.space.filters else ""
            return f"the sampler brings nothing new: every point that it proposes has run{rejected}"
        hours = (now() - self.definition.created) / 3600
        return self._progress.why_stop(self.definition.study, hours)

    def _has_to_confirm(self) -> bool:
        """Whether a point is, or may still have to be, run with new seeds."""
        if not self.definition.study.confirm.top or self._is_confirmed:
            return False
        return any(t.number not in self._confirmations for t in self._trials.live) or self._unconfirmed() is not None

    def _has_to_promote(self) -> bool:
        """Whether a trial goes on from its rung, or may still have to."""
        if self.definition.study.promote.min_steps is None:
            return False
        return any(t.number not in self._confirmations for t in self._trials.live) or self._promoted(True) is not None

    @property
    def _searched(self) -> list[TrialDirectory]:
        """The trials but for those that confirm."""
        return [t for t in self._trials if t.number not in self._confirmations]

    def _confirms(self, point: dict[str, object]) -> bool:
        return self.definition.study.confirm.top > 0 and is_confirmation(point, self.definition.space)

    def _unconfirmed(self) -> tuple[int, int] | None:
        study, space = self.definition.study, self.definition.space
        trials, done = list(self._trials), self._confirmations
        found = unconfirmed(trials, done, study, space, lambda lead: self._config(lead, 1).trainer.seed)
        self._is_confirmed = found is None
        return found

    @property
    def site(self) -> Cluster:
        """The cluster of the trials; of those that vary it, the one that they vary from."""
        return moved(self._composer.compose(self.definition.fixed).trial, self._changes).cluster

    @property
    def _hour_unit(self) -> str:
        return hour_unit(self.site.gpu is not None)

    def gpu_hours(self) -> float:
        """GPU-hours (on a machine with none: slot-hours) of all attempts, those that still run included."""
        return self._ledger.spent + math.fsum(self._hours_so_far(t) for t in self._trials.live)

    def _pause(self, trial: TrialDirectory, attempt: int, why: str) -> None:
        """As somebody else would (`hysweep pause`), who then has to mend it and to say `resume`."""
        if not self.directory.request_pause(trial=trial.number, reason=why):
            return
        self._is_paused = True
        text = f"study {self.definition.study.name} is paused, trial {trial.number} ended by {why}"
        self._notifier.tell("failure", f"paused {trial.number} {attempt}", text, trial=trial.number)

    # --- requests of other processes

    def _honour_cancels(self) -> None:
        everything = self.directory.is_cancel_requested
        for trial in self._trials.live:
            state = self._trials.state(trial)
            if (everything or trial.is_cancel_requested) and state.ending is not Cause.CANCELLED:
                self._stop(trial, state, Cause.CANCELLED, "by the user")

    def _honour_pause(self, looks: dict[int, JobState]) -> None:
        """Nothing that waits in a queue begins while the study is paused; what runs goes on."""
        for name, group in self._by_launcher().items():
            waiting = [(t, s, j) for t, s in group if (j := looks.get(t.number)) and s.ending is None]
            # what is stuck is kept back already, and need not say that it is by us too
            queued = [(t, s) for t, s, j in waiting if j.state is JobStatus.PENDING and not (j.is_held or j.is_stuck)]
            held = [(t, s, j) for t, s, j in waiting if s.is_held]
            if self._is_paused and queued:
                # noted first: whoever lets the study go on knows what was held
                noted = [(t, self._trials.save(t, s.but(is_held=True))) for t, s in queued]
                if not self._launcher_named(name).hold([s.job_id for _, s in noted if s.job_id]):
                    for trial, state in noted:
                        self._stop(trial, state, Cause.PREEMPTED, WITHDRAWN)
            elif not self._is_paused and held:
                if still := [s.job_id for _, s, j in held if s.job_id and j.is_held]:
                    self._launcher_named(name).hold(still, release=True)
                for trial, state, job in held:
                    # only once that is seen: a scheduler that does not answer releases nothing
                    if not job.is_held and job.state is not JobStatus.UNKNOWN:
                        self._trials.save(trial, state.but(is_held=False))

    def _launch_again(self, looks: dict[int, JobState]) -> None:
        """What a node could not launch waits until somebody lets it go, which none does at night; some times we do."""
        if self._is_paused:
            return
        for name, group in self._by_launcher().items():
            stuck = [(t, s, j) for t, s in group if (j := looks.get(t.number)) and j.is_stuck and s.ending is None]
            to_release = []
            for trial, state, job in stuck:
                # another time; between two looks that are far apart it may have been let go and kept back again
                is_again = state.reason != job.reason or now() - state.updated > OLD_NEWS_S
                if is_again and state.failed_launches < LAUNCHES:
                    state = self._trials.save(trial, state.but(failed_launches=state.failed_launches + 1))
                if state.failed_launches < LAUNCHES:
                    to_release.append(state.job_id or "")
                else:
                    text = f"trial {trial.number} of {self.definition.study.name} waits for you: {job.reason}"
                    self._notifier.tell("failure", f"stuck {state.job_id}", text, trial=trial.number)
            if to_release:
                self._launcher_named(name).hold(to_release, release=True)

    def _take_back(self, looks: dict[int, JobState]) -> None:
        """What waits in a queue with settings of the cluster that have changed since is submitted anew with theirs;
        where the budget has no room for that it waits on as it is. One goes first: its place in the queue is lost, and
        the scheduler may refuse the new settings."""
        if self._is_paused or self._is_busy or self._refusal or CLUSTER not in self._changes:
            return
        jobs = [(t, s) for t, s in itertools.chain.from_iterable(self._by_launcher().values()) if s.ending is None]
        older = [(t, s) for t, s in jobs if self._is_elsewhere(t, s.attempt)]
        is_on_its_way = any(MOVED in self._trials.state(t).reason for t in self._trials.live)
        for trial, state in older:
            job = looks.get(trial.number)
            if job is None or job.state is not JobStatus.PENDING or not self._has_room_for(trial, state):
                continue
            if len(older) == len(jobs) and is_on_its_way:
                return
            is_on_its_way = True
            self._stop(trial, state, Cause.PREEMPTED, MOVED)

    def elsewhere(self) -> Elsewhere:
        """By what is on disk, also before the study is entered."""
        self._ledger = Ledger(self.directory)
        found = Elsewhere()
        for trial in self.directory.trials() if CLUSTER in self._changes else ():
            state = trial.state()
            if state.status is not Status.SUBMITTED or state.ending or not self._is_elsewhere(trial, state.attempt):
                continue
            attempt = trial.attempt(state.attempt)
            # what the scheduler runs again by itself waits once more when an attempt of it has ended
            has_begun = state.began is not None or (attempt.claimed() is not None and attempt.end() is None)
            has_room = self._has_room_for(trial, state)
            (found.running if has_begun else found.waiting if has_room else found.unpaid).append(trial.number)
        return found

    def _has_room_for(self, trial: TrialDirectory, state: State) -> bool:
        """Whether the budget allows a job anew, where the study runs by now."""
        return not self._is_beyond(self._ledger.spent + worst_case(self._here(trial, state.attempt)))

    def _is_elsewhere(self, trial: TrialDirectory, attempt: int) -> bool:
        """Whether the job of an attempt would be another one where the study runs by now."""
        return is_another_job(self._config(trial, attempt), self._here(trial, attempt))

    def _stop(self, trial: TrialDirectory, state: State, why: Cause, reason: str) -> None:
        """Have a trial's job stopped, at the end of the step; its cause will be `why`."""
        self.directory.log("stop", trial=trial.number, cause=why, reason=reason)
        state = self._trials.save(trial, state.but(ending=why, reason=reason))
        if state.status is Status.CREATED:
            self._end(trial, state, why, reason)

    # --- what the jobs did

    def _ingest(self) -> None:
        for trial in self._trials.live:
            state = self._trials.state(trial)
            if state.status in (Status.CREATED, Status.SUBMITTING):
                self._submit(trial, state)
            else:
                self._follow_reruns(trial, state)
        looks = self._look()
        self._take_back(looks)
        self._honour_pause(looks)
        self._launch_again(looks)
        for trial in self._trials.live:
            state = self._trials.state(trial)
            job = looks.get(trial.number)
            if state.status is not Status.SUBMITTED or job is None:
                continue
            if job.started is not None and state.job_id is not None:
                self._started[state.job_id] = job.started
            if job.is_over:
                # it may have run once more between the look at its attempts and that at the queue
                state = self._follow_reruns(trial, state)
                self._after_attempt(trial, state, job)
                continue
            state = self._note(trial, state, job)
            if state.ending is None:
                self._watch(trial, state)
        for name, group in self._by_launcher().items():
            if ending := [s.job_id for _, s in group if s.job_id and s.ending is not None]:
                self._launcher_named(name).cancel(ending)  # again at each step, harder in the end

    def _by_launcher(self) -> dict[str, list[tuple[TrialDirectory, State]]]:
        """The trials that have a job, by their launcher."""
        groups: dict[str, list[tuple[TrialDirectory, State]]] = {}
        for trial in self._trials.live:
            state = self._trials.state(trial)
            if state.status is Status.SUBMITTED and state.job_id is not None:
                groups.setdefault(self._config(trial, state.attempt).cluster.launcher, []).append((trial, state))
        return groups

    def _look(self) -> dict[int, JobState]:
        """Of each trial that has a job. One call to each launcher for all its jobs."""
        found: dict[int, JobState] = {}
        for name, group in self._by_launcher().items():
            states = self._launcher_named(name).states([s.job_id for _, s in group if s.job_id])
            in_vain = []  # what they are for is done
            for trial, state in group:
                if (job_id := state.job_id) and (job := states.get(job_id)) is not None:
                    attempt = trial.attempt(state.attempt)
                    if not (job.is_of(attempt) or attempt.claimed() is not None):
                        job = LOST
                    elif _is_old_news(job, attempt):
                        in_vain.append(job_id)
                        job = JobState(JobStatus.ENDED)
                    found[trial.number] = job
            if in_vain:
                self._launcher_named(name).cancel(in_vain)
        return found

    def _note(self, trial: TrialDirectory, state: State, job: JobState) -> State:
        """What only the scheduler knows of a job: why it waits; since when it runs, though its node says nothing yet.
        Written when it changes, for whoever looks at the study."""
        if state.ending is not None:
            return state
        if job.state is JobStatus.RUNNING:
            began = state.began if job.started is None else job.started
            said = state.but(reason=job.reason, began=began, expected=None, nodes=job.nodes or state.nodes)
        elif job.state is JobStatus.PENDING:
            said = state.but(reason=job.reason, began=None, nodes="", expected=_steady(state.expected, job.expected))
        else:
            said = state.but(reason=job.reason)
        return state if said == state else self._trials.save(trial, said)

    def _watch(self, trial: TrialDirectory, state: State) -> None:
        """A running job: does a pruner give it up, now that there are new values?."""
        if not self.definition.study.rules:
            return
        try:
            seen = trial.attempt(state.attempt).metrics_file.stat()
        except OSError:
            return
        if self._curves.get(trial.number) == (seen.st_mtime_ns, seen.st_size):
            return
        self._curves[trial.number] = (seen.st_mtime_ns, seen.st_size)
        study, number = self.definition.study, trial.number
        if number in self._confirmations:
            return  # what confirms is run to its end
        steps = trial.metrics()
        if not steps or (last := max(steps)) <= (since := self._search.judged(number)):
            return
        reason = reason_to_prune(
            study,
            number,
            lambda metric: curve_of(steps, metric),
            lambda metric: self._others(number, metric),
            since,
            self._config(trial, state.attempt).trainer.total_steps,
        )
        if reason is not None:
            self._stop(trial, state, Cause.PRUNED, reason)
        self._search.mark_judged(number, last)

    def _follow_reruns(self, trial: TrialDirectory, state: State) -> State:
        """A scheduler may have run the job again by itself: each run is an attempt, whose directory the node made."""
        while (later := _later_run(trial, state)) is not None:
            end = trial.attempt(state.attempt).end()
            if end is None and (said := unsaid(trial.attempt(state.attempt))) and said.cause is Cause.PREEMPTED:
                end = said
            # one that ended without a word lost its node; one that was told to end was not told why
            if end is None or end.cause is Cause.NODE_FAIL:
                cause = Cause.NODE_FAIL
            else:
                cause = settle(end.cause, Cause.PREEMPTED)
            reason = end.reason if end and end.reason else "the scheduler ran the job again"
            self._close_attempt(trial, state, cause, reason, None, checkpoint_step(trial.checkpoints))
            state = self._trials.save(trial, state.but(attempt=later, failed_launches=0))
            self.directory.log("rerun", trial=trial.number, attempt=state.attempt, cause=cause, job=state.job_id)
            self._promise(trial, self._job_of(trial, state.attempt))
            if state.ending is None and self._is_beyond(self._ledger.at_most()):
                self._stop(trial, state, cause, f"{reason}; the budget has no room for that")
                state = self._trials.state(trial)
        return state

    def _others(self, number: int, metric: str) -> list[Other]:
        """What the trial is compared with: all others, each read once after it has ended."""
        found = []
        for trial in self._trials:
            if trial.number == number:
                continue
            key = (trial.number, metric)
            if key not in self._ended_curves:
                state = self._trials.state(trial)
                other = Other(trial.number, trial.curve(metric), state.cause is Cause.COMPLETED)
                if not state.is_final:
                    found.append(other)
                    continue
                self._ended_curves[key] = other
            found.append(self._ended_curves[key])
        return found

    def _after_attempt(self, trial: TrialDirectory, state: State, job: JobState) -> None:
        """A job is gone: why, what it cost, and what to do about it."""
        attempt = trial.attempt(state.attempt)
        end = _end_of(attempt)
        if job.is_lost and end is None and attempt.claim(processes.own_claim()):
            # nothing of it ever ran, and now nothing ever will, should the scheduler remember it
            at = now()
            attempt.finish(End(Cause.NODE_FAIL, Phase.START, reason=job.reason, started=at, ended=at))
            end = attempt.end()
        cause = settle(end.cause if end else None, job.cause)
        if job.cause is not None and attempt.end() is None:
            cause = job.cause  # what else there is was not said by its node
        reason = end.reason if end and cause is end.cause else job.reason
        reason = reason or (end.reason if end else "the node process is gone and left no word")
        if state.ending is not None and cause is not Cause.COMPLETED:
            cause, reason = state.ending, state.reason
        action = ACTIONS[cause]
        is_tried_again = not self.directory.is_cancel_requested and self._may_retry(trial, state, cause)
        rung = None
        if is_tried_again and action.climbs:
            here = self._config(trial, state.attempt)
            phase = end.phase if end else Phase.UNKNOWN
            rung = host_rung(here) if cause is Cause.HOST_OOM else next_rung(here, phase)
            if rung is None:
                is_tried_again, reason = False, f"{reason}; the memory ladder has no further rung"
        counts = action.verdict in (Verdict.VALUE, Verdict.PRUNED)
        kept_to = math.inf if counts else checkpoint_step(trial.checkpoints) if is_tried_again else -1
        self._close_attempt(trial, state, cause, reason, job, kept_to)
        if is_tried_again:
            if rung is not None:
                trial.attempt(state.attempt + 1).place(trial_yaml(rung[1]))
            named = rung[0] if rung else ""
            self.directory.log("retry", trial=trial.number, attempt=state.attempt + 1, cause=cause, rung=named)
            again = f"again after {cause}: {reason}"
            self._trials.save(trial, State(Status.CREATED, attempt=state.attempt, reason=again, rungs=state.rungs))
            if action.pauses_study:
                self._pause(trial, state.attempt, f"{cause}: {reason}")
        elif action.verdict is Verdict.VALUE:
            self._end_with_value(trial, state, cause)
        elif cause is Cause.RUNG:
            self._end_with_value(trial, state.but(rungs=state.rungs + 1), cause, reason)
        else:
            self._end(trial, state, cause, reason)

    def _close_attempt(
        self,
        trial: TrialDirectory,
        state: State,
        cause: Cause,
        reason: str,
        job: JobState | None,
        kept_to: float,
    ) -> None:
        """Book what an attempt used; its steps up to `kept_to` were not for nothing."""
        attempt = trial.attempt(state.attempt)
        self._ledger.book(booking(attempt, self._job_of(trial, state.attempt), cause, job, kept_to))
        where = (job.nodes if job else "") or state.nodes
        details = {"cause": cause, "reason": reason, "nodes": where}
        self.directory.log("attempt_ended", trial=trial.number, attempt=state.attempt, **details)

    def _may_retry(self, trial: TrialDirectory, state: State, cause: Cause) -> bool:
        action = ACTIONS[cause]
        if action.is_last:
            return False
        if action.needs_progress:
            # of another run by the scheduler that was never begun there may be a directory
            began = began_from([trial.attempt(n).metrics() for n in range(1, state.attempt + 1)])
            return checkpoint_step(trial.checkpoints) > began
        alike = self._ledger.ends_alike(trial.number, state.attempt, cause) + 1
        return action.retries is None or alike <= action.retries

    def _end_with_value(self, trial: TrialDirectory, state: State, cause: Cause, reason: str = "") -> None:
        values = []
        for goal in self.definition.study.goals:
            value = self._value(trial, goal)
            if value is None:
                self._end(trial, state, Cause.CONFIG_ERROR, self._why_no_value(trial, goal.metric))
                return
            if math.isnan(value):
                self._end(trial, state, Cause.DIVERGED, f"{goal.metric} ended in no number")
                return
            values.append(value)
        self._end(trial, state, cause, reason, values)

    def _value(self, trial: TrialDirectory, goal: Objective) -> float | None:
        if goal.metric == GPU_HOURS:
            return math.fsum(entry.gpu_hours for entry in self._ledger.of(trial.number))
        return value_of(trial.curve(goal.metric), goal)

    def _why_no_value(self, trial: TrialDirectory, metric: str) -> str:
        seen = logged(trial.metrics())
        if several := matching(metric, seen):
            return f"{metric} fits several metrics, {', '.join(several[:4])}: name one of them"
        close = nearest(metric, seen)
        return f"the trainer never logged {metric}" + (f"; near it: {', '.join(close)}" if close else "")

    def _end(
        self, trial: TrialDirectory, state: State, cause: Cause, reason: str, values: Sequence[float] = ()
    ) -> None:
        value = values[0] if values else None
        if value is None:
            # what it had come to, for the tables; not its result
            value_so_far = self._value(trial, self.definition.study.goals[0])
            value = value_so_far if value_so_far is not None and math.isfinite(value_so_far) else None
        several = tuple(values) if len(values) > 1 else ()
        state = state.but(status=Status.ENDED, cause=cause, reason=reason, value=value, values=several)
        state = state.but(is_held=False, is_refused=False)
        state = self._trials.save(trial, state)
        self.directory.log("ended", trial=trial.number, cause=cause, reason=reason, value=value, values=several)
        self._forget(trial, state)
        self._tell_failure(trial, state)
        told = self._tell(trial)
        if told is not None:
            self._progress.add(told, is_again=state.rungs > (cause is Cause.RUNG))

    def _forget(self, trial: TrialDirectory, state: State) -> None:
        """What only a trial in flight needs."""
        self._ledger.release(trial.number)
        self._unpaid.pop(trial.number, None)
        self._curves.pop(trial.number, None)
        self._started.pop(state.job_id or "", None)
        for known in (self._placed, self._blamed_by):
            for key in [k for k in known if k[0] == trial.path]:
                del known[key]

    def _tell(self, trial: TrialDirectory) -> Outcome | None:
        """The sampler hears of a point when that is known: of replicates when all have ended."""
        seeds = self.definition.space.seeds
        if trial.number in self._confirmations:
            self._search.tell_failed(trial.number)  # the sampler has been told of this point
            return None
        group = same_point(self._searched, trial) if seeds else [trial]
        told = outcome([(t, self._trials.state(t)) for t in group], seeds)
        if told is None:
            return None
        state = self._trials.state(trial)
        if told.verdict is Verdict.VALUE:
            self._search.tell_values(told.lead, told.values)
        elif state.cause is Cause.RUNG:
            # told once, and final: how far it comes from here on is shown to the sampler where it is asked
            self._search.tell_values(told.lead, values_of(state))
        elif told.verdict is Verdict.PRUNED:
            curve = group[0].curve(self.definition.study.goals[0].metric)
            self._search.tell_pruned(told.lead, curve[-1] if curve else None)
        elif told.verdict is Verdict.INFEASIBLE:
            self._search.tell_infeasible(told.lead)
        else:
            self._search.tell_failed(told.lead)
        for other in group[1:]:
            self._search.tell_failed(other.number)  # the lead stands for all
        return told

    def _settle(self) -> None:
        """Once after a start, and after a storage that did not answer: tell what was not told, find the askings that
        were cut short, and the results of other studies that there are by now."""
        if self._is_settled:
            return
        open_numbers = self._search.unfinished()
        self._cut_short = [number for number in open_numbers if number not in self._trials]
        for trial, state in self._trials.ended_among(open_numbers):
            self._tell_failure(trial, state)
            self._tell(trial)
        for trial in self._trials.live:
            self._is_reused(trial)
        self._is_settled = True

    # --- new trials

    def _ask(self) -> None:
        """Fill the free places. First the askings that a crash cut short, then new ones."""
        while self._cut_short:
            self._place(self._cut_short[0], self._search.again(self._cut_short[0]))
            self._cut_short.pop(0)
        repeats = 0
        while self._has_room() and self.why_no_more() is None:
            if self._begin_promotion() or self._begin_replicate():
                continue
            if self._why_searched() is not None:
                if self._begin_confirmation():
                    continue
                return
            number, point = self._search.ask(self._reached())
            if self._place(number, point):
                repeats = 0
                continue
            repeats += 1
            if repeats >= REPEATS:
                fresh = next(self._untried(), None)
                if fresh is not None:
                    self._search.enqueue(fresh)
                elif self.definition.space.size is not None or repeats >= MOST_REJECTED:
                    self._exhausted = True
                    return

    def _begin_promotion(self) -> bool:
        """A trial that is among the best of its rung goes on before a new one begins."""
        if (trial := self._promoted(self._why_searched() is not None and not self._trials.live)) is None:
            return False
        state = self._trials.state(trial)
        self.directory.log("promoted", trial=trial.number, rung=state.rungs, value=state.value)
        for key in [k for k in self._ended_curves if k[0] == trial.number]:
            del self._ended_curves[key]
        again = State(Status.CREATED, attempt=state.attempt, rungs=state.rungs, reason="promoted: it goes on")
        self._submit(trial, self._trials.save(trial, again))
        return True

    def _promoted(self, is_over: bool) -> TrialDirectory | None:
        """The trial that goes on next, if the budget has room for it. `is_over`: the search is."""
        study = self.definition.study
        if study.promote.min_steps is None:
            return None
        climbers = []
        for trial in self._trials:
            state = self._trials.state(trial)
            has_failed = state.is_final and state.cause not in (Cause.RUNG, Cause.COMPLETED)
            if state.rungs and not has_failed:
                climbers.append(Climber(trial.number, self._values_at_rungs(trial, state), state.cause is Cause.RUNG))
        number = next_promoted(climbers, study.promote, study.goals[0].direction == "maximize", is_over)
        found = next((t for t in self._trials if t.number == number), None)
        if found is None or self._is_beyond(self._ledger.at_most() + self._next_hours(found)):
            return None
        return found

    def _values_at_rungs(self, trial: TrialDirectory, state: State) -> tuple[float, ...]:
        """Read once for each rung."""
        known = self._at_rungs.get(trial.number, ())
        if len(known) < state.rungs:
            study = self.definition.study
            curve = trial.curve(study.goals[0].metric)
            steps = [rung_step(study.promote, level) for level in range(state.rungs)]
            values = (value_of([p for p in curve if p[0] <= step], study.goals[0]) for step in steps)
            self._at_rungs[trial.number] = known = tuple(math.nan if v is None else v for v in values)
        return known

    def _reached(self) -> dict[int, Reached] | None:
        """Under promotion, how far each trial of the search has come, and its value there."""
        study = self.definition.study
        if study.promote.min_steps is None or len(study.goals) > 1:
            return None
        found: dict[int, Reached] = {}
        for trial in self._trials:
            state = self._trials.state(trial)
            if trial.number in self._confirmations or not state.rungs:
                continue
            if state.cause is Cause.COMPLETED and state.value is not None:
                found[trial.number] = None, state.value
            elif math.isfinite(value := self._values_at_rungs(trial, state)[-1]):
                found[trial.number] = rung_step(study.promote, state.rungs - 1), value
        return found

    def _begin_replicate(self) -> bool:
        """A point that has not yet been run with all its seeds goes before a new one."""
        seeds = self.definition.space.seeds
        trials = self._searched if len(seeds) > 1 else []
        found = missing(trials, self.definition.space.seeds)
        if found is None:
            return False
        lead, seed = found
        point = next(t.point() for t in trials if t.number == lead)
        return self._place(self._search.replicate(lead, point, seed), point | {SEED: seed})

    def _begin_confirmation(self) -> bool:
        if any(t.number not in self._confirmations for t in self._trials.live):
            return False  # the best are not known yet
        if (found := self._unconfirmed()) is None:
            return False
        lead, seed = found
        point = next(t.point() for t in self._trials if t.number == lead) | {SEED: seed}
        number = self._search.replicate(lead, point, seed)
        if not self._place(number, point):
            self._is_confirmed = True  # the same training is in the study already
            return False
        return True

    def _has_room(self) -> bool:
        if self._is_busy or self._refusal or self._trials.in_flight >= self.definition.study.max_parallel:
            return False
        return not self._is_beyond(self._ledger.at_most() + self._least_hours())

    def _untried(self) -> Iterator[dict[str, object]]:
        """The points of a finite space that no trial has."""
        space = self.definition.space
        if space.size is None:
            return
        drawn = [t.point() for t in self._trials] + self._repeated
        tried = [{k: v for k, v in p.items() if k != SEED or not space.seeds} for p in drawn]
        yield from (p for p in space.grid() if p not in tried)

    def _place(self, number: int, point: dict[str, object]) -> bool:
        """Freeze a point as a trial and submit it. False when the same trial is already in the study."""
        definition = self.definition
        if (condition := definition.space.refusal(point)) is not None:
            self._search.tell_infeasible(number)
            self.directory.log("filtered", trial=number, point=point, condition=condition)
            return False
        try:
            trial_config = moved(self._composer.point(definition.fixed, definition.space, point), self._changes)
        except BadInput as e:
            self._refuse(number, "uncomposed", str(e), "", point)
            return True
        identity = trial_id(trial_config, varied=definition.space.varied)
        if self._trials.number_of(identity) not in (None, number):
            self._search.tell_failed(number)
            self._repeated.append(point)
            self.directory.log("repeated", trial=number, id=identity, point=point)
            return False
        if self._confirms(point):
            self._confirmations.add(number)
        faults = errors(problems_of(trial_config, definition))
        if faults:
            self._refuse(number, identity, "\n".join(map(str, faults)), trial_yaml(trial_config), point)
            return True
        trial = self._trials.add(number, identity, trial_yaml(trial_config), point, State())
        self._placed[trial.path, 0] = self._placed[trial.path, 1] = trial_config
        self.directory.log("asked", trial=number, id=identity, point=point)
        if not self._is_reused(trial):
            self._submit(trial, self._trials.state(trial))
        return True

    def _is_reused(self, trial: TrialDirectory) -> bool:
        """Whether another study has the result of one that has not begun: it ends with that."""
        study, state = self.definition.study, self._trials.state(trial)
        if not study.reuse or state.status is not Status.CREATED or state.attempt or state.ending is not None:
            return False
        if (old := find_result(self.directory, trial.id, self._config(trial, 1), study.goals)) is None:
            return False
        copy_metrics(old, trial.attempt(1))
        self._end(trial, state.but(attempt=1), Cause.COMPLETED, str(old), old.values)
        return True

    def _refuse(self, number: int, identity: str, why: str, text: str, point: dict[str, object]) -> None:
        """An infeasible point: recorded and told, no job asked for, also by whoever goes on after a crash here."""
        state = State(Status.ENDED, cause=Cause.INFEASIBLE, reason=why)
        self._end(self._trials.add(number, identity, text, point, state), state, Cause.INFEASIBLE, why)

    def _submit(self, trial: TrialDirectory, state: State) -> None:
        """Start the next attempt of a CREATED trial, or finish one that was begun (SUBMITTING)."""
        if state.ending is not None and state.status is Status.CREATED:
            self._end(trial, state, state.ending, state.reason)
            return
        is_new = state.status is Status.CREATED
        is_held_back = self._is_paused or self._refusal is not None
        if self._is_busy or (is_new and is_held_back):
            return
        number = state.attempt + 1 if is_new else state.attempt
        if is_new:
            self._move(trial, number)
        job = self._job(trial, number)
        if is_new:
            if not self._is_affordable(trial, state, worst_case(job)):
                return
            token = state.but(
                status=Status.SUBMITTING, attempt=number, job_id=None, is_refused=False, failed_launches=0
            )
            state = self._trials.save(trial, token)
        self._promise(trial, job)
        attempt, launcher = trial.attempt(number), self._launcher(trial)
        try:
            # whoever came here before wrote job.json first, and may have submitted it
            job_id = launcher.find(attempt) if attempt.is_prepared else None
            if job_id is None:
                if not is_new and (state.ending is not None or self._is_elsewhere(trial, number)):
                    self._begin_anew(trial, state)
                    return
                if is_held_back:
                    return
                self._lock.renew(is_urgent=True)
                attempt.prepare(job.as_dict())
                job_id = launcher.submit(attempt)
        except Busy as e:
            # as it is: the next step asks again, and finds the job if it was taken after all
            self._is_busy = True
            self._say_waiting(trial, state, str(e))
            return
        except Refused as e:
            self._take_refusal(trial, state, e)
            return
        except OSError as e:
            if e.errno in PASSING:
                raise  # nothing is wrong with the trial
            self._end(trial, state, Cause.UNKNOWN, f"could not be submitted: {e}")
            return
        state = state.but(status=Status.SUBMITTED, job_id=job_id, reason="", began=None, expected=None, nodes="")
        self._trials.save(trial, state)
        self.directory.log("submitted", trial=trial.number, attempt=state.attempt, job=job_id)

    def _begin_anew(self, trial: TrialDirectory, state: State) -> None:
        """Of an attempt that no scheduler has taken yet: it ends, if it is to, or goes where the study runs by now."""
        self._ledger.release(trial.number)
        self._submit(trial, self._trials.save(trial, _before(state)))

    def _move(self, trial: TrialDirectory, number: int) -> None:
        """An attempt that is yet to be submitted runs where the study runs by now."""
        if (here := self._here(trial, number)) != self._config(trial, number):
            trial.attempt(number).place(trial_yaml(here))
            self._placed[trial.path, number] = here

    def _here(self, trial: TrialDirectory, attempt: int) -> Trial:
        """What an attempt would be where the study runs by now. Memory that the ladder has added to what the study
        says of it stays."""
        frozen = self._config(trial, attempt)
        here = moved(frozen, self._changes)
        if (asked := here.cluster.memory_gib) == frozen.cluster.memory_gib:
            return here
        short = [e.attempt for e in self._ledger.of(trial.number) if e.cause is Cause.HOST_OOM and e.attempt < attempt]
        if not short or self._config(trial, short[-1]).cluster.memory_gib != asked:
            return here
        return replace(here, cluster=replace(here.cluster, memory_gib=frozen.cluster.memory_gib))

    def _take_refusal(self, trial: TrialDirectory, state: State, refused: Refused) -> None:
        """Nothing of the attempt ran, so the trial is as it was before. But a study that searches over clusters, and of
        which other jobs were taken, has found a point that cannot run."""
        self._ledger.release(trial.number)
        reason = f"the scheduler refused it: {refused}"
        searches = any(map(is_of_cluster, self.definition.space.varied))
        if searches and any(self._trials.state(t).job_id for t in self._trials):
            self._end(trial, state, Cause.CONFIG_ERROR, reason)
            return
        key = refused.setting or f"{CLUSTER}.*"
        value = refused.value if refused.setting else "..."
        how = f"go on elsewhere: hysweep resume {self.directory.path} {_example(key)}"
        if not is_of_cluster(key):
            how = f"mend {key}, then hysweep resume {self.directory.path}"
        cure = f"nothing was lost; {how}"
        self._refusal = Problem(key, value, f"the scheduler refused trial {trial.number}: {refused}", cure)
        if state.reason != reason:
            self.directory.log("refused", trial=trial.number, reason=str(refused), setting=refused.setting)
        self._trials.save(trial, _before(state).but(is_refused=True, reason=reason))

    def _is_affordable(self, trial: TrialDirectory, state: State, hours: float) -> bool:
        """Whether an attempt may begin that comes to so much at worst. One that never may waits for a larger budget,
        and the study ends without it."""
        self._unpaid.pop(trial.number, None)
        if self._is_beyond(self._ledger.spent + hours):
            self._unpaid[trial.number] = hours
            budget = self.definition.study.budget_gpu_hours
            spent = f"{_hours(self._ledger.spent)} of {_hours(budget)} are spent"
            why = f"it may take {_hours(hours)} {self._hour_unit}, and {spent}"
            self._say_waiting(trial, state, f"waits for a larger budget: {why}")
            return False
        if self._is_beyond(self._ledger.at_most(without=trial.number) + hours):
            self._say_waiting(trial, state, "waits for the budget: what runs may come to all that is left")
            return False
        return True

    def _say_waiting(self, trial: TrialDirectory, state: State, reason: str) -> None:
        if state.reason != reason:
            self._trials.save(trial, state.but(reason=reason))
            self.directory.log("waiting", trial=trial.number, attempt=state.attempt, reason=reason)

    # --- telling people

    def _tell_failure(self, trial: TrialDirectory, state: State) -> None:
        cause = state.cause
        if cause is None or ACTIONS[cause].verdict is not Verdict.FAILED or cause is Cause.CANCELLED:
            return
        text = f"trial {trial.number} of {self.definition.study.name} failed: {cause}: {state.reason}"
        self._notifier.tell("failure", f"failure {trial.number}", text, trial=trial.number, cause=cause)

    def _tell_people(self) -> None:
        study = self.definition.study
        self._notifier.look()
        if study.notify.command is None:
            return
        if (refusal := self.refusal) is not None:
            self._notifier.tell("failure", f"refused {refusal.why}", f"{study.name} has stopped: {refusal}")
        hours = self.gpu_hours()
        facts = {"gpu_hours": round(hours, 4), "budget_gpu_hours": study.budget_gpu_hours}
        if mark := last_mark(hours, study.budget_gpu_hours):
            key = f"budget {mark} of {study.budget_gpu_hours:g}"
            text = f"{study.name} has used {mark} % of its {_hours(study.budget_gpu_hours)} {self._hour_unit}"
            if self._notifier.is_due("budget", key):
                self._notifier.tell("budget", key, text, **facts, best=self._best())
        if self.is_over:
            made, best = len(self._trials), self._best()
            said = "no trial completed" if best is None else f"the best is {best:.4g}"
            text = (
                f"{study.name} is over after {made} {'trial' if made == 1 else 'trials'}: {self.why_no_more()}; {said}"
            )
            self._notifier.tell("end", f"end {made} {self.why_no_more()}", text, trials=made, **facts, best=best)

    def _best(self) -> float | None:
        """As every report has it."""
        points = best_points(((t, s) for t, s in self._trials.ended()), self.definition.study, self.definition.space)
        return points[0].mean if points else None

    # --- small facts

    def _config(self, trial: TrialDirectory, attempt: int) -> Trial:
        """What an attempt runs: what was frozen, or a rung up the memory ladder from it. Read once."""
        key = trial.path, attempt
        if key not in self._placed:
            before = self._placed.get((trial.path, attempt - 1))
            is_placed = before is None or trial.attempt(attempt).placement() is not None
            self._placed[key] = self._frozen(trial, attempt) if before is None or is_placed else before
        return self._placed[key]

    def _frozen(self, trial: TrialDirectory, attempt: int) -> Trial:
        """As it is on disk; where that is damaged, composed anew from the point, if that comes to the same trial."""
        try:
            placed = [p for n in range(attempt, 0, -1) if (p := trial.attempt(n).placement()) is not None]
            return load_trial(placed[0] if placed else trial.config_file.read_text(encoding="utf-8"))
        except (OSError, *MISCOMPOSED) as e:
            definition = self.definition
            with suppress(BadInput):
                again = self._composer.point(definition.fixed, definition.space, trial.point())
                if trial_id(again, varied=definition.space.varied) == trial.id:
                    self.directory.log("recomposed", trial=trial.number, reason=str(e)[:200])
                    return moved(again, self._changes)
            cure = f"bring the file back from a copy, or give the trial up: hysweep cancel {self.directory.path} "
            why = f"cannot be read as a trial: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
            raise BadInput(Problem(str(trial.config_file), "damaged", why, f"{cure}{trial.number}")) from e

    def _job_of(self, trial: TrialDirectory, attempt: int) -> Job:
        """The job of an attempt as it was submitted."""
        with suppress(LookupError, TypeError):
            if written := trial.attempt(attempt).job():
                return Job.from_dict(written)
        return self._job(trial, attempt)

    def _job(self, trial: TrialDirectory, number: int) -> Job:
        """The job of an attempt that is yet to be submitted."""
        config = self._config(trial, number)
        study, created = self.definition.study, self.definition.created
        job = compile_trial(config, trial.path.absolute(), run_name(study.name, trial.path.name))
        promote, passed = study.promote, self._trials.state(trial).rungs
        stop = None if trial.number in self._confirmations else stop_step(promote, passed, job.total_steps)
        job = replace(job, hung_after_min=study.hung_after_min, stop_step=stop)
        if "wandb" in config.tracking.loggers:
            run = trial_run(study.name, created, trial.path.name, config, trial.point())
            where = trial.attempt(number).path.absolute()
            job = replace(job, env=run.environment(config.tracking.entity, config.tracking.mode, where) | job.env)
        if job.launcher == "slurm" and (blamed := [n for k in range(1, number) for n in self._blamed(trial, k)]):
            excluded = ",".join(dict.fromkeys([*filter(None, [job.site.exclude]), *blamed[-MOST_EXCLUDED:]]))
            job = replace(job, site=replace(job.site, exclude=excluded))
        return job

    def _blamed(self, trial: TrialDirectory, attempt: int) -> tuple[str, ...]:
        """The nodes that an attempt ended by. Read once it has an end, for that stays as it is."""
        key = trial.path, attempt
        if key not in self._blamed_by:
            if (end := _end_of(trial.attempt(attempt))) is None:
                return ()
            self._blamed_by[key] = end.nodes if ACTIONS[end.cause].elsewhere else ()
        return self._blamed_by[key]

    def _launcher(self, trial: TrialDirectory) -> Launcher:
        return self._launcher_named(self._config(trial, self._trials.state(trial).attempt).cluster.launcher)

    def _promise(self, trial: TrialDirectory, job: Job) -> None:
        self._ledger.promise(trial.number, worst_case(job))

    def _next_hours(self, trial: TrialDirectory) -> float:
        """What the next attempt of a trial may come to, where the study runs by now."""
        return worst_case(self._here(trial, self._trials.state(trial).attempt))

    def _least_hours(self) -> float:
        if self._least is None:
            is_asked = self.definition.study.budget_gpu_hours is not None
            self._least = least_hours(self._asked, self._composer, self._changes) if is_asked else 0.0
        return self._least

    def _is_beyond(self, hours: float) -> bool:
        budget = self.definition.study.budget_gpu_hours
        return budget is not None and hours > budget * (1 + 1e-9)

    def _hours_so_far(self, trial: TrialDirectory) -> float:
        """GPU-hours of the attempt of a trial in flight."""
        state = self._trials.state(trial)
        if state.status is not Status.SUBMITTED:
            return 0.0
        attempt = trial.attempt(state.attempt)
        if (end := attempt.end()) is not None:
            seconds = end.ended - end.started
        else:
            claim = attempt.claimed()
            began = self._started.get(state.job_id or "") or (claim.created if claim else None)
            seconds = now() - began if began else 0.0
        config = self._config(trial, state.attempt)
        hours = min(max(0.0, seconds) / 3600, config.cluster.timeout_min / 60)  # whatever the nodes' clocks say
        return hours * nodes_of(config) * config.cluster.gpus_per_node


def _hours(value: float | None) -> str:
    return "no limit" if value is None else f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"


def _example(key: str) -> str:
    return f"{CLUSTER}.KEY=VALUE" if key.endswith("*") else f"{key}=VALUE"


def _steady(before: float | None, now: float | None) -> float | None:
    """A scheduler's forecast, which moves by seconds at each look: written anew when it has moved by more."""
    return before if before and now and abs(now - before) < FORECAST_S else now


def _before(state: State) -> State:
    """As a trial was before the attempt that it is to begin."""
    return state.but(status=Status.CREATED, attempt=state.attempt - 1, job_id=None)


def _is_old_news(job: JobState, attempt: AttemptDirectory) -> bool:
    """Whether a job is said to wait or to run whose attempt came to its end, and not just now. A scheduler that was
    killed may have forgotten that the job ran, or that it ended, and some hang as they end. What may run again is left
    to do so: its next run begins after the end of this one."""
    if job.state not in (JobStatus.PENDING, JobStatus.RUNNING) or (end := attempt.end()) is None:
        return False
    is_same_run = job.started is not None and job.started < end.ended
    return (ACTIONS[end.cause].is_last or is_same_run) and (age(attempt.path / "end.json") or 0.0) > OLD_NEWS_S


def _later_run(trial: TrialDirectory, state: State) -> int | None:
    """The next attempt that the same job has begun. Runs of it that never began lie between."""
    later = (a for a in trial.attempts() if a.number > state.attempt)
    return next((a.number for a in later if (claim := a.claimed()) and claim.job == state.job_id), None)


def _end_of(attempt: AttemptDirectory) -> End | None:
    """Of an attempt whose job is gone."""
    return attempt.end() or unsaid(attempt)
