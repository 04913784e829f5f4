"""Waits until a Ray cluster has room for a trial: `python -m hysweep.launch.ray_room NODES GPUS SECONDS`.

A process of its own, for it imports ray. verl takes what is free at its start, and fails where that is too little.
Exit code 0: there is room; 1: not within SECONDS, or there never will be; its last line says so.
"""

from __future__ import annotations

import sys
import time


def main(nodes: int, gpus: int, within: float) -> int:
    import ray

    ray.init(log_to_driver=False, logging_level="ERROR")
    until = time.monotonic() + within
    fitting = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("GPU", 0) >= gpus]
    if len(fitting) < nodes:
        print(f"the Ray cluster has {len(fitting)} nodes with {gpus} GPUs; the trial needs {nodes}")
        return 1
    while (free := ray.available_resources().get("GPU", 0)) < nodes * gpus:
        if time.monotonic() > until:
            print(f"{free:g} GPUs of the Ray cluster were free after {within:.0f} s; the trial needs {nodes * gpus}")
            return 1
        time.sleep(1)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
