"""Nothing in the lock binds whoever uses hysweep more than its own licence does; weak copyleft is named here."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.contract

LOCK = Path(__file__).parents[2] / "constraints.txt"
FREE = re.compile(
    r"apache|mit\b|bsd|isc|psf|python software foundation|cnri|zlib|cc0|bsl-1\.0|mozilla|mpl-2\.0|llvm-exception", re.I
)
BOUND = re.compile(r"gpl|sspl|busl|elastic|non-?commercial|proprietary", re.I)
# used as they are, loaded at run time, none of them in the base package
WEAK = {"psycopg": "`postgres`", "psycopg-binary": "`postgres`", "pyte": "`dev`"}


def licence_of(name: str) -> str:
    about = metadata(name)
    classifiers = [c.split("::")[-1].strip() for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    said = about.get("License-Expression") or " / ".join(classifiers) or about.get("License") or ""
    return said.splitlines()[0] if said else ""


def test_every_locked_package_has_a_licence_that_lets_one_use_it() -> None:
    names = [line.partition("==")[0] for line in LOCK.read_text().splitlines() if re.match(r"[A-Za-z0-9]", line)]
    said = {}
    for name in names:
        try:
            said[name] = licence_of(name)
        except PackageNotFoundError:  # of another platform
            continue
    assert len(said) > 0.9 * len(names)
    odd = {
        name: text for name, text in said.items() if name not in WEAK and (BOUND.search(text) or not FREE.search(text))
    }
    assert not odd
    assert all("LGPL" in said[name] or "Lesser" in said[name] for name in WEAK if name in said)
