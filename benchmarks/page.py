"""docs/benchmarks.md has what the benchmarks printed: they are run, recorded, and put into the page.

    python benchmarks/page.py                     the page anew, from what is recorded
    python benchmarks/page.py ray_boot data...    these are run first; what they print is recorded

A figure stands between `<!-- figure: NAME -->` and `<!-- end -->`, with its command, the machine and the day.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
RECORDED = HERE / "recorded" / "figures"
# What each is run with; those of a real cluster want root and an idle machine.
COMMANDS = {
    "startup": ["3"],
    "layouts": ["2"],
    "controller": ["50", "1000"],
    "data": ["1000000"],
    "search": [],
    "simulate": [],
    "makespan": [],
    "ray_boot": ["3"],
}
FIGURE = re.compile(r"(?<=<!-- figure: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def record(name: str) -> None:
    """Run it; its output is kept if it ran to its end. One that misses its aim (exit code 1) is kept as well."""
    words = ["python", f"benchmarks/{name}.py", *COMMANDS[name]]
    done = subprocess.run([sys.executable, *words[1:]], cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise SystemExit(f"{' '.join(words)} ended with exit code {done.returncode}; nothing is recorded")
    RECORDED.mkdir(parents=True, exist_ok=True)
    head = f"$ {' '.join(words)}\n# {machine()}, {datetime.date.today()}\n"
    (RECORDED / f"{name}.txt").write_text(head + done.stdout, encoding="utf-8")


def machine() -> str:
    """The processor, the system, and the versions that a figure depends on."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    found = [
        f"{os.cpu_count()} cores of {model}",
        platform.freedesktop_os_release()["PRETTY_NAME"],
        f"Python {platform.python_version()}",
    ]
    found += [f"{name} {version(name)}" for name in ("hydra-core", "optuna", "submitit", "ray")]
    if shutil.which("slurmctld"):
        found.append(subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout.strip())
    return ", ".join(found)


def filled(page: str) -> str:
    """The page with every figure as it is recorded."""

    def figure(match: re.Match[str]) -> str:
        text = (RECORDED / f"{match[1]}.txt").read_text(encoding="utf-8")
        return f"{match[1]}{match[2]}\n```text\n{text.rstrip()}\n```\n\n"

    return FIGURE.sub(figure, page)


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - set(COMMANDS):
        raise SystemExit(f"there is no benchmark {', '.join(sorted(unknown))}: choose of {', '.join(COMMANDS)}")
    for each in sys.argv[1:]:
        record(each)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
