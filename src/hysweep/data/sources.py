"""Where rows come from: files of many kinds, each opened as a stream of pieces that any core can read.

A piece is a few megabytes. Files of lines are cut where a line ends, so their pieces are parsed side by side; memory
holds a handful of pieces, whatever the file's size.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from glob import glob, has_magic
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from hysweep.schema import BadInput, Problem, Unsaid

TAB = "\t"
BLOCK = 8 * 2**20  # bytes of a piece
ROWS = 32_768  # of a piece whose rows are in columns already
MAPPED = 256 * 2**20  # an Arrow batch beyond this is mapped, not read

KINDS = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "csv",
}  # fmt: skip
PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
LEFT_BEHIND = re.compile(r"(?:^|/)cache-\w+\.arrow\Z")  # by `datasets`, beside the files of a set
HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*\Z")

AS_UTF8 = "convert it, as with `iconv -f latin1 -t utf-8 FILE > NEW`; latin1 stands for what it is in"

Piece = Callable[[], pa.Table]


@dataclass(frozen=True, slots=True)
class Source:
    """`kind`: one of KINDS' values, or hub: what `datasets` loads. `size` in bytes, 0 where it is not known."""

    path: str
    kind: str
    size: int = 0
    config: str | None = None
    split: str | None = None


def find(names: Sequence[str], split: str | None = None, config: str | None = None) -> list[Source]:
    """The sources that names mean: files, patterns, directories of `save_to_disk`, local copies and ids of hub sets.

    `split` and `config` choose within sets that have several. Raises BadInput, all its problems at once.
    """
    found: list[Source] = []
    problems: list[Problem] = []
    for name in names:
        try:
            found += _named(name, split, config)
        except BadInput as e:
            problems += e.problems
    if problems:
        raise BadInput(*problems)
    if not found:
        raise BadInput(
            Problem("SRC", Unsaid.VALUE, "names nothing to read", "give files, a pattern, a directory or a hub id")
        )
    return found


def _named(name: str, split: str | None, config: str | None) -> list[Source]:
    if not name.strip():
        raise BadInput(Problem("SRC", "''", "names nothing to read", "give files, a pattern, a directory or a hub id"))
    path = Path(name).expanduser()
    if path.is_dir():
        return _directory(path, split, config)
    if path.is_file():
        return [_file(path)]
    if has_magic(name):
        matched = [m for m in sorted(glob(str(path), recursive=True)) if not LEFT_BEHIND.search(m)]
        if not matched:
            raise BadInput(Problem("SRC", name, "matches no file", f"looked from {Path.cwd()}"))
        return [source for match in matched for source in _named(match, split, config)]
    if HUB_ID.match(name) and kind_of(path) is None:
        return [Source(name, "hub", 0, config, split)]
    raise BadInput(Problem("SRC", name, "there is no such file", f"looked for {path.absolute()}"))


def kind_of(path: Path) -> str | None:
    """By the suffix, before that of a compression."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in PACKED:
        suffixes = suffixes[:-1]
    return KINDS.get(suffixes[-1].lower()) if suffixes else None


def _file(path: Path) -> Source:
    kind = kind_of(path)
    if kind is None:
        known = ", ".join(KINDS)
        raise BadInput(Problem("SRC", path, "is of no kind that is read", f"give one of {known}, or a directory"))
    if kind in ("parquet", "arrow") and path.suffix in PACKED:
        raise BadInput(Problem("SRC", path, f"{kind} files are compressed inside, not outside", "unpack it first"))
    return Source(str(path), kind, path.stat().st_size)


def _directory(path: Path, split: str | None, config: str | None) -> list[Source]:
    if (path / "dataset_dict.json").is_file():  # a DatasetDict that was saved
        splits = saved(path / "dataset_dict.json", "splits")
        chosen = split or (splits[0] if len(splits) == 1 else None)
        if chosen not in splits:
            why = f"has the splits {', '.join(map(str, splits)) or '(none)'}"
            raise BadInput(Problem("SRC", path, why, "choose one: --split NAME"))
        return _directory(path / str(chosen), None, None)
    if (path / "state.json").is_file():  # a Dataset that was saved
        shards = [path / str(entry.get("filename")) for entry in saved(path / "state.json", "_data_files")]
        if any(saved(path / "state.json", key) for key in ("_indices_files", "_indices_data_files")):
            why = "was saved with a selection of its rows beside them"
            raise BadInput(Problem("SRC", path, why, "save it again after flatten_indices()"))
        if not shards:
            raise BadInput(Problem("SRC", path, "has a state.json that names no file", "save the set again"))
        if lost := [shard.name for shard in shards if not shard.is_file()]:
            raise BadInput(Problem("SRC", path, f"has lost {', '.join(lost)}", "copy it again, or save it again"))
        return [_file(shard) for shard in shards]
    if not any(kind_of(p) for p in path.rglob("*")):
        raise BadInput(Problem("SRC", path, "holds no file of a kind that is read", f"give {', '.join(KINDS)}"))
    size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return [Source(str(path), "hub", size, config, split)]


def saved(path: Path, key: str) -> list[Any]:
    """A list of what `datasets` wrote beside a set; empty where it wrote none. Raises BadInput where that is broken."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise BadInput(Problem("SRC", path, f"cannot be read: {_short(e)}", "save the set again")) from e
    found = said.get(key) if isinstance(said, dict) else None
    return found if isinstance(found, list) else []


