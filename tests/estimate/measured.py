"""The runs whose memory was measured (docs/estimate.md), as command lines.

A random Hy3 of 2.01 B parameters on one H200: verl 0.9.1, GRPO on Megatron, vLLM at 0.3. Numbers in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

SHAPE = {
    "num_layers": 12, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_token": 4,
    "num_nextn_predict_layers": 0, "vocab_size": 32768, "max_position_embeddings": 16384,
}  # fmt: skip

COMMON = (
    "model=hy3",
    *(f"model.shape.{key}={value}" for key, value in SHAPE.items()),
    "cluster=gpu_1",
    "cluster.gpu=H200",
    "cluster.gpu_memory_gib=139.8",  # of which vLLM was asked to take 0.3: 41.94
    "parallelism=single",
    "parallelism.engine=megatron",
    "rollout=vllm",
    "rollout.gpu_memory_utilization=0.3",
    "rollout.n=8",
    "trainer.train_batch_size=8",
    "trainer.mini_batch_size=8",
    "trainer.max_prompt_length=64",
    "trainer.max_response_length=960",
    "trainer.save_every=-1",
)


@dataclass(frozen=True)
class Run:
    """What was measured. train: torch's peak in the second update; whole_gpu: after a weight sync, the engine awake."""

    overrides: tuple[str, ...]
    train: float
    allocated: tuple[float, float]  # verl's metric, steps 1 and 2
    set_by: str  # the phase that its second value came from
    reserved: float
    whole_gpu: float
    process: float  # of the trainer on the GPU, NVML
    host: float


def budget(tokens: int) -> tuple[str, str]:
    return f"trainer.max_token_len_per_gpu={tokens}", f"trainer.log_prob_max_token_len_per_gpu={tokens}"


RUNS = {
    "A": Run(
        (*COMMON, "memory=full_recompute", *budget(16384)),
        36.632, (33.978, 36.632), "train", 37.189, 81737 / 1024, 40982 / 1024, 2.96,
    ),
    "B": Run(
        (*COMMON, "memory=full_offload", *budget(32768)),
        39.358, (34.048, 39.358), "train", 39.600, 47087 / 1024, 43450 / 1024, 36.2,
    ),
    "C": Run(
        (*COMMON, "memory=full_recompute", "memory.use_fused_kernels=false", *budget(16384)),
        38.884, (34.009, 40.011), "log_prob", 41.643, 81789 / 1024, 45528 / 1024, 2.96,
    ),
}  # fmt: skip


# The runs of benchmarks/gpu: one H200, gradient_accumulation_fusion and bias_activation_fusion off, sequences exactly
# full. Another shape, of 0.82 B parameters, and the above one with the experiment's own settings.
WIDE = SHAPE | {
    "num_layers": 8, "hidden_size": 1536, "num_attention_heads": 12, "intermediate_size": 4096,
    "moe_intermediate_size": 512, "num_experts_per_token": 6, "vocab_size": 65536,
}  # fmt: skip

APART = "+model.transformer_config.bias_activation_fusion=false"
OF_WIDE = (
    *(c for c in COMMON if not c.startswith(("model.shape.", "trainer.max_"))),
    *(f"model.shape.{key}={value}" for key, value in WIDE.items()),
    APART,
    "trainer.max_prompt_length=960",
    "trainer.max_response_length=64",
    "memory=full_recompute",
)
NO_RECOMPUTE = ("memory.recompute_granularity=null", "memory.recompute_method=null", "memory.recompute_num_layers=null")


@dataclass(frozen=True)
class Peaks:
    """torch's peak by phase, in the second and later steps; host: of the trainer's process, its resident memory."""

    overrides: tuple[str, ...]
    train: float
    log_prob: float
    weight_sync: float
    reference: float | None = None
    host: float | None = None


