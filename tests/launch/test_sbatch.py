"""The batch script, compared with what was looked at: tests/launch/golden, one file a shipped cluster and a few more.

``WRITE_GOLDEN=1 python -m pytest tests/launch/test_sbatch.py`` writes them anew. pyxis and apptainer cannot be run
where these tests run: what they are told is looked at, by stand-ins that only write down their arguments.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hysweep.compile import Job
from hysweep.compose import SHIPPED
from hysweep.launch.sbatch import script
from hysweep.launch.unsaid import read_unsaid
from hysweep.schema import Trial
from hysweep.schema.groups import Cluster
from hysweep.scripts.header import words_of
from hysweep.track import AttemptDirectory, Cause

GOLDEN = Path(__file__).parent / "golden"
ATTEMPT = "/shared/outputs/study/trials/0003-0123456789ab/attempts/1"
CODE = "/shared/outputs/study/code/0123456789ab"
FILLED = ("cluster.partition=gpu", "cluster.account=team")

# Each shipped option of SLURM's, and what a site may say beyond.
SITES = {
    **{p.stem: [f"cluster={p.stem}", *(FILLED if "<partition>" in p.read_text() else ())]
       for p in sorted((SHIPPED / "cluster").glob("*.yaml"))
       if yaml.safe_load(p.read_text().replace("${", "$"))["launcher"] == "slurm"},
    "typed_gres": [
        "cluster=slurm_h100", "cluster.gres='gpu:nvidia_h100_80gb_hbm3:4'", "cluster.gpus_per_node=4",
        "cluster.memory_gib=0", "cluster.cpus_per_node=48", "cluster.nodes=2",
    ],
    "everything": [
        "cluster=slurm_h100", "cluster.partition='gpu,long'", "cluster.account=team", "cluster.qos=high",
        "cluster.constraint='h100&ib'", "cluster.reservation=week_12", "cluster.nodelist='gpu[01-02]'",
        "cluster.exclude='gpu[07,09-11]'", "cluster.use_exclusive=true", "cluster.memory_gib=1.5",
        "cluster.signal_delay_s=600", "cluster.use_requeue=false", "cluster.dependency='afterok:1234'",
        "cluster.comment='Hy3, \\'first\\' run: $5 & \"more\"'", "cluster.mail_type='END,FAIL'",
        "cluster.mail_user=me@example.org", "cluster.nice=100", "cluster.srun_args=['--label','--cpu-bind=none']",
        "+cluster.additional_parameters.licenses='a:1,b:2'", "+cluster.additional_parameters.contiguous=true",
        "+cluster.additional_parameters.hold=false", "+cluster.additional_parameters.tmp=null",
        "+cluster.additional_parameters.thread_spec=0", "cluster.modules=['cuda/12.9','my module']",
        "cluster.setup=['ulimit -l unlimited','source /e/bin/activate']", "cluster.python='conda run -n verl python'",
    ],
    "pyxis": [
        "cluster=slurm_h100", "cluster.container=pyxis", "cluster.image='/images/with space.sqsh'",
        "cluster.container_mounts=[/data,'/scratch:/tmp']", "cluster.srun_args=['--container-writable']",
    ],
    "apptainer": [
        "cluster=slurm_h100", "cluster.container=apptainer", "cluster.image=/images/verl.sif",
        "cluster.container_mounts=[/data,'/scratch:/tmp:ro']",
    ],
}  # fmt: skip


@pytest.fixture
def text_of(trial_of: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setattr(sys, "executable", "/shared/envs/verl/bin/python")

    def text(*overrides: str, **env: str) -> str:
        return script(job_of(trial_of(*overrides), **env), AttemptDirectory(Path(ATTEMPT)), "study-0003-a1-01234567")

    return text


def job_of(trial: Trial, **env: str) -> Job:
    c = trial.cluster
    return Job("verl.trainer.main_ppo", (), env=env, launcher="slurm", nodes=c.nodes, gpus_per_node=c.gpus_per_node,
               ray_cpus=c.cpus_per_node, timeout_min=c.timeout_min, site=c)  # fmt: skip


def options(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


@pytest.mark.parametrize("name", SITES)
def test_the_script_is_the_one_that_was_looked_at(text_of, name: str) -> None:
    text = text_of(*SITES[name], PYTHONPATH=CODE)
    file = GOLDEN / f"{name}.sbatch"
    if os.environ.get("WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def test_no_golden_file_is_of_nothing() -> None:
    assert {p.stem for p in GOLDEN.iterdir()} == set(SITES)


@pytest.mark.parametrize("name", SITES)
def test_bash_can_read_it(text_of, name: str) -> None:
    subprocess.run(["bash", "-n"], input=text_of(*SITES[name]), text=True, check=True)


def test_each_field_that_sbatch_is_told_changes_the_text(text_of) -> None:
    """None of them is there in vain."""
    values: dict[str, Any] = {
        "partition": "x", "account": "x", "qos": "x", "constraint": "x", "reservation": "x", "nodelist": "x",
        "exclude": "x", "use_exclusive": "true", "gres": "'gpu:x:8'", "memory_gib": 7, "signal_delay_s": 7,
        "use_requeue": "false", "dependency": "'afterok:7'", "comment": "x", "mail_type": "x", "mail_user": "x",
        "nice": 7, "srun_args": "['--x']", "modules": "[x]", "setup": "[x]", "python": "x", "nodes": 7,
        "gpus_per_node": 7, "cpus_per_node": 7, "timeout_min": 77, "container": "pyxis", "image": "x",
        "container_mounts": "[/x]", "visible_devices": "HIP_VISIBLE_DEVICES",
    }  # fmt: skip
    for field, value in values.items():
        base = ["cluster=slurm_h100"]
        if field in ("image", "container_mounts", "visible_devices"):
            base += ["cluster.container=apptainer", "cluster.image=/i.sif"]
        assert text_of(*base) != text_of(*base, f"cluster.{field}={value}"), field
    # what does not reach it: of the trainer, of Ray, of the launcher itself
    beside = {"name", "launcher", "gpu", "gpu_memory_gib", "object_store_gib", "ray_boot_timeout_s", "silent_after_s",
              "network_interface", "local_dir", "max_submitted", "code", "env", "additional_parameters"}  # fmt: skip
    knobs = {f.name: f.metadata["knob"] for f in fields(Cluster)}
    ours = {n for n, k in knobs.items() if "slurm" in (k.when or {}).get("cluster.launcher", ("slurm",))}
    assert ours == set(values) | beside


def test_more_options_are_flags_texts_or_nothing(text_of) -> None:
    found = options(text_of(*SITES["everything"]))
    assert "--contiguous" in found and "--thread-spec=0" in found and "--licenses=a:1,b:2" in found
    assert not [o for o in found if "hold" in o or "tmp" in o or "wckey" in o or o.endswith("=")]
    comment = next(o for o in found if o.startswith("--comment"))
    assert shlex.split(comment) == ["--comment=Hy3, 'first' run: $5 & \"more\""]


def test_sbatch_reads_a_value_as_it_was_given(trial_of) -> None:
    """By its rules (tried with 22.05): a backslash escapes also within quotes, which `words_of` follows."""
    for value in ("a b", 'it\'s "x"', "a\\b c", "ends\\", "$HOME `id`", "# no comment", "100%", "-N2"):
        job = job_of(trial_of("cluster=slurm_h100"))
        job = replace(job, site=replace(job.site, comment=value, additional_parameters={"wckey": value}))
        found = [words_of(o) for o in options(script(job, AttemptDirectory(Path(ATTEMPT)), "x"))]
        assert [f"--comment={value}"] in found and [f"--wckey={value}"] in found


def test_memory_is_said_in_whole_units(text_of) -> None:
    for given, said in ((0, "0"), (0.0001, "1M"), (0.5, "512M"), (1.9999, "2048M"), (1500, "1536000M")):
        assert f"--mem={said}" in options(text_of("cluster=slurm_h100", f"cluster.memory_gib={given}"))


def test_a_percent_sign_in_a_path_is_none_of_sbatchs(trial_of) -> None:
    job, attempt = job_of(trial_of("cluster=slurm_h100")), AttemptDirectory(Path("/s/50%j off/trials/0-x/attempts/1"))
    assert "--output='/s/50%%j off/trials/0-x/attempts/1/slurm-%j.log'" in options(script(job, attempt, "x"))


def test_a_job_without_gpus_asks_for_none(text_of) -> None:
    assert not [o for o in options(text_of("cluster=testcluster")) if "gpu" in o or "gres" in o]


def test_what_an_image_is_called(text_of) -> None:
    def image(container: str, name: str) -> str:
        words = shlex.split(text_of("cluster=slurm_h100", f"cluster.container={container}", f"cluster.image='{name}'"))
        if container == "apptainer":
            return words[words.index("python3") - 1]
        return next(w for w in words if w.startswith("--container-image=")).partition("=")[2]

    for name in ("/i/verl.sif", "verl.sif", "./verl", "docker://a/b:c", "oras://a/b"):
        assert image("apptainer", name) == name
    assert image("apptainer", "verlai/verl:x") == "docker://verlai/verl:x"
    assert image("pyxis", "verlai/verl:x") == "verlai/verl:x"


def test_the_home_directory_in_an_image_and_its_directories(text_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for container, wanted in (
        ("pyxis", ["--container-image=/home/me/i.sqsh", "/home/me/d:/d"]),
        ("apptainer", [" /home/me/i.sqsh ", "--bind=/home/me/d:/d"]),
    ):
        text = text_of("cluster=slurm_h100", f"cluster.container={container}", "cluster.image='~/i.sqsh'",
                       "cluster.container_mounts=['~/d:/d']")  # fmt: skip
        assert all(w in text for w in wanted), text


def test_the_set_up_runs_after_the_modules_and_in_its_order(text_of) -> None:
    lines = ["module purge", "module use /apps", "module load cuda", "conda activate verl"]
    text = text_of("cluster=slurm_h100", "cluster.modules=[first]", f"cluster.setup={lines}")
    assert "\n".join(["module load first", *lines]) in text


def quoted(lines: list[str]) -> str:
    """A list of texts in Hydra's grammar."""
    return "[" + ",".join("'" + line.replace("'", "\\'") + "'" for line in lines) + "]"


