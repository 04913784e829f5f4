"""Why a trainer ended: one cause, its phase, and the lines that say so, whatever else the log holds."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from hysweep.launch.ending import classify, last_trouble, not_a_number, plain, read_log, traces_of
from hysweep.track import Cause, Phase

VERL = "/site-packages/verl"
MAIN = (f"{VERL}/trainer/main_ppo.py", "main")
FIT = (f"{VERL}/trainer/ppo/v1/trainer_base.py", "fit")
WORKER = f"{VERL}/workers/engine_workers.py"


def trace(error: str, *calls: tuple[str, str], who: str = "") -> list[str]:
    """A traceback as Python prints it and Ray passes it on."""
    lines = ["Traceback (most recent call last):"]
    for file, function in calls or (MAIN,):
        lines += [f'  File "{file}", line 12, in {function}', "    do()", "    ^^^^"]
    lines += error.splitlines()
    return [f"\x1b[36m({who} pid=77, ip=10.0.0.1)\x1b[0m {line}" for line in lines] if who else lines


def remote(error: str, *calls: tuple[str, str]) -> list[str]:
    """What a driver dies of when a worker raised: the worker's frames after its own."""
    kind = error.partition(":")[0].rpartition(".")[2]
    lines = trace("", MAIN)
    lines += [f"ray.exceptions.RayTaskError({kind}): \x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=5, ip=127.0.0.1)"]
    lines += [f'  File "{FIT[0]}", line 473, in fit', "    batch = self.step(metrics)"]
    lines += [f"ray.exceptions.RayTaskError({kind}): \x1b[36mray::WorkerDict.run()\x1b[39m (pid=6, ip=127.0.0.1)"]
    for file, function in calls:
        lines += [f'  File "{file}", line 7, in {function}', "    x = f(x)"]
    return lines + error.splitlines() + ["", "Set the environment variable HYDRA_FULL_ERROR=1 for a complete trace."]


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.1 GiB free."
SHARD = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
DIED = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
    "Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. "
    "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called."
)
REWARD = ("/home/u/my_reward.py", "compute_score")
LOOP = (f"{VERL}/experimental/reward_loop/reward_manager/naive.py", "run_single")
BY_REWARD = trace("ZeroDivisionError: division by zero", LOOP, REWARD, who="RewardLoopWorker")
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited"

UPDATE = ((WORKER, "update_actor"), (WORKER, "train_mini_batch"), ("/torch/nn/module.py", "forward"))
LOG_PROB = ((WORKER, "compute_log_prob"), (WORKER, "infer_batch"), ("/torch/nn/module.py", "forward"))
ROLLOUT = (("/vllm/v1/engine/core.py", "step"), ("/vllm/v1/worker/gpu_model_runner.py", "execute_model"))
SYNC = ((f"{VERL}/trainer/ppo/v1/trainer_sync.py", "on_step_end"), (WORKER, "update_weights"))
LOAD = ((WORKER, "load_checkpoint"), ("/torch/serialization.py", "load"))
SAVE = ((WORKER, "save_checkpoint"), ("/megatron/core/dist_checkpointing/serialization.py", "save"))
MIXTURE = ("/site/megatron/core/transformer/moe/moe_layer.py", "forward")
SHORT = "(WorkerDict pid=9) ERROR:2026-11-30 12:11:00,612:Local worker 0 encountered an error: "
SHORT += "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"
CONFIG = (f"{VERL}/utils/config.py", "validate_config")
BIG = "AssertionError: normalized ppo_mini_batch_size 0 should be larger than 0"
HUB = "OSError: x/y is not a local folder and is not a valid model identifier listed on"
NO_REWARD = "FileNotFoundError: Reward function file 'r.py' not found."
ALLOCATOR = "(EngineCore pid=9) CUDA Error: out of memory at /build/csrc/cumem_allocator.cpp:62"
PRESSURE = "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 for others"
ENGINE = (("/vllm/v1/engine/core.py", "_initialize_kv_caches"), ("/vllm/v1/core/kv_cache_utils.py", "check"))

