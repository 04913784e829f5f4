"""The directory of a study and of its trials: the truth. Everything else is an index of it.

<study>/study.yaml  changes.json  conf/  events.jsonl  ledger.jsonl  journal.log  lock  driver.json  report.html
        home.json (its place)   cancel, pause (asked for by others)
        trials/0007-3fa9c1d2e4b5/   trial.yaml  point.json  state.json (one writer: the controller)
            attempts/1/             job.json  overrides.txt  env.json  node.json (the claim)  driver.log
                                    ray-0.log  metrics.jsonl  end.json
            checkpoints/            shared by the attempts
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hysweep.schema.sound import sound
from hysweep.track.clock import now
from hysweep.track.files import append_line, claim, read_json, read_lines, read_record, write_json, write_text
from hysweep.track.metrics import curve_of
from hysweep.track.records import Booking, Claim, End, State

R = TypeVar("R")

_NUMBER = re.compile(r"[0-9]+")
_TRIAL = re.compile(r"[0-9]+-[^-]+")
_CREATED = State()


def _record(path: Path, read: Callable[[dict[str, Any]], R]) -> R | None:
    """What a file says, or None where it says nothing that can be understood."""
    if (said := read_json(path)) is None:
        return None
    try:
        return read(said)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class AttemptDirectory:
    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def trial(self) -> TrialDirectory:
        return TrialDirectory(self.path.parent.parent)

    @property
    def driver_log(self) -> Path:
        return self.path / "driver.log"

    @property
    def node_log(self) -> Path:
        """What the node process itself said: boot, supervision, clean-up."""
        return self.node_log_of(0)

    def node_log_of(self, rank: int) -> Path:
        return self.path / (f"node-{rank}.log" if rank else "node.log")

    def ray_log(self, rank: int) -> Path:
        return self.path / f"ray-{rank}.log"

    @property
    def metrics_file(self) -> Path:
        """verl's file logger truncates what it opens, so each attempt has its own."""
        return self.path / "metrics.jsonl"

    def prepare(self, job: dict[str, Any]) -> None:
        """Write what the node will run. The secrets of the environment are not among it.

        Not for a power cut: what is not there after one is written again before it is submitted.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        text = "\n".join(job["overrides"]) + "\n"
        write_text(self.path / "overrides.txt", text, survives_power_cut=False)
        write_json(self.path / "env.json", job["env"], survives_power_cut=False)
        write_json(self.path / "job.json", job, survives_power_cut=False)

    @property
    def is_prepared(self) -> bool:
        return (self.path / "job.json").exists()

    def job(self) -> dict[str, Any] | None:
        return read_record(self.path / "job.json")

    def place(self, trial_yaml: str) -> None:
        """What this attempt and later ones run instead of what was frozen: the same training, placed otherwise."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / "trial.yaml", trial_yaml)

    def placement(self) -> str | None:
        try:
            return (self.path / "trial.yaml").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # as good as none
            return None

    def claim(self, who: Claim) -> bool:
        """Take this attempt for one node process; False when another has it. So no attempt runs twice."""
        return claim(self.path / "node.json", json.dumps(who.as_dict()))

    def claimed(self) -> Claim | None:
        file = f"{self.path}/node.json"  # asked of each job at each look: a Path takes longer than the disk
        return _record(Path(file), Claim.from_dict) if os.path.exists(file) else None

    def finish(self, end: End) -> None:
        write_json(self.path / "end.json", end.as_dict())

    def end(self) -> End | None:
        return _record(self.path / "end.json", End.from_dict)

    def metrics(self) -> list[tuple[int, dict[str, float]]]:
        """(step, metrics) in the order written. verl's file logger writes NaN as null: here it is NaN again. What is
        no number is no metric."""
        return [
            (int(line["step"]), {k: n for k, v in line["data"].items() if isinstance(n := _float_like(v), int | float)})
            for line in read_lines(self.metrics_file)
            if isinstance(line.get("step"), (int, float))
            and abs(_float_like(line["step"])) < 2**63
            and isinstance(line.get("data"), dict)
        ]

    def last_progress(self) -> float:
        """When the trainer last said anything; unix seconds, 0 for never."""
        return _last_written(self.metrics_file, self.driver_log)

    def last_sign_of_life(self) -> float:
        """When metrics or a log last grew; unix seconds, 0 for never."""
        return _last_written(self.metrics_file, self.driver_log, self.node_log)


