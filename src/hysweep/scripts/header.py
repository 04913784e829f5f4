"""The #SBATCH lines of a script as fields of `cluster`. What its commands say of the site is for `site`.

The grammar is that of sbatch(1), 22.05 to 25.05.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hysweep.check.keys import RESERVED
from hysweep.check.site import FIELD_OF, FLAGS, LAUNCHERS, SECRET, SHORT, TAKEN_AWAY, gpus_of, option_name
from hysweep.schema import BadInput
from hysweep.schema.gpus import GPUS, kind_of
from hysweep.schema.hostlist import hosts
from hysweep.scripts.settings import Row

MORE_SHORT = {"B": "extra-node-info", "D": "chdir", "F": "nodefile", "H": "hold", "I": "immediate", "L": "licenses",
              "M": "clusters", "O": "overcommit", "S": "core-spec", "b": "begin", "i": "input", "k": "no-kill",
              "m": "distribution", "s": "oversubscribe", "v": "verbose"}  # fmt: skip
# pyxis adds options to sbatch and srun; these have no value.
PYXIS_FLAG = re.compile(
    r"no-container-[\w-]+|container-(?:mount-home|remap-root|entrypoint|entrypoint-log|writable|readonly)"
)
LEFT_OUT = {
    **LAUNCHERS,
    "chdir": "paths of a trial are absolute",
    "input": "a job reads nothing",
    "verbose": "of who submits, not of the job",
    "get-user-env": "the environment of who submits goes along",
}
TEXTS = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "dependency", "comment",
         "mail-type", "mail-user")  # fmt: skip
WEEK = 7 * 24 * 60
INSTEAD = {"gpus-per-node": "cluster.gpus_per_node", "gres": "cluster.gres", "gpus": "cluster.gpus_per_node",
           "gpus-per-task": "cluster.gpus_per_node"}  # fmt: skip
OF_SHELL = {"PATH", "HOME", "USER", "SHELL", "PWD", "TERM"}


@dataclass(slots=True)
class Header:
    """What a script asks SLURM for: `fields` of cluster by name; `environment` is what SLURM then tells the script."""

    rows: list[Row] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    says_gpu: bool = False  # which kind of GPU


@dataclass(frozen=True, slots=True)
class _Said:
    value: str | None  # None: an option without one
    row: Row


def read_header(source: str) -> Header | None:
    """The options of a script; None where it has none. What is wrong with one has a row."""
    header = Header()
    said: dict[str, _Said] = {}
    for line, words in _lines(source, header.rows):
        for name, value, text in _options(words):
            row = Row(f"#SBATCH {text}", line)
            header.rows.append(row)
            if name in said:
                said[name].row.remark = f"line {line} says it anew"
            said[name] = _Said(value, row)
    if not header.rows:
        return None
    _Reader(header, said).read()
    return header


def _lines(source: str, late: list[Row]) -> Iterator[tuple[int, list[str]]]:
    """The words of each line of options. As sbatch: they end where the first command is."""
    is_over = False
    for number, line in enumerate(source.splitlines(), 1):
        if re.match(r"#SBATCH(?=\s|$)", line):
            if is_over:
                late.append(Row(line.strip(), number, "", "comes after the first command: sbatch does not read it"))
            else:
                yield number, words_of(line.removeprefix("#SBATCH"))
        elif line.strip() and not line.lstrip().startswith("#"):
            is_over = True


def words_of(text: str) -> list[str]:
    """The words of a line of options as sbatch has them: backslashes count within quotes too, and a # ends the line."""
    words: list[str] = []
    word: str | None = None
    quote, at = "", 0
    while at < len(text):
        c = text[at]
        if c == "\\" and at + 1 < len(text):
            at += 1
            word = (word or "") + text[at]
        elif quote:
            if c == quote:
                quote = ""
            else:
                word = (word or "") + c
        elif c in "'\"":
            quote, word = c, word or ""
        elif c.isspace():
            if word is not None:
                words.append(word)
            word = None
        elif c == "#":
            break
        else:
            word = (word or "") + c
        at += 1
    return words if word is None else [*words, word]


