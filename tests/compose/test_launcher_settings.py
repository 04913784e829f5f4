"""What people have said to hydra-submitit-launcher means the same here."""

from __future__ import annotations

from dataclasses import fields

import pytest

from hysweep.compose import Composer
from hysweep.compose.launcher_settings import EXTRA, FIXED, SAME, as_overrides, as_typed, translated
from hysweep.schema import BadInput, Problem

OURS = "hydra/launcher=hysweep_slurm"


def test_every_setting_of_theirs_has_a_meaning_or_a_reason_here() -> None:
    from hydra_plugins.hydra_submitit_launcher.config import SlurmQueueConf

    theirs = {f.name for f in fields(SlurmQueueConf)} - {"_target_"}
    assert theirs == {*SAME, *EXTRA, *FIXED, "additional_parameters"}


def test_settings_become_the_cluster_s(composer: Composer) -> None:
    words = [
        OURS,
        "hydra.launcher.partition=low",
        "hydra.launcher.nodes=2",
        "hydra.launcher.mem_gb=64",
        "hydra.launcher.timeout_min=90",
        "hydra.launcher.setup=['module load cuda', 'export A=1']",
        "hydra.launcher.array_parallelism=3",
        "hydra.launcher.mem_per_gpu=3G",
        "hydra.launcher.additional_parameters={mail-user: me@here, wckey: w}",
        "+hydra.launcher.additional_parameters.exclusive=true",
    ]
    composition = composer.compose(words)
    cluster = composition.trial.cluster
    assert (cluster.launcher, cluster.partition, cluster.nodes) == ("slurm", "low", 2)
    assert (cluster.memory_gib, cluster.timeout_min, cluster.setup) == (64, 90, ["module load cuda", "export A=1"])
    assert (cluster.mail_user, cluster.use_exclusive, composition.study.max_parallel) == ("me@here", True, 3)
    assert cluster.additional_parameters == {"wckey": "w", "mem-per-gpu": "3G"}


@pytest.mark.parametrize(
    ("launcher", "ours"), [("submitit_slurm", "slurm"), ("submitit_local", "local"), ("basic", "local")]
)
def test_stock_launchers_under_our_sweeper(composer: Composer, launcher: str, ours: str) -> None:
    """Their settings mean the same; under a stock sweeper, which asks them itself, they are left alone."""
    more = ["hydra.launcher.timeout_min=7"] if launcher != "basic" else []
    words = [f"hydra/launcher={launcher}", *more, "algorithm=grpo"]
    cluster = composer.compose(words).trial.cluster
    assert (cluster.launcher, cluster.timeout_min) == (ours, 7 if more else 60)
    assert translated(["hydra/sweeper=basic", *words]) == ["hydra/sweeper=basic", *words]
    assert translated(["hydra/sweeper=basic", "hydra/sweeper=hysweep", *words]) != words


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        *(
            (f"additional_parameters={text}", "is no mapping of options by name")
            for text in ("5", "[a]", "abc", "{1: a}")
        ),
        ("additional_parameters={comment: !!binary aGVsbG8=}", "no override can carry a bytes"),
        ("setup={a b: 1}", "no override can carry the key 'a b'"),
        ("timeout_min=24:00:00", "'24:00:00': is no whole number"),
    ],
)
def test_a_value_that_no_setting_can_have_is_told(composer: Composer, setting: str, says: str) -> None:
    with pytest.raises(BadInput) as said:
        composer.compose([OURS, f"hydra.launcher.{setting}"])
    assert says in str(said.value) and len(str(said.value).splitlines()) == 1


def test_a_launcher_that_nothing_would_ask_is_refused() -> None:
    with pytest.raises(BadInput, match="hydra/launcher = joblib: is not asked"):
        translated(["hydra/launcher=joblib"])
    assert translated(["hydra/launcher=joblib", "hydra/sweeper=basic"]) == [
        "hydra/launcher=joblib",
        "hydra/sweeper=basic",
    ]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("hydra.launcher.tasks_per_node=8", "one task runs on each node"),
        ("hydra.launcher.partitio=low", "did you mean partition"),
        ("hydra.launcher.setup=[a", "cannot be read"),
        ("hydra.launcher.nodes=two", "cluster.nodes = two"),
    ],
)
def test_what_cannot_mean_the_same_is_refused(composer: Composer, setting: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        composer.compose([OURS, setting])


def test_what_is_unset_says_nothing() -> None:
    assert as_overrides({"partition": None, "mem_per_cpu": None, "max_num_timeout": 0}) == ["cluster.launcher=slurm"]


@pytest.mark.parametrize(
    ("words", "key", "typed"),
    [
        (["hydra.launcher.partition=x"], "cluster.partition", "hydra.launcher.partition"),
        (["+hydra.launcher.mem_gb=x"], "cluster.memory_gib", "hydra.launcher.mem_gb"),
        (["hydra.launcher.setup=[x]"], "cluster.setup.0", "hydra.launcher.setup.0"),
        (["hydra.launcher.array_parallelism=0"], "study.max_parallel", "hydra.launcher.array_parallelism"),
        (["hydra.launcher.mem_per_gpu=3G"], "cluster.additional_parameters.mem-per-gpu", "hydra.launcher.mem_per_gpu"),
        (
            ["+hydra.launcher.additional_parameters.mail-user=x"],
            "cluster.mail_user",
            "hydra.launcher.additional_parameters.mail-user",
        ),
        (
            ["+hydra.launcher.additional_parameters.array=3"],
            "cluster.additional_parameters.array",
            "hydra.launcher.additional_parameters.array",
        ),
        (["hydra.launcher.nodes=2"], "cluster.nodelist", "cluster.nodelist"),
        (["hydra.launcher.partition=x", "cluster.partition=y"], "cluster.partition", "cluster.partition"),
        (["hydra.launcher.frob=x", "hydra/launcher=hysweep_slurm"], "cluster.partition", "cluster.partition"),
    ],
)
def test_a_problem_names_the_word_that_was_typed(words: list[str], key: str, typed: str) -> None:
    assert as_typed(Problem(key, "x", "is wrong", "mend it"), words).key == typed
