"""Text of others, made harmless to a terminal and still what it says: what would steer it is spelled out."""

from __future__ import annotations

import re

# Characters that turn the direction of what follows: text that holds one is not what it looks like.
DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")
# Control characters, line ends that are none to a terminal, and halves of characters.
_STEERS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|{DIRECTIONS.pattern}")
# Of a log, colours and what a progress bar does to its own line stay.
_STEERS_IN_LOG = re.compile(rf"(?!\x1b\[[0-9;:]*m|[\r\b])(?:{_STEERS.pattern})")


def spelled_out(text: str, is_log: bool = False) -> str:
    return (_STEERS_IN_LOG if is_log else _STEERS).sub(_spelled, text)


def _spelled(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
