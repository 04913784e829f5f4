"""The page on sweeps names all that there is, and what it shows can be asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hysweep.compose import Composer
from hysweep.schema.search import PRUNER_OPTIONS, SAMPLER_OPTIONS
from hysweep.study import define, preview
from hysweep.study.promotion import unfit_to_promote

pytestmark = pytest.mark.contract

PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "options"), [("Samplers", SAMPLER_OPTIONS), ("Pruners", PRUNER_OPTIONS)], ids=["samplers", "pruners"]
)
def test_every_rule_has_a_line_with_its_options(title: str, options: dict[str, tuple[str, ...]]) -> None:
    rows = [line.split(" | ") for line in section(title).splitlines() if line.startswith("| `")]
    told = {name: row[2] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert set(told) == set(options) - {"none"}
    for name, text in told.items():
        assert set(options[name]) <= set(re.findall(r"`(\w+)`", text)), name


def test_the_first_sweep_of_the_page_can_be_asked_for(tmp_path: Path) -> None:
    shown = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text(shown[0])
    composer = Composer([tmp_path])
    definition = define(composer.compose(["sweep=mine", "trainer.mini_batch_size=64"]))
    assert [r.name for r in definition.study.rules] == ["hyperband", "nan", "reward_collapse", "probs_diff"]
    assert len(preview(definition, composer)) == 7
    for block in shown[1:]:
        (tmp_path / "sweep" / "more.yaml").write_text(f"# @package _global_\n{block}")
        more = Composer([tmp_path]).compose(["sweep=more"])
        define(more)
        if "objectives" in block:
            assert len(more.study.goals) == 3
        else:
            assert not unfit_to_promote(more.trial, more.study)