PEAKS = {
    "full recompute": Peaks((*OF_WIDE, *budget(16384)), 16.499, 15.276, 15.922),
    "selective recompute": Peaks(
        (*OF_WIDE, *NO_RECOMPUTE[1:], "memory.recompute_granularity=selective", *budget(8192)), 19.796, 14.573, 15.899
    ),
    "no recompute": Peaks((*OF_WIDE, *NO_RECOMPUTE, *budget(8192)), 19.549, 14.573, 15.899),
    "long sequences": Peaks(
        (*(o for o in OF_WIDE if "max_prompt" not in o), "trainer.max_prompt_length=8128", *budget(16384)),
        16.503, 15.280, 15.925,
    ),
    "whole logits, entropy": Peaks(
        (*OF_WIDE, "memory.use_fused_kernels=false", "algorithm.entropy_coeff=0.001", *budget(8192)),
        20.159, 19.924, 15.931,
    ),
    "reference": Peaks(
        (*OF_WIDE, "algorithm.use_kl_loss=true", *budget(16384)), 18.093, 16.870, 17.515, reference=16.869, host=3.000
    ),
    "optimizer on the host": Peaks(
        (*(o for o in OF_WIDE if not o.startswith("memory=")), "memory=cpu_optimizer", *budget(16384)),
        7.377, 3.114, 3.760, host=18.778,
    ),
    "before it ran out of memory": Peaks(
        (*OF_WIDE, *NO_RECOMPUTE[1:], "memory.recompute_granularity=selective", *budget(6144)), 18.361, 14.397, 15.893
    ),
    "2 B, offloaded": Peaks((*COMMON, APART, "memory=full_offload", *budget(16384)), 36.976, 5.351, 6.017),
}  # fmt: skip

# Kept back until the formulas were done: the estimate is held to what is promised of it, not to one part in a hundred.
KEPT_BACK = Peaks(
    (*(o for o in COMMON if "max_prompt" not in o), APART, "trainer.max_prompt_length=4032",
     "memory=full_recompute", *NO_RECOMPUTE[1:], "memory.recompute_granularity=selective",
     "memory.recompute_modules=[moe_act,layernorm]", "memory.use_fused_kernels=false", *budget(12288)),
    46.400, 38.494, 36.004,
)  # fmt: skip


@dataclass(frozen=True)
class OfTwo:
    """Two GPUs to a job: torch's peaks by stage (update, old log-probabilities, weight sync), of the fullest rank; the
    GPU's driver's count of all, in the update and the weight sync."""

    overrides: tuple[str, ...]
    peaks: dict[str, tuple[float, float, float]]
    whole: tuple[float, float]


ON_TWO = (*OF_WIDE, *budget(16384), "cluster.gpus_per_node=2")
TWO = {
    "tensor": OfTwo(
        (*ON_TWO, "parallelism.tensor=2", "rollout.tensor=2"), {"all": (10.205, 9.585, 9.638)}, (18.445, 18.604)
    ),
    "expert": OfTwo((*ON_TWO, "parallelism.expert=2"), {"all": (11.523, 10.039, 9.889)}, (18.307, 17.963)),
    "pipeline": OfTwo(
        (*ON_TWO, "parallelism.pipeline=2"),
        {"first": (9.106, 7.930, 8.709), "last": (9.994, 8.911, 9.784)},
        (16.361, 17.545),
    ),
    "context": OfTwo((*ON_TWO, "parallelism.context=2"), {"all": (11.937, 10.714, 11.359)}, (17.812, 18.518)),
}

# A trainer that offloads nothing and has saved: what its process then holds of the host's memory, 2.94 before.
SAVED = (*(o for o in OF_WIDE if "save_every" not in o), "trainer.save_every=1", *budget(16384))
HOST_OF_SAVED = 16.204
RESUME_OF_SAVED = 19.792

# FSDP2 while it loads: at most, of the host's memory, in all processes of the node.
FSDP2 = (*(o for o in OF_WIDE if not o.startswith(("parallelism", "memory", "+model"))), "parallelism=fsdp2",
         "parallelism.engine=fsdp2", "memory=resident", *budget(8192))  # fmt: skip
HOST_OF_FSDP2 = {
    FSDP2: 7.555,
    (*FSDP2, "algorithm.use_kl_loss=true"): 15.524,
    (*FSDP2, "algorithm.use_kl_loss=true", "cluster.gpus_per_node=2"): 11.836 + 9.101,
}
