"""What the commands of a script say of its site, as fields of `cluster`: modules, set-up, exports, the container.

Each has a row: kept, translated, or left out with why. Nothing is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from hysweep.check.site import OF_SRUN, SECRET, SHORT, SHORT_OF_SRUN, SRUN_FLAGS, SRUNS_SHORT_FLAGS
from hysweep.scripts.header import MORE_SHORT, PYXIS_FLAG, Header, unwanted
from hysweep.scripts.launch import launches
from hysweep.scripts.scope import ALWAYS_SET, END, ENV, MARK, PIECE, Scope, Word
from hysweep.scripts.settings import Row, shown
from hysweep.scripts.shell import SILENT, Script

Words = Sequence[Word]

# --- the container, and srun
# Of srun's options, those that are of the site and not of the script's own steps.
OF_SITE = re.compile(r"(?:no-)?container-.+|mpi|cpu-bind|mem-bind|network|propagate")
SRUNS_SHORT = {**SHORT, **MORE_SHORT, **SHORT_OF_SRUN, "l": "label", "u": "unbuffered"}
APPTAINERS_VALUES = ("-B", "--bind", "--env", "--env-file", "-H", "--home", "--pwd", "--cwd", "-W", "--workdir", "-o",
                     "--overlay", "--mount", "-S", "--scratch", "--network", "--hostname")  # fmt: skip
# A node, or a job, has its own.
OF_JOB = re.compile(r"(?:SLURM|PMI|PMIX|OMPI)_\w+|TMPDIR|HOSTNAME")
BY_HAND = "only the job knows it: left out, write it by hand"

# --- modules and set-up
SHOWS = ("avail", "av", "list", "show", "display", "spider", "whatis", "help", "keyword", "is-loaded", "is-avail")
ACTIVATES = {"conda": ("activate", "deactivate"), "mamba": ("activate", "deactivate"),
             "micromamba": ("activate", "deactivate"), "spack": ("load", "unload", "env")}  # fmt: skip
SETS_UP = ("source", ".", "eval", "module", "ml", "ulimit", "umask", "unset")


def read_site(header: Header, script: Script) -> None:
    """Add to the header of a script what its commands say. An experiment's or a profile's fields come of both."""
    _set_up(header, script)
    _exports(header, script.exports)
    _containers(header, script)


# --- modules and set-up


def _set_up(header: Header, script: Script) -> None:
    """Every line in its order. A job loads `cluster.modules` and then runs `cluster.setup`: so the plain loads that
    come first are the modules, and from the first line that is more (module purge, module use, source) all is set-up.
    """
    end = _end(script.steps)
    modules: list[str] = []
    setup: list[str] = []
    for at, words in enumerate(script.steps):
        if not _sets_up(words):
            continue
        row = Row(" ".join(shown(w.text, script.scope) for w in words), words[0].line)
        header.rows.append(row)
        named = _loaded(words)
        line = _bash(words, script.scope)
        if at > end:
            row.remark = "left out: comes after what the script is for"
        elif words[0].text in ("module", "ml") and (len(words) < 2 or words[1].text in SHOWS):
            row.remark = "left out: it only shows"
        elif line is None:
            row.is_fault, row.remark = True, "depends on what is not known: left out, write it in cluster.setup"
        elif words[0].text == "unset" and (why := unwanted(words[1].text)):
            row.remark = why
        elif named and not setup and not any(MARK.search(name) for name in named):
            modules += named
            row.became = "cluster.modules"
        else:
            setup.append(line)
            row.became, row.remark = "cluster.setup", _remark(words, bool(named))
            if _activates(words) and not any(w.text == "deactivate" for w in words):
                header.fields["python"] = _python(script.commands)
                row.became = "cluster.setup, cluster.python"
    if modules:
        header.fields["modules"] = list(dict.fromkeys(modules))
    if setup:
        header.fields["setup"] = setup


def _end(steps: Sequence[Words]) -> int:
    """Where the trainer is started; else the last command that does something; else all of it is set-up."""
    started = [n for n, words in enumerate(steps) if launches([words])]
    acting = [n for n, words in enumerate(steps) if not _sets_up(words) and words[0].text not in SILENT]
    return started[0] if started else acting[-1] if acting else len(steps)


def _sets_up(words: Words) -> bool:
    name = words[0].text
    return name in SETS_UP or (len(words) > 1 and words[1].text in ACTIVATES.get(name, ()))


def _activates(words: Words) -> bool:
    """An environment of Python's: its own interpreter is meant from here on."""
    name, texts = words[0].text, [w.text for w in words[1:]]
    if name in ("source", "."):
        return bool(texts) and texts[0].rpartition("/")[2] == "activate"
    return name in ACTIVATES and name != "spack" and texts[:1] == ["activate"]


