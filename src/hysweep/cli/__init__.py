"""The verbs. Each reads its words, calls a room and prints; heavy rooms are imported when a verb needs them.

Exit codes: 0 done; 1 the answer is no (problems found, trials failed); 2 the question could not be taken;
130 interrupted, a clean detach too.
"""

from __future__ import annotations

import math
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hysweep import __version__

if TYPE_CHECKING:
    from hysweep.schema import Problem


def _refuse_blank(value: Any, param: click.Parameter | None, ctx: click.Context | None, cure: str) -> None:
    """Of a word that is empty, as of a variable that is not set."""
    if str(value).strip() or (ctx is not None and ctx.resilient_parsing):
        return
    from hysweep.schema.problem import BadInput, Problem

    raise BadInput(Problem("word" if param is None else _name(param), value, "is empty", cure))


def _name(param: click.Parameter) -> str:
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name


class Place(click.Path):
    """A path. Empty it would be the current directory, which nobody asked for; a ~ that no shell has seen means the
    home directory here too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _refuse_blank(value, param, ctx, "name one")
        return super().convert(os.path.expanduser(value), param, ctx)


class Word(click.types.UnprocessedParamType):
    """A setting or the like, as it was typed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _refuse_blank(value, param, ctx, "leave it out, or write KEY=VALUE")
        return value


class Finite(click.FloatRange):
    """A number from `min` on; click's own takes nan and inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


OVERRIDES = click.argument("overrides", nargs=-1, type=Word(), shell_complete=lambda *a: _complete(*a))
CONFIG_DIR = click.option(
    "--config-dir",
    "config_dirs",
    multiple=True,
    type=Place(exists=True, file_okay=False),
    metavar="DIR",
    help="Your own config groups; they win over the shipped.",
)
HABIT = click.option("-m", "--multirun", is_flag=True, expose_value=False, hidden=True)  # needed by run alone
SWEEP = click.option("-m", "--multirun", "is_sweep", is_flag=True, hidden=True)  # not needed, but believed
STUDY = click.argument("directory", metavar="DIR", type=Place(path_type=Path), shell_complete=lambda *a: _studies(*a))
SET = click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="A variable that the script reads.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def _refuse_beside(mode: str, *read: str) -> None:
    """Of what is given on the command line beside `mode`, which reads the parameters `read` alone."""
    ctx = click.get_current_context()
    for param in (p for p in ctx.command.params if p.expose_value and p.name not in read):
        if ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{_name(param)} is not read by {mode}: leave it out", ctx)


class Verbs(click.Group):
    """Lists the verbs in the order of use, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as e:  # `hysweep show | head`: the reader has seen enough,
            if not isinstance(e, BrokenPipeError) and not isinstance(e.__context__, BrokenPipeError):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)  # which to click and to rich is a failure


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "terminal_width": 100},
    epilog="Example: hysweep run -m sweep=quickstart        Help of a verb: hysweep run --help",
)
@click.version_option(__version__, prog_name="hysweep")
def hysweep() -> None:
    """Sweeps of RL post-training jobs for large language models, written as configuration.

    Settings are named as in Hydra: algorithm=cispo, trainer.learning_rate=1e-3, sweep=quickstart.
    """


@hysweep.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog="Example: hysweep run -m algorithm=grpo,cispo 'trainer.learning_rate=tag(log,interval(1e-4,1e-2))' "
    "study.n_trials=8",
)
@click.option("-m", "--multirun", is_flag=True, help="Search the space that the overrides or the sweep file span.")
@click.option("--detach", is_flag=True, help="Let it drive itself: a small SLURM job, or a process of this machine.")
@CONFIG_DIR
@OVERRIDES
def run(overrides: tuple[str, ...], multirun: bool, detach: bool, config_dirs: tuple[str, ...]) -> None:
    """Run one trial, or with -m a study. Ctrl-C leaves: the jobs go on.

    The same command again goes on with the same study. Hydra's own flags (--cfg job, --info) work too.
    """
    from hysweep.cli.run import run_as_hydra_app

    sys.exit(run_as_hydra_app(list(overrides), multirun, detach, [Path(d) for d in config_dirs]))


