"""One GPU of an all-reduce over all GPUs of a job, by NCCL: `python -P all_reduce.py`, its rank in the environment.

Started by its path: it needs torch, and nothing else that is ours. The first rank prints what came of it as JSON.
"""

from __future__ import annotations

import datetime
import json
import os
import time

SIZE = 256 * 2**20  # bytes
ROUNDS = 5
WITHIN = datetime.timedelta(seconds=60)


def main() -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", timeout=WITHIN)
    ranks = dist.get_world_size()
    numbers = torch.ones(SIZE // 4, device="cuda")
    dist.all_reduce(numbers)  # connects, and is checked
    is_right = bool((numbers == ranks).all())
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(numbers)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / ROUNDS
    if dist.get_rank() == 0:
        # what each link carries: every byte goes to and fro but for a rank's own share
        gb_s = SIZE / seconds / 1e9 * 2 * (ranks - 1) / ranks
        found = {"is_right": is_right, "ranks": ranks, "milliseconds": seconds * 1e3, "gb_s": gb_s}
        print(json.dumps(found | {"nccl": ".".join(map(str, torch.cuda.nccl.version()))}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
