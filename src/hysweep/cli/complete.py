"""Completion of overrides: keys first, after `=` the options of a group or the values that a field can have."""

from __future__ import annotations

from hysweep.compose import Composer
from hysweep.compose.composer import all_leaves


def complete(incomplete: str) -> list[str]:
    words = Composer().words
    key, equals, value = incomplete.partition("=")
    if not equals:
        names = [f"{name}=" for name in (*words.groups, *words.fields) if name.startswith(key)]
        if len(names) > 1 and "." not in key:  # groups first: a screen of a hundred fields helps nobody
            heads = {f"{name.partition('.')[0]}." for name in words.fields if name.startswith(key)}
            return sorted({f"{g}=" for g in words.groups if g.startswith(key)} | heads)
        return names
    leaf = next((leaf for leaf in all_leaves() if leaf.path == key), None)
    options = words.groups.get(key) or [str(c) for c in (leaf.knob.choices if leaf else ())]
    if words.fields.get(key) is bool:
        options = ["true", "false"]
    return [f"{key}={option}" for option in options if option.startswith(value)]