@hysweep.command(epilog="Example: hysweep show algorithm=cispo --verl")
@click.option("--verl", is_flag=True, help="The exact trainer command instead.")
@click.option("--doc", is_flag=True, help="Every field with its meaning and its trainer key instead.")
@JSON
@HABIT
@CONFIG_DIR
@OVERRIDES
def show(overrides: tuple[str, ...], verl: bool, doc: bool, as_json: bool, config_dirs: tuple[str, ...]) -> None:
    """Show the composed configuration of a trial."""
    from hysweep.cli.desk import show as answer

    if doc:
        _refuse_beside("--doc", "doc", "as_json")
    answer(list(overrides), [Path(d) for d in config_dirs], verl, doc, as_json)


@hysweep.command(epilog="Example: hysweep check experiment=hy3_dapo_math parallelism.expert=6")
@click.option("--strict", is_flag=True, help="Warnings count as problems.")
@click.option("--verl-command", metavar="FILE", help="Look at a launch script or a command line of verl's instead.")
@SET
@JSON
@SWEEP
@CONFIG_DIR
@OVERRIDES
def check(
    overrides: tuple[str, ...],
    is_sweep: bool,
    strict: bool,
    verl_command: str | None,
    given: tuple[str, ...],
    as_json: bool,
    config_dirs: tuple[str, ...],
) -> None:
    """Find what cannot work, or would be ignored, before anything runs. Also of a whole sweep."""
    from hysweep.cli import desk

    if verl_command is not None:
        _refuse_beside("--verl-command", "verl_command", "strict", "given", "as_json", "overrides")
        sys.exit(desk.check_command(verl_command, list(overrides), given, strict, as_json))
    if given:
        raise click.UsageError("--set gives a variable to the script of --verl-command; a field is set as key=value")
    sys.exit(desk.check(list(overrides), is_sweep, [Path(d) for d in config_dirs], strict, as_json))


