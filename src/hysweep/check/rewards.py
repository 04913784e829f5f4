"""Routes, servers and models of a reward."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from hysweep.compile import resolve
from hysweep.rewards import read_routes, servers_of
from hysweep.schema import BadInput, Problem, Stage, Trial, Unsaid, suggest

SERVER = ("command", "health", "ready_s")
# What a function is called with anyway: by the router, and by verl (verl/experimental/reward_loop/reward_manager),
# where what is given besides wins (verl/trainer/ppo/reward.py).
TAKEN = {"routes", "function", "timeout_s", "retries", "batch", "concurrent", "data_source", "solution_str",
         "ground_truth", "extra_info"}  # fmt: skip


def routes_are_readable(t: Trial) -> Iterator[Problem]:
    """Every route names rewards that are there; functions are looked for in their files, which are read, not run."""
    try:
        routes = read_routes(t.reward.routes)
    except BadInput as e:
        yield from e.problems
        return
    for route in routes:
        for term in route.terms:
            key = f"reward.routes.{route.pattern}"
            for name, value in term.options.items() if term.kind == "ready" and t.cluster.launcher == "local" else ():
                if name.endswith("_file") and not os.path.isfile(resolve(value)):
                    why, looked = "there is no such file", f"looked for {resolve(value)}"
                    yield Problem(f"{key}.{name}", value, why, looked, Stage.ROLLOUT)
            if term.kind == "function":
                file, _, name = term.reward.rpartition(":")
                if file.endswith(".py"):
                    yield from function_problems(
                        key, file, name, t.cluster.launcher == "local", t.cluster.env.get("PYTHONPATH", "")
                    )
            elif (
                term.kind == "server" and term.reward.removeprefix("server:").partition("/")[0] not in t.reward.servers
            ):
                cure = (
                    f"name it in reward.servers: {suggest(term.reward, t.reward.servers) if t.reward.servers else ''}"
                )
                yield Problem(key, term.reward, "is no server that the trial starts", cure.rstrip(": "), Stage.ROLLOUT)


def function_problems(
    key: str, file: str, name: str, is_here: bool, python_path: str | None = None
) -> Iterator[Problem]:
    """`python_path`: what the job has as PYTHONPATH beside this process's; None: imports are not looked at."""
    path = Path(resolve(file))
    if not os.path.isfile(path):
        if is_here:
            yield Problem(key, file, "there is no such file", f"looked for {path}", Stage.START)
        return
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as e:
        yield Problem(key, file, f"is no Python that can be read: {e}", "mend it", Stage.ROLLOUT)
        return
    if name not in defined(tree):
        own = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        public = [n for n in own if not n.startswith("_")] or own
        cure = suggest(name, public, file) if public else "it defines none"
        yield Problem(key, f"{file}:{name}", f"{file} has no such function", cure, Stage.ROLLOUT)
    if python_path is not None:
        yield from _neighbours(key, file, path, tree, python_path)


def _neighbours(key: str, file: str, path: Path, tree: ast.Module, python_path: str) -> Iterator[Problem]:
    """What the file imports that is found beside it alone: it is loaded by its path, without its directory."""
    if any(isinstance(n, ast.Attribute) and ast.unparse(n) == "sys.path" for n in ast.walk(tree)):
        return  # it looks after that itself
    roots = [Path(p) for p in python_path.split(os.pathsep) if p]
    for name in dict.fromkeys(_imported(tree)):
        is_found = name and (any(beside(root / "any", name) for root in roots) or find_spec(name) is not None)
        if not is_found and (not name or beside(path, name)):
            what = f"{name}, which lies beside it: it" if name else "from its own package: it"
            why = f"imports {what} is loaded by its path, without its directory"
            yield Problem(key, file, why, on_path(path.parent), Stage.ROLLOUT)


