"""Stands between verl's reward loop and what scores a row: chooses it by data_source, adds up, and guards.

verl calls `compute_score` as its custom reward function. What raises, or gives no finite number, ends the trial and
shows the row: verl itself would log it and train on with the rest of the group.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hysweep.rewards.endpoint import Endpoint, Limits
from hysweep.rewards.routes import READY, SERVER, VERL, Route, Term, metrics_of, read_routes, route_for

ATTEMPT = "HYSWEEP_ATTEMPT"  # the directory of the attempt that this process belongs to
WRITTEN = "reward_error.json"  # in it: the row that ended it; the node looks for this
SHOWN = 2_000  # characters of a text

Row = dict[str, Any]


class RewardError(RuntimeError):
    """A reward that cannot be used, with its row. Its class and first line say so in the trainer's log."""


class NoImport(ImportError):
    """A function that cannot be imported, and why."""

    def __init__(self, reward: str, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.reward = reward
        self.missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    routes: str = "",
    function: str = "",
    timeout_s: float = 60.0,
    retries: int = 3,
    batch: int = 16,
    concurrent: int = 8,
    **more: Any,
) -> dict[str, Any]:
    """The score of one answer, for verl's reward loop.

    routes    `routes.encode`'s text; or `function`, ``file:name``, which scores every row
    more      goes to a function of the user's, as verl passes it (reward_router_address, ...)

    Raises RewardError, after it has written the row down where the trial's node looks.
    """
    row = {"data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth,
           "extra_info": dict(extra_info or {})}  # fmt: skip
    limits = Limits(timeout_s, retries, batch, concurrent)
    try:
        if function:
            return _checked(await _call(load(function), row, more))
        route = route_for(_routes(routes), data_source)
        if route is None:
            raise LookupError(f"no route of reward.routes takes data_source {data_source!r}")
        # each row of a batch has to name the same metrics: verl looks for those of the first
        return dict.fromkeys(metrics_of(_routes(routes))) | await _sum(route, row, limits, more)
    except (Exception, SystemExit) as e:
        raise report(e, row) from e


async def _sum(route: Route, row: Row, limits: Limits, more: dict[str, Any]) -> dict[str, Any]:
    """The weighted sum of a route's rewards. Of several each is a metric too, by its name."""
    found = [(term, await _term(term, row, limits, more)) for term in route.terms]
    if len(found) == 1:
        term, score = found[0]
        return score if term.weight == 1.0 else score | {"score": term.weight * score["score"]}
    told: dict[str, Any] = {
        "score": sum(term.weight * score["score"] for term, score in found),
        "acc": found[0][1].get("acc", found[0][1]["score"]),
    }
    return told | {name: score["score"] for name, (_, score) in zip(route.labels, found, strict=True)}


async def _term(term: Term, row: Row, limits: Limits, more: dict[str, Any]) -> dict[str, Any]:
    if term.kind in ("url", "server"):
        return _checked(await _endpoint(address(term.reward), limits).score(row))
    if term.kind == "verl":
        from verl.utils.reward_score import default_compute_score

        return _checked(await _call(default_compute_score, row, {}))
    if term.kind == "ready":
        from hysweep.rewards import ready

        function = getattr(ready, term.reward)
        return _checked(await _in_thread(lambda: function(row["solution_str"], row["ground_truth"], **term.options)))
    return _checked(await _call(load(term.reward), row, {**more, **term.options}))


async def _call(function: Callable[..., Any], row: Row, more: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**row, **more)
    return await _in_thread(lambda: function(**row, **more))


async def _in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call)


def _checked(result: Any) -> dict[str, Any]:
    """A reward's answer as a dict with a finite score. Raises ValueError, TypeError."""
    told = dict(result) if isinstance(result, Mapping) else {"score": result, "acc": result}
    if "score" not in told:
        raise ValueError(f"the reward returned {result!r}, which has no score")
    score = told["score"]
    if hasattr(score, "item"):  # of numpy or torch
        score = score.item()
    if isinstance(score, bool):
        score = float(score)
    if not isinstance(score, (int, float)):
        raise TypeError(f"the reward returned {result!r}, whose score is no number")
    if not math.isfinite(score):
        raise ValueError(f"the reward returned {result!r}, whose score is not finite")
    told["score"] = float(score)
    if "acc" not in told or isinstance(told["acc"], bool):
        told["acc"] = float(told.get("acc", score))
    return told


