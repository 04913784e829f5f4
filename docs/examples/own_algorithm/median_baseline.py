"""An algorithm of one's own: the median of a group as its baseline, and a policy loss without a clip.

verl imports this in each of its processes (`algorithm.plugin`), so the two names are known in all of them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss


@register_adv_est("median_baseline")
def median_baseline(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reward minus the median of its group: one lucky answer does not make the others look bad.

    token_level_rewards, response_mask: (answers, tokens); index: the prompt of each answer. Returns advantages and
    returns, of the same shape.
    """
    scores = token_level_rewards.sum(dim=-1)
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, prompt in enumerate(index):
        groups[prompt].append(row)
    with torch.no_grad():
        for rows in groups.values():
            if len(rows) > 1:
                scores[rows] = scores[rows] - scores[rows].quantile(0.5)
    advantages = scores.unsqueeze(-1) * response_mask
    return advantages, advantages


@register_policy_loss("weighted_pg")
def weighted_pg(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The policy gradient, each token weighed by its importance ratio, at most 1 + clip_ratio_high.

    All: (answers, tokens). Returns the loss and metrics, which must be numbers.
    """
    ratio = torch.exp((log_prob - old_log_prob).clamp(-20, 20)).detach()
    most = 1 + config.clip_ratio_high
    losses = -ratio.clamp(max=most) * advantages * log_prob
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    loss = agg_loss(loss_mat=losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    capped = ((ratio > most) * response_mask).sum() / response_mask.sum().clamp(min=1)
    return loss, {"actor/pg_clipfrac": capped.item()}
