"""Known sets, from a hub or from a local copy of what the hub has, as files where the data= options expect them.

How a row becomes verl's follows verl's own preprocessing (examples/data_preprocess), so that its reward functions score
the answers: the same instruction after a question, the same data_source, the ground truth cut out the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hysweep.data.columns import MESSAGE, Made, Recipe, last_boxed, make
from hysweep.data.convert import Converted, Watch, turned, write
from hysweep.data.hub import splits_of
from hysweep.data.sources import Piece, find, kind_of, pieces, saved
from hysweep.schema import BadInput, Problem, suggest

Row = dict[str, Any]
Turn = Callable[[pa.Table], Made]

THINK_BOXED = "Let's think step by step and output the final answer within \\boxed{}."
THINK_HASHES = 'Let\'s think step by step and output the final answer after "####".'
THINK_TAGS = (
    "You FIRST think about the reasoning process as an internal monologue and then provide the final answer. "
    "The reasoning process MUST BE enclosed within <think> </think> tags. "
)
SEARCH = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get "
    "new information. After reasoning, if you find you lack some knowledge, you can call a search engine by "
    "<tool_call> query </tool_call> and it will return the top searched results between <tool_response> and "
    "</tool_response>. You can search as many times as your want. If you find no further external knowledge "
    "needed, you can directly provide the answer inside <answer> and </answer>, without detailed illustrations. "
    "For example, <answer> Beijing </answer>. Question: "
)
# The sources of NuminaMath that verl's prime_math scores, by verl's names for them (verl/utils/reward_score).
NUMINA = ("aops_forum", "synthetic_math", "amc_aime", "synthetic_amc", "cn_k12", "olympiads")


@dataclass(frozen=True)
class Set:
    """`files`: what is made of each split. `turn` makes verl's columns of a piece of one."""

    name: str
    hub: str
    about: str
    files: dict[str, str]
    turn: Callable[[str], Turn]
    config: str | None = None
    repeats: bool = False  # its rows come many times each


def prepare(
    name: str,
    where: Path,
    source: str | None = None,
    keeps_repeats: bool = False,
    force: bool = False,
    watch: Watch = lambda seen, rows: None,
) -> list[Converted]:
    """Make the files of a set below `where`. `source`: a local copy (a directory or a file) instead of the hub's.

    Raises BadInput: an unknown name, no network, a copy of another shape.
    """
    if name not in SETS:
        raise BadInput(Problem("NAME", name, "is no set that is known", suggest(name, SETS, "`hysweep data prepare`")))
    known = SETS[name]
    done = []
    splits = _splits(known, source)
    there = [where / file for file in splits.values() if (where / file).exists()]
    if there and not force:
        raise BadInput(Problem("NAME", name, f"{there[0]} is there already", "--force writes over it"))
    for split, file in splits.items():
        given = turned(_pieces(known, source, split), partial(_shaped, known.turn(split), known.name))
        done.append(write(given, where / file, known.repeats and not keeps_repeats, force=force,
                          watch=watch))  # fmt: skip
    return done


def _shaped(turn: Turn, name: str, table: pa.Table) -> Made:
    """Rows of another shape than the set's are bad input."""
    cure = "name a copy of the set as its hub has it: --from"
    try:
        return turn(table)
    except KeyError as e:
        why = f"is not there, and {name} has it; the columns are {', '.join(table.column_names)}"
        raise BadInput(Problem("column", e.args[0], why, cure)) from e
    except (TypeError, ValueError, AttributeError, IndexError) as e:
        raise BadInput(Problem("SRC", name, f"the copy has rows of another shape: {e}", cure)) from e


def _splits(known: Set, source: str | None) -> dict[str, str]:
    """Of the set's splits those that the source has."""
    if source is not None and (Path(source).is_file() or "*" in source):
        first = next(iter(known.files))
        stem = Path(source).stem
        return {split: file for split, file in known.files.items() if split in stem} or {first: known.files[first]}
    if source is not None and (Path(source) / "dataset_dict.json").is_file():
        there = saved(Path(source) / "dataset_dict.json", "splits")
    elif source is not None and (Path(source) / "state.json").is_file():
        there = list(known.files)[:1]
    else:
        there = splits_of(source or known.hub, _config(known, source))
    found = {split: file for split, file in known.files.items() if split in there}
    if not found:
        why = f"has the splits {', '.join(there)}"
        raise BadInput(Problem("--from", source or known.hub, why, f"{known.name} is made of {', '.join(known.files)}"))
    return found


def _config(known: Set, source: str | None) -> str | None:
    """A local copy need not have the configurations of the hub's, and a file has none."""
    if source is None or known.config is None:
        return known.config
    if not Path(source).is_dir() and kind_of(Path(source)) is not None:
        return None
    import datasets

    try:
        return known.config if known.config in datasets.get_dataset_config_names(source) else None
    except Exception:  # what is wrong with the copy is said when it is read
        return None


