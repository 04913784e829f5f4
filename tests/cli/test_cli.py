"""The command line as a person meets it: whole processes, exit codes, one clear error, nothing written."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from hysweep.check import Finding
from hysweep.cli.sweep_file import write_sweep
from hysweep.compose import SHIPPED, Composer, Composition
from hysweep.embedded.assets import cache_root
from hysweep.study import define

from .warm import warm


def hysweep(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return warm(words, env)


def cold(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hysweep", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


VERBS = ["run", "show", "check", "plan", "estimate", "layouts", "import", "status", "logs", "resume", "tick",
         "pause", "cancel", "rebuild", "report", "doctor", "setup", "simulate", "completion"]  # fmt: skip


@pytest.mark.parametrize("words", [["check", "rollout.n=1"], ["run", "x=1"], ["nope"]])
def test_a_cold_start_answers_as_a_warm_one(words: list[str]) -> None:
    one, other = cold(*words), hysweep(*words)
    assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)


def test_hysweep_alone_shows_the_verbs() -> None:
    answer = cold()
    text = answer.stdout + answer.stderr
    assert all(f"  {verb} " in text for verb in VERBS)
    assert "Traceback" not in text


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_each_verb_has_an_example(verb: str) -> None:
    answer = hysweep(verb, "--help")
    assert answer.returncode == 0
    assert "Example: " in answer.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "trainer.lr=1"], "trainer.lr = 1: there is no such key; did you mean trainer.learning_rate"),
        (["run", "algorithm=grpoo"], "did you mean grpo"),
        (["run", "-m", "trainer.learning_rate=uniform(1,2)"], "there is no range uniform(); write choice(a, b)"),
        (["plan", "sweep=nosuch.yaml"], "sweep = nosuch.yaml: there is no such file; looked for /"),
        (["check", "algorithm=mine"], "one of your own: --config-dir DIR, where algorithm/mine.yaml is"),
        (["run", "--algorithm=grpo"], "an override has no dashes: algorithm=grpo"),
        (["explain", "oom"], "did you mean cuda_oom or host_oom?"),
        (["data", "prepare", "gsm8k", "-o", "x.parquet"], "-o = x.parquet: is the name of a file, and a set has files"),
        (["run", "actor_rollout_ref.actor.clip_ratio=0.2"], "algorithm.clip_ratio_high or algorithm.clip_ratio_low"),
        (["import", "nosuch.sh", "--json"], "no such file"),
        (["run", "trainer.total_steps=many"], "trainer.total_steps = many"),
        (["run", "trainer.total_steps=0"], "at least 1"),
        (["run", "algorithm=grpo,rloo"], "add -m"),
        (["run", "sweep=quickstart"], "add -m"),
        (["run", "-m", "nokey=1,2"], "nokey"),
        (["run", "-m"], "nothing to search"),
        (["run", "-m", "sweep=quickstart", "algorithm=grpo", "trainer.learning_rate=1e-3"], "nothing to search"),
        (["run", "-m", "trainer.learning_rate=interval(1e-3,1e-4)"], "is empty"),
        (["run", "-m", "trainer.learning_rate=interval(1e-4,1e-3)"], "study.n_trials"),
        (["run", "--nope"], "--nope"),
        (["run", "--config-dir", "nowhere"], "nowhere"),
        (["run", "-m", "sweep=quickstart", "study.enqueue=[{algorithm:ppo}]"], "study.enqueue[0].algorithm"),
        (["run", "study.root=/proc/nothing/here"], "study.root"),
        (["run", "study.name=a/b"], "study.name"),
        (["check", "study.name=" + "x" * 300], "study.name"),
        (["check", "study.metric="], "study.metric"),
        (["check", "study.metric=critic/scor/mean"], "did you mean critic/score/mean"),
        (["check", "study.seed=99999999999"], "study.seed"),
        (["check", "study.enqueue=[1]"], "study.enqueue"),
        (["check", "trainer.total_steps=int(interval(1,1000000000000))"], "study.n_trials"),
        (["run", "hydra.foo=1"], "hydra"),
        (["run", "hydra/launcher=foo"], "hydra"),
        (["run", "hydra.verbose=3"], "hydra.verbose=3"),
        (["check", "hydra.searchpath=[file:///mine]"], "give --config-dir DIR"),
        (["run", "-m", "algorithm=grpo,rloo", "--cfg", "job"], "leave out -m"),
        (["run", "cluster.launcher=slrum"], "cluster.launcher = slrum"),
        (["check", "trainer.lr=1"], "trainer.lr"),
        (["show", "x=1"], "x = 1"),
        (["plan", "sweep=nope"], "sweep = nope"),
        (["status", "nowhere"], "holds no study"),
        (["resume", "nowhere"], "holds no study"),
        (["cancel", "nowhere"], "holds no study"),
        (["report", "nowhere"], "holds no study"),
        (["run", "--resolve"], "--resolve: is of a configuration that is shown; add --cfg job"),
        (["run", "--package", "trainer"], "--package: is of a configuration that is shown"),
        (["run", "--shell-completion"], "there is no such option"),
        (["run", "--detach", "--cfg", "job"], "--detach = --cfg"),
        (["run", "-m", "--detach", "hydra/sweeper=basic", "algorithm=grpo,rloo"], "--detach = hydra/sweeper"),
        (["show", "--doc", "algorithm=grpo"], "OVERRIDES is not read by --doc"),
        (["check", "--verl-command", "run.sh", "-m"], "--multirun is not read by --verl-command"),
        (["estimate", "--calibrate", "--html", "x.html", "dir"], "--html is not read by --calibrate"),
        (["estimate", "--forget", "--json"], "--json is not read by --forget"),
        (["data", "prepare", "--from", "copy"], "--from is not read by prepare without a NAME"),
        (["doctor", "--setup", "dir", "--cluster", "testcluster"], "--cluster is not read by --setup"),
        (["doctor", "--within", "3"], "--within is not read by doctor without --cluster"),
        (["doctor", "--cluster", "testcluster", "--within", "nan"], "nan is no finite number"),
        (["watch", "nowhere", "--every", "inf"], "--every"),
        (["reward", "try", "math", "own.parquet", "--timeout", "nan"], "nan is no finite number"),
        (["frobnicate"], "frobnicate"),
        (["status"], "DIR"),
    ],
)
def test_bad_input_is_one_clear_error(words: list[str], says: str, tmp_path: Path) -> None:
    answer = hysweep(*words)
    assert answer.returncode == 2, answer
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr + answer.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is written"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("mine.yaml", "# @package _global_\ndefaults: [override /algorithm: grpoo]\n", ["sweep=mine.yaml"]),
        ("own/algorithm/mine.yaml", "defaults: [grpoo]\n", ["--config-dir", "own", "algorithm=mine"]),
    ],
)  # fmt: skip
def test_an_option_that_a_file_names_wrongly_is_answered_with_the_close_ones(
    file: str, text: str, words: list[str]
) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(text)
    answer = hysweep("check", *words)
    assert answer.returncode == 2 and "search path" not in answer.stderr
    assert "algorithm = grpoo: there is no such algorithm" in answer.stderr
    assert "; did you mean grpo" in answer.stderr


def test_what_cannot_run_is_not_started(tmp_path: Path) -> None:
    answer = hysweep("run", "data.train_files=[missing.parquet]")
    assert answer.returncode == 1
    assert "data.train_files = missing.parquet: there is no such file" in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_check_answers_in_words_and_in_json() -> None:
    good, bad = hysweep("check"), hysweep("check", "algorithm=rloo", "rollout.n=1", "--json")
    assert (good.returncode, bad.returncode) == (0, 1)
    [looked] = json.loads(bad.stdout)
    assert looked["problems"][0]["key"] == "rollout.n"
    assert not looked["is_feasible"]


def test_a_value_that_is_no_number_is_a_text_for_programs() -> None:
    answer = hysweep("check", "verl.actor_rollout_ref.actor.optim.lr=nan", "--json")
    [found] = json.loads(answer.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert answer.returncode == 1 and found["problems"][0]["value"] == "nan"


def test_check_looks_at_every_trial_of_a_sweep() -> None:
    answer = hysweep("check", "algorithm=grpo,gspo", "algorithm.clip_ratio_c=3,10", "--json")
    looked = json.loads(answer.stdout)
    assert len(looked) == 4
    assert [p["point"] for p in looked if not p["is_feasible"]] == [{"algorithm": "gspo", "algorithm.clip_ratio_c": 10}]


def test_a_problem_with_a_list_is_told_as_any_other() -> None:
    answer = hysweep("check", "algorithm=gdpo", "algorithm.gdpo_reward_keys=[a,b]", "algorithm.gdpo_reward_weights=[1]")
    assert (answer.returncode, answer.stderr) == (1, "")
    assert "problem: algorithm.gdpo_reward_weights = [1.0]: are not as many" in answer.stdout


@pytest.mark.parametrize("verb", [["plan"], ["show", "--verl"], ["check"]])
@pytest.mark.parametrize(
    "override", ["+verl.actor_rollout_ref.actor.shufle=true", "data.train_files=[[d/a.parquet]]", "algorithm=dro"]
)
def test_what_the_trainer_does_not_take_is_said_by_every_verb(verb: list[str], override: str) -> None:
    answer = hysweep(*verb, override, "trainer.verl=220e903")
    assert answer.returncode in (1, 2), answer
    assert "Traceback" not in answer.stderr
    assert (
        override.partition("=")[0].lstrip("+") in answer.stdout + answer.stderr
        or "dro" in answer.stdout + answer.stderr
    )


def test_a_root_of_ones_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cfg").mkdir()
    (tmp_path / "cfg" / "trial.yaml").write_text("foo: 1\n")
    answer = hysweep("check", "--config-dir", "cfg")
    assert (answer.returncode, "trial.yaml" in answer.stderr) == (2, True)


def test_layouts_keep_to_what_is_given(tmp_path: Path) -> None:
    words = ("layouts", "experiment=hy3_dapo_math", "parallelism.pipeline=16", "rollout.tensor=16", "--json")
    rows = json.loads(hysweep(*words).stdout)["layouts"]
    assert {(row["pipeline"], row["rollout_tensor"]) for row in rows} == {(16, 16)}
    sweep = hysweep(*words[:-1], "--top", "3", "--sweep", "mine/sweep/best.yaml")
    assert sweep.returncode == 0, sweep
    head = Path("mine/sweep/best.yaml").read_text().split("defaults:")[0]
    assert "parallelism.pipeline=16 rollout.tensor=16 --sort seconds --top 3" in head
    assert yaml.safe_load(Path("mine/sweep/best.yaml").read_text())["cluster"]["timeout_min"] < 24 * 60
    checked = hysweep("check", "--config-dir", "mine", "sweep=best", "--json")
    assert [len(json.loads(checked.stdout)), checked.returncode] == [3, 0], checked
    assert hysweep(*words[:-1], "--sweep", "mine/sweep/best.yaml").returncode == 2, "it is there already"


@pytest.mark.parametrize(
    "more",
    [
        ["--top", "1"],
        ["model.shape.num_layers=79", "cluster.env.FOO=bar", "+model.transformer_config.moe_permute_fusion=true"],
        ["study.name=foo", "tracking.project=on", "trainer.seed=7"],
    ],
    ids=["one", "nested", "quoted"],
)
def test_a_sweep_of_layouts_is_read_as_it_was_meant(more: list[str]) -> None:
    """Of one layout, with keys below keys, with what YAML would read otherwise; it warns of memory at most."""
    words = ["experiment=hy3_dapo_math", *more]
    answer = hysweep("layouts", *words, *([] if "--top" in more else ["--top", "3"]), "--sweep", "best.yaml")
    assert answer.returncode == 0, answer
    checked = hysweep("check", "sweep=best.yaml")
    assert checked.returncode == 0, checked
    faults = [line for line in checked.stdout.splitlines() if line.startswith(("warning", "error"))]
    assert all(line.startswith("warning: cluster.gpu_memory_gib") for line in faults), faults
    told = json.loads(hysweep("show", "sweep=best.yaml", "--json").stdout)
    if "study.name=foo" in more:
        assert (told["study"]["name"], told["tracking"]["project"], told["trainer"]["seed"]) == ("foo", "on", 7)
    if "cluster.env.FOO=bar" in more:
        assert told["cluster"]["env"]["FOO"] == "bar" and told["model"]["shape"]["num_layers"] == 79


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (
            ["experiment=qwen3_30b_a3b", "trainer.max_response_length=60000"],
            "trainer.max_prompt_length + max_response_length",
        ),
        (["experiment=hy3_dapo_math", "trainer.max_response_length=32768"], "rollout.max_model_len"),
        (["experiment=hy3_dapo_math", "trainer.train_batch_size=100"], "trainer.mini_batch_size"),
        (["experiment=hy3_dapo_math", "algorithm.clip_ratio_low=1.2"], "algorithm.clip_ratio_low"),
    ],
)
def test_layouts_say_what_check_refuses_whatever_the_layout(words: list[str], key: str) -> None:
    """The layouts are shown, for they may be what was asked for; nothing is written that cannot run."""
    answer = hysweep("layouts", *words, "--top", "2", "--sweep", "mine.yaml", "--json")
    told = json.loads(answer.stdout)
    assert (answer.returncode, len(told["layouts"]), Path("mine.yaml").exists()) == (1, 2, False)
    assert key in [p["key"] for p in told["problems"]]
    assert f"problem: {key} = " in answer.stderr and "mine.yaml would hold, so it is not written" in answer.stderr


@pytest.mark.parametrize("nodes", ["cluster.nodes=1", "cluster=local"])
def test_layouts_say_it_also_where_none_fits(nodes: str) -> None:
    """With every other fault, and with nothing of what another layout would mend."""
    words = ("algorithm.clip_ratio_low=1.2", "trainer.mini_batch_size=1000")
    answer = hysweep("layouts", "experiment=hy3_dapo_math", nodes, *words, "--sweep", "mine.yaml")
    assert answer.returncode and not Path("mine.yaml").exists()
    assert {"algorithm.clip_ratio_low", "trainer.mini_batch_size"} <= set(answer.stderr.split()), answer
    assert ("parallelism." in answer.stderr) == (nodes == "cluster=local"), "nothing is laid out without GPUs"


def test_the_command_that_layouts_print_runs() -> None:
    """A sweep is taken by its path, from wherever it lies; of directories only one's own are named."""
    answer = hysweep("layouts", "experiment=hy3_dapo_math", "--top", "2", "--sweep", "best.yaml")
    (command,) = (line.partition("; ")[2] for line in answer.stdout.splitlines() if line.startswith("written: "))
    assert command == "hysweep run -m sweep=best.yaml"
    assert hysweep("plan", *shlex.split(command)[3:]).returncode == 0


