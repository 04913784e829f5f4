"""How well the cost model's ranking of layouts predicted the measured one: what `hysweep layouts --sweep` asks for.

Nothing is kept for it: the prediction is made again from each frozen trial, by the arithmetic that ranked it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hysweep.compose.composer import MISCOMPOSED, load_trial
from hysweep.report import words
from hysweep.report.records import Standing, StudyRecord, TrialRecord
from hysweep.schema import BadInput, Trial

# The metrics that say how fast a step was, and whether more of them is faster.
SPEEDS = {"perf/throughput": True, "perf/time_per_step": False, "timing_s/step": False}
LEAST = 3  # measured layouts: two are always in the same order, or in the other


@dataclass(frozen=True, slots=True)
class RankedLayout:
    """One layout of a study; what is measured is None where its trial has not completed.

    seconds   of a step, as the cost model has it
    measured  the study's metric
    shares    of the least seconds, and of the best measured
    ranks     among the measured layouts, 1 the fastest; equals share the better one
    """

    trial: TrialRecord
    seconds: float
    seconds_share: float
    measured: float | None
    measured_share: float | None
    predicted_rank: int | None
    measured_rank: int | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """The layouts of a study, the fastest by prediction first.

    spearman  rank correlation of prediction and measurement; None where there is none to tell
    sentence  what came of it
    """

    layouts: tuple[RankedLayout, ...]
    spearman: float | None
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "spearman": self.spearman,
            "measured": sum(layout.measured is not None for layout in self.layouts),
            "sentence": self.sentence,
            "layouts": [
                {
                    "trial": layout.trial.number,
                    "predicted_seconds": layout.seconds,
                    "predicted_share": layout.seconds_share,
                    "measured": layout.measured,
                    "measured_share": layout.measured_share,
                    "predicted_rank": layout.predicted_rank,
                    "measured_rank": layout.measured_rank,
                }
                for layout in self.layouts
            ],
        }


def ranking(record: StudyRecord) -> Ranking | None:
    """Predicted against measured; None for a study that does not compare layouts by a measured speed."""
    if SPEEDS.get(record.metric) is not record.is_maximised:
        return None
    from hysweep.layouts.search import FIELDS  # brings numpy, which other studies do without

    if record.space.keys().isdisjoint({field for field, _ in FIELDS.values()} | {"parallelism"}):
        return None
    compared = list(_compared(record))
    if not compared:
        return None
    layouts = _layouts([(c.trial, c.seconds) for c in compared], record.is_maximised)
    measured = [(layout.seconds, layout.measured) for layout in layouts if layout.measured is not None]
    if len({c.work for c in compared}) > 1:
        return Ranking(layouts, None, "The ranking cannot be judged: its points differ in GPUs or in tokens of a step.")
    if len(measured) < LEAST:
        count = words.counted(len(measured), "layout", len(layouts))
        why = f"of {count} there is a measurement, and it takes {LEAST}"
        return Ranking(layouts, None, f"How well the ranking predicted cannot be judged yet: {why}.")
    by_seconds, by_measured = zip(*measured, strict=True)
    spearman = _spearman(by_seconds, [-v for v in by_measured] if record.is_maximised else by_measured)
    if spearman is None:
        which = "predicted" if len(set(by_seconds)) == 1 else "measured"
        return Ranking(layouts, None, f"The ranking cannot be judged: all {len(measured)} layouts were {which} alike.")
    how = f"The ranking predicted the measured order with Spearman {spearman:.2f} over {len(measured)} layouts"
    return Ranking(layouts, spearman, f"{how}; the predicted best {_outcome(layouts[0], record.is_maximised)}.")


@dataclass(frozen=True, slots=True)
class _Compared:
    """A trial that the cost model is of: its seconds of a step, and the work (GPUs, tokens) that they are for."""

    trial: TrialRecord
    seconds: float
    work: tuple[int, int]


def _compared(record: StudyRecord) -> Iterator[_Compared]:
    from hysweep.layouts.search import predicted_seconds

    for trial in record.trials:
        try:
            frozen = load_trial(trial.directory.config_file.read_text(encoding="utf-8"))
            seconds = predicted_seconds(frozen)
        except (BadInput, OSError, ArithmeticError, *MISCOMPOSED):
            continue  # no GPU, not Megatron's, or a file that cannot be read, which is said elsewhere
        if math.isfinite(seconds) and seconds > 0:
            yield _Compared(trial, seconds, (frozen.world_size, _tokens(frozen)))


def _tokens(t: Trial) -> int:
    """Of a step, at full length."""
    longest = t.trainer.max_prompt_length + t.trainer.max_response_length
    return t.trainer.train_batch_size * t.rollout.n * longest


def _layouts(predicted: Sequence[tuple[TrialRecord, float]], is_more_better: bool) -> tuple[RankedLayout, ...]:
    measured = {trial.number: value for trial, _ in predicted if (value := _measured(trial)) is not None}
    least = min(seconds for _, seconds in predicted)
    best = (max if is_more_better else min)(measured.values(), default=math.nan)
    predicted_ranks = _ranks({trial.number: seconds for trial, seconds in predicted if trial.number in measured})
    measured_ranks = _ranks({number: -value if is_more_better else value for number, value in measured.items()})
    layouts = []
    for trial, seconds in predicted:
        value = measured.get(trial.number)
        share = None if value is None else value / best
        ranks = predicted_ranks.get(trial.number), measured_ranks.get(trial.number)
        layouts.append(RankedLayout(trial, seconds, seconds / least, value, share, *ranks))
    return tuple(sorted(layouts, key=lambda layout: (layout.seconds, layout.trial.number)))


def _measured(trial: TrialRecord) -> float | None:
    """The speed that a completed trial came to; one that is no positive number is none."""
    value = trial.value if trial.standing is Standing.COMPLETED else None
    return value if value is not None and 0 < value < math.inf else None


def _ranks(values: Mapping[int, float]) -> dict[int, int]:
    """1 for the least; equals share the better rank."""
    return {number: 1 + sum(other < value for other in values.values()) for number, value in values.items()}


def _spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Pearson's correlation of ranks, equals sharing the mean of theirs; None where one side is all alike."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [(sum(v < value for v in values) + sum(v <= value for v in values) + 1) / 2 for value in values]

    try:
        return statistics.correlation(ranks(one), ranks(other))
    except statistics.StatisticsError:
        return None


def _outcome(predicted_best: RankedLayout, is_more_better: bool) -> str:
    """What the layout that was predicted the fastest was measured as."""
    share, rank = predicted_best.measured_share, predicted_best.measured_rank
    if share is None or rank is None:
        return f"has no measurement ({predicted_best.trial.word.replace('_', ' ')})"
    if rank == 1:
        return "was measured the best, too"
    slower = 1 - share if is_more_better else share - 1
    percent = f"{slower:.0%}".replace("%", " %") if slower >= 0.01 else "less than 1 %"
    return f"was measured {words.ordinal(rank)}, {percent} slower than the measured best"
