"""hysweep: sweeps of RL post-training jobs, written as configuration."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("hysweep")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+source"
