"""The five columns that verl reads, made of a table's own columns. Whole columns at a time, nothing row by row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from hysweep.schema import BadInput, Problem, Unsaid, suggest
from hysweep.schema.problem import unreadable_yaml

MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.\-]*)\}")
# What chats of other shapes call their fields and their speakers.
FIELDS = {"from": "role", "value": "content", "speaker": "role", "text": "content"}
SPEAKERS = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant", "prompter": "user"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What becomes of a table's columns.

    prompt       a column: text, or chat messages; or a text with {column} in it
    answer       a column, or such a text: the ground truth; empty: the table has reward_model already
    answer_regex what of it counts: its first group, or all that matches
    boxed        of the answer only what stands in its last \\boxed{}
    system       a system message before each prompt; {column} in it is filled in
    data_source, ability, style   texts likewise; style is reward_model's
    extra        columns that go into extra_info, as they are
    split        what extra_info says the split is
    """

    prompt: str = ""
    answer: str = ""
    answer_regex: str = ""
    boxed: bool = False
    system: str = ""
    data_source: str = ""
    ability: str = ""
    style: str = "rule"
    extra: tuple[str, ...] = ()
    split: str = ""


def read_recipe(path: Path, given: Mapping[str, Any]) -> Recipe:
    """A recipe from a YAML or JSON file of `Recipe`'s fields, with what is `given` before it. Raises BadInput."""
    known = {f.name for f in fields(Recipe)}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as e:
        raise BadInput(Problem("--mapping", path, e.strerror or str(e), "give a YAML file")) from e
    except (yaml.YAMLError, UnicodeError) as e:
        raise BadInput(Problem("--mapping", path, f"is no YAML: {unreadable_yaml(e)}", "mend it")) from e
    if not isinstance(found, dict):
        raise BadInput(Problem("--mapping", path, "is no mapping", "as in: prompt: question"))
    wrong = [Problem("--mapping", name, "is no part of a mapping", suggest(str(name), known))
             for name in found if name not in known]  # fmt: skip
    extra = found.get("extra") or ()
    found["extra"] = tuple(extra.split(",") if isinstance(extra, str) else extra if isinstance(extra, list) else ())
    for name, kind, what in (("boxed", bool, "true or false"), ("extra", str, "a list of columns"),
                             *((f.name, str, "a text") for f in fields(Recipe) if f.type == "str")):  # fmt: skip
        values = extra or () if name == "extra" else [found[name]] if name in found else []
        if not isinstance(values, (list, tuple, str)) or not all(isinstance(v, kind) for v in values):
            value = extra if name == "extra" else found[name]
            wrong.append(Problem(f"--mapping {name}", value, f"is not {what}", f"give {what}"))
    if wrong:
        raise BadInput(*wrong)
    return Recipe(**{**found, **given})


def needed(recipe: Recipe) -> list[str] | None:
    """The columns to read; None: all, since the table may be in verl's shape."""
    if not recipe.prompt or not recipe.answer or not recipe.data_source:
        return None
    names = [*recipe.extra]
    for text, is_column in _texts(recipe):
        names += [part for part, is_name in parts_of(text, is_column) if is_name]
    return list(dict.fromkeys(part for name in names for part in (name, name.partition(".")[0])))


def _texts(recipe: Recipe) -> Iterable[tuple[str, bool]]:
    yield recipe.prompt, True
    yield recipe.answer, True
    for text in (recipe.system, recipe.data_source, recipe.ability, recipe.style):
        yield text, False


def parts_of(text: str, is_column: bool) -> list[tuple[str, bool]]:
    """The pieces of a text, each with whether it names a column. A bare word may be the name of one."""
    if not PLACE.search(text):
        return [(text, is_column)] if text else []
    parts: list[tuple[str, bool]] = []
    at = 0
    for match in PLACE.finditer(text):
        parts.append((text[at : match.start()], False))
        parts.append((match[1], True) if match[1] else (match[0][0], False))
        at = match.end()
    parts.append((text[at:], False))
    return [(part, is_name) for part, is_name in parts if part]


@dataclass(frozen=True, slots=True)
class Made:
    """A piece in verl's columns, without the index of its rows; and how many rows had no prompt, or no answer.
    `unmatched`: the first row of the piece in whose answer nothing counts, by --answer-regex or --boxed, and that
    answer."""

    table: pa.Table
    extra: dict[str, pa.Array]
    no_prompt: int
    no_answer: int
    unmatched: tuple[int, str] | None = None


