"""The rules. One fact of the trainer, one function; each yields its problems with the nearest legal values.

A rule never raises: a trial is checked by all of them, so that every fault is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from hysweep.check import (
    algorithms,
    batches,
    data,
    files,
    keys,
    memory,
    passed,
    rewards,
    rollout,
    site,
    stages,
    topology,
)
from hysweep.compile import keys_of
from hysweep.schema import BadInput, Problem, Severity, Trial

Rule = Callable[[Trial], Iterator[Problem]]

RULES: tuple[Rule, ...] = (
    topology.engine_needs_gpu,
    topology.launcher_has_nodes,
    topology.cpus_hold_the_actors,
    topology.dense_grid_divides_world,
    topology.expert_grid_divides_world,
    rollout.rollout_grid_divides_world,
    topology.tensor_divides_model,
    topology.experts_split,
    stages.layers_split,
    stages.counted_layers_split,
    stages.stages_are_laid_out,
    topology.fsdp_shards_fill_world,
    topology.shape_is_sound,
    topology.fsdp_ranks_share_sequences,
    rollout.rollout_experts_fill_replica,
    topology.router_settings_travel,
    topology.widths_split,
    topology.recomputation_is_whole,
    topology.transformer_fields_agree,
    rollout.replica_fits_nodes,
    rollout.engine_serves_model,
    rollout.precisions_are_corrected,
    batches.samples_split_over_agents,
    batches.padding_is_small,
    batches.checkpoints_are_made,
    algorithms.ranges_are_usual,
    keys.loggers_are_known,
    keys.runs_can_be_named,
    passed.overrides_can_be_said,
    passed.passed_values_are_legal,
    passed.closed_sets_are_kept,
    passed.async_trainer_is_whole,
    passed.transformer_fields_exist,
    passed.checkpoints_are_whole,
    keys.kernels_are_fused,
    keys.kernels_take_the_width,
    keys.environment_is_free,
    memory.memory_fits,
    memory.memory_is_known,
    memory.calibration_is_readable,
    memory.gpu_is_what_it_says,
    topology.bridge_knows_model,
    topology.weights_have_names_of_engine,
    topology.shape_is_known,
    batches.mini_batches_fill_batch,
    batches.mini_batch_splits_over_ranks,
    batches.token_budgets_hold_a_sequence,
    batches.micro_batch_divides,
    batches.lengths_fit_engine,
    rollout.engine_step_holds_sequences,
    algorithms.group_has_siblings,
    algorithms.clip_range_is_one,
    algorithms.one_kl_is_enough,
    algorithms.numbers_are_above_zero,
    algorithms.trainer_knows_algorithm,
    algorithms.estimator_gets_what_it_needs,
    rollout.correction_is_readable,
    rollout.temperature_leaves_diversity,
    algorithms.overlong_buffer_fits,
    files.something_trains,
    files.files_exist,
    files.reward_function_is_there,
    algorithms.plugin_has_algorithm,
    rewards.routes_are_readable,
    rewards.servers_can_be_started,
    rewards.one_reward_is_asked,
    rewards.reward_model_is_served,
    data.rows_are_sound,
    keys.passed_keys_exist,
    keys.fields_win,
    keys.versions_fit,
    keys.nothing_is_ignored,
    files.something_validates,
    site.is_filled_in,
    site.paths_mean_one_thing,
    site.interface_is_one,
    site.container_has_image,
    site.gres_counts_gpus,
    site.nodes_are_there,
    site.options_are_said_once,
    site.setup_is_heard,
    site.job_has_time,
    site.code_is_there,
    site.host_memory_is_asked_for,
    site.secrets_are_not_written,
)


def check_trial(trial: Trial, without: Collection[Rule] = ()) -> list[Problem]:
    """Every problem of a trial, errors first. Empty: as far as can be known at the desk, it runs.

    `without`: rules whose question the caller answers itself.
    """
    try:
        keys_of(trial)
    except BadInput as e:  # no rule can say more of a trainer that is not there
        return list(e.problems)
    found = [problem for rule in RULES if rule not in without for problem in rule(trial)]
    return sorted(found, key=lambda p: p.severity is not Severity.ERROR)


def errors(problems: Iterable[Problem]) -> list[Problem]:
    return [p for p in problems if p.severity is Severity.ERROR]
