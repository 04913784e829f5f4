"""From the #SBATCH lines of a script to a cluster profile. The headers are of the kinds that sites' manuals show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from hysweep.check import check_trial, errors
from hysweep.compose import Composer
from hysweep.schema import BadInput
from hysweep.scripts import Imported, import_script
from hysweep.scripts.header import gib, minutes, read_header, words_of
from hysweep.scripts.importer import ON_SLURM
from tests.fuzzing import damaged, examples, texts_of

TRAINS = "python3 -m verl.trainer.main_ppo data.train_files=/d/a.parquet data.val_files=/d/b.parquet"


def take(source: str, only_site: bool = False, **given: str) -> Imported:
    return import_script(source.encode(), "job.slurm", "site", "0.9.1", given, only_site)


def site(source: str, **given: str) -> dict[str, Any]:
    content = OmegaConf.to_container(OmegaConf.create(take(source, **given).text))
    assert isinstance(content, dict)
    assert content.pop("name") == "site" and content.pop("launcher") == "slurm"
    return {str(k): v for k, v in content.items()}


def remarks(imported: Imported) -> dict[str, str]:
    return {row.override: row.remark for row in imported.header}


H100 = {"gpu": "H100", "gpu_memory_gib": 79.1}
# (what the script begins with, what its profile says)
HEADERS = {
    "typed gres and all memory": (
        """#!/bin/bash
#SBATCH --job-name=grpo
#SBATCH --nodes=4
#SBATCH --gres=gpu:nvidia_h100_80gb_hbm3:4
#SBATCH --mem=0
#SBATCH --time=2-00:00:00
""",
        {"nodes": 4, "gpus_per_node": 4, "gres": "gpu:nvidia_h100_80gb_hbm3:4", "memory_gib": 0, "timeout_min": 2880,
         **H100},
    ),
    "short options, joined and apart": (
        """#!/bin/bash -l
#SBATCH -N 2 -p gpu,long -A team123
#SBATCH -t30
#SBATCH -c 16
#SBATCH -J name -o out.%j -e err.%j
#SBATCH -G 16
#SBATCH -qhigh
#SBATCH --const "a100&80gb"
""",
        {"nodes": 2, "partition": "gpu,long", "account": "team123", "timeout_min": 30, "cpus_per_node": 16,
         "gpus_per_node": 8, "qos": "high", "constraint": "a100&80gb", "gpu": "A100", "gpu_memory_gib": 79.1},
    ),
    "tasks for nodes": (
        "#!/bin/bash\n#SBATCH --ntasks=8\n#SBATCH --gpus-per-node=h100:8\n#SBATCH --time 12:30:00\n",
        {"nodes": 8, "gpus_per_node": 8, "gres": "gpu:h100:8", "timeout_min": 750, **H100},
    ),
    "a task for each GPU": (
        "#!/bin/bash\n#SBATCH --ntasks=32\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-task=1\n"
        "#SBATCH --cpus-per-task=12\n#SBATCH --partition=h200\n",
        {"nodes": 4, "gpus_per_node": 8, "cpus_per_node": 96, "partition": "h200", "gpu": "H200",
         "gpu_memory_gib": 139.8},
    ),
    "nodes that are named and left out": (
        "#!/bin/bash\n#SBATCH -w node[01-02]\n#SBATCH --exclude=node07,node[09-11]\n#SBATCH --gres=gpu:8\n",
        {"nodes": 2, "nodelist": "node[01-02]", "exclude": "node07,node[09-11]", "gpus_per_node": 8, **H100},
    ),
    "signals, queues and mail": (
        """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu
#SBATCH --exclusive
#SBATCH --signal=B:USR1@300
#SBATCH --no-requeue
#SBATCH --dependency=afterok:77:78
#SBATCH --mail-type=END,FAIL --mail-user=me@example.org
#SBATCH --nice
#SBATCH --reservation=hackathon
#SBATCH --comment='my "first" run'
""",
        {"nodes": 1, "gpus_per_node": 1, "use_exclusive": True, "signal_delay_s": 300, "use_requeue": False,
         "dependency": "afterok:77:78", "mail_type": "END,FAIL", "mail_user": "me@example.org", "nice": 100,
         "reservation": "hackathon", "comment": 'my "first" run', **H100},
    ),
    "what no field says": (
        """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH -L matlab:1
