"""Every shipped config composes, compiles and checks; the trainer's own tree takes every override."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf

from hysweep.check import check_trial, errors
from hysweep.compile import compile_trial, trainer_keys, trainer_values
from hysweep.compile.keys import TABLES
from hysweep.compile.tabulate import tabulate, unpack
from hysweep.compose import SHIPPED, Composer
from hysweep.compose.space import Choice
from hysweep.layouts import rungs
from hysweep.study import define, preview
from hysweep.track import Phase

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]
WORDS = Composer().words
OPTIONS = [f"{group}={option}" for group, options in WORDS.groups.items() for option in options if group != "sweep"]
# Qwen3-8B on eight GPUs, Megatron and vLLM: what the presets for GPUs are looked at with.
SHORT = "trainer.max_response_length=6144"  # of a model with 8192 positions
ON_8 = ["model=qwen3_8b", "cluster=gpu_8", "cluster.launcher=slurm", "parallelism=megatron_tensor_2",
        "memory=full_offload", "rollout=vllm", "data=dapo_math", "reward=rule", "trainer=hy3"]  # fmt: skip
FRUGAL = ["memory=cpu_optimizer", "rollout.gpu_memory_utilization=0.7"]
# An option that only makes sense beside others: what it needs to be checked with.
NEEDS = {
    "algorithm=gdpo": ["algorithm.gdpo_reward_keys=[accuracy,format]"],
    "algorithm=ppo": [*ON_8, "rollout.tensor=2"],
    "cluster=h20_16x8": ["experiment=hy3_dapo_math"],
    "cluster=slurm": ["experiment=hy3_dapo_math"],
    "cluster=slurm_h100": [*ON_8, "rollout.tensor=2"],
    **{
        f"cluster=h100_{kind}": [*ON_8, "rollout.tensor=2", "cluster.partition=gpu", "cluster.account=team"]
        for kind in ("bare", "pyxis", "apptainer")
    },
    "cluster=gpu_8": [*ON_8, "rollout.tensor=2"],
    "cluster=gpu_1": [
        *ON_8,
        "model=qwen2_5_0_5b",
        "memory=offload",
        "parallelism=fsdp2",
        "memory.use_gradient_checkpointing=true",
    ],
    "memory=selective_recompute": [*ON_8, "model=qwen2_5_0_5b", "rollout.tensor=2"],
    "memory=full_recompute": [*ON_8, "rollout.tensor=2"],
    "memory=cpu_optimizer": [*ON_8, "rollout.tensor=2"],
    "memory=fsdp2_offload": [*ON_8, "parallelism=fsdp2", "rollout.tensor=2"],
    "parallelism=megatron_tensor_2": [*ON_8, "rollout.tensor=2"],
    "parallelism=fsdp2_ulysses": [*ON_8, "memory=fsdp2_offload", "rollout.tensor=2"],
    "parallelism=qwen3_30b_a3b_8": [*ON_8, "model=qwen3_30b_a3b", "rollout.tensor=4", *FRUGAL],
    "parallelism=mixture_8": [*ON_8, "model=moonlight_16b_a3b", "rollout.tensor=4", *FRUGAL, SHORT],
    "parallelism=mixture_32": [*ON_8, "model=glm4_5_air", "cluster.nodes=4", "rollout.tensor=8", *FRUGAL],
    "parallelism=llama3_1_70b_32": [*ON_8, "model=llama3_1_70b", "cluster.nodes=4", "rollout.tensor=8", *FRUGAL],
    "parallelism=qwen3_235b_a22b_64": [*ON_8, "model=qwen3_235b_a22b", "cluster.nodes=8", "rollout.tensor=16", *FRUGAL],
    "parallelism=deepseek_v3_96": [*ON_8, "model=deepseek_v3", "cluster.nodes=12", "rollout.tensor=32", *FRUGAL],
    "data=dapo_math": ["experiment=hy3_dapo_math"],
    "memory=full_offload": ["experiment=hy3_dapo_math"],
    "parallelism=hy3_128": ["experiment=hy3_dapo_math"],
    "rollout=vllm": ["experiment=hy3_dapo_math", "rollout.tensor=16"],
    "rollout=hy3": ["experiment=hy3_dapo_math"],
    "model=deepseek_v3": [*ON_8, "parallelism=deepseek_v3_96", "cluster.nodes=12", "rollout.tensor=32", *FRUGAL],
    "model=hy3": ["experiment=hy3_dapo_math"],
    "model=moonlight_16b_a3b": [
        "experiment=hy3_dapo_math",
        "parallelism.pipeline=1",
        "trainer.max_response_length=6144",
        "rollout.max_model_len=8192",
    ],
    "trainer=hy3": ["experiment=hy3_dapo_math"],
    **{f"reward={name}": ["experiment=hy3_dapo_math"] for name in ("rule", "dapo", "sandbox")},
    **{f"data={name}": ["experiment=hy3_dapo_math"] for name in ("gsm8k", "math", "eurus2")},
    "reward=function": ["reward.function_path=embedded:reward"],
    "reward=reward_model": ["experiment=hy3_dapo_math", "reward.model_tensor=8"],
    "model=hy3_tiny": [],
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_composes_compiles_and_checks(composer: Composer, option: str) -> None:
    trial = composer.compose([*NEEDS.get(option, []), option]).trial
    assert errors(check_trial(trial)) == []
    assert compile_trial(trial, Path("/t")).overrides


@pytest.mark.parametrize("sweep", WORDS.groups["sweep"])
def test_every_sweep_has_only_trials_that_can_run(composer: Composer, sweep: str) -> None:
    composition = composer.compose([f"sweep={sweep}"])
    looked = preview(define(composition), composer)
    assert looked and all(p.is_feasible for p in looked), [p.problems for p in looked if not p.is_feasible]
    assert any(isinstance(d, Choice) for d in composition.space.values())


@pytest.mark.parametrize("option", OPTIONS)
def test_a_config_file_says_what_it_is(option: str) -> None:
    group, _, name = option.partition("=")
    text = (SHIPPED / group / f"{name}.yaml").read_text()
    if group in ("experiment", "debug"):
        assert text.startswith("# @package _global_\n# "), "a line on what it is"
    else:
        assert f"name: {name}\n" in text, "its label is its file's name"


# --- the trainer's own configuration


@lru_cache(None)
def parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


class Tree:
    """verl's own configuration tree, composed by Hydra once an engine; overrides are set on copies."""

    def __init__(self, root: Path) -> None:
        from hydra import compose, initialize_config_dir

        self.root = root
        with initialize_config_dir(str(root / "verl/trainer/config"), version_base=None):
            self.bases = {e: pickle.dumps(compose("ppo_trainer", [f"model_engine={e}"])) for e in ("dp", "megatron")}

    def take(self, overrides: Sequence[str]) -> Any:
        """Raises whatever Hydra raises for an override that the tree does not take."""
        [engine] = [o.partition("=")[2] for o in overrides if o.startswith("model_engine=")]
        tree = pickle.loads(self.bases[engine])
        others = [parsed(o) for o in overrides if not o.startswith("model_engine=")]
        ConfigLoaderImpl._apply_overrides_to_config(others, tree)
        return tree


