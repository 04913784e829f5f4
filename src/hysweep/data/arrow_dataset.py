"""Arrow files as verl's dataset, for `data.custom_cls`. The reading is ours; filtering and sampling stay verl's."""

from __future__ import annotations

import os
from glob import glob, has_magic
from typing import Any

import datasets
from verl.utils.dataset.rl_dataset import RLHFDataset

from hysweep.data.sources import find


class ArrowDataset(RLHFDataset):
    """verl's dataset over Arrow files, their shards and `save_to_disk` directories, beside what it reads itself.

    Arrow files are mapped, not copied. `max_samples`, the sampling by seed and the filter of long prompts are the
    parent's own code, which is handed each table where it asks `datasets` for a file.
    """

    data_files: list[str]

    def _download(self, use_origin_parquet: bool = False) -> None:
        """Directories and patterns become the files in them first."""
        names = self.original_data_files if use_origin_parquet else self.data_files
        self.data_files = [file for name in names for file in _files(str(name))]
        for i, file in enumerate(self.data_files):
            if not file.endswith(".arrow"):
                from verl.utils.fs import copy_to_local

                self.data_files[i] = copy_to_local(src=file, cache_dir=self.cache_dir, use_shm=self.use_shm)

    def _read_files_and_tokenize(self) -> None:
        """As the parent does it, which reads by `datasets.load_dataset`: it is given a table where a file is Arrow."""
        own = datasets.load_dataset

        def load(kind: str, data_files: str, **more: Any) -> Any:
            if data_files.endswith(f".arrow{_READ_AS}"):
                return {"train": datasets.Dataset.from_file(data_files.removesuffix(_READ_AS))}
            return own(kind, data_files=data_files, **more)

        names = list(self.data_files)
        self.data_files = [f"{name}{_READ_AS}" if name.endswith(".arrow") else name for name in names]
        keeps_results = datasets.is_caching_enabled()
        datasets.load_dataset = load
        datasets.disable_caching()  # it would write what the filter leaves beside the files
        try:
            super()._read_files_and_tokenize()
        finally:
            datasets.load_dataset = own
            self.data_files = names
            if keeps_results:
                datasets.enable_caching()


_READ_AS = ".parquet"  # the suffix that makes the parent ask `datasets` for a file


def _files(name: str) -> list[str]:
    if "://" in name:
        return [name]
    if os.path.isdir(name) or has_magic(name):
        matched = sorted(glob(name)) if has_magic(name) else [name]
        return [os.path.abspath(source.path) for source in find(matched)]
    return [name]
