"""The command line of a script that starts the trainer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hysweep.scripts.scope import Word

MAIN = "verl.trainer.main_ppo"
# main_ppo, and what is built on it: recipe.dapo.main_dapo, verl.trainer.main_ppo_sync
ENTRY = re.compile(r"(?:\w+\.)*main_(?:ppo\w*|dapo\w*)|(?:recipe\.)(?:\w+\.)*main_\w+")
CONFIG_NAMES = {"ppo_trainer": "dp", "ppo_megatron_trainer": "megatron"}
CONFIG_NAME = ("--config-name", "-cn")
WITH_VALUE = (*CONFIG_NAME, "--config-path", "-cp", "--config-dir", "-cd", "--cfg", "-c", "--package", "-p", "--info")


@dataclass(frozen=True, slots=True)
class Launch:
    """`python -m module --config-name config_name overrides...`, and the Hydra flags that it has besides."""

    module: str
    line: int
    config_name: str
    overrides: tuple[Word, ...]
    flags: tuple[Word, ...]

    @property
    def engine(self) -> str | None:
        """The model engine that the configuration's name says."""
        return CONFIG_NAMES.get(self.config_name)


def launches(commands: Sequence[Sequence[Word]]) -> list[Launch]:
    """Every start of a trainer among command lines, whatever stands before it: ray job submit, nohup, uv run."""
    return [found for words in commands if (found := _launch(words))]


def _launch(words: Sequence[Word]) -> Launch | None:
    for n, word in enumerate(words):
        text = word.text
        if text == "-m" and n + 1 < len(words) and ENTRY.fullmatch(words[n + 1].text):
            return _arguments(words[n + 1].text, word.line, words[n + 2 :])
        if n and re.search(r"(\A|/)main_ppo\w*\.py\Z", text):
            module = text.removesuffix(".py").lstrip("./").replace("/", ".")
            return _arguments(MAIN if module.endswith(MAIN) else module, word.line, words[n + 1 :])
    return None


def _arguments(module: str, line: int, words: Sequence[Word]) -> Launch:
    name, overrides, flags, n = "ppo_trainer", [], [], 0
    while n < len(words):
        word = words[n]
        key, is_joined, value = word.text.partition("=")
        if not word.text.startswith("-"):
            overrides.append(word)
        elif key in WITH_VALUE and not is_joined and n + 1 < len(words):
            n += 1
            value = words[n].text
            flags += [] if key in CONFIG_NAME else [Word(f"{key} {value}", word.line)]
        elif key not in CONFIG_NAME:
            flags.append(word)
        if key in CONFIG_NAME:
            name = value.removesuffix(".yaml")
        n += 1
    return Launch(module, line, name, tuple(overrides), tuple(flags))
