"""Any set as one parquet file in verl's columns: read in pieces, made on all cores, written in order, there or not."""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hysweep.data.columns import Made, Recipe, make, needed, with_index
from hysweep.data.sources import Piece, Source, columns_of, find, pieces, readable
from hysweep.schema import BadInput, Problem

ROW_GROUP = 131_072  # rows
HELD = 128 * 2**20  # bytes that wait for a row group to be full

SELECTED = ("parquet", "arrow")  # kinds of which columns can be left out

Watch = Callable[[int, int], None]  # bytes of the sources that lie behind, rows written
Turned = Callable[[], Made]  # a piece in verl's columns, once it is called


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of the rows. `read` is the sum of the others. `notes`: what one should know of it, a line each."""

    path: Path
    read: int
    rows: int
    no_prompt: int
    no_answer: int
    repeated: int
    seconds: float
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}

    def __str__(self) -> str:
        left = [
            f"{count:,} {what}"
            for count, what in (
                (self.no_prompt, "without a prompt"),
                (self.no_answer, "without an answer"),
                (self.repeated, "that repeat another"),
            )
            if count
        ]
        rate = f"{self.rows:,} rows" if self.seconds < 1 else f"{self.rows:,} rows, {self.read / self.seconds:,.0f}/s"
        told = f"{self.path}: {rate}" + (f"; left out {', '.join(left)}, of {self.read:,}" if left else "")
        return "\n  ".join([told, *self.notes])


def convert(
    names: Sequence[str],
    path: Path,
    recipe: Recipe,
    *,
    split: str | None = None,
    config: str | None = None,
    is_unique: bool = False,
    limit: int | None = None,
    workers: int | None = None,
    force: bool = False,
    watch: Watch = lambda seen, rows: None,
) -> Converted:
    """Make `path` of all that `names` mean (see `sources.find`), in their order.

    `is_unique` leaves out rows whose prompt was there before. Memory is that of a few pieces for each of the
    `workers` (as many as cores), and with `is_unique` 100 bytes for each different prompt. Raises BadInput; then, and
    when it is interrupted, `path` is as it was.
    """
    sources = find(names, split, config)
    if path.exists() and any(_holds(Path(source.path), path) for source in sources):
        raise BadInput(Problem("-o", path, "is one of the files that are read", "give another name"))
    if config and all(source.kind != "hub" for source in sources):
        raise BadInput(Problem("--config", config, "files have no configurations to choose of", "leave it out"))
    recipe = replace(recipe, split=recipe.split or split or "")
    done = write(_all(sources, recipe), path, is_unique, limit, workers, force, watch, _counting(recipe))
    if recipe.extra and any(source.kind == "csv" for source in sources):
        names = ", ".join(recipe.extra)
        note = f"in extra_info {names} stay text, as in the CSV: a reward has to convert what is a number"
        done = replace(done, notes=(*done.notes, note))
    return done


def _counting(recipe: Recipe) -> str:
    """What says which part of an answer counts."""
    return f"--answer-regex {recipe.answer_regex!r}" if recipe.answer_regex else "--boxed"


def _holds(source: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(source.resolve())


def _all(sources: Sequence[Source], recipe: Recipe) -> Iterator[tuple[int, Turned]]:
    columns, behind = needed(recipe), 0
    for source in sources:
        # where one is missing all are read, so that what is wrong can name them
        is_known = columns is not None and (source.kind not in SELECTED or {*columns} <= {*columns_of(source)})
        for seen, piece in pieces(source, columns if is_known else None):
            yield behind + seen, partial(_turned, piece, recipe, source.path, len(sources) > 1)
        behind += source.size


def _turned(piece: Piece, recipe: Recipe, path: str, is_named: bool) -> Made:
    """A piece in verl's columns. Of several files what is wrong is said with its file."""
    with readable(path):
        try:
            return make(piece(), recipe)
        except BadInput as e:
            if not is_named or any(p.key == "SRC" for p in e.problems):
                raise
            raise BadInput(*(replace(p, why=f"{path}: {p.why}") for p in e.problems)) from e


