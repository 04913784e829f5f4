"""What others may have written, or chosen as a name: it runs nothing, leads nowhere else, and gives nothing away."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import optuna
import pytest

from hysweep.compose import Composer
from hysweep.compose.composer import MISCOMPOSED, load_trial, trial_yaml
from hysweep.launch.allocation import Allocation
from hysweep.launch.command import ray_command, ray_settings
from hysweep.launch.protocol import job_name
from hysweep.launch.sbatch import script
from hysweep.launch.slurm import SlurmLauncher
from hysweep.report import read_study, write_page
from hysweep.schema import BadInput, Cluster, Study
from hysweep.schema.job import Job
from hysweep.scripts.header import words_of
from hysweep.study import define, detach, load_definition
from hysweep.study.changes import refuse_unfit
from hysweep.study.controller import Controller
from hysweep.study.search import _Numbers
from tests.study.fake import FakeLauncher
from tests.study.test_controller import LR, begin, by_lr, finish, optuna_trials, rising

SRC = Path(__file__).parents[2] / "src"
NAMES = (
    "a b", "$(touch MARK)", "`touch MARK`", "x; touch MARK", "x' ; touch MARK ; '", 'x" ; touch MARK ; "',
    "x\\", "-rf", "--wrap=touch MARK", "#x", "x && touch MARK", "x|touch MARK", "é%j%x", "$HOME", "~root",
    "x\\$(touch MARK)", "<script>alert(1)<b>",
)  # fmt: skip
PATHS = ("${IFS}touch", "..", "../x", "x/../../y", "/tmp/x", ".hidden", "a/b", "x\n#SBATCH --uid=0", "x\0y", " x", "")


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands that do nothing; where a hostile one would leave its mark."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("srun", "module", "hysweep"):
        (place / name).write_text("#!/bin/sh\nexit 0\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    return tmp_path / "MARK"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_only_a_name_in_what_is_submitted(composer: Composer, stubs: Path, tmp_path: Path, name: str) -> None:
    directory = begin(composer, "rollout.n=2,4", f"study.name={_quoted(name)}")
    with Controller(directory, launchers=lambda _: FakeLauncher(rising)) as controller:
        controller.tick()
    attempt = directory.trials()[0].attempt(1)
    text = script(Job("m", ()), attempt, job_name(attempt))
    (said,) = [words_of(line[7:]) for line in text.splitlines() if line.startswith("#SBATCH --job-name")]
    assert said == [f"--job-name={job_name(attempt)}"] or "\\" in name, "one word"
    own = detach.script(directory, Study(name=name), Cluster(name="c"))
    own = own.replace(f"exec {sys.executable} ", "exec true ")
    for source in (text, own):
        assert source.count("\n#SBATCH") == len([w for w in source.splitlines() if w.startswith("#SBATCH")])
        subprocess.run(["bash", "-c", source], cwd=tmp_path, capture_output=True, timeout=60)
    assert SlurmLauncher().plan(Job("m", ()), attempt)
    assert not list(tmp_path.rglob("MARK"))
    assert "<script>alert" not in write_page(directory).read_text() and read_study(directory).name


@pytest.mark.parametrize("break_", ["\n", "\r", "\x0b", "\x7f"])
@pytest.mark.parametrize("key", ["controller.partition", "controller.account", "controller.qos", "root"])
def test_no_text_of_a_study_ends_the_options_of_a_batch_script(composer: Composer, key: str, break_: str) -> None:
    value = f"main{break_}touch MARK #"
    with pytest.raises(BadInput, match=rf"study\.{key} = .*line break"):
        define(composer.compose(["rollout.n=2,4", f"study.{key}='{value}'"]))
    directory = begin(composer, "rollout.n=2,4")
    definition = load_definition(directory, composer)
    if key != "root":  # which does not change
        with pytest.raises(BadInput, match="line break"):
            refuse_unfit(definition, {}, {"controller": {key.partition(".")[2]: value}})


@pytest.mark.parametrize("name", PATHS)
def test_a_name_leads_nowhere_else(composer: Composer, name: str, tmp_path: Path) -> None:
    before = sorted(p.name for p in tmp_path.parent.iterdir())
    try:
        made = define(composer.compose(["rollout.n=2,4", f"study.name={_quoted(name)}"])).directory
    except BadInput as e:
        assert "study.name" in str(e) or "\0" in name
    else:
        assert not name, "an empty one is none: it is made of the content"
        assert made.path.parent == tmp_path / "outputs"
    for group in ("experiment", "sweep", "algorithm", "cluster", "model"):
        if "/" in name or ".." in name:
            with pytest.raises(BadInput):
                composer.compose([f"{group}={_quoted(name)}"])
    assert sorted(p.name for p in tmp_path.parent.iterdir()) == before


@pytest.mark.parametrize("address", ["..", "../..", "/", "", "*", "0/../0", "-1", "0001-abc/../.."])
def test_the_address_of_a_trial_is_no_path(composer: Composer, address: str) -> None:
    directory = begin(composer, "rollout.n=2,4")
    finish(directory, FakeLauncher(rising))
    assert directory.find(address) is None


def test_what_reads_as_an_interpolation_is_text_once_it_is_frozen(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4", "tracking.project='a\\${b}'")
    finish(directory, FakeLauncher(rising))
    assert load_trial(directory.trials()[0].config_file.read_text()).tracking.project == "a${b}"
    for text in ("${x}", "\\${x}", "\\\\${x}", "a\\b${", "$${x}", "${oc.env:HOME}"):
        assert load_trial(trial_yaml(composer.compose([]).trial).replace("embedded:model", text)).model.path == text


# --- YAML


APPLY = '!!python/object/apply:os.system ["touch MARK"]'


@pytest.mark.parametrize(
    "tag", [APPLY, "!!python/name:os.system", "!!python/module:os", "!!python/object/new:os.system [touch MARK]",
            "${oc.eval:touch}", "!!binary x", "&a [*a]"],
)  # fmt: skip
def test_no_file_makes_an_object(composer: Composer, tag: str, tmp_path: Path) -> None:
    sweep = tmp_path / "mine.yaml"
    for text in (
        f"# @package _global_\nstudy:\n  name: {tag}\n",
        f"# @package _global_\nspace:\n  rollout.n: {tag}\n",
        tag,
    ):
        sweep.write_text(text)
        with pytest.raises(BadInput):
            define(Composer().compose([f"sweep={sweep}"]))
    experiment = tmp_path / "conf" / "experiment" / "mine.yaml"
    experiment.parent.mkdir(parents=True)
    experiment.write_text(f"# @package _global_\nmodel:\n  path: {tag}\n")
    with pytest.raises(BadInput):
        Composer([tmp_path / "conf"]).compose(["experiment=mine"])
    directory = begin(composer, "rollout.n=2,4")
    directory.config_file.write_text(f"study: {tag}\n")
    with pytest.raises(BadInput):
        load_definition(directory, composer)
    with pytest.raises(MISCOMPOSED):
        load_trial(f"model: {{path: {tag}}}")
    write_page(directory)
    assert not list(tmp_path.rglob("MARK"))


# --- pickles


class Trap:
    def __reduce__(self) -> tuple:  # type: ignore[type-arg]
        return os.system, ("touch MARK",)


UNPICKLES = {("pickle", "load"), ("pickle", "loads"), ("torch", "load"), ("joblib", "load"), ("shelve", "open"),
             ("marshal", "loads"), ("numpy", "load"), ("np", "load"), ("pickle", "Unpickler"), ("dill", "load"),
             ("cloudpickle", "load"), ("cloudpickle", "loads"), ("pandas", "read_pickle")}  # fmt: skip
# Of what this process has pickled itself, in memory; and the one that builds numbers alone.
EXEMPT = {"compose/composer.py": 5, "study/search.py": 1}


def test_nothing_is_unpickled_from_a_file() -> None:
    found: dict[str, int] = {}
    for path in sorted((SRC / "hysweep").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if (node.value.id, node.attr) in UNPICKLES:
                    name = str(path.relative_to(SRC / "hysweep"))
                    found[name] = found.get(name, 0) + 1
            elif isinstance(node, ast.ImportFrom) and node.module in ("pickle", "marshal", "shelve", "dill"):
                found[str(path)] = -1
    assert found == EXEMPT


def test_a_pickle_that_somebody_planted_is_not_loaded(composer: Composer, tmp_path: Path) -> None:
    directory, fake = begin(composer, LR, "study.n_trials=3"), FakeLauncher(by_lr)
    with Controller(directory, launchers=lambda name: fake) as controller:
        controller.tick()
    for place in (directory.path, directory.trials()[0].path, directory.trials()[0].attempt(1).path):
        for name in (
            "1_0_result.pkl",
            "1_submitted.pkl",
            "snapshot.pkl",
            "journal.log.snapshot",
            "data.pt",
            "x.pickle",
        ):
            (place / name).write_bytes(pickle.dumps(Trap()))
    finish(directory, fake)
    read_study(directory)
    write_page(directory)
    assert not list(tmp_path.rglob("MARK"))


@pytest.mark.parametrize("planted", [Trap(), os.system, Path("x"), subprocess.Popen])
def test_what_a_sampler_keeps_is_numbers(planted: object, tmp_path: Path) -> None:
    import io

    with pytest.raises(pickle.UnpicklingError, match="it names"):
        _Numbers(io.BytesIO(pickle.dumps(planted))).load()
    assert not list(tmp_path.rglob("MARK"))


@pytest.mark.skipif(find_spec("cmaes") is None, reason="needs the extra samplers")
def test_a_state_of_cmaes_that_somebody_planted_in_the_storage_is_told(composer: Composer, tmp_path: Path) -> None:
    words = (LR, "rollout.temperature=interval(0.5,1.5)", "study.sampler=cmaes", "study.n_trials=12")
    calm = begin(composer, *words, "study.name=calm")
    finish(calm, FakeLauncher(by_lr))
    assert any("cma" in key for t in optuna_trials(calm) for key in t.system_attrs), "it keeps its state there"
    directory = begin(composer, *words, "study.name=planted")
    finish(directory, FakeLauncher(by_lr), {"n_trials": 10})
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(directory.journal)))
    (study,) = storage.get_all_studies()
    trials = reversed(storage.get_all_trials(study._study_id))
    last = next(t for t in trials if any("optimizer" in k for k in t.system_attrs))
    planted = {k: pickle.dumps(Trap()).hex() if k.endswith("optimizer:0") else v for k, v in last.system_attrs.items()}
    assert planted != last.system_attrs
    last.system_attrs = {k: v for k, v in planted.items() if "optimizer" not in k or k.endswith(":0")}
    storage.create_new_trial(study._study_id, template_trial=last)
    with pytest.raises(BadInput, match=r"study\.sampler\.name = cmaes: .*it names .*system"):
        finish(directory, FakeLauncher(by_lr), {"n_trials": 14})
    assert not list(tmp_path.rglob("MARK"))


# --- who may look, and what there is to see


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_a_study_is_its_owner_s_alone(composer: Composer, umask: int) -> None:
    before = os.umask(umask)
    try:
        directory = begin(composer, "rollout.n=2,4")
        finish(directory, FakeLauncher(rising))
        write_page(directory)
    finally:
        os.umask(before)
    assert directory.path.stat().st_mode & 0o777 == 0o700


def test_ray_asks_for_a_token_and_shows_no_dashboard() -> None:
    for is_alone in (True, False):
        said = ray_settings("t0ken", is_alone)
        assert said["RAY_AUTH_MODE"] == "token" and said["RAY_AUTH_TOKEN"] == "t0ken"
    nodes = Allocation(0, ("n1", "n2"), cpus=8)
    head = ray_command(Job("m", ()), nodes, "/t", "10.0.0.1", None, 6379, 10001)
    assert "--include-dashboard=false" in head
    joins = ray_command(Job("m", ()), nodes, "/t", "10.0.0.2", "10.0.0.1:6379", None, 10001)
    for argv in (head, joins):
        assert not [a for a in argv if "t0ken" in a or a.startswith("--dashboard-host")]


def _quoted(name: str) -> str:
    """As a person quotes it for Hydra."""
    inner = name.replace("\\", "\\\\") if name.endswith("\\") else name
    inner = inner.replace("'", "\\'").replace("${", "\\${")
    return f"'{inner}'"
