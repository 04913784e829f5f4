"""What the trainer's processes must know: imported by verl as `actor_rollout_ref.model.external_lib`.

Where a model has a module of its own there, this one comes by VERL_USE_EXTERNAL_MODULES instead, which verl imports
before its plugins: so the platform is named here too.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import hysweep.embedded.platform  # noqa: F401  # isort: skip
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

ROLLOUT = "embedded"  # actor_rollout_ref.rollout.name


class _InPlace:
    """An engine that offloads nothing: it is on the host already.

    verl offloads every model that only runs forward, a reference model, and pins its memory, which takes an
    accelerator.
    """

    engine_config: Any

    def _build_fsdp_module(self, module: Any) -> Any:
        if self.engine_config.strategy != "fsdp2":
            raise ValueError(
                f"actor_rollout_ref.actor.strategy = {self.engine_config.strategy}: needs a GPU; try fsdp2"
            )
        config = self.engine_config
        self.engine_config = dataclasses.replace(config, forward_only=False, offload_policy=False)
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            self.engine_config = config


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithLMHead(_InPlace, FSDPEngineWithLMHead):
    """The actor and the reference model."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithValueHead(_InPlace, FSDPEngineWithValueHead):
    """The critic."""


def _replica() -> type[RolloutReplica]:
    from hysweep.embedded.rollout import EmbeddedReplica

    return EmbeddedReplica


RolloutReplicaRegistry.register(ROLLOUT, _replica)
_ROLLOUT_REGISTRY[(ROLLOUT, "async")] = "hysweep.embedded.rollout.EmbeddedServerAdapter"  # there is no function for it

# verl has no prompt builder of Hy3's own, takes the default one, which is right, and warns once per sample.
logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").setLevel(logging.ERROR)
