"""An algorithm of somebody's own, in every process of verl's: imported at the end of `import verl`.

`VERL_USE_EXTERNAL_MODULES` names this module, `HYSWEEP_PLUGIN` the file, which registers what it has with verl's
decorators. It is loaded once verl's own algorithms are.
"""

from __future__ import annotations

import importlib.util
import os
import sys

FILE = "HYSWEEP_PLUGIN"


def load(path: str) -> None:
    """Run the file as a module of its own name. Raises ImportError where there is none; what it raises goes on."""
    name = f"hysweep_plugin_{os.path.splitext(os.path.basename(path))[0]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise ImportError(f"algorithm.plugin = {path}: there is no such file on {os.uname().nodename}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


load(os.environ[FILE])
