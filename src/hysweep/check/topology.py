"""Where a trial runs, and whether its grids fit GPUs and model.

Numbers are of verl 0.9.1 (verl/workers/engine) and Megatron-core 0.16 (parallel_state, the layers' own asserts) unless
said otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, log2

from hysweep.check import legal
from hysweep.check.numbers import (
    divisors,
    divisors_of,
    either,
    has_shape,
    nearest_to,
    transformer_config,
)
from hysweep.check.rollout import replicas_that_fit
from hysweep.compile import least_cpus, nodes_of
from hysweep.schema import Problem, Severity, Stage, Trial, suggest

ALIGNED = 8  # elements: 16 bytes of 16 bit each, which kernels load at once
# Megatron-core 0.16: TransformerConfig.recompute_modules
RECOMPUTED = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")

# Megatron-Bridge 0.6: the architectures that its models register, by the model_type of their config.json
BRIDGED = frozenset((
    "bailing_moe_v2", "deepseek_v2", "deepseek_v3", "deepseek_v4", "ernie4_5_moe", "ernie4_5_moe_vl", "exaone4",
    "exaone4_5", "exaone_moe", "falcon_h1", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text",
    "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa", "gpt_oss", "hy_v3", "kimi_k2", "kimi_k25", "llama",
    "mimo", "mimo_v2_flash", "minimax_m2", "minimax_m3_vl", "mistral", "mistral3", "nemotron", "nemotron-nas",
    "nemotron_h", "nemotron_vl", "olmoe", "qwen2", "qwen2_5_omni", "qwen2_5_vl", "qwen2_audio", "qwen3", "qwen3_5",
    "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_asr", "qwen3_moe", "qwen3_next", "qwen3_omni_moe",
    "qwen3_vl", "qwen3_vl_moe", "sarvam_mla", "sarvam_moe", "step3p5", "step3p7",
))  # fmt: skip


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


def launcher_has_nodes(t: Trial) -> Iterator[Problem]:
    """The local launcher is this machine."""
    if t.cluster.launcher == "local" and t.cluster.nodes > 1:
        yield Problem(
            "cluster.nodes",
            t.cluster.nodes,
            "the local launcher has one node",
            "give 1, or try cluster=slurm_h100",
        )
    elif t.cluster.launcher == "local" and (nodes := nodes_of(t)) > 1:
        why = f"has one node, which trains, and {nodes - 1} more are set apart (reward.model_nodes, or by verl's keys)"
        yield Problem("cluster.launcher", "local", why, "set none apart, or try cluster=slurm_h100", Stage.START)


def dense_grid_divides_world(t: Trial) -> Iterator[Problem]:
    """world % (tensor * pipeline * context) == 0; with dynamic batching verl checks it after model load."""
    p = t.parallelism
    each = p.tensor * p.pipeline * p.context
    if p.engine == "megatron" and not legal.dense_grid(t.world_size, p.tensor, p.pipeline, p.context):
        near = nearest_to(each, divisors_of(t.world_size))
        ways = [way for size in sorted(near, key=lambda size: abs(size - each)) if (way := _laid_out(t, size))]
        tensor, pipeline, context = ways[0] if ways else (1, 1, min(near))
        yield Problem(
            "parallelism.tensor * pipeline * context",
            each,
            f"must divide the {t.world_size} GPUs",
            f"try a product of {either(near)}, as in tensor={tensor} pipeline={pipeline} context={context}",
            Stage.START,
        )


def _laid_out(t: Trial, product: int) -> tuple[int, int, int] | None:
    """Tensor, pipeline and context of a product that split the model too, as near as can be to those of the trial."""
    p, s = t.parallelism, t.model.shape
    ways = [
        (tensor, pipeline, product // tensor // pipeline)
        for tensor in legal_tensors(t, product)
        for pipeline in divisors_of(product // tensor)
        if not has_shape(t) or legal.stages_split(s.num_layers, pipeline)
    ]
    return min(ways, default=None, key=lambda way: _distance(way, (p.tensor, p.pipeline, p.context)))


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, float]:
    """How many numbers differ, then by how many doublings."""
    return sum(a != b for a, b in zip(one, other, strict=True)), sum(
        abs(log2(a / b)) for a, b in zip(one, other, strict=True)
    )


def legal_tensors(t: Trial, world: int) -> list[int]:
    """Tensor ranks of training that divide so many GPUs, the heads and the widths."""
    s = t.model.shape
    dense_layers = s.first_dense_layers if s.num_experts else s.num_layers
    width = s.intermediate_size if dense_layers else 0
    return [
        d
        for d in divisors_of(world)
        if not has_shape(t)
        or (legal.heads_split(s.num_attention_heads, s.num_key_value_heads, d) and legal.width_splits(width, d))
    ]


def cpus_hold_the_actors(t: Trial) -> Iterator[Problem]:
    """Ray places an actor where a CPU is left, and verl waits for the last of them without end."""
    given, least = t.cluster.cpus_per_node, least_cpus(t)
    if t.cluster.launcher != "ray_job" and given is not None and given < least:
        why = f"Ray places processes of verl's by {least} CPUs of each node, and it would wait for them for ever"
        yield Problem("cluster.cpus_per_node", given, why, f"give at least {least}", Stage.START)


def expert_grid_divides_world(t: Trial) -> Iterator[Problem]:
    """world % (expert_tensor * expert * pipeline) == 0; an unset expert_tensor is tensor, not 1."""
    p = t.parallelism
    expert_tensor = p.expert_tensor or p.tensor
    each = expert_tensor * p.expert * p.pipeline
    if p.engine == "megatron" and not legal.expert_grid(t.world_size, expert_tensor, p.expert, p.pipeline):
        ways = {"expert": (p.expert, legal_experts(t)), "expert_tensor": (expert_tensor, legal_expert_tensors(t))}
        tries = [
            f"parallelism.{name} of {either(nearest_to(own, found))}" for name, (own, found) in ways.items() if found
        ]
        if p.expert_tensor is None and p.tensor > 1:
            tries[-1:] = [f"{way} (unset expert_tensor is tensor, {p.tensor})" for way in tries[-1:]]
        cure = f"try {', or '.join(tries)}" if tries else f"{_not_dividing(t)}; `hysweep layouts` finds what does"
        yield Problem(
            "parallelism.expert_tensor * expert * pipeline",
            each,
            f"must divide the {t.world_size} GPUs",
            cure,
            Stage.START,
        )


def legal_experts(t: Trial) -> list[int]:
    """Expert ranks that fill the GPUs beside the other sizes of the trial, and split its experts."""
    p, s = t.parallelism, t.model.shape
    return [
        d
        for d in divisors_of(t.world_size)
        if legal.expert_grid(t.world_size, p.expert_tensor or p.tensor, d, p.pipeline)
        and (not has_shape(t) or legal.experts_split(s.num_experts, d))
    ]


def legal_expert_tensors(t: Trial) -> list[int]:
    """The same of the ranks of one expert: they split its width."""
    p, width = t.parallelism, t.model.shape.moe_intermediate_size
    return [
        d
        for d in divisors_of(t.world_size)
        if legal.expert_grid(t.world_size, d, p.expert, p.pipeline) and legal.width_splits(width, d)
    ]


def _not_dividing(t: Trial) -> str:
    """Which sizes of the experts' grid keep every other from filling the GPUs."""
    p = t.parallelism
    sizes = {"pipeline": p.pipeline, "expert": p.expert, "expert_tensor": p.expert_tensor or p.tensor}
    alone = [f"parallelism.{name} = {size}" for name, size in sizes.items() if t.world_size % size]
    if not alone:
        return f"no two of {', '.join(f'parallelism.{name} = {size}' for name, size in sizes.items())} go together"
    return f"{' and '.join(alone)} {'does' if len(alone) == 1 else 'do'} not divide {t.world_size}"