# --- what is called


@lru_cache(maxsize=8)
def _routes(text: str) -> tuple[Route, ...]:
    return read_routes(json.loads(text))


@lru_cache(maxsize=64)
def load(reward: str) -> Callable[..., Any]:
    """A function by ``file.py:name`` or ``package.module:name``; a ready one, or verl's, by its name.

    Raises ImportError with what is wrong.
    """
    if reward in READY:
        from hysweep.rewards import ready

        scored = getattr(ready, reward)
        return lambda data_source, solution_str, ground_truth, extra_info=None, **o: scored(
            solution_str, ground_truth, **o
        )
    if reward == VERL:
        from verl.utils.reward_score import default_compute_score

        return default_compute_score  # type: ignore[no-any-return]
    where, _, name = reward.rpartition(":")
    where = where.removeprefix("file://")
    if where.startswith("pkg://") or not where.endswith(".py"):
        module = importlib.import_module(where.removeprefix("pkg://").replace("/", "."))
    else:
        path = Path(where)
        spec = importlib.util.spec_from_file_location(f"hysweep_reward_{abs(hash(where))}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ImportError(f"{where}: there is no such file on {os.uname().nodename}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # so that its dataclasses and pickles work
        spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        raise ImportError(f"{where} has no function {name}")
    return found  # type: ignore[no-any-return]


def load_all(routes: str = "", function: str = "", **_: Any) -> None:
    """Import every function that `compute_score` would be called with. Raises NoImport of the first that fails."""
    terms = [term for route in _routes(routes) for term in route.terms] if routes else []
    for reward in [function] if function else [term.reward for term in terms if term.kind == "function"]:
        try:
            load(reward)
        except (Exception, SystemExit) as e:
            raise NoImport(reward, e) from e


def address(reward: str) -> str:
    """The URL of a reward; of ``server:NAME/path`` by what the node said of that server in the environment."""
    if not reward.startswith(SERVER):
        return reward
    name, _, path = reward.removeprefix(SERVER).partition("/")
    base = os.environ.get(variable(name))
    if not base:
        raise LookupError(f"{variable(name)} is not set: the server {name} was not started with this trial")
    return f"{base}/{path}"


def variable(name: str) -> str:
    """Where the address of a server stands."""
    return f"HYSWEEP_SERVER_{name.upper().replace('-', '_')}"


_ENDPOINTS: dict[tuple[str, Limits, int], Endpoint] = {}


def _endpoint(url: str, limits: Limits) -> Endpoint:
    key = (url, limits, id(asyncio.get_running_loop()))
    if key not in _ENDPOINTS:
        _ENDPOINTS[key] = Endpoint(url, limits)
    return _ENDPOINTS[key]


async def close() -> None:
    """Close the connections of this event loop's endpoints. verl's workers end with them open."""
    here = id(asyncio.get_running_loop())
    for key in [k for k in _ENDPOINTS if k[2] == here]:
        await _ENDPOINTS.pop(key).close()


# --- what went wrong


def report(error: BaseException, row: Row) -> RewardError:
    """The error with its row; the first of an attempt is written down for its node."""
    said = f"{type(error).__name__}: {error}"
    shown = {name: _short(value) for name, value in row.items()}
    told = RewardError(f"{said}; the row: {json.dumps(shown, ensure_ascii=False, default=str)}")
    directory = os.environ.get(ATTEMPT)
    if directory and os.path.isdir(directory):
        path = os.path.join(directory, WRITTEN)
        part = f"{path}.{os.getpid()}"
        trace = traceback.format_exception(type(error), error, error.__traceback__)[-4:]
        try:
            with open(part, "w", encoding="utf-8") as file:
                json.dump({"error": said, "row": shown, "trace": trace}, file, default=str)
            os.link(part, path)  # of several the first stays
        except OSError:
            pass
        finally:
            if os.path.exists(part):
                os.unlink(part)
    return told


def _short(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"


def reward_error(attempt: Path) -> str:
    """What ended an attempt by its reward, with the row; empty where nothing did. For the node, which looks often."""
    try:
        told = json.loads((attempt / WRITTEN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return f"{told['error']}; the row: {json.dumps(told['row'], ensure_ascii=False)}"
