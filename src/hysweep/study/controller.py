"""One idempotent step, over and over: read, ingest, ask, submit, record.

Every step can be cut short by SIGKILL and begun again. The order of writes sees to it:

    asked      Optuna's journal has the trial        -> asked again, it gives the same point
    frozen     trials/NNNN-id/ appears at once       -> CREATED: compiled and submitted
    submitting the token is written before submit    -> the launcher is asked whether the job is there;
               if not it is submitted again, and the node's claim lets only one of two run
    submitted  state.json has the job id             -> re-adopted by it
    ended      state.json has the cause and value    -> told to Optuna again if it was not
"""

from __future__ import annotations

import hashlib
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from hysweep.check import check_trial, errors
from hysweep.compile import Job, compile_trial
from hysweep.compose import SEED, Composer
from hysweep.compose.composer import load_trial, trial_yaml
from hysweep.launch import Busy, JobState, Launcher, Refused, launcher
from hysweep.launch.unsaid import unsaid
from hysweep.layouts import host_rung, next_rung
from hysweep.schema import BadInput, Objective, Problem, Trial, nearest, trial_id
from hysweep.study.definition import load_definition
from hysweep.study.objective import GPU_HOURS, value_of
from hysweep.study.pruners import Other, reason_to_prune
from hysweep.study.replicates import missing, outcome, same_point
from hysweep.study.search import Search
from hysweep.track import (
    ACTIONS,
    AttemptDirectory,
    Cause,
    End,
    Phase,
    State,
    Status,
    StudyDirectory,
    TrialDirectory,
    Verdict,
    curve_of,
    logged,
    matching,
    read_json,
    settle,
    write_json,
)

