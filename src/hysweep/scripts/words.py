"""Bash's words to texts: quotes, variables, arrays, defaults, arithmetic; what is not understood is marked."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from hysweep.schema import BadInput, Problem
from hysweep.scripts import arithmetic
from hysweep.scripts.bash import line_of, parse
from hysweep.scripts.scope import LONGEST, MARK, Scope, Word

if TYPE_CHECKING:
    from tree_sitter import Node

OPERATOR = re.compile(r":?[-=?+]|##?|%%?|//?|\^\^?|,,?|:")
ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "e": "\x1b", "a": "\x07"}
PLAIN = ("string_content", "word", "heredoc_content", "number", "regex")
MOST_FIELDS = 20_000
MATCHED = 2_000  # characters that a pattern is tried on


class Part(NamedTuple):
    """A piece of a word: its fields, and whether white space in them parts words."""

    fields: list[str]
    splits: bool = False


class Expander:
    """Words of one script. `run` reads the statements of a command substitution and gives what they print."""

    def __init__(self, source: bytes, scope: Scope, run: Callable[[Node, Expander], str | None]) -> None:
        self.source, self.scope, self.run = source, scope, run

    def joined(self, nodes: Sequence[Node]) -> Iterator[list[Node]]:
        """Nodes by the words that they are: the parser parts what nothing, or a line's continuation, stands between."""
        word: list[Node] = []
        for node in nodes:
            if word and not re.fullmatch(r"(\\\n)*", self._slice(word[-1].end_byte, node.start_byte)):
                yield word
                word = []
            word.append(node)
        if word:
            yield word

    def fields(self, nodes: Sequence[Node]) -> list[Word]:
        """A word of a command line: none, one or many, as quotes and white space have it."""
        node = nodes[0]
        if len(nodes) == 1 and (array := self._whole_array(node)) is not None:
            return array
        parts = self._chained(nodes)
        found, current = [], None
        for part in parts:
            for n, text in enumerate(part.fields):
                if n and current is not None:
                    found.append(current)
                    current = None
                if not part.splits:
                    current = (current or "") + text
                    continue
                if text[:1].isspace() and current is not None:
                    found.append(current)
                    current = None
                for m, piece in enumerate(text.split()):
                    if m and current is not None:
                        found.append(current)
                        current = None
                    current = (current or "") + piece
                if text[-1:].isspace() and current is not None:
                    found.append(current)
                    current = None
        if current is not None:
            found.append(current)
        if len(found) > MOST_FIELDS:
            raise BadInput(Problem(f"line {line_of(node)}", f"{len(found):,} words", "has no end", "mend the script"))
        return [Word(text, line_of(node)) for text in found]

    def text(self, *nodes: Node) -> str:
        """A word where it cannot part: the value of a variable, a side of a comparison."""
        text = "".join(" ".join(part.fields) for part in self._chained(nodes))
        if len(text) > LONGEST:
            at = f"line {line_of(nodes[0])}"
            raise BadInput(Problem(at, f"{len(text):,} characters", "has no end", "mend the script"))
        return text

    def _chained(self, nodes: Sequence[Node]) -> list[Part]:
        """The parts of nodes that are one word. In $A/b/$c/$d the parser ends one at the second $."""
        chain: list[Part] = []
        for node in nodes:
            parts = list(self._parts(node))
            name = re.match(r"[A-Za-z_]\w*", parts[0].fields[0]) if parts and parts[0].fields else None
            if name and chain and chain[-1].fields == ["$"]:
                chain[-1] = Part([self.scope.read(name[0], line_of(node))], splits=True)
                parts[0] = Part([parts[0].fields[0][name.end() :], *parts[0].fields[1:]], parts[0].splits)
            chain += parts
        return chain

    def number(self, node: Node, start: int, end: int) -> int | None:
        """Arithmetic between two bytes of the source; None where it is not understood."""
        return self._reckon(self._region(self._outer_expansions(node), start, end, lambda raw: raw), line_of(node))

    def _reckon(self, expanded: str, line: int) -> int | None:
        text = self.scope.known(expanded)
        if text is None:
            return None
        try:
            return arithmetic.evaluate(text, lambda name: self._numeral(name, line))
        except (arithmetic.NotUnderstood, RecursionError):
            return None

    def _numeral(self, name: str, line: int) -> str:
        text = self.scope.known(self.scope.read(name, line))
        if text is None:
            raise arithmetic.NotUnderstood(name)
        return text

    def _outer_expansions(self, node: Node) -> Iterator[Node]:
        for child in node.children:
            if child.type in ("simple_expansion", "expansion", "command_substitution", "string"):
                yield child
            else:
                yield from self._outer_expansions(child)

    def _whole_array(self, node: Node) -> list[Word] | None:
        """`${A[@]}` alone: its elements with their lines; without quotes, white space parts them too."""
        if node.type == "string" and len(node.named_children) == 1:
            inner = node.named_children[0]
            name = self._array_name(inner) if self._raw(node) == f'"{self._raw(inner)}"' else None
            return list(self._elements(name)) if name is not None and "*" not in self._raw(inner) else None
        if node.type not in ("expansion", "simple_expansion") or (name := self._array_name(node)) is None:
            return None
        return [Word(piece, word.line) for word in self._elements(name) for piece in word.text.split()]

    def _array_name(self, node: Node) -> str | None:
        """A of "${A[@]}", or @ of "$@": what is as many words as it has elements."""
        text = self._raw(node)
        found = re.fullmatch(r"\$(?:\{(\w+)\[@\]\}|\{?(@|\*)\}?|\{(\w+)\[\*\]\})", text)
        return (found[1] or found[2] or found[3]) if found else None

    def _elements(self, name: str) -> list[Word]:
        if name in ("@", "*"):
            return self.scope.positional
        if name in self.scope.arrays:
            return self.scope.arrays[name]
        value = self.scope.value(name)
        return [Word(value, 1)] if value is not None else []

    def _parts(self, node: Node) -> Iterator[Part]:
        if node.type in ("concatenation", "command_name"):
            yield from self._covering(node.children, node.start_byte, node.end_byte, _unescaped, quoted=False)
        else:
            yield self._part(node)

    def _covering(
        self,
        children: Sequence[Node],
        start: int,
        end: int,
        plain: Callable[[str], str],
        quoted: bool,
        literal: bool = False,
    ) -> Iterator[Part]:
        """Children and the text between them, which the parser gives no node.

        literal: within double quotes, where a single quote is a character as any other.
        """
        at = start
        for child in children:
            if child.end_byte <= at or child.start_byte >= end:
                continue
            if child.start_byte > at:
                yield Part([plain(self._slice(at, child.start_byte))])
            at = child.end_byte
            if lead := self._lead(child):
                yield Part([lead])
            if quoted and (child.type in PLAIN or (literal and child.type == "raw_string")):
                yield Part([plain(self._raw(child))])
            elif child.type == "concatenation":
                yield from self._covering(child.children, child.start_byte, child.end_byte, plain, quoted)
            else:
                part = self._part(child, quoted)
                yield Part(part.fields) if quoted else part
        if at < end:
            yield Part([plain(self._slice(at, end))])

    def _region(
        self, children: Iterator[Node], start: int, end: int, plain: Callable[[str], str], literal: bool = False
    ) -> str:
        parts = self._covering(list(children), start, end, plain, True, literal)
        return "".join(" ".join(part.fields) for part in parts)

    def _part(self, node: Node, quoted: bool = False) -> Part:
        raw = self._raw(node)
        match node.type:
            case "raw_string":
                return Part([raw[1:-1]])
            case "ansi_c_string":
                return Part([re.sub(r"\\(.)", lambda m: ANSI.get(m[1], m[0]), raw[2:-1], flags=re.DOTALL)])
            case "string" | "translated_string":
                return Part(self._string(node))
            case "simple_expansion" | "expansion":
                if (name := self._array_name(node)) is not None:
                    return Part([word.text for word in self._elements(name)] or [""], not quoted)
                text = self._expansion(node)
                return Part([text], not quoted and text != self._quoted_default(node))
            case "arithmetic_expansion":
                return Part([self._arithmetic(node, 3 if raw.startswith("$((") else 2)])
            case "command_substitution" if raw.startswith("$((") and raw.endswith("))"):
                return Part([self._masked_arithmetic(node)])
            case "command_substitution":
                printed = self.run(node, self)
                return Part([printed.rstrip("\n") if printed is not None else self.scope.piece(line_of(node), raw)],
                            not quoted)  # fmt: skip
            case "process_substitution":
                return Part([self.scope.piece(line_of(node), raw)])
            case "concatenation" | "command_name":
                return Part(["".join(" ".join(part.fields) for part in self._parts(node))])
            case _:
                return Part([self._home(_unescaped(raw), raw)])

    def _masked_arithmetic(self, node: Node) -> str:
        """What `bash.parse` hid from the parser: as a text between double quotes it is expanded, then reckoned."""
        raw, line = self._raw(node), line_of(node)
        inner = raw[3:-2]
        if "$" in inner or "`" in inner:
            source = ("\n" * (line - 1) + f'"{inner}"').encode()
            command = parse(source, f"line {line}").named_children[0]
            inner = Expander(source, self.scope, self.run).text(command.named_children[0])
        value = self._reckon(inner, line)
        return str(value) if value is not None else self.scope.piece(line, raw)

    def _arithmetic(self, node: Node, opens: int) -> str:
        raw = self._raw(node)
        value = self.number(node, node.end_byte - len(raw.encode()) + opens, node.end_byte - opens + 1)
        return str(value) if value is not None else self.scope.piece(line_of(node), raw)

    def _home(self, text: str, raw: str) -> str:
        """~ and ~/x where a word begins with it."""
        return self.scope.read("HOME", 1) + text[1:] if raw == "~" or raw.startswith("~/") else text

    def _string(self, node: Node) -> list[str]:
        """Between double quotes: one field, or as many as an array in it has elements."""
        start = node.start_byte + (2 if self._raw(node).startswith('$"') else 1)
        found = [""]
        inner = [c for c in node.children if c.type not in ('"', '$"')]
        for part in self._covering(inner, start, node.end_byte - 1, _unescaped_in_quotes, quoted=True):
            found[-1] += part.fields[0]
            found += part.fields[1:]
        names = [self._array_name(c) for c in inner]
        if len(found) > 1 and any(n == "*" or "[*]" in self._raw(c) for n, c in zip(names, inner, strict=True)):
            return [" ".join(found)]
        return found

    def _quoted_default(self, node: Node) -> str | None:
        """Of ${A:-"b c"}: what white space does not part."""
        last = node.named_children[-1] if node.named_children else None
        return self.text(last) if last is not None and last.type in ("string", "raw_string") else None

    def _expansion(self, node: Node) -> str:
        line, raw, scope = line_of(node), self._raw(node), self.scope
        if node.type == "simple_expansion":
            return self._variable(raw[1:], line, raw)
        body = raw[2:-1]
        if found := re.fullmatch(r"#(?:(\w+)\[[@*]\]|(\w+|[@*]))", body):
            name = found[1] or found[2]
            if found[1] or name in "@*":
                return str(len(self._elements(name)))
            text = scope.known(scope.read(name, line))
            return str(len(text)) if text is not None else scope.piece(line, raw)
        found = re.match(r"([A-Za-z_]\w*|\d+|[?$!#@*-])(\[[^]]*\])?", body)
        if not found:
            return scope.piece(line, raw)
        name, index = found[1], found[2]
        rest = body[found.end() :]
        value = self._element(name, index[1:-1], line) if index else self._set_value(name)
        if not rest:
            return value if value is not None else self._variable(name, line, raw)
        operator = OPERATOR.match(rest)
        if not operator or (operator[0] == ":" and not rest[1:2].isdigit()):
            return scope.piece(line, raw)
        start = node.end_byte - len(raw.encode()) + 2 + len((body[: found.end()] + operator[0]).encode())
        operand = [c for c in node.children if c.start_byte >= start and c.type != "}"]
        return self._operate(node, name, value, operator[0], operand, start)

    def _operate(self, node: Node, name: str, value: str | None, operator: str, operand: list[Node], start: int) -> str:
        line, raw, scope = line_of(node), self._raw(node), self.scope

        @cache
        def other() -> str:
            return self._region(iter(operand), start, node.end_byte - 1, _unescaped, _is_in_quotes(node))

        is_empty = value is None or (operator[0] == ":" and scope.known(value) == "")
        match operator.lstrip(":") if operator != ":" else ":":
            case "-" | "=":
                if name not in scope.variables and name not in scope.arrays and name.isidentifier():
                    scope.defaults.setdefault(name, (_shown(other()) if is_empty else str(value), line))
                if not is_empty:
                    return str(value)
                if operator.endswith("="):
                    scope.assign(name, other())
                return other()
            case "+":
                return "" if is_empty else other()
            case "?":
                if not is_empty:
                    return str(value)
                scope.unset(name)  # what the script itself left empty
                return scope.read(name, line)
            case _:
                text = scope.known(value if value is not None else scope.read(name, line))
                pattern = scope.known(other())
                if text is None or pattern is None or MARK.search(value or "") or len(text) > MATCHED:
                    return scope.piece(line, raw)
                changed = _change(text, operator, pattern)
                return changed if changed is not None else scope.piece(line, raw)

    def _variable(self, name: str, line: int, raw: str) -> str:
        if name == "#":
            return str(len(self.scope.positional))
        if name.isdigit():
            n = int(name)
            if n == 0:
                return self.scope.piece(line, raw)
            return self.scope.positional[n - 1].text if n <= len(self.scope.positional) else ""
        if not name.isidentifier() or name in ("BASH_SOURCE", "RANDOM", "SECONDS", "EPOCHSECONDS", "LINENO", "BASHPID"):
            return self.scope.piece(line, raw)
        return self.scope.read(name, line)

    def _set_value(self, name: str) -> str | None:
        if name.isdigit():
            n = int(name) if len(name) < 6 else 0
            return self.scope.positional[n - 1].text if 0 < n <= len(self.scope.positional) else None
        if name in ("@", "*"):
            return " ".join(w.text for w in self.scope.positional) or None
        return self.scope.value(name) if name.isidentifier() else None

    def _element(self, name: str, index: str, line: int) -> str | None:
        elements = self._elements(name)
        if index in ("@", "*"):
            return " ".join(word.text for word in elements) if elements else None
        if name == "BASH_SOURCE":
            return self.scope.piece(line, "BASH_SOURCE")
        try:
            at = arithmetic.evaluate(index.replace("$", ""), lambda n: self._numeral(n, line))
            return elements[at].text if -len(elements) <= at < len(elements) else None
        except arithmetic.NotUnderstood:
            return self.scope.piece(line, f"{name}[{index}]")

    def _raw(self, node: Node) -> str:
        raw = self._slice(node.start_byte, node.end_byte)
        return raw.lstrip() if _expands(node) else raw

    def _lead(self, node: Node) -> str:
        """White space that the parser counts to an expansion within quotes."""
        raw = self._slice(node.start_byte, node.end_byte)
        return raw[: len(raw) - len(raw.lstrip())] if _expands(node) else ""

    def _slice(self, start: int, end: int) -> str:
        return self.source[start:end].decode("utf-8", "replace")


