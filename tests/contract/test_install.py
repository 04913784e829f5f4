"""The wheel and the sdist in clean environments: the base package by every way that people install a tool, and with the
trainer, as the README says it.

Of `make nightly`: each way makes an environment and brings some forty packages, with the trainer two hundred.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "constraints.txt"

pytestmark = [
    pytest.mark.contract,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("HYSWEEP_NIGHTLY"), reason="of `make nightly`: it makes environments"),
]


def run(*words: str | Path, cwd: Path, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=clean | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run("git", "clone", "-q", ROOT, out / "source", cwd=out)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, out / "source", cwd=out)
    return out


def pythons() -> list[str]:
    found = []
    for name in ("python3.11", "python3.12"):
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            found.append(name)
    return found


def tool(name: str, place: Path) -> Path:
    """uv or pipx, in an environment of its own."""
    run(sys.executable, "-m", "venv", place / name, cwd=place)
    run(place / name / "bin" / "python", "-m", "pip", "install", "-q", name, cwd=place)
    return place / name / "bin" / name


def pip_installed(env: Path, python: str, what: str | Path) -> Path:
    """The programs of a new environment in which pip has put it, at the versions that are locked."""
    run(python, "-m", "venv", env, cwd=env.parent)
    run(env / "bin" / "python", "-m", "pip", "install", "-q", "--constraint", LOCK, what, cwd=env.parent)
    return env / "bin"


@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("way", ["wheel", "sdist", "uv", "pipx"])
def test_it_installs_and_looks_at_a_sweep(dist: Path, tmp_path: Path, way: str, python: str) -> None:
    wheel, bin = next(dist.glob("*.whl")), tmp_path / "bin"
    if way in ("wheel", "sdist"):
        bin = pip_installed(tmp_path / "env", python, wheel if way == "wheel" else next(dist.glob("*.tar.gz")))
        lists = run(bin / "python", "-m", "pip", "list", "--format=freeze", cwd=tmp_path)
        assert not {"torch", "ray", "verl"} & {line.partition("==")[0] for line in lists.splitlines()}
    elif way == "uv":
        env = {"UV_TOOL_DIR": f"{tmp_path}/uv-tools", "UV_TOOL_BIN_DIR": f"{bin}"}
        run(tool("uv", tmp_path), "tool", "install", "-q", "--python", python, wheel, cwd=tmp_path, **env)
    else:
        env = {"PIPX_HOME": f"{tmp_path}/pipx-home", "PIPX_BIN_DIR": f"{bin}"}
        run(
            tool("pipx", tmp_path),
            "install",
            "-q",
            "--python",
            shutil.which(python) or python,
            wheel,
            cwd=tmp_path,
            **env,
        )
    hysweep = bin / "hysweep"
    assert "hysweep" in run(hysweep, "--version", cwd=tmp_path)
    run(hysweep, "check", "experiment=hy3_dapo_math", cwd=tmp_path)
    assert "trials/0000-" in run(hysweep, "plan", "sweep=quickstart", cwd=tmp_path)
    run(hysweep, "simulate", "sweep=quickstart", "--step-s", "20", cwd=tmp_path)


@pytest.mark.parametrize("what", ["*.whl", "*.tar.gz"])
def test_it_installs_with_the_trainer_and_runs_the_quickstart(dist: Path, tmp_path: Path, what: str) -> None:
    bin = pip_installed(tmp_path / "env", "python3.11", f"{next(dist.glob(what))}[cpu,report]")
    said = run(bin / "hysweep", "run", "-m", "sweep=quickstart", cwd=tmp_path, HYSWEEP_CACHE_DIR=f"{tmp_path}/cache")
    state = json.loads(run(bin / "hysweep", "status", "outputs/quickstart", "--json", cwd=tmp_path))
    assert [t["cause"] for t in state["trials"]][:4] == ["completed"] * 4, said
    assert (tmp_path / "outputs" / "quickstart" / "report.html").stat().st_size > 10_000
