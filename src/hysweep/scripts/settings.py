"""Overrides of a command line as keys and values of one verl: parsed as Hydra does, old names as the new ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from hysweep.compile import TrainerKeys, flatten, moved
from hysweep.schema import suggest
from hysweep.schema.knob import ACTOR, REF, ROLLOUT
from hysweep.scripts.launch import Launch
from hysweep.scripts.scope import END, ENV, MARK, PIECE, Scope, Word

OWN = {
    "trainer.experiment_name": "hysweep names each trial's run",
    "trainer.default_local_dir": "hysweep gives each trial its own directory",
    "trainer.resume_mode": "hysweep resumes each trial from its own checkpoints",
}
# Of all GPUs together, where their successors count those of one.
COUNTED_TOGETHER = (f"{ACTOR}.ppo_micro_batch_size", f"{ROLLOUT}.log_prob_micro_batch_size",
                    f"{REF}.log_prob_micro_batch_size", "critic.ppo_micro_batch_size")  # fmt: skip
MEGATRON = "megatron"
HYDRAS = ("--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--resolve", "--package", "-p", "--run", "-r",
          "--multirun", "-m", "--shell-completion", "-sc", "--config-path", "-cp", "--config-dir", "-cd",
          "--experimental-rerun", "--info", "-i")  # fmt: skip
REPLACES = "takes the place of a whole node of settings, and what reads them fails"
OC_ENV = re.compile(r"\$\{oc\.env:([^{}]*)\}")
NAME = re.compile(r"[A-Za-z_][\w\-]*\Z")


@dataclass(slots=True)
class Row:
    """One line of the report: an override, what became of it, and a remark. A fault is what somebody must mend."""

    override: str
    line: int
    became: str = ""
    remark: str = ""
    is_fault: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of the trainer as the script sets it."""

    value: Any
    row: Row


@dataclass(slots=True)
class Settings:
    """What a launch sets: `values` by key, each later one in the place of an earlier; `rows` for the report."""

    engine: str
    values: dict[str, Setting] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


def engine_of(launch: Launch) -> str:
    """dp, megatron, or what else the command line names."""
    return _last(launch, "model_engine") or (MEGATRON if says_megatron(launch) else launch.engine) or "dp"


def says_megatron(launch: Launch) -> bool:
    """Whether only its strategy says so: verl itself would take dp, and refuse the keys of megatron."""
    is_other = _last(launch, "model_engine") or launch.engine == MEGATRON
    return not is_other and _last(launch, f"{ACTOR}.strategy") == MEGATRON


def _last(launch: Launch, key: str) -> str:
    named = [w.text.partition("=")[2].strip("'\"") for w in launch.overrides if _key(w.text) == key]
    return named[-1] if named else ""


def read_settings(launch: Launch, scope: Scope, engine: str, keys: TrainerKeys) -> Settings:
    """The overrides of a launch as settings of the verl that has `keys`. Nothing is raised: what is wrong has a row."""
    settings = Settings(engine)
    parser = OverridesParser.create()
    for flag in launch.flags:
        row = Row(flag.text, flag.line, "", "how Hydra itself runs: left out")
        if re.split(r"[= ]", flag.text)[0] not in HYDRAS:
            row.is_fault, row.remark = True, "is no option of the trainer's, which would refuse it: left out"
        if flag.text.startswith(("--config-path", "-cp", "--config-dir", "-cd")) and launch.engine is None:
            row.remark = "the configuration there is not read"
        settings.rows.append(row)
    if launch.engine is None:
        row = Row(f"--config-name {launch.config_name}", launch.line, is_fault=True)
        row.remark = "is no configuration of verl itself and is not read: ppo_trainer is taken"
        settings.rows.append(row)
    for word in launch.overrides:
        row = Row(shown(word.text, scope), word.line)
        settings.rows.append(row)
        override = _parsed(word, scope, parser, row)
        if override is not None:
            _take(override, word, row, settings, keys)
    return settings