@pytest.fixture(scope="session")
def trees(tmp_path_factory) -> dict[str, Tree]:
    """The tree of each version that the package index has: `make env` brings the wheels."""
    found = {}
    for verl in ("0.9.1", "0.9.0"):
        wheels = [*Path(sys.prefix, "wheels").glob(f"verl-{verl}-*.whl")]
        assert wheels, f"the wheel of verl {verl} is not in {sys.prefix}/wheels: make env brings it"
        root = tmp_path_factory.mktemp(f"verl-{verl}")
        unpack(wheels[0], root)
        found[verl] = Tree(root)
    return found


def test_verls_own_tree_takes_every_override_of_every_option(composer: Composer, trees: dict[str, Tree]) -> None:
    """Key and value: what our table says is there is there, and what we say arrives."""
    lines = [[*NEEDS.get(option, []), option] for option in OPTIONS if not option.endswith("_as_run")]
    lines += [["experiment=hy3_dapo_math", f"algorithm={a}"] for a in WORDS.groups["algorithm"]]
    for line, (verl, tree) in itertools.product(lines, trees.items()):
        trial = composer.compose([*line, f"trainer.verl={verl}"]).trial
        taken = tree.take(compile_trial(trial, Path("/t")).overrides)
        for key, value in trainer_values(trial).items():
            if key != "model_engine":
                found = OmegaConf.select(taken, key)
                assert (OmegaConf.to_object(found) if OmegaConf.is_config(found) else found) == value, (line, key)