def _options(words: Sequence[str]) -> Iterator[tuple[str, str | None, str]]:
    """(long name, value, as it is written) of each option."""
    n = 0
    while n < len(words):
        word = words[n]
        n += 1
        following = words[n] if n < len(words) and not words[n].startswith("-") else None
        value: str | None
        if word.startswith("--"):
            name, is_joined, value = word[2:].partition("=")
            name = option_name(name)
            if not is_joined:
                value = None if name in FLAGS or PYXIS_FLAG.fullmatch(name) else following
        elif word.startswith("-") and len(word) > 1:
            name = {**SHORT, **MORE_SHORT}.get(word[1], word[1])
            value = word[2:].removeprefix("=") or (None if name in FLAGS else following)
            is_joined = word[2:]
        else:  # no dash: left as it is, which is no option's name
            name, value, is_joined = f" {word}", None, "="
        if not is_joined and value is not None:
            word = f"{word} {value}"
            n += 1
        yield name, value, word


class _Reader:
    def __init__(self, header: Header, said: Mapping[str, _Said]) -> None:
        self.header, self.said = header, said
        self.fields = header.fields

    def read(self) -> None:
        for name, said in self.said.items():
            if not re.fullmatch(r"[a-z][a-z0-9\-]+", name):
                said.row.is_fault, said.row.remark = True, "is no option of sbatch"
        per_node = self._number("ntasks-per-node")
        self._nodes(per_node)
        self._gpus(per_node or 1)
        self._number("cpus-per-task", "cpus_per_node", lambda n: n * (per_node or 1))
        if (per_node or 1) > 1 and "cpus-per-task" in self.said:
            self.said["cpus-per-task"].row.remark = f"of each of {per_node} tasks of a node"
        for name in TEXTS:
            if value := self._value(name):
                self._put(name, FIELD_OF[name], value)
        self._read_as("time", "timeout_min", minutes)
        self._read_as("mem", "memory_gib", gib)
        self._read_as("nice", "nice", int, "100")
        self._flags()
        self._container()
        for name, said in self.said.items():
            row = said.row
            if name == "export":
                self._export(said)
            elif name in LEFT_OUT and not row.became:
                row.remark = row.remark or f"left out: {LEFT_OUT[name]}"
            elif not (row.became or row.is_fault or row.remark):
                more = self.fields.setdefault("additional_parameters", {})
                more[name] = True if said.value is None else said.value
                row.became = f"cluster.additional_parameters.{name}"
        self._environment(per_node)

    def _put(self, option: str, name: str, value: Any, remark: str = "") -> None:
        self.fields[name] = value
        row = self.said[option].row
        row.became, row.remark = f"cluster.{name}", row.remark or remark

    def _value(self, name: str) -> str:
        """An option's value; empty where it is not there. One that lacks its value is a fault."""
        if name not in self.said:
            return ""
        said = self.said[name]
        if not said.value:
            said.row.is_fault, said.row.remark = True, "has no value"
            return ""
        return said.value

    def _read_as(self, option: str, name: str, read: Any, unsaid: str = "") -> None:
        text = unsaid if unsaid and option in self.said and self.said[option].value is None else self._value(option)
        if not text:
            return
        try:
            value = read(text)
        except ValueError as e:
            self._fault(option, str(e) if " " in str(e) and "literal" not in str(e) else "cannot be read")
            return
        if value is None:
            self._put(option, name, WEEK, f"has no end, and a trial must: {WEEK} min, a week, are taken")
        else:
            self._put(option, name, value)

    def _fault(self, option: str, why: str) -> None:
        row = self.said[option].row
        row.is_fault, row.remark = True, why

    def _number(self, option: str, name: str = "", change: Any = None) -> int | None:
        text = self._value(option)
        if not text:
            return None
        if not re.fullmatch(r"\d{1,9}", text) or int(text) == 0:
            self._fault(option, "is no number")
            return None
        value = int(text) if change is None else change(int(text))
        if name:
            self._put(option, name, value)
        return int(value)

    def _nodes(self, per_node: int | None) -> None:
        tasks = self._number("ntasks")
        self.fields["nodes"] = 1
        if text := self._value("nodes"):
            found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text)
            if found and int(found[1]):
                remark = f"a trial has as many nodes each time: {int(found[1])}" if found[2] else ""
                self._put("nodes", "nodes", int(found[1]), remark)
            else:
                self._fault("nodes", "is no number of nodes")
        elif tasks:
            nodes = -(-tasks // (per_node or 1))
            self._put("ntasks", "nodes", nodes, "without --nodes: one task runs on each node" if not per_node else "")
        elif text := self._value("nodelist"):
            try:
                self.fields["nodes"] = len(hosts(text))
            except BadInput:
                return
            self.said["nodelist"].row.remark = f"and so cluster.nodes = {self.fields['nodes']}"

    def _gpus(self, per_node: int) -> None:
        """GPUs of a node from whichever option says them, in the order that sbatch minds them in."""
        others: list[str] = []
        kinds: list[tuple[str, int]] = []
        taken = ""
        if text := self._value("gres"):
            items = [item.strip().removeprefix("gres:").removeprefix("gres/") for item in text.split(",")]
            others = [item for item in items if item.split(":")[0] != "gpu"]
            gpus = [item for item in items if item.split(":")[0] == "gpu"]
            try:
                kinds = [
                    (":".join(i.split(":")[1:-1]) if i.count(":") > 1 else _kind_alone(i), gpus_of(i)) for i in gpus
                ]
            except ValueError:
                self._fault("gres", "cannot be read")
                return
            taken = "gres" if gpus else ""
        if others:
            self.said["gres"].row.became = "cluster.gres"
        for option in ("gpus-per-node", "gpus-per-task", "gpus"):
            text = self._value(option)
            if not text:
                continue
            if taken:
                self.said[option].row.remark = f"--{taken} says it"
                continue
            found = [re.fullmatch(r"(?:([A-Za-z]\w*):)?(\d{1,6})", item.strip()) for item in text.split(",")]
            if not all(found):
                self._fault(option, "is no number of GPUs")
                continue
            counts = [(m[1] or "", int(m[2])) for m in found if m]
            nodes = int(self.fields["nodes"])
            if option == "gpus" and any(n % nodes for _, n in counts):
                self._fault(option, f"does not divide among {nodes} nodes")
                continue
            factor = per_node if option == "gpus-per-task" else 1
            kinds = [(kind, n * factor // (nodes if option == "gpus" else 1)) for kind, n in counts]
            taken = option
        total = sum(n for _, n in kinds)
        if not taken or not total:
            if others:
                self.fields["gres"] = ",".join(others)
            return
        self._put(taken, "gpus_per_node", total)
        if others or any(kind for kind, _ in kinds):
            gpus = ["gpu:" + (f"{kind}:" if kind else "") + str(n) for kind, n in kinds]
            self.fields["gres"] = ",".join([*gpus, *others])
            self.said[taken].row.became = "cluster.gres, cluster.gpus_per_node"
        hints = [kind for kind, _ in kinds if kind] + [self._value(o) for o in ("constraint", "partition")]
        self._kind(hints)

    def _kind(self, hints: list[str]) -> None:
        for hint in hints:
            if (name := kind_of(hint)) is None:
                continue
            memory, size = GPUS[name], re.search(r"(40|80)_?g", hint.lower())
            if memory is None and name in ("A100", "A800") and size:
                memory = 39.4 if size[1] == "40" else 79.1
            self.fields |= {"gpu": name, "gpu_memory_gib": memory}
            self.header.says_gpu = True
            return

    def _flags(self) -> None:
        if "exclusive" in self.said:
            kind = self.said["exclusive"].value
            self._put("exclusive", "use_exclusive", True, f"of {kind}: whole nodes are taken" if kind else "")
        for option, value in (("requeue", True), ("no-requeue", False)):
            if option in self.said:
                self._put(option, "use_requeue", value)
        if text := self._value("signal"):
            delay = text.partition("@")[2]
            if delay and not delay.isdigit():
                self._fault("signal", "cannot be read")
            else:
                remark = "the signal is hysweep's own; so long before the end it comes"
                self._put("signal", "signal_delay_s", int(delay or 60), remark)

    def _container(self) -> None:
        """pyxis adds options to sbatch and to srun."""
        if image := self._value("container-image"):
            self._put("container-image", "image", image)
            self.fields["container"] = "pyxis"
        if mounts := self._value("container-mounts"):
            self._put("container-mounts", "container_mounts", mounts.split(","))
        for name, said in self.said.items():
            if name.startswith(("container-", "no-container-")) and not said.row.became:
                self.fields.setdefault("srun_args", []).append(f"--{name}" + (f"={said.value}" if said.value else ""))
                said.row.became = "cluster.srun_args"

    def _export(self, said: _Said) -> None:
        said.row.remark = f"left out: {LEFT_OUT['export']}"
        for item in (said.value or "").split(","):
            name, is_set, value = item.partition("=")
            if is_set and name.isidentifier():
                if why := unwanted(name):
                    said.row.remark = f"{name}: {why}"
                    continue
                self.fields.setdefault("env", {})[name] = value
                said.row.became, said.row.remark = "cluster.env", ""

    def _environment(self, per_node: int | None) -> None:
        """What SLURM tells the script of its job, as far as the header decides it."""
        nodes = int(self.fields["nodes"])
        tasks = self.said["ntasks"].value if "ntasks" in self.said else str(nodes * (per_node or 1))
        told = {
            "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NNODES": str(nodes), "SLURM_NTASKS": tasks,
            "SLURM_NPROCS": tasks, "SLURM_NTASKS_PER_NODE": str(per_node) if per_node else None,
            "SLURM_GPUS_ON_NODE": str(self.fields["gpus_per_node"]) if "gpus_per_node" in self.fields else None,
            "SLURM_JOB_NAME": self._plain("job-name"), "SLURM_JOB_PARTITION": self._plain("partition"),
            "SLURM_JOB_ACCOUNT": self._plain("account"), "SLURM_CPUS_PER_TASK": self._plain("cpus-per-task"),
            "SLURM_GPUS_PER_NODE": self._plain("gpus-per-node"), "SLURM_GPUS": self._plain("gpus"),
        }  # fmt: skip
        self.header.environment = {name: value for name, value in told.items() if value}

    def _plain(self, option: str) -> str | None:
        return self.said[option].value if option in self.said else None


def _kind_alone(item: str) -> str:
    """gpu:h100 is one such GPU, gpu:8 are eight."""
    last = item.partition(":")[2]
    return "" if last.isdigit() else last


def minutes(text: str) -> int | None:
    """A time limit in any of SLURM's forms, as whole minutes, rounded up. None: without end. Raises ValueError.

    minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds
    """
    if text.lower() in ("unlimited", "infinite", "-1", "0"):
        return None
    found = re.fullmatch(r"(?:(\d{1,6})-)?(\d{1,8})(?::(\d{1,8}))?(?::(\d{1,8}))?", text, re.ASCII)
    if found is None:
        raise ValueError("is no time limit")
    parts = [int(part) for part in found.groups()[1:] if part is not None]
    if found[1] is not None:
        hours, mins, seconds = [*parts, 0, 0][:3]
        seconds += (int(found[1]) * 24 + hours) * 3600 + mins * 60
    elif len(parts) == 3:
        seconds = parts[0] * 3600 + parts[1] * 60 + parts[2]
    else:
        seconds = parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)
    return math.ceil(seconds / 60) or None


def gib(text: str) -> float:
    """A size of memory, MB where no unit is said, as GiB. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,12})(?:([kmgtKMGT])(?:i?[bB])?)?", text, re.ASCII)
    if found is None:
        raise ValueError("is no size of memory")
    size = int(found[1]) * {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}[(found[2] or "m").lower()] / 2**30
    return size if size != int(size) else float(int(size))


def unwanted(name: str) -> str:
    """Why a variable is none of a profile's; empty where it is."""
    if SECRET.search(name):
        return "left out: reads as a secret; export it in the shell that submits"
    if name in RESERVED or TAKEN_AWAY.match(name):
        return "left out: hysweep sets it on each node"
    return "left out: of the shell that submits" if name in OF_SHELL else ""