def test_layouts_mark_what_the_estimate_is_not_sure_of() -> None:
    words = ("layouts", "experiment=hy3_dapo_math", "cluster.nodes=32", "--top", "3")
    rows = json.loads(hysweep(*words, "--json").stdout)["layouts"]
    assert [row["is_sure"] for row in rows] == [row["margin_gib"] >= 0.05 * 95.6 for row in rows] == [False] * 3
    shown = hysweep(*words).stdout
    assert f"~{rows[0]['margin_gib']:.1f} " in shown and "~: within the estimate's error of 5 %" in shown
    assert "~" not in hysweep(*words, "--sort", "margin_gib").stdout


def test_no_time_is_predicted_for_a_gpu_whose_speeds_are_not_known() -> None:
    words = ("layouts", "experiment=hy3_dapo_math", "cluster.gpu=FOO", "--top", "2")
    answer = hysweep(*words, "--sweep", "best.yaml")
    assert answer.returncode == 0 and "no step is predicted: of a FOO no speeds are known" in answer.stdout
    assert " step " not in answer.stdout.splitlines()[0]
    rows = json.loads(hysweep(*words, "--json").stdout)["layouts"]
    assert {row["seconds"] for row in rows} == {row["rollout_s"] for row in rows} == {None}


def test_layouts_are_sorted_by_what_the_table_says() -> None:
    words = ("layouts", "experiment=hy3_dapo_math", "--top", "4", "--json", "--sort")
    for name, head in (("margin_gib", "free"), ("virtual_pipeline", "VPP"), ("rollout_data", "rDP")):
        assert hysweep(*words, head).stdout == hysweep(*words, name).stdout, head
    refused = hysweep(*words, "colour")
    assert (refused.returncode, "seconds (step)" in refused.stderr, "rollout_data (rDP)" in refused.stderr) == (
        2, True, True
    )  # fmt: skip