CASES = [
    # Hydra speaks without a traceback.
    (["Could not override 'actor.nosuch'.", "To append to your config use +actor.nosuch=1"], Cause.CONFIG_ERROR),
    (["no viable alternative at input '[1'", "See https://hydra.cc/docs/1.2/advanced"], Cause.CONFIG_ERROR),
    (["LexerNoViableAltException: [1", "                           ^"], Cause.CONFIG_ERROR),
    (["Error merging override trainer.total_epochs=x", "Value 'x' could not be converted"], Cause.CONFIG_ERROR),
    (["/usr/bin/python3.11: No module named verl.trainer.main_pppo"], Cause.CONFIG_ERROR),
    (trace("omegaconf.errors.ConfigAttributeError: Key 'x' is not in struct", MAIN), Cause.CONFIG_ERROR),
    (
        trace(BIG, MAIN, CONFIG),
        Cause.CONFIG_ERROR,
    ),
    (
        remote("ValueError: train_batch_size (7) must be >= 16", (f"{VERL}/workers/config/actor.py", "__post_init__")),
        Cause.CONFIG_ERROR,
    ),
    (
        remote("FileNotFoundError: Unable to find '/data/x.parquet'", (f"{VERL}/utils/dataset.py", "__init__")),
        Cause.CONFIG_ERROR,
    ),
    (remote("ModuleNotFoundError: No module named 'my_model'", (WORKER, "init_model")), Cause.CONFIG_ERROR),
    (
        remote(
            "OSError: x/y is not a local folder and is not a valid model identifier listed on", (WORKER, "init_model")
        ),
        Cause.CONFIG_ERROR,
    ),
    (
        remote(
            "FileNotFoundError: Reward function file 'r.py' not found.", ("/verl/reward.py", "get_custom_reward_fn")
        ),
        Cause.CONFIG_ERROR,
    ),
    (remote(SHARD, *ENGINE), Cause.CUDA_OOM),
    (
        [ALLOCATOR, *trace(DIED)],
        Cause.CUDA_OOM,
    ),
    (
        [PRESSURE, *trace(DIED)],
        Cause.HOST_OOM,
    ),
    (remote("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."), Cause.HOST_OOM),
    (trace("MemoryError", MAIN), Cause.HOST_OOM),
    (trace("OSError: [Errno 12] Cannot allocate memory", MAIN), Cause.HOST_OOM),
    (remote("ray.exceptions.NodeDiedError: Task failed because the node it was running on is dead."), Cause.NODE_FAIL),
    (remote("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"), Cause.DIVERGED),
    (
        remote("NotImplementedError: Reward function is not implemented for data_source='my/set'", LOOP),
        Cause.REWARD_ERROR,
    ),
    (remote("RuntimeError: [Errno 98] Address already in use", (WORKER, "init_model")), Cause.PORT_CLASH),
    (trace("ValueError: Total available GPUs 7 is less than total desired GPUs 8", MAIN), Cause.RAY_BOOT),
    (trace("ConnectionError: Could not find any running Ray instance.", MAIN), Cause.RAY_BOOT),
    (remote("EOFError: Ran out of input", *LOAD), Cause.UNKNOWN),
    (
        remote("ValueError: No dot product attention backend is available for the provided inputs.", *LOG_PROB),
        Cause.CONFIG_ERROR,
    ),
    (
        remote("ValueError: During training, performance may degrade if MoE and tensor parallelism", *UPDATE, MIXTURE),
        Cause.CONFIG_ERROR,
    ),
    (
        remote("AssertionError: hidden_size must be divisible", (f"{VERL}/utils/kernel/kernels.py", "forward")),
        Cause.CONFIG_ERROR,
    ),
    (remote("OSError: [Errno 28] No space left on device", *SAVE), Cause.DISK_FULL),
    ([SHORT, *remote("CheckpointException: CheckpointException ranks:dict_keys([0])", *SAVE)], Cause.DISK_FULL),
    (["*** SIGTERM received at time=1795977930 on cpu 1 ***", "PC: @ 0x7f (unknown) __recv"], Cause.KILLED),
    (["Segmentation fault"], Cause.UNKNOWN),
    ([], Cause.UNKNOWN),
]


