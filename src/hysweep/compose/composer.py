"""Composition: the shipped config groups, a user's own before them, and overrides, into dataclasses."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins import file_config_source
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_omega_conf_dumper, get_yaml_loader
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException, ValidationError

from hysweep.compose.grammar import (
    NOT_OF_A_TRIAL,
    OPTIONAL_GROUPS,
    SHORT_FOR,
    UNREAD,
    Assignments,
    Vocabulary,
    assignment,
    parse_overrides,
    parse_space,
)
from hysweep.compose.hf_config import local_model, read_model
from hysweep.compose.launcher_settings import translated
from hysweep.compose.space import SEED, Choice, Conditional, Dimension, Interval, Parameter, Space, Zip
from hysweep.schema import BadInput, Model, Objective, Problem, Pruner, Study, Trial, Unsaid, leaves, suggest
from hysweep.schema.knob import Leaf
from hysweep.schema.override import emit, literal
from hysweep.schema.problem import unreadable_yaml
from hysweep.schema.search import PRUNER_OPTIONS, SAMPLER_OPTIONS, spell_out

SHIPPED = Path(__file__).parent.parent / "conf"
MOST_TOLD = 10  # faults of one range
MOST = 10**12  # of a whole number that has no bound of its own: what is reckoned with it takes no time
KEPT = 256  # command lines whose result is kept
_ENVIRONMENT = re.compile(r"\$\{oc\.env:[^${}]*\}")  # names no other field

T = TypeVar("T")

NUMBERS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool"))

IN_LISTS: dict[Any, str] = {Objective: "study.objectives", Pruner: "study.pruners"}

# What Hydra and OmegaConf raise on a user's input: their own errors, and what falls through them where a file is no
# YAML, or holds a list where a mapping must be, or an option has a name that is no text.
MISCOMPOSED = (HydraException, OmegaConfBaseException, yaml.YAMLError, AttributeError, TypeError, ValueError,
               LookupError, AssertionError, RecursionError)  # fmt: skip


@dataclass(kw_only=True)
class Root(Trial):
    """The whole tree: a trial, and what a sweep file says of the search."""

    study: Study = field(default_factory=Study)
    space: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Composition:
    """What a command line means.

    fixed   the overrides that hold for every trial of the sweep
    space   what varies
    choices the option chosen for each config group
    env     the environment variables that config files ask for, as they are now; None: not set
    """

    trial: Trial
    study: Study
    fixed: tuple[str, ...]
    space: Space
    choices: dict[str, str]
    env: dict[str, str | None] = field(default_factory=dict)

    def trial_yaml(self) -> str:
        return trial_yaml(self.trial)


def trial_yaml(trial: Trial) -> str:
    """A trial as it is frozen into its directory: every field, resolved."""
    return "".join(_group_yaml(pickle.dumps({f.name: _plain(getattr(trial, f.name))})) for f in fields(trial))


def _plain(part: Any) -> Any:
    return asdict(part) if is_dataclass(part) and not isinstance(part, type) else part


@lru_cache(16 * KEPT)
def _group_yaml(pickled: bytes) -> str:
    """One group of a trial. In a study few of them differ from trial to trial, and each takes YAML milliseconds."""
    # what OmegaConf.to_yaml does, without making nodes of what is plain already
    text: str = yaml.dump(
        pickle.loads(pickled),
        Dumper=get_omega_conf_dumper(),
        default_flow_style=False,
        allow_unicode=True,
        sort_keys=False,
    )
    return text


@lru_cache(KEPT)
def load_trial(text: str) -> Trial:
    """The frozen trial back. Fields of a later schema take their defaults; fields that are gone are refused."""
    content = read_yaml(text)
    # all of it is resolved: a ${ in it is nothing but text
    return as_typed(Trial, {} if content is None else literal(content) if "${" in text else content)


def read_yaml(text: str) -> Any:
    """What hysweep wrote, as OmegaConf reads YAML: no key twice, no dates."""
    return yaml.load(text, Loader=_yaml_loader())


@cache
def _yaml_loader() -> Any:
    """OmegaConf's, on libyaml's parser, which takes a tenth of the time of Python's, where PyYAML has it."""
    python_s = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return python_s
    from yaml._yaml import CParser
    from yaml.constructor import SafeConstructor
    from yaml.resolver import Resolver

    class Loader(CParser, python_s):  # type: ignore[misc,valid-type]
        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

    return Loader


def as_typed(cls: type[T], content: Any) -> T:
    """A mapping as the dataclass whose fields it gives; those that it leaves out take their defaults."""
    made: DictConfig = pickle.loads(_blank(typing.cast(Any, cls)))
    made.merge_with(content)
    typed = OmegaConf.to_object(made)
    assert isinstance(typed, cls)
    return typed


