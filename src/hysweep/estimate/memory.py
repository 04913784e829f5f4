"""From formulas to phases: what each stage's GPU holds while it trains, looks back, generates, or starts again.

uses(job, layout) -> {stage: {phase: Use}}. A number of a layout may be a numpy array: then so is every number of the
answer, and one call looks at thousands of layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hysweep.estimate import formulas as f
from hysweep.estimate.formulas import Number, larger, smaller
from hysweep.estimate.layout import Job, Layout
from hysweep.estimate.parameters import Parameters, count_parameters

# The parts in the order that they are shown in. Those that torch allocates come first.
OF_TORCH = (
    "weights",
    "gradients",
    "optimizer",
    "other models",
    "saved activations",
    "working set",
    "logits",
    "buffers",
)
CALIBRATION = "calibration"
PARTS = (
    *OF_TORCH,
    CALIBRATION,
    "outside torch",
    "sleeping engine",
    "engine weights",
    "engine working set",
    "KV cache",
    "engine overhead",
)
TRAINING, ROLLOUT, RESUME = "training", "rollout with weight sync", "resume"
# Which phases a verdict is over.
GROUPS = {
    TRAINING: ("train", "critic", "log_prob", "reference"),
    ROLLOUT: ("rollout", "weight_sync"),
    RESUME: ("resume",),
}
STAGES = ("first", "middle", "last")


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes of one GPU in one phase.

    parts    what adds up to `total`
    overlap  what torch never holds at once: the smaller of a layer's working set and the head's. It is in the total,
             since logits are too large for the blocks that layers leave in torch's cache: in run C torch had reserved
             7.6 GiB for 6.0 of logits and 1.3 of layers.
    """

    parts: dict[str, Number]
    overlap: Number = 0

    @property
    def total(self) -> Number:
        return sum(self.parts.values())

    @property
    def torch(self) -> Number:
        """What torch has allocated at the peak: verl logs the largest as actor/perf/max_memory_allocated_gb."""
        return sum(self.parts.get(name, 0) for name in (*OF_TORCH, CALIBRATION)) - self.overlap


@dataclass(frozen=True, slots=True)
class StageSize:
    """One stage of the pipeline: its layers, and the parameters of one of its GPUs outside and inside the experts."""

    index: Number
    dense_layers: Number
    moe_layers: Number
    has_embedding: Number
    has_head: Number
    dense: Number
    experts: Number

    @property
    def layers(self) -> Number:
        return self.dense_layers + self.moe_layers

    @property
    def parameters(self) -> Number:
        return self.dense + self.experts


@dataclass(frozen=True, slots=True)
class State:
    """Bytes of a model that is trained, on one GPU; `waits_*`: how much of it is on the GPU while others run."""

    weights: Number
    gradients: Number
    optimizer: Number
    waits_weights: Number
    waits_gradients: Number
    waits_optimizer: Number

    @property
    def waits(self) -> Number:
        return self.waits_weights + self.waits_gradients + self.waits_optimizer


@dataclass(frozen=True, slots=True)
class Engine:
    """Bytes of vLLM on one GPU; room: for the cache, below 0 where the weights alone are too large."""

    weights: Number
    working: Number
    room: Number