def _pieces(known: Set, source: str | None, split: str) -> Iterator[tuple[int, Piece]]:
    chosen = split if source is None or not (Path(source) / "state.json").is_file() else None
    for found in find([source or known.hub], chosen, _config(known, source)):
        yield from pieces(found)


# --- turning rows


def by_recipe(recipe: Recipe, then: Callable[[Made], Made] = lambda made: made) -> Callable[[str], Turn]:
    """Whole columns at a time; see `columns`."""

    def of(split: str) -> Turn:
        mine = replace(recipe, split=split)
        return lambda table: then(make(table, mine))

    return of


def as_it_is(data_source: str = "") -> Callable[[str], Turn]:
    """A set that is published in verl's columns."""
    return lambda split: lambda table: make(table, Recipe(data_source=data_source))


def by_row(function: Callable[[Row, str], Row | None]) -> Callable[[str], Turn]:
    """A row at a time; None leaves it out for want of an answer. `extra_info` gets what the function puts there."""

    def of(split: str) -> Turn:
        def turn(table: pa.Table) -> Made:
            rows = [function(row, split) for row in table.to_pylist()]
            kept = [row for row in rows if row is not None]
            extra = [row.pop("extra_info", {}) | {"split": split} for row in kept]
            prompt = pa.array([row.pop("prompt") for row in kept], pa.list_(MESSAGE))
            rest = {name: [row[name] for row in kept] for name in (kept[0] if kept else ())}
            out = pa.table({"data_source": rest.pop("data_source", []), "prompt": prompt, **rest})
            fields = {name: pa.array([e[name] for e in extra]) for name in (extra[0] if extra else ())}
            return Made(out, fields, 0, len(rows) - len(kept))

        return turn

    return of


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def rule(truth: Any) -> dict[str, Any]:
    return {"style": "rule", "ground_truth": truth}


def _without_commas(made: Made) -> Made:
    """GSM8K writes 1,000; verl's scorer takes 1000."""
    at = made.table.column_names.index("reward_model")
    reward = made.table.column(at).combine_chunks()
    reward = pa.concat_arrays(reward.chunks) if isinstance(reward, pa.ChunkedArray) else reward
    truth = pc.replace_substring(pc.struct_field(reward, "ground_truth"), ",", "")
    plain = pa.StructArray.from_arrays([pc.struct_field(reward, "style"), truth], names=["style", "ground_truth"])
    return replace(made, table=made.table.set_column(at, "reward_model", plain))


def _numina(row: Row, split: str) -> Row | None:
    answer = last_boxed(row["solution"] or "")
    source = {**{name: f"numina_{name}" for name in NUMINA}, "math": "lighteval/MATH"}.get(row["source"])
    if not answer or source is None:  # gsm8k and orca_math have no boxed answer that verl scores by these names
        return None
    prompt = user(f"{row['problem']} {THINK_BOXED}")
    return {"data_source": source, "prompt": prompt, "ability": "math", "reward_model": rule(answer)}


def _geo3k(row: Row, split: str) -> Row | None:
    asked = f"{row['problem']} {THINK_TAGS}The final answer MUST BE put in \\boxed{{}}."
    return {
        "data_source": "hiyouga/geometry3k",
        "prompt": user(asked),
        "images": row["images"],
        "ability": "math",
        "reward_model": rule(row["answer"]),
        "extra_info": {"question": row["problem"], "answer": row["answer"]},
    }


