"""The rollout without a GPU: a Ray actor that generates with transformers, and verl's two ends of it.

`EmbeddedReplica` starts the server and hands it to verl's agent loops; `EmbeddedServerAdapter` lives in the training
worker and brings the server new weights. See `engine` for where verl learns of them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Generator, Iterable
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, TokenOutput

from hysweep.embedded.sampling import SAMPLING_PARAMS, Completion, Request, Seeds, generate

GATHER_S = 0.02  # a batch waits this long for its siblings: verl sends a group's requests one by one
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PER_EXPERT = re.compile(r"(?P<experts>.*\.experts)\.(?P<index>\d+)\.(?P<part>gate_proj|up_proj|down_proj)\.weight")


class EmbeddedServer:
    """One replica of the rollout: keeps the weights that it was last given, and continues prompts with them."""

    def __init__(self, config: Any, model_config: Any, replica_rank: int, has_own_weights: bool) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)  # more make a tiny model slower, and there is a trainer beside it
        self.config = omega_conf_to_dataclass(config)
        model = omega_conf_to_dataclass(model_config)
        dtype = _dtype(self.config.dtype)
        if has_own_weights:
            self.model = AutoModelForCausalLM.from_pretrained(model.local_path, config=model.hf_config, dtype=dtype)
        else:
            self.model = AutoModelForCausalLM.from_config(model.hf_config, dtype=dtype)
        self.model.eval()
        self.has_weights = has_own_weights
        self.eos_ids = _eos_ids(model)
        self.pad_id = model.tokenizer.pad_token_id or 0
        # replicas share a group's requests out as they come, so each counts for itself and draws its own
        self.seeds = Seeds((self.config.seed, replica_rank))
        self.global_steps: int | None = None
        self.queue: asyncio.Queue[tuple[Request, asyncio.Future[Completion]]] = asyncio.Queue()
        self.worker: asyncio.Task[None] | None = None
        self.model_lock = asyncio.Lock()
        self.gate = asyncio.Event()
        self.gate.set()
        self.rejects = False

    # Generation

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **extra: Any
    ) -> TokenOutput:
        """Continue a prompt. `extra` is what verl says to a multimodal server; here it must say nothing."""
        unknown = [name for name, value in extra.items() if name != "priority" and value]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: the embedded rollout server takes text only")
        if not self.has_weights:
            raise RuntimeError("the embedded rollout server was asked to generate before it was given weights")
        if not self.gate.is_set():
            if self.rejects:
                return self._output(Completion(), sampling_params)
            await self.gate.wait()
        if self.worker is None:
            self.worker = asyncio.create_task(self._work())
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        await self.queue.put((self._request(list(prompt_ids), sampling_params), answer))
        return self._output(await answer, sampling_params)

    def _request(self, prompt_ids: list[int], params: dict[str, Any]) -> Request:
        params = dict(params)
        params.pop("logprobs", None)
        if params.pop("repetition_penalty", 1.0) != 1.0:
            raise ValueError("repetition_penalty: the embedded rollout server has none; leave it at 1.0")
        limit = params.pop("max_tokens", None) or params.pop("max_new_tokens", None)
        seed = params.pop("seed", None)
        unknown = [name for name in params if name not in SAMPLING_PARAMS]
        if unknown:
            known = ", ".join(SAMPLING_PARAMS)
            raise ValueError(f"{', '.join(unknown)}: the embedded rollout server does not know it; it knows {known}")
        room = self._context() - len(prompt_ids)
        if room < 1:
            raise ValueError(
                f"a prompt of {len(prompt_ids)} tokens leaves no room in a context of {self._context()}; "
                "lower data.max_prompt_length"
            )
        longest = self.config.prompt_length + self.config.response_length
        limit = limit or min(self.config.response_length, longest - len(prompt_ids))
        if seed is None:
            seed = self.seeds.take((self.global_steps, tuple(prompt_ids), tuple(sorted(params.items()))))
        return Request(prompt_ids, max_tokens=max(1, min(limit, room)), seed=seed, **params)

    def _context(self) -> int:
        positions = self.model.config.max_position_embeddings
        return min(self.config.max_model_len or positions, positions)

    async def _work(self) -> None:
        while True:
            batch = [await self.queue.get()]
            await asyncio.sleep(GATHER_S)
            while not self.queue.empty() and len(batch) < self.config.max_num_seqs:
                batch.append(self.queue.get_nowait())
            try:
                async with self.model_lock:
                    completions = await asyncio.to_thread(
                        generate,
                        self.model,
                        [request for request, _ in batch],
                        eos_ids=self.eos_ids,
                        pad_id=self.pad_id,
                        is_interrupted=lambda: not self.gate.is_set(),
                    )
            except Exception as e:  # whoever asked must hear of it; the next batch may be well
                for _, answer in batch:
                    answer.set_exception(e)
            else:
                for (_, answer), completion in zip(batch, completions, strict=True):
                    answer.set_result(completion)

    def _output(self, completion: Completion, params: dict[str, Any]) -> TokenOutput:
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.log_probs if params.get("logprobs") else None,
            stop_reason="completed" if completion.is_whole else "aborted",
            num_preempted=0,
            extra_fields={"global_steps": self.global_steps},
        )

    # Weights

    async def load_weights(self, state: dict[str, torch.Tensor], global_steps: int | None = None) -> None:
        async with self.model_lock:
            missing, unexpected = self.model.load_state_dict(state, strict=False)
        tied = set(getattr(self.model, "_tied_weights_keys", None) or [])
        missing = [key for key in missing if key not in tied]
        if missing or unexpected:
            raise RuntimeError(
                "the trainer's weights do not fit the rollout's model: "
                f"missing {missing[:5]}, unexpected {unexpected[:5]}"
            )
        self.has_weights = True
        await self.set_global_steps(global_steps if global_steps is not None else self.global_steps)

    async def set_global_steps(self, global_steps: int | None) -> None:
        if global_steps != self.global_steps:
            self.seeds.forget()
        self.global_steps = global_steps

    # Interruption, for the trainers that do not wait for the last response

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """End what is being generated where it is, and hold what comes (or turn it away) until `resume_generation`."""
        self.rejects = reject_request
        self.gate.clear()

    async def resume_generation(self) -> None:
        self.gate.set()

    # What there is nothing to do for: the weights and the cache of a CPU model need no room made.

    async def wake_up(self, tags: list[str] | None = None) -> None: ...

    async def sleep(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def start_profile(self, **_: Any) -> None: ...

    async def stop_profile(self) -> None: ...


class EmbeddedReplica(RolloutReplica):
    """Starts the server of one replica, beside the training worker that feeds it."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ValueError(
                f"actor_rollout_ref.rollout.(tensor x data x pipeline)_parallel_size = {self.world_size}: "
                "a replica of the embedded rollout is one process; it must be 1"
            )
        node_id = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        options = {
            "name": server_name(self.replica_rank, self.name_suffix),
            "num_cpus": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
            "max_concurrency": self.max_concurrency,
        }
        has_own_weights = (
            self.rollout_mode != RolloutMode.HYBRID
        )  # a hybrid one is given the trainer's before it is used
        server = ray.remote(EmbeddedServer).options(**options)
        self._server_handle = server.remote(self.config, self.model_config, self.replica_rank, has_own_weights)
        self._server_address = server_name(self.replica_rank, self.name_suffix)
        self.servers = [self._server_handle]
        await self._server_handle.clear_kv_cache.remote()  # it is up, or this says why not


