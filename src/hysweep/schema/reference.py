"""docs/reference.md, made of the schema itself: ``python -m hysweep.schema.reference > docs/reference.md``."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from hysweep.schema.groups import Trial
from hysweep.schema.knob import Knob
from hysweep.schema.study import Study

HEAD = """# Every field

Made of the schema by `python -m hysweep.schema.reference`. A field is set by `group.field=value`; a group by
`group=option`, which takes a file of `conf/<group>/`. *Identity* says whether the field belongs to what a trial learns,
and so to its id. Fields without a trainer key are compiled by rule (`src/hysweep/compile/verl.py`).
"""

TABLE = "| field | default | meaning | trainer key | identity |\n|---|---|---|---|---|"


def reference() -> str:
    """The page, a section a group."""
    parts = [HEAD]
    groups: list[tuple[str, Any]] = [(f.name, hint) for f, hint in _fields(Trial) if is_dataclass(hint)]
    for name, group in [*groups, ("study", Study)]:
        about = (group.__doc__ or "").strip().splitlines()
        parts.append(f"## {name}\n")
        if about and not about[0].startswith(f"{group.__name__}("):
            parts.append(about[0] + "\n")
        parts += [TABLE, *_rows(group, f"{name}."), ""]
    parts += ["## of no group\n", TABLE, *(_row(f, f.name) for f, hint in _fields(Trial) if not is_dataclass(hint)), ""]
    return "\n".join(parts)


def _rows(group: Any, prefix: str) -> Iterator[str]:
    for f, hint in _fields(group):
        if is_dataclass(hint):
            yield from _rows(hint, f"{prefix}{f.name}.")
        else:
            yield _row(f, f"{prefix}{f.name}")


def _row(f: Any, path: str) -> str:
    knob: Knob = f.metadata.get("knob", Knob())
    keys = "<br>".join(f"`{key}`" for key in knob.keys)
    return f"| `{path}` | {_default(f)} | {_meaning(knob)} | {keys} | {'yes' if knob.learned else ''} |"


def _meaning(knob: Knob) -> str:
    text = knob.doc.replace("|", "\\|")
    if knob.unit:
        text += f" [{knob.unit}]"
    if knob.choices:
        text += " (" + ", ".join("null" if c is None else str(c) for c in knob.choices) + ")"
    low = [f"at least {knob.low}"] if knob.low is not None else []
    high = [f"at most {knob.high}"] if knob.high is not None else []
    if bounds := low + high:
        text += f" ({' and '.join(bounds)})"
    if knob.when:
        needs = [f"{path} = {' or '.join(map(str, alive))}" for path, alive in knob.when.items()]
        text += f"; only with {' and '.join(needs)}"
    return text


def _default(f: Any) -> str:
    value = f.default_factory() if f.default_factory is not MISSING else f.default
    if value is MISSING:
        return "(of the option)"
    return f"`{'null' if value is None else str(value).lower() if isinstance(value, bool) else value}`"


def _fields(group: Any) -> list[tuple[Any, Any]]:
    """The fields of a dataclass, each with its type."""
    hints = typing.get_type_hints(group)
    return [(f, hints[f.name]) for f in fields(group)]


if __name__ == "__main__":
    print(reference(), end="")
