"""A site as a person meets it: a script imported as a profile, and what `plan` says of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .warm import warm

HEADER = """#!/bin/bash
#SBATCH -N 2 -p gpu -A team
#SBATCH --gres=gpu:h100:8
#SBATCH --time=1-00:00:00
#SBATCH --output=%j.out
module load cuda
export HF_TOKEN=abc123
"""
SMALL = ("model=qwen2_5_0_5b", "parallelism=fsdp2", "memory=fsdp2_offload", "rollout=vllm", "rollout.tensor=1",
         "data=dapo_math", "reward=rule", "trainer=hy3")  # fmt: skip


def hysweep(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return warm(words, env)


def test_a_profile_of_a_script_is_planned_with() -> None:
    Path("run.slurm").write_text(HEADER)
    answer = hysweep("import", "run.slurm", "-o", "conf/cluster/mine.yaml")
    assert (answer.returncode, answer.stdout) == (0, ""), answer.stderr
    assert "8 settings; a cluster profile" in answer.stderr
    assert "abc123" not in answer.stderr + Path("conf/cluster/mine.yaml").read_text()

    shell = {"SBATCH_MEM": "4G", "SBATCH_TIMELIMIT": "5"}
    answer = hysweep("plan", "--config-dir", "conf", "cluster=mine", *SMALL, **shell)
    assert "#SBATCH --gres=gpu:h100:8" in answer.stdout
    assert "warning: SBATCH_MEM = 4G: is no variable of sbatch, and is ignored" in answer.stdout
    assert "warning: SBATCH_TIMELIMIT = 5: wins over cluster.timeout_min" in answer.stdout


def test_plan_counts_the_disk_that_checkpoints_take() -> None:
    words = ("cluster=slurm_h100", *SMALL, "trainer.total_steps=100", "study.n_trials=1")
    facts = json.loads(hysweep("plan", *words, "trainer.checkpoints_kept=3", "--json").stdout)
    assert 5 < facts["checkpoint_gib"] < 8
    assert facts["checkpoints_at_once"] == 3
    assert facts["disk_gib_free"] > 0
    hy3 = json.loads(hysweep("plan", "experiment=hy3_dapo_math", "--json").stdout)
    assert ("trainer.checkpoints_kept" in [w["key"] for w in hy3["warnings"]]) is (hy3["disk_gib_free"] < 3500)


def test_an_example_that_is_not_filled_in_says_so_in_a_line_each() -> None:
    answer = hysweep("check", "cluster=h100_pyxis", *SMALL)
    lines = [line for line in answer.stdout.splitlines() if line.startswith("problem")]
    assert answer.returncode == 1
    assert [line.split(" = ")[0] for line in lines] == ["problem: cluster.partition", "problem: cluster.account"]
