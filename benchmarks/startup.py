"""Start-up of the command line as whole processes: median of several cold starts, against the aims.

python benchmarks/startup.py [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

GRID = "algorithm=grpo,rloo,gspo,cispo"
AIMS = {
    ("--help",): 0.4,
    ("check",): 1.5,
    ("check", "experiment=hy3_dapo_math"): 1.5,
    ("plan", GRID, "trainer.seed=range(0,25)"): 2.0,  # 100 trials
    ("plan", GRID, "trainer.seed=range(0,250)"): 5.0,  # 1,000
}


def wall(words: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "hysweep", *words], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'command':84} {'median':>8} {'min':>8} {'aim':>6} {'median/aim':>11}")
    for words, aim in AIMS.items():
        times = [wall(words) for _ in range(runs)]
        median = statistics.median(times)
        print(f"{'hysweep ' + ' '.join(words):84} {median:7.2f}s {min(times):7.2f}s {aim:5.1f}s {median / aim:11.2f}")


if __name__ == "__main__":
    main()
