"""What `hysweep doctor --cluster` runs on each node of a job: looks around, and writes down what it finds.

    python -m hysweep.launch.probe DIRECTORY

The other side is `hysweep.launch.survey`. They meet in files of DIRECTORY alone, as a study and its nodes do.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hysweep import __version__
from hysweep.launch import all_reduce, command
from hysweep.launch.allocation import Allocation, address_towards
from hysweep.launch.boot import BootFailed, make_temporary
from hysweep.schema import BadInput
from hysweep.schema.finding import Finding
from hysweep.schema.job import Job
from hysweep.schema.versions import GPU_STACK, OWN_STACK, installed, operating_system, unfit
from hysweep.track import AttemptDirectory, read_json, write_json

ASKED = "asked.json"  # what the submitting side wrote before it submitted
PORT = "port.json"  # where the first node listens

_MEETS_WITHIN = 20.0  # seconds that the other nodes, or the submitting side, may take
_REDUCES_WITHIN = 120.0
_SKEW = 2.0  # seconds; more confuses times of files, and who reads two logs
_FILES = 65536
_TEMPORARY_GIB = 5.0
# What a trainer cannot do without, whatever the trial says of its version.
_CORE = ("verl", "ray", "torch", "transformers")


def report(directory: Path, rank: int) -> Path:
    return directory / f"probe-{rank}.json"


def ping(directory: Path, rank: int) -> Path:
    return directory / f"ping-{rank}.json"


def pong(directory: Path, rank: int) -> Path:
    return directory / f"pong-{rank}.json"


class Probe:
    def __init__(self, directory: Path, allocation: Allocation, job: Job) -> None:
        self.directory = directory
        self.allocation = allocation
        self.job = job
        self._meeting: dict[str, Any] = {}  # where the first node is

    def run(self) -> list[Finding]:
        return [
            self._system(),
            *self._lacks_cpus(),
            self._container(),
            *self._shared(),
            self._port(),
            *self._gpus(),
            self._all_reduce(),
            *self._packages(),
            self._memory(),
            self._files(),
            self._temporary(),
        ]

    # --- where it runs

    def _system(self) -> Finding:
        python = f"Python {platform.python_version()}, hysweep {__version__}"
        said = f"{operating_system()}, Linux {platform.release()}, {python}"
        return Finding("system", True, f"{said}, {_cpus(os.cpu_count() or 0, self.allocation.cpus)}")

    def _lacks_cpus(self) -> list[Finding]:
        lacks = command.lacks_cpus(self.job, self.allocation)
        return [Finding("CPUs", False, *lacks, is_needed=True)] if lacks else []

    def _container(self) -> Finding:
        """Where srun could not have made it, this would not run."""
        site = self.job.site
        return Finding("container", True, f"{site.container}: {site.image}" if site.container else "none asked for")

    # --- files and clocks, with the submitting side

    def _shared(self) -> Iterator[Finding]:
        """A file of the other side's is here with what it says (or this would not run at all); ours come back."""
        sent = time.time()
        write_json(ping(self.directory, self.allocation.rank), {"at": sent})
        answer = _wait_for(lambda: read_json(pong(self.directory, self.allocation.rank)), _MEETS_WITHIN)
        came = time.time()
        where = str(self.directory.parents[3])
        if answer is None:
            cure = "a study must lie on a file system that the nodes share with this machine: study.root=DIR"
            yield Finding("shared files", False, f"no answer within {_MEETS_WITHIN:.0f} s in {where}", cure, True)
            yield Finding("clock", True, "not known")
            return
        yield Finding("shared files", True, f"there and back in {came - sent:.1f} s", is_needed=True)
        half = (came - sent) / 2
        ahead = (sent + came) / 2 - float(answer["at"])
        found = f"{abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'} ± {half:.1f} s"
        yield Finding("clock", abs(ahead) - half <= _SKEW, found, "have the site look after its clocks (NTP)")

    # --- the network

    def _port(self) -> Finding:
        """The first node listens, as it does in a trial; the others say hello."""
        nodes, interface = self.allocation.nodes, self.job.site.network_interface
        try:
            is_first = self.allocation.rank == 0
            found = self._listen(address_towards(nodes[-1], interface)) if is_first else self._call()
        except (OSError, BadInput) as e:
            cure = "cluster.network_interface=NAME names another; a firewall between the nodes must let them through"
            return Finding("ports", False, str(e), cure, is_needed=True)
        return Finding("ports", True, found, is_needed=True)

    def _listen(self, address: str) -> str:
        with socket.create_server((address, 0)) as server, socket.create_server((address, 0)) as spare:
            self._meeting = {"address": address, "port": server.getsockname()[1], "spare": spare.getsockname()[1]}
            write_json(self.directory / PORT, self._meeting)
            others = list(self.allocation.nodes[1:])
            server.settimeout(_MEETS_WITHIN)
            missing = set(others)
            while missing:
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    raise OSError(f"{', '.join(sorted(missing))} did not reach {address}") from None
                with connection:
                    connection.settimeout(5)
                    missing.discard(connection.recv(256).decode(errors="replace"))
        return f"{address} bound" + (
            f", reached from {', '.join(others)}" if others else "; one node, none to reach it"
        )

    def _call(self) -> str:
        found = _wait_for(lambda: read_json(self.directory / PORT), _MEETS_WITHIN)
        if not isinstance(found, dict):
            raise OSError(f"{self.allocation.nodes[0]} never said where it listens")
        self._meeting = found
        with socket.create_connection((found["address"], found["port"]), timeout=_MEETS_WITHIN) as connection:
            connection.sendall(self.allocation.name.encode())
            return f"{found['address']} reached from {connection.getsockname()[0]}"

    # --- GPUs

    def _gpus(self) -> Iterator[Finding]:
        site, promised = self.job.site, self.job.gpus_per_node
        if site.gpu is None:
            yield Finding("GPUs", True, "none asked for")
            return
        rows, driver = _nvidia()
        if not rows:
            cure = "the driver or the container is at fault; ask the site, and look at cluster.container"
            yield Finding("GPU driver", False, driver, cure, is_needed=True)
        else:
            yield Finding("GPU driver", True, driver, is_needed=True)
        variable = os.environ.get(site.visible_devices)
        seen = len(rows) if rows else len([v for v in (variable or "").split(",") if v])
        given = self.allocation.gpus
        said = f"{seen} seen, {promised} promised, {given if given is not None else '?'} given by SLURM"
        said += f"; {site.visible_devices}={variable}" if variable is not None else ""
        cure = "cluster.gpus_per_node, or cluster.gres, asks for what a node has not"
        yield Finding("GPUs", seen >= promised, said, cure, is_needed=True)
        if rows and site.gpu_memory_gib is not None:
            least = min(mib for _, mib in rows) / 1024
            names = ", ".join(sorted({name for name, _ in rows}))
            cure = f"set cluster.gpu_memory_gib={least:.1f}: memory is planned by it"
            is_good = least >= 0.99 * site.gpu_memory_gib
            yield Finding("GPU memory", is_good, f"{names}, {least:.1f} GiB each", cure)

    def _all_reduce(self) -> Finding:
        ours = self.job.gpus_per_node
        if why := self._why_no_all_reduce():
            return Finding("all-reduce", True, f"not run: {why}")
        ranks = ours * len(self.allocation.nodes)
        meets = {"MASTER_ADDR": self._meeting["address"], "MASTER_PORT": str(self._meeting["spare"])}
        argv = [sys.executable, "-P", all_reduce.__file__]  # beside it lie names of the standard library
        children = []
        for local in range(ours):
            place = {"RANK": str(self.allocation.rank * ours + local), "LOCAL_RANK": str(local)}
            env = dict(os.environ) | meets | place | {"WORLD_SIZE": str(ranks)}
            pipe = subprocess.PIPE
            children.append(subprocess.Popen(argv, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True))
        until = time.monotonic() + _REDUCES_WITHIN
        said = []
        for child in children:
            try:
                said.append(child.communicate(timeout=max(0.1, until - time.monotonic()))[0])
            except subprocess.TimeoutExpired:
                for each in children:
                    each.kill()
                said.append(f"not done within {_REDUCES_WITHIN:.0f} s")
        cure = "run with debug=nccl and look at the network of the nodes"
        bad = [text for child, text in zip(children, said, strict=True) if child.poll() != 0]
        if bad:
            lines = [line for line in bad[0].splitlines() if line.strip()]
            return Finding("all-reduce", False, lines[-1][:300] if lines else "ended without a word", cure, True)
        if self.allocation.rank:
            return Finding("all-reduce", True, "done; the first node has the figures", is_needed=True)
        # libraries may say something after it, too
        found = json.loads(next(line for line in reversed(said[0].splitlines()) if line.startswith("{")))
        text = (
            f"{ranks} GPUs, 256 MiB in {found['milliseconds']:.1f} ms, {found['gb_s']:.0f} GB/s, NCCL {found['nccl']}"
        )
        if not found["is_right"]:
            return Finding("all-reduce", False, f"{text}: the sum is wrong", cure, is_needed=True)
        return Finding("all-reduce", True, text, is_needed=True)

    def _why_no_all_reduce(self) -> str:
        if self.job.site.gpu is None:
            return "no GPUs were asked for"
        if not _nvidia()[0]:
            return "no GPU of NVIDIA's answers"
        if find_spec("torch") is None:
            return "torch is not installed"
        return "" if self._meeting else "the nodes did not reach each other"

    # --- software, and what a node has

    def _packages(self) -> Iterator[Finding]:
        names = list(dict.fromkeys([*_CORE, *self.job.requires, *GPU_STACK, *OWN_STACK]))
        found = installed(names)
        misfits = [str(m) for m in unfit(self.job.requires, {n: v for n, v in found.items() if n in self.job.requires})]
        there = ", ".join(f"{n} {v}" for n, v in found.items())
        cure = "install what the trial needs into cluster.python, or choose another trainer.verl"
        yield Finding("packages", not misfits, "; ".join(misfits) or there or "none of them", cure, is_needed=True)
        missing = [n for n in _CORE if n not in found and find_spec(n) is None]
        if missing:
            yield Finding("trainer", False, f"{', '.join(missing)} not installed in {sys.executable}", cure, True)

    def _memory(self) -> Finding:
        free = shutil.disk_usage("/dev/shm").free / 2**30
        wanted = self.job.object_store_gib or 1.0
        cure = "a container wants --shm-size; or lower cluster.object_store_gib: Ray falls back to slow files"
        return Finding("/dev/shm", free >= wanted, f"{free:.1f} GiB free, Ray takes {wanted:g}", cure)

    def _files(self) -> Finding:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        said = "no limit" if most == resource.RLIM_INFINITY else f"at most {most}"
        cure = f"ulimit -n {_FILES} in cluster.setup, or have the site raise it"
        return Finding("open files", most == resource.RLIM_INFINITY or most >= _FILES, said, cure)

    def _temporary(self) -> Finding:
        """Made as a trial's is, then removed."""
        attempt = AttemptDirectory(self.directory)
        cure = "name a directory of the node by cluster.local_dir, with a short path"
        try:
            made, lock = make_temporary(attempt, self.allocation.rank, self.job.site.local_dir)
        except BootFailed as e:
            return Finding("temporary", False, str(e), cure, is_needed=True)
        free = shutil.disk_usage(made).free / 2**30
        made.rmdir()
        os.close(lock)
        is_good = free >= _TEMPORARY_GIB
        return Finding("temporary", is_good, f"{made.parent}, {free:.0f} GiB free", cure, is_needed=False)