def stage_sizes(job: Job, layout: Layout, counted: Parameters) -> dict[str, StageSize]:
    """The first stage, the fullest of those between, and the last.

    With one stage the first has the head too, and the last is the same; with two there is none between. Of those
    between, the one with the fewest dense layers is taken, and as many micro batches in flight as the second has.
    """
    s, pp = job.shape, layout.pipeline
    given = (layout.first_layers > 0) + 0 + (layout.last_layers > 0)
    each = (s.num_layers - layout.first_layers - layout.last_layers) / larger(pp - given, 1)
    first = layout.first_layers + each * (layout.first_layers == 0)
    last = layout.last_layers + each * (layout.last_layers == 0)
    all_dense = min(s.first_dense_layers, s.num_layers) if s.num_experts else s.num_layers
    is_one = (pp == 1) + 0
    before_last = s.num_layers - last
    layers = {
        "first": (0, first, smaller(all_dense, first), 1, is_one),
        "middle": (1, each, _within(all_dense - (before_last - each), each), 0, 0),
        "last": (pp - 1, last, _within(all_dense - before_last, last), is_one, 1),
    }
    found = {}
    for name, (index, count, dense_layers, has_embedding, has_head) in layers.items():
        moe_layers = count - dense_layers
        dense, experts = f.stage_parameters(
            counted,
            s,
            dense_layers,
            moe_layers,
            has_embedding,
            has_head,
            layout.tensor,
            layout.expert,
            layout.expert_tensor,
        )
        found[name] = StageSize(index, dense_layers, moe_layers, has_embedding, has_head, dense, experts)
    return found


def _within(value: Number, most: Number) -> Number:
    return smaller(larger(value, 0), most)


def actor_state(job: Job, layout: Layout, size: StageSize, counted: Parameters) -> State:
    """Megatron: parameters of the stage; FSDP2: all of them, shared out. See verl workers/engine/base.py for what
    waits where: param_offload takes gradients along, and leaves them out of the host."""
    if job.engine == "megatron":
        data_context = layout.world / (layout.tensor * layout.pipeline)
        expert_data = layout.world / (layout.expert_tensor * layout.expert * layout.pipeline)
        weights, gradients = f.weights(size.parameters), f.gradients(size.parameters)
        optimizer = f.optimizer(size.dense, size.experts, data_context, expert_data) * (1 - layout.optimizer_on_cpu)
        waits_gradients = gradients * (1 - layout.param_offload)
    else:
        on_gpu = 1 - layout.offload_policy
        weights, gradients, optimizer = (x * on_gpu for x in f.fsdp_sharded(counted.total, layout.shards))
        waits_gradients = 0 * gradients  # they are freed after each update
    return State(
        weights,
        gradients,
        optimizer,
        weights * (1 - layout.param_offload),
        waits_gradients,
        optimizer * (1 - layout.optimizer_offload),
    )


def engine_of(job: Job, layout: Layout, counted: Parameters) -> Engine:
    """vLLM's memory within the share it was given; nothing where the rollout is not vLLM's."""
    s = job.shape
    num_moe = s.num_layers - min(s.first_dense_layers, s.num_layers) if s.num_experts else 0
    tensor, data = layout.rollout_tensor, layout.rollout_data
    weights = f.engine_weights(counted, s, num_moe, tensor, data, job.engine_bytes) * job.has_rollout
    ranks = tensor * data
    working = f.engine_working(s, tensor, layout.engine_tokens, layout.engine_sequences, ranks) * job.has_rollout
    room = (layout.utilisation * job.card) * job.has_rollout - weights - working
    return Engine(weights, working, room)


def cache_tokens(job: Job, layout: Layout, engine: Engine, length: int) -> Number:
    """Tokens that a replica's cache holds in sequences of a length; each of its data ranks has a cache of its own."""
    of_one = f.cache_sequence(job.shape, layout.rollout_tensor, job.engine_bytes, length)
    return larger(engine.room, 0) / of_one * length * layout.rollout_data


def uses(job: Job, layout: Layout) -> dict[str, dict[str, Use]]:
    """Every phase on every kind of stage. Stages that a layout does not have are there too: see `stage_sizes`."""
    counted = count_parameters(job.shape)
    engine = engine_of(job, layout, counted)
    sizes = stage_sizes(job, layout, counted)
    return {
        name: {
            phase: _calibrated(use, job.calibration)
            for phase, use in _phases(job, layout, counted, size, engine).items()
        }
        for name, size in sizes.items()
    }


def _calibrated(use: Use, factor: float) -> Use:
    if factor == 1:
        return use
    parts = use.parts | {CALIBRATION: (factor - 1) * use.torch}
    return Use({name: parts[name] for name in PARTS if name in parts}, use.overlap)


