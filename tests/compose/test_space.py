"""Spaces with conditions, zips, filters and seeds: counts, grids, points and their way to disk and back."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hysweep.compose import Choice, Composer, Composition, Conditional, Interval, Space, Zip
from hysweep.schema import BadInput

CLIP = "algorithm.clip_ratio_high"


def composed(composer: Composer, space: str, *overrides: str) -> Composition:
    from hysweep.schema.override import emit

    return composer.compose([f"space={emit(yaml.safe_load(space))}", *overrides])


def space_of(composer: Composer, space: str, *overrides: str) -> Space:
    return composed(composer, space, *overrides).space


def faults(composer: Composer, space: str, *overrides: str) -> str:
    with pytest.raises(BadInput) as caught:
        space_of(composer, space, *overrides)
    return str(caught.value)


CONDITIONAL = """
algorithm: choice(grpo, rloo, gspo)
algorithm.clip_ratio_high:
  - {when: algorithm == grpo, in: "choice(0.2, 0.28, 0.4)"}
  - {when: algorithm == gspo, in: [0.0004, 0.0005]}
"""


def test_a_range_under_conditions_is_one_parameter_a_branch(composer: Composer) -> None:
    space = space_of(composer, CONDITIONAL)
    dimension = space[CLIP]
    assert isinstance(dimension, Conditional) and list(dimension.parameters) == [f"{CLIP}@1", f"{CLIP}@2"]
    assert list(space.parameters) == ["algorithm", f"{CLIP}@1", f"{CLIP}@2"]
    assert space.varied == ("algorithm", CLIP)
    assert space.size == 6
    assert [tuple(p.values()) for p in space.grid()] == [
        ("grpo", 0.2), ("grpo", 0.28), ("grpo", 0.4), ("rloo",), ("gspo", 0.0004), ("gspo", 0.0005)
    ]  # fmt: skip


def test_a_point_has_only_what_applies_and_goes_back_to_its_parameters(composer: Composer) -> None:
    space = space_of(composer, CONDITIONAL)
    for point in space.grid():
        drawn = space.parameters_of(point)
        assert space.walk(lambda name, _, drawn=drawn: drawn[name][1]) == point
        assert space.is_whole(point)
    assert list(space.parameters_of({"algorithm": "gspo", CLIP: 0.0004})) == ["algorithm", f"{CLIP}@2"]
    assert not space.is_whole({"algorithm": "grpo"})


def test_the_trial_of_a_point(composer: Composer) -> None:
    composition = composed(composer, CONDITIONAL)
    clips = [composer.point(composition.fixed, composition.space, p).algorithm.clip_ratio_high
             for p in composition.space.grid()]  # fmt: skip
    own = composer.compose(["algorithm=rloo"]).trial.algorithm.clip_ratio_high
    assert clips == [0.2, 0.28, 0.4, own, 0.0004, 0.0005]


def test_a_condition_may_be_about_what_does_not_vary(composer: Composer) -> None:
    """The option that a group has, and a field that the option chosen sets."""
    by_option = "rollout.n: [{when: algorithm == gspo, in: [2, 4]}, {in: [8]}]"
    assert space_of(composer, by_option, "algorithm=gspo").size == 2
    assert space_of(composer, by_option).size == 1
    by_field = "algorithm: choice(grpo, gspo)\nrollout.n: [{when: algorithm.loss_mode == gspo, in: [2, 4]}]"
    points = list(space_of(composer, by_field).grid())
    assert [tuple(p.values()) for p in points] == [("grpo",), ("gspo", 2), ("gspo", 4)]


def test_conditions_upon_conditions(composer: Composer) -> None:
    space = space_of(
        composer,
        """
