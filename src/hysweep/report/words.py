"""Values as a person reads them: short numbers, durations, labels. The terminal and the page share them."""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hysweep.report.comparing import Mean
from hysweep.schema.spelled import DIRECTIONS

NOTHING = "–"
_BARS = "▁▂▃▄▅▆▇█"
# What people call these knobs in a table; every other key goes by its last part.
_SHORT = {
    "learning_rate": "lr",
    "train_batch_size": "batch",
    "mini_batch_size": "mini",
    "clip_ratio_low": "clip_low",
    "clip_ratio_high": "clip_high",
    "clip_ratio_c": "clip_c",
    "kl_loss_coef": "kl",
    "entropy_coeff": "entropy",
    "temperature": "temp",
    "max_response_length": "response",
    "weight_decay": "decay",
}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")


def clean(text: object, limit: int | None = None) -> str:
    """One line that cannot steer a terminal: control and direction characters gone, white space collapsed."""
    line = " ".join("".join(map(_harmless, str(text))).split())
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def plain(text: str, limit: int) -> str:
    """A line of a log as it stands, without what could steer a terminal: its colours, and its spaces kept."""
    line = "".join(map(_harmless, _ESCAPES.sub("", text.expandtabs())))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _harmless(c: str) -> str:
    if c.isprintable() and not DIRECTIONS.match(c):
        return c
    return " " if unicodedata.category(c) in ("Cc", "Zl", "Zp", "Zs") else ""


def csv_line(cells: Iterable[object]) -> str:
    """A line of a CSV file; a carriage return within a cell, which to Python's csv ends no line, ends none."""
    line = io.StringIO()
    csv.writer(line).writerow(map(_csv_cell, cells))
    return line.getvalue().removesuffix("\r\n") + "\n"


def _csv_cell(of: object) -> object:
    """A spreadsheet takes text that starts like a formula for one; an apostrophe keeps it text."""
    if of is None or isinstance(of, (int, float)):
        return of
    cell = str(of)
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def number(value: float | None) -> str:
    """Four significant digits: 0.2134, 12.35, 1,235, 1.2e-5; an integer as it is."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e6):
        return scientific(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def mean(of: Mean | None) -> str:
    """0.2134, and of several runs how many."""
    if of is None:
        return NOTHING
    return number(of.mean) + (f" (mean of {of.count} runs)" if of.count > 1 else "")


def interval(of: Mean | None) -> str:
    """0.2134 ± 0.012, or of a single run its value."""
    if of is None or of.half_width is None:
        return number(of.mean if of else None)
    return f"{number(of.mean)} ± {number(float(f'{of.half_width:.2g}'))}"


def scientific(value: float) -> str:
    """The short form of a learning rate: 1.2e-3, 3e-7."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def aligned(values: Sequence[float | None]) -> list[str]:
    """The numbers of one column with the same number of decimals, so that they compare at a glance."""
    finite = [abs(v) for v in values if v is not None and math.isfinite(v)]
    largest = max(finite, default=0.0)
    if largest and (largest < 1e-2 or largest >= 1e6):
        return [NOTHING if v is None else f"{v:.2e}" if math.isfinite(v) else str(v) for v in values]
    decimals = max(0, 4 - max(0, math.floor(math.log10(largest)))) if largest else 0
    return [NOTHING if v is None else f"{v:,.{decimals}f}" for v in values]


def counted(count: int, noun: str, of: int | None = None) -> str:
    """1 trial, 2 trials, 2 of 6 trials."""
    if of:
        return f"{count} of {of} {noun}s"
    return f"{count} {noun}{'s' * (count != 1)}"


def share(value: float | None) -> str:
    """Of the best, which is 1.00."""
    return NOTHING if value is None else f"{value:.2f}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number // 10 % 10 == 1 else ending}"


def duration(seconds: float | None) -> str:
    """The two units that matter: 42s, 12m 05s, 3h 07m, 2d 04h."""
    if seconds is None:
        return NOTHING
    s = max(0, round(seconds))
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m {s % 60:02}s"
    if s < 86400:
        return f"{s // 3600}h {s % 3600 // 60:02}m"
    return f"{s // 86400}d {s % 86400 // 3600:02}h"


