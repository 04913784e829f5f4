"""verl's replay buffer, asked more often. For `trainer.v1.sampler.custom_sampler`."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_S = 0.05  # verl's own asks every 2 s, which is the whole of a tiny step


class FastReplayBuffer(ReplayBuffer):
    """The stock buffer of synchronous training, down to its group filtering, with a short poll."""

    def __init__(self, *, trainer_mode: str, trainer_config: Any, sampler_kwargs: Any, **kwargs: Any) -> None:
        if trainer_mode != "sync":
            raise ValueError(f"trainer.v1.trainer_mode = {trainer_mode}: the embedded sampler serves sync only")
        super().__init__(
            trainer_mode=trainer_mode,
            trainer_config=trainer_config,
            sampler_kwargs=sampler_kwargs,
            poll_interval=POLL_S,
            **kwargs,
            **_group_filter(trainer_config if isinstance(trainer_config, DictConfig) else sampler_kwargs),
        )


def _group_filter(node: Any) -> dict[str, Any]:
    """What verl tells its own buffer about `algorithm.filter_groups` and does not tell a custom one.

    Left out, a filter that is configured would be ignored in silence. The whole configuration is above any node.
    """
    config: Any = node._get_root() if isinstance(node, DictConfig) else {}
    groups = config.get("algorithm", {}).get("filter_groups")
    if not groups or not groups.get("enable"):
        return {}
    if not groups.get("metric"):
        raise ValueError("algorithm.filter_groups.metric = null: must be set where groups are filtered; try acc")
    return {
        "filter_groups_metric": groups.metric,
        "train_batch_size": config.data.train_batch_size,
        "gen_batch_size": 1,
        "max_inflight_gen_batches": groups.get("max_inflight_gen_batches", 1),
    }
