"""The verbs that take a study's directory: drive, status, resume, cancel, report."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hysweep.cli.address import study_at, study_to_drive, trial_at
from hysweep.cli.patience import Patience, hear_out, silence
from hysweep.cli.say import console_for, say
from hysweep.cli.watch import REFRESH_S, Lines, Screen, opened
from hysweep.compose import Composer
from hysweep.launch import queue
from hysweep.report import (
    StudyRecord,
    leaderboard,
    live_table,
    ranking,
    ranking_table,
    read_study,
    write_page,
)
from hysweep.schema import BadInput, Problem, Study, nearest
from hysweep.study import CHANGEABLE, load_definition
from hysweep.study.changes import CLUSTER, as_plain, is_of_cluster, later, move, refuse_unfit
from hysweep.study.definition import composer_of
from hysweep.study.detach import detach_here, detach_to_slurm, requeue
from hysweep.study.home import came_from, settle_home
from hysweep.study.lease import LEASE_S, Holder, Lost, holder
from hysweep.study.preview import in_vain
from hysweep.track import PASSING, Cause, StudyDirectory, read_record

if TYPE_CHECKING:
    from hysweep.study.controller import Controller, Elsewhere

STOPPED_WITHIN_S = 120.0
RETRY_S = 30.0  # after a disk was full


def drive(directory: StudyDirectory, changes: dict[str, object], detach: bool = False, as_job: bool = False) -> int:
    """Drive a study to its end: in the foreground with a live table, or by itself elsewhere. What passes, such as a
    full disk, is waited for.

    Returns 0, or 1 when nothing completed. Ctrl-C leaves: the jobs go on, the code is 130. Raises BadInput when the
    scheduler refuses what it was asked for.
    """
    from hysweep.study.controller import Controller  # brings Optuna: a quarter of a second that whoever looks is spared

    is_driven = False
    while True:
        controller = Controller(directory, changes)
        try:
            # a job that is run again on another node waits for the lease of the node that it lost
            controller.enter(wait_s=2 * LEASE_S if as_job or is_driven else 0.0)
            try:
                if not is_driven:  # whoever goes on with a study wants it to go on
                    directory.withdraw_cancel()
                    directory.withdraw_pause()
                is_driven = True
                if not detach:
                    return _drive_here(controller)
                study, site = controller.definition.study, controller.site
            finally:
                controller.__exit__()
            break
        except OSError as e:
            if e.errno not in PASSING or not is_driven:
                raise
            # what is in memory may be ahead of what is on disk: it begins again from there
            where = e.filename or directory.path
            say(f"hysweep: {where}: {e.strerror}; trying again, jobs go on meanwhile", err=True)
        try:
            time.sleep(RETRY_S)
        except KeyboardInterrupt:
            _say_goodbye(directory)
            return 130
    if (study.controller.launcher or site.launcher) == "slurm":
        with queue.telling(hear_out):
            who = detach_to_slurm(directory, study, site)
    else:
        who = detach_here(directory)
    say(f"goes on by itself, driven by {who}. Look: hysweep status {shown(directory.path)}")
    return 0


def _drive_here(controller: Controller) -> int:
    from hysweep.study.storage import Unreachable

    directory, console = controller.directory, Console()
    record = read_study(directory)
    with _signals() as asked:
        try:
            with opened(directory, record) as screen, queue.telling(partial(_say_silence, screen)):
                drawn, trouble = 0.0, ""
                screen.show(record)
                while True:
                    try:
                        goes_on = controller.tick()
                        trouble = ""
                    except Unreachable as e:
                        if str(e) != trouble:
                            screen.say(f"{e}; asking again")
                        goes_on, trouble = True, str(e)
                    if time.monotonic() - drawn >= REFRESH_S or not goes_on:
                        record = read_study(directory, previous=record)
                        screen.show(record)
                        drawn = time.monotonic()
                    if not goes_on:
                        break
                    if signal.SIGUSR1 in asked:
                        return _leave_for_next_run(controller)
                    if signal.SIGTERM in asked or screen.wait(controller.definition.study.poll_s):
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            _say_goodbye(directory)
            return 130
        except Lost as e:
            say(f"hysweep: {e}", err=True)
            return 1
    if (refusal := controller.refusal) is not None:
        raise BadInput(refusal)
    say(f"over: {controller.why_no_more()}")
    return _conclude(directory, console)


def _say_silence(screen: Screen | Lines, what: str, _: float) -> None:
    screen.say(silence(what, "asking again until it does; Ctrl-C leaves"))


@contextmanager
def _signals() -> Iterator[set[int]]:
    """Those that ask to leave, noted: a step is never left in the middle where there is time to end it."""
    asked: set[int] = set()
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = {n: signal.signal(n, lambda number, frame: asked.add(number)) for n in numbers}
    try:
        yield asked
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)


def _leave_for_next_run(controller: Controller) -> int:
    """The time limit of the controller's own job is near."""
    controller.__exit__()
    if requeue():
        say("the time limit is near; queued again")
        return 0
    where = shown(controller.directory.path)
    say(f"the time limit is near, and the job cannot be queued again: hysweep resume {where}")
    return 1


