"""The facts of one verl, read from its files: ``python -m hysweep.compile.tabulate DIRECTORY_OR_WHEEL...``.

Its configuration is composed by Hydra alone, its Python is parsed: neither torch nor verl is imported.
"""

from __future__ import annotations

import ast
import email
import json
import re
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import Container, DictConfig, OmegaConf

MODEL_ENGINES = ("dp", "megatron")


def tabulate(root: Path) -> dict[str, Any]:
    """The table of the verl whose package directory lies in `root`.

    version         as verl calls itself
    shared, dp, megatron   the keys of ppo_trainer under both engines, and under each alone, with their defaults;
                    an interpolation stands as its text
    adv_estimators, policy_losses   the names in verl/trainer/ppo/core_algos.py's registries
    requires        what it says of other packages: {name: specifier}

    Raises FileNotFoundError when there is no verl.
    """
    package = root / "verl"
    algorithms = _parsed(package / "trainer/ppo/core_algos.py")
    return {
        "version": (package / "version/version").read_text(encoding="utf-8").strip(),
        **_keys(package / "trainer/config"),
        "adv_estimators": sorted(registered_names(algorithms, "register_adv_est")),
        "policy_losses": sorted(registered_names(algorithms, "register_policy_loss")),
        "requires": dict(sorted(_requirements(root))),
    }


def sources(root: Path) -> list[Path]:
    """The files that a table is made of."""
    package = root / "verl"
    return [
        *sorted((package / "trainer/config").rglob("*.yaml")),
        package / "trainer/ppo/core_algos.py",
        package / "version/version",
        *root.glob("setup.py"),
        *root.glob("verl-*.dist-info/METADATA"),
    ]


def installed_verl() -> Path:
    """The directory that holds this environment's verl, found without importing it.

    Raises ModuleNotFoundError when there is none.
    """
    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed: pip install 'hysweep[cpu]'")
    return Path(spec.submodule_search_locations[0]).parent


def _keys(config_dir: Path) -> dict[str, Any]:
    trees = {engine: compose_flat(config_dir, "ppo_trainer", None, engine) for engine in MODEL_ENGINES}
    first, second = trees.values()
    shared = {k: v for k, v in first.items() if k in second and second[k] == v}
    return {"shared": shared} | {
        engine: {k: v for k, v in tree.items() if k not in shared} for engine, tree in trees.items()
    }


def compose_flat(config_dir: Path, name: str, beside: Path | None, model_engine: str) -> dict[str, Any]:
    """A configuration for an engine as dotted keys; `beside`: where the groups that it builds on lie."""
    overrides = [f"model_engine={model_engine}"]
    overrides += [f"hydra.searchpath=[file://{beside.absolute()}]"] if beside is not None else []
    # whoever composes here may be within a Hydra application: its state is put back
    saved = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir.absolute()), version_base=None):
            return dict(_flat(compose(name, overrides)))
    finally:
        GlobalHydra.instance().hydra = saved


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in node:
        raw = node._get_node(name)
        if isinstance(raw, DictConfig) and not raw._is_none() and not raw._is_interpolation() and len(raw):
            yield from _flat(raw, f"{prefix}{name}.")
        elif isinstance(raw, Container) and not raw._is_none() and not raw._is_interpolation():
            yield f"{prefix}{name}", OmegaConf.to_container(raw)
        else:
            yield f"{prefix}{name}", raw._value()


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def registered_names(module: ast.Module, decorator: str) -> Iterator[str]:
    """The names that functions are registered under: a text, or a member of an enumeration of the same file."""
    members = {
        (c.name, target.id): statement.value.value
        for c in module.body
        if isinstance(c, ast.ClassDef)
        for statement in c.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for function in (n for n in module.body if isinstance(n, ast.FunctionDef)):
        for call in function.decorator_list:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == decorator:
                match call.args[0]:
                    case ast.Constant(value=str(name)):
                        yield name
                    case ast.Attribute(value=ast.Name(id=owner), attr=member):
                        yield str(members[owner, member])


def _requirements(root: Path) -> Iterator[tuple[str, str]]:
    """From a wheel's metadata, or from the list `install_requires` of a checkout's setup.py."""
    metadata = [*root.glob("verl-*.dist-info/METADATA")]
    if metadata:
        lines = email.message_from_string(metadata[0].read_text(encoding="utf-8")).get_all("Requires-Dist", [])
    elif (root / "setup.py").is_file():
        module = _parsed(root / "setup.py")
        lists = {
            target.id: statement.value
            for statement in module.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        }
        lines = ast.literal_eval(lists["install_requires"]) if "install_requires" in lists else []
    else:
        lines = []
    for line in lines:
        found = re.match(r"([A-Za-z0-9_.\-]+)(?:\[[^]]*\])?\s*\(?([<>=!~][^;)]*)?", line)
        # verl's V1 trainer imports TransferQueue whatever is installed, though it names it in an extra only
        if found and found[2] and ("extra ==" not in line or found[1] == "TransferQueue"):
            yield found[1].lower(), ",".join(sorted(found[2].replace(" ", "").split(",")))


def unpack(wheel: Path, target: Path) -> None:
    """Raises zipfile.BadZipFile for what is no wheel, or is one with a torn file in it, which it names."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            try:
                archive.extract(name, target)
            except (zipfile.BadZipFile, zlib.error, EOFError) as e:
                raise zipfile.BadZipFile(f"{name} in it is torn") from e


def main(names: list[str]) -> None:
    from hysweep.compile.keys import TABLES

    for name in map(Path, names):
        with tempfile.TemporaryDirectory() as unpacked:
            if name.suffix == ".whl":
                unpack(name, Path(unpacked))
            table = tabulate(Path(unpacked) if name.suffix == ".whl" else name)
        # a development version has many contents: the directory says which
        label = name.name if "dev" in table["version"] else table["version"]
        target = TABLES / f"verl-{label}.json"
        target.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main(sys.argv[1:])