def _loaded(words: Words) -> list[str]:
    """The modules of a plain `module load A B`; empty where it is more than that."""
    texts = [w.text for w in words]
    if texts[:2] in (["module", "load"], ["module", "add"], ["ml", "load"], ["ml", "add"]):
        named = texts[2:]
    elif texts[0] == "ml" and len(texts) > 1 and not re.fullmatch(r"[a-z\-]*(?:load|use|swap|purge|reset|restore|save|"
                                                                  r"refresh|update|del|rm)", texts[1]):  # fmt: skip
        named = texts[1:]
    else:
        return []
    return [] if any(name.startswith("-") for name in named) else named


def _python(commands: Sequence[Words]) -> str:
    """The interpreter by the name that the script has for it."""
    for words in commands:
        if launches([words]):
            return next((w.text for w in words if re.fullmatch(r"python[\d.]*", w.text)), "python")
    return "python"


def _remark(words: Words, is_load: bool) -> str:
    name, first = words[0].text, words[1].text if len(words) > 1 else ""
    if is_load:
        return "keeps its place: cluster.modules are loaded before"
    if name in ("source", ".") and not MARK.match(first) and not first.startswith("/"):
        return "its path is taken from where hysweep is started"
    names = {m[1] for w in words for m in MARK.finditer(w.text) if m[0][0] == ENV}
    read = sorted(n for n in names if n not in ALWAYS_SET and not OF_JOB.fullmatch(n))
    return f"reads {', '.join(read)}: export it in the shell that submits" if read else ""


def _bash(words: Words, scope: Scope) -> str | None:
    """The line anew, with the script's own variables by their values. None where a piece is not known."""
    found = [_quoted(word.text, scope) for word in words]
    return None if None in found else " ".join(text for text in found if text is not None)


def _quoted(text: str, scope: Scope) -> str | None:
    if not MARK.search(text):
        return shlex.quote(text)
    parts: list[str] = []
    at = 0
    for m in MARK.finditer(text):
        parts.append(re.sub(r'([\\"$`])', r"\\\1", text[at : m.start()]))
        at = m.end()
        raw = scope.pieces[int(m[1])].text if m[0][0] == PIECE else f"${m[1]}"
        if m[0][0] == ENV:
            parts.append(f"${{{m[1]}}}" if re.match(r"\w", text[at:]) else raw)
        elif re.fullmatch(r"\$\([^$`()]*\)", raw) and len(raw) < 100:  # what a program prints, by its own words alone
            parts.append(raw)
        else:
            return None
    parts.append(re.sub(r'([\\"$`])', r"\\\1", text[at:]))
    return '"' + "".join(parts) + '"'


# --- exports


def _exports(header: Header, exports: Mapping[str, tuple[str, int]]) -> None:
    for name, (value, line) in exports.items():
        row = Row(f"export {name}={value}", line)
        header.rows.append(row)
        if why := unwanted(name):
            row.override, row.remark = f"export {name}=…" if SECRET.search(name) else f"export {name}", why
        elif MARK.search(value):
            row.override = f"export {name}"
            row.remark = "depends on what is not known: left out; if a trial needs it, write it in cluster.setup"
        elif name.upper() != name:
            row.remark = "left out: of the script itself"
        else:
            header.fields.setdefault("env", {})[name] = value
            row.became = f"cluster.env.{name}"


