"""A launch script, read from top to bottom as bash would, and nothing run: the command lines that it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hysweep.schema import BadInput, Problem
from hysweep.scripts.bash import line_of, parse, text_of
from hysweep.scripts.conditions import holds, matches
from hysweep.scripts.scope import MARK, PIECE, Scope, Word
from hysweep.scripts.words import Expander

if TYPE_CHECKING:
    from tree_sitter import Node

STEPS = 50_000  # statements: launch scripts have dozens
SILENT = ("echo", "printf", "set", "cd", "mkdir", "sleep", "ulimit", "true", ":", "pip", "pip3", "rm", "touch", "date",
          "nvidia-smi", "wait", "trap", "shopt", "chmod", "cp", "ls", "cat", "tee", "pwd", "conda", "module", "which",
          "clear", "umask", "alias", "ray", "df", "free", "env", "npu-smi", "export")  # fmt: skip
BLIND = {
    "source": "the file is not read: what it sets is not known",
    ".": "the file is not read: what it sets is not known",
    "eval": "is not read",
    "read": "what it reads is not known",
    "mapfile": "what it reads is not known",
    "readarray": "what it reads is not known",
    "getopts": "is not read",
}
NO_WORDS = ("file_redirect", "herestring_redirect", "heredoc_redirect", "comment")
PREPARES = ("source", ".", "eval")  # of those, what sets up the shell that the trainer is started from
DEEPEST = 20  # functions within functions, bash -c within bash -c


@dataclass(frozen=True, slots=True)
class Script:
    """What a script starts, and what was learned on the way. `ended` says why it stopped early.

    exports  the variables that it gives to what it starts: (value in the end, line)
    steps    the commands, and in their places what sets up the shell besides: source, eval, unset
    """

    commands: tuple[tuple[Word, ...], ...]
    scope: Scope
    ended: str = ""
    exports: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    steps: tuple[tuple[Word, ...], ...] = ()


class _Leave(Exception):
    """`exit` or `return`: how the script, or one of its functions, ends."""

    def __init__(self, is_exit: bool, line: int) -> None:
        self.is_exit, self.line = is_exit, line


def read_script(source: str, name: str, given: Mapping[str, str], probes_succeed: bool = False) -> Script:
    """Every command line that the script comes to. `given` are variables of its environment.

    Where it hangs on the success of a command, as of `if nvidia-smi; then`, that is `probes_succeed`.
    Raises BadInput for what is no bash, and for what has no end.
    """
    shell = _Shell(name, Scope(dict(given)), probes_succeed)
    ended = ""
    try:
        shell.script(source)
    except _Leave as leave:
        said = f": {shell.said}" if shell.said else ""
        ended = f"line {leave.line} ends it{said}"
    except RecursionError as e:
        raise BadInput(Problem(name, "bash", "is nested too deep to be read", "mend the script")) from e
    values = {name: (shell.scope.value(name), line) for name, line in shell.exports.items()}
    exports = {name: (value, line) for name, (value, line) in values.items() if value is not None}
    return Script(tuple(shell.commands), shell.scope, ended, exports, tuple(shell.in_order))


class _Shell:
    def __init__(self, name: str, scope: Scope, probes_succeed: bool) -> None:
        self.name, self.scope, self.probes_succeed = name, scope, probes_succeed
        self.commands: list[tuple[Word, ...]] = []
        self.in_order: list[tuple[Word, ...]] = []  # Script.steps
        self.functions: dict[str, tuple[Node, Expander]] = {}
        self.exports: dict[str, int] = {}
        self.printed: list[str] | None = None  # within a command substitution: what it prints so far
        self.prints_unknown = False
        self.said = ""
        self.steps = self.depth = 0
        self.words = Expander(b"", scope, self._substitute)

    def script(self, source: str) -> None:
        outer, self.words = self.words, Expander(source.encode(), self.scope, self._substitute)
        try:
            self._all(parse(self.words.source, self.name).named_children)
        finally:
            self.words = outer

    def _all(self, nodes: Sequence[Node]) -> bool | None:
        """A status, as of each statement: True, False, or None where it depends on what is not run."""
        status: bool | None = True
        for node in nodes:
            status = self._one(node)
        return status

    def _one(self, node: Node) -> bool | None:
        self.steps += 1
        if self.steps > STEPS:
            raise BadInput(
                Problem(self.name, f"line {line_of(node)}", "has no end that can be seen", "mend the script")
            )
        match node.type:
            case "comment":
                return True
            case "variable_assignment":
                return self._assign(node)
            case "variable_assignments":
                return self._all(node.named_children)
            case "declaration_command":
                for child in node.named_children:
                    if child.type == "variable_assignment":
                        self._assign(child)
                self._export(node)
                return True
            case "unset_command":
                for child in node.named_children:
                    unset = self.words.text(child)
                    # one of the environment's, which whoever starts the trainer must take away too
                    if self.printed is None and unset.isidentifier() and unset not in self.scope.variables:
                        self.in_order.append((Word("unset", line_of(child)), Word(unset, line_of(child))))
                    self.scope.unset(unset)
                return True
            case "command":
                return self._command(node)
            case "redirected_statement":
                return self._one(node.named_children[0]) if node.named_children else True
            case "pipeline":
                return self._all([c for c in node.named_children if c.type != "comment"])
            case "list":
                return self._list(node)
            case "negated_command":
                status = self._one(node.named_children[-1])
                return None if status is None else not status
            case "test_command":
                return holds(node, self.words)
            case "compound_statement" if text_of(node).startswith("(("):
                value = self.words.number(node, node.start_byte + 2, node.end_byte - 2)
                return None if value is None else value != 0
            case "compound_statement" | "subshell" | "do_group" | "program":
                return self._all(node.named_children)
            case "if_statement":
                return self._if(node)
            case "case_statement":
                return self._case(node)
            case "for_statement":
                return self._for(node)
            case "while_statement":
                return self._while(node)
            case "function_definition":
                name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
                if name is not None and body is not None:
                    self.functions[text_of(name)] = (body, self.words)
                return True
            case "heredoc_body" | "file_redirect" | "heredoc_redirect" | "herestring_redirect":
                return True
            case _:
                self.scope.note(line_of(node), text_of(node), "not understood")
                return None

    def _export(self, node: Node) -> None:
        if not re.match(r"export\s+(?!-)|(?:declare|typeset)\s+-x\b", text_of(node)):
            return
        for child in node.named_children:
            name = child.child_by_field_name("name") if child.type == "variable_assignment" else child
            if name is not None and name.type == "variable_name":
                self.exports[text_of(name)] = line_of(child)

    def _assign(self, node: Node, more: Sequence[Node] = ()) -> bool:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None:
            return True
        if name.type != "variable_name":  # A[0]=...
            self.scope.note(line_of(node), text_of(node), "not understood")
            return True
        key, adds = text_of(name), any(c.type == "+=" for c in node.children)
        if value is not None and value.type == "array":
            inner = [child for child in value.named_children if child.type != "comment"]
            elements = [word for nodes in self.words.joined(inner) for word in self.words.fields(nodes)]
            before = self.scope.arrays.get(key, []) if adds else []
            self.scope.variables.pop(key, None)
            self.scope.arrays[key] = before + elements
            if len(self.scope.arrays[key]) > STEPS:
                raise BadInput(Problem(key, f"line {line_of(node)}", "grows without end", "mend the script"))
            return True
        text = self.words.text(value, *more) if value is not None else ""
        self.scope.assign(key, (self.scope.value(key) or "") + text if adds else text)
        return True

    def _command(self, node: Node) -> bool | None:
        words: list[Word] = []
        inner = [c for c in node.named_children if c.type not in NO_WORDS]
        for nodes in self.words.joined(inner):
            if nodes[0].type != "variable_assignment":
                words += self.words.fields(nodes)
            elif len(nodes) > 1 and len(nodes) == len(inner):  # a value that the parser broke up, and no command
                return self._assign(nodes[0], nodes[1:])
            elif words:
                words.append(Word(self.words.text(*nodes), line_of(nodes[0])))
        return self._run(words, node) if words else True

    def _run(self, words: list[Word], node: Node) -> bool | None:
        name, line = words[0].text, line_of(node)
        if name in self.functions:
            return self._call(name, words[1:], node)
        if name in ("exit", "return"):
            raise _Leave(name == "exit", line)
        if name in ("true", ":", "export", "set", "shift", "cd", "false"):
            return self._builtin(name, [w.text for w in words[1:]], node)
        if name in BLIND:
            if name in PREPARES and self.printed is None:
                self.in_order.append(tuple(words))
            self.scope.note(line, text_of(node), BLIND[name])
            return True
        if name in ("bash", "sh") and [w.text for w in words[1:2]] in (["-c"], ["-lc"], ["-ic"]) and len(words) > 2:
            return self._nested(words[2].text, node)
        if name in ("echo", "printf"):
            self.said = MARK.sub("...", " ".join(w.text for w in words[1:]))[:200]
        if self.printed is not None:
            return self._print(name, [w.text for w in words[1:]])
        self.commands.append(tuple(words))
        self.in_order.append(tuple(words))
        return None if name not in SILENT else True

    def _builtin(self, name: str, words: list[str], node: Node) -> bool:
        if name == "set" and "--" in words:
            self.scope.positional = [Word(w, line_of(node)) for w in words[words.index("--") + 1 :]]
        elif name == "shift":
            count = int(words[0]) if words and words[0].isdigit() and len(words[0]) < 5 else 1
            self.scope.positional = self.scope.positional[count:]
        elif name == "cd" and self.printed is None:
            self.scope.note(line_of(node), text_of(node), "relative paths after it are taken from where you are")
        return name != "false"

    def _call(self, name: str, words: list[Word], node: Node) -> bool | None:
        self._deeper(node)
        body, expander = self.functions[name]
        outer, self.scope.positional = self.scope.positional, words
        words_before, self.words = self.words, expander
        try:
            return self._one(body)
        except _Leave as leave:
            if leave.is_exit:
                raise
            return True
        finally:
            self.scope.positional, self.words = outer, words_before
            self.depth -= 1

    def _nested(self, source: str, node: Node) -> bool | None:
        """`bash -c '...'`"""
        if PIECE in source:
            self.scope.note(line_of(node), text_of(node), "not understood")
            return None
        self._deeper(node)
        try:
            self.script(source)
        except _Leave:
            pass
        finally:
            self.depth -= 1
        return True

    def _deeper(self, node: Node) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise BadInput(Problem(self.name, f"line {line_of(node)}", "calls itself without end", "mend the script"))

    def _list(self, node: Node) -> bool | None:
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((c.type for c in node.children if c.type in ("&&", "||")), "&&")
        status = self._one(left)
        if status is None:
            status = self.probes_succeed if self.printed is not None else True
            if not (self.printed is None and self._is_launch(left)):
                self._assumed(left, status)
        return self._one(right) if status == (operator == "&&") else status

    def _is_launch(self, node: Node) -> bool:
        return bool(re.search(r"main_ppo|\bmain_\w+\b", text_of(node)))

    def _assumed(self, node: Node, status: bool) -> None:
        self.scope.note(line_of(node), text_of(node), f"is not run: taken to {'succeed' if status else 'fail'}")

    def _condition(self, nodes: Sequence[Node]) -> bool:
        status = self._all(nodes)
        if status is None:
            status = self.probes_succeed
            if nodes:
                self._assumed(nodes[-1], status)
        return status

    def _if(self, node: Node) -> bool | None:
        conditions, bodies = _branches(node)
        for condition, body in zip(conditions, bodies, strict=True):
            if condition is None or self._condition(condition):
                return self._all(body)
        return True

    def _case(self, node: Node) -> bool | None:
        value = node.child_by_field_name("value")
        text = self.scope.known(self.words.text(value)) if value is not None else None
        if text is None:
            self.scope.note(line_of(node), text_of(value) if value else "case", "not understood: no branch is taken")
            return None
        for item in (c for c in node.named_children if c.type == "case_item"):
            patterns = item.children_by_field_name("value")
            wanted = [self.words.text(p) if p.type != "extglob_pattern" else text_of(p) for p in patterns]
            if any(matches(text, MARK.sub("", pattern)) for pattern in wanted):
                inner = [c for c in item.named_children if c not in patterns]
                return self._all(inner)
        return True

    def _for(self, node: Node) -> bool | None:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None:
            return None
        values = node.children_by_field_name("value")
        items = [w for v in values for w in self.words.fields([v])] if values else list(self.scope.positional)
        if any(PIECE in item.text for item in items):
            self.scope.note(line_of(node), text_of(node).split("\n")[0], "not understood: no round is made")
            return None
        for item in items:
            self.scope.assign(text_of(variable), item.text)
            self._one(body)
        return True

    def _while(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        conditions = [c for c in node.named_children if c != body]
        is_until = node.children[0].type == "until"
        while True:
            status = self._all(conditions)
            if status is None:
                self.scope.note(line_of(node), text_of(node).split("\n")[0], "not understood: no round is made")
                return None
            if status == is_until:
                return True
            if body is not None:
                self._one(body)

    def _print(self, name: str, words: list[str]) -> bool | None:
        """A command within a substitution: the few whose output is known."""
        assert self.printed is not None
        if name == "echo":
            options = 0
            while options < len(words) and words[options] in ("-n", "-e", "-E"):
                options += 1
            self.printed.append(" ".join(words[options:]) + "\n")
        elif name == "printf" and words and "%" not in words[0] and "\\" not in words[0]:
            self.printed.append(words[0])
        elif name == "pwd":
            self.printed.append(self.scope.read("PWD", 1))
        elif name in ("dirname", "basename") and len(words) == 1 and "/" in words[0] and PIECE not in words[0]:
            cut = words[0].rstrip("/").rpartition("/")
            self.printed.append(cut[0] or "/" if name == "dirname" else cut[2])
        else:
            self.prints_unknown = True
            return None
        return True

    def _substitute(self, node: Node, words: Expander) -> str | None:
        """What `$(...)` prints, where that is plain; what it sets is forgotten, as in bash."""
        outer = (self.printed, self.prints_unknown, self.said, self.scope.variables.copy(), self.scope.arrays.copy())
        self.printed, self.prints_unknown = [], False
        words_before, self.words = self.words, words
        self._deeper(node)
        try:
            statements = [c for c in node.named_children if c.type != "comment"]
            plain = all(_prints_plainly(c) for c in statements)
            self._all(statements)
            return "".join(self.printed) if plain or not self.prints_unknown else None
        except _Leave:
            return None
        finally:
            self.depth -= 1
            self.words = words_before
            self.printed, self.prints_unknown, self.said, self.scope.variables, self.scope.arrays = outer


def _prints_plainly(node: Node) -> bool:
    """`probe && echo a || echo b`: whatever the probe prints is thrown away, by 2>/dev/null or by custom."""
    if node.type != "list":
        return False
    left = node.named_children[0]
    right = node.named_children[-1]
    is_last_plain = text_of(right).split(" ")[0] in ("echo", "printf")
    return is_last_plain and (left.type != "list" or _prints_plainly(left))


def _branches(node: Node) -> tuple[list[list[Node] | None], list[list[Node]]]:
    """The conditions of an `if` with its `elif`s, None for `else`, and what each leads to."""
    conditions: list[list[Node] | None] = []
    bodies: list[list[Node]] = []
    for part in (node, *(c for c in node.children if c.type in ("elif_clause", "else_clause"))):
        condition: list[Node] | None = None if part.type == "else_clause" else []
        body: list[Node] = []
        is_body = part.type == "else_clause"
        for child in part.children:
            if child.type in ("elif_clause", "else_clause", "fi"):
                break
            if child.type == "then":
                is_body = True
            elif child.is_named:
                if is_body:
                    body.append(child)
                elif condition is not None:
                    condition.append(child)
        conditions.append(condition)
        bodies.append(body)
    return conditions, bodies