def turned(given: Iterable[tuple[int, Piece]], turn: Callable[[pa.Table], Made]) -> Iterator[tuple[int, Turned]]:
    """Pieces, each to be turned when it is called."""
    return ((seen, lambda piece=piece: turn(piece())) for seen, piece in given)  # type: ignore[misc]


def write(
    given: Iterable[tuple[int, Turned]],
    path: Path,
    is_unique: bool = False,
    limit: int | None = None,
    workers: int | None = None,
    force: bool = False,
    watch: Watch = lambda seen, rows: None,
    counting: str = "",
) -> Converted:
    """What is given, each turned into verl's columns on some core, as one file. See `convert`.

    counting  what may find nothing in an answer, in words
    """
    began = time.monotonic()
    workers = workers or len(os.sched_getaffinity(0))
    read = no_prompt = no_answer = repeated = 0
    seen_prompts: set[bytes] = set()
    notes: tuple[str, ...] = ()
    with draft(path, force) as writer, ThreadPoolExecutor(workers) as pool:
        for position, made in _in_order(pool, given, workers + 1):
            if made.unmatched is not None and not notes:
                row, answer = made.unmatched
                notes = (f"{counting} finds nothing in row {read + row}, whose answer is {_shortened(answer)!r}",)
            read += made.table.num_rows + made.no_prompt + made.no_answer
            no_prompt += made.no_prompt
            no_answer += made.no_answer
            if is_unique:
                before = made.table.num_rows
                made = _only_new(made, seen_prompts)
                repeated += before - made.table.num_rows
            room = made.table.num_rows if limit is None else limit - writer.rows
            if room < made.table.num_rows:
                read -= made.table.num_rows - room
                made = replace(
                    made, table=made.table.slice(0, room), extra={k: a.slice(0, room) for k, a in made.extra.items()}
                )
            writer.add(with_index(made, writer.rows))
            watch(position, writer.rows)
            if limit is not None and writer.rows >= limit:
                break
        if not writer.rows:
            why = "none has both a prompt and an answer" + "".join(f": {note}" for note in notes)
            raise BadInput(Problem("SRC", f"{read} rows", why, "mend that" if notes else "look at the mapping"))
        rows = writer.rows
    return Converted(path, read, rows, no_prompt, no_answer, repeated, time.monotonic() - began, notes)


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


def _in_order(pool: ThreadPoolExecutor, given: Iterable[tuple[int, Turned]], most: int) -> Iterator[tuple[int, Made]]:
    """At most `most` pieces are between their reading and their writing."""
    waiting: deque[tuple[int, Future[Made]]] = deque()
    try:
        for position, turned in given:
            waiting.append((position, pool.submit(turned)))
            if len(waiting) >= most:
                at, future = waiting.popleft()
                yield at, future.result()
        while waiting:
            at, future = waiting.popleft()
            yield at, future.result()
    finally:
        for _, future in waiting:
            future.cancel()


def _only_new(made: Made, seen: set[bytes]) -> Made:
    keep = [(digest not in seen and not seen.add(digest)) for digest in prompt_digests(made.table.column("prompt"))]  # type: ignore[func-returns-value]
    if all(keep):
        return made
    mask = pa.array(keep)
    return replace(made, table=made.table.filter(mask), extra={k: a.filter(mask) for k, a in made.extra.items()})


def prompt_digests(prompt: pa.ChunkedArray | pa.Array) -> list[bytes]:
    """What two prompts have in common only if they are the same: by their roles and words."""
    array = prompt.combine_chunks() if isinstance(prompt, pa.ChunkedArray) else prompt
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    flat = array.flatten()
    content = pc.struct_field(flat, "content")
    if pa.types.is_string(content.type):
        told = pc.binary_join_element_wise(
            pc.fill_null(pc.struct_field(flat, "role"), ""), pc.fill_null(content, ""), "\x1e"
        )
        joined = pc.binary_join(pa.ListArray.from_arrays(_offsets(array), told), "\x1f").to_pylist()
    else:
        joined = [repr(chat) for chat in array.to_pylist()]
    return [hashlib.blake2b(text.encode(), digest_size=12).digest() for text in joined]


