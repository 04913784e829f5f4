"""What verl finds in the plugin: the platform, the engines, the rollout, the sampler."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.plugin.platform.platform_manager import _create_platform, _detect_platform_name
from verl.workers.engine import EngineRegistry
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry

from hysweep.embedded import engine, rollout, sampler
from hysweep.embedded.platform import PlatformCPU

pytestmark = pytest.mark.verl


def test_the_platform_is_there_when_asked_for_and_never_found_by_itself(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    assert isinstance(_create_platform(_detect_platform_name()), PlatformCPU)
    monkeypatch.delenv("VERL_PLATFORM")
    assert _detect_platform_name() != "cpu"


def test_the_platform_answers_everything_that_verl_may_ask():
    assert not PlatformCPU.__abstractmethods__
    assert PlatformRegistry.get("cpu") is PlatformCPU
    assert issubclass(PlatformCPU, PlatformBase)


def test_its_device_module_is_torch_cpu_and_keeps_no_books():
    module = PlatformCPU().device_module
    assert module == torch.cpu
    assert module.max_memory_allocated() == module.memory_reserved(0) == 0
    assert module.empty_cache() is None
    assert not module.is_available()
    free, total = module.mem_get_info()
    assert 0 < free <= total
    assert torch.zeros(1).to(PlatformCPU().current_device()).device.type == "cpu"


def test_outside_of_a_worker_the_backend_is_only_a_name(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert PlatformCPU().communication_backend_name() == "gloo"
    assert not torch.distributed.is_initialized()


def test_verl_finds_the_engines_and_both_ends_of_the_rollout():
    assert EngineRegistry._engines["language_model"]["fsdp2"]["cpu"] is engine.CPUEngineWithLMHead
    assert EngineRegistry._engines["value_model"]["fsdp2"]["cpu"] is engine.CPUEngineWithValueHead
    assert get_rollout_class("embedded", "async") is rollout.EmbeddedServerAdapter
    assert RolloutReplicaRegistry.get("embedded") is rollout.EmbeddedReplica


def test_fsdp1_is_refused_with_the_cure():
    cpu = object.__new__(engine.CPUEngineWithLMHead)
    cpu.engine_config = SimpleNamespace(strategy="fsdp")
    with pytest.raises(ValueError, match=r"strategy = fsdp: .*try fsdp2"):
        cpu._build_fsdp_module(None)


def buffer(filter_groups=None, mode="sync", **trainer):
    config = OmegaConf.create(
        {
            "trainer": {"v1": {"sync": trainer, "sampler": {"sampler_kwargs": {}}}},
            "algorithm": {"filter_groups": filter_groups},
            "data": {"train_batch_size": 8},
        }
    )
    return sampler.FastReplayBuffer(
        trainer_mode=mode,
        trainer_config=config.trainer.v1.sync,
        max_off_policy_threshold=1,
        max_off_policy_strategy="drop",
        sampler_kwargs=config.trainer.v1.sampler.sampler_kwargs,
        refill_fn=lambda *_: None,
    )


def test_the_buffer_is_asked_often():
    assert buffer().poll_interval == sampler.POLL_S < 0.2
    assert buffer().filter_groups_metric is None


def test_the_buffer_filters_groups_as_the_stock_one_would():
    made = buffer({"enable": True, "metric": "acc", "max_inflight_gen_batches": 3})
    found = (made.filter_groups_metric, made.train_batch_size, made.gen_batch_size, made.max_inflight_gen_batches)
    assert found == ("acc", 8, 1, 3)
    assert buffer({"enable": False, "metric": "acc"}).filter_groups_metric is None


def test_the_buffer_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match=r"filter_groups.metric = null"):
        buffer({"enable": True, "metric": None})
    with pytest.raises(ValueError, match="trainer_mode = separate_async"):
        buffer(mode="separate_async")
