"""What is run, as command lines of `hysweep run`: groups of cases that run side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from model import shape_overrides

HERE = Path(__file__).parent
CACHE_GIB = 1

# Of the environment, not of the experiment: it has no flash-attn and no apex. The activation is as the runs of
# docs/benchmarks.md had it.
PLAIN = (
    "+model.transformer_config.attention_backend=fused",
    "+model.transformer_config.gradient_accumulation_fusion=false",
    "+model.transformer_config.bias_activation_fusion=false",
)
# What Hy3's router must have on Megatron (conf/model/hy3.yaml); the shipped tiny one is made for the CPU.
ROUTER = (
    "+model.transformer_config.moe_router_enable_expert_bias=true",
    "+model.transformer_config.moe_router_bias_update_rate=0",
    "+model.transformer_config.moe_router_load_balancing_type=none",
    "+model.transformer_config.moe_grouped_gemm=true",
)
# Cases that share a GPU: vLLM would take what a neighbour allocates meanwhile for its own, so its cache is of one size.
SHARED = (
    f"+verl.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes={CACHE_GIB * 2**30}",
    "rollout.gpu_memory_utilization=0.1",
)
# One of each where the defaults are for a node: a case is one worker, and there are many.
SMALL = (
    "rollout.enforce_eager=true",
    "rollout.agent_workers=1",
    "reward.workers=1",
    "data.loader_workers=0",
    "cluster.object_store_gib=1",
    "cluster.timeout_min=9",
    "trainer.validate_before=false",
    "trainer.validate_every=-1",
    "trainer.save_every=-1",
    "+verl.transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
)


@dataclass(frozen=True)
class Case:
    """
    overrides    beside those of its model and of its group
    model        of `model.SHAPES`; None: the tiny Hy3 that hysweep ships, with its task
    gpus         that it takes; on: which one is the first, of those that there are
    prompt, response   tokens, exactly
    prompts      rows of a step are `prompts` x `n`
    is_alone     it has its GPU to itself, so that vLLM measures its own share
    by_hand      verl is started without hysweep, by the command line that hysweep would start; or one refused
    env          of hysweep, so of the trainer
    """

    name: str
    overrides: tuple[str, ...] = ()
    model: str | None = "wide"
    gpus: int = 1
    on: int = 0
    prompt: int = 960
    response: int = 64
    prompts: int = 8
    n: int = 8
    rows: str = "prompts"
    steps: int = 3
    is_alone: bool = False
    by_hand: bool = False
    env: dict[str, str] = field(default_factory=dict)

    def command(self, models: Path, gpu: str, gpu_gib: float) -> list[str]:
        """The overrides of `hysweep run`."""
        cluster = (
            "cluster=gpu_1",
            f"cluster.gpu={gpu}",
            f"cluster.gpu_memory_gib={gpu_gib}",
            f"cluster.gpus_per_node={self.gpus}",
            f"cluster.cpus_per_node={8 * self.gpus}",
        )
        shared = () if self.is_alone else SHARED
        if self.model is None:
            task = (
                "parallelism=single",
                "parallelism.engine=megatron",
                "memory=full_recompute",
                "rollout=vllm",
                "memory.use_fused_kernels=false",  # which want a hidden_size that 128 divides
                "model.external_lib=memory_by_phase",
                *ROUTER,
            )
            return last_said(
                *cluster, *task, *PLAIN, *SMALL, *shared, f"trainer.total_steps={self.steps}", *self.overrides
            )
        folder = models / self.model
        return last_said(
            "experiment=hy3_dapo_math",
            *shape_overrides(self.model),
            *cluster,
            "parallelism=single",
            "parallelism.engine=megatron",
            *(() if "parallelism=fsdp2" in self.overrides else PLAIN),
            *SMALL,
            *shared,
            f"model.path={folder}",
            "model.external_lib=memory_by_phase",
            f"data.train_files=[{folder}/{self.rows}-{self.prompt}.parquet]",
            f"data.val_files=[{folder}/{self.rows}-{self.prompt}.parquet]",
            f"reward.function_path={HERE / 'reward.py'}",
            f"reward.overlong_buffer_len={self.response // 2}",
            f"trainer.max_prompt_length={self.prompt}",
            f"trainer.max_response_length={self.response}",
            f"trainer.train_batch_size={self.prompts}",
            f"trainer.mini_batch_size={self.prompts}",
            f"rollout.n={self.n}",
            f"trainer.total_steps={self.steps}",
            "rollout.tensor=1",
            "rollout.max_model_len=null",
            "+verl.actor_rollout_ref.rollout.ignore_eos=true",
            *budget(16384),
            *self.overrides,
        )


def last_said(*words: str) -> list[str]:
    """Of several values for a key the last; what was added with a + stays so."""
    found: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        found[key] = word if word.startswith("+") or not found.get(key, "").startswith("+") else f"+{word}"
    return list(found.values())


def budget(tokens: int) -> tuple[str, str]:
    return f"trainer.max_token_len_per_gpu={tokens}", f"trainer.log_prob_max_token_len_per_gpu={tokens}"


COMPOSED = {"MEMORY_COMPOSITION": "1"}
RESIDENT = ("memory=full_recompute",)
NO_KERNELS = ("memory.use_fused_kernels=false",)
# FSDP: whole layers are computed again, sequences are padded, attention is torch's own.
FSDP = (
    "model.name=hy3",  # what its option says for Megatron is then nobody's own
    "parallelism=fsdp2",
    "parallelism.engine=fsdp2",
    "memory=resident",
    "memory.use_gradient_checkpointing=true",
    "+verl.actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    *budget(8192),
)
ON_HY3 = ("model.external_lib=fsdp_of_hy3",)
LAST = ("memory.recompute_granularity=selective", "memory.recompute_modules=[moe_act,layernorm]")

GROUPS: dict[str, tuple[Case, ...]] = {
    # Four algorithms as one sweep on the shipped task: it learns, or something is wrong.
    "tiny": (
        Case(
            "tiny",
            ("algorithm=grpo,rloo,gspo,cispo", "study.max_parallel=4", "trainer.validate_every=-1"),
            None,
            steps=12,
        ),
    ),
    # The others that are shipped, as two sweeps; gdpo is missing, for that task's reward has no parts.
    "tiny_others": tuple(
        Case(name, (f"algorithm={','.join(of)}", f"study.max_parallel={len(of)}"), None, steps=3, on=on)
        for on, (name, of) in enumerate(
            {
                "losses": ("clip_cov", "dapo", "dppo_kl", "dppo_tv", "dro", "geo_mean", "gpg", "kl_cov", "sapo"),
                "advantages": (
                    "dr_grpo",
                    "grpo_passk",
                    "opo",
                    "optimal_token_baseline",
                    "ppo",
                    "reinforce_plus_plus",
                    "reinforce_plus_plus_baseline",
                    "remax",
                    "tir_optimal_token_baseline",
                ),
            }.items()
        )
    ),
    # The experiment's own settings on one GPU; and what becomes of its attention where flash-attn is not installed.
    "experiment": (
        Case("tiny experiment", (), "tiny", on=1),
        Case("flash attention", ("model.transformer_config.attention_backend=flash",), "tiny", on=0, steps=1),
    ),
    # What the estimate says of training, against what torch allocates.
    "memory": (
        Case("full recompute", RESIDENT, on=0, env=COMPOSED),
        Case("selective recompute", ("memory=selective_recompute", *budget(8192)), on=1, env=COMPOSED),
        Case(
            "no recompute",
            (
                "memory=full_recompute",
                "memory.recompute_granularity=null",
                "memory.recompute_method=null",
                "memory.recompute_num_layers=null",
                *budget(8192),
            ),
            on=1,
            env=COMPOSED,
        ),
        Case("long sequences", RESIDENT, prompt=8128, prompts=2, on=1, env=COMPOSED),
        Case(
            "whole logits, entropy",
            (*RESIDENT, *NO_KERNELS, "algorithm.entropy_coeff=0.001", *budget(8192)),
            on=0,
            env=COMPOSED,
        ),
        Case("fsdp2", (*FSDP, *ON_HY3), on=1, env=COMPOSED),
    ),
    # hysweep against the same command line typed by hand: one GPU each, nothing else runs.
    "pair": (
        Case("b2 grpo", (), "b2", is_alone=True, steps=10, on=0),
        Case("b2 grpo by hand", (), "b2", is_alone=True, steps=10, on=1, by_hand=True),
    ),
    "algorithms": (
        Case("b2 rloo", ("algorithm=rloo",), "b2", on=0),
        Case("b2 gspo", ("algorithm=gspo",), "b2", on=0),
        Case("b2 cispo", ("algorithm=cispo",), "b2", on=1),
    ),
    "more": (
        Case("reference", ("memory=full_recompute", "algorithm.use_kl_loss=true"), on=1, env=COMPOSED),
        Case("optimizer on the host", ("memory=cpu_optimizer",), on=1, env=COMPOSED),
        Case(
            "out of memory",
            (
                "memory=selective_recompute",
                "trainer.save_every=1",
                "trainer.checkpoints_kept=1",
                "data.shuffle=false",
                "trainer.total_steps=4",
            ),
            rows="ramp",
            on=1,
            env={"MEMORY_LIMIT_GIB": "21"},
        ),
    ),
    # A worker dies after two steps; the next attempt, with the same layout, goes on from the second's checkpoint.
    "resume": (
        Case(
            "killed before its third update",
            ("memory=full_recompute", "trainer.save_every=1", "trainer.checkpoints_kept=1", "trainer.total_steps=4"),
            on=1,
            env={"KILL_AT_UPDATE": "3"},
        ),
    ),
    # Kept until the formulas are done.
    "last": (
        Case(
            "kept until the end",
            (
                "memory=full_recompute",
                "memory.recompute_method=null",
                "memory.recompute_num_layers=null",
                *LAST,
                *NO_KERNELS,
                *budget(12288),
            ),
            "b2",
            prompt=4032,
            prompts=3,
            on=1,
        ),
    ),
    "two": (
        Case("tensor 2", (*RESIDENT, "parallelism.tensor=2", "rollout.tensor=2"), gpus=2, env=COMPOSED),
        Case("expert 2", (*RESIDENT, "parallelism.expert=2"), gpus=2, env=COMPOSED),
        Case("pipeline 2", (*RESIDENT, "parallelism.pipeline=2"), gpus=2, env=COMPOSED),
        Case("context 2", (*RESIDENT, "parallelism.context=2"), gpus=2, env=COMPOSED),
        Case(
            "refused: no sequence parallel",
            (*RESIDENT, "parallelism.tensor=2", "+verl.actor_rollout_ref.actor.megatron.sequence_parallel=false"),
            gpus=2,
            by_hand=True,
            steps=1,
        ),
        Case(
            "refused: stages of 8 layers",
            (*RESIDENT, "parallelism.pipeline=2", "parallelism.first_stage_layers=8"),
            gpus=2,
            by_hand=True,
            steps=1,
        ),
    ),
    # A critic, with all that it takes over from the actor; what of FSDP2 waits on the host.
    "critics": (
        Case("ppo, experiment", ("algorithm=ppo",), env=COMPOSED),
        Case("ppo, full recompute", (*RESIDENT, "algorithm=ppo"), env=COMPOSED),
        Case("fsdp2, reference", (*FSDP, *ON_HY3, "algorithm.use_kl_loss=true"), env=COMPOSED),
    ),
    # Two kinds of parallelism at once, on two GPUs; a checkpoint of two ranks; vLLM with CUDA graphs.
    "mixed": (
        Case(
            "tensor 2, expert 2",
            (
                *RESIDENT,
                "parallelism.tensor=2",
                "parallelism.expert=2",
                "parallelism.expert_tensor=1",
                "rollout.tensor=2",
            ),
            gpus=2,
            env=COMPOSED,
        ),
        Case("context 2, expert 2", (*RESIDENT, "parallelism.context=2", "parallelism.expert=2"), gpus=2, env=COMPOSED),
        Case(
            "killed, on two ranks",
            (
                *RESIDENT,
                "parallelism.expert=2",
                "trainer.save_every=1",
                "trainer.checkpoints_kept=1",
                "trainer.total_steps=4",
            ),
            gpus=2,
            env={"KILL_AT_UPDATE": "3"},
        ),
        Case("graphs", (*RESIDENT, "rollout.enforce_eager=false"), on=1, env=COMPOSED),
    ),
}
