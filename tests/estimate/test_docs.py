"""The numbers of docs/estimate.md are those that the estimate gives, and those that were measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hysweep.estimate import estimate
from hysweep.estimate.memory import GROUPS, ROLLOUT

from .measured import RUNS

TEXT = (Path(__file__).parents[2] / "docs" / "estimate.md").read_text(encoding="utf-8")
STATIC, LOAD = (each * 2_011_419_648 / 2**30 for each in (18, 26))


def row(name: str) -> list[str]:
    [cells] = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", TEXT, re.MULTILINE)
    return [cell.strip() for cell in cells.split("|")]


def test_the_table_of_runs(composer) -> None:
    for i, run in enumerate(RUNS.values()):
        found = estimate(composer.compose(run.overrides).trial)
        update, running = found.of("train"), [p for p in found.phases if p != "resume"]
        static = sum(update.parts[p] for p in ("weights", "gradients", "optimizer"))
        outside = ("outside torch", "sleeping engine")
        reserved = max(
            u.total_gib - sum(u.parts[p] for p in outside) for u in found.uses if u.phase in ("train", "log_prob")
        )
        after_sync = max(found.of(phase).total_gib for phase in GROUPS[ROLLOUT])
        rows = {
            "static, 18 B a parameter": (static, STATIC),
            "peak of the update": (update.torch_gib, run.train),
            "verl's metric, step 2": (found.torch_peak_gib(running), run.allocated[1]),
            "reserved by torch": (reserved, run.reserved),
            "whole GPU after weight sync": (after_sync, run.whole_gpu),
            "loading a checkpoint": (found.of("resume").torch_gib, LOAD),
            "host memory": (found.host_gib_per_node, run.host),
        }
        for name, (estimated, measured) in rows.items():
            assert row(name)[i] == f"{estimated:.3f} / {measured:.3f}", name


@pytest.mark.parametrize(
    ("name", "more"), [("update, fused kernels", ()), ("update, without", ("memory.use_fused_kernels=false",))]
)
def test_the_table_of_hy3(composer, name: str, more: tuple[str, ...]) -> None:
    found = estimate(composer.compose(("experiment=hy3_dapo_math", *more)).trial)
    *stages, told = row(name)
    assert stages == [f"{found.of('train', stage).total_gib:.1f}" for stage in ("first", "middle", "last")]
    margin = found.verdicts[0].margin_gib
    assert told == (f"fits, {margin:.1f} to spare" if margin > 0 else f"does not fit, {-margin:.1f} too much")


def test_what_is_told_of_the_engine(composer) -> None:
    at_16 = estimate(composer.compose(["experiment=hy3_dapo_math"]).trial)
    assert at_16.cache is not None and f"{at_16.cache.tokens:,} tokens a replica" in TEXT
    at_8 = estimate(composer.compose(["experiment=hy3_dapo_math", "rollout.tensor=8"]).trial).of("rollout").parts
    taken = at_8["engine weights"] + at_8["engine working set"]
    assert f"one step take {taken:.1f} GiB" in TEXT and f"more than the {0.65 * 95.6:.1f} that" in TEXT
    whole = estimate(composer.compose(["experiment=hy3_dapo_math", "memory.use_fused_kernels=false"]).trial)
    assert f"allocates {whole.of('train', 'last').torch_gib:.1f} GiB at once" in " ".join(TEXT.split())
