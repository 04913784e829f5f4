"""`hysweep reward try`: a reward over rows of a file, before a GPU is held."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from hysweep.check.rewards import beside, function_problems, on_path
from hysweep.cli.data import need_pyarrow
from hysweep.cli.say import cell, console_for, say
from hysweep.report.words import clean
from hysweep.rewards import encode
from hysweep.schema import BadInput, Problem

SHOWN = 5  # rows that are named


@dataclass(frozen=True, slots=True)
class Tried:
    """One answer to one row. `score` is None: the reward raised, gave no finite number, or was not done in
    time (`is_hung`); `said` is why."""

    row: int
    data_source: str
    answer: str
    kind: str
    score: float | None
    parts: dict[str, Any]
    ms: float
    said: str = ""
    is_hung: bool = False


def try_reward(
    reward: str,
    file: Path,
    n: int,
    answers: Path | None,
    seed: int,
    config_dirs: Sequence[Path],
    as_json: bool,
    timeout_s: float,
) -> int:
    need_pyarrow()
    call = _call_of(reward, config_dirs)
    given = _answers(answers) if answers is not None else {}
    rows, total = _rows(file, n, seed, given if answers is not None else None)
    if beyond := sorted(row for row in given if not 0 <= row < total):
        why = f"answers rows that {file} does not have: {_some(beyond[:SHOWN], len(beyond))}"
        raise BadInput(Problem("--answers", answers, why, f"its rows are 0 to {total - 1}"))
    if answers is not None and not given:
        raise BadInput(Problem("--answers", answers, "has no line", 'give lines, as {"row": 0, "answer": "42"}'))
    with _left_at_once(), redirect_stdout(sys.stderr):  # what a reward prints is no answer of ours
        _import(call)
        loop = asyncio.new_event_loop()
        try:
            tried = loop.run_until_complete(_all(call, rows, given, timeout_s))
        finally:
            loop.close()  # does not wait for threads
    bad = [t for t in tried if t.score is None]
    differ = _differ(tried)
    if as_json:
        told = {"tried": [asdict(t) for t in tried], "failed": len(bad), "metrics_differ": differ}
        if answers is not None:
            told |= {"rows_without_answer": total - len(given), "answers_not_tried": len(given) - len(rows)}
        # what is no number is null
        whole = json.loads(json.dumps(told, default=str), parse_constant=lambda _: None)
        say(json.dumps(whole, indent=1))
    else:
        _print(tried)
        for t in bad[:3]:
            say(f"row {t.row} ({clean(t.data_source, 60)}), {t.kind}: {t.said}")
        if len(given) > len(rows):
            say(f"{len(rows)} of {len(given)} answers were tried: --n {len(given)} tries all")
        if given and len(given) < total:
            bare = total - len(given)
            first = islice((row for row in range(total) if row not in given), SHOWN)
            say(f"{bare} of {total} rows have no answer, and were not tried: {_some(first, bare)}")
        if differ:
            say(f"{differ}: verl looks for the metrics of a batch's first row in all; {_cure(tried)}")
        say(
            f"{len(tried)} answers to {len(rows)} rows: " + (f"{len(bad)} could not be scored" if bad else "all scored")
        )
    code = 1 if bad or differ else 0
    if any(t.is_hung for t in tried):  # its thread would be waited for
        sys.stdout.flush()
        os._exit(code)
    return code


@contextmanager
def _left_at_once() -> Iterator[None]:
    """Ctrl-C does not wait for a reward that does not come back."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _differ(tried: Sequence[Tried]) -> str:
    """Which metrics some scores have and others not; empty where all have the same."""
    names = [{str(name) for name in t.parts} for t in tried if t.score is not None]
    some = {name for have in names for name in have if not all(name in other for other in names)}
    return f"only some answers have {', '.join(sorted(some))}" if some else ""


