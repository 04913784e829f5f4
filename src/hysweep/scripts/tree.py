"""The whole configuration of a verl under some settings, interpolations resolved: what two command lines come to.

OmegaConf resolves such a tree in half a second; verl's own interpolations are of few kinds, which take a hundredth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from hysweep.compile import TrainerKeys, flatten

OPENS = re.compile(r"(?<!\\)\$\{")
DEEPEST = 20  # interpolations of interpolations


class Unresolved(Exception):
    """An interpolation that leads nowhere, or in a circle, or that is of a kind that verl's defaults do not have."""


def resolved(keys: TrainerKeys, values: Mapping[str, Any]) -> dict[str, Any]:
    """Every key with its value; a `${` in `values` is an interpolation, as in verl's own defaults.

    Raises Unresolved.
    """
    tree: dict[str, Any] = {}
    for key, value in {**keys.defaults, **values}.items():
        _put(tree, key.split("."), value)
    return dict(flatten(_walk(tree, tree, [], 0)))


def literal(value: Any) -> Any:
    """A value that is to be taken as it is."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, list):
        return [literal(v) for v in value]
    if isinstance(value, dict):
        return {k: literal(v) for k, v in value.items()}
    return value


def same(one: Any, other: Any) -> bool:
    """Whether verl makes no difference between two values: 1 and 1.0, but not 1 and true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other) or (one != one and other != other)  # nan


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = tree.get(name)
        if not isinstance(inner, dict):  # as Hydra's + does, also in the place of an interpolation
            inner = tree[name] = {}
        tree = inner
    if value == {} and isinstance(tree.get(path[-1]), dict):
        return  # an empty default beside the keys below it
    tree[path[-1]] = dict(value) if isinstance(value, dict) else value


def _walk(node: Any, root: dict[str, Any], path: list[str], depth: int) -> Any:
    if isinstance(node, dict):
        return {name: _walk(inner, root, [*path, name], depth) for name, inner in node.items()}
    if isinstance(node, list):
        return [_walk(inner, root, path, depth) for inner in node]
    return _text(node, root, path, depth) if isinstance(node, str) and "${" in node else node


def _text(text: str, root: dict[str, Any], path: list[str], depth: int) -> Any:
    if depth > DEEPEST:
        raise Unresolved(text)
    done, at = "", 0
    while found := OPENS.search(text, at):
        end = _closing(text, found.end())
        value = _one(text[found.end() : end], root, path, depth + 1)
        if not done and found.start() == 0 and end + 1 == len(text):
            return value
        done += text[at : found.start()] + ("null" if value is None else str(value))
        at = end + 1
    return (done + text[at:]).replace("\\${", "${")


def _closing(text: str, at: int) -> int:
    depth = 1
    for n in range(at, len(text)):
        depth += (text[n] == "{") - (text[n] == "}")
        if not depth:
            return n
    raise Unresolved(text)


def _one(inside: str, root: dict[str, Any], path: list[str], depth: int) -> Any:
    """`oc.select:key,default`, or a key."""
    kind, colon, rest = inside.partition(":")
    name, comma, default = rest.partition(",")
    found = _find((name if colon else inside).strip(), root, path)
    if kind == "oc.select" and found is None:
        if OPENS.search(default):
            return _text(default.strip(), root, path, depth)
        return _scalar(default) if comma else None
    if found is None or (colon and kind != "oc.select"):
        raise Unresolved(f"${{{inside}}}")
    return _walk(found[0], root, found[1], depth)


def _scalar(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise Unresolved(text) from e


def _find(name: str, root: dict[str, Any], path: list[str]) -> tuple[Any, list[str]] | None:
    """A node and its path. A leading dot is the node beside, two the one above that."""
    dots = len(name) - len(name.lstrip("."))
    full = [*(path[:-dots] if dots else []), *name.lstrip(".").split(".")]
    node: Any = root
    for part in full:
        if not isinstance(node, dict) or part not in node:
            return None
        node = node[part]
    return (node, full) if node != "???" else None