# --- the container, and srun


def _containers(header: Header, script: Script) -> None:
    """Of the command that starts the trainer; where it says nothing of an image, of the first that does."""
    started = [words for words in script.commands if launches([words])]
    others = [words for words in script.commands if not launches([words])]
    steps = [words for words in script.commands if _of(words, "srun") is not None]
    within = [words for words in others if _has_container(words)]
    chosen = started[:1] or within[:1] or (steps if len(steps) == 1 else [])
    for words in chosen:
        _Command(header, script.scope, words).read()
    for words in within:
        is_told = any(row.is_fault and "cluster.image" in row.remark for row in header.rows)
        if "image" not in header.fields and not is_told and words not in chosen:
            _Command(header, script.scope, words).read()


def _of(words: Words, *programs: str) -> int | None:
    """Where a program stands in a command line, before the Python that it starts."""
    for n, word in enumerate(words):
        if word.text in programs:
            return n
        if word.text.startswith("python"):
            return None
    return None


def _has_container(words: Words) -> bool:
    at = _of(words, "apptainer", "singularity", "docker", "podman")
    is_run = at is not None and [w.text for w in words[at + 1 : at + 2]] in (["exec"], ["run"])
    of_srun = _of(words, "srun")
    return is_run or (of_srun is not None and any(w.text.startswith("--container-image") for w in words))