def _cure(tried: Sequence[Tried]) -> str:
    """What makes all metrics the same: where data sources differ, one of them may have a reward that cannot be told."""
    of: dict[str, set[str]] = {}
    for t in tried:
        if t.score is not None:
            of.setdefault(t.data_source, set()).update(map(str, t.parts))
    for name in sorted(set().union(*of.values())):
        if bare := [source for source, names in of.items() if name not in names]:
            rows = ", ".join(clean(source, 60) for source in bare[:SHOWN])
            return f"leave {name} out of the function that names it, or route {rows} through one that names it too"
    return "name the same for each"


def _call_of(reward: str, config_dirs: Sequence[Path]) -> dict[str, Any]:
    """The router's arguments: for a ready reward, a function, a URL, or an override that names a reward."""
    if "=" in reward and not reward.startswith(("http://", "https://")):
        from hysweep.compile import trainer_values
        from hysweep.compose import Composer

        words = re.split(r"\s+(?=[\w.+~@/]+=)", reward.strip())  # a value may have spaces in it
        trial = Composer(config_dirs).compose(words).trial
        if trial.reward.servers and trial.reward.routes:
            why = "are started with a trial alone"
            raise BadInput(
                Problem("reward.servers", ", ".join(trial.reward.servers), why, "start one, and try its URL")
            )
        sys.path[:0] = [p for p in trial.cluster.env.get("PYTHONPATH", "").split(os.pathsep) if p]
        prefix = "reward.custom_reward_function.reward_kwargs."
        call = {k.removeprefix(prefix): v for k, v in trainer_values(trial).items() if k.startswith(prefix)}
        return call or {"routes": json.dumps({"*": "verl"})}
    from hysweep.compile import resolve

    if reward.endswith(".py"):
        reward = f"{reward}:compute_score"
    file, _, name = reward.rpartition(":")
    problems = list(function_problems("REWARD", file, name, is_here=True)) if file.endswith(".py") else []
    if problems:
        raise BadInput(*problems)
    return {"routes": encode({"*": reward}, resolve)}


def _import(call: dict[str, Any]) -> None:
    """Its functions are imported as in the trainer, before any row. Raises BadInput."""
    from hysweep.rewards import router

    try:
        router.load_all(**call)
    except router.NoImport as e:
        file = e.reward.rpartition(":")[0].removeprefix("file://")
        is_neighbour = file.endswith(".py") and e.missing and beside(Path(file), e.missing)
        cure = on_path(Path(file).parent) if is_neighbour else "mend it, or install what it imports"
        raise BadInput(Problem("REWARD", e.reward, f"cannot be imported: {e}", cure)) from e


def _some(first: Iterable[int], count: int) -> str:
    return ", ".join(map(str, first)) + (f" and {count - SHOWN} more" if count > SHOWN else "")


def _rows(file: Path, n: int, seed: int, among: Collection[int] | None) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """So many rows from all over the file, or from those `among` it, each with its number; and how many it has."""
    from hysweep.data.check import look, rows_of

    looked = look([str(file)], most_rows=1)
    if looked.problems:
        raise BadInput(*looked.problems)
    rng = random.Random(seed)
    kept: list[tuple[int, dict[str, Any]]] = []
    total = looked_at = 0
    for index, row in enumerate(rows_of([str(file)])):  # a reservoir: the file may be larger than memory
        total += 1
        if among is not None and index not in among:
            continue
        looked_at += 1
        if len(kept) < n:
            kept.append((index, row))
        elif (at := rng.randrange(looked_at)) < n:
            kept[at] = (index, row)
    return sorted(kept, key=lambda pair: pair[0]), total


