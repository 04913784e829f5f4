"""Stands in for `ray start --block` where Ray itself does not matter: up at once, down when its raylet is.

STAND_IN in the environment, of nodes by name: `refuse=node2`: it does not start there; `gpus=node2:1`: has one there.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

options = dict(a.removeprefix("--").split("=", 1) for a in sys.argv if a.startswith("--") and "=" in a)
said, _, value = os.environ.get("STAND_IN", "").partition("=")
node, _, gpus = value.partition(":")
is_meant = node == socket.gethostname()
if said == "refuse" and is_meant:
    sys.exit("RuntimeError: the raylet does not start here")
temporary = options["temp-dir"]
offered = gpus if said == "gpus" and is_meant else options.get("num-gpus", "0")
raylet = [f"--temp_dir={temporary}", f"--static_resource_list=CPU,8,GPU,{offered}"]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(9999)", *raylet])
Path(temporary, "ray_current_cluster").write_text(options.get("address", f"{options['node-ip-address']}:1"))
child.wait()
sys.exit("the raylet is gone")