def make(table: pa.Table, recipe: Recipe) -> Made:
    """Raises BadInput for a column that is not there or has a type that nothing can be made of."""
    table = table.combine_chunks()
    rows = table.num_rows
    prompt = _messages(table, recipe)
    reward_model, unmatched = _reward_model(table, recipe)
    has_prompt = _has_words(prompt)
    has_answer = _has_text(reward_model)
    keep = pc.and_(has_prompt, has_answer)
    out = pa.table(
        {
            "data_source": _text(table, recipe.data_source, False)
            if recipe.data_source
            else _own(table, "data_source"),
            "prompt": prompt,
            "ability": _text(table, recipe.ability, False) if recipe.ability else _own_or(table, "ability", ""),
            "reward_model": reward_model,
        }
    )
    asked = {name: name.rpartition(".")[2] for name in recipe.extra}
    if twice := [name for name, field in asked.items() if list(asked.values()).count(field) > 1]:
        cure = "take one of them, or rename a column first"
        raise BadInput(Problem("--extra", ",".join(twice), "would be one field of extra_info", cure))
    extra = {field: _column(table, name) for name, field in asked.items()}
    if "extra_info" in table.column_names and pa.types.is_struct(table.schema.field("extra_info").type):
        own = _array(table, "extra_info")
        extra = {f.name: pc.struct_field(own, f.name) for f in own.type if f.name not in extra} | extra
    if recipe.split:
        extra["split"] = pa.repeat(recipe.split, rows)
    for name in ("images", "videos", "audios"):
        if name in table.column_names:
            out = out.append_column(name, _array(table, name))
    no_prompt = rows - int(pc.sum(has_prompt).as_py() or 0)
    dropped = rows - int(pc.sum(keep).as_py() or 0)
    if dropped:
        out = out.filter(keep)
        extra = {name: array.filter(keep) for name, array in extra.items()}
    return Made(out, extra, no_prompt, dropped - no_prompt, unmatched)


# --- texts


def _column(table: pa.Table, name: str) -> pa.Array:
    """A column, or with dots a field within one."""
    if name in table.column_names:
        return _array(table, name)
    head, _, rest = name.partition(".")
    if head not in table.column_names:
        raise BadInput(Problem("column", name, "is not there", _which(name, table)))
    array = _array(table, head)
    for part in rest.split("."):
        if not pa.types.is_struct(array.type) or array.type.get_field_index(part) < 0:
            raise BadInput(Problem("column", name, f"{head} has no {part}", f"its type is {array.type}"))
        array = pc.struct_field(array, part)
    return array


def _which(name: str, table: pa.Table) -> str:
    close = suggest(name, table.column_names)
    return f"the columns are {', '.join(table.column_names) or '(none)'}" + (
        f"; {close}" if close.startswith("did") else ""
    )