def _answers(file: Path) -> dict[int, str]:
    """By row: a line of text, or of JSON with answer (or response, output) and, if not in order, row (or index)."""
    found: dict[int, str] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as e:
        raise BadInput(Problem("--answers", file, e.strerror or str(e), "give a file of lines")) from e
    except UnicodeError as e:
        raise BadInput(Problem("--answers", file, f"is no UTF-8: {e}", "save it as UTF-8")) from e
    for number, line in enumerate(lines):
        try:
            told = json.loads(line)
        except ValueError:
            told = line
        if isinstance(told, dict):
            text = next((told[k] for k in ("answer", "response", "output") if k in told), None)
            if text is None:
                raise BadInput(Problem("--answers", f"line {number + 1}", "has no answer", 'as {"answer": "42"}'))
            row = next((told[k] for k in ("row", "index") if k in told), number)
            if not isinstance(row, int) or isinstance(row, bool):
                why = f"line {number + 1}: its row is no number"
                raise BadInput(Problem("--answers", row, why, 'as {"row": 0, "answer": "42"}'))
        else:
            row, text = number, line
        if row in found:
            why = f"line {number + 1}: row {row} has an answer already"
            raise BadInput(Problem("--answers", file, why, "give one a row; more of them in files of their own"))
        found[row] = str(text)
    return found


def _samples(rows: Sequence[tuple[int, dict[str, Any]]], at: int, given: dict[int, str]) -> Iterator[tuple[str, str]]:
    """What a row is answered with: what is given; else what should score high, and what should not."""
    index, row = rows[at]
    if given:
        if index in given:
            yield "given", given[index]
        return
    truth = row["reward_model"]["ground_truth"]
    text = truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
    others = (r["reward_model"]["ground_truth"] for _, r in (*rows[at + 1 :], *rows[:at]))
    yield "the truth", text
    yield "boxed truth", f"So the answer is \\boxed{{{text}}}."
    yield "#### truth", f"So it is.\n#### {text}"
    yield "Answer: truth", f"So it is.\nAnswer: {text}"
    other = next((o for o in others if o != truth), None)  # of rows that ask for the same none is wrong
    if other is not None:
        yield "another row's", f"Answer: \\boxed{{{other if isinstance(other, str) else json.dumps(other)}}}"
    yield "nothing", ""


async def _all(
    call: dict[str, Any], rows: Sequence[tuple[int, dict[str, Any]]], given: dict[int, str], timeout_s: float
) -> list[Tried]:
    """Every answer's score; none after one that took longer than it may."""
    from hysweep.rewards import router

    tried = []
    for at, (index, row) in enumerate(rows):
        for kind, answer in _samples(rows, at, given):
            began = time.perf_counter()
            said, score, parts, is_hung = "", None, {}, False
            try:
                scored = router.compute_score(
                    row["data_source"], answer, row["reward_model"]["ground_truth"], row.get("extra_info"), **call
                )
                parts = await asyncio.wait_for(scored, timeout_s)
                score = parts["score"]
            except TimeoutError:
                said, is_hung = f"not scored within {timeout_s:g} s; the others were not tried", True
            except router.RewardError as e:
                said = str(e)
            took = (time.perf_counter() - began) * 1000
            tried.append(Tried(index, row["data_source"], answer, kind, score, parts, round(took, 3), said, is_hung))
            if is_hung:
                return tried
    await router.close()
    return tried


def _print(tried: Sequence[Tried]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("data_source", "answered with", "rows", "mean", "lowest", "highest", "ms a row", "failed"):
        table.add_column(head, justify="left" if head in ("data_source", "answered with") else "right")
    groups: dict[tuple[str, str], list[Tried]] = {}
    for t in tried:
        groups.setdefault((t.data_source, t.kind), []).append(t)
    for (source, kind), some in groups.items():
        scores = [t.score for t in some if t.score is not None]
        told = [f"{sum(scores) / len(scores):.3f}", f"{min(scores):g}", f"{max(scores):g}"] if scores else ["", "", ""]
        failed = sum(t.score is None for t in some)
        ms = median(t.ms for t in some)  # the first waits for what is imported
        table.add_row(cell(clean(source, 60)), kind, str(len(some)), *told, f"{ms:.2f}", str(failed) if failed else "")
    console_for().print(table)
