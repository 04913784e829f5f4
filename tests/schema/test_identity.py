from __future__ import annotations

import pytest

from hysweep.schema import trial_id


def test_what_is_learned_makes_the_identity(trial_of) -> None:
    base = trial_id(trial_of())
    for changed in ("algorithm=cispo", "trainer.learning_rate=2e-3", "rollout.temperature=0.9", "trainer.seed=2",
                    "model.path=/other", "verl.actor_rollout_ref.actor.shuffle=true"):  # fmt: skip
        assert trial_id(trial_of(changed)) != base, changed


@pytest.mark.parametrize(
    "changed",
    ["trainer.total_steps=7", "trainer.max_token_len_per_gpu=4096", "cluster.timeout_min=5", "rollout.agent_workers=2",
     "tracking=wandb", "memory.param_offload=true", "cluster.env.FOO=bar", "parallelism.engine=megatron"],
)  # fmt: skip
def test_where_and_how_long_do_not(trial_of, changed: str) -> None:
    assert trial_id(trial_of(changed)) == trial_id(trial_of())


def test_a_varied_field_belongs_whatever_it_is(trial_of) -> None:
    short, long = trial_of("trainer.total_steps=5"), trial_of("trainer.total_steps=9")
    assert trial_id(short) == trial_id(long)
    assert trial_id(short, ["trainer.total_steps"]) != trial_id(long, ["trainer.total_steps"])
    assert trial_id(short, ["trainer"]) != trial_id(long, ["trainer"])


def test_a_label_is_no_content(trial_of) -> None:
    assert trial_id(trial_of("algorithm.name=renamed")) == trial_id(trial_of())


def test_the_identity_of_the_default_does_not_drift_between_processes(trial_of) -> None:
    import subprocess
    import sys

    code = (
        "from hysweep.compose import Composer\n"
        "from hysweep.schema import trial_id\n"
        "print(trial_id(Composer().compose().trial))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert out == trial_id(trial_of())