def _last_written(*paths: Path) -> float:
    times = []
    for path in paths:
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


def _float_like(value: Any) -> Any:
    """A metric as it was logged: null is NaN, and an integer that no float can be is infinite."""
    if value is None:
        return math.nan
    is_beyond = isinstance(value, int) and value.bit_length() > 1023
    return math.copysign(math.inf, value > 0 or -1) if is_beyond else value


@dataclass(frozen=True, slots=True)
class TrialDirectory:
    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name.split("-")[0])

    @property
    def id(self) -> str:
        return self.path.name.split("-")[1]

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def config_file(self) -> Path:
        return self.path / "trial.yaml"

    def point(self) -> dict[str, Any]:
        """The varied fields and their values here."""
        return read_record(self.path / "point.json") or {}

    def state(self) -> State:
        """Where the trial stands. One that was damaged from outside looks as if nobody had submitted it, until whoever
        drives the study makes it again."""
        return self.state_if_legible() or State()

    def state_if_legible(self) -> State | None:
        return _record(self.path / "state.json", State.from_dict)

    def save(self, state: State) -> State:
        state = state.but(updated=now())
        write_json(self.path / "state.json", state.as_dict())
        return state

    def attempt(self, number: int) -> AttemptDirectory:
        return AttemptDirectory(Path(f"{self.path}/attempts/{number}"))

    def attempts(self) -> list[AttemptDirectory]:
        root = self.path / "attempts"
        names = [n for n in os.listdir(root) if _NUMBER.fullmatch(n)] if root.is_dir() else []
        return [self.attempt(n) for n in sorted(map(int, names))]

    def metrics(self) -> dict[int, dict[str, float]]:
        """Metrics by step over all attempts; where steps overlap after a resume, the last attempt wins."""
        steps: dict[int, dict[str, float]] = {}
        for attempt in self.attempts():
            rows = attempt.metrics()
            if rows:
                first = rows[0][0]
                steps = {step: data for step, data in steps.items() if step < first}
            for step, data in rows:
                steps[step] = steps.get(step, {}) | data
        return dict(sorted(steps.items()))

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) of one metric; steps at which it was not measured are left out."""
        return curve_of(self.metrics(), metric)

    def request_cancel(self) -> None:
        (self.path / "cancel").touch()

    @property
    def is_cancel_requested(self) -> bool:
        return os.path.exists(f"{self.path}/cancel")


@dataclass(frozen=True, slots=True)
class Place:
    """Of a directory: its real path on a host, and what that path leads to."""

    path: str
    host: str
    inode: int

    @classmethod
    def of(cls, directory: Path) -> Place:
        return cls(os.path.realpath(directory), socket.gethostname(), os.stat(directory).st_ino)

    def is_that_of(self, other: Place) -> bool:
        """Whether both are one directory, which another host may see under another path."""
        return self.path == other.path or (self.inode == other.inode and self.host != other.host)


SIMULATED = "holds a simulated study, and no real job goes on with that"


@dataclass(frozen=True, slots=True)
class StudyDirectory:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def exists(self) -> bool:
        return (self.path / "study.yaml").is_file()

    @property
    def config_file(self) -> Path:
        return self.path / "study.yaml"

    @property
    def conf(self) -> Path:
        """The config groups as they were when the study began: later points compose from these."""
        return self.path / "conf"

    @property
    def journal(self) -> Path:
        return self.path / "journal.log"

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def driver_file(self) -> Path:
        """Who drives the study, as long as somebody does."""
        return self.path / "driver.json"

    @property
    def controller_file(self) -> Path:
        """The SLURM job that drives the study, where one does."""
        return self.path / "controller.json"

    def home(self) -> Place | None:
        """Where its jobs know it to be: elsewhere than it is once it was moved or copied."""
        return _record(self.path / "home.json", lambda said: sound(Place(**said)))

    def save_home(self, place: Place) -> None:
        write_json(self.path / "home.json", asdict(place))

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def create(self, study_yaml: str, conf: dict[str, str]) -> None:
        """Bring the directory into being as one step: whole, or not there at all. It is its owner's alone, whatever
        the umask: what trainers log is in it, and who could write there would decide what they run. To let others
        look: chmod g+rx."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        for name, text in conf.items():
            target = draft / "conf" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        (draft / "trials").mkdir(parents=True, exist_ok=True)
        write_text(draft / "study.yaml", study_yaml)
        StudyDirectory(draft).save_home(replace(Place.of(draft), path=os.path.realpath(self.path)))
        try:
            os.rename(draft, self.path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def trials(self) -> list[TrialDirectory]:
        root = self.path / "trials"
        names = [n for n in os.listdir(root) if _TRIAL.fullmatch(n)] if root.is_dir() else []
        return sorted((TrialDirectory(root / n) for n in names), key=lambda t: t.number)

    def find(self, address: str) -> TrialDirectory | None:
        """A trial by its number or by a prefix of its id; None when there is none, or more than one."""
        trials = self.trials()
        by_number = [t for t in trials if _NUMBER.fullmatch(address) and t.number == int(address)]
        by_id = [t for t in trials if address and t.id.startswith(address)]
        found = by_number or by_id
        return found[0] if len(found) == 1 else None

    def add_trial(
        self, number: int, id: str, trial_yaml: str, point: dict[str, Any], state: State = _CREATED
    ) -> TrialDirectory:
        """Freeze a trial as one step, and as it stands. The same number and id again is the same directory."""
        trial = TrialDirectory(self.path / "trials" / f"{number:04d}-{id}")
        if trial.path.is_dir():
            return trial
        draft = trial.path.with_name(f".{trial.path.name}.{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        write_text(draft / "trial.yaml", trial_yaml)
        write_json(draft / "point.json", point)
        write_json(draft / "state.json", state.but(updated=now()).as_dict())
        os.rename(draft, trial.path)
        return trial

    def log(self, event: str, **details: Any) -> None:
        """One decision, one line of events.jsonl."""
        record = {"time": now(), "event": event, **details}
        append_line(self.path / "events.jsonl", record, survives_power_cut=False)

    def events(self) -> Iterator[dict[str, Any]]:
        return read_lines(self.path / "events.jsonl")

    def book(self, entry: Booking) -> None:
        """Enter what an attempt used. Whoever calls sees to it that it is entered once."""
        append_line(self.path / "ledger.jsonl", entry.as_dict())

    def ledger(self) -> list[Booking]:
        """What was booked, in that order; of an attempt that was booked twice the first."""
        entries: dict[tuple[int, int], Booking] = {}
        for line in read_lines(self.path / "ledger.jsonl"):
            with suppress(KeyError, TypeError, ValueError):
                entry = Booking.from_dict(line)
                entries.setdefault((entry.trial, entry.attempt), entry)
        return list(entries.values())

    def save_changes(self, changes: dict[str, Any]) -> None:
        """Settings that were given anew when the study went on; study.yaml keeps what it began with."""
        write_json(self.path / "changes.json", changes)

    def changes(self) -> dict[str, Any]:
        return read_record(self.path / "changes.json") or {}

    # --- a study of made-up jobs

    def mark_simulated(self) -> None:
        (self.path / "simulated").touch()

    @property
    def is_simulated(self) -> bool:
        """No job of it ever ran: its results are nobody's results, and no real job goes on with it."""
        return (self.path / "simulated").exists()

    # --- what others ask of whoever drives it

    def request_cancel(self) -> None:
        (self.path / "cancel").touch()

    def withdraw_cancel(self) -> None:
        (self.path / "cancel").unlink(missing_ok=True)

    @property
    def is_cancel_requested(self) -> bool:
        return (self.path / "cancel").exists()

    def request_pause(self, **why: Any) -> bool:
        """Whether it was not asked for already."""
        if self.is_paused:
            return False
        (self.path / "pause").touch()
        self.log("paused", **why)
        return True

    def withdraw_pause(self) -> bool:
        """Whether there was one."""
        if not self.is_paused:
            return False
        (self.path / "pause").unlink(missing_ok=True)
        self.log("resumed")
        return True

    @property
    def is_paused(self) -> bool:
        return (self.path / "pause").exists()
