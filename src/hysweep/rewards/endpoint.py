"""A reward behind HTTP: rows gathered into requests, a limit on how many run at once, a limit of time, and retries.

A request is ``POST {"rows": [{"data_source", "solution_str", "ground_truth", "extra_info"}, ...]}``; the answer is
``{"scores": [...]}`` with a number for each row, or a dict with ``score`` and whatever else is to be a metric.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WAITS_S = 0.01  # for others to share its request
FIRST_PAUSE_S = 0.5  # before a second try; then twice as long each time, up to
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    timeout_s: float = 60.0
    retries: int = 3
    batch: int = 16
    concurrent: int = 8


class EndpointFailed(Exception):
    """No attempt was answered with scores."""


class Endpoint:
    """One address, asked from one event loop. `headers` are read from the environment (see `headers_of`)."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.url = url
        self.limits = limits
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[Any]]] = []
        self._gate = asyncio.Semaphore(limits.concurrent)
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: Any = None

    async def score(self, row: dict[str, Any]) -> Any:
        """What the endpoint says of one row. Raises EndpointFailed."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, future))
        if len(self._waiting) >= self.limits.batch:
            self._send()
        elif len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(WAITS_S, self._send)
        return await future

    def _send(self) -> None:
        while self._waiting:
            rows, self._waiting = self._waiting[: self.limits.batch], self._waiting[self.limits.batch :]
            task = asyncio.get_running_loop().create_task(self._request(rows))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _request(self, rows: list[tuple[dict[str, Any], asyncio.Future[Any]]]) -> None:
        try:
            async with self._gate:
                scores = await self._asked([row for row, _ in rows])
            for (_, future), score in zip(rows, scores, strict=True):
                if not future.done():
                    future.set_result(score)
        except Exception as e:
            for _, future in rows:
                if not future.done():
                    future.set_exception(e)

    async def _asked(self, rows: list[dict[str, Any]]) -> list[Any]:
        import aiohttp

        if self._session is None:
            limit = aiohttp.ClientTimeout(total=self.limits.timeout_s)
            self._session = aiohttp.ClientSession(timeout=limit, headers=headers_of(os.environ))
        said = ""
        for attempt in range(self.limits.retries + 1):
            if attempt:
                await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S))
            try:
                async with self._session.post(self.url, data=json.dumps({"rows": rows}, default=str),
                                              headers={"Content-Type": "application/json"}) as answer:  # fmt: skip
                    text = await answer.text()
                    if answer.status >= 500 or answer.status == 429:
                        said = f"HTTP {answer.status}: {text[:200]}"
                        continue
                    if answer.status >= 400:
                        raise EndpointFailed(f"{self.url}: HTTP {answer.status}: {text[:200]}")
                    return _scores(text, len(rows), self.url)
            except TimeoutError:
                said = f"no answer within {self.limits.timeout_s:g} s"
            except aiohttp.ClientError as e:
                said = f"{type(e).__name__}: {e}"
        raise EndpointFailed(f"{self.url}: {said}, {self.limits.retries + 1} times")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _scores(text: str, count: int, url: str) -> list[Any]:
    try:
        scores = json.loads(text)["scores"]
    except (ValueError, KeyError, TypeError) as e:
        raise EndpointFailed(f"{url}: its answer has no scores: {text[:200]}") from e
    if not isinstance(scores, list) or len(scores) != count:
        raise EndpointFailed(f"{url}: it was asked of {count} rows and answered {text[:200]}")
    return scores


def headers_of(environment: Mapping[str, str]) -> dict[str, str]:
    """HYSWEEP_REWARD_TOKEN, where it is set, goes along as a bearer token: a secret is in no configuration."""
    token = environment.get("HYSWEEP_REWARD_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}