def _hellaswag(row: Row, split: str) -> Row | None:
    if not str(row["label"]).strip():  # as in the published test split, of which nothing is made therefore
        return None

    def clean(text: str) -> str:
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    asked = clean(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    choices = [clean(ending) for ending in row["endings"]]
    truth = {"style": "model", "eval": "multiple_choice", "ground_truth": int(row["label"]), "choices": choices}
    return {"data_source": "Rowan/hellaswag", "prompt": user(asked), "ability": "nlp", "reward_model": truth}


def _codecontests(row: Row, split: str) -> Row | None:
    """Its tests as verl's prime_code and sandbox read them: a JSON text of inputs and outputs."""
    tests: dict[str, list[str]] = {"inputs": [], "outputs": []}
    for kind in ("public_tests", "private_tests", "generated_tests"):
        found = row.get(kind) or {}
        tests["inputs"] += found.get("input") or []
        tests["outputs"] += found.get("output") or []
    if not tests["inputs"]:
        return None
    how = "Write Python code to solve the problem. Present the code in\n```python\nYour code\n```"
    return {
        "data_source": "codecontests",
        "prompt": user(f"{row['description']}\n\n{how}"),
        "ability": "code",
        "reward_model": rule(json.dumps(tests)),
        "extra_info": {"name": row.get("name")},
    }


def _hh_rlhf(row: Row, split: str) -> Row | None:
    truth = {"style": "model", "ground_truth": row["response"]}  # for show: a reward model scores
    return {"data_source": "Dahoas/full-hh-rlhf", "prompt": user(row["prompt"]), "ability": "alignment",
            "reward_model": truth}  # fmt: skip


def _search_r1(row: Row, split: str) -> Row | None:
    question = row["question"]
    own = row.get("reward_model") or {}
    truth = own.get("ground_truth") or {"target": row.get("golden_answers") or []}
    source = f"searchR1_{row['data_source']}"
    chat = [{"role": "system", "content": "You are a helpful and harmless assistant."}, *user(SEARCH + question)]
    tool = {"search": {"create_kwargs": {"ground_truth": truth, "question": question, "data_source": source}}}
    return {
        "data_source": source,
        "prompt": chat,
        "ability": row.get("ability") or "fact-reasoning",
        "reward_model": {"style": own.get("style") or "rule", "ground_truth": truth},
        "extra_info": {"question": question, "need_tools_kwargs": True, "tools_kwargs": tool},
    }


def _openr1mm(row: Row, split: str) -> Row | None:
    asked = (
        f"<image>\n{row['problem']}\n\n{THINK_TAGS}The final answer MUST BE enclosed within <answer> </answer> tags."
    )
    return {
        "data_source": "lmms-lab/multimodal-open-r1-8k-verified",
        "prompt": user(asked),
        "images": [row["image"]],
        "ability": "math",
        "reward_model": rule(row["solution"]),
        "extra_info": {"question": row["problem"], "answer": row["solution"]},
    }


def _in(folder: str, *splits: str) -> dict[str, str]:
    return {split: f"{folder}/{split}.parquet" for split in splits}


SETS = {
    s.name: s
    for s in (
        Set("dapo_math_17k", "BytedTsinghua-SIA/DAPO-Math-17k", "17 k math questions, a hundred times each",
            {"train": "dapo-math-17k.parquet"}, as_it_is(), "default", repeats=True),
        Set("aime_2024", "BytedTsinghua-SIA/AIME-2024", "30 questions, 32 times each",
            {"train": "aime-2024.parquet"}, as_it_is(), "default", repeats=True),
        Set("gsm8k", "openai/gsm8k", "7.5 k questions of school mathematics", _in("gsm8k", "train", "test"),
            by_recipe(Recipe("{question} " + THINK_HASHES, "answer", r"#### (-?[0-9.,]+)", data_source="openai/gsm8k",
                             ability="math", extra=("question", "answer")), _without_commas), "main"),
        Set("math", "DigitalLearningGmbH/MATH-lighteval", "7.5 k competition questions with levels",
            _in("math", "train", "test"),
            by_recipe(Recipe("{problem} " + THINK_BOXED, "solution", boxed=True,
                             data_source="DigitalLearningGmbH/MATH-lighteval", ability="math",
                             extra=("level", "type")))),
        Set("math500", "HuggingFaceH4/MATH-500", "500 of MATH, to validate with", _in("math500", "test"),
            by_recipe(Recipe("{problem} " + THINK_BOXED, "answer", data_source="HuggingFaceH4/MATH-500", ability="math",
                             extra=("subject", "level", "unique_id")))),
        Set("numina", "AI-MO/NuminaMath-CoT", "860 k questions; those that verl scores", _in("numina", "train", "test"),
            by_row(_numina)),
        Set("geo3k", "hiyouga/geometry3k", "3 k geometry questions with images",
            _in("geo3k", "train", "validation", "test"), by_row(_geo3k)),
        Set("hellaswag", "Rowan/hellaswag", "sentences to complete; verl has no rule that scores them",
            _in("hellaswag", "train", "validation"), by_row(_hellaswag)),
        Set("codecontests", "deepmind/code_contests", "13 k programs to write, with tests",
            _in("codecontests", "train", "valid", "test"), by_row(_codecontests)),
        Set("eurus2", "PRIME-RL/Eurus-2-RL-Data", "480 k questions of mathematics and code, in verl's columns",
            _in("eurus2", "train", "validation"), as_it_is()),
        Set("full_hh_rlhf", "Dahoas/full-hh-rlhf", "112 k dialogues, for a reward model",
            _in("full_hh_rlhf", "train", "test"), by_row(_hh_rlhf)),
        Set("search_r1", "PeterJinGo/nq_hotpotqa_train", "170 k questions to search for",
            _in("search_r1", "train", "test"), by_row(_search_r1)),
        Set("openr1mm", "lmms-lab/multimodal-open-r1-8k-verified", "8 k questions with images",
            _in("openr1mm", "train"), by_row(_openr1mm)),
    )
}  # fmt: skip