@pytest.mark.parametrize(("log", "cause"), CASES, ids=[f"{c[1]}-{n}" for n, c in enumerate(CASES)])
def test_the_cause(log: list[str], cause: Cause) -> None:
    end = classify(log, 1)
    assert end.cause is cause
    assert end.exit_code == 1
    assert end.reason


@pytest.mark.parametrize(
    ("calls", "phase"),
    [
        (UPDATE, Phase.UPDATE),
        (LOG_PROB, Phase.LOG_PROB),
        (ROLLOUT, Phase.ROLLOUT),
        (SYNC, Phase.WEIGHT_SYNC),
        (LOAD, Phase.CHECKPOINT_LOAD),
        (SAVE, Phase.CHECKPOINT_SAVE),
        (((WORKER, "init_model"), ("/torch/nn/module.py", "to")), Phase.START),
        (((f"{VERL}/trainer/ppo/v1/trainer_base.py", "_validate"), ROLLOUT[1]), Phase.ROLLOUT),
        ((("/elsewhere.py", "go"),), Phase.UNKNOWN),
    ],
)
def test_the_phase_out_of_memory(calls: tuple[tuple[str, str], ...], phase: Phase) -> None:
    end = classify(remote(OOM, *calls), 1, has_trained=True)
    assert (end.cause, end.phase) == (Cause.CUDA_OOM, phase)
    assert end.reason == OOM
    assert end.lines[-1] == OOM
    assert calls[-1][1] in end.lines[-2]


def test_before_the_first_step_it_is_the_start() -> None:
    assert classify(trace("RuntimeError: x"), 1).phase is Phase.START
    assert classify(trace("RuntimeError: x"), 1, has_trained=True).phase is Phase.UNKNOWN


def test_what_is_refused_after_a_step_is_not_the_configuration() -> None:
    assert classify(remote("ValueError: x", *UPDATE, MIXTURE), 1).cause is Cause.CONFIG_ERROR
    assert classify(remote("ValueError: x", *UPDATE, MIXTURE), 1, has_trained=True).cause is Cause.UNKNOWN


def test_a_checkpoint_that_did_not_fit_on_the_disk() -> None:
    end = classify([SHORT, *remote("RuntimeError: Worker failure", *SAVE)], 1, has_trained=True)
    assert (end.cause, end.phase) == (Cause.DISK_FULL, Phase.CHECKPOINT_SAVE)
    assert "unexpected pos" in end.reason


def test_a_file_that_is_missing_later_is_not_the_configuration() -> None:
    assert classify(trace("FileNotFoundError: /tmp/gone"), 1, has_trained=True).cause is Cause.UNKNOWN


def test_what_caused_it_stands_above_what_came_of_it() -> None:
    oom = trace(OOM, *UPDATE, who="WorkerDict")
    end = classify([*trace(NCCL, who="WorkerDict"), *oom, *remote(NCCL, *UPDATE)], 1, has_trained=True)
    assert (end.cause, end.phase) == (Cause.CUDA_OOM, Phase.UPDATE)
    assert classify(remote(NCCL, *UPDATE), 1).cause is Cause.NCCL


def test_a_watchdog_without_traceback_is_communication() -> None:
    line = "[rank3]:[E1129 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout"
    assert classify([line, *trace(DIED)], 134, has_trained=True).cause is Cause.NCCL


def test_a_reward_that_raised_far_above_the_end() -> None:
    log = [*BY_REWARD, *["step:3 - x:1"] * 50, *remote("KeyError: 'responses'", (FIT[0], "_balance_batch"))]
    end = classify(log, 1)
    assert (end.cause, end.phase) == (Cause.REWARD_ERROR, Phase.ROLLOUT)
    assert end.reason == "ZeroDivisionError: division by zero"
    assert any("my_reward.py" in line for line in end.lines)
    assert not any("pid=" in line or "\x1b" in line for line in end.lines)


