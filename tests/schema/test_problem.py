from __future__ import annotations

from hysweep.schema import Problem, nearest, suggest

FIELDS = ["trainer.learning_rate", "trainer.seed", "parallelism.tensor", "rollout.tensor", "rollout.temperature"]


def test_a_problem_reads_as_one_sentence() -> None:
    problem = Problem("parallelism.expert", 6, "must divide num_experts = 192", "try 4, 8 or 12")
    assert str(problem) == "parallelism.expert = 6: must divide num_experts = 192; try 4, 8 or 12"


def test_the_nearest_names() -> None:
    assert nearest("trainer.lr", FIELDS)[0] == "trainer.learning_rate"
    assert set(nearest("actor.tensor", FIELDS)[:2]) == {"parallelism.tensor", "rollout.tensor"}
    assert nearest("rollout.temprature", FIELDS)[0] == "rollout.temperature"
    assert nearest("trainer.learning_rat", FIELDS) == ["trainer.learning_rate"], "what is far less like it is left out"
    assert nearest("GRPO", ["grpo", "rloo"]) == ["grpo"]
    assert nearest("zzz", FIELDS) == []
    assert nearest("oom", ["cuda_oom", "host_oom", "hung"]) == ["cuda_oom", "host_oom"]


def test_a_short_list_is_told_whole() -> None:
    assert suggest("qqq", ["grpo", "rloo"]) == "choose one of grpo, rloo"