class _Command:
    """One command line: `srun [options] [apptainer exec [options] IMAGE] ...`."""

    def __init__(self, header: Header, scope: Scope, words: Words) -> None:
        self.header, self.scope, self.words = header, scope, words
        self.fields = header.fields
        self.texts = [w.text for w in words]

    def read(self) -> None:
        at = _of(self.words, "srun")
        if at is not None:
            self._srun(at + 1)
        at = _of(self.words, "apptainer", "singularity")
        if at is not None and self.texts[at + 1 : at + 2] in (["exec"], ["run"]):
            self._apptainer(self.texts[at], at + 2)
        at = _of(self.words, "docker", "podman")
        if at is not None and self.texts[at + 1 : at + 2] in (["exec"], ["run"]):
            row = self._row(f"{self.texts[at]} {self.texts[at + 1]}")
            row.is_fault = True
            row.remark = "left out: pyxis or apptainer run a container: give cluster.container and cluster.image"

    def _row(self, text: str) -> Row:
        row = Row(shown(text, self.scope), self.words[0].line)
        self.header.rows.append(row)
        return row

    def _srun(self, start: int) -> None:
        left_out: list[str] = []
        for name, value in _options_of_srun(self.texts[start:]):
            option = f"srun --{name}" + (f"={value}" if value is not None else "")
            if name == "container-image":
                self._image(option, "pyxis", value or "")
            elif name == "container-mounts":
                self._mounts(option, f"srun --{name}", value or "")
            elif OF_SITE.fullmatch(name):
                row, kept = self._row(option), _kept(value or "", self.scope)
                if not isinstance(kept, str):
                    row.is_fault, row.remark = True, kept.remark
                    continue
                more = self.fields.setdefault("srun_args", [])
                argument = option.removeprefix("srun ").partition("=")[0] + (f"={kept}" if value is not None else "")
                more += [] if argument in more else [argument]
                row.became = "cluster.srun_args"
            else:
                left_out.append(name)
        ours = [name for name in left_out if name in OF_SRUN]
        for names, why in (
            (ours, "left out: the job's own srun says it, of all its nodes"),
            ([n for n in left_out if n not in ours], "left out: of the script's own steps; else cluster.srun_args"),
        ):
            if names:
                self._row("srun " + " ".join(f"--{name}" for name in names)).remark = why

    def _apptainer(self, program: str, n: int) -> None:
        """apptainer exec [options] IMAGE"""
        left_out: list[str] = []
        while n < len(self.texts) and self.texts[n].startswith("-"):
            name, is_joined, value = self.texts[n].partition("=")
            if name in APPTAINERS_VALUES and not is_joined:
                n += 1
                value = self.texts[n] if n < len(self.texts) else ""
            if name in ("-B", "--bind"):
                self._mounts(f"{program} {name} {value}", f"{program} {name}", value)
            elif name == "--env":
                self._env(program, value)
            elif name not in ("--nv", "--rocm"):
                left_out.append(name)
            n += 1
        if left_out:
            # apptainer reads every long option of its environment too
            why = "left out: no field says it; export APPTAINER_OPTION=VALUE in cluster.setup says the same"
            self._row(f"{program} {' '.join(left_out)}").remark = why
        if n < len(self.texts):
            self._image(f"{program} … {self.texts[n]}", "apptainer", self.texts[n])

    def _env(self, program: str, text: str) -> None:
        for item in text.split(","):
            name, _, value = item.partition("=")
            row = self._row(f"{program} --env {name}")
            if why := unwanted(name):
                row.remark = why
            elif MARK.search(value) or not name.isidentifier():
                row.remark = "depends on what is not known: left out; if a trial needs it, write it in cluster.env"
            else:
                self.fields.setdefault("env", {})[name] = value
                row.became = f"cluster.env.{name}"

    def _image(self, option: str, container: str, image: str) -> None:
        row, kept = self._row(option), _kept(image, self.scope)
        if isinstance(kept, str) and kept:
            self.fields |= {"container": container, "image": kept}
            row.became = "cluster.container, cluster.image"
            return
        row.is_fault = True
        row.remark = f"{'has no value' if isinstance(kept, str) else kept.remark}: cluster.container, cluster.image"

    def _mounts(self, option: str, name: str, value: str) -> None:
        """What can be kept is, in one row; each of the others has its own."""
        row = self._row(option)
        mounts: list[str] = []
        for mount in (m for m in value.split(",") if m):
            kept = _kept(mount, self.scope)
            if isinstance(kept, str):
                mounts.append(kept)
            else:
                other = self._row(f"{name} {mount}")
                other.is_fault, other.remark = True, f"{kept.remark}, in cluster.container_mounts"
        if mounts:
            before = self.fields.get("container_mounts", [])
            self.fields["container_mounts"] = list(dict.fromkeys([*before, *mounts]))
            row.became = "cluster.container_mounts"
        else:
            self.header.rows.remove(row)


def _kept(text: str, scope: Scope) -> str | Row:
    """A value for a field, in which a variable of the environment stays one; else a row that says why not.

    A ~ is the home directory: bash leaves it alone within --option=~/x, where nobody means a file of that name.
    """
    if text == "~" or text.startswith("~/"):
        text = f"{ENV}HOME{END}{text[1:]}"
    for m in MARK.finditer(text):
        if m[0][0] == PIECE:
            return Row("", 0, remark=f"{scope.pieces[int(m[1])].text} is not understood: left out, write it by hand")
        if OF_JOB.fullmatch(m[1]):
            return Row("", 0, remark=f"${m[1]}: {BY_HAND}")
    return text


def _options_of_srun(texts: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(long name, value) of each, up to the program that srun starts."""
    n = 0
    while n < len(texts) and texts[n].startswith("-") and texts[n] not in ("-", "--"):
        word = texts[n]
        n += 1
        value: str | None
        if word.startswith("--"):
            name, is_said, value = word[2:].partition("=")
            has_none = name in SRUN_FLAGS or PYXIS_FLAG.fullmatch(name) is not None
        else:
            name, value = SRUNS_SHORT.get(word[1], word[1]), word[2:]
            has_none, is_said = word[1] in SRUNS_SHORT_FLAGS, value
        if not is_said:
            value = None
            if not has_none and n < len(texts):
                value = texts[n]
                n += 1
        yield name, value
