"""`hysweep import` as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hysweep.compose import Composer

from .warm import warm

SCRIPT = """
LR=${LR:-1e-6}
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B data.train_files=/d/a.parquet \\
    data.val_files=/d/b.parquet actor_rollout_ref.actor.optim.lr=$LR trainer.n_gpus_per_node=8 $EXTRA
"""


def hysweep(*words: str) -> subprocess.CompletedProcess[str]:
    return warm(words, {})


def test_an_experiment_is_written_once_and_composes() -> None:
    Path("run.sh").write_text(SCRIPT)
    words = ("import", "run.sh", "-o", "conf/experiment/mine.yaml", "--set", "LR=2e-6", "--set", "EXTRA=")
    answer = hysweep(*words)
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "comes to the same configuration" in answer.stderr
    assert Composer([Path("conf")]).compose(["experiment=mine"]).trial.trainer.learning_rate == 2e-6

    again = hysweep(*words)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    as_json = hysweep(*words, "--force", "--json")
    assert json.loads(as_json.stdout)["is_proven"] is True
    assert [p.name for p in Path("conf/experiment").iterdir()] == ["mine.yaml"]


def test_faults_are_listed_and_the_rest_goes_to_stdout() -> None:
    Path("run.sh").write_text(SCRIPT.replace("$EXTRA", "actor_rollout_ref.actor.optim.lrr=1"))
    answer = hysweep("import", "run.sh")
    assert answer.returncode == 1
    assert answer.stdout.startswith("# @package _global_")
    assert "1 of 6 overrides left out" in answer.stderr


def test_a_variable_of_the_environment_is_shown_by_its_name_in_lists_too() -> None:
    Path("run.sh").write_text(SCRIPT.replace("/d/b.parquet", "$HOME/b.parquet").replace("$EXTRA", ""))
    answer = hysweep("import", "run.sh", "-o", "mine.yaml", "--set", "LR=2e-6")
    assert "['$HOME/b.parquet']" in answer.stderr
    as_json = hysweep("import", "run.sh", "-o", "mine.yaml", "--set", "LR=2e-6", "--force", "--json")
    [files] = [d for d in json.loads(as_json.stdout)["differences"] if d["key"] == "data.val_files"]
    assert (files["before"], files["after"]) == ("$HOME/b.parquet", ["$HOME/b.parquet"])
    assert "x01" not in answer.stderr
    assert "u0001" not in as_json.stdout


def test_what_is_meant_is_told_apart_from_what_is_a_fault() -> None:
    Path("run.sh").write_text(SCRIPT.replace("$EXTRA", ""))
    good = hysweep("import", "run.sh", "--set", "LR=2e-6")
    meant = good.stderr.splitlines()[-1].partition("but for ")[2]
    assert meant.endswith(" keys that hysweep sets on purpose")
    assert f"otherwise than in the script, {meant.split()[0]} on purpose:" in good.stderr

    Path("run.sh").write_text(SCRIPT.replace("$EXTRA", "model_engine=veomni"))
    bad = hysweep("import", "run.sh", "--set", "LR=2e-6")
    assert bad.returncode == 1
    assert "1 different, " in bad.stderr
    assert "1 keys different, and " in bad.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        (None, ["run.sh"], "no such file"),
        (b"echo hi", ["run.sh"], "starts no trainer"),
        (b"if true; then\n", ["run.sh"], "line"),
        (b"\x00\xff", ["run.sh"], "UTF-8"),
        (b"x", ["run.sh", "--set", "1=2"], "sets no variable"),
        (b"x", ["run.sh", "--json"], "add -o"),
        (SCRIPT.encode(), ["run.sh", "--verl", "0.0"], "no version"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(content: bytes | None, words: list[str], says: str) -> None:
    if content is not None:
        Path("run.sh").write_bytes(content)
    answer = hysweep("import", *words)
    assert answer.returncode == 2
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def test_a_pasted_command_line_is_read_from_stdin_and_not_run() -> None:
    command = (
        "$ touch ran; echo $(touch ran); python3 -m verl.trainer.main_ppo trainer.nnodes=1 "
        "actor_rollout_ref.rollout.name=vllm trainer.experiment_name=`touch ran`"
    )
    answer = subprocess.run(
        [sys.executable, "-m", "hysweep", "import", "-"], input=command, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    assert "defaults:" in answer.stdout
    assert not Path("ran").exists()


def test_other_verbs_do_not_load_the_parser() -> None:
    code = "import sys; import hysweep.cli; print('tree_sitter' in sys.modules, 'hysweep.scripts' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


def test_a_command_of_somebody_elses_is_checked() -> None:
    """Case 1: DAPO's reward settings under their old names do nothing."""
    Path("run.sh").write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 \\\n"
        "  actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.tensor_model_parallel_size=3 \\\n"
        "  trainer.nnodes=1 trainer.n_gpus_per_node=8 reward_model.reward_manager=dapo \\\n"
        "  +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True trainer.num_epochs=2\n"
    )
    answer = hysweep("check", "--verl-command", "run.sh", "--json")
    assert answer.returncode == 1, answer
    problems = {p["key"]: p for p in json.loads(answer.stdout)["problems"]}
    assert problems["reward_model.reward_manager"]["cure"] == "use reward.reward_manager.name"
    assert problems["reward_model.reward_manager"]["stage"] == "never"
    assert problems["trainer.num_epochs"]["cure"] == "use trainer.total_epochs"
    assert "try 1, 2, 4 or 8" in problems["actor_rollout_ref.rollout.tensor_model_parallel_size"]["cure"]
    refused = hysweep("check", "--verl-command", "run.sh", "rollout.n=4")
    assert (refused.returncode, "cannot be set beside" in refused.stderr) == (2, True)
    assert hysweep("check", "--verl-command", "nowhere.sh").returncode == 2

    said = hysweep("check", "--verl-command", "run.sh").stdout
    assert "not looked at: files, and memory" in said
    asking = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:8\n" + Path("run.sh").read_text()
    Path("asks.sh").write_text(asking)
    said = hysweep("check", "--verl-command", "asks.sh").stdout
    assert "taken as" not in said and "memory, which depends on the GPUs" in said


