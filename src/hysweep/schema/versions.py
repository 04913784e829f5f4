"""What is installed against what a trial needs: read from package metadata, nothing is imported."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

# What a trial on GPUs runs, and what hysweep itself is built on: a report of a fault needs their versions.
GPU_STACK = ("vllm", "megatron-core", "megatron-bridge")
OWN_STACK = ("hydra-core", "omegaconf", "optuna", "submitit", "hydra-submitit-launcher")


@dataclass(frozen=True, slots=True)
class Misfit:
    package: str
    version: str
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.package} = {self.version}: {self.why}; {self.cure}"


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed here."""
    return {name: found for name in packages if (found := _version(name)) is not None}


@cache
def _version(name: str) -> str | None:
    """Read once: a process goes on with what it began with."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def operating_system() -> str:
    """By its own name for itself."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def unfit(required: Mapping[str, str], found: Mapping[str, str]) -> Iterator[Misfit]:
    """The packages that are there in a version that cannot work. What is missing is not looked for here."""
    for name, have in found.items():
        if not _fits(required[name], have):
            is_released = ".dev" not in required[name]
            cure = f"pip install '{name}{required[name]}'" if is_released else f"install {name} from that commit"
            yield Misfit(name, have, f"the trial needs {required[name]}", cure)


@cache
def _fits(wanted: str, have: str) -> bool:
    try:
        return SpecifierSet(wanted).contains(Version(have), prereleases=True)
    except InvalidVersion:  # a build of somebody's own
        return True
