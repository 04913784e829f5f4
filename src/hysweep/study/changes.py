"""Settings of a study that are given anew when it goes on. They stay in changes.json, so that whoever drives it next,
from cron or in a job of its own, knows of them.

Beside settings of the study these are fields of the cluster, under `cluster`: they say where trials run, never what
they learn, so the same trial may run somewhere else. What is submitted from then on does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hysweep.check import check_trial, errors
from hysweep.compose import Composer
from hysweep.schema import BadInput, Problem, Study, Trial
from hysweep.schema.override import literal
from hysweep.study.definition import Definition, study_faults

CLUSTER = "cluster"


def as_plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    """As changes.json holds them."""
    return {k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for k, v in changes.items()}


def later(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes after earlier ones, both plain: of a group, what is not named again stays."""
    both = dict(before)
    for name, value in changes.items():
        is_group = isinstance(value, dict) and isinstance(both.get(name), dict)
        both[name] = both[name] | value if is_group else value
    return both


def changed(study: Study, changes: Mapping[str, Any]) -> Study:
    """A study with other settings; of a group, those that are named. Raises BadInput for what no study has."""
    given = {name: literal(value) for name, value in changes.items() if name != CLUSTER}
    if not given:
        return study
    try:
        typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(study), OmegaConf.create(given)))
    except OmegaConfBaseException as e:
        key = e.full_key or ", ".join(given)
        why = f"changes.json says so, which cannot be: {(e.msg or str(e)).splitlines()[0]}"
        raise BadInput(Problem(f"study.{key}", given.get(key), why, "mend that file, or remove it")) from e
    return replace(study, **{name: getattr(typed, name) for name in given})


def refuse_unfit(definition: Definition, before: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Raises BadInput for changes, both plain, with which the study could not go on; what was wrong before is not
    told again."""
    known = study_faults(definition.study, definition.space)
    after = changed(definition.study, later(before, changes))
    if faults := [fault for fault in study_faults(after, definition.space) if fault not in known]:
        raise BadInput(*faults)


def moved(trial: Trial, changes: Mapping[str, Any]) -> Trial:
    """The same training where the study runs by now."""
    return replace(trial, cluster=replace(trial.cluster, **changes.get(CLUSTER, {})))


def is_another_job(submitted: Trial, here: Trial) -> bool:
    """Whether the job of a trial that was submitted is another one where the study runs by now."""
    return replace(submitted.cluster, max_submitted=None) != replace(here.cluster, max_submitted=None)


def is_of_cluster(key: str) -> bool:
    return key == CLUSTER or key.startswith(f"{CLUSTER}.")


def move(
    definition: Definition, composer: Composer, overrides: Sequence[str], earlier: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of the cluster that overrides of `cluster.*`, or another `cluster=`, give a study after the `earlier`
    changes. Raises BadInput for what the study varies, and for what its trials cannot run with."""
    varied = {key for key in definition.space.varied if is_of_cluster(key)}
    keys = [o.partition("=")[0].lstrip("+") for o in overrides]
    if faults := [
        Problem(key, o.partition("=")[2], "is searched by this study", "give a new study its own name: study.name=NAME")
        for key, o in zip(keys, overrides, strict=True)
        if key in varied or CLUSTER in varied or (key == CLUSTER and varied)
    ]:
        raise BadInput(*faults)
    is_whole = CLUSTER in keys
    replaced = [o for o in definition.fixed if _is_replaced(o.partition("=")[0].lstrip("+"), keys, is_whole)]
    before = composer.compose(definition.fixed).trial
    asked = composer.compose([*(o for o in definition.fixed if o not in replaced), *overrides])
    if ranges := [key for key in asked.space.varied if key in keys]:
        given = dict(zip(keys, (o.partition("=")[2] for o in overrides), strict=True))
        raise BadInput(*(Problem(k, given[k], "is a range, and this study does not search it", "give one value")
                         for k in ranges))  # fmt: skip
    fields = asdict(asked.trial.cluster)
    found = fields if is_whole else _named(keys, fields, earlier.get(CLUSTER, {}))
    known = errors(check_trial(moved(before, earlier)))
    after = moved(before, later(earlier, {CLUSTER: found}))
    if faults := [fault for fault in errors(check_trial(after)) if fault not in known]:
        raise BadInput(*faults)
    return found


def _named(keys: Sequence[str], fields: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the keys name; of one that holds several by name, as env, what is not named stays."""
    found: dict[str, Any] = {}
    for _, name, *inner in (key.split(".", 2) for key in keys):
        value = fields[name]
        if inner and isinstance(value, dict):
            value = found.get(name, earlier.get(name, value)) | {inner[0]: value[inner[0]]}
        found[name] = value
    return found


def _is_replaced(key: str, given: Sequence[str], is_whole: bool) -> bool:
    return key in given or (is_whole and is_of_cluster(key))