def test_a_layout_without_virtual_stages_is_swept_beside_one_with_them(tmp_path: Path) -> None:
    """Null is a value that varies: in the space, and in the points that run first."""
    words = ["experiment=hy3_dapo_math", "parallelism.pipeline=16", "rollout.tensor=16"]
    best: list[dict[str, int | None]] = [
        {"parallelism.virtual_pipeline": v, "parallelism.tensor": 1} for v in (5, None)
    ]
    write_sweep(tmp_path / "sweep" / "both.yaml", words, [], best)
    found = Composer([tmp_path]).compose(["sweep=both"])
    assert list(found.space.grid()) == [{"parallelism.virtual_pipeline": 5}, {"parallelism.virtual_pipeline": None}]
    assert found.study.enqueue == list(found.space.grid())
    defined = define(found)
    assert Composer([tmp_path]).space(yaml.safe_load(defined.to_yaml())["space"], defined.fixed) == found.space


def test_run_takes_files_of_several_places(tmp_path: Path) -> None:
    """Two directories of options and a sweep by its path reach Hydra, and the study, whole."""
    shipped = (SHIPPED / "algorithm" / "grpo.yaml").read_text()
    for name in ("one", "two"):
        (tmp_path / name / "algorithm").mkdir(parents=True)
        (tmp_path / name / "algorithm" / f"{name}.yaml").write_text(shipped.replace("name: grpo", f"name: {name}"))
    sweep = tmp_path / "mine.yaml"
    sweep.write_text("# @package _global_\nspace: {algorithm: 'choice(one, two)'}\n")
    dirs = ["--config-dir", str(tmp_path / "one"), "--config-dir", str(tmp_path / "two")]
    answer = hysweep("run", "-m", *dirs, f"sweep={sweep}", "+verl.no.such.key=1")
    assert (answer.returncode, "[2 of 2 trials]" in answer.stderr) == (1, True), answer
    assert not list(cache_root().glob("config-*")), "nothing is left"