def test_every_rung_of_the_ladder_is_taken(composer: Composer, trees: dict[str, Tree]) -> None:
    for line, (verl, tree) in itertools.product((["experiment=hy3_dapo_math"], []), trees.items()):
        trial = composer.compose([*line, f"trainer.verl={verl}"]).trial
        for phase in Phase:
            for _, higher in rungs(trial, phase):
                tree.take(compile_trial(higher, Path("/t")).overrides)


def test_a_key_that_a_version_lacks_is_refused_by_its_tree_too(trees: dict[str, Tree]) -> None:
    overrides = ["model_engine=megatron", "actor_rollout_ref.actor.megatron.grad_offload=true"]
    assert trees["0.9.0"].take(overrides)
    with pytest.raises(HydraException):
        trees["0.9.1"].take(overrides)


def test_the_tables_of_keys_are_what_the_wheels_say(trees: dict[str, Tree]) -> None:
    for verl, tree in trees.items():
        table = json.loads((TABLES / f"verl-{verl}.json").read_text())
        assert json.loads(json.dumps(tabulate(tree.root))) == table


def test_the_installed_verl_is_the_one_of_its_wheel() -> None:
    if find_spec("verl") is None:
        pytest.skip("verl is not installed: pip install 'hysweep[cpu]'")
    assert trainer_keys("installed", "dp").defaults == trainer_keys("0.9.1", "dp").defaults


# --- the wheel


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "hysweep"
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).is_symlink():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
    )
    return out


def test_the_wheel_and_the_sdist_hold_every_config(dist: Path) -> None:
    shipped = {p.relative_to(ROOT / "conf").as_posix() for p in (ROOT / "conf").glob("**/*.yaml")}
    shipped |= {f"sweep/{p.name}" for p in (ROOT / "sweeps").glob("*.yaml")}
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    assert {f"hysweep/conf/{name}" for name in shipped} <= names
    assert "hydra_plugins/hysweep_plugin/__init__.py" in names
    assert "hysweep/slurm/testcluster" in names
    assert not [n for n in names if n.startswith("tests/")]
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        assert any(n.endswith("conf/algorithm/grpo.yaml") for n in sdist.getnames())


@pytest.mark.slow
def test_the_wheel_works_outside_the_repo(dist: Path, tmp_path: Path) -> None:
    """Unpacked before all else on the path, it composes every shipped config, and brings no torch."""
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    code = (
        "import sys, hysweep\n"
        f"assert hysweep.__file__.startswith({str(tmp_path)!r}), hysweep.__file__\n"
        "from hysweep.compose import Composer\n"
        "composer = Composer()\n"
        "for group, options in composer.words.groups.items():\n"
        "    for option in options: composer.compose([f'{group}={option}'])\n"
        "from hysweep.cli import main\n"
        "assert not {'torch', 'ray', 'verl'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""}, cwd=tmp_path
    )