def hours(value: float | None) -> str:
    """GPU-hours, with as many decimals as their size deserves."""
    return aligned_hours([value])[0]


def aligned_hours(values: Sequence[float | None]) -> list[str]:
    """A column of GPU-hours: all with the decimals that its largest deserves."""
    largest = max((v for v in values if v is not None), default=0.0)
    decimals = 0 if largest >= 100 else 1 if largest >= 10 else 2 if largest >= 1 else 3
    return [NOTHING if v is None else f"{v:,.{decimals}f}" for v in values]


def moment(unix: float | None) -> str:
    """Date and minute where the writer of the file sits, with the offset."""
    try:
        at = datetime.fromtimestamp(unix or math.nan).astimezone()
    except (OverflowError, OSError, ValueError):
        return NOTHING
    offset = f"{at:%z}"
    return f"{at:%Y-%m-%d %H:%M} UTC{offset[:3]}:{offset[3:5]}"


def clock(unix: object) -> str:
    """Hour, minute and second of an event; blanks where there is no time."""
    try:
        return f"{datetime.fromtimestamp(float(unix)):%H:%M:%S}"  # type: ignore[arg-type]
    except (TypeError, OverflowError, OSError, ValueError):
        return " " * 8


def metric(name: str) -> str:
    """A metric in a column's head: its last two parts, as in score/mean."""
    return clean("/".join(name.split("/")[-2:]), 24)


def short_keys(keys: Collection[str]) -> dict[str, str]:
    """A short name for each dotted key; those that would clash or say too little keep more of their path."""
    short: dict[str, str] = {}
    for key in keys:
        tail = key.rsplit(".", 1)[-1]
        short[key] = _SHORT.get(tail, tail if len(tail) > 2 or "." not in key else key)
    taken = list(short.values())
    return {key: clean(name if taken.count(name) == 1 else key) for key, name in short.items()}


def is_scientific(key: str, space: Mapping[str, Any] | None = None) -> bool:
    """Whether values of a key are read by their exponent: learning rates and logarithmic ranges."""
    if key.endswith(("learning_rate", ".lr")):
        return True
    return bool(re.match(r"\s*tag\([^)]*\blog\b", str((space or {}).get(key, ""))))


def is_constant(of: str) -> bool:
    """Whether a range of a study has one value."""
    return bool(re.fullmatch(r"choice\([^,()]*\)", of))


def value(key: str, of: Any, space: Mapping[str, Any] | None = None) -> str:
    """One coordinate of a point in its short form."""
    if isinstance(of, bool):
        return "true" if of else "false"
    if of is None:
        return "null"
    if isinstance(of, float):
        return scientific(of) if is_scientific(key, space) and (of < 0.01 or of >= 1000) else number(of)
    if isinstance(of, int):
        return str(of)
    return clean(of, 60)


def coordinate(point: Mapping[str, Any], key: str, space: Mapping[str, Any] | None = None) -> str:
    """`value` of a point that may lack the key."""
    return value(key, point[key], space) if key in point else NOTHING


def label(point: Mapping[str, Any], space: Mapping[str, Any] | None = None) -> str:
    """A point in a few words: ``cispo lr=1.2e-3``. The algorithm needs no key."""
    names = short_keys(point)
    parts = {key: value(key, v, space) for key, v in point.items()}
    return " ".join(text if key == "algorithm" else f"{names[key]}={text}" for key, text in parts.items())


def sparkline(values: Sequence[float], width: int = 12) -> str:
    """A curve in one line of text: the mean of each of `width` parts, lowest to highest; gaps stay blank."""
    parts = min(width, len(values))
    means = [_mean(values[i * len(values) // parts : (i + 1) * len(values) // parts]) for i in range(parts)]
    finite = [m for m in means if math.isfinite(m)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span, top = high - low, len(_BARS) - 1

    def bar(mean: float) -> str:
        if not math.isfinite(mean):
            return " "
        return _BARS[round((mean - low) / span * top)] if 0 < span < math.inf else _BARS[top // 2]

    return "".join(map(bar, means))


def _mean(values: Sequence[float]) -> float:
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else math.nan
