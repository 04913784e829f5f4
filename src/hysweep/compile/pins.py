"""Which versions of other packages a trial can run with: what verl itself says, and what was learned since."""

from __future__ import annotations

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