def _array(table: pa.Table, name: str) -> pa.Array:
    chunked = table.column(name)
    array = chunked.chunk(0) if chunked.num_chunks == 1 else pa.concat_arrays(chunked.chunks or [pa.nulls(0)])
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _own(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        flag = f"--{name.replace('_', '-')}"
        raise BadInput(Problem(name, Unsaid.VALUE, "is not said, and no column has its name", f"give {flag} NAME"))
    return as_text(_array(table, name), name)


def _own_or(table: pa.Table, name: str, other: str) -> pa.Array:
    return as_text(_array(table, name), name) if name in table.column_names else pa.repeat(other, table.num_rows)


def _text(table: pa.Table, text: str, is_column: bool) -> pa.Array:
    """A column as text, or a text with columns filled in; null where one of them is."""
    parts = parts_of(text, is_column)
    if len(parts) == 1 and not parts[0][1]:
        return pa.repeat(parts[0][0], table.num_rows)
    arrays = [as_text(_column(table, part), part) if is_name else pa.scalar(part) for part, is_name in parts]
    if len(arrays) == 1:
        return arrays[0]
    return pc.binary_join_element_wise(*arrays, pa.scalar(""), null_handling="emit_null")


def as_text(array: pa.Array, name: str) -> pa.Array:
    """The column `name` as text: numbers as they are written, NaN as missing, lists and structs as JSON."""
    kind = array.type
    if pa.types.is_string(kind):
        return array
    try:
        if pa.types.is_nested(kind):
            told = [None if v is None else json.dumps(v, ensure_ascii=False, default=_told) for v in array.to_pylist()]
            return pa.array(told, pa.string())
        if pa.types.is_floating(kind):
            array = pc.if_else(pc.is_nan(array), pa.scalar(None, kind), array)
        return array.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as e:
        raise BadInput(Problem("column", name, f"is of a type that is no text: {kind}", "leave it out")) from e


def _told(value: object) -> str:
    """A date, a decimal number within a list. Raises TypeError for bytes."""
    if isinstance(value, bytes):
        raise TypeError("bytes are no text")
    return str(value)


# --- prompts


def _messages(table: pa.Table, recipe: Recipe) -> pa.Array:
    name = recipe.prompt or ("prompt" if "prompt" in table.column_names else "")
    if not name:
        why = f"is not said; the columns are {', '.join(table.column_names)}"
        raise BadInput(Problem("prompt", Unsaid.VALUE, why, "name one: --prompt COLUMN"))
    parts = parts_of(name, True)
    array = _column(table, name) if parts == [(name, True)] else None
    if array is not None and pa.types.is_list(_plain_list(array).type):
        chat = _chat(_plain_list(array), name)
    else:
        chat = _one_message("user", as_text(array, name) if array is not None else _text(table, name, True))
    if not recipe.system:
        return chat
    if chat.type.value_type != MESSAGE:
        raise BadInput(Problem("system", recipe.system, "cannot go before messages with images", "leave it out"))
    return _before(chat, _text(table, recipe.system, False))


def _plain_list(array: pa.Array) -> pa.Array:
    if pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        return array.cast(pa.list_(array.type.value_type))
    return array


def _one_message(role: str, content: pa.Array) -> pa.Array:
    offsets = pa.array(np.arange(len(content) + 1, dtype=np.int32))
    message = pa.StructArray.from_arrays([pa.repeat(role, len(content)), content], fields=list(MESSAGE))
    return pa.ListArray.from_arrays(offsets, message)


def _chat(array: pa.Array, name: str) -> pa.Array:
    """Chat messages with role and content and nothing else, whatever the fields were called."""
    kind = array.type.value_type
    names = {FIELDS.get(f.name, f.name): f.name for f in kind} if pa.types.is_struct(kind) else {}
    if not {"role", "content"} <= set(names):
        why = f"is a list, but not of messages with role and content: {array.type}"
        raise BadInput(Problem("prompt", name, why, "name a column of text or of chat messages"))
    flat = array.flatten()
    role = as_text(pc.struct_field(flat, names["role"]), name)
    if names["role"] != "role":
        for theirs, ours in SPEAKERS.items():
            role = pc.if_else(pc.equal(role, theirs), ours, role)
    content = pc.struct_field(flat, names["content"])
    if not pa.types.is_nested(content.type):  # a list of parts is a message with images
        content = as_text(content, name)
    message = pa.StructArray.from_arrays([role, content], names=["role", "content"])
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    offsets = np.zeros(len(array) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), message)


def _before(chat: pa.Array, system: pa.Array) -> pa.Array:
    """Each chat with a message of the system's before it."""
    flat = chat.flatten()
    first = pa.StructArray.from_arrays([pa.repeat("system", len(system)), system], fields=list(MESSAGE))
    lengths = np.asarray(chat.value_lengths()).astype(np.int64)
    offsets = np.zeros(len(chat) + 1, dtype=np.int64)
    np.cumsum(lengths + 1, out=offsets[1:])
    order = np.arange(len(flat) + len(system), dtype=np.int64)
    heads = offsets[:-1]
    is_head = np.zeros(len(order), dtype=bool)
    is_head[heads] = True
    order[is_head] = len(flat) + np.arange(len(system))
    order[~is_head] = np.arange(len(flat))
    messages = pa.concat_arrays([flat, first]).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), messages)


