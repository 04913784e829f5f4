"""Command lines and files become typed trials, or one clear error for each fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from hysweep.compose import Choice, Composer, Interval, Space
from hysweep.compose.composer import load_trial, trial_yaml
from hysweep.schema import BadInput, trial_id


def faults(composer: Composer, *overrides: str) -> str:
    with pytest.raises(BadInput) as caught:
        composer.compose(overrides)
    return str(caught.value)


def test_a_group_switches_whole(composer: Composer) -> None:
    gspo = composer.compose(["algorithm=gspo"]).trial.algorithm
    cispo = composer.compose(["algorithm=cispo"]).trial.algorithm
    assert (gspo.loss_mode, gspo.clip_ratio_high, gspo.loss_agg_mode) == ("gspo", 4e-4, "seq-mean-token-mean")
    assert (cispo.loss_mode, cispo.clip_ratio_low, cispo.loss_agg_mode) == ("cispo", 10.0, "token-mean")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algorithm=grpoo", "did you mean grpo"),
        ("sweep=nope", "quickstart"),
        ("trainer.lr=3", "trainer.learning_rate"),
        ("+trainer.lr=3", "trainer.learning_rate"),
        ("actor_rollout_ref.actor.optim.lr=3", "is verl's name for it; here it is trainer.learning_rate"),
        ("trainer.learning_rate=abc", "number"),
        ("trainer.learning_rate=-1", "at least 0"),
        ("trainer.total_steps=0", "at least 1"),
        ("trainer.total_steps=1.5", "whole number"),
        ("algorithm.adv_estimator=gaee", "gae"),
        ("rollout.top_p=1.1", "at most 1"),
        ("rollout=null", "is needed"),
        ("foo=3", "no such key"),
        ("trainer.learning_rate", "="),
        ("rollout.tensor 8", "write rollout.tensor=8"),
        ("rollout.tensor: 8", "write rollout.tensor=8"),
        ("rollout.tensro 8", "did you mean rollout.tensor"),
        ("memory.param_offload=flase", "is neither true nor false; did you mean false?"),
        ("memory.param_offload=maybe", "choose one of false, true"),
        ("rollout.n=null", "is no whole number"),
        ("rollout.n=${oc.env:NOT_SET_HERE}", "asks for $NOT_SET_HERE, which is not set; export NOT_SET_HERE, or"),
        ("data.train_files=['${oc.env:NOT_SET_HERE}/x']", "export NOT_SET_HERE"),
        ("rollout.n=2000000", "at most 100000"),
        ("trainer.max_response_length=1000000000000000", "at most 1000000000000"),
        ("trainer.seed=3000000000", "at most 2147483647"),
        ("algorithm@critic=grpo", "write algorithm=grpo"),
        ("verl={data: {1: a, b: c}}", "holds the name 1, which is no text"),
        ("a=b,c=d", "quote"),
        ("~algorithmm", "no such key"),
        ("cluster.timeout_min=99999999999", "at most 525600"),
        *(
            (f"cluster.{field}=' '", "is empty; give a value, or null")
            for field in ("partition", "account", "qos", "nodelist", "gres", "mail_user", "python", "container")
        ),
        ("study.controller.partition=''", "is empty"),
        ("cluster.srun_args=[null]", "null: is no text; give one"),
        ("cluster.additional_parameters=abc", "is no mapping; give one, as {NAME: VALUE}"),
        ("cluster.additional_parameters=[a]", "is no mapping"),
        ("cluster.env={A: null}", "needs a value"),
        ('cluster.env={A: "a\0b"}', "NUL"),
        ('cluster.setup=["a\0b"]', "NUL"),
    ],
)
def test_one_clear_error(composer: Composer, override: str, says: str) -> None:
    message = faults(composer, override)
    assert says in message
    key = override.lstrip("+~").replace(" ", "=").partition("=")[0].rstrip(":")
    assert message.startswith(key), "the key is named first"
    assert len(message.splitlines()) == 1


def test_a_key_and_its_value_as_two_words_are_one_fault(composer: Composer) -> None:
    message = faults(composer, "rollout.tensor", "=", "8", "rollout.n", "trainer.total_steps", "4", "foo")
    *written, unknown = (line.partition("; ")[2] for line in message.splitlines())
    assert written == ["write rollout.tensor=8", "write rollout.n=VALUE", "write trainer.total_steps=4"]
    assert "`hysweep show --doc`" in unknown


def test_all_faults_at_once(composer: Composer) -> None:
    message = faults(composer, "algorithm=nope", "trainer.lr=1", "rollout.m=3")
    assert [line.partition(" = ")[0] for line in message.splitlines()] == ["algorithm", "trainer.lr", "rollout.m"]
    message = faults(composer, "trainer.total_steps=0", "rollout.top_p=2", "study.max_parallel=0")
    assert len(message.splitlines()) == 3


# --- spaces


def test_the_grammar_of_ranges(composer: Composer) -> None:
    space = composer.compose(
        [
            "algorithm=grpo,cispo",
            "rollout.n=range(2,10,4)",
            "trainer.learning_rate=tag(log,interval(1e-4,1e-2))",
            "trainer.seed=int(interval(1,8))",
            "rollout.temperature=range(0.5,1.0,0.25)",
        ]
    ).space
    assert space["algorithm"] == Choice("algorithm", ("grpo", "cispo"), ("grpo", "cispo"))
    assert space["rollout.n"].values == (2, 6), "half open"
    assert space["trainer.learning_rate"] == Interval("trainer.learning_rate", 1e-4, 1e-2, is_log=True)
    assert space["trainer.seed"] == Interval("trainer.seed", 1, 8, is_int=True)
    assert space["rollout.temperature"].values == (0.5, 0.75), "half open for real numbers too (case 30)"


def test_a_key_below_a_dict_can_be_set_and_searched(composer: Composer) -> None:
    key = "verl.actor_rollout_ref.actor.optim.lr_warmup_steps"
    below = {"actor_rollout_ref": {"actor": {"optim": {"lr_warmup_steps": 2}}}}
    assert composer.compose([f"{key}=2"]).trial.verl == below
    assert composer.compose([f"+{key}=2"]) == composer.compose([f"{key}=2"]), "as Hydra would have it, too"
    assert composer.compose(["cluster.env={A: x}"]).trial.cluster.env == {"A": "x"}
    composition = composer.compose([f"{key}=1,2"])
    assert composer.point(composition.fixed, composition.space, {key: 2}).verl["actor_rollout_ref"]
    assert set(composer.compose(['space={trainer.seed: "choice(1,2)"}']).space) == {"trainer.seed"}


def test_an_interval_of_a_whole_field_is_whole(composer: Composer) -> None:
    assert composer.compose(["rollout.n=interval(2,8)"]).space["rollout.n"] == Interval("rollout.n", 2, 8, is_int=True)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trainer.learning_rate=interval(3,1)", "is empty"),
        ("trainer.learning_rate=tag(log,interval(0,1))", "start above 0"),
        ("trainer.learning_rate=tag(lin,interval(0,1))", "no such tag"),
        ("rollout.n=range(5,5)", "is empty"),
        ("algorithm=glob(zz*)", "matches none"),
        ("algorithm=grpo,nope", "no such algorithm"),
        ("algorithm=grpo,null", "no such algorithm"),
        ("algorithm=range(1,3)", "names"),
        ("algorithm=interval(0,1)", "names"),
        ("sweep=quickstart,hy3_algorithms", "cannot itself be searched"),
        ("algorithm=1,2.5", "no such algorithm"),
        ("trainer.seed=range(0,10000000000)", "100,000"),
        ("trainer.learning_rate=1e-3,oops", "is no number"),
        ("trainer.learning_rate=interval(0.5,2)", "at most 1"),
        ("algorithm.loss_mode=interval(1,2)", "choice"),
        ("no.such.key=1,2", "no such key"),
        ("study.n_trials=1,2", "cannot itself be searched"),
        ("rollout.n=interval(2.5,8)", "whole"),
    ],
)
def test_a_space_that_cannot_be_searched(composer: Composer, override: str, says: str) -> None:
    assert says in faults(composer, override)


def test_the_command_line_takes_a_key_out_of_a_sweep_files_space(composer: Composer) -> None:
    assert set(composer.compose(["sweep=quickstart"]).space) == {"algorithm", "trainer.learning_rate"}
    pinned = composer.compose(["sweep=quickstart", "algorithm=cispo"])
    assert set(pinned.space) == {"trainer.learning_rate"}
    assert pinned.trial.algorithm.name == "cispo"


def test_a_sweep_file_of_any_place(tmp_path: Path) -> None:
    """By its path; from then on by its name, also where the file is gone: a study has it in its snapshot."""
    mine = tmp_path / "quickstart.yaml"
    text = "# @package _global_\nstudy: {n_trials: 3}\nspace: {algorithm: 'choice(grpo, cispo)'}\n"
    mine.write_text(text)
    composer = Composer()
    found = composer.compose([f"sweep={mine}", "rollout.n=4"])
    assert (found.study.n_trials, set(found.space), found.choices["sweep"]) == (3, {"algorithm"}, "quickstart")
    assert found.fixed == ("sweep=quickstart", "rollout.n=4")
    assert composer.snapshot()["sweep/quickstart.yaml"] == text, "not the shipped one of that name"
    mine.unlink()
    assert composer.point(found.fixed, found.space, {"algorithm": "cispo"}).algorithm.name == "cispo"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gone.yaml", None, "there is no such file"),
        ("a b=c.yaml", "{}", "letters, digits"),
        ("torn.yaml", "# @package _global_\nstudy: [", "mend the file"),
        ("number.yaml", "# @package _global_\nrollout: {correction_is_threshold: 0.5_5}\n", "put it in quotes"),
        ("sixties.yaml", "# @package _global_\ncluster: {timeout_min: 24:00:00}\n", "reads as 86400"),
        ("list.yaml", "[1, 2]", "is no mapping"),
        ("group.yaml", "study: {n_trials: 3}", "# @package _global_"),
    ],
)
def test_a_sweep_file_that_cannot_be_read(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert says in faults(Composer(), f"sweep={tmp_path / name}")


def test_a_grid_in_hydras_order(composer: Composer) -> None:
    space = composer.compose(["algorithm=grpo,rloo", "rollout.n=2,4"]).space
    assert space.size == 4
    assert [tuple(p.values()) for p in space.grid()] == [("grpo", 2), ("grpo", 4), ("rloo", 2), ("rloo", 4)]


def test_categories_keep_their_quotes(composer: Composer) -> None:
    """Case 29: a choice of strings that Hydra would read as something else reaches the trial as it was."""
    texts = ("x,y", "c=d", "1e-6", "0.5_4.0", "it's")
    quoted = ",".join('"' + t + '"' for t in texts)
    for form in (quoted, f"choice({quoted})"):
        assert composer.compose([f"tracking.project={form}"]).space["tracking.project"].values == texts
    composition = composer.compose([f"tracking.project=choice({quoted})"])
    assert composition.space["tracking.project"].values == texts
    for text in texts:
        point = composer.point(composition.fixed, composition.space, {"tracking.project": text})
        assert point.tracking.project == text


# --- a user's own groups


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "mine" / "algorithm").mkdir(parents=True)
    return tmp_path / "mine"


def test_own_groups_join_the_shipped(own: Path) -> None:
    (own / "algorithm" / "mine.yaml").write_text("name: mine\nclip_ratio_high: 0.3\n")
    composer = Composer([own])
    assert composer.compose(["algorithm=mine"]).trial.algorithm.clip_ratio_high == 0.3
    assert composer.compose(["algorithm=rloo"]).trial.algorithm.adv_estimator == "rloo"


def test_an_own_option_wins_over_a_shipped_one_of_the_same_name(own: Path) -> None:
    (own / "algorithm" / "grpo.yaml").write_text("name: grpo\nclip_ratio_high: 0.3\n")
    assert Composer([own]).compose([]).trial.algorithm.clip_ratio_high == 0.3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: mine\nclip_ratio_hihg: 0.3\n", "clip_ratio_hihg"),
        ("name: mine\nclip_ratio_high: much\n", "clip_ratio_high"),
        ("name: [mine\n", "mine"),
        ("- a list\n", "mine"),
        ("name: mine\nplugin: !!binary aGVsbG8=\n", "plugin"),
    ],
)
def test_a_fault_in_an_own_file_is_told(own: Path, text: str, says: str) -> None:
    (own / "algorithm" / "mine.yaml").write_text(text)
    assert says in faults(Composer([own]), "algorithm=mine")


def test_what_lies_beside_the_options_and_is_none_is_no_trouble(own: Path) -> None:
    (own / "algorithm" / ".#mine.yaml").symlink_to("me@here.1234")  # an editor's lock
    (own / "algorithm" / "old.yaml").mkdir()
    (own / "algorithm" / "torn.yaml").write_bytes(b"\xd2\xff\x00")
    (own / "algorithm" / "mine.yaml").write_text("name: mine\n")
    composer = Composer([own])
    assert composer.compose(["algorithm=mine"]).trial.algorithm.name == "mine"
    assert "algorithm/mine.yaml" in composer.snapshot()
    assert "torn.yaml" in faults(composer, "algorithm=torn")


def test_what_studies_have_written_below_is_none_of_the_options(own: Path) -> None:
    """Else each study would hold the files of all before it: --config-dir=. where outputs lie."""
    (own / "algorithm" / "mine.yaml").write_text("name: mine\n")
    study = own / "outputs" / "first"
    (study / "conf" / "algorithm").mkdir(parents=True)
    (study / "study.yaml").write_text("name: first\n")
    (study / "conf" / "algorithm" / "grpo.yaml").write_text("- torn\n")
    snapshot = Composer([own]).snapshot()
    assert "algorithm/mine.yaml" in snapshot and not [name for name in snapshot if name.startswith("outputs")]


def test_bytes_in_a_dict_are_told(own: Path) -> None:
    (own / "reward").mkdir()
    (own / "reward" / "mine.yaml").write_text("name: mine\nfunction_kwargs: {key: [!!binary aGVsbG8=]}\n")
    assert faults(Composer([own]), "reward=mine").startswith("reward.function_kwargs")


def test_a_missing_config_dir_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no directory"):
        Composer([tmp_path / "nowhere"])


def test_a_snapshot_composes_as_the_original_did(own: Path, tmp_path: Path) -> None:
    (own / "algorithm" / "mine.yaml").write_text("name: mine\nclip_ratio_high: 0.3\n")
    original = Composer([own])
    for name, text in original.snapshot().items():
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (own / "algorithm" / "mine.yaml").write_text("name: mine\nclip_ratio_high: 0.9\n")  # an edited default
    copy = Composer([tmp_path / "copy"], shipped=False)
    assert copy.compose(["algorithm=mine"]).trial.algorithm.clip_ratio_high == 0.3
    assert copy.compose(["sweep=quickstart"]).space.keys() == original.compose(["sweep=quickstart"]).space.keys()


def test_a_frozen_trial_comes_back(composer: Composer) -> None:
    trial = composer.compose(["experiment=hy3_dapo_math", "verl.actor_rollout_ref.actor.shuffle=true"]).trial
    assert load_trial(trial_yaml(trial)) == trial


def test_a_number_for_a_text_in_a_file_is_told(tmp_path: Path) -> None:
    """0.5_5 without quotes is 0.55 to YAML: IcePop would become a cap in silence."""
    for text, says in [("0.5_5", "put it in quotes: '0.5_5'"), ("'0.5_5'", ""), ("2.0", ""), ("0.5_4.0", "")]:
        own = tmp_path / text.strip("'").replace(".", "") / text.replace(".", "") / "rollout"
        own.mkdir(parents=True)
        (own / "mine.yaml").write_text(
            f"name: mine\nengine: vllm\ncorrection_rs: null\ncorrection_is_threshold: {text}\n"
        )
        composer = Composer([own.parent])
        if says:
            assert says in faults(composer, "rollout=mine")
        else:
            found = composer.compose(["rollout=mine"]).trial.rollout.correction_is_threshold
            assert found == text.strip("'")


def test_a_study_goes_on_in_the_environment_that_it_began_in(composer: Composer, monkeypatch, tmp_path: Path) -> None:
    own = tmp_path / "rollout"
    own.mkdir()
    (own / "mine.yaml").write_text("name: mine\nn: ${oc.env:SAMPLES,4}\n")
    monkeypatch.setenv("SAMPLES", "6")
    began = Composer([tmp_path]).compose(["rollout=mine"])
    assert (began.trial.rollout.n, began.env["SAMPLES"]) == (6, "6")
    monkeypatch.setenv("SAMPLES", "9")
    later = Composer([tmp_path])
    later.freeze(began.env)
    assert later.compose(["rollout=mine"]).trial.rollout.n == 6
    assert later.point(["rollout=mine"], Space(), {}).rollout.n == 6


def test_a_model_at_another_path_is_named_after_it(composer: Composer) -> None:
    def name(*overrides: str) -> str:
        return composer.compose(overrides).trial.model.name

    assert name("model=qwen3_8b") == "qwen3_8b"
    assert name("model=qwen3_8b", "model.path=Qwen/Qwen3-8B") == "qwen3_8b", "the option's own path"
    assert name("model=qwen3_8b", "model.path=org/Mine-4B") == "Mine-4B"
    assert name("model=qwen3_8b", "model.path=/models/mine/") == "mine"
    assert name("model=qwen3_8b", "model.path=/models/mine", "model.name=own") == "own"
    assert name("model=qwen3_8b", "model.path=''") == "qwen3_8b"
    swept = composer.compose(["model=qwen3_8b", "model.path=org/a,org/b"])
    points = [composer.point(swept.fixed, swept.space, {"model.path": f"org/{n}"}) for n in "ab"]
    assert [trial.model.name for trial in points] == ["a", "b"]


def test_the_name_of_a_model_is_no_part_of_a_trials_identity(composer: Composer) -> None:
    one, other = (composer.compose(["model.path=org/mine", f"model.name={n}"]).trial for n in "ab")
    assert trial_id(one) == trial_id(other)
