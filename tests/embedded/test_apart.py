"""The weights of two trials on one machine, through verl's own sender and receiver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hysweep.embedded.apart import marked

HANDLE = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"

# verl's package there imports vLLM: what it stands in is put in its place.
TWO_TRIALS = """
import asyncio, json, os, sys, threading, types
from pathlib import Path
import torch, verl
import hysweep.embedded.apart
import verl.workers.rollout

name = "verl.workers.rollout.vllm_rollout"
package = types.ModuleType(name)
package.__path__ = [str(Path(verl.__file__).parent / "workers/rollout/vllm_rollout")]
sys.modules[name] = package
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver, BucketedWeightSender

found, threads = {}, []
def receive(trial, receiver):
    receiver.receive_weights(lambda weights, is_last: found.setdefault(trial, weights[0][1].tolist()))
def send(sender, weights):
    asyncio.run(sender.async_send_weights(iter(weights)))
for trial in (1, 2):
    os.environ["HYSWEEP_ATTEMPT"] = f"/studies/s/trials/{trial}/attempts/1"
    receiver = BucketedWeightReceiver(zmq_handle=sys.argv[1], device=torch.device("cpu"), use_shm=True)
    sender = BucketedWeightSender(sys.argv[1], bucket_size_mb=1, use_shm=True)
    threads += [
        threading.Thread(target=receive, args=(trial, receiver), daemon=True),
        threading.Thread(target=send, args=(sender, [("w", torch.full((2,), float(trial)))]), daemon=True),
    ]
for thread in sorted(threads, key=lambda t: t._target is send):
    thread.start()
for thread in threads:
    thread.join(20)
print(json.dumps(found), flush=True)
os._exit(0)
"""


def test_the_mark_is_the_attempts_and_the_path_stays_short(monkeypatch):
    monkeypatch.setenv("HYSWEEP_ATTEMPT", f"/{'long/' * 60}trials/0001/attempts/1")
    first = marked(HANDLE)
    monkeypatch.setenv("HYSWEEP_ATTEMPT", f"/{'long/' * 60}trials/0002/attempts/1")
    assert first != marked(HANDLE) != HANDLE
    assert len(first.removeprefix("ipc://")) < 108
    monkeypatch.delenv("HYSWEEP_ATTEMPT")
    assert marked(HANDLE) == HANDLE


def test_verl_loads_it_in_every_process():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "hysweep.embedded.apart" in project["project"]["entry-points"]["verl.plugins"].values()


@pytest.mark.verl
def test_two_trials_on_one_machine_get_their_own_weights(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TWO_TRIALS, f"ipc://{tmp_path}/weights.sock"],
        env=os.environ | {"VERL_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"1": [1.0, 1.0], "2": [2.0, 2.0]}
