"""The one door to `datasets`: sets of a hub, or local copies of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hysweep.schema import BadInput, Problem


def load(name: str, config: str | None = None, split: str | None = None) -> Any:
    """A `datasets.Dataset` or `IterableDataset` of one split. `name`: a hub id, or a directory of the hub's shape.

    A set of a hub is fetched into the cache of `datasets` first, where a download that was cut off goes on; a
    directory is read where it lies. Images stay bytes. Raises BadInput with what to do, for a set that has more than
    one split or configuration, and where there is no network.
    """
    try:
        import datasets
    except ModuleNotFoundError as e:
        raise BadInput(Problem("SRC", name, "needs the package datasets", "pip install 'hysweep[data]'")) from e
    is_local = Path(name).is_dir()
    try:
        splits = datasets.get_dataset_split_names(name, config)
    except Exception as e:
        raise _explained(name, config, e) from e
    chosen = split or (splits[0] if len(splits) == 1 else None)
    if chosen not in splits:
        have = "has no such split" if split else "has more than one split"
        raise BadInput(Problem("split", split, f"{name} {have}", f"choose one: --split {' | '.join(splits)}"))
    datasets.disable_progress_bars() if is_local else None
    try:
        found = datasets.load_dataset(name, config, split=chosen, streaming=is_local)
    except Exception as e:
        raise _explained(name, config, e) from e
    features = found.features or {}
    for column, feature in features.items():
        if isinstance(feature, datasets.Image):
            found = found.cast_column(column, datasets.Image(decode=False))
        elif isinstance(getattr(feature, "feature", None), datasets.Image):
            found = found.cast_column(column, datasets.List(datasets.Image(decode=False)))
    return found


def splits_of(name: str, config: str | None = None) -> list[str]:
    """Raises BadInput like `load`."""
    import datasets

    try:
        return list(datasets.get_dataset_split_names(name, config))
    except Exception as e:
        raise _explained(name, config, e) from e


_OFFLINE = ("ConnectionError", "OfflineModeIsEnabled", "ConnectError", "ConnectTimeout", "LocalEntryNotFoundError",
            "MaxRetryError", "ProxyError", "ReadTimeout", "gaierror")  # fmt: skip


def _explained(name: str, config: str | None, error: Exception) -> BadInput:
    said = " ".join(str(error).split())[:200]
    chain: list[BaseException] = [error]
    while (led := chain[-1].__cause__ or chain[-1].__context__) and len(chain) < 8:
        chain.append(led)
    if "Config name is missing" in said or "BuilderConfig" in said:
        return BadInput(Problem("config", config, f"{name}: {said}", "choose one: --config NAME"))
    if any(type(e).__name__ in _OFFLINE for e in chain) or "offline" in said.lower():
        return BadInput(
            Problem(
                "SRC",
                name,
                "the hub cannot be reached from here",
                "run it where there is a network (a download that was cut off goes on), or copy the set's directory "
                "here and name that",
            )
        )
    if Path(name).is_dir():
        return BadInput(Problem("SRC", name, f"is no set that can be read: {said}", "give its files instead"))
    return BadInput(Problem("SRC", name, f"cannot be fetched: {said}", "see whether the id is right, or use a copy"))