def _offsets(array: pa.Array) -> pa.Array:
    """From 0, of an array that may be a slice."""
    first = array.offsets[0]
    return pc.subtract(array.offsets, first)


class Writer:
    """Row groups as they fill."""

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self._path = path
        self._file: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None
        self._held: list[pa.Table] = []
        self._held_rows = self._held_bytes = 0

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        if self._schema is None:
            self._schema = table.schema
        elif table.schema != self._schema:
            table = self._fitted(table)
        self._held.append(table)
        self.rows += table.num_rows
        self._held_rows += table.num_rows
        self._held_bytes += table.nbytes
        if self._held_rows >= ROW_GROUP or self._held_bytes >= HELD:
            self._flush()

    def _fitted(self, table: pa.Table) -> pa.Table:
        """Columns may come in another order, and their numbers as other numbers; nothing may be lost."""
        assert self._schema is not None
        try:
            return _cast(table, self._schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as e:
            why = f"from row {self.rows} on a column has another type: {' '.join(str(e).split())[:200]}"
            raise BadInput(Problem("SRC", "columns", why, "leave it out, or give the answer by --answer COLUMN")) from e

    def _flush(self) -> None:
        if not self._held:
            return
        if self._file is None:
            assert self._schema is not None
            words = ["data_source", "ability", "prompt.list.element.role", "reward_model.style", "extra_info.split"]
            self._file = pq.ParquetWriter(self._path, self._schema, compression="snappy", use_dictionary=words)
        self._file.write_table(pa.concat_tables(self._held), row_group_size=ROW_GROUP)
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        if self._file is not None:
            self._file.close()


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        _same_truth(column.type, field.type, field.name)
        if pa.types.is_struct(field.type) and column.type != field.type:
            whole = column.combine_chunks()
            whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
            extra = {f.name for f in whole.type} - {f.name for f in field.type}
            if extra:
                raise KeyError(f"{field.name} has {', '.join(sorted(extra))}, which the rows before it had not")
            parts = [
                pc.struct_field(whole, f.name).cast(f.type)
                if whole.type.get_field_index(f.name) >= 0
                else pa.nulls(len(whole), f.type)
                for f in field.type
            ]
            column = pa.StructArray.from_arrays(parts, fields=list(field.type))
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=schema)


def _same_truth(kind: pa.DataType, wanted: pa.DataType, name: str) -> None:
    """Raises KeyError where Arrow would cast numbers to true and false, or these to numbers."""
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        for f in wanted:
            if kind.get_field_index(f.name) >= 0:
                _same_truth(kind.field(f.name).type, f.type, f"{name}.{f.name}")
    elif pa.types.is_list(kind) and pa.types.is_list(wanted):
        _same_truth(kind.value_type, wanted.value_type, name)
    elif {pa.types.is_boolean(kind), pa.types.is_boolean(wanted)} == {True, False}:
        other = wanted if pa.types.is_boolean(kind) else kind
        if pa.types.is_integer(other) or pa.types.is_floating(other):
            raise KeyError(f"{name} is {kind}, and was {wanted} in the rows before it")


@contextmanager
def draft(path: Path, force: bool = False) -> Iterator[Writer]:
    """A writer beside `path` that takes its name once all is written; else nothing is left of it."""
    if path.is_dir() or path.suffix != ".parquet":
        raise BadInput(Problem("-o", path, "is no name of a parquet file", f"as {path / 'train.parquet'}"))
    if path.exists() and not force:
        raise BadInput(Problem("-o", path, "is there already", "give another name, or --force to write over it"))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as e:
        raise BadInput(Problem("-o", path, f"cannot be written: {e.strerror}", "give a place that can be")) from e
    for left in path.parent.glob(f".{path.name}.*.part"):  # by one that was killed
        pid = left.name.split(".")[-2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            left.unlink(missing_ok=True)
    writer = Writer(part)
    try:
        yield writer
        writer.close()
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(Exception):
            writer.close()
        part.unlink(missing_ok=True)
        raise
