"""The file that an offline run of W&B is written to: reading it also where it is torn, merging the attempts of a trial.

The file is LevelDB's log format (github.com/google/leveldb, doc/log_format.md), with a head of its own and a plain
CRC-32; in it are messages of wandb.proto. Neither is a public interface of wandb, so its version is pinned.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEAD = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
_BLOCK = 32768
_PART = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# What later attempts say again, and what there may be one of.
_ONCE = frozenset({"header", "run", "telemetry"})
_LAST_WORD = frozenset({"exit", "final", "footer"})


class Unreadable(Exception):
    """There is nothing in the file that could be sent."""


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """One start of a run: its directory, and what was written before it ended."""

    directory: Path
    records: tuple[Any, ...]

    @property
    def started(self) -> float:
        """Unix seconds."""
        begun = next(r.run.start_time for r in self.records if kind(r) == "run")
        return float(begun.seconds + begun.nanos / 1e9)

    @property
    def first_step(self) -> int | None:
        return next((step for r in self.records if (step := step_of(r)) is not None), None)


def read(directory: Path) -> OfflineRun:
    """Raises Unreadable where no run is in the file, as in one whose process was killed before it wrote anything."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(directory.glob("run-*.wandb"))
    if not files:
        raise Unreadable("it has no .wandb file")
    try:
        content = files[0].read_bytes()
    except OSError as e:
        raise Unreadable(e.strerror or str(e)) from e
    records = []
    for message in _messages(content):
        try:
            records.append(Record.FromString(message))
        except DecodeError:
            continue
    if not any(kind(r) == "run" for r in records):
        raise Unreadable(f"no run in its {len(content)} bytes")
    return OfflineRun(directory, tuple(records))


def write(path: Path, records: Sequence[Any]) -> None:
    with open(path, "wb") as file:
        file.write(_HEAD)
        at = len(_HEAD)
        for record in records:
            for part in _parts(record.SerializeToString(), at):
                file.write(part)
                at += len(part)


def merged(runs: Sequence[OfflineRun], exit_code: int, after: int | None = None) -> list[Any]:
    """The attempts of a trial as one run: where steps overlap after a resume, the later attempt's stay.

    exit_code  of the trial, where no attempt wrote one
    after      leave out steps up to this one, which W&B has
    """
    from wandb.proto.wandb_internal_pb2 import Record, RunExitRecord

    firsts = [run.first_step for run in runs]
    found: list[Any] = []
    end = None
    seen: set[str] = set()
    for i, run in enumerate(runs):
        until = min((first for first in firsts[i + 1 :] if first is not None), default=None)
        for record in run.records:
            word, step = kind(record), step_of(record)
            if word in _LAST_WORD:
                end = record if word == "exit" else end
                continue
            is_done_again = step is not None and until is not None and step >= until
            is_known = step is not None and after is not None and step <= after
            if not (is_done_again or is_known or (word in _ONCE and word in seen)):
                seen.add(word)
                found.append(_later(record, run.started - runs[0].started))
    end = _copy(end) if end is not None else Record(exit=RunExitRecord(exit_code=exit_code))
    for number, record in enumerate([*found, end], start=1):
        record.num = number
    return [*found, end]


def steps_of(records: Sequence[Any]) -> list[int]:
    return [step for r in records if (step := step_of(r)) is not None]


def kind(record: Any) -> str:
    return record.WhichOneof("record_type") or ""


def step_of(record: Any) -> int | None:
    """The step of a record that has metrics, else None."""
    if kind(record) != "history":
        return None
    if record.history.HasField("step"):
        return int(record.history.step.num)
    found = (
        item.value_json for item in record.history.item if item.key == "_step" or list(item.nested_key) == ["_step"]
    )
    return next((int(float(value)) for value in found), None)


def _later(record: Any, seconds: float) -> Any:
    """A copy whose run time counts from the first attempt's start."""
    copied = _copy(record)
    word = kind(copied)
    items = copied.history.item if word == "history" else copied.summary.update if word == "summary" else ()
    for item in items if seconds else ():
        if "_runtime" in (item.key, *item.nested_key):
            item.value_json = repr(float(item.value_json) + seconds)
    return copied


def _copy(record: Any) -> Any:
    return type(record).FromString(record.SerializeToString())


def _messages(content: bytes) -> Iterator[bytes]:
    """Every message whose parts are all there and whole. After a torn one it goes on with the next block."""
    if content[: len(_HEAD)] != _HEAD:
        return
    at, gathered = len(_HEAD), b""
    while at + _PART.size <= len(content):
        room = _BLOCK - at % _BLOCK
        if room < _PART.size:
            at += room
            continue
        checksum, length, part = _PART.unpack_from(content, at)
        data = content[at + _PART.size : at + _PART.size + length]
        is_whole = len(data) == length and _PART.size + length <= room and _FULL <= part <= _LAST
        if not is_whole or zlib.crc32(data, zlib.crc32(bytes([part]))) != checksum:
            at, gathered = at + room, b""
            continue
        at += _PART.size + length
        if part == _FULL:
            yield data
        elif part == _FIRST:
            gathered = data
        elif gathered:
            gathered += data
            if part == _LAST:
                yield gathered
                gathered = b""


def _parts(message: bytes, at: int) -> Iterator[bytes]:
    """A message as it is written at a place of the file: in as many parts as there are blocks for it."""
    is_first = True
    while True:
        room = _BLOCK - at % _BLOCK
        if room < _PART.size:
            yield b"\0" * room
            at += room
            continue
        data, message = message[: room - _PART.size], message[room - _PART.size :]
        part = (_FULL if is_first else _LAST) if not message else _FIRST if is_first else _MIDDLE
        yield _PART.pack(zlib.crc32(data, zlib.crc32(bytes([part]))), len(data), part) + data
        at += _PART.size + len(data)
        is_first = False
        if not message:
            return