def _say_goodbye(directory: StudyDirectory) -> None:
    running = sum(1 for t in directory.trials() if not t.state().is_final)
    where = shown(directory.path)
    say(f"\nleft; {running} job{'s go' if running != 1 else ' goes'} on without you.")
    say(f"  go on:  hysweep resume {where}\n  stop:   hysweep cancel {where}")


def _conclude(directory: StudyDirectory, console: Console) -> int:
    """The end of a study: its table, its page, and whether it has a result."""
    record = read_study(directory)
    console.print(leaderboard(record, width=console.width))
    _print_ranking(record, console)
    try:
        say(f"report: {shown(write_page(directory))}")
    except BadInput as e:  # the page wants an extra; the results are there without it
        say(f"no report: {e}", err=True)
    if record.best is not None:
        return 0
    causes = sorted({str(t.state.cause) for t in record.trials if t.state.cause})
    say("no trial completed" + (f"; they ended by: {', '.join(causes)}" if causes else ""), err=True)
    for trial in record.trials:
        if trial.state.reason:
            say(f"  trial {trial.number}: {trial.state.reason}", err=True)
    if causes:
        say(f"what that means, and what to do: hysweep explain {causes[0]}", err=True)
    return 1


def status(path: Path, as_json: bool) -> None:
    record = read_study(study_at(path))
    came = came_from(record.directory)
    if as_json:
        say(json.dumps(_as_json(record) | {"came_from": came}, indent=1))
        return
    console = console_for()
    longest = max((len(record.label(trial)) for trial in record.trials), default=0)
    width = console.width if console.is_terminal else min(console.width, 80 + longest)
    console.print(live_table(record, width=width, height=10_000))
    tell_faults(record, err=False)
    if came:
        jobs = ", and what runs or waits is not its own: it is shown as it was then" if record.is_live else ""
        say(f"{record.directory.path} {came}{jobs}")


def resume(path: Path, overrides: list[str], detach: bool, as_job: bool = False) -> int:
    directory = study_to_drive(path)
    changes = _changes(directory, overrides)
    settle_home(directory)
    there = holder(directory)
    if CLUSTER in changes or CLUSTER in directory.changes():
        from hysweep.study.controller import Controller

        _tell_elsewhere(Controller(directory, changes).elsewhere())
    if as_job or there is None or there.is_over:
        return drive(directory, changes, detach, as_job)
    # whoever drives it takes the changes over in its next step; what is held begins with none of before
    if changes:
        directory.save_changes(later(directory.changes(), as_plain(changes)))
    was_paused = directory.withdraw_pause()
    done = [*(["no longer paused"] if was_paused else []), *(["changed"] if changes else [])]
    say(f"{'; '.join([*done, 'driven by'])} {_named(directory, there)}. Look: hysweep status {shown(path)}")
    return 0


