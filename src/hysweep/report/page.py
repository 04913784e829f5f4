"""The page of a study: one HTML file that holds everything, for a browser that may be offline."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from hysweep import __version__
from hysweep.report import figures
from hysweep.report.html import Html, element, script_json
from hysweep.report.records import StudyRecord, read_study
from hysweep.report.sections import SECTIONS, View, header, time_of
from hysweep.schema import BadInput, Problem
from hysweep.track import StudyDirectory, write_text


def write_page(directory: StudyDirectory, *, now: float | None = None) -> Path:
    """Write `report.html` of a study, as it stands at this moment, and return its path.

    May be called at any time, also while the sweep runs; readers see the old page or the new one. Raises BadInput
    where there is no such directory, or no plotly to take the drawing code from.
    """
    if not directory.path.is_dir():
        raise BadInput(
            Problem("study", directory.path, "there is no such directory", "give one that `hysweep run` has made")
        )
    plotly = _plotly_js()
    record = read_study(directory, metrics=figures.metric_names(), now=time.time() if now is None else now)
    write_text(directory.report_file, page(record, plotly))
    return directory.report_file


def page(record: StudyRecord, plotly: str) -> str:
    """The whole page as text. `plotly` is the source of plotly.js, which stands in it once."""
    view = View(record)
    sections = [(title, slug, body) for title, slug, make in SECTIONS if (body := make(view)) is not None]
    script = _asset("page.js")
    body = element(
        "body",
        element("a", "Skip to the results", href="#main", class_="skip"),
        element("div", header(view), class_="sheet"),
        _nav(sections) if len(sections) > 1 else None,
        element("main", *(_section(*section) for section in sections), class_="sheet", id="main"),
        element("div", _footer(view), class_="sheet"),
        element("script", script_json(view.data()), type="application/json", id="page-data"),
        # the page's script makes it a script, once the rest can be read
        element("script", Html(plotly), type="text/plain", id="plotly-source"),
        element("script", Html(script)),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _policy(plotly, script),
        element("meta", name="generator", content=f"hysweep {__version__}"),
        element("title", f"{record.name} – hysweep"),
        element("style", Html(_asset("page.css"))),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _nav(sections: Iterable[tuple[str, str, object]]) -> Html:
    links = (element("li", element("a", title, href=f"#{slug}")) for title, slug, _ in sections)
    return element("nav", element("ul", *links, class_="sheet"), aria_label="Sections")


def _section(title: str, slug: str, body: Html) -> Html:
    return element("section", element("h2", title, id=f"{slug}-h"), body, id=slug, aria_labelledby=f"{slug}-h")


def _footer(view: View) -> Html:
    record = view.record
    made = (f"Made by hysweep {__version__} from ", element("code", record.directory.path), " at ")
    return element(
        "footer",
        element("p", *made, time_of(record.read_at), ". Everything is in this file; it loads nothing."),
        element("noscript", element("p", "Figures and sorting need JavaScript; the tables do not.")),
    )


def _policy(*scripts: str) -> Html:
    """Only these very scripts may run and nothing may be loaded, even if some text were to break out."""
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{h}'" for h in hashes)
    content = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return element("meta", http_equiv="Content-Security-Policy", content=content)


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as e:
        cure = "pip install 'hysweep[report]'"
        raise BadInput(Problem("report", "report.html", "the page needs plotly, which is not installed", cure)) from e
    return _inline(str(get_plotlyjs()))


def _asset(name: str) -> str:
    return _inline((resources.files("hysweep.report") / "assets" / name).read_text(encoding="utf-8"))


def _inline(source: str) -> str:
    """Source that can stand inside an element of its own, byte for byte as a browser will read it."""
    return re.sub(r"</(?=script|style)", r"<\\/", source.replace("\r\n", "\n"), flags=re.IGNORECASE)
