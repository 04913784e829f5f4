"""HTML in which what came from outside can only ever be text: elements, tables, JSON, CSV links."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import quote

from hysweep.report.words import csv_line
from hysweep.schema.spelled import spelled_out

# What no page may hold: control characters, and halves of characters that JSON lets through.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"br", "hr", "input", "meta", "link", "img", "col"})


class Html(str):
    """Text that is markup already. Everything else is escaped when it becomes part of an element."""

    __slots__ = ()


def text(of: object) -> Html:
    """Anything as text of a page: escaped, and without the characters that a page may not hold."""
    return Html(escape(spelled_out(_FORBIDDEN.sub("", str(of)))))


def element(tag: str, /, *children: object, **attributes: object) -> Html:
    """``element("td", 3, class_="n")``. An attribute that is None or False is left out, True stands alone.

    Names lose a trailing underscore, and inner ones become hyphens: class_, aria_label, data_value.
    """
    parts = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{text(value)}"')
    start = f"<{tag}{''.join(parts)}>"
    return Html(start if tag in _VOID else f"{start}{join(children)}</{tag}>")


def join(children: Iterable[object], separator: str = "") -> Html:
    """Markup side by side; None is nothing, plain text is escaped."""
    return Html(separator.join(c if isinstance(c, Html) else text(c) for c in children if c is not None))


def script_json(value: Any) -> Html:
    """JSON that cannot end the script element it stands in, nor be anything but JSON to a browser."""
    dumped = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for c in "<>&\u2028\u2029":
        dumped = dumped.replace(c, f"\\u{ord(c):04x}")
    return Html(dumped)


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows, and the value behind it, which sorting and the CSV file take."""

    shown: object
    value: object = None

    @property
    def raw(self) -> object:
        return self.shown if self.value is None else self.value


@dataclass(frozen=True, slots=True)
class Column:
    """is_head: its cells name their row; class_: of its cells in the page; key: its name in full, in the file."""

    name: str
    is_number: bool = False
    is_head: bool = False
    class_: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    cells: Sequence[Cell]
    id: str | None = None
    class_: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a caption, that can be sorted in the page and taken away as CSV."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row] = field(default=())

    def html(self) -> Html:
        """The table in a frame that scrolls sideways where it is wider than the page."""
        caption = element("caption", self.caption, class_="sr", id=f"{self.name}-c")
        head = element("thead", element("tr", *(self._head(c) for c in self.columns)))
        body = element("tbody", *(self._row(row) for row in self.rows))
        table = element("table", caption, head, body, id=self.name)
        return element("div", table, class_="wide", role="region", tabindex=0, aria_labelledby=f"{self.name}-c")

    def csv_link(self) -> Html:
        """The rows as a file that is part of the page itself."""
        uri = "data:text/csv;charset=utf-8," + quote(self.csv(), safe=",/:()[]=.-_", errors="replace")
        return element(
            "a",
            "CSV",
            class_="csv",
            href=uri,
            download=f"{self.name}.csv",
            aria_label=f"{self.caption}, as CSV",
        )

    def csv(self) -> str:
        head = csv_line(c.key or c.name for c in self.columns)
        return head + "".join(csv_line(cell.raw for cell in row.cells) for row in self.rows)

    @staticmethod
    def _head(column: Column) -> Html:
        button = element("button", column.name, type="button", title=column.key)
        return element("th", button, scope="col", class_="n" if column.is_number else None)

    def _row(self, row: Row) -> Html:
        cells = []
        for column, cell in zip(self.columns, row.cells, strict=True):
            value = cell.value if isinstance(cell.value, (int, float)) and not isinstance(cell.value, bool) else None
            if isinstance(value, float) and not math.isfinite(value):
                value = None
            cells.append(
                element(
                    "th" if column.is_head else "td",
                    cell.shown,
                    scope="row" if column.is_head else None,
                    class_="n" if column.is_number else column.class_,
                    data_v=value,
                )
            )
        return element("tr", *cells, id=row.id, class_=row.class_)