def test_a_sweep_has_a_name_that_can_be_said() -> None:
    answer = hysweep("layouts", "experiment=hy3_dapo_math", "--sweep", "mine/sweep/日本 ü.yaml")
    assert (answer.returncode, "letters, digits" in answer.stderr) == (2, True)
    assert not Path("mine").exists()


def test_what_cannot_be_built_does_not_fit() -> None:
    answer = hysweep("estimate", "experiment=hy3_dapo_math", "model.shape.num_layers=7")
    assert answer.returncode == 1
    assert "fits" not in answer.stdout and "would fit, but for the problems" in answer.stdout
    told = json.loads(hysweep("estimate", "experiment=hy3_dapo_math", "model.shape.num_layers=7", "--json").stdout)
    assert told["problems"] and all(f"problem: {p['key']} = " in answer.stderr for p in told["problems"])


def test_what_does_not_fit_comes_with_a_cure() -> None:
    words = ("experiment=hy3_dapo_math", "cluster.nodes=8")
    for verb in ("estimate", "layouts"):
        answer = hysweep(verb, *words)
        assert answer.returncode == 1
        assert "memory.optimizer_on_cpu=true" in answer.stderr, verb  # all that it has not chosen yet
        assert "full_offload" not in answer.stderr, verb
    assert "no layout to offer: give memory.optimizer_on_cpu=true; or give cluster.nodes=16\n" in answer.stderr
    for cure in ("memory.optimizer_on_cpu=true", "cluster.nodes=16"):
        assert hysweep("layouts", *words, cure).returncode == 0, cure
    held = hysweep("layouts", *words, "parallelism.tensor=8", "--json")
    assert "no layout to offer: leave out parallelism.tensor; or " in held.stderr
    assert json.loads(held.stdout)["cure"].startswith("leave out parallelism.tensor; or ")