def _has_words(chat: pa.Array) -> pa.Array:
    """Whether a chat has messages, each of them with something in it."""
    flat, lengths = chat.flatten(), np.asarray(chat.value_lengths())
    content = pc.struct_field(flat, "content")
    if pa.types.is_nested(content.type):
        return pa.array(lengths > 0)
    is_blank = np.asarray(pc.fill_null(pc.equal(pc.binary_length(pc.utf8_trim_whitespace(content)), 0), True))
    blanks = np.zeros(len(flat) + 1, dtype=np.int64)
    np.cumsum(is_blank, out=blanks[1:])
    offsets = np.zeros(len(chat) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array((lengths > 0) & (blanks[offsets[1:]] == blanks[offsets[:-1]]))


# --- answers


def _reward_model(table: pa.Table, recipe: Recipe) -> tuple[pa.Array, tuple[int, str] | None]:
    """And `Made.unmatched`."""
    style = _text(table, recipe.style, False)
    if recipe.answer:
        answer = _text(table, recipe.answer, True)
    elif "reward_model" in table.column_names and pa.types.is_struct(table.schema.field("reward_model").type):
        own = _array(table, "reward_model")
        if own.type.get_field_index("ground_truth") < 0:
            raise BadInput(Problem("reward_model", own.type, "has no ground_truth", "name a column: --answer COLUMN"))
        if not (recipe.answer_regex or recipe.boxed):
            return own, None
        answer = as_text(pc.struct_field(own, "ground_truth"), "reward_model.ground_truth")
    else:
        why = f"is not said; the columns are {', '.join(table.column_names)}"
        raise BadInput(Problem("answer", Unsaid.VALUE, why, "name one: --answer COLUMN"))
    whole = answer
    if recipe.boxed:
        answer = pa.array([None if v is None else last_boxed(v) for v in answer.to_pylist()], pa.string())
    if recipe.answer_regex:
        answer = _extracted(answer, recipe.answer_regex)
    made = pa.StructArray.from_arrays([style, answer], names=["style", "ground_truth"])
    if answer is whole or answer.null_count == whole.null_count:
        return made, None
    first = pc.index(pc.and_(pc.is_null(answer), pc.is_valid(whole)), True).as_py()
    return made, (first, whole[first].as_py())


_ELSEWHERE = re.compile(r"\$|\{,|\[:")  # means another thing to Arrow than to Python
_FIRST = re.compile(r"(?<!\\)((?:\\\\)*)\((?!\?)")  # what opens the first group, if none is within brackets


def _extracted(answer: pa.Array, pattern: str) -> pa.Array:
    """The first group of a pattern where it matches first, or all that matches. Raises BadInput.

    Arrow's expressions are fast, and take named groups alone and no looking ahead: what it does not take, Python does,
    and what it takes otherwise. Its letters and digits are ASCII's.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as e:
        raise BadInput(Problem("--answer-regex", pattern, f"is no regular expression: {e}", "mend it")) from e
    is_alike = not _ELSEWHERE.search(pattern) and pc.all(pc.string_is_ascii(answer)).as_py() is not False
    if compiled.groups <= 1 and is_alike:
        named = _FIRST.sub(r"\1(?P<answer>", pattern, 1) if compiled.groups else f"(?P<answer>{pattern})"
        with suppress(pa.ArrowInvalid):
            return pc.struct_field(pc.extract_regex(answer, pattern=named), "answer")
    found = (None if text is None else compiled.search(text) for text in answer.to_pylist())
    return pa.array([None if match is None else match[min(compiled.groups, 1)] for match in found], pa.string())


def last_boxed(text: str) -> str | None:
    """What stands in the last \\boxed{...} (or \\fbox) of a text, its own braces included; None where there is none."""
    at = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if at < 0:
        return None
    rest = text[at:].split("{", 1)
    if len(rest) < 2 or rest[0].strip() not in ("\\boxed", "\\fbox"):
        spaced = re.match(r"\\boxed ([^\s$]+)", text[at:])  # MATH has a few without braces
        return spaced[1] if spaced else None
    depth = 1
    for i, c in enumerate(rest[1]):
        depth += {"{": 1, "}": -1}.get(c, 0)
        if not depth:
            return rest[1][:i]
    return None


def _has_text(reward_model: pa.Array) -> pa.Array:
    answer = pc.struct_field(reward_model, "ground_truth")
    if pa.types.is_nested(answer.type) or not pa.types.is_string(answer.type):
        return pc.is_valid(answer)
    return pc.fill_null(pc.greater(pc.binary_length(pc.utf8_trim_whitespace(answer)), 0), False)


def with_index(made: Made, first: int) -> pa.Table:
    """The whole table: extra_info gets each row's index, counted from `first`, unless the rows bring one."""
    extra = dict(made.extra)
    if "index" not in extra:
        extra["index"] = pa.array(np.arange(first, first + made.table.num_rows, dtype=np.int64))
    arrays = [a.cast(pa.string()) if pa.types.is_null(a.type) else a for a in extra.values()]
    return made.table.append_column("extra_info", pa.StructArray.from_arrays(arrays, names=list(extra)))