#SBATCH --contiguous
#SBATCH --tmp=100G
#SBATCH --switches=1@10:00
""",
        {"nodes": 2, "gpus_per_node": 8, "additional_parameters": {
            "licenses": "matlab:1", "contiguous": True, "tmp": "100G", "switches": "1@10:00"}, **H100},
    ),
    "comments, and options that come too late": (
        """#!/bin/bash

# a remark
##SBATCH --nodes=9
# SBATCH --nodes=8
#SBATCH --nodes=3   # three of them
#SBATCH --gpus-per-node=4

set -e
#SBATCH --nodes=7
""",
        {"nodes": 3, "gpus_per_node": 4, **H100},
    ),
    "said twice": (
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\n#SBATCH -N 6\n",
        {"nodes": 6, "gpus_per_node": 4, **H100},
    ),
    "a range of nodes, other resources": (
        "#!/bin/bash\n#SBATCH --nodes=2-4\n#SBATCH --gres=gpu:h20:8,nvme:500\n#SBATCH --mem=1500G\n",
        {"nodes": 2, "gpus_per_node": 8, "gres": "gpu:h20:8,nvme:500", "memory_gib": 1500, "gpu": "H20",
         "gpu_memory_gib": 95.6},
    ),
    "no GPU": (
        "#!/bin/bash\n#SBATCH -n1\n#SBATCH -c 4\n#SBATCH --mem=16000\n#SBATCH --time=UNLIMITED\n",
        {"nodes": 1, "cpus_per_node": 4, "memory_gib": 15.625, "timeout_min": 10080},
    ),
    "pyxis by its options": (
        """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8
#SBATCH --container-image=/images/verl.sqsh
#SBATCH --container-mounts=/data:/data,/models
#SBATCH --container-writable
""",
        {"nodes": 2, "gpus_per_node": 8, "container": "pyxis", "image": "/images/verl.sqsh",
         "container_mounts": ["/data:/data", "/models"], "srun_args": ["--container-writable"], **H100},
    ),
    "pyxis by srun": (
        "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus=h100:8\n"
        "IMAGE=verlai/verl:x\nsrun --container-image=$IMAGE --container-mounts=/d:/d,/e python train.py\n",
        {"nodes": 1, "gpus_per_node": 8, "gres": "gpu:h100:8", "container": "pyxis", "image": "verlai/verl:x",
         "container_mounts": ["/d:/d", "/e"], **H100},
    ),
    "apptainer": (
        "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n"
        "srun -n1 singularity exec --nv -B /d:/d,/e --bind=/f --env A=1 /images/verl.sif python train.py\n",
        {"nodes": 1, "gpus_per_node": 4, "container": "apptainer", "image": "/images/verl.sif",
         "container_mounts": ["/d:/d", "/e", "/f"], "env": {"A": "1"}, **H100},
    ),
    "modules and exports": (
        """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --export=ALL,OMP_NUM_THREADS=8
