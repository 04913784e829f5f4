"""A trainer in a job of a standing Ray cluster: what verl does there, without verl. `python -m job_trainer WORDS`.

It says what it and a worker see of the job, and ends when the attempt's directory holds a file `go`; with `raise` it
fails at once.
"""

import os
import sys
import time
from pathlib import Path

import ray

# as verl's runtime_env: what the driver's environment has is left out, the rest joins that of the job
ray.init(runtime_env={"env_vars": {"FROM_THE_DRIVER": "yes"}})


@ray.remote(num_cpus=0)
class Worker:
    def run(self) -> str:
        import beside  # from cluster.code

        import hysweep

        with open(os.environ["VERL_FILE_LOGGER_PATH"], "a") as file:
            file.write('{"step": 1, "data": {"critic/score/mean": 0.5}}\n')
        seen = [os.environ.get(n, "") for n in ("FROM_THE_JOB", "FROM_THE_DRIVER")]
        return " ".join([*seen, beside.__file__, hysweep.__file__])


worker = Worker.remote()
print("worker:", ray.get(worker.run.remote()), flush=True)
if "raise" in sys.argv:
    raise FileNotFoundError("no such data")
while not Path("go").exists():
    time.sleep(0.1)
