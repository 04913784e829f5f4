"""What is secret is warned of before it lies in a study, under whatever name it is given; no plan shows it."""

from __future__ import annotations

import json

import pytest

from tests.cli.warm import warm

SECRET = "hf_planted/secret+1"
ENV = {"HF_TOKEN": SECRET, "HYSWEEP_TEST_KEY": "short"}


def problems_in(plan: str) -> list[dict[str, str]]:
    told = json.loads(plan)
    return [*told["warnings"], *(problem for point in told["problems"] for problem in point["problems"])]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("cluster.env={A: '${oc.env:HF_TOKEN}'}", "cluster.env.A"),
        (f"cluster.setup=['curl -H {SECRET} x']", "cluster.setup.0"),
        ("tracking.project='x-${oc.env:HF_TOKEN}'", "tracking.project"),
        ("model.path='https://me:pass%40@host/x'", "model.path"),
        ("study.notify.command='curl -u me:${oc.env:HF_TOKEN} x'", "study.notify.command"),
        ("study.notify.command='curl https://me:pw@host/x'", "study.notify.command"),
    ],
)
def test_a_secret_in_a_setting_is_warned_of_and_not_repeated(override: str, key: str) -> None:
    said = warm(["plan", "rollout.n=2,4", override, "--json"], ENV)
    found = [p for p in problems_in(said.stdout) if p["key"] == key]
    assert [(p["value"], p["severity"]) for p in found[:1]] == [("…", "warning")], said.stdout[-2000:] + said.stderr
    assert SECRET not in json.dumps(found) and "inherit it" in found[0]["cure"]


def test_what_is_no_secret_is_not_warned_of() -> None:
    said = warm(["plan", "rollout.n=2,4", "tracking.project=short", "model.path=https://host/me@1", "--json"], ENV)
    assert not [p for p in problems_in(said.stdout) if p["value"] == "…"]


@pytest.mark.parametrize("cluster", [[], ["cluster=slurm", "cluster.partition=main", "cluster.account=a"]])
def test_a_plan_shows_no_value_that_reads_as_a_secret(cluster: list[str]) -> None:
    said = warm(["plan", "rollout.n=2,4", f"cluster.env={{WANDB_API_KEY: '{SECRET}', B: b c}}", *cluster], {})
    assert "WANDB_API_KEY=…" in said.stdout and "B='b c'" in said.stdout, said.stdout + said.stderr
    assert SECRET not in said.stdout + said.stderr