def _phases(job: Job, layout: Layout, counted: Parameters, size: StageSize, engine: Engine) -> dict[str, Use]:
    actor = actor_state(job, layout, size, counted)
    is_multi = layout.world > 1
    outside = f.OUTSIDE_TORCH + f.COMMUNICATION * is_multi
    asleep = _asleep(job, layout)
    reference, critic = _reference(job, size), _critic(job, layout, size, counted)
    reference_waits = reference * (1 - layout.param_offload)
    critic_waits = critic.waits if critic else 0
    once = {"buffers": f.AFTER_FIRST_PASS, "outside torch": outside}
    resting = _state(actor.waits_weights, actor.waits_gradients, actor.waits_optimizer)

    found: dict[str, Use] = {}
    saved, working, head = _training(job, layout, counted, size, with_head=True)
    found["train"] = _use(
        once,
        _state(actor.weights, actor.gradients, actor.optimizer),
        {"other models": reference_waits + critic_waits, "sleeping engine": asleep},
        {"saved activations": saved, "working set": working, "logits": head, "buffers": _visiting(job, counted, True)},
    )
    if critic:
        saved, working, head = _training(job, layout, counted, size, with_head=False)
        found["critic"] = _use(
            once,
            _state(critic.weights, critic.gradients, critic.optimizer),
            {"other models": actor.waits + reference_waits, "sleeping engine": asleep},
            {
                "saved activations": saved,
                "working set": working,
                "logits": head,
                "buffers": _visiting(job, counted, True),
            },
        )
    passes = {"log_prob": job.has_log_prob, "reference": job.has_reference}
    for phase in (name for name, is_there in passes.items() if is_there):
        of_reference = phase == "reference"
        working, head = _forward(job, layout, size, with_entropy=not of_reference)
        others = critic_waits + (actor.waits if of_reference else reference_waits)
        held = (
            _state(reference, 0, 0)
            if of_reference
            else _state(actor.weights, actor.waits_gradients, actor.waits_optimizer)
        )
        found[phase] = _use(
            once,
            held,
            {"other models": others, "sleeping engine": asleep},
            {"working set": working, "logits": head, "buffers": _visiting(job, counted, False)},
        )
    others = {"other models": reference_waits + critic_waits}
    if job.has_rollout:
        found["rollout"] = _use(
            once,
            resting,
            others,
            {
                "engine weights": engine.weights,
                "engine working set": engine.working,
                "KV cache": larger(engine.room, 0),
                "engine overhead": f.ENGINE_OVER,
            },
        )
        # The largest tensor is put together before it is sent: of tensor ranks three times, measured; a stage gets the
        # other's once. Experts and copies need no more than the bucket.
        whole = 2 * counted.embedding * larger(3 * (layout.tensor > 1), layout.pipeline > 1)
        found["weight_sync"] = _use(
            once,
            _state(actor.weights, actor.waits_gradients, actor.waits_optimizer),
            others,
            {
                "buffers": layout.bucket + whole,
                # weights are awake first, the cache only after them (verl workers/engine_workers.py, update_weights)
                "engine weights": engine.weights * (1 - layout.keeps_cache),
                "sleeping engine": asleep,
            },
        )
    found["resume"] = _use(
        _state(actor.weights, actor.gradients, actor.optimizer),
        others,
        {
            "buffers": f.checkpoint_load(actor.optimizer),
            "outside torch": f.OUTSIDE_TORCH_AT_START + f.COMMUNICATION * is_multi,
            "sleeping engine": asleep,
        },
    )
    return found


def _state(weights: Number, gradients: Number, optimizer: Number) -> dict[str, Number]:
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer}


def _use(*of: dict[str, Number]) -> Use:
    parts: dict[str, Number] = {}
    for some in of:
        for name, size in some.items():
            parts[name] = parts.get(name, 0) + size
    overlap = smaller(parts.get("working set", 0), parts.get("logits", 0))
    return Use({name: parts[name] for name in PARTS if name in parts}, overlap)


