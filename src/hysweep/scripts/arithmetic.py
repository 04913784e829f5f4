"""Bash's whole-number arithmetic, as in $((1024 * 8)), on a text whose expansions are done."""

from __future__ import annotations

import re
from collections.abc import Callable

TOKEN = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!~&|^?:()])")
LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
          ("*", "/", "%"), ("**",))  # fmt: skip
DEEPEST = 50  # of names that stand for names, and of parentheses


class NotUnderstood(Exception):
    """An expression that is no literal arithmetic."""


def evaluate(text: str, look_up: Callable[[str], str], depth: int = 0) -> int:
    """The value of an expression in 64 bits, as bash has it. `look_up` gives a variable's text.

    Raises NotUnderstood for assignments, for names that stand for no number, and for a division by zero.
    """
    tokens = _tokens(text)
    if not tokens:
        return 0
    value, end = _Reader(tokens, look_up, depth).ternary(0, depth)
    if end != len(tokens):
        raise NotUnderstood(text)
    return value


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.strip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if not found:
            raise NotUnderstood(text)
        tokens.append(found[1])
        at = found.end()
    return tokens


class _Reader:
    def __init__(self, tokens: list[str], look_up: Callable[[str], str], depth: int) -> None:
        self.tokens, self.look_up, self.depth = tokens, look_up, depth

    def _at(self, at: int) -> str:
        return self.tokens[at] if at < len(self.tokens) else ""

    def ternary(self, at: int, depth: int) -> tuple[int, int]:
        if depth > DEEPEST:
            raise NotUnderstood("nested too deep")
        value, at = self.binary(0, at, depth)
        if self._at(at) != "?":
            return value, at
        yes, at = self.ternary(at + 1, depth + 1)
        if self._at(at) != ":":
            raise NotUnderstood("a ? without its :")
        no, at = self.ternary(at + 1, depth + 1)
        return yes if value else no, at

    def binary(self, level: int, at: int, depth: int) -> tuple[int, int]:
        if level == len(LEVELS):
            return self.unary(at, depth)
        value, at = self.binary(level + 1, at, depth)
        while self._at(at) in LEVELS[level]:
            operator = self.tokens[at]
            # ** alone groups to the right
            right, at = self.binary(level if operator == "**" else level + 1, at + 1, depth + (operator == "**"))
            value = _apply(operator, value, right)
        return value, at

    def unary(self, at: int, depth: int) -> tuple[int, int]:
        if depth > DEEPEST:
            raise NotUnderstood("nested too deep")
        token = self._at(at)
        if token in ("-", "+", "!", "~"):
            value, at = self.unary(at + 1, depth + 1)
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[token], at
        if token == "(":
            value, at = self.ternary(at + 1, depth + 1)
            if self._at(at) != ")":
                raise NotUnderstood("a ( without its )")
            return value, at + 1
        if token[:1].isdigit():
            return _number(token), at + 1
        if token[:1].isalpha() or token[:1] == "_":
            if self.depth >= DEEPEST:
                raise NotUnderstood(f"{token} stands for itself")
            return evaluate(self.look_up(token), self.look_up, self.depth + 1), at + 1
        raise NotUnderstood(token or "ends too early")


def _number(token: str) -> int:
    try:
        octal = token.startswith("0") and token.isdigit()
        return _wrapped(int(token, 8 if octal else 16 if token[:2].lower() == "0x" else 10)) if token else 0
    except ValueError as e:  # 089, or more digits than Python reads
        raise NotUnderstood(token[:40]) from e


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _apply(operator: str, a: int, b: int) -> int:
    if operator in ("/", "%"):
        if b == 0:
            raise NotUnderstood("a division by zero")
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # towards zero
        return _wrapped(quotient if operator == "/" else a - quotient * b)
    if operator == "**":
        if b < 0:
            raise NotUnderstood("a negative exponent")
        return _wrapped(pow(a, b, 2**64))
    if operator in ("<<", ">>"):
        return _wrapped(a << (b % 64) if operator == "<<" else a >> (b % 64))
    return _wrapped(
        {
            "+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b,
            "==": int(a == b), "!=": int(a != b), "<": int(a < b), ">": int(a > b), "<=": int(a <= b),
            ">=": int(a >= b), "&&": int(bool(a and b)), "||": int(bool(a or b)),
        }[operator]
    )  # fmt: skip
