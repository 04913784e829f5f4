"""The verbs that only look: show, check, plan."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hysweep.check import errors
from hysweep.check.files import unseen
from hysweep.check.site import checkpoint_gib, checkpoints_at_once, disk_problems, heard_of
from hysweep.cli.say import say
from hysweep.compile import Job, compile_trial
from hysweep.compose import Composer, Composition, text_of
from hysweep.compose.composer import all_leaves, trial_yaml
from hysweep.compose.launcher_settings import as_typed
from hysweep.schema import BadInput, Problem, Severity, Stage, Trial, hour_unit, trial_id
from hysweep.schema.spelled import spelled_out
from hysweep.study import Definition, Preview, define, preview, study_problems
from hysweep.study.ledger import worst_case
from hysweep.track import AttemptDirectory

NOWHERE = Path("/STUDY/trials/NUMBER-ID")  # stands for the directory that a trial will have


def show(overrides: list[str], config_dirs: Sequence[Path], verl: bool, doc: bool, as_json: bool) -> None:
    if doc:
        _show_fields(as_json)
        return
    composition = Composer(config_dirs).compose(overrides)
    trial = composition.trial
    if composition.space:
        say(f"(varies, shown at the first value: {', '.join(composition.space)})", err=True)
    if verl:
        job = compile_trial(trial, NOWHERE)
        if as_json:
            say(json.dumps(job.as_dict(), indent=1))
            return
        for name, value in job.env.items():
            say(f"{name}={shlex.quote(value)} \\")
        say(f"python -m {job.module}" + "".join(f" \\\n  {shlex.quote(o)}" for o in job.overrides))
    elif as_json:
        say(json.dumps(asdict(trial) | {"study": asdict(composition.study)}, indent=1))
    else:
        from omegaconf import OmegaConf

        say(f"# id {trial_id(trial)}   " + " ".join(f"{k}={v}" for k, v in composition.choices.items() if v))
        say(trial_yaml(trial).rstrip("\n"))
        say(OmegaConf.to_yaml(OmegaConf.create({"study": asdict(composition.study)})).rstrip("\n"))


def refuse_empty(composition: Composition, is_sweep: bool) -> None:
    """Raises BadInput for a search (-m) of nothing."""
    if is_sweep and not composition.space:
        cure = "give a range, as in algorithm=grpo,cispo, or sweep=quickstart; leave out -m for one trial"
        raise BadInput(Problem("space", "empty", "there is nothing to search", cure))


def check(overrides: list[str], is_sweep: bool, config_dirs: Sequence[Path], strict: bool, as_json: bool) -> int:
    composer = Composer(config_dirs)
    composition = composer.compose(overrides)
    refuse_empty(composition, is_sweep)
    definition = define(composition)
    looked = preview(definition, composer)
    bad = [p for p in looked if not p.is_feasible or (strict and p.problems)]
    of_study = study_problems(definition, looked)
    bad_study = of_study if strict else errors(of_study)
    if as_json:
        say(json.dumps(_previews_json(looked, of_study), indent=1, default=str))
        return 1 if bad or bad_study else 0
    print_problems(looked)
    for problem in of_study:
        _say(problem)
    count = f"{len(looked)} trial{'s'[: len(looked) != 1]} looked at"
    say(
        f"{count}: "
        + (
            f"{len(bad)} to mend"
            if bad
            else f"{' and '.join(p.key for p in bad_study)} to mend"
            if bad_study
            else "no problem found"
            if not of_study and not any(p.problems for p in looked)
            else "all can run"
        )
    )
    told = {str(problem.value) for p in looked for problem in p.problems}
    away = list(dict.fromkeys(n for p in looked if p.trial is not None for n in unseen(p.trial) if n not in told))
    if away:
        more = f" and {len(away) - 3} more" if len(away) > 3 else ""
        say(f"not looked at, since it is not on this machine: {', '.join(away[:3])}{more}")
    return 1 if bad or bad_study else 0


def check_command(file: str, overrides: list[str], given: Sequence[str], strict: bool, as_json: bool) -> int:
    """A command line or script of somebody else's, with variables for it; the only override that it takes is which
    verl it is for."""
    from hysweep.cli.importing import read, variables
    from hysweep.scripts import import_script
    from hysweep.scripts.importer import GPU_ASSUMED
    from hysweep.scripts.problems import problems_of

    others = [o for o in overrides if not o.startswith("trainer.verl=")]
    if others:
        key, _, value = others[0].partition("=")
        raise BadInput(Problem(key, value, "cannot be set beside --verl-command", "leave it out, or hysweep import it"))
    verl = overrides[-1].partition("=")[2] if overrides else Composer().compose().trial.trainer.verl
    imported = import_script(read(file), file, "command", verl, variables(given))
    problems = problems_of(imported)
    bad = [p for p in problems if strict or p.severity is Severity.ERROR]
    heard = [n for n in imported.notes if not n.what.startswith(GPU_ASSUMED)]  # of GPUs nothing is assumed here
    if as_json:
        notes = [{"line": n.line, "text": n.text, "what": n.what} for n in heard]
        answer = {"problems": [p.as_dict() for p in problems], "not_understood": notes, "verl": verl}
        say(json.dumps(answer, indent=1, default=str))
        return 1 if bad else 0
    print_problems([Preview({}, None, "", tuple(problems))])
    for note in heard:
        say(str(note))
    found = "no problem found" if not problems else f"{len(bad)} to mend" if bad else "it can run"
    say(f"{len(imported.rows)} overrides looked at, for verl {verl}: {found}")
    say("not looked at: files, and memory, which depends on the GPUs (`hysweep import`, then `hysweep estimate`)")
    return 1 if bad else 0


def plan(overrides: list[str], is_sweep: bool, config_dirs: Sequence[Path], strict: bool, as_json: bool) -> int:
    composer = Composer(config_dirs)
    composition = composer.compose(overrides)
    refuse_empty(composition, is_sweep)
    definition = define(composition)
    looked = preview(definition, composer)
    feasible = [p for p in looked if p.trial is not None and not errors(p.problems)]
    trial = _first_trial(definition, composer) or (feasible[0].trial if feasible else composition.trial)
    assert trial is not None
    job = compile_trial(
        trial, definition.directory.path / "trials" / f"0000-{trial_id(trial, definition.space.varied)}"
    )
    most_hours = definition.most_trials * worst_case(trial)
    budget = definition.study.budget_gpu_hours
    facts: dict[str, Any] = {
        "study": definition.study.name,
        "directory": str(definition.directory.path),
        "trials": definition.n_trials,
        "trials_to_confirm": definition.most_trials - definition.n_trials,
        "seeds_per_point": len(definition.space.seeds) or 1,
        "points_filtered_out": definition.space.rejected,
        "max_parallel": definition.study.max_parallel,
        "launcher": job.launcher,
        "nodes_per_trial": job.nodes,
        "gpus_per_trial": job.nodes * job.gpus_per_node if trial.has_gpu else 0,
        "timeout_min": job.timeout_min,
        "gpu_hours_at_most": most_hours if budget is None else min(most_hours, budget),
        "budget_gpu_hours": budget,
        "tokens_per_gpu": trial.trainer.max_token_len_per_gpu if trial.trainer.use_dynamic_batch else None,
        "tokens_per_context_group": trial.trainer.max_token_len_per_gpu * trial.parallelism.context
        if trial.trainer.use_dynamic_batch
        else None,
        "longest_sequence": trial.trainer.max_prompt_length + trial.trainer.max_response_length,
        **_disk(trial, definition),
        "points_looked_at": len(looked),
        "infeasible": len(looked) - len(feasible),
    }
    beside = disk_problems(trial, definition.study.max_parallel, definition.most_trials, facts["disk_gib_free"])
    beside += heard_of(os.environ) if trial.cluster.launcher == "slurm" else []
    of_study = study_problems(definition, looked)
    varies = {key: text_of(dimension) for key, dimension in definition.space.items()}
    only_where = [condition.text for condition in definition.space.filters]
    is_good = bool(feasible) and not errors(of_study)
    if strict:
        is_good = not (beside or of_study or any(p.problems for p in looked))
    if as_json:
        problems = [told for told in _previews_json(looked, of_study) if told["problems"]]
        told = {"varies": varies, "only_where": only_where, "problems": problems}
        told |= {"warnings": [p.as_dict() for p in beside], "first_job": job.as_dict()}
        told["first_job_as_sent"] = _launch_plan(job)
        say(json.dumps(facts | told, indent=1, default=str))
        return 0 if is_good else 1
    unit = hour_unit(trial.has_gpu)
    shown = [
        (name.replace("gpu_hours", unit).replace("_", " "), _figure(v) if isinstance(v, float) else f"{v}")
        for name, v in facts.items()
        if v is not None
    ]
    shown += [("varies", f"{key} = {text}") for key, text in varies.items()]
    shown += [("only where", text) for text in only_where]
    width = max(len(name) for name, _ in shown)
    for name, text in shown:
        say(f"{name:>{width}}  {text}")
    print_problems(looked)
    for problem in (*of_study, *beside):
        _say(problem)
    say("the first job:")
    say(_launch_plan(job))
    return 0 if is_good else 1


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _disk(trial: Trial, definition: Definition) -> dict[str, float | int | None]:
    """What checkpoints take, by the estimate, and what is free where the study is to lie."""
    size, most = checkpoint_gib(trial), checkpoints_at_once(trial)
    path = definition.directory.path.absolute()
    there = next(p for p in (path, *path.parents) if p.exists())
    return {
        "checkpoint_gib": None if size is None else round(size, 1),
        "checkpoints_at_once": None if most is None else most * min(definition.study.max_parallel, definition.n_trials),
        "disk_gib_free": round(shutil.disk_usage(there).free / 2**30, 1),
    }


LATE = {
    Stage.COMPOSE: "the trainer refuses it",
    Stage.NEVER: "it would run, and say nothing",
    Stage.START: "it would fail at start",
    Stage.ROLLOUT: "it would fail after the first rollout",
    Stage.UPDATE: "it would fail at the first update",
}


def _late(problem: Problem) -> str:
    """When the trainer would stumble; a warning of what is not sure to happen says so."""
    late = LATE[problem.stage]
    is_sure = problem.severity is Severity.ERROR or problem.stage is Stage.NEVER
    return late if is_sure else late.replace("would", "may")


def _say(problem: Problem) -> None:
    """One that is not of a trial."""
    say(f"{_word(problem)}: {problem}")


def _word(problem: Problem) -> str:
    return "warning" if problem.severity is Severity.WARNING else "problem"


def print_problems(looked: Sequence[Preview], err: bool = False) -> None:
    """Every problem once, with the number of trials that have it and the first point where it shows.

    A table where a person looks, a line each where a program reads.
    """
    seen: dict[str, tuple[Problem, list[Preview]]] = {}
    for p in looked:
        for problem in (as_typed(found, sys.argv) for found in p.problems):
            seen.setdefault(f"{problem.severity} {problem}", (problem, []))[1].append(p)
    rows = [(problem, _where(looked, where)) for problem, where in seen.values()]
    if rows and (sys.stderr if err else sys.stdout).isatty():
        _print_table(rows, err)
        return
    for problem, where in rows:
        at = f"  [{where}]" if where else ""
        say(f"{_word(problem)}: {problem} ({_late(problem)}){at}", err=err)


def _where(looked: Sequence[Preview], where: Sequence[Preview]) -> str:
    if len(looked) == 1:
        return ""
    first = f", as {_point(where[0].point)}" if len(where) < len(looked) else ""
    return f"{len(where)} of {len(looked)} trials{first}"


def _print_table(rows: Sequence[tuple[Problem, str]], err: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for problem, where in rows:
        mark = Text(_word(problem), "yellow" if problem.severity is Severity.WARNING else "red")
        what = spelled_out(f"{problem.key} = {problem.value}\n")
        why, cure = spelled_out(f"{problem.why}\n"), spelled_out(f"{problem.cure}\n")
        late = spelled_out(_late(problem) + (f" ({where})" if where else ""))
        table.add_row(mark, Text.assemble((what, "bold"), why, (cure, "green"), (late, "dim")))
    Console(stderr=err).print(table)


def _first_trial(definition: Definition, composer: Composer) -> Trial | None:
    """The first of the points that run before a sampler is asked, where it says all that varies."""
    point = next(iter(definition.first_points()), {})
    if not definition.space or not definition.space.is_whole(point):
        return None
    return composer.point(definition.fixed, definition.space, point)


def _launch_plan(job: Job) -> str:
    from hysweep.launch import launcher

    try:
        return launcher(job.launcher).plan(job, AttemptDirectory(NOWHERE / "attempts" / "1"))
    except BadInput as e:  # a launcher that this version has not: the trainer's command is known all the same
        return f"{e}\npython -m {job.module} \\\n  " + " \\\n  ".join(map(shlex.quote, job.overrides))


def _show_fields(as_json: bool) -> None:
    rows = [
        {"field": leaf.path, "doc": leaf.knob.doc, "unit": leaf.knob.unit, "keys": list(leaf.knob.keys)}
        for leaf in all_leaves()
    ]
    if as_json:
        say(json.dumps(rows, indent=1))
        return
    for row in rows:
        unit = f" [{row['unit']}]" if row["unit"] else ""
        say(f"{row['field']}{unit}\n    {row['doc']}" + (f"\n    -> {', '.join(row['keys'])}" if row["keys"] else ""))


def _previews_json(looked: Sequence[Preview], of_study: Sequence[Problem]) -> list[dict[str, Any]]:
    """What is wrong with the study's size is told beside its points, as one that is nowhere."""
    nowhere = _preview_json(Preview({}, None, "", tuple(of_study))) | {"is_feasible": not errors(of_study)}
    return [*map(_preview_json, looked), *([nowhere] if of_study else [])]


def _preview_json(p: Preview) -> dict[str, Any]:
    return {
        "point": p.point,
        "id": p.id,
        "is_feasible": p.is_feasible,
        "problems": [as_typed(problem, sys.argv).as_dict() for problem in p.problems],
    }


def _point(point: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in point.items())
