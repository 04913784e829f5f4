"""`hysweep data`: sets become files that verl reads, and files are looked at before a job reads them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hysweep.cli.say import cell, console_for, say
from hysweep.schema import BadInput, Problem, Severity

SUFFIXES = (".parquet", ".json", ".jsonl", ".csv", ".arrow")  # of files, so of no directory

Watch = Any  # (bytes behind, rows)


def need_pyarrow() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise BadInput(Problem("data", "pyarrow", "is not installed here", "pip install 'hysweep[data]'"))


@contextmanager
def watched(what: str, total: int, unit: str = "rows") -> Iterator[Watch]:
    """A bar by bytes with rows beside it, on a terminal; elsewhere a line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        beside = TextColumn("{task.fields[rows]}")
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), beside, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=total or None, rows="")
            yield lambda seen, rows: progress.update(task, completed=seen, rows=f"{rows:,} {unit}")
        return
    began = told = time.monotonic()

    def tell(seen: int, rows: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > 15:
            told = now
            share = f"{100 * seen / total:.0f} %, " if total else ""
            say(f"{what}: {share}{rows:,} {unit} in {now - began:.0f} s", err=True)

    yield tell


def convert(
    sources: Sequence[str],
    out: Path,
    given: dict[str, Any],
    mapping: Path | None,
    split: str | None,
    config: str | None,
    is_unique: bool,
    limit: int | None,
    workers: int | None,
    force: bool,
    as_json: bool,
) -> int:
    need_pyarrow()
    from hysweep.data.columns import Recipe, read_recipe
    from hysweep.data.convert import convert as make
    from hysweep.data.sources import find

    recipe = read_recipe(mapping, given) if mapping is not None else Recipe(**given)
    total = sum(source.size for source in find(sources, split, config))
    with watched(str(out), total) as watch:
        done = make(sources, out, recipe, split=split, config=config, is_unique=is_unique, limit=limit,
                    workers=workers, force=force, watch=watch)  # fmt: skip
    say(json.dumps(done.as_dict(), indent=1) if as_json else str(done))
    return 0


def prepare(
    name: str | None, source: str | None, out: Path | None, keeps_repeats: bool, force: bool, as_json: bool
) -> int:
    need_pyarrow()
    from hysweep.data.sets import SETS
    from hysweep.data.sets import prepare as make

    if name is None:
        rows = [
            {"name": s.name, "hub": s.hub, "files": list(s.files.values()), "about": s.about} for s in SETS.values()
        ]
        if as_json:
            say(json.dumps(rows, indent=1))
        else:
            for row in rows:
                say(f"{row['name']:<14} {row['hub']:<38} {row['about']}")
        return 0
    where = out or Path(os.environ.get("DATA_DIR", "data"))
    if where.suffix in SUFFIXES and not where.is_dir():
        files = ", ".join(SETS[name].files.values()) if name in SETS else "its files"
        why = f"is the name of a file, and a set has files of its own names: {files}"
        raise BadInput(Problem("-o", where, why, f"name a directory for them, as -o {where.with_suffix('')}"))
    with watched(name, 0) as watch:
        done = make(name, where, source, keeps_repeats, force, watch)
    if as_json:
        say(json.dumps([d.as_dict() for d in done], indent=1))
    else:
        for d in done:
            say(str(d))
    return 0


def check(
    words: Sequence[str], val: Sequence[str], no_tokenizer: bool, config_dirs: Sequence[Path], as_json: bool
) -> int:
    """Words are files, or overrides of the trial that the files are for; without files, those of that trial."""
    need_pyarrow()
    from hysweep.check.data import wants_of
    from hysweep.compile import expand
    from hysweep.compose import Composer
    from hysweep.data.check import Wants, look
    from hysweep.data.sources import find

    overrides = [w for w in words if "=" in w and not Path(w).exists()]
    files = [w for w in words if w not in overrides]
    wants, train = Wants(), files
    if overrides or not files:
        trial = Composer(config_dirs).compose(overrides).trial
        if not files:
            train, val = expand(trial.data.train_files), [*val] or expand(trial.data.val_files)
        if not no_tokenizer and trial.model.path.startswith("embedded:"):
            _build_tiny_model()
        wants = wants_of(trial, with_tokenizer=not no_tokenizer)
    total = 0
    for name in (*train, *val):
        try:
            total += sum(source.size for source in find([name]))
        except BadInput:
            continue
    with watched("looking", total) as watch:
        looked = look(train, val, wants, watch=watch)
    unseen = _unseen(wants)
    bad = [p for p in looked.problems if p.severity is Severity.ERROR]
    if as_json:
        say(json.dumps(looked.as_dict() | {"not_looked_at": unseen}, indent=1, default=str))
        return 1 if bad else 0
    _print_files(looked.files, wants.lengths is not None)
    from hysweep.cli.desk import print_problems
    from hysweep.study import Preview

    print_problems([Preview({}, None, "", tuple(looked.problems))])
    if unseen:
        how = "name the trial that the files are for, as in" if wants.knows is None else "leave out"
        what = "model=hy3 trainer.max_prompt_length=2048 reward=rule" if wants.knows is None else "--no-tokenizer"
        say(f"not looked at: {', '.join(unseen)}; {how} {what}")
    say("no problem found" if not looked.problems else f"{len(bad)} to mend" if bad else "it can be trained on")
    return 1 if bad else 0


def _unseen(wants: Any) -> list[str]:
    """What nothing was said of that it takes to look."""
    lengths = [] if wants.lengths else ["whether prompts are too long"]
    trial = ["whether a reward scores them", "whether they are enough for a step"] if wants.knows is None else []
    return lengths + trial


def _build_tiny_model() -> None:
    """The first trial would build it: its tokenizer is needed now."""
    from hysweep.embedded.assets import is_built

    if is_built():
        return
    try:
        from hysweep.embedded.build import build
    except ModuleNotFoundError as e:
        cure = "pip install 'hysweep[cpu]', or give --no-tokenizer"
        raise BadInput(
            Problem("model.path", "embedded:model", f"is not built yet, and that needs {e.name}", cure)
        ) from e
    build(say=partial(say, err=True))


def _print_files(files: Sequence[Any], has_lengths: bool) -> None:
    from rich.table import Table

    from hysweep.data.check import shown

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("file", "for", "rows", "repeated", "data_source"):
        table.add_column(head, justify="right" if head in ("rows", "repeated") else "left", overflow="fold")
    if has_lengths:
        for head in ("p50", "p99", "longest", "too long"):
            table.add_column(head, justify="right")
    for f in files:
        told = [f"{shown(n)} {c:,}" for n, c in f.data_sources.most_common(4)]
        told += [f"and {len(f.data_sources) - 4} more"] if len(f.data_sources) > 4 else []
        spread = f.spread() or {}
        more = [str(spread.get(k, "")) for k in ("p50", "p99", "max")] + [f"{f.longer:,}"] if has_lengths else []
        table.add_row(cell(f.path), f.role, f"{f.rows:,}", f"{f.repeated:,}", cell("\n".join(told)), *more)
    console_for().print(table)
