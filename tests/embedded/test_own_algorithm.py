"""The example of docs/own_algorithm.md: what it computes, and how it is found."""

from __future__ import annotations

import importlib.util
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from hysweep.check import check_trial, errors
from hysweep.compile import compile_trial

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_algorithm" / "median_baseline.py"
OWN = (f"algorithm.plugin={EXAMPLE}", "algorithm.adv_estimator=median_baseline", "algorithm.loss_mode=weighted_pg")


@pytest.mark.verl
@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed: pip install 'hysweep[cpu]'")
def test_what_the_example_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    monkeypatch.setenv("HYSWEEP_PLUGIN", str(EXAMPLE))
    importlib.import_module("hysweep.embedded.plugin")
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 5.0]])
    mask = torch.ones(4, 2)
    advantages, returns = get_adv_estimator_fn("median_baseline")(
        rewards, mask, index=["a", "a", "a", "b"], config=None
    )
    assert advantages.tolist() == [[1, 1], [0, 0], [0, 0], [5, 5]], "minus the median; one alone has no group"
    assert returns is advantages
    config = SimpleNamespace(clip_ratio_high=0.5, global_batch_info={})
    log_prob = torch.zeros(4, 2, requires_grad=True)
    loss, metrics = get_policy_loss_fn("weighted_pg")(
        torch.full((4, 2), -2.0), log_prob, advantages, mask, "token-mean", config
    )
    loss.backward()
    assert log_prob.grad is not None
    assert log_prob.grad[0].tolist() == pytest.approx([-1.5 / 8] * 2), "a ratio of 7 counts as 1.5"
    assert metrics == {"actor/pg_clipfrac": 1.0}


def test_a_plug_in_reaches_every_process_and_may_read_every_field(trial_of) -> None:
    trial = trial_of(*OWN, "algorithm.clip_ratio_high=0.5", "algorithm.tau_pos=2.0", "algorithm.norm_adv_by_std=false")
    assert check_trial(trial) == []
    job = compile_trial(trial, Path("/t"))
    assert job.env["VERL_USE_EXTERNAL_MODULES"] == "hysweep.embedded.plugin"
    assert job.env["HYSWEEP_PLUGIN"] == str(EXAMPLE)
    assert {"algorithm.adv_estimator=median_baseline", "actor_rollout_ref.actor.tau_pos=2.0"} <= set(job.overrides)


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        (("algorithm.loss_mode=weighted_pq",), "algorithm.loss_mode", "did you mean weighted_pg"),
        (("algorithm.adv_estimator=mean_baseline",), "algorithm.adv_estimator", "did you mean median_baseline"),
    ],
)
def test_a_name_that_the_file_does_not_register(trial_of, change: tuple[str, ...], key: str, said: str) -> None:
    [problem] = errors(check_trial(trial_of(*OWN, *change)))
    assert problem.key == key and said in problem.cure


def test_without_a_plug_in_the_names_are_verls(trial_of) -> None:
    from hysweep.schema import BadInput

    with pytest.raises(BadInput, match="none of the values"):
        trial_of("algorithm.loss_mode=weighted_pg")
    [warning] = check_trial(trial_of(OWN[0]))
    assert "neither" in warning.why
