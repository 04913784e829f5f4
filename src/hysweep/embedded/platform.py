"""The CPU as a platform of verl's, loaded through the entry-point group `verl.plugins`.

Every process that imports verl loads this, on a GPU cluster too, so it imports nothing but torch and does nothing
until `VERL_PLATFORM=cpu` asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

PROCESS_GROUP_TIMEOUT = timedelta(minutes=30)


class CPUDeviceModule(ModuleType):
    """`torch.cpu`, with the calls that verl makes on `torch.<device>` and that torch.cpu does not have."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    # verl has places that ask whether the device module is torch.cpu
    def __eq__(self, other: object) -> bool:
        return other is torch.cpu or other is self

    def __hash__(self) -> int:
        return hash(torch.cpu)

    @staticmethod
    def is_available() -> bool:
        return False  # that is: no accelerator, whose memory verl would keep books about

    @staticmethod
    def current_device() -> str:
        return "cpu"

    @staticmethod
    def get_device_name(*_: Any) -> str:
        return "CPU"

    @staticmethod
    def mem_get_info(*_: Any) -> tuple[int, int]:
        import psutil

        memory = psutil.virtual_memory()
        return memory.available, memory.total

    @staticmethod
    def get_rng_state(*_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def _zero(*_: Any, **__: Any) -> int:
        return 0

    @staticmethod
    def _nothing(*_: Any, **__: Any) -> None:
        return None

    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _zero
    empty_cache = ipc_collect = reset_peak_memory_stats = reset_accumulated_memory_stats = _nothing


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CPUDeviceModule("hysweep.embedded.platform.cpu")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Never found, only asked for by name: else a GPU cluster's head node, which has no GPU, would become a CPU.
        return False

    def current_device(self) -> str:
        return "cpu"  # verl moves tensors to what this returns

    def device_count(self) -> int:
        return 1

    def communication_backend_name(self) -> str:
        """The backend's name; in a worker that has no process group yet, also the group.

        verl makes the group of "cpu:gloo,<device>:<backend>", and torch refuses to be told about the cpu twice.
        verl looks whether there is a group already only after it has asked for this name, so this is the place to
        make it. It is also the last call before a worker looks up its engine, and the worker of a critic has not
        imported `model.external_lib` by then.
        """
        import hysweep.embedded.engine  # noqa: F401

        distributed = torch.distributed
        in_a_group = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
        if in_a_group and not distributed.is_initialized():
            distributed.init_process_group(
                backend="cpu:gloo",
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
                timeout=PROCESS_GROUP_TIMEOUT,
                init_method=os.environ.get("DIST_INIT_METHOD"),
            )
        return "gloo"

    def ray_resource_name(self) -> str:
        return "GPU"  # slots of `ray start --num-gpus=N`: verl counts nothing else but NPUs

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def is_ipc_supported(self) -> bool:
        return False

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    # What there is nothing to do for.

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def empty_cache(self) -> None: ...

    def set_allocator_settings(self, settings: str) -> None: ...

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def cudart(self) -> None: ...
