"""A point of a study is made from what it changes; it has to be the trial of its whole command line."""

from __future__ import annotations

import random

import pytest
from omegaconf import OmegaConf

from hysweep.compose import Choice, Composer
from hysweep.compose.composer import trial_yaml
from hysweep.compose.grammar import assignment

NUMBERS = ("algorithm=grpo,gspo", "trainer.learning_rate=tag(log,interval(1e-4,1e-2))", "rollout.n=choice(4,8)")


@pytest.mark.parametrize(
    "words",
    [
        NUMBERS,
        ("sweep=hy3_algorithms",),
        ("experiment=hy3_dapo_math", "parallelism.tensor=1,2,4", "+verl.actor_rollout_ref.actor.shuffle=true,false"),
        ("model.path=a,b", "trainer.seed=1,2"),
    ],
)
def test_a_point_is_the_trial_of_its_command_line(composer: Composer, words: tuple[str, ...]) -> None:
    base = composer.compose(words)
    draw = random.Random(7)
    for _ in range(3):
        point = base.space.walk(
            lambda name, p: draw.choice(p.values) if isinstance(p, Choice) else draw.uniform(p.low, p.high)
        )
        texts = [assignment(k, base.space.text(k, v), composer.words) for k, v in point.items()]
        trial = composer.point(base.fixed, base.space, point)
        assert trial == composer._typed_once((*base.fixed, *texts))[0]
        assert trial_yaml(trial) == OmegaConf.to_yaml(OmegaConf.structured(trial))