def test_memory_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hysweep.cli.estimate import estimate
    from hysweep.estimate import result

    seen: list[object] = []
    uses = result.m.uses
    monkeypatch.setattr(result.m, "uses", lambda job, layout: seen.append(job) or uses(job, layout))
    estimate(["experiment=hy3_dapo_math"], [], as_json=True, html=None, is_calibrated=False)
    assert len(seen) == 1


def test_check_says_what_is_not_here_to_be_looked_at(tmp_path: Path) -> None:
    words = ("check", "experiment=hy3_dapo_math")
    [last] = [x for x in hysweep(*words).stdout.splitlines() if x.startswith("not looked at")]
    assert all(name in last for name in ("dapo-math-17k.parquet", "aime-2024.parquet", "tencent/Hy3"))
    (tmp_path / "here.parquet").write_text("")
    said = hysweep(*words, "data.train_files=['here*.parquet']", "data.val_files=[here.parquet]").stdout
    assert "not looked at, since it is not on this machine: tencent/Hy3\n" in said
    assert "not looked at" not in hysweep("check").stdout


def test_what_is_stopped_for_a_setting_that_is_ignored_would_run() -> None:
    said = hysweep("check", "rollout.n=1", "algorithm=rloo").stdout
    assert "(it would run, and say nothing)" in said and "cannot run" not in said