def pieces(source: Source, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Piece]]:
    """The pieces of a source in order, each with how many bytes of it lie behind when it is given out.

    `columns`: what is needed of files that can leave out the rest. Raises BadInput for what cannot be read; so does
    a piece, when it is called.
    """
    with readable(source.path):
        for position, piece in _opened(source, columns):
            yield position, partial(_sound, piece, source.path)


def _opened(source: Source, columns: Sequence[str] | None) -> Iterator[tuple[int, Piece]]:
    if source.kind == "parquet":
        return _parquet(source, columns)
    if source.kind == "arrow":
        return _arrow(source, columns)
    if source.kind == "hub":
        return _hub(source)
    return _csv(source) if source.kind == "csv" else _json(source)


@contextmanager
def readable(path: str) -> Iterator[None]:
    """What goes wrong with a file is said with its name, by BadInput."""
    try:
        yield
    except RecursionError as e:
        raise BadInput(Problem("SRC", path, "has values nested too deep to be read", "leave them out")) from e
    except UnicodeError as e:
        cure = AS_UTF8 if isinstance(e, UnicodeDecodeError) else "leave out what is no character"
        raise BadInput(Problem("SRC", path, f"is no UTF-8: {_short(e)}", cure)) from e
    except (pa.ArrowException, EOFError) as e:
        raise BadInput(Problem("SRC", path, f"cannot be read: {_short(e)}", "see whether it is whole")) from e


def _sound(piece: Piece, path: str) -> pa.Table:
    """A piece whose columns have different names and whose text is text: Arrow reads other files too."""
    with readable(path):
        table = piece()
        differ(table.column_names, path)
        try:
            table.validate(full=True)
        except pa.ArrowInvalid as e:
            if "UTF8" in str(e):
                raise BadInput(Problem("SRC", path, f"is no UTF-8: {_short(e)}", AS_UTF8)) from e
            raise
        return table