def ended(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A script as it ends where every trial fails with 7."""
    (tmp_path / "srun").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "job.sbatch").write_text(text)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(
        ["bash", tmp_path / "job.sbatch"], env=environment, text=True, check=False, timeout=60, **both
    )


@pytest.mark.parametrize(
    ("setup", "code", "last"),
    [
        (["echo hello", "set -e", "false"], 1, ": hello"),
        (["source /dev/null; true && { echo no licence >&2; exit 3; }"], 3, ": no licence"),
        (["set -u", "echo $NOT_THERE_AT_ALL"], 1, "NOT_THERE_AT_ALL: unbound variable"),
        (["if true; then exit 0; fi"], 0, ""),
    ],
)
def test_set_up_lines_that_end_the_script_say_so(
    text_of, tmp_path: Path, setup: list[str], code: int, last: str
) -> None:
    done = ended(text_of("cluster=slurm_h100", f"cluster.setup={quoted(setup)}"), tmp_path)
    assert done.returncode == code
    end = read_unsaid(done.stdout.splitlines(), 4)
    assert end and (end.cause, end.exit_code) == (Cause.CONFIG_ERROR, code)
    assert f"ended the script before the trial began, with exit code {code}{last and ': '}" in end.reason
    assert last in end.reason and "cluster.setup" in end.reason


@pytest.mark.parametrize("setup", [["true"], ["set -e"], ["trap 'echo mine' EXIT"]])
def test_set_up_lines_that_go_through_say_nothing(text_of, tmp_path: Path, setup: list[str]) -> None:
    """Also where the trial fails, and a trap of theirs stays."""
    done = ended(text_of("cluster=slurm_h100", f"cluster.setup={quoted(setup)}"), tmp_path)
    assert done.returncode == 7 and "set-up" not in done.stdout
    assert ("mine" in done.stdout) == ("mine" in setup[0])


# --- stand-ins for programs that are not here

STAND_IN = """#!/bin/bash
printf '%s\\0' "$0" "$PYTHONPATH" "$@" >> "$SEEN"
while [[ "$1" == -* ]]; do shift; done   # of srun: what follows its options is the command
[[ "$0" != */srun ]] || exec "$@"
"""


def run(text: str, tmp_path: Path, **env: str) -> dict[str, list[str]]:
    """What the programs of a script are told, by program: (PYTHONPATH, argument, ...)."""
    there = tmp_path / "bin"
    there.mkdir()
    for name in ("srun", "apptainer", "python3"):
        (there / name).write_text(STAND_IN)
        (there / name).chmod(0o755)
    (there / "srun").write_text(STAND_IN.replace("shift; done", "[[ $1 != --nodes ]] || shift; shift; done"))
    seen = tmp_path / "seen"
    environment = {"PATH": f"{there}:{os.environ['PATH']}", "SEEN": str(seen), **env}
    subprocess.run(["bash", "-c", text], env=environment, check=True, timeout=60)
    found: dict[str, list[str]] = {}
    for word in seen.read_text().split("\0")[:-1]:
        if word.startswith(str(there)):
            last = found.setdefault(Path(word).name, [])
        else:
            last.append(word)
    return found


def test_a_stand_in_for_apptainer_is_told_image_directories_and_command(text_of, tmp_path: Path) -> None:
    text = text_of(*SITES["apptainer"], PYTHONPATH=CODE)
    told = run(text, tmp_path, PYTHONPATH="/mine")
    assert told["apptainer"] == [
        f"{CODE}:/mine", "exec", "--nv", "--bind=/shared/outputs/study", "--bind=/data", "--bind=/scratch:/tmp:ro",
        "/images/verl.sif", "python3", "-u", "-m", "hysweep.launch.node", "--slurm", ATTEMPT,
    ]  # fmt: skip
    assert told["srun"][1:6] == ["--nodes", "4", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--export=ALL"]


def test_a_stand_in_for_pyxis_is_told_image_and_directories_by_srun(text_of, tmp_path: Path) -> None:
    told = run(text_of(*SITES["pyxis"]), tmp_path)
    assert told["srun"][6:9] == [
        "--container-image=/images/with space.sqsh",
        "--container-mounts=/shared/outputs/study:/shared/outputs/study,/data:/data,/scratch:/tmp",
        "--container-writable",
    ]
    assert told["python3"] == ["", "-u", "-m", "hysweep.launch.node", "--slurm", ATTEMPT]


def test_an_amd_node_is_told_of_its_own_devices(text_of) -> None:
    assert " --rocm " in text_of(*SITES["apptainer"], "cluster.visible_devices=HIP_VISIBLE_DEVICES")


def test_a_secret_is_in_no_script(text_of) -> None:
    assert "abc123" not in text_of("cluster=slurm_h100", "+cluster.env.WANDB_API_KEY=abc123", WANDB_API_KEY="abc123")


def test_a_job_written_by_another_version_is_read(trial_of) -> None:
    """The script is written from job.json: what it holds is all that it needs."""
    job = job_of(trial_of(*SITES["everything"]))
    again = Job.from_dict(json.loads(json.dumps(job.as_dict())))
    attempt = AttemptDirectory(Path(ATTEMPT))
    assert script(again, attempt, "x") == script(replace(job), attempt, "x")