def test_a_study_knows_how_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was typed: Hydra has its own idea of the directories, and a sweep file is a name to it."""
    run = import_module("hysweep.cli.run")  # the name is that of the verb in hysweep.cli
    Path("mine/algorithm").mkdir(parents=True)
    Path("mine.yaml").write_text("# @package _global_\nspace: {rollout.n: [2, 4]}\n")
    monkeypatch.setattr(run, "drive", lambda *_: 0)
    assert run.run_as_hydra_app(["sweep=mine.yaml"], True, False, [Path("mine")]) == 0
    command = yaml.safe_load(Path("outputs/mine/study.yaml").read_text())["command"]
    assert command == ["hysweep", "run", "-m", "--config-dir", "mine", "sweep=mine.yaml"]


SHORT = "study: {sampler: tpe, pruner: median, pruners: [nan, {name: probs_diff, high: 0.03}]}\n"
SEARCH = f"# @package _global_\n{SHORT}space: {{rollout.n: [2, 4]}}\n"


@pytest.mark.parametrize(
    ("word", "dirs"),
    [
        ("sweep=hy3_algorithms", []),
        ("sweep=quickstart", []),
        ("sweep=mine.yaml", []),
        ("sweep=inside", ["mine"]),
        ("sweep=inside", ["more", "mine"]),
        ("experiment=short", ["mine"]),
    ],
)
def test_hydra_reads_a_study_as_the_other_verbs_do(monkeypatch: pytest.MonkeyPatch, word: str, dirs: list[str]) -> None:
    """What `run` is asked for comes through Hydra's own loader, what `plan` is asked for does not."""
    run = import_module("hysweep.cli.run")
    for name in ("mine/sweep", "mine/experiment", "more"):
        Path(name).mkdir(parents=True)
    Path("mine.yaml").write_text(SEARCH)
    Path("mine/sweep/inside.yaml").write_text(SEARCH)
    Path("mine/experiment/short.yaml").write_text(f"# @package _global_\n{SHORT}")
    begun: list[Composition] = []
    monkeypatch.setattr(run, "begin", lambda composition, *_: begun.append(composition) or sys.exit(0))
    places = [Path(name) for name in dirs]
    with pytest.raises(SystemExit):
        run.run_as_hydra_app([word], word.startswith("sweep="), False, places)
    [found] = begun
    assert found.study == Composer(places).compose([word]).study and found.study.rules


def test_a_file_of_ones_own_wins_under_hydras_flags_too() -> None:
    Path("mine/algorithm").mkdir(parents=True)
    Path("mine/algorithm/grpo.yaml").write_text("name: grpo\nadv_estimator: grpo\nclip_ratio_high: 0.77\n")
    shown = hysweep("run", "--config-dir", "mine", "algorithm=grpo", "--cfg", "job").stdout
    assert "clip_ratio_high: 0.77\n" in shown


def test_warnings_stop_only_the_strict() -> None:
    words = ("check", "rollout.temperature=0.3")
    assert hysweep(*words).returncode == 0
    assert hysweep(*words, "--strict").returncode == 1


