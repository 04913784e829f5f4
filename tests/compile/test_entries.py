"""A recipe's entry: found by reading it, its keys looked up in its own configuration over verl's."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from hysweep.check import check_trial, errors
from hysweep.compile import compile_trial
from hysweep.compile.entries import find_entry
from hysweep.schema import BadInput

needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="its configuration: pip install 'hysweep[cpu]'")
HY3 = "experiment=hy3_dapo_math"


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """A checkout as verl's recipe collection is: an entry, and a configuration for each engine built on verl's."""
    config = tmp_path / "recipes" / "own" / "config"
    config.mkdir(parents=True)
    (config.parent / "main_own.py").write_text(
        "import hydra\nfrom .nowhere import Trainer\n\n"
        "@hydra.main(config_path='config', config_name='own_trainer', version_base=None)\n"
        "def main(config):\n    pass\n"
    )
    (config.parent / "helper.py").write_text("x = 1\n")
    for name, base in (("own_trainer", "ppo_trainer"), ("own_megatron_trainer", "ppo_megatron_trainer")):
        (config / f"{name}.yaml").write_text(
            f"hydra:\n  searchpath: [file://verl/trainer/config]\ndefaults: [{base}, _self_]\n"
            "own: {depth: 3}\nalgorithm: {filter_groups: {max_num_gen_batches: 0}}\n"
        )
    return tmp_path / "recipes"


def words(recipes: Path, *more: str) -> tuple[str, ...]:
    return (f"trainer.recipes={recipes}", "trainer.entry=own.main_own", *more)


@needs_verl
def test_hy3_with_a_recipes_entry_carries_what_it_must_have(trial_of, recipes: Path) -> None:
    trial = trial_of(HY3, "algorithm=dapo", *words(recipes, "+verl.own.depth=5"))
    assert errors(check_trial(trial)) == []
    job = compile_trial(trial, Path("/t"))
    assert job.module == "own.main_own"
    assert job.overrides[:2] == ("--config-name=own_megatron_trainer", "hydra.searchpath=[pkg://verl.trainer.config]")
    assert job.env["PYTHONPATH"] == str(recipes)
    own = trial_of(HY3, "algorithm=dapo", *words(recipes, "+verl.own.depth=5", "cluster.env.PYTHONPATH=/own"))
    assert compile_trial(own, Path("/t")).env["PYTHONPATH"] == f"{recipes}:/own"
    config = "actor_rollout_ref.actor.megatron.override_transformer_config"
    assert any(o.startswith(f"+{config}.moe_router_load_balancing_type=") for o in job.overrides)
    assert {"own.depth=5", "algorithm.filter_groups.enable=true", "trainer.use_v1=false"} <= set(job.overrides)


@needs_verl
def test_the_keys_are_those_of_the_entry(trial_of, recipes: Path) -> None:
    [problem] = errors(check_trial(trial_of(*words(recipes, "+verl.own.dept=5"))))
    assert problem.key == "verl.own.dept" and "own.depth" in problem.cure
    assert errors(check_trial(trial_of("+verl.own.depth=5"))), "main_ppo has no such key"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("own.main_ow", "did you mean own.main_own"),
        ("own.helper", "no entry that Hydra starts"),
        ("none", "is no module"),
        ("/", "is no module"),
        ("", "is no module"),
    ],
)
def test_what_is_no_entry(entry: str, said: str, recipes: Path) -> None:
    with pytest.raises(BadInput, match=said):
        find_entry(entry, str(recipes), "dp")


def test_an_old_verl_replaces_groups_by_a_recipe_alone(trial_of) -> None:
    [problem] = errors(check_trial(trial_of(HY3, "algorithm=dapo", "trainer.verl=220e903")))
    assert problem.key == "algorithm.use_filter_groups" and "recipe" in problem.cure
