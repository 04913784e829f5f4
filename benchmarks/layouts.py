"""Whole `hysweep layouts` processes for Hy3, against the aims: 128 GPUs in under 2 s, 1,024 in under 10 s, on 2 cores.

python benchmarks/layouts.py [RUNS]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

AIMS = {16: 2.0, 128: 10.0}  # nodes of 8 GPUs


def wall(nodes: int) -> tuple[float, int]:
    words = ("layouts", "experiment=hy3_dapo_math", f"cluster.nodes={nodes}", "--top", "1", "--json")
    began = time.perf_counter()
    answer = subprocess.run([sys.executable, "-m", "hysweep", *words], capture_output=True, check=True)
    return time.perf_counter() - began, json.loads(answer.stdout)["legal"]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"{'GPUs':>6} {'legal layouts':>14} {'median':>8} {'min':>8} {'aim':>6} {'median/aim':>11}")
    for nodes, aim in AIMS.items():
        times, legal = zip(*(wall(nodes) for _ in range(runs)), strict=True)
        median = statistics.median(times)
        print(f"{8 * nodes:6} {legal[0]:14,} {median:7.2f}s {min(times):7.2f}s {aim:5.1f}s {median / aim:11.2f}")


if __name__ == "__main__":
    main()
