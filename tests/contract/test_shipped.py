"""Every shipped config composes, compiles and checks; the trainer's own tree takes every override."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from hysweep.check import check_trial, errors
from hysweep.compile import compile_trial
from hysweep.compose import SHIPPED, Composer
from hysweep.compose.space import Choice
from hysweep.study import define, preview

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]
WORDS = Composer().words
OPTIONS = [f"{group}={option}" for group, options in WORDS.groups.items() for option in options if group != "sweep"]
# An option that only makes sense beside others: what it needs to be checked with.
NEEDS = {
    "cluster=slurm": ["experiment=hy3_dapo_math"],
    "data=dapo_math": ["experiment=hy3_dapo_math"],
    "memory=full_offload": ["experiment=hy3_dapo_math"],
    "parallelism=hy3_128": ["experiment=hy3_dapo_math"],
    "rollout=vllm": ["experiment=hy3_dapo_math", "rollout.tensor=16"],
    "rollout=hy3": ["experiment=hy3_dapo_math"],
    "model=hy3": ["experiment=hy3_dapo_math"],
    "trainer=hy3": ["experiment=hy3_dapo_math"],
    "reward=dapo": ["experiment=hy3_dapo_math"],
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
    if group == "experiment":
        assert text.startswith("# @package _global_\n# "), "a line on what it is"
    else:
        assert f"name: {name}\n" in text, "its label is its file's name"


verl_tree = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed: pip install 'hysweep[cpu]'")


@pytest.fixture(scope="module")
def verl_config() -> Path:
    from hysweep.compile.tabulate import installed_verl

    return installed_verl()[1]


@verl_tree
@pytest.mark.parametrize(
    "overrides",
    [[], *([f"algorithm={a}"] for a in WORDS.groups["algorithm"]), ["experiment=hy3_dapo_math"],
     ["experiment=hy3_dapo_math", "algorithm=cispo"]],
    ids=" ".join,
)  # fmt: skip
def test_verls_own_tree_takes_every_override(composer: Composer, verl_config: Path, overrides: list[str]) -> None:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from hysweep.compile import trainer_values

    trial = composer.compose(overrides).trial
    with initialize_config_dir(str(verl_config), version_base=None):
        tree = compose("ppo_trainer", list(compile_trial(trial, Path("/t")).overrides))
    for key, value in trainer_values(trial).items():
        found = OmegaConf.select(tree, key)
        assert OmegaConf.to_object(found) == value if OmegaConf.is_config(found) else found == value, key


@verl_tree
def test_the_table_of_keys_is_that_of_the_installed_verl(verl_config: Path) -> None:
    import json

    from hysweep.compile.keys import TABLES
    from hysweep.compile.tabulate import installed_verl, tabulate

    table = json.loads((TABLES / f"verl-{installed_verl()[0]}.json").read_text())
    assert tabulate(verl_config) == table


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
