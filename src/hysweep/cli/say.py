"""What a verb says."""

from __future__ import annotations

import click

from hysweep.schema.spelled import spelled_out


def say(text: object = "", err: bool = False) -> None:
    """A line, or several. Whatever others wrote is in it (a sweep file, a study, a log): it cannot steer a terminal."""
    click.echo(spelled_out(str(text)), err=err)


def cell(text: str) -> str:
    """The same as a cell of rich's, to which square brackets are no markup either."""
    from rich.markup import escape

    return escape(spelled_out(text))