def test_show_prints_what_would_run() -> None:
    config = hysweep("show", "algorithm=cispo")
    assert "loss_mode: cispo" in config.stdout
    command = hysweep("show", "algorithm=cispo", "--verl")
    assert "python -m verl.trainer.main_ppo" in command.stdout
    assert "actor_rollout_ref.actor.policy_loss.loss_mode=cispo" in command.stdout
    assert json.loads(hysweep("show", "--json").stdout)["algorithm"]["adv_estimator"] == "grpo"
    assert "trainer.learning_rate" in hysweep("show", "--doc").stdout


def test_plan_shows_what_a_study_may_come_to_in_the_unit_of_its_machine() -> None:
    def lines(*words: str) -> list[str]:
        shown = hysweep("plan", "cluster.timeout_min=90", *words).stdout
        return [" ".join(line.split()) for line in shown.splitlines()]

    free = lines("rollout.n=2,4")
    assert "slot-hours at most 3" in free and not any("budget" in line for line in free)
    kept = lines("rollout.n=2,4", "study.budget_gpu_hours=1.75")
    assert "slot-hours at most 1.75" in kept and "budget slot-hours 1.75" in kept
    on_gpus = lines("sweep=hy3_algorithms")
    assert "GPU-hours at most 9,408" in on_gpus and "budget GPU-hours 20,000" in on_gpus


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), ""),
        (("study.n_trials=20",), "there is nothing to search, so it is one trial"),
        (("rollout.n=2,4", "study.n_trials=20"), "the space has no more points, so it is 2 trials"),
        (("rollout.n=2,4", "study.n_trials=2"), ""),
    ],
)
def test_more_trials_than_there_are_points_are_said(words: tuple[str, ...], says: str) -> None:
    """It is a warning, so that a sweep file of which much is fixed runs; --strict makes it a no."""
    for verb in ("plan", "check"):
        answer, strict = hysweep(verb, *words), hysweep(verb, *words, "--strict")
        assert (answer.returncode, strict.returncode) == (0, 1 if says else 0)
        assert [says in line for line in answer.stdout.splitlines() if "warning: " in line] == [True] * bool(says)
    told = hysweep("simulate", *words, "trainer.total_steps=2", "--step-s", "1").stderr
    assert told.startswith("warning: study.n_trials = 20: " + says) if says else told == ""


@pytest.mark.parametrize(
    "words",
    [
        ("study.last=3",),
        ("rollout.n=2,4", "study.sampler=random"),
        ("rollout.n=2,4", "study.enqueue=[{rollout.n:4}]"),
        ("rollout.n=2,4", "study.default_first=true"),
        ("study.pruner.min_steps=3",),
        ("study.notify.events=[end]",),
        ("study.force_sqlite=true",),
    ],
)
def test_settings_of_a_study_that_nothing_reads_are_said(words: tuple[str, ...]) -> None:
    key = words[-1].partition("=")[0]
    answer = hysweep("check", *words)
    assert answer.returncode == 0 and f"warning: {key} = " in answer.stdout and "does nothing: " in answer.stdout
    needs = {
        "study.last": "study.reduce=mean_last",
        "study.pruner.min_steps": "study.pruner=median",
        "study.notify.events": "study.notify.command=true",
        "study.force_sqlite": "study.storage=sqlite:////tmp/x.db",
    }
    read = needs.get(key, "study.n_trials=2")
    assert "does nothing" not in hysweep("check", *words, read).stdout


@pytest.mark.parametrize("verb", ["plan", "check", "simulate"])
def test_a_search_of_nothing_is_refused_at_the_desk_as_by_run(verb: str) -> None:
    answer = hysweep(verb, "-m", "study.n_trials=20")
    assert answer.returncode == 2 and answer.stderr == hysweep("run", "-m", "study.n_trials=20").stderr


def test_plan_writes_nothing_and_counts(tmp_path: Path) -> None:
    facts = json.loads(hysweep("plan", "sweep=hy3_algorithms", "--json").stdout)
    assert (facts["trials"], facts["nodes_per_trial"], facts["gpus_per_trial"]) == (40, 16, 128)
    assert facts["gpu_hours_at_most"] == facts["budget_gpu_hours"] == 20000
    assert "python" in hysweep("plan", "sweep=quickstart").stdout
    assert list(tmp_path.iterdir()) == []