FIRST_FAILURES = 3  # a study whose first trials all end by a fault of the configuration is stopped
REPEATS = 20  # askings in a row that may bring nothing new
MOST_REJECTED = 500  # the same in a space that cannot be counted, of which filters may leave little
MOST_EXCLUDED = 8  # nodes that failed a trial and are kept from it; more would keep it from running


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
        """`changes`: settings of the study that hold from now on (see definition.CHANGEABLE)."""
        self.directory = directory
        self._composer = Composer([directory.conf], shipped=False) if directory.conf.is_dir() else Composer()
        self.definition = load_definition(directory, self._composer)
        self._composer.freeze(self.definition.env)
        if changes:
            self.definition = replace(self.definition, study=replace(self.definition.study, **changes))  # type: ignore[arg-type]
        self._lock = FileLock(directory.lock_file, blocking=False)
        self._placed: dict[Path, Trial] = {}
        self._is_busy = False  # the scheduler takes no job in this step
        self._launcher_named = cache(launchers)
        self._exhausted = False
        self._ended_curves: dict[tuple[int, str], Other] = {}
        self._repeated: list[dict[str, object]] = []  # points that are a trial which the study has

    def __enter__(self) -> Controller:
        try:
            self._lock.acquire()
        except Timeout as e:
            raise BadInput(held_problem(self.directory)) from e
        except OSError as e:
            raise BadInput(
                Problem(str(self.directory.path), "unwritable", str(e), "give yourself the right to write there")
            ) from e
        write_json(self.directory.path / "driver.json", {"host": socket.gethostname(), "pid": os.getpid()})
        # paths of the trial are relative to where the study was started, wherever it goes on
        if Path(self.definition.cwd).is_dir():
            os.chdir(self.definition.cwd)
        placed = {t.number: t.point() for t in self.directory.trials()}
        self._search = Search(self.definition, self.directory.journal, placed)
        return self

    def __exit__(self, *_: object) -> None:
        (self.directory.path / "driver.json").unlink(missing_ok=True)
        self._lock.release()

    # --- the step

    def tick(self, asks: bool = True) -> bool:
        """One step. True while there is something left to wait for. `asks=False` begins no new trial."""
        trials = self.directory.trials()
        self._honour_cancels(trials)
        self._ingest(trials)
        if asks:
            self._ask()
        return not self.is_over

    @property
    def is_over(self) -> bool:
        in_flight = any(not t.state().is_final for t in self.directory.trials())
        return not in_flight and self.why_no_more() is not None

    def why_no_more(self) -> str | None:
        """Why no further trial is asked for; None while one may be."""
        trials = self.directory.trials()
        if self.directory.is_cancel_requested:
            return "cancelled"
        if self._search.unfinished_beyond([t.number for t in trials]):
            return None
        if len(trials) >= self.definition.n_trials:
            return f"all {len(trials)} trials were made" if len(trials) != 1 else "its one trial was made"
        if self._exhausted:
            rejected = " or is rejected by a filter" if self.definition.space.filters else ""
            return f"the sampler brings nothing new: every point that it proposes has run{rejected}"
        budget = self.definition.study.budget_gpu_hours
        if budget is not None and self.gpu_hours() >= budget:
            return f"the budget of {budget:g} GPU-hours is used"
        ends = [t.state().cause for t in trials if t.state().is_final][:FIRST_FAILURES]
        if len(ends) == FIRST_FAILURES and all(c is not None and ACTIONS[c].stops_study for c in ends):
            return f"the first {FIRST_FAILURES} trials ended by {ends[0]}: mend the configuration"
        return None

    def gpu_hours(self) -> float:
        """GPU-hours (on a machine with none: slot-hours) of all attempts, those that still run included."""
        booked = math.fsum(e["gpu_hours"] for e in self.directory.ledger())
        return booked + math.fsum(self._hours_so_far(t) for t in self.directory.trials() if not t.state().is_final)

    # --- requests of other processes

    def _honour_cancels(self, trials: list[TrialDirectory]) -> None:
        everything = self.directory.is_cancel_requested
        for trial in trials:
            state = trial.state()
            if not (everything or trial.is_cancel_requested) or state.is_final or state.ending is Cause.CANCELLED:
                continue
            self._stop(trial, state, Cause.CANCELLED, "by the user")

    def _stop(self, trial: TrialDirectory, state: State, why: Cause, reason: str) -> None:
        """Ask a trial's job to stop; its cause will be `why`."""
        self.directory.log("stop", trial=trial.number, cause=why, reason=reason)
        state = trial.save(state.but(ending=why, reason=reason))
        if state.status is Status.CREATED:
            self._end(trial, state, why, reason)
        elif state.job_id is not None:
            self._launcher(trial).cancel([state.job_id])

    # --- what the jobs did

    def _ingest(self, trials: list[TrialDirectory]) -> None:
        live = [(t, s) for t in trials if not (s := t.state()).is_final]
        self._settle_told(trials)
        self._is_busy = False
        for trial, state in live:
            if state.status in (Status.CREATED, Status.SUBMITTING):
                self._submit(trial, state)
            else:
                self._follow_reruns(trial, state)
        looks = self._look([(t, t.state()) for t, _ in live])
        for trial, _ in live:
            state = trial.state()
            if state.status is not Status.SUBMITTED or state.job_id is None:
                continue
            job = looks.get(state.job_id)
            if job is not None and job.is_over:
                self._after_attempt(trial, state, job)
            elif state.ending is not None:
                self._launcher(trial).cancel([state.job_id])  # idempotent: asks again, harder in the end
            else:
                self._watch(trial, state)

    def _look(self, live: list[tuple[TrialDirectory, State]]) -> dict[str, JobState]:
        """One call to each launcher for all its jobs."""
        by_launcher: dict[str, list[str]] = {}
        for trial, state in live:
            if state.job_id is not None:
                by_launcher.setdefault(self._config(trial).cluster.launcher, []).append(state.job_id)
        found: dict[str, JobState] = {}
        for name, ids in by_launcher.items():
            found |= self._launcher_named(name).states(ids)
        return found

    def _watch(self, trial: TrialDirectory, state: State) -> None:
        """A running job: does a pruner give it up?"""
        study, number = self.definition.study, trial.number
        steps = trial.metrics() if study.rules else {}
        if not steps or (last := max(steps)) <= (since := self._search.judged(number)):
            return
        reason = reason_to_prune(
            study,
            number,
            lambda metric: curve_of(steps, metric),
            lambda metric: self._others(number, metric),
            since,
            self._config(trial).trainer.total_steps,
        )
        if reason is not None:
            self._stop(trial, state, Cause.PRUNED, reason)
        self._search.mark_judged(number, last)

    def _follow_reruns(self, trial: TrialDirectory, state: State) -> None:
        """A scheduler may have run the job again by itself: each run is an attempt, whose directory the node made."""
        newest = max((a.number for a in trial.attempts()), default=state.attempt)
        while state.attempt < newest:
            claim = trial.attempt(state.attempt + 1).claimed()
            if claim is None or claim.job != state.job_id:
                return
            end = trial.attempt(state.attempt).end()
            # one that ended without a word lost its node; one that was told to end was not told why
            if end is None or end.cause is Cause.NODE_FAIL:
                cause = Cause.NODE_FAIL
            else:
                cause = settle(end.cause, Cause.PREEMPTED)
            reason = end.reason if end and end.reason else "the scheduler ran the job again"
            self._close_attempt(trial, state, cause, reason)
            state = trial.save(state.but(attempt=state.attempt + 1))
            self.directory.log("rerun", trial=trial.number, attempt=state.attempt, cause=cause, job=state.job_id)

    def _others(self, number: int, metric: str) -> list[Other]:
        """What the trial is compared with: all others that have come to a value. Read once where it has ended."""
        found = []
        for trial in self.directory.trials():
            if trial.number == number:
                continue
            key = (trial.number, metric)
            if key not in self._ended_curves:
                state = trial.state()
                other = Other(trial.number, trial.curve(metric), state.cause is Cause.COMPLETED)
                if not state.is_final:
                    found.append(other)
                    continue
                self._ended_curves[key] = other
            found.append(self._ended_curves[key])
        return found

    def _after_attempt(self, trial: TrialDirectory, state: State, job: JobState) -> None:
        """A job is gone: why, what it cost, and what to do about it."""
        end = _end_of(trial.attempt(state.attempt))
        cause = settle(end.cause if end else None, job.cause)
        reason = end.reason if end and cause is end.cause else job.reason
        reason = reason or (end.reason if end else "the node process is gone and left no word")
        if state.ending is not None and cause is not Cause.COMPLETED:
            cause, reason = state.ending, state.reason
        self._close_attempt(trial, state, cause, reason)
        action = ACTIONS[cause]
        if not self.directory.is_cancel_requested and self._may_retry(trial, state, cause):
            again = f"again after {cause}: {reason}"
            rung = self._climb(trial, state, cause, end.phase if end else Phase.UNKNOWN) if action.climbs else ""
            if rung is not None:
                self.directory.log("retry", trial=trial.number, attempt=state.attempt + 1, cause=cause, rung=rung)
                trial.save(State(Status.CREATED, attempt=state.attempt, reason=again))
                return
            reason += "; the memory ladder has no further rung"
        if action.verdict is Verdict.VALUE:
            self._end_with_value(trial, state)
        else:
            self._end(trial, state, cause, reason)

    def _close_attempt(self, trial: TrialDirectory, state: State, cause: Cause, reason: str) -> None:
        hours = self._hours_so_far(trial)
        self.directory.book(trial.number, state.attempt, cause, self._gpus(trial), hours)
        self.directory.log("attempt_ended", trial=trial.number, attempt=state.attempt, cause=cause, reason=reason)

    def _climb(self, trial: TrialDirectory, state: State, cause: Cause, phase: Phase) -> str | None:
        """Write what the next attempt runs, one rung up the memory ladder, and return the rung; None at the top."""
        here = self._config(trial)
        step = host_rung(here) if cause is Cause.HOST_OOM else next_rung(here, phase)
        if step is None:
            return None
        name, higher = step
        trial.attempt(state.attempt + 1).place(trial_yaml(higher))
        self._placed.pop(trial.path, None)
        return name

    def _may_retry(self, trial: TrialDirectory, state: State, cause: Cause) -> bool:
        action = ACTIONS[cause]
        budget = self.definition.study.budget_gpu_hours
        if budget is not None and self.gpu_hours() >= budget:
            return False
        # the ledger has the cause that counts: what the controller asked for goes before what the node saw
        alike = sum(1 for e in self.directory.ledger() if e["trial"] == trial.number and e["cause"] == cause)
        if action.needs_progress:
            steps = [a.metrics()[-1][0] if a.metrics() else 0 for a in trial.attempts()]
            return steps[-1] > max([0, *steps[:-1]])
        return action.retries is None or alike <= action.retries

    def _end_with_value(self, trial: TrialDirectory, state: State) -> None:
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
        self._end(trial, state, Cause.COMPLETED, "", values)

    def _value(self, trial: TrialDirectory, goal: Objective) -> float | None:
        if goal.metric == GPU_HOURS:
            return math.fsum(e["gpu_hours"] for e in self.directory.ledger() if e["trial"] == trial.number)
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
        trial.save(state.but(status=Status.ENDED, cause=cause, reason=reason, value=value, values=several))
        self.directory.log("ended", trial=trial.number, cause=cause, reason=reason, value=value)
        self._tell(trial)

    def _tell(self, trial: TrialDirectory) -> None:
        """The sampler hears of a point when that is known: of replicates when all have ended."""
        seeds = self.definition.space.seeds
        group = same_point(self.directory.trials(), trial) if seeds else [trial]
        told = outcome(group, seeds)
        if told is None:
            return
        if told.verdict is Verdict.VALUE:
            self._search.tell_values(told.lead, told.values)
        elif told.verdict is Verdict.PRUNED:
            curve = group[0].curve(self.definition.study.goals[0].metric)
            self._search.tell_pruned(told.lead, curve[-1] if curve else None)
        elif told.verdict is Verdict.INFEASIBLE:
            self._search.tell_infeasible(told.lead)
        else:
            self._search.tell_failed(told.lead)
        for other in group[1:]:
            self._search.tell_failed(other.number)  # the lead stands for all

    def _settle_told(self, trials: list[TrialDirectory]) -> None:
        """Tell what a crash kept from being told."""
        open_numbers = set(self._search.unfinished())
        for trial in trials:
            if trial.number in open_numbers and trial.state().is_final:
                self._tell(trial)

    # --- new trials

    def _ask(self) -> None:
        """Fill the free places. First the askings that a crash cut short, then new ones."""
        for number in self._search.unfinished_beyond([t.number for t in self.directory.trials()]):
            self._place(number, self._search.again(number))
        repeats = 0
        while self._has_room() and self.why_no_more() is None:
            if self._begin_replicate():
                continue
            number, point = self._search.ask()
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

    def _begin_replicate(self) -> bool:
        """A point that has not yet been run with all its seeds goes before a new one."""
        trials = self.directory.trials()
        found = missing(trials, self.definition.space.seeds)
        if found is None:
            return False
        lead, seed = found
        point = next(t.point() for t in trials if t.number == lead)
        return self._place(self._search.replicate(lead, point, seed), point | {SEED: seed})

    def _has_room(self) -> bool:
        if self._is_busy:
            return False
        in_flight = sum(1 for t in self.directory.trials() if not t.state().is_final)
        return in_flight < self.definition.study.max_parallel

    def _untried(self) -> Iterator[dict[str, object]]:
        """The points of a finite space that no trial has."""
        space = self.definition.space
        if space.size is None:
            return
        drawn = [t.point() for t in self.directory.trials()] + self._repeated
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
            trial_config = self._composer.point(definition.fixed, definition.space, point)
        except BadInput as e:
            self._refuse(number, "uncomposed", str(e), "", point)
            return True
        identity = trial_id(trial_config, varied=definition.space.varied)
        if any(t.id == identity and t.number != number for t in self.directory.trials()):
            self._search.tell_failed(number)
            self._repeated.append(point)
            self.directory.log("repeated", trial=number, id=identity, point=point)
            return False
        faults = errors(check_trial(trial_config))
        if faults:
            self._refuse(number, identity, "\n".join(map(str, faults)), trial_yaml(trial_config), point)
            return True
        trial = self.directory.add_trial(number, identity, trial_yaml(trial_config), point)
        self.directory.log("asked", trial=number, id=identity, point=point)
        self._submit(trial, trial.state())
        return True

    def _refuse(self, number: int, identity: str, why: str, text: str, point: dict[str, object]) -> None:
        """An infeasible point: recorded and told, no job asked for."""
        trial = self.directory.add_trial(number, identity, text, point)
        if not trial.state().is_final:
            self._end(trial, trial.state(), Cause.INFEASIBLE, why)

    def _submit(self, trial: TrialDirectory, state: State) -> None:
        """Start the next attempt of a CREATED trial, or finish one that was begun (SUBMITTING)."""
        if state.ending is not None and state.status is Status.CREATED:
            self._end(trial, state, state.ending, state.reason)
            return
        if state.status is Status.CREATED:
            state = trial.save(state.but(status=Status.SUBMITTING, attempt=state.attempt + 1, job_id=None))
        if self._is_busy:
            return
        attempt = trial.attempt(state.attempt)
        try:
            attempt.prepare(self._job(trial).as_dict())
            job_id = self._launcher(trial).find(attempt) or self._launcher(trial).submit(attempt)
        except Busy as e:
            # as it is: the next step asks again, and finds the job if it was taken after all
            self._is_busy = True
            if state.reason != str(e):
                trial.save(state.but(reason=str(e)))
                self.directory.log("waiting", trial=trial.number, attempt=state.attempt, reason=str(e))
            return
        except Refused as e:
            self._end(trial, state, Cause.CONFIG_ERROR, f"the scheduler refused it: {e}")
            return
        except OSError as e:
            self._end(trial, state, Cause.UNKNOWN, f"could not be submitted: {e}")
            return
        trial.save(state.but(status=Status.SUBMITTED, job_id=job_id, reason=""))
        self.directory.log("submitted", trial=trial.number, attempt=state.attempt, job=job_id)

    # --- small facts

    def _config(self, trial: TrialDirectory) -> Trial:
        """What the newest attempt runs: what was frozen, or a rung up the memory ladder from it. Read once."""
        if trial.path not in self._placed:
            placed = [p for a in reversed(trial.attempts()) if (p := a.placement()) is not None]
            text = placed[0] if placed else trial.config_file.read_text(encoding="utf-8")
            self._placed[trial.path] = load_trial(text)
        return self._placed[trial.path]

    def _job(self, trial: TrialDirectory) -> Job:
        """The job of a trial's next attempt."""
        label = f"{self.definition.study.name}-{trial.path.name}"[-128:]
        job = compile_trial(self._config(trial), trial.path.absolute(), label)
        job = replace(job, hung_after_min=self.definition.study.hung_after_min)
        if "wandb" in self._config(trial).tracking.loggers:
            job = replace(job, env=self._wandb_run(trial) | job.env)
        ends = [end for a in trial.attempts() if (end := _end_of(a))]
        blamed = [node for end in ends if ACTIONS[end.cause].elsewhere for node in end.nodes]
        if blamed and job.launcher == "slurm":
            excluded = ",".join(dict.fromkeys([*filter(None, [job.site.exclude]), *blamed[-MOST_EXCLUDED:]]))
            job = replace(job, site=replace(job.site, exclude=excluded))
        return job

    def _wandb_run(self, trial: TrialDirectory) -> dict[str, str]:
        """One run for all attempts of a trial: verl names it, but gives no id. The same study made anew has others."""
        seed = f"{self.definition.created}/{self.definition.study.name}/{trial.path.name}"
        run = hashlib.sha256(seed.encode()).hexdigest()[:16]
        return {"WANDB_RUN_ID": run, "WANDB_RESUME": "allow", "WANDB_RUN_GROUP": self.definition.study.name}

    def _launcher(self, trial: TrialDirectory) -> Launcher:
        return self._launcher_named(self._config(trial).cluster.launcher)

    def _gpus(self, trial: TrialDirectory) -> int:
        return self._config(trial).world_size

    def _hours_so_far(self, trial: TrialDirectory) -> float:
        """GPU-hours of the trial's newest attempt, from its claim to its end or to now."""
        state = trial.state()
        attempt = trial.attempt(state.attempt)
        end, claimed = attempt.end(), attempt.claimed()
        if end is not None:
            return max(0.0, end.ended - end.started) / 3600 * self._gpus(trial)
        if claimed is None:
            return 0.0
        last = attempt.last_sign_of_life() if state.is_final else time.time()
        return max(0.0, last - claimed.created) / 3600 * self._gpus(trial)


def _end_of(attempt: AttemptDirectory) -> End | None:
    """Of an attempt whose job is gone."""
    return attempt.end() or unsaid(attempt)


def held_problem(directory: StudyDirectory) -> Problem:
    """The fault of a study that somebody else drives."""
    who = read_json(directory.path / "driver.json") or {}
    return Problem(
        str(directory.path),
        f"driven by process {who.get('pid', '?')} on {who.get('host', '?')}",
        "a study has one controller",
        f"look at it with `hysweep status {directory.path}`, or stop that one first",
    )
