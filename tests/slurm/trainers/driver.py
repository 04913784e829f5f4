"""Does what its words say, in order. `1:WORD` is for the first attempt only, and so on.

ray=NODES,GPUS (joins; all must be there, a task runs on each node with a GPU of its own)  metrics=STEP  save=STEP
ready (leaves a file of that name)  until=FILE (that somebody leaves)  sleep=S  raise=TEXT  deaf (to SIGTERM)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zipfile
from pathlib import Path

HERE = Path.cwd()  # the attempt's directory


def join(nodes: int, gpus: int) -> None:
    import ray

    ray.init()
    alive = [n for n in ray.nodes() if n["Alive"]]
    assert len(alive) == nodes, alive
    assert ray.cluster_resources().get("GPU", 0) == nodes * gpus, ray.cluster_resources()

    @ray.remote(num_cpus=1, num_gpus=min(1, gpus))
    def where() -> str:
        return f"{os.uname().nodename}:{os.environ.get('CUDA_VISIBLE_DEVICES', '')}"

    calls = [where.options(resources={f"node:{n['NodeManagerAddress']}": 0.01}).remote() for n in alive]
    print("tasks ran on", *sorted(ray.get(calls)), flush=True)


for argument in sys.argv[1:]:
    only, colon, word = argument.partition(":")
    if colon and only.isdigit():
        if only != HERE.name:
            continue
    else:
        word = argument
    name, _, value = word.partition("=")
    match name:
        case "ray":
            join(*map(int, value.split(",")))
        case "metrics":
            with open(os.environ["VERL_FILE_LOGGER_PATH"], "a") as file:
                file.write(json.dumps({"step": int(value), "data": {"critic/score/mean": 0.5}}) + "\n")
        case "save":
            checkpoints = HERE.parent.parent / "checkpoints"
            weights = checkpoints / f"global_step_{value}" / "actor" / "model_world_size_1_rank_0.pt"
            weights.parent.mkdir(parents=True)
            zipfile.ZipFile(weights, "w").close()
            (checkpoints / "latest_checkpointed_iteration.txt").write_text(value)
        case "ready":
            Path("ready").touch()
        case "until":
            while not Path(value).exists():
                time.sleep(0.1)
        case "sleep":
            time.sleep(float(value))
        case "raise":
            raise ValueError(value)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case _:
            raise SystemExit(f"no such word: {word}")