def tensor_divides_model(t: Trial) -> Iterator[Problem]:
    """Heads must split over tensor ranks, key-value heads split or repeat; feed-forward widths split."""
    if not has_shape(t):
        return
    s = t.model.shape
    sides = {"rollout.tensor": t.rollout.tensor}
    if t.parallelism.engine == "megatron":
        sides["parallelism.tensor"] = t.parallelism.tensor
    for key, tensor in sides.items():
        if legal.heads_split(s.num_attention_heads, s.num_key_value_heads, tensor):
            continue
        why = f"must divide num_attention_heads = {s.num_attention_heads}"
        if s.num_attention_heads % tensor == 0:
            why = f"must divide num_key_value_heads = {s.num_key_value_heads}, or be a multiple of it"
        legal_ones = replicas_that_fit(t) if key == "rollout.tensor" else legal_tensors(t, t.world_size)
        yield Problem(key, tensor, why, f"try {either(nearest_to(tensor, legal_ones))}", Stage.START)


def experts_split(t: Trial) -> Iterator[Problem]:
    """num_experts % expert == 0, and only a mixture has experts."""
    if not has_shape(t):
        return
    s, p = t.model.shape, t.parallelism
    if p.engine != "megatron" or p.expert == 1:
        return
    if not s.num_experts:
        yield Problem("parallelism.expert", p.expert, f"{t.model.name} has no experts", "give 1", Stage.START)
    elif not legal.experts_split(s.num_experts, p.expert):
        yield Problem(
            "parallelism.expert",
            p.expert,
            f"must divide num_experts = {s.num_experts}",
            f"try {either(nearest_to(p.expert, legal_experts(t) or divisors_of(gcd(s.num_experts, t.world_size))))}",
            Stage.START,
        )