def shown(text: str, scope: Scope) -> str:
    """A text with what stands in it for something else, as the script has it."""

    def unmarked(m: re.Match[str]) -> str:
        return f"${m[1]}" if m[0][0] == ENV else scope.pieces[int(m[1])].text

    return MARK.sub(unmarked, text)


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+~").strip()


def _parsed(word: Word, scope: Scope, parser: OverridesParser, row: Row) -> Override | None:
    """None where there is nothing to take, which the row says."""
    key = _key(word.text)
    if key in OWN:
        row.remark = OWN[key]
        return None
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        row.remark = "how Hydra itself runs: left out"
        return None
    if PIECE in word.text:
        unknown = " and ".join(scope.pieces[int(m[1])].text for m in MARK.finditer(word.text) if m[0][0] == PIECE)
        row.is_fault, row.remark = True, f"{unknown} is not understood: give the value with --set, or write it"
        return None
    try:
        override = parser.parse_override(MARK.sub(lambda m: f"${{oc.env:{m[1]}}}", word.text))
        if not override.is_sweep_override() and not override.is_delete() and override.package is None:
            override.value()
            return override
        row.remark = "is more than a key and a value: write it by hand"
    except (HydraException, RecursionError, ValueError) as e:
        row.remark = f"Hydra cannot read it: {str(e).splitlines()[0][:100] if str(e) else type(e).__name__}"
    row.is_fault = True
    return None


def _take(override: Override, word: Word, row: Row, settings: Settings, keys: TrainerKeys) -> None:
    key, value = override.key_or_group, override.value()
    if key == "model_engine":
        row.became = "parallelism.engine"
        return
    right = word.text.partition("=")[2].strip()
    if isinstance(value, int | float) and not isinstance(value, bool) and "_" in right:
        row.remark = f"Hydra reads {right} as the number {value}: a text needs quotes within the override"
    for name, inner in flatten({key: marked(value)}):
        for target in _targets(name, row, keys):
            if fault := _fault(target, inner, keys):
                row.is_fault, row.remark = True, fault
            else:
                settings.values.pop(target, None)
                settings.values[target] = Setting(inner, row)


def marked(value: Any) -> Any:
    """A parsed value with `${oc.env:X}` as the mark of X, so that nothing resolves it."""
    if isinstance(value, str):
        return OC_ENV.sub(lambda m: f"{ENV}{m[1]}{END}", value)
    if isinstance(value, list):
        return [marked(v) for v in value]
    if isinstance(value, dict):
        return {k if isinstance(k, str) else str(k): marked(v) for k, v in value.items()}
    return value


def _targets(key: str, row: Row, keys: TrainerKeys) -> Iterator[str]:
    """The key itself, or those that do what it did."""
    history = moved(key)
    if history is None or (key in keys and history.new and history.new[0] not in keys):  # a later verl moves it
        yield key
        return
    row.remark = history.why
    if key in COUNTED_TOGETHER:
        yield key
        return
    row.became = ", ".join(history.new)
    yield from history.new


def _fault(key: str, value: Any, keys: TrainerKeys) -> str:
    below = [listed for listed in keys.defaults if listed.startswith(f"{key}.")]
    if below:
        names = dict.fromkeys(listed.removeprefix(f"{key}.").partition(".")[0] for listed in below)
        inner = [name for name in names if not name.startswith("_")]
        meant = f": {key}.{'name' if 'name' in inner else inner[0]}" if inner else ""
        return f"{REPLACES}{meant}"
    if key not in keys:
        return f"verl {keys.version} has no such key; {suggest(key, keys.defaults)}"
    if not all(NAME.match(name) for name in [*key.split("."), *_names(value)]):
        return "a name in it can be no key of hysweep's `verl`: write it by hand"
    return ""


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for inner in value:
            yield from _names(inner)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _names(inner)