@cache
def _blank(cls: type) -> bytes:
    """OmegaConf's own word on a dataclass, pickled: to work it out takes twenty times as long as to copy it."""
    return pickle.dumps(OmegaConf.structured(cls))


@cache
def _store_root() -> None:
    ConfigStore.instance().store("hysweep_root", Root)


@lru_cache(16 * KEPT)
def _parsed(text: str) -> Override:
    return OverridesParser.create().parse_override(text)


class _Files(CachingConfigRepository):
    """Reads each file once. Hydra changes what it is given, so each time it gets a copy (by pickle: the fastest)."""

    def __init__(self, search: ConfigSearchPathImpl) -> None:
        # not Hydra's own, which copies its whole store of configs
        self.delegate = ConfigRepository(search)
        self.cache = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.cache:
            self.cache[config_path] = pickle.dumps(self.delegate.load_config(config_path))  # type: ignore[assignment]
        found: ConfigResult | None = pickle.loads(self.cache[config_path])  # type: ignore[arg-type]
        return found


class FileConfigSource(file_config_source.FileConfigSource):
    """How files are read, by Hydra's own command too: what is short in them of a study is spelled out.

    It has the name of Hydra's own: by that Hydra knows it in a job of its launchers.
    """

    def load_config(self, config_path: str) -> ConfigResult:
        read = super().load_config(config_path)
        if isinstance(read.config, DictConfig) and OmegaConf.is_dict(read.config.get("study")):
            spell_out(read.config.study)
        return read


class _SweepFile(FileConfigSource):
    """A sweep file of any place, as the option of the group `sweep` that has its name."""

    def __init__(self, file: Path) -> None:
        super().__init__("sweep file", f"file://{file.parent}")
        self.file = file

    def is_group(self, config_path: str) -> bool:
        return config_path == "sweep"

    def is_config(self, config_path: str) -> bool:
        return config_path.removesuffix(".yaml") == f"sweep/{self.file.stem}"

    def load_config(self, config_path: str) -> ConfigResult:
        return super().load_config(self.file.name)


