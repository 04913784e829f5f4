"""The verb `estimate`: tables, JSON or a page of one trial's memory; and the calibration by runs that were measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from hysweep.check import check_trial, errors
from hysweep.check.memory import calibration_is_readable, cure_of, memory_fits
from hysweep.cli.say import console_for, say
from hysweep.compose import Composer
from hysweep.compose.composer import load_trial
from hysweep.estimate import Estimate
from hysweep.estimate import estimate as estimate_trial
from hysweep.estimate.calibration import METRIC, Comparison, compare, factor_of
from hysweep.estimate.factors import LEAST, MOST, entries, is_size, kept_for, place, store
from hysweep.estimate.memory import PARTS
from hysweep.estimate.page import page
from hysweep.estimate.result import PHASES
from hysweep.schema import BadInput, Problem, Unsaid
from hysweep.track import AttemptDirectory, Cause, StudyDirectory, TrialDirectory, write_json, write_text

RAN_OUT = (Cause.CUDA_OOM, Cause.HOST_OOM)


def estimate(
    overrides: list[str], config_dirs: Sequence[Path], as_json: bool, html: Path | None, is_calibrated: bool
) -> int:
    composition = Composer(config_dirs).compose(overrides)
    if composition.space:
        key = next(iter(composition.space))
        raise BadInput(Problem(key, "varies", "an estimate is of one trial", "give it one value"))
    trial = composition.trial
    found = estimate_trial(trial, None if is_calibrated else 1.0)
    for warning in calibration_is_readable(trial) if is_calibrated else ():
        say(f"warning: {warning}", err=True)
    if html is not None:
        c = trial.cluster
        title = f"{trial.model.name} on {c.nodes} × {c.gpus_per_node} {c.gpu}: memory of a GPU, estimated"
        try:
            write_text(html, page(found, title))
        except OSError as e:
            raise BadInput(Problem("--html", html, (e.strerror or str(e)).lower(), "give another place")) from e
    faults = errors(check_trial(trial, without=[memory_fits]))
    if as_json:
        say(json.dumps(found.as_dict() | {"problems": [p.as_dict() for p in faults]}, indent=1, default=str))
    else:
        _print(found, is_sound=not faults)
        if is_calibrated and (factor := kept_for(trial.cluster).factor) is not None:
            say(
                f"calibrated: torch's part times {factor:.3f}, from {store()} ({place(trial.cluster)}); "
                "--no-calibration leaves it out, --forget removes it"
            )
        if html is not None:
            say(f"written: {html}")
    for verdict in found.verdicts:
        if not verdict.fits:
            known = "" if verdict.is_sure else " (`hysweep check` warns, and lets it run without --strict)"
            cure = f"see `hysweep layouts`; {cure_of(trial, verdict.group)}"
            say(f"{verdict.group} {verdict.words}{known}: {cure}", err=True)
    for fault in faults:
        say(f"problem: {fault}", err=True)
    return 0 if found.fits and not faults else 1


def _print(found: Estimate, is_sound: bool) -> None:
    """`is_sound`: nothing else is wrong with the trial. Else it is arithmetic of what cannot be built."""
    console = console_for()
    for phase in found.phases:
        of_phase = [u for u in found.uses if u.phase == phase]
        table = Table(box=None, pad_edge=False, title=f"{PHASES[phase]}, GiB per GPU", title_justify="left")
        table.add_column("", min_width=18)
        for u in of_phase:
            table.add_column("" if u.stage == "all" else u.stage, justify="right", min_width=7)
        for part in PARTS:
            if any(part in u.parts for u in of_phase):
                table.add_row(part, *(f"{u.parts.get(part, 0):.2f}" for u in of_phase))
        table.add_row("[bold]total[/]", *(f"[bold]{u.total_gib:.2f}[/]" for u in of_phase))
        table.add_row("[dim]of it torch, at its peak[/]", *(f"[dim]{u.torch_gib:.2f}[/]" for u in of_phase))
        console.print(table)
        console.print()
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(min_width=18)
    facts.add_column(overflow="fold")
    if len(found.stages) > 1:
        stages = "; ".join(
            f"{s.name} {s.layers:g} layers, {s.parameters / 1e9:.2f} B parameters a GPU, {s.in_flight:g} in flight"
            for s in found.stages
        )
        facts.add_row("stages", stages)
    for b in found.budgets:
        facts.add_row(
            f"tokens, {PHASES[b.phase]}",
            f"{b.per_gpu:,} per GPU, {b.per_context_group:,} per context group, "
            f"longest sequence {b.longest_sequence:,}"
            + ("" if b.per_context_group >= b.longest_sequence else "  [red]a sequence does not fit[/]"),
        )
    if found.cache is not None:
        c = found.cache
        facts.add_row(
            "KV cache",
            f"{c.gib:.1f} GiB a GPU, {c.bytes_per_token / 1024:.1f} KiB a token there: "
            f"{c.tokens:,} tokens, {c.sequences:,} sequences at full length a replica, {c.replicas} replicas",
        )
    facts.add_row("host memory", f"{found.host_gib_per_node:,.0f} GiB a node, without vLLM's and Ray's own")
    facts.add_row("checkpoint", f"{found.checkpoint_gib:,.1f} GiB")
    tightest = found.tightest
    where = "" if tightest.stage == "all" else f", {tightest.stage} stage"
    facts.add_row("tightest", f"{PHASES[tightest.phase]}{where}: {tightest.total_gib:.1f} GiB")
    for v in found.verdicts:
        colour = "red" if not v.fits else "yellow" if not (v.is_sure and is_sound) else "green"
        words = v.words if is_sound else v.words.replace("fits", "would fit, but for the problems", 1)
        facts.add_row(v.group, f"[{colour}]{words}[/] ({v.why})")
    console.print(facts)


def calibrate(directories: list[str], as_json: bool) -> int:
    """Compare runs with their estimates, and keep each cluster's factor. 1 where no run could be compared."""
    if not directories:
        raise BadInput(
            Problem("--calibrate", Unsaid.VALUE, "no directory is named", "name studies, trials or attempts")
        )
    compared: dict[str, list[Comparison]] = {}
    passed_over: dict[str, str] = {}
    for attempt in (a for d in directories for a in _attempts(Path(d).absolute())):
        name = f"{attempt.trial.path.name}/{attempt.number}"
        end = attempt.end()
        if end is not None and end.cause in RAN_OUT:  # its last peak is of an allocation that was refused
            passed_over[name] = f"ended by {end.cause}: its peak is not what the run takes"
            continue
        peaks = [(step, data[METRIC]) for step, data in attempt.metrics() if is_size(data.get(METRIC))]
        try:
            trial = load_trial(attempt.trial.config_file.read_text(encoding="utf-8"))
            comparison = compare(name, estimate_trial(trial, 1.0), peaks)
        except BadInput as e:
            passed_over[name] = str(e)
            continue
        except Exception as e:  # what a frozen trial of another version may hold is not known
            said = next(iter(str(e).strip().splitlines()), "")
            passed_over[name] = f"its trial.yaml cannot be read ({type(e).__name__}: {said})"
            continue
        if comparison is None:
            passed_over[name] = f"fewer than two steps with {METRIC}"
        else:
            compared.setdefault(place(trial.cluster), []).append(comparison)
    factors = {place: factor for place, of in compared.items() if (factor := factor_of(of)) is not None}
    if factors:
        _keep(factors, compared)
    if as_json:
        runs = {place: [asdict(c) | {"error": c.error} for c in of] for place, of in compared.items()}
        say(json.dumps({"factors": factors, "runs": runs, "passed_over": passed_over}, indent=1))
    else:
        _print_comparisons(compared, factors, passed_over)
    return 0 if factors else 1