module list
module load cuda/12.9 nccl
ml load gcc
ml openmpi
export NCCL_IB_HCA=mlx5 HF_HUB_OFFLINE=1
export PATH=/opt/bin:$PATH
export SCRATCH_DIR=$SCRATCH/x
export MASTER_ADDR=$(hostname)
export WANDB_API_KEY=abc123
export lower=1
NAME=later
export NAME
""",
        {"nodes": 1, "gpus_per_node": 8, "modules": ["cuda/12.9", "nccl", "gcc", "openmpi"],
         "env": {"OMP_NUM_THREADS": "8", "NCCL_IB_HCA": "mlx5", "HF_HUB_OFFLINE": "1", "NAME": "later"}, **H100},
    ),
    "no bash": (
        "#!/usr/bin/env python\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
        "import os\nprint(f'{os.sep}' if 1 else (\n)\n",
        {"nodes": 2, "gpus_per_node": 8, **H100},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_becomes_a_profile(name: str) -> None:
    source, wanted = HEADERS[name]
    imported = take(source)
    assert site(source) == wanted
    assert imported.faults == []
    assert imported.module == ""
    assert "# From job.slurm, by `hysweep import`." in imported.text


@pytest.mark.parametrize("name", [n for n, (_, wanted) in HEADERS.items() if wanted.get("gpus_per_node") == 8])
def test_a_profile_has_no_problem_of_its_own(name: str, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(take(HEADERS[name][0]).text)
    overrides = ["cluster=mine", "model=qwen2_5_0_5b", "parallelism=fsdp2", "rollout=vllm", "data=dapo_math",
                 "reward=rule", "trainer=hy3", "rollout.tensor=2"]  # fmt: skip
    trial = Composer([tmp_path]).compose(overrides).trial
    found = [
        p
        for p in errors(check_trial(trial))
        if p.key.startswith("cluster.") and "memory" not in p.key and "cpus" not in p.key
    ]
    assert found == []


def test_each_line_says_what_became_of_it() -> None:
    said = remarks(take(HEADERS["comments, and options that come too late"][0]))
    assert said["#SBATCH --nodes=7"] == "comes after the first command: sbatch does not read it"
    assert "##SBATCH --nodes=9" not in said
    said = remarks(take(HEADERS["short options, joined and apart"][0]))
    assert said["#SBATCH -J name"] == "left out: the job is found by its name"
    assert "#SBATCH -t30" in said and "#SBATCH -N 2" in said
    said = remarks(take(HEADERS["said twice"][0]))
    assert said["#SBATCH --nodes=2"] == "line 4 says it anew"
    said = remarks(take(HEADERS["a task for each GPU"][0]))
    assert said["#SBATCH --cpus-per-task=12"] == "of each of 8 tasks of a node"
    said = remarks(take(HEADERS["modules and exports"][0]))
    assert "abc123" not in str(said)
    assert "secret" in said["export WANDB_API_KEY=…"]
    assert "hysweep sets it" in said["export MASTER_ADDR"]
    assert said["module list"] == "left out: it only shows"
    said = remarks(take(HEADERS["no GPU"][0]))
    assert "a week" in said["#SBATCH --time=UNLIMITED"]
    (note,) = take(HEADERS["said twice"][0]).notes
    assert "cluster.gpu_memory_gib" in note.what


# --- what comes before the trainer, in its order

ASKS = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=h100:8\n"


def rows(imported: Imported) -> dict[str, tuple[str, str]]:
    return {row.override: (row.became, row.remark) for row in imported.header}


def test_what_is_more_than_a_load_keeps_its_place_in_setup() -> None:
    for lines, modules, setup in (
        (["module load cuda", "ml nccl", "ulimit -n 65536"], ["cuda", "nccl"], ["ulimit -n 65536"]),
        (["module purge", "module load cuda"], None, ["module purge", "module load cuda"]),
        (["module load a", "module use /apps/m", "module load b"], ["a"], ["module use /apps/m", "module load b"]),
        (["source /etc/profile.d/modules.sh", "module load a"], None,
         ["source /etc/profile.d/modules.sh", "module load a"]),
        (["ml purge", "ml a/1 -b"], None, ["ml purge", "ml a/1 -b"]),
        (["unset ROCR_VISIBLE_DEVICES", "umask 002"], None, ["unset ROCR_VISIBLE_DEVICES", "umask 002"]),
        (["unset MASTER_ADDR"], None, None),
    ):  # fmt: skip
        found = site(ASKS + "\n".join(lines))
        assert (found.get("modules"), found.get("setup")) == (modules, setup), lines


def test_an_environment_that_is_activated_has_the_python() -> None:
    source = f"""{ASKS}VENV=/shared/my envs