def _change(text: str, operator: str, pattern: str) -> str | None:
    """`${X#...}` and its like. None for what is not understood."""
    if operator in ("^^", ",,", "^", ","):
        if pattern:
            return None
        whole = {"^^": text.upper(), ",,": text.lower()}
        return whole.get(operator, (text[:1].upper() if operator == "^" else text[:1].lower()) + text[1:])
    if operator == ":":
        found = re.fullmatch(r"(\d{1,7})(?::(\d{1,7}))?", pattern)
        return text[int(found[1]) :][: int(found[2]) if found[2] else None] if found else None
    if operator in ("/", "//"):
        old, _, new = pattern.partition("/")
        if not old or re.search(r"[*?\[]", old):
            return None
        return text.replace(old, new, 1 if operator == "/" else -1)
    matches = re.compile(fnmatch.translate(pattern)).match
    ends = range(len(text) + 1)
    cuts = ends if operator in ("#", "%%") else reversed(ends)
    if operator[0] == "#":
        return next((text[n:] for n in cuts if matches(text[:n])), text)
    return next((text[:n] for n in cuts if matches(text[n:])), text)


def _expands(node: Node) -> bool:
    return node.type in ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")


def _is_in_quotes(node: Node) -> bool:
    above = node.parent
    while above is not None and above.type not in ("command_substitution", "string"):
        above = above.parent
    return above is not None and above.type == "string"


def _shown(text: str) -> str:
    return MARK.sub(lambda m: f"${m[1]}" if not m[1].isdigit() else "...", text)


def _unescaped(raw: str) -> str:
    return re.sub(r"\\(.|\n)", lambda m: "" if m[1] == "\n" else m[1], raw)


def _unescaped_in_quotes(raw: str) -> str:
    return re.sub(r'\\([$`"\\]|\n)', lambda m: "" if m[1] == "\n" else m[1], raw)
