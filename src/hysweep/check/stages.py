"""Whether every layer of a model lies in one stage of the pipeline, by the four ways that Megatron has to say it.

Even stages; other numbers for the first and the last; embedding and loss that count as a layer each; or a layout that
names what each stage holds. Of Megatron-core 0.16, transformer_block.py and pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import gcd

from hysweep.check import legal
from hysweep.check.numbers import divisors_of, either, has_shape, nearest_to, transformer_config
from hysweep.schema import Problem, Stage, Trial

NODE = "verl.actor_rollout_ref.actor.megatron.override_transformer_config"
# Each adds a layer to what the stages divide.
COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
LAYOUT = "pipeline_model_parallel_layout"
LONGEST_LAYOUT = 100_000  # characters once multiplied out; a thousand layers take two thousand


def layers_split(t: Trial) -> Iterator[Problem]:
    """Every layer must be built: num_layers % (pipeline * virtual_pipeline) == 0. Megatron drops the rest."""
    if not has_shape(t) or t.parallelism.engine != "megatron":
        return
    s, p = t.model.shape, t.parallelism
    if p.virtual_pipeline and p.pipeline == 1:
        yield Problem(
            "parallelism.virtual_pipeline",
            p.virtual_pipeline,
            "needs more than one pipeline stage",
            "leave it null, or raise parallelism.pipeline",
            Stage.START,
        )
    given = {"first_stage_layers": p.first_stage_layers, "last_stage_layers": p.last_stage_layers}
    ends = [count for count in given.values() if count]
    if is_laid_out(t) or (ends and counted(t)):
        return  # the rules below say it
    stages, rest = p.pipeline - len(ends), s.num_layers + len(counted(t)) - sum(ends)
    if ends and p.pipeline == 1:
        yield Problem(
            "parallelism.pipeline",
            1,
            "has one stage, of all layers",
            "leave first and last_stage_layers null",
            Stage.START,
        )
    elif not ends and not counted(t) and not legal.stages_split(s.num_layers, p.pipeline):
        cure = f"try {either(_pipelines(t))}"
        if s.num_layers > p.pipeline > 2:
            uneven = legal.shorter_ends(s.num_layers, p.pipeline)
            cure += f", or parallelism.first_stage_layers={uneven[0]} and last_stage_layers={uneven[1]}"
        why = f"must divide num_layers = {s.num_layers}"
        yield Problem("parallelism.pipeline", p.pipeline, why, cure, Stage.START)
    elif ends and not legal.stages_split(s.num_layers, p.pipeline, *(given[name] or 0 for name in given)):
        which = f"parallelism.{' and '.join(k for k, v in given.items() if v)}"
        why = f"leave {rest} of num_layers = {s.num_layers} to {stages} stages: the layers built would be others"
        if stages == 0:
            why = f"make {sum(ends)} layers in all, and num_layers = {s.num_layers}: the layers built would be others"
        yield Problem(which, ends, why, _ends_cure(t), Stage.START)
    elif stages == 0 or rest % stages == 0:
        each = {*ends, *([rest // stages] if stages else [])}
        if any(layers % (p.virtual_pipeline or 1) for layers in each):
            yield Problem(
                "parallelism.virtual_pipeline",
                p.virtual_pipeline,
                f"must divide the {either(sorted(each))} layers of a stage",
                f"try {either(nearest_to(p.virtual_pipeline or 1, divisors_of(gcd(*each))))}",
                Stage.START,
            )


def _ends_cure(t: Trial) -> str:
    layers, stages = t.model.shape.num_layers, t.parallelism.pipeline
    if legal.stages_split(layers, stages):
        return "leave both null, for stages of the same size"
    if layers < stages:
        return f"try parallelism.pipeline of {either(_pipelines(t))}"
    first, last = legal.shorter_ends(layers, stages)
    return f"try parallelism.first_stage_layers={first} and last_stage_layers={last}"


def counted_layers_split(t: Trial) -> Iterator[Problem]:
    """Where embedding or loss count as a layer, the sum must divide; and no other way to say it goes with that."""
    if not has_shape(t) or t.parallelism.engine != "megatron" or not counted(t):
        return
    s, p, flags = t.model.shape, t.parallelism, counted(t)
    whole = s.num_layers + len(flags)
    if p.first_stage_layers or p.last_stage_layers or is_laid_out(t):
        other = "a layout of the stages" if is_laid_out(t) else "layers of the ends"
        yield Problem(f"{NODE}.{flags[0]}", True, f"and {other} exclude each other", "keep one", Stage.START)
    elif whole % p.pipeline:
        pipelines = divisors_of(gcd(whole, t.world_size))[1:]  # with one stage there is nothing to count
        cure = f", or try parallelism.pipeline of {either(nearest_to(p.pipeline, pipelines))}" if pipelines else ""
        yield Problem(
            f"{NODE}.{flags[0]}",
            True,
            f"makes {whole} of {s.num_layers} layers, which {p.pipeline} stages must divide",
            f"leave it out{cure}",
            Stage.START,
        )


def stages_are_laid_out(t: Trial) -> Iterator[Problem]:
    """A layout names each layer once, in as many stages as there are, or as virtual ones, and closes with the loss."""
    if not has_shape(t) or t.parallelism.engine != "megatron" or not is_laid_out(t):
        return
    s, p, key = t.model.shape, t.parallelism, f"{NODE}.{LAYOUT}"
    text = transformer_config(t)[LAYOUT]
    stages = laid_out(text)
    if stages is None:
        why = "is no layout: E embedding, t layer, m MTP, L loss, | between stages, t*3 for ttt"
        yield Problem(key, text, why, f"write {_even(s.num_layers, p.pipeline)!r}", Stage.START)
        return
    if p.first_stage_layers or p.last_stage_layers:
        yield Problem(key, text, "and layers of the ends exclude each other", "keep one", Stage.START)
    layers, whole = sum(stage.count("t") for stage in stages), "".join(stages)
    cure = f"write {_even(s.num_layers, p.pipeline)!r}, or shift layers in it"
    if layers != s.num_layers:
        yield Problem(key, text, f"has {layers} layers, and num_layers = {s.num_layers}", cure, Stage.START)
    virtual = p.virtual_pipeline or 1
    if len(stages) % p.pipeline or (p.virtual_pipeline and len(stages) != p.pipeline * virtual):
        wanted = f"{p.pipeline} stages" if virtual == 1 else f"{p.pipeline} stages of {virtual} virtual ones"
        yield Problem(key, text, f"has {len(stages)} stages, and there are {wanted}", cure, Stage.START)
    if whole.count("E") != 1 or whole.count("L") != 1 or not whole.startswith("E") or not stages[-1].endswith("L"):
        yield Problem(key, text, "does not begin with the embedding E and end with the loss L", cure, Stage.START)


def counted(t: Trial) -> list[str]:
    """Which of embedding and loss count as a layer."""
    return [name for name in COUNTED if transformer_config(t).get(name)]


def is_laid_out(t: Trial) -> bool:
    return transformer_config(t).get(LAYOUT) is not None


def laid_out(text: object) -> list[str] | None:
    """What each stage of a layout holds, a letter each, or None for what is none. As Megatron reads it.

    A list of lists, which Megatron also takes, is not looked at: nobody writes one on a command line.
    """
    if not isinstance(text, str):
        return None
    written = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        if sum(len(m[1]) * int(m[2]) for m in re.finditer(pattern, written)) > LONGEST_LAYOUT:
            return None
        written = re.sub(pattern, lambda m: m[1] * int(m[2]), written)
    return written.split("|") if re.fullmatch(r"[EtmL|]+", written) else None


def _pipelines(t: Trial) -> list[int]:
    """Numbers of even stages that layers and GPUs divide into, nearest to the one asked for."""
    return nearest_to(t.parallelism.pipeline, divisors_of(gcd(t.model.shape.num_layers, t.world_size)))


def _even(layers: int, stages: int) -> str:
    """A layout of so many stages, the first ones a layer shorter where it does not come out even."""
    each, more = divmod(layers, stages)
    parts = [f"t*{each + (n >= stages - more)}" for n in range(stages)]
    return "E" + "|".join(parts) + "L"
