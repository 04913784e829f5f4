"""Arrow files as verl's own dataset: the same rows, the same choice of them, the same filter as the parquet's."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed: pip install 'hysweep[cpu]'"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same 40 rows as parquet, as two shards of Arrow files, and as a directory that `datasets` saved."""
    import datasets

    folder = tmp_path_factory.mktemp("sets")
    rows = [
        {"data_source": "d", "prompt": [{"role": "user", "content": "word " * (1 + i % 7)}], "ability": "",
         "reward_model": {"style": "rule", "ground_truth": str(i)}, "extra_info": {"index": i}}
        for i in range(40)
    ]  # fmt: skip
    table = datasets.Dataset.from_list(rows)
    table.to_parquet(folder / "rows.parquet")
    table.save_to_disk(folder / "saved", num_shards=2)
    return folder


def dataset(cls_path: str | None, files: list[str], max_samples: int = -1, **settings: object):
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import get_dataset_class

    from hysweep.embedded.build import make_tokenizer

    custom = {"path": cls_path, "name": "ArrowDataset" if cls_path else None}
    config = OmegaConf.create({"custom_cls": custom, "filter_overlong_prompts_workers": 1, **settings})
    cls = get_dataset_class(config)
    return cls(files, make_tokenizer(), config, max_samples=max_samples)


def indices(found) -> list[int]:
    return [found[i]["extra_info"]["index"] for i in range(len(found))]


OURS = "pkg://hysweep.data.arrow_dataset"


@pytest.mark.parametrize("name", ["saved", "saved/*.arrow", "rows.parquet"])
@pytest.mark.parametrize(
    "settings",
    [
        {"filter_overlong_prompts": False},
        {"filter_overlong_prompts": True, "max_prompt_length": 30},
        {"filter_overlong_prompts": True, "max_prompt_length": 30, "max_samples": 10, "shuffle": True, "seed": 3},
        {"filter_overlong_prompts": False, "max_samples": 5},
    ],
    ids=["all", "filtered", "sampled by seed and filtered", "the first"],
)
def test_it_is_verls_dataset_over_arrow(name: str, settings: dict, folder: Path) -> None:
    theirs = dataset(None, [str(folder / "rows.parquet")], **settings)
    ours = dataset(OURS, [str(folder / name)], **settings)
    assert indices(ours) == indices(theirs) and len(ours) > 0
    assert ours[0]["raw_prompt"] == theirs[0]["raw_prompt"]
    assert not list((folder / "saved").glob("cache-*")), "nothing is written beside the set"


def test_it_comes_back_from_a_checkpoint(folder: Path) -> None:
    import pickle

    ours = dataset(OURS, [str(folder / "saved")], filter_overlong_prompts=True, max_prompt_length=30)
    before = indices(ours)
    again = pickle.loads(pickle.dumps(ours))
    again.resume_dataset_state()
    assert indices(again) == before


def test_a_trial_asks_for_it(trial_of, folder: Path) -> None:
    from hysweep.check import check_trial
    from hysweep.compile import trainer_values

    files = f"data.train_files=[{folder}/saved]"
    trial = trial_of(files, "data.reader=arrow")
    assert trainer_values(trial)["data.custom_cls.path"] == OURS
    assert [p for p in check_trial(trial) if p.key.startswith("data")] == []
    assert any("verl reads" in p.why for p in check_trial(trial_of(files)))