class Composer:
    """Composes from the directories given, the first one winning, and from the shipped groups last.

    `shipped=False` leaves the shipped groups out: a study composes from its own snapshot alone, and so does whoever
    gives the snapshot of a study as a directory.
    What a command line came to is kept for the life of the composer: a trial that it hands out is not to be
    changed. Files are read as they are when a command line is first composed.
    """

    def __init__(self, dirs: Sequence[Path] = (), shipped: bool = True) -> None:
        shipped = shipped and not any((Path(d).absolute().parent / "study.yaml").is_file() for d in dirs)
        self.dirs = tuple(Path(d).absolute() for d in dirs) + ((SHIPPED,) if shipped else ())
        for d in self.dirs:
            if not d.is_dir():
                raise BadInput(
                    Problem(
                        "--config-dir",
                        d,
                        "is no directory",
                        "give the directory that holds your config groups",
                    )
                )
        for d in self.dirs[: len(dirs)] if shipped else ():
            for root in (d / "trial.yaml", d / "config.yaml"):
                if root.exists():
                    cure = "remove it; options go into groups, as in algorithm/mine.yaml, or experiment/mine.yaml"
                    raise BadInput(Problem("--config-dir", root, "would take the place of hysweep's own root", cure))
        self._own = self.dirs[: len(dirs)] if shipped else ()  # a snapshot was looked at when it was taken
        self._frozen_env: dict[str, str | None] = {}
        self.sweep_files: list[Path] = []  # those named by their paths
        _store_root()
        Plugins.instance()  # registers the sources that the loader uses
        SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
        search = ConfigSearchPathImpl()
        search.append("hydra", "pkg://hydra.conf")
        for d in self.dirs:
            search.append("hysweep", f"file://{d}")
        search.append("schema", "structured://")
        self._loader = ConfigLoaderImpl(search)
        self._files = _Files(search)
        self._load = lru_cache(KEPT)(self._load_once)
        self._grouped = lru_cache(KEPT)(self._grouped_once)
        self._typed = lru_cache(KEPT)(self._typed_once)
        self._valued = lru_cache(KEPT)(self._valued_once)
        self._groups_of = lru_cache(KEPT)(self._groups_of_once)

    @cached_property
    def words(self) -> Vocabulary:
        """Every key that an override may name."""
        types, dicts = typed_fields()
        aliases = {key: leaf.path for leaf in _knobs().values() for key in leaf.knob.keys}
        options: dict[str, set[str]] = {}  # listed here: Hydra's own listing takes a fortieth of a second a group
        for path in (p for d in self.dirs for p in d.glob("*/*.yaml") if p.parent.name != "hydra"):
            options.setdefault(path.parent.name, set()).add(path.stem)
        return Vocabulary(types, {group: sorted(names) for group, names in sorted(options.items())}, dicts, aliases)

    def compose(self, overrides: Iterable[str] = ()) -> Composition:
        """One command line (with or without ranges in it) as a base trial and a space around it.

        The base trial has the first value of each choice, and of a zip; what has an interval or a condition keeps
        the config's own value. Raises BadInput with all problems found.
        """
        given = parse_overrides(translated(self._with_names(overrides)), self.words)
        if self._misread_numbers:
            raise BadInput(*self._misread_numbers)
        cfg, choices = self._load(given.fixed)
        try:
            raw = OmegaConf.to_container(cfg.space, resolve=True, throw_on_missing=True)
            assert isinstance(raw, dict)
        except MISCOMPOSED as e:
            raise BadInput(self._explain(e, given.fixed)) from e
        # a value given on the command line takes its key out of the sweep file's space
        space = self.space(_without({str(k): v for k, v in raw.items()}, given), given.fixed, given.space)
        self._check_space(space, OmegaConf.select(cfg, "algorithm.plugin") is not None)
        first: dict[str, Any] = {}
        for key, d in space.items():
            first |= {key: d.values[0]} if isinstance(d, Choice) else d.rows.values[0] if isinstance(d, Zip) else {}
        texts = tuple(assignment(key, space.text(key, value), self.words) for key, value in first.items())
        trial, study = self._typed((*given.fixed, *texts))
        return Composition(trial, study, given.fixed, space, dict(choices), self._environment())

    def _with_names(self, overrides: Iterable[str]) -> Iterator[str]:
        """`sweep=PATH.yaml` becomes the name of that file, which from here on is an option like others."""
        for text in overrides:
            key, _, value = text.partition("=")
            if key.lstrip("+") == "sweep" and value.endswith(".yaml"):
                file = Path(os.path.expanduser(value)).absolute()
                text = f"{key}={sweep_name(file, 'sweep')}"
                if not os.path.isfile(file):
                    raise BadInput(Problem("sweep", value, "there is no such file", f"looked for {file}"))
                self._files.delegate.get_sources().insert(0, _SweepFile(file))
                self.sweep_files.append(file)
                names = self.words.groups.setdefault("sweep", [])
                names[:] = sorted({*names, file.stem})
            yield text

    def space(self, content: dict[str, Any], fixed: Sequence[str], given: dict[str, Dimension] | None = None) -> Space:
        """The `space:` of a sweep file as a space around the fixed overrides."""

        def fact(space: Space, point: dict[str, Any], name: str) -> Any:
            if name in self.words.groups:
                return point.get(name, self._load(tuple(fixed))[1].get(name))
            try:
                node: Any = self.point(fixed, space, point)
            except BadInput:  # told where the point itself is composed
                return None
            for part in name.split("."):
                node = node.get(part) if isinstance(node, dict) else getattr(node, part, None)
            return node

        return parse_space(content, self.words, given).with_facts(fact)

    def point(self, fixed: Sequence[str], space: Space, point: Mapping[str, Any]) -> Trial:
        """The trial at one point of a space."""
        varied = {key: assignment(key, space.text(key, value), self.words) for key, value in point.items()}
        options = tuple(text for key, text in varied.items() if key in self.words.groups)
        values = tuple(text for key, text in varied.items() if key not in self.words.groups)
        return self._valued((*fixed, *options), values)

    def _valued_once(self, near: tuple[str, ...], values: tuple[str, ...]) -> Trial:
        """The trial of some command line with some values set besides.

        Trials of a study mostly differ in few fields, so only the groups of these are made anew; the others are those
        of the trial without them.
        """
        groups = tuple(sorted({text.partition("=")[0].lstrip("+~").partition(".")[0] for text in values}))
        pickled = self._groups_of(near, groups) if values else None
        if pickled is not None:
            with suppress(BadInput, *MISCOMPOSED), _set(self._frozen_env):
                part: DictConfig = pickle.loads(pickled)
                ConfigLoaderImpl._apply_overrides_to_config([_parsed(text) for text in values], part)
                made: dict[str, Any] = {name: OmegaConf.to_object(part[name]) for name in groups}
                trial = replace(self._typed(near)[0], **made)
                if not any(out_of_bounds(leaves(getattr(trial, name), f"{name}.")) for name in groups):
                    return trial
        return self._typed((*near, *values))[0]  # says what is wrong, where something is

    def _groups_of_once(self, near: tuple[str, ...], groups: tuple[str, ...]) -> bytes | None:
        """Some groups of a tree. None where they cannot be taken alone: a model's name and shape follow from what was
        said of it, and with a reference in it one field may change another."""
        if "model" in groups or not {f.name for f in fields(Trial)}.issuperset(groups):
            return None
        tree, _ = self._load(near)
        if "${" in _ENVIRONMENT.sub("", json.dumps(OmegaConf.to_container(tree, resolve=False), default=str)):
            return None
        part = OmegaConf.masked_copy(tree, list(groups))
        OmegaConf.set_struct(part, True)
        return pickle.dumps(part)

    def freeze(self, env: dict[str, str | None]) -> None:
        """Compose as if these environment variables were as they are here: a study goes on as it began."""
        self._frozen_env = env

    def _environment(self) -> dict[str, str | None]:
        names = {name for text in self.snapshot().values() for name in re.findall(r"\$\{oc\.env:(\w+)", text)}
        return {name: self._frozen_env.get(name, os.environ.get(name)) for name in sorted(names)}

    def snapshot(self) -> dict[str, str]:
        """Every config file that could be composed from, by relative name; the first directory wins."""
        return self._texts(self.dirs)

    def own_files(self) -> dict[str, str]:
        """The options among them that are not shipped."""
        files = self._texts(d for d in self.dirs if d != SHIPPED)
        return {name: text for name, text in files.items() if "/" in name}

    def _texts(self, dirs: Iterable[Path]) -> dict[str, str]:
        files = {f"sweep/{path.name}": path.read_text(encoding="utf-8") for path in self.sweep_files}
        for d in dirs:
            named = {path.relative_to(d).as_posix(): path for path in _files_of(d)}
            for path in sorted((d / "sweep").glob("*.yaml")):  # a link, in the source tree
                named[f"sweep/{path.name}"] = path
            for name, path in named.items():
                with suppress(OSError, UnicodeDecodeError):  # an editor's broken link, a directory: no option
                    files.setdefault(name, path.read_text(encoding="utf-8"))
        return files

    def _load_once(self, overrides: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
        """The tree, and the option of each group.

        Hydra composes files first and sets values after, and files cost it a hundred times as much: so trees are
        kept by the options that they are made of, and values are set, by Hydra's own function, on a copy.
        """
        try:
            parsed = [_parsed(text) for text in overrides]
            options = [o for o in parsed if o.key_or_group in self.words.groups]
            pickled, choices = self._grouped(tuple(str(o.input_line) for o in options))
            tree: DictConfig = pickle.loads(pickled)
            ConfigLoaderImpl._apply_overrides_to_config([o for o in parsed if o not in options], tree)
        except (*MISCOMPOSED, OSError) as e:
            if isinstance(e, OSError) and e.errno is not None:
                raise  # of the disk; those of OmegaConf, for a file that is one number, have none
            raise BadInput(*(self._broken_files() or [self._explain(e, overrides)])) from e
        return tree, choices

    def _grouped_once(self, options: tuple[str, ...]) -> tuple[bytes, dict[str, str]]:
        """The tree of these options, pickled: a copy out of that takes a seventh of what deepcopy does.

        As Hydra's load_configuration does it, without Hydra's own part of the tree, which is half of the work, and
        with each file read once.
        """
        overrides = OverridesParser.create().parse_overrides(list(options))
        found = create_defaults_list(
            repo=self._files, config_name="trial", overrides_list=overrides, prepend_hydra=False, skip_missing=False
        )
        tree = self._loader._compose_config_from_defaults_list(defaults=found.defaults, repo=self._files)
        OmegaConf.set_struct(tree, True)
        return pickle.dumps(tree), {k: v for k, v in found.overrides.known_choices.items() if v is not None}

    def _broken_files(self) -> list[Problem]:
        """The files of a user's own groups that are no YAML mapping: looked for once something went wrong."""
        faults = []
        own = (p for d in self.dirs if d != SHIPPED for p in _files_of(d))
        for path in (*own, *self.sweep_files):
            try:
                text = path.read_text(encoding="utf-8")
                content = yaml.load(text, Loader=get_yaml_loader())
            except (yaml.YAMLError, OSError, ValueError, RecursionError) as e:
                faults.append(Problem(str(path), "unreadable", unreadable_yaml(e), "mend the file"))
                continue
            if text.startswith("\ufeff"):
                why, cure = "stands before its first line, which Hydra then cannot read", "save it as UTF-8 without BOM"
                faults.append(Problem(str(path), "a byte order mark", why, cure))
            elif content is not None and not isinstance(content, dict):
                faults.append(Problem(str(path), type(content).__name__, "is no mapping", "write `key: value` lines"))
            elif content and _is_global(path):
                faults += self._misshapen(content, str(path))
        return faults

    def _misshapen(self, content: Mapping[Any, Any], file: str, prefix: str = "") -> list[Problem]:
        """Where a file has one value, or a list, in place of settings, or settings in place of a list."""
        faults = []
        for name, value in content.items():
            key, is_mapping = f"{prefix}{name}", isinstance(value, dict)
            if key in SHORT_FOR and isinstance(value, str):
                continue
            if self.words.is_list(key) and is_mapping:
                faults.append(Problem(key, value, f"is no list, in {file}", "write [{...}, ...]"))
            elif key in self.words.sections and not is_mapping:
                shown = "null" if value is None else value
                cure = f"defaults: [override /{key}: {value}]" if key in self.words.groups else "{name: value, ...}"
                faults.append(Problem(key, shown, f"is no mapping, in {file}", f"write {cure}"))
            elif is_mapping and key in self.words.sections and key != "space":
                faults += self._misshapen(value, file, f"{key}.")
        return faults

    @cached_property
    def _misread_numbers(self) -> list[Problem]:
        """Where YAML reads in a user's file a number that is none there: in a field that takes a text `0.5_5` is 0.55,
        and 24:00:00 is 86400 in one that takes a number."""
        faults = []
        for path in (*(p for d in self._own for p in _files_of(d)), *self.sweep_files):
            try:
                root = yaml.compose(path.read_text(encoding="utf-8"), Loader=get_yaml_loader())
                prefix = "" if _is_global(path) else f"{path.parent.name}."
                found = list(_scalars(root, prefix))
            except (yaml.YAMLError, OSError, UnicodeDecodeError, RecursionError):
                continue  # said where it is composed
            for key, node in found:
                expected = self.words.fields.get(key)
                if node.style is not None or node.tag not in NUMBERS or expected not in (str, int, float):
                    continue
                if expected is not str:
                    if ":" in node.value:
                        number = _as_yaml(node.value)
                        why = f"in {path} reads as {number}, for YAML counts in sixties"
                        faults.append(Problem(key, node.value, why, "write it as one number"))
                elif _as_yaml(node.value) != node.value:
                    why = f"in {path} reads as a number or a claim, and the field takes a text"
                    faults.append(Problem(key, node.value, why, f"put it in quotes: '{node.value}'"))
        return faults

    def _typed_once(self, overrides: tuple[str, ...]) -> tuple[Trial, Study]:
        cfg, _ = self._load(overrides)
        try:
            with _set(self._frozen_env):  # files ask for them while they are resolved
                parts = {f.name: OmegaConf.to_object(cfg[f.name]) for f in fields(Trial)}
                study = _without_idle(OmegaConf.to_object(cfg.study), overrides)
                trial = Trial(**typing.cast(Any, parts))
                self._name_by_path(trial.model, overrides)
        except OmegaConfBaseException as e:
            raise BadInput(self._explain(e, overrides)) from e
        assert isinstance(study, Study)
        _describe(trial.model, overrides)
        faults = out_of_bounds(leaves(trial)) + out_of_bounds(leaves(study, "study."))
        for name in ("pruners", "objectives"):
            for i, part in enumerate(getattr(study, name), start=1):
                faults += out_of_bounds(leaves(part, f"study.{name}[{i}]."))
        if faults:
            raise BadInput(*faults)
        return trial, study

    def _name_by_path(self, model: Model, overrides: tuple[str, ...]) -> None:
        """A model whose path is given in place of its option's is named after the path, unless a name is given too."""
        others = {text: text.partition("=")[0].lstrip("+") for text in overrides}
        if "model.path" not in others.values() or "model.name" in others.values():
            return
        option, _ = self._load(tuple(text for text, key in others.items() if key != "model.path"))
        if model.path != option.model.path:
            model.name = model.path.rstrip("/").rpartition("/")[2] or model.name

    def _check_space(self, space: Space, has_plugin: bool) -> None:
        """Both ends of every interval and each value of every choice must be values of the field.

        With a plug-in an algorithm may have names of its own, which `check` looks up in it.
        """
        faults: list[Problem] = []
        for key, dimension in space.items():
            parts: list[tuple[str, Parameter]] = []
            if isinstance(dimension, Conditional):
                parts = [(key, branch.range) for branch in dimension.branches]
            elif isinstance(dimension, Zip):
                for name in dimension.keys:
                    values = tuple(row[name] for row in dimension.rows.values)
                    parts.append((name, Choice(name, values, ())))
            else:
                parts = [(key, dimension)]
            for name, part in parts:
                if not (has_plugin and name in OWN_NAMES):
                    faults += self._range_faults(name, part)
        if space.seeds:
            faults += self._range_faults(SEED, Choice(SEED, space.seeds, ()))
        if faults:
            raise BadInput(*dict.fromkeys(faults))

    def _range_faults(self, key: str, part: Parameter) -> list[Problem]:
        if key.partition(".")[0] in NOT_OF_A_TRIAL:
            return [Problem(key, "a range", "says how to search, and cannot itself be searched", "give one value")]
        if key not in _knobs():
            return []
        values = part.values if isinstance(part, Choice) else (part.low, part.high)
        is_end = isinstance(part, Interval)
        found = (fault for value in values for fault in self._value_faults(_knobs()[key], value, is_end))
        return list(islice(found, MOST_TOLD))

    def _value_faults(self, leaf: Leaf, value: Any, is_end: bool) -> list[Problem]:
        expected = self.words.fields[leaf.path]
        if is_end and expected not in (int, float):
            return [Problem(leaf.path, value, "is no number, so it has no interval", "write choice(...)")]
        node = OmegaConf.structured(_Probe if expected is None else _probe(expected))
        try:
            node.value = literal(value)
            typed = node.value
        except OmegaConfBaseException:
            return [_of_wrong_type(leaf.path, value, expected)]
        return out_of_bounds([Leaf(leaf.path, typed, leaf.default, leaf.knob)])

    def _explain(self, error: Exception, overrides: Sequence[str]) -> Problem:
        """Hydra's and OmegaConf's errors as key, value, what is wrong and what would be right."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OmegaConfBaseException):
            cause = cause.__cause__ or cause.__context__
        message = str(error).splitlines()
        if isinstance(error, RecursionError):
            why = "goes round in a circle: a file, an alias or a reference names itself"
            return Problem("config", " ".join(overrides) or "(defaults)", why, "leave that name out")
        if isinstance(error, MissingConfigException) and error.missing_cfg_file:
            group, _, name = error.missing_cfg_file.removesuffix(".yaml").rpartition("/")
            if group in self.words.groups:
                problem = self.words.problem(group, name)
                file = re.search(r"In '(\w+/[^']+)'", str(error))  # of a sweep Hydra names the root
                if problem is not None:
                    return replace(problem, why=f"{problem.why}, in {file[1]}" if file else problem.why)
        if not isinstance(cause, OmegaConfBaseException):
            why = " ".join(line.strip() for line in message if line.strip())[:400]
            cure = "see `hysweep show --doc` for what there is"
            return Problem("config", " ".join(overrides) or "(defaults)", why, cure)
        key = cause.full_key or (str(cause.key) if cause.key is not None else "config")
        if (within := IN_LISTS.get(cause.object_type)) and "." not in key:  # OmegaConf tells the place in it alone
            key = f"{within}.{key}"
        said = Unsaid.VALUE if cause.value is None else cause.value
        value = next((o.partition("=")[2] for o in overrides if o.partition("=")[0].lstrip("+") == key), said)
        why = (cause.msg or str(cause)).splitlines()[0]
        if unset := re.search(r"Environment variable '(.+)' not found", why):
            return Problem(key, value, f"asks for ${unset[1]}, which is not set", f"export {unset[1]}, or give a value")
        if "???" in why or isinstance(cause, MissingMandatoryValue):
            return Problem(key, "(missing)", "needs a value", f"give {key}=...")
        if "is not Optional" in why and key not in self.words.fields:
            return Problem(key, "null", "needs a value", "give one, or leave it out")
        if (listed := key.partition("[")[0]) != key and self.words.is_list(listed):
            of = (*typing.get_args(self.words.fields.get(listed)), None)[0]
            if of in SCALARS and isinstance(cause, ValidationError):
                return Problem(key, "null" if cause.value is None else value, f"is no {SCALARS[of]}", "give one")
            return Problem(key, value, why, "see docs/sweeps.md for what such a list holds")
        if key.isdigit():  # OmegaConf names an element of a list by its place alone
            lists = (o.partition("=") for o in overrides if o.partition("=")[2].startswith("["))
            name, _, text = next(lists, ("config", "", ""))
            return Problem(name, text, f"its element {key} has the wrong type", "see docs/reference.md")
        if key in OPTIONAL_GROUPS:
            cure = "begin the file with the line `# @package _global_`"
            value = next((str(file) for file in self.sweep_files if key == "sweep"), value)
            return Problem(key, value, "is read as a group of its own, which there is not", cure)
        if not self.words.knows(key):
            return Problem(key, value, "there is no such key", suggest(key, self.words.fields))
        expected = self.words.fields.get(key)
        if typing.get_origin(expected) is list:
            cure = f"write {key}=[{value}]" if value not in (None, "null") else f"write {key}=[a,b], or leave it out"
            return Problem(key, value, "is no list", cure)
        if expected and (isinstance(cause, ValidationError) or typing.get_origin(expected) is dict):
            return _of_wrong_type(key, value, expected)
        cure = f"give a value of type {_name(expected)}" if expected else "see `hysweep show`"
        return Problem(key, value, why, cure)


def _without_idle(study: Any, overrides: Sequence[str]) -> Any:
    """A study whose sampler or pruner a command line names in place of a file's: the options of that one go with it."""
    named = {text.partition("=")[0].lstrip("+") for text in overrides}
    for part, read in ((study.sampler, SAMPLER_OPTIONS), (study.pruner, PRUNER_OPTIONS)):
        key = "study.sampler" if part is study.sampler else "study.pruner"
        idle = {name for names in read.values() for name in names} - set(read.get(part.name, ()))
        for name in idle if f"{key}.name" in named else ():
            if f"{key}.{name}" not in named:
                setattr(part, name, getattr(type(part)(), name))
    return study


def _as_yaml(text: str) -> str | None:
    """What YAML makes of a scalar, as text; None: nothing, as of a number of 5,000 digits."""
    try:
        return str(yaml.load(text, Loader=get_yaml_loader()))
    except (yaml.YAMLError, ValueError):
        return None


def sweep_name(file: Path, key: str) -> str:
    """The name of a sweep file as `sweep=NAME` says it. Raises BadInput, about `key`, where it cannot."""
    try:
        can_be_said = _parsed(f"sweep={file.stem}").value() == file.stem
    except UNREAD:
        can_be_said = False
    if not can_be_said:
        why, cure = "has a name that `sweep=NAME` cannot say", "name it by letters, digits, - and _"
        raise BadInput(Problem(key, file, why, cure))
    return file.stem


def _without(content: dict[str, Any], given: Assignments) -> dict[str, Any]:
    """The `space:` of a sweep file where a command line names some of its keys: what it fixes varies no more (of the
    seed that are the replicates), and of a zip the settings stay that agree with it."""
    fixed = {text.partition("=")[0].lstrip("+~/"): text.partition("=")[2] for text in given.fixed}
    left = {key: value for key, value in content.items() if key not in fixed or key in NOT_OF_A_TRIAL}
    if SEED in fixed:
        left.pop("seeds", None)
    for key, rows in content.items():
        is_zip = (key == "zip" or key.startswith("zip.")) and isinstance(rows, list)
        if not is_zip or not all(isinstance(row, dict) for row in rows) or not any(set(r) & fixed.keys() for r in rows):
            continue
        agreeing = [r for r in rows if all(fixed[k] in (emit(v), str(v)) for k, v in r.items() if k in fixed)]
        kept = [{k: v for k, v in row.items() if k not in fixed} for row in agreeing]
        if not agreeing:
            named = ", ".join(f"{k}={fixed[k]}" for k in rows[0] if k in fixed)
            raise BadInput(Problem(f"space.{key}", named, "is in none of its settings", "name a value that is"))
        left[key] = kept
        if not kept[0]:
            del left[key]
    return left


@contextmanager
def _set(env: Mapping[str, str | None]) -> Iterator[None]:
    """The environment with these variables, None for one that is not to be there."""
    before = {name: os.environ.get(name) for name in env}
    _put(env)
    try:
        yield
    finally:
        _put(before)


def _put(env: Mapping[str, str | None]) -> None:
    for name, value in env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _files_of(d: Path) -> list[Path]:
    """The YAML files of a directory of groups, but for those that studies have written below it."""
    found = sorted(d.glob("*.yaml")) + sorted(d.glob("*/**/*.yaml"))
    studies = {path.parent for path in found if path.name == "study.yaml"} - {d}
    return [path for path in found if not studies.intersection(path.parents)]


def _is_global(path: Path) -> bool:
    """Whether a file's keys are those of the whole tree: the root of a config, or a `@package _global_`."""
    with path.open(encoding="utf-8") as file:
        return path.name in ("config.yaml", "trial.yaml") or any(
            "@package _global_" in line for _, line in zip(range(5), file, strict=False)
        )


def _scalars(node: yaml.Node | None, prefix: str) -> Iterable[tuple[str, yaml.ScalarNode]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(value, yaml.ScalarNode):
                yield f"{prefix}{key.value}", value
            else:
                yield from _scalars(value, f"{prefix}{key.value}.")


def _describe(model: Model, overrides: Sequence[str]) -> None:
    """A model in a directory has the shape that its config.json says, but for what the command line says of it."""
    if (directory := local_model(model.path)) is None:
        return
    given: set[str] = set()
    for text in overrides:
        key, _, value = text.lstrip("+~/").partition("=")
        if key.startswith("model.shape."):
            given.add(key.removeprefix("model.shape."))
        elif key == "model.shape":  # a dict of some
            some = OverridesParser.create().parse_override(f"{key}={value}").value()
            given |= set(some) if isinstance(some, dict) else set()
        elif key == "model.model_type":
            given.add("model_type")
    facts = read_model(directory, given)
    if "model_type" not in given:
        model.model_type = facts["model_type"]
    for name, value in facts["shape"].items():
        setattr(model.shape, name, value)


OWN_NAMES = ("algorithm.adv_estimator", "algorithm.loss_mode")


def out_of_bounds(found: Iterable[Leaf]) -> list[Problem]:
    """The values that a field's declared bounds or choices refuse; beside a plug-in, names may be its own."""
    faults = []
    found = list(found)
    has_plugin = any(leaf.path == "algorithm.plugin" and leaf.value is not None for leaf in found)
    for leaf in found:
        k, value = leaf.knob, leaf.value
        texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(isinstance(v, str) and "\0" in v for v in texts):
            faults.append(Problem(leaf.path, str(value).replace("\0", r"\0"), "holds a NUL character", "leave it out"))
        faults += (Problem(leaf.path, value, f"holds {odd}", "give texts") for odd in list(_unsaid(value))[:1])
        if isinstance(value, list):
            odd = [v for v in value if v is None or isinstance(v, (list, dict))]
            if odd and leaf.path != "study.enqueue":
                faults.append(Problem(leaf.path, value, f"its element {odd[0]} is no value", "give one list of values"))
            continue
        if isinstance(value, str) and not value.strip() and leaf.default is None:
            faults.append(Problem(leaf.path, repr(value), "is empty", "give a value, or null"))
        elif k.choices and value not in k.choices and not (has_plugin and leaf.path in OWN_NAMES):
            names = [str(c) if c is not None else "null" for c in k.choices]
            faults.append(Problem(leaf.path, value, "is none of the values it can have", suggest(str(value), names)))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            low, high = k.low, k.high if k.high is not None or isinstance(value, float) else MOST
            is_out = (low is not None and value < low) or (high is not None and value > high)
            if is_out or (isinstance(value, float) and not math.isfinite(value)):
                bounds = (("at least", low), ("at most", high))
                span = " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)
                faults.append(Problem(leaf.path, value, "is out of range", f"give {span or 'a number'}"))
    return faults


def _unsaid(value: Any) -> Iterator[str]:
    """What YAML can have in a value, and neither an override nor JSON."""
    if isinstance(value, dict):
        yield from (f"the name {name}, which is no text" for name in value if not isinstance(name, str))
        yield from (odd for inner in value.values() for odd in _unsaid(inner))
    elif isinstance(value, list):
        yield from (odd for inner in value for odd in _unsaid(inner))
    elif isinstance(value, bytes):
        yield f"the bytes {value!r}"


def all_leaves() -> Iterable[Leaf]:
    """Every field of the schema with its knob; values do not matter here."""
    from hysweep.schema.knob import Knob

    def walk(cls: Any, prefix: str) -> Iterable[Leaf]:
        hints = typing.get_type_hints(cls)
        for f in fields(cls):
            if is_dataclass(hints[f.name]):
                yield from walk(hints[f.name], f"{prefix}{f.name}.")
            else:
                yield Leaf(f"{prefix}{f.name}", None, None, f.metadata.get("knob", Knob()))

    return walk(Root, "")


@cache
def _knobs() -> dict[str, Leaf]:
    return {leaf.path: leaf for leaf in all_leaves()}


@cache
def typed_fields() -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Every field's type, and the fields that take any key below them."""
    types: dict[str, Any] = {}
    dicts: list[str] = []
    _collect(Root, "", types, dicts)
    return types, tuple(dicts)


def _collect(cls: Any, prefix: str, types: dict[str, Any], dicts: list[str]) -> None:
    """Field paths with their types; `X | None` counts as X."""
    hints = typing.get_type_hints(cls)
    for f in fields(cls):
        path, hint = f"{prefix}{f.name}", hints[f.name]
        if isinstance(hint, UnionType):
            hint = next(a for a in typing.get_args(hint) if a is not type(None))
        if is_dataclass(hint):
            _collect(hint, f"{path}.", types, dicts)
            continue
        types[path] = hint
        if typing.get_origin(hint) is dict:
            dicts.append(path)


@dataclass
class _Probe:
    value: Any = None


@lru_cache
def _probe(expected: Any) -> Any:
    """A structured config with one optional field of a type: OmegaConf's own word on whether a value fits."""
    from dataclasses import make_dataclass

    return make_dataclass("Probe", [("value", typing.Optional[expected], field(default=None))])  # noqa: UP045


def _of_wrong_type(key: str, value: Any, expected: Any) -> Problem:
    if expected is bool:
        return Problem(key, value, "is neither true nor false", suggest(str(value), ("false", "true")))
    is_mapping = typing.get_origin(expected) is dict
    example = {int: ", as in 8", float: ", as in 0.5"}.get(expected, ", as {NAME: VALUE}" if is_mapping else "")
    return Problem(key, value, f"is no {_name(expected)}", f"give one{example}")


SCALARS = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def _name(expected: Any) -> str:
    return SCALARS.get(expected, "mapping" if typing.get_origin(expected) is dict else str(expected))
