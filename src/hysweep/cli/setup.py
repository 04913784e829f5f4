"""`hysweep setup`: the trainer's code for all nodes, into one directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hysweep.cli.say import say
from hysweep.launch.setup import RUNTIME_ENV, plan, set_up
from hysweep.schema import BadInput, Problem


def setup(directory: Path, verl: str, mirrors: Sequence[str], is_released: bool, is_dry: bool, as_json: bool) -> int:
    planned = plan(directory, verl, _mirrors(mirrors), is_released)
    if is_dry:
        if as_json:
            say(json.dumps(planned.as_dict(), indent=1))
            return 0
        for part in planned.parts:
            is_there = (planned.directory / part.path).exists()
            say(f"{planned.directory / part.path}: " + ("is there" if is_there else f"{part.ref} of {part.source}"))
        return 0
    done = set_up(planned, lambda text: say(text, err=as_json or not sys.stdout.isatty()))
    if as_json:
        say(json.dumps(done.as_dict(), indent=1))
        return 0
    say(f"a runtime environment of Ray: {done.directory / RUNTIME_ENV}; for trials:")
    for override in done.overrides:
        say(f"  {override}")
    return 0


def _mirrors(words: Sequence[str]) -> dict[str, str]:
    """{name: repository}. Raises BadInput."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, source = word.partition("=")
        if not equals or not source:
            raise BadInput(Problem("--mirror", word, "names no repository", "as verl=/mirrors/verl.git"))
        if "://" not in source and "@" not in source and not Path(source).is_dir():
            raise BadInput(Problem("--mirror", word, "there is no such directory", "give a directory or a URL"))
        if name in found:
            raise BadInput(Problem("--mirror", word, f"{name} has another, {found[name]}", "give one of each"))
        found[name] = source
    return found
