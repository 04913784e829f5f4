"""Does what its arguments say, in order. Each start leaves a line in `ran`, in the attempt's directory.

exit=N  raise=TEXT  sleep=S  say=TEXT  metrics=JSON  stubborn  offspring
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def offspring() -> None:
    """Three that a process group does not reach: own session; deaf to SIGTERM; a daemon without our mark."""
    pids = [subprocess.Popen(SLEEP, start_new_session=True).pid]
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    pids.append(subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True).pid)
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        daemon = os.fork()
        if daemon == 0:
            os.execve(sys.executable, SLEEP, {})
        os.write(write, str(daemon).encode())
        os._exit(0)
    pids.append(int(os.read(read, 20)))
    with open("offspring", "w") as file:
        file.write(" ".join(map(str, pids)))


with open("ran", "a") as ran:
    ran.write(f"{os.getpid()}\n")
for argument in sys.argv[1:]:
    name, _, value = argument.partition("=")
    match name:
        case "exit":
            sys.exit(int(value))
        case "raise":
            raise RuntimeError(value)
        case "sleep":
            time.sleep(float(value))
        case "say":
            print(value, flush=True)
        case "metrics":
            with open(os.environ["VERL_FILE_LOGGER_PATH"], "a") as file:
                file.write(value + "\n")
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "offspring":
            offspring()
        case "environment":
            for key in value.split(","):
                print(f"{key}={os.environ.get(key)}", flush=True)