def test_plan_tells_programs_what_it_tells_people() -> None:
    words = ("plan", "algorithm=grpo,rloo", "space.filter='rollout.n > 1'", "cluster=h20_16x8")
    shown, told = hysweep(*words).stdout, json.loads(hysweep(*words, "--json").stdout)
    assert told["varies"] == {"algorithm": "choice(grpo,rloo)"} and "algorithm = choice(grpo,rloo)" in shown
    assert told["only_where"] == ["rollout.n > 1"] and "only where  rollout.n > 1" in shown
    assert told["first_job_as_sent"].startswith("# sbatch ") and told["first_job_as_sent"] in shown


def test_hydras_own_flags_work() -> None:
    answer = hysweep("run", "--cfg", "job", "algorithm=cispo")
    assert answer.returncode == 0, answer.stderr
    assert "loss_mode: cispo" in answer.stdout
    told = yaml.safe_load(
        hysweep("run", "--cfg", "hydra", "+hydra.job.env_set.A=b", "++hydra.verbose=true", "hydra={mode: RUN}").stdout
    )["hydra"]
    assert told["job"]["env_set"] == {"A": "b"} and told["verbose"] is True and told["mode"] == "RUN"


def test_a_reader_that_leaves_is_no_error() -> None:
    for words in ("show --doc", "explain", "simulate sweep=quickstart --step-s 20"):
        line = f"set -o pipefail; {sys.executable} -m hysweep {words} | true"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_what_an_output_cannot_show_is_a_question_mark() -> None:
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "hysweep", "simulate", "sweep=quickstart", "--step-s", "20"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0 and "??" in done.stdout and not done.stderr


def test_a_full_disk_behind_the_output_is_one_clear_error() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "hysweep", "show"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "hysweep: No space left on device; mend it and say it again\n"


def test_completion_knows_groups_options_and_fields() -> None:
    def complete(word: str) -> str:
        return hysweep(_HYSWEEP_COMPLETE="bash_complete", COMP_WORDS=f"hysweep run {word}", COMP_CWORD="2").stdout

    assert "algorithm=cispo" in complete("algorithm=")
    assert "trainer.learning_rate=" in complete("trainer.le")
    assert "algorithm.loss_mode=gspo" in complete("algorithm.loss_mode=g")
    assert "_HYSWEEP_COMPLETE" in hysweep("completion", "bash").stdout


def test_doctor_names_what_is_there() -> None:
    findings = {f["name"]: f for f in json.loads(hysweep("doctor", "--json").stdout)}
    assert findings["python"]["is_good"]
    named = {"hysweep", "python", "system", "verl", "ray", "torch", "vllm", "megatron-core", "megatron-bridge",
             "transformers", "hydra-core", "omegaconf", "optuna", "submitit", "SLURM", "disk"}  # fmt: skip
    assert named <= set(findings), "what a report of a fault needs"
    for package in ("hydra-core", "optuna", "submitit"):
        assert findings[package]["found"].startswith(version(package))
    assert findings["hysweep"]["found"].startswith(hysweep("--version").stdout.split()[-1])
    assert set(findings) <= set(hysweep("doctor").stdout.replace("│", " ").split()) | {"GPU driver", "tiny model"}
    assert all(f["cure"] for f in findings.values() if not f["is_good"])


def test_doctor_prints_what_to_type_as_it_is_typed(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Brackets are text: `pip install hysweep` would bring nothing that is missing."""
    doctor = import_module("hysweep.cli.doctor")
    cure = "pip install 'hysweep[cpu]'"
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(doctor, "examine", lambda *_: [Finding("verl", False, "[red]none[/]", cure, is_needed=True)])
    assert doctor.doctor(as_json=False) == 1
    shown = capsys.readouterr().out
    assert cure in shown and "[red]none[/]" in shown


def test_a_verb_that_needs_no_training_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['hysweep', 'check']\n"
        "from hysweep.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code == 0, e.code\n"
        "heavy = {'torch', 'ray', 'verl', 'vllm', 'wandb', 'plotly', 'optuna', 'pandas', 'numpy', 'transformers'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "heavy: []" in done.stdout, done