@hysweep.command(epilog="Example: hysweep estimate experiment=hy3_dapo_math memory.use_fused_kernels=false")
@click.option("--html", type=Place(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page with bars too.")
@click.option(
    "--calibrate", is_flag=True, help="Take DIRs of runs instead: compare with what verl measured, keep the factor."
)
@click.option("--no-calibration", is_flag=True, help="Leave out a factor that was kept.")
@click.option("--forget", is_flag=True, help="Remove the factor that was kept for the cluster that is named.")
@JSON
@HABIT
@CONFIG_DIR
@OVERRIDES
def estimate(
    overrides: tuple[str, ...],
    html: Path | None,
    calibrate: bool,
    no_calibration: bool,
    forget: bool,
    as_json: bool,
    config_dirs: tuple[str, ...],
) -> None:
    """Say what memory a trial needs, by phase and part, and whether it fits: training, rollout, resume."""
    from hysweep.cli.estimate import calibrate as compare
    from hysweep.cli.estimate import estimate as answer
    from hysweep.cli.estimate import forget as remove

    if calibrate:
        _refuse_beside("--calibrate", "calibrate", "as_json", "overrides")
        sys.exit(compare(list(overrides), as_json))
    if forget:
        _refuse_beside("--forget", "forget", "config_dirs", "overrides")
        sys.exit(remove(list(overrides), [Path(d) for d in config_dirs]))
    sys.exit(answer(list(overrides), [Path(d) for d in config_dirs], as_json, html, not no_calibration))


@hysweep.command(epilog="Example: hysweep plan sweep=hy3_algorithms")
@click.option("--strict", is_flag=True, help="Warnings, and points that cannot run, count as a no.")
@JSON
@SWEEP
@CONFIG_DIR
@OVERRIDES
def plan(overrides: tuple[str, ...], is_sweep: bool, strict: bool, as_json: bool, config_dirs: tuple[str, ...]) -> None:
    """Show what a run would launch: trials, nodes, GPU-hours, problems. Nothing is written or started."""
    from hysweep.cli.desk import plan as answer

    sys.exit(answer(list(overrides), is_sweep, [Path(d) for d in config_dirs], strict, as_json))


@hysweep.command(epilog="Example: hysweep simulate sweep=hy3_algorithms --cluster nodes=64 --like outputs/earlier")
@click.option(
    "--cluster",
    "cluster_words",
    multiple=True,
    metavar="NAME=VALUE",
    help="nodes (as many as max_parallel trials need), boot_s (60): seconds until the first step.",
)
@click.option("--curves", default="model", metavar="FILE", help="Curves by condition instead of the model's.")
@click.option("--like", type=Place(path_type=Path), metavar="STUDYDIR", help="As the nearest trials there went.")
@click.option("--step-s", type=Finite(0.001), metavar="SECONDS", help="Of a step of each trial.")
@click.option("--preempt-per-day", type=Finite(0), default=0.0, metavar="RATE", help="Of each running job.")
@click.option("--node-fail-per-day", type=Finite(0), default=0.0, metavar="RATE", help="Of each busy node.")
@click.option("--seed", type=int, default=0, metavar="N", help="Of the curves, and of what goes wrong.")
@click.option("--keep", type=Place(path_type=Path), metavar="DIR", help="Keep the simulated study in DIR.")
@JSON
@SWEEP
@CONFIG_DIR
@OVERRIDES
def simulate(
    overrides: tuple[str, ...],
    is_sweep: bool,
    cluster_words: tuple[str, ...],
    curves: str,
    like: Path | None,
    step_s: float | None,
    preempt_per_day: float,
    node_fail_per_day: float,
    seed: int,
    keep: Path | None,
    as_json: bool,
    config_dirs: tuple[str, ...],
) -> None:
    """Drive a study on a simulated cluster, in seconds: makespan, GPU-hours, what pruning saves. Starts nothing."""
    from hysweep.cli.simulate import Asked, Risks
    from hysweep.cli.simulate import simulate as answer

    risks = Risks(preempt_per_day, node_fail_per_day)
    asked = Asked(cluster_words, curves, like, step_s, risks, seed, keep)
    sys.exit(answer(list(overrides), is_sweep, [Path(d) for d in config_dirs], asked, as_json))


@hysweep.command(epilog="Example: hysweep layouts experiment=hy3_dapo_math --sort kv_sequences")
@click.option("--sort", default="seconds", metavar="COLUMN", help="seconds (step), train_gib, rollout_gib, resume_gib, "
              "margin_gib (free), kv_sequences (seqs), longest, nodes, tensor (TP), pipeline (PP), "
              "virtual_pipeline (VPP), context (CP), data (DP), expert (EP), expert_tensor (ETP), "
              "rollout_tensor (rTP), rollout_data (rDP).")  # fmt: skip
@click.option("--top", default=10, type=click.IntRange(1, 1000), help="How many to show, or to sweep.")
@click.option("--any-nodes", is_flag=True, help="Also on fewer nodes than the cluster's.")
@click.option("--sweep", type=Place(path_type=Path), metavar="NAME.yaml", help="Write a sweep of them.")
@JSON
@CONFIG_DIR
@OVERRIDES
def layouts(
    overrides: tuple[str, ...],
    sort: str,
    top: int,
    any_nodes: bool,
    sweep: Path | None,
    as_json: bool,
    config_dirs: tuple[str, ...],
) -> None:
    """Find parallel layouts that are legal and fit, best first."""
    from hysweep.cli.layouts import layouts as answer

    sys.exit(answer(list(overrides), [Path(d) for d in config_dirs], sort, top, any_nodes, sweep, as_json))


@hysweep.group(
    cls=Verbs, epilog="Example: hysweep data convert questions.csv -o data/train.parquet --prompt question ..."
)
def data() -> None:
    """Make files that verl reads, of known sets or of your own, and look at them before a job does."""


@data.command(epilog="Example: hysweep data prepare dapo_math_17k -o data")
@click.argument("name", required=False)
@click.option("--from", "source", metavar="SRC", help="A local copy of it: a directory or a file. Else from the hub.")
@click.option("-o", "--output", type=Place(path_type=Path, file_okay=False), metavar="DIR",
              help="Where its files go; else $DATA_DIR, else data.")  # fmt: skip
@click.option("--keep-repeats", is_flag=True, help="Rows that the set repeats stay.")
@click.option("--force", is_flag=True, help="Write over files that are there.")
@JSON
def prepare(
    name: str | None, source: str | None, output: Path | None, keep_repeats: bool, force: bool, as_json: bool
) -> None:
    """Make the files of a known set (without a NAME: list them), as the data= options expect them."""
    from hysweep.cli.data import prepare as answer

    if name is None:
        _refuse_beside("prepare without a NAME", "as_json")
    sys.exit(answer(name, source, output, keep_repeats, force, as_json))


@data.command(
    epilog="Example: hysweep data convert 'shards/*.arrow' -o data/train.parquet --prompt '{question} Think first.' "
    "--answer solution --data-source my/math"
)
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.option("-o", "--output", required=True, type=Place(path_type=Path), metavar="FILE", help="FILE.parquet")
@click.option("--prompt", metavar="COLUMN", help="A column of text or chat messages; or a text with {column} in it.")
@click.option("--answer", metavar="COLUMN", help="The ground truth: a column, or a text with {column} in it.")
@click.option("--answer-regex", metavar="RE", help="What of the answer counts: its first group.")
@click.option("--boxed", is_flag=True, default=None, help="Of the answer what stands in its last \\boxed{}.")
@click.option("--system", metavar="TEXT", help="A system message before each prompt.")
@click.option("--data-source", metavar="TEXT", help="What the reward is chosen by; {column} is filled in.")
@click.option("--ability", metavar="TEXT", help="A label; {column} is filled in.")
@click.option("--extra", metavar="COLUMN,...", help="Columns to keep in extra_info.")
@click.option("--mapping", type=Place(path_type=Path), metavar="FILE", help="A YAML file of the same; flags win.")
@click.option("--split", metavar="NAME", help="Which split, of a set that has several.")
@click.option("--config", metavar="NAME", help="Which configuration, of a set of a hub that has several.")
@click.option("--unique", is_flag=True, help="Leave out rows whose prompt was there before.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The first N rows alone.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Cores to use; else all.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@JSON
def convert(
    sources: tuple[str, ...],
    output: Path,
    mapping: Path | None,
    split: str | None,
    config: str | None,
    unique: bool,
    limit: int | None,
    workers: int | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Make one parquet file for verl of any set: Arrow, JSON, JSONL, CSV, parquet; files, patterns, hub ids."""
    from hysweep.cli.data import convert as answer

    asked = {name: value for name, value in given.items() if value is not None}
    if "extra" in asked:
        asked["extra"] = tuple(asked["extra"].split(","))
    sys.exit(answer(sources, output, asked, mapping, split, config, unique, limit, workers, force, as_json))


@data.command(
    "check", epilog="Example: hysweep data check data/train.parquet --val data/test.parquet trainer=hy3 model=hy3"
)
@click.argument("words", metavar="[FILE...] [OVERRIDES...]", nargs=-1)
@click.option("--val", multiple=True, metavar="FILE", help="A file to validate with; again.")
@click.option("--no-tokenizer", is_flag=True, help="Do not count tokens, which takes longest.")
@CONFIG_DIR
@JSON
def check_data(
    words: tuple[str, ...], val: tuple[str, ...], no_tokenizer: bool, config_dirs: tuple[str, ...], as_json: bool
) -> None:
    """Look at every row of files to train on, for the trial that the overrides describe (its files without a FILE)."""
    from hysweep.cli.data import check as answer

    sys.exit(answer(words, val, no_tokenizer, [Path(d) for d in config_dirs], as_json))


@hysweep.group(cls=Verbs, epilog="Example: hysweep reward try math data/train.parquet")
def reward() -> None:
    """Look at what scores answers, before it scores a trial's."""


@reward.command(
    "try", epilog="Example: hysweep reward try my_reward.py:score data/train.parquet --answers answers.jsonl"
)
@click.argument("name", metavar="REWARD")
@click.argument("file", type=Place(path_type=Path))
@click.option(
    "--n", default=20, show_default=True, type=click.IntRange(1), metavar="N", help="Rows, from all over FILE."
)
@click.option("--answers", type=Place(path_type=Path), metavar="FILE",
              help="A line a row: text, or JSON with row and answer; these rows are tried. Else made of the "
              "ground truths.")  # fmt: skip
@click.option("--seed", default=0, type=int, metavar="N", help="Of which rows.")
@click.option("--timeout", default=300.0, show_default=True, type=Finite(0, min_open=True),
              metavar="SECONDS", help="Give up where one answer takes longer.")  # fmt: skip
@CONFIG_DIR
@JSON
def try_(
    name: str,
    file: Path,
    n: int,
    answers: Path | None,
    seed: int,
    timeout: float,
    config_dirs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Score answers to rows of FILE: the scores by kind of answer, the time of a row, and what fails.

    REWARD is a ready one (exact_match, math, format, length, code, json_schema), verl (its routing), FILE.py:FUNCTION,
    a URL, or overrides of a trial in quotes, as 'reward=router reward.routes={mine: math}'.
    """
    from hysweep.cli.reward import try_reward

    sys.exit(try_reward(name, file, n, answers, seed, [Path(d) for d in config_dirs], as_json, timeout))


@hysweep.command(epilog="Example: hysweep status outputs/quickstart")
@JSON
@STUDY
def status(directory: Path, as_json: bool) -> None:
    """Show how a study stands."""
    from hysweep.cli.study import status as answer

    answer(directory, as_json)


@hysweep.command(epilog="Example: hysweep watch outputs/quickstart")
@STUDY
@click.option(
    "--every",
    "interval_s",
    type=Finite(0.1, 86400),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often it looks.",
)
def watch(directory: Path, interval_s: float) -> None:
    """Watch a study that others drive: a live table with keys to sort, to open a trial's log, to cancel a trial.

    Without a terminal it prints a line for each change, until nothing is under way any more.
    """
    from hysweep.cli.watch import watch as answer

    sys.exit(answer(directory, interval_s))


@hysweep.command(epilog="Example: hysweep logs outputs/quickstart 3 --follow")
@STUDY
@click.argument("trial", required=False, shell_complete=lambda *a: _trials(*a))
@click.option("--rank", type=click.IntRange(0), metavar="N", help="What that node and its Ray said, not the trainer.")
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows, over retries, until the trial ends.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Of that attempt; else of the newest.")
def logs(directory: Path, trial: str | None, rank: int | None, follow: bool, attempt: int | None) -> None:
    """Print the log of a TRIAL (number or id; not needed where the study has one)."""
    from hysweep.cli.logs import logs as answer

    sys.exit(answer(directory, trial, rank, attempt, follow))


@hysweep.command(epilog="Example: hysweep resume outputs/quickstart study.n_trials=12")
@STUDY
@click.option("--detach", is_flag=True, help="Let it drive itself: a small SLURM job, or a process of this machine.")
@click.option("--as-job", is_flag=True, hidden=True)  # what --detach submits says so
@OVERRIDES
def resume(directory: Path, overrides: tuple[str, ...], detach: bool, as_job: bool) -> None:
    """Go on with a study: adopt its running jobs, ask for what is missing. Ends a pause."""
    from hysweep.cli.study import resume as answer

    sys.exit(answer(directory, list(overrides), detach, as_job))


@hysweep.command(epilog="Example: */5 * * * * hysweep tick /shared/outputs/quickstart        (a line of a crontab)")
@JSON
@STUDY
def tick(directory: Path, as_json: bool) -> None:
    """Do one step of a study and leave: look at its jobs, ingest, ask, submit. Again is harmless."""
    from hysweep.cli.steer import tick as answer

    sys.exit(answer(directory, as_json))


@hysweep.command(epilog="Example: hysweep pause outputs/quickstart")
@STUDY
def pause(directory: Path) -> None:
    """Submit nothing new and hold what waits in the queue, until `resume`. What runs goes on."""
    from hysweep.cli.steer import pause as answer

    sys.exit(answer(directory))


@hysweep.command(epilog="Example: hysweep cancel outputs/quickstart 3")
@STUDY
@click.argument("trials", nargs=-1)
def cancel(directory: Path, trials: tuple[str, ...]) -> None:
    """Stop a study, or some of its TRIALS (numbers or ids), running and queued."""
    from hysweep.cli.study import cancel as answer

    sys.exit(answer(directory, list(trials)))


@hysweep.command(epilog="Example: hysweep rebuild outputs/quickstart")
@JSON
@STUDY
def rebuild(directory: Path, as_json: bool) -> None:
    """Make Optuna's study again from the trial directories, and states that were damaged. Runs nothing."""
    from hysweep.cli.steer import rebuild as answer

    sys.exit(answer(directory, as_json))


@hysweep.command(epilog="Example: hysweep report outputs/quickstart")
@JSON
@STUDY
def report(directory: Path, as_json: bool) -> None:
    """Write report.html into the study's directory, now or while it runs.

    Of a study of layouts it also says how well their ranking predicted what was measured.
    """
    from hysweep.cli.study import report as answer

    answer(directory, as_json)


@hysweep.command(epilog="Example: hysweep export outputs/quickstart --format parquet")
@STUDY
@click.option(
    "--format",
    "format_",
    type=click.Choice(["csv", "parquet", "json"]),
    default="csv",
    show_default=True,
    help="Of the files.",
)
@click.option(
    "-o",
    "--output",
    type=Place(path_type=Path, file_okay=False),
    metavar="TARGET",
    help="Where to; else DIR/export.",
)
@JSON
def export(directory: Path, format_: str, output: Path | None, as_json: bool) -> None:
    """Write trials, metrics and ledger of a study as tables for other programs. docs/export.md has every column."""
    from hysweep.cli.export import export as answer

    answer(directory, format_, output, as_json)


@hysweep.group("wandb", cls=Verbs, epilog="Example: hysweep wandb sync outputs/quickstart")
def wandb_() -> None:
    """Weights & Biases: send what was written offline, build a report there."""


@wandb_.command(epilog="Example: hysweep wandb sync outputs/quickstart --dry-run")
@STUDY
@click.option("--dry-run", is_flag=True, help="Say what would be sent; asks nobody.")
@JSON
def sync(directory: Path, dry_run: bool, as_json: bool) -> None:
    """Send each trial that has ended as one run, its attempts merged, and the study as a run of its own.

    What arrived is compared with what was sent. A second time sends what is new.
    """
    from hysweep.cli.wandb import sync_study as answer

    sys.exit(answer(directory, dry_run, as_json))


@wandb_.command("report", epilog="Example: hysweep wandb report outputs/quickstart")
@STUDY
@click.option("--offline", is_flag=True, help="Write it as JSON into the study's directory instead.")
@JSON
def wandb_report(directory: Path, offline: bool, as_json: bool) -> None:
    """Save a report of a study at W&B: leaderboard, curves, search, failures. Again changes the same report."""
    from hysweep.cli.wandb import report as answer

    sys.exit(answer(directory, offline, as_json))


@hysweep.command(epilog="Example: hysweep explain cuda_oom")
@click.argument("cause", required=False, metavar="[CAUSE]", shell_complete=lambda *a: _causes(*a))
def explain(cause: str | None) -> None:
    """Say what a cause of failure means, where to look and what to do; without CAUSE, which there are."""
    from hysweep.cli.explain import explain as answer

    answer(cause)


@hysweep.command("import", epilog="Example: hysweep import run_grpo.sh -o conf/experiment/my_grpo.yaml")
@click.argument("file", metavar="FILE", type=Place())
@click.option("-o", "--output", type=Place(path_type=Path, dir_okay=False), help="Where to; stdout without it.")
@click.option("--verl", default="0.9.1", show_default=True, metavar="VERSION", help="The verl that is to run it.")
@SET
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@JSON
def import_(file: str, output: Path | None, verl: str, given: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Make an experiment of a launch script of verl, or of a command line on stdin (-). Nothing of it is run.

    The report says what became of each override, and where verl's configuration comes out otherwise. #SBATCH lines
    become fields of the cluster; of a script that starts no trainer, or with -o DIR/cluster/NAME.yaml, a profile alone.
    """
    from hysweep.cli.importing import import_ as answer

    sys.exit(answer(file, output, verl, given, force, as_json))


@hysweep.command(
    epilog="Example: hysweep doctor; hysweep doctor --cluster slurm_h100 --constraint h100 --constraint a100"
)
@click.option(
    "--cluster", "option", is_flag=False, flag_value="", metavar="[OPTION]", help="Ask the nodes, by a short job."
)
@click.option(
    "--constraint", "constraints", multiple=True, metavar="FEATURE", help="A job on nodes that have it; again."
)
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="So many a job; else the trial's, at most two.")
@click.option(
    "--within",
    default=300.0,
    show_default=True,
    type=Finite(0),
    metavar="SECONDS",
    help="So long a job may take to end.",
)
@click.option("--setup", "setup_directory", type=Place(path_type=Path), metavar="DIR", help="What `setup` fetched.")
@JSON
@CONFIG_DIR
@OVERRIDES
def doctor(
    overrides: tuple[str, ...],
    option: str | None,
    constraints: tuple[str, ...],
    nodes: int | None,
    within: float,
    setup_directory: Path | None,
    as_json: bool,
    config_dirs: tuple[str, ...],
) -> None:
    """Say what this machine has and lacks, each with the cure; or a cluster's nodes, or what `setup` fetched."""
    from hysweep.cli.doctor import doctor as answer
    from hysweep.cli.doctor import doctor_of_cluster, doctor_of_setup

    if setup_directory is not None:
        _refuse_beside("--setup", "setup_directory", "as_json")
        sys.exit(doctor_of_setup(setup_directory, as_json))
    if option is not None:
        words = [*([option] if "=" in option else [f"cluster={option}"] if option else []), *overrides]
        dirs = [Path(d) for d in config_dirs]
        sys.exit(doctor_of_cluster(words, dirs, list(constraints), nodes, within, as_json))
    _refuse_beside("doctor without --cluster", "as_json")
    sys.exit(answer(as_json))


@hysweep.command(epilog="Example: hysweep setup /shared/verl --mirror verl=/mirrors/verl.git")
@click.argument("directory", metavar="DIR", type=Place(path_type=Path))
@click.option("--verl", default="0.9.1", show_default=True, metavar="VERSION", help="A version, tag or commit.")
@click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="NAME=REPOSITORY",
    help="Fetch NAME from this directory or URL; again.",
)
@click.option("--released", is_flag=True, help="Wheels of the package index instead, with pip.")
@click.option("--dry-run", is_flag=True, help="Say what would be fetched.")
@JSON
def setup(directory: Path, verl: str, mirrors: tuple[str, ...], released: bool, dry_run: bool, as_json: bool) -> None:
    """Fetch verl, Megatron-Bridge and TransferQueue at the versions that fit, into DIR that all nodes see.

    What is there already stays. DIR/runtime_env.yaml says how trials use it.
    """
    from hysweep.cli.setup import setup as answer

    sys.exit(answer(directory, verl, mirrors, released, dry_run, as_json))


@hysweep.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog='Example: hysweep cluster up && eval "$(hysweep cluster env)" && sinfo',
)
@click.option("--run", "run_directory", type=Place(path_type=Path, file_okay=False), metavar="DIR",
              help="Where it lives; else $HYSWEEP_TESTCLUSTER, else ~/.local/state/hysweep/testcluster.")  # fmt: skip
@click.argument("verb")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def cluster(verb: str, words: tuple[str, ...], run_directory: Path | None) -> None:
    """A real SLURM cluster on this machine, with fake GPUs, to try sweeps on. Debian or Ubuntu, as root.

    \b
    install             bring the packages that are missing
    up [N], down        start it with N nodes (4); stop it, nothing is left
    env                 shell lines that make sbatch, squeue, ... the cluster's
    status              nodes and jobs
    exec CMD            run CMD in the controller's network
    on nodeK CMD        run CMD on a node
    kill-node, start-node nodeK
    stop-controller, start-controller, restart-controller
    stop-accounting, start-accounting
    help                all of it, and what the environment sets
    """
    from hysweep.cli.cluster import cluster as hand_over

    hand_over(verb, list(words), run_directory)


@hysweep.command(epilog='Example: eval "$(hysweep completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: verbs, keys, options and values."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    if shell == "bash":
        click.echo("COMP_WORDBREAKS=${COMP_WORDBREAKS//=}  # so that algorithm=<TAB> is one word")
    click.echo(found(hysweep, {}, "hysweep", "_HYSWEEP_COMPLETE").source())


def main() -> None:
    """The entry point: one clear error instead of a traceback, for whatever a person can mend."""
    from hysweep.cli.say import say
    from hysweep.schema.problem import BadInput

    for stream in (sys.stdout, sys.stderr):  # what a terminal or a file cannot show is a ?, not the end of the verb
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    try:
        hysweep(prog_name="hysweep", standalone_mode=False)
    except BadInput as e:
        for problem in e.problems:
            say(f"hysweep: {_as_typed(problem)}", err=True)
        sys.exit(2)
    except click.UsageError as e:
        e.show()
        sys.exit(2)
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
        sys.exit(130)
    except OSError as e:
        # a full disk, a directory that went away: nothing that a traceback explains; jobs go on without us
        place = e.filename2 or e.filename or ("the current directory" if isinstance(e, FileNotFoundError) else "")
        said = ": ".join(filter(None, [str(place), e.strerror])) if e.strerror else str(e)
        say(f"hysweep: {said}; mend it and say it again", err=True)
        sys.exit(2)


def _as_typed(problem: Problem) -> Problem:
    """With the key that is on the command line."""
    if not any("hydra.launcher." in word for word in sys.argv):
        return problem
    from hysweep.compose.launcher_settings import as_typed

    return as_typed(problem, sys.argv)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys, and after = the options or values of one."""
    from hysweep.cli.complete import complete

    return complete(incomplete)


def _studies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    found = [str(p.parent) for p in Path("outputs").glob("*/study.yaml")]
    return [CompletionItem(p) for p in found if p.startswith(incomplete)] or [CompletionItem(incomplete, type="dir")]


def _causes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from hysweep.report.explaining import EXPLAINED

    return [cause for cause in EXPLAINED if cause.startswith(incomplete)]


def _trials(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from hysweep.track import StudyDirectory

    found = StudyDirectory(Path(ctx.params.get("directory") or ".")).trials()
    return [str(t.number) for t in found if str(t.number).startswith(incomplete)]
