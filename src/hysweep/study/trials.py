"""The trials of a study in memory, beside the files: their one writer need not read what it wrote."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hysweep.track import Cause, State, Status, StudyDirectory, TrialDirectory


class Trials:
    """By number. What each step has to look at is `live`; those that ended cost nothing more."""

    def __init__(self, directory: StudyDirectory) -> None:
        self._directory = directory
        self._all = {t.number: t for t in directory.trials()}
        self._states = self._read_states()
        self._live = {number for number, state in self._states.items() if not state.is_final}
        self._by_id = {trial.id: number for number, trial in self._all.items()}

    def _read_states(self) -> dict[int, State]:
        """What was damaged from outside is made again: no job of it is run twice, or left to itself."""
        said = {number: trial.state_if_legible() for number, trial in self._all.items()}
        events = events_by_trial(self._directory) if None in said.values() else {}
        return {
            number: state or self._all[number].save(last_known(self._all[number], events.get(number, []))[0])
            for number, state in said.items()
        }

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[TrialDirectory]:
        return iter(self._all[number] for number in sorted(self._all))

    def __contains__(self, number: int) -> bool:
        return number in self._all

    @property
    def live(self) -> list[TrialDirectory]:
        return [self._all[number] for number in sorted(self._live)]

    @property
    def in_flight(self) -> int:
        return len(self._live)

    def ended(self) -> Iterator[tuple[TrialDirectory, State]]:
        """By number."""
        return ((t, s) for t in self if (s := self._states[t.number]).is_final)

    def ended_among(self, numbers: Iterable[int]) -> Iterator[tuple[TrialDirectory, State]]:
        return ((self._all[n], s) for n in numbers if (s := self._states.get(n)) is not None and s.is_final)

    def number_of(self, id: str) -> int | None:
        return self._by_id.get(id)

    def state(self, trial: TrialDirectory) -> State:
        return self._states[trial.number]

    def save(self, trial: TrialDirectory, state: State) -> State:
        self._states[trial.number] = saved = trial.save(state)
        (self._live.discard if saved.is_final else self._live.add)(trial.number)
        return saved

    def add(self, number: int, id: str, text: str, point: dict[str, Any], state: State) -> TrialDirectory:
        trial = self._directory.add_trial(number, id, text, point, state)
        self._all[number] = trial
        self._by_id.setdefault(id, number)
        self._states[number] = state = trial.state()
        if not state.is_final:
            self._live.add(number)
        return trial

    @property
    def points(self) -> Mapping[int, dict[str, Any]]:
        """Points by number, each read when it is asked for."""
        return _Points(self._all)


class _Points(Mapping[int, dict[str, Any]]):
    def __init__(self, trials: Mapping[int, TrialDirectory]) -> None:
        self._trials = trials

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self._trials[number].point()

    def __iter__(self) -> Iterator[int]:
        return iter(self._trials)

    def __len__(self) -> int:
        return len(self._trials)


def events_by_trial(directory: StudyDirectory) -> dict[int, list[dict[str, Any]]]:
    """The events of each trial, oldest first."""
    of: dict[int, list[dict[str, Any]]] = {}
    for event in directory.events():
        if isinstance(event.get("trial"), int):
            of.setdefault(event["trial"], []).append(event)
    return of


def last_known(trial: TrialDirectory, events: list[dict[str, Any]]) -> tuple[State, str]:
    """The last state of a trial whose state.json cannot be read, and where that is from. What it cannot say is looked
    for by the controller's next step."""
    claims = {a.number: claim for a in trial.attempts() if (claim := a.claimed()) is not None}
    prepared = [a.number for a in trial.attempts() if a.is_prepared]
    rungs = sum(1 for e in events if e.get("event") == "ended" and e.get("cause") == Cause.RUNG)
    for at, event in reversed(list(enumerate(events))):
        with suppress(KeyError, ValueError, TypeError):
            if event["event"] == "ended":
                value = event.get("value")
                state = State(
                    Status.ENDED,
                    attempt=_last_ended(events[:at]) or max(prepared, default=0),
                    job_id=next((str(e["job"]) for e in reversed(events) if e.get("event") == "submitted"), None),
                    cause=Cause(event["cause"]),
                    reason=str(event.get("reason") or ""),
                    value=float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None,
                    values=tuple(map(float, event.get("values") or ())),
                    rungs=rungs,
                )
                return state, "events.jsonl"
            if event["event"] in ("submitted", "rerun"):  # of later runs of the same job there may be directories
                return State(Status.SUBMITTED, int(event["attempt"]), str(event["job"]), rungs=rungs), "events.jsonl"
            if event["event"] in ("retry", "promoted") and (ended := _last_ended(events[:at])):
                is_begun = trial.attempt(ended + 1).is_prepared
                status, number = (Status.SUBMITTING, ended + 1) if is_begun else (Status.CREATED, ended)
                return State(status, number, rungs=rungs), "events.jsonl"
    if claims:  # the first run of the job that was submitted last
        newest = claims[max(claims)]
        first = min((n for n, claim in claims.items() if claim.job and claim.job == newest.job), default=max(claims))
        return State(Status.SUBMITTING, first, rungs=rungs), "its attempts"
    if prepared:
        return State(Status.SUBMITTING, min(prepared), rungs=rungs), "its job files"
    return State(), "its directory, where no attempt is"


def _last_ended(events: Sequence[dict[str, Any]]) -> int | None:
    """The attempt that ended last, as the events of its trial have it."""
    ended = (e.get("attempt") for e in reversed(events) if e.get("event") == "attempt_ended")
    return next((n for n in ended if isinstance(n, int)), None)
