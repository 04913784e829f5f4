"""What the documents say is true of main today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def bare(requirement: str) -> str:
    return re.split(r"[<>=\[]", requirement)[0]


def commands(page: Path) -> list[str]:
    """The lines of a page's bash blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip() and not line.startswith("#")]


# The README's is the longest; each of these runs from an empty directory.
TUTORIALS = [ROOT / "README.md", ROOT / "docs" / "first-sweep.md", ROOT / "docs" / "layouts.md"]


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda p: p.name)
def test_a_tutorial_runs(page: Path, tmp_path: Path) -> None:
    """Every line in order, in one directory. What trains is planned instead: the smoke test trains for real, and what
    a cluster does is run in tests/slurm."""
    tutorial = [c for c in commands(page) if not c.startswith(("make", "pip"))]
    assert len(tutorial) > 3
    for line in tutorial:
        command, _, remark = line.partition("   # ")
        if "needs root" in remark:
            continue
        if "trains" in remark:
            command = command.replace("hysweep run", "hysweep plan")
        command = command.replace("hysweep ", f"{sys.executable} -m hysweep ")
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
        wanted = 1 if "fails" in remark else 0
        assert done.returncode == wanted, (line, done.stdout, done.stderr)


@pytest.mark.parametrize("page", ["data.md", "rewards.md", "own_algorithm.md"])
def test_the_commands_of_a_how_to_run(page: str, tmp_path: Path) -> None:
    """Every line in order, in one directory with the repository's docs. What trains is planned instead."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    script = "\n".join(commands(ROOT / "docs" / page)).replace("   # trains", "")
    script = script.replace("hysweep run", "hysweep plan").replace("hysweep ", f"{sys.executable} -m hysweep ")
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_the_sweep_in_the_readme_is_the_shipped_one() -> None:
    text = (ROOT / "README.md").read_text()
    for name, shown in re.findall(r"<!-- include: (\S+) -->\n```yaml\n(.*?)```", text, re.DOTALL):
        lines = (ROOT / name).read_text().splitlines()
        assert shown.splitlines() == [x for x in lines if x.startswith("# @") or not x.lstrip().startswith("# ")]
    assert "<!-- include: sweeps/quickstart.yaml -->\n```yaml" in text


def test_the_reference_is_made_of_the_schema() -> None:
    from hysweep.schema.reference import reference

    assert (ROOT / "docs" / "reference.md").read_text() == reference()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_every_dependency_has_its_reason() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] + [d for extra in project["optional-dependencies"].values() for d in extra]
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    missing = [d for d in declared if not re.search(rf"\b{re.escape(bare(d))}\b", reasons)]
    assert not missing


def test_the_lock_covers_what_is_declared() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    locked_extras = ("cpu", "data", "dev", "postgres", "report", "reward", "samplers")
    declared = project["dependencies"] + [d for name in locked_extras for d in extras[name]]
    locked = {
        re.split("==", line)[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    missing = [d for d in declared if bare(d).lower() not in locked]
    assert not missing


def test_the_verbs_are_those_of_the_command_line() -> None:
    from hysweep.cli.reference import reference

    assert (ROOT / "docs" / "verbs.md").read_text() == reference()


def test_every_cause_has_its_page_and_the_keys_in_it_are_there() -> None:
    from hysweep.report.explaining import EXPLAINED, explanation

    pages = {p.stem for p in (ROOT / "docs" / "causes").glob("*.md")}
    assert pages == {*EXPLAINED, "index"}
    fields = set(re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE))
    groups = {field.partition(".")[0] for field in fields if "." in field}
    for cause in EXPLAINED:
        text = explanation(cause)
        assert text.startswith(f"# {cause}: ") and "**Do**" in text, cause
        keys = {key.partition("=")[0] for key in re.findall(r"`([a-z_]+\.[\w.]+(?:=[^`]*)?)`", text)}
        assert {key for key in keys if key.partition(".")[0] in groups} <= fields, cause


def test_causes_in_the_docs_are_those_of_the_table() -> None:
    from hysweep.track import Cause

    text = (ROOT / "docs" / "directory.md").read_text()
    table = text[text.index("| cause |") : text.index("## Exit codes")]
    assert {c for c in Cause if re.search(rf"\b{c}\b", table)} == set(Cause)


def test_every_option_of_what_is_trained_is_in_the_docs() -> None:
    from hysweep.compose import Composer

    text = (ROOT / "docs" / "configuration.md").read_text()
    groups = Composer().words.groups
    named = [name for group in ("algorithm", "model", "parallelism", "memory") for name in groups[group]]
    assert [name for name in named if not re.search(rf"\b{name}\b", text)] == []


def test_the_ladder_in_the_docs_is_the_ladder() -> None:
    from hysweep.layouts import LADDER

    text = (ROOT / "docs" / "configuration.md").read_text()
    table = text[text.index("| rung |") : text.index("None of them changes")]
    rows = re.findall(r"^\| ([a-z_, ]+) \|", table, re.MULTILINE)
    found = [name.strip() for row in rows for name in row.split(",")]
    assert found == ["rung", *(rung.name for rung in LADDER)]


def test_the_figures_of_the_benchmarks_are_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from page import COMMANDS, FIGURE, PAGE, filled

    text = PAGE.read_text()
    assert {match[1] for match in FIGURE.finditer(text)} == set(COMMANDS)
    assert filled(text) == text, "run benchmarks/page.py"


def test_make_env_says_each_of_its_steps(tmp_path: Path) -> None:
    """With a Python that does nothing: what a person sees meanwhile, one line a step."""
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\n[ "$2" = venv ] && mkdir -p "$4/bin" && cp "$0" "$4/bin/python"\nexit 0\n')
    stub.chmod(0o755)
    words = [
        "make",
        "-C",
        str(ROOT),
        "env",
        f"PYTHON={stub}",
        f"VENV={tmp_path}/env",
        "TORCH_INDEX=https://example.org",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    told = [line for line in done.stdout.splitlines() if not line.startswith(("make: ", "make[", "making "))]
    steps = ["an environment", "torch", "packages of constraints.txt", "hysweep itself", "wheels of verl", "all fits"]
    assert len(told) == len(steps), "and no command beside"
    assert all(step in line for step, line in zip(steps, told, strict=True))
    assert (tmp_path / "env" / ".gitignore").read_text() == "*\n", "nobody commits it, wherever it lies"
