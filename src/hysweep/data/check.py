"""What is wrong with files of rows, found before a job reads them: their shape, their rows, one beside another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hysweep.data.convert import prompt_digests
from hysweep.data.sources import Source, differ, find, pieces
from hysweep.rewards import UNSCORED
from hysweep.schema import BadInput, Problem, Severity, Stage

ROLES = ("system", "user", "assistant", "tool", "developer")
READ = ("data_source", "prompt", "reward_model", "ability", "extra_info")
NEEDED = ("data_source", "prompt", "reward_model")  # the reward loop fails without; the others only describe

NAMED = 5  # data sources without a reward that are named one by one

Lengths = Callable[[list[list[dict[str, Any]]]], list[int]]  # tokens of each chat, as the trainer counts them
Watch = Callable[[int, int], None]  # bytes behind, rows looked at


@dataclass(frozen=True, slots=True)
class Wants:
    """What the rows must be good for; None: not looked at.

    knows      whether the trial's reward has a way to score a data_source
    unscored   of a data_source that it does not know, beside all of its file, why and what to do
    strayed    of all data sources, which routes seem to mean one of them and take no row
    names_more whether the reward gives a data_source's rows more metrics than it gives others
    made_for   the only data_source that the trial's reward was made for, where there is one
    lengths    counts the tokens of chats; with `is_least` never more than the trainer does
    batch      prompts of a step
    """

    knows: Callable[[str], bool] | None = None
    unscored: Callable[[str, Iterable[str]], tuple[str, str]] = lambda name, there: UNSCORED
    strayed: Callable[[Collection[str]], list[tuple[str, str]]] = lambda names: []
    names_more: Callable[[str], bool] | None = None
    made_for: str | None = None
    lengths: Lengths | None = None
    is_least: bool = False
    max_prompt_length: int | None = None
    drops_longer: bool = False
    batch: int | None = None
    has_custom_class: bool = False  # reads other files than verl's own does


@dataclass(slots=True)
class FileFacts:
    """What one file holds. `rows` is all of them, `seen` those that were looked at."""

    path: str
    role: str
    rows: int = 0
    seen: int = 0
    is_counted: bool = False  # `rows` is all of them
    data_sources: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    tokens: list[int] = field(default_factory=list)
    longer: int = 0

    @property
    def are_all_longer(self) -> bool:
        return self.longer > 0 and self.longer == len(self.tokens)

    @property
    def left(self) -> int:
        """Rows that are left where longer prompts are dropped: at most, of a file whose first rows were looked at."""
        return 0 if self.are_all_longer else self.rows - self.longer

    def as_dict(self) -> dict[str, Any]:
        told = asdict(self) | {"data_sources": dict(self.data_sources)}
        del told["tokens"]
        return told | {"prompt_tokens": self.spread()}

    def spread(self) -> dict[str, int] | None:
        if not self.tokens:
            return None
        half, most, longest = np.percentile(self.tokens, (50, 99, 100), method="lower")
        return {"p50": int(half), "p99": int(most), "max": int(longest)}


@dataclass(frozen=True, slots=True)
class Looked:
    files: list[FileFacts]
    problems: list[Problem]

    def as_dict(self) -> dict[str, Any]:
        return {"files": [f.as_dict() for f in self.files], "problems": [p.as_dict() for p in self.problems]}


def look(
    train: Sequence[str],
    val: Sequence[str] = (),
    wants: Wants | None = None,
    most_rows: int | None = None,
    watch: Watch = lambda seen, rows: None,
) -> Looked:
    """Look at files to train on, and to validate with; at the first `most_rows` of each where that is given.

    What rows repeat is only known of whole files. Never raises for what a file holds: that is a problem.
    """
    return _Look(wants or Wants(), most_rows, watch).at(train, val)


class _Look:
    def __init__(self, wants: Wants, most_rows: int | None, watch: Watch) -> None:
        self.wants = wants
        self.most_rows = most_rows
        self.watch = watch
        self.problems: list[Problem] = []
        self.files: list[FileFacts] = []
        self.digests: dict[str, set[bytes]] = {"train": set(), "val": set()}
        self.schemas: dict[str, tuple[str, pa.Schema]] = {}
        self._behind = self._rows = 0

    def at(self, train: Sequence[str], val: Sequence[str]) -> Looked:
        for role, names in (("train", train), ("val", val)):
            for name in names:
                try:
                    sources = find([name])
                except BadInput as e:
                    self.problems += e.problems
                    continue
                for source in sources:
                    self._file(source, role)
        self._between()
        return Looked(self.files, self.problems)

    def _say(
        self, key: str, value: object, why: str, cure: str, stage: Stage = Stage.START, is_error: bool = True
    ) -> None:
        severity = Severity.ERROR if is_error else Severity.WARNING
        self.problems.append(Problem(key, value, why, cure, stage, severity))

    def _file(self, source: Source, role: str) -> None:
        facts = FileFacts(source.path, role)
        self.files.append(facts)
        path = source.path
        if not self.wants.has_custom_class and Path(path).suffix not in (".parquet", ".json", ".jsonl"):
            self._say(path, source.kind, "verl reads .parquet, .json and .jsonl", f"hysweep data convert {path}")
        faults = _Faults()
        try:
            if source.kind == "parquet":
                with pq.ParquetFile(path) as file:
                    facts.rows, facts.is_counted = file.metadata.num_rows, True
                    if not self._shape(path, role, file.schema_arrow):
                        return
            for seen, piece in pieces(source, None if source.kind == "hub" else READ):
                table = piece()
                if not facts.seen and source.kind != "parquet" and not self._shape(path, role, table.schema):
                    return
                if self.most_rows is not None:
                    table = table.slice(0, self.most_rows - facts.seen)
                self._rows_of(table, facts, faults)
                self._rows += table.num_rows
                self.watch(self._behind + seen, self._rows)
                if self.most_rows is not None and facts.seen >= self.most_rows:
                    break
            else:
                facts.is_counted = True
        except BadInput as e:
            self.problems += e.problems
            return
        except pa.ArrowInvalid as e:
            self._say(path, source.kind, f"cannot be read: {' '.join(str(e).split())[:200]}", "see whether it is whole")
            return
        facts.rows = max(facts.rows, facts.seen)
        self._behind += source.size
        self._tell(facts, faults)

    # --- shape

    def _shape(self, path: str, role: str, schema: pa.Schema) -> bool:
        """Whether the rows can be looked at."""
        differ(schema.names, path)
        missing = [name for name in NEEDED if name not in schema.names]
        how = f"hysweep data convert {path} --prompt COLUMN --answer COLUMN --data-source NAME"
        if missing:
            self._say(path, ", ".join(schema.names), f"has no column {' and none '.join(missing)}", how)
            return False
        before = len(self.problems)
        prompt = schema.field("prompt").type
        if not (pa.types.is_list(prompt) or pa.types.is_large_list(prompt)):
            self._say(path, f"prompt: {prompt}", "verl takes a list of messages with role and content", how)
        elif not pa.types.is_struct(prompt.value_type) or not {"role", "content"} <= {
            f.name for f in prompt.value_type
        }:
            self._say(path, f"prompt: {prompt}", "a message has role and content", how)
        else:
            for name in ("role", "content"):
                kind = prompt.value_type.field(name).type
                if not _may_be_text(kind) and not (name == "content" and pa.types.is_nested(kind)):
                    self._say(path, f"prompt: {name} is {kind}", "is to be text", how)
        reward = schema.field("reward_model").type
        if not pa.types.is_struct(reward) or reward.get_field_index("ground_truth") < 0:
            self._say(path, f"reward_model: {reward}", "verl reads its ground_truth", how)
        source = schema.field("data_source").type
        if pa.types.is_null(source) or not (_may_be_text(source) or pa.types.is_dictionary(source)):
            self._say(path, f"data_source: {source}", "is to be text", how)
        if "extra_info" in schema.names and not pa.types.is_struct(schema.field("extra_info").type):
            kind = schema.field("extra_info").type
            self._say(path, f"extra_info: {kind}", "verl puts what it knows of a rollout into it", how)
        if len(self.problems) > before:
            return False
        first = self.schemas.setdefault(role, (path, schema))
        if first[1] != schema and (differs := _difference(first[1], schema)):
            self._say(path, differs, f"is not as in {first[0]}: verl cannot put the files together",
                      "convert them in one go, into one file")  # fmt: skip
        return True

    # --- rows

    def _rows_of(self, table: pa.Table, facts: FileFacts, faults: _Faults) -> None:
        first, rows = facts.seen, table.num_rows
        facts.seen += rows
        prompt, reward = _array(table, "prompt"), _array(table, "reward_model")
        sources = _array(table, "data_source")
        faults.note("no data_source", first, pc.is_null(sources))
        for value, count in zip(*_counted(sources), strict=True):
            facts.data_sources[value] += count
        truth = pc.struct_field(reward, "ground_truth")
        is_blank = pc.is_null(truth)
        if pa.types.is_string(truth.type) or pa.types.is_large_string(truth.type):
            is_blank = pc.or_kleene(is_blank, pc.equal(pc.binary_length(pc.utf8_trim_whitespace(truth)), 0))
        faults.note("no ground truth", first, is_blank)

        lengths = np.asarray(pc.fill_null(pc.list_value_length(prompt), 0)).astype(np.int64)
        faults.note("no message", first, pa.array(lengths == 0))
        flat = prompt.flatten()
        of_row = np.repeat(np.arange(rows), lengths)
        role, content = (_or_text(pc.struct_field(flat, name)) for name in ("role", "content"))
        known = pc.fill_null(pc.is_in(role, pa.array(ROLES, role.type)), False)
        faults.note("a role that no chat template knows", first, _by_row(pc.invert(known), of_row, rows))
        if not pa.types.is_nested(content.type):
            blank = pc.or_kleene(pc.is_null(content), pc.equal(pc.binary_length(pc.utf8_trim_whitespace(content)), 0))
            faults.note("an empty message", first, _by_row(blank, of_row, rows))
        ends = np.cumsum(lengths) - 1
        last = role.take(pa.array(ends[lengths > 0])) if len(flat) else pa.array([], role.type)
        is_said = np.zeros(rows, dtype=bool)
        is_said[lengths > 0] = np.asarray(pc.fill_null(pc.equal(last, "assistant"), False))
        faults.note("the answer as its last message", first, pa.array(is_said))

        if self.most_rows is None:
            self._repeats(prompt, facts)
        if self.wants.lengths is not None:
            chats = [chat or [] for chat in prompt.to_pylist()]
            facts.tokens += self.wants.lengths([chat for chat in chats if chat])

    def _repeats(self, prompt: pa.Array, facts: FileFacts) -> None:
        own = self.digests[facts.role]
        for digest in prompt_digests(prompt):
            if digest in own:
                facts.repeated += 1
            own.add(digest)

    # --- what it comes to

    def _tell(self, facts: FileFacts, faults: _Faults) -> None:
        path, wants = facts.path, self.wants
        if not facts.rows:
            self._say(path, 0, "has no rows", "give another file")
            return
        for what, (count, row) in faults.found.items():
            is_error = what not in _ADVICE
            stage = Stage.NEVER if what in _ADVICE or what == "no ground truth" else Stage.ROLLOUT
            self._say(
                path, f"row {row}", f"{count:,} of {facts.seen:,} rows have {what}", _CURES[what], stage, is_error
            )
        if wants.knows is not None:
            unknown = {name: count for name, count in facts.data_sources.items() if not wants.knows(name)}
            told = {shown(name): (unknown.pop(name), wants.unscored(name, facts.data_sources))
                    for name in list(unknown)[:NAMED]}  # fmt: skip
            if unknown:
                told[f"{len(unknown):,} others"] = sum(unknown.values()), wants.unscored("", facts.data_sources)
            for name, (count, (why, cure)) in told.items():
                self._say(path, f"data_source: {name}", f"{count:,} rows {why}", cure, Stage.ROLLOUT)
        if other := [name for name in facts.data_sources if wants.made_for not in (None, name)]:
            count = sum(facts.data_sources[name] for name in other)
            self._say(path, f"data_source: {shown(other[0])}",
                      f"{count:,} rows are scored by the reward of the tiny task: 1 for the ground truth and not a "
                      "word more, else 0",
                      "choose one: reward=rule has those that verl knows, reward=router ready ones, as exact_match",
                      Stage.NEVER, is_error=False)  # fmt: skip
        limit = wants.max_prompt_length
        if facts.tokens and limit is not None:
            facts.longer = sum(n > limit for n in facts.tokens)
            if facts.longer:
                of = f"{'' if len(facts.tokens) == facts.rows else 'the first '}{len(facts.tokens):,}"
                share = f"{facts.longer:,} of {of} prompts are longer than {limit} tokens"
                ends = "left out" if wants.drops_longer else "cut on their left, the instruction first"
                cure = "" if wants.drops_longer else ", or set data.filter_overlong_prompts=true"
                self._say(path, f"longest: {max(facts.tokens)}",
                          f"{'at least ' if wants.is_least else ''}{share}: they are {ends}",
                          f"raise trainer.max_prompt_length{cure}", Stage.NEVER, is_error=False)  # fmt: skip
        if facts.repeated:
            self._say(path, facts.repeated, f"of its {facts.seen:,} prompts, so many are there before",
                      "hysweep data convert --unique leaves them out", Stage.NEVER, is_error=False)  # fmt: skip

    def _between(self) -> None:
        if shared := len(self.digests["train"] & self.digests["val"]):
            total = len(self.digests["val"])
            why = f"of the {total:,} different prompts to validate with, so many are trained on too"
            self._say("val_files", shared, why,
                      "take them out of one of the two", Stage.NEVER, is_error=False)  # fmt: skip
        there = {name for f in self.files for name in f.data_sources}
        for route, meant in self.wants.strayed(there):
            self._say(f"reward.routes.{route}", "", f"no row goes by it; {meant!r} goes by another route",
                      f"did you mean {meant!r}?", Stage.NEVER, is_error=False)  # fmt: skip
        if self.wants.names_more is not None:
            for role in ("train", "val"):
                self._mixed(role, self.wants.names_more)
        for role in ("train", "val") if self.wants.drops_longer else ():
            if (some := [f for f in self.files if f.role == role and f.rows]) and all(f.are_all_longer for f in some):
                cure = f"raise trainer.max_prompt_length, {self.wants.max_prompt_length}"
                self._say(f"{role}_files", 0, "rows are left: every prompt that was looked at is too long", cure)
        train = [f for f in self.files if f.role == "train"]
        rows = sum(f.left if self.wants.drops_longer else f.rows for f in train)
        is_known = rows and all(f.is_counted for f in train)
        if self.wants.batch is not None and is_known and rows < self.wants.batch:
            are = "are left, fewer rows" if rows < sum(f.rows for f in train) else "are fewer rows"
            self._say("train_files", rows, f"{are} than a step takes ({self.wants.batch}): nothing is trained",
                      "give more rows, or a smaller trainer.train_batch_size")  # fmt: skip

    def _mixed(self, role: str, names_more: Callable[[str], bool]) -> None:
        """verl puts a batch's metrics together by those of its first row."""
        sources = [name for f in self.files if f.role == role for name in f.data_sources]
        more = next((name for name in sources if names_more(name)), None)
        less = next((name for name in sources if not names_more(name)), None)
        if more is not None and less is not None:
            self._say(f"{role}_files", f"data_source: {shown(more)}, {shown(less)}",
                      "verl scores the first by a dict, the other by a number, and fails at a batch of both",
                      'ask verl through the router: reward=router with reward.routes of "*": verl',
                      Stage.ROLLOUT)  # fmt: skip


