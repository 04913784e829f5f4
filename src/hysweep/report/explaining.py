"""What each cause of an end means and what to do about it: the pages of docs/causes, which are shipped."""

from __future__ import annotations

from importlib import resources

from hysweep.track import Cause

EXPLAINED = tuple(c for c in Cause if c is not Cause.COMPLETED)


def explanation(cause: Cause) -> str:
    """Markdown; empty for an end that needs none."""
    page = resources.files("hysweep.report") / "causes" / f"{cause}.md"
    return page.read_text(encoding="utf-8") if cause in EXPLAINED else ""