class EmbeddedServerAdapter(BaseRollout):
    """The trainer's end: sends its weights to the server of its replica."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._server: Any = None

    @property
    def server(self) -> Any:
        if self._server is None:  # it is started after this
            self._server = ray.get_actor(server_name(self.replica_rank))
        return self._server

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: Any = None,
        **_: Any,
    ) -> None:
        if wire_format != "named_tensors":
            raise ValueError(
                f"wire format {wire_format}: the embedded rollout takes named tensors only; "
                "set actor_rollout_ref.rollout.checkpoint_engine.backend=naive"
            )
        if peft_config is not None:
            raise ValueError(
                "actor_rollout_ref.model.lora.merge = False: the embedded rollout has no adapters; set it to True"
            )
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in fuse_experts(weights).items()}
        await self.server.load_weights.remote(state, global_steps)

    async def resume(self, tags: list[str]) -> None:
        await self.server.wake_up.remote(tags=tags)

    async def release(self) -> None:
        await self.server.sleep.remote()


def server_name(replica_rank: int, suffix: str = "") -> str:
    return f"embedded_server_{replica_rank}{suffix}"


def fuse_experts(weights: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Weights by the names of a published checkpoint, in which each expert has its own, as transformers keeps them.

    verl's trainer takes the experts apart (`unfuse_moe_params`); transformers has one tensor for all experts of a
    layer.
    """
    fused: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    for name, tensor in weights:
        match = PER_EXPERT.fullmatch(name)
        if match:
            experts.setdefault(match["experts"], {}).setdefault(int(match["index"]), {})[match["part"]] = tensor
        else:
            fused[name] = tensor
    for name, by_index in experts.items():
        parts = [by_index[i] for i in range(len(by_index))]
        fused[f"{name}.gate_up_proj"] = torch.stack([torch.cat([p["gate_proj"], p["up_proj"]]) for p in parts])
        fused[f"{name}.down_proj"] = torch.stack([p["down_proj"] for p in parts])
    return fused


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"actor_rollout_ref.rollout.dtype = {name}: not known here; try one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _eos_ids(model_config: Any) -> frozenset[int]:
    """A checkpoint may end its responses with more than its tokenizer's one token."""
    eos = getattr(model_config.generation_config, "eos_token_id", None)
    eos = model_config.tokenizer.eos_token_id if eos is None else eos
    return frozenset(eos if isinstance(eos, (list, tuple)) else [eos])