def _asleep(job: Job, layout: Layout) -> Number:
    """vLLM while others run: its process, or all that it was given where it keeps its cache.

    NCCL's buffers do not sleep: where two GPUs share a replica, 3.25 GiB were measured.
    """
    if not job.has_rollout:
        return 0
    awake = layout.utilisation * job.card + f.ENGINE_OVER
    asleep = f.ENGINE_ASLEEP + f.COMMUNICATION * (layout.rollout_tensor * layout.rollout_data > 1)
    return asleep + (awake - asleep) * layout.keeps_cache


def _reference(job: Job, size: StageSize) -> Number:
    """The reference's weights in bf16, laid out as the actor's. FSDP2 has what is never trained on the host, a layer at
    a time on the GPU (verl workers/engine/fsdp/transformer_impl.py: CPUOffloadPolicy where forward_only)."""
    return f.weights(size.parameters) if job.has_reference and job.engine == "megatron" else 0


def _critic(job: Job, layout: Layout, size: StageSize, counted: Parameters) -> State | None:
    """A second model of the actor's shape, whose head is one row: little enough to leave its size at 0."""
    if not job.has_critic:
        return None
    head = counted.head or counted.embedding * (1 - size.has_embedding)
    smaller_by = size.has_head * head
    without_head = StageSize(
        size.index,
        size.dense_layers,
        size.moe_layers,
        size.has_embedding,
        size.has_head,
        size.dense - smaller_by / layout.tensor,
        size.experts,
    )
    return actor_state(job, layout, without_head, counted)


def _visiting(job: Job, counted: Parameters, is_training: bool) -> Number:
    """FSDP2 puts layers together as they are needed; Megatron has them where they are."""
    if job.engine == "megatron":
        return 0
    return f.fsdp_gathered(counted) + is_training * f.fsdp_reducing(counted)


def _grid(layout: Layout) -> tuple[Number, Number, Number]:
    return layout.tensor, layout.expert, layout.expert_tensor


def _training(
    job: Job, layout: Layout, counted: Parameters, size: StageSize, with_head: bool
) -> tuple[Number, Number, Number]:
    """Bytes kept for the backward pass of all micro batches in flight, of the layer at work, and of the head."""
    s, tensor, tokens = job.shape, layout.tensor, layout.tokens
    row = 2 * s.hidden_size / tensor  # one state of a token
    dense, mixture = _kept_by_layer(job, layout)
    attention = f.attention_saved(s, tensor)
    working_dense = f.dense_working(s, tensor) + attention + f.dense_saved(s, tensor, job.apart)
    working_mixture = f.mixture_working(s, *_grid(layout)) + attention + f.mixture_saved(s, *_grid(layout), job.apart)
    has_dense, has_mixture = size.dense_layers > 0, size.moe_layers > 0
    working = larger(working_dense * has_dense, working_mixture * has_mixture) + row + f.gathered(s, tensor)
    kept_by_fullest = larger(dense * has_dense, mixture * has_mixture)

    layers = size.layers
    all_kept = size.dense_layers * dense + size.moe_layers * mixture
    # uniform: the input of each group, and while a group is computed again all of its layers but the one at work
    group = smaller(layout.recompute_layers, larger(layers, 1))
    uniform, in_group = layers / group * row, (group - 1) * (row + kept_by_fullest)
    # block: the first layers keep their inputs, the others everything
    inputs, whole = layers * row, all_kept * (layers - group) / larger(layers, 1)
    by_token = (1 - layout.full) * (layers * row + all_kept) + layout.full * (
        (1 - layout.block) * uniform + layout.block * (inputs + whole)
    )
    # what is kept of the layer at work is a part of its working set; nothing of it is kept where it is computed again
    counted_twice = (1 - layout.full) * kept_by_fullest
    at_work = working - counted_twice + layout.full * (1 - layout.block) * in_group

    flying = f.in_flight(layout.pipeline, layout.virtual, size.index)
    saved = smaller(flying * tokens, larger(layout.batch_tokens, tokens)) * by_token
    head = _head_training(job, layout) if with_head else 0
    return saved, at_work * tokens, size.has_head * (2 * row * tokens + head)