trainer.seed: [{when: rollout.n == 2, in: [5, 6]}]
rollout.n: [{when: algorithm == grpo, in: [2, 4]}]
algorithm: choice(grpo, rloo)
""",
    )
    assert [tuple(p.values()) for p in space.grid()] == [("grpo", 2, 5), ("grpo", 2, 6), ("grpo", 4), ("rloo",)]


def test_a_zip_sets_several_keys_at_once(composer: Composer) -> None:
    text = "zip: [{rollout.n: 4, trainer.learning_rate: 0.001}, {rollout.n: 8, trainer.learning_rate: 0.002}]"
    space = space_of(composer, f"{text}\nalgorithm: choice(grpo, rloo)")
    assert isinstance(space["zip"], Zip)
    assert space.varied == ("rollout.n", "trainer.learning_rate", "algorithm")
    assert space.size == 4
    assert next(iter(space.grid())) == {"rollout.n": 4, "trainer.learning_rate": 0.001, "algorithm": "grpo"}
    pinned = space_of(composer, text, "rollout.n=8")
    assert list(pinned.grid()) == [{"trainer.learning_rate": 0.002}], "the settings that agree with the command line"
    assert "in none of its settings" in faults(composer, text, "rollout.n=16")
    two = "zip.a: [{rollout.n: 4}, {rollout.n: 8}]\nzip.b: [{trainer.seed: 1}, {trainer.seed: 2}]"
    assert space_of(composer, two).size == 4


def test_a_filter_rejects_and_is_counted(composer: Composer) -> None:
    text = """
trainer.mini_batch_size: choice(4, 8, 16)
trainer.train_batch_size: choice(8, 16)
filter: "trainer.mini_batch_size <= trainer.train_batch_size"
"""
    space = space_of(composer, text)
    assert (space.size, space.rejected) == (5, 1)
    assert space.refusal({"trainer.mini_batch_size": 16, "trainer.train_batch_size": 8})
    pinned = space_of(composer, "rollout.n: [2, 4]\nfilter: [rollout.n < 4, trainer.seed == 7]", "trainer.seed=7")
    assert list(pinned.grid()) == [{"rollout.n": 2}], "every filter, also about what does not vary"


def test_seeds_and_constants(composer: Composer) -> None:
    space = space_of(composer, "rollout.n: [2, 4]\nseeds: 3\ntrainer.learning_rate: 0.003")
    assert space.seeds == (1, 2, 3) and space.size == 2, "replicates are no points"
    assert space.varied == ("rollout.n", "trainer.learning_rate", "trainer.seed")
    assert all(p["trainer.learning_rate"] == 0.003 for p in space.grid())
    assert space_of(composer, "rollout.n: [2, 4]\nseeds: [11, 12]").seeds == (11, 12)


def test_the_configurations_own_values_as_a_point(composer: Composer) -> None:
    own = composer.compose([]).trial
    space = space_of(composer, "algorithm: choice(rloo, grpo)\ntrainer.learning_rate: tag(log, interval(1e-5, 1e-1))")
    assert space.default() == {"algorithm": "grpo", "trainer.learning_rate": own.trainer.learning_rate}
    assert space_of(composer, "trainer.learning_rate: interval(0.5, 0.6)").default() is None
    assert space_of(composer, "rollout.n: [2, 3]\nalgorithm: [grpo]").default() is None
    constant = space_of(composer, "algorithm: gspo\nrollout.n: [4, 8]\nzip: [{trainer.seed: 7}]").default()
    assert constant == {"algorithm": "gspo", "rollout.n": own.rollout.n, "trainer.seed": 7}, "a constant is no choice"


ALL = f"""
algorithm: choice(grpo, gspo)
trainer.learning_rate: tag(log, interval(1e-5, 1e-2))
trainer.total_steps: int(interval(2, 8))
{CLIP}:
  - {{when: algorithm == grpo and rollout.n >= 4, in: "interval(0.2, 0.4)"}}
  - {{in: "tag(log, interval(3e-4, 3e-3))"}}