def test_a_reward_that_always_raises_as_verl_reports_it() -> None:
    """verl 0.9.1: the agent loop logs the error, the rollout goes on, and validation finds nothing to judge."""
    loop = f"{VERL}/experimental/agent_loop/agent_loop.py"
    said = remote("KeyError: 'no such key'", LOOP, (f"{VERL}/trainer/ppo/reward.py", "_call_with_kwargs"), REWARD)
    log = [
        "ERROR:2026-11-29 19:25:38,185:Error in _run_prompt for uid=4a01a39f",
        "Traceback (most recent call last):",
        f'  File "{loop}", line 1026, in _compute_score',
        *said[said.index(next(line for line in said if line.startswith("ray.exceptions"))) : -2],
    ]
    log = [f"\x1b[36m(AgentLoopWorkerTQ pid=11338)\x1b[0m {line}" for line in log] * 3
    end = classify([*log, *remote("ValueError: Received an empty list as keys.", (FIT[0], "_validate"))], 1)
    assert (end.cause, end.phase, end.reason) == (Cause.REWARD_ERROR, Phase.ROLLOUT, "KeyError: 'no such key'")
    assert end.lines[-2:] == ('File "/home/u/my_reward.py", line 7, in compute_score', "KeyError: 'no such key'")


def test_a_reward_that_raised_once_does_not_explain_another_end() -> None:
    assert classify([*BY_REWARD, *remote(OOM, *UPDATE)], 1).cause is Cause.CUDA_OOM
    assert classify([*BY_REWARD, *remote(NCCL, *UPDATE)], 1).cause is Cause.NCCL


def test_ray_guessing_at_the_oom_killer_proves_nothing() -> None:
    assert classify(trace(DIED), 1).cause is Cause.UNKNOWN
    assert classify(trace(DIED), 1, oom_kills=2).cause is Cause.HOST_OOM


def test_killed_with_and_without_the_kernels_word() -> None:
    assert classify([], 137).cause is Cause.KILLED
    assert classify([], 137, oom_kills=1).cause is Cause.HOST_OOM
    assert classify([], 137, oom_kills=-1).cause is Cause.KILLED


def test_no_number_in_the_metrics() -> None:
    assert classify([], 0, not_a_number="critic/score/mean").cause is Cause.DIVERGED
    assert classify(trace("RuntimeError: x"), 1, not_a_number="actor/pg_loss").cause is Cause.DIVERGED
    assert classify(remote(NCCL), 1, not_a_number="actor/pg_loss").cause is Cause.DIVERGED
    assert classify(remote(OOM, *UPDATE), 1, not_a_number="actor/pg_loss").cause is Cause.CUDA_OOM


def test_the_last_value_decides_whether_it_is_a_number() -> None:
    null = [(1, {"a": 1.0}), (2, {"a": None}), (3, {"b": 2.0})]
    assert not_a_number(null, ["b", "a"]) == "a"
    assert not_a_number([*null, (4, {"a": 0.5})], ["a"]) == ""
    assert not_a_number([(1, {"a": float("nan")})], ["a"]) == "a"
    assert not_a_number([(1, {"a": float("-inf")})], ["a"]) == "a"
    assert not_a_number([], ["a"]) == ""


FINISHED = ["(TaskRunnerV1 pid=1) (\"Final validation metrics: {'val-core/x/acc/mean@1': \""]


def test_a_death_after_the_last_word_of_the_training_loses_nothing() -> None:
    end = classify([*BY_REWARD, *FINISHED, "terminate called without an active exception"], 134, has_trained=True)
    assert (end.cause, end.exit_code) == (Cause.COMPLETED, 134)
    assert classify([*FINISHED, *trace("RuntimeError: x")], 1, has_trained=True).cause is Cause.UNKNOWN


def test_success_is_not_searched_for_errors() -> None:
    assert classify(trace(OOM), 0).cause is Cause.COMPLETED


def test_what_a_trainer_was_stuck_on() -> None:
    assert last_trouble([*trace("KeyError: 'a'"), *BY_REWARD, "step:1"])[-1] == "ZeroDivisionError: division by zero"
    assert last_trouble(WARNINGS) == ()


