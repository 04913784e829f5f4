"""A trainer that joins the Ray of its node and has a worker do something: what verl does, without verl.

It ends when the attempt's directory holds a file `go`.
"""

import os
import subprocess
import time
from pathlib import Path

import ray

ray.init()
print("resources", ray.cluster_resources().get("GPU"), os.environ["RAY_ADDRESS"], flush=True)


@ray.remote(num_gpus=2)
class Worker:
    def run(self) -> str:
        subprocess.Popen(["sleep", "3456"], start_new_session=True)
        return "{}:{}".format(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["FROM_THE_JOB"])


worker = Worker.remote()
print("worker", ray.get(worker.run.remote()), flush=True)
while not Path("go").exists():
    time.sleep(0.1)