source "/shared/my envs/bin/activate"
source ~/miniconda3/etc/profile.d/conda.sh
eval "$(conda shell.bash hook)"
conda activate $ENV_OF_MINE
. $PROJECT/site.sh
source "$(dirname "$0")/env.sh"
srun {TRAINS}
conda deactivate
"""
    imported = take(source, only_site=True)
    content = OmegaConf.to_container(OmegaConf.create(imported.text))
    assert isinstance(content, dict)
    assert content["setup"] == [
        "source '/shared/my envs/bin/activate'", 'source "$HOME/miniconda3/etc/profile.d/conda.sh"',
        'eval "$(conda shell.bash hook)"', 'conda activate "$ENV_OF_MINE"', '. "$PROJECT/site.sh"',
    ]  # fmt: skip
    assert content["python"] == "python3"
    said = rows(imported)
    assert said["conda activate $ENV_OF_MINE"] == (
        "cluster.setup, cluster.python", "reads ENV_OF_MINE: export it in the shell that submits"
    )  # fmt: skip
    assert said["conda deactivate"] == ("", "left out: comes after what the script is for")
    (fault,) = imported.faults
    assert fault.override.startswith("source $(dirname") and "cluster.setup" in fault.remark
    assert "where hysweep is started" in remarks(take(f"{ASKS}source venv/bin/activate\n"))["source venv/bin/activate"]


# --- containers whose names and directories are known to the environment alone


def test_variables_of_the_environment_stay_in_images_and_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCRATCH", raising=False)
    for image in ("--container-image ~/img.sqsh", "--container-image=$HOME/img.sqsh", "--container-image=~/img.sqsh"):
        mounts = '"/lustre:/lustre,$HOME/.cache:/cache,$PWD:/w,/data:/data:ro"'
        found = site(f"{ASKS}srun -n2 --mpi=pmix {image} --container-mounts {mounts} python train.py --mpi=none")
        assert (found["container"], found["image"]) == ("pyxis", "${oc.env:HOME}/img.sqsh")
        assert found["container_mounts"] == [
            "/lustre:/lustre", "${oc.env:HOME}/.cache:/cache", "${oc.env:PWD}:/w", "/data:/data:ro",
        ]  # fmt: skip
        assert found["srun_args"] == ["--mpi=pmix"]
    imported = take(f"{ASKS}apptainer exec --bind $SCRATCH:/scratch,/data $IMAGE python train.py")
    assert "image: ${oc.env:IMAGE}\n" in imported.text and "- ${oc.env:SCRATCH}:/scratch\n- /data\n" in imported.text
    assert set(imported.needed) == {"SCRATCH", "IMAGE"} and not imported.faults


def test_what_nobody_knows_before_the_job_is_left_out_with_its_row() -> None:
    imported = take(f"{ASKS}srun --container-image=/i.sqsh --container-mounts=/d,$SLURM_TMPDIR:/t,$(mktemp -d):/u x\n")
    assert "container_mounts:\n- /d\n" in imported.text
    assert [row.override for row in imported.faults] == [
        "srun --container-mounts $SLURM_TMPDIR:/t", "srun --container-mounts $(mktemp -d):/u",
    ]  # fmt: skip
    imported = take(f"{ASKS}srun --container-image=$(cat image.txt) python train.py\n")
    (fault,) = imported.faults
    assert "cluster.image" in fault.remark and "container:" not in imported.text
    (fault,) = take(f"{ASKS}docker run -it verlai/verl:x python train.py\n").faults
    assert "cluster.image" in fault.remark


def test_each_option_of_srun_has_its_row() -> None:
    imported = take(
        f"{ASKS}srun hostname\nsrun --nodes=2 -w node1 --overlap -l --no-container-mount-home --container-workdir=/w "
        f"--container-writable --container-image=/i.sqsh {TRAINS}\n",
        only_site=True,
    )
    said = rows(imported)
    for option in ("--no-container-mount-home", "--container-workdir=/w", "--container-writable"):
        assert said[f"srun {option}"] == ("cluster.srun_args", "") and f"- {option}\n" in imported.text
    assert "own srun says it" in said["srun --nodes --nodelist"][1]
    assert "cluster.srun_args" in said["srun --overlap --label"][1]


def test_what_an_option_of_srun_is_given_is_not_the_program() -> None:
    imported = take(f"{ASKS}srun -q normal --wait 60 -I --container-image=/i.sqsh {TRAINS}\n", only_site=True)
    assert rows(imported)["srun --container-image=/i.sqsh"][0] == "cluster.container, cluster.image"


def test_options_of_apptainer_that_no_field_says_have_a_row() -> None:
    said = rows(take(f"{ASKS}apptainer exec --nv --pwd /w --env A=1,HF_TOKEN=abc --bind=/d /i.sif python train.py\n"))
    assert "APPTAINER_" in said["apptainer --pwd"][1]
    assert said["apptainer --env A"][0] == "cluster.env.A" and "secret" in said["apptainer --env HF_TOKEN"][1]
    assert said["apptainer --bind /d"][0] == "cluster.container_mounts"


WRONG = [
    ("--nodes=many", "number of nodes"),
    ("--nodes", "no value"),
    ("--nodes=0", "number of nodes"),
    ("--time=tomorrow", "time limit"),
    ("--mem=lots", "size of memory"),
    ("--gres=gpu:h100:x", "cannot be read"),
    ("--gpus-per-node=all", "number of GPUs"),
    ("--nodes=3 --gpus=16", "does not divide"),
    ("--signal=USR1@soon", "cannot be read"),
    ("--cpus-per-task=two", "no number"),
    ("--ntasks=-1", "no number"),
    ("nodes=2", "no option"),
    ("-z 3", "no option"),
    ("hello", "no option"),
    ("partition", "no option"),
    ("--nice=very", "cannot be read"),
]


@pytest.mark.parametrize(("option", "why"), WRONG)
def test_what_cannot_be_read_is_a_fault_with_its_line(option: str, why: str) -> None:
    imported = take(f"#!/bin/bash\n#SBATCH {option}\n")
    (row,) = imported.faults
    assert why in row.remark and row.line == 2


def test_an_experiment_has_the_site_in_it() -> None:
    source = (
        "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gpus-per-node=h200:8\n#SBATCH -p gpu\n#SBATCH --time=4:00:00\n"
        f"module load cuda\nsrun -n1 {TRAINS} trainer.nnodes=$SLURM_NNODES trainer.n_gpus_per_node=8\n"
    )
    imported = take(source)
    content = OmegaConf.to_container(OmegaConf.create(imported.text))
    assert isinstance(content, dict)
    cluster = content["cluster"]
    assert (cluster["nodes"], cluster["partition"], cluster["timeout_min"]) == (2, "gpu", 240)
    assert (cluster["gres"], cluster["gpu"], cluster["gpu_memory_gib"]) == ("gpu:h200:8", "H200", 139.8)
    assert (cluster["modules"], cluster["name"]) == (["cuda"], "site")
    assert imported.options["cluster"] == ON_SLURM
    assert (imported.faults, imported.unmeant) == ([], [])
    alone = take(source, only_site=True)
    assert alone.module == "" and "partition: gpu" in alone.text and "defaults" not in alone.text


def test_a_script_that_boots_ray_by_hand_is_read_to_its_trainer() -> None:
    """In our own words what verl's tutorial for SLURM does."""
    imported = take(f"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --mem=200G
#SBATCH --partition=gpu
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=64
code=/code/verl image=/images/verl.sif port=6379
names=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
all=($names)
ip=$(srun --nodes=1 --ntasks=1 -w "${{all[0]}}" hostname --ip-address)
export first=$ip:$port
srun -w "${{all[0]}}" apptainer run --nv --bind $code $image ray start --head --port=$port --block &
sleep 10
for n in 1 2; do
    srun -w "${{all[$n]}}" apptainer run --nv --bind $code $image ray start --address "$first" --block &
done
srun --overlap -w "${{all[0]}}" apptainer run --nv --bind $code $image {TRAINS} \\
    trainer.nnodes="${{SLURM_NNODES}}" trainer.n_gpus_per_node="${{SLURM_GPUS_PER_NODE}}" trainer.total_epochs=15
""")
    assert (imported.faults, imported.unmeant) == ([], [])
    content = OmegaConf.to_container(OmegaConf.create(imported.text))
    assert isinstance(content, dict)
    cluster = content["cluster"]
    assert (cluster["nodes"], cluster["gpus_per_node"], cluster["cpus_per_node"]) == (2, 4, 64)
    assert (cluster["container"], cluster["image"]) == ("apptainer", "/images/verl.sif")
    assert cluster["container_mounts"] == ["/code/verl"]
    assert "env" not in cluster


def test_the_trainers_own_numbers_count() -> None:
    imported = take(
        f"#SBATCH --nodes=4\n#SBATCH --gpus-per-node=h100:8\n{TRAINS} trainer.nnodes=2 trainer.n_gpus_per_node=4\n"
    )
    assert "the trainer is told 2" in remarks(imported)["#SBATCH --nodes=4"]
    content = OmegaConf.to_container(OmegaConf.create(imported.text))
    assert isinstance(content, dict)
    assert (content["cluster"]["nodes"], content["cluster"]["gpus_per_node"]) == (2, 4)
    assert "gres" not in content["cluster"]


def test_what_slurm_tells_a_script_is_known() -> None:
    header = read_header("#SBATCH -n 16 --ntasks-per-node=8 -c 4 -J job -p gpu --gres=gpu:8\n")
    assert header is not None
    assert header.environment == {
        "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_NTASKS": "16", "SLURM_NPROCS": "16",
        "SLURM_NTASKS_PER_NODE": "8", "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_NAME": "job",
        "SLURM_JOB_PARTITION": "gpu", "SLURM_CPUS_PER_TASK": "4",
    }  # fmt: skip
    given = site("#SBATCH -N 2 --gpus-per-node=8\nmodule load cuda/$SLURM_NNODES\n", SLURM_NNODES="12")
    assert given["modules"] == ["cuda/12"]


def test_a_script_without_either_is_refused() -> None:
    for source, why in (("echo hello\n", "starts no trainer"), ("#!/bin/bash\n", "starts no trainer")):
        with pytest.raises(BadInput, match=why):
            take(source)
    with pytest.raises(BadInput, match="no #SBATCH lines"):
        take(TRAINS, only_site=True)
    with pytest.raises(BadInput, match="line 2"):  # broken bash that means to train is not passed over
        take(f"#SBATCH -N 1\nif true; {TRAINS}\n")


def test_quotes_and_backslashes() -> None:
    for text, words in (
        ("""  --comment='a b' -N 2 # rest""", ["--comment=a b", "-N", "2"]),
        (r"""--comment="it's \"x\"" """, ["""--comment=it's "x\""""]),
        (r"--comment=a\ b", ["--comment=a b"]),
        ("--comment=a#b", ["--comment=a"]),
        (r"--comment='a#b \\ c'", [r"--comment=a#b \ c"]),
        ("''", [""]),
        ("", []),
    ):
        assert words_of(text) == words


