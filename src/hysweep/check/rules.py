"""The rules. One fact of the trainer, one function; each yields its problems with the nearest legal values.

Numbers are of verl 0.9.1 and Megatron-core 0.16 unless said otherwise. A rule never raises: a trial is checked
by all of them, so that every fault is told at once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hysweep.compile import flatten, ignored, keys_of, resolve, trainer_values
from hysweep.embedded import assets
from hysweep.schema import Problem, Severity, Stage, Trial, suggest

Rule = Callable[[Trial], Iterator[Problem]]

LEGACY = ("reward_model", "custom_reward_function", "sandbox_fusion")  # where reward settings were before


def check_trial(trial: Trial) -> list[Problem]:
    """Every problem of a trial, errors first. Empty: as far as can be known at the desk, it runs."""
    found = [problem for rule in RULES for problem in rule(trial)]
    return sorted(found, key=lambda p: p.severity is not Severity.ERROR)


def errors(problems: Iterable[Problem]) -> list[Problem]:
    return [p for p in problems if p.severity is Severity.ERROR]


def divisors(number: int, near: int, count: int = 4) -> str:
    """The divisors of a number that lie nearest to a wish: "4, 8 or 12"."""
    all_of_them = [d for d in range(1, number + 1) if number % d == 0]
    return either(sorted(sorted(all_of_them, key=lambda d: (abs(d - near), d))[:count]))


def either(options: Iterable[object]) -> str:
    *others, last = map(str, options)
    return f"{', '.join(others)} or {last}" if others else last


def data_parallel(trial: Trial) -> int:
    """Ranks that see different data: the world over the ranks that share a sample. 0 if it does not divide."""
    p = trial.parallelism
    if p.engine != "megatron":
        return trial.world_size
    each = p.tensor * p.pipeline * p.context
    return trial.world_size // each if trial.world_size % each == 0 else 0


# --- where it runs


def engine_needs_gpu(t: Trial) -> Iterator[Problem]:
    """Megatron and vLLM are CUDA programs; the embedded server is a CPU one."""
    if t.has_gpu:
        if t.rollout.engine == "embedded":
            yield Problem(
                "rollout.engine",
                "embedded",
                "generates on the CPU, a token at a time",
                "try rollout=vllm",
                Stage.NEVER,
            )
        return
    if t.parallelism.engine == "megatron":
        yield Problem(
            "parallelism.engine",
            "megatron",
            "needs GPUs, and cluster.gpu is null",
            "name a cluster with GPUs, or try parallelism=single",
            Stage.START,
        )
    if t.rollout.engine == "vllm":
        yield Problem(
            "rollout.engine",
            "vllm",
            "needs GPUs, and cluster.gpu is null",
            "name a cluster with GPUs, or try rollout=embedded",
            Stage.START,
        )
    if t.cluster.nodes > 1:
        yield Problem(
            "cluster.nodes",
            t.cluster.nodes,
            "the embedded rollout server serves one host",
            "give 1",
            Stage.START,
        )


def launcher_has_nodes(t: Trial) -> Iterator[Problem]:
    """The local launcher is this machine."""
    if t.cluster.launcher == "local" and t.cluster.nodes > 1:
        yield Problem(
            "cluster.nodes",
            t.cluster.nodes,
            "the local launcher has one node",
            "give 1, or try cluster=slurm",
        )


# --- topology: verl 0.9.1 workers/engine/megatron, Megatron-core parallel_state


def dense_grid_divides_world(t: Trial) -> Iterator[Problem]:
    """world % (tensor * pipeline * context) == 0; with dynamic batching verl checks it after model load."""
    p = t.parallelism
    each = p.tensor * p.pipeline * p.context
    if p.engine == "megatron" and t.world_size % each:
        yield Problem(
            "parallelism.tensor * pipeline * context",
            each,
            f"must divide the {t.world_size} GPUs",
            f"try a product of {divisors(t.world_size, each)}",
            Stage.START,
        )


def expert_grid_divides_world(t: Trial) -> Iterator[Problem]:
    """world % (expert_tensor * expert * pipeline) == 0; an unset expert_tensor is tensor, not 1."""
    p = t.parallelism
    expert_tensor = p.expert_tensor or p.tensor
    each = expert_tensor * p.expert * p.pipeline
    if p.engine == "megatron" and t.world_size % each:
        room = t.world_size // (expert_tensor * p.pipeline)
        cure = f"try parallelism.expert of {divisors(room, p.expert)}" if room else "ask for more GPUs"
        if p.expert_tensor is None and p.tensor > 1:
            cure += f", or parallelism.expert_tensor=1 (unset it is tensor, {p.tensor})"
        yield Problem(
            "parallelism.expert_tensor * expert * pipeline",
            each,
            f"must divide the {t.world_size} GPUs",
            cure,
            Stage.START,
        )


def rollout_grid_divides_world(t: Trial) -> Iterator[Problem]:
    """world % (rollout tensor * data) == 0; found out after actor and reference are loaded."""
    each = t.rollout.tensor * t.rollout.data
    if t.world_size % each:
        yield Problem(
            "rollout.tensor * data",
            each,
            f"must divide the {t.world_size} GPUs",
            f"try a product of {divisors(t.world_size, each)}",
            Stage.START,
        )


def tensor_divides_model(t: Trial) -> Iterator[Problem]:
    """Heads must split over tensor ranks, key-value heads split or repeat; feed-forward widths split."""
    s = t.model.shape
    sides = [("rollout.tensor", t.rollout.tensor)]
    if t.parallelism.engine == "megatron":
        sides.append(("parallelism.tensor", t.parallelism.tensor))
    for key, tensor in sides:
        if s.num_attention_heads % tensor:
            yield Problem(
                key,
                tensor,
                f"must divide num_attention_heads = {s.num_attention_heads}",
                f"try {divisors(s.num_attention_heads, tensor)}",
                Stage.START,
            )
        elif s.num_key_value_heads % tensor and tensor % s.num_key_value_heads:
            yield Problem(
                key,
                tensor,
                f"must divide num_key_value_heads = {s.num_key_value_heads}, or be a multiple of it",
                f"try {divisors(s.num_key_value_heads, tensor)}",
                Stage.START,
            )


def experts_split(t: Trial) -> Iterator[Problem]:
    """num_experts % expert == 0, and only a mixture has experts."""
    s, p = t.model.shape, t.parallelism
    if p.engine != "megatron" or p.expert == 1:
        return
    if not s.num_experts:
        yield Problem("parallelism.expert", p.expert, f"{t.model.name} has no experts", "give 1", Stage.START)
    elif s.num_experts % p.expert:
        yield Problem(
            "parallelism.expert",
            p.expert,
            f"must divide num_experts = {s.num_experts}",
            f"try {divisors(s.num_experts, p.expert)}",
            Stage.START,
        )


def layers_split(t: Trial) -> Iterator[Problem]:
    """Every layer must be built: num_layers % (pipeline * virtual_pipeline) == 0. Megatron drops the rest."""
    s, p = t.model.shape, t.parallelism
    if p.engine != "megatron":
        return
    if p.virtual_pipeline and p.pipeline == 1:
        yield Problem(
            "parallelism.virtual_pipeline",
            p.virtual_pipeline,
            "needs more than one pipeline stage",
            "leave it null, or raise parallelism.pipeline",
            Stage.START,
        )
    if s.num_layers % p.pipeline:
        yield Problem(
            "parallelism.pipeline",
            p.pipeline,
            f"must divide num_layers = {s.num_layers}",
            f"try {divisors(s.num_layers, p.pipeline)}",
            Stage.START,
        )
    elif (s.num_layers // p.pipeline) % (p.virtual_pipeline or 1):
        layers = s.num_layers // p.pipeline
        yield Problem(
            "parallelism.virtual_pipeline",
            p.virtual_pipeline,
            f"must divide the {layers} layers of a stage",
            f"try {divisors(layers, p.virtual_pipeline or 1)}",
            Stage.START,
        )


# --- batches and lengths


def mini_batches_fill_batch(t: Trial) -> Iterator[Problem]:
    """mini <= train and train % mini == 0; with dynamic batching verl pads with dummy samples instead."""
    train, mini = t.trainer.train_batch_size, t.trainer.mini_batch_size
    if train % mini:
        yield Problem(
            "trainer.mini_batch_size",
            mini,
            f"must divide trainer.train_batch_size = {train}",
            f"try {divisors(train, mini)}",
            Stage.UPDATE,
        )


def mini_batch_splits_over_ranks(t: Trial) -> Iterator[Problem]:
    """mini * n % data parallel ranks == 0; verl multiplies the mini batch by the group size."""
    ranks, samples = data_parallel(t), t.trainer.mini_batch_size * t.rollout.n
    if ranks and samples % ranks:
        up = -(-samples // ranks) * ranks
        yield Problem(
            "trainer.mini_batch_size * rollout.n",
            samples,
            f"must be a multiple of the {ranks} data parallel ranks",
            f"try a product of {up}",
            Stage.UPDATE,
        )


def token_budgets_hold_a_sequence(t: Trial) -> Iterator[Problem]:
    """budget * context >= prompt + response, for the update and for log-probabilities; dies mid-update."""
    if not t.trainer.use_dynamic_batch:
        return
    longest = t.trainer.max_prompt_length + t.trainer.max_response_length
    context = t.parallelism.context if t.parallelism.engine == "megatron" else 1
    for name in ("max_token_len_per_gpu", "log_prob_max_token_len_per_gpu"):
        budget = getattr(t.trainer, name)
        if budget * context < longest:
            yield Problem(
                f"trainer.{name}",
                budget,
                f"times context = {context} is below prompt + response = {longest}",
                f"give at least {-(-longest // context)}",
                Stage.UPDATE,
            )


def micro_batch_divides(t: Trial) -> Iterator[Problem]:
    """Without dynamic batching each rank's share must be a multiple of the micro batch."""
    if t.trainer.use_dynamic_batch or not (ranks := data_parallel(t)):
        return
    micro, samples = t.trainer.micro_batch_size_per_gpu, t.trainer.mini_batch_size * t.rollout.n
    if samples % ranks == 0 and (samples // ranks) % micro:
        yield Problem(
            "trainer.micro_batch_size_per_gpu",
            micro,
            f"must divide the {samples // ranks} samples of a rank",
            f"try {divisors(samples // ranks, micro)}",
            Stage.UPDATE,
        )


def lengths_fit_engine(t: Trial) -> Iterator[Problem]:
    """prompt + response <= max_model_len <= max_position_embeddings; verl clamps generation in silence."""
    longest = t.trainer.max_prompt_length + t.trainer.max_response_length
    limit = t.model.shape.max_position_embeddings
    if longest > limit:
        yield Problem(
            "trainer.max_prompt_length + max_response_length",
            longest,
            f"the model has {limit} positions",
            f"shorten them by {longest - limit}",
            Stage.START,
        )
    given = t.rollout.max_model_len
    if t.rollout.engine != "vllm" or given is None:
        return
    if given < longest:
        yield Problem(
            "rollout.max_model_len",
            given,
            f"is below prompt + response = {longest}: answers are cut in silence",
            f"give at least {longest}, or null",
            Stage.NEVER,
        )
    if given > limit:
        yield Problem(
            "rollout.max_model_len",
            given,
            f"the model has {limit} positions",
            f"give at most {limit}",
            Stage.START,
        )


def engine_step_holds_sequences(t: Trial) -> Iterator[Problem]:
    """vLLM: max_num_batched_tokens >= max_num_seqs."""
    r = t.rollout
    if r.engine == "vllm" and r.max_num_batched_tokens < r.max_num_seqs:
        yield Problem(
            "rollout.max_num_batched_tokens",
            r.max_num_batched_tokens,
            f"is below max_num_seqs = {r.max_num_seqs}",
            f"give at least {r.max_num_seqs}",
            Stage.START,
        )


# --- algorithms


def group_has_siblings(t: Trial) -> Iterator[Problem]:
    """grpo and rloo compare the samples of one prompt; with one sample there is nothing to compare."""
    if t.rollout.n < 2:
        yield Problem(
            "rollout.n",
            t.rollout.n,
            f"{t.algorithm.adv_estimator} compares the samples of a prompt",
            "give at least 2; 8 to 16 is usual",
            Stage.NEVER,
        )


def clip_range_is_one(t: Trial) -> Iterator[Problem]:
    """PPO's lower clip must leave a positive ratio; cispo's bounds a weight and may be any."""
    a = t.algorithm
    if a.loss_mode != "cispo" and not 0 < a.clip_ratio_low < 1:
        yield Problem(
            "algorithm.clip_ratio_low",
            a.clip_ratio_low,
            f"{a.loss_mode} clips the ratio at 1 - this",
            "give a number between 0 and 1; 0.2 is usual (gspo: 3e-4)",
            Stage.NEVER,
        )
    if a.loss_mode == "vanilla" and a.clip_ratio_c <= 1:
        yield Problem("algorithm.clip_ratio_c", a.clip_ratio_c, "must be above 1", "3 is usual", Stage.UPDATE)
    if a.loss_mode == "gspo" and a.clip_ratio_high > 0.05:
        yield Problem(
            "algorithm.clip_ratio_high",
            a.clip_ratio_high,
            "gspo's ratio is of a whole sequence and stays within thousandths of 1: nothing would be clipped",
            "3e-4 and 4e-4 are usual",
            Stage.NEVER,
            Severity.WARNING,
        )


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


def correction_threshold_is_readable(t: Trial) -> Iterator[Problem]:
    """One positive number, or low_high with 0 < low <= high (verl trainer/ppo/rollout_corr_helper.py)."""
    if t.rollout.correction_is is None:
        return
    text = t.rollout.correction_is_threshold
    try:
        bounds = [float(part) for part in text.split("_")]
        good = len(bounds) in (1, 2) and all(b > 0 for b in bounds) and bounds[0] <= bounds[-1]
    except ValueError:
        good = False
    if not good:
        yield Problem(
            "rollout.correction_is_threshold",
            text,
            "is neither a cap nor low_high",
            "try '2.0' (TIS) or '0.5_5' (IcePop), in quotes",
            Stage.START,
        )


def temperature_leaves_diversity(t: Trial) -> Iterator[Problem]:
    if t.rollout.temperature == 0:
        yield Problem(
            "rollout.temperature",
            0.0,
            "all samples of a group would be the same",
            "0.9 to 1.0 is usual",
            Stage.ROLLOUT,
        )
    elif t.rollout.temperature < 0.5:
        yield Problem(
            "rollout.temperature",
            t.rollout.temperature,
            "leaves little diversity in a group",
            "0.9 to 1.0 is usual",
            Stage.NEVER,
            Severity.WARNING,
        )


def overlong_buffer_fits(t: Trial) -> Iterator[Problem]:
    if t.reward.manager == "dapo" and t.reward.overlong_buffer_len > t.trainer.max_response_length:
        yield Problem(
            "reward.overlong_buffer_len",
            t.reward.overlong_buffer_len,
            f"is above trainer.max_response_length = {t.trainer.max_response_length}",
            f"give at most {t.trainer.max_response_length}",
            Stage.ROLLOUT,
        )


# --- files and keys


def something_trains(t: Trial) -> Iterator[Problem]:
    for name in ("train_files", "val_files"):
        if not getattr(t.data, name):
            yield Problem(f"data.{name}", "[]", "names no file", "give parquet files, or choose a data= option")


def files_exist(t: Trial) -> Iterator[Problem]:
    """Local files of a local job must be there and be of a kind that verl reads."""
    named = [(f"data.{n}", f) for n in ("train_files", "val_files") for f in getattr(t.data, n)]
    if t.reward.function_path is not None:
        named.append(("reward.function_path", t.reward.function_path))
    for key, name in [*named, ("model.path", t.model.path)]:
        if name.startswith("embedded:"):
            if name.removeprefix("embedded:") not in assets.NAMES:
                known = [f"embedded:{n}" for n in assets.NAMES]
                yield Problem(key, name, "is not shipped", suggest(name, known))
            continue
        if key == "model.path" and not name.startswith(("/", "~", ".")):
            continue  # the id of a model on a hub: not ours to look up here
        if (
            t.cluster.launcher == "local"
            and not name.startswith(("pkg://", "hdfs://"))
            and not Path(resolve(name)).exists()
        ):
            yield Problem(key, name, "there is no such file", f"looked for {resolve(name)}", Stage.START)
        if key.startswith("data.") and Path(name).suffix not in (".parquet", ".json", ".jsonl"):
            yield Problem(key, name, "verl reads .parquet, .json and .jsonl", "convert it first", Stage.START)


def reward_function_is_there(t: Trial) -> Iterator[Problem]:
    """The file must define the function: read, not run."""
    path = t.reward.function_path
    if path is None or path.startswith(("embedded:", "pkg://")) or not Path(resolve(path)).is_file():
        return
    try:
        tree = ast.parse(Path(resolve(path)).read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as e:
        yield Problem("reward.function_path", path, f"is no Python that can be read: {e}", "mend it", Stage.ROLLOUT)
        return
    names = [n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    names += [
        target.id
        for n in tree.body
        if isinstance(n, ast.Assign)
        for target in n.targets
        if isinstance(target, ast.Name)
    ]
    names += [a.asname or a.name for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
    if t.reward.function_name not in names:
        yield Problem(
            "reward.function_name",
            t.reward.function_name,
            f"{path} has no such function",
            suggest(t.reward.function_name, names) if names else "it defines none",
            Stage.ROLLOUT,
        )


def extra_keys_exist(t: Trial) -> Iterator[Problem]:
    """`trainer.extra` may name any key of this verl that no field of ours sets."""
    keys = keys_of(t)
    ours = trainer_values(t)
    extra = dict(flatten(t.trainer.extra))
    without = trainer_values_without_extra(t)
    for key, value in extra.items():
        if key in without:
            yield Problem(
                f"trainer.extra.{key}",
                value,
                f"is set by a field of its own, to {without[key]}",
                "use that field (see `hysweep show`)",
            )
        elif key.partition(".")[0] in LEGACY:
            # verl PR 7331: still in its schema, read by nothing since June 2026
            yield Problem(
                f"trainer.extra.{key}",
                value,
                "is the old name of a reward setting, and does nothing any more",
                "use the fields of reward, or trainer.extra.reward...",
                Stage.NEVER,
            )
        elif key not in keys:
            yield Problem(
                f"trainer.extra.{key}",
                value,
                f"verl {t.trainer.verl} has no such key",
                suggest(key, keys.defaults),
            )
    runs_somewhere = t.has_gpu or t.parallelism.engine != "megatron"  # else another rule has said so
    for key in ours if runs_somewhere else ():
        if key not in keys and key not in extra:
            yield Problem(key, ours[key], f"verl {t.trainer.verl} has no such key", "choose another trainer.verl")


def nothing_is_ignored(t: Trial) -> Iterator[Problem]:
    """A field that somebody set and that the chosen algorithm, engine or mode never reads."""
    for leaf in ignored(t):
        needs = " and ".join(
            f"{path} = {either('null' if v is None else v for v in alive)}"
            for path, alive in (leaf.knob.when or {}).items()
        )
        default = "null" if leaf.default is None else leaf.default
        yield Problem(leaf.path, leaf.value, f"has no effect: it needs {needs}", f"leave it at {default}", Stage.NEVER)


def something_validates(t: Trial) -> Iterator[Problem]:
    if t.trainer.validate_every <= 0 and not t.trainer.validate_before:
        yield Problem(
            "trainer.validate_every",
            t.trainer.validate_every,
            "nothing is ever validated",
            "give a number of steps",
            Stage.NEVER,
            Severity.WARNING,
        )


def trainer_values_without_extra(t: Trial) -> dict[str, object]:
    from dataclasses import replace

    return trainer_values(replace(t, trainer=replace(t.trainer, extra={})))


RULES: tuple[Rule, ...] = (
    engine_needs_gpu,
    launcher_has_nodes,
    dense_grid_divides_world,
    expert_grid_divides_world,
    rollout_grid_divides_world,
    tensor_divides_model,
    experts_split,
    layers_split,
    mini_batches_fill_batch,
    mini_batch_splits_over_ranks,
    token_budgets_hold_a_sequence,
    micro_batch_divides,
    lengths_fit_engine,
    engine_step_holds_sequences,
    group_has_siblings,
    clip_range_is_one,
    one_kl_is_enough,
    correction_threshold_is_readable,
    temperature_leaves_diversity,
    overlong_buffer_fits,
    something_trains,
    files_exist,
    reward_function_is_there,
    extra_keys_exist,
    nothing_is_ignored,
    something_validates,
)
