"""What a verb says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from hysweep.schema.spelled import spelled_out

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 160  # columns, where nobody looks: nothing is cut


def say(text: object = "", err: bool = False) -> None:
    """A line, or several. Whatever others wrote is in it (a sweep file, a study, a log): it cannot steer a terminal."""
    click.echo(spelled_out(str(text)), err=err)


def cell(text: str) -> str:
    """The same as a cell of rich's, to which square brackets are no markup either."""
    from rich.markup import escape

    return escape(spelled_out(text))


def console_for(err: bool = False) -> Console:
    """Where a table goes: as wide as the terminal is, and wide where it goes into a file or a pipe."""
    from rich.console import Console

    is_seen = (sys.stderr if err else sys.stdout).isatty()
    return Console(stderr=err, width=None if is_seen else WIDE)
