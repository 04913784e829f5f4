"""Conditions over the fields of a trial, for `when:` and `filter:` of a space.

    algorithm == grpo and trainer.mini_batch_size * 2 <= trainer.train_batch_size

Names with dots are fields, config groups or keys that vary; any other word is a text, as in Hydra. There are
== != < <= > >=, in [..], not in [..], and, or, not, + - * / %, parentheses, numbers, texts, true, false and null.
Python's own parser reads it; nothing of it is ever run as Python.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hysweep.schema import BadInput, Problem, suggest

if TYPE_CHECKING:
    from hysweep.compose.grammar import Vocabulary

Lookup = Callable[[str], Any]

CONDITION_CURE = "write it as in: algorithm in [grpo, gspo] and rollout.n >= 8"
LONGEST = 2_000
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}

ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """`keys`: the names in it whose values decide."""

    text: str
    keys: tuple[str, ...]
    _tree: ast.expr = field(compare=False, repr=False)

    def holds(self, value_of: Lookup) -> bool:
        """Never raises: what cannot be compared (a null with a number, a division by zero) is not so."""
        return _value(self._tree, value_of, frozenset(self.keys)) is True


def parse_condition(text: Any, words: Vocabulary, where: str) -> Condition:
    """Raises BadInput, naming the place in the text, for what is no condition. `where`: the key that it stands at."""
    if not isinstance(text, str):
        raise BadInput(Problem(where, text, "is no condition", CONDITION_CURE))
    if len(text) > LONGEST:
        raise BadInput(Problem(where, f"{text[:40]}…", f"is longer than {LONGEST:,} characters", CONDITION_CURE))
    flat = text.strip().replace("\n", " ")
    try:
        tree = ast.parse(flat, mode="eval").body
        reader = _Reader(flat, words, where)
        if reader.kind(tree) not in ("truth", "any"):
            raise reader.fault(tree, "is a value and no condition")
    except SyntaxError as e:
        at = f", at character {e.offset}" if e.offset else ""
        cure = "write == to compare" if re.search("(?<![=!<>])=(?!=)", text) else CONDITION_CURE
        raise BadInput(Problem(where, text, f"cannot be read: {e.msg}{at}", cure)) from e
    except (ValueError, RecursionError, MemoryError) as e:
        raise BadInput(Problem(where, flat[:60], "cannot be read: it is too deep or no text", CONDITION_CURE)) from e
    if not reader.keys:
        raise BadInput(Problem(where, text, "names no field, so it is the same for every point", CONDITION_CURE))
    return Condition(flat, tuple(dict.fromkeys(reader.keys)), tree)


class _Reader:
    """Looks at every part of a condition once: whether it is allowed, and which kind of value it has."""

    def __init__(self, text: str, words: Vocabulary, where: str) -> None:
        self._text, self._words, self._where = text, words, where
        self.keys: list[str] = []

    def fault(self, node: ast.AST, why: str, cure: str = CONDITION_CURE) -> BadInput:
        start = getattr(node, "col_offset", 0)
        part = self._text.encode()[start : getattr(node, "end_col_offset", None)].decode(errors="replace")
        said = f"{part or self._text!r} (at character {start + 1}) {why}"
        return BadInput(Problem(self._where, self._text, said, cure))

    def kind(self, node: ast.expr) -> str:
        """truth, number, text, list, null, or any where only the trial will tell."""
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self._need(part, "truth", "stands beside and / or, and is no condition")
            return "truth"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._need(node.operand, "truth", "stands behind not, and is no condition")
            return "truth"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            self._need(node.operand, "number", "is no number")
            return "number"
        if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
            self._need(node.left, "number", "is no number")
            self._need(node.right, "number", "is no number")
            return "number"
        if isinstance(node, ast.Compare):
            left = node.left
            for op, right in zip(node.ops, node.comparators, strict=True):
                self._compare(left, op, right)
                left = right
            return "truth"
        if isinstance(node, ast.Constant):
            kinds: dict[type, str] = {bool: "truth", int: "number", float: "number", str: "text", type(None): "null"}
            if type(node.value) in kinds and not (isinstance(node.value, float) and math.isinf(node.value)):
                return kinds[type(node.value)]
        if isinstance(node, (ast.List, ast.Tuple)):
            for element in node.elts:
                self.kind(element)
            return "list"
        if isinstance(node, (ast.Name, ast.Attribute)) and (name := _dotted(node)):
            return self._name(node, name)
        raise self.fault(node, "is no part of a condition")

    def _need(self, node: ast.expr, kind: str, why: str) -> None:
        if self.kind(node) not in (kind, "any"):
            raise self.fault(node, why)

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> None:
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.List, ast.Tuple)):
                raise self.fault(right, "is no list", "write: rollout.n in [4, 8]")
            self.kind(left)
            for element in right.elts:
                self._compare(left, ast.Eq(), element)
        elif type(op) in ORDERS:
            for side in (left, right):
                self._need(side, "number", "is no number, and only numbers have an order")
        elif isinstance(op, (ast.Eq, ast.NotEq)):
            kinds = {self.kind(left), self.kind(right)} - {"any", "null"}
            if len(kinds) > 1:
                raise self.fault(right, f"can never be the same: a {' and a '.join(sorted(kinds))}")
            self._check_option(left, right)
            self._check_option(right, left)
        else:
            raise self.fault(left, "is compared in a way that there is not")

    def _check_option(self, group: ast.expr, option: ast.expr) -> None:
        """A name of an option that its config group does not have would never match."""
        options = self._words.groups.get(_dotted(group) or "")
        known = {"", *self.keys}
        name = option.value if isinstance(option, ast.Constant) else _dotted(option)
        if options and isinstance(name, str) and name not in known and name not in options:
            raise self.fault(option, f"is no {_dotted(group)}", suggest(name, options))

    def _name(self, node: ast.expr, name: str) -> str:
        words = self._words
        if name in WORDS:
            return "null" if WORDS[name] is None else "truth"
        if name in words.groups:
            self.keys.append(name)
            return "text"
        if name.partition(".")[0] in ("study", "space"):
            raise self.fault(node, "says how to search, and is no part of a trial")
        if name in words.fields:
            self.keys.append(name)
            kinds = {bool: "truth", int: "number", float: "number", str: "text"}
            return kinds.get(words.fields[name], "any")
        if words.knows(name) and not words.is_field_or_group(name):
            self.keys.append(name)  # below a dict, as verl.*
            return "any"
        if "." in name:
            why = "is a group of fields" if words.is_field_or_group(name) else "is no field"
            raise self.fault(node, why, suggest(name, words.fields))
        return "text"


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _value(node: ast.expr, value_of: Lookup, keys: frozenset[str]) -> Any:
    if isinstance(node, ast.BoolOp):
        parts = (_value(part, value_of, keys) is True for part in node.values)
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.UnaryOp):
        operand = _value(node.operand, value_of, keys)
        if isinstance(node.op, ast.Not):
            return operand is not True
        sign = -1 if isinstance(node.op, ast.USub) else 1
        return sign * operand if _is_number(operand) else None
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, value_of, keys), _value(node.right, value_of, keys)
        try:
            return SUMS[type(node.op)](left, right) if _is_number(left) and _is_number(right) else None
        except (ZeroDivisionError, OverflowError):
            return None
    if isinstance(node, ast.Compare):
        left = _value(node.left, value_of, keys)
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = _value(part, value_of, keys)
            if not _compared(left, op, right):
                return False
            left = right
        return True
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(element, value_of, keys) for element in node.elts]
    if isinstance(node, ast.Constant):
        return node.value
    name = _dotted(node) or ""
    return value_of(name) if name in keys else WORDS.get(name, name)


def _compared(left: Any, op: ast.cmpop, right: Any) -> bool:
    if isinstance(op, (ast.In, ast.NotIn)):
        return any(_same(left, one) for one in right) is isinstance(op, ast.In)
    if type(op) in ORDERS:
        return _is_number(left) and _is_number(right) and ORDERS[type(op)](left, right)
    return _same(left, right) is isinstance(op, ast.Eq)


def _same(left: Any, right: Any) -> bool:
    """Python has 1 == True; a field that is true is not 1."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
