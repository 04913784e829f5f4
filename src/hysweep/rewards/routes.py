"""What scores a row, by its data_source: read from the configuration, looked up by check and by the router."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

from hysweep.schema import BadInput, Problem, Reward, nearest, suggest

READY = ("exact_match", "math", "format", "length", "code", "json_schema")
PARTS = ("reward", "weight")
OF_A_SCORE = ("score", "acc", "pred")  # metrics that a score has by itself; pred is verl's own
SERVER = "server:"
VERL = "verl"  # verl's own routing

# What verl's own routing scores (verl/utils/reward_score/__init__.py: default_compute_score); the same in all versions.
OF_VERL = frozenset(
    {
        "openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500",
        "math_dapo", "math", "math_dapo_reasoning", "numina_aops_forum", "numina_synthetic_math", "numina_amc_aime",
        "numina_synthetic_amc", "numina_cn_k12", "numina_olympiads", "codecontests", "apps", "codeforces", "taco",
        "hiyouga/geometry3k", "searchR1_nq", "searchR1_triviaqa", "searchR1_popqa", "searchR1_hotpotqa",
        "searchR1_2wikimultihopqa", "searchR1_musique", "searchR1_bamboogle",
    }
)  # fmt: skip

OF_MATH_DAPO = ("math_dapo", "math", "math_dapo_reasoning")  # of these what its scorer answers is a dict


@dataclass(frozen=True, slots=True)
class Term:
    """One reward of a route.

    reward    a ready one, ``file.py:function``, ``pkg.module:function``, a URL, ``server:NAME/path``, or verl
    weight    of it in the sum
    options   what it is called with besides the row
    """

    reward: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """ready, verl, url, server or function."""
        if self.reward in READY:
            return "ready"
        if self.reward == VERL:
            return "verl"
        if self.reward.startswith(("http://", "https://")):
            return "url"
        return "server" if self.reward.startswith(SERVER) else "function"

    def label(self, parts: int = 1) -> str:
        """What its part of the score is called in metrics: the last so many parts of its name."""
        found = [part.removesuffix(".py") for part in re.split(r"[:/]", self.reward) if part]
        return re.sub(r"\W+", "_", "_".join(found[-parts:])).strip("_")


@dataclass(frozen=True, slots=True)
class Route:
    """A data_source, or a pattern of them (``aime*``, ``*``), and what is added up for its rows."""

    pattern: str
    terms: tuple[Term, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """What the parts of the sum are called in metrics: by longer names where two are alike, or a score itself has
        such a metric, then by numbers."""
        short = [term.label() for term in self.terms]
        names = [
            term.label(2) if short.count(name) > 1 or name in OF_A_SCORE else name
            for term, name in zip(self.terms, short, strict=True)
        ]
        before = [names[:i].count(name) for i, name in enumerate(names)]
        return tuple(f"{name}_{n + 1}" if n else name for name, n in zip(names, before, strict=True))


def read_routes(routes: Mapping[str, Any], key: str = "reward.routes") -> tuple[Route, ...]:
    """Routes as they are written: a reward, one with options (`{reward: length, most: 400}`), or a list of these.

    Raises BadInput, all its problems at once.
    """
    problems: list[Problem] = []
    found = []
    for pattern, said in routes.items():
        terms = []
        for one in said if isinstance(said, (list, tuple)) else [said]:
            where = f"{key}.{pattern}"
            if isinstance(one, str):
                one = {"reward": one}
            if not isinstance(one, Mapping) or not isinstance(one.get("reward"), str) or not one["reward"]:
                problems.append(Problem(where, one, "names no reward", "as math, or {reward: math, weight: 0.9}"))
                continue
            weight = one.get("weight", 1.0)
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
                problems.append(Problem(f"{where}.weight", weight, "is no number", "give one"))
                continue
            term = Term(one["reward"], float(weight), {k: v for k, v in one.items() if k not in PARTS})
            if term.kind == "function" and ":" not in term.reward:
                cure = suggest(term.reward, [*READY, VERL]) + "; or file.py:function, or a URL"
                problems.append(Problem(where, term.reward, "is no ready reward, and names no function", cure))
            if term.kind == "url" and not has_host(term.reward):
                problems.append(
                    Problem(where, term.reward, "is no URL with a host", "as http://scores.example:8000/score")
                )
            if term.kind != "function":
                known = options_of(term)
                problems += [Problem(f"{where}.{name}", term.options[name], f"is nothing that {term.reward} reads",
                                     suggest(str(name), known) if known else "leave it out")
                             for name in term.options if name not in known]  # fmt: skip
                problems += _wrong(where, term.options, known)
            terms.append(term)
        if not terms and not problems:
            problems.append(Problem(f"{key}.{pattern}", said, "names no reward", "give one"))
        found.append(Route(str(pattern), tuple(terms)))
    if problems:
        raise BadInput(*problems)
    return tuple(found)


def has_host(url: str) -> bool:
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:
        return False


KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "str": (str,),
}


def options_of(term: Term) -> dict[str, str]:
    """What a reward of hysweep's or verl's own may be given beside the row, each with its type as it is declared."""
    if term.kind != "ready":
        return {}
    from hysweep.rewards import ready

    parameters = signature(getattr(ready, term.reward)).parameters.values()
    return {p.name: str(p.annotation) for p in parameters if p.kind is p.KEYWORD_ONLY}


def _wrong(where: str, options: Mapping[str, Any], known: Mapping[str, str]) -> Iterable[Problem]:
    """Options of a ready reward whose values it could not use."""
    for name, value in options.items():
        kind = known.get(name, "Any")
        if kind == "bool":
            is_right = isinstance(value, bool)
        else:
            is_right = isinstance(value, KINDS.get(kind, (object,))) and not (kind in KINDS and isinstance(value, bool))
        if not is_right:
            yield Problem(f"{where}.{name}", value, f"is of another type than {kind}", f"give {kind}")
        elif name == "regex":
            try:
                re.compile(value)
            except re.error as e:
                yield Problem(f"{where}.{name}", value, f"is no regular expression: {e}", "mend it")


def metrics_of(routes: Iterable[Route]) -> set[str]:
    """What some rows are scored by and others not; verl's own routing names a `pred` for some."""
    names: set[str] = set()
    for route in routes:
        names |= {"pred" for term in route.terms if term.kind == "verl"} | set(
            route.labels if len(route.terms) > 1 else ()
        )
    return names


