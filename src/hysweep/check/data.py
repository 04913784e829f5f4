"""The rows of files that this machine sees: looked at shortly before a job, at length by `hysweep data check`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hysweep.compile import expand, model_path
from hysweep.embedded import assets
from hysweep.rewards import knows, names_more, strayed, unscored
from hysweep.schema import BadInput, Problem, Stage, Trial

if TYPE_CHECKING:
    from hysweep.data.check import Wants

GLANCE = 2_000  # rows of each file: some milliseconds
MOST = 64 * 2**20  # bytes of a file that has to be parsed to be looked at


def wants_of(t: Trial, with_tokenizer: bool = False) -> Wants:
    """What the rows must be good for. Raises BadInput where the model has no tokenizer that can be loaded."""
    from hysweep.data.check import Wants, tokenizer_lengths

    return Wants(
        knows=knows(t.reward),
        unscored=partial(unscored, t.reward),
        strayed=partial(strayed, t.reward),
        names_more=names_more(t.reward),
        made_for=assets.RECIPE.data_source if t.reward.function_path == "embedded:reward" else None,
        lengths=tokenizer_lengths(model_path(t.model.path), t.model.trust_remote_code) if with_tokenizer else None,
        max_prompt_length=t.trainer.max_prompt_length,
        drops_longer=t.data.filter_overlong_prompts,
        batch=t.trainer.train_batch_size,
        has_custom_class=t.data.reader != "verl",
    )


def rows_are_sound(t: Trial) -> Iterator[Problem]:
    """A glance at the files that are here: their shape, their first rows, whether they are enough for a
    step, and how many are too long by their words alone."""
    source = assets.RECIPE.data_source
    for key in ("train_files", "val_files"):
        for name in getattr(t.data, key):
            if name.startswith("embedded:") and not knows(t.reward)(source):
                why = f"its data_source, {source}, is none that the reward has a way to score"
                yield Problem(f"data.{key}", name, why, "set reward=tiny_copy, or choose other data", Stage.ROLLOUT)
    if find_spec("pyarrow") is None:
        return
    train, val = (_here(names) for names in (t.data.train_files, t.data.val_files))
    if train or val:
        routes = t.reward.function_path, repr(t.reward.routes), t.reward.model_path
        is_whole = len(train) == len(expand(t.data.train_files))
        batch = t.trainer.train_batch_size if is_whole else 0
        lengths = t.model.path, t.trainer.max_prompt_length, t.data.filter_overlong_prompts
        yield from _glance(train, val, batch, t.data.reader, (*routes, *lengths), _Asks(t))


class _Asks:
    """Carries a trial past the cache, whose key has all of it that matters."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asks)


def _here(names: list[str]) -> tuple[tuple[str, int, int], ...]:
    """The files that are here and quick to look at, each with what says whether it is still the same."""
    found = []
    for name in expand([n for n in names if not n.startswith("embedded:")]):
        path = Path(name)
        if os.path.isfile(name) and (path.suffix == ".parquet" or path.stat().st_size < MOST):
            found.append((name, path.stat().st_mtime_ns, path.stat().st_size))
    return tuple(found)


@lru_cache(maxsize=256)
def _glance(
    train: tuple[tuple[str, int, int], ...],
    val: tuple[tuple[str, int, int], ...],
    batch: int,
    reader: str,
    wishes: tuple[object, ...],
    asks: _Asks,
) -> tuple[Problem, ...]:
    from dataclasses import replace

    from hysweep.data.check import look, word_lengths

    wants = wants_of(asks.trial)
    lengths = word_lengths(model_path(asks.trial.model.path), asks.trial.trainer.max_prompt_length)
    wants = replace(wants, batch=batch or None, lengths=lengths, is_least=True)
    try:
        return tuple(look([n for n, *_ in train], [n for n, *_ in val], wants, GLANCE).problems)
    except BadInput as e:
        return e.problems
