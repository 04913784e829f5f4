"""verl's trainer with its imports paid once: `python -m hysweep.embedded.main_ppo <overrides>`.

A job of verl's is nine Python processes, and each takes some ten seconds of processor to import torch, transformers
and verl: a minute and more before the first step on a small machine. This process imports them once. Then it forks
the driver, and for each worker that Ray starts it forks that worker: half a second each, and their memory is shared.

    ray start --head --- worker.py --- "like this one" ---> main_ppo ---fork---> ray::TaskRunner, ray::WorkerDict, ...
                                                                 \\---fork---> the driver, verl.trainer.main_ppo

Where that cannot be (no Linux, no Ray that runs already, a py_executable of the user's) this is plain
`verl.trainer.main_ppo`, and so is every worker that does not fit: only slower.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hysweep.embedded import worker
from hysweep.schema.override import emit

MODULE = "verl.trainer.main_ppo"
PY_EXECUTABLE = "ray_kwargs.ray_init.runtime_env.py_executable"

# What the driver and the workers import anyway.
IMPORTS = (
    MODULE,
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.experimental.agent_loop",
    "verl.experimental.reward_loop",
    "transformers.models.hy_v3.modeling_hy_v3",
    "hysweep.embedded.engine",
    "hysweep.embedded.rollout",
    "hysweep.embedded.sampler",
)

# Ray's C++ reads these once, when it is imported, and checks that a worker has them. So the process that workers are
# forked from must have had them then. The first driver of a Ray that nobody else uses is its job number 1.
FIRST_JOB = "01000000"
READ_AT_IMPORT = ("RAY_JOB_ID", "RAY_RAYLET_PID")

PR_SET_PDEATHSIG = 1


def main() -> None:
    overrides = sys.argv[1:]
    raylet = find_raylet(os.environ.get("RAY_ADDRESS", ""))
    if raylet is None or any(PY_EXECUTABLE in override for override in overrides):
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        return
    os.environ.update(zip(READ_AT_IMPORT, (FIRST_JOB, str(raylet.pid)), strict=True))
    for name in IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here now stays: a collection in a child must not touch, and so copy, its pages
    folder = tempfile.mkdtemp(prefix="fork-", dir=raylet.directory)  # only we may enter it, and it goes with Ray's
    try:
        ending = Forker(Path(folder) / "s").run(overrides)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _end_like(ending)


@dataclass(frozen=True)
class Raylet:
    pid: int
    directory: str  # Ray's temporary directory


def find_raylet(address: str) -> Raylet | None:
    """The raylet on this machine that belongs to the Ray at this address."""
    if sys.platform != "linux" or not address:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):  # it ended, or is not ours
                program, *arguments = (process / "cmdline").read_text(errors="replace").split("\0")
                if program.endswith("/raylet") and f"--gcs-address={address}" in arguments:
                    directories = [a.partition("=")[2] for a in arguments if a.startswith("--temp_dir=")]
                    return Raylet(int(process.name), *directories)
    return None


class Forker:
    """Forks the driver, and then workers for whoever asks on a socket, until the driver has ended.

    One thread only, and none before the last fork: a fork copies the thread that calls it and no other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.fspath(path))
        self.listener.listen(128)
        self.selector = selectors.DefaultSelector()
        self.asking: dict[int, socket.socket] = {}  # by the process id of the worker that was forked for it
        self.driver = 0

    def run(self, overrides: list[str]) -> int:
        """Fork the driver, serve until it has ended, and return its exit code, or minus the signal that ended it."""
        python = shlex.join([sys.executable, "-I", "-S", worker.__file__, os.fspath(self.path)])
        self.driver = self._fork(lambda: _drive([*overrides, f"{PY_EXECUTABLE}={emit(python)}"]))
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # any handler, so that the wake-up pipe is written to
        # The driver has a process group of its own, so that it hears of each signal once: from here.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._pass_on)
        self.selector.register(self.listener, selectors.EVENT_READ, self._serve)
        self.selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))
        while True:
            for key, _ in self.selector.select():
                key.data()
            ending = self._reap()
            if ending is not None:
                for worker_pid in self.asking:
                    _kill(worker_pid)
                return ending

    def _fork(self, become: Callable[[], NoReturn]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setpgid(0, 0)  # Ray ends a worker's whole group
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before that was said
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.selector.close()
            for open_socket in (self.listener, *self.asking.values()):
                open_socket.close()
            gc.unfreeze()
            become()
        finally:
            os._exit(1)  # never back into the parent's code

    def _pass_on(self, number: int, _: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.driver, number)

    def _serve(self) -> None:
        """Fork a worker for one that asks."""
        asking, _ = self.listener.accept()
        asking.settimeout(10)  # it speaks at once or is broken
        try:
            wish, files = _hear(asking)
        except (OSError, ValueError):
            asking.close()
            return
        if all(wish["env"].get(name) == os.environ[name] for name in READ_AT_IMPORT):
            asking.sendall(b"y")
            pid = self._fork(lambda: _work(wish, files))
            self.asking[pid] = asking
            self.selector.register(asking, selectors.EVENT_READ, lambda: self._on_gone(pid, asking))
        else:
            asking.sendall(b"n")
            asking.close()
        for file in files:
            os.close(file)

    def _on_gone(self, pid: int, asking: socket.socket) -> None:
        """Whoever asked says nothing more, so this is its end: Ray killed it, and meant its worker."""
        self.selector.unregister(asking)
        _kill(pid)

    def _reap(self) -> int | None:
        """See which children have ended and tell whoever asked for them; the driver's ending, if it is one of them."""
        ending = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ending
            if pid == 0:
                return ending
            code = os.waitstatus_to_exitcode(status)
            if pid == self.driver:
                ending = code
                continue
            asking = self.asking.pop(pid)
            with suppress(KeyError):
                self.selector.unregister(asking)
            with suppress(OSError):
                asking.sendall(bytes([code if code >= 0 else 128 - code]))
            asking.close()


def _hear(asking: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What `worker` sends."""
    size = array.array("i").itemsize * len(worker.OPEN_FILES)
    length, ancillary, _, _ = asking.recvmsg(4, socket.CMSG_LEN(size))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data[: len(data) - len(data) % files.itemsize])
    left = int.from_bytes(length, "big")
    text = b""
    while left and (part := asking.recv(left)):
        text += part
        left -= len(part)
    return json.loads(text), list(files)


def _work(wish: dict[str, Any], files: list[int]) -> NoReturn:
    """Become the worker: its command line, environment, directory and open files in place of ours."""
    for target, file in zip(worker.OPEN_FILES, files, strict=True):
        os.dup2(file, target)
        os.close(file)
    os.environ.clear()
    os.environ.update(wish["env"])
    os.chdir(wish["cwd"])
    import numpy

    numpy.random.seed(int.from_bytes(os.urandom(4)))  # else all workers draw the same; Python sees to its own
    sys.argv = wish["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    _exit_after(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))


def _drive(overrides: list[str]) -> NoReturn:
    for name in READ_AT_IMPORT:
        del os.environ[name]
    sys.argv = [MODULE, *overrides]
    _exit_after(lambda: runpy.run_module(MODULE, run_name="__main__", alter_sys=True))


def _exit_after(run: Callable[[], Any]) -> NoReturn:
    """Run to the end and leave as Python would have left, but never into the code that forked this process."""
    import atexit

    code = 1
    try:
        run()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end_like(ending: int) -> NoReturn:
    """End as the driver ended, by the same signal if it was one: whoever waits for us wants to know why."""
    if ending < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler to put back
            signal.signal(-ending, signal.SIG_DFL)
        os.kill(os.getpid(), -ending)
    sys.exit(ending if ending >= 0 else 128 - ending)


if __name__ == "__main__":
    main()