def differ(names: Sequence[str], path: str) -> None:
    """Raises BadInput where two columns have one name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise BadInput(Problem("SRC", path, f"has more than one column {', '.join(twice)}", "rename all but one"))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _given(table: pa.Table) -> Piece:
    return lambda: table


# --- columns


def _parquet(source: Source, columns: Sequence[str] | None) -> Iterator[tuple[int, Piece]]:
    # pages are read as they are needed: a row group of gigabytes is no more memory than a small one
    with pq.ParquetFile(source.path, memory_map=False, pre_buffer=False, buffer_size=2**20) as file:
        there = file.schema_arrow.names
        wanted = None if columns is None else [c for c in columns if c in there]
        total, seen = file.metadata.num_rows or 1, 0
        for batch in file.iter_batches(batch_size=ROWS, columns=wanted):
            seen += batch.num_rows
            yield source.size * seen // total, _given(pa.Table.from_batches([batch]))


def _arrow(source: Source, columns: Sequence[str] | None) -> Iterator[tuple[int, Piece]]:
    """`datasets` writes streams of small batches, others files; few batches may hold all of one."""
    for position, batches in _gathered(_batches(source)):
        table = pa.Table.from_batches(batches)
        if columns is not None:
            table = table.select([c for c in columns if c in table.column_names])
        yield position, _given(table)


def _batches(source: Source) -> Iterator[tuple[int, pa.RecordBatch]]:
    with open(source.path, "rb") as start:
        is_file = start.read(6) == b"ARROW1"
    if is_file:
        with pa.memory_map(source.path) as mapped:
            count = max(pa.ipc.open_file(mapped).num_record_batches, 1)
        huge = source.size / count > MAPPED
        with pa.memory_map(source.path) if huge else pa.OSFile(source.path) as file, pa.ipc.open_file(file) as reader:
            for at in range(reader.num_record_batches):
                for batch in _sliced(reader.get_batch(at)):
                    yield source.size * (at + 1) // count, batch
    else:
        with pa.OSFile(source.path) as file, pa.ipc.open_stream(file) as stream:
            for whole in stream:
                for batch in _sliced(whole):
                    yield file.tell(), batch


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(at, ROWS) for at in range(0, batch.num_rows, ROWS))


def _gathered(batches: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    held: list[pa.RecordBatch] = []
    rows = position = 0
    for position, batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= ROWS:
            yield position, held
            held, rows = [], 0
    if held:
        yield position, held


def _hub(source: Source) -> Iterator[tuple[int, Piece]]:
    from hysweep.data.hub import load

    seen = 0
    for table in load(source.path, source.config, source.split).with_format("arrow").iter(batch_size=ROWS):
        seen += table.nbytes
        yield min(seen, source.size) if source.size else seen, _given(table)


# --- lines


def _blocks(source: Source, cut: Callable[[bytes], int]) -> Iterator[tuple[int, bytes]]:
    """The text in blocks; `cut` says how much of one is whole, the rest goes before the next."""
    codec = PACKED.get(Path(source.path).suffix)
    with open(source.path, "rb") as raw:
        stream: IO[bytes] = pa.CompressedInputStream(raw, codec) if codec else raw
        rest = b""
        while read := stream.read(BLOCK):
            block = rest + read
            whole = cut(block)
            rest = block[whole:]
            if whole:
                yield min(raw.tell(), source.size), block[:whole]
        if rest.strip():
            yield source.size, rest


def _csv(source: Source) -> Iterator[tuple[int, Piece]]:
    """Each field is text: what a number was meant to be, the mapping knows. Fields in quotes may hold line ends."""
    delimiter = TAB if ".tsv" in Path(source.path).suffixes else ","
    header: list[str] | None = None
    for position, block in _blocks(source, _csv_cut):
        if header is None:
            block = block.removeprefix(b"\xef\xbb\xbf")
            end = _csv_first(block)
            header = _csv_table(block[:end], None, delimiter, source.path).column_names
            _separated(header, delimiter, source.path)
            block = block[end:]
        if block.strip():
            yield position, lambda b=block, h=header: _csv_table(b, h, delimiter, source.path)  # type: ignore[misc]
    if header is None:
        raise BadInput(Problem("SRC", source.path, "is empty", "give a file with a line of column names"))


def _separated(header: list[str], delimiter: str, path: str) -> None:
    """Raises BadInput where all names of columns are one, with another separator in it."""
    if len(header) == 1 and (other := next((c for c in ";\t,|" if c != delimiter and c in header[0]), None)):
        is_tab = other == TAB
        seems = f"the separator seems to be {'a tab' if is_tab else other} (it has one column, {header[0]!r})"
        wanted = "tabs" if delimiter == TAB else "commas"
        cure = "name it .tsv" if is_tab else f"save it with {wanted}" + ", or name it .csv" * (other == ",")
        raise BadInput(Problem("SRC", path, seems, cure))


def _csv_cut(block: bytes) -> int:
    """After the last line end that is in no quotes: as many quotes lie before it as make pairs."""
    odd = block.count(b'"') % 2
    end = len(block)
    while (at := block.rfind(b"\n", 0, end)) >= 0:
        odd ^= block.count(b'"', at, end) % 2
        if not odd:
            return at + 1
        end = at
    return 0


def _csv_first(block: bytes) -> int:
    """After the first line end that is in no quotes."""
    at = -1
    while (at := block.find(b"\n", at + 1)) >= 0:
        if block.count(b'"', 0, at) % 2 == 0:
            return at + 1
    return len(block)


def _csv_table(block: bytes, header: list[str] | None, delimiter: str, path: str) -> pa.Table:
    text = pa.string()
    try:
        return pyarrow.csv.read_csv(
            pa.BufferReader(block),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=header),
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(header or [], text), strings_can_be_null=True, null_values=[""],
                quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip
    except pa.ArrowInvalid as e:
        cure = AS_UTF8 if "UTF8" in str(e) else "mend that line"
        raise BadInput(Problem("SRC", path, f"is no CSV that can be read: {_short(e)}", cure)) from e


def _json(source: Source) -> Iterator[tuple[int, Piece]]:
    """Lines of objects, or one list of them."""
    codec = PACKED.get(Path(source.path).suffix)
    with open(source.path, "rb") as raw:
        start = (pa.CompressedInputStream(raw, codec) if codec else raw).read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        raise BadInput(Problem("SRC", source.path, "is empty", "give a file with rows"))
    if start[:1] == b"[":
        splitter = _Elements()
        for position, block in _blocks(source, splitter.cut):
            if elements := splitter.take(block):
                yield position, lambda b=elements: _json_table(b, source.path, 0)  # type: ignore[misc]
        if splitter.has_more:
            why = "has more after its list"
            raise BadInput(Problem("SRC", source.path, why, "give one list, or a line for each row (.jsonl)"))
        if not splitter.is_closed:
            raise BadInput(Problem("SRC", source.path, "is a list that does not end", "see whether it is whole"))
        return
    line = 1
    for position, block in _blocks(source, lambda b: b.rfind(b"\n") + 1):
        yield position, lambda b=block, n=line: _json_table(b, source.path, n)  # type: ignore[misc]
        line += block.count(b"\n")


class _Elements:
    """Cuts the text of a JSON list between its elements."""

    TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)

    def __init__(self) -> None:
        self.is_open = self.is_closed = self.has_more = False
        self._parts: list[bytes] = []

    def cut(self, block: bytes) -> int:
        """How much of a block is whole elements; they wait for `take`."""
        if self.is_closed:
            self.has_more |= bool(block.strip())
            return len(block)
        self._parts, depth, begin, end = [], 0, 0, 0
        for match in self.TOKEN.finditer(block):
            token = match.group()
            if not self.is_open:
                if token == b"[":
                    self.is_open, begin, end = True, match.end(), match.end()
                continue
            if token in (b"{", b"["):
                depth += 1
            elif token in (b"}", b"]") and depth:
                depth -= 1
            elif not depth and token in (b",", b"]"):
                self._parts.append(block[begin : match.start()].strip())
                begin = end = match.end()
                if token == b"]":
                    self.is_closed, self.has_more = True, bool(block[end:].strip())
                    return len(block)
        return end

    def take(self, block: bytes) -> bytes:
        if not self._parts:  # what was left at the end
            self.cut(block)
        parts, self._parts = self._parts, []
        return b"\n".join(part for part in parts if part)


def _json_table(block: bytes, path: str, line: int) -> pa.Table:
    """Arrow's parser; where a column has values of several types, Python's, and such columns as text.

    `line`: of the file, where the block begins; 0: its rows are no lines.
    """
    with suppress(pa.ArrowInvalid):
        table = pyarrow.json.read_json(
            pa.BufferReader(block),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pyarrow.json.ParseOptions(newlines_in_values=not line),
        )
        if not any(_is_rounded(chunk) for column in table.columns for chunk in column.chunks):
            return table
    return _columns(list(_objects(block, path, line)))


def _is_rounded(array: pa.Array) -> bool:
    """Whether an integer of more digits than a float has may be among the values: Arrow makes it a float."""
    if pa.types.is_floating(array.type):
        return (pc.max(pc.abs(array)).as_py() or 0) >= 2**53
    if pa.types.is_list(array.type):
        return _is_rounded(array.flatten())
    return pa.types.is_struct(array.type) and any(map(_is_rounded, array.flatten()))


def _objects(block: bytes, path: str, line: int) -> Iterator[dict[str, Any]]:
    decoder, text = json.JSONDecoder(), block.decode("utf-8")
    at = 0
    while (at := _skip(text, at)) < len(text):
        try:
            found, end = decoder.raw_decode(text, at)
        except ValueError as e:
            where = f"line {line + text.count(chr(10), 0, at)}" if line else "one of its elements"
            raise BadInput(Problem("SRC", path, f"{where} is no JSON: {_short(e)}", "mend that line")) from e
        if not isinstance(found, dict):
            where = f"line {line + text.count(chr(10), 0, at)}" if line else "one of its elements"
            raise BadInput(Problem("SRC", path, f"{where} is no object", "give an object with columns for each row"))
        yield found
        at = end


_SPACE = re.compile(r"[\s]*")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _columns(rows: list[dict[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _array([row.get(name) for row in rows]) for name in names})


def _array(values: list[Any]) -> pa.Array:
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        array = pa.array(values)
        if not any(_is_truth_lost(v, array.type) for v in values):
            return array
    return pa.array([None if v is None or v != v else v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
                     for v in values])  # fmt: skip


def _is_truth_lost(value: Any, kind: pa.DataType) -> bool:
    """Whether Arrow made a number of a true or false: it does among floats, not among integers."""
    if pa.types.is_floating(kind):
        return isinstance(value, bool)
    if pa.types.is_list(kind):
        return any(_is_truth_lost(v, kind.value_type) for v in value or ())
    return pa.types.is_struct(kind) and any(_is_truth_lost((value or {}).get(f.name), f.type) for f in kind)


def columns_of(source: Source) -> list[str]:
    """The names of a source's columns, as its first piece has them."""
    if source.kind == "parquet":
        with readable(source.path):
            return list(pq.read_schema(source.path).names)
    for _, piece in pieces(source):
        return list(piece().column_names)
    return []
