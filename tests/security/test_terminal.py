"""Text of others cannot steer the terminal of whoever looks: whatever it would do is spelled out."""

from __future__ import annotations

import ast
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hysweep.schema.spelled import spelled_out
from hysweep.track import State, Status, StudyDirectory
from tests.cli.warm import warm

CLI = Path(__file__).parents[2] / "src" / "hysweep" / "cli"
STEERS = ("\x1b]0;own\x07", "\x1b[2J", "\x9b2J", "\rown", "\u202eown", "\x08", "\u2028", "\ud800")
ALL = "".join(STEERS[:-1])
SWEEP = f"""# @package _global_
study: {{name: mine, notify: {{command: {json.dumps(ALL)}}}}}
space:
  rollout.n: choice(2, 4)
  tracking.project: [{json.dumps(ALL)}, other]
cluster: {{launcher: slurm, comment: "\\u202eown", env: {{A: {json.dumps(ALL)}}}}}
"""


@pytest.fixture
def study(tmp_path: Path) -> StudyDirectory:
    directory = StudyDirectory(tmp_path / "outputs" / "s")
    directory.create(f"study: {{name: {json.dumps(ALL)}}}\nspace: {{{json.dumps(ALL)}: {json.dumps(ALL)}}}\n", {})
    trial = directory.add_trial(0, "abc123def456", "", {ALL: ALL})
    trial.save(State(Status.SUBMITTED, 1, "1", reason=ALL, nodes=ALL))
    trial.attempt(1).path.mkdir(parents=True)
    directory.log(ALL, why=ALL, trial=0)
    return directory


def is_steered_by(said: str) -> list[str]:
    return [c for c in said if c != "\n" and spelled_out(c) != c]


@pytest.mark.parametrize(
    "words",
    [
        ["status", "outputs/s"], ["logs", "outputs/s"], ["logs", "outputs/s", ALL], ["watch", "outputs/s"],
        ["resume", "outputs/s"], ["cancel", "outputs/s"], ["rebuild", "outputs/s"], ["status", ALL], ["explain", ALL],
        ["plan", "sweep=mine.yaml"], ["check", "sweep=mine.yaml"], ["show", "sweep=mine.yaml"],
        ["show", "--verl", "sweep=mine.yaml"], ["check", f"model.path={ALL}"], ["data", "check", ALL],
        ["check", "sweep=mine.yaml", "cluster.partition=\u202eown", "trainer.mini_batch_size=7"],
    ],
)  # fmt: skip
def test_no_verb_passes_on_what_steers(study: StudyDirectory, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SWEEP)
    said = warm(words, {})
    assert said.stdout + said.stderr and not is_steered_by(said.stdout + said.stderr)


def test_a_log_keeps_its_colours_in_a_terminal_and_nothing_else(study: StudyDirectory) -> None:
    log = study.trials()[0].attempt(1).driver_log
    log.write_bytes(b"\x1b[36m(worker)\x1b[0m 50%\r100% \xc3\xa9\n" + "".join(STEERS[:5]).encode() + b"\xff\n")
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-m", "hysweep", "logs", str(study.path)], stdout=theirs, stderr=-3, check=True)
    shown = os.read(ours, 65536).decode()
    assert shown.startswith(
        "\x1b[36m(worker)\x1b[0m 50%\r100% é\r\n\\x1b]0;own\\x07\\x1b[2J\\x9b2J\rown\\u202eown\ufffd"
    )
    piped = subprocess.run([sys.executable, "-m", "hysweep", "logs", str(study.path)], capture_output=True, check=True)
    assert log.read_bytes().partition(b"\n")[2] in piped.stdout, "a file has what was written"
    os.close(ours)
    os.close(theirs)


def test_what_a_verb_says_goes_through_one_door() -> None:
    """All but a script's own text, which a file is made of, and what click completes a shell with."""
    found: dict[str, int] = {}
    for path in sorted(CLI.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("echo", "secho"):
                found[path.name] = found.get(path.name, 0) + 1
    assert found == {"__init__.py": 3, "importing.py": 1, "say.py": 1}


@pytest.mark.parametrize("text", STEERS)
def test_it_is_spelled_and_stays_readable(text: str) -> None:
    said = spelled_out(f"é {text}\t\n")
    assert said.isascii() is False and said.startswith("é \\") and not is_steered_by(said.replace("\t", ""))
    assert spelled_out(json.dumps(text)) == json.dumps(text)