def _kept_by_layer(job: Job, layout: Layout) -> tuple[Number, Number]:
    """Bytes a token that a dense and a mixture layer keep beside their input, less what is computed again.

    Modules as Megatron names them (transformer_config.py, recompute_modules). core_attn spares nothing and keeps more:
    scores are never whole, the output is kept by the projection after it, and the input must be kept besides.
    """
    s, tensor, m = job.shape, layout.tensor, layout.modules
    norm = 2 * s.hidden_size / tensor
    attention = f.attention_saved(s, tensor)
    attention = attention + m["core_attn"] * f.attention_core_kept(s, tensor)
    attention = attention - m["layernorm"] * norm - m["mla_up_proj"] * f.attention_up_projected(s, tensor)
    dense = f.dense_saved(s, tensor, job.apart)
    dense = dense - m["layernorm"] * (1 - m["mlp"]) * norm - m["mlp"] * (dense - norm)
    if not s.num_experts:
        return attention + dense, 0
    mixture = f.mixture_saved(s, *_grid(layout), job.apart)
    routed = f.received(*_grid(layout)) * s.num_experts_per_token * s.moe_intermediate_size / layout.expert_tensor
    shared = f.gated(job.apart) * f.shared_width(s) / tensor
    parts = m["layernorm"] * norm + m["moe_act"] * f.weighted(job.apart) * routed + m["shared_experts"] * shared
    mixture = mixture - (1 - m["moe"]) * parts - m["moe"] * (mixture - norm)
    return attention + dense, attention + mixture


def _head_training(job: Job, layout: Layout) -> Number:
    if job.engine != "megatron":
        plain = f.logits_fsdp(job.shape) * layout.tokens
        return plain + (_chunk(job) - plain) * layout.fused
    plain = f.logits_training(job.shape, layout.tensor, job.with_entropy) * layout.tokens
    return plain + (f.fused_training(job.shape, layout.tensor, layout.tokens) - plain) * layout.fused


def _chunk(job: Job) -> int:
    """FSDP2's fused head: three fp32 tensors of 512 tokens, and the gradient of the head's weight
    (verl/utils/experimental/torch_functional.py)."""
    return 512 * 3 * 4 * job.shape.vocab_size + 2 * job.shape.vocab_size * job.shape.hidden_size


def _forward(job: Job, layout: Layout, size: StageSize, with_entropy: bool) -> tuple[Number, Number]:
    """Bytes of a pass that keeps nothing: a layer with its input and the stage's, and the head."""
    s, tensor, tokens = job.shape, layout.tensor, layout.log_prob_tokens
    attention = f.attention_forward(s, tensor)
    dense = larger(attention, f.dense_forward(s, tensor)) * (size.dense_layers > 0)
    mixture = larger(attention, f.mixture_forward(s, *_grid(layout))) * (size.moe_layers > 0) if s.num_experts else 0
    working = larger(dense, mixture) + 4 * s.hidden_size / tensor + f.gathered(s, tensor)
    if job.engine == "megatron":
        with_squares = job.with_squares and with_entropy
        plain = f.logits_forward(s, tensor, with_entropy, with_squares) * tokens
        fused = (f.fused_forward(s, tensor) + 4 * s.hidden_size / tensor) * tokens
    else:
        plain, fused = f.logits_fsdp(s) * tokens, _chunk(job)
    return working * tokens, size.has_head * (plain + (fused - plain) * layout.fused)


