"""Advantages, losses, KL and rewards."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from hysweep.compile import (
    ONLY_V0,
    OWN,
    is_own,
    keys_of,
    overlong_buffer_len,
    registered_names,
    resolve,
    uses_v1,
)
from hysweep.schema import Problem, Severity, Stage, Trial, suggest

# Estimators that compare the samples of one prompt (verl/trainer/ppo/core_algos.py: those that take `index`).
OF_GROUPS = (
    "grpo",
    "rloo",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
    "grpo_passk",
    "gdpo",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
)

OF_A_SEQUENCE, OF_A_TOKEN = 0.05, 0.01  # the largest clip of a sequence's mean ratio, the least of a token's
UNBOUNDED = ("gpg",)  # losses with neither a clip nor a penalty of their own


def group_has_siblings(t: Trial) -> Iterator[Problem]:
    """What compares the samples of a prompt has nothing to compare with one: verl takes the raw reward then.

    An error for rloo, whose baseline is that of the others; advice for the rest, as verl's own examples do it.
    """
    if "distillation" in t.verl:  # a teacher's loss, beside or instead of an advantage
        return
    if t.rollout.n < 2 and t.algorithm.adv_estimator in OF_GROUPS:
        yield Problem(
            "rollout.n",
            t.rollout.n,
            f"{t.algorithm.adv_estimator} compares the samples of a prompt: of one the raw reward is taken",
            "give at least 2; 8 to 16 is usual",
            Stage.NEVER,
            Severity.ERROR if t.algorithm.adv_estimator == "rloo" else Severity.WARNING,
        )


def clip_range_is_one(t: Trial) -> Iterator[Problem]:
    """PPO's lower clip must leave a positive ratio; other losses bound something else by it."""
    a = t.algorithm
    if a.loss_mode in ("vanilla", "gspo") and not 0 < a.clip_ratio_low < 1:
        yield Problem(
            "algorithm.clip_ratio_low",
            a.clip_ratio_low,
            f"{a.loss_mode} clips the ratio at 1 - this",
            "give a number between 0 and 1; 0.2 is usual (gspo: 3e-4)",
            Stage.NEVER,
        )
    if a.loss_mode == "vanilla" and a.clip_ratio_c <= 1:
        yield Problem("algorithm.clip_ratio_c", a.clip_ratio_c, "must be above 1", "3 is usual", Stage.UPDATE)
    if a.loss_mode == "vanilla" and a.clip_ratio_high >= 1:
        over = round(a.clip_ratio_high - 1, 6)
        yield Problem(
            "algorithm.clip_ratio_high",
            a.clip_ratio_high,
            f"is added to 1: only a ratio above {1 + a.clip_ratio_high:g} is clipped, and few are",
            f"did you mean {over:g}?" if 0 < over < 1 else "0.2 to 0.28 is usual",
            Stage.NEVER,
            Severity.WARNING,
        )
    if a.loss_mode in ("vanilla", "gspo") and a.clip_ratio_high == 0:
        why = f"{a.loss_mode} clips the ratio at 1 + this: no answer could be made likelier"
        cure = "give a number above 0; 0.2 to 0.28 is usual (gspo: 4e-4)"
        yield Problem("algorithm.clip_ratio_high", 0.0, why, cure, Stage.NEVER)
    for key in ("clip_ratio_low", "clip_ratio_high"):
        if found := _clip_of_another_loss(a.loss_mode, getattr(a, key)):
            yield Problem(f"algorithm.{key}", getattr(a, key), *found, Stage.NEVER, Severity.WARNING)


def _clip_of_another_loss(loss_mode: str, clip: float) -> tuple[str, str] | None:
    """Why a clip that a loss takes is one of another loss, and what is usual."""
    if loss_mode == "gspo" and OF_A_SEQUENCE < clip < 1:
        why = "gspo's ratio is of a whole sequence and stays within thousandths of 1: nothing would be clipped"
        return why, "3e-4 and 4e-4 are usual"
    if loss_mode == "vanilla" and 0 < clip < OF_A_TOKEN:
        why = "the ratio is of one token, and an update moves it further than that: nearly all would be clipped"
        return why, "0.2 to 0.28 is usual; so small a clip is algorithm=gspo's"
    return None


def one_kl_is_enough(t: Trial) -> Iterator[Problem]:
    a = t.algorithm
    if a.use_kl_loss and a.use_kl_in_reward:
        yield Problem(
            "algorithm.use_kl_in_reward",
            True,
            "and use_kl_loss penalise the same distance twice",
            "keep one of them",
            Stage.NEVER,
            Severity.WARNING,
        )
    if a.use_kl_loss and a.kl_loss_coef == 0:
        yield Problem(
            "algorithm.kl_loss_coef",
            0,
            "a reference model would run every step for nothing",
            "set algorithm.use_kl_loss=false",
            Stage.NEVER,
            Severity.WARNING,
        )