def _imported(node: ast.AST) -> Iterator[str]:
    """The first names of what is imported for certain, in no `if` or `try`; empty for a relative import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (a.name.partition(".")[0] for a in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield "" if child.level else (child.module or "").partition(".")[0]
        elif not isinstance(child, (ast.If, ast.Try)):
            yield from _imported(child)


def beside(file: Path, module: str) -> bool:
    """Whether the directory of a file has a module."""
    name = module.partition(".")[0]
    return file.with_name(f"{name}.py").is_file() or file.with_name(name).is_dir()


def on_path(directory: Path) -> str:
    """The cure where a function's file does not find its neighbours."""
    return (
        f"set cluster.env.PYTHONPATH={directory} (for `reward try`: PYTHONPATH in your shell), "
        "or install them as a package and name package.module:function"
    )


def defined(tree: ast.Module) -> list[str]:
    """What a module has by name: functions and classes, what is assigned, what is imported."""
    names = [n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    names += [
        target.id
        for n in tree.body
        if isinstance(n, ast.Assign)
        for target in n.targets
        if isinstance(target, ast.Name)
    ]
    return names + [
        a.asname or a.name for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names
    ]


def servers_can_be_started(t: Trial) -> Iterator[Problem]:
    for name, said in t.reward.servers.items():
        key = f"reward.servers.{name}"
        if not isinstance(said, dict) or not isinstance(said.get("command"), (str, list)) or not said["command"]:
            yield Problem(key, said, "says no command", "as {command: python judge.py --port {port}, health: /health}")
            continue
        for word in set(said) - set(SERVER):
            yield Problem(f"{key}.{word}", said[word], "is nothing that a server has", suggest(word, SERVER))
        ready = said.get("ready_s", 60)
        if isinstance(ready, bool) or not isinstance(ready, (int, float)) or ready <= 0:
            yield Problem(f"{key}.ready_s", ready, "is no number of seconds", "give how long it may take to be up")
    if t.reward.servers and t.cluster.launcher == "ray_job":
        why = "cannot be started on a Ray cluster that stands already"
        yield Problem(
            "reward.servers", Unsaid.VALUE, why, "start them yourself, and give URLs in reward.routes", Stage.START
        )
    try:
        asked = servers_of(read_routes(t.reward.routes))
    except BadInput:
        return
    for name in sorted(set(t.reward.servers) - asked):
        yield Problem(f"reward.servers.{name}", Unsaid.VALUE, "no route asks it", "leave it out", Stage.NEVER)


def one_reward_is_asked(t: Trial) -> Iterator[Problem]:
    """Routes, a function: each scores every row alone; and code goes to a sandbox only where verl routes it."""
    if t.reward.routes and t.reward.function_path is not None:
        why = "is never called: reward.routes are asked instead"
        yield Problem("reward.function_path", t.reward.function_path, why, "leave one of the two out", Stage.NEVER)
    if t.reward.sandbox_url is not None and (t.reward.routes or t.reward.function_path is not None):
        why = "is read by verl's own routing alone"
        yield Problem(
            "reward.sandbox_url", t.reward.sandbox_url, why, "leave it out, or take reward=sandbox", Stage.NEVER
        )
    for name in sorted(TAKEN & set(t.reward.function_kwargs)):
        why = "is the name of what verl, or the router, says of each row, and would take its place"
        yield Problem(
            f"reward.function_kwargs.{name}", t.reward.function_kwargs[name], why, "call it otherwise", Stage.ROLLOUT
        )


def reward_model_is_served(t: Trial) -> Iterator[Problem]:
    r = t.reward
    if r.model_path is None:
        return
    if not t.has_gpu:
        why, cure = "is served by vLLM or SGLang, which need GPUs", "choose a cluster with GPUs, or another reward"
        yield Problem("reward.model_path", r.model_path, why, cure, Stage.START)
    if t.algorithm.use_filter_groups and not r.model_nodes:
        why = "scores only after groups were replaced"
        cure = "give it nodes of its own (reward.model_nodes), or set algorithm.use_filter_groups=false"
        yield Problem("reward.model_path", r.model_path, why, cure, Stage.START)
    gpus = (r.model_nodes or t.cluster.nodes) * t.cluster.gpus_per_node
    if gpus % r.model_tensor:
        why = f"does not divide the {gpus} GPUs that it has"
        yield Problem("reward.model_tensor", r.model_tensor, why, "give a divisor", Stage.START)