def _tell_elsewhere(jobs: Elsewhere) -> None:
    """What becomes of jobs that were submitted before the cluster's settings changed."""
    queued = "waiting in a queue with other settings of the cluster"
    for numbers, what in (
        (jobs.waiting, f"{queued}: taken back, and submitted anew"),
        (jobs.unpaid, f"{queued}: stays there, the budget has no room for it with the new ones"),
        (jobs.running, "running with other settings of the cluster: goes on as it is"),
    ):
        if numbers:
            say(f"trial{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}, {what}")


def _named(directory: StudyDirectory, there: Holder) -> str:
    """Who drives a study, with what it takes to look at it or to stop it."""
    job = (read_record(directory.controller_file) or {}).get("job")
    signed = "" if there.is_here else f", which signed {there.age:.0f} s ago"
    return f"{there}{signed}" + (f" (SLURM job {job})" if job and not there.is_here else "")


def cancel(path: Path, addresses: list[str]) -> int:
    """Leave the request, and carry it out unless a controller is there to do so."""
    directory = study_at(path)
    there = holder(directory)
    if there is None or there.is_over:  # nobody but this call carries it out, so it has to be able to
        load_definition(directory, composer_of(directory))
    settle_home(directory)
    chosen = [trial_at(directory, a) for a in addresses]
    for trial in chosen:
        trial.request_cancel()
    if not chosen:
        directory.request_cancel()
    targets = chosen or directory.trials()
    open_ones = [t for t in targets if not t.state().is_final]
    if not open_ones:
        directory.withdraw_cancel()
        say("nothing was open, so nothing was stopped")
        return 0
    from hysweep.study.controller import Controller
    from hysweep.study.storage import Unreachable

    try:
        controller: Controller | None = Controller(directory).__enter__()
    except BadInput:  # somebody drives it, and will see the request
        controller = None
    try:
        with Patience(STOPPED_WITHIN_S) as patience:
            while (waits := sum(not t.state().is_final for t in open_ones)) and not patience.is_over:
                if controller:
                    with suppress(Unreachable):  # the jobs are stopped all the same
                        controller.tick(asks=False)
                who = "" if controller or there is None else f" by {_named(directory, there)}"
                patience.note(f"{waits} trial{'s' if waits > 1 else ''} to be stopped{who}")
                time.sleep(0.3)
    finally:
        if controller:
            controller.__exit__()
    stopped = [t for t in open_ones if t.state().cause is Cause.CANCELLED]
    left = [t for t in open_ones if not t.state().is_final]
    say(
        f"stopped {len(stopped)} of {len(open_ones)} trials that were open"
        + (_what_is_left(directory) if not chosen else "")
    )
    where, named = shown(directory.path), "".join(f" {t.number}" for t in chosen)
    cure = f"look again with hysweep status {where}"
    if not patience.is_answered:
        cure = f"its job may run on: once the scheduler answers, hysweep cancel {where}{named}"
    for trial in left:
        say(f"trial {trial.number} has not ended yet; {cure}", err=True)
    return 1 if left else 0


def _what_is_left(directory: StudyDirectory) -> str:
    """Of a study that was stopped: how it goes on, if it can."""
    from hysweep.study.controller import Controller

    made, wanted = len(directory.trials()), Controller(directory).definition.n_trials
    if made >= wanted:
        return f"; the study is over: all {made} of its trials were made"
    return f"; go on with the {wanted - made} that are left: hysweep resume {shown(directory.path)}"


def report(path: Path, as_json: bool) -> None:
    directory = study_at(path)
    record = read_study(directory)
    tell_faults(record)
    if not as_json:
        _print_ranking(record, Console())
    page = write_page(directory)
    say(json.dumps(_as_json(record) | {"report": str(page)}, indent=1) if as_json else shown(page))


def tell_faults(record: StudyRecord, err: bool = True) -> None:
    """What could not be read: whatever is shown is without it."""
    for fault in record.faults:
        say(fault, err=err)