_ADVICE = ("the answer as its last message",)
_CURES = {
    "no data_source": "fill it: hysweep data convert --data-source NAME",
    "no ground truth": "leave them out: hysweep data convert does",
    "no message": "leave them out: hysweep data convert does",
    "an empty message": "leave them out: hysweep data convert does",
    "a role that no chat template knows": f"use one of {', '.join(ROLES)}",
    "the answer as its last message": "end a prompt with what the user says",
}


class _Faults:
    """How many rows have what, and the first of them."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, int]] = {}

    def note(self, what: str, first: int, mask: pa.Array) -> None:
        hits = np.flatnonzero(np.asarray(pc.fill_null(mask, True)))
        if len(hits):
            count, row = self.found.get(what, (0, first + int(hits[0])))
            self.found[what] = (count + len(hits), row)


def shown(text: str) -> str:
    """A value of a row as one short line."""
    line = text if text.isprintable() else repr(text)
    return line if len(line) <= 60 else f"{line[:59]}…"


def _may_be_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))


def _or_text(array: pa.Array) -> pa.Array:
    """A column of nothing but nulls as one of text."""
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array


def _array(table: pa.Table, name: str) -> pa.Array:
    chunked = table.column(name)
    array = pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_large_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    return array


def _counted(array: pa.Array) -> tuple[list[str], list[int]]:
    counts = pc.value_counts(pc.drop_null(array))
    return pc.struct_field(counts, "values").to_pylist(), pc.struct_field(counts, "counts").to_pylist()


def _by_row(mask: pa.Array, of_row: np.ndarray[Any, Any], rows: int) -> pa.Array:
    """Whether any message of a row is meant."""
    hit = np.zeros(rows, dtype=bool)
    hit[of_row[np.asarray(pc.fill_null(mask, True))]] = True
    return pa.array(hit)


def _difference(one: pa.Schema, other: pa.Schema) -> str:
    """The first column in which two files differ, in what makes a difference to who puts them together."""
    for name in dict.fromkeys([*one.names, *other.names]):
        here = one.field(name).type if name in one.names else None
        there = other.field(name).type if name in other.names else None
        if here is None or there is None:
            return f"{name} is in one of them only"
        if _bare(here) != _bare(there):
            return f"{name}: {there}, not {here}"
    return ""


def _bare(kind: pa.DataType) -> str:
    """Large or not, and what an element is called, is all the same."""
    return str(kind).replace("large_", "").replace("element: ", "item: ").replace(" not null", "")


def tokenizer_lengths(path: str, trust_remote_code: bool = False) -> Lengths:
    """Counts as verl's dataset does: the model's chat template with the prompt for an answer, no tokens added.

    Raises BadInput where there is no tokenizer, or transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as e:
        raise BadInput(
            Problem(
                "model.path", path, "its tokenizer needs transformers", "pip install transformers, or --no-tokenizer"
            )
        ) from e
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as e:
        why = f"its tokenizer cannot be loaded: {' '.join(str(e).split())[:200]}"
        cure = "give a directory in Hugging Face format, or --no-tokenizer"
        raise BadInput(Problem("model.path", path, why, cure)) from e

    def count(chats: list[list[dict[str, Any]]]) -> list[int]:
        texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        return [
            len(ids) for ids in tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        ]

    return count


def word_lengths(path: str, limit: int) -> Lengths:
    """Counts the words of chats alone, without what the chat template puts around them; 0 for what is short enough at a
    byte a token. Brings no trainer: it reads the tokenizer's file, once a prompt may be longer, and counts none where
    that file, or a reader of it, is not here."""

    @cache
    def tokenizer() -> Any:
        try:
            from tokenizers import Tokenizer

            found = Tokenizer.from_file(str(Path(path) / "tokenizer.json"))
        except Exception:  # the reader raises nothing more special
            return None
        found.no_truncation()
        return found

    def count(chats: list[list[dict[str, Any]]]) -> list[int]:
        texts = [[m["content"] for m in chat if isinstance(m.get("content"), str)] for chat in chats]
        sizes = [sum(len(text.encode("utf-8", "replace")) for text in some) for some in texts]
        if max(sizes, default=0) > limit and tokenizer() is None:
            return []
        return [
            sum(len(tokenizer().encode(text, add_special_tokens=False).ids) for text in some) if size > limit else 0
            for some, size in zip(texts, sizes, strict=True)
        ]

    return count


def rows_of(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every row as Python has it, in order."""
    for source in find(files):
        for _, piece in pieces(source):
            yield from piece().to_pylist()