# --- times


def limit(days: int, hours: int, mins: int, seconds: int) -> int:
    return -(-(((days * 24 + hours) * 60 + mins) * 60 + seconds) // 60)


WHOLE = st.integers(0, 99_999)


@given(days=WHOLE, hours=WHOLE, mins=WHOLE, seconds=WHOLE)
@example(1, 0, 0, 0)
@example(0, 0, 0, 0)
def test_every_form_of_a_time_limit(days: int, hours: int, mins: int, seconds: int) -> None:
    for text, wanted in (
        (f"{mins}", limit(0, 0, mins, 0)),
        (f"{mins}:{seconds}", limit(0, 0, mins, seconds)),
        (f"{hours}:{mins}:{seconds}", limit(0, hours, mins, seconds)),
        (f"{hours:02}:{mins:02}:{seconds:02}", limit(0, hours, mins, seconds)),
        (f"{days}-{hours}", limit(days, hours, 0, 0)),
        (f"{days}-{hours:02}:{mins:02}", limit(days, hours, mins, 0)),
        (f"{days}-{hours}:{mins}:{seconds}", limit(days, hours, mins, seconds)),
    ):
        assert minutes(text) == (wanted or None), text


@given(st.text("0123456789:- dUn", max_size=12))
def test_any_other_text_is_refused_or_has_its_meaning(text: str) -> None:
    try:
        found = minutes(text)
    except ValueError:
        return
    assert found is None or found > 0
    assert ":" not in text or all(part for part in text.replace("-", ":").split(":"))


def test_times_that_people_write() -> None:
    for text, wanted in (("60", 60), ("1:30", 2), ("01:00:00", 60), ("1-0", 1440), ("7-00:00:00", 10080),
                         ("1-12:30", 2190), ("infinite", None), ("0", None), ("00:00:01", 1)):  # fmt: skip
        assert minutes(text) == wanted


@given(st.integers(0, 2**20))
def test_memory_in_every_unit(n: int) -> None:
    for unit, factor in (("K", 2**-20), ("", 2**-10), ("M", 2**-10), ("MB", 2**-10), ("G", 1), ("GiB", 1), ("t", 1024)):
        assert gib(f"{n}{unit}") == n * factor


@given(st.text(max_size=60))
def test_no_line_breaks_the_reader(text: str) -> None:
    header = read_header(f"#SBATCH {text}\n")
    assert header is None or header.fields["nodes"] >= 1


SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=hy3 -N 2 --gpus-per-node=h100:8
#SBATCH --time=1-12:30 --mem=200G --exclude=gpu[01-03]
set -euo pipefail
module load cuda/12.9
export NCCL_DEBUG=WARN DIR="${DIR:-/data}"
if [[ -z "${X:-}" ]]; then N=$((2 * 8)); fi
srun --container-image=/i.sqsh python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
  actor_rollout_ref.actor.optim.lr=1e-6 data.train_files="$DIR/a.parquet" "$@" 2>&1 | tee log
"""


@examples(15)
@given(
    damaged(SCRIPT) | texts_of("#SBATCH ", "--time=", "--mem=", "-N", "\n", "1-2:3", "[1-", "$((", "))", "${", "}", '"')
)
@example("#SBATCH --time=" + "9" * 5000)
@example("#SBATCH -N " + "9" * 5000)
@example("A=$((" + "(" * 2000 + "1" + ")" * 2000 + "))\n")
def test_any_script_is_imported_or_refused(text: str) -> None:
    for only_site in (False, True):
        try:
            found = take(text, only_site)
        except BadInput as e:
            assert e.problems
            continue
        OmegaConf.create(found.text)