def _print_ranking(record: StudyRecord, console: Console) -> None:
    """How well the ranking of layouts predicted, where a study tells."""
    found = ranking(record)
    if found is not None:
        console.print(ranking_table(found, record))
        say(found.sentence)


def shown(path: Path) -> Path:
    """A path as short as it can be typed here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _changes(directory: StudyDirectory, overrides: list[str]) -> dict[str, object]:
    """`study.n_trials=12`, `cluster.partition=main` and the like. Raises BadInput for what cannot change when a study
    goes on."""
    elsewhere = [o for o in overrides if is_of_cluster(o.partition("=")[0].lstrip("+"))]
    overrides = [o for o in overrides if o not in elsewhere]
    given = {o.partition("=")[0].lstrip("+"): o.partition("=")[2] for o in overrides}
    settings = {key: key.removeprefix("study.").partition(".")[0] for key in given}
    if faults := [
        Problem(key, given[key], *_unchangeable(key))
        for key in sorted(given)
        if settings[key] not in CHANGEABLE or not key.startswith("study.")
    ]:
        raise BadInput(*faults)
    study = Composer().compose(overrides).study
    changes: dict[str, object] = {}
    for key, name in settings.items():
        leaf = key.removeprefix("study.").partition(".")[2]
        value = getattr(study, name)
        if leaf:
            group = changes.setdefault(name, {})
            assert isinstance(group, dict)
            group[leaf] = getattr(value, leaf)
        else:
            changes[name] = value
    composer = composer_of(directory)
    definition = load_definition(directory, composer)
    composer.freeze(definition.env)
    refuse_unfit(definition, directory.changes(), as_plain(changes))
    for problem in in_vain(definition, directory.changes(), as_plain(changes)):
        say(f"warning: {problem}", err=True)
    if elsewhere:
        changes[CLUSTER] = move(definition, composer, elsewhere, directory.changes())
    return changes


def _unchangeable(key: str) -> tuple[str, str]:
    """Why a key cannot be given to `resume`, and what can."""
    can = [f"study.{name}" for name in CHANGEABLE]
    is_of_study = key.startswith("study.")
    is_setting = is_of_study and key.split(".")[1] in Study.__dataclass_fields__
    near = nearest(key, can) if not is_setting and (is_of_study or "." not in key) else []
    if near:
        return "is unknown", f"did you mean {' or '.join(near)}?"
    return "cannot change when a study goes on", f"one of {', '.join(can)} can, and where it runs: cluster.*"


def _as_json(record: StudyRecord) -> dict[str, Any]:
    best, ranked = record.best, ranking(record)
    return {
        "name": record.name,
        "directory": str(record.directory.path),
        "best": best.number if best else None,
        "best_value": record.best_value,
        "is_simulated": record.directory.is_simulated,
        "is_paused": record.is_paused,
        "refusal": record.refusal,
        "faults": list(record.faults),
        "n_trials": record.setting("n_trials"),
        "seconds": record.seconds,
        "gpu_hours": record.gpu_hours,
        "budget_gpu_hours": record.budget_gpu_hours,
        "spending": record.spending.as_dict(),
        "front": [t.number for t in record.front],
        "objectives": [goal.metric for goal in record.goals],
        "filtered_points": record.filtered,
        "ranking": ranked.as_dict() if ranked else None,
        "trials": [
            {
                "number": t.number,
                "id": t.id,
                "point": dict(t.point),
                "status": str(t.standing),
                "state": t.word,
                "cause": str(t.state.cause) if t.state.cause else None,
                "reason": t.state.reason,
                "value": t.state.value,
                "values": list(t.values),
                "latest": t.latest if t.latest is not None and math.isfinite(t.latest) else None,
                "step": t.last_step,
                "total_steps": t.total_steps,
                "attempts": len(t.attempts),
                "nodes": t.nodes,
                "expected_start": t.state.expected,
                "seconds": t.seconds,
                "gpu_hours": t.gpu_hours,
                "directory": str(t.directory.path),
            }
            for t in record.trials
        ],
    }
