"""What trains besides main_ppo: a recipe's own entry, with the configuration that it builds on verl's."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, replace
from functools import cache
from glob import glob
from pathlib import Path

from hysweep.compile.keys import INSTALLED, UNREADABLE, TrainerKeys, trainer_keys
from hysweep.compile.tabulate import compose_flat, installed_verl
from hysweep.schema import BadInput, Problem, suggest

MAIN_PPO = "main_ppo"
MODULE = "verl.trainer.main_ppo"
SEARCHPATH = "pkg://verl.trainer.config"  # where verl lies on a node, its Python knows


@dataclass(frozen=True, slots=True)
class Entry:
    """A module that trains. `config_name`: of its configuration for the engine, which lies in `config_dir`."""

    module: str
    config_dir: Path
    config_name: str


@cache
def find_entry(module: str, recipes: str, model_engine: str) -> Entry:
    """The entry of that name in a checkout of recipes: its file is read, not run.

    Under Megatron it is the configuration beside the entry's own whose name has megatron in it too, where there is one.
    Raises BadInput.
    """
    root = Path(os.path.expanduser(recipes)).absolute()
    file = root / f"{module.replace('.', '/')}.py"
    if not os.path.isfile(file):
        there = sorted(name[:-3].replace("/", ".") for name in glob("*/*main*.py", root_dir=root))
        cure = suggest(module, there) if there else "give a checkout of verl's recipes as trainer.recipes"
        raise BadInput(Problem("trainer.entry", module, f"is no module of {root}", cure))
    try:
        path, name = _hydra_main(ast.parse(file.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, ValueError) as e:
        why = f"is no entry that Hydra starts: {' '.join(str(e).split())}"
        raise BadInput(Problem("trainer.entry", module, why, "name the module with @hydra.main in it")) from e
    config_dir = (file.parent / path).resolve()
    of_engine = name.replace("_trainer", "_megatron_trainer")
    if model_engine == "megatron" and (config_dir / f"{of_engine}.yaml").is_file():
        name = of_engine
    return Entry(module, config_dir, name)


def _hydra_main(module: ast.Module) -> tuple[str, str]:
    for node in ast.walk(module):
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("hydra.main"):
                said = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
                if said.get("config_path") and said.get("config_name"):
                    return str(said["config_path"]), str(said["config_name"]).removesuffix(".yaml")
    raise ValueError("it has no @hydra.main with a config_path and a config_name")


@cache
def entry_keys(verl: str, model_engine: str, module: str, recipes: str) -> TrainerKeys:
    """The keys of an entry's own configuration, composed over that of the given verl. Raises BadInput."""
    keys = trainer_keys(verl, model_engine)
    entry = find_entry(module, recipes, model_engine)
    try:
        root = keys.root or _installed(verl, keys.version)
        defaults = compose_flat(entry.config_dir, entry.config_name, root / "verl" / "trainer" / "config", model_engine)
    except ModuleNotFoundError as e:
        why = f"builds on verl's configuration, and the files of verl {verl} are not here"
        raise BadInput(Problem("trainer.entry", module, why, "set trainer.verl to a checkout or a wheel")) from e
    except UNREADABLE as e:
        why = f"its configuration does not compose over verl {verl}: {' '.join(str(e).split())[:200]}"
        raise BadInput(Problem("trainer.entry", module, why, "see its REQUIRED_VERL.txt, and set trainer.verl")) from e
    return replace(keys, defaults=defaults)


def _installed(verl: str, version: str) -> Path:
    """The files of a version of which only a table is shipped. Raises ModuleNotFoundError unless it is installed."""
    root = installed_verl()
    found = (root / "verl" / "version" / "version").read_text(encoding="utf-8").strip()
    if verl != INSTALLED and found != version:
        raise ModuleNotFoundError(f"verl {found} is installed")
    return root
