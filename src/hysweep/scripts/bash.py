"""A bash script as a syntax tree. It is read, and never run."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from hysweep.schema import BadInput, Problem

if TYPE_CHECKING:
    from tree_sitter import Node

LARGEST = 1_000_000  # bytes: launch scripts have thousands
SECONDS = 3.0  # the parser of a hostile text takes ever longer

# Neither a script nor a value holds these; here they mark what stands for something else (see `words`).
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def decode(content: bytes, name: str) -> str:
    """The text of a script: UTF-8, with lines ended as on Unix, without the prompt of a pasted command.

    Raises BadInput for what is no text.
    """
    if len(content) > LARGEST:
        raise BadInput(Problem(name, f"{len(content):,} bytes", "is no launch script", f"give one below {LARGEST:,}"))
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as e:
        raise BadInput(Problem(name, f"byte {e.start}", "is no UTF-8", "give a script as text")) from e
    if found := _CONTROL.search(text):
        raise BadInput(Problem(name, repr(found[0]), "no text holds this character", "give a script as text"))
    return re.sub(r"\A\s*\$ ", "", text)


def parse(source: bytes, name: str) -> Node:
    """The tree of a script. Raises BadInput with the line of a syntax error, or for what takes too long to read."""
    import tree_sitter
    import tree_sitter_bash

    source = _masked(source)
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    end = time.monotonic() + SECONDS
    try:
        tree = parser.parse(
            lambda offset, _: source[offset : offset + 65536],
            progress_callback=lambda *_: time.monotonic() > end,
        )
    except ValueError:  # the parser's word for being stopped
        tree = None
    if tree is None:
        raise BadInput(Problem(name, f"{len(source):,} bytes", "cannot be read in time", "give a plain launch script"))
    if tree.root_node.has_error:
        raise BadInput(_syntax_error(tree.root_node, name))
    return tree.root_node


def _masked(source: bytes) -> bytes:
    """Each $((...)) as a $(xxxxx) of the same length: within ${A:-...} the parser takes it for a subshell."""
    masked = bytearray(source)
    at = source.find(b"$((")
    while at >= 0:
        depth, end = 0, at + 1
        while end < len(source) and source[end] not in b"\n\"'":
            depth += (source[end] == 0x28) - (source[end] == 0x29)
            end += 1
            if not depth:
                break
        if not depth and source[end - 2 : end] == b"))":
            masked[at + 2 : end - 1] = b"x" * (end - at - 3)
        at = source.find(b"$((", max(end, at + 3))
    return bytes(masked)


def line_of(node: Node) -> int:
    return int(node.start_point[0]) + 1


def text_of(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _syntax_error(root: Node, name: str) -> Problem:
    """The first place where the parser was lost: down the tree without recursion, for it may be deep."""
    node = root
    while True:
        inner = next((c for c in node.children if c.has_error or c.is_missing or c.is_error), None)
        if node.is_missing:
            return Problem(f"{name} line {line_of(node)}", "bash", f"{node.type} is missing", "mend the script")
        if inner is None or (node.is_error and not inner.is_missing):
            text = " ".join(text_of(node)[:200].split())[:60]
            why = "is no bash that can be read"
            return Problem(f"{name} line {line_of(node)}", text, why, "mend the script: `bash -n` may say more")
        node = inner
