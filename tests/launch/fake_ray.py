"""Stands in for `ray start`: `python fake_ray.py TEMPORARY MODE [the raylet's arguments]`."""

import sys
import time
from pathlib import Path

temporary, mode = Path(sys.argv[1]), sys.argv[2]
logs = temporary / "session_latest" / "logs"
logs.mkdir(parents=True)
(logs / "raylet.err").write_text("the raylet's last words\n")
if mode == "clash":
    print("RuntimeError: Failed to start GCS: Address already in use", flush=True)
    sys.exit(1)
if mode == "slow":
    print("Exception: The current node timed out during startup. This could happen because", flush=True)
    sys.exit(1)
if mode == "broken":
    print("Usage: ray start [OPTIONS]\nError: No such option: --port", flush=True)
    sys.exit(2)
if mode == "up":
    (temporary / "ray_current_cluster").write_text("127.0.0.1:4321")
time.sleep(600)
