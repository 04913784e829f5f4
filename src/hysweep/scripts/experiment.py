"""An experiment as a file: the options that it begins with, the fields that differ from them, and what is passed on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from hysweep.schema import Trial, leaves
from hysweep.scripts.fields import get
from hysweep.scripts.scope import MARK


@dataclass(frozen=True, slots=True)
class Experiment:
    """`options` by group, `fields` by path, `verl` by the trainer's key."""

    options: Mapping[str, str]
    fields: Mapping[str, Any]
    verl: Mapping[str, Any]

    def yaml(self, source: str, verl: str) -> str:
        """The file, with a line that says where it comes from."""
        lines = ["# @package _global_", f"# From {source}, by `hysweep import` for verl {verl}.", "defaults:"]
        lines += [f"  - override /{group}: {option}" for group, option in self.options.items()]
        tree: dict[str, Any] = {}
        for path, value in self.fields.items():
            _put(tree, path, value)
        for key, value in self.verl.items():
            _put(tree, f"verl.{key}", value)
        body = OmegaConf.to_yaml(OmegaConf.create(_written(tree))) if tree else ""
        return "\n".join(lines) + "\n" + body


def profile_yaml(fields: Mapping[str, Any], source: str) -> str:
    """A file of conf/cluster/, with a line that says where it comes from."""
    return f"# From {source}, by `hysweep import`.\n" + OmegaConf.to_yaml(OmegaConf.create(_written(dict(fields))))


def differing(trial: Trial, base: Trial) -> Iterator[tuple[str, Any]]:
    """The fields by which a trial differs from what its options make, in the schema's order."""
    for leaf in leaves(trial):
        if leaf.path != "verl" and leaf.value != get(base, leaf.path):
            yield leaf.path, leaf.value


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for part in above:
        tree = tree.setdefault(part, {})
    tree[name] = value


def _written(value: Any) -> Any:
    """Text is text, also where it holds a `${`; a variable of the environment is read when it is composed."""
    if isinstance(value, str):
        return MARK.sub(lambda m: f"${{oc.env:{m[1]}}}", value.replace("${", "\\${"))
    if isinstance(value, list):
        return [_written(v) for v in value]
    if isinstance(value, dict):
        return {k: _written(v) for k, v in value.items()}
    return value
