"""Trials that share a machine keep their weights apart: loaded through the entry-point group `verl.plugins`.

verl 0.9.1 names the socket that takes the trainer's weights to its vLLM by the id of Ray's job, and the first job of
every Ray cluster has the same. Two trials on one machine, each with a Ray of its own, then meet there: one's engine
waits for ever, or takes what the other's trainer sends. So here the name gets a mark of the attempt.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TRANSFER = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"
ENDS = ("BucketedWeightSender", "BucketedWeightReceiver")
ATTEMPT = "HYSWEEP_ATTEMPT"  # both ends have it, or neither, as on a standing Ray cluster, whose jobs differ


def marked(handle: str) -> str:
    """The socket's name with the attempt's mark; as it was where there is none."""
    attempt = os.environ.get(ATTEMPT)
    if not attempt or not handle.endswith(".sock"):
        return handle
    # a socket's path has 108 characters at most
    return f"{handle.removesuffix('.sock')}-{hashlib.sha256(attempt.encode()).hexdigest()[:12]}.sock"


def _mark(module: ModuleType) -> None:
    if not all(hasattr(module, end) for end in ENDS):
        return  # another verl: one end alone must not change
    for end in ENDS:
        plain = getattr(module, end).__init__

        @functools.wraps(plain)
        def init(self: Any, zmq_handle: str, *args: Any, _plain: Any = plain, **words: Any) -> None:
            _plain(self, marked(zmq_handle), *args, **words)

        getattr(module, end).__init__ = init


class _WhenImported(MetaPathFinder):
    """Its package imports vLLM, so that it is not imported before verl does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TRANSFER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                plain(module)
                _mark(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if TRANSFER in sys.modules:
    _mark(sys.modules[TRANSFER])
else:
    sys.meta_path.insert(0, _WhenImported())