def test_what_the_gpus_are_is_asked_of_the_line_that_asks_for_them() -> None:
    """And a logger became a field, though the file's is added to it."""
    head = "#!/bin/bash\n#SBATCH --job-name=x\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:8\n"
    Path("run.sh").write_text(head + SCRIPT.removeprefix("#!/bin/bash\n").replace("$EXTRA", "trainer.logger='[wandb]'"))
    answer = hysweep("import", "run.sh", "-o", "mine.yaml", "--json")
    told = json.loads(answer.stdout)
    [note] = [n for n in told["notes"] if "which GPUs is not said" in n["what"]]
    assert (note["line"], "gpu:8" in note["text"]) == (4, True)
    [logger] = [row for row in told["overrides"] if row["override"].startswith("trainer.logger")]
    assert logger["became"] == "tracking.loggers"


def test_a_command_that_is_checked_takes_variables() -> None:
    Path("run.sh").write_text(SCRIPT.replace("$EXTRA", "actor_rollout_ref.rollout.n=$N"))
    unset = hysweep("check", "--verl-command", "run.sh")
    assert "takes a number, and the variable has no default: give it with --set" in unset.stdout
    given = hysweep("check", "--verl-command", "run.sh", "--set", "N=0")
    assert "rollout.n = 0: " in given.stdout + given.stderr
    assert "--set" not in given.stdout
    for words in (["--verl-command", "run.sh", "--set", "1=2"], ["--set", "N=1"]):
        refused = hysweep("check", *words)
        assert (refused.returncode, "--set" in refused.stderr) == (2, True), words
