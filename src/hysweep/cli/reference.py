"""docs/verbs.md, made of the command line: ``python -m hysweep.cli.reference > docs/verbs.md``."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hysweep.cli import hysweep

HEAD = """# Every verb

Made of the command line itself. Exit codes of all: 0 done · 1 the answer is no (problems found, nothing completed) ·
2 the question could not be taken · 130 interrupted, a clean detach too. With 2 the reason is on stderr and nothing on
stdout, with `--json` too; but a study that the scheduler refuses in the middle (`run`, `resume`) has said how it
stands.
"""


def verbs(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def reference() -> str:
    parts = [HEAD]
    for name, command in verbs(hysweep, "hysweep"):
        parent, _, word = name.rpartition(" ")
        context = click.Context(
            command,
            info_name=word,
            parent=click.Context(hysweep, info_name=parent),
            terminal_width=100,
            max_content_width=100,
            help_option_names=["-h", "--help"],
        )
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        parts.append(f"## {name.removeprefix('hysweep ')}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(reference(), end="")