def route_for(routes: Iterable[Route], data_source: str) -> Route | None:
    """The route of exactly this name, else of the longest pattern that fits: `*` is for what no other takes."""
    fitting = [r for r in routes if r.pattern == data_source or fnmatchcase(data_source, r.pattern)]
    return max(fitting, key=lambda r: (r.pattern == data_source, len(r.pattern)), default=None)


def knows(reward: Reward) -> Callable[[str], bool]:
    """Whether a trial's reward has a way to score rows of a data_source."""
    if reward.routes:
        try:
            routes = read_routes(reward.routes)
        except BadInput:  # a rule of its own says so
            return lambda data_source: True

        def by_route(data_source: str) -> bool:
            route = route_for(routes, data_source)
            if route is None:
                return False
            return not any(term.kind == "verl" for term in route.terms) or scored_by_verl(data_source)

        return by_route
    if reward.function_path is not None or reward.model_path is not None:
        return lambda data_source: True  # it sees each row itself
    return scored_by_verl


UNSCORED = (
    "of a source that the reward has no way to score",
    "route it: reward=router with reward.routes, or set reward.function_path",
)


def unscored(reward: Reward, data_source: str, beside: Iterable[str]) -> tuple[str, str]:
    """Why rows of a data_source that the reward does not know are not scored, and what to do. `beside`: all data
    sources of its file."""
    if not reward.routes:
        return UNSCORED
    routes = read_routes(reward.routes)
    if (route := route_for(routes, data_source)) is not None:
        why = f"go by reward.routes.{route.pattern} to verl, which has no scorer for them"
        return why, "route them to a ready reward or a function"
    taken = [route_for(routes, name) for name in beside]
    idle = [r.pattern for r in routes if r not in taken]
    close = nearest(data_source, idle, 1)
    cure = f"no row goes by reward.routes.{close[0]}: did you mean {data_source!r}?" if close else "add it there"
    return "of a source that no route of reward.routes takes", cure


def strayed(reward: Reward, data_sources: Collection[str]) -> list[tuple[str, str]]:
    """Routes whose name is that of no row, each with the data_source that it seems to mean, which a pattern takes."""
    if not reward.routes:
        return []
    by_pattern = [name for name in data_sources if name not in reward.routes and knows(reward)(name)]
    idle = [r for r in map(str, reward.routes) if not set(r) & set("*?[") and r not in data_sources]
    return [(r, close[0]) for r in idle if (close := get_close_matches(r, by_pattern, 1, 0.8))]


def scored_by_verl(data_source: str) -> bool:
    return data_source in OF_VERL or data_source.startswith("aime")


def names_more(reward: Reward) -> Callable[[str], bool] | None:
    """Whether verl's own routing gives rows of a data_source score, acc and pred, not a number alone. None: the trial's
    reward is another, which is not known to mix them."""
    if reward.routes or reward.function_path is not None or reward.model_path is not None:
        return None
    return lambda data_source: data_source in OF_MATH_DAPO or data_source.startswith("aime")


def servers_of(routes: Iterable[Route]) -> set[str]:
    """The names of the servers that routes ask."""
    rewards = (term.reward for route in routes for term in route.terms if term.kind == "server")
    return {reward.removeprefix(SERVER).partition("/")[0] for reward in rewards}


def encode(routes: Mapping[str, Any], resolve: Callable[[str], str]) -> str:
    """Routes as the text that the router reads, with files as every worker can open them."""
    told = {}
    for route in read_routes(routes):
        terms = []
        for term in route.terms:
            reward = term.reward
            if term.kind == "function":
                file, _, name = reward.rpartition(":")
                reward = f"{resolve(file)}:{name}" if file.endswith(".py") else reward
            options = {
                k: resolve(v) if k.endswith("_file") and isinstance(v, str) else v for k, v in term.options.items()
            }
            terms.append({"reward": reward, "weight": term.weight, **options})
        told[route.pattern] = terms
    return json.dumps(told, sort_keys=True)