def fsdp_shards_fill_world(t: Trial) -> Iterator[Problem]:
    """Copies of the parameters are whole groups of ranks (verl: a device mesh of world / fsdp_size by fsdp_size)."""
    size = t.parallelism.fsdp_size
    if t.parallelism.engine == "fsdp2" and size != -1 and (size < 1 or t.world_size % size):
        cure = f"give -1, or try {divisors(t.world_size, max(size, 1))}"
        yield Problem("parallelism.fsdp_size", size, f"must divide the {t.world_size} GPUs", cure, Stage.START)


def shape_is_sound(t: Trial) -> Iterator[Problem]:
    """What no model can have."""
    s = t.model.shape
    if s.num_attention_heads % s.num_key_value_heads:
        why = f"must divide num_attention_heads = {s.num_attention_heads}"
        cure = f"try {divisors(s.num_attention_heads, s.num_key_value_heads)}"
        yield Problem("model.shape.num_key_value_heads", s.num_key_value_heads, why, cure, Stage.START)
    if t.has_gpu and has_shape(t) and (over := s.hidden_size % ALIGNED):
        near = [size for size in (s.hidden_size - over, s.hidden_size - over + ALIGNED) if size]
        why = (
            f"is no multiple of {ALIGNED}, as the kernels for matrices and norms want it: no model is known that has it"
        )
        yield Problem(
            "model.shape.hidden_size", s.hidden_size, why, f"try {either(near)}", Stage.START, Severity.WARNING
        )
    if s.num_experts and not 0 < s.num_experts_per_token <= s.num_experts:
        why = f"is not within 1 and num_experts = {s.num_experts}"
        yield Problem("model.shape.num_experts_per_token", s.num_experts_per_token, why, "8 is usual", Stage.START)
    if s.num_experts and not s.moe_intermediate_size:
        yield Problem(
            "model.shape.moe_intermediate_size", 0, "experts need a width", "see its config.json", Stage.START
        )


def fsdp_ranks_share_sequences(t: Trial) -> Iterator[Problem]:
    """Ulysses splits the heads, and needs packed sequences (verl/workers/engine/fsdp/transformer_impl.py)."""
    if not has_shape(t):
        return
    p, heads = t.parallelism, t.model.shape.num_attention_heads
    if p.engine != "fsdp2" or p.context == 1:
        return
    if heads % p.context or t.world_size % p.context:
        yield Problem(
            "parallelism.context",
            p.context,
            f"must divide num_attention_heads = {heads} and the {t.world_size} GPUs",
            f"try {divisors(gcd(heads, t.world_size), p.context)}",
            Stage.START,
        )
    if not t.memory.use_remove_padding:
        yield Problem(
            "memory.use_remove_padding", False, "sequences are shared out only when packed", "give true", Stage.START
        )


def router_settings_travel(t: Trial) -> Iterator[Problem]:
    """Hy3's router under any trainer: its bias is used, frozen, and nothing balances the experts' load."""
    needed = {
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0,
        "moe_router_load_balancing_type": "none",
        "moe_grouped_gemm": True,
    }
    if t.model.model_type != "hy_v3" or t.parallelism.engine != "megatron":
        return
    for key, value in needed.items():
        given = t.model.transformer_config.get(key)
        if given != value:
            yield Problem(
                f"model.transformer_config.{key}",
                given,
                "is not what Hy3's router was trained with",
                f"give {value}, or choose model=hy3 and set model.path",
                Stage.NEVER,
            )


def widths_split(t: Trial) -> Iterator[Problem]:
    """Feed-forward widths divide over tensor ranks, an expert's over the experts' own."""
    if not has_shape(t):
        return
    s, p = t.model.shape, t.parallelism
    if p.engine != "megatron":
        return
    expert_tensor = p.expert_tensor or p.tensor
    dense_layers = s.first_dense_layers if s.num_experts else s.num_layers
    for key, ranks, name, width in (
        ("parallelism.tensor", p.tensor, "intermediate_size", s.intermediate_size if dense_layers else 0),
        ("parallelism.expert_tensor", expert_tensor, "moe_intermediate_size", s.moe_intermediate_size),
    ):
        if not legal.width_splits(width, ranks):
            is_dense = key == "parallelism.tensor"
            splitting = legal_tensors(t, t.world_size) if is_dense else legal_expert_tensors(t)
            splitting = splitting or divisors_of(gcd(width, t.world_size))
            cure = f"try {either(nearest_to(ranks, splitting))}"
            yield Problem(key, ranks, f"must divide {name} = {width}", cure, Stage.START)