def numbers_are_above_zero(t: Trial) -> Iterator[Problem]:
    """What the losses assert at their first update."""
    a = t.algorithm
    needed = {
        "clip_cov": ("clip_cov_ratio",),
        "kl_cov": ("kl_cov_ratio",),
        "sapo": ("tau_pos", "tau_neg"),
        "dro": ("dro_beta",),
    }
    if a.loss_mode == "clip_cov" and a.clip_cov_lb >= a.clip_cov_ub:
        why = f"is not below clip_cov_ub = {a.clip_cov_ub}: no token lies between"
        yield Problem("algorithm.clip_cov_lb", a.clip_cov_lb, why, "1 and 5 are usual", Stage.NEVER)
    if a.use_filter_groups and not a.filter_groups_metric:
        yield Problem("algorithm.filter_groups_metric", "''", "names no metric", "give acc or reward", Stage.START)
    for name in needed.get(a.loss_mode, ()):
        if not getattr(a, name):
            yield Problem(
                f"algorithm.{name}",
                getattr(a, name),
                f"{a.loss_mode} needs it above 0",
                f"see conf/algorithm/{a.loss_mode}.yaml",
                Stage.UPDATE,
            )


def trainer_knows_algorithm(t: Trial) -> Iterator[Problem]:
    """Names in the registries of this verl: it looks them up at the first update."""
    keys, a = keys_of(t), t.algorithm
    for key, value, known in (
        ("adv_estimator", a.adv_estimator, keys.adv_estimators),
        ("loss_mode", a.loss_mode, keys.policy_losses),
    ):
        if value not in known and not is_own(t, f"algorithm.{key}"):  # the next rule looks into the plug-in
            yield Problem(
                f"algorithm.{key}",
                value,
                f"verl {t.trainer.verl} has none of this name",
                f"choose a newer trainer.verl, or one of {', '.join(known)}",
                Stage.UPDATE,
            )
    is_recipe = t.trainer.entry != "main_ppo"  # which brings a trainer of its own
    if a.use_filter_groups and ("algorithm.filter_groups.enable" not in keys.defaults or not (uses_v1(t) or is_recipe)):
        who = f"verl {t.trainer.verl}" if uses_v1(t) else "verl's older trainer"
        yield Problem(
            "algorithm.use_filter_groups",
            True,
            f"{who} does not replace groups: it would train on all of them",
            "set it false, or choose trainer.verl=0.9.1 and an algorithm of V1, or a recipe as trainer.entry",
            Stage.NEVER,
        )
    if a.loss_mode == "gspo" and keys.version.startswith("0.9.0.dev") and a.loss_agg_mode != "seq-mean-token-mean":
        yield Problem(
            "algorithm.loss_agg_mode",
            a.loss_agg_mode,
            f"gspo of verl {t.trainer.verl} always takes seq-mean-token-mean",
            "give seq-mean-token-mean, or choose trainer.verl=0.9.1",
            Stage.NEVER,
        )


def plugin_has_algorithm(t: Trial) -> Iterator[Problem]:
    """The file must register the names that are not verl's: read, not run."""
    a = t.algorithm
    if a.plugin is None:
        return
    path = Path(resolve(a.plugin))
    if not os.path.isfile(path):
        if t.cluster.launcher == "local":
            yield Problem("algorithm.plugin", a.plugin, "there is no such file", f"looked for {path}", Stage.START)
        return
    try:
        module = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as e:
        yield Problem("algorithm.plugin", a.plugin, f"is no Python that can be read: {e}", "mend it", Stage.START)
        return
    for key, value, decorator in (
        ("adv_estimator", a.adv_estimator, "register_adv_est"),
        ("loss_mode", a.loss_mode, "register_policy_loss"),
    ):
        own = sorted(registered_names(module, decorator))
        if is_own(t, f"algorithm.{key}") and value not in own:
            why = f"is none of verl's, and {a.plugin} registers none of this name"
            cure = suggest(value, own) if own else f'put @{decorator}("{value}") before a function there'
            yield Problem(f"algorithm.{key}", value, why, cure, Stage.UPDATE)
    if a.adv_estimator not in OWN["algorithm.adv_estimator"] or a.loss_mode not in OWN["algorithm.loss_mode"]:
        return
    yield Problem(
        "algorithm.plugin",
        a.plugin,
        "is loaded, and neither algorithm.adv_estimator nor algorithm.loss_mode names what is in it",
        "name it there, or leave it out",
        Stage.NEVER,
        Severity.WARNING,
    )


