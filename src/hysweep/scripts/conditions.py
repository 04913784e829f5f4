"""`[ ]` and `[[ ]]`: true, false, or None where it depends on what nobody knows here, as files."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from hysweep.scripts.bash import text_of
from hysweep.scripts.words import MATCHED, Expander

if TYPE_CHECKING:
    from tree_sitter import Node

NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def holds(node: Node, words: Expander) -> bool | None:
    """Of a test command, or of what is within one."""
    match node.type:
        case "test_command":
            if text_of(node).startswith("(("):
                value = words.number(node, node.start_byte + 2, node.end_byte - 2)
                return None if value is None else value != 0
            inner = [c for c in node.children if c.type not in ("[", "]", "[[", "]]")]
            return holds(inner[0], words) if len(inner) == 1 else None if inner else False
        case "parenthesized_expression":
            return holds(node.children[1], words) if len(node.children) == 3 else None
        case "negation_expression":
            return _not(holds(node.children[-1], words))
        case "unary_expression":
            return _unary(text_of(node.children[0]), node.children[-1], words)
        case "binary_expression":
            return _binary(node, words)
        case _:
            text = words.scope.known(words.text(node))
            return None if text is None else text != ""


def matches(text: str, pattern: str) -> bool | None:
    return re.match(fnmatch.translate(pattern), text) is not None if len(text) + len(pattern) < MATCHED else None


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _unary(operator: str, operand: Node, words: Expander) -> bool | None:
    if operator == "!":
        return _not(holds(operand, words))
    if operator == "-v":
        return words.scope.is_set(words.text(operand))
    if operator not in ("-n", "-z"):
        return None
    text = words.scope.known(words.text(operand))
    return None if text is None else (text == "") == (operator == "-z")


def _binary(node: Node, words: Expander) -> bool | None:
    left, right, sign = (node.child_by_field_name(name) for name in ("left", "right", "operator"))
    if left is None or right is None:
        return None
    operator = text_of(sign) if sign is not None else ""
    if operator in ("&&", "-a"):
        one, other = holds(left, words), holds(right, words)
        return False if False in (one, other) else None if None in (one, other) else True
    if operator in ("||", "-o"):
        one, other = holds(left, words), holds(right, words)
        return True if True in (one, other) else None if None in (one, other) else False
    first, second = words.scope.known(words.text(left)), words.scope.known(words.text(right))
    if first is None or second is None:
        return None
    if operator in NUMBERS:
        try:
            a, b = int(first), int(second)
        except ValueError:  # bash says so, and goes on as if it were false
            return False
        return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[NUMBERS[operator]]
    if operator in ("=", "==", "!="):
        is_double = _is_double(node)
        is_quoted = right.type in ("string", "raw_string")
        same = first == second if is_quoted or not is_double else matches(first, second)
        return same if operator != "!=" else _not(same)
    if operator in ("<", ">"):
        return first < second if operator == "<" else first > second
    return None


def _is_double(node: Node) -> bool:
    above: Node | None = node
    while above is not None and above.type != "test_command":
        above = above.parent
    return above is not None and text_of(above).startswith("[[")