# --- logs as they come


def test_interleaved_processes_are_told_apart() -> None:
    one = trace("ValueError: one", ("/a.py", "f"), who="A")
    two = trace("ValueError: two", ("/b.py", "g"), who="B")
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    found = {t.error: t.calls for t in traces_of(map(plain, mixed))}
    assert found == {"ValueError: one": [("/a.py", "f")], "ValueError: two": [("/b.py", "g")]}


def test_errors_raised_from_errors_are_one() -> None:
    chained = [
        *trace("FileNotFoundError: /models/x", ("/a.py", "load")),
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *trace("RuntimeError: no model", ("/b.py", "build")),
    ]
    (_, last) = traces_of(map(plain, chained))
    assert last.calls == [("/a.py", "load"), ("/b.py", "build")]
    assert last.led == ["FileNotFoundError: /models/x"]


def test_rays_prefixes_notes_and_colours_are_no_part_of_a_line() -> None:
    for raw in (
        "\x1b[36m(WorkerDict pid=1)\x1b[0m hello",
        "(WorkerDict pid=1, ip=10.0.0.1) hello [repeated 7x across cluster] (Ray deduplicates logs by default.)",
        "(raylet, ip=10.0.0.2) hello",
        "\x1b]0;title\x07hello\x00",
    ):
        assert plain(raw).text == "hello"


WARNINGS = [
    "UserWarning: torchtitan engine is not available: ModuleNotFoundError(\"No module named 'torchtitan'\")",
    "{'nccl_timeout': 600, 'note': 'CUDA out of memory', 'port': 'address already in use'}",
    "[response] Traceback: the model says torch.OutOfMemoryError: CUDA out of memory",
    "WARNING:2026-11-29 18:17:06: NCCL error is a thing that users ask of",
    "step:1 - actor/pg_loss:nan - critic/score/mean:0.5",
]


def test_lines_that_only_speak_of_errors() -> None:
    assert classify([*WARNINGS, *trace("RuntimeError: the real one"), *WARNINGS], 1).reason.startswith("RuntimeError")
    assert classify(WARNINGS, 1).cause is Cause.UNKNOWN


def test_a_huge_log_is_read_from_both_ends(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    with open(log, "w") as file:
        file.write("\n".join(trace(OOM, *UPDATE)) + "\n")
        for _ in range(5):
            file.write("step:1 - something:0.123456789\n" * 40_000)
        file.write("\n".join(trace(NCCL)) + "\n")
    began = time.monotonic()
    lines = read_log(log)
    end = classify(lines, 1, has_trained=True)
    assert time.monotonic() - began < 60
    assert sum(map(len, lines)) < 5 * 2**20
    assert (end.cause, end.phase) == (Cause.CUDA_OOM, Phase.UPDATE)


@pytest.mark.parametrize(
    "line", ["a" * 9_000_000, "(" * 3_000_000, " " * 3_000_000 + "x", '  File "' + "/" * 3_000_000, "node " * 900_000]
)
def test_a_line_without_end_costs_little(tmp_path: Path, line: str) -> None:
    log = tmp_path / "driver.log"
    log.write_text(line + "\n" + "\n".join(trace(OOM, *UPDATE)))
    began = time.monotonic()
    assert classify(read_log(log), 1).cause is Cause.CUDA_OOM
    assert time.monotonic() - began < 60  # not hours


def test_noise(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_bytes(random.Random(1).randbytes(300_000) + b"\r\n\x00\xff")
    assert classify(read_log(log), 1).cause is Cause.UNKNOWN
    log.write_bytes(b"")
    assert read_log(log) == []
    assert read_log(tmp_path / "none") == []
    assert read_log(tmp_path) == []


def test_what_is_kept_is_short() -> None:
    end = classify(trace("RuntimeError: " + "x" * 100_000, *[("/a.py", "f")] * 500), 1)
    assert len(end.reason) <= 500
    assert len(end.lines) <= 12
    assert max(map(len, end.lines)) <= 500
