"""`hysweep explain`: the page of a cause of failure."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown

from hysweep.cli.say import say
from hysweep.report.explaining import EXPLAINED, explanation
from hysweep.schema import BadInput, Problem, suggest
from hysweep.track import Cause


def explain(cause: str | None) -> None:
    """Raises BadInput for a cause that there is not."""
    if cause is None:
        for known in EXPLAINED:
            say(f"{known:14}{explanation(known).splitlines()[0].partition(': ')[2]}")
        return
    if cause not in list(EXPLAINED):
        raise BadInput(
            Problem("CAUSE", cause, "is no cause of an end", suggest(cause, list(EXPLAINED), "`hysweep explain`"))
        )
    console = Console()
    if console.is_terminal:
        console.print(Markdown(explanation(Cause(cause)), hyperlinks=False))
    else:
        say(explanation(Cause(cause)).rstrip("\n"))