zip: [{{rollout.n: 4, trainer.mini_batch_size: 4}}, {{rollout.n: 8, trainer.mini_batch_size: 8}}]
filter: ["trainer.mini_batch_size <= trainer.train_batch_size"]
seeds: 2
tracking.project: ["x,y", "it's", "1e-6", "c=d", "0.5_4.0", "nan", "null"]
trainer.checkpoints_kept: [2, null]
parallelism.virtual_pipeline: "null, 5"
"""


def test_what_is_written_is_read_back(composer: Composer) -> None:
    composition = composed(composer, ALL)
    again = composer.space(yaml.safe_load(yaml.safe_dump(composition.space.as_dict())), composition.fixed)
    assert again == composition.space
    assert again["trainer.total_steps"] == Interval("trainer.total_steps", 2, 8, is_int=True)


def test_null_is_one_of_the_values(composer: Composer) -> None:
    kept = "trainer.checkpoints_kept"
    assert space_of(composer, f"{kept}: [2, null]")[kept] == Choice(kept, (2, None), ("2", "null"))
    assert composer.compose([f"{kept}=null,2"]).space[kept] == Choice(kept, (None, 2), ("null", "2"))
    assert space_of(composer, "rollout.max_model_len: [null, 64]").default() == {"rollout.max_model_len": None}


def test_choice_takes_no_null_and_says_what_does(composer: Composer) -> None:
    assert "write the values alone: null, 2" in faults(composer, "trainer.checkpoints_kept: 'choice(null, 2)'")
    with pytest.raises(BadInput, match="write the values alone: null,8192"):
        composer.compose(["trainer.max_token_len_per_gpu=choice(null,8192)"])


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("rollout.n: [{when: algorithm == grpoo, in: [2]}]", "did you mean grpo"),
        ("rollout.n: [{when: algorithm == grpo, at: [2]}, {in: [2]}]", "no range under a condition"),
        ("rollout.n: [{in: [2]}, {when: algorithm == grpo, in: [4]}]", "none after it can apply"),
        ("rollout.n: [{when: rollout.n == 2, in: [4]}]", "depends on itself"),
        ("rollout.n: [{when: trainer.seed == 2, in: [4]}]\ntrainer.seed: [{when: rollout.n == 4, in: [1]}]", "itself"),
        ("rollout.n: [{when: algorithm == grpo, in: [2, x]}]", "whole number"),
        ("rollout.n: [{when: algorithm == grpo, in: 'interval(8, 2)'}]", "is empty"),
        ("rollout.k: [{when: algorithm == grpo, in: [2]}]", "no such key"),
        ("rollout.n: [1.5, 2.0]", "whole number"),
        ("zip: [{rollout.n: 4}, {trainer.seed: 3}]", "go together"),
        ("zip: []", "go together"),
        ("zip: [{rollout.m: 4}]", "no such key"),
        ("zip: [{algorithm: grpoo}]", "did you mean grpo"),
        ("zip: [{rollout.n: x}]", "whole number"),
        ("zip: [{rollout.n: 4}]\nrollout.n: [2]", "set by two"),
        ("filter: rollout.n > no", "filter"),
        ("rollout.n: [2]\nseeds: 0", "no number of seeds"),
        ("rollout.n: [2]\nseeds: [1, 1]", "no different whole numbers"),
        ("trainer.seed: [2]\nseeds: 2", "set by two"),
        ("rollout.n: ''", "nothing"),
        ("algorithm: grpoo", "did you mean grpo"),
    ],
)
def test_a_space_that_cannot_be_searched(composer: Composer, space: str, says: str) -> None:
    assert says in faults(composer, space)


# --- properties

VALUES = st.lists(st.one_of(st.integers(-9, 9), st.text(max_size=4), st.booleans()), min_size=1, max_size=3)


@given(VALUES, VALUES, st.integers(0, 3), st.integers(1, 4))
def test_counts_are_those_of_the_grid_and_no_point_comes_twice(first, second, low, width) -> None:
    def choice(key: str, values: list) -> Choice:
        texts = tuple(f"{type(v).__name__}:{v}" for v in values)
        unique = dict(zip(texts, values, strict=True))
        return Choice(key, tuple(unique.values()), tuple(unique))

    space = Space(
        {"a": choice("a", first), "b": Interval("b", low, low + width, is_int=True), "c": choice("c", second)}
    )
    points = list(space.grid())
    assert space.size == len(points)
    texts = [tuple((k, type(v).__name__, v) for k, v in p.items()) for p in points]
    assert len(set(texts)) == len(texts)
    assert all(space.is_whole(p) for p in points)


# --- what is no space


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("rollout.n: choice([2],4)", "rollout.n = [2]: is no whole number"),
        ("rollout.n: [2, [4]]", "rollout.n = [4]: is no whole number"),
        ("zip: [{rollout.n: [2, 4], trainer.total_steps: 3}]", "rollout.n = [2, 4]: is no whole number"),
        ("zip: [{algorithm: [grpo], rollout.n: 3}]", "algorithm = ['grpo']: there is no such algorithm"),
        ("rollout.n: interval(nan, 4)", "space.rollout.n = interval(nan, 4)|rollout.n = interval(nan, 4): its ends"),
        ("rollout.n: interval(1, inf)", "its ends are no finite numbers"),
        ("rollout.n: range(nan, 4)", "its ends are no finite numbers"),
        ("rollout.n: range(1, 4, nan)", "its ends are no finite numbers"),
        ("rollout: {n: 'choice(2, 4)'}", "space.rollout = {'n': 'choice(2, 4)'}: is no range; write rollout.n: choice"),
        (
            "algorithm.clip_ratio_high: {when: algorithm == grpo, in: 0.3}",
            "is no range; write {when: algorithm == grpo",
        ),
        ("trainer.learning_rate: {min: 1.0e-4, max: 1.0e-2}", "is no range; write choice(a, b), range("),
        ("trainer.learning_rate: uniform(1e-4, 1e-2)", "1e-2): there is no range uniform(); write choice(a, b)"),
        ("trainer.learning_rate: interval(1e-4, 1e-2", "interval(1e-4, 1e-2: a ( in it is not closed; close it"),
        ("algorithm.clip_ratio_high: [{when: algorithm == grpo}]", "is no range under a condition"),
        ("{rollout.n: 'choice(2, 4)', seeds: [1, 2147483648]}", "trainer.seed = 2147483648: is out of range"),
        ("{rollout.n: 'choice(2, 4)', filter: study.n_trials > 3}", "'study.n_trials' (at character 1) says how to"),
    ],
)
def test_what_is_no_range_is_told_by_its_key_and_its_value(composer: Composer, space: str, says: str) -> None:
    assert any(one in faults(composer, space) for one in says.split("|"))


def test_a_range_of_wrong_values_is_not_told_one_by_one(composer: Composer) -> None:
    assert 1 < len(faults(composer, "rollout.n: range(0, 1, 0.0001)").splitlines()) <= 10


@pytest.mark.parametrize(
    "override", ["rollout.n=interval(nan,4)", "rollout.n=range(1,inf)", "rollout.n=choice([1],2)", "~space",
                 "rollout.n=choice(${nope},2)", "rollout.n=choice('???',2)"],
)  # fmt: skip
def test_a_command_line_is_refused_as_a_file_is(composer: Composer, override: str) -> None:
    with pytest.raises(BadInput):
        composer.compose([override])


def test_a_category_may_look_like_a_reference(composer: Composer) -> None:
    found = composer.compose(["model.path=choice('/a/${b}','/c')"]).space
    assert found["model.path"].values == ("/a/${b}", "/c")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("study: 3", "study = 3: is no mapping, in "),
        ("study: {sampler: [tpe]}", "study.sampler = ['tpe']: is no mapping, in "),
        ("study: {notify: mail}", "study.notify = mail: is no mapping, in "),
        ("study: {objectives: {metric: gpu_hours}}", "study.objectives = {'metric': 'gpu_hours'}: is no list, in "),
        ("study: {objectives: [{metrik: gpu_hours}]}", "study.objectives.metrik: there is no such key"),
        ("study: {objectives: [gpu_hours]}", "study.objectives[0] = gpu_hours: "),
        ("study: {pruners: [3]}", "study.pruners[0] = 3: "),
        ("study: {pruners: true}", "study.pruners = True: is no list"),
        ("study: {n_trials: many}", "study.n_trials = many: is no whole number"),
        ("study: {n_trials: 2, n_trials: 3}", "found duplicate key n_trials"),
        ('study: {notify: {command: "a\\0b"}}', r"study.notify.command = a\0b: holds a NUL character"),
        ("space: [a]", "space = ['a']: is no mapping, in "),
        ("space:", "space = null: is no mapping, in "),
        ("algorithm: grpo", "algorithm = grpo: is no mapping, in "),
        (
            "space: {rollout.n: '${nope}'}",
            "space.rollout.n = ${nope}: Interpolation key 'nope' not found|space.rollout.n",
        ),
        ("space: {rollout.n: '???'}", "space.rollout.n = (missing): needs a value"),
        ("space: {rollout.n: !!binary aGVsbG8=}", "space.rollout.n = b'hello': no override can carry a bytes"),
        ("space: {sweep: choice(quickstart)}", "sweep = a range: says how to search"),
        ("space: &a {rollout.n: *a}", "goes round in a circle"),
        ("defaults: [/sweep: s]", "goes round in a circle"),
    ],
)
def test_a_sweep_file_that_is_none_is_told_what_is_wrong_with_it(tmp_path, text: str, says: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"# @package _global_\n{text}\n")
    with pytest.raises(BadInput) as caught:
        Composer().compose([f"sweep={file}"])
    assert any(one in str(caught.value) for one in says.split("|"))


def test_a_byte_order_mark_is_named(tmp_path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("\ufeff# @package _global_\nstudy: {n_trials: 2}\n")
    with pytest.raises(BadInput, match="a byte order mark: stands before"):
        Composer().compose([f"sweep={file}"])


def test_another_sampler_or_pruner_takes_the_options_of_the_files_with_it(tmp_path) -> None:
    file = tmp_path / "s.yaml"
    study = "{sampler: {name: tpe, n_startup_trials: 9}, pruner: {name: percentile, percentile: 80, min_steps: 4}}"
    file.write_text(f"# @package _global_\nstudy: {study}\n")
    words = [f"sweep={file}", "study.sampler=random", "study.pruner=median"]
    study = Composer().compose(words).study
    assert (study.sampler.n_startup_trials, study.pruner.percentile, study.pruner.min_steps) == (None, 50.0, 4)
    given = Composer().compose([*words, "study.sampler.n_startup_trials=3"]).study
    assert given.sampler.n_startup_trials == 3, "what the command line says stays, and is told to mean nothing"


def test_rules_are_named_on_a_command_line_as_in_a_file(composer: Composer) -> None:
    assert [p.name for p in composer.compose(["study.pruners=[nan,median]"]).study.pruners] == ["nan", "median"]
    assert [p.name for p in composer.compose(["study.pruners=median"]).study.pruners] == ["median"]
    (one,) = composer.compose(["study.pruners=[{name:threshold,low:0.1}]"]).study.pruners
    assert (one.name, one.low) == ("threshold", 0.1)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("range(0.1,0.5,0.1)", (0.1, 0.2, 0.3, 0.4)),
        ("range(0.5,0.1,-0.1)", (0.5, 0.4, 0.3, 0.2)),
        ("range(0.1,0.35,0.1)", (0.1, 0.2, 0.3)),
        ("range(0,1,0.5)", (0.0, 0.5)),
    ],
)
def test_a_range_of_real_numbers_has_those_that_a_person_would_write(composer: Composer, text: str, values) -> None:
    """So that the configuration's own value, and a named point, are found in it."""
    assert space_of(composer, f"rollout.temperature: {text}")["rollout.temperature"].values == values