def host_of(job: Job, layout: Layout) -> Number:
    """Bytes of a node: what its fullest GPUs offload and save, and their processes. vLLM's and Ray's are not known."""
    counted = count_parameters(job.shape)
    sizes = stage_sizes(job, layout, counted)
    most: Number = 0
    for name, size in sizes.items():
        there = _there(name, layout)
        most = larger(most, there * (_offloaded(job, layout, size, counted) + _saved(job, layout, size, counted)))
    trains = job.gpus_per_node * (f.ON_THE_HOST * most + f.PROCESS_ON_HOST)
    return trains if job.engine == "megatron" else larger(trains, _loads(job, layout, counted))


def _loads(job: Job, layout: Layout, counted: Parameters) -> Number:
    """Bytes of the node of rank 0 while FSDP2 loads: the first rank of a copy reads the whole model in fp32, and every
    rank does where the embeddings are tied; then each has its shard of it (verl workers/engine/fsdp/
    transformer_impl.py:_build_module, utils/fsdp_utils.py:fsdp2_load_full_state_dict). A critic is read in its turn."""
    gpus, whole = job.gpus_per_node, 4 * counted.total
    readers = gpus if job.shape.tie_word_embeddings else larger(1, gpus / layout.shards)
    stays = f.SHARD_STAYS_ON_HOST * whole / layout.world if job.has_reference else 0
    return readers * whole + gpus * (f.PROCESS_ON_HOST + larger(stays, f.SHARD_PASSES_HOST * whole / layout.shards))


def _there(name: str, layout: Layout) -> Any:
    """Whether a layout has such a stage beside the first: 1 or 0."""
    return {"first": 1, "middle": (layout.pipeline > 2) + 0, "last": (layout.pipeline > 1) + 0}[name]


def _offloaded(job: Job, layout: Layout, size: StageSize, counted: Parameters) -> Number:
    """Bytes on the host: weights and optimizer that wait there (gradients are dropped), or 16 B a parameter of an
    optimizer that lives there, with the gradients it is given (mcore optimizer/cpu_offloading)."""
    actor = actor_state(job, layout, size, counted)
    critic = _critic(job, layout, size, counted)
    sum_of = 0 * size.parameters
    for state in (actor, critic):
        if state is None:
            continue
        sum_of = sum_of + state.weights + state.optimizer - state.waits_weights - state.waits_optimizer
    models = 2 if critic else 1
    if job.engine == "megatron":
        data_context = layout.world / (layout.tensor * layout.pipeline)
        expert_data = layout.world / (layout.expert_tensor * layout.expert * layout.pipeline)
        whole = f.optimizer(size.dense, size.experts, data_context, expert_data) * 16 / 12
        sum_of = sum_of + models * layout.optimizer_on_cpu * whole
        return sum_of + _reference(job, size) * layout.param_offload
    living = sum(f.fsdp_sharded(counted.total, layout.shards))
    sum_of = sum_of + models * layout.offload_policy * living
    return sum_of + job.has_reference * 4 * counted.total / layout.world  # verl loads all in fp32 there


def _saved(job: Job, layout: Layout, size: StageSize, counted: Parameters) -> Number:
    """Bytes that a checkpoint goes through on the host: weights and, where it is not there already, the optimizer. What
    is copied is pinned, and torch keeps it for the next (mcore dist_checkpointing/strategies/filesystem_async.py)."""
    if not job.saves or job.engine != "megatron":
        return 0 * size.parameters
    states = (actor_state(job, layout, size, counted), _critic(job, layout, size, counted))
    return sum(state.weights + state.waits_optimizer for state in states if state is not None)


def checkpoint_of(job: Job) -> int:
    """Bytes on disk: the optimizer, 12 B a parameter, and weights in Hugging Face's format, 2 B. Measured.

    FSDP2 writes its fp32 weights and the moments: 12 B. A critic is written too.
    """
    total = count_parameters(job.shape).total
    return (14 if job.engine == "megatron" else 12) * total * (2 if job.has_critic else 1)