def _print_comparisons(
    compared: dict[str, list[Comparison]], factors: dict[str, float], passed_over: dict[str, str]
) -> None:
    table = Table(box=None, pad_edge=False)
    for head in ("run", "largest phase"):
        table.add_column(head, overflow="fold")
    for head in ("estimated GiB", "measured GiB", "error"):
        table.add_column(head, justify="right")
    for of in compared.values():
        for c in of:
            error = f"{c.error:+.1%}" + ("" if c.is_usable else " (left out)")
            table.add_row(c.name, PHASES[c.phase], f"{c.computed_gib:.2f}", f"{c.measured_gib:.2f}", error)
    if compared:
        console_for().print(table)
    for name, why in passed_over.items():
        say(f"{name}: {why}")
    for where, factor in factors.items():
        say(f"{where}: torch's part times {factor:.3f} from now on; kept in {store()}")
    for where in sorted(compared.keys() - factors.keys()):
        say(f"{where}: no factor: measured / estimated is below {LEAST:g} or above {MOST:g} in every run")
        if where in (entries(store()) or {}):
            say(f"{where}: the factor that was kept before stays in use; `--forget` removes it")


def _attempts(directory: Path) -> Iterator[AttemptDirectory]:
    """Those of a study, of a trial, or the one that is named."""
    study, trial, attempt = StudyDirectory(directory), TrialDirectory(directory), AttemptDirectory(directory)
    if trials := study.trials():
        found = [a for t in trials for a in t.attempts()]
    elif directory.name.isdecimal() and (directory.parent.parent / "trial.yaml").is_file():
        found = [attempt]
    else:
        found = trial.attempts()
    if not found:
        raise BadInput(Problem("--calibrate", directory, "holds no attempt", "name a study, a trial or an attempt"))
    yield from found


def forget(overrides: list[str], config_dirs: Sequence[Path]) -> int:
    """Remove the factor of the cluster that the overrides name. 1 where none is kept."""
    cluster = Composer(config_dirs).compose(overrides).trial.cluster
    kept = entries(store()) or {}
    if place(cluster) not in kept:
        say(f"{place(cluster)}: no factor is kept in {store()}", err=True)
        return 1
    _write({name: entry for name, entry in kept.items() if name != place(cluster)})
    say(f"{place(cluster)}: forgotten; estimates are the formulas' own")
    return 0


def _keep(factors: dict[str, float], compared: dict[str, list[Comparison]]) -> None:
    kept = dict(entries(store()) or {})
    for where, factor in factors.items():
        kept[where] = {"factor": factor, "runs": [c.name for c in compared[where] if c.is_usable]}
    _write(kept)


def _write(kept: dict[str, Any]) -> None:
    store().parent.mkdir(parents=True, exist_ok=True)
    write_json(store(), kept)
    entries.cache_clear()
