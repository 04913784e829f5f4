"""Stands where Ray expects a worker's Python to be, and has the worker forked by `main_ppo` instead.

Ray runs `<py_executable> default_worker.py <arguments>`; our py_executable is `python worker.py <socket>`. This sends
the rest of its command line, its environment and its open files to the socket, and then lives as long as the worker
does: Ray watches this process. When `main_ppo` cannot serve it, it becomes the worker itself.

Imports nothing but what Python starts with anyway, since there are eight of them in every job.
"""

import array
import json
import os
import socket
import sys

OPEN_FILES = (0, 1, 2)


def main() -> None:
    path, *argv = sys.argv[1:]
    code = _forked(path, argv)
    if code is None:
        os.execv(sys.executable, [sys.executable, *argv])
    os._exit(code)


def _forked(path: str, argv: list[str]) -> int | None:
    """The exit code of the worker that was forked for us; None when none was."""
    wish = json.dumps({"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(path)
            files = array.array("i", OPEN_FILES)
            s.sendmsg([len(wish).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
            s.sendall(wish)
            if s.recv(1) != b"y":
                return None
        except OSError:
            return None
        # From here on a worker exists. Without a last word about it, it died with the process that forked it.
        try:
            code = s.recv(1)
        except OSError:
            code = b""
    return code[0] if code else 1


if __name__ == "__main__":
    main()