def recomputation_is_whole(t: Trial) -> Iterator[Problem]:
    """full needs to know which layers; selective takes modules of a closed list (Megatron's TransformerConfig)."""
    m = t.memory
    if t.parallelism.engine != "megatron":
        return
    if m.recompute_granularity == "full":
        for name, cure in (("recompute_method", "uniform"), ("recompute_num_layers", 1)):
            if getattr(m, name) is None:
                yield Problem(f"memory.{name}", None, "full recomputation needs it", f"{cure} is usual", Stage.START)
    for module in m.recompute_modules or ():
        if module not in RECOMPUTED:
            yield Problem(
                "memory.recompute_modules",
                module,
                "can not be recomputed alone",
                suggest(module, RECOMPUTED),
                Stage.START,
            )
    if "moe_act" in (m.recompute_modules or ()) and transformer_config(t).get("moe_grouped_gemm") is False:
        yield Problem("memory.recompute_modules", "moe_act", "needs moe_grouped_gemm", "leave it out", Stage.START)


def transformer_fields_agree(t: Trial) -> Iterator[Problem]:
    """Fields of Megatron's TransformerConfig that are passed on by name, and what they exclude."""
    if not has_shape(t):
        return
    given, p = transformer_config(t), t.parallelism
    node = "verl.actor_rollout_ref.actor.megatron.override_transformer_config"
    if p.engine != "megatron":
        return
    if given.get("moe_router_enable_expert_bias") and given.get("moe_router_score_function", "sigmoid") != "sigmoid":
        yield Problem(
            f"{node}.moe_router_score_function",
            given["moe_router_score_function"],
            "does not go with an expert bias",
            "give sigmoid",
            Stage.START,
        )
    dispatcher = given.get("moe_token_dispatcher_type", "alltoall")
    if dispatcher == "allgather":
        why = "takes no sequences of different length, which verl always sends"
        yield Problem(f"{node}.moe_token_dispatcher_type", dispatcher, why, "give alltoall", Stage.START)
    if given.get("moe_shared_expert_overlap") and dispatcher != "alltoall":
        why = "works with the alltoall dispatcher alone"
        yield Problem(f"{node}.moe_shared_expert_overlap", True, why, "leave it out", Stage.START)
    if given.get("overlap_moe_expert_parallel_comm") and t.memory.recompute_granularity == "full":
        why = "goes with no full recomputation"
        yield Problem(f"{node}.overlap_moe_expert_parallel_comm", True, why, "leave it out", Stage.START)


def bridge_knows_model(t: Trial) -> Iterator[Problem]:
    """Advice: Megatron's weights come through Megatron-Bridge, which has a mapping for each architecture that it knows.

    A module of the user's own may register one more, and nothing is said of a model whose architecture is not known.
    """
    m = t.model
    if t.parallelism.engine != "megatron" or not m.model_type or m.model_type in BRIDGED or m.external_lib is not None:
        return
    yield Problem(
        "model.model_type",
        m.model_type,
        "is no architecture that Megatron-Bridge 0.6 is known to load",
        "try parallelism=fsdp2, or give a module that registers a bridge for it as model.external_lib",
        Stage.START,
        Severity.WARNING,
    )


def weights_have_names_of_engine(t: Trial) -> Iterator[Problem]:
    """FSDP sends Hy3's weights by transformers' names, which vLLM 0.24 does not load: seen on a GPU, where its worker
    died of a KeyError and the trainer waited for it. Megatron-Bridge sends the checkpoint's names."""
    m = t.model
    if (
        t.parallelism.engine == "fsdp2"
        and t.rollout.engine == "vllm"
        and m.model_type == "hy_v3"
        and not m.external_lib
    ):
        yield Problem(
            "parallelism.engine",
            "fsdp2",
            "sends Hy3's weights by names that vLLM does not know",
            "use parallelism.engine=megatron, or give a module that renames them as model.external_lib "
            "(benchmarks/gpu/fsdp_of_hy3.py is one)",
            Stage.START,
        )


def shape_is_known(t: Trial) -> Iterator[Problem]:
    """Advice: what divides, fits and is long enough cannot be looked at without the model's shape."""
    if not has_shape(t):
        yield Problem(
            "model.shape",
            "unknown",
            f"nothing is known of {t.model.path}: neither layout, lengths nor memory were looked at",
            "choose a model= option, or give model.path=DIR with its config.json",
            Stage.NEVER,
            Severity.WARNING,
        )