def estimator_gets_what_it_needs(t: Trial) -> Iterator[Problem]:
    a = t.algorithm
    if a.adv_estimator in ONLY_V0 and t.trainer.use_v1:
        lacks = {"remax": "makes no greedy baseline", "gdpo": "hands over no parts of a reward"}
        why = lacks.get(a.adv_estimator, "keeps no sums of squared probabilities")
        yield Problem(
            "trainer.use_v1",
            True,
            f"verl's V1 trainer {why}, which {a.adv_estimator} needs: it fails after the first rollout",
            "set trainer.use_v1=false",
            Stage.ROLLOUT,
        )
    if a.adv_estimator.endswith("optimal_token_baseline") and t.memory.use_fused_kernels:
        yield Problem(
            "memory.use_fused_kernels",
            True,
            f"{a.adv_estimator} needs whole logits, which fused kernels never make",
            "give false",
            Stage.UPDATE,
        )
    if a.adv_estimator == "gdpo":
        if not a.gdpo_reward_keys:
            yield Problem(
                "algorithm.gdpo_reward_keys",
                "[]",
                "names no part of the reward",
                "name the keys of your reward function's dict: [accuracy,format]",
                Stage.ROLLOUT,
            )
        if a.gdpo_reward_weights and len(a.gdpo_reward_weights) != len(a.gdpo_reward_keys):
            yield Problem(
                "algorithm.gdpo_reward_weights",
                a.gdpo_reward_weights,
                f"are not as many as the {len(a.gdpo_reward_keys)} gdpo_reward_keys",
                "give one for each, or none",
                Stage.ROLLOUT,
            )
        if t.reward.manager != "gdpo":
            yield Problem(
                "reward.manager", t.reward.manager, "does not keep the parts of a reward", "give gdpo", Stage.ROLLOUT
            )
    elif t.reward.manager == "gdpo":
        yield Problem(
            "reward.manager",
            "gdpo",
            f"keeps parts of a reward that {a.adv_estimator} does not read",
            "give naive",
            Stage.NEVER,
        )
    if a.adv_estimator == "gae" and t.model.model_type == "hy_v3":
        if t.parallelism.engine == "fsdp2":
            yield Problem(
                "algorithm.adv_estimator",
                "gae",
                "needs a critic, and transformers has no Hy3 with a value head",
                "choose an algorithm without a critic",
                Stage.START,
            )
        elif not a.critic_path:
            yield Problem(
                "algorithm.critic_path",
                None,
                "the critic is a second Hy3 on the same GPUs: twice the memory on the host, and a second update",
                "choose an algorithm without a critic, or a smaller critic of the same tokenizer",
                Stage.NEVER,
                Severity.WARNING,
            )
    if a.adv_estimator == "opo" and (
        t.trainer.mini_batch_size != t.trainer.train_batch_size or t.trainer.ppo_epochs > 1
    ):
        yield Problem(
            "trainer.mini_batch_size",
            t.trainer.mini_batch_size,
            "opo's baseline is that of exactly on-policy updates: one a step",
            f"give {t.trainer.train_batch_size}, and trainer.ppo_epochs=1",
            Stage.NEVER,
            Severity.WARNING,
        )


def overlong_buffer_fits(t: Trial) -> Iterator[Problem]:
    if t.reward.manager == "dapo" and overlong_buffer_len(t) > t.trainer.max_response_length:
        yield Problem(
            "reward.overlong_buffer_len",
            t.reward.overlong_buffer_len,
            f"is above trainer.max_response_length = {t.trainer.max_response_length}",
            f"give at most {t.trainer.max_response_length}",
            Stage.ROLLOUT,
        )


def ranges_are_usual(t: Trial) -> Iterator[Problem]:
    """Advice for large models. The tiny one learns in ten steps at a rate that would ruin them."""
    a, rate, n = t.algorithm, t.trainer.learning_rate, t.rollout.n
    if not t.has_gpu:
        return

    def advice(key: str, value: object, why: str, cure: str) -> Problem:
        return Problem(key, value, why, cure, Stage.NEVER, Severity.WARNING)

    if not 1e-7 <= rate <= 2e-5:
        yield advice("trainer.learning_rate", rate, "is far from what such models are trained with", "1e-6 is usual")
    if a.adv_estimator in OF_GROUPS and (1 < n < 4 or n > 64):
        yield advice("rollout.n", n, "compares very few answers, or very many", "8 to 16 is usual")
    has_kl = a.use_kl_loss or a.use_kl_in_reward
    is_free = a.loss_mode in UNBOUNDED or (a.loss_mode == "vanilla" and a.clip_ratio_high >= 1)
    steps = t.trainer.train_batch_size // t.trainer.mini_batch_size * t.trainer.ppo_epochs
    if is_free and not has_kl and steps > 1:
        yield advice(
            "algorithm.loss_mode",
            a.loss_mode,
            f"neither a clip nor a KL holds the policy over the {steps} updates of a step",
            "set algorithm.use_kl_loss=true, or make one update a step",
        )
