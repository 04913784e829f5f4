"""Settings of a study that are given anew when it goes on. They stay in changes.json, so that whoever drives it next,
from cron or in a job of its own, knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from omegaconf import OmegaConf

from hysweep.schema import Study


def as_plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    """As changes.json holds them."""
    return {k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for k, v in changes.items()}


def later(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes after earlier ones, both plain: of a group, what is not named again stays."""
    both = dict(before)
    for name, value in changes.items():
        is_group = isinstance(value, dict) and isinstance(both.get(name), dict)
        both[name] = both[name] | value if is_group else value
    return both


def changed(study: Study, changes: Mapping[str, Any]) -> Study:
    """A study with other settings; of a group, those that are named."""
    merged = OmegaConf.merge(OmegaConf.structured(study), OmegaConf.create(dict(changes)))
    typed = OmegaConf.to_object(merged)
    return replace(study, **{name: getattr(typed, name) for name in changes})