def _cpus(there: int, ours: int | None) -> str:
    """What a node has, and what SLURM says is ours of it, which is more where its slurm.conf counts more."""
    if ours is None:
        return f"{there} CPUs, and SLURM does not say how many are ours"
    return f"{there} CPUs of which {ours} are ours" if ours <= there else f"{there} CPUs, which SLURM counts as {ours}"


def _nvidia() -> tuple[list[tuple[str, float]], str]:
    """(name, MiB) of each GPU that the driver shows, and what is to say of the driver."""
    argv = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        rows = [[w.strip() for w in line.split(",")] for line in done.stdout.splitlines() if line.count(",") == 2]
        if done.returncode or not rows:
            said = (done.stdout + done.stderr).strip().splitlines()
            return [], f"nvidia-smi shows no GPU: {said[0][:200] if said else 'it said nothing'}"
        head = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=30).stdout
    except FileNotFoundError:
        return [], "there is no nvidia-smi"
    except subprocess.TimeoutExpired:
        return [], "nvidia-smi does not answer"
    cuda = head.partition("CUDA Version:")[2].split()[:1]
    return [(r[0], float(r[1])) for r in rows], f"driver {rows[0][2]}, CUDA up to {cuda[0] if cuda else '?'}"


def _wait_for(find: Callable[[], Any], within: float) -> Any | None:
    until = time.monotonic() + within
    while (found := find()) is None and time.monotonic() < until:
        time.sleep(0.05)
    return found


def main(directory: Path) -> int:
    # the scheduler's word that the limit is near: there is nothing to save
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    asked = read_json(directory / ASKED)
    if not isinstance(asked, dict):
        print(f"{directory} is not seen on {socket.gethostname()}, or is empty there", file=sys.stderr)
        return 1
    try:
        allocation = Allocation.of(os.environ)
        findings = Probe(directory, allocation, Job.from_dict(asked["job"])).run()
    except BadInput as e:
        print(e, file=sys.stderr)
        return 1
    said = {"node": allocation.name, "word": asked["word"], "findings": [asdict(f) for f in findings]}
    write_json(report(directory, allocation.rank), said)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
