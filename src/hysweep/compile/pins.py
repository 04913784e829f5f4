"""Which versions of other packages a trial can run with: what verl itself says, and what was learned since."""

from __future__ import annotations

from dataclasses import dataclass

from hysweep.compile.keys import VERSIONS, trainer_keys
from hysweep.schema import Trial

# transformers knows hy_v3 from 5.6.0 on; 5.6.0 itself has a broken flash attention path (transformers issue 45588).
# vLLM 0.23 is the oldest that is reported to serve Hy3.
HY_V3 = {"transformers": ">=5.6.1", "vllm": ">=0.23"}

# Megatron-Bridge has the Hy3 bridge from 0.6.0 on (commit df0852c), which takes transformers from 5.8 on and
# modelopt 0.44. Ran on a GPU: bridge 0.6.2, megatron-core 0.19.2, transformers 5.9.0, modelopt 0.44.0, vLLM 0.24.0.
MEGATRON = {"megatron-bridge": ">=0.6.0", "transformers": ">=5.8.1", "nvidia-modelopt": ">=0.44.0rc5"}

# verl's V1 trainer imports it, whatever its metadata says; the interface of 0.9.1 is that of 0.1.10.
V1 = {"transferqueue": ">=0.1.8"}


def requirements(trial: Trial) -> dict[str, str]:
    """{package: specifier} for whatever of it is installed where the trial runs.

    A commit has no version of its own: the version that it calls itself is taken. A wheel or a checkout is put before
    the installed verl, so that one may be any.
    """
    keys = trainer_keys(trial.trainer.verl, "dp")
    found: dict[str, list[str]] = {name: [text] for name, text in keys.requires.items()}
    extra = [V1]
    if trial.trainer.verl in VERSIONS:
        extra.append({"verl": f"=={keys.version}"})
    if trial.model.model_type == "hy_v3":
        extra.append(HY_V3)
    if trial.parallelism.engine == "megatron":
        extra.append(MEGATRON)
    for more in extra:
        for name, text in more.items():
            found.setdefault(name, []).append(text)
    return {name: ",".join(texts) for name, texts in found.items()}


# --- where they are fetched from, by `hysweep setup`


@dataclass(frozen=True, slots=True)
class Repository:
    """
    on_path     the directories of it that belong on PYTHONPATH
    submodules  those that are needed: the path of each, and its repository
    """

    name: str
    url: str
    on_path: tuple[str, ...] = (".",)
    submodules: tuple[tuple[str, str], ...] = ()


# Megatron-Bridge imports the Megatron-LM that it has as a submodule, at the commit that it was tested with.
REPOSITORIES = (
    Repository("verl", "https://github.com/verl-project/verl.git"),
    Repository(
        "Megatron-Bridge",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge.git",
        ("src", "3rdparty/Megatron-LM"),
        (("3rdparty/Megatron-LM", "Megatron-LM"),),
    ),
    Repository("TransferQueue", "https://github.com/Ascend/TransferQueue.git"),
)

# By the version of verl: tags where there are releases that ran together, else full commits, which a server gives
# without its history. The Hy3 run was verified with 220e903 and Megatron-Bridge df0852c; TransferQueue is the release
# before that day.
_BESIDE = {"Megatron-Bridge": "v0.6.2", "TransferQueue": "v0.1.11"}
GIT_PINS: dict[str, dict[str, str]] = {
    "0.9.1": {"verl": "v0.9.1", **_BESIDE},
    "0.9.0": {"verl": "v0.9.0", **_BESIDE},
    "220e903": {
        "verl": "220e9039902c6db56860e2afd659803dc34ec005",
        "Megatron-Bridge": "df0852cf94c674de07f9f7ef933c484de8aca505",
        "TransferQueue": "35bcf198ac087f0a0e41a69a897f48929c313d22",
    },
}

# The same from the package index, as in constraints/gpu.txt. What they need beside is the environment's.
RELEASES: dict[str, dict[str, str]] = {
    version: {"verl": version, "megatron-bridge": "0.6.2", "megatron-core": "0.19.2", "TransferQueue": "0.1.11"}
    for version in ("0.9.1", "0.9.0")
}


def git_pins(verl: str) -> dict[str, str]:
    """The ref of each repository for a version, tag or commit of verl; beside one that is not known here, the others
    are those of the newest release."""
    return GIT_PINS.get(verl, {"verl": verl, **_BESIDE})
